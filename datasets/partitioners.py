"""How graphs, or the nodes of one graph, are shared out among clients.

Partitioners are pure functions of labels, client count and seed. They return, for
each client, the ascending data set rows of its graphs.

Partitioners are functions of a graph, client count and seed. They return, for each
client, the ascending node numbers of its induced subgraph.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import GraphSet, IntArray, distinct_edges, pointer
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.seeding import derive_seed, numpy_rng
from fedgraph_flwr.core.words import name_clients

from .splits import MIN_GRAPHS

DIRICHLET_MIN_GRAPHS = 10  # below that, validation and test sets say nothing
MAX_DRAWS = 100_000  # of client sizes that leave nobody with too few graphs
CHUNK_SIZE = 50  # GCFL's code: the contiguous block each client starts with
OVERLAP_SIZES = (50, 150)  # GCFL's code: client sizes, upper end excluded
DELTA = 20  # FedTAD's code: nodes by which clients may differ from equal sizes
DOMINANCE = 0.8  # FCLG, recovered from Table II: the owners' share of a class


def reference_chunks(y: IntArray, num_clients: int, *, seed: int) -> list[IntArray]:
    """Contiguous block per client, each remaining graph to a random client.

    Every graph stands there once.

    Parameters
    ----------
    y : int array, shape (num_graphs,)
        Classes; only their number matters here.
    seed : int
        Split seed.

    Source
    ------
    Xie et al. 2021 (GCFL), code ``setupGC.py``. NumPy's legacy generator is
    used because the reference seeds that one: it draws the same clients.
    """
    size = min(CHUNK_SIZE, len(y) // num_clients)
    rest = len(y) - size * num_clients
    drawn = np.random.RandomState(seed).randint(0, num_clients, size=rest)
    owner = np.concatenate([np.repeat(np.arange(num_clients), size), drawn])
    return [np.flatnonzero(owner == client) for client in range(num_clients)]


def overlapping_chunks(y: IntArray, num_clients: int, *, seed: int) -> list[IntArray]:
    """Random graphs per client; clients may share some.

    Each client draws U{50..149} graphs with replacement. A graph that one client drew
    twice is kept once, since it could otherwise be trained and tested on by the same
    client; clients are hence a little smaller than drawn.

    Source
    ------
    As :func:`reference_chunks`. Differs: repeats dropped; own random stream.
    """
    rng = numpy_rng(seed, "partition", "chunks-overlap")
    sizes = rng.integers(*OVERLAP_SIZES, size=num_clients)
    return [np.unique(rng.integers(0, len(y), size=size)) for size in sizes]


def iid_shares(y: IntArray, num_clients: int, *, seed: int) -> list[IntArray]:
    """Equal shares of every class (class counts and sizes differ by one at most)."""
    rng = numpy_rng(seed, "partition", "iid")
    # Dealing class after class without starting over evens out the remainders.
    order = np.concatenate(
        [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]
    )
    return [np.sort(order[client::num_clients]) for client in range(num_clients)]


def iid_classwise(y: IntArray, num_clients: int, *, seed: int) -> list[IntArray]:
    """Equal shares of every class; each class starts dealing at client 0.

    Every class gives its remainder to the first clients, which hence get the most
    graphs; :func:`iid_shares` evens that out.

    Source
    ------
    FCLG, Table III: client shares of PROTEINS, DHFR and NCI1, recovered from their
    EMD, as the paper does not state them.
    """
    rng = numpy_rng(seed, "partition", "iid-classwise")
    everyone = range(num_clients)
    owned: list[list[IntArray]] = [[] for _ in everyone]
    for label in np.unique(y):
        _deal(rng.permutation(np.flatnonzero(y == label)), everyone, owned)
    return [np.sort(np.concatenate(parts)) for parts in owned]


def dominant_classes(
    y: IntArray, num_clients: int, *, seed: int, dominance: float
) -> list[IntArray]:
    """Label skew: the owners of a class get the share ``dominance`` of it.

    The classes are numbered by descending size, ties by label. Client ``k`` owns class
    ``k mod num_classes``; with fewer clients than classes, class ``c`` belongs to
    client ``c mod num_clients``. The owners of a class evenly share
    ``floor(dominance * size)`` of its graphs, the other clients the rest, remainders
    going to the first of each. Where everybody is an owner, owners get all.

    Parameters
    ----------
    y : int array, shape (num_graphs,)
    seed : int
        Split seed. The order within a class depends on (seed, label) only.
    dominance : float
        In [0, 1]. The equal split lies near the owners' share of all clients: 1/2 for
        two classes and an even number of clients.

    Raises
    ------
    ValueError
        If ``dominance`` is not in [0, 1].

    Source
    ------
    Li et al. 2024 (FCLG), arXiv:2411.12098, Table II, which gives the EMD alone: 0.8
    reproduces it for all four data sets; Fig. 4a varies it.
    """
    if not 0 <= dominance <= 1:
        raise ValueError(f"dominance must be in [0, 1], got {dominance}")
    labels, sizes = np.unique(y, return_counts=True)
    ranked = labels[np.argsort(-sizes, kind="stable")]
    owned: list[list[IntArray]] = [[] for _ in range(num_clients)]
    for rank, label in enumerate(ranked.tolist()):
        rng = numpy_rng(seed, "partition", "dominance", label)
        rows = rng.permutation(np.flatnonzero(y == label))
        owners = list(range(rank, num_clients, len(ranked))) or [rank % num_clients]
        others = [k for k in range(num_clients) if k not in owners]
        # rounded first, since 0.29 * 100 is 28.999999999999996 in floats
        cut = math.floor(round(dominance * len(rows), 9)) if others else len(rows)
        _deal(rows[:cut], owners, owned)
        _deal(rows[cut:], others, owned)
    return [np.sort(np.concatenate(parts)) for parts in owned]


def _deal(rows: IntArray, clients: Sequence[int], owned: list[list[IntArray]]) -> None:
    """Append an even share of ``rows`` to each client's; the first get one more."""
    if clients:
        shares = np.array_split(rows, len(clients))
        for client, share in zip(clients, shares, strict=True):
            owned[client].append(share)


