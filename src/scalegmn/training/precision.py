"""Full or mixed precision, and the corresponding step of the optimizer."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def mixed_dtype(device: torch.device) -> torch.dtype | None:
    """The 16-bit type that a device computes in quickly, or None.

    >>> mixed_dtype(torch.device("meta")) is None
    True
    """
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.bfloat16
    return None


class Precision:
    """How numbers are represented in the forward pass.

    Arguments:
        kind: `mixed` computes in 16 bits if the device supports it, otherwise in 32 bits.
        device: Where the model computes.
    """

    def __init__(self, kind: Literal["float32", "mixed"], device: torch.device) -> None:
        self.device = device
        self.dtype = mixed_dtype(device) if kind == "mixed" else None
        # Only float16 has so few exponents that small gradients vanish.
        self.scaler = torch.amp.GradScaler(device.type) if self.dtype == torch.float16 else None

    def autocast(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        return nullcontext() if self.dtype is None else torch.autocast(self.device.type, dtype=self.dtype)

    def step(self, loss: Tensor, optimizer: Optimizer, weights: Iterable[nn.Parameter], clip: float) -> float:
        """Gradients, clipping to the norm `clip` (unless 0), and a step of the optimizer.

        Returns:
            The norm of the gradient before it was clipped; 0 if it was not computed, or if a scaler skips steps with
            infinite gradients.
        """
        norm = torch.zeros(())
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(optimizer)
        if clip > 0:
            norm = nn.utils.clip_grad_norm_(weights, clip)
        if self.scaler is None:
            optimizer.step()
            return float(norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        return 0.0

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {} if self.scaler is None else dict(self.scaler.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)
