"""Draw the table of docs/findings.md: ``python -m simulations.findings``.

The page holds the numbers, and the figure shows what the page says: each column with
cells such as ``+1.20 [-0.35, +2.75]`` is a panel, each row of the table a line. A cell
that ends in † is of one measure, which others contradict or do not confirm.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedgraph_flwr.command import command
from fedgraph_flwr.figures.style import save
from fedgraph_flwr.files import project_root
from fedgraph_flwr.results.reader import blaming

from .tables.differences import NOT_SHOWN, verdict
from .tables.figures import CAPTION, draw_interval, name_intervals

DOCS = project_root() / "docs"
_NUMBER = r"([+-]\d+\.\d+)"
_INTERVAL = re.compile(rf"{_NUMBER} \[{_NUMBER}, {_NUMBER}\]")


class Difference(NamedTuple):
    """A mean difference in points, with the ends of its interval.

    ``of_one`` measure only, if others of the paper do not say the same.
    """

    mean: float
    low: float
    high: float
    of_one: bool = False


class Forest(NamedTuple):
    """Differences by row and column.

    ``cells`` has a list for each of ``rows``, with an item for each of ``columns``;
    ``pairs`` is the number of pairs behind each row.
    """

    rows: list[str]
    pairs: list[int]
    columns: list[str]
    cells: list[list[Difference]]


def difference(cell: str) -> Difference | None:
    """Return the difference in a cell, or None if the cell has no interval."""
    found = _INTERVAL.search(cell)
    if found is None:
        return None
    mean, low, high = map(float, found.groups())
    return Difference(mean, low, high, of_one=cell.endswith("†"))


def read_forest(text: str) -> Forest:
    """Read the rows of a page that have a number of pairs and then intervals.

    Parameters
    ----------
    text : str
        Markdown with a table ``| name | ... | pairs | column | ... |``.

    Returns
    -------
    Forest
        A row's name is its cells before the number of pairs.

    Raises
    ------
    ValueError
        If the page has no such table.
    """
    table = [line.strip("|").split("|") for line in text.splitlines() if "|" in line]
    cells = [[cell.strip() for cell in line] for line in table]
    heads = [head for head in cells if "pairs" in head]
    if not heads:
        raise ValueError("the page has no table with a column 'pairs'")
    at = heads[0].index("pairs")
    found = [
        (row, [known for cell in row[at + 1 :] if (known := difference(cell))])
        for row in cells
    ]
    body = [(row, differences) for row, differences in found if differences]
    return Forest(
        rows=[", ".join(row[:at]) for row, _ in body],
        pairs=[int(row[at]) for row, _ in body],
        columns=heads[0][at + 1 :],
        cells=[differences for _, differences in body],
    )


def draw_forest(forest: Forest, path: Path) -> Path:
    """Draw a panel per column and a line per row, and write the file."""
    from matplotlib.figure import Figure

    count = len(forest.columns)
    size = (3.0 + 3.2 * count, 1.2 + 0.28 * len(forest.rows))
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    labels = list(zip(forest.rows, forest.pairs, strict=True))
    for index, (panel, title) in enumerate(zip(panels, forest.columns, strict=True)):
        for row, (cells, pairs) in enumerate(
            zip(forest.cells, forest.pairs, strict=True)
        ):
            mean, low, high, of_one = cells[index]
            word = NOT_SHOWN if of_one else verdict(low, high, pairs)
            draw_interval(panel, row, mean, (low, high), word)
        name_intervals(panel, labels)
        panel.set_title(title, fontsize=10)
    figure.supxlabel(CAPTION, fontsize=9)
    return save(figure, path)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figure of docs/findings.md; 2 if the page has no table for it."""
    argparse.ArgumentParser(
        prog="python -m simulations.findings",
        description="Draw the table of docs/findings.md into docs/img/findings.png.",
    ).parse_args(argv)
    page = DOCS / "findings.md"
    with blaming(page):
        forest = read_forest(page.read_text())
    sys.stdout.write(f"{draw_forest(forest, DOCS / 'img' / 'findings.png')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
