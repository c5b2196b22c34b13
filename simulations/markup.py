"""Printing of tables, on a terminal and as GitHub markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPE_WIDTH = 140  # rich assumes 80 columns where there is no terminal


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One table in words; ``is_text`` says which columns are not numbers."""

    headings: Sequence[str]
    is_text: Sequence[bool]
    cells: Sequence[Sequence[str]]


def consoles() -> tuple[Console, Console]:
    """Make the consoles of stdout and stderr."""
    out = Console()
    return out if out.is_terminal else Console(width=PIPE_WIDTH), Console(stderr=True)


def tell_unused(lines: Iterable[str], err: Console) -> None:
    """List what was found and is not used."""
    for line in lines:
        err.print(f"not used: {line}", markup=False, highlight=False, soft_wrap=True)


def markdown(title: str, parts: Iterable[Sheet | str]) -> str:
    """Write a title, tables and paragraphs for GitHub."""
    blocks = [
        part
        if isinstance(part, str)
        else "\n".join(pipe_table(part.headings, part.is_text, part.cells))
        for part in parts
    ]
    return "\n\n".join([f"### {title}", *blocks])


def print_terminal(title: str, parts: Iterable[Sheet | str], console: Console) -> None:
    """Print tables and paragraphs; long names are folded, not cut."""
    console.print(f"[bold]{escape(title)}[/bold]", highlight=False)
    for part in parts:
        if isinstance(part, str):
            console.print(escape(part), style="italic", highlight=False)
            continue
        table = Table(box=SIMPLE_HEAD)
        for heading, is_text in zip(part.headings, part.is_text, strict=True):
            table.add_column(
                escape(heading),
                justify="left" if is_text else "right",
                overflow="fold",
            )
        for cells in part.cells:
            table.add_row(*map(escape, cells))
        console.print(table)
    console.print()


def pipe_table(
    headings: Sequence[str], is_text: Sequence[bool], rows: Iterable[Iterable[str]]
) -> list[str]:
    """Lines of a GitHub table; columns of numbers are aligned to the right."""
    rules = ("---" if text else "---:" for text in is_text)
    return [_pipes(cells) for cells in (headings, rules, *rows)]


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
