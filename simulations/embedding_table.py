"""Tables of graph embedding: ``python -m simulations.embedding_table DIR [DIR ...]``.

One group of tables per data set and split, rows named as in the FCLG paper, its figures
beside ours, controls without learning, and claims with intervals. What is not used is
listed on stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgraph_flwr.embedding_scores import TRANSFORMS
from fedgraph_flwr.errors import FedGraphError

from .embedding_controls import trivial_rows
from .embedding_figures import draw_embedding_figures
from .embedding_rows import group_embeddings
from .embedding_runs import EmbeddingRun, find_embeddings
from .embedding_words import Report, make_report
from .markup import consoles, pipe_table, tell_unused


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code (2: nothing to show, or refused)."""
    options = _parser().parse_args(arguments)
    out, err = consoles()
    try:
        found = find_embeddings(options.results)
        groups = group_embeddings(found)
        tell_unused(found.left_out, err)
        transform = options.transform or common_transform(found.runs)
        for group in groups:
            controls, why_not = trivial_rows(
                group, data_dir=options.data_dir, probe=options.control_probes
            )
            report = make_report(group, transform, controls, why_not)
            if options.markdown:
                text = markdown(report)
                out.print(text, soft_wrap=True, markup=False, highlight=False)
            else:
                print_terminal(report, out)
        if options.figures is not None:
            drawn = draw_embedding_figures(groups, options.figures, transform=transform)
            for path in drawn:
                err.print(f"drawn: {path}", markup=False, soft_wrap=True)
    except FedGraphError as error:
        err.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        return 2
    return 0


def common_transform(runs: Sequence[EmbeddingRun]) -> str:
    """Headline transform of the runs.

    Raises
    ------
    FedGraphError
        The runs differ in it.
    """
    by_name: dict[str, list[str]] = {}
    for r in runs:
        name = str(r.run.settings["embedding.transform"])
        by_name.setdefault(name, []).append(r.run.path.name)
    if len(by_name) > 1:
        words = "; ".join(f"{t}: {', '.join(n)}" for t, n in sorted(by_name.items()))
        raise FedGraphError(
            f"runs differ in embedding.transform ({words}); choose the headline with"
            " --transform, every run has all of them"
        )
    return next(iter(by_name))


def markdown(report: Report) -> str:
    """Write GitHub tables for docs/."""
    lines = [f"### {report.title}", ""]
    for sheet in report.sheets:
        lines += [
            f"#### {sheet.title}",
            "",
            *pipe_table(sheet.headings, sheet.is_text, sheet.cells),
            "",
            sheet.caption,
            "",
        ]
    for note in report.notes:
        lines += [f"Note: {note}", ""]
    return "\n".join(lines)


def print_terminal(report: Report, console: Console) -> None:
    """Print the tables one below the other."""
    for sheet in report.sheets:
        table = Table(title=escape(sheet.title), title_justify="left", box=SIMPLE_HEAD)
        for heading, is_text in zip(sheet.headings, sheet.is_text, strict=True):
            table.add_column(
                escape(heading),
                justify="left" if is_text else "right",
                overflow="fold",
            )
        for cells in sheet.cells:
            table.add_row(*map(escape, cells))
        console.print(table)
        console.print(escape(sheet.caption), style="italic", highlight=False)
    for note in report.notes:
        console.print(escape(f"Note: {note}"), style="yellow", highlight=False)
    console.print()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.embedding_table",
        description="Tables of unsupervised graph embedding, paired by seed.",
    )
    parser.add_argument(
        "results",
        metavar="RESULTS",
        nargs="+",
        type=Path,
        help="a run's folder, or any folder above runs",
    )
    parser.add_argument(
        "--transform",
        choices=TRANSFORMS,
        help="what the headline is computed on (default: that of the runs)",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print GitHub tables for docs/"
    )
    parser.add_argument(
        "--figures", type=Path, metavar="DIR", help="draw figures into this folder"
    )
    parser.add_argument(
        "--data-dir",
        default="",
        metavar="DIR",
        help="TU data for the control rows (default: FEDGRAPH_DATA, else the runs')",
    )
    parser.add_argument(
        "--control-probes",
        action="store_true",
        help="also train probes on the trivial features (minutes on NCI1)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
