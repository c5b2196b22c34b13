"""Find completed runs in results folders, and name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedgraph_flwr.core.config import AUTO
from fedgraph_flwr.core.errors import (
    ConfigError,
    DataError,
    FedGraphError,
    unknown_name,
)
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import (
    ROUNDS,
    SUMMARY,
    blaming,
    client_scores,
    load_summary,
)
from fedgraph_flwr.results.selection import PROTOCOLS

from ..presets import list_presets, load_preset

# Keys that say where and for how long to compute, not what: runs that differ only in
# these are repetitions of one another.
EXECUTION_KEYS = frozenset(
    {
        "method",
        "dataset",
        "seed",
        "split-seed",
        "fold",
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
        "late-after-s",
    }
)


def row_name(method: str, dataset: str, settings: Mapping[str, Value]) -> str:
    """Name the nearest preset, and in brackets the settings that differ from it.

    Without a preset of this method and data set, the name is the method's, and the
    brackets hold the settings that are not its defaults.
    """
    preset, other = nearest_preset(method, dataset, settings)
    return with_settings(preset or f"{method} on {dataset}", other)


def nearest_preset(
    method: str, dataset: str, settings: Mapping[str, Value]
) -> tuple[str, dict[str, Value]]:
    """Find the preset with the fewest other settings.

    Parameters
    ----------
    settings : mapping
        ``Run.settings``. Keys that an older run does not have count as their defaults.

    Returns
    -------
    name : str
        "" where no preset has this method and data set.
    other : dict
        Settings that differ from the preset's, or from the defaults without one.
    """
    plain = {k: v for k, v in defaults().items() if v != AUTO}
    filled = {**plain, **settings}
    presets = _presets(method, dataset) or {"": plain_settings(method, dataset)}
    found = []
    for name, preset in presets.items():
        other = {k: v for k, v in filled.items() if k in preset and preset[k] != v}
        found.append((len(other), name, other))
    _, name, other = min(found, key=lambda entry: entry[:2])
    return name, {k: v for k, v in other.items() if k not in EXECUTION_KEYS}


@lru_cache(maxsize=64)
def _presets(method: str, dataset: str) -> Mapping[str, Mapping[str, Value]]:
    """Resolve every preset of a method on a data set: name -> settings."""
    found = {}
    for name in list_presets():
        config = {**defaults(), **load_preset(name)}
        if (config["method"], config["dataset"]) != (method, dataset):
            continue
        try:
            resolved = resolve(config).to_config()
        except ConfigError:  # data of a user that are not here
            continue
        found[name] = {k: v for k, v in resolved.items() if k not in EXECUTION_KEYS}
    return found


@lru_cache(maxsize=64)
def plain_settings(method: str, dataset: str) -> Mapping[str, Value]:
    """Resolve the default configuration, as far as it has values.

    Own data have none of some parameters of methods, such as GCFL's thresholds.
    """
    config = {**defaults(), "method": method, "dataset": dataset}
    try:
        return resolve(config).to_config()
    except ConfigError:
        return {k: v for k, v in config.items() if v != AUTO}


def held_out_of(config: Mapping[str, Value]) -> float:
    """Share of the data that does not train: what intervals are corrected for.

    Of a cross-validation, in which a part tests and the next validates, two parts.
    """
    folds = int(config.get("folds", 1))
    return 2 / folds if folds > 1 else float(config.get("held-out", 0))


def with_settings(name: str, settings: Mapping[str, Value]) -> str:
    """Write settings in brackets behind a name."""
    words = ", ".join(f"{k}={as_text(v)}" for k, v in sorted(settings.items()))
    return f"{name} ({words})" if words else name


def as_text(value: Value) -> str:
    """Write a value as TOML does, but texts without quotes."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"


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
    def seed(self) -> int:
        """Seed by which runs are paired."""
        return int(self.summary["seed"])

    @property
    def split(self) -> tuple[str, int, int]:
        """Key of the split; two runs may be compared only if it agrees."""
        s = self.summary
        return str(s["split_hash"]), int(s["split_seed"]), int(s["num_clients"])

    @property
    def fold(self) -> tuple[int, int]:
        """Which part of a cross-validation tests, and how many parts there are."""
        config = self.summary["config"]
        return int(config.get("fold", 0)), int(config.get("folds", 1))

    @property
    def data(self) -> dict[str, str]:
        """Hash of each client's files; clients of private runs send none."""
        sent: Mapping[str, str] = self.summary.get("data_sha256") or {}
        return {c: h for c, h in sorted(sent.items()) if h}

    @property
    def settings(self) -> dict[str, Value]:
        """Resolved configuration without the keys that do not change the result.

        A model that the run began from counts by its hash: a path may have led to
        another one before.
        """
        config: Mapping[str, Value] = self.summary["config"]
        found = {k: v for k, v in config.items() if k not in EXECUTION_KEYS}
        for former in (self.summary.get("lineage") or [])[:1]:
            found["init-from"] = f"{found['init-from']}@{former['sha256'][:12]}"
        return found

    @property
    def headline(self) -> str:
        """First rule of the run's task.

        Raises
        ------
        DataError
            It is unknown.
        """
        rule = str((self.summary.get("rules") or ["final"])[0])
        if rule not in PROTOCOLS:
            cure = "Use the version of this project that made the run."
            words = unknown_name("rule", rule, PROTOCOLS, cure)
            raise DataError(f"{self.path}: {words}")
        return rule

    def per_client(self, rule: str, metric: str = "") -> dict[int, float]:
        """Test score of each client by ``rule``; empty if it was not measured."""
        return client_scores(self.summary, rule, metric)


