"""A test kit for people who write their own layers and models.

Does a model respect the symmetries of the networks it reads? The kit applies random symmetries to some networks and
compares the results::

    from scalegmn.testing import assert_equivariant, assert_invariant

    def test_my_classifier():
        architecture = Architecture.mlp([2, 16, 16, 1], "sine")
        assert_invariant(MyClassifier().double(), random_networks(architecture, 4))

Use float64, where a correct layer is exact to about 1e-12 and a wrong one is clearly wrong. A layer that returns vertex
states can be tested too: say with `act` how the states change::

    assert_equivariant(
        lambda networks: my_layer(networks.biases[1]), networks, act=lambda g, x: g.vertex(1, x)
    )
"""

import itertools
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from .core.architecture import Architecture, Linear
from .core.evaluate import input_dimensions
from .core.networks import Networks
from .core.transform import Transform
from .errors import ScaleGMNError

Output = TypeVar("Output", Tensor, Networks)


def random_networks(
    architecture: Architecture,
    count: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> Networks:
    """Networks with normally distributed weights, scaled so that signals (and phases of sines) stay near one.

    Arguments:
        architecture: Of the networks.
        count: How many.
        generator: The source of randomness.
        dtype: The type of the parameters.

    >>> random_networks(Architecture.mlp([2, 8, 1], "tanh"), 5)
    Networks(5 x 2-8-1 [tanh], torch.float64, cpu)
    """
    parts = []
    for s in architecture.segments:
        x = torch.randn(count, s.size, generator=generator, dtype=dtype)
        act = architecture.layers[architecture.owner(s)].activation
        size = 1 / abs(act.parameters[0]) if act.name in ("sine", "cos") else 1.0
        if s.kind == "weight":
            size *= math.sqrt(1 / math.prod(s.shape[1:])) / abs(architecture.connections[s.index].gain)
        parts.append(x * size)
    return Networks(architecture, torch.cat(parts, dim=1))


def random_inputs(
    architecture: Architecture,
    count: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Normally distributed inputs (N, n_0, *spatial); images have a size that the architecture accepts, at least 8 x 8.

    Arguments:
        architecture: That reads them.
        count: Number of inputs N.
        generator: The source of randomness.
        dtype: Their type.

    >>> random_inputs(Architecture.cnn([3, 8, 8], 10, positions=(4, 4)), 5).shape
    torch.Size([5, 3, 8, 8])
    """
    shape = (count, architecture.layers[0].size, *_spatial_size(architecture))
    return torch.randn(shape, generator=generator, dtype=dtype)


def equivariance_error(
    model: Callable[[Networks], Output],
    networks: Networks,
    transform: Transform | int = 3,
    *,
    act: Callable[[Transform, Output], Output] | None = None,
    generator: torch.Generator | None = None,
    spread: float = 10.0,
) -> Tensor:
    r"""How far a model is from \(f(g \theta) = g f(\theta)\), relative to the size of its output.

    Arguments:
        model: Maps networks to a tensor whose first dimension is B, which must not change, or to networks of the same
            architecture, which must be transformed in the same way.
        networks: B networks to try it on.
        transform: One symmetry per network, or the number of random ones to try.
        act: How other kinds of output change: maps (transform, output) to the transformed output.
        generator: The source of randomness.
        spread: Random scales are log-uniform in [1/spread, spread].

    Returns:
        Per network (B,), the largest error over the transforms. An output that is not finite counts as infinity.

    >>> networks = random_networks(Architecture.mlp([2, 8, 1], "tanh"), 5)
    >>> bool((equivariance_error(lambda n: n.biases[1].square().sum(1), networks) < 1e-12).all())
    True
    >>> bool((equivariance_error(lambda n: n.biases[1].sum(1), networks) > 1e-3).any())
    True
    """
    if isinstance(transform, Transform):
        transforms = [transform]
    else:
        architecture, count = networks.architecture, len(networks)
        transforms = [
            Transform.sample(architecture, count, generator, spread=spread) for _ in range(transform)
        ]
    act = _move if act is None else act
    with torch.no_grad():
        still = model(networks)
        errors = [
            relative_error(model(g.apply(networks)), act(g.to(networks.device, networks.dtype), still))
            for g in transforms
        ]
    return torch.stack(errors).amax(0)


def relative_error(a: Tensor | Networks, b: Tensor | Networks) -> Tensor:
    """For each network max |a - b| / max |b|, the largest over its tensors; infinity if a value is not finite.

    Arguments:
        a, b: Tensors of shape (B, ...), or B networks of one architecture.

    >>> relative_error(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[1.0, 4.0], [0.0, 0.0]]))
    tensor([0.5000, 0.0000])
    """
    if isinstance(a, Networks) and isinstance(b, Networks):
        if a.architecture != b.architecture:
            raise ScaleGMNError(f"networks: expected {b.architecture}, got {a.architecture}")
        sizes = [s.size for s in a.architecture.segments]
        parts = zip(a.parameters.split(sizes, 1), b.parameters.split(sizes, 1), strict=True)
        return torch.stack([relative_error(x, y) for x, y in parts]).amax(0)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        raise ScaleGMNError(
            f"outputs: expected tensors or networks, got {type(a).__name__} and {type(b).__name__}"
        )
    if a.shape != b.shape:
        raise ScaleGMNError(f"outputs: expected shape {tuple(b.shape)}, got {tuple(a.shape)}")
    difference, size = ((x.abs().flatten(1) if x.dim() > 1 else x.abs()[:, None]) for x in (a - b, b))
    if difference.shape[1] == 0:
        return difference.new_zeros(len(difference))
    worst, size = difference.amax(1), size.amax(1)
    # Where the output should vanish, anything else is an infinite error.
    return torch.where(worst == 0, worst, worst / size).nan_to_num(math.inf, math.inf)


def assert_equivariant(
    model: Callable[[Networks], Output],
    networks: Networks,
    transform: Transform | int = 3,
    *,
    act: Callable[[Transform, Output], Output] | None = None,
    generator: torch.Generator | None = None,
    spread: float = 10.0,
    tolerance: float | None = None,
) -> None:
    """Raise AssertionError unless the model is equivariant: its result is transformed like its input.

    Arguments:
        model, networks, transform, act, generator, spread: As in `equivariance_error`.
        tolerance: The largest relative error; 1e-9 in float64 and 1e-3 in float32 if omitted.

    >>> networks = random_networks(Architecture.mlp([2, 8, 1], "relu"), 5)
    >>> assert_equivariant(lambda n: n.replace(2 * n.parameters), networks)
    """
    error = equivariance_error(model, networks, transform, act=act, generator=generator, spread=spread)
    _complain(error, networks, tolerance, "f(g x) differs from g f(x)")


def assert_invariant(
    model: Callable[[Networks], Tensor],
    networks: Networks,
    transform: Transform | int = 3,
    *,
    generator: torch.Generator | None = None,
    spread: float = 10.0,
    tolerance: float | None = None,
) -> None:
    """Raise AssertionError unless the model is invariant: it gives the same result before and after.

    Arguments:
        model: Maps networks to a tensor (B, ...).
        networks, transform, generator, spread, tolerance: As in `assert_equivariant`.

    >>> networks = random_networks(Architecture.mlp([2, 8, 1], "relu"), 5)
    >>> assert_invariant(lambda n: n.evaluate(torch.ones(3, 2)), networks)
    """
    error = equivariance_error(
        model, networks, transform, act=lambda _, y: y, generator=generator, spread=spread
    )
    _complain(error, networks, tolerance, "f(g x) differs from f(x)")


def assert_function_preserved(
    networks: Networks,
    moved: Networks,
    inputs: Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
    tolerance: float | None = None,
) -> None:
    """Raise AssertionError unless two batches of networks compute the same functions, one by one.

    Arguments:
        networks, moved: The batches; their architectures may differ.
        inputs: As in `Networks.evaluate`; 64 random ones if omitted.
        generator: The source of randomness.
        tolerance: The largest error relative to a network's largest output; as in `assert_equivariant` if omitted.

    >>> architecture = Architecture.mlp([2, 8, 1], "relu")
    >>> networks = random_networks(architecture, 5)
    >>> assert_function_preserved(networks, Transform.sample(architecture, 5).apply(networks))
    """
    if inputs is None:
        inputs = random_inputs(networks.architecture, 64, generator=generator)
    with torch.no_grad():
        error = relative_error(moved.evaluate(inputs), networks.evaluate(inputs))
    _complain(error, networks, tolerance, "the function has changed")


def _move(transform: Transform, output: Output) -> Output:
    return transform.apply(output) if isinstance(output, Networks) else output


def _complain(error: Tensor, networks: Networks, tolerance: float | None, what: str) -> None:
    if tolerance is None:
        tolerance = 1e-9 if networks.dtype == torch.float64 else 1e-3
    worst = int(error.argmax())
    if not float(error[worst]) <= tolerance:
        raise AssertionError(
            f"{what}: relative error {float(error[worst]):.2e} at network {worst} of {len(networks)} "
            f"({networks.architecture}), more than {tolerance:.0e}"
        )


def _spatial_size(architecture: Architecture, largest: int = 64) -> tuple[int, ...]:
    dimensions = input_dimensions(architecture)
    if dimensions == 0:
        return ()
    flattened = [c.map.positions for c in architecture.connections if c.source == 0 and isinstance(c.map, Linear)]
    # A few pixels at least: on a single one all kinds of pooling agree.
    squares = [(n,) * dimensions for n in (*range(8, largest + 1), *range(7, 0, -1))]
    others = itertools.product(range(1, largest + 1), repeat=dimensions)
    probe = Networks(architecture, torch.zeros(1, architecture.parameters))
    for size in itertools.chain(flattened, squares, others):
        try:
            probe.evaluate(torch.zeros(1, architecture.layers[0].size, *size))
        except (ScaleGMNError, RuntimeError):
            continue
        return size
    raise ScaleGMNError(
        f"inputs: found no size up to {largest} that {architecture} accepts; pass inputs of the right size"
    )
