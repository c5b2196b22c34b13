"""Which nodes of one graph go to which client.

Partitioners are functions of a graph, client count and seed. They return, for each
client, the ascending node numbers of its induced subgraph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from fedgraph_flwr.data import GraphSet, IntArray, pointer
from fedgraph_flwr.errors import ConfigError, DataError
from fedgraph_flwr.seeding import derive_seed, numpy_rng
from fedgraph_flwr.wording import name_clients

SAMPLES_PER_PART = 5  # clients that share one METIS part, FedGKD Sec. B.1


def metis(graph: GraphSet, num_clients: int, *, seed: int) -> list[IntArray]:  # noqa: ARG001
    """METIS k-way parts with few edges between them; they cover all nodes once.

    METIS keeps its own fixed seed, whatever the split seed: so did the paper, whose
    mean edge counts (Table 4) are then met to the digit on Cora and Photo with 10 and
    20 clients. The split seed still draws which nodes train and test.

    Source
    ------
    Karypis and Kumar 1998; FedGKD, Sec. B.1.
    """
    if num_clients == 1:  # METIS has nothing to cut
        return [np.arange(graph.num_nodes)]
    import pymetis  # here, as the server needs none

    degree = np.bincount(graph.edge_index[0], minlength=graph.num_nodes)
    adjacency = pymetis.CSRAdjacency(
        adj_starts=pointer(degree).astype(np.int32),
        adjacent=graph.edge_index[1].astype(np.int32),
    )
    _, owner = pymetis.part_graph(num_clients, adjacency=adjacency)
    return _of_each(np.asarray(owner), num_clients)


def metis_overlap(
    graph: GraphSet, num_clients: int, *, seed: int, replace: bool = False
) -> list[IntArray]:
    """Five samples of half the nodes of each of num_clients / 5 METIS parts.

    Clients 5p to 5p + 4 have parts of part p. A sample is floor(|part| / 2) draws: of
    different nodes, or with ``replace`` of nodes that may come again, which leaves 39 %
    of the part instead of 50 %. A node drawn twice is held once.

    Source
    ------
    FedGKD, Sec. B.1 (without replacement; the edge counts of Table 5 are those of
    draws with replacement, which its text does not say).
    """
    check_overlap(num_clients)
    clients: list[IntArray] = []
    for part in metis(graph, num_clients // SAMPLES_PER_PART, seed=seed):
        for _ in range(SAMPLES_PER_PART):
            rng = numpy_rng(seed, "partition", "metis-overlap", len(clients))
            drawn = rng.choice(part, size=len(part) // 2, replace=replace)
            clients.append(np.unique(drawn))
    return clients


def check_overlap(num_clients: int) -> None:
    """Raise ConfigError unless so many clients can share parts."""
    if num_clients % SAMPLES_PER_PART:
        raise ConfigError(
            f"num-clients must be a multiple of {SAMPLES_PER_PART} for overlapping"
            f" parts, got {num_clients}; set num-clients in the run config"
        )


def metis_overlap_replacement(
    graph: GraphSet, num_clients: int, *, seed: int
) -> list[IntArray]:
    """Draw samples as :func:`metis_overlap`, but with replacement."""
    return metis_overlap(graph, num_clients, seed=seed, replace=True)


def louvain(graph: GraphSet, num_clients: int, *, seed: int) -> list[IntArray]:
    """Louvain communities, the largest first to the client with the fewest nodes.

    Source
    ------
    Blondel et al. 2008, by networkx; dealt out as in FedSage (Zhang et al. 2021).
    """
    import networkx as nx  # here, as it takes a second to import

    plain = nx.Graph()
    plain.add_nodes_from(range(graph.num_nodes))
    plain.add_edges_from(graph.edge_index.T.tolist())
    drawn = derive_seed(seed, "partition", "louvain") % 2**32
    communities = nx.community.louvain_communities(plain, seed=drawn)
    if len(communities) < num_clients:
        raise DataError(
            f"Louvain finds {len(communities)} communities in {graph.name}, fewer than"
            f" num-clients {num_clients}; set num-clients lower, or partition to"
            " 'metis'"
        )
    owner = np.zeros(graph.num_nodes, np.int64)
    sizes = [0] * num_clients
    for members in sorted(communities, key=lambda c: (-len(c), min(c))):
        client = sizes.index(min(sizes))
        owner[sorted(members)] = client
        sizes[client] += len(members)
    return _of_each(owner, num_clients)


PARTITIONERS: Mapping[str, Callable[..., list[IntArray]]] = MappingProxyType(
    {
        "louvain": louvain,
        "metis": metis,
        "metis-overlap": metis_overlap,
        "metis-overlap-replacement": metis_overlap_replacement,
    }
)


def partition_nodes(
    kind: str, graph: GraphSet, num_clients: int, *, seed: int
) -> list[IntArray]:
    """Partition by name (a key of ``PARTITIONERS``); every client gets a node.

    Raises
    ------
    ConfigError
        More clients than nodes, or a number of clients that the partition cannot give.
    DataError
        Some client would get no node.
    """
    if num_clients > graph.num_nodes:
        raise ConfigError(
            f"more clients than nodes: num-clients is {num_clients}, but {graph.name}"
            f" has {graph.num_nodes} nodes; set num-clients lower"
        )
    clients = PARTITIONERS[kind](graph, num_clients, seed=seed)
    empty = [client for client, nodes in enumerate(clients) if not len(nodes)]
    if empty:
        raise DataError(
            f"partition {kind!r} of the {graph.num_nodes} nodes of {graph.name} leaves"
            f" {len(empty)} of {num_clients} clients without a node"
            f" ({name_clients(empty)}); set num-clients lower"
        )
    return clients


def _of_each(owner: IntArray, num_clients: int) -> list[IntArray]:
    return [np.flatnonzero(owner == client) for client in range(num_clients)]
