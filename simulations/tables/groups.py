"""Decide which runs may share a table, and label its rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from fedgraph_flwr.core.errors import FedGraphError

from .frame import hash_data
from .runs import Run, as_text, plain_settings, same_data, short_names, with_settings

BASELINES = ("local", "fedavg")
# Split, data if known, and metric.
_Place: TypeAlias = tuple[tuple[str, int, int], str, str]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one data set, split and metric, by row of its table.

    ``data`` is the start of the hash of the files, "" if all runs may have read the
    same ones.
    """

    dataset: str
    split: tuple[str, int, int]
    rows: Mapping[str, list[Run]]
    data: str = ""
    metric: str = ""

    @property
    def runs(self) -> list[Run]:
        """All runs of the group."""
        return [run for runs in self.rows.values() for run in runs]

    @property
    def headline(self) -> str:
        """First rule of the runs' task; the last round if the runs differ in it."""
        rules = {run.headline for run in self.runs}
        return rules.pop() if len(rules) == 1 else "final"


def group_runs(runs: Iterable[Run], *, apart: bool = False) -> list[Group]:
    """Group runs by data set and label the rows.

    Parameters
    ----------
    runs : iterable of Run
    apart : bool
        Give every split and metric of a data set its own group instead of refusing.

    Raises
    ------
    FedGraphError
        Runs of one data set differ in split, in the data, in the number of clients or
        in the metric; two runs of one row have the same seed.
    """
    by_dataset: dict[str, dict[_Place, list[Run]]] = {}
    ordered = sorted(runs, key=lambda r: (r.dataset, _rank(r.method), r.seed))
    for (dataset, split), of_split in _by_split(ordered).items():
        for data, of_data in _by_data(of_split).items():
            for run in of_data:
                place = split, data, str(run.summary.get("metric"))
                by_dataset.setdefault(dataset, {}).setdefault(place, []).append(run)
    for dataset, places in by_dataset.items():
        if len(places) > 1 and not apart:
            raise FedGraphError(_mixed_splits(dataset, places))
    return [
        Group(dataset=name, split=split, rows=label_rows(of), data=data, metric=metric)
        for name, places in by_dataset.items()
        for (split, data, metric), of in places.items()
    ]


def check_same_data(runs: Iterable[Run]) -> None:
    """Raise FedGraphError if runs of one data set and split read different files."""
    for (dataset, split), of_split in _by_split(runs).items():
        if len(found := _by_data(of_split)) > 1:
            places = {(split, data, ""): of_data for data, of_data in found.items()}
            raise FedGraphError(_mixed_splits(dataset, places))


def _by_split(
    runs: Iterable[Run],
) -> dict[tuple[str, tuple[str, int, int]], list[Run]]:
    """Sort runs by data set and split."""
    found: dict[tuple[str, tuple[str, int, int]], list[Run]] = {}
    for run in runs:
        found.setdefault((run.dataset, run.split), []).append(run)
    return found


def _by_data(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Sort runs by the files they read; one key "" if all may have read the same.

    Runs without hashes stand apart if the others differ: they may belong to any.
    """
    kinds = {json.dumps(run.data): run for run in runs}.values()
    if all(same_data(a, b) for a, b in combinations(kinds, 2)):
        return {"": list(runs)}
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(hash_data(run.data, 1) or "not known", []).append(run)
    return found


def label_rows(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Label each run with its method and the settings that set it apart.

    A parameter of the method is named if it is not the default of this data set. A
    shared setting is named only if runs of the same method differ in it.

    Raises
    ------
    FedGraphError
        Two runs of one row have the same seed: a mean over seeds would count it twice.
    """
    rows: dict[str, list[Run]] = {}
    for run in runs:
        siblings = [r.settings for r in runs if r.method == run.method]
        plain = plain_settings(run.method, run.dataset)
        apart = {}
        keys = {k for s in siblings for k in s}
        names = short_names(keys)
        for key in sorted(keys):
            value = run.settings.get(key, plain.get(key, "unset"))
            varies = any(s.get(key, plain.get(key, "unset")) != value for s in siblings)
            is_plain = key in plain and value == plain[key]
            if not is_plain and (varies or ("." in key and key in plain)):
                apart[names[key]] = value
        rows.setdefault(with_settings(run.method, apart), []).append(run)
    for label, of_row in rows.items():
        _check_seeds(label, of_row)
    return rows


def _check_seeds(label: str, runs: Sequence[Run]) -> None:
    seen: dict[int, Run] = {}
    for run in runs:
        if (first := seen.setdefault(run.seed, run)) is not run:
            raise FedGraphError(
                f"row {label!r} has seed {run.seed} twice, in {first.path.name} and"
                f" {run.path.name}, which must count once; leave one of the folders out"
            )


def baseline(group: Group, method: str) -> str | None:
    """Row of ``method`` with the shortest label; None if the group has none."""
    labels = [n for n, runs in group.rows.items() if runs[0].method == method]
    return min(labels, key=lambda label: (len(label), label), default=None)


def shared_differences(group: Group) -> dict[str, dict[str, str]]:
    """Collect the shared settings in which rows differ: key -> row -> value."""
    values: dict[str, dict[str, str]] = {}
    for label, runs in group.rows.items():
        for key, value in runs[0].settings.items():
            if "." not in key:
                values.setdefault(key, {})[label] = as_text(value)
    return {k: v for k, v in values.items() if len(set(v.values())) > 1}


def _mixed_splits(dataset: str, places: Mapping[_Place, Sequence[Run]]) -> str:
    names = ("splits", "data", "metrics")
    kinds = zip(names, zip(*places, strict=True), strict=True)
    what = next(f"different {name}" for name, found in kinds if len({*found}) > 1)
    how = "have" if what == "different metrics" else "were made on"
    lines = [f"runs of {dataset} {how} {what} and cannot share a table:"]
    for ((split_hash, split_seed, num_clients), data, metric), runs in places.items():
        lines.append(
            f"  split {split_hash[:12]}, split seed {split_seed}, {num_clients}"
            f" clients{data and f', data {data}'}{metric and f', {metric}'}:"
            f" {', '.join(r.path.name for r in runs)}"
        )
    return "\n".join([*lines, "Give fewer folders, or --apart for one table of each."])


def _rank(method: str) -> tuple[int, str]:
    known = method in BASELINES
    return (BASELINES.index(method) if known else len(BASELINES), method)
