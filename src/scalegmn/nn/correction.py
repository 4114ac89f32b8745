"""Corrections: Gauss-Newton steps of networks towards wishes for their outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core.architecture import Architecture
from ..core.canonical import scaling
from ..core.doubles import double
from ..core.networks import Networks
from ..errors import ScaleGMNError
from .tangent import OutputRows, Tangent, curved

# Of a factorisation that rounding has spoilt: how often it is tried again, each time with ten times as much added.
_TRIES = 6
# Networks that are measured, or corrected without gradients, together: a kernel has 256 x 256 numbers.
_AT_ONCE = 256


class Wish(nn.Module):
    r"""What outputs should become: \(w = y + s \, \mathrm{MLP}((y - \mu) / s)\), of all rows at once; w = y at first.

    Arguments:
        points: Number of inputs P.
        outputs: Number of outputs c; the mean and the size s of each are measured.
        hidden: Width of the two hidden layers.

    >>> y = torch.randn(4, 32)
    >>> torch.equal(Wish(16, 2, hidden=8)(y), y)
    True
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, points: int, outputs: int, *, hidden: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(outputs, 1))
        self.register_buffer("scale", torch.ones(outputs, 1))
        rows, last = points * outputs, nn.Linear(hidden, points * outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.net = nn.Sequential(nn.Linear(rows, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last)

    def forward(self, y: Tensor) -> Tensor:
        """The wish for rows of outputs (B, c P)."""
        apart = y.unflatten(1, (len(self.mean), -1))
        change = self.net(((apart - self.mean) / self.scale).flatten(1)).view_as(apart)
        wish: Tensor = (apart + self.scale * change).flatten(1)
        return wish

    @torch.no_grad()
    def measure(self, y: Tensor) -> None:
        """Look at rows of outputs (B, c P) of training networks."""
        apart = double(y).unflatten(1, (len(self.mean), -1))
        self.mean.copy_(apart.mean((0, 2))[:, None])
        size = apart.std((0, 2), correction=0)[:, None]
        self.scale.copy_(torch.where((size > 0) & size.isfinite(), size, 1.0))


class Correction(nn.Module):
    r"""Gauss-Newton steps of networks towards a wish w for the outputs at learned points.

    \(\theta \leftarrow \theta + M J^\top (J M J^\top + \lambda \kappa I)^{-1} (w - y)\), with the outputs y at the
    points and their Jacobian J, the mean \(\kappa\) of the diagonal of \(J M J^\top\), and for every step a learned
    \(\lambda\) and a learned number M for every tensor of parameters. The wish is computed once, from the outputs of
    the original network. Steps commute with permutations and signs; positive scales are removed by the network's
    standard scales (`canonical.scaling`) and put back afterwards.
    (Gauss-Newton in function space: Martens, JMLR 2020.)

    Arguments:
        architectures: They must agree in their inputs and outputs.
        steps: Number of steps.
        points: Number of learned inputs.
        hidden: Width of the wish.

    >>> siren = Architecture.mlp([2, 8, 1], "sine")
    >>> correct = Correction([siren], steps=2, points=16)
    >>> networks = Networks(siren, torch.randn(3, siren.parameters))
    >>> torch.allclose(correct(networks).parameters, networks.parameters)  # the wish is what they have
    True
    """

    def __init__(
        self, architectures: Sequence[Architecture], *, steps: int, points: int = 256, hidden: int = 512
    ) -> None:
        super().__init__()
        ends = {(a.layers[0].size, a.layers[-1].size) for a in architectures}
        if len(ends) != 1:
            raise ScaleGMNError(
                f"corrections: expected networks with the same inputs and outputs, got (inputs, outputs) "
                f"{sorted(ends)}; use corrections = 0"
            )
        (self.ends,) = ends
        inputs, outputs = self.ends
        start = torch.quasirandom.SobolEngine(inputs, scramble=True, seed=0).draw(points)
        self.points = nn.Parameter(2 * start - 1)
        self.wish = Wish(points, outputs, hidden=hidden)
        self.log_metric = nn.Parameter(torch.zeros(steps, max(len(a.segments) for a in architectures)))
        self.log_damping = nn.Parameter(torch.full((steps,), 0.1).log())
        reason = next((reason for reason in map(self.reads, architectures) if reason is not None), None)
        if reason is not None:
            raise ScaleGMNError(reason)

    def extra_repr(self) -> str:
        return f"{len(self.log_damping)} steps, {len(self.points)} points"

    def reads(self, architecture: Architecture) -> str | None:
        """Why networks of an architecture cannot be corrected; None if they can."""
        a, given = architecture, (architecture.layers[0].size, architecture.layers[-1].size)
        reason = curved(a)
        if reason is not None:
            return f"corrections: expected dense layers, got {reason} in {a}; use corrections = 0"
        if given != self.ends or len(a.segments) > self.log_metric.shape[1]:
            most = f"{self.log_metric.shape[1]} tensors of parameters"
            return f"corrections: expected (inputs, outputs) {self.ends} and at most {most}, got {a}"
        return None

    @torch.no_grad()
    def measure(self, training: Sequence[Networks]) -> None:
        """Measure the outputs of training networks."""
        rows = self._rows()
        parts = (networks[i : i + _AT_ONCE] for networks in training for i in range(0, len(networks), _AT_ONCE))
        self.wish.measure(torch.cat([rows.of(networks) for networks in parts]))

    def forward(self, networks: Networks) -> Networks:
        """The networks after all steps."""
        reason = self.reads(networks.architecture)
        if reason is not None:
            raise ScaleGMNError(reason)
        if len(networks) > _AT_ONCE and not torch.is_grad_enabled():
            parts = [networks[i : i + _AT_ONCE] for i in range(0, len(networks), _AT_ONCE)]
            return networks.replace(torch.cat([self(part).parameters for part in parts]))
        # Factorisations need more than 16 bits.
        with torch.autocast(networks.device.type, enabled=False):
            rows = self._rows()
            wish = self.wish(rows.of(networks))
            if not any(g.scales for g in networks.architecture.groups):
                return self._steps(networks, rows, wish)
            standard = scaling(networks)
            return standard.inverse().apply(self._steps(standard.apply(networks), rows, wish))

    def _steps(self, networks: Networks, rows: OutputRows, wish: Tensor) -> Networks:
        sizes = torch.tensor([s.size for s in networks.architecture.segments], device=networks.device)
        for log_metric, log_damping in zip(self.log_metric, self.log_damping, strict=True):
            tangent = Tangent.at(networks, rows)
            metric = log_metric[: len(sizes)].exp()
            alpha = damped_solve(tangent, wish - tangent.outputs, metric, log_damping.exp())
            networks = networks.replace(networks.parameters + metric.repeat_interleave(sizes) * tangent.pull(alpha))
        return networks

    def _rows(self) -> OutputRows:
        return OutputRows(self.points, self.ends[1])


def damped_solve(tangent: Tangent, r: Tensor, metric: Tensor, damping: Tensor) -> Tensor:
    r"""\(\alpha = A^{-1} r\) with \(A = J M J^\top + \lambda \kappa I\), differentiable in everything.

    A is built and factorised without a graph of gradients. One round of iterative refinement,
    \(\alpha + A^{-1} (r - A \alpha)\) with products of J and constants \(\alpha, A^{-1}\) on the right, has the
    derivative \(A^{-1} (dr - dA \, \alpha)\) of the solution: no (R, R) matrix has a gradient.

    Arguments:
        tangent: The Jacobian J, R rows.
        r: Right sides (B, R).
        metric: A positive number for every tensor of parameters (segments,).
        damping: The number lambda, relative to the mean of the diagonal of the kernel.

    >>> a = Architecture.mlp([2, 8, 1], "tanh")
    >>> tangent = Tangent.at(Networks(a, torch.randn(3, a.parameters)), OutputRows(torch.rand(5, 2), 1))
    >>> damped_solve(tangent, torch.ones(3, 5), torch.ones(4), torch.tensor(0.1)).shape
    torch.Size([3, 5])
    """
    with torch.no_grad():
        factor, more = _factorised(tangent.kernel(metric), damping * tangent.diagonal(metric).mean(1))
        alpha = _solved(factor, r)
    sizes = torch.tensor([s.size for s in tangent.architecture.segments], device=r.device)
    shift = damping * tangent.diagonal(metric).mean(1) + more
    product = tangent.push(metric.repeat_interleave(sizes) * tangent.pull(alpha)) + shift[:, None] * alpha
    return alpha + _solved(factor, r - product)


def _solved(factor: Tensor, r: Tensor) -> Tensor:
    return torch.cholesky_solve(r[..., None], factor)[..., 0]


def _factorised(kernel: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The Cholesky factors of kernels (B, R, R) + shift I, and what was added besides where rounding asked for it."""
    tiny = torch.finfo(kernel.dtype).tiny
    more = torch.where(shift > 0, 0.0, tiny**0.25)
    diagonal = torch.diagonal(kernel, dim1=1, dim2=2)
    diagonal += (shift + more)[:, None]
    factor, failed = torch.linalg.cholesky_ex(kernel)
    least = torch.finfo(kernel.dtype).eps * diagonal.mean(1)
    for _ in range(_TRIES):
        if not failed.any():
            break
        extra = torch.where(failed > 0, torch.maximum(least, 9 * more), 0.0)
        diagonal += extra[:, None]
        more = more + extra
        factor, failed = torch.linalg.cholesky_ex(kernel)
    return factor, more
