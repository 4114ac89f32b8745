r"""The audit: does every registered model have the symmetries that it declares, and can it still tell networks apart?

Every model is built small, for architectures of several kinds and activations, and tried on networks before and after
random symmetries with scales in [1e-3, 1e3]. Models must break the symmetries that they do not declare, and models with
all symmetries must tell two networks apart. Half of the networks contain exact zeros, values near 1e-15 and dead
neurons.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from .core.activations import activation
from .core.architecture import (
    Architecture,
    Attention,
    Connection,
    Conv,
    Layer,
    Normalise,
    Pool,
    Product,
    Skip,
)
from .core.networks import Networks
from .core.transform import Transform
from .errors import ScaleGMNError
from .models.heads import Classifier, Editor, InvariantModel
from .models.method import Method
from .models.scalegmn import ScaleGMNTrunk
from .nn.spec import FormName
from .testing import random_inputs, random_networks, relative_error

Head = Literal["invariant", "equivariant"]
Model = InvariantModel | Editor

SPREAD = 1e3
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
# Above this a symmetry counts as broken, which negative controls ask for.
BROKEN = 1e-3

ACTIVATIONS: dict[str, tuple[str, str, str]] = {
    "relu": ("relu",) * 3,
    "leaky relu": ("leaky_relu",) * 3,
    "tanh": ("tanh",) * 3,
    "sine": ("sine",) * 3,
    "x^3": ("cube",) * 3,
    "mixed": ("relu", "tanh", "cube"),
}
# Models that know nothing of scales treat all activations alike.
_FEW = ("relu", "sine")

_BOTH_FORMS = ("MLP", "residual", "CNN")

_LIMITS = {
    "width": 8, "layers": 2, "heads": 2, "head_width": 8, "frequencies": 2, "embedding": 8, "pretraining": 2,
    "points": 8, "probes": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """One law (a property that must hold), tried on one model.

    Arguments:
        model, architecture, activation, head: What was tried.
        form: Of a model that has two forms, which one.
        law: What must hold; a law that begins with `not` is a negative control.
        dtype: Precision.
        error: The largest relative error.
        tolerance: The largest allowed error, or the smallest for a negative control.
        ok: Whether the law holds.
    """

    model: str
    form: FormName | None
    architecture: str
    activation: str
    head: Head
    law: str
    dtype: str
    error: float
    tolerance: float
    ok: bool


@dataclass(frozen=True)
class Subject:
    """A model with one head for one kind of architecture."""

    method: Method
    kind: str
    activation: str
    head: Head
    form: FormName | None = None


def small_architectures() -> dict[str, Callable[[Sequence[str]], Architecture]]:
    """Kinds of small architectures, from the activations of their three hidden layers."""
    return {
        "MLP": partial(Architecture.mlp, [2, 4, 5, 3, 3]),
        "MLP, one width": partial(Architecture.mlp, [2, 4, 4, 4, 3]),
        "residual": residual,
        "CNN": partial(Architecture.cnn, [1, 4, 3, 4], 3),
        "CNN, flattened": partial(Architecture.cnn, [2, 3, 4, 3], 2, kernel=2, positions=(2, 2)),
        "blocks": blocks,
        "attention": attention,
    }


def residual(hidden: Sequence[str]) -> Architecture:
    """A block x + f(x) between two linear layers."""
    a, b, c = map(activation, hidden)
    layers = (Layer(2, bias=False), Layer(5, a), Layer(4, b), Layer(5, c), Layer(3))
    block = (Connection(1, 2), Connection(1, 3, Skip()), Connection(2, 3))
    return Architecture(layers, (Connection(0, 1), *block, Connection(3, 4)))


def blocks(hidden: Sequence[str]) -> Architecture:
    """Two parallel layers, a grouped and a depthwise convolution of them, and a product with a gate."""
    a, b, c = map(activation, hidden)

    def conv(kernel: int, groups: int = 1) -> Conv:
        return Conv((kernel,), (1,), (kernel // 2,), (1,), groups)

    sides = Layer(2, a), Layer(2, b), Layer(4, bias=False)
    gated = Layer(4, activation("sigmoid")), Layer(4, combine=Product(), bias=False)
    layers = Layer(2, bias=False), *sides, Layer(4, a), Layer(4, c), *gated, Layer(3)
    beside = (Connection(1, 3, Skip(0, 0, 2)), Connection(2, 3, Skip(0, 2, 2)))
    filters = (Connection(3, 4, conv(3, 2)), Connection(4, 5, conv(3, 4)))
    gate = (Connection(5, 6, pools=(Pool("global_avg"),)), Connection(5, 7, Skip()), Connection(6, 7, Skip()))
    ends = Connection(0, 1, conv(1)), Connection(0, 2, conv(3)), Connection(7, 8, pools=(Pool("global_avg"),))
    return Architecture(layers, (*ends[:2], *beside, *filters, *gate, ends[2]))


def attention(hidden: Sequence[str]) -> Architecture:
    """Self-attention of two heads on a residual stream, then a normalised layer."""
    a, b, _ = map(activation, hidden)
    attended = Layer(4, bias=False, combine=Attention(2, 0.7))
    layers = Layer(2, bias=False), Layer(4), Layer(12), attended, Layer(4, a), Layer(4, b), Layer(3)
    wires = tuple(Connection(2, 3, Skip(4 * i, 0, 4)) for i in range(3))
    stream = Connection(1, 4, Skip()), Connection(3, 4), Connection(4, 5, Normalise())
    last = Connection(5, 6, pools=(Pool("global_avg", (1,)),))
    return Architecture(layers, (Connection(0, 1), Connection(1, 2), *wires, *stream, last))


def hostile_networks(architecture: Architecture, count: int, generator: torch.Generator) -> Networks:
    """Networks with exact zeros, values near 1e-15, neurons without inputs and neurons without outputs.

    Arguments:
        architecture: Of the networks.
        count: How many.
        generator: The source of randomness.
    """
    a = architecture
    networks = random_networks(a, count, generator=generator)
    draw = torch.rand(networks.parameters.shape, generator=generator)
    networks.parameters[draw < 0.15] = 0
    networks.parameters[(draw > 0.15) & (draw < 0.3)] *= 1e-15
    for c, w in zip(a.connections, networks.weights, strict=True):
        if w is None or not c.dense:
            continue
        if a.roles[c.target] == "hidden":
            w[:, 0] = 0
        if a.roles[c.source] == "hidden":
            w[:, :, -1] = 0
    for b in networks.biases:
        if b is not None:
            b[:, 0] = 0
    return networks


def subjects(methods: Sequence[Method]) -> list[Subject]:
    """What the audit tries."""
    found = []
    for method in methods:
        names = ACTIVATIONS if "scale" in method.symmetries else _FEW
        for kind in small_architectures():
            if kind in ("blocks", "attention") and not method.trunk.reads_blocks:
                continue
            if kind.startswith("CNN") and not method.convolutions:
                continue
            heads: tuple[Head, ...] = ("invariant", "equivariant") if method.edits else ("invariant",)
            for name, form, head in product(names, _forms(method, kind), heads):
                found.append(Subject(method, kind, name, head, form))
    return found


def _forms(method: Method, kind: str) -> tuple[FormName | None, ...]:
    """The forms in which a method is tried on a kind of architecture; the paper's only where it matters."""
    if "form" not in method.spec.names():
        return (None,)
    return ("ours", "paper") if "scale" in method.symmetries and kind in _BOTH_FORMS else ("ours",)


