"""A method: its paper, its symmetries, its options, and how its trunk is built."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from ..core.architecture import Architecture
from ..core.spec import Spec, changed
from ..errors import ScaleGMNError
from .heads import Classifier
from .trunk import EditingTrunk, Trunk


@dataclass(frozen=True)
class Method:
    """A method. Called with architectures it returns a trunk, with `outputs` a classifier on it.

    Arguments:
        name: Its name in recipes.
        title: Its name in tables.
        paper: Authors, venue, year.
        symmetries: Which of `permutation` and `scale` it respects exactly.
        trunk: The class of its trunk.
        spec: Its options with their defaults.
        convolutions: Whether it reads CNNs.
        several: Whether one model reads architectures of several shapes.

    >>> import torch
    >>> from scalegmn.core.networks import Networks
    >>> from scalegmn.models.peers.dws import DWS
    >>> siren = Architecture.mlp([2, 8, 8, 1], "sine")
    >>> DWS([siren], width=16, layers=2).spec
    DWSSpec(width=16, layers=2)
    >>> DWS([siren], outputs=10, width=16)(Networks(siren, torch.randn(4, siren.parameters))).shape
    torch.Size([4, 10])
    """

    name: str
    title: str
    paper: str
    symmetries: tuple[str, ...]
    trunk: type[Trunk]
    spec: Spec
    convolutions: bool = True
    several: bool = True

    @overload
    def __call__(self, architectures: Sequence[Architecture], outputs: None = None, **options: object) -> Trunk: ...

    @overload
    def __call__(self, architectures: Sequence[Architecture], outputs: int, **options: object) -> Classifier: ...

    def __call__(
        self, architectures: Sequence[Architecture], outputs: int | None = None, **options: object
    ) -> Trunk | Classifier:
        """The trunk or, with outputs, a `Classifier` on it; options are the fields of the specification."""
        trunk = self.build(architectures, self.chosen(options))
        return trunk if outputs is None else Classifier(trunk, outputs)

    def build(self, architectures: Sequence[Architecture], spec: Spec) -> Trunk:
        """The trunk that a specification describes."""
        return self.trunk(self, architectures, spec)

    def chosen(self, options: Mapping[str, object]) -> Spec:
        """The specification with some options changed."""
        try:
            return changed(self.spec, options)
        except ScaleGMNError as error:
            raise ScaleGMNError(f"model {self.name!r}: {error}") from None

    @property
    def year(self) -> int:
        """The year of the paper."""
        return int(self.paper[-4:])

    @property
    def edits(self) -> bool:
        """Whether its trunk can feed an `Editor`."""
        return issubclass(self.trunk, EditingTrunk)
