"""One operation of a traced module, with its operands resolved."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from ..layout import Fixed, Source
from ..trace.graph import Builder
from ..trace.value import UnsupportedError, Value


@dataclass(frozen=True)
class Parameter:
    """A learned tensor of the module, as an operand."""

    source: Source
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Constant:
    """A fixed tensor of the module, as an operand; `key` is its name if it is a buffer."""

    key: str
    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Size:
    """The shape of a value, or one of its entries; `rank` is the number of entries, if unpacking tells it."""

    value: Value
    index: int | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Length:
    """A number of positions or networks that is known only when there is an input."""

    batch: bool = False


@dataclass(frozen=True)
class Arange:
    """The numbers of all positions, as `torch.arange` makes them from a shape."""


@dataclass(frozen=True)
class Rows:
    """Rows of a learned or fixed table (positions, channels), as an operand."""

    source: Source | Fixed
    positions: int
    size: int


@dataclass
class Call:
    """One operation with its operands resolved.

    Arguments:
        builder: The growing network.
        operation: The name of the operation.
        args, kwargs: Its operands: `Value`, `Parameter`, `Constant`, `Size` and the like, or plain Python.
        use: Marks a parameter as used.
        constants: The names of buffers whose numbers are part of the architecture.
        rounding: The eps of the module's parameters, which torch takes where RMSNorm is given none.
    """

    builder: Builder
    operation: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    use: Callable[[Source], Source]
    constants: set[str]
    rounding: float

    def get(self, position: int, name: str, default: object = None) -> object:
        """An operand by position or name."""
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)

    def value(self, position: int = 0, name: str = "input") -> Value:
        """An operand that must be a symbolic value."""
        found = self.get(position, name)
        if not isinstance(found, Value):
            raise UnsupportedError(f"{self.operation} of {operand_name(found)}")
        return found

    def number(self, position: int, name: str, default: float | None = None) -> float:
        """An operand that must be a fixed number."""
        found = self.scalar(self.get(position, name, default))
        if found is None:
            raise UnsupportedError(f"{self.operation} with {name} = {operand_name(self.get(position, name, default))}")
        return found

    def scalar(self, operand: object) -> float | None:
        """An operand as a fixed number, or None if it is not one."""
        if isinstance(operand, int | float) and not isinstance(operand, bool):
            return float(operand)
        if isinstance(operand, Constant) and operand.tensor.numel() == 1:
            self.fix(operand)
            return float(operand.tensor)
        return None

    def fix(self, operand: Constant) -> Fixed:
        """A fixed tensor as weights, which must be equal in all networks of a batch."""
        self.constants.add(operand.key)
        return Fixed(tuple(operand.tensor.flatten().tolist()))

    def parameter(self, position: int, name: str) -> Parameter | None:
        """An operand that must be a learned tensor, or None if it is omitted."""
        found = self.get(position, name)
        if found is None or isinstance(found, Parameter):
            return found
        raise UnsupportedError(f"{self.operation} with a {name} that is not a parameter of the module")

    def learned(self, parameter: Parameter | None) -> Source | None:
        """The source of a parameter."""
        return None if parameter is None else self.use(parameter.source)

    def own(self, path: str, name: str) -> Source:
        """A parameter of the module at a path."""
        return self.use(Source(f"{path}.{name}".removeprefix(".")))

    def weight_and_bias(self, module: nn.Module, path: str) -> tuple[Source | None, Source | None]:
        """Those parameters of the module at a path; None where it has none."""
        weight, bias = (None if getattr(module, n) is None else self.own(path, n) for n in ("weight", "bias"))
        return weight, bias


def operand_name(operand: object) -> str:
    """The name of an operand."""
    if isinstance(operand, Parameter):
        return f"the parameter {operand.source.key} {operand.shape}"
    if isinstance(operand, Constant):
        return f"the fixed tensor {operand.key} {tuple(operand.tensor.shape)}"
    return "the values of the network" if isinstance(operand, Value) else repr(operand)
