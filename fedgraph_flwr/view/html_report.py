"""The report of runs: one HTML file that opens offline, in any browser.

It has no scripts and loads nothing. Everything in it comes from results folders.
``fedgraph report`` makes it of several runs; a run makes its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from logging import WARNING
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ..core.files import write_text
from ..core.logs import log
from ..core.tasks import POOLED
from ..core.words import score_text, visible
from ..results.printed import (
    CONFUSION_HEADINGS,
    confusion_rows,
    describe_unscored,
    score_lines,
)
from ..results.reader import REPORT, GainUnit, blaming, last_clusters, split_rounds
from .curves import cluster_figure, gain_figure, lines_figure, score_figure
from .gather import RunView, gather, replay_command
from .html_template import PAGE, STYLE
from .style import inline_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["REPORT", "write_own_report", "write_report"]


MOST_BARS = 60  # clients of a chart that has a row for each
_MOST_ROWS = 200  # of a table
_LONGEST = 600  # characters of a text that a site wrote
_MEGABYTE = 1e6


def render(views: Sequence[RunView]) -> str:
    """Write the page of runs as HTML."""
    pages = Environment(autoescape=True, undefined=StrictUndefined)
    pages.filters["plain"] = _plain
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # a name may hold a dollar
        runs = [_run(i, view) for i, view in enumerate(views, start=1)]
        together = _together(views)
    return pages.from_string(PAGE).render(
        style=Markup(STYLE),
        title=runs[0]["title"] if len(runs) == 1 else f"{len(runs)} runs",
        runs=runs,
        together=together,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _plain(value: object) -> str:
    """One line without control characters or changes of direction, cut if long."""
    text = visible(" ".join(str(value).split()))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text)})"


def _run(number: int, view: RunView) -> dict[str, Any]:
    summary = view.summary
    clusters = [m for m in last_clusters(summary, view.partitions) if m]
    if all(len(members) == 1 for members in clusters):  # each client is by itself
        clusters = []
    charts = _charts(view, clusters)
    drawn = {k: inline_svg(f, f"run{number} {k}") for k, f in charts.items()}
    return {
        "id": f"run{number}",
        "title": view.title,
        "name": view.path.name,
        "status": view.status,
        "error": summary.get("error"),
        "outweighing": summary.get("outweighing"),
        "headline": _headline(view),
        "facts": _facts(view),
        "point": view.point.replace("_", " "),
        "many": sum(map(len, clusters)) > MOST_BARS,
        "most_bars": MOST_BARS,
        "ari": summary.get("adjusted_rand_index"),
        "gain": _gain(view),
        "charts": drawn,
        "is_alone": view.summary.get("method") == "local",
        "rules": _rules(summary),
        "class_lines": [*score_lines(summary), *describe_unscored(summary)],
        "confusion": confusion_rows(summary)[:_MOST_ROWS],
        "confusion_headings": CONFUSION_HEADINGS,
        "clients": _clients(view)[:_MOST_ROWS],
        "privacy": summary.get("privacy"),
        "failures": summary.get("failures", [])[:_MOST_ROWS],
        "num_failures": len(summary.get("failures", [])),
        "fresh_starts": summary.get("fresh_starts", [])[:_MOST_ROWS],
        "sites": summary.get("sites") or {},
        "config": sorted(view.config.items()),
        "replay": visible(replay_command(view.config)),
        "origin": _origin(summary),
        "more_rows": _MOST_ROWS,
    }


def _headline(view: RunView) -> dict[str, str] | None:
    row = view.summary.get(view.rule) if view.rule else None
    if not row or row.get("mean") is None:
        return None
    is_pooled = str(POOLED) in row["per_client"]
    whose = "all clients together" if is_pooled else "unweighted mean over clients"
    spread = (
        f" ± {score_text(row['std'], 3)}" if row.get("std") and not is_pooled else ""
    )
    return {
        "value": f"{score_text(row['mean'], 3)}{spread}",
        "what": f"{view.split} {view.metric}, {whose}",
        "protocol": f"rule {view.rule}: {row['protocol']}",
        "spread": "± is the standard deviation over clients" if spread else "",
    }


def _facts(view: RunView) -> list[tuple[str, str]]:
    planned = view.config.get("num-server-rounds", "?")
    found = [
        ("clients", view.fact("num_clients")),
        ("rounds", f"{view.rounds_done} of {planned}"),
        ("sent up", f"{view.moved['up'] / _MEGABYTE:.1f} MB"),
        ("sent down", f"{view.moved['down'] / _MEGABYTE:.1f} MB"),
        ("wall time", f"{sum(t.wall_s for t in view.times):.1f} s"),
        ("computing", f"{sum(t.client_compute_s for t in view.times):.1f} s"),
        ("failures", str(len(view.summary.get("failures", [])))),
        ("split seed", view.fact("split_seed")),
    ]
    num_clients = view.summary.get("num_clients")
    if 1 < view.summary.get("num_clusters", 0) != num_clients:
        found.insert(2, ("clusters", str(view.summary["num_clusters"])))
    return found


def _gain(view: RunView) -> dict[str, Any] | None:
    if not view.gains:
        return None
    unit = GainUnit.of(view.summary, view.metric)
    scaled = {c: unit.factor * g for c, g in view.gains.items()}
    tied = sum(math.isclose(g, 0, abs_tol=1e-9) for g in scaled.values())
    lost = sum(g < -1e-9 for g in scaled.values())
    worst = min(scaled, key=lambda c: (scaled[c], c))
    words = (
        f"{len(scaled) - tied - lost} of {len(scaled)} clients gained, {lost} lost,"
        f" {tied} tied. The mean gain is {unit.as_text(fmean(scaled.values()))}"
        f" {unit.name}; client {worst} has the lowest, {unit.as_text(scaled[worst])}."
    )
    if len(scaled) > MOST_BARS:
        words += f" The chart has the {MOST_BARS // 2} highest and lowest."
    return {"partner": view.partner, "rule": view.rule, "words": words}


def _charts(view: RunView, clusters: list[list[int]]) -> dict[str, Figure]:
    """Figures of a run by name, of what it has."""
    summary = {
        k: _plain(v) if isinstance(v, str) else v for k, v in view.summary.items()
    }
    metric = _plain(view.metric)
    found: dict[str, Figure] = {}
    if not view.scores.empty:
        found["scores"] = score_figure(
            view.scores,
            clusters,
            split_rounds(view.partitions),
            summary,
            metric=metric,
            point=view.point,
        )
    if clusters and view.partitions:
        found["clusters"] = cluster_figure(view.partitions, MOST_BARS)
    if view.gains:
        unit, gains = GainUnit.of(view.summary, view.metric), view.gains
        order = sorted(gains, key=lambda c: (-gains[c], c))
        if len(order) > MOST_BARS:
            order = [*order[: MOST_BARS // 2], *order[-MOST_BARS // 2 :]]
        panel = {str(summary.get("method")): [{c: gains[c] for c in order}]}
        names = str(summary.get("dataset")), view.rule, metric
        found["gain"] = gain_figure(panel, *names, unit)
    return found


def _rules(summary: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for rule in summary.get("rules") or []:
        row = summary[rule]
        cells = [score_text(row[k]) for k in ("mean", "std", "min", "max")]
        rows.append([rule, *cells, row["protocol"]])
    return rows


def _clients(view: RunView) -> list[list[str]]:
    """Client, its site, examples and score by each rule."""
    summary = view.summary
    of_rules = [summary[rule]["per_client"] for rule in summary.get("rules") or []]
    site_of = {c: s for s, of in (summary.get("sites") or {}).items() for c in of}
    sizes = summary.get("num_examples") or {}
    return [
        [str(c), site_of.get(c, ""), str(sizes[str(c)])]
        + [score_text(of.get(str(c))) for of in of_rules]
        for c in sorted(map(int, sizes))
    ]


def _origin(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = ("git_commit", "run_id", "split_hash", "finished_utc", "weights_sha256")
    found = [(n.replace("_", " "), str(summary[n])) for n in names if summary.get(n)]
    return found + sorted((summary.get("versions") or {}).items())


def _together(views: Sequence[RunView]) -> dict[str, Any] | None:
    """Put several runs side by side: a table, and a chart for each metric."""
    if len(views) < 2:
        return None
    rows = []
    for i, view in enumerate(views, start=1):
        head = _headline(view) or {"value": "-", "protocol": "-"}
        moved = (view.moved[way] / _MEGABYTE for way in ("up", "down"))
        numbers = *moved, sum(t.wall_s for t in view.times)
        cells = [view.status, head["value"], head["protocol"].partition(":")[0]]
        cells += [value for _, value in _facts(view)[:2]]
        cells += [f"{number:.1f}" for number in numbers]
        rows.append({"id": f"run{i}", "title": view.title, "cells": cells})
    import pandas as pd

    charts = []
    groups: dict[tuple[str, str, str], list[tuple[int, RunView]]] = {}
    for i, view in enumerate(views, start=1):
        key = view.fact("dataset"), view.split, view.metric
        groups.setdefault(key, []).append((i, view))
    for (dataset, split, metric), members in groups.items():
        means = {
            _plain(f"run {i}: {v.title}"): v.scores.mean(axis=1) for i, v in members
        }
        name = _plain(f"{dataset}: mean {split} {metric} over rounds")
        figure = lines_figure(
            pd.DataFrame(means), name, _plain(f"mean {split} {metric}")
        )
        charts.append({"name": name, "chart": inline_svg(figure, name)})
    return {"rows": rows, "charts": charts}


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of runs, in the order of ``folders``.

    Parameters
    ----------
    folders : sequence of Path
        Results folders; a run that goes on or was killed is shown as far as it came.
    out : Path
        HTML file to write.

    Raises
    ------
    DataError
        A folder is no results folder, or a file of it is not what a run writes.
    StorageError
        ``out`` cannot be written.
    """
    views = gather(folders)
    with blaming(*folders):
        page = render(views)
    write_text(out, page)
    return out


def write_own_report(folder: Path) -> None:
    """Write a finished run's report into its folder; warn if that cannot be done."""
    try:
        write_report([folder], folder / REPORT)
    except Exception as error:  # a picture must not fail hours of training
        log(
            WARNING,
            "no %s in %s: %s: %s; all other results are written",
            REPORT,
            folder,
            type(error).__name__,
            error,
        )
