"""Numbers of the embedding tables: spreads over seeds, paired differences, claims.

Everything is in percent, except NMI and ARI; differences are in percentage points and
paired by seed. Intervals are Student's t on the paired differences.
"""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgraph_flwr.embedding_scores import METRICS, TRANSFORMS
from fedgraph_flwr.results.selection import best_labelled

from .embedding_rows import EmbeddingGroup, RowName
from .embedding_runs import SMALL, EmbeddingRun
from .intervals import t_interval

TARGETS = Path(__file__).with_name("targets_embedding.toml")
SECOND_LOSS = "fclg.inter"  # and its weight and temperature
ENOUGH_SEEDS = 5  # pairs that a claim needs, our spec Sec. 7.5
# The EMD in the tables has four decimals.
_EMD_TOLERANCE = 1e-4

Scores = Mapping[int, Mapping[str, float]]  # seed -> metric -> value
UNTRAINED = "untrained encoder"
PROBES = ("probe-accuracy", "svm-accuracy")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Values over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """Standard deviation, ddof 1; None for a single value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Differences over paired seeds, in points."""

    values: tuple[float, ...]

    @property
    def num_pairs(self) -> int:
        """Number of seeds on both sides."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Mean difference."""
        return statistics.fmean(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % t interval of the mean; None with fewer than two pairs."""
        return t_interval(self.values)

    @property
    def verdict(self) -> str:
        """Say whether the interval lies above 0, below 0, or neither.

        Fewer than ``ENOUGH_SEEDS`` pairs show nothing, wherever their interval lies.
        """
        if self.interval is None or self.num_pairs < ENOUGH_SEEDS:
            return f"not shown (n={self.num_pairs} < {ENOUGH_SEEDS})"
        low, high = self.interval
        if low > SMALL:
            return "shown"
        return "contradicted" if high < -SMALL else "not shown"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the paper reports: mean and what stands after its ±, in percent."""

    accuracy: tuple[float, float]
    macro_f1: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table.

    ``last`` and ``first``: metric -> spread, after the last round and at round 0.
    ``best``: score at the best round by labels; ``best_rounds`` by seed.
    """

    label: str
    base: str
    seeds: tuple[int, ...]
    last: Mapping[str, Spread]
    first: Mapping[str, Spread]
    gain: Difference | None = None
    best: Spread | None = None
    best_rounds: tuple[int, ...] = ()
    target: Target | None = None
    is_control: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim:
    """FCLG against something, by accuracy and by F1; None without a pair."""

    text: str
    accuracy: Difference | None
    macro_f1: Difference | None
    missing: str = ""


def make_row(
    name: RowName, runs: Sequence[EmbeddingRun], transform: str, target: Target | None
) -> Row:
    """Compute the line of some runs, one for each seed."""
    last = {r.run.seed: r.scores(r.last_round) for r in runs}
    first = {r.run.seed: r.scores(0) for r in runs}
    chosen = [best_labelled(r.tables[f"accuracy-{transform}"]) for r in runs]
    return Row(
        label=str(name),
        base=name.base,
        seeds=tuple(last),
        last=spreads(last, transform),
        first=spreads(first, transform),
        gain=difference(last, first, f"accuracy-{transform}"),
        best=Spread(values=tuple(100 * float(c["mean"]) for c in chosen)),
        best_rounds=tuple(int(c["round"]) for c in chosen),
        target=target,
    )


def control_row(label: str, scores: Scores, transform: str) -> Row:
    """Compute the line of something that was not trained."""
    return Row(
        label=label,
        base=label,
        seeds=tuple(scores),
        last=spreads(scores, transform),
        first={},
        is_control=True,
    )


def untrained_row(group: EmbeddingGroup, transform: str) -> Row | None:
    """Compute the line of FCLG's encoder at round 0; None without such runs.

    Taken from the plainest pooled row of FCLG, else of another value of fclg.inter,
    which all begin with the same encoder.
    """
    rows = [
        (name.base != "FCLG", len(name.settings), str(name), runs)
        for name, runs in group.rows.items()
        if name not in group.guests
        and all("fclg.inter" in r.run.settings and r.is_pooled for r in runs)
    ]
    for *_, runs in sorted(rows, key=lambda row: row[:3]):
        scores = {r.run.seed: s for r in runs if (s := r.scores(0))}
        if scores:
            return control_row(UNTRAINED, scores, transform)
    return None


def spreads(scores: Scores, transform: str) -> dict[str, Spread]:
    """Collect values over seeds, ascending.

    Under the plain names stand those of ``transform``, whatever the headline of the
    run was; under ``accuracy-<name>`` the accuracy by every transform.
    """
    wanted = {metric: f"{metric}-{transform}" for metric in METRICS}
    wanted |= {f"accuracy-{name}": f"accuracy-{name}" for name in TRANSFORMS}
    wanted |= {name: name for name in PROBES}
    found: dict[str, list[float]] = {}
    for seed in sorted(scores):
        for name, metric in wanted.items():
            if metric in scores[seed]:
                scale = 1.0 if name in ("nmi", "ari") else 100.0
                found.setdefault(name, []).append(scale * scores[seed][metric])
    return {name: Spread(values=tuple(values)) for name, values in found.items()}


def difference(ours: Scores, theirs: Scores, metric: str) -> Difference | None:
    """Subtract seed by seed; None without a common seed that has the metric."""
    values = tuple(
        100 * (ours[seed][metric] - theirs[seed][metric])
        for seed in sorted(set(ours) & set(theirs))
        if metric in ours[seed] and metric in theirs[seed]
    )
    return Difference(values=values) if values else None


def make_claims(group: EmbeddingGroup, transform: str) -> list[Claim]:
    """Test what the paper says of FCLG, for every row that is FCLG."""
    claims = []
    for name, runs in group.rows.items():
        if name.base != "FCLG":
            continue
        ours = {r.run.seed: r.scores(r.last_round) for r in runs}
        zero = {r.run.seed: r.scores(0) for r in runs}
        claims.append(_claim(f"{name} minus its own round 0", ours, zero, transform))
        for base in ("InfoGraph-FedAvg", "MVGRL-FedAvg", "Intra-FedAvg"):
            other = _partner(group, name, base)
            if other is None:
                text = f"{name} minus {base}"
                claims.append(_claim(text, ours, {}, transform, f"no row {base}"))
                continue
            theirs = {r.run.seed: r.scores(r.last_round) for r in group.rows[other]}
            claims.append(_claim(f"{name} minus {other}", ours, theirs, transform))
    return claims


def load_target(group: EmbeddingGroup, name: RowName) -> Target | None:
    """Give the paper's figures for a row; None where the split is not the paper's."""
    kind = target_split(group)
    rows = _targets()[group.dataset][kind]["rows"] if kind else {}
    if name.base not in rows:
        return None
    acc, f1 = rows[name.base]["acc"], rows[name.base]["f1"]
    return Target(accuracy=(acc[0], acc[1]), macro_f1=(f1[0], f1[1]))


def target_split(group: EmbeddingGroup) -> str | None:
    """Recognise the paper's split by EMD and clients: "non-iid", "iid" or None."""
    targets = _targets()
    if group.emd is None or group.num_clients != targets["num-clients"]:
        return None
    for kind, content in targets.get(group.dataset, {}).items():
        if abs(content["emd"] - group.emd) < _EMD_TOLERANCE:
            return str(kind)
    return None


def target_source(group: EmbeddingGroup) -> str | None:
    """Citation with the table that has this split; None where none has."""
    kind, targets = target_split(group), _targets()
    if kind is None:
        return None
    table = targets[group.dataset][kind]["table"]
    return f"{targets['source']}, table {table}, {targets['runs']} runs"


def _claim(
    text: str, ours: Scores, theirs: Scores, transform: str, missing: str = ""
) -> Claim:
    accuracy, macro_f1 = (
        difference(ours, theirs, f"{m}-{transform}") for m in ("accuracy", "macro-f1")
    )
    absent = accuracy is None and not missing
    return Claim(
        text=text,
        accuracy=accuracy,
        macro_f1=macro_f1,
        missing="no common seed" if absent else missing,
    )


def _partner(group: EmbeddingGroup, name: RowName, base: str) -> RowName | None:
    """Find the row of ``base`` whose settings are most like ``name``'s.

    The second loss aside, which tells FCLG and its ablations apart.
    """

    def distance(other: RowName) -> tuple[int, int, str]:
        ours, theirs = (
            {s for s in row.settings if not s[0].startswith(SECOND_LOSS)}
            for row in (name, other)
        )
        return len(ours ^ theirs), len(other.settings), str(other)

    rows = [other for other in group.rows if other.base == base]
    return min(rows, key=distance, default=None)


def _targets() -> dict[str, Any]:
    return tomllib.loads(TARGETS.read_text(encoding="utf-8"))
