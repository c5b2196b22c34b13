"""How much graphs differ, within and between data sets, clients and clusters.

``python -m simulations.heterogeneity COX2 ENZYMES`` compares data sets, ``--set
dataset=PROTEINS --set num-clients=10`` the clients of a run config, ``--run FOLDER``
the clusters that a run found. It is the analysis of Xie et al. 2021 (arXiv:2106.13423),
tables 1 and 2 and figure 3; docs/heterogeneity.md explains the numbers. Exits with 2 if
something cannot be loaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from datasets import load_partition
from fedgraph_flwr.command import command
from fedgraph_flwr.data import GraphSet, IntArray
from fedgraph_flwr.errors import ConfigError, DataError
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import blaming, read_config, read_partitions
from fedgraph_flwr.rules import Value
from fedgraph_flwr.seeding import numpy_rng

from ..markup import consoles, print_terminal
from ..run import add_settings
from .groups import chance_p, overall, pair_table
from .output import Analysis, Measure, Part, sheets, write
from .random_graphs import Comparison, compare
from .walks import (
    divergences,
    feature_distributions,
    walk_distributions,
)

MAX_WALK_LENGTH = 7  # 4140 anonymous walks
_MAX_GRAPHS = 5000  # differences of all pairs are held at once


@dataclass(frozen=True)
class Group:
    """Graphs that are compared together: a sample of a data set or of a client."""

    name: str
    graphs: GraphSet
    num_graphs: int


def load_groups(options: argparse.Namespace) -> list[Group]:
    """Load the groups that the command line asks for, and draw graphs of each.

    Raises
    ------
    FedGraphError
        Contradicting options, an unknown data set or run, unreadable data, or a graph
        without nodes.
    """
    config: dict[str, Value] = {**defaults(), "method": "fedavg"}
    given = dict(options.set)
    if options.datasets and (fixed := {"dataset", "num-clients"} & set(given)):
        raise ConfigError(
            f"--set {min(fixed)} names clients, but data sets {options.datasets} are"
            " given, each as a whole; leave out the one or the other"
        )
    if options.datasets and options.run:
        raise ConfigError("give either names of data sets or --run, not both")
    if options.run:
        config |= read_config(options.run)
        config |= {"resume": ""} if "resume" in config else {}
    elif not options.datasets and not given:
        raise ConfigError(
            "nothing to compare; give names of data sets, e.g. COX2 ENZYMES, or a"
            " federation, e.g. --set dataset=PROTEINS --set num-clients=10, or --run"
        )
    config |= given
    if not options.datasets:
        return _clients(config, options)
    groups = []
    for name in dict.fromkeys(options.datasets):
        alone = {**config, "dataset": name, "num-clients": 1}
        groups += _clients(alone, options, name)
    return groups


def _clients(
    config: Mapping[str, Value],
    options: argparse.Namespace,
    whole: str = "",
) -> list[Group]:
    settings = resolve(config).settings
    found = []
    for client in range(settings.num_clients):
        graphs = load_partition(settings, client).graphs
        name = whole or f"client {client}"
        if not whole and graphs.name != settings.dataset:
            name += f" {graphs.name}"
        if not np.diff(graphs.node_ptr).all():
            raise DataError(
                f"{name} has a graph without nodes, in which no walk can start; remove"
                " that graph"
            )
        rng = numpy_rng(options.seed, "heterogeneity", name, "graphs")
        ids = np.arange(len(graphs))
        if len(graphs) > options.graphs:
            ids = np.sort(rng.choice(len(graphs), options.graphs, replace=False))
        found.append(Group(name, graphs.take(ids), len(graphs)))
    return found


def analyse(
    groups: Sequence[Group],
    clusters: Sequence[Sequence[int]],
    options: argparse.Namespace,
) -> Analysis:
    """Compare graphs within and between groups, and with random graphs.

    Parameters
    ----------
    groups : sequence of Group
    clusters : sequence of sequence of int
        Numbers of groups, each at most once; empty if nothing is clustered.
    options : Namespace
        Of the command line: ``seed``, ``walk_length``, ``exact_up_to``, ``walks``,
        ``bins``, ``copies``, ``shuffles``.

    Raises
    ------
    ConfigError
        Too many graphs for all pairs.
    """
    sizes = [len(group.graphs) for group in groups]
    if sum(sizes) > _MAX_GRAPHS:
        raise ConfigError(
            f"{sum(sizes)} graphs of {len(groups)} groups are too many to compare all"
            f" pairs (at most {_MAX_GRAPHS}); set --graphs to"
            f" {_MAX_GRAPHS // len(groups)} or less"
        )
    walks, exact = [], []
    for group in groups:
        shares, is_exact = walk_distributions(
            group.graphs,
            length=options.walk_length,
            exact_up_to=options.exact_up_to,
            num_samples=options.walks,
            rng=numpy_rng(options.seed, "heterogeneity", group.name, "walks"),
        )
        walks.append(shares)
        exact.append(int(is_exact.sum()))
    taken = np.concatenate(walks)
    taken = taken[:, taken.any(axis=0)]
    cosines = np.concatenate(
        [feature_distributions(g.graphs, bins=options.bins) for g in groups]
    )
    apart = {
        "structure": np.sqrt(divergences(taken, taken)),
        "features": divergences(cosines, cosines),
    }
    group_of = np.repeat(np.arange(len(groups)), sizes)
    cluster_of = _cluster_of(group_of, clusters, len(groups))
    measures = {}
    for name, matrix in apart.items():
        rng = numpy_rng(options.seed, "heterogeneity", "shuffle", name)
        alike = cluster_of if clusters else group_of
        units = group_of if clusters else np.arange(len(group_of))
        kept = alike >= 0
        kept_matrix = matrix[np.ix_(kept, kept)]
        within, between = overall(kept_matrix, alike[kept])
        measures[name] = Measure(
            groups=pair_table(matrix, group_of),
            clusters=pair_table(kept_matrix, alike[kept]) if clusters else None,
            within=within,
            between=between,
            everyone=overall(kept_matrix, np.zeros(int(kept.sum()), np.int64))[0],
            p=chance_p(
                kept_matrix, alike[kept], units[kept],
                shuffles=options.shuffles, rng=rng,
            ),
        )  # fmt: skip
    return Analysis(
        parts=[
            Part(group.name, group.num_graphs, size, num_exact, _beside(group, options))
            for group, size, num_exact in zip(groups, sizes, exact, strict=True)
        ],
        clusters=[sorted(cluster) for cluster in clusters],
        measures=measures,
    )


def _beside(group: Group, options: argparse.Namespace) -> list[Comparison]:
    if not options.copies:
        return []
    rng = numpy_rng(options.seed, "heterogeneity", group.name, "random")
    return compare(group.graphs, copies=options.copies, rng=rng)


def _cluster_of(
    group_of: IntArray, clusters: Sequence[Sequence[int]], num_groups: int
) -> IntArray:
    """Cluster of each graph; -1 if its group is in no cluster."""
    of_group = np.full(num_groups, -1)
    for k, members in enumerate(clusters):
        of_group[list(members)] = k
    return of_group[group_of]


def find_clusters(folder: Path | None, num_groups: int) -> list[list[int]]:
    """Clusters after the last round of a run; empty without a run.

    Raises
    ------
    DataError
        The run has no clusters, or they name clients that it does not have.
    """
    if folder is None:
        return []
    with blaming(folder):
        rounds = read_partitions(folder)
        newest = rounds[max(rounds)] if rounds else []
        last = [sorted(map(int, members)) for members in newest if members]
    if not last:
        raise DataError(
            f"{folder} has no clusters.json with a round in it; give a run of a method"
            " that clusters clients, or its settings by --set"
        )
    named = [client for members in last for client in members]
    if sorted(set(named)) != sorted(named) or not set(named) <= set(range(num_groups)):
        raise DataError(
            f"clusters.json of {folder} names clients {sorted(named)}, allowed are"
            f" 0 to {num_groups - 1}, each once; give a folder that nobody edited"
        )
    return last


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; see the module."""
    options = _parser().parse_args(argv)
    out, _ = consoles()
    groups = load_groups(options)
    analysis = analyse(groups, find_clusters(options.run, len(groups)), options)
    print_terminal("Heterogeneity of graphs", sheets(analysis), out)
    if options.out:
        for path in write(analysis, options.out):
            out.out(path)
    return 0


