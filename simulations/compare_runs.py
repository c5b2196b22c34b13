"""Find runs in results folders and decide which of them may share a table."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

from fedgraph_flwr.config import Value
from fedgraph_flwr.errors import ConfigError, FedGraphError
from fedgraph_flwr.resolve import defaults, resolve

# Keys that say where and for how long to compute, not what: runs that differ only in
# these are repetitions of one another.
EXECUTION_KEYS = frozenset(
    {
        "method",
        "dataset",
        "seed",
        "split-seed",
        "data-dir",
        "results-dir",
        "state-dir",
        "cache-dir",
        "resume",
        "device",
        "torch-threads",
        "round-timeout-s",
        "roll-call-timeout-s",
        "min-fit-replies",
    }
)
BASELINES = ("local", "fedavg", "fedprox")
_Place: TypeAlias = tuple[tuple[str, int, int], str]  # split, and data where told


@dataclass(frozen=True, kw_only=True)
class Run:
    """One completed run: its folder and its ``summary.json``."""

    path: Path
    summary: Mapping[str, Any]

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.summary["method"])

    @property
    def dataset(self) -> str:
        """Name of the data set."""
        return str(self.summary["dataset"])

    @property
    def direction(self) -> int:
        """1 where larger scores are better, -1 where they are errors."""
        return 1 if self.summary.get("larger_is_better", True) else -1

    @property
    def seed(self) -> int:
        """Seed by which runs are paired."""
        return int(self.summary["seed"])

    @property
    def split(self) -> tuple[str, int, int]:
        """What must agree before two runs may be compared."""
        s = self.summary
        return str(s["split_hash"]), int(s["split_seed"]), int(s["num_clients"])

    @property
    def data(self) -> dict[str, str]:
        """Hash of the files of each client that tells it; private runs tell none."""
        told: Mapping[str, str] = self.summary.get("data_sha256") or {}
        return {c: h for c, h in sorted(told.items()) if h}

    @property
    def settings(self) -> dict[str, Value]:
        """Resolved configuration without the keys that do not change the result."""
        config: Mapping[str, Value] = self.summary["config"]
        return {k: v for k, v in config.items() if k not in EXECUTION_KEYS}

    @property
    def headline(self) -> str:
        """Rule at which the run's task is read."""
        return str((self.summary.get("rules") or ["final"])[0])

    def per_client(self, rule: str) -> dict[int, float]:
        """Test score of each client by ``rule``; empty where it was not measured."""
        values = (self.summary.get(rule) or {}).get("per_client") or {}
        return {int(c): float(v) for c, v in values.items() if v is not None}


