"""Kill runs at random and resume them: ``python -m simulations.drill --kills 100``.

Each trial kills a small run with -9 one to four times, resumes it as docs/failures.md
says and compares the end with the undisturbed run: weights, rows of ``rounds.csv``,
privacy spent. Exits with 0 if all are equal and nothing is lost, 1 if not, 2 if it
cannot be done.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedgraph_flwr.command import command
from fedgraph_flwr.errors import ConfigError

from ..markup import tally
from .flower import DeploymentEngine, RayEngine, ResidentEngine, WarmEngine
from .inline import InlineEngine
from .targets import Target, names, targets, with_failures
from .trials import (
    Engine,
    Reference,
    Trial,
    draw_moments,
    measure,
    run_trial,
)

_VERDICTS = ("equal", "unequal", "lost", "ledger")
_ALL_WELL, _FAILED = 0, 1
_MOST_WAVES = 5
_ENGINES: dict[str, type[InlineEngine | RayEngine | DeploymentEngine]] = {
    "inline": InlineEngine,
    "ray": RayEngine,
    "deployment": DeploymentEngine,
    "resident": ResidentEngine,
    "warm": WarmEngine,
}
console = Console(stderr=True, highlight=False)


def plan(
    kills: int, methods: Sequence[str], seed: int, *, most: int, first: int = 0
) -> Iterator[tuple[int, str, int, random.Random]]:
    """Share kills out: number of a trial, its target, its kills, its generator."""
    number = first
    while kills > 0:
        rng = random.Random(f"{seed}/{number}")
        count = min(kills, rng.randint(1, most))
        yield number, methods[number % len(methods)], count, rng
        kills -= count
        number += 1


def drill(
    engine: Engine,
    chosen: Sequence[Target],
    *,
    kills: int,
    seed: int,
    jobs: int,
    out: Path,
) -> Iterator[Trial]:
    """Yield every trial when it is done; the same seed draws the same moments."""
    of_name = {target.name: target for target in chosen}
    references: dict[str, Reference] = {}
    # The reference is measured in one process: all engines give the same bytes.
    quiet = engine if engine.name == "inline" else InlineEngine(out)

    def refer(name: str) -> None:
        """Measure a target undisturbed but for clients that fail, once."""
        if name in references:
            return
        found = measure(quiet, of_name[name], out / "undisturbed" / name)
        is_counted = engine is quiet  # files are, in a child of ours alone
        references[name] = replace(found, files=found.files * is_counted)

    kinds = itertools.cycle(engine.victims)

    def one(number: int, name: str, victims: list[str], rng: random.Random) -> Trial:
        moments = draw_moments(rng, references[name], victims)
        return run_trial(
            engine,
            of_name[name],
            references[name],
            moments,
            number=number,
            folder=out / f"trial-{number:04d}-{name}",
        )

    done = number = 0
    with ThreadPoolExecutor(jobs) as pool:
        # A kill that comes after the end of its run does not count.
        for _ in range(_MOST_WAVES):
            wave = list(
                plan(
                    kills - done,
                    list(of_name),
                    seed,
                    most=engine.most_kills,
                    first=number,
                )
            )
            for _, name, _, _ in wave:
                refer(name)
            waiting = [
                pool.submit(one, at, name, list(itertools.islice(kinds, count)), rng)
                for at, name, count, rng in wave
            ]
            number += len(wave)
            try:
                for future in waiting:
                    trial = future.result()
                    done += len(trial.kills)
                    yield trial
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def table(trials: Sequence[Trial]) -> str:
    """Count verdicts by method, as a Markdown table."""
    anew = "started anew"
    named = (
        (t.method, {"trials": 1, "kills": len(t.kills), t.verdict: 1, anew: t.anew})
        for t in trials
    )
    return tally("method", ["trials", "kills", *_VERDICTS, anew], named)


def table_of_victims(trials: Sequence[Trial]) -> str:
    """Count kills by method and kind of process, as a Markdown table."""
    killed = [(t.method, kill.split()[0]) for t in trials for kill in t.kills]
    kinds = sorted({kind for _, kind in killed})
    return tally("method", kinds, [(method, {kind: 1}) for method, kind in killed])


def write(trials: Sequence[Trial], out: Path) -> None:
    """Write ``trials.csv`` and ``trials.md``."""
    rows = [
        {**asdict(t), "verdict": t.verdict, "kills": "; ".join(t.kills)}
        | {"faults": "; ".join(t.faults)}
        for t in trials
    ]
    with (out / "trials.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["number"])
        writer.writeheader()
        writer.writerows(rows)
    (out / "trials.md").write_text(table(trials) + "\n" + table_of_victims(trials))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.drill",
        description="Kill small runs with -9, resume them, compare the end.",
    )
    parser.add_argument("--kills", type=int, default=24, help="in all (default 24)")
    parser.add_argument(
        "--methods", default="", help=f"of {','.join(names())} (default: all)"
    )
    parser.add_argument(
        "--engine", choices=list(_ENGINES), default="inline",
        help="inline: a process; ray: flwr run; deployment: SuperLink and SuperNodes;"
        " resident: SuperNodes with a worker; warm: SuperNodes of ours",
    )  # fmt: skip
    parser.add_argument(
        "--failing", type=float, default=0.0, metavar="SHARE",
        help="of rounds in which a client fails as well (engine inline, one job)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--jobs", type=int, default=1, help="trials side by side")
    parser.add_argument(
        "--out", type=Path, help="folder of what is made (default: a temporary one)"
    )
    return parser


@command
def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    arguments = _parser().parse_args(argv)
    out = (arguments.out or Path(tempfile.mkdtemp(prefix="drill-"))).absolute()
    engine, chosen = _prepare(arguments, out)
    trials: list[Trial] = []
    try:
        for trial in drill(
            engine,
            chosen,
            kills=arguments.kills,
            seed=arguments.seed,
            jobs=arguments.jobs,
            out=out,
        ):
            trials.append(trial)
            write(trials, out)
            console.print(_line(trial), soft_wrap=True)
    finally:
        engine.close()
    sys.stdout.write(table(trials) + "\n" + table_of_victims(trials))
    sys.stderr.write(f"trials: {out / 'trials.csv'}\n")
    return _ALL_WELL if all(t.verdict == "equal" for t in trials) else _FAILED


def _prepare(arguments: argparse.Namespace, out: Path) -> tuple[Engine, list[Target]]:
    """Check what is asked for; the engine and what it is to run.

    Raises
    ------
    FedGraphError
        It cannot be done.
    """
    if arguments.kills < 1 or arguments.jobs < 1:
        raise ConfigError("--kills and --jobs must be at least 1")
    if arguments.jobs > 1 and arguments.engine != "inline":
        raise ConfigError("--jobs needs --engine inline: Flower shares one machine")
    if not 0 <= arguments.failing <= 1:
        raise ConfigError("--failing must be a share, from 0 to 1")
    if arguments.failing and (arguments.engine, arguments.jobs) != ("inline", 1):
        raise ConfigError(
            "--failing needs --engine inline and --jobs 1: trials draw who fails"
            " one after the other"
        )
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"--out {str(out)!r} is not empty; give a new folder")
    out.mkdir(parents=True, exist_ok=True)
    wanted = arguments.methods.split(",") if arguments.methods else names()
    kind = _ENGINES[arguments.engine]
    chosen = targets(wanted, out, num_rounds=kind.num_rounds)
    if not arguments.failing:
        return kind(out), chosen
    chosen = [with_failures(t) for t in chosen if not t.never_goes_back]
    if not chosen:
        raise ConfigError(
            "--failing leaves out SpreadGNN, whose clients refuse to go back;"
            " give --methods others too"
        )
    rng = random.Random(f"{arguments.seed}/failures")
    return InlineEngine(out, failing=arguments.failing, rng=rng), chosen


def _line(trial: Trial) -> str:
    colour = "green" if trial.verdict == "equal" else "red"
    why = "; ".join(trial.faults) or (trial.says if trial.verdict == "lost" else "")
    return (
        f"trial {trial.number} {trial.method}: [{colour}]{trial.verdict}[/]"
        f" after {trial.attempts} attempts ({', '.join(trial.kills) or 'no kill'})"
        + (f": {escape(why)}" if why else "")
    )


if __name__ == "__main__":
    sys.exit(main())
