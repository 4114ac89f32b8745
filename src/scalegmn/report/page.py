"""The page: one self-contained HTML file."""

import math
import statistics
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import torch

from ..tasks import Classification, Editing, Regression, Task
from ..training.progress import duration
from ..training.recipe import to_toml
from . import figures
from .audit import Audit
from .build import Finding
from .collect import RunFiles, Series
from .named import by_file
from .pictures import contact_sheet, embeddings, values_map
from .svg import colour
from .table import Cell, card, table

# Networks before and after an edit, and answers with their pictures, per model.
SHEET, ANSWERS = 10, 14

_STYLE = Path(__file__).with_name("style.css")


def page(title: str, findings: Sequence[Finding]) -> str:
    """The whole page.

    Arguments:
        title: At its top.
        findings: One per section.
    """
    runs = sum(len(series.runs) for f in findings for series in f.section.series)
    lead = f"{_count(runs, 'run')} of {_count(sum(len(f.section.series) for f in findings), 'model')}"
    versions = dict.fromkeys(
        "  ".join(f"{k} {v}" for k, v in run.config["versions"].items())
        for f in findings
        for series in f.section.series
        for run in series.runs
    )
    body = "".join(_section(f) for f in findings)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE.read_text(encoding='utf-8')}</style></head>"
        f'<body><header><h1>{escape(title)}</h1><p class="lead">{lead}</p></header>'
        f"<main>{body}</main>"
        f"<footer>Trained with {'; '.join(map(escape, versions))}</footer></body></html>\n"
    )


def _section(finding: Finding) -> str:
    section = finding.section
    kind = section.zoo["kind"]
    networks = f"{section.zoo['networks']:,} {kind.upper() if kind in ('inr', 'cnn') else kind} networks"
    parts = [
        f"<h2>{escape(heading(section.task))}</h2>"
        f'<p class="lead">Zoo <code>{escape(section.zoo_path.name)}</code>: {escape(networks)}</p>',
        card("Results", _results(finding)),
        card("Learning curves", _curves(finding)),
    ]
    if finding.play:
        parts.insert(1, card("Try it", _play(finding)))
    if any(finding.audits):
        parts += [_answers(finding), by_file(finding), *_pictures(finding), card("Symmetry audit", _audit(finding))]
    else:
        why = finding.note or "no run has weights yet"
        parts.append(card("Symmetry audit", f'<p class="note">Left out: {escape(why)}.</p>'))
    return "".join([*parts, card("Runs", _runs(finding))])


def heading(task: Task) -> str:
    """The heading of the runs of one task.

    >>> heading(Regression("test_accuracy"))
    'Regression of test_accuracy'
    """
    if isinstance(task, Editing):
        return f"Editing: {task.target}"
    assert isinstance(task, Classification | Regression)
    return f"{task.name.capitalize()} {'by' if isinstance(task, Classification) else 'of'} {task.column}"


def _results(finding: Finding) -> str:
    series, task = finding.section.series, finding.section.task
    split = "test" if any(run.split == "test" for s in series for run in s.runs) else "val"
    metrics = _metrics(task, series, split)
    best = {m: _best([_mean(s, split, m) for s in series], task, m) for m in metrics}
    rows = []
    for i, s in enumerate(series):
        done = [run for run in s.runs if run.results]
        cells = [
            Cell(s.label, swatch=colour(i)),
            Cell(f"{len(done)}" + (f" of {len(s.runs)}" if len(done) < len(s.runs) else "")),
        ]
        for m in metrics:
            values = [_value(run, split, m) for run in done]
            cells.append(Cell(spread(values, _format(m)), best=best[m] == i and len(series) > 1))
        cells.append(Cell(f"{done[0].results['parameters']:,}" if done else "-"))
        seconds = [run.results["seconds"] for run in done]
        cells.append(Cell(duration(statistics.fmean(seconds)) if done else "-"))
        rows.append(cells)
    heads = ["model", "runs", *(f"{split} {m}" for m in metrics), "parameters", "training time"]
    several = any(len(s.runs) > 1 for s in series)
    text = "Mean and standard deviation over seeds. " if several else ""
    text += "The weights are those of the best validation"
    text += "; the test split was read once, at the end." if split == "test" else "."
    return f'<p class="note">{text}</p>' + table(heads, rows)


