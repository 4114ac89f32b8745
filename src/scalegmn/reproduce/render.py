"""Tables from records: as data, as Markdown, and all together as a page."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import read_toml
from ..training.recipe import read_values
from .experiments import DATASETS, METHODS, experiments
from .records import Record, matching, read_records, same_experiment
from .tables import TABLES, ResultTable
from .trials import TrialRecord, read_outcomes
from .zoos import SMALL_CNNS, SMALL_SIZES, Folders, Scale

_PREFACE = read_toml(Path(__file__).with_name("preface.toml"))
_BETTER = {"accuracy": max, "tau": max, "mse": min}


def table_data(
    table: ResultTable,
    records: Sequence[Record],
    scale: Scale,
    pictures: Path | None = None,
    caps: Mapping[str, float] | None = None,
    outcomes: Sequence[TrialRecord] = (),
) -> dict[str, Any]:
    """A table as plain values.

    Arguments:
        table: The table.
        records: All that there are.
        scale: `small` or `paper`.
        pictures: The folder of the pictures of distributions.
        caps: Largest taus by the checksum of a zoo, for records without them.
        outcomes: Of trials.

    Returns:
        `rows` with the `cells` of every method by dataset: `mean`, `std`, `values` by seed, `seconds`, `epochs`,
        `parameters`, and `paper` and `paper_std`, the published mean and deviation; cells without a run and without a
        published value are left out.
        In a table of transformed networks `before` has the mean on the networks as they were. `undefined` counts the
        runs without a value, which the mean leaves out. `differs` says how a row differs from the paper's model, and
        on which datasets; `outdated` names the datasets with results of settings that the row's recipe does not have.
        `trials` has, by method, the validation values of its trials and the number of the best one (`won`).
        `figures` has the existing pictures.
    """
    drawn = [f"{name}.png" for name in table.figures]
    rows = []
    for method in table.methods:
        cells = {name: _cell(table, name, method, matching(records, name, method)) for name in table.datasets}
        shown = {name: cell for name, cell in cells.items() if cell}
        if shown:
            mine = [r for name in table.datasets for r in matching(records, name, method)]
            rows.append(
                {
                    "method": method,
                    "title": METHODS[method].title,
                    "cells": shown,
                    "differs": departures(mine),
                    "outdated": _outdated(mine, scale),
                }
            )
    used = [r for r in records if r.dataset in table.datasets and r.method in table.methods]
    return {
        "table": table.name,
        "title": table.title,
        "scale": scale,
        "datasets": [_column(name, used, caps or {}) for name in table.datasets],
        "rows": rows,
        "tuned": DATASETS[table.tuned].title if table.tuned else None,
        "trials": _trials(table, outcomes),
        "figures": [name for name in drawn if pictures is not None and (pictures / name).is_file()],
        "machines": _distinct([r.machine for r in used]),
        "versions": _distinct([r.versions for r in used]),
    }


def _cell(table: ResultTable, dataset: str, method: str, records: Sequence[Record]) -> dict[str, Any]:
    cell: dict[str, Any] = {}
    unit = DATASETS[dataset].unit
    plain = {r.seed: unit * r.value for r in records if r.value is not None}
    copies = {r.seed: unit * r.transformed for r in records if r.transformed is not None and r.seed in plain}
    shown = copies if table.transformed else plain
    known, values = [r for r in records if r.seed in shown], list(shown.values())
    if len(plain) < len(records):
        cell["undefined"] = len(records) - len(plain)
    if known:
        cell |= {
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else None,
            "values": {str(seed): value for seed, value in shown.items()},
            "parameters": known[0].parameters,
            "epochs": statistics.fmean(r.epochs for r in known),
            "seconds": statistics.fmean(r.seconds for r in known),
        }
        if table.transformed:
            cell["before"] = statistics.fmean(plain[seed] for seed in copies)
    published = table.paper.get(dataset, {}).get(method)
    return cell if published is None else {**cell, "paper": published[0], "paper_std": published[1]}


def departures(records: Sequence[Record]) -> dict[str, list[str]]:
    """How ScaleGMN differs from the paper's model beyond what its row says, and on which datasets; empty for peers.

    Arguments:
        records: Of one method.

    >>> departures([])
    {}
    """
    found: dict[str, list[str]] = {}
    for record in records:
        model = record.recipe.get("model", {})
        words = [
            "our form of its equations" if model.get("form") != "paper" else "",
            "edges are not updated" if model.get("edge_updates") is False else "",
            f"nets on edges have {model['gate']} hidden neurons" if model.get("gate") else "",
            f"nets that update neurons have {model['hidden']} hidden neurons" if model.get("hidden") else "",
            "layers of neurons are updated in turn" if model.get("order") == "in_turn" else "",
            "messages are activations, and training starts from the forward pass of the networks"
            if model.get("messages") == "activations"
            else "",
            f"{model['corrections']} Gauss-Newton steps come before each edit" if model.get("corrections") else "",
        ]
        for told in words if str(model.get("name", "")).startswith("scalegmn") else ():
            if told and record.dataset not in found.setdefault(told, []):
                found[told].append(record.dataset)
    return {told: names for told, names in found.items() if names}


def _outdated(records: Sequence[Record], scale: Scale) -> list[str]:
    """The datasets on which the records of a method are of other settings than its recipe has now."""
    place = Folders(scale, Path("zoos"), None)
    found: dict[str, None] = {}
    for record in records:
        now = experiments(DATASETS[record.dataset], METHODS[record.method], record.seed + 1, place)[-1:]
        if not all(same_experiment(record, experiment) for experiment in now):
            found[record.dataset] = None
    return list(found)


def _trials(table: ResultTable, outcomes: Sequence[TrialRecord]) -> dict[str, Any]:
    mine = [o for o in outcomes if o.dataset == table.tuned and o.method in table.methods]
    found: dict[str, Any] = {}
    for method in (m for m in table.methods if any(o.method == m for o in mine)):
        tried = {o.number: o for o in mine if o.method == method}
        known = {number: o.val for number, o in tried.items() if o.val is not None}
        best = _BETTER[DATASETS[table.tuned].metric](known.values()) if known else None
        won = next((number for number, value in known.items() if value == best), None)
        values = {str(number): o.val for number, o in tried.items()}
        found[method] = {"values": values, "won": won, "changes": tried[won].changes if won is not None else None}
    return found


def _column(name: str, records: Sequence[Record], caps: Mapping[str, float]) -> dict[str, Any]:
    mine = [r for r in records if r.dataset == name]
    dataset, zoo = DATASETS[name], mine[0].zoo if mine else {}
    found = {"name": name, "title": dataset.title, "metric": dataset.metric, "zoo": dataset.zoo}
    told = [r.zoo.get("tau_cap", caps.get(r.zoo.get("sha256", ""))) for r in mine]
    cap = next((value for value in told if value is not None), None)
    return {**found, "networks": zoo.get("networks"), "published": zoo.get("published"), "tau_cap": cap}


def _distinct(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({repr(sorted(item.items())): item for item in items}.values())


def cell_text(cell: dict[str, Any], digits: int) -> str:
    """A cell in a few characters: mean and deviation over seeds, and those that were published in brackets.

    >>> cell_text({"mean": 81.234, "std": 0.51, "paper": 96.57, "paper_std": 0.1}, 1)
    '81.2 ± 0.5 (96.57 ± 0.1)'
    >>> cell_text({"mean": 0.71, "std": None, "undefined": 2}, 2)
    '0.71, 2 undefined'
    """
    measured, parts = [], []
    if "mean" in cell:
        before = f"{cell['before']:.{digits}f} → " if "before" in cell else ""
        spread = "" if cell["std"] is None else f" ± {cell['std']:.{digits}f}"
        measured.append(f"{before}{cell['mean']:.{digits}f}{spread}")
    if "undefined" in cell:
        measured.append(f"{cell['undefined']} undefined")
    if measured:
        parts.append(", ".join(measured))
    if "paper" in cell:
        spread = "" if cell["paper_std"] is None else f" ± {cell['paper_std']:g}"
        parts.append(f"({cell['paper']:g}{spread})")
    return " ".join(parts)


def grid(data: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a table as text; the best mean of each column is marked with two stars before and after."""
    best = {c["name"]: _best(data, c["name"], c["metric"]) for c in data["datasets"]}
    heads = ["method", *(c["title"] for c in data["datasets"]), "parameters", "minutes"]
    rows = []
    for row in data["rows"]:
        texts = []
        for column in data["datasets"]:
            cell = row["cells"].get(column["name"], {})
            text = cell_text(cell, DATASETS[column["name"]].digits)
            mean, mark = (text.partition(" (")[0], best[column["name"]]) if "mean" in cell else ("", None)
            texts.append(f"**{mean}**{text[len(mean) :]}" if mean and cell["mean"] == mark else text)
        measured = [c for c in row["cells"].values() if "mean" in c]
        sizes = sorted({c["parameters"] for c in measured})
        size = " to ".join(f"{n:,}" for n in dict.fromkeys(sizes[:1] + sizes[-1:]))
        minutes = f"{statistics.fmean(c['seconds'] for c in measured) / 60:.1f}" if measured else ""
        rows.append([row["title"], *texts, size, minutes])
    return heads, rows


