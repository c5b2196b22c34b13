"""What the programs that print tables have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

PIPE_WIDTH = 140  # rich assumes 80 columns where there is no terminal


def consoles() -> tuple[Console, Console]:
    """Make the consoles of stdout and stderr."""
    out = Console()
    return out if out.is_terminal else Console(width=PIPE_WIDTH), Console(stderr=True)


def tell_unused(lines: Iterable[str], err: Console) -> None:
    """List what was found and is not used."""
    for line in lines:
        err.print(f"not used: {line}", markup=False, highlight=False, soft_wrap=True)


def pipe_table(
    headings: Sequence[str], is_text: Sequence[bool], rows: Iterable[Iterable[str]]
) -> list[str]:
    """Lines of a GitHub table; columns of numbers are aligned to the right."""
    rules = ("---" if text else "---:" for text in is_text)
    return [_pipes(cells) for cells in (headings, rules, *rows)]


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
