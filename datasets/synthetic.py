"""Generated data with two planted groups of clients: graphs, and nodes of a graph.

A graph's class is its generator: Erdos-Renyi or Barabasi-Albert, with equally many
nodes and, on average, edges. Clients of group 1 label them the other way round, so one
model shared by all cannot serve both groups, while the two groups apart are easy. They
also hold more graphs, hence take more local steps: the norms of their updates, which
GCFL+ clusters by, develop differently.

Every client has a stochastic block model of its own, whose blocks have class
prototypes as noisy features. Clients of group 0 name the blocks alike; clients of group
1 name them otherwise, so that one model shared by all cannot serve both groups, while
a model per group serves better than one per client.
"""

from __future__ import annotations

import random
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphSet, IntArray, pointer
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.seeding import derive_seed, numpy_rng

GRAPHS_PER_CLIENT = (160, 200)  # by group: one and two batches of 128 to train on
NUM_NODES = (20, 36)  # smallest and largest graph
EDGES_PER_NEW_NODE = 2  # Barabasi-Albert's m; Erdos-Renyi follows
MAX_DEGREE = 15  # larger degrees count as this one


def client_group(client_id: int) -> int:
    """Planted group of a client: two of five belong to group 1.

    With group 1's larger clients the two groups then pull a shared model about
    equally hard, so that it stays between them.
    """
    return int(client_id % 5 in (1, 3))


def client_rows(client_id: int) -> IntArray:
    """Rows of a client's graphs in the data set of all clients, in client order."""
    of_group_1 = client_id // 5 * 2 + sum(map(client_group, range(client_id % 5)))
    start = np.dot(GRAPHS_PER_CLIENT, (client_id - of_group_1, of_group_1))
    return np.arange(start, start + GRAPHS_PER_CLIENT[client_group(client_id)])


def generate_client(client_id: int, seed: int) -> GraphSet:
    """Generate the graphs of one client; other clients' graphs are not needed.

    Node features are one-hot degrees, shape (num_nodes,), 16 columns. Graph ``g``
    depends on (seed, client_id, g) only.

    Source
    ------
    Ours. Graphs are to the bit those of PyTorch Geometric's ``erdos_renyi_graph`` and
    ``barabasi_albert_graph``, if torch, NumPy and Python are seeded alike.
    """
    group = client_group(client_id)
    num_graphs = GRAPHS_PER_CLIENT[group]
    kinds = np.arange(num_graphs) % 2  # balanced; 0 Erdos-Renyi, 1 Barabasi-Albert
    edges: list[IntArray] = []
    num_nodes: list[int] = []
    sizes, rng = random.Random(), np.random.RandomState()
    for graph, kind in enumerate(kinds.tolist()):
        own_seed = derive_seed(seed, "synthetic", client_id, graph)
        sizes.seed(own_seed)
        num_nodes.append(sizes.randint(*NUM_NODES))
        edges.append(_generate(kind, num_nodes[-1], own_seed % 2**32, rng))
    degrees = [
        np.bincount(edge_index[0], minlength=nodes)
        for edge_index, nodes in zip(edges, num_nodes, strict=True)
    ]
    return GraphSet(
        name="synthetic",
        x=np.minimum(np.concatenate(degrees), MAX_DEGREE).astype(np.uint8),
        edge_index=np.concatenate(edges, axis=1).astype(np.int32),
        node_ptr=pointer(num_nodes),
        edge_ptr=pointer([edge_index.shape[1] for edge_index in edges]),
        y=(kinds ^ group).astype(np.int64),
        num_features=MAX_DEGREE + 1,
        num_classes=2,
        is_undirected=True,
    )


def _generate(
    kind: int,
    nodes: int,
    seed: int,
    rng: np.random.RandomState,
) -> IntArray:
    """Draw one graph: edges (2, num_edges) in both directions, in order.

    PyTorch Geometric draws from NumPy's old generator and from torch's, which is the
    same Mersenne Twister. Seeded with ``seed``, ``rng`` is either of them.
    """
    pairs = nodes * (nodes - 1) // 2
    rng.seed(seed)
    # One draw for the first attachment, one for each pair of nodes.
    words = rng.randint(0, 2**32, size=1 + pairs, dtype=np.uint32)
    rng.seed(seed)
    adjacent = _attach(nodes, int(words[0] % EDGES_PER_NEW_NODE), rng)
    if kind == 0:
        # The density of a Barabasi-Albert graph of this size, which has no closed
        # form (repeated edges merge), so that edge numbers do not tell the classes.
        density = np.float32(np.count_nonzero(adjacent) / (nodes * (nodes - 1)))
        uniform = (words[1:] & (2**24 - 1)).astype(np.float32) / np.float32(2**24)
        adjacent = np.zeros((nodes, nodes), bool)
        adjacent[_upper(nodes)] = uniform < density
        adjacent |= adjacent.T
    return np.stack(np.nonzero(adjacent))


