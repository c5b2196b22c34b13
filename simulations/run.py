"""``fedgraph run``: run a preset or a method, once per seed."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shlex
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from fedgraph_flwr.core.command import handled_signals
from fedgraph_flwr.core.config import SEVERAL
from fedgraph_flwr.core.errors import (
    ConfigError,
    FedGraphError,
    RunFailedError,
    full_reason,
)
from fedgraph_flwr.core.files import project_root
from fedgraph_flwr.core.plugins import is_plugin
from fedgraph_flwr.core.process import end_with_parent
from fedgraph_flwr.core.rules import Value, toml_value
from fedgraph_flwr.core.words import BY_HAND
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.resolve import defaults, resolve

from .flower import run_flower
from .inline import run_inline
from .presets import load_preset

_COMPLETED, _FAILED = 0, 1
N = TypeVar("N", int, float)
console = Console(stderr=True, highlight=False)


KeyValues = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the run config."),
]


@dataclass(frozen=True, kw_only=True)
class How:
    """By which means runs are made."""

    inline: bool = False
    nodes: int = 2
    gpus: float = 0.0
    jobs: int = 1


def read_settings(given: Iterable[str] | None) -> dict[str, Value]:
    """Read ``KEY=VALUE ...``; the last of a key counts."""
    return dict(map(parse_assignment, given or ()))


def parse_assignment(text: str) -> tuple[str, Value]:
    """Read ``key=value``; the value is TOML if it can be, else a text.

    Raises
    ------
    ConfigError
        There is no ``=``, or the value is a list or table.
    """
    key, separator, raw = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"a setting is written KEY=VALUE, got {text!r}")
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw
    if not isinstance(value, bool | int | float | str):
        raise ConfigError(
            f"{key}: {raw!r} is not a text, number, true or false{SEVERAL}"
        )
    return key.strip(), value


def numbers(option: str, text: str, kind: Callable[[str], N] = int) -> list[N]:
    """Read ``10,42,79``; nothing is no number."""
    try:
        return [kind(part) for part in text.split(",") if text]
    except ValueError as error:
        raise ConfigError(
            f"{option} needs numbers separated by commas, got {text!r}"
        ) from error


def plan(
    name: str,
    own: Mapping[str, Value],
    *,
    seeds: str = "",
    folds: int = 1,
    results: Path | None = None,
) -> list[dict[str, Value]]:
    """Return the run-config overrides of each run; all are checked before one starts.

    ``name`` is that of a preset, or of a method, which means its defaults.

    Raises
    ------
    ConfigError
        Unknown preset, bad assignment, or a configuration that ``resolve`` refuses.
    """
    is_method = name in METHODS or is_plugin(name)
    start = {"method": name} if is_method else load_preset(name, also=METHODS)
    common = {**start, **own}
    if results:
        if "results-dir" in common:
            raise ConfigError("give either --results or results-dir=..., not both")
        common["results-dir"] = str(results.resolve())
    runs = [{"results-dir": str(project_root() / "results"), **common}]
    if seeds:
        if "seed" in own:
            raise ConfigError("give either --seeds or seed=..., not both")
        runs = [{**runs[0], "seed": seed} for seed in numbers("--seeds", seeds)]
    if folds > 1:
        if {"folds", "fold"} & own.keys():
            raise ConfigError("give either --folds or folds=... fold=..., not both")
        parts = [{"folds": folds, "fold": k} for k in range(folds)]
        runs = [{**overrides, **part} for overrides in runs for part in parts]
    return [_read_or_set(overrides, own) for overrides in runs]


def _read_or_set(
    overrides: dict[str, Value], own: Mapping[str, Value]
) -> dict[str, Value]:
    """Check a run; leave out what its preset has for other methods of the family."""
    read = resolve({**defaults(), **overrides}).to_config()
    return {k: v for k, v in overrides.items() if k in own or k in read or "." not in k}


def execute(
    runs: list[dict[str, Value]], how: How
) -> Iterator[tuple[Mapping[str, Value], Path | Exception]]:
    """Yield each run with its results folder, or with what went wrong."""
    if how.jobs == 1:
        for overrides in runs:
            yield overrides, _one(overrides, how)
        return
    context = multiprocessing.get_context("spawn")
    waiting, running = list(runs), dict[Connection, tuple[SpawnProcess, Any]]()
    try:
        while waiting or running:
            while waiting and len(running) < how.jobs:
                ours, theirs = context.Pipe(duplex=False)
                given = theirs, waiting[0], how
                process = context.Process(target=_beside, args=given)
                process.start()
                theirs.close()
                running[ours] = process, waiting.pop(0)
            ended = connection.wait([*running])
            for ours in [pipe for pipe in running if pipe in ended]:
                process, overrides = running.pop(ours)
                try:
                    outcome: Path | Exception = ours.recv()
                except EOFError:
                    process.join()
                    words = f"its process ended with exit code {process.exitcode}"
                    outcome = RunFailedError(words)
                yield overrides, outcome
    finally:  # of Ctrl-C, here or at whoever takes the outcomes
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _one(overrides: Mapping[str, Value], how: How) -> Path | Exception:
    try:
        if how.inline:
            return run_inline(overrides, num_nodes=how.nodes)
        return run_flower(overrides, num_nodes=how.nodes, num_gpus=how.gpus)
    except FedGraphError as error:
        return error
    except Exception as error:  # a fault of ours; the other seeds are run all the same
        traceback.print_exc()
        return RunFailedError(full_reason(error))


def _beside(pipe: Connection, overrides: Mapping[str, Value], how: How) -> None:
    """Run in a process of its own, which its parent stops by SIGTERM."""
    os.setsid()  # the terminal's Ctrl-C is for the parent alone
    end_with_parent()
    logging.getLogger("flwr").addFilter(named(_seed(overrides)))
    with handled_signals():
        try:
            pipe.send(_one(overrides, how))
        except KeyboardInterrupt:
            pipe.send(RunFailedError(BY_HAND))


def named(seed: Value) -> Callable[[logging.LogRecord], bool]:
    """Make a filter that puts the seed before every line of a log."""

    def put(record: logging.LogRecord) -> bool:
        record.msg = f"[seed {seed}] {record.msg}"
        return True

    return put


def _seed(overrides: Mapping[str, Value]) -> Value:
    """Seed of a run, and its fold if there are several."""
    seed = overrides.get("seed", defaults()["seed"])
    return f"{seed} fold {overrides['fold']}" if "fold" in overrides else seed


def run(
    name: Annotated[
        str,
        typer.Argument(
            help="A method, a preset (fedgraph presets lists them), or a method of your"
            " own: fgx:METHOD of plugins/fgx.py. What is both is the method."
        ),
    ],
    settings: KeyValues = None,
    *,
    inline: Annotated[
        bool, typer.Option("--inline", help="Everything in this process, without Ray.")
    ] = False,
    seeds: Annotated[str, typer.Option(help="Run seeds, e.g. 10,42,79.")] = "",
    folds: Annotated[
        int,
        typer.Option(
            min=1, help="Cross-validation within each client: a run per fold."
        ),
    ] = 1,
    results: Annotated[
        Path | None, typer.Option(help="Folder for results (else results/ here).")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="SuperNodes to simulate.")] = 2,
    gpus: Annotated[
        float, typer.Option(min=0, help="Share of a GPU per Ray actor, e.g. 0.1.")
    ] = 0.0,
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs side by side, with --inline.")
    ] = 1,
    plan_only: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Start nothing: say how many actors, how much memory and time a run"
            " takes, from two rounds of a few clients.",
        ),
    ] = False,
) -> int:
    """Run a method or a preset, once per seed and fold, by Flower or inline.

    The exit code is 0 if every run completed, 1 if one failed, 2 if nothing could be
    started, 130 after Ctrl-C or SIGTERM.
    """
    how = How(inline=inline, nodes=nodes, gpus=gpus, jobs=jobs)
    if jobs > 1 and not inline:
        raise ConfigError("--jobs needs --inline: Flower shares one machine")
    if gpus and inline:
        raise ConfigError(
            "--gpus is for Flower's actors, which share a GPU; with --inline,"
            " device=cuda gives the one process all of it"
        )
    own = read_settings(settings)
    runs = plan(name, own, seeds=seeds, folds=folds, results=results)
    if gpus or plan_only:
        from . import planning  # here: what it imports is for it alone
    if gpus and "RAY_ADDRESS" not in os.environ:
        planning.num_actors(planning.machine(), nodes=nodes, gpus=gpus)
    if plan_only:
        words = planning.describe_plan(runs[0], inline=inline, nodes=nodes, gpus=gpus)
        console.print(escape(words), soft_wrap=True)
        if len(runs) > 1:
            console.print(f"There are {len(runs)} such runs, {jobs} at a time.")
        return _COMPLETED
    if not inline:
        console.print(f"[dim]{escape(flower_line(runs[0]))}[/]", soft_wrap=True)
    return _tell(name, runs, how)


def flower_line(overrides: Mapping[str, Value]) -> str:
    """Write the line that starts the same run by Flower's own command."""
    words = " ".join(f"{k}={toml_value(v)}" for k, v in overrides.items())
    return f"flwr run . --run-config {shlex.quote(words)}"


def _tell(what: str, runs: list[dict[str, Value]], how: How) -> int:
    """Execute runs, say how each of them ended, and return the exit code."""
    code = _COMPLETED
    for overrides, outcome in execute(runs, how):
        about = what
        if what in METHODS or is_plugin(what):
            about += f" on {overrides.get('dataset', defaults()['dataset'])}"
        word = "[green]completed[/]"
        if isinstance(outcome, Exception):
            word, code = "[red]failed[/]", _FAILED
        facts = f"{about} seed {_seed(overrides)}: {outcome}"
        # Lines are not broken, so that paths can be copied.
        console.print(f"{word}: {escape(facts)}", soft_wrap=True)
    return code
