"""Draws a network of clients: who talks to whom, and who has dropped out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..results.reader import read_summary
from .style import GREY, PALETTE, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_network(run_dir: Path, _rounds: Sequence[int] | None = None) -> list[Path]:
    """Draw ``network.png`` if the run's clients had a network of their own."""
    facts = read_summary(run_dir).get("network")
    if not facts:
        return []
    return [draw_facts(facts, run_dir / "network.png")]


def draw_facts(facts: Mapping[str, Any], path: Path) -> Path:
    """Draw the network that ``results.network.facts_of`` describes.

    Clients that reach each other have one colour; those that are gone are hollow.
    """
    return save(_figure(facts), path)


def _figure(facts: Mapping[str, Any]) -> Figure:
    import networkx as nx
    from matplotlib.figure import Figure

    gone = set(facts["dropped_out"])
    colour = {
        c: PALETTE[k % len(PALETTE)]
        for k, part in enumerate(facts["rest"])
        for c in part
    }
    graph = nx.Graph()
    graph.add_nodes_from(sorted({*gone, *colour}))
    graph.add_edges_from(map(tuple, facts["edges"]))
    place = nx.circular_layout(graph)
    figure = Figure(figsize=(5, 5.3), layout="constrained", dpi=150)
    axes = figure.add_subplot()
    for one, other in graph.edges:
        is_cut = bool({one, other} & gone)
        axes.plot(
            *zip(place[one], place[other], strict=True),
            color="0.8" if is_cut else GREY,
            linestyle=":" if is_cut else "-",
            linewidth=1.2,
            zorder=1,
        )
    for client, (x, y) in place.items():
        is_gone = client in gone
        axes.scatter(
            x,
            y,
            s=420,
            facecolor="white" if is_gone else colour[client],
            edgecolor=GREY if is_gone else "white",
            zorder=2,
        )
        axes.annotate(
            str(client),
            (x, y),
            ha="center",
            va="center",
            color=GREY if is_gone else "white",
            fontsize=10,
        )
    axes.set_title(_title(facts), fontsize=10)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.margins(0.15)
    return figure


def _title(facts: Mapping[str, Any]) -> str:
    lines = [
        f"{facts['kind']}, spectral gap {facts['spectral_gap']:.3f}"
        f" ({facts['weights']} weights)"
    ]
    if facts["dropped_out"]:
        gone = ", ".join(map(str, facts["dropped_out"]))
        state = "connected" if facts["rest_is_connected"] else "not connected"
        lines.append(f"gone: {gone}; the rest is {state}")
    elif not facts["is_connected"]:
        lines.append(f"{len(facts['rest'])} parts that never hear of each other")
    return "\n".join(lines)
