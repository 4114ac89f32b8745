"""Probe features: the responses of a network's neurons to learned inputs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.doubles import double
from ..core.evaluate import input_dimensions, respond, respond_with_gradients, spatial_mean
from ..core.networks import Networks
from ..errors import ScaleGMNError

# Networks that are measured together: maps of images at many probes are large.
_AT_ONCE = 32


class Probes(nn.Module):
    """Learned inputs; responses of neurons move as q and enter the vertices, output gradients as 1/q.

    (Probing: Kofinas et al. 2024; Kahana et al. 2024.) Maps of convolutions are averaged over space.

    Arguments:
        architectures: They must agree in their inputs.
        count: Number of inputs P.
        image: Spatial shape of the inputs, for convolutional networks.

    >>> siren = Architecture.mlp([2, 8, 1], "sine")
    >>> probes = Probes([siren], 16)
    >>> [tuple(r.shape) for r in probes.responses(Networks(siren, torch.randn(5, siren.parameters)))]
    [(5, 2, 16), (5, 8, 16), (5, 1, 16)]
    """

    gain: Tensor
    gradient_gain: Tensor

    def __init__(self, architectures: Sequence[Architecture], count: int, *, image: tuple[int, ...] = ()) -> None:
        super().__init__()
        sizes = {(a.layers[0].size, input_dimensions(a)) for a in architectures}
        if len(sizes) != 1:
            raise ScaleGMNError(
                f"probes: networks with different inputs have none in common, got (inputs, dimensions) "
                f"{sorted(sizes)}; use probes = 0"
            )
        ((size, dimensions),) = sizes
        if len(image) != dimensions:
            raise ScaleGMNError(
                f"probes: expected an image shape of {dimensions} dimension(s) for these architectures, got {image}"
            )
        self.inputs = nn.Parameter(2 * torch.rand(count, size, *image) - 1)
        depth = max(len(a.layers) for a in architectures)
        self.register_buffer("gain", torch.ones(depth))
        self.register_buffer("gradient_gain", torch.ones(depth))

    def extra_repr(self) -> str:
        return f"{tuple(self.inputs.shape)}"

    @property
    def count(self) -> int:
        """The number of probes P."""
        return self.inputs.shape[0]

    def responses(self, networks: Networks) -> list[Tensor]:
        """Every neuron's responses to the probes, per layer (B, n, P), moving as q; outputs at the output layer."""
        x = self.inputs.to(networks.dtype).unsqueeze(0)
        r = respond(networks.architecture, networks.views, x)
        return self._scaled([*r.pre[:-1], r.post[-1]], self.gain, len(networks))

    def outputs(self, networks: Networks) -> list[Tensor]:
        """The post-activations at the probes, per layer (B, n, P)."""
        x = self.inputs.to(networks.dtype).unsqueeze(0)
        return self._scaled(respond(networks.architecture, networks.views, x).post, self.gain, len(networks))

    def responses_and_gradients(self, networks: Networks) -> tuple[list[Tensor], list[Tensor]]:
        """`responses`, and per layer the gradients (B, n, P) of the summed outputs, moving as 1/q."""
        x = self.inputs.to(networks.dtype).unsqueeze(0)
        r, g = respond_with_gradients(networks.architecture, networks.views, x)
        batch = len(networks)
        return (self._scaled([*r.pre[:-1], r.post[-1]], self.gain, batch), self._scaled(g, self.gradient_gain, batch))

    def _scaled(self, values: Sequence[Tensor], gain: Tensor, batch: int) -> list[Tensor]:
        return [gain[i].to(v) * spatial_mean(v).expand(batch, -1, -1).transpose(1, 2) for i, v in enumerate(values)]

    @torch.no_grad()
    def measure(self, training: Sequence[Networks]) -> None:
        """Bring responses and gradients to a common size with one constant per layer."""
        self.gain.fill_(1)
        self.gradient_gain.fill_(1)
        sizes: dict[tuple[int, int], list[Tensor]] = {}
        parts = (networks[i : i + _AT_ONCE] for networks in training for i in range(0, len(networks), _AT_ONCE))
        for networks in parts:
            for which, values in enumerate(self.responses_and_gradients(networks)):
                for i, v in enumerate(values):
                    size = double(v.flatten(1)).square().mean(1).sqrt()
                    sizes.setdefault((which, i), []).append(size[size > 0])
        for (which, i), found in sizes.items():
            joined = torch.cat(found)
            if len(joined):
                (self.gain, self.gradient_gain)[which][i] = 1 / joined.log().mean().exp()
