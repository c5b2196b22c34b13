"""What leaves a private client does not depend on its edges, but through its views.

Two worlds: the same nodes, labels and noisy values, and other edges. Whatever differs
between the messages of the two, or between the results folders, has gone around the
mechanism.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import toys
from matrix import mostly_slow

from clients.privacy import noisy_views
from clients.privacy.site import check_features
from fedgraph_flwr import client_app
from fedgraph_flwr.core.data import pointer
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.core.privacy_settings import PrivacySettings
from fedgraph_flwr.core.tasks import GRAPH_EMBEDDING

TAKE_NOISE = [m for m in toys.AT_SITES if toys.row(m).task.takes_edge_noise]
POOLS = [m for m in toys.of_task(GRAPH_EMBEDDING) if toys.row(m).has_server_model]
# Clients of these differ in what they read of a graph, and in what they send.
ONE_PER_CLIENT = ["fedavg", "gcfl+", "fclg", "fgcl", "infograph", "fedavg multi-task"]
ONE_PER_CLIENT += ["fedgmtl", "spreadgnn"]
EACH_EPOCH = {"privacy.noise-mode": "per_epoch"}
POOLED = {"embedding.evaluation": "pooled"}
TIMES = ("started-at", "compute-s")
OF_RUN = {
    *("wall_s", "client_compute_s", "overhead_s", "run_id", "experiment", "config"),
    *("finished_utc",),
}
NOISY = {"privacy.edge-epsilon": 2.0, "num-server-rounds": 2, "local-epochs": 2}


def with_other_edges(graphs):
    """Other undirected edges, and another number of them, between the same nodes."""
    rng = np.random.default_rng(5)
    edges = []
    for n in np.diff(graphs.node_ptr):
        upper = np.triu(rng.random((n, n)) < 0.8, 1)
        edges.append(np.argwhere(upper | upper.T).T)
    return toys.replace(
        graphs,
        edge_index=np.concatenate(edges, axis=1).astype(np.int32),
        edge_ptr=pointer([e.shape[1] for e in edges]),
    )


def released(triangle, epsilon, rng):
    """Stand for what both worlds release; the triangles themselves differ."""
    return rng.integers(0, 2, len(triangle)).astype(np.float32)


def bytes_of(name, array):
    """Bytes of an array; of a letter without the hash of the run's name."""
    found = np.asarray(array).tobytes()
    return found[:4] + found[36:] if name.startswith("to/") else found


def what_leaves(run, toy_data, method, *, other, **options):
    """Messages of all clients, and the results, without times and names of the run."""

    def world(settings, client_id):
        partition = toys.federation(settings, client_id)
        if not other:
            return partition
        return toys.replace(partition, graphs=with_other_edges(partition.graphs))

    sent = []
    pack = client_app.pack

    def packed(parcels, *header):
        for client, parcel in parcels.items():
            arrays = {**parcel.arrays, **parcel.evaluation}
            numbers = {k: v for k, v in parcel.metrics.items() if k not in TIMES}
            sent.append((client, parcel.error, numbers, dict(parcel.facts)))
            sent.append({k: bytes_of(k, a) for k, a in arrays.items()})
        return pack(parcels, *header)

    noisy = {**NOISY, "features": toys.own(method).get("features", "labels")}
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", world)
        patch.setattr(noisy_views, "add_noise", released)
        patch.setattr(client_app, "pack", packed)
        finished = run(method, **noisy, **options)
    summary = {k: v for k, v in finished.summary.items() if k not in OF_RUN}
    return sent, finished.rounds, finished.ledger, json.dumps(summary)


@pytest.mark.parametrize(
    ("method", "options"),
    mostly_slow(
        [
            *((method, {}) for method in TAKE_NOISE),
            *((method, POOLED) for method in POOLS),
            ("fgcl", EACH_EPOCH),
            ("fgcl", {**EACH_EPOCH, "fgcl.encoder": "kgnn"}),
        ],
        fast=[*((method, {}) for method in ONE_PER_CLIENT), ("fclg", POOLED)],
    ),
)
def test_nothing_but_views_tells_the_edges(run, toy_data, method, options):
    ours, theirs = (
        what_leaves(run, toy_data, method, other=other, **options)
        for other in (False, True)
    )
    assert ours == theirs
    assert any(ours[0])


@pytest.mark.parametrize("method", ["fedavg", "fgcl"])
def test_degrees_by_whatever_name_are_refused(run, toy_data, method):
    """A data set without node labels has degrees, also where "labels" are asked for."""

    def degrees(settings, client_id):
        partition = toys.federation(settings, client_id)
        g = partition.graphs
        begin = np.repeat(g.node_ptr[:-1], np.diff(g.edge_ptr))
        degree = np.bincount(g.edge_index[0] + begin, minlength=g.num_nodes)
        graphs = toys.replace(g, x=np.minimum(degree, 3).astype(np.uint8))
        return toys.replace(partition, graphs=graphs)

    noisy = {**NOISY, "features": toys.own(method).get("features", "labels")}
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", degrees)
        with pytest.raises(DataError, match="are the degrees of its nodes"):
            run(method, **noisy)
        kept = {**noisy, "privacy.keep-edge-features": True}
        assert run(method, **kept).summary["status"] == "completed"


def columns(degree):
    """Features of nodes, as tables, plug-ins and attributes may have them."""
    other = np.arange(len(degree)) % 3
    return {
        "labels": (degree + 1).astype(np.uint8),
        "one-hot": np.eye(4, dtype=np.float32)[np.minimum(degree, 3)],
        "one-hot, from 1": np.eye(9, dtype=np.float32)[degree + 1],
        "a number": np.stack([other, degree], axis=1).astype(np.float32),
        "scaled": np.stack([(degree - 2.5) / 1.7, other], 1).astype(np.float32),
        "no degree": np.stack([other, -other], axis=1).astype(np.float32),
    }


@pytest.mark.parametrize("kind", columns(np.arange(2)))
def test_degrees_in_columns_of_numbers_are_refused(kind):
    graphs = toys.random_graphs(5, seed=1)
    x = columns(graphs.degrees())[kind]
    width = x.shape[1] if x.ndim == 2 else 9
    graphs = toys.replace(graphs, x=x, num_features=width)
    privacy = PrivacySettings(edge_epsilon=1.0, edge_post="round")
    if kind == "no degree":
        check_features(graphs, privacy)
        return
    with pytest.raises(ConfigError, match="are the degrees of its nodes, or one of"):
        check_features(graphs, privacy)


@pytest.mark.parametrize("kind", ["edges", "features"])
def test_a_run_that_rewires_or_shuffles_what_gets_noise_is_refused(kind):
    """One edge less would change what else is rewired, and hide degrees."""
    with pytest.raises(ConfigError, match="split-noise-features must be 0 in a run"):
        toys.resolved("fedavg", **NOISY, **{f"split-noise-{kind}": 0.1})
