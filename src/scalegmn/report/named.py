"""Answers with the names of the files that they are about, the worst first."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import torch

from ..tasks import Classification, Regression
from .table import Cell, card, table

if TYPE_CHECKING:
    from .audit import Audit
    from .build import Finding

# Files per model.
LISTED = 12


def by_file(finding: Finding) -> str:
    """The files on which each model was furthest off; nothing if the zoo knows no files or models only edit."""
    task = finding.section.task
    if not finding.files or not isinstance(task, Classification | Regression):
        return ""
    parts = []
    for series, audits in zip(finding.section.series, finding.audits, strict=True):
        if audits:
            rows = _classes(task, audits[0]) if isinstance(task, Classification) else _values(audits[0])
            cells = [[Cell(finding.files[i]), *map(Cell, texts)] for i, *texts in rows]
            head = ["file", f"true {task.column}", "answer"]
            parts.append(f"<h4 class=left>{escape(series.label)}</h4>{table(head, cells)}")
    what = "most confident mistakes" if isinstance(task, Classification) else "answers that are furthest off"
    text = f'<p class="note">The {what} of each model (first seed), at most {LISTED}.</p>'
    return card("By file, the worst first", text + "".join(parts)) if parts else ""


def _classes(task: Classification, audit: Audit) -> list[tuple[int, str, str]]:
    names = [str(c) for c in task.names or task.classes]
    sure, answers = audit.plain.outputs.float().softmax(1).nan_to_num().max(1)
    wrong = (answers != audit.plain.targets).nonzero().flatten()
    order = wrong[sure[wrong].argsort(descending=True)][:LISTED].tolist()
    truths = audit.plain.targets
    return [(i, names[int(truths[i])], f"{names[int(answers[i])]} ({float(sure[i]):.2f})") for i in order]


def _values(audit: Audit) -> list[tuple[int, str, str]]:
    outputs, truths = audit.plain.outputs.flatten(), audit.plain.targets.flatten()
    order = (outputs - truths).abs().nan_to_num(torch.inf).argsort(descending=True)[:LISTED].tolist()
    return [(i, f"{float(truths[i]):.4g}", f"{float(outputs[i]):.4g}") for i in order]