def _metrics(task: Task, series: Sequence[Series], split: str) -> list[str]:
    """The metric that picks epochs first, then the others, without the loss."""
    found = dict.fromkeys([task.metric, *(m for s in series for run in s.runs for m in run.results.get(split, {}))])
    return [metric for metric in found if metric != "loss"]


def _mean(series: Series, split: str, metric: str) -> float:
    values = [_value(run, split, metric) for run in series.runs if run.results]
    return statistics.fmean(values) if values else math.nan


def _value(run: RunFiles, split: str, metric: str) -> float:
    """A result; NaN if it is not defined, such as the correlation of a constant answer."""
    value = run.results.get(split, {}).get(metric)
    return math.nan if value is None else float(value)


def _best(means: Sequence[float], task: Task, metric: str) -> int | None:
    known = [i for i, mean in enumerate(means) if not math.isnan(mean)]
    more = metric in ("accuracy", "tau", "r2") or (metric == task.metric and task.maximise)
    return (max if more else min)(known, key=lambda i: means[i]) if known else None


def _format(metric: str) -> Callable[[float], str]:
    return percent if metric == "accuracy" else lambda value: f"{value:.4g}"


def percent(value: float) -> str:
    """A fraction for people.

    >>> percent(0.9554)
    '95.5 %'
    """
    return f"{100 * value:.1f} %"


