"""Suites of the benchmark, and their runs: kept, found or made.

Keys of a file: ``title``; ``rule``, by which scores are read; ``also``, metrics shown
beside the headline's, e.g. macro-f1, or "held-out clients" (none if left out);
``pairs`` of run seed and split seed;
``[settings]`` of all runs; ``[grid]``, key -> values tried for every method; ``tries``,
how many points of its grid each method tries (all if left out); ``[[data]]`` with
``name``, ``set`` and ``drawn`` (whether each split seed draws other data, so that
splits share none; default: no); ``[method.<name>]`` with ``role`` (rival or control),
``set`` and, if there are any, ``grid`` of its own keys and ``only`` (names of data).
Without methods it has those of ``short_list.toml``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from clients.store import default_state_dir
from fedgraph_flwr.core.errors import ConfigError, FedGraphError
from fedgraph_flwr.core.files import project_root
from fedgraph_flwr.core.rules import Value, read_toml
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.resolve import Resolved, defaults, resolve
from fedgraph_flwr.results.provenance import git_commit
from fedgraph_flwr.results.reader import SUMMARY, blaming

from ..presets.read import flatten
from ..run import How, execute
from ..tables import frame
from ..tables.frame import FIELDS, HELD_OUT, METRICS, ON_ALL, Row, from_run, records
from ..tables.runs import EXECUTION_KEYS, Run, find_runs

FOLDER = Path(__file__).parents[1] / "suites"
SHORT_LIST = Path(__file__).with_name("short_list.toml")
ROLES = ("rival", "control")
RULES = ("best_val", "final")  # the others select on test data
Grid = Mapping[str, Sequence[Value]]
Pair = tuple[int, int]  # run seed, split seed


@dataclass(frozen=True, kw_only=True)
class SuiteData:
    """One data set with its partition; ``settings`` are run-config keys."""

    name: str
    settings: Mapping[str, Value]
    drawn: bool = False


@dataclass(frozen=True, kw_only=True)
class SuiteMethod:
    """One method of a suite; ``role`` is rival, control or candidate."""

    name: str
    role: str
    settings: Mapping[str, Value]
    only: tuple[str, ...] = ()
    grid: Grid = field(default_factory=dict)

    def takes(self, data: str) -> bool:
        """Whether the method is run on a data set of this name."""
        return not self.only or data in self.only


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Content of a file."""

    name: str
    title: str
    rule: str
    pairs: tuple[Pair, ...]
    settings: Mapping[str, Value]
    grid: Grid
    data: tuple[SuiteData, ...]
    methods: tuple[SuiteMethod, ...] = field(default=())
    also: tuple[str, ...] = ()
    tries: int = 0

    def points(self, method: SuiteMethod) -> list[Mapping[str, Value]]:
        """List what a method tries: all, or ``tries`` points, drawn by its name.

        The first values of the grid are always among them.
        """
        grid = {k: v for k, v in self.grid.items() if k not in method.settings}
        grid |= method.grid
        every: list[Mapping[str, Value]] = [
            dict(zip(grid, p, strict=True)) for p in itertools.product(*grid.values())
        ]
        if not 0 < self.tries < len(every):
            return every
        rng = numpy_rng(0, self.name, method.name, "grid")
        others = rng.choice(np.arange(1, len(every)), self.tries - 1, replace=False)
        return [every[i] for i in (0, *sorted(others.tolist()))]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A method on a data set with one point of the grid; run once for each pair."""

    data: str
    method: str
    point: Mapping[str, Value]
    config: Mapping[str, Value]

    def overrides(self, seed: int, split_seed: int) -> dict[str, Value]:
        """Run config of one run."""
        return {**self.config, "seed": seed, "split-seed": split_seed}

    @property
    def resolved(self) -> Mapping[str, Value]:
        """All settings of the runs."""
        return resolve({**defaults(), **self.config}).to_config()

    @property
    def row(self) -> str:
        """Name in the file of kept results: it changes with every setting."""
        return settings_row(self.resolved)


def settings_row(resolved: Mapping[str, Value]) -> str:
    """Name method, data set and the hash of all settings that change a result."""
    kept = {k: v for k, v in resolved.items() if k not in EXECUTION_KEYS}
    text = json.dumps(kept, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{resolved['method']} on {resolved['dataset']} #{digest}"


def load_suite(name: str) -> Suite:
    """Read a suite of the folder ``suites``, or a file of your own by its path.

    Raises
    ------
    ConfigError
        There is none of this name, or its file does not keep to the format.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.toml")))
        raise ConfigError(
            f"suite must be one of {known}, got {name!r}; give one of them, or the path"
            " of a file of your own that ends in .toml"
        )
    try:
        suite = _suite(path.stem, dict(read_toml(path)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path}: not a suite ({error!r}); see simulations/benchmark/suite.py"
        ) from error
    names = {d.name for d in suite.data}
    _check(path, "rule", [suite.rule], RULES)
    _check(path, "also", list(suite.also), (*METRICS, HELD_OUT, ON_ALL))
    _check(path, "role", [m.role for m in suite.methods], ROLES)
    _check(path, "only", [n for m in suite.methods for n in m.only], names)
    if len(names) < len(suite.data) or len(set(suite.pairs)) < len(suite.pairs):
        raise ConfigError(f"{path}: a data set or a pair stands there twice")
    if not suite.pairs or not suite.data or not all(suite.grid.values()):
        raise ConfigError(
            f"{path}: pairs, data and values of the grid must not be empty"
        )
    return suite