def dirichlet_labels(
    y: IntArray, num_clients: int, *, seed: int, alpha: float
) -> list[IntArray]:
    """Label skew: each class is shared out by its own Dirichlet(alpha) draw.

    A client left with fewer than ``min(10, num_graphs // num_clients)`` graphs is
    filled up, one graph at a time, from whichever client is the largest at that time.

    Raises
    ------
    DataError
        If there are fewer than 3 graphs per client.
    """
    minimum = _dirichlet_minimum(len(y), num_clients)
    rng = numpy_rng(seed, "partition", "dirichlet-labels")
    owned: list[list[int]] = [[] for _ in range(num_clients)]
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        for client, part in enumerate(_share(rows, rng, num_clients, alpha)):
            owned[client].extend(part.tolist())
    for rows_of_client in owned:
        rng.shuffle(rows_of_client)  # so that a giver loses random graphs
    for needy in owned:
        while len(needy) < minimum:  # ends: the largest has more than the minimum
            needy.append(max(owned, key=len).pop())
    return [np.array(sorted(rows), dtype=np.int64) for rows in owned]


def dirichlet_quantity(
    y: IntArray, num_clients: int, *, seed: int, alpha: float
) -> list[IntArray]:
    """Size skew: client sizes by one Dirichlet(alpha) draw, graphs at random.

    ``min(10, num_graphs // num_clients)`` graphs go to every client first; the draw
    shares out the others.

    Raises
    ------
    DataError
        If there are fewer than 3 graphs per client.
    """
    minimum = _dirichlet_minimum(len(y), num_clients)
    rng = numpy_rng(seed, "partition", "dirichlet-quantity")
    order = rng.permutation(len(y))
    base, free = np.split(order, [minimum * num_clients])
    shares = _share(free, rng, num_clients, alpha)
    blocks = np.split(base, num_clients)
    return [
        np.sort(np.concatenate([block, share]))
        for block, share in zip(blocks, shares, strict=True)
    ]


