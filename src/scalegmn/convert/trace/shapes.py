"""What is known about the shapes of values during tracing: the layers reveal the shape of the input one by one."""

from .value import Axes, UnknownSizeError, UnsupportedError, Value, space


class Shapes:
    """Sizes, dimensions and orders of axes. What a layer says about its input holds for all values that follow it.

    Arguments:
        input_size: Number of input neurons, if known beforehand.
    """

    def __init__(self, input_size: int | None = None) -> None:
        self.input_size = input_size
        self.input_dims: int | None = None
        # Whether the input has its channels last; None while nothing tells.
        self.input_last: bool | None = None
        self.input_axes: Axes | None = None

    def size(self, value: Value) -> int | None:
        """Neurons of a value, None if the input's size is not known yet."""
        if value.part is not None:
            return value.part[1]
        return self.input_size if value.node.size is None else value.node.size

    def known_size(self, value: Value) -> int:
        """Neurons of a value."""
        size = self.size(value)
        if size is None:
            raise UnknownSizeError
        return size

    def dims(self, value: Value) -> int | None:
        """Spatial dimensions of a value, None if those of the input are not known yet."""
        return self.input_dims if value.dims is None else value.dims

    def ranked(self, value: Value) -> bool:
        """Whether the number of a value's axes is known yet."""
        return value.axes is not None or self.dims(value) is not None

    def axes(self, value: Value, rank: int | None = None) -> Axes:
        """The order of a value's axes; `rank` is what the operation tells about their number if it is not known yet."""
        if value.axes is not None:
            return value.axes
        if value.dims is None and self.input_dims is None and rank is not None:
            self.input_dims = rank - 2
        dims = self.dims(value)
        if dims is None:
            raise UnsupportedError("an operation on axes of an input whose dimensions are not known yet")
        if value.dims is None and self.input_axes is not None and dims:
            return self.input_axes
        if value.dims is None and self.input_last and dims:
            return ("b", *space(dims), "c")
        return ("b", "c", *space(dims))

    def undecided(self, value: Value) -> bool:
        """Whether a value is as the input is, and nothing tells yet where that has its channels."""
        told = value.axes is not None or value.dims is not None or bool(value.pools)
        return not told and self.input_axes is None and self.input_last is None

    def last(self, value: Value) -> None:
        """Record, or check, that the channels of a value are its last axis."""
        if value.axes is None and value.dims is None and self.input_axes is None:
            if self.input_last is False and self.input_dims is None:
                self.input_dims = 0  # first and last at once
            if self.input_last is False and self.input_dims:
                raise UnsupportedError("an input whose channels are first for one layer and last for another")
            self.input_last = True
        elif self.axes(value)[-1] != "c":
            raise UnsupportedError("an operation on the last axis of maps whose channels come first")

    def first(self, value: Value) -> None:
        """Record, or check, that the channels of a value are the axis after the batch."""
        if value.axes is None and value.dims is None:
            if self.input_last and self.input_dims is None:
                self.input_dims = 0
            if self.input_last and self.input_dims:
                raise UnsupportedError("an operation on channels that come last", "transpose them first")
            if self.input_last is None:
                self.input_last = False
        elif self.axes(value)[1] != "c":
            raise UnsupportedError("an operation on channels that come last", "transpose them first")

    def meet_size(self, value: Value, size: int) -> None:
        """Record, or check, the number of neurons."""
        if value.node.size is None and self.input_size is None and value.part is None:
            self.input_size = size
        if self.size(value) != size:
            raise UnsupportedError(f"a layer of {size} inputs on {self.size(value)} neurons")

    def meet(self, value: Value, size: int, dims: int) -> None:
        """Record, or check, what a layer says about its input."""
        self.meet_size(value, size)
        if value.dims is None and self.input_dims is None:
            self.input_dims = dims
        if self.dims(value) != dims:
            raise UnsupportedError(f"a layer for {dims} spatial dimension(s) on maps of {self.dims(value)}")
        if dims:
            self.first(value)
