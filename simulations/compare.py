"""Put runs side by side: ``python -m simulations.compare DIR [DIR ...]``.

One table per data set and split, runs paired by seed, the paper's figures beside ours.
Nothing is left out without a word: failed and repeated runs are listed on stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.figures.gain import draw_gain

from .compare_runs import Group, find_runs, group_runs
from .compare_stats import RULES, baseline
from .compare_tables import make_report, markdown, print_terminal
from .markup import consoles, tell_unused


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code (2: nothing to compare, or refused)."""
    options = _parser().parse_args(arguments)
    out, err = consoles()
    try:
        found = find_runs(options.folders)
        tell_unused(found.left_out, err)
        if not found.runs:
            raise FedGraphError(
                f"none of the {len(found.left_out)} runs found was completed; there is"
                " nothing to compare"
            )
        groups = group_runs(found.runs, apart=options.apart)
        for group in groups:
            report = make_report(group, options.rule or group.headline)
            if options.markdown:
                out.print(
                    markdown(report), soft_wrap=True, markup=False, highlight=False
                )
            else:
                print_terminal(report, out)
        if options.figure is not None:
            for path in draw_gains(groups, options.figure, rule=options.rule):
                err.print(f"drawn: {path}", markup=False, soft_wrap=True)
    except FedGraphError as error:
        err.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        return 2
    return 0


def draw_gains(groups: Sequence[Group], out: Path, *, rule: str | None) -> list[Path]:
    """Draw each group's gain over self-train, one panel per row of its table.

    ``rule`` None is the headline of each group's task.

    Returns
    -------
    list of Path
        ``out`` for a single group; otherwise one file for each, named after it.

    Raises
    ------
    FedGraphError
        No group has self-train and another method on a common seed.
    """
    drawn = []
    for group in groups:
        name = out
        if len(groups) > 1:
            split = group.split[0][:6] + (group.data and f"-{group.data[:6]}")
            dataset = group.dataset.replace(":", "-")
            name = out.with_name(f"{out.stem}-{dataset}-{split}{out.suffix}")
        local = baseline(group, "local")
        pairs = [
            (label, run.path)
            for label, runs in group.rows.items()
            if label != local
            for run in runs
        ]
        self_trained = [run.path for run in group.rows[local]] if local else []
        path = draw_gain(
            [p for _, p in pairs],
            self_trained,
            name,
            rule=rule or group.headline,
            labels=[label for label, _ in pairs],
        )
        drawn += [path] if path else []
    if not drawn:
        raise FedGraphError(
            f"{out} was not drawn: no method shares a seed with a self-train run"
            " (method local); add its results folder"
        )
    return drawn


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.compare",
        description="Compare runs: one table per data set, paired by seed.",
    )
    parser.add_argument(
        "folders",
        metavar="DIR",
        nargs="+",
        type=Path,
        help="a run's folder, or any folder above runs",
    )
    parser.add_argument(
        "--rule",
        choices=RULES,
        help="round at which gains and differences are read (default: the headline of"
        " the task, best_val for nodes and final for others)",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print GitHub tables for docs/"
    )
    parser.add_argument(
        "--figure",
        type=Path,
        metavar="PNG",
        help="draw the gain over self-train per client",
    )
    parser.add_argument(
        "--apart",
        action="store_true",
        help="one table per split where runs of a data set differ in it",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
