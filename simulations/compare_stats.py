"""Numbers of a comparison table: the metric definitions of the GCFL paper's code.

Xie et al. 2021, arXiv:2106.13423; authors' code, ``aggregateResults.py``. Differs: a
gain is taken over the seeds that both runs have, where the code has all seeds twice.
"""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .compare_runs import Group, Run

RULES = ("final", "best_val", "best_val_trained", "best_snapshot")
TARGETS = Path(__file__).with_name("targets.toml")
# Accuracies are ratios of small ints; a tie must not become a loss by rounding.
TIE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Score:
    """Mean over clients of the clients' means and standard deviations over seeds.

    ``std`` is None with a single seed. ``missing`` are clients that some run lacks.
    """

    mean: float
    std: float | None
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Gain over self-train on ``num_seeds`` common seeds, client by client."""

    smallest: float
    num_improved: int
    num_clients: int
    num_seeds: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the paper reports; no gain for self-train itself."""

    mean: float
    std: float
    min_gain: float | None
    num_improved: int | None
    num_clients: int
    table: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table."""

    label: str
    seeds: tuple[int, ...]
    scores: Mapping[str, Score | None]
    gain: Gain | None
    versus_fedavg: tuple[float, int] | None  # points, number of seeds
    num_clusters: tuple[int, ...]
    rand_index: float | None
    wall_s: float | None
    target: Target | None


def score(runs: Sequence[Run], rule: str) -> Score | None:
    """Score of one row, over the clients that every run of it measured."""
    found = [run.per_client(rule) for run in runs]
    clients = sorted(set(found[0]).intersection(*found))
    if not clients:
        return None
    values = _values(found, clients)
    std = values.std(axis=0, ddof=1).mean() if len(runs) > 1 else None
    return Score(
        mean=float(values.mean()),
        std=None if std is None else float(std),
        missing=tuple(sorted(set().union(*found) - set(clients))),
    )


def gain(runs: Sequence[Run], local: Sequence[Run], rule: str) -> Gain | None:
    """Gain of ``runs`` over self-train; None without a common seed and client."""
    pairs = [
        (ours.per_client(rule), theirs.per_client(rule))
        for ours, theirs in pair_by_seed(runs, local)
    ]
    if not pairs:
        return None
    clients = sorted(set.intersection(*(set(a) & set(b) for a, b in pairs)))
    if not clients:
        return None
    ours, theirs = (_values(side, clients) for side in zip(*pairs, strict=True))
    gains = runs[0].direction * (ours.mean(axis=0) - theirs.mean(axis=0))
    return Gain(
        smallest=float(gains.min()),
        num_improved=int((gains >= -TIE).sum()),
        num_clients=len(clients),
        num_seeds=len(pairs),
    )


def paired_difference(
    runs: Sequence[Run], others: Sequence[Run], rule: str
) -> tuple[float, int] | None:
    """Mean over common seeds of the difference in mean score, in points.

    Positive where ``runs`` are better.
    """
    differences = []
    for ours, theirs in pair_by_seed(runs, others):
        a, b = ours.per_client(rule), theirs.per_client(rule)
        if clients := sorted(set(a) & set(b)):
            better = statistics.fmean(a[c] - b[c] for c in clients)
            differences.append(100 * ours.direction * better)
    return (statistics.fmean(differences), len(differences)) if differences else None


def pair_by_seed(runs: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Pair runs that have the same seed; the rest is left alone."""
    by_seed = {other.seed: other for other in others}
    return [(run, by_seed[run.seed]) for run in runs if run.seed in by_seed]


def baseline(group: Group, method: str) -> str | None:
    """Row that stands for ``method`` as a baseline: the plainest, if there are any."""
    labels = [n for n, runs in group.rows.items() if runs[0].method == method]
    return min(labels, key=lambda label: (len(label), label), default=None)


def make_rows(group: Group, rule: str) -> list[Row]:
    """Compute every line of a group's table."""
    local = group.rows.get(baseline(group, "local") or "", [])
    fedavg = group.rows.get(baseline(group, "fedavg") or "", [])
    targets = load_targets(group.dataset)
    _, _, num_clients = group.split
    rows = []
    for label, runs in group.rows.items():
        target = targets.get(runs[0].method)
        rows.append(
            Row(
                label=label,
                seeds=tuple(run.seed for run in runs),
                scores={r: score(runs, r) for r in RULES},
                gain=None if runs is local else gain(runs, local, rule),
                versus_fedavg=(
                    None if runs is fedavg else paired_difference(runs, fedavg, rule)
                ),
                num_clusters=tuple(int(n) for n in _entries(runs, "num_clusters")),
                rand_index=_average(_entries(runs, "adjusted_rand_index")),
                wall_s=statistics.median(_entries(runs, "wall_s") or [math.nan]),
                target=target if target and target.num_clients == num_clients else None,
            )
        )
    return rows


def load_targets(dataset: str) -> dict[str, Target]:
    """Read the paper's figures for a data set by method; empty if it has none."""
    content = _targets().get(dataset, {})
    return {
        method: Target(
            mean=entry["mean"],
            std=entry["std"],
            min_gain=entry.get("min-gain"),
            num_improved=entry.get("improved"),
            num_clients=content["num-clients"],
            table=content["table"],
        )
        for method, entry in content.get("methods", {}).items()
    }


def paper() -> tuple[str, int]:
    """Citation and rounds of the paper whose figures ``targets.toml`` holds."""
    content = _targets()
    return str(content["source"]), int(content["rounds"])


def _targets() -> dict[str, Any]:
    return tomllib.loads(TARGETS.read_text(encoding="utf-8"))


def _values(
    found: Sequence[Mapping[int, float]], clients: Sequence[int]
) -> NDArray[np.float64]:
    return np.array([[run[c] for c in clients] for run in found])  # (seeds, clients)


def _entries(runs: Sequence[Run], key: str) -> list[float]:
    values = (run.summary.get(key) for run in runs)
    return [value for value in values if value is not None]


def _average(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