@torch.no_grad()
def violation(model: Model, networks: Networks, g: Transform) -> float:
    """The largest relative error of f(g x) = f(x), or of g^-1 f(g x) = f(x) for the direction f of an editor.

    Arguments:
        model: The model.
        networks: Some networks.
        g: A symmetry for each of them.
    """
    both = Networks.cat([networks, g.apply(networks)])
    still, moved = output_of(model, both).chunk(2)
    if isinstance(model, InvariantModel):
        return relative_error(moved, still).max().item()
    # Compare in the coordinates of the original, where no entry hides behind a large multiplier.
    inverse = g.inverse()
    return max(
        relative_error(inverse.apply(networks.replace(m)), networks.replace(s)).max().item()
        for m, s in zip(moved.unbind(1), still.unbind(1), strict=True)
    )


def output_of(model: Model, networks: Networks) -> Tensor:
    """The output of an invariant model, the direction of an editor."""
    if isinstance(model, Editor):
        return model.direction(networks)
    y: Tensor = model(networks)
    return y


def audit(methods: Sequence[Method]) -> Iterator[Verdict]:
    """All laws on all models; a model that refuses every architecture fails."""
    for method in methods:
        rows = 0
        for case in subjects([method]):
            for row in audit_case(case):
                rows += 1
                yield row
        if method.several and rows:
            yield from (audit_order(method, form) for form in _forms(method, "MLP"))
        if not rows:
            anything = Subject(method, "any", "any", "invariant")
            yield _row(anything, "reads something", torch.float64, math.inf, 0.0, False)


