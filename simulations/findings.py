"""Draw the differences that a page tells: ``python -m simulations.findings``.

Reads every table row of a page with cells such as ``+1.20 [-0.35, +2.75]``. Each
column of such cells is a panel, each row a line: the figure shows what the page says.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_NUMBER = r"([+-]\d+\.\d+)"
_INTERVAL = re.compile(rf"{_NUMBER} \[{_NUMBER}, {_NUMBER}\]")
_LEFT, _RIGHT, _OPEN = "#D55E00", "#0072B2", "#555555"  # below 0, above 0, neither


class Difference(NamedTuple):
    """A mean difference in points, with the ends of its interval."""

    mean: float
    low: float
    high: float


class Forest(NamedTuple):
    """Rows and columns of differences.

    ``cells`` has a list per row of ``rows`` with an item per column of ``columns``;
    None stands for a cell without an interval.
    """

    rows: list[str]
    columns: list[str]
    cells: list[list[Difference | None]]


def difference(cell: str) -> Difference | None:
    """Return the difference that a cell tells, None if it has no interval."""
    found = _INTERVAL.search(cell)
    return Difference(*map(float, found.groups())) if found else None


def read_forest(text: str) -> Forest:
    """Read the first table of a page that has intervals.

    Parameters
    ----------
    text : str
        Markdown.

    Returns
    -------
    Forest
        A row's name is its cells before the first interval.

    Raises
    ------
    ValueError
        If no table has an interval.
    """
    table: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
        elif any(difference(cell) for row in table for cell in row):
            break
        else:
            table = []
    if not table:
        raise ValueError("no table of the page has a cell such as '+1.2 [-0.3, +2.7]'")
    head, body = table[0], table[2:]
    columns = [c for c in range(len(head)) if any(difference(row[c]) for row in body)]
    return Forest(
        rows=[", ".join(row[: columns[0]]) for row in body],
        columns=[head[column] for column in columns],
        cells=[[difference(row[column]) for column in columns] for row in body],
    )


def draw_forest(forest: Forest, path: Path) -> Path:
    """Draw a panel per column, a line per row, and write the file."""
    from matplotlib.figure import Figure

    height = 1.2 + 0.28 * len(forest.rows)
    figure = Figure(figsize=(2.2 + 3.2 * len(forest.columns), height), dpi=120)
    axes = figure.subplots(1, len(forest.columns), sharey=True, squeeze=False)[0]
    for index, (panel, title) in enumerate(zip(axes, forest.columns, strict=True)):
        panel.axvline(0, color="black", linewidth=0.8)
        for row, cells in enumerate(forest.cells):
            if (found := cells[index]) is None:
                continue
            mean, low, high = found
            colour = _LEFT if high < 0 else _RIGHT if low > 0 else _OPEN
            ends = panel.plot([low, high], [row, row], color=colour, linewidth=2)
            ends[0].set_solid_capstyle("butt")
            panel.plot([mean], [row], "o", color=colour, markersize=4)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("points, 95 % interval")
        panel.grid(axis="x", color="#EEEEEE")
        panel.set_axisbelow(True)
    axes[0].set_yticks(range(len(forest.rows)), forest.rows)
    axes[0].set_ylim(len(forest.rows) - 0.5, -0.5)  # the first row on top
    figure.savefig(path, bbox_inches="tight", metadata={"Software": None})
    return path


def main(argv: list[str] | None = None) -> int:
    """Draw the figure of a page; 2 if the page has no intervals."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.findings", description=__doc__
    )
    docs = ROOT / "docs"
    parser.add_argument("page", nargs="?", type=Path, default=docs / "findings.md")
    parser.add_argument("--figure", type=Path, default=docs / "img" / "findings.png")
    arguments = parser.parse_args(argv)
    try:
        forest = read_forest(arguments.page.read_text())
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{arguments.page}: {error}\n")
        return 2
    sys.stdout.write(f"{draw_forest(forest, arguments.figure)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