def _count(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be in {low}..{high}, got {value}")
        return value

    read.__name__ = "int"  # argparse words the error
    return read


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.heterogeneity",
        description="How much graphs differ within and between data sets, clients and"
        " clusters. Data of all clients are read on this machine.",
    )
    add = parser.add_argument
    add("datasets", nargs="*", metavar="DATASET", help="compared as wholes: COX2 NCI1")
    add_settings(parser)
    add("--run", type=Path, metavar="FOLDER", help="results folder: compare clusters")
    add("--graphs", type=_count(1, _MAX_GRAPHS), default=100, help="drawn per group")
    add("--walk-length", type=_count(1, MAX_WALK_LENGTH), default=5, help="steps")
    add(
        "--exact-up-to", type=_count(0, 2_000_000), default=200_000, metavar="WALKS",
        help="graphs with more walks get --walks drawn ones",
    )  # fmt: skip
    add("--walks", type=_count(1, 1_000_000), default=20_000, help="drawn per graph")
    add("--bins", type=_count(2, 1000), default=20, help="of cosines over [-1, 1]")
    add(
        "--copies", type=_count(0, 1000), default=5,
        help="random graphs beside each graph; 0 leaves the comparison out",
    )  # fmt: skip
    add("--shuffles", type=_count(1, 100_000), default=999, help="for significance")
    add("--seed", type=_count(0, 2**31 - 1), default=0, help="of everything drawn here")
    add("--out", type=Path, metavar="FOLDER", help="write tables and the figure here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
