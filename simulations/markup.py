"""Printing of tables, on a terminal and as GitHub markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import fill

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from fedgraph_flwr.core.words import visible

_PADDING = 3  # of a column: a space on either side, and one for the edges
PIPE_WIDTH = 140  # rich assumes 80 columns where there is no terminal
PAGE_WIDTH = 118  # of the prose of pages


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One table in words; ``is_text`` says which columns are not numbers."""

    headings: Sequence[str]
    is_text: Sequence[bool]
    cells: Sequence[Sequence[str]]


def sheet(
    headings: Sequence[str],
    rows: Iterable[Iterable[object]],
    texts: Collection[str] = (),
) -> Sheet:
    """Make a sheet; the first column and those of ``texts`` are not numbers."""
    is_text = [k == 0 or heading in texts for k, heading in enumerate(headings)]
    cells = [[*map(str, row)] for row in rows]
    return Sheet(headings=headings, is_text=is_text, cells=cells)


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


def markdown(title: str, parts: Iterable[Sheet | str]) -> str:
    """Write a title, tables and paragraphs for GitHub."""
    blocks = [
        paragraph(part) if isinstance(part, str) else "\n".join(pipe_table(part))
        for part in map(_shown, parts)
    ]
    return "\n\n".join([f"### {visible(title)}", *blocks])


def _shown(part: Sheet | str) -> Sheet | str:
    """Write out what would command a terminal: folders of runs may be a stranger's."""
    if isinstance(part, str):
        return visible(part)
    cells = [[*map(visible, row)] for row in part.cells]
    return replace(part, headings=[*map(visible, part.headings)], cells=cells)


def paragraph(text: str) -> str:
    """Break a paragraph of a page into lines, only at spaces."""
    return fill(text, PAGE_WIDTH, break_long_words=False, break_on_hyphens=False)


def print_terminal(title: str, parts: Iterable[Sheet | str], console: Console) -> None:
    """Print tables and paragraphs; a table that is too wide becomes several."""
    console.print(f"[bold]{escape(visible(title))}[/bold]")
    for part in map(_shown, parts):
        if isinstance(part, str):
            console.print(escape(part), style="italic")
            continue
        for columns in fitting(part, console.width):
            console.print(_table(part, columns))
    console.print()


def fitting(of: Sheet, width: int) -> list[list[int]]:
    """Share columns out over tables that fit; each begins with the first column.

    Parameters
    ----------
    of : Sheet
    width : int
        Of the terminal, in characters.

    Returns
    -------
    list of list of int
        Columns of each table, ascending. One that is too wide alone is folded.
    """
    rows = [of.headings, *of.cells]
    widths = [_PADDING + max(map(len, column)) for column in zip(*rows, strict=True)]
    tables = [[0]]
    for k in range(1, len(widths)):
        used = sum(widths[c] for c in tables[-1])
        if len(tables[-1]) > 1 and used + widths[k] > width:
            tables.append([0])
        tables[-1].append(k)
    return tables


def _table(of: Sheet, columns: Sequence[int]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for k in columns:
        justify: JustifyMethod = "left" if of.is_text[k] else "right"
        table.add_column(escape(of.headings[k]), justify=justify, overflow="fold")
    for cells in of.cells:
        table.add_row(*(escape(cells[k]) for k in columns))
    return table


def pipe_table(of: Sheet) -> list[str]:
    """Lines of a GitHub table; columns of numbers are aligned to the right."""
    rules = ["---" if is_text else "---:" for is_text in of.is_text]
    rows = ([cell.replace("|", "\\|") for cell in cells] for cells in of.cells)
    return [f"| {' | '.join(cells)} |" for cells in (of.headings, rules, *rows)]
