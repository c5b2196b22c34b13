"""Run a preset or a method: ``python -m simulations.run gcfl-plus-proteins``.

Exits with 0 if every run completed, 1 if one failed, 2 if nothing could be started,
130 after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fedgraph_flwr.core.command import command, handled_signals
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
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.words import BY_HAND
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.resolve import defaults, resolve

from .actors import machines, num_actors
from .flower import run_flower
from .inline import run_inline
from .presets import load_preset

_COMPLETED, _FAILED = 0, 1
console = Console(stderr=True, highlight=False)


def parse_assignment(text: str) -> tuple[str, Value]:
    """Read ``key=value``; the value is TOML if it can be, else a text.

    Raises
    ------
    ConfigError
        There is no ``=``, or the value is a list or table.
    """
    key, separator, raw = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set needs key=value, got {text!r}")
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw
    if not isinstance(value, bool | int | float | str):
        raise ConfigError(
            f"--set {key}: {raw!r} is not a text, number, true or false{SEVERAL}"
        )
    return key.strip(), value


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add ``--set``, which gives a list of keys and values."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        type=parse_assignment, help="override a run-config key; may be repeated",
    )  # fmt: skip


def parse_seeds(text: str) -> list[int]:
    """Read ``10,42,79``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"--seeds needs ints separated by commas, got {text!r}"
        ) from error


def start_from(name: str) -> dict[str, Value]:
    """Return the overrides of a preset; the name of a method means its defaults.

    Raises
    ------
    ConfigError
        Neither has this name.
    """
    if name in METHODS or is_plugin(name):
        return {"method": name}
    return load_preset(name, also=METHODS)


def plan(arguments: argparse.Namespace) -> list[dict[str, Value]]:
    """Return the run-config overrides of each run; all are checked before one starts.

    Raises
    ------
    ConfigError
        Unknown preset, bad assignment, or a configuration that ``resolve`` refuses.
    """
    own = dict(arguments.set)
    common = {**start_from(arguments.preset), **own}
    if arguments.results:
        if "results-dir" in common:
            raise ConfigError("give either --results or --set results-dir, not both")
        common["results-dir"] = str(arguments.results.resolve())
    runs = [{"results-dir": str(project_root() / "results"), **common}]
    if arguments.seeds:
        if "seed" in own:
            raise ConfigError("give either --seeds or --set seed, not both")
        runs = [{**runs[0], "seed": seed} for seed in parse_seeds(arguments.seeds)]
    return [_read_or_set(overrides, own) for overrides in runs]


def _read_or_set(
    overrides: dict[str, Value], own: Mapping[str, Value]
) -> dict[str, Value]:
    """Check a run; leave out what its preset has for other methods of the family."""
    read = resolve({**defaults(), **overrides}).to_config()
    return {k: v for k, v in overrides.items() if k in own or k in read or "." not in k}


def execute(
    runs: list[dict[str, Value]], arguments: argparse.Namespace
) -> Iterator[tuple[Mapping[str, Value], Path | Exception]]:
    """Yield each run with its results folder, or with what went wrong."""
    if arguments.jobs == 1:
        for overrides in runs:
            yield overrides, _one(overrides, arguments)
        return
    context = multiprocessing.get_context("spawn")
    waiting, running = list(runs), dict[Connection, tuple[SpawnProcess, Any]]()
    try:
        while waiting or running:
            while waiting and len(running) < arguments.jobs:
                ours, theirs = context.Pipe(duplex=False)
                given = theirs, waiting[0], arguments
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


def _one(
    overrides: Mapping[str, Value], arguments: argparse.Namespace
) -> Path | Exception:
    try:
        if arguments.engine == "inline":
            return run_inline(overrides, num_nodes=arguments.nodes)
        return run_flower(overrides, num_nodes=arguments.nodes, num_gpus=arguments.gpus)
    except FedGraphError as error:
        return error
    except Exception as error:  # a fault of ours; the other seeds are run all the same
        traceback.print_exc()
        return RunFailedError(full_reason(error))


def _beside(
    pipe: Connection, overrides: Mapping[str, Value], arguments: argparse.Namespace
) -> None:
    """Run in a process of its own, which its parent stops by SIGTERM."""
    os.setsid()  # the terminal's Ctrl-C is for the parent alone
    end_with_parent()
    logging.getLogger("flwr").addFilter(named(_seed(overrides)))
    with handled_signals():
        try:
            pipe.send(_one(overrides, arguments))
        except KeyboardInterrupt:
            pipe.send(RunFailedError(BY_HAND))


