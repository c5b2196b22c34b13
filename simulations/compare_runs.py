"""Find runs in results folders and decide which of them may share a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import Value
from fedgraph_flwr.errors import ConfigError, FedGraphError
from fedgraph_flwr.registry import defaults, resolve

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
    def settings(self) -> dict[str, Value]:
        """Resolved configuration without the keys that do not change the result."""
        config: Mapping[str, Value] = self.summary["config"]
        return {k: v for k, v in config.items() if k not in EXECUTION_KEYS}

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
    """Runs of one data set and one split, by row of its table."""

    dataset: str
    split: tuple[str, int, int]
    rows: Mapping[str, list[Run]]

    @property
    def runs(self) -> list[Run]:
        """All runs of the group."""
        return [run for runs in self.rows.values() for run in runs]


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
        Runs of one data set differ in split or number of clients.
    """
    by_dataset: dict[str, dict[tuple[str, int, int], list[Run]]] = {}
    for run in sorted(runs, key=lambda r: (r.dataset, _rank(r.method), r.seed)):
        by_dataset.setdefault(run.dataset, {}).setdefault(run.split, []).append(run)
    for dataset, splits in by_dataset.items():
        if len(splits) > 1 and not apart:
            raise FedGraphError(_mixed_splits(dataset, splits))
    return [
        Group(dataset=dataset, split=split, rows=label_rows(of_split))
        for dataset, splits in by_dataset.items()
        for split, of_split in splits.items()
    ]


def label_rows(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Name the row of each run: its method, and the settings that set it apart.

    A method's own parameters are named when they are not the default of this data
    set; shared settings only when runs of the same method differ in them, because
    the caption gives what all have in common.
    """
    rows: dict[str, list[Run]] = {}
    for run in runs:
        siblings = [r.settings for r in runs if r.method == run.method]
        plain = plain_settings(run.method, run.dataset)
        apart = {}
        for key in sorted({k for s in siblings for k in s}):
            value = run.settings.get(key, plain.get(key, "unset"))
            varies = any(s.get(key, plain.get(key, "unset")) != value for s in siblings)
            is_plain = key in plain and value == plain[key]
            if not is_plain and (varies or ("." in key and key in plain)):
                apart[key.rpartition(".")[2]] = value
        settings = ", ".join(f"{k}={as_text(v)}" for k, v in apart.items())
        label = f"{run.method} ({settings})" if settings else run.method
        rows.setdefault(label, []).append(run)
    return rows


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
    newest: dict[tuple[object, ...], Run] = {}
    for run in sorted(found.runs, key=lambda r: r.path.name):
        settings = tuple(sorted(run.settings.items()))
        key = (run.dataset, run.method, run.seed, run.split, settings)
        if key in newest:
            before = newest[key].summary.get("weights_sha256")
            same = before == run.summary.get("weights_sha256")
            found.left_out.append(
                f"{newest[key].path}: same method, seed and settings as the newer"
                f" {run.path.name}, which is used"
                f" ({'same' if same else 'DIFFERENT'} weights)"
            )
        newest[key] = run
    found.runs = list(newest.values())


@lru_cache(maxsize=64)
def plain_settings(method: str, dataset: str) -> Mapping[str, Value]:
    """Resolve the default configuration; empty for names that are not known (now)."""
    try:
        config = {**defaults(), "method": method, "dataset": dataset}
        return resolve(config).to_config()
    except ConfigError:
        return {}


def _mixed_splits(
    dataset: str, splits: Mapping[tuple[str, int, int], Sequence[Run]]
) -> str:
    lines = [
        f"runs of {dataset} were made on different splits and cannot share a table:"
    ]
    for (split_hash, split_seed, num_clients), runs in splits.items():
        lines.append(
            f"  split {split_hash[:12]}, split seed {split_seed}, {num_clients}"
            f" clients: {', '.join(r.path.name for r in runs)}"
        )
    return "\n".join(
        [
            *lines,
            "Give fewer folders, or --apart for one table per split.",
        ]
    )


def _rank(method: str) -> tuple[int, str]:
    known = method in BASELINES
    return (BASELINES.index(method) if known else len(BASELINES), method)


def as_text(value: Value) -> str:
    """Write a value as TOML does, but texts without quotes."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"
