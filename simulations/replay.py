"""Run documented runs again: ``python -m simulations.replay [--all]``.

A page that prints ``weights_sha256`` beside a command promises that the command gives
these bytes. This program finds such commands on the pages, and the runs of the files
``docs/runs/*.csv``, runs them again in this process and compares the hashes. Without
``--all`` it leaves out what took more than a minute, and takes one run of each preset.

Another kind of processor gives other bytes; then compare with a checkout of the commit
that stands beside the run, on the same machine. Exits with 0 if all agree, 1 if one
differs or failed, 2 if there is nothing to run.
"""

from __future__ import annotations

import argparse
import csv
import logging
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgraph_flwr.command import command
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.files import project_root
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import blaming, load_summary
from fedgraph_flwr.rules import Value

from . import run
from .presets import list_presets, load_preset
from .scratch import finished_run

QUICK_S = 60.0
_COMMAND = re.compile(r"`python -m simulations\.run ([^`]+)`")
_HASH = re.compile(r"`([0-9a-f]{12})`")
_ROW = re.compile(r"(?P<preset>\S+)(?: \((?P<settings>.*)\))?")


@dataclass(frozen=True, kw_only=True)
class Documented:
    """A run whose hash is printed.

    Parameters
    ----------
    place : str
        File that prints it.
    name : str
        Preset, seed and settings, for the reader.
    overrides : dict
        Run-config keys that differ from the defaults.
    weights : str
        First digits of ``weights_sha256``.
    wall_s : float
        How long the run took then; 0 if the page does not say.
    """

    place: str
    name: str
    overrides: dict[str, Value]
    weights: str
    wall_s: float = 0.0


def on_page(path: Path) -> Iterator[Documented]:
    """Find commands that stand in one row or paragraph with one hash."""
    text = path.read_text(encoding="utf-8")
    for block in re.split(r"\n(?=\||\s*[-*] )|\n\s*\n", text):
        words = " ".join(block.split())  # a command may be wrapped
        commands, hashes = _COMMAND.findall(words), set(_HASH.findall(words))
        if len(commands) != 1 or len(hashes) != 1:
            continue
        given = shlex.split(commands[0].replace("--nodes N", ""))
        for overrides in run.plan(run.make_parser().parse_args(given)):
            overrides.pop("results-dir")
            yield Documented(
                place=path.name,
                name=commands[0],
                overrides=overrides,
                weights=hashes.pop(),
            )


def in_file(path: Path) -> Iterator[Documented]:
    """Find the runs of a study's file whose row names a preset."""
    presets = list_presets()
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            match = _ROW.fullmatch(row["row"])
            if not row["weights"] or match is None or match["preset"] not in presets:
                continue
            pairs = (match["settings"] or "").split(", ")
            chosen = dict(run.parse_assignment(pair) for pair in pairs if pair)
            seeds = {"seed": int(row["seed"]), "split-seed": int(row["split_seed"])}
            yield Documented(
                place=path.name,
                name=f"{row['row']}, seeds {row['seed']} and {row['split_seed']}",
                overrides={**load_preset(match["preset"]), **chosen, **seeds},
                weights=row["weights"],
                wall_s=float(row["wall_s"]),
            )


def find_runs(docs: Path) -> list[Documented]:
    """Find all documented runs below a folder of pages."""
    found: list[Documented] = []
    for read, names in ((on_page, "*.md"), (in_file, "*.csv")):
        for path in sorted(docs.rglob(names)):
            with blaming(path):
                found += read(path)
    return found


def quick(runs: Sequence[Documented]) -> list[Documented]:
    """Choose runs of less than a minute, of each preset the fastest."""
    chosen: dict[str, Documented] = {}
    for found in sorted(runs, key=lambda r: r.wall_s):
        if found.wall_s < QUICK_S:
            chosen.setdefault(found.name.split()[0], found)
    return list(chosen.values())


def compare(found: Documented) -> tuple[bool, str]:
    """Run it again; whether the bytes are those on the page, and a line about it."""
    try:
        resolve({**defaults(), **found.overrides})
        with finished_run(found.overrides) as folder:
            weights = load_summary(folder)["weights_sha256"][: len(found.weights)]
    except FedGraphError as error:
        return False, f"FAILED   {found.place}: {found.name}: {error}"
    if weights == found.weights:
        return True, f"same     {weights}  {found.place}: {found.name}"
    words = f"{weights}, not {found.weights}"
    return False, f"DIFFERS  {words}  {found.place}: {found.name}"


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.replay",
        description="Run documented runs again and compare the hashes of weights.",
    )
    parser.add_argument("--all", action="store_true", help="also what takes minutes")
    parser.add_argument("--only", default="", metavar="TEXT", help="in the run's name")
    parser.add_argument(
        "--docs", type=Path, default=project_root() / "docs", help="folder of pages"
    )
    options = parser.parse_args(argv)
    logging.disable(logging.INFO)
    found = [r for r in find_runs(options.docs) if options.only in r.name]
    if not options.all:
        found = quick(found)
    outcomes = []
    for one in found:
        agrees, line = compare(one)
        outcomes.append(agrees)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    sys.stdout.write(f"{sum(outcomes)} of {len(outcomes)} runs gave the same bytes\n")
    if not all(outcomes):
        sys.stdout.write(
            "Another kind of processor gives other bytes. To know whether the code"
            " does, run a row at its own commit on this machine.\n"
        )
    if not outcomes:
        return 2
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
