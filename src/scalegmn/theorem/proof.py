r"""The weights and functions of the paper's proof that ScaleGMN simulates the networks it reads (A.6.2).

A vertex state is

    [ bias | pre-activations | post-activations | gradients at pre-activations | gradients at post-activations ]

with one channel per input in each part except the first; with a dual stream, dual states hold the gradients.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..core.activations import Activation
from ..core.groups import Group
from ..native.formula import NONE, Edge, gated
from ..native.unit import unit
from ..nn.body import MessagePassing
from ..nn.encoding import AugmentedStates, reciprocal
from ..nn.invariant import GatedProduct, Invariant
from ..nn.layers import DualLayer, GraphLayer, ReciprocalLayer, SharedLayer
from ..nn.message import EdgeUpdate, Message, Update
from ..nn.scale import ScaleEquivariant, ScaleInvariants


class StateChannels:
    """The parts of a vertex state: slices `pre`, `post`, `pre_gradient` and `post_gradient` after the bias.

    Arguments:
        count: Number of inputs; messages use the first `count` channels.
    """

    def __init__(self, count: int) -> None:
        self.count, self.width = count, 1 + 4 * count
        parts = (slice(1 + i * count, 1 + (i + 1) * count) for i in range(4))
        self.pre, self.post, self.pre_gradient, self.post_gradient = parts


class AnalyticInvariant(Invariant):
    r"""A scale invariant net with a given function in place of its MLP.

    \(\rho(\tilde x) = f(\tilde x)\) with \(\tilde x = x / \|x\|\) for scales, and \((f(x) + f(-x)) / 2\) for signs:
    invariant whatever f is.

    Arguments:
        group: The group.
        function: f, of a list of vectors.
        canonical: Whether arguments are canonicalised; without it nothing is guaranteed (see docs/theorem.md).
    """

    def __init__(self, group: Group, function: Callable[[Sequence[Tensor]], Tensor], *, canonical: bool = True) -> None:
        super().__init__()
        self.group = group
        self.function = function
        self.canonical = canonical

    def forward(self, xs: Sequence[Tensor]) -> Tensor:
        """Apply to vectors (..., n_i)."""
        if not self.canonical:
            return self.function(xs)
        xs = [unit(x) for x in xs] if self.group.scales else xs
        y = self.function(xs)
        return (y + self.function([-x for x in xs])) / 2 if self.group.signs else y

    def times(self, p: GatedProduct) -> Tensor:
        x = p.x.dense()
        return p.of(self([x, *p.companions]), Edge(x))


class Analytic(nn.Module):
    """A given function in place of the MLP of input or output neurons."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        return self.function(x)

    def on_edges(self, x: Edge, contexts: Sequence[Tensor] = (), *, reduce: int = NONE) -> Tensor:
        """The same for vectors on edges (B, n_t, n_s, k), or the sum over one end."""
        assert not contexts
        return gated(None, self(x.dense()), reduce=reduce)


def set_start(body: MessagePassing, c: StateChannels, inputs: Tensor, cotangent: Tensor) -> None:
    """Positional encodings hold inputs and output gradients; hidden neurons start from their biases."""
    body.positions.input[:, : c.count] = inputs.T
    body.positions.output[:, : c.count] = cotangent.T
    init = body.init
    assert isinstance(init, AugmentedStates)
    _set_gamma(init.vertex, [(slice(0, 1), slice(0, 1))])
    _set_constant(init.vertex.invariant[0])
    assert init.edge is not None
    _assign(init.edge, [(slice(0, 1), slice(0, 1))])

    def at_input(x: Tensor) -> Tensor:
        p = x[..., 1 : 1 + c.count]
        return torch.cat([x[..., :1], p, p, torch.zeros_like(p), torch.zeros_like(p)], -1)

    def at_output(x: Tensor) -> Tensor:
        p = reciprocal(x[..., 1 : 1 + c.count]) if body.backward == "reciprocal" else x[..., 1 : 1 + c.count]
        return torch.cat([x[..., :1], torch.zeros_like(p), torch.zeros_like(p), p, p], -1)

    init.input, init.output = Analytic(at_input), Analytic(at_output)  # type: ignore[assignment]
    if body.dual_init is not None:
        # Without features, the dual MLPs see the encoding only.
        body.dual_init.input = Analytic(torch.zeros_like)  # type: ignore[assignment]
        body.dual_init.output = Analytic(lambda p: at_output(nn.functional.pad(p, (1, 0))))  # type: ignore[assignment]