def quantity_skew(
    rows: IntArray, num_clients: int, *, seed: int, alpha: float
) -> list[IntArray]:
    """Size skew as published for molecules: shuffle, cut by one Dirichlet(alpha) draw.

    The draw is repeated until every client has at least 10 graphs. Every row stands
    there once, ascending for each client.

    Parameters
    ----------
    rows : int array, shape (n,)
        What is shared out: the training graphs.
    seed : int
        Split seed.

    Raises
    ------
    DataError
        If there are fewer than 10 graphs per client, or no draw gives everyone 10.

    Source
    ------
    FedGraphNN (He et al. 2021, arXiv:2104.07145), code
    ``partition_class_samples_with_dirichlet_distribution``, as FGCL and SpreadGNN use
    it: cuts at ``floor(cumsum(p) n)``. Differs from
    :func:`dirichlet_quantity`, which gives everyone a minimum before drawing.
    """
    minimum = DIRICHLET_MIN_GRAPHS
    if len(rows) < minimum * num_clients:
        raise DataError(
            f"{len(rows)} training graphs cannot give each of {num_clients} clients at"
            f" least {minimum}; set num-clients to {len(rows) // minimum} or less"
        )
    rng = numpy_rng(seed, "partition", "quantity-skew")
    order = rng.permutation(rows)
    for _ in range(MAX_DRAWS):
        cuts = _cuts(len(order), rng, num_clients, alpha, rounding=np.floor)
        if np.diff(cuts, prepend=0, append=len(order)).min() >= minimum:
            return [np.sort(part) for part in np.split(order, cuts)]
    raise DataError(
        f"{MAX_DRAWS} draws of Dirichlet({alpha}) all left one of {num_clients} clients"
        f" with fewer than {minimum} of {len(rows)} training graphs; raise"
        " dirichlet-alpha or lower num-clients"
    )


def _share(
    rows: IntArray, rng: np.random.Generator, num_clients: int, alpha: float
) -> list[IntArray]:
    """Cut ``rows`` in proportions drawn from a symmetric Dirichlet."""
    return np.split(rows, _cuts(len(rows), rng, num_clients, alpha, rounding=np.rint))


def _cuts(
    num_rows: int,
    rng: np.random.Generator,
    num_clients: int,
    alpha: float,
    *,
    rounding: Callable[..., NDArray[np.float64]],
) -> IntArray:
    """Where rows are cut, in proportions drawn from a symmetric Dirichlet."""
    # beyond the cap shares are equal anyway, and much further the draw overflows to 0
    weights = rng.dirichlet(np.full(num_clients, min(alpha, 1e9)))
    return rounding(np.cumsum(weights)[:-1] * num_rows).astype(np.int64)


