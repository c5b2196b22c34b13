"""Heat maps of how tasks relate, one panel per client, drawn from a results folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DataError
from ..results.reader import read_npz, read_summary
from ..results.task_relations import (
    Omega,
    as_omega,
    correlation,
    read_covariances,
    read_rounds,
)
from .style import GREY, run_title, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_NAME = 26  # letters; SIDER has names of 67
_COLUMNS = 4


def draw_task_relations(
    run_dir: Path, rounds: Sequence[int] | None = None
) -> list[Path]:
    """Draw Omega of each client as correlations of tasks.

    Parameters
    ----------
    run_dir : Path
        A results folder.
    rounds : sequence of int, optional
        If left out: the last that was kept.

    Returns
    -------
    list of Path
        ``task-covariance-round-<t>.png`` of each round that has a readable file.
    """
    kept = read_rounds(run_dir)
    summary = read_summary(run_dir)
    drawn = []
    for server_round in kept[-1:] if rounds is None else rounds:
        if covariances := read_covariances(run_dir, server_round):
            figure = _figure(covariances, summary, server_round)
            name = f"task-covariance-round-{server_round:06d}.png"
            drawn.append(save(figure, run_dir / name))
    return drawn


def draw_site_tasks(folder: Path, rounds: Sequence[int] | None = None) -> list[Path]:
    """Draw Omega of one client from what a run with sealed letters left at its site.

    The relay of such a run has no Omega to draw.

    Parameters
    ----------
    folder : Path
        The client's folder below ``state-dir``, with ``omega-<round>.npz``.
    rounds : sequence of int, optional
        If left out: the last.

    Returns
    -------
    list of Path
        ``omega-<round>.png`` of each round, beside the file; none if the folder is no
        such folder.

    Raises
    ------
    DataError
        The folder lacks one of the rounds, or a file is unreadable.
    """
    kept = site_rounds(folder)
    wanted = sorted(kept)[-1:] if rounds is None else rounds
    if kept and not set(wanted) <= set(kept):
        raise DataError(
            f"{folder} has omega of rounds {sorted(kept)}, asked for {list(wanted)};"
            " ask for rounds that it has"
        )
    return [_draw_site_file(kept[t]) for t in wanted if t in kept]


def site_rounds(folder: Path) -> dict[int, Path]:
    """Find the files with Omega that a sealed run left at a site, by round."""
    files = {p.stem.removeprefix("omega-"): p for p in folder.glob("omega-*.npz")}
    return {int(n): files[n] for n in sorted(files) if n.isdecimal()}


def _draw_site_file(path: Path) -> Path:
    try:
        file = read_npz(path)
        omega = as_omega(file["task_ids"], file["omega"])
        own, names = file["own_ids"].tolist(), file["tasks"].tolist()
        client, server_round = int(path.parent.name.split("-")[1]), int(path.stem[6:])
    except (DataError, ValueError, TypeError, LookupError) as error:
        raise DataError(
            f"{path} does not hold relations of tasks ({error!r}); give"
            " omega-<round>.npz of a client's folder below state-dir, of a run whose"
            " letters are sealed"
        ) from error
    summary = {
        "method": f"client {client}",
        "dataset": path.parents[1].name,  # the name of the run
        "tasks": names,
        "owned_tasks": {str(client): own},
    }
    figure = _figure({client: omega}, summary, server_round)
    return save(figure, path.with_suffix(".png"))


def _figure(
    covariances: Mapping[int, Omega], summary: Mapping[str, Any], server_round: int
) -> Figure:
    from matplotlib.figure import Figure

    shown = sorted({t for ids, _ in covariances.values() for t in ids})
    given = summary.get("tasks") or []
    names = [_short(given[t] if t < len(given) else f"task {t}") for t in shown]
    columns = min(_COLUMNS, len(covariances))
    rows = math.ceil(len(covariances) / columns)
    side = max(1.9, 0.17 * len(shown))
    figure = Figure(
        figsize=(2.6 + columns * (side + 0.25), 2.9 + rows * (side + 0.35)),
        dpi=150,
        layout="constrained",
    )
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in panels.flat[len(covariances) :]:
        axes.set_axis_off()
    owned = summary.get("owned_tasks") or {}
    image = None
    for axes, (client, omega) in zip(panels.flat, covariances.items(), strict=False):
        image = _panel(axes, omega, shown)
        axes.set_title(f"client {client}", fontsize=9, loc="left")
        _frame_own(axes, shown, owned.get(str(client), []))
    for axes in panels[:, 0]:
        axes.set_yticks(range(len(shown)), names, fontsize=5.5)
    for axes in panels[-1, :]:
        axes.set_xticks(range(len(shown)), names, fontsize=5.5, rotation=90)
    assert image is not None
    bar = figure.colorbar(image, ax=panels, fraction=0.02, pad=0.01)
    bar.ax.tick_params(labelsize=7)
    figure.suptitle(
        f"How tasks relate: {run_title(summary)}, round {server_round}\n",
        fontsize=11,
        fontweight="bold",
        x=0.01,
        ha="left",
    )
    figure.text(
        0.01,
        1 - 0.40 / figure.get_figheight(),
        "correlation of heads in each client's Omega; framed: its own tasks; grey: not"
        " known to it",
        fontsize=7.5,
        color=GREY,
        va="center",
    )
    return figure


def _panel(axes: Axes, omega: Omega, shown: Sequence[int]) -> Any:
    """Draw correlations of ``shown`` tasks; tasks that Omega lacks stay grey."""
    ids, values = omega
    table = np.full((len(shown), len(shown)), math.nan)
    at = [shown.index(t) for t in ids]
    table[np.ix_(at, at)] = correlation(values)
    np.fill_diagonal(table, math.nan)  # always 1: it would only hide the rest
    axes.set_facecolor("0.85")
    return axes.imshow(table, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")


def _frame_own(axes: Axes, shown: Sequence[int], own: Sequence[int]) -> None:
    from matplotlib.patches import Rectangle

    for task in own:
        if task in shown:
            corner = shown.index(task) - 0.5
            axes.add_patch(
                Rectangle((corner, corner), 1, 1, fill=False, color="black", lw=0.8)
            )


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…"
