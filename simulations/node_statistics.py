"""``fedgraph show node-statistics``: clients' parts of one graph.

For each number of clients it prints means over clients of nodes, directed edges and
clustering coefficient, and the heterogeneity of labels, beside Tables 3 to 5 of the
FedGKD paper.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray

from datasets import find_dataset, load_partition
from datasets.public.node_graphs import load_node_graph
from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphSet
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.resolve import defaults, resolve

from .graph_measures import adjacency, clustering, divergences
from .markup import Report, consoles, print_terminal
from .run import numbers

TARGETS = Path(__file__).with_name("targets_nodes.toml")


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


def _report(
    dataset: str,
    counts: Sequence[int],
    partition: str,
    *,
    split_seed: int,
    with_clients: bool,
) -> Report:
    """Make the table of a data set, with rows for each number of clients.

    Raises
    ------
    ConfigError
        The data set is no graph whose nodes are classified.
    """
    info = find_dataset(dataset)
    if info.kind != "nodes":
        raise ConfigError(
            f"dataset {dataset!r} has no graph whose nodes are classified; name"
            " one that has, e.g. Cora"
        )
    if partition == "auto":
        partition = str(info.automatic["partition"])
    rows = []

    def add(name: str, numbers: Sequence[Any]) -> None:
        formats = ("{:.0f}", "{:.1f}", "{:.3f}", "{:.3f}")
        cells = [f.format(x) for f, x in zip(formats, numbers, strict=False)]
        rows.append([name, *cells, *[""] * (len(formats) - len(cells))])

    if info.automatic["partition"] != "planted":
        add("whole graph", measure(load_node_graph(dataset, "raw"))[:3])
        add("  paper, table 3", tomllib.loads(TARGETS.read_text())["whole"][dataset])
    for num_clients in counts:
        config: dict[str, Value] = {
            "method": "fedavg",
            "dataset": dataset,
            "partition": partition,
        }
        config |= {"num-clients": num_clients, "split-seed": split_seed}
        found = client_statistics(resolve({**defaults(), **config}).settings)
        add(f"{num_clients} (mean)", means(found))
        if paper := printed(dataset, partition, num_clients):
            add(f"  paper, table {4 if partition == 'metis' else 5}", paper)
        for client, one in enumerate(found if with_clients else []):
            rest = sum(s.label_counts for s in found) - one.label_counts
            apart = heterogeneity([one.label_counts, rest])
            add(f"  client {client}", (*one[:3], apart))
    headings = ["clients", "nodes", "edges", "clustering", "heterogeneity"]
    found = pd.DataFrame(rows, columns=headings)
    return Report(title=f"{dataset}, partition {partition}", parts=[found])


def node_statistics(
    names: Annotated[
        list[str], typer.Argument(metavar="DATASET...", help="E.g. Cora CiteSeer.")
    ],
    *,
    clients: Annotated[str, typer.Option(help="Numbers of clients.")] = "5,10,20",
    partition: Annotated[
        str, typer.Option(help="metis (default), metis-overlap, ...")
    ] = "auto",
    split_seed: int = 1234,
    each: Annotated[
        bool,
        typer.Option(
            "--each",
            help="A row per client; its heterogeneity is against all others together.",
        ),
    ] = False,
) -> int:
    """Measure clients of one graph, beside the tables of the paper."""
    counts = numbers("--clients", clients)
    for name in names:
        found = _report(
            name, counts, partition, split_seed=split_seed, with_clients=each
        )
        print_terminal(found, consoles()[0])
    return 0
