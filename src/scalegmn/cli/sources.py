"""What the commands that read a user's networks share: options, notes, CSV output."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ScaleGMNError
from .console import note

if TYPE_CHECKING:
    from types import ModuleType

    from torch import nn

    from ..core.activations import Activation
    from ..inference.sources import Reading
    from ..inference.trained import Trained

RunPath = Annotated[Path, typer.Argument(help="A run directory, or a name of `scalegmn models --pretrained`.")]
ActivationName = Annotated[
    str | None,
    typer.Option("--activation", help="Activation of the networks, if the model knows several of these shapes."),
]
Archs = Annotated[
    list[str] | None,
    typer.Option(
        "--arch", help="module:function or path/file.py:function that returns the nn.Module; may be repeated."
    ),
]
Prefix = Annotated[str, typer.Option("--prefix", help="Read only the entries under this name, such as actor.")]
Points = Annotated[
    str | None, typer.Option("--points", help="What the two inputs of INRs are, if you know: x,y or row,column.")
]
Split = Annotated[str | None, typer.Option("--split", help="Only this split of a zoo.")]


def read_sources(
    trained: Trained,
    sources: Sequence[Path],
    activation: str | None,
    arch: Sequence[str] | None,
    prefix: str,
    points: str | None,
    split: str | None = None,
) -> Reading:
    """Read the networks that a command line names, and note what had to be assumed."""
    likes = [load_module(reference) for reference in arch or ()]
    found = trained.read(sources, activation=activation, likes=likes, prefix=prefix, split=split, points=points)
    for text in found.notes():
        note(f"note: {text}")
    return found


def load_module(reference: str) -> nn.Module:
    """The module that a function returns.

    Arguments:
        reference: `module:function` or `path/file.py:function`; the function takes no arguments.
    """
    from torch import nn

    name, _, function = reference.rpartition(":")
    if not name or not function:
        raise ScaleGMNError(f"--arch: expected module:function or path/file.py:function, got {reference!r}")
    found = import_code(name, f"--arch {reference}")
    try:
        made = getattr(found, function)()
    except (Exception, SystemExit) as error:
        raise ScaleGMNError(f"--arch {reference}: {type(error).__name__}: {error}".removesuffix(": ")) from error
    if not isinstance(made, nn.Module):
        raise ScaleGMNError(f"--arch {reference}: expected it to return an nn.Module, got {type(made).__name__}")
    return made


def import_code(name: str, where: str) -> ModuleType:
    """A user's Python module.

    Arguments:
        name: Of a module, or the path of a file that ends with `.py`.
        where: The option that named it, for messages.
    """
    import importlib
    import importlib.util

    from ..files import real_path

    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        if Path(name).exists() and not Path(name).is_file():
            raise ScaleGMNError("is not a regular file")
        # What stands beside the file can be imported by it, as when it is run.
        sys.path.insert(0, str(real_path(name).parent))
        place = importlib.util.spec_from_file_location(Path(name).stem, name)
        assert place is not None
        assert place.loader is not None
        found = importlib.util.module_from_spec(place)
        sys.modules.setdefault(place.name, found)
        place.loader.exec_module(found)
    except (Exception, SystemExit) as error:
        # Whatever it raises is their input, not our mistake.
        raise ScaleGMNError(f"{where}: {type(error).__name__}: {error}") from error
    return found


def hidden_activation(name: str | None, w0: float | None) -> Activation | None:
    """The activation that --activation and --w0 describe together."""
    from ..core.activations import activation

    found = None if name is None else activation(name)
    if found is not None and found.name == "sine":
        if w0 is None:
            raise ScaleGMNError("--activation sine: also expected its frequency, such as --w0 30")
        return activation("sine", w0)
    if w0 is not None:
        raise ScaleGMNError("--w0: expected only together with --activation sine")
    return found


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to stdout as CSV; lists become several columns.

    >>> print_csv([{"file": "a.pt", "embedding": [0.5, 1.0]}])
    file,embedding_0,embedding_1
    a.pt,0.5,1.0
    """
    flat = [_flat(row) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(k for row in flat for k in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    sys.stdout.write(text.getvalue())


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {k: v for key, part in value.items() for k, v in _flat(part, f"{name}_{key}" if name else key).items()}
    if isinstance(value, list):
        return {k: v for i, part in enumerate(value) for k, v in _flat(part, f"{name}_{i}").items()}
    return {name: value}
