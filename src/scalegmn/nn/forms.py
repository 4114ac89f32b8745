"""The two forms of the model: ours, and the paper's, which has every equation as printed. Each lists its parts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from ..core.architecture import Architecture, Sum
from ..errors import ScaleGMNError
from .activations import ActivationInit, ActivationLayer
from .encoding import DualInit, FirstStates, Init
from .invariant import LearnedInvariant, PaperInvariant, ScaleInvariant
from .layers import DualLayer, ForwardLayer, GraphLayer, PassingLayer, ReciprocalLayer, SharedLayer
from .paper import PaperForward, PaperInit, PaperReciprocal, PaperShared, PaperStyle
from .spec import DropoutPlace, Flow, FormName, PassingSpec
from .style import Nets, Style
from .symmetry import Symmetry, edge_groups, vertex_groups


class Form(ABC):
    """The parts that message passing is made of.

    Arguments:
        spec: The options.
        symmetries: Of the architectures that it reads.

    >>> symmetry = Symmetry.full(Architecture.mlp([2, 8, 1], "relu"))
    >>> [form(PassingSpec(width=8, backward="auto"), [symmetry]).flow for form in FORMS.values()]
    ['dual', 'reciprocal']
    """

    for_scales: Flow
    """The kind of backward messages that `auto` stands for if there are scales."""

    def __init__(self, spec: PassingSpec, symmetries: Sequence[Symmetry]) -> None:
        self.spec = spec
        self.symmetries = symmetries
        scales = any(g.scales for g in vertex_groups(symmetries))
        self.flow = spec.backward if spec.backward != "auto" else self.for_scales if scales else "shared"
        complaints = filter(None, (self.options(), *map(self._turns, symmetries), *map(self.complaint, symmetries)))
        for complaint in complaints:
            raise ScaleGMNError(complaint)

    def _turns(self, symmetry: Symmetry) -> str | None:
        """What is wrong with the order of updates, if anything."""
        depth = len(symmetry.architecture.layers) - 1
        if self.spec.order == "together":
            return None
        if self.flow != "none":
            return "order: 'in_turn' is for messages forwards; use backward = 'none', or order = 'together'"
        if self.spec.layers < depth:
            return f"layers: order = 'in_turn' needs {depth} or more to reach the outputs of {symmetry.architecture}"
        return None

    @abstractmethod
    def options(self) -> str | None:
        """What is wrong with the options, if anything."""

    @abstractmethod
    def complaint(self, symmetry: Symmetry) -> str | None:
        """Why networks of an architecture cannot be read, if they cannot."""

    @property
    @abstractmethod
    def style(self) -> Style:
        """What all functions have in common."""

    @abstractmethod
    def init(self, architectures: Sequence[Architecture], features: int) -> FirstStates:
        """The first vertex and edge states, with further features of vertices besides the bias."""

    def dual_init(self, features: int) -> DualInit | None:
        """The first dual states, if there are any."""
        return None

    @abstractmethod
    def layer(self, *, edges: bool) -> PassingLayer:
        """The functions of one iteration."""

    def inverts(self, symmetry: Symmetry, connection: int) -> bool:
        """Whether backward edges start from 1/w."""
        return self.spec.backward == "reciprocal" or symmetry.edge_group(connection).scales

    def common(self, kind: type[LearnedInvariant], place: DropoutPlace) -> Style:
        """What functions have in common, with a class of invariant nets and a place of dropout."""
        spec = self.spec
        return Style(
            vertex_groups(self.symmetries),
            edge_groups(self.symmetries),
            spec.width,
            Nets(spec.sign, 0.0 if place == "states" else spec.dropout, spec.depth, kind),
            positions=spec.width if spec.positions_everywhere else 0,
            gate=spec.gate,
            aggregate=spec.aggregate,
            # A forward pass replaces states.
            skip=spec.skip and spec.messages == "nets",
            checkpointing=spec.checkpointing,
            state_dropout=0.0 if place == "mlps" else spec.dropout,
            hidden=spec.hidden,
            activations=spec.messages == "activations",
        )


class Ours(Form):
    """Our form, with a dual stream if there are scales.

    >>> symmetry = Symmetry.full(Architecture.mlp([2, 8, 1], "relu"))
    >>> Ours(PassingSpec(width=8, backward="auto"), [symmetry]).flow
    'dual'
    """

    for_scales = "dual"
    layers: Mapping[Flow, type[GraphLayer]] = {
        "none": ForwardLayer,
        "shared": SharedLayer,
        "reciprocal": ReciprocalLayer,
        "dual": DualLayer,
    }

    def options(self) -> str | None:
        default = PassingSpec()
        for name in ("rescale", "edge_rule", "neighbours_only"):
            value = getattr(self.spec, name)
            if value != getattr(default, name):
                return f"{name}: {value!r} belongs to the paper's form; use form = 'paper'"
        needed = _FOR_ACTIVATIONS.items() if self.spec.messages == "activations" else ()
        for name, wanted in needed:
            value = getattr(self.spec, name)
            if value != wanted:
                return f"{name}: messages = 'activations' needs {wanted!r}, got {value!r}"
        return None

    def complaint(self, symmetry: Symmetry) -> str | None:
        return _no_way_back(symmetry, self.flow, "'dual'")

    @property
    def style(self) -> Style:
        return self.common(ScaleInvariant, self.spec.dropout_in or "mlps")

    def init(self, architectures: Sequence[Architecture], features: int) -> FirstStates:
        if self.spec.messages == "activations":
            return ActivationInit(architectures, self.style, features=features)
        return Init(architectures, self.style, features=features, edge_positions=self.spec.edge_positions)

    def dual_init(self, features: int) -> DualInit | None:
        return DualInit(self.style, features=features) if self.flow == "dual" else None

    def layer(self, *, edges: bool) -> PassingLayer:
        kind = ActivationLayer if self.spec.messages == "activations" else self.layers[self.flow]
        return kind(self.style, edges=edges)


class Paper(Form):
    """The paper's form. It has no backward messages for activations with another phi (x^k, even functions).

    >>> symmetry = Symmetry.full(Architecture.mlp([2, 8, 1], "relu"))
    >>> Paper(PassingSpec(width=8, form="paper", backward="auto"), [symmetry]).flow
    'reciprocal'
    """

    for_scales = "reciprocal"
    layers: Mapping[Flow, type[PaperForward | PaperShared | PaperReciprocal]] = {
        "none": PaperForward,
        "shared": PaperShared,
        "reciprocal": PaperReciprocal,
    }

    def options(self) -> str | None:
        if self.spec.messages != "nets":
            return f"messages: {self.spec.messages!r} are not in the paper; use form = 'ours'"
        if self.flow == "dual":
            return "backward: 'dual' is not in the paper; use 'auto', or form = 'ours'"
        return None

    def complaint(self, symmetry: Symmetry) -> str | None:
        a = symmetry.architecture
        if not all(isinstance(layer.combine, Sum) for layer in a.layers):
            return f"form: 'paper' reads layers that add, but {a} multiplies; use form = 'ours'"
        if self.flow == "shared" and _lifted(symmetry):
            return f"backward: form = 'paper' needs sigma(a x) = a sigma(x), but {a} has another phi; use form = 'ours'"
        return _no_way_back(symmetry, self.flow, "'auto', or form = 'ours'")

    @property
    def style(self) -> Style:
        return self.common(PaperInvariant, self.spec.dropout_in or "states")

    def init(self, architectures: Sequence[Architecture], features: int) -> FirstStates:
        return PaperInit(architectures, self.style, features=features, edge_positions=self.spec.edge_positions)

    def layer(self, *, edges: bool) -> PassingLayer:
        spec = self.spec
        style = PaperStyle(
            self.style,
            rescale=spec.rescale,
            edge_rule=spec.edge_rule,
            neighbours_only=spec.neighbours_only,
            edge_positions=spec.edge_positions and spec.positions_everywhere,
        )
        return self.layers[self.flow](style, edges=edges)


# What a forward pass leaves no choice of.
_FOR_ACTIVATIONS = {
    "order": "in_turn",
    "backward": "none",
    "edge_updates": False,
    "gate": None,
    "aggregate": "sum",
    "edge_positions": False,
    "positions_everywhere": False,
}

FORMS: dict[FormName, type[Form]] = {"ours": Ours, "paper": Paper}


def _lifted(s: Symmetry) -> bool:
    return any(not s.phis[i].is_identity for i in range(len(s.phis)) if s.is_hidden(i))


def _no_way_back(s: Symmetry, flow: Flow, instead: str) -> str | None:
    a = s.architecture
    if flow == "shared" and any(g.scales for g in s.groups):
        return f"backward: 'shared' is equivariant for signs only, but {a} has scales; use {instead}"
    if flow == "reciprocal" and not all(isinstance(layer.combine, Sum) for layer in a.layers):
        return f"backward: 'reciprocal' reads layers that add, but {a} multiplies; use {instead}"
    if flow == "reciprocal" and _lifted(s):
        return f"backward: 'reciprocal' needs sigma(a x) = a sigma(x), but {a} has another phi; use {instead}"
    return None
