"""Run a preset or a method: ``python -m simulations.run gcfl-plus-proteins``.

Exits with 0 if every run completed, 1 if one failed, 2 if nothing could be started,
130 after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import sys
import threading
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from typing_extensions import override

from fedgraph_flwr.core.command import command
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
from fedgraph_flwr.core.words import METHODS as RETIRED_METHODS
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.resolve import defaults, resolve

from .actors import machines, num_actors
from .flower import run_flower
from .inline import run_inline
from .presets import load_preset

_COMPLETED, _FAILED = 0, 1
_STOP = signal.SIGUSR1  # by which a process of a pool interrupts its own run
_PASSED_ON_S = 3.0  # within it a parent that got the signal, too, passes it on
_stops: list[Connection] = []  # that of this process's pool, if it is of one
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
    if name in METHODS or name in RETIRED_METHODS or is_plugin(name):
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
    stops, stop = context.Pipe(duplex=False)  # of events a dead process keeps hold
    with ProcessPoolExecutor(
        arguments.jobs, mp_context=context, initializer=_start_worker, initargs=(stops,)
    ) as pool:
        futures = {
            pool.submit(_beside, overrides, arguments): overrides for overrides in runs
        }
        try:
            for future in as_completed(futures):
                # A process that was killed breaks the pool: every run of it says so.
                error = future.exception()
                if isinstance(error, Exception):
                    yield futures[future], error
                else:
                    yield futures[future], future.result()
        except BaseException:  # Ctrl-C, here or at whoever takes the outcomes
            stop.close()
            pool.shutdown(cancel_futures=True)
            raise


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


class _Prefix(logging.Filter):
    """Puts the seed before every line, as runs side by side mix theirs."""

    def __init__(self, seed: Value) -> None:
        super().__init__()
        self._words = f"[seed {seed}] "

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; it is logged."""
        record.msg = f"{self._words}{record.msg}"
        return True


def _beside(
    overrides: Mapping[str, Value], arguments: argparse.Namespace
) -> Path | Exception:
    """Run beside others, in a process that is told to stop only now."""
    logger, prefix = logging.getLogger("flwr"), _Prefix(_seed(overrides))
    logger.addFilter(prefix)
    signal.signal(_STOP, signal.default_int_handler)
    try:
        if _stops and _stops[0].poll():  # the pool hands out one run in advance
            return RunFailedError(f"not begun: {BY_HAND}")
        return _one(overrides, arguments)
    except KeyboardInterrupt:
        return RunFailedError(BY_HAND)
    finally:
        signal.signal(_STOP, signal.SIG_IGN)
        logger.removeFilter(prefix)


def _start_worker(stops: Connection) -> None:
    """Prepare a process of the pool, which ends its run once ``stops`` is closed.

    A terminal's Ctrl-C reaches the parent too, other signals perhaps it alone. So the
    parent passes it on, and what comes here directly does not count.
    """
    _stops.append(stops)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _on_signal)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as `nohup` wants it
        signal.signal(signal.SIGHUP, _on_signal)
    signal.signal(_STOP, signal.SIG_IGN)
    end_with_parent()
    threading.Thread(target=_pass_on, args=(stops,), daemon=True).start()


def _on_signal(*_: object) -> None:
    """End this process, unless the parent stops its run: a broken pool waits for it."""
    if not _stops[0].poll(_PASSED_ON_S):
        os._exit(1)


def _pass_on(stops: Connection) -> None:
    stops.poll(None)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.is_alive():  # else this process ends at once
        signal.pthread_kill(threading.main_thread().ident or 0, _STOP)


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