def audit_case(case: Subject) -> Iterator[Verdict]:
    """All laws of one case; none if the model refuses the architecture."""
    architecture = small_architectures()[case.kind](ACTIVATIONS[case.activation])
    try:
        model = small_model(case, [architecture])
    except ScaleGMNError:
        return
    generator = torch.Generator().manual_seed(0)
    tame = random_networks(architecture, 2, generator=generator)
    networks = Networks.cat([tame, hostile_networks(architecture, 2, generator)])
    model.prepare([tame])
    model.eval()
    for dtype in TOLERANCES:
        model.to(dtype)
        # Third powers of 1e-15 are below the range of float32, and reciprocals of 1e-15 swallow all digits of the rest.
        narrow = dtype == torch.float32 and ("cube" in ACTIVATIONS[case.activation] or _inverts(model))
        yield from _audit_laws(case, model, (tame if narrow else networks).to(dtype=dtype), generator)
        moved = Transform.sample(architecture, len(networks), generator, spread=SPREAD).apply(networks)
        error = 0.0 if finite_gradients(model, moved.to(dtype=dtype)) else math.inf
        yield _row(case, "finite gradients", dtype, error, 0.0, error == 0.0)


def _inverts(model: Model) -> bool:
    return isinstance(model.trunk, ScaleGMNTrunk) and model.trunk.body.backward == "reciprocal"


def _audit_laws(case: Subject, model: Model, networks: Networks, generator: torch.Generator) -> Iterator[Verdict]:
    a, dtype = networks.architecture, networks.dtype
    for law, permute, scale in _laws(case.method.symmetries):
        g = Transform.sample(a, len(networks), generator, spread=SPREAD, permute=permute, scale=scale)
        error = violation(model, networks, g)
        if not law.startswith("not "):
            yield _row(case, law, dtype, error, TOLERANCES[dtype], error <= TOLERANCES[dtype])
        elif dtype == torch.float64:
            yield _row(case, f"{law} {case.head}", dtype, error, BROKEN, error > BROKEN)
    if "scale" in case.method.symmetries and dtype == torch.float64:
        with torch.no_grad():
            first, second = output_of(model, networks[:2]).split(1)
        error = relative_error(first, second).max().item()
        yield _row(case, "not constant", dtype, error, BROKEN, error > BROKEN)


def audit_order(method: Method, form: FormName | None = None) -> Verdict:
    """Alternating networks of two architectures give the same results as each alone, in the order of the input."""
    kinds = small_architectures()
    first, second = kinds["MLP"](ACTIVATIONS["relu"]), kinds["MLP, one width"](ACTIVATIONS["tanh"])
    case = Subject(method, "several", "relu, tanh", "invariant", form)
    tolerance = TOLERANCES[torch.float64]
    try:
        model = small_model(case, [first, second])
    except ScaleGMNError:
        return _row(case, "order of the input", torch.float64, math.inf, tolerance, False)
    generator = torch.Generator().manual_seed(0)
    batches = [random_networks(a, 1, generator=generator) for a in (first, second, second, first)]
    model.prepare(batches)
    model.eval()
    with torch.no_grad():
        alone = torch.cat([model(b) for b in batches])
        error = relative_error(model(batches), alone).max().item()
    return _row(case, "order of the input", torch.float64, error, tolerance, error <= tolerance)


def small_model(case: Subject, architectures: Sequence[Architecture]) -> Model:
    """A small model in float64."""
    torch.manual_seed(0)
    options: dict[str, object] = {
        name: min(getattr(case.method.spec, name), limit)
        for name, limit in _LIMITS.items()
        if name in case.method.spec.names()
    }
    if "image" in case.method.spec.names() and architectures[0].spatial:
        options["image"] = random_inputs(architectures[0], 1).shape[-1]
    if case.form is not None:
        options["form"] = case.form
    trunk = case.method.build(architectures, case.method.chosen(options))
    model = Classifier(trunk, 3) if case.head == "invariant" else Editor(trunk, copies=2)
    return model.double()


def finite_gradients(model: Model, networks: Networks) -> bool:
    """Whether a loss on these networks has finite gradients at all parameters."""
    model.zero_grad()
    y = output_of(model, networks)
    (y / y.detach().abs().amax().clamp(min=1)).square().sum().backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return len(found) > 0 and all(bool(torch.isfinite(g).all()) for g in found)


def _laws(symmetries: tuple[str, ...]) -> list[tuple[str, bool, bool]]:
    """Name, whether neurons are permuted, whether they are scaled."""
    if "scale" in symmetries:
        return [("permutation and scale", True, True)]
    if "permutation" in symmetries:
        return [("permutation", True, False), ("not scale", False, True)]
    return [("not permutation", True, False)]


def _row(case: Subject, law: str, dtype: torch.dtype, error: float, tolerance: float, ok: bool) -> Verdict:
    name = str(dtype).removeprefix("torch.")
    tried = case.method.name, case.form, case.kind, case.activation, case.head
    return Verdict(*tried, law, name, error, tolerance, ok)
