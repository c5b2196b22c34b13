"""``fedgraph watch``: draw a run's state in the terminal; it only reads files."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedgraph_flwr.core.command import STOPPED
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.words import duration, visible
from fedgraph_flwr.results.reader import CONFIG, ROUNDS, TIMES, blaming, read_rows
from fedgraph_flwr.results.run_file import FAILURES
from fedgraph_flwr.results.summary import METRICS
from fedgraph_flwr.view.gather import UNFINISHED, RunView, gather

from .report import find_runs

_BLOCKS = "▁▂▃▄▅▆▇█"
_MOST_ROWS, _QUIET_S = 12, 60.0


def picture(view: RunView, width: int, now: float) -> RenderableType:
    """Draw one state of a run, at most ``width`` characters wide.

    ``now`` is the Unix time, to say how old the last news is.
    """
    done = view.rounds_done
    planned = int(view.config.get("num-server-rounds", done) or 1)
    bar = Table.grid()  # alone a bar does not end its line
    bar.add_row(ProgressBar(total=planned, completed=done, width=min(60, width)))
    parts: list[RenderableType] = [
        Text(visible(f"{view.title} · {view.status}"), style="bold"),
        Text(f"round {done} of {planned}{_left(view, done, planned)}"),
        bar,
    ]
    means = view.scores.mean(axis=1)
    if not means.empty:
        words = f"mean {view.split} {view.metric} {means.iloc[-1]:.4f}"
        parts.append(Text(visible(f"{words} after round {means.index[-1]}")))
        parts.append(Text(_spark([*means], min(60, width))))
        parts.append(_table(view))
    words = " · ".join(f"{d} {size / 1e6:.1f} MB" for d, size in view.moved.items())
    parts.append(Text(visible(words)))
    parts += [Text(visible(line), style="red") for line in _failures(view)]
    if error := view.summary.get("error"):
        parts.append(Text(visible(str(error)), style="red"))
        parts.append(Text(visible(f'to go on: resume="{view.path}"')))
    quiet = now - _last_news(view.path)
    if view.status == UNFINISHED and quiet > _QUIET_S:
        words = f"nothing new for {quiet:.0f} s: a long round, or the run was killed;"
        words += f' then go on with resume="{view.path}"'
        parts.append(Text(visible(words), style="yellow"))
    return Group(*parts)


def _left(view: RunView, done: int, planned: int) -> str:
    """Time left, judged by all rounds but the first, which also starts processes."""
    seconds = [t.wall_s for t in view.times if 1 < t.round <= done]
    if not seconds or view.status != UNFINISHED:
        return ""
    return f" · about {duration(fmean(seconds[-10:]) * (planned - done))} left"


def _spark(values: Sequence[float], width: int) -> str:
    """Draw values as a line of blocks, the newest at the right."""
    shown = values[-width:]
    low, span = min(shown), (max(shown) - min(shown)) or 1.0
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((v - low) / span * top)] for v in shown)


def _table(view: RunView) -> Table:
    """Last score of each client, the worst first."""
    last = view.scores.ffill().iloc[-1]
    last = last.sort_values(ascending=view.larger_is_better, kind="stable")
    more = len(last) - _MOST_ROWS
    table = Table("client", escape(visible(view.metric)), box=None, pad_edge=False)
    for client, score in last[:_MOST_ROWS].items():
        table.add_row(str(client), f"{score:.4f}")
    if more > 0:
        table.add_row(f"{more} more", "better")
    return table


def _failures(view: RunView) -> list[str]:
    """Name the last failures of clients."""
    sites = {c: s for s, of in (view.summary.get("sites") or {}).items() for c in of}
    rows = [*read_rows(view.path / FAILURES)]
    return [
        f"round {number}, client {client} {sites.get(int(client), '')}:"
        f" {json.loads(reason)}"
        for number, client, reason in rows[-_MOST_ROWS:]
    ]


def _last_news(folder: Path) -> float:
    """Unix time at which a file of the run was last written."""
    names = (CONFIG, ROUNDS, TIMES, METRICS)
    found = [p.stat().st_mtime for n in names if (p := folder / n).is_file()]
    return max(found, default=0.0)


def follow(run: Path, console: Console, *, every_s: float, once: bool) -> int:
    """Draw until the run ends, or once; returns the exit code."""
    view = gather([run])[0]
    with Live(console=console, auto_refresh=False) as live:
        while True:
            with blaming(run):
                drawn = picture(view, console.width, time.time())
                live.update(drawn, refresh=True)
            if once or view.status != UNFINISHED:
                break
            time.sleep(every_s)
            try:
                view = gather([run])[0]
            except DataError:
                if not run.is_dir():  # a run that is refused removes its folder
                    raise
                # A file was being replaced: the next look finds it whole.
    if not console.is_terminal:
        console.line()  # Live ends its last line in a terminal alone
    return int(view.status == "failed")


def watch(
    run: Annotated[
        Path, typer.Argument(help="A run's folder, or one of several: the newest.")
    ],
    *,
    every: Annotated[float, typer.Option(metavar="SECONDS")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Draw it once, and end.")
    ] = False,
) -> int:
    """Draw the state of a run while it goes on; 1 if it failed."""
    if not every > 0:
        raise ConfigError(f"--every needs a number > 0, got {every}")
    try:
        chosen = max(find_runs(run), key=_last_news)
        return follow(chosen, Console(), every_s=every, once=once)
    except KeyboardInterrupt:
        return STOPPED
