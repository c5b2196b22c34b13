"""A benchmark as Markdown, LaTeX, HTML, CSV and figures, and its leaderboard."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import pandas as pd

from fedgraph_flwr.core.errors import ConfigError, FedGraphError
from fedgraph_flwr.core.files import write_text
from fedgraph_flwr.results.reader import blaming
from fedgraph_flwr.view.style import PALETTE, bare, save

from ..markup import Report, markdown, paragraph
from ..tables import frame
from ..tables.frame import KEY, Table
from ..tables.stats import Ranks
from .suite import kept_path
from .verdict import Duel


def write_all(
    folder: Path,
    title: str,
    reports: Sequence[Report],
    duels: Sequence[Duel],
    found: Ranks | None,
) -> list[Path]:
    """Write all forms into a folder; returns the files."""
    image = draw_ranks(found, folder / "ranks.png") if found else None
    forms = {
        "benchmark.md": markdown_page(title, reports, image),
        "benchmark.tex": latex(reports),
        "benchmark.html": html(title, reports, image),
        "differences.csv": differences_csv(duels),
    }
    for name, text in forms.items():
        write_text(folder / name, text)
    return [folder / name for name in forms] + ([image] if image else [])


def markdown_page(title: str, reports: Sequence[Report], image: Path | None) -> str:
    """Write a page for GitHub."""
    parts = [f"# {title}", *map(markdown, reports)]
    if image:
        parts.append(f"![Mean ranks with the critical difference]({image.name})")
    return "\n\n".join(parts) + "\n"


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


def html(title: str, reports: Sequence[Report], image: Path | None) -> str:
    """Write a page for a browser."""
    parts = [f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title>"]
    for report in reports:
        parts.append(f"<h2>{escape(report.title)}</h2>")
        parts += [
            f"<p>{escape(part)}</p>"
            if isinstance(part, str)
            else part.to_html(index=False, border=0)
            for part in report.parts
        ]
    if image:
        parts.append(f"<img alt='mean ranks' src='{image.name}'>")
    return "\n".join(parts) + "\n"


def draw_ranks(found: Ranks, path: Path) -> Path:
    """Draw mean ranks; grey reaches one critical difference from the best."""
    from matplotlib.figure import Figure

    names = list(found.mean)
    height = 0.35 * len(names) + 1.2
    figure = Figure(figsize=(8.4, height), dpi=150, layout="constrained")
    axes = figure.subplots()
    best = min(found.mean.values())
    axes.axvspan(best, best + found.critical, color="0.9", zorder=0)
    axes.plot(list(found.mean.values()), range(len(names)), "o", color=PALETTE[0])
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0.8, len(names) + 0.2)
    axes.set_xlabel(
        f"mean rank over {found.num_data} data sets, 1 is best\ngrey: not separated"
        f" from the best (critical difference {found.critical:.2f})"
    )
    bare(axes)
    return save(figure, path)


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
    """Write a suite's part.

    Parameters
    ----------
    suite : str
    reports : sequence of Report
        What the benchmark says, as in its own page.
    rows : Table
        Everything that they are made from.

    Raises
    ------
    FedGraphError
        A row is not in the kept file.
    """
    path = kept_path(suite)
    kept = frame.read(path) if path.is_file() else frame.table([])
    if missing := len(rows) - len(rows.merge(kept[KEY], on=KEY)):
        raise FedGraphError(
            f"--leaderboard is made from kept rows, but {missing} runs are not in"
            f" {path}; add --keep"
        )
    commits = ", ".join(sorted(set(rows["commit"])))
    source = f"Rows: [{path.name}]({path.name}), by the code of {commits}."
    named = [replace(r, title=f"{r.title}: {suite}") for r in reports]
    return "\n\n".join([paragraph(source), *map(markdown, named)])
