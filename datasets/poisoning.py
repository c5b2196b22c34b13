"""What attacks do to training items of hostile clients, and a trigger's test graphs.

Source
------
Zhang et al. 2021, arXiv:2006.11165 (backdoors in graphs). Differs: the trigger is a
clique on the nodes of highest degree, not a random graph on random nodes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedgraph_flwr.core.attack_settings import TRIGGER, AttackSettings
from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphPartition, GraphSet, IntArray, distinct_edges
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.seeding import numpy_rng


def poison(
    partition: GraphPartition, attack: AttackSettings, settings: RunSettings
) -> GraphPartition:
    """Return the data that a hostile client trains on; validation and test stay.

    Hashes stay those of the client's own data, so that runs can be compared.
    """
    graphs, train = partition.graphs, partition.train
    y = graphs.y.copy()
    if attack.kind == TRIGGER:
        others = train[y[train] != attack.target_class]
        rng = numpy_rng(settings.split_seed, "attack", partition.client_id)
        count = round(attack.poisoned * len(others))
        chosen = np.sort(rng.choice(others, size=count, replace=False))
        graphs = with_trigger(graphs, chosen, attack)
        y[chosen] = attack.target_class
    else:
        known = train[y[train] >= 0]
        y[known] = graphs.num_classes - 1 - y[known]
    return replace(partition, graphs=replace(graphs, y=y))


def triggered_test(
    partition: GraphPartition, attack: AttackSettings, *, is_in: bool
) -> GraphPartition:
    """Return a partition whose test graphs are those outside the target class.

    With the trigger if ``is_in``. Their label is the target: accuracy is then the share
    that is called target.
    """
    y = partition.graphs.y.copy()
    others = partition.test[y[partition.test] != attack.target_class]
    y[others] = attack.target_class
    graphs = partition.graphs
    graphs = with_trigger(graphs, others, attack) if is_in else graphs
    return replace(partition, graphs=replace(graphs, y=y), test=others)


def with_trigger(graphs: GraphSet, ids: IntArray, attack: AttackSettings) -> GraphSet:
    """Make the nodes of highest degree of these graphs a clique of equal features.

    Of equal degrees the lowest node. The features are the most frequent column of all
    graphs here, alone.
    """
    if graphs.beside:
        raise DataError(
            f"{graphs.name} has {' and '.join(graphs.beside)}, which edges of a trigger"
            " would not have; set attack.kind to another in the run config"
        )
    if attack.target_class >= graphs.num_classes:
        raise ConfigError(
            f"attack.target-class must be below {graphs.num_classes}, the number of"
            f" classes of {graphs.name}, got {attack.target_class}; correct it in the"
            " run config"
        )
    degrees, x = graphs.degrees(), graphs.x.copy()
    is_wide = x.ndim == 2
    often = x.sum(axis=0) if is_wide else np.bincount(x, minlength=graphs.num_features)
    row = np.eye(graphs.num_features)[often.argmax()] if is_wide else often.argmax()
    edges = np.split(graphs.edge_index, graphs.edge_ptr[1:-1], axis=1)
    for graph in ids:
        first, end = graphs.node_ptr[graph : graph + 2]
        top = np.argsort(-degrees[first:end], kind="stable")[: attack.trigger_nodes]
        x[first + top] = row
        clique = np.stack(np.meshgrid(top, top)).reshape(2, -1)
        source, target = np.concatenate([edges[graph], clique], axis=1)
        edges[graph] = distinct_edges(source, target, end - first)
    index = np.concatenate(edges, axis=1).astype(graphs.edge_index.dtype)
    edge_ptr = np.cumsum([0, *(each.shape[1] for each in edges)])
    return replace(graphs, x=x, edge_index=index, edge_ptr=edge_ptr)