def _dirichlet_minimum(num_graphs: int, num_clients: int) -> int:
    minimum = min(DIRICHLET_MIN_GRAPHS, num_graphs // num_clients)
    if minimum < MIN_GRAPHS:
        raise DataError(
            f"{num_graphs} graphs cannot give each of {num_clients} clients at least"
            f" {MIN_GRAPHS}; set num-clients to {num_graphs // MIN_GRAPHS} or less"
        )
    return minimum


PARTITIONERS: dict[str, Callable[..., list[IntArray]]] = {
    "chunks": reference_chunks,
    "chunks-overlap": overlapping_chunks,
    "iid": iid_shares,
    "iid-classwise": iid_classwise,
    "dominance": dominant_classes,
    "dirichlet-labels": dirichlet_labels,
    "dirichlet-quantity": dirichlet_quantity,
}


def partition_graphs(
    kind: str,
    y: IntArray,
    *,
    num_clients: int,
    seed: int,
    alpha: float,
    dominance: float = DOMINANCE,
) -> list[IntArray]:
    """Partition by name (a key of ``PARTITIONERS``), checking every client's share.

    ``alpha`` and ``dominance`` matter to the partitioners that have them only.

    Raises
    ------
    DataError
        If some client gets fewer than 3 graphs.
    """
    extra: dict[str, float] = {}
    if kind.startswith("dirichlet"):
        extra["alpha"] = alpha
    elif kind == "dominance":
        extra["dominance"] = dominance
    clients = PARTITIONERS[kind](y, num_clients, seed=seed, **extra)
    for client, rows in enumerate(clients):
        if len(rows) < MIN_GRAPHS:
            raise DataError(
                f"client {client} gets {len(rows)} of {len(y)} graphs by partition"
                f" {kind!r}, but training, validating and testing needs at least"
                f" {MIN_GRAPHS}; lower num-clients (now {num_clients}) or choose"
                " another partition or split-seed"
            )
    return clients


SAMPLES_PER_PART = 5  # clients that share one METIS part, FedGKD Sec. B.1


def metis(graph: GraphSet, num_clients: int, *, seed: int) -> list[IntArray]:  # noqa: ARG001
    """METIS k-way parts with few edges between them; they cover all nodes once.

    Of a directed graph with repeated edges, its undirected simple graph is cut.

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

    edges = graph.edge_index
    if not (graph.is_undirected and graph.is_simple):
        ends = np.concatenate([edges, edges[::-1]], axis=1).astype(np.int64)
        edges = distinct_edges(ends[0], ends[1], graph.num_nodes)
    degree = np.bincount(edges[0], minlength=graph.num_nodes)
    adjacency = pymetis.CSRAdjacency(
        adj_starts=pointer(degree).astype(np.int32),
        adjacent=edges[1].astype(np.int32),
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


def louvain(graph: GraphSet, num_clients: int, *, seed: int) -> list[IntArray]:
    """Louvain communities, the largest first to the client with the fewest nodes.

    Source
    ------
    Blondel et al. 2008, by networkx; dealt out as in FedSage (Zhang et al. 2021).
    """
    communities = _communities(graph, seed)
    if len(communities) < num_clients:
        raise DataError(
            f"Louvain finds {len(communities)} communities in {graph.name}, fewer than"
            f" num-clients {num_clients}; set num-clients lower, or partition to"
            " 'metis'"
        )
    owner = np.zeros(graph.num_nodes, np.int64)
    sizes = [0] * num_clients
    for members in communities:
        client = sizes.index(min(sizes))
        owner[members] = client
        sizes[client] += len(members)
    return _of_each(owner, num_clients)


def _communities(graph: GraphSet, seed: int) -> list[list[int]]:
    """Nodes of each Louvain community, ascending; the largest community first."""
    import networkx as nx  # here, as it takes a second to import

    plain = nx.Graph()
    plain.add_nodes_from(range(graph.num_nodes))
    plain.add_edges_from(graph.edge_index.T.tolist())
    drawn = derive_seed(seed, "partition", "louvain") % 2**32
    found = nx.community.louvain_communities(plain, seed=drawn)
    return sorted(map(sorted, found), key=lambda c: (-len(c), c[0]))


def louvain_delta(graph: GraphSet, num_clients: int, *, seed: int) -> list[IntArray]:
    """Louvain communities in clients of nearly equal size.

    A community above N / n - 20 nodes is cut into pieces of so many. Pieces, the
    largest first, are dealt out in a circle: to the next client that stays below N / n
    + 20 with it. A client that has N / n nodes leaves the circle, while two or more are
    left. A piece that fits nowhere goes to the client with the fewest nodes.

    Source
    ------
    Protocol of FedTAD (Zhu et al. 2024, arXiv:2404.14061) and OpenFGL. Differs: what
    fits nowhere goes to the smallest client, and not to one that a search ends at.
    """
    share = graph.num_nodes // num_clients
    cap = max(share - DELTA, 1)
    pieces = [
        members[i : i + cap]
        for members in _communities(graph, seed)
        for i in range(0, len(members), cap)
    ]
    owned: list[list[int]] = [[] for _ in range(num_clients)]
    circle = deque(range(num_clients))
    for piece in sorted(pieces, key=len, reverse=True):
        while len(circle) > 1 and len(owned[circle[0]]) >= share:
            circle.popleft()
        fits = (len(owned[c]) + len(piece) < share + DELTA for c in circle)
        if (steps := next((k for k, fit in enumerate(fits) if fit), None)) is None:
            min(owned, key=len).extend(piece)
            continue
        circle.rotate(-steps)
        owned[circle[0]].extend(piece)
    return [np.array(sorted(nodes), np.int64) for nodes in owned]


def node_labels(
    graph: GraphSet, num_clients: int, *, seed: int, alpha: float
) -> list[IntArray]:
    """Label skew of nodes, as :func:`dirichlet_labels`; edges between clients go."""
    return dirichlet_labels(graph.y, num_clients, seed=seed, alpha=alpha)


NODE_PARTITIONERS: Mapping[str, Callable[..., list[IntArray]]] = MappingProxyType(
    {
        "dirichlet-labels": node_labels,
        "louvain": louvain,
        "louvain-delta": louvain_delta,
        "metis": metis,
        "metis-overlap": metis_overlap,
        "metis-overlap-replacement": partial(metis_overlap, replace=True),
    }
)


def partition_nodes(
    kind: str, graph: GraphSet, num_clients: int, *, seed: int, alpha: float
) -> list[IntArray]:
    """Partition by name (a key of ``NODE_PARTITIONERS``); every client gets a node.

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
    own = {"alpha": alpha} if kind == "dirichlet-labels" else {}
    clients = NODE_PARTITIONERS[kind](graph, num_clients, seed=seed, **own)
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
