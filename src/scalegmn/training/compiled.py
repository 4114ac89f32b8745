"""torch.compile for models of networks.

In models with message passing, the iterations are compiled: those of one kind share one compilation, which serves
batches of any size. Other models mix tensor operations with much Python (architectures, views, dispatch by group):
their loss is first traced to a graph of tensor operations for one architecture and one batch size, and that graph is
compiled.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..nn.body import MessagePassing
from ..nn.correction import Correction


class Compiled(nn.Module):
    """A loss with compiled iterations, or compiled for the first batch.

    In the second case, batches of another size or of mixed architectures run uncompiled.

    Arguments:
        objective: Maps networks and targets to a scalar.
        backend: Of torch.compile.
    """

    def __init__(self, objective: nn.Module, *, backend: str = "inductor") -> None:
        super().__init__()
        self.objective = objective
        self.backend = backend
        bodies = [m for m in objective.modules() if isinstance(m, MessagePassing)]
        for body in bodies:
            body.compile_layers(backend=backend)
        self._traced = not bodies
        if self._traced and any(isinstance(m, Correction) for m in objective.modules()):
            raise ScaleGMNError(
                "compile: expected a model whose loss can be traced, got corrections, which watch their rounding; "
                "use compile = false, or a trunk with message passing (scalegmn, gmn)"
            )
        self._names = [name for name, _ in (*objective.named_parameters(), *objective.named_buffers())]
        self._shape: tuple[object, ...] | None = None
        self._graph: Callable[[list[Tensor], Tensor, Tensor], Tensor] | None = None

    def forward(self, networks: Networks | Sequence[Networks], targets: Tensor) -> Tensor:
        """The loss of a batch."""
        if self._traced and isinstance(networks, Networks):
            shape = networks.architecture, networks.parameters.shape, targets.shape
            if self._shape is None:
                self._shape, self._graph = shape, self._compile(networks, targets)
            if self._shape == shape and self._graph is not None:
                return self._graph(self._tensors(), networks.parameters, targets)
        loss: Tensor = self.objective(networks, targets)
        return loss

    def _tensors(self) -> list[Tensor]:
        return [t for _, t in (*self.objective.named_parameters(), *self.objective.named_buffers())]

    def _compile(self, networks: Networks, targets: Tensor) -> Callable[[list[Tensor], Tensor, Tensor], Tensor]:
        architecture = networks.architecture

        def loss(tensors: list[Tensor], parameters: Tensor, targets: Tensor) -> Tensor:
            state = dict(zip(self._names, tensors, strict=True))
            found: Tensor = functional_call(self.objective, state, (Networks(architecture, parameters), targets))
            return found

        graph = make_fx(loss)(self._tensors(), networks.parameters, targets)
        compiled: Callable[[list[Tensor], Tensor, Tensor], Tensor] = torch.compile(graph, backend=self.backend)
        return compiled
