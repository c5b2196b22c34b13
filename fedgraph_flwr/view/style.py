"""Colours, lines and frames that all figures have in common."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from ..core.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colour-blind-safe palette, without the yellow that fades on white
# and with Tol's indigo for the black, which is the mean's.
PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#332288",
)
GREY = "#6b6b6b"
_DASHES = ("-", "--", ":", "-.")
_MAX_LEGEND = 16


def finish(axes: Axes, rounds: Sequence[int], splits: list[int]) -> None:
    """Mark cluster splits, label the axis of rounds, put the legend outside."""
    from matplotlib.ticker import MaxNLocator

    if len(rounds) == 1:  # a line of one point is invisible
        for drawn in axes.lines:
            drawn.set_marker("o")
    for i, at in enumerate(splits):
        axes.axvline(
            at,
            color="0.35",
            linewidth=0.8,
            linestyle=(0, (2, 2)),
            zorder=1.5,
            label="cluster split" if i == 0 else None,
        )
    axes.set_xlabel("communication round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(rounds) > 1:
        axes.set_xlim(rounds[0], rounds[-1])
    elif rounds:
        axes.set_xticks(rounds)
    axes.grid(color="0.93")
    axes.set_axisbelow(True)
    bare(axes)
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > _MAX_LEGEND:
        more = len(labels) - _MAX_LEGEND
        # The mean, the bands and the split mark are at the ends; clusters give way.
        handles = handles[: _MAX_LEGEND - 2] + handles[-2:]
        labels = [*labels[: _MAX_LEGEND - 2], *labels[-2:]]
        labels[_MAX_LEGEND - 3] += f"  (+{more} more)"
    axes.legend(
        handles,
        labels,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        fontsize=8.5,
        frameon=False,
        borderaxespad=0,
    )


def new_figure(title: str, words: str) -> tuple[Figure, Axes]:
    """Begin a figure over rounds: its title, and below in small what it shows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=22)
    axes.text(0, 1.03, words, transform=axes.transAxes, fontsize=8.5, color=GREY)
    return figure, axes


def head(figure: Figure, title: str, words: str) -> None:
    """Write a title above all panels, and below in small what they show."""
    figure.suptitle(f"{title}\n", fontsize=12, fontweight="bold", x=0.01, ha="left")
    y = 1 - 0.42 / figure.get_figheight()
    figure.text(0.01, y, words, fontsize=8.5, color=GREY, va="center")


def run_title(summary: Mapping[str, Any]) -> str:
    """Name a run by its method, data set and seed, and say if it failed."""
    method, dataset, seed = (summary.get(k, "?") for k in ("method", "dataset", "seed"))
    failed = " (FAILED)" if summary.get("status") == "failed" else ""
    return f"{method} on {dataset}, seed {seed}{failed}"


def bare(axes: Axes) -> None:
    """Remove the frame at the top and on the right."""
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure, in a folder made for it if need be.

    Raises
    ------
    StorageError
        It cannot be written.
    """
    with replacing(path) as partial:  # a Figure without pyplot draws with Agg
        figure.savefig(partial, format=path.suffix.removeprefix("."))
    return path


def inline_svg(figure: Figure, name: str) -> Markup:
    """Return a figure as an ``svg`` element of a page, in which ``name`` is its own.

    Its texts are texts. The page may hold several: ids are made from the name.
    """
    from matplotlib import rc_context

    file = io.StringIO()
    nobody = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata=nobody)
    text = file.getvalue()
    own = re.sub(r"\W+", "-", name)
    text = re.sub(r'\bid="', f'id="{own}-', text[text.index("<svg ") + 5 :])
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{own}-", text)
    head = Markup('<svg role="img" aria-label="{}" ').format(name)
    return head + Markup(text)


def line(k: int) -> dict[str, Any]:
    """Colour and dashes of the k-th line, different for the first 28."""
    return {
        "color": PALETTE[k % len(PALETTE)],
        "linestyle": _DASHES[k // len(PALETTE) % len(_DASHES)],
    }
