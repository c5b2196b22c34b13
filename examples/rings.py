"""A data set: tell rings from paths by their edges; sizes differ by client."""

import numpy as np
from torch_geometric.data import Data

from fedgraph_flwr.api import DataSet


def load(client, settings):
    """Make 40 graphs of a client: half of them rings, half of them paths."""
    rng = np.random.default_rng([settings.split_seed, client])
    graphs = []
    for g in range(40):
        n, ring = int(rng.integers(4, 8 + client)), g % 2
        ends = [(i, (i + 1) % n) for i in range(n - 1 + ring)]
        edges = np.array([(a, b) for e in ends for a, b in (e, e[::-1])]).T
        degree = np.bincount(edges[0], minlength=n)
        graphs.append(Data(x=np.eye(3)[degree], edge_index=edges, y=np.array([ring])))
    return graphs


DATA = DataSet(load=load, num_classes=2, num_clients=4, settings={"batch-size": 8})