@dataclass(kw_only=True)
class Found:
    """Completed runs, and a line on each folder that is not one."""

    runs: list[Run] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs of one data set and one split, by row of its table.

    ``data`` begins the hash of what was read, where other files are compared too.
    """

    dataset: str
    split: tuple[str, int, int]
    rows: Mapping[str, list[Run]]
    data: str = ""

    @property
    def runs(self) -> list[Run]:
        """All runs of the group."""
        return [run for runs in self.rows.values() for run in runs]

    @property
    def headline(self) -> str:
        """Rule at which all its runs are read: the last round where they differ."""
        rules = {run.headline for run in self.runs}
        return rules.pop() if len(rules) == 1 else "final"


def find_runs(folders: Iterable[Path]) -> Found:
    """Search folders for runs.

    Parameters
    ----------
    folders : iterable of Path
        Run folders, or folders anywhere above them.

    Returns
    -------
    Found
        A folder given twice counts once. Failed, unfinished and unreadable runs, and
        all but the newest of several equal ones, are in ``left_out`` with the reason.

    Raises
    ------
    FedGraphError
        A folder does not exist, or no run was found in any.
    """
    candidates: dict[Path, None] = {}
    folders = list(folders)
    for folder in folders:
        if not folder.is_dir():
            raise FedGraphError(f"{folder} is not a folder; give a results folder")
        files = [*folder.rglob("summary.json"), *folder.rglob("rounds.csv")]
        candidates |= dict.fromkeys(sorted(f.parent.resolve() for f in files))
    if not candidates:
        raise FedGraphError(
            f"no run found in {', '.join(map(str, folders))}: no summary.json and no"
            " rounds.csv; give a results folder, as `flwr run` and simulations.run"
            " print it"
        )
    found = Found()
    for path in candidates:
        read = _read_run(path)
        if isinstance(read, Run):
            found.runs.append(read)
        else:
            found.left_out.append(read)
    _keep_newest(found)
    return found


def group_runs(runs: Iterable[Run], *, apart: bool = False) -> list[Group]:
    """Group runs by data set and label the rows.

    Parameters
    ----------
    runs : iterable of Run
    apart : bool
        Give every split of a data set its own group instead of refusing.

    Raises
    ------
    FedGraphError
        Runs of one data set differ in split, in the data or in the number of clients;
        two runs of one row have the same seed.
    """
    by_dataset: dict[str, dict[_Place, list[Run]]] = {}
    ordered = sorted(runs, key=lambda r: (r.dataset, _rank(r.method), r.seed))
    by_split: dict[tuple[str, tuple[str, int, int]], list[Run]] = {}
    for run in ordered:
        by_split.setdefault((run.dataset, run.split), []).append(run)
    for (dataset, split), of_split in by_split.items():
        for data, of_data in _by_data(of_split).items():
            by_dataset.setdefault(dataset, {})[split, data] = of_data
    for dataset, places in by_dataset.items():
        if len(places) > 1 and not apart:
            raise FedGraphError(_mixed_splits(dataset, places))
    return [
        Group(dataset=dataset, split=split, rows=label_rows(of_place), data=data)
        for dataset, places in by_dataset.items()
        for (split, data), of_place in places.items()
    ]


def same_data(one: Run, other: Run) -> bool:
    """Whether no client tells of other files in one run than in the other."""
    a, b = one.data, other.data
    return all(a[c] == b[c] for c in a.keys() & b.keys())


def check_same_data(runs: Iterable[Run]) -> None:
    """Raise FedGraphError where runs of one data set and split read other files."""
    by_split: dict[tuple[str, tuple[str, int, int]], list[Run]] = {}
    for run in runs:
        by_split.setdefault((run.dataset, run.split), []).append(run)
    for (dataset, split), of_split in by_split.items():
        if len(found := _by_data(of_split)) > 1:
            places = {(split, data): of_data for data, of_data in found.items()}
            raise FedGraphError(
                _mixed_splits(dataset, places, cure="Give fewer folders.")
            )


def _by_data(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Sort runs by what was read, "" where all may have read the same.

    A run that does not tell goes with the others only if there is no choice of them.
    """
    kinds = {json.dumps(run.data): run for run in runs}.values()
    if all(same_data(a, b) for a, b in combinations(kinds, 2)):
        return {"": list(runs)}
    found: dict[str, list[Run]] = {}
    for run in runs:
        told = hashlib.sha256(json.dumps(run.data).encode()).hexdigest()[:12]
        found.setdefault(told if run.data else "not told", []).append(run)
    return found


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Last part of each key; the whole key where two of them end alike."""
    keys = set(keys)
    count = Counter(key.rpartition(".")[2] for key in keys)
    shorts = {key: key.rpartition(".")[2] for key in keys}
    return {key: s if count[s] == 1 else key for key, s in shorts.items()}


def label_rows(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Name the row of each run: its method, and the settings that set it apart.

    A method's own parameters are named when they are not the default of this data
    set; shared settings only when runs of the same method differ in them, because
    the caption gives what all have in common.

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
        settings = ", ".join(f"{k}={as_text(v)}" for k, v in apart.items())
        label = f"{run.method} ({settings})" if settings else run.method
        rows.setdefault(label, []).append(run)
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


def shared_differences(group: Group) -> dict[str, dict[str, str]]:
    """Shared settings in which the rows of a group differ: key -> row -> value."""
    values: dict[str, dict[str, str]] = {}
    for label, runs in group.rows.items():
        for key, value in runs[0].settings.items():
            if "." not in key:
                values.setdefault(key, {})[label] = as_text(value)
    return {k: v for k, v in values.items() if len(set(v.values())) > 1}


def _read_run(path: Path) -> Run | str:
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{path}: unfinished, there is no summary.json"
    except ValueError as error:
        return f"{path}: summary.json is not readable ({error})"
    if summary.get("status") != "completed":
        return f"{path}: {summary.get('status')}: {summary.get('error')}"
    run = Run(path=path, summary=summary)
    try:
        _ = (run.method, run.dataset, run.seed, run.split, run.settings)
        _ = run.per_client("final")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"{path}: summary.json lacks a usable entry ({error!r})"
    return run


def _keep_newest(found: Found) -> None:
    # Folder names begin with the UTC time, so the newest run has the largest name.
    # Keys that an older run lacks have their defaults.
    kept: dict[tuple[object, ...], list[Run]] = {}
    for run in sorted(found.runs, key=lambda r: r.path.name):
        filled = {**plain_settings(run.method, run.dataset), **run.settings}
        settings = tuple(sorted(filled.items()))
        key = (run.dataset, run.method, run.seed, run.split, settings)
        equals = kept.setdefault(key, [])
        for older in [r for r in equals if same_data(r, run)]:
            same = older.summary.get("weights_sha256") == run.summary.get(
                "weights_sha256"
            )
            found.left_out.append(
                f"{older.path}: same method, seed and settings as the newer"
                f" {run.path.name}, which is used"
                f" ({'same' if same else 'DIFFERENT'} weights)"
            )
            equals.remove(older)
        equals.append(run)
    found.runs = [run for equals in kept.values() for run in equals]


@lru_cache(maxsize=64)
def plain_settings(method: str, dataset: str) -> Mapping[str, Value]:
    """Resolve the default configuration; empty for names that are not known (now)."""
    try:
        config = {**defaults(), "method": method, "dataset": dataset}
        return resolve(config).to_config()
    except ConfigError:
        return {}


def _mixed_splits(
    dataset: str,
    places: Mapping[_Place, Sequence[Run]],
    cure: str = "Give fewer folders, or --apart for one table per split.",
) -> str:
    what = "different splits" if len({s for s, _ in places}) > 1 else "different data"
    lines = [f"runs of {dataset} were made on {what} and cannot share a table:"]
    for ((split_hash, split_seed, num_clients), data), runs in places.items():
        lines.append(
            f"  split {split_hash[:12]}, split seed {split_seed}, {num_clients}"
            f" clients{data and f', data {data}'}:"
            f" {', '.join(r.path.name for r in runs)}"
        )
    return "\n".join([*lines, cure])


def _rank(method: str) -> tuple[int, str]:
    known = method in BASELINES
    return (BASELINES.index(method) if known else len(BASELINES), method)


def as_text(value: Value) -> str:
    """Write a value as TOML does, but texts without quotes."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"
