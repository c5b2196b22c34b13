"""Run a preset: ``python -m simulations.run gcfl-plus-proteins --seeds 10,42,79``.

Exits with 0 if every run completed, 1 if one failed, 2 if nothing could be started.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import tomllib
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console

from fedgraph_flwr.config import Value
from fedgraph_flwr.errors import ConfigError, FedGraphError, RunFailedError
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.provenance import project_root

from .flower import run_flower
from .inline import run_inline
from .presets import load_preset

_COMPLETED, _FAILED, _REFUSED = 0, 1, 2
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
        raise ConfigError(f"--set {key}: {raw!r} is no text, number, true or false")
    return key.strip(), value


def parse_seeds(text: str) -> list[int]:
    """Read ``10,42,79``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"--seeds needs ints separated by commas, got {text!r}"
        ) from error


def plan(arguments: argparse.Namespace) -> list[dict[str, Value]]:
    """Return the run-config overrides of each run; all are checked before one starts.

    Raises
    ------
    ConfigError
        Unknown preset, bad assignment, or a configuration that ``resolve`` refuses.
    """
    common = load_preset(arguments.preset)
    common |= dict(parse_assignment(text) for text in arguments.set)
    if arguments.results:
        if "results-dir" in common:
            raise ConfigError("give either --results or --set results-dir, not both")
        common["results-dir"] = str(arguments.results.resolve())
    runs = [{"results-dir": str(project_root() / "results"), **common}]
    if arguments.seeds:
        runs = [{**runs[0], "seed": seed} for seed in parse_seeds(arguments.seeds)]
    for overrides in runs:
        resolve({**defaults(), **overrides})
    return runs


def execute(
    runs: list[dict[str, Value]], arguments: argparse.Namespace
) -> Iterator[tuple[Mapping[str, Value], Path | Exception]]:
    """Yield each run with its results folder, or with what went wrong."""
    if arguments.jobs == 1:
        for overrides in runs:
            yield overrides, _one(overrides, arguments)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        futures = {
            pool.submit(_quiet, overrides, arguments): overrides for overrides in runs
        }
        for future in as_completed(futures):
            # A process that was killed breaks the pool: every run of it says so.
            error = future.exception()
            if isinstance(error, Exception):
                yield futures[future], error
            else:
                yield futures[future], future.result()


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
        return RunFailedError(f"{type(error).__name__}: {error}")


def _quiet(
    overrides: Mapping[str, Value], arguments: argparse.Namespace
) -> Path | Exception:
    """Run beside others: their progress lines would only mix."""
    logging.disable(logging.INFO)
    return _one(overrides, arguments)


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.run",
        description="Run a preset, once per seed, and collect the results.",
        epilog="List of presets: python -m simulations.presets [PART OF A NAME]",
    )
    parser.add_argument("preset", help="name of a preset, e.g. gcfl-plus-proteins")
    parser.add_argument("--seeds", default="", help="run seeds, e.g. 10,42,79")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="override a run-config key; may be repeated",
    )  # fmt: skip
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
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    arguments = make_parser().parse_args(argv)
    try:
        if arguments.jobs < 1 or arguments.nodes < 1:
            raise ConfigError("--jobs and --nodes must be at least 1")
        if arguments.jobs > 1 and arguments.engine != "inline":
            raise ConfigError("--jobs needs --engine inline: Flower shares one machine")
        runs = plan(arguments)
    except FedGraphError as error:
        console.print(f"[red]refused[/]: {error}")
        return _REFUSED
    code = _COMPLETED
    for overrides, outcome in execute(runs, arguments):
        what = f"{arguments.preset} seed {overrides.get('seed', defaults()['seed'])}"
        if isinstance(outcome, Exception):
            console.print(f"[red]failed[/]: {what}: {outcome}")
            code = _FAILED
        else:
            console.print(f"[green]completed[/]: {what}: {outcome}")
    return code


if __name__ == "__main__":
    sys.exit(main())