def set_layer(layer: GraphLayer, c: StateChannels, sigma: dict[Group, Activation]) -> None:
    """One iteration: forward messages carry post-activations, backward messages gradients, edges stay."""
    _set_message(layer.message, c, c.post)
    _set_edge_update(layer.edge_update)
    match layer:
        case DualLayer():
            _set_message(layer.dual_message, c, c.pre_gradient)
            _set_update(layer.update, c, sigma, backward=None)
            _set_dual_update(layer.dual_update, c, sigma)
        case ReciprocalLayer():
            _set_message(layer.backward_message, c, c.pre_gradient)
            _invert(layer.backward_message, sigma)
            _set_edge_update(layer.backward_edge_update)
            _set_update(layer.update, c, sigma, backward="inverse")
        case SharedLayer():
            _set_message(layer.backward_message, c, c.pre_gradient)
            _set_update(layer.update, c, sigma, backward="gradient")


def _set_message(message: Message, c: StateChannels, what: slice) -> None:
    """The message y[what] * e[0]: Gamma = 1, ScaleInv = 1."""
    first = slice(0, c.count)
    _assign(message.rescale.vertex, [(first, what)])
    message.rescale.edge.weight.zero_()
    message.rescale.edge.weight[first, 0] = 1
    _set_gamma(message.hidden, [(first, first)])
    _set_constant(message.hidden.invariant[0])
    message.fixed = Analytic(lambda x: x)  # type: ignore[assignment]


def _invert(message: Message, sigma: dict[Group, Activation]) -> None:
    """The message 1 / (y e): the function g_m of the proof, x times 1/x^2, and 1/0 := 0."""
    _set_invariants(message.hidden, lambda _: lambda xs: reciprocal(xs[0].square()), sigma, canonical=False)
    message.fixed = Analytic(reciprocal)  # type: ignore[assignment]


def _set_edge_update(update: EdgeUpdate) -> None:
    """Edges stay: Gamma = 1, ScaleInv = 1."""
    nn.init.eye_(update.gamma.weight)
    for linear in update.outer:
        assert isinstance(linear, nn.Linear)
        nn.init.zeros_(linear.weight)
    _set_constant(update.invariant)


