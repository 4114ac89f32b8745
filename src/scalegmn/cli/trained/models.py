"""`scalegmn models`: every method, its paper and what it can do, or the options of one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..application import app, examples
from ..console import print_json, stdout, table

if TYPE_CHECKING:
    from ...core.spec import Spec
    from ...models.method import Method


@app.command(
    epilog=examples(
        "scalegmn models", "scalegmn models scalegmn-b", "scalegmn models --json", "scalegmn models --pretrained"
    )
)
def models(
    name: Annotated[str | None, typer.Argument(help="A model, to see its options.")] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Instead, list the trained models that come with the package.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every model: paper, symmetries, tasks, inputs, and parameters at default size.

    The parameters are those of a classifier with 10 classes of SIRENs 2-32-32-1. With a NAME: its options, their types,
    defaults and meaning, as in the table `model` of a recipe.

    With --pretrained: trained models that `predict`, `embed`, `edit` and `evaluate` take by name, with their test
    results.
    """
    if pretrained:
        _pretrained(name, as_json)
        return
    from ...models.registry import METHODS, method

    rows = [describe_model(m) for m in ([method(name)] if name else METHODS.values())]
    if as_json:
        print_json(rows[0] if name else rows)
    elif name:
        _print_one(rows[0])
    else:
        _print_all(rows)


def _pretrained(name: str | None, as_json: bool) -> None:
    from ...inference.places import find_pretrained, pretrained
    from ...inference.pretrained import describe

    rows = [describe(one) for one in ([find_pretrained(name).name] if name else pretrained())]
    if as_json:
        print_json(rows[0] if name else rows)
        return
    shown = table("name", "task", "metric", numbers=("test value", "training networks", "parameters", "bytes"))
    shown.add_column("about")
    for row in rows:
        numbers = (row["networks"]["train"], row["parameters"], row["bytes"])
        told = (row["name"], row["task"], row["metric"], f"{row['value']:.4g}", *(f"{n:,}" for n in numbers))
        shown.add_row(*told, row["about"])
    stdout().print(shown)


def describe_model(chosen: Method) -> dict[str, Any]:
    """What is known about a method, as plain values."""
    from ...core.activations import activation
    from ...core.architecture import Architecture
    from ...tasks import TASKS

    siren = Architecture.mlp([2, 32, 32, 1], activation("sine", 30.0))
    tasks = [name for name, task in TASKS.items() if chosen.edits or task.head == "invariant"]
    return {
        "name": chosen.name,
        "title": chosen.title,
        "paper": chosen.paper,
        "year": chosen.year,
        "symmetries": list(chosen.symmetries),
        "tasks": tasks,
        "convolutions": chosen.convolutions,
        "several": chosen.several,
        "options": describe_options(chosen.spec),
        "head_options": {name: describe_options(TASKS[name].head_spec) for name in tasks},
        "parameters": sum(p.numel() for p in chosen([siren], 10).parameters()),
    }


def describe_options(spec: Spec) -> dict[str, dict[str, Any]]:
    """Type, default and meaning of every option.

    >>> from scalegmn.models.heads import EditorSpec
    >>> describe_options(EditorSpec())["copies"]["type"]
    'int, at least 1'
    """
    from ...core.spec import described

    meanings, types = spec.meanings(), described(type(spec))
    return {n: {"type": types[n], "default": getattr(spec, n), "meaning": meanings[n]} for n in spec.names()}


def _print_all(rows: list[dict[str, Any]]) -> None:
    shown = table("name", "model", "paper", "symmetries", "tasks", "inputs", numbers=["parameters"])
    shown.columns[0].no_wrap = True
    for row in rows:
        lists = ", ".join(row["symmetries"]) or "none", ", ".join(row["tasks"])
        shown.add_row(row["name"], row["title"], row["paper"], *lists, _inputs(row), f"{row['parameters']:,}")
    stdout().print(shown)


def _print_one(row: dict[str, Any]) -> None:
    out = stdout()
    out.print(f"{row['title']}: {row['paper']}")
    out.print(f"symmetries: {', '.join(row['symmetries']) or 'none'}; tasks: {', '.join(row['tasks'])}")
    out.print(f"inputs: {_inputs(row)}; parameters of a classifier: {row['parameters']:,}\n")
    shown = table("option", "type", "default", "meaning")
    shown.columns[0].no_wrap = True
    options = [(name, o, "") for name, o in row["options"].items()]
    options += [(name, o, f"{task}: ") for task, head in row["head_options"].items() for name, o in head.items()]
    for name, option, task in options:
        shown.add_row(name, option["type"], _shown(option["default"]), task + option["meaning"])
    out.print(shown)


def _inputs(row: dict[str, Any]) -> str:
    return f"{'MLPs, CNNs' if row['convolutions'] else 'MLPs'}{', mixed' if row['several'] else ''}"


def _shown(value: object) -> str:
    return "" if value is None or value == () else str(value).lower() if isinstance(value, bool) else str(value)
