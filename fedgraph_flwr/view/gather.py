"""What a report shows of each run, and the command that repeats it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.rules import toml_value
from ..core.tasks import TASKS
from ..resolve import defaults
from ..results.reader import (
    LEDGER,
    ROUNDS,
    Partition,
    RoundTimes,
    Series,
    blaming,
    client_gains,
    read_config,
    read_partitions,
    read_rows,
    read_scores,
    read_summary,
    read_times,
)

UNFINISHED = "unfinished"  # it goes on, or was killed


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One run.

    ``scores`` are of the split and metric of the headline, measured at ``point``.
    ``moved`` are bytes by direction, ``gains`` what each client gained over
    ``partner``, a run that trained alone; > 0 is better.
    """

    path: Path
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    metric: str
    larger_is_better: bool
    split: str
    point: str
    scores: Series
    partitions: Mapping[int, Partition]
    moved: Mapping[str, int]
    times: Sequence[RoundTimes]
    gains: Mapping[int, float] = field(default_factory=dict)
    partner: str = ""

    @property
    def title(self) -> str:
        """Method, data set and seed."""
        fact = self.fact
        return f"{fact('method')} on {fact('dataset')}, seed {fact('seed')}"

    @property
    def status(self) -> str:
        """``completed``, ``failed`` or ``unfinished``."""
        return str(self.summary.get("status", UNFINISHED))

    @property
    def rule(self) -> str:
        """Rule of the headline; "" if the run has no result."""
        return str(next(iter(self.summary.get("rules") or [""])))

    @property
    def rounds_done(self) -> int:
        """Number of rounds; the closing evaluation is none."""
        done = max((t.round for t in self.times), default=0)
        planned = int(self.config.get("num-server-rounds", done))
        return int(self.summary.get("rounds", min(done, planned)))

    def fact(self, name: str) -> str:
        """Text of a key of the summary or, in an unfinished run, of the config."""
        key = name.replace("_", "-")
        return str(self.summary.get(name, self.config.get(key, "?")))


def gather(folders: Sequence[Path]) -> list[RunView]:
    """Read runs; those with a partner that trained alone get their gains over it.

    Raises
    ------
    DataError
        A folder is no results folder, or a file of it is not what a run writes.
    """
    views = []
    for folder in dict.fromkeys(path.resolve() for path in folders):
        with blaming(folder):
            views.append(_read(folder))
    with blaming(*folders):
        return [_with_gain(view, views) for view in views]


def _read(folder: Path) -> RunView:
    summary = read_summary(folder)
    config = summary.get("config") or read_config(folder)
    about = summary if "metric" in summary else _headline(folder, config)
    split, metric = str(about.get("split", "test")), str(about.get("metric", "score"))
    point, scores = read_scores(folder, split=split, metric=metric)
    moved = Counter({"up": 0, "down": 0})
    for _, _, direction, _, size in read_rows(folder / LEDGER):
        moved[direction] += int(size)
    return RunView(
        path=folder,
        summary=summary,
        config=config,
        metric=metric,
        larger_is_better=bool(about.get("larger_is_better", True)),
        split=split,
        point=point,
        scores=scores,
        partitions=read_partitions(folder),
        moved=moved,
        times=read_times(folder),
    )


def _headline(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Say what the headline of an unfinished run will be; empty before any score."""
    tasks = {(t.headline, t.metric): t for t in TASKS if t.key == config.get("task")}
    for _, _, split, _, metric, *_ in read_rows(folder / ROUNDS):
        if task := tasks.get((split, metric)):
            better = task.larger_is_better
            return {"split": split, "metric": metric, "larger_is_better": better}
    return {}


def _with_gain(view: RunView, views: Sequence[RunView]) -> RunView:
    """Pair a run with training alone on the same split and seed."""
    if view.summary.get("method") == "local" or not view.rule:
        return view
    same = ("dataset", "split_hash", "seed", "metric", "tasks")
    wanted = {k: view.summary.get(k) for k in same}
    wanted |= {"method": "local", "status": "completed"}
    partners = [
        other
        for other in views
        if all(other.summary.get(k) == value for k, value in wanted.items())
    ]
    if not partners:
        return view
    partner = max(partners, key=lambda v: str(v.summary.get("finished_utc", "")))
    gains = client_gains(view.summary, partner.summary, view.rule)
    return replace(view, gains=gains, partner=partner.path.name)


# They say where files are and what a run left behind, not what it computes.
_PLACES = {
    *("results-dir", "state-dir", "cache-dir", "resume", "tracker"),
    "checkpoint-every",  # which could be 0 once
}


def replay_command(config: Mapping[str, Any]) -> str:
    """Write the command line of a run with this resolved config.

    Keys that have their defaults are left out.
    """
    wanted = {k: v for k, v in config.items() if k not in _PLACES}
    method, known = str(wanted.pop("method", "?")), defaults()
    chosen = {k: v for k, v in sorted(wanted.items()) if known.get(k) != v}
    given = [f"{key}={toml_value(value)}" for key, value in chosen.items()]
    return shlex.join(["fedgraph", "run", method, *given, "--inline"])
