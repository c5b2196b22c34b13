"""Rounds of FGCL, and what is refused before training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import toys

from clients.fgcl import FGCLClient
from clients.graphs import noisy_view
from clients.losses import masked_bce
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.resolve import defaults, resolve

ROUND = {"server-round": 1}
ONE = {"fgcl.views": "one"}
TWO = {"fgcl.views": "two"}
CLEAN = {"fgcl.views": "clean", "privacy.edge-epsilon": 0.0}
TOTAL = {"privacy.edge-epsilon": 1.0, "privacy.edge-epsilon-of": "total"}
LABELS = {"features": "labels"}  # degrees tell edges
EDGES = {**LABELS, "privacy.edge-epsilon": 1.0}
UPDATES = {"privacy.update-clip": 0.5, "privacy.update-noise": 3.0}


def make(tmp_path, **overrides) -> FGCLClient:
    partition = toys.with_tasks(toys.make_partition())
    return toys.make_client(tmp_path, "fgcl", partition=partition, **overrides)


def prepared(client) -> FGCLClient:
    """As before the first batch of round 1."""
    toys.begun(client)
    client.model.train()
    client.look(0)
    return client


def bare(partition):
    """The same client without edges."""
    graphs = partition.graphs
    none = {"edge_index": graphs.edge_index[:, :0], "edge_ptr": 0 * graphs.edge_ptr}
    return toys.replace(partition, graphs=toys.replace(graphs, **none))


def first_batch(client):
    return client.job.data.graphs.batch(client.job.data.partition.train[:8])


def views_of(client):
    """Its views, each by itself and nothing of them made beforehand."""
    return [noisy_view.NoisyView(t, device=toys.CPU) for t in client.triangles]


# The loss ------------------------------------------------------------------------


def test_one_view_is_cross_entropy_on_it(tmp_path):
    client = prepared(make(tmp_path, **ONE, dropout=0.0))
    batch = first_batch(client)
    logits = client.model(batch, toys.cut(views_of(client)[0], batch.positions), None)
    torch.testing.assert_close(client.loss(batch, None), masked_bce(logits, batch.y))


def test_without_edges_only_nodes_matter(tmp_path):
    partition = toys.with_tasks(toys.make_partition())
    options = {"fgcl.views": "no-edges", "privacy.edge-epsilon": 0.0}
    sent = []
    for name, part in (("a", partition), ("b", bare(partition))):
        client = toys.make_client(tmp_path / name, "fgcl", partition=part, **options)
        sent.append(client.fit(toys.shared_arrays(client), ROUND)[0])
    assert all(map(np.array_equal, *sent))


def test_scores_are_those_of_view_0(tmp_path):
    client = prepared(make(tmp_path, **TWO))
    (triangles,) = client.held_out_views.views(0, 0)
    view = noisy_view.NoisyView(triangles, device=toys.CPU)
    (batch,), (nodes,) = client.data.evaluation, client.data.evaluation_nodes
    expected = client.model(batch, toys.cut(view, batch.positions), None)
    torch.testing.assert_close(client.logits(batch, nodes), expected)


def test_evaluation_is_cut_where_matrices_would_not_fit(tmp_path, monkeypatch):
    sizes = np.diff(toys.make_partition().graphs.node_ptr)
    whole, cut = (make(tmp_path / name, **ONE, dropout=0.0) for name in "ab")
    expected = whole.evaluate(toys.shared_arrays(whole), ROUND)[2]
    monkeypatch.setattr(noisy_view, "MAX_CELLS", int((sizes**2).max()))
    found = cut.evaluate(toys.shared_arrays(cut), ROUND)[2]
    assert len(cut.held_out.parts(np.arange(len(cut.job.data.partition.held_out)))) > 1
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name != "weights-sha256":
            assert found[name] == pytest.approx(value, rel=1e-5)


# Refused before training --------------------------------------------------------------

BONDS = {"features": "atoms+bonds"}


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fgcl", {"privacy.edge-epsilon": 0.0}, "trains on noisy graphs, but"),
        ("fgcl", {"fgcl.views": "clean"}, "uses no noise, but privacy.edge-epsilon"),
        ("fgcl", {**TOTAL, "privacy.noise-mode": "per_round"}, "of must be 'view' whe"),
        ("fgcl", {"privacy.edge-epsilon": -1.0}, "must be a finite number >= 0"),
        ("fgcl", {"privacy.edge-epsilon": math.inf}, "must be a finite number >= 0"),
        ("fgcl", {"features": "atoms"}, "its degree block is a function of the edges"),
        ("fgcl", {**BONDS, "privacy.keep-edge-features": True}, "noise does not cover"),
        ("fgcl", UPDATES, "privacy.both to true to have both"),
        ("fgcl", {"dataset": "synthetic", "features": "labels"}, "is for multi-task"),
        ("moon", {"dataset": "BACE"}, "is for graph classification, which needs"),
        (
            "fedavg",
            {**EDGES, "privacy.edge-post": "clamp01"},
            "must be 'round' for met",
        ),
        ("gcfl+", {**EDGES, "privacy.noise-mode": "per_round"}, "must be 'once' for"),
        ("fedavg", {**EDGES, "features": "degree"}, "degrees of nodes are functions"),
        ("fedavg", {"privacy.update-noise": 0.0}, "privacy.update-noise must be"),
        ("fedavg", {"privacy.update-delta": 1.0}, "privacy.update-delta must be"),
    ],
)
def test_what_contradicts_itself_is_refused(method, options, message):
    own = {**defaults(), **toys.tiny(method), **options}
    with pytest.raises(ConfigError, match=message):
        resolve(own)


@pytest.mark.parametrize(
    ("options", "features"),
    [
        ({}, "atoms-no-degree"),
        ({"privacy.keep-edge-features": True}, "atoms"),
        (CLEAN, "atoms"),
    ],
)
def test_private_runs_leave_out_the_degree_by_default(options, features):
    own = {**defaults(), **toys.tiny("fgcl"), **options, "features": "auto"}
    assert resolve(own).settings.features == features
