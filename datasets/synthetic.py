"""The default data set: generated graphs and two planted groups of clients.

A graph's class is its generator: Erdos-Renyi or Barabasi-Albert, with equally many
nodes and, on average, edges. Clients of group 1 label them the other way round, so one
model shared by all cannot serve both groups, while the two groups apart are easy. They
also hold more graphs, hence take more local steps: the norms of their updates, which
GCFL+ clusters by, develop differently.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import numpy as np

from fedgraph_flwr.data import GraphSet, IntArray
from fedgraph_flwr.seeding import derive_seed, numpy_rng

from .cache import CACHE_FORMAT, cache_root, open_or_build

GRAPHS_PER_CLIENT = (160, 200)  # by group: one and two batches of 128 to train on
NUM_NODES = (20, 36)  # smallest and largest graph
EDGES_PER_NEW_NODE = 2  # Barabasi-Albert's m; Erdos-Renyi follows
LABEL_NOISE = 0.0  # share of graphs whose label is flipped
MAX_DEGREE = 15  # larger degrees count as this one


def client_group(client_id: int) -> int:
    """Planted group of a client: two of five belong to group 1.

    With group 1's larger clients the two groups then pull a shared model about
    equally hard, so that it stays between them.
    """
    return int(client_id % 5 in (1, 3))


def client_rows(client_id: int) -> IntArray:
    """Rows of a client's graphs in the data set of all clients, in client order."""
    groups = [client_group(client) for client in range(client_id)]
    start = sum(GRAPHS_PER_CLIENT[group] for group in groups)
    return np.arange(start, start + GRAPHS_PER_CLIENT[client_group(client_id)])


def load_client(client_id: int, seed: int, *, cache_dir: str = "") -> GraphSet:
    """Return what :func:`generate_client` makes, memory-mapped from our cache.

    On a SuperNode every message runs in a new process, which would otherwise import
    PyTorch Geometric and draw the graphs again.
    """
    recipe = (
        CACHE_FORMAT,
        GRAPHS_PER_CLIENT,
        NUM_NODES,
        EDGES_PER_NEW_NODE,
        LABEL_NOISE,
        MAX_DEGREE,
        version("torch-geometric"),
        seed,
        client_id,
    )
    fingerprint = hashlib.sha256(repr(recipe).encode()).hexdigest()[:16]
    entry = cache_root(cache_dir) / f"synthetic-{fingerprint}"
    return open_or_build(
        entry, GraphSet, lambda _scratch: generate_client(client_id, seed)
    )


def generate_client(client_id: int, seed: int) -> GraphSet:
    """Generate the graphs of one client; other clients' graphs are not needed.

    Parameters
    ----------
    client_id : int
    seed : int
        Split seed. Graph ``g`` depends on (seed, client_id, g) only.

    Returns
    -------
    GraphSet
        Node features are one-hot degrees, shape (num_nodes,), 16 columns.

    Source
    ------
    Ours. Graphs: ``torch_geometric.datasets.graph_generator`` ``ERGraph``, ``BAGraph``.
    """
    group = client_group(client_id)
    num_graphs = GRAPHS_PER_CLIENT[group]
    kinds = np.arange(num_graphs) % 2  # balanced; 0 Erdos-Renyi, 1 Barabasi-Albert
    noise = numpy_rng(seed, "synthetic", client_id, "label-noise")
    flips = noise.random(num_graphs) < LABEL_NOISE
    edges: list[IntArray] = []
    num_nodes: list[int] = []
    for graph, kind in enumerate(kinds.tolist()):
        with _forked_rng(derive_seed(seed, "synthetic", client_id, graph)):
            nodes, edge_index = _generate(kind)
        num_nodes.append(nodes)
        edges.append(edge_index)
    degrees = [
        np.bincount(edge_index[0], minlength=nodes)
        for edge_index, nodes in zip(edges, num_nodes, strict=True)
    ]
    num_edges = [edge_index.shape[1] for edge_index in edges]
    return GraphSet(
        name="synthetic",
        x=np.minimum(np.concatenate(degrees), MAX_DEGREE).astype(np.uint8),
        edge_index=np.concatenate(edges, axis=1).astype(np.int32),
        node_ptr=np.concatenate([[0], np.cumsum(num_nodes)]).astype(np.int64),
        edge_ptr=np.concatenate([[0], np.cumsum(num_edges)]).astype(np.int64),
        y=(kinds ^ group ^ flips).astype(np.int64),
        num_features=MAX_DEGREE + 1,
        num_classes=2,
        is_undirected=True,
    )


def _generate(kind: int) -> tuple[int, IntArray]:
    """Draw one graph: number of nodes, and edges (2, num_edges) in both directions."""
    # here, because it takes seconds to import
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.script.*", DeprecationWarning)
        from torch_geometric.datasets.graph_generator import BAGraph, ERGraph

    nodes = random.randint(*NUM_NODES)
    graph = BAGraph(nodes, EDGES_PER_NEW_NODE)()
    if kind == 0:
        # The density of a Barabasi-Albert graph of this size, which has no closed
        # form (repeated edges merge), so that edge numbers do not tell the classes.
        density = graph.edge_index.shape[1] / (nodes * (nodes - 1))
        graph = ERGraph(nodes, density)()
    edge_index: IntArray = graph.edge_index.numpy()
    return nodes, edge_index


@contextmanager
def _forked_rng(seed: int) -> Iterator[None]:
    """Seed the global generators for a moment, then restore them.

    PyTorch Geometric's generators draw from the global torch and NumPy streams and
    take no generator as argument. Seeding them is the only way to make a graph
    repeatable, and restoring them keeps that invisible: whoever else draws from them
    gets the numbers it would have got. (Not across threads, as ever with globals.)
    """
    import torch

    torch_state = torch.get_rng_state()  # the CPU's: no GPU is touched or woken
    numpy_state = np.random.get_state()  # noqa: NPY002 - saved for others, see above
    python_state = random.getstate()
    try:
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - BAGraph draws from it
        random.seed(seed)
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)  # noqa: NPY002 - restored, see above
        random.setstate(python_state)