@dataclass(kw_only=True)
class Found:
    """Completed runs, and one line with the reason for each folder that is unused."""

    runs: list[Run] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def find_runs(folders: Iterable[Path], *, attacked: bool = False) -> Found:
    """Search folders for runs.

    Parameters
    ----------
    folders : iterable of Path
        Run folders, or folders anywhere above them.
    attacked : bool
        Whether runs under an attack count, whose scores are of honest clients alone.

    Returns
    -------
    Found
        A folder given twice counts once. ``left_out`` has the reason for every failed,
        unfinished or unreadable run, and for every run that a newer equal one replaces.

    Raises
    ------
    FedGraphError
        A folder does not exist, or no run was found in any.
    """
    candidates: dict[Path, None] = {}
    folders = list(folders)
    for folder in folders:
        with blaming(folder):
            if not folder.is_dir():
                raise FedGraphError(f"{folder} is not a folder; give a results folder")
            files = [*folder.rglob(SUMMARY), *folder.rglob(ROUNDS)]
            candidates |= dict.fromkeys(sorted(f.parent.resolve() for f in files))
    if not candidates:
        raise FedGraphError(
            f"no run found in {', '.join(map(str, folders))}: no {SUMMARY} and no"
            f" {ROUNDS}; give a results folder, as `flwr run` and simulations.run"
            " print it"
        )
    found = Found()
    for path in candidates:
        read = _read_run(path)
        if isinstance(read, Run) and read.summary.get("attacked") and not attacked:
            says = read.summary["attacked"]["says"]
            found.left_out.append(f"{path}: {says}; `compare --attacked` reads it")
        elif isinstance(read, Run):
            found.runs.append(read)
        else:
            found.left_out.append(read)
    _keep_newest(found)
    return found


def _read_run(path: Path) -> Run | str:
    file = path / SUMMARY
    try:
        with blaming(file):
            if not file.exists():
                return f"{path}: unfinished, there is no {SUMMARY}"
            summary = load_summary(path)
            if summary.get("status") != "completed":
                return f"{path}: {summary.get('status')}: {summary.get('error')}"
            run = Run(path=path, summary=summary)
            _ = (run.method, run.dataset, run.seed, run.split, run.data, run.headline)
            _ = (frozenset(run.settings.values()), run.per_client("final"))
            return run
    except DataError as error:
        return str(error)


def _keep_newest(found: Found) -> None:
    # Folder names begin with the UTC time, so the newest run has the largest name.
    # Keys that an older run lacks have their defaults.
    kept: dict[tuple[object, ...], Run] = {}
    for run in sorted(found.runs, key=lambda r: r.path.name):
        filled = {**plain_settings(run.method, run.dataset), **run.settings}
        settings, data = tuple(sorted(filled.items())), tuple(run.data.items())
        key = run.dataset, run.method, run.seed, run.split, settings, data
        if older := kept.get(key):
            hashes = {r.summary.get("weights_sha256") for r in (older, run)}
            found.left_out.append(
                f"{older.path}: same method, seed and settings as the newer"
                f" {run.path.name}, which is used"
                f" ({'same' if len(hashes) == 1 else 'DIFFERENT'} weights)"
            )
        kept[key] = run
    found.runs = [*kept.values()]
