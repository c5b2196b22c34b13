"""Decide which runs may share a table, and label its rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from fedgraph_flwr.core.errors import FedGraphError

from .frame import hash_data
from .runs import Run, as_text, plain_settings, same_data, short_names, with_settings

BASELINES = ("local", "fedavg")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one data set, split and metric, by row of its table."""

    dataset: str
    rows: Mapping[str, list[Run]]

    @property
    def runs(self) -> list[Run]:
        """All runs of the group."""
        return [run for runs in self.rows.values() for run in runs]

    @property
    def headline(self) -> str:
        """First rule of the runs' task; the last round if the runs differ in it."""
        rules = {run.headline for run in self.runs}
        return rules.pop() if len(rules) == 1 else "final"


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Group runs by data set and label the rows.

    Raises
    ------
    FedGraphError
        Runs of one data set differ in split, in the data, in the number of clients or
        in the metric; two runs of one row have the same seed.
    """
    runs = sorted(runs, key=lambda r: (r.dataset, _rank(r.method), r.seed))
    by_dataset: dict[str, list[Run]] = {}
    for run in runs:
        by_dataset.setdefault(run.dataset, []).append(run)
    for dataset, of in by_dataset.items():
        for what, place in (("splits", _split), ("metrics", _metric)):
            if len({place(run) for run in of}) > 1:
                raise _mixed(dataset, what, of, place)
    check_same_data(runs)
    return [Group(dataset=d, rows=label_rows(of)) for d, of in by_dataset.items()]


def check_same_data(runs: Iterable[Run]) -> None:
    """Raise FedGraphError if runs of one data set and split read different files."""
    by_split: dict[tuple[str, object], list[Run]] = {}
    for run in runs:
        by_split.setdefault((run.dataset, run.split), []).append(run)
    for (dataset, _), of in by_split.items():
        kinds = {json.dumps(run.data): run for run in of}.values()
        if not all(same_data(a, b) for a, b in combinations(kinds, 2)):
            raise _mixed(dataset, "data", of, _data)


def _split(run: Run) -> str:
    split_hash, split_seed, num_clients = run.split
    return f"split {split_hash[:12]}, split seed {split_seed}, {num_clients} clients"


def _metric(run: Run) -> str:
    return str(run.summary.get("metric"))


def _data(run: Run) -> str:
    return f"data {hash_data(run.data, 1) or 'not known'}"


def _mixed(
    dataset: str, what: str, runs: Iterable[Run], place: Callable[[Run], str]
) -> FedGraphError:
    """Name the runs of each place; which of them belong together is the user's call."""
    names: dict[str, list[str]] = {}
    for run in runs:
        names.setdefault(place(run), []).append(run.path.name)
    lines = (f"\n  {at}: {', '.join(of)}" for at, of in names.items())
    return FedGraphError(
        f"runs of {dataset} have different {what} and cannot share a table:"
        f"{''.join(lines)}\nGive the folders of one of them."
    )


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


def _rank(method: str) -> tuple[int, str]:
    known = method in BASELINES
    return (BASELINES.index(method) if known else len(BASELINES), method)