def spread(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Mean and standard deviation; a single value as it is, and nothing if a value is NaN.

    >>> spread([0.5, 0.7], percent)
    '60.0 ± 14.1 %'
    >>> spread([0.25], str), spread([], str), spread([0.5, math.nan], str)
    ('0.25', '-', '-')
    """
    if not values or any(map(math.isnan, values)):
        return "-"
    mean = text(statistics.fmean(values))
    if len(values) == 1:
        return mean
    deviation = text(statistics.stdev(values))
    return f"{mean.removesuffix(' %')} ± {deviation}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _curves(finding: Finding) -> str:
    series, metric = finding.section.series, finding.section.task.metric
    if not any(run.metrics for s in series for run in s.runs):
        return '<p class="note">No validation was logged yet.</p>'
    charts = [("train_loss", "training loss"), (metric, f"validation {metric}")]
    found = "".join(f"<figure>{figures.curves(series, key, name)}</figure>" for key, name in charts)
    return f'<div class="pair">{found}</div>{figures.legend([s.label for s in series])}'


def _answers(finding: Finding) -> str:
    task = finding.section.task
    shown = [(i, s, audits) for i, (s, audits) in enumerate(zip(finding.section.series, finding.audits, strict=True))]
    shown = [entry for entry in shown if entry[2]]
    if isinstance(task, Editing):
        return card("Before and after editing", _sheet(finding))
    panels = []
    for i, s, audits in shown:
        truths = torch.cat([a.plain.targets for a in audits])
        outputs = torch.cat([a.plain.outputs for a in audits])
        if isinstance(task, Classification):
            names = [str(c) for c in task.names or task.classes]
            figure = figures.confusion(truths, outputs.argmax(1), names)
        else:
            assert isinstance(task, Regression)
            figure = figures.scatter(truths, outputs, i, task.column)
        panels.append(f"<figure><h4>{escape(s.label)}</h4>{figure}</figure>")
    title = "Confusion" if isinstance(task, Classification) else "Predicted and true"
    text = f"{len(shown[0][2][0].indices):,} networks that no model was trained on"
    text += ", the answers of all seeds together." if any(len(a) > 1 for _, _, a in shown) else "."
    return card(title, f'<p class="note">{text}</p><div class="panels">{"".join(panels)}</div>')


def _sheet(finding: Finding) -> str:
    assert finding.pictures is not None
    rows = [("before", finding.pictures[:SHEET])]
    for series, audits in zip(finding.section.series, finding.audits, strict=True):
        if audits:
            rows.append((f"after, {series.label}", audits[0].plain.outputs[:SHEET]))
            target = audits[0].plain.targets[:SHEET]
    rows.append(("target", target))
    cells = "".join(f"<span>{escape(label)}</span>{figures.strip(images, label)}" for label, images in rows)
    text = "The pictures of some INRs before editing, after the models edited their weights, and as they should be."
    return f'<p class="note">{text}</p><div class="sheet">{cells}</div>'


def _play(finding: Finding) -> str:
    text = (
        "Permute and rescale the hidden neurons of a network. Its weights change, but the picture that it draws does "
        "not, and neither should a model's answer. Your browser computes everything here: the network and the trained "
        "models of this page. Black lines mark the answers before the change."
    )
    return f'<p class="note">{text}</p>{finding.play}'


def _pictures(finding: Finding) -> list[str]:
    """The pictures of the networks, and the maps of the models' embeddings."""
    task, found = finding.section.task, []
    if isinstance(task, Classification) and finding.pictures is not None:
        found.append(card("Answers, wrong ones first", _answers_with_pictures(finding, task)))
    panels = []
    for series, audits, plane in zip(finding.section.series, finding.audits, finding.maps, strict=True):
        if plane is None:
            continue
        truths = audits[0].plain.targets[: len(plane)]
        if isinstance(task, Classification):
            drawn = embeddings(plane, truths, [str(c) for c in task.names or task.classes])
        else:
            drawn = values_map(plane, truths)
        panels.append(f"<figure><h4>{escape(series.label)}</h4>{drawn}</figure>")
    if panels:
        what = "class" if isinstance(task, Classification) else "true value"
        text = (
            f"Each point is a network that no model was trained on, coloured by its {what}. Networks with similar "
            "embeddings are near each other (t-SNE; distances are only a rough guide, the axes have no meaning)."
        )
        content = f'<p class="note">{text}</p><div class="panels">{"".join(panels)}</div>'
        found.append(card("Map of embeddings", content))
    return found


def _answers_with_pictures(finding: Finding, task: Classification) -> str:
    assert finding.pictures is not None
    names = [str(c) for c in task.names or task.classes]
    rows = []
    for series, audits in zip(finding.section.series, finding.audits, strict=True):
        if not audits:
            continue
        outputs, truths = audits[0].plain.outputs, audits[0].plain.targets
        answers = outputs.argmax(1)
        wrong = answers != truths
        # The surest mistakes first, then right answers, the surest last.
        sure = outputs.float().softmax(1).amax(1).nan_to_num()
        order = torch.where(wrong, -1 - sure, sure).argsort()[:ANSWERS]
        captions = [
            f"{names[t]}, said {names[a]}" if t != a else names[t]
            for t, a in zip(truths[order].tolist(), answers[order].tolist(), strict=True)
        ]
        sheet = contact_sheet(finding.pictures[order], captions, wrong[order].tolist())
        rows.append(f"<h4 class=left>{escape(series.label)}: {int(wrong.sum())} of {len(wrong)} wrong</h4>{sheet}")
    text = (
        "The pictures that the networks draw, with the most confident mistakes of each model first; below each, its "
        "class and the answer."
    )
    return f'<p class="note">{text}</p>{"".join(rows)}'


def _audit(finding: Finding) -> str:
    task = finding.section.task
    metric, classes = task.metric, isinstance(task, Classification)
    rows, strips = [], []
    for i, (series, audits) in enumerate(zip(finding.section.series, finding.audits, strict=True)):
        if not audits:
            continue
        change = torch.cat([a.change for a in audits])
        strips.append((i, series.label, change))
        cells = [Cell(series.label, swatch=colour(i)), Cell(", ".join(series.symmetries) or "none")]
        cells += [Cell(_of(audits, metric, transformed)) for transformed in (False, True)]
        if classes:
            cells.append(Cell(spread([a.changed for a in audits if a.changed is not None], percent)))
        rows.append([*cells, Cell(f"{change.max().item():.1e}")])
    heads = ["model", "symmetries", metric, f"{metric} on copies"]
    heads += ["answers that changed"] if classes else []
    text = (
        "The neurons of every network were permuted and rescaled at random, as its symmetries allow. The copy has "
        "other weights but computes the same function, so the answers about it should be the same up to rounding. The "
        "average over all networks can stay the same while single answers change: see the last columns."
    )
    rows_of = table([*heads, "largest change of an output"], rows)
    return f'<p class="note">{text}</p>{rows_of}<figure>{figures.changes(strips)}</figure>'


def _of(audits: Sequence[Audit], metric: str, transformed: bool) -> str:
    values = [(a.transformed if transformed else a.plain).metrics[metric] for a in audits]
    return spread(values, _format(metric))


def _runs(finding: Finding) -> str:
    found = []
    for series in finding.section.series:
        for run in series.runs:
            state = "" if run.results else " · not finished"
            found.append(
                f"<details><summary>{escape(series.label)} · seed {run.seed}{state} "
                f"<code>{escape(str(run.path))}</code></summary>"
                f"<pre>{escape(to_toml(run.config['recipe']))}</pre></details>"
            )
    return "".join(found)
