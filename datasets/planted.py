"""Generated graphs for node classification, with planted communities; no files.

Every client has a stochastic block model of its own, whose blocks have class
prototypes as noisy features. Clients of group 0 name the blocks alike; clients of group
1 name them otherwise, so that one model shared by all cannot serve both groups, while
a model per group serves better than one per client.
"""

from __future__ import annotations

import numpy as np

from fedgraph_flwr.data import GraphSet, IntArray, pointer
from fedgraph_flwr.seeding import derive_seed, numpy_rng

from .synthetic import client_group

NUM_CLASSES = 4
NODES_PER_CLASS = 25
NUM_NODES = NUM_CLASSES * NODES_PER_CLASS
NUM_FEATURES = 32
NOISE = 1.0  # standard deviation of a feature around its prototype's, which is 0 or 1
EDGE_PROBABILITY = (0.12, 0.03)  # within a block, and between blocks


def generate_client(client_id: int, seed: int) -> GraphSet:
    """Generate one client's graph; it depends on (seed, client_id) only.

    Parameters
    ----------
    client_id : int
    seed : int
        Split seed.

    Returns
    -------
    GraphSet
        One graph of ``NUM_NODES`` nodes; isolated ones occur.

    Source
    ------
    Ours. Graph: ``networkx.stochastic_block_model``.
    """
    import networkx as nx  # here, as it takes a second to import

    inside, between = EDGE_PROBABILITY
    probabilities = np.full((NUM_CLASSES, NUM_CLASSES), between)
    np.fill_diagonal(probabilities, inside)
    drawn = nx.stochastic_block_model(
        [NODES_PER_CLASS] * NUM_CLASSES,
        probabilities.tolist(),
        seed=derive_seed(seed, "planted", client_id, "edges") % 2**32,
    )
    edges = np.argwhere(nx.to_numpy_array(drawn, nodelist=range(NUM_NODES)) > 0).T
    block = np.repeat(np.arange(NUM_CLASSES), NODES_PER_CLASS)
    rng = numpy_rng(seed, "planted", client_id, "features")
    x = prototypes(seed)[block] + rng.normal(0, NOISE, (NUM_NODES, NUM_FEATURES))
    return GraphSet(
        name="planted",
        x=x.astype(np.float32),
        edge_index=edges.astype(np.int32),
        node_ptr=pointer([NUM_NODES]),
        edge_ptr=pointer([edges.shape[1]]),
        y=(block + client_group(client_id)) % NUM_CLASSES,
        num_features=NUM_FEATURES,
        num_classes=NUM_CLASSES,
        is_undirected=True,
    )


def prototypes(seed: int) -> IntArray:
    """Features of each class without noise, 0 or 1; (num_classes, num_features)."""
    rng = numpy_rng(seed, "planted", "prototypes")
    return rng.integers(0, 2, (NUM_CLASSES, NUM_FEATURES))
