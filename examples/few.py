"""A data set on which federating pays: all clients agree, and each has few graphs."""

import networkx as nx
import numpy as np
from torch_geometric.data import Data

from fedgraph_flwr.api import DataSet


def load(client, settings):
    """Make 100 graphs of a client: half of them grew, half are random."""
    rng = np.random.default_rng([settings.split_seed, client])
    graphs = []
    for g in range(100):
        graph = nx.barabasi_albert_graph(int(rng.integers(12, 24)), 2, seed=rng)
        if g % 2:  # as many nodes and edges, but drawn alike
            graph = nx.gnm_random_graph(len(graph), graph.size(), seed=rng)
        edges = np.array([*graph.edges]).T
        edges = np.hstack([edges, edges[::-1]])
        degree = np.bincount(edges[0], minlength=len(graph))
        x = np.eye(10)[np.minimum(degree, 9)]
        graphs.append(Data(x=x, edge_index=edges, y=np.array([g % 2])))
    return graphs


# Of its 100 graphs a client trains on 10: 45 are for validation, 45 to test.
DATA = DataSet(
    load=load,
    num_classes=2,
    num_clients=10,
    settings={"held-out": 0.9, "shared-group": "all"},
)