def _set_update(update: Update, c: StateChannels, sigma: dict[Group, Activation], *, backward: str | None) -> None:
    """z = b + m, sigma(z) = z * (sigma(z) / z), and with backward messages the gradients sigma'(z) m and m.

    States are [x, m] or [x, m, m'] with width w each; m' holds gradients, or sums of them whose inverse is kept.
    """
    w, first = c.width, slice(0, c.count)
    forward, back = slice(w, w + c.count), slice(2 * w, 2 * w + c.count)
    maps = [(slice(0, 1), slice(0, 1)), (c.pre, forward), (c.post, forward)]
    if backward is not None:
        maps += [(c.pre_gradient, back), (c.post_gradient, back)]
    _set_gamma(update.hidden, maps)
    gamma = update.hidden.gamma[0]
    assert isinstance(gamma, nn.Linear)
    gamma.weight[c.pre, 0] = 1
    gamma.weight[c.post, 0] = 1
    inverse = backward == "inverse"

    def factors(act: Activation) -> Callable[[Sequence[Tensor]], Tensor]:
        def f(xs: Sequence[Tensor]) -> Tensor:
            x = xs[0]
            z, slope = x[..., :1] + x[..., forward], _derivative(act, x[..., c.pre])
            one = torch.ones_like(z)
            gradients = [slope, one] if backward is not None else [one, one]
            if inverse:
                gradients = [reciprocal(g * x[..., back].square()) for g in gradients]
            # sigma(z) / z, and 0 at 0.
            ratio = act(z) * reciprocal(z)
            return torch.cat([one[..., :1], one, ratio, *gradients], -1)

        return f

    # The inverse of a sum moves as q but its parts as 1/q: for scales the proof needs a net that is not invariant.
    _set_invariants(update.hidden, factors, sigma, canonical=not inverse)

    def at_input(x: Tensor) -> Tensor:
        if backward is None:
            return x[..., :w]
        m = reciprocal(x[..., back]) if inverse else x[..., back]
        return torch.cat([x[..., : 1 + 2 * c.count], m, m], -1)

    def at_output(x: Tensor) -> Tensor:
        z = x[..., :1] + x[..., w:][..., first]
        return torch.cat([x[..., :1], z, z, x[..., c.pre_gradient], x[..., c.post_gradient]], -1)

    update.input, update.output = Analytic(at_input), Analytic(at_output)  # type: ignore[assignment]


def _set_dual_update(update: Update, c: StateChannels, sigma: dict[Group, Activation]) -> None:
    """Gradients sigma'(z) m and m from states [d, m], with the vertex state x, which contains z."""
    w = c.width
    back = slice(w, w + c.count)
    _set_gamma(update.hidden, [(c.pre_gradient, back), (c.post_gradient, back)])

    def factors(act: Activation) -> Callable[[Sequence[Tensor]], Tensor]:
        def f(xs: Sequence[Tensor]) -> Tensor:
            slope = _derivative(act, xs[1][..., c.pre])
            one = torch.ones_like(slope)
            return torch.cat([one[..., :1], one, one, slope, one], -1)

        return f

    _set_invariants(update.hidden, factors, sigma)

    def at_input(x: Tensor) -> Tensor:
        m = x[..., back]
        return torch.cat([torch.zeros_like(x[..., : 1 + 2 * c.count]), m, m], -1)

    update.input = Analytic(at_input)  # type: ignore[assignment]
    update.output = Analytic(lambda x: x[..., :w])  # type: ignore[assignment]


def _set_gamma(net: ScaleEquivariant, maps: Sequence[tuple[slice, slice]]) -> None:
    gamma = net.gamma[0]
    assert isinstance(gamma, nn.Linear)
    _assign(gamma, maps)


def _assign(linear: nn.Linear, maps: Sequence[tuple[slice, slice]]) -> None:
    """Let outputs (first slice) be copies of inputs (second slice), the rest 0."""
    linear.weight.zero_()
    for rows, columns in maps:
        linear.weight[rows, columns] = torch.eye(rows.stop - rows.start, dtype=linear.weight.dtype)


def _set_constant(invariants: nn.Module) -> None:
    """The invariant nets give 1."""
    assert isinstance(invariants, ScaleInvariants)
    for net in invariants.of.values():
        last = net.last
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.ones_(last.bias)


def _set_invariants(
    net: ScaleEquivariant,
    factors: Callable[[Activation], Callable[[Sequence[Tensor]], Tensor]],
    sigma: dict[Group, Activation],
    *,
    canonical: bool = True,
) -> None:
    """The invariant net of each group gets the function for the activation of that group."""
    invariants = net.invariant[0]
    assert isinstance(invariants, ScaleInvariants)
    for g, act in sigma.items():
        # For signs 1/x^2 is invariant, so that everything in the proof is.
        invariants.of[g.name] = AnalyticInvariant(g, factors(act), canonical=canonical or not g.scales)


def _derivative(act: Activation, z: Tensor) -> Tensor:
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(act(z).sum(), z)
    return slope
