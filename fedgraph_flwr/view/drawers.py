"""Figures of a results folder: one list, for the end of a run and for later.

``fedgraph figures`` draws them again. A new figure is a function of a
folder and of rounds in a module of this package, and an entry of ``DRAWERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from .curves import draw_run
from .embedding import draw_embeddings
from .matrices import draw_relations, draw_task_relations

Drawer = Callable[[Path, Sequence[int] | None], list[Path]]

DRAWERS: tuple[Drawer, ...] = (
    draw_run,
    draw_relations,
    draw_task_relations,
    draw_embeddings,
)


def draw_all(folder: Path, rounds: Sequence[int] | None = None) -> list[Path]:
    """Draw every figure that a folder has the data for.

    Returns the files drawn.

    Parameters
    ----------
    folder : Path
        A results folder.
    rounds : sequence of int, optional
        Rounds of figures that show a single round. If left out: each figure's own
        choice, which is that of the end of a run.
    """
    return [path for draw in DRAWERS for path in draw(folder, rounds)]
