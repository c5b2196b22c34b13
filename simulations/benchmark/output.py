"""A benchmark as Markdown, LaTeX and CSV."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedgraph_flwr.core.files import write_text

from ..markup import Report, markdown, paragraph
from .verdict import Duel


def write_all(
    folder: Path, title: str, reports: Sequence[Report], duels: Sequence[Duel]
) -> list[Path]:
    """Write all forms into a folder; returns the files."""
    forms = {
        "benchmark.md": page(title, reports),
        "benchmark.tex": latex(reports),
        "differences.csv": differences_csv(duels),
    }
    for name, text in forms.items():
        write_text(folder / name, text)
    return [folder / name for name in forms]


def page(title: str, reports: Sequence[Report], *source: str) -> str:
    """Write a page for GitHub; ``source`` says from what it is made."""
    parts = [f"# {title}", *map(paragraph, source), *map(markdown, reports)]
    return "\n\n".join(parts) + "\n"


def differences_csv(duels: Sequence[Duel]) -> str:
    """Write one line for each candidate, opponent and data set."""
    columns = ["candidate", "opponent", "data", "pairs", "points", "low", "high"]
    columns += ["held_out", "word", "won", "tied", "lost"]
    rows = []
    for d in duels:
        about = [d.candidate, d.opponent, d.data, d.difference.num_pairs]
        numbers = [d.difference.mean, *d.difference.interval(d.held_out)]
        rows.append([*about, *numbers, d.held_out, d.word, *d.wins])
    found = pd.DataFrame(rows, columns=columns)
    return str(found.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


def latex(reports: Sequence[Report]) -> str:
    """Write the tables for a paper that uses booktabs."""
    return "\n".join(
        part.map(str).to_latex(index=False, escape=True, caption=_escaped(report.title))
        for report in reports
        for part in report.parts
        if not isinstance(part, str)
    )


def _escaped(text: str) -> str:
    return re.sub(r"([&%$#_{}])", r"\\\1", text)