def _best(data: dict[str, Any], dataset: str, metric: str) -> float:
    means = [row["cells"][dataset]["mean"] for row in data["rows"] if "mean" in row["cells"].get(dataset, {})]
    return _BETTER[metric](means) if means else math.nan


def footers(data: dict[str, Any]) -> list[str]:
    """What a reader must know about a table: the largest tau that ties allow, published networks, trials, and models
    that are not the paper's.

    >>> column = {"name": "a", "title": "A", "tau_cap": 0.99512, "published": None}
    >>> footers({"datasets": [column], "rows": [], "trials": {}, "tuned": None})
    ['Largest tau that equal accuracies allow: A 0.995.']
    """
    caps = [f"{c['title']} {c['tau_cap']:.3f}" for c in data["datasets"] if c["tau_cap"] is not None]
    given = [f"{c['title']} ({c['published']})" for c in data["datasets"] if c["published"]]
    lines = [f"Largest tau that equal accuracies allow: {', '.join(caps)}."] if caps else []
    lines += [f"Published networks: {', '.join(given)}."] if given else []
    lines += [f"Not the paper's model: {words}." for words in _differences(data)]
    older = [row["title"] + _where(data, row, row["outdated"]) for row in data["rows"] if row["outdated"]]
    lines += [f"Older, with other settings than the recipe has now: {'; '.join(older)}."] if older else []
    if data["trials"]:
        titles = "; ".join(METHODS[method].title for method in data["trials"])
        lines.append(
            f"Settings of {titles}: of each the best of {_numbers(data)} trials, the same for all, on the validation "
            f"networks of {data['tuned']}."
        )
    return lines


