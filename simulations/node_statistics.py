"""Print clients' parts: ``python -m simulations.node_statistics Cora --clients 5,10``.

For each number of clients it prints means over clients of nodes, directed edges and
clustering coefficient, and the heterogeneity of labels, beside Tables 3 to 5 of the
FedGKD paper. ``--each`` adds a row per client. Exit code 2: data cannot be loaded.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import sparse

from datasets import find_dataset, load_partition
from datasets.node_graphs import load_node_graph
from fedgraph_flwr.command import command
from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.data import GraphSet
from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.resolve import defaults, resolve

from .heterogeneity.walks import divergences

TARGETS = Path(__file__).with_name("targets_nodes.toml")
_COLUMNS = ("nodes", "edges", "clustering", "heterogeneity")
console = Console(highlight=False)


@dataclass(frozen=True)
class ClientStatistics:
    """Statistics of one client's graph; ``label_counts`` by class."""

    num_nodes: int
    num_edges: int
    clustering: float
    label_counts: NDArray[np.int64]


def measure(graph: GraphSet) -> ClientStatistics:
    """Measure one graph whose nodes are classified."""
    return ClientStatistics(
        num_nodes=graph.num_nodes,
        num_edges=graph.edge_index.shape[1],
        clustering=average_clustering(graph),
        label_counts=np.bincount(graph.y, minlength=graph.num_classes),
    )


def average_clustering(graph: GraphSet) -> float:
    """Mean over nodes of the share of pairs of neighbours that are joined.

    0 for nodes with fewer than two neighbours, as in networkx.
    """
    num_nodes = graph.num_nodes
    ones = np.ones(graph.edge_index.shape[1])
    shape = (num_nodes, num_nodes)
    return clustering(sparse.csr_array((ones, tuple(graph.edge_index)), shape=shape))


def clustering(adjacency: sparse.csr_array) -> float:
    """As :func:`average_clustering`, of a symmetric matrix of 0 and 1."""
    closed = (adjacency @ adjacency).multiply(adjacency).sum(axis=1)  # twice triangles
    degree = adjacency.sum(axis=1)
    pairs = degree * (degree - 1)
    return float(np.divide(closed, pairs, where=pairs > 0, out=0 * pairs).mean())


def heterogeneity(label_counts: Sequence[NDArray[np.int64]]) -> float:
    """Median over pairs of clients of the Jensen-Shannon divergence, natural log.

    NaN without a pair of clients that have nodes. The paper says neither which pairs
    nor which logarithm it uses; our numbers differ from its numbers.
    """
    shares = np.array(
        [counts / counts.sum() for counts in label_counts if counts.any()]
    )
    if len(shares) < 2:
        return float("nan")
    pairs = np.triu_indices(len(shares), 1)
    return float(np.median(divergences(shares, shares)[pairs]) * np.log(2))


def client_statistics(settings: RunSettings) -> list[ClientStatistics]:
    """Measure every client of a run."""
    clients = range(settings.num_clients)
    return [measure(load_partition(settings, c).graphs) for c in clients]


def means(found: Sequence[ClientStatistics]) -> tuple[float, float, float, float]:
    """Mean nodes, edges and clustering over clients, and their heterogeneity."""
    return (
        float(np.mean([s.num_nodes for s in found])),
        float(np.mean([s.num_edges for s in found])),
        float(np.mean([s.clustering for s in found])),
        heterogeneity([s.label_counts for s in found]),
    )


def printed(dataset: str, partition: str, num_clients: int) -> list[float] | None:
    """Find the paper's numbers for such clients; None if there are none."""
    content: dict[str, Any] = tomllib.loads(TARGETS.read_text())
    table = content["metis" if partition == "metis" else "overlap"]
    if partition == "louvain":
        return None
    found: list[float] | None = table.get(dataset, {}).get(str(num_clients))
    return found


def _settings(dataset: str, partition: str, num_clients: int, seed: int) -> RunSettings:
    config = {
        "method": "fedavg",
        "dataset": dataset,
        "partition": partition,
        "num-clients": num_clients,
        "split-seed": seed,
    }
    return resolve({**defaults(), **config}).settings


def _row(name: str, numbers: Sequence[float]) -> list[str]:
    formats = ("{:.0f}", "{:.1f}", "{:.3f}", "{:.3f}")
    return [name, *(f.format(x) for f, x in zip(formats, numbers, strict=False))]


def _report(dataset: str, arguments: argparse.Namespace) -> Table:
    table = Table(title=f"{dataset}, partition {arguments.partition}")
    for column in ("clients", *_COLUMNS):
        table.add_column(column)
    if find_dataset(dataset).automatic["partition"] != "planted":
        whole = measure(load_node_graph(dataset, "raw"))
        numbers = whole.num_nodes, whole.num_edges, whole.clustering
        table.add_row(*_row("whole graph", numbers))
        paper = tomllib.loads(TARGETS.read_text())["whole"][dataset]
        table.add_row(*_row("  paper, table 3", paper))
    for num_clients in arguments.clients:
        settings = _settings(
            dataset, arguments.partition, num_clients, arguments.split_seed
        )
        found = client_statistics(settings)
        table.add_row(*_row(f"{num_clients} (mean)", means(found)))
        if paper := printed(dataset, arguments.partition, num_clients):
            which = 4 if arguments.partition == "metis" else 5
            table.add_row(*_row(f"  paper, table {which}", paper))
        for client, one in enumerate(found if arguments.each else []):
            numbers = one.num_nodes, one.num_edges, one.clustering
            rest = sum(s.label_counts for s in found) - one.label_counts
            apart = heterogeneity([one.label_counts, rest])
            table.add_row(*_row(f"  client {client}", (*numbers, apart)))
    return table


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]  # argparse words the error


@command
def main(argv: list[str] | None = None) -> int:
    """Run the command line; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.node_statistics",
        description="Statistics of clients of graphs whose nodes are classified.",
    )
    parser.add_argument("datasets", nargs="+", help="names, e.g. Cora CiteSeer")
    parser.add_argument("--clients", type=_numbers, default=[5, 10, 20])
    parser.add_argument(
        "--partition", default="auto", help="metis (default), metis-overlap, ..."
    )
    parser.add_argument("--split-seed", type=int, default=1234)
    parser.add_argument(
        "--each", action="store_true",
        help="a row per client; its heterogeneity is against all others together",
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    for dataset in arguments.datasets:
        info = find_dataset(dataset)
        if info.kind != "nodes":
            raise ConfigError(
                f"dataset {dataset!r} has no graph whose nodes are classified; name"
                " one that has, e.g. Cora"
            )
        given = argparse.Namespace(**vars(arguments))
        if given.partition == "auto":
            given.partition = info.automatic["partition"]
        console.print(_report(dataset, given))
    return 0


if __name__ == "__main__":
    sys.exit(main())
