"""Which architectures a graph metanetwork can read besides those that it was built for.

Its functions are shared by all neurons of a layer and by all edges of a connection, so the number of hidden neurons is
free. Other sizes are limited: tables of encodings have one row per layer, connection, input and output, the readout has
a fixed number of inputs and outputs, edges a largest kernel, and there is one function per scaling group.
"""

from collections.abc import Callable, Iterator, Sequence

from ..core.activations import Activation
from ..core.architecture import Architecture
from ..core.evaluate import input_dimensions
from ..nn.kernels import kernel_shape, largest
from ..nn.symmetry import Symmetry, edge_groups, vertex_groups


def strange(architecture: Architecture, known: Sequence[Architecture], reason: str = "") -> str:
    """The error about an architecture that a model cannot read; architectures that print alike are told apart.

    >>> strange(Architecture.mlp([2, 4, 1]), [Architecture.mlp([2, 3, 1])])
    'this model was built for 2-3-1 [relu]; got 2-4-1 [relu]'
    """
    alike = next((k for k in known if str(k) == str(architecture)), None)
    told = f"{architecture}" if alike is None else alike.beside(architecture).partition("; ")[2]
    return f"this model was built for {'; '.join(map(str, known))}; got {told}{reason and f' ({reason})'}"


def unreadable(
    architecture: Architecture,
    known: Sequence[Architecture],
    symmetry: Callable[[Architecture], Symmetry] = Symmetry.full,
    *,
    probes: bool = False,
) -> str | None:
    """Why a graph metanetwork cannot read an architecture; None if it can.

    Arguments:
        architecture: Any architecture.
        known: Those that the model was built for.
        symmetry: Which symmetries it respects.
        probes: Whether it evaluates the networks on inputs of its own.

    >>> known = [Architecture.mlp([4, 16, 16, 2])]
    >>> unreadable(Architecture.mlp([4, 24, 2]), known)
    >>> unreadable(Architecture.mlp([4, 16, 16, 16, 2]), known)
    'this model was built for 4-16-16-2 [relu]; got 4-16-16-16-2 [relu] (at most 4 layers)'
    """
    if architecture in known:
        return None
    reason = next(_reasons(architecture, known, symmetry, probes), None)
    return None if reason is None else strange(architecture, known, reason)


def _reasons(
    a: Architecture, known: Sequence[Architecture], symmetry: Callable[[Architecture], Symmetry], probes: bool
) -> Iterator[str]:
    for what, size in _SIZES.items():
        most = max(map(size, known))
        if size(a) > most:
            yield f"at most {most} {what}"
    room = tuple(max(sides) for sides in zip(*map(_kernel, known), strict=True))
    if any(side > most for side, most in zip(_kernel(a), room, strict=True)):
        yield f"kernels of at most {'x'.join(map(str, room))}"
    activations = {act for k in known for act in _activations(k)}
    other = [str(act) for act in _activations(a) if act not in activations]
    if other:
        yield f"activation {other[0]} is not among {', '.join(sorted(map(str, activations))) or 'none'}"
    own, seen = symmetry(a), [symmetry(k) for k in known]
    if not {*vertex_groups([own])} <= {*vertex_groups(seen)} or not {*edge_groups([own])} <= {*edge_groups(seen)}:
        yield "its layers have other groups of scales"
    if probes and (a.layers[0].size, input_dimensions(a)) != (known[0].layers[0].size, input_dimensions(known[0])):
        yield "its inputs have another shape than the probes"


_SIZES: dict[str, Callable[[Architecture], int]] = {
    "layers": lambda a: len(a.layers),
    "connections": lambda a: len(a.connections),
    "tensors of parameters": lambda a: len(a.segments),
    "inputs": lambda a: a.layers[0].size,
    "outputs": lambda a: a.layers[-1].size,
    "neurons in a hidden layer whose order is fixed": lambda a: max(
        (b.stop for blocks in a.blocks[1:-1] for b in blocks if b.slot is None), default=0
    ),
    "blocks in a layer": lambda a: max(len(blocks) for blocks in a.blocks),
}


def _kernel(architecture: Architecture) -> tuple[int, ...]:
    """The largest height and width of its kernels."""
    return largest([(1, 1), *map(kernel_shape, architecture.connections)])


def _activations(architecture: Architecture) -> list[Activation]:
    return [layer.activation for layer in architecture.layers[1:]]
