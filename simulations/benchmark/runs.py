"""Runs of a benchmark: taken from a kept file or a folder, else made."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from clients.store import default_state_dir
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.files import project_root
from fedgraph_flwr.results.provenance import git_commit
from fedgraph_flwr.results.reader import SUMMARY, blaming
from fedgraph_flwr.rules import Value

from ..run import execute
from ..tables import file
from ..tables.results import Result, from_run
from ..tables.runs import Run, find_runs
from .suite import Suite, Trial, settings_row

# What a result depends on, beside its settings.
CODE = ("fedgraph_flwr", "clients", "strategies", "datasets", "examples", "plugins")
KEPT = project_root() / "docs" / "runs"
Key = tuple[str, int, int]  # row, seed, split seed
Known = dict[Key, Result]
Tell = Callable[[str], None]


def kept_path(suite: str) -> Path:
    """File of kept results of a suite."""
    return KEPT / f"benchmark-{suite}.csv"


@cache
def same_code(commit: str) -> bool:
    """Whether a commit computes as the files here do: no difference in ``CODE``.

    False for what git does not know as a commit, such as "unknown" or "abc+dirty".
    """
    command = ["git", "-C", str(project_root()), "diff", "--quiet", commit, "--", *CODE]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def known_results(suite: str, folder: Path) -> Known:
    """Collect results that need no run: kept ones of the same code, and the folder's.

    A run of the folder also counts if it was made with the local changes of today's
    commit: nothing tells such changes apart.
    """
    found: Known = {}
    path = kept_path(suite)
    if path.is_file():
        found = {_key(r): r for r in file.read(path) if same_code(r.commit)}
    if folder.is_dir() and any(folder.rglob(SUMMARY)):
        here = git_commit()
        for run in find_runs([folder]).runs:
            commit = str(run.summary.get("git_commit"))
            if commit == here or same_code(commit):
                result = read_run(run)
                found[_key(result)] = result
    return found


def read_run(run: Run) -> Result:
    """Read a run, with the megabytes that it sent and received as measure ``MB``.

    Scores have the digits of kept rows: ties, of ranks too, are those of either.
    """
    with blaming(run.path):
        row = settings_row(run.summary["config"])
        size = sum(int(run.summary.get(f"bytes_{way}") or 0) for way in ("up", "down"))
    result, _ = from_run(run, row, per_client=True)
    scores = {**result.scores, "MB": size / 1e6}
    return replace(result, scores={m: round(v, file.DIGITS) for m, v in scores.items()})


def make_missing(
    wanted: Iterable[tuple[Trial, tuple[int, int]]],
    known: Known,
    options: argparse.Namespace,
    tell: Tell,
) -> list[str]:
    """Run what is not known and add it to ``known``; returns what failed, in words.

    Raises
    ------
    FedGraphError
        Its runs are to be kept, and could not be: the code here is that of no commit.
    """
    missing: dict[Key, Mapping[str, Value]] = {}
    for trial, pair in wanted:
        key = (trial.row, *pair)
        if key not in known:
            folder = {"results-dir": str(options.results.resolve())}
            missing[key] = {**trial.overrides(*pair), **folder}
    if missing and options.keep and not same_code(git_commit()):
        raise FedGraphError(
            f"--keep keeps results of committed code, and {len(missing)} runs are to be"
            f" made with that of {git_commit()}; commit your changes, pages of a"
            " benchmark before this too, or leave --keep out"
        )
    failed: list[str] = []
    start = time.monotonic()
    how = argparse.Namespace(jobs=options.jobs, engine="inline", nodes=1, gpus=0.0)
    done = execute([dict(m) for m in missing.values()], how) if missing else ()
    for count, (overrides, outcome) in enumerate(done, 1):
        name = f"{overrides['method']} on {overrides['dataset']}"
        name += f", seed {overrides['seed']}, split seed {overrides['split-seed']}"
        if isinstance(outcome, Path):
            for run in find_runs([outcome]).runs:
                result = read_run(run)
                known[_key(result)] = result
            # Private state, up to 2 GB a run, serves a resume alone.
            shutil.rmtree(default_state_dir() / outcome.name, ignore_errors=True)
        else:
            failed.append(f"{name}: {outcome}")
        spent = time.monotonic() - start
        left = spent / count * (len(missing) - count)
        word = "completed" if isinstance(outcome, Path) else "FAILED"
        tell(f"{count}/{len(missing)} {word}: {name}; about {left / 60:.1f} min left")
    return failed


def choose(suite: Suite, tried: Sequence[Trial], known: Known) -> Trial | None:
    """Choose the point of the grid by validation on the first pair; ties: the first.

    None if a point was not measured: a smaller grid would be another benchmark.
    """
    scores = []
    for trial in tried:
        result = known.get((trial.row, *suite.pairs[0]))
        if result is None or "validation" not in result.scores:
            return None
        scores.append(result.scores["validation"])
    return tried[scores.index(max(scores))]


def _key(result: Result) -> Key:
    return result.row, result.seed, result.split_seed