def named(seed: Value) -> Callable[[logging.LogRecord], bool]:
    """Make a filter that puts the seed before every line of a log."""

    def put(record: logging.LogRecord) -> bool:
        record.msg = f"[seed {seed}] {record.msg}"
        return True

    return put


def _seed(overrides: Mapping[str, Value]) -> Value:
    return overrides.get("seed", defaults()["seed"])


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.run",
        description="Run a preset or a method, once per seed.",
        epilog="List of presets: python -m simulations.presets [PART OF A NAME]."
        " Own molecules: fedavg --set dataset=smiles-csv"
        " --set data-dir=/abs/folder --engine inline",
    )
    parser.add_argument(
        "preset",
        metavar="PRESET|METHOD",
        help="a preset of simulations/presets, or a method, e.g. fedavg or your own"
        " fgx:METHOD in plugins/fgx.py, whose settings are the defaults and what --set"
        " says",
    )
    parser.add_argument("--seeds", default="", help="run seeds, e.g. 10,42,79")
    add_settings(parser)
    parser.add_argument(
        "--nodes", type=int, default=2, help="SuperNodes to simulate (default 2)"
    )
    parser.add_argument(
        "--results", type=Path,
        help="folder for results (default: the project's results/)",
    )  # fmt: skip
    parser.add_argument(
        "--engine", choices=("flower", "inline"), default="flower",
        help="flower: flwr run with Ray; inline: everything in this process",
    )  # fmt: skip
    parser.add_argument(
        "--gpus", type=float, default=0.0,
        help="share of a GPU per actor, e.g. 0.1 (flower engine)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs side by side (inline engine only)"
    )
    parser.add_argument(
        "--plan", action="store_true",
        help="start nothing; say about how many actors, how much memory and time a run"
        " takes, from two rounds of a few clients",
    )  # fmt: skip
    return parser


@command
def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    arguments = make_parser().parse_args(argv)
    if arguments.jobs < 1 or arguments.nodes < 1:
        raise ConfigError("--jobs and --nodes must be at least 1")
    if not arguments.gpus >= 0:  # NaN is not, either
        raise ConfigError(
            f"--gpus must be a share of a GPU, at least 0, got {arguments.gpus:g}"
        )
    if arguments.jobs > 1 and arguments.engine != "inline":
        raise ConfigError("--jobs needs --engine inline: Flower shares one machine")
    if arguments.gpus and arguments.engine != "flower":
        raise ConfigError(
            "--gpus needs --engine flower, whose actors share a GPU; inline, --set"
            " device=cuda gives the one process all of it"
        )
    runs = plan(arguments)
    if arguments.gpus and not arguments.plan:  # which looks by itself
        num_actors(machines(), nodes=arguments.nodes, gpus=arguments.gpus)
    if arguments.plan:
        _tell_plan(runs, arguments)
        return _COMPLETED
    return _tell(runs, arguments)


def _tell_plan(runs: list[dict[str, Value]], arguments: argparse.Namespace) -> None:
    """Print what one of the runs would take, and how many there are."""
    from .planning import describe_plan  # here: what it imports is for it alone

    words = describe_plan(
        runs[0], engine=arguments.engine, nodes=arguments.nodes, gpus=arguments.gpus
    )
    console.print(escape(words), soft_wrap=True)
    if len(runs) > 1:
        console.print(f"There are {len(runs)} such runs, {arguments.jobs} at a time.")


def _tell(runs: list[dict[str, Value]], arguments: argparse.Namespace) -> int:
    """Execute runs, say how each of them ended, and return the exit code."""
    code = _COMPLETED
    for overrides, outcome in execute(runs, arguments):
        what = arguments.preset
        if what in METHODS or is_plugin(what):
            what += f" on {overrides.get('dataset', defaults()['dataset'])}"
        word = "[green]completed[/]"
        if isinstance(outcome, Exception):
            word, code = "[red]failed[/]", _FAILED
        facts = f"{what} seed {_seed(overrides)}: {outcome}"
        # Lines are not broken, so that paths can be copied.
        console.print(f"{word}: {escape(facts)}", soft_wrap=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