def _differences(data: dict[str, Any]) -> list[str]:
    """One line for the rows that differ in the same way: which they are, and how they differ."""
    rows: dict[str, list[str]] = {}
    for row in data["rows"]:
        words = ", ".join(f"{words}{_where(data, row, names)}" for words, names in row["differs"].items())
        rows.setdefault(words, []).append(row["title"])
    return [f"{'; '.join(titles)}: {words}" for words, titles in rows.items() if words]


def _where(data: dict[str, Any], row: dict[str, Any], names: Sequence[str]) -> str:
    """The columns of a row that are meant, if not all are."""
    titles = {column["name"]: column["title"] for column in data["datasets"]}
    measured = {name for name, cell in row["cells"].items() if "mean" in cell}
    return "" if measured <= set(names) else f" on {' and '.join(titles[name] for name in names)}"


def _numbers(data: dict[str, Any]) -> str:
    """How many trials methods had, as `4` or `2 to 4`."""
    sizes = sorted({len(found["values"]) for found in data["trials"].values()})
    return " to ".join(str(size) for size in dict.fromkeys(sizes[:1] + sizes[-1:]))


def markdown(data: dict[str, Any]) -> str:
    """A table, or its pictures, in Markdown."""
    if data["figures"]:
        return "\n".join(f"![{Path(name).stem}](distributions/{name})\n" for name in data["figures"])
    heads, rows = grid(data)
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    shown = "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
    return shown + "".join(f"\n{line}\n" for line in footers(data))


def results_page(results: Path, scale: Scale, pictures: Path | None = None) -> str:
    """The page with all tables that have records.

    Arguments:
        results: The folder of the records.
        scale: `small` or `paper`.
        pictures: The folder `distributions` beside the page; the pictures that exist are shown.
    """
    records, outcomes = read_records(results), read_outcomes(results)
    text = [f"# Results\n\n{_preface(records, scale, bool(outcomes))}"]
    for table in TABLES.values():
        data = table_data(table, records, scale, pictures, outcomes=outcomes)
        if data["figures"] or any("mean" in cell for row in data["rows"] for cell in row["cells"].values()):
            command = f"    scalegmn reproduce {table.name} --scale {scale}\n"
            text.append(f"## {table.title}\n\n{command}\n{markdown(data)}")
    curves = f"curves-{scale}.png"
    if pictures is not None and (pictures / curves).is_file():
        shown = f"![Curves](distributions/{curves})"
        text.append(f"## Learning curves\n\nThe first seed, on validation networks.\n\n{shown}\n")
    return "\n".join(text)


def _preface(records: Sequence[Record], scale: Scale, tuned: bool) -> str:
    machines = _distinct([r.machine for r in records])
    versions = _distinct([{k: r.versions[k] for k in ("scalegmn", "torch", "python")} for r in records])
    where = "; ".join(f"{m['processor']}, {m['cores']} cores" for m in machines)
    what = "; ".join(", ".join(f"{k} {v}" for k, v in sorted(version.items())) for version in versions)
    text = _PREFACE["paper"]
    if scale == "small":
        inr, cnn = (read_values(f"small/{kind}/common")["training"] for kind in ("inr", "cnn"))
        settings = _PREFACE["tuned" if tuned else "by_hand"].strip()
        text = _PREFACE["small"].format(sizes=SMALL_SIZES, cnns=SMALL_CNNS, inr=inr, cnn=cnn, settings=settings)
    more = ", reached with far more networks and hours" if scale == "small" else ""
    return str(_PREFACE["start"] + text + _PREFACE["end"].format(where=where, what=what, more=more))
