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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from datasets import find_dataset, load_partition
from datasets.public.node_graphs import load_node_graph
from fedgraph_flwr.core.command import command
from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphSet
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.resolve import defaults, resolve

from .graph_measures import adjacency, clustering, divergences

TARGETS = Path(__file__).with_name("targets_nodes.toml")
console = Console(highlight=False)


class ClientStatistics(NamedTuple):
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
        clustering=clustering(adjacency(graph.num_nodes, graph.edge_index)),
        label_counts=np.bincount(graph.y, minlength=graph.num_classes),
    )


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
    nodes, edges, coefficient = np.mean([s[:3] for s in found], axis=0).tolist()
    return nodes, edges, coefficient, heterogeneity([s.label_counts for s in found])


def printed(dataset: str, partition: str, num_clients: int) -> list[float] | None:
    """Find the paper's numbers for such clients; None if there are none."""
    tables: dict[str, Any] = tomllib.loads(TARGETS.read_text())
    tables["louvain"] = {}
    table = tables[partition if partition in ("metis", "louvain") else "overlap"]
    found: list[float] | None = table.get(dataset, {}).get(str(num_clients))
    return found


def _report(dataset: str, arguments: argparse.Namespace) -> Table:
    info = find_dataset(dataset)
    if info.kind != "nodes":
        raise ConfigError(
            f"dataset {dataset!r} has no graph whose nodes are classified; name"
            " one that has, e.g. Cora"
        )
    partition = arguments.partition
    if partition == "auto":
        partition = str(info.automatic["partition"])
    table = Table(title=f"{dataset}, partition {partition}")
    for column in ("clients", "nodes", "edges", "clustering", "heterogeneity"):
        table.add_column(column)

    def add(name: str, numbers: Sequence[Any]) -> None:
        formats = ("{:.0f}", "{:.1f}", "{:.3f}", "{:.3f}")
        cells = (f.format(x) for f, x in zip(formats, numbers, strict=False))
        table.add_row(name, *cells)

    if info.automatic["partition"] != "planted":
        add("whole graph", measure(load_node_graph(dataset, "raw"))[:3])
        add("  paper, table 3", tomllib.loads(TARGETS.read_text())["whole"][dataset])
    for num_clients in arguments.clients:
        config = {"method": "fedavg", "dataset": dataset, "partition": partition}
        config |= {"num-clients": num_clients, "split-seed": arguments.split_seed}
        found = client_statistics(resolve({**defaults(), **config}).settings)
        add(f"{num_clients} (mean)", means(found))
        if paper := printed(dataset, partition, num_clients):
            add(f"  paper, table {4 if partition == 'metis' else 5}", paper)
        for client, one in enumerate(found if arguments.each else []):
            rest = sum(s.label_counts for s in found) - one.label_counts
            apart = heterogeneity([one.label_counts, rest])
            add(f"  client {client}", (*one[:3], apart))
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
        console.print(_report(dataset, arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