def trials(suite: Suite, methods: list[SuiteMethod]) -> Iterator[Trial]:
    """List all trials; the configuration of each is checked.

    Raises
    ------
    ConfigError
        A method does not fit the data, a setting is refused, or runs would have no
        scores that a benchmark can compare.
    """
    for data, method in itertools.product(suite.data, methods):
        if not method.takes(data.name):
            continue
        for point in suite.points(method):
            config = {**suite.settings, **data.settings, **method.settings, **point}
            _check_scores(resolve({**defaults(), **config}))
            yield Trial(data=data.name, method=method.name, point=point, config=config)


def _check_scores(resolved: Resolved) -> None:
    """Raise ConfigError if a run has no scores that a benchmark can compare."""
    task, settings = resolved.method.task, resolved.settings
    if not task.larger_is_better:
        raise ConfigError(
            "a benchmark needs scores of which larger is better, got"
            f" {task.metric} of {settings.method} on {settings.dataset}; compare such"
            " runs with `fedgraph compare`"
        )
    if "best_val" not in task.rules_for(settings):
        raise ConfigError(
            "a benchmark chooses settings by validation, and runs of"
            f" {settings.method} on {settings.dataset} report only"
            f" {', '.join(task.rules_for(settings))}; take a task with validation data,"
            " and client-fraction 1"
        )


def _suite(name: str, given: dict[str, Any]) -> Suite:
    data = [SuiteData(settings=flatten(d.pop("set")), **d) for d in given.pop("data")]
    listed = given.pop("method", None) or read_toml(SHORT_LIST)["method"]
    methods = [
        SuiteMethod(
            name=key,
            settings=flatten(m.pop("set")),
            grid=flatten(m.pop("grid", {})),
            **m,
        )
        for key, m in listed.items()
    ]
    return Suite(
        name=name,
        pairs=tuple((int(a), int(b)) for a, b in given.pop("pairs")),
        settings=flatten(given.pop("settings", {})),
        grid=flatten(given.pop("grid", {})),
        data=tuple(data),
        methods=tuple(methods),
        **given,
    )


def _check(path: Path, key: str, found: list[str], allowed: Any) -> None:
    for value in found:
        if value not in allowed:
            raise ConfigError(
                f"{path}: {key} is {value!r}, allowed are {', '.join(sorted(allowed))}"
            )


# What a result depends on, beside its settings.
CODE = ("fedgraph_flwr", "clients", "strategies", "datasets", "examples", "plugins")
KEPT = project_root() / "docs" / "runs"
Key = tuple[str, int, int]  # row, seed, split seed
Known = dict[Key, Row]
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
        kept = records(frame.read(path))
        found = {_key(r): r for r in kept if same_code(r["commit"])}
    if folder.is_dir() and any(folder.rglob(SUMMARY)):
        here = git_commit()
        for run in find_runs([folder]).runs:
            commit = str(run.summary.get("git_commit"))
            if commit == here or same_code(commit):
                result = read_run(run)
                found[_key(result)] = result
    return found


def read_run(run: Run) -> Row:
    """Read a run, with the megabytes that it sent and received as measure ``MB``.

    Scores have the digits of kept rows: ties, of ranks too, are those of either.
    """
    with blaming(run.path):
        row = settings_row(run.summary["config"])
        size = sum(int(run.summary.get(f"bytes_{way}") or 0) for way in ("up", "down"))
    result, _ = from_run(run, row, per_client=True)
    return {
        k: round(v, frame.DIGITS) if isinstance(v, float) and k not in FIELDS else v
        for k, v in {**result, "MB": size / 1e6}.items()
    }


def make_missing(
    wanted: Iterable[tuple[Trial, Pair]],
    known: Known,
    results: Path,
    *,
    jobs: int,
    keep: bool,
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
            folder = {"results-dir": str(results.resolve())}
            missing[key] = {**trial.overrides(*pair), **folder}
    if missing and keep and not same_code(git_commit()):
        raise FedGraphError(
            f"--keep keeps results of committed code, and {len(missing)} runs are to be"
            f" made with that of {git_commit()}; commit your changes, pages of a"
            " benchmark before this too, or leave --keep out"
        )
    failed: list[str] = []
    start = time.monotonic()
    how = How(inline=True, jobs=jobs, nodes=1)
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


def choose(tried: Sequence[Trial], pair: Pair, known: Known) -> Trial | None:
    """Choose the point of the grid by validation within a pair; ties: the first.

    None if a point was not measured: a smaller grid would be another benchmark.
    """
    scores = []
    for trial in tried:
        result = known.get((trial.row, *pair))
        if result is None or "validation" not in result:
            return None
        scores.append(result["validation"])
    return tried[scores.index(max(scores))]


def _key(result: Row) -> Key:
    return result["row"], result["seed"], result["split_seed"]
