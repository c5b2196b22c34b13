"""``fedgraph show relatedness``: whether a run's relatedness follows labels.

The command prints Spearman's rank correlation between two numbers for each pair of
clients: their entry in the stored matrix, and the similarity of their shares of classes
(1 - Jensen-Shannon distance). Only the summary of a simulated run has class counts; the
method itself never sees them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from scipy.stats import spearmanr

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.results.reader import blaming, read_matrices, read_summary

from .graph_measures import divergences
from .markup import Report, consoles, print_terminal


def label_similarity(class_counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 - Jensen-Shannon distance (base 2) of class shares, shape (n, n), in [0, 1].

    ``class_counts`` has shape (n, num_classes), without an empty row.
    """
    counts = np.asarray(class_counts, np.float64)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return 1 - np.sqrt(divergences(shares, shares))


def rank_correlation(matrix: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Spearman's rho over pairs of different clients; NaN if one matrix is constant.

    The pairs are i < j of the symmetric parts, without pairs of an absent client.
    """
    at = np.triu_indices(len(matrix), 1)
    ours, theirs = ((m + m.T)[at] for m in (matrix, other))
    is_known = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = ours[is_known], theirs[is_known]
    if len(ours) < 2 or np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return float("nan")
    return float(spearmanr(ours, theirs).statistic)


def analyse(run_dir: Path, name: str = "R") -> dict[int, tuple[float, float]]:
    """Map rounds to (Spearman's rho, standard deviation off the diagonal).

    Raises
    ------
    DataError
        The run stored no such matrix, or its summary has no class counts.
    """
    matrices = read_matrices(run_dir, name)
    counts = read_summary(run_dir).get("class_counts")
    if not matrices or not counts:
        missing = "class counts" if matrices else f"matrix {name!r}"
        raise DataError(
            f"{run_dir} has no {missing}; give the results folder of a finished,"
            " simulated run of a method that relates clients"
        )
    labels = label_similarity(np.array(counts))
    off = ~np.eye(len(labels), dtype=bool)
    return {
        t: (rank_correlation(m, labels), float(np.nanstd(m[off])))
        for t, m in matrices.items()
    }


def relatedness(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...")],
    *,
    matrix: Annotated[str, typer.Option(click_type=click.Choice("RSq"))] = "R",
) -> int:
    """Compare a run's relatedness with the likeness of class shares; some rounds."""
    rows = []
    for run in runs:
        with blaming(run):
            found = analyse(run, matrix)
        rounds = sorted(found)
        for t in sorted({rounds[0], rounds[len(rounds) // 2], rounds[-1]}):
            rho, std = found[t]
            rows.append([run.name, t, f"{rho:+.3f}", f"{std:.2e}"])
    headings = ["run", "round", "Spearman", "std off the diagonal"]
    title = f"{matrix} against the similarity of class shares"
    report = Report(title=title, parts=[pd.DataFrame(rows, columns=headings)])
    print_terminal(report, consoles()[0])
    return 0
