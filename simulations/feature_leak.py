"""How far atom features reveal bonds: ``python -m simulations.feature_leak BACE``.

Noise on edges does not cover features. For each set of features that private runs
allow, the number of neighbours of every atom is guessed as the most frequent one among
atoms with the same features, in sample: what one learns who knows such molecules.
Exits with 2 if something cannot be loaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from datasets.atoms import FEATURES
from datasets.moleculenet import RAW, load_moleculenet
from fedgraph_flwr.command import command
from fedgraph_flwr.data import GraphSet, IntArray
from fedgraph_flwr.privacy import TELLS_EDGES

from .markup import consoles, pipe_table


def guess_degrees(kinds: IntArray, degree: IntArray) -> IntArray:
    """Most frequent degree of each node's kind; in a tie, the smallest.

    Parameters
    ----------
    kinds : int array, shape (num_nodes,)
        From 0, equal for nodes with equal features.
    degree : int array, shape (num_nodes,)

    Returns
    -------
    int array, shape (num_nodes,)
    """
    counts = np.zeros((int(kinds.max()) + 1, int(degree.max()) + 1), np.int64)
    np.add.at(counts, (kinds, degree), 1)
    commonest: IntArray = counts.argmax(1)
    return commonest[kinds]


def guessed(graphs: GraphSet) -> tuple[float, float]:
    """Share of nodes that are guessed right, and of graphs with all nodes right."""
    kinds = np.unique(graphs.x, axis=0, return_inverse=True)[1].reshape(-1)
    degree = graphs.degrees()
    is_right = guess_degrees(kinds, degree) == degree
    whole = np.logical_and.reduceat(is_right, graphs.node_ptr[:-1])
    return float(is_right.mean()), float(whole.mean())


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    options = _parser().parse_args(arguments)
    out, _ = consoles()
    lines = []
    for name in options.datasets:
        molecules = load_moleculenet(name, data_dir=options.data_dir)
        everyone = np.arange(len(molecules))
        for features in (f for f in FEATURES if f not in TELLS_EDGES):
            nodes, graphs = guessed(molecules.take(everyone, features))
            lines.append([name, features, f"{nodes:.1%}", f"{graphs:.1%}"])
    headings = ["data", "features", "atoms", "whole molecules"]
    table = pipe_table(headings, [True, True, False, False], lines)
    out.out("\n".join(table))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.feature_leak",
        description="How often features tell an atom's number of neighbours.",
    )
    parser.add_argument(
        "datasets", metavar="NAME", nargs="+", choices=sorted(RAW), help="MoleculeNet"
    )
    parser.add_argument("--data-dir", default="", help="raw files, else FEDGRAPH_DATA")
    return parser


if __name__ == "__main__":
    sys.exit(main())
