r"""Many INRs, one gradient: batched products, a hand-derived backward pass and Adam on one flat buffer.

With :math:`z_l = w_0 (W_l a_{l-1} + b_l)`, :math:`a_l = \sigma(z_l)` and the mean squared error :math:`\ell`,

.. math::

    D_l = \partial \ell / \partial z_l = (\partial \ell / \partial a_l) \odot \sigma'(z_l), \quad
    \partial \ell / \partial W_l = w_0 D_l a_{l-1}^\top, \quad
    \partial \ell / \partial b_l = w_0 D_l 1, \quad
    \partial \ell / \partial a_{l-1} = w_0 W_l^\top D_l.

The first sine layer of an image grid needs few sines: :math:`\sin(\alpha_i + \beta_j) = \sin \alpha_i \cos \beta_j +
\cos \alpha_i \sin \beta_j` makes it, and its slope, a sum of two outer products.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .conventions import Inr

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
# Below this many pixels a direct sine is faster than two outer products.
SMALLEST_GRID = 256


@dataclass(frozen=True)
class Grid:
    """Coordinates that are a product: ``fast`` varies within a row of pixels, ``slow`` from row to row."""

    fast: Tensor
    slow: Tensor
    fast_column: int


def find_grid(points: Tensor) -> Grid | None:
    """The product structure of coordinates (N, 2), or None where there is none.

    >>> from scalegmn.zoo.inr.conventions import coordinates
    >>> grid = find_grid(coordinates(4, 6))
    >>> (len(grid.fast), len(grid.slow), grid.fast_column)
    (6, 4, 0)
    """
    for column in (0, 1):
        slow = points[:, 1 - column]
        changes = torch.nonzero(slow != slow[0])
        width = int(changes[0]) if len(changes) else len(points)
        if width < 2 or len(points) % width:
            continue
        table = points.reshape(-1, width, 2)
        fast, slow = table[:1, :, column], table[:, :1, 1 - column]
        if torch.equal(table[..., column], fast.expand(len(table), -1)) and torch.equal(
            table[..., 1 - column], slow.expand(-1, width)
        ):
            return Grid(fast[0].contiguous(), slow[:, 0].contiguous(), column)
    return None


class Layers:
    """Weights (B, out, in) and biases (B, out) of every layer as contiguous views of one buffer of B * P numbers.

    The buffer holds layer after layer, each for all networks, because batched products are fast only on contiguous
    results. The first weight lies transposed: with two inputs that is several times faster.
    """

    def __init__(self, count: int, sizes: tuple[int, ...], like: Tensor) -> None:
        pairs = list(pairwise(sizes))
        self.flat = like.new_zeros(count * sum((a + 1) * b for a, b in pairs))
        blocks = torch.split(self.flat, [count * n for a, b in pairs for n in (a * b, b)])
        self.first = blocks[0].view(count, sizes[0], sizes[1])
        weights = [block.view(count, b, a) for block, (a, b) in zip(blocks[2::2], pairs[1:], strict=True)]
        self.weights = [self.first.mT, *weights]
        self.biases = [block.view(count, b) for block, (_, b) in zip(blocks[1::2], pairs, strict=True)]

    def read(self) -> Tensor:
        """A copy as rows of W1, b1, W2, b2, ..., (B, P)."""
        pairs = zip(self.weights, self.biases, strict=True)
        return torch.cat([part for weight, bias in pairs for part in (weight.flatten(1), bias)], dim=1)

    def write(self, rows: Tensor) -> None:
        """The inverse of :meth:`read`."""
        start = 0
        for weight, bias in zip(self.weights, self.biases, strict=True):
            middle = start + weight[0].numel()
            weight.copy_(rows[:, start:middle].unflatten(1, weight.shape[1:]))
            start = middle + bias.shape[1]
            bias.copy_(rows[:, middle:start])


class Engine:
    """Parameters, activations and moments of B networks, all allocated once.

    Arguments:
        shape: The network.
        points: Coordinates, (N, 2).
        targets: What the last linear layer must give, (B, channels, N).
        parameters: Initial parameters, (B, P), in W1, b1, ... order.
    """

    def __init__(self, shape: Inr, points: Tensor, targets: Tensor, parameters: Tensor) -> None:
        self.shape = shape
        self.targets = targets
        self.points = points.to(targets)
        count, pixels = len(targets), len(points)
        self.theta = Layers(count, shape.sizes, targets)
        self.theta.write(parameters.to(targets))
        self.gradient = Layers(count, shape.sizes, targets)
        self.first_moment = torch.zeros_like(self.theta.flat)
        self.second_moment = torch.zeros_like(self.theta.flat)
        self.scratch = torch.empty_like(self.theta.flat)
        self.step = 0
        self.error = torch.empty_like(targets)
        self.inputs = self.points.T.repeat(count, 1, 1)
        self.activations = [targets.new_empty(count, n, pixels) for n in shape.hidden]
        self.slopes = [targets.new_empty(count, n, pixels) for n in shape.hidden]
        self.upstream = targets.new_empty(count * max(shape.hidden) * pixels)
        on_grid = shape.activation == "sine" and pixels >= SMALLEST_GRID
        self.grid = find_grid(self.points) if on_grid else None

    def forward(self) -> None:
        """Evaluates all networks and leaves prediction minus target in ``error``."""
        if self.grid is None:
            self._hidden(0, self.inputs)
        else:
            self._first_on_grid(self.grid)
        for layer in range(1, len(self.activations)):
            self._hidden(layer, self.activations[layer - 1])
        weight, bias = self.theta.weights[-1], self.theta.biases[-1]
        torch.baddbmm(bias[..., None], weight, self.activations[-1], out=self.error).sub_(self.targets)

    def _hidden(self, layer: int, below: Tensor) -> None:
        """One hidden layer: its activation, and the slope of its activation."""
        z, out, w0 = self.slopes[layer], self.activations[layer], self.shape.w0
        weight, bias = self.theta.weights[layer], self.theta.biases[layer]
        torch.baddbmm(bias[..., None], weight, below, beta=w0, alpha=w0, out=z)
        if self.shape.activation == "sine":
            torch.sin(z, out=out)
            torch.cos(z, out=z)
        elif self.shape.activation == "relu":
            torch.clamp(z, min=0, out=out)
            torch.gt(z, 0, out=z)
        else:
            torch.tanh(z, out=out)
            torch.mul(out, out, out=z).neg_().add_(1)

    def _first_on_grid(self, grid: Grid) -> None:
        """The first sine layer and its slope from sines and cosines along the two sides of the grid."""
        weight, bias = self.theta.first * self.shape.w0, self.theta.biases[0] * self.shape.w0
        alpha = torch.addcmul(bias[..., None], weight[:, grid.fast_column, :, None], grid.fast)[:, :, None]
        beta = (weight[:, 1 - grid.fast_column, :, None] * grid.slow)[..., None]
        sine, cosine, sine_slow, cosine_slow = alpha.sin(), alpha.cos(), beta.sin(), beta.cos()
        sides = (len(grid.slow), len(grid.fast))
        torch.mul(sine, cosine_slow, out=self.activations[0].unflatten(2, sides)).addcmul_(cosine, sine_slow)
        torch.mul(cosine, cosine_slow, out=self.slopes[0].unflatten(2, sides)).addcmul_(sine, sine_slow, value=-1)

    def mean_squared_error(self) -> Tensor:
        """Of the last forward pass, (B,)."""
        return self.error.square().mean(dim=(1, 2))

    def backward(self) -> None:
        """The gradient of each network's mean squared error, from the last forward pass."""
        scale = 2 / (self.error.shape[1] * self.error.shape[2])
        self._gradient(len(self.activations), self.error, self.activations[-1], scale)
        delta, rows = self._last_delta(scale)
        for layer in range(len(self.activations) - 1, 0, -1):
            self._gradient(layer, delta, self.activations[layer - 1], self.shape.w0, rows)
            weight = self.theta.weights[layer]
            delta = self._delta(layer - 1, weight if rows is None else weight * rows, delta, self.shape.w0)
            rows = None
        self._gradient(0, delta, self.inputs, self.shape.w0, rows)

    def _gradient(self, layer: int, delta: Tensor, below: Tensor, scale: float, rows: Tensor | None = None) -> None:
        """Weight and bias gradients of a layer whose D is ``rows * delta``."""
        weight, bias = self.gradient.weights[layer], self.gradient.biases[layer]
        torch.sum(delta, dim=2, out=bias).mul_(scale)
        if layer == 0:
            self.gradient.first.baddbmm_(below, delta.mT, beta=0, alpha=scale)
        else:
            weight.baddbmm_(delta, below.mT, beta=0, alpha=scale)
        if rows is not None:
            weight.mul_(rows)
            bias.mul_(rows[..., 0])

    def _last_delta(self, scale: float) -> tuple[Tensor, Tensor | None]:
        """D of the last hidden layer, as (delta, rows) with D = rows * delta.

        With one colour D is the outer product of the output weights and the error, times the slope. The weights are
        left out of the large array and multiplied into the small matrices that it meets.
        """
        weight = self.theta.weights[-1]
        if weight.shape[1] > 1:
            return self._delta(len(self.slopes) - 1, weight, self.error, scale), None
        return self.slopes[-1].mul_(self.error), weight.mT * scale

    def _delta(self, layer: int, weight_above: Tensor, delta_above: Tensor, scale: float) -> Tensor:
        """D of a hidden layer from that of the layer above it, in the place of the slope."""
        slope = self.slopes[layer]
        upstream = self.upstream[: slope.numel()].view(slope.shape)
        return slope.mul_(upstream.baddbmm_(weight_above.mT, delta_above, beta=0, alpha=scale))

    def adam(self, lr: float) -> None:
        """One step of Adam (Kingma & Ba, 2015) with the last gradient."""
        self.step += 1
        gradient = self.gradient.flat
        self.first_moment.lerp_(gradient, 1 - BETA1)
        self.second_moment.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        root = math.sqrt(1 - BETA2**self.step)
        torch.sqrt(self.second_moment, out=self.scratch).add_(EPSILON * root)
        self.theta.flat.addcdiv_(self.first_moment, self.scratch, value=-lr * root / (1 - BETA1**self.step))

    def keep(self, rows: Tensor) -> "Engine":
        """The same optimisation for some of the networks.

        Arguments:
            rows: Which networks, their positions.
        """
        part = Engine(self.shape, self.points, self.targets[rows], self.theta.read()[rows])
        layout = Layers(len(self.targets), self.shape.sizes, self.targets)
        small = Layers(len(rows), self.shape.sizes, self.targets)
        for old, new in ((self.first_moment, part.first_moment), (self.second_moment, part.second_moment)):
            layout.flat.copy_(old)
            small.write(layout.read()[rows])
            new.copy_(small.flat)
        part.step = self.step
        return part
