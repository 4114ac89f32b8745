"""Probe features: the responses of a network's neurons to learned inputs."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.doubles import double
from ..core.evaluate import input_dimensions, respond, respond_with_gradients, spatial_mean
from ..core.networks import Networks
from ..errors import ScaleGMNError

# Networks that are measured together: maps of images at many probes are large.
_AT_ONCE = 32
# The size of latents, and the channels of the last but one map to images; earlier maps have more.
LATENT, WIDTH = 32, 16


class ImageGenerator(nn.Module):
    """Probe images: transposed convolutions without activations, from learned latents, and one tanh at the end.

    Depth adds no functions, but it biases gradient descent towards images that share structure (Kahana et al. 2024).

    Arguments:
        probes: Their number.
        channels: Of the images.
        image: Height and width of the images, or the length of signals.

    >>> ImageGenerator(16, 3, (28, 28))().shape
    torch.Size([16, 3, 28, 28])
    """

    def __init__(self, probes: int, channels: int, image: tuple[int, ...]) -> None:
        super().__init__()
        self.image = image
        self.latents = nn.Parameter(torch.randn(probes, LATENT, *[1] * len(image)))
        conv = nn.ConvTranspose1d if len(image) == 1 else nn.ConvTranspose2d
        doublings = max(0, -(-max(image) // 4) - 1).bit_length()
        widths = [WIDTH * 2**i for i in reversed(range(doublings + 1))]
        maps: list[nn.Module] = [conv(LATENT, widths[0], 4)]
        maps += [conv(i, o, 4, 2, 1) for i, o in pairwise(widths)]
        self.maps = nn.Sequential(*maps, conv(widths[-1], channels, 3, 1, 1), nn.Tanh())

    def forward(self) -> Tensor:
        """The probes (probes, channels, height, width), or (probes, channels, length)."""
        maps: Tensor = self.maps(self.latents)
        for dim, side in enumerate(self.image, 2):
            maps = maps.narrow(dim, (maps.shape[dim] - side) // 2, side)
        return maps


class Probes(nn.Module):
    """Learned inputs; responses of neurons move as q and enter the vertices, output gradients as 1/q.

    (Probing: Kofinas et al. 2024.) Points are learned freely, images and signals through an `ImageGenerator`: free
    pixels stay noise, to which convolutions answer much the same. Maps of convolutions are averaged over space.

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
        self.count = count
        self.inputs = None if image else nn.Parameter(2 * torch.rand(count, size) - 1)
        self.images = ImageGenerator(count, size, image) if image else None
        depth = max(len(a.layers) for a in architectures)
        self.register_buffer("gain", torch.ones(depth))
        self.register_buffer("gradient_gain", torch.ones(depth))

    def extra_repr(self) -> str:
        return f"{self.count}"

    def forward(self) -> Tensor:
        """The probes (P, inputs), (P, channels, length) or (P, channels, height, width)."""
        found: Tensor | None = self.inputs if self.images is None else self.images()
        assert found is not None
        return found

    def responses(self, networks: Networks) -> list[Tensor]:
        """Every neuron's responses to the probes, per layer (B, n, P), moving as q; outputs at the output layer."""
        r = respond(networks.architecture, networks.views, self._given(networks))
        return self._scaled([*r.pre[:-1], r.post[-1]], self.gain, len(networks))

    def outputs(self, networks: Networks) -> list[Tensor]:
        """The post-activations at the probes, per layer (B, n, P)."""
        r = respond(networks.architecture, networks.views, self._given(networks))
        return self._scaled(r.post, self.gain, len(networks))

    def responses_and_gradients(self, networks: Networks) -> tuple[list[Tensor], list[Tensor]]:
        """`responses`, and per layer the gradients (B, n, P) of the summed outputs, moving as 1/q."""
        r, g = respond_with_gradients(networks.architecture, networks.views, self._given(networks))
        batch = len(networks)
        return (self._scaled([*r.pre[:-1], r.post[-1]], self.gain, batch), self._scaled(g, self.gradient_gain, batch))

    def _given(self, networks: Networks) -> Tensor:
        probes: Tensor = self()
        return probes.to(networks.dtype).unsqueeze(0)

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
