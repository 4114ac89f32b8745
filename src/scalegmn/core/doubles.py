"""Double precision, if the device has it."""

import torch
from torch import Tensor

WITHOUT_DOUBLE = ("mps",)


def has_double(device: torch.device) -> bool:
    """Whether a device has double precision."""
    return device.type not in WITHOUT_DOUBLE


def double(x: Tensor) -> Tensor:
    """The same numbers in double precision; on the CPU if the device has none."""
    return x.double() if has_double(x.device) else x.cpu().double()
