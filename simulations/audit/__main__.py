"""Attack the privacy of edges: ``python -m simulations.audit``.

A client trains on real molecules, with one bond present or not (see
:mod:`simulations.audit.game`); attackers guess which from what they see:

``view``: the noisy values of the pair itself. More than anyone gets who is not the
client: the best there is, and a check of the audit.
``upload``: the client's update, with all but the edge and the noise known. The global
model after the round is computed from uploads and tells no more.
``metrics``: the numbers that the client publishes.

A guess is worth its advantage: how much oftener "edge" is said where it is there. For
any epsilon-private mechanism it is at most tanh(epsilon / 2), epsilon being what the
client's ledger says. From the rates at the best threshold follows an epsilon that the
mechanism at least has; above the ledger's it proves the ledger wrong. That is what the
exit code 1 says; 2: refused.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from fedgraph_flwr.command import command
from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.files import write_text
from fedgraph_flwr.results.provenance import git_commit

from ..markup import consoles, count_table
from ..run import add_settings
from ..speed.timing import end_with_parent
from .attacks import most_showable
from .pool import known_game, play_all
from .rows import ATTACKS, Row, attack, settings_of

LEVEL = 0.05  # of all lower bounds of a table together


def audit(options: argparse.Namespace) -> tuple[list[Row], float]:
    """Attack every setting asked for; rows, and the level of each lower bound."""
    common = {"dataset": options.dataset, "features": options.features}
    common |= dict(options.set)
    plan = settings_of(options.method, options.epsilons, common)
    level = LEVEL / (len(plan) * len(ATTACKS))
    rows = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        options.processes, mp_context=context, initializer=end_with_parent
    ) as pool:
        for name, epsilon, overrides in plan:
            setting = (tuple(overrides.items()), options.graphs, options.client)
            privacy = known_game(*setting).resolved.privacy  # refused before any trial
            row = attack(
                partial(play_all, pool, setting),
                name=name,
                view_epsilon=epsilon,
                is_rounded=privacy.edge_post == "round",
                num_own=options.own,
                num_victims=options.victims,
                level=level,
            )
            rows.append(row)
    return rows, level


HEADINGS = (
    *("run", "epsilon of a view", "in the ledger", "bound", "best possible"),
    "less noise that would be seen",
)


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a GitHub table."""
    headings = [*HEADINGS, *(f"{a}{w}" for a in ATTACKS for w in ("", ": epsilon >="))]
    return count_table(headings, map(_cells, rows))


def _cells(row: Row) -> list[str]:
    cells = [row.name, f"{row.view_epsilon:g}" if row.view_epsilon else "none"]
    cells += [f"{row.claimed:g}", f"{row.bound:.4f}", f"{row.possible:.4f}"]
    cells.append(seen_in_words(row) if row.view_epsilon else "")
    for what in ATTACKS:
        v = row.verdicts.get(what)
        if v is None:
            cells += ["", ""]
        else:
            mark = " **!**" if v.epsilon > row.claimed else ""
            advantage = f"{v.advantage:.3f} [{v.low:.3f}, {v.high:.3f}]"
            cells += [advantage, f"{v.epsilon:.2f}{mark}"]
    return cells


def seen_in_words(row: Row) -> str:
    """Say how much less noise this row would have shown."""
    return f"1/{row.seen} of it" if row.seen else "none"


def _content(row: Row) -> dict[str, Any]:
    """Figures of a row for JSON, which knows no infinity."""
    claimed = row.claimed if row.view_epsilon else None
    return {**asdict(row), "claimed": claimed, "is_broken": row.is_broken}


def _notes(options: argparse.Namespace, level: float) -> list[str]:
    most = most_showable(options.victims, level)
    return [
        f"{options.victims} trials per world, {options.own} more per world to learn"
        ' from. In brackets 95 % intervals; each "epsilon >=" is wrong with'
        f" probability {level:.4f} at most, all together with {LEVEL:g}. More than"
        f" {most:.2f} cannot be shown with so many trials: a row whose ledger says as"
        " much cannot be flagged, whatever its noise. Less noise that would be seen: in"
        " 4 of 5 simulated audits of this size, by the view."
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.audit",
        description="Attack the privacy of edges of one client.",
    )
    parser.add_argument("--dataset", default="BACE")
    parser.add_argument("--method", default="fgcl")
    parser.add_argument("--features", default="atoms-no-degree")
    parser.add_argument("--client", type=int, default=0, help="whose graphs")
    parser.add_argument(
        "--epsilons", type=float, nargs="+", default=[0.1, 1.0, 10.0],
        help="of each view (default 0.1 1 10)",
    )  # fmt: skip
    parser.add_argument("--graphs", type=int, default=2, help="for training")
    parser.add_argument("--own", type=int, default=600, help="attacker's trials")
    parser.add_argument("--victims", type=int, default=800, help="client's trials")
    parser.add_argument("--processes", type=int, default=2)
    add_settings(parser)
    parser.add_argument("--markdown", type=Path, help="file for the table")
    parser.add_argument("--json", type=Path, help="file for all figures")
    return parser


@command
def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    given = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(given)
    out, err = consoles()
    if min(options.own, options.victims) < 20 or options.processes < 1:
        raise ConfigError("--own and --victims must be >= 20, --processes >= 1")
    rows, level = audit(options)
    lines = [*table(rows), "", *_notes(options, level)]
    text = "\n".join(lines)
    out.out(text)
    command = shlex.join(["python", "-m", "simulations.audit", *given])
    if options.markdown:
        head = f"`{command}`, commit {git_commit()}:"
        write_text(options.markdown, f"{head}\n\n{text}\n")
    if options.json:
        content = {
            "command": command,
            "commit": git_commit(),
            "level": level,
            "rows": [_content(row) for row in rows],
        }
        write_text(options.json, json.dumps(content, indent=1) + "\n")
    for row in rows:
        if row.is_broken:
            what = f"{row.name}, epsilon of a view {row.view_epsilon:g}"
            err.print(f"[red]more is lost than the ledger says[/red]: {escape(what)}")
    return 1 if any(row.is_broken for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
