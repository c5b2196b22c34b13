"""A benchmark as Markdown, LaTeX and CSV, and its leaderboard."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.files import write_text
from fedgraph_flwr.results.reader import blaming

from ..markup import Report, markdown, paragraph
from ..tables.frame import Table
from .suite import kept_path
from .verdict import Duel


def write_all(
    folder: Path, title: str, reports: Sequence[Report], duels: Sequence[Duel]
) -> list[Path]:
    """Write all forms into a folder; returns the files."""
    forms = {
        "benchmark.md": "\n\n".join([f"# {title}", *map(markdown, reports)]) + "\n",
        "benchmark.tex": latex(reports),
        "differences.csv": differences_csv(duels),
    }
    for name, text in forms.items():
        write_text(folder / name, text)
    return [folder / name for name in forms]


def differences_csv(duels: Sequence[Duel]) -> str:
    """Write one line for each candidate, opponent and data set."""
    columns = ["candidate", "opponent", "data", "pairs", "points", "low", "high"]
    columns += ["interval", "word", "won", "tied", "lost"]
    rows = []
    for d in duels:
        about = [d.candidate, d.opponent, d.data, d.difference.num_pairs]
        numbers = [d.difference.mean, *d.difference.interval(d.interval)]
        rows.append([*about, *numbers, d.interval, d.word, *d.wins])
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


_TITLE = "# Leaderboard"
_PART = "\n## "
_RULE = (
    "Each part is a suite, made by a command from kept rows. What the words mean:"
    " [benchmark](../benchmark.md). A row is submitted as a change to this repository."
    " It needs the module of the method in `examples/`, all pairs of the suite with"
    " `--keep`, and the same bytes when we run it again. A part without a row"
    " `majority` is older than that row."
)


def read_page(path: Path) -> dict[str, str]:
    """Parts of a page that :func:`write_page` wrote; none if there is no page yet.

    Raises
    ------
    ConfigError
        The file is something else, which writing the page would destroy.
    """
    if not path.exists():
        return {}
    with blaming(path):
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if not text.startswith(_TITLE):
        raise ConfigError(
            f"--leaderboard must be a new file, or a page that begins with {_TITLE!r},"
            f" got {path}"
        )
    parts = (part.split("\n", 1) for part in text.split(_PART)[1:])
    return {name: body.strip() for name, body in parts}


def write_page(parts: Mapping[str, str]) -> str:
    """Write the page; parts are ordered by their suites' names."""
    bodies = [f"## {name}\n\n{parts[name]}" for name in sorted(parts)]
    return "\n\n".join([_TITLE, paragraph(_RULE), *bodies]) + "\n"


def suite_part(suite: str, reports: Sequence[Report], rows: Table) -> str:
    """Write a suite's part: what its own page says, and from which kept rows."""
    path = kept_path(suite)
    commits = ", ".join(sorted(set(rows["commit"])))
    source = f"Rows: [{path.name}]({path.name}), by the code of {commits}."
    named = [replace(r, title=f"{r.title}: {suite}") for r in reports]
    return "\n\n".join([paragraph(source), *map(markdown, named)])