def _attach(
    nodes: int,
    shift: int,
    rng: np.random.RandomState,
) -> NDArray[np.bool_]:
    """Adjacency of a Barabasi-Albert graph, (nodes, nodes); the first pair's shift.

    New node i attaches to two ends, drawn from all ends of edges before it and its own.
    """
    m = EDGES_PER_NEW_NODE
    of, known, bounds = _sources(nodes)
    drawn = rng.randint(0, bounds).tolist()
    targets = [(i + shift) % m for i in range(m)]
    for place, count in zip(drawn, known, strict=True):
        targets.append(of[place] if place < count else targets[place - count])
    adjacent = np.zeros((nodes, nodes), bool)
    adjacent[of, targets] = True
    adjacent.flat[:: nodes + 1] = False  # no self-loops
    return adjacent | adjacent.T


@cache  # graphs have few sizes
def _sources(nodes: int) -> tuple[list[int], list[int], IntArray]:
    """Source of each edge; of each draw: how many ends are sources, and how many ends.

    An edge's other end is drawn from the ends of those before it, and its own source.
    """
    m = EDGES_PER_NEW_NODE
    new = np.arange(nodes).repeat(m)[: nodes * m]  # node i at m places
    sources = np.concatenate([np.arange(m), new[m * m :]])
    num_sources = np.arange(2 * m, len(sources) + 1, m)  # with those of the new node
    bounds = (2 * num_sources - m).repeat(m)
    return sources.tolist(), num_sources.repeat(m).tolist(), bounds


@cache
def _upper(nodes: int) -> tuple[IntArray, ...]:
    """Rows and columns of a square matrix above its diagonal."""
    return np.triu_indices(nodes, 1)


NUM_CLASSES = 4
NOISE = 1.0  # standard deviation of a feature around its prototype's, which is 0 or 1
INSIDE = 4  # times as likely is a pair of one block to have an edge as another pair


def generate_planted(client_id: int, settings: RunSettings) -> GraphSet:
    """Generate one client's graph; it depends on the split seed and the client only.

    A stochastic block model: isolated nodes occur. Blocks are equal, but for the last
    nodes of a number that 4 does not divide.

    Raises
    ------
    ConfigError
        Nodes are too few for the degree.
    """
    seed, num_nodes = settings.split_seed, settings.planted_nodes
    block = np.arange(num_nodes) * NUM_CLASSES // num_nodes
    size = num_nodes / NUM_CLASSES
    between = settings.planted_degree / (INSIDE * (size - 1) + num_nodes - size)
    if not 0 <= between * INSIDE < 1:
        raise ConfigError(
            f"planted-degree {settings.planted_degree:g} is too much for planted-nodes"
            f" {num_nodes}: every pair of a block would have an edge; take a smaller"
            " degree or more nodes"
        )
    bounds = np.searchsorted(block, np.arange(NUM_CLASSES + 1))
    rng = numpy_rng(seed, "planted", client_id, "edges")
    pairs = [
        _pairs(bounds[i : i + 2], bounds[j : j + 2], share * between, rng)
        for i in range(NUM_CLASSES)
        for j, share in ((i, INSIDE), *((k, 1) for k in range(i + 1, NUM_CLASSES)))
    ]
    one_way = np.concatenate(pairs, axis=1)
    source, target = np.concatenate([one_way, one_way[::-1]], axis=1)
    order = np.lexsort((target, source))
    rng = numpy_rng(seed, "planted", client_id, "features")
    shape = num_nodes, settings.planted_features
    x = prototypes(settings)[block] + rng.normal(0, NOISE, shape)
    return GraphSet(
        name="planted",
        x=x.astype(np.float32),
        edge_index=np.stack([source[order], target[order]]).astype(np.int32),
        node_ptr=pointer([num_nodes]),
        edge_ptr=pointer([len(order)]),
        y=(block + client_group(client_id)) % NUM_CLASSES,
        num_features=settings.planted_features,
        num_classes=NUM_CLASSES,
        is_undirected=True,
    )


def _pairs(
    rows: IntArray, columns: IntArray, probability: float, rng: np.random.Generator
) -> IntArray:
    """Draw pairs of two ranges of nodes, or of one range, each pair at most once.

    Gaps between drawn pairs are geometric, so that the cost follows what is drawn.
    """
    (first, end), (begin, last) = rows.tolist(), columns.tolist()
    m, n = end - first, last - begin
    count = m * (m - 1) // 2 if first == begin else m * n
    if probability == 0:
        return np.empty((2, 0), np.int64)
    parts, at = [], -1
    while at < count:
        more = int((count - at) * probability * 1.1) + 100
        part = at + np.cumsum(rng.geometric(probability, more))
        parts.append(part)
        at = int(part[-1])
    drawn = np.concatenate(parts)
    drawn = drawn[drawn < count]
    if first != begin:
        return np.stack([first + drawn // n, begin + drawn % n])
    # Pair (u, v), u < v, has number v (v - 1) / 2 + u; a root may be off by rounding.
    v = ((1 + np.sqrt(8.0 * drawn + 1)) / 2).astype(np.int64)
    v -= v * (v - 1) // 2 > drawn
    v += (v + 1) * v // 2 <= drawn
    return np.stack([first + drawn - v * (v - 1) // 2, first + v])


def prototypes(settings: RunSettings) -> IntArray:
    """Features of each class without noise, 0 or 1; (num_classes, num_features)."""
    rng = numpy_rng(settings.split_seed, "planted", "prototypes")
    return rng.integers(0, 2, (NUM_CLASSES, settings.planted_features))
