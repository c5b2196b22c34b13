"""Results of runs as rows of a CSV file, which outlives the runs' folders.

A row is named after the preset whose settings it has, and the keys in which it differs
from the nearest one.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import AUTO, Value
from fedgraph_flwr.errors import ConfigError, FedGraphError
from fedgraph_flwr.resolve import defaults, resolve

from .compare_runs import EXECUTION_KEYS, Run, as_text
from .presets import list_presets, load_preset

RULES = ("final", "best_val", "best_val_trained")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one run contributes to a study.

    Parameters
    ----------
    row : str
        Name of a preset, and in brackets what was set otherwise.
    dataset : str
    seed, split_seed : int
        By both of them runs are paired.
    split_hash : str
        First 12 digits.
    rounds : int
        Rounds trained.
    final, best_val, best_val_trained : float
        Score after the last round, and at the round that validation chose: of the model
        as received, and after local training (NaN where the task has no such rule).
    validation : float
        Validation score by which ``best_val`` chose; settings may be chosen by it.
    edge_epsilon : float
        Most that a client's ledger counts for the edges of one of its graphs; 0: no
        noise.
    weights, commit : str
        First 12 digits of ``weights_sha256`` and of the commit, "+" if files differed.
    wall_s : float
    data : str
        First 12 digits of a hash over all clients' files; "" where a client does not
        tell, or the file of results is older than this column.
    start : float
        Score before training, as ``final``; NaN where it was not measured or written.
    """

    row: str
    dataset: str
    seed: int
    split_seed: int
    split_hash: str
    rounds: int
    final: float
    best_val: float
    best_val_trained: float
    validation: float
    edge_epsilon: float
    weights: str
    commit: str
    wall_s: float
    data: str = ""
    start: float = math.nan

    @property
    def key(self) -> tuple[str, int, int, str]:
        """What no two results may share."""
        return self.row, self.seed, self.split_seed, self.split_hash


def from_run(run: Run) -> Result:
    """Read a run's summary."""
    s = run.summary
    spent = ((s.get("privacy") or {}).get("per_client") or {}).values()
    commit = str(s.get("git_commit") or "")
    return Result(
        row=row_name(run.method, run.dataset, run.settings),
        dataset=run.dataset,
        seed=run.seed,
        split_seed=int(s["split_seed"]),
        split_hash=str(s["split_hash"])[:12],
        rounds=int(s["rounds"]),
        final=_mean(s, "final"),
        best_val=_mean(s, "best_val"),
        best_val_trained=_mean(s, "best_val_trained"),
        validation=_mean(s, "best_val", "validation"),
        edge_epsilon=max((float(c.get("edge-epsilon", 0)) for c in spent), default=0.0),
        weights=str(s["weights_sha256"])[:12],
        commit=commit[:12] + ("+" if commit.endswith("+dirty") else ""),
        wall_s=round(float(s["wall_s"]), 1),
        data=_hash_data(run),
        start=_start(run),
    )


def _start(run: Run) -> float:
    """Mean over clients of the score of round 0, which only ``rounds.csv`` tells."""
    path = run.path / "rounds.csv"
    wanted = ("0", str(run.summary["split"]), str(run.summary["metric"]))
    if not path.is_file():
        return math.nan
    with path.open(newline="", encoding="utf-8") as file:
        scores = [
            float(row["value"])
            for row in csv.DictReader(file)
            if row["point"] == "post_aggregation"
            and (row["round"], row["split"], row["metric"]) == wanted
        ]
    return statistics.fmean(scores) if scores else math.nan


def _hash_data(run: Run) -> str:
    if len(run.data) < int(run.summary["num_clients"]):
        return ""
    return hashlib.sha256(json.dumps(run.data).encode()).hexdigest()[:12]


def row_name(method: str, dataset: str, settings: Mapping[str, Value]) -> str:
    """Name the nearest preset, and in brackets the keys that differ from it.

    Keys that a run does not have, as it is older, have their defaults.

    Parameters
    ----------
    settings : mapping
        ``Run.settings``.
    """
    plain = {k: v for k, v in defaults().items() if v != AUTO}
    filled = {**plain, **settings}
    found = [
        (len(other), name, other)
        for name, preset in _presets(method, dataset).items()
        for other in [
            {k: v for k, v in filled.items() if k in preset and preset[k] != v}
        ]
    ]
    if not found:
        return f"{method} on {dataset}"
    _, name, other = min(found, key=lambda entry: entry[:2])
    if not other:
        return name
    return (
        f"{name} ({', '.join(f'{k}={as_text(v)}' for k, v in sorted(other.items()))})"
    )


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


def _mean(summary: Mapping[str, Any], rule: str, key: str = "mean") -> float:
    mean = (summary.get(rule) or {}).get(key)
    return math.nan if mean is None else float(mean)


def read(path: Path) -> list[Result]:
    """Read a file that :func:`write` wrote.

    Raises
    ------
    FedGraphError
        Missing, or not of this form.
    """
    types = {"int": int, "float": float, "str": str}
    fields = {f.name: types[str(f.type)] for f in dataclasses.fields(Result)}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [{"data": "", "start": "nan", **row} for row in csv.DictReader(file)]
        return [
            Result(**{name: kind(row[name]) for name, kind in fields.items()})
            for row in rows
        ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise FedGraphError(
            f"{path} is not a file of results ({error!r}); expected a CSV with columns"
            f" {', '.join(fields)}, as --csv writes it"
        ) from error


def write(path: Path, results: Iterable[Result]) -> None:
    """Write results as CSV, ordered by name and seeds."""
    ordered = sorted(results, key=lambda r: (r.dataset, *r.key))
    names = [f.name for f in dataclasses.fields(Result)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for result in ordered:
            values = dataclasses.asdict(result)
            for rule in (*RULES, "validation", "start"):
                values[rule] = f"{values[rule]:.6f}"
            writer.writerow(values)


def merge(old: Iterable[Result], new: Iterable[Result]) -> list[Result]:
    """Join; a new result replaces the old one of the same row, seeds and split.

    Raises
    ------
    FedGraphError
        On one split results tell of different data.
    """
    results = [*old, *new]
    known: dict[tuple[str, int, str], Result] = {}
    for r in results:
        first = known.setdefault((r.dataset, r.split_seed, r.split_hash), r)
        if r.data and not first.data:
            known[r.dataset, r.split_seed, r.split_hash] = r
        elif r.data and r.data != first.data:
            raise FedGraphError(
                f"results of {r.dataset} on split {r.split_hash} are of different data:"
                f" {first.row} of {first.data}, {r.row} of {r.data}; give only folders"
                " of runs on one of them"
            )
    return list({r.key: r for r in results}.values())
