"""What happens between two networks: the loss along the segment from one to the other."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..core.networks import Networks
from ..errors import ScaleGMNError
from ..files import write_figure
from .align import align, pairs
from .merge import blend, restored

Loss = Callable[[Networks], Tensor]
COLOURS = {"as stored": "#8a8a8a", "permuted": "#c9803f", "aligned": "#3b6ea5", "restored": "#5b8c5a"}


@dataclass(frozen=True)
class Barrier:
    """The loss along segments between two networks.

    Arguments:
        at: Positions (P,), from 0 at the first network to 1 at the second.
        curves: Losses (P,) with the second network `as stored`, `permuted`, `aligned` (scales, signs and phases too),
            and aligned with statistics `restored`, if data were given.
    """

    at: Tensor
    curves: dict[str, Tensor]

    @property
    def heights(self) -> dict[str, float]:
        """Per curve, how far it rises above the straight line between its ends."""
        found = {}
        for name, loss in self.curves.items():
            line = (1 - self.at) * loss[0] + self.at * loss[-1]
            found[name] = float((loss - line).max())
        return found

    def plot(self, path: str | Path, label: str = "loss") -> None:
        """Draw the curves into a file.

        Arguments:
            path: Where to write (.png or .svg).
            label: What the loss is called.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.6, 3.0), layout="constrained")
        FigureCanvasAgg(figure)
        ax = figure.subplots()
        for name, loss in self.curves.items():
            ax.plot(self.at.tolist(), loss.tolist(), color=COLOURS[name], marker=".", label=name)
        ax.set_xlabel("from the first network to the second")
        ax.set_ylabel(label)
        ax.legend(frameon=False, fontsize=8)
        write_figure(path, figure, dpi=110)


def barrier(a: Networks, b: Networks, loss: Loss, *, points: int = 11, inputs: Tensor | None = None) -> Barrier:
    """Measure a loss on the line from one network to another, before and after alignment.

    Arguments:
        a, b: One network each.
        loss: Gives one number per network, (B,).
        points: How many networks on the line, ends included.
        inputs: Data on which statistics are restored, if given.
    """
    a, b = pairs(a, b)
    if len(a) != 1 or points < 2:
        raise ScaleGMNError(f"barrier: expected one pair and at least 2 points, got {len(a)} and {points}")
    first, last = (n.detach().to(dtype=torch.float64) for n in (a, b))
    at = torch.linspace(0, 1, points, dtype=torch.float64)
    shares = torch.stack([1 - at, at], dim=1).to(a.device)
    ends = {
        "as stored": last,
        "permuted": align(first, last, scale=False).aligned,
        "aligned": align(first, last).aligned,
    }
    curves = {}
    for name, end in ends.items():
        both = Networks(a.architecture, torch.cat([first.parameters, end.parameters]))
        curves[name] = _losses(loss, blend(both, shares), a)
        if name == "aligned" and inputs is not None:
            way = [restored(blend(both, s), both, s.tolist(), inputs) for s in shares]
            curves["restored"] = _losses(loss, Networks.cat(way), a)
    return Barrier(at, curves)


def _losses(loss: Loss, networks: Networks, like: Networks) -> Tensor:
    with torch.no_grad():
        return loss(networks.to(dtype=like.dtype)).detach().double().cpu()
