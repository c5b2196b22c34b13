"""Printing of tables, on a terminal and as GitHub markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from fedgraph_flwr.core.words import visible

_PADDING = 3  # of a column: a space on either side, and one for the edges
PIPE_WIDTH = 140  # rich assumes 80 columns where there is no terminal
PAGE_WIDTH = 118  # of the prose of pages
PIPE = "\\|"  # in a cell of a GitHub table
# Headings of columns that are not of numbers, beside the first of each table.
TEXTS = frozenset(
    {
        "and",
        "candidate",
        "clients",
        "judged",
        "opponent",
        "property",
        "secret",
        "seeds",
        "verdict",
    }
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """A title, then tables of texts and numbers, and paragraphs, in order."""

    title: str
    parts: Sequence[pd.DataFrame | str]


def texts(table: pd.DataFrame) -> list[bool]:
    """Say which columns are not of numbers: the first, and those of ``TEXTS``."""
    return [k == 0 or heading in TEXTS for k, heading in enumerate(table.columns)]


def lines_of(table: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Rows of a table, without headings."""
    return [*table.itertuples(index=False, name=None)]


def consoles() -> tuple[Console, Console]:
    """Make the consoles of stdout and stderr."""
    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = PIPE_WIDTH
    return out, Console(stderr=True, highlight=False)


def tell_unused(lines: Iterable[str], err: Console) -> None:
    """List what was found but is not used."""
    for line in lines:
        err.out(f"not used: {visible(line)}")


def markdown(report: Report) -> str:
    """Write a report for GitHub."""
    blocks = [
        paragraph(part) if isinstance(part, str) else "\n".join(pipe_table(part))
        for part in map(_shown, report.parts)
    ]
    return "\n\n".join([f"### {visible(report.title)}", *blocks])


def _shown(part: pd.DataFrame | str) -> pd.DataFrame | str:
    """Write out what would command a terminal: folders of runs may be a stranger's."""
    if isinstance(part, str):
        return visible(part)
    return part.map(str).map(visible).rename(columns=visible)


def paragraph(text: str) -> str:
    """Break a paragraph of a page into lines, only at spaces."""
    return fill(text, PAGE_WIDTH, break_long_words=False, break_on_hyphens=False)


def print_terminal(report: Report, console: Console) -> None:
    """Print a report; a table that is too wide becomes several."""
    console.print(f"[bold]{escape(visible(report.title))}[/bold]")
    for part in map(_shown, report.parts):
        if isinstance(part, str):
            console.print(escape(part), style="italic")
            continue
        for columns in fitting(part, console.width):
            console.print(_printed(part, columns))
    console.print()


def fitting(table: pd.DataFrame, width: int) -> list[list[int]]:
    """Share columns out over tables that fit; each begins with the first column.

    Columns of each table are ascending. One that is too wide alone is folded.

    Parameters
    ----------
    table : DataFrame
        Of texts.
    width : int
        Of the terminal, in characters.
    """
    rows = [tuple(table.columns), *lines_of(table)]
    widths = [_PADDING + max(map(len, column)) for column in zip(*rows, strict=True)]
    tables = [[0]]
    for k in range(1, len(widths)):
        used = sum(widths[c] for c in tables[-1])
        if len(tables[-1]) > 1 and used + widths[k] > width:
            tables.append([0])
        tables[-1].append(k)
    return tables


def _printed(table: pd.DataFrame, columns: Sequence[int]) -> Table:
    printed, is_text = Table(box=SIMPLE_HEAD), texts(table)
    for k in columns:
        justify: JustifyMethod = "left" if is_text[k] else "right"
        heading = escape(table.columns[k])
        printed.add_column(heading, justify=justify, overflow="fold")
    for cells in lines_of(table):
        printed.add_row(*(escape(cells[k]) for k in columns))
    return printed


def pipe_table(table: pd.DataFrame) -> list[str]:
    """Lines of a GitHub table; columns of numbers are aligned to the right."""
    rules = ["---" if is_text else "---:" for is_text in texts(table)]
    rows = (map(str, cells) for cells in (table.columns, rules, *lines_of(table)))
    return [f"| {' | '.join(c.replace('|', PIPE) for c in cells)} |" for cells in rows]
