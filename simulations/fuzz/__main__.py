"""Give the application malformed input: ``python -m simulations.fuzz``.

Kinds: run configs, data files, checkpoints and state files, messages. Each case must be
refused with a reason, or fail one named client, or change nothing. Exits with 0 if all
do, 1 if not, 2 if refused.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from fedgraph_flwr.command import command
from fedgraph_flwr.errors import ConfigError, unknown_name

from ..markup import tally
from .cases import BAD, GOOD, LIMIT_S, MODULES, Case, Result, folder_of, run_case

_EVERY = 20  # cases: how often the tables are written
_ALL_WELL, _FAILED = 0, 1
console = Console(stderr=True, highlight=False)


def fuzz(
    kinds: Sequence[str],
    *,
    cases: int,
    seed: int,
    out: Path,
    limit_s: float = LIMIT_S,
    jobs: int = 1,
) -> Iterator[Result]:
    """Yield ``cases`` cases of these kinds in turn; keep the files of bad ones."""
    drawn = [
        Case(kind=kinds[i % len(kinds)], seed=seed, number=i // len(kinds))
        for i in range(cases)
    ]
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(lambda case: _tidied(case, out, limit_s), drawn)
        finally:
            pool.shutdown(cancel_futures=True)


def _tidied(case: Case, out: Path, limit_s: float) -> Result:
    """Run a case; if it is bad, keep its log and a file that replays it."""
    result = run_case(case, out, limit_s=limit_s)
    folder = folder_of(case, out)
    if result.is_bad:
        bad = out / "bad"
        bad.mkdir(parents=True, exist_ok=True)
        name = f"{result.outcome}-{result.kind}-{result.seed}-{result.number}"
        (bad / f"{name}.json").write_text(json.dumps(asdict(result), indent=2))
        if (log := folder / "work" / "log.txt").is_file():
            log.replace(bad / f"{name}.log")
    shutil.rmtree(folder, ignore_errors=True)
    return result


def read_case(path: Path) -> Case:
    """Read a case from a file that replays it.

    Raises
    ------
    ConfigError
        It is not such a file.
    """
    try:
        found = json.loads(path.read_text())
        case = Case(**{k: found[k] for k in ("kind", "seed", "number")})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--replay {str(path)!r} cannot be read: {error!r}; give a .json file of"
            " the folder bad/"
        ) from error
    _check_kinds([case.kind])
    return case


def _check_kinds(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in MODULES:
            cure = "Give --kind names of these, separated by commas."
            raise ConfigError(unknown_name("kind", kind, MODULES, cure))


def table(results: Sequence[Result]) -> str:
    """Count outcomes by kind, as a Markdown table."""
    outcomes = [o for o in (*GOOD, *BAD) if any(r.outcome == o for r in results)]
    numbers = [(r.kind, {"cases": 1, r.outcome: 1, "bad": r.is_bad}) for r in results]
    return tally("kind", ["cases", *outcomes, "bad"], numbers)


def write(results: Sequence[Result], out: Path) -> None:
    """Write ``cases.csv`` and ``cases.md``."""
    rows = [asdict(r) | {"bad": r.is_bad} for r in results]
    with (out / "cases.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["kind"])
        writer.writeheader()
        writer.writerows(
            {k: _printable(v) if isinstance(v, str) else v for k, v in row.items()}
            for row in rows
        )
    (out / "cases.md").write_text(table(results))


def _printable(text: str) -> str:
    return text.encode("unicode_escape").decode()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.fuzz",
        description="Malformed configs, files and messages: each must be refused.",
    )
    parser.add_argument("--cases", type=int, default=200, help="in all (default 200)")
    parser.add_argument(
        "--kind",
        default=",".join(MODULES),
        help=f"of {','.join(MODULES)} (default: all)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the cases")
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S,
        help=f"seconds after which a case hangs (default {LIMIT_S:g})",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, help="cases side by side")
    parser.add_argument(
        "--out", type=Path, help="folder of what is made (default: a temporary one)"
    )
    parser.add_argument("--replay", type=Path, help="a .json file of the folder bad/")
    return parser


@command
def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    arguments = _parser().parse_args(argv)
    out = (arguments.out or Path(tempfile.mkdtemp(prefix="fuzz-"))).absolute()
    kinds = arguments.kind.split(",")
    _check_kinds(kinds)
    if min(arguments.cases, arguments.jobs) < 1 or not arguments.limit_s > 0:
        raise ConfigError("--cases and --jobs must be at least 1, --limit-s > 0")
    replayed = read_case(arguments.replay) if arguments.replay else None
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"--out {str(out)!r} is not empty; give a new folder")
    out.mkdir(parents=True, exist_ok=True)
    if replayed is not None:
        results = [run_case(replayed, out, limit_s=arguments.limit_s)]
        console.print(_line(results[0]), soft_wrap=True)
    else:
        results = []
        for result in fuzz(
            kinds,
            cases=arguments.cases,
            seed=arguments.seed,
            out=out,
            limit_s=arguments.limit_s,
            jobs=arguments.jobs,
        ):
            results.append(result)
            if len(results) % _EVERY == 0:
                write(results, out)
            if result.is_bad:
                console.print(_line(result), soft_wrap=True)
    write(results, out)
    sys.stdout.write(table(results))
    sys.stderr.write(f"cases: {out / 'cases.csv'}\n")
    return _FAILED if any(r.is_bad for r in results) else _ALL_WELL


def _line(result: Result) -> str:
    colour = "red" if result.is_bad else "green"
    what, says = (escape(_printable(t)[:200]) for t in (result.what, result.says))
    return (
        f"{result.kind} {result.number}: [{colour}]{result.outcome}[/]: {what}: {says}"
    )


if __name__ == "__main__":
    sys.exit(main())
