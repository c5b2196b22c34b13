"""Weights of classes in the loss: scikit-learn's, in torch's loss, at every method."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import toys
from sklearn.utils.class_weight import compute_class_weight
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from clients.training import read_weights
from fedgraph_flwr.core.data import balanced_weights
from fedgraph_flwr.core.errors import ConfigError, RunFailedError, WireError
from fedgraph_flwr.core.tasks import NODE_CLASSIFICATION
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.server_app import weights_of_all
from simulations.tiny_runs import OF_TASK

NODES = dict(OF_TASK[NODE_CLASSIFICATION.name])
CASES = {  # what is trained, and settings without which losses have further terms
    "fedavg": {},
    "moon": {"moon.mu": 0.0},
    "fedavg node-classification": NODES,
    "fedgkd": {"fedgkd.proximal-lambda": 0.0},
    "fedavg multi-task": {},
    "fgcl": {"fgcl.views": "clean", "privacy.edge-epsilon": 0.0},
}


@pytest.mark.parametrize(
    ("y", "classes"), [([0, 0, 0, 1], 2), ([0, 1, 2, 2, 2, 2], 3), ([1, 1], 2)]
)
def test_weights_are_scikit_learns_and_1_for_a_class_without_labels(y, classes):
    found = balanced_weights(np.bincount(y, minlength=classes))
    known = np.unique(y)
    expected = np.ones(classes)
    expected[known] = compute_class_weight("balanced", classes=known, y=y)
    expected[known] *= len(known) / classes  # C counts all classes
    np.testing.assert_allclose(found, expected)


def skewed(settings, client_id):
    """Give a toy client more labels of class 0 than of others."""
    one = toys.federation(settings, client_id)
    y = one.graphs.y.copy()
    y[one.train[:5]] = 0
    return toys.renewed(one, graphs=replace(one.graphs, y=y))


def client_of(tmp_path, case, **options):
    settings = toys.resolved(case, **CASES[case], **options).settings
    data = skewed(settings, 1)
    client = toys.make_client(
        tmp_path, case, partition=data, dropout=0.0, **CASES[case], **options
    )
    toys.begun(client)
    if hasattr(client, "freeze"):
        client.freeze()
    return client


@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_torchs_weighted_one(tmp_path, case):
    client = client_of(tmp_path, case, **{"class-weights": "balanced"})
    graphs, train = client.data.partition.graphs, client.data.partition.train
    batch = (
        client.data.graphs.batch(train) if "whole" not in vars(client.data) else None
    )
    y = torch.from_numpy(graphs.y[train])
    classes = range(2 if graphs.has_tasks else graphs.num_classes)
    counts = np.array([(graphs.y[train] == k).sum(0) for k in classes])
    weight = torch.tensor(counts.sum(0) / (len(counts) * counts)).float()
    with torch.no_grad():
        found = client.loss(batch or client.graph, toys.seeded())
        if batch is None:
            logits = client.logits(None)[torch.from_numpy(train)]
        elif graphs.has_tasks:
            logits = client.logits(batch, client.data.nodes_of(batch))
        else:
            logits = client.model(batch, None)
        if graphs.has_tasks:
            each, known = torch.where(y == 1, weight[1], weight[0]), ~y.isnan()
            rows = logits[known], y[known]
            expected = binary_cross_entropy_with_logits(*rows, each[known])
            plain = binary_cross_entropy_with_logits(*rows)
        else:
            expected, plain = cross_entropy(logits, y, weight), cross_entropy(logits, y)
    torch.testing.assert_close(found, expected)
    assert abs(float(found - plain)) > 1e-5


@pytest.mark.parametrize(
    "case", ["fedavg", "fedavg multi-task", "fedavg node-classification"]
)
def test_weights_of_equal_clients_are_those_of_each(run, toy_data, case):
    def twin(settings, client_id):
        one = replace(skewed(settings, 1), client_id=client_id)
        return replace(one, graph_ids=1000 * client_id + one.graph_ids)

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", twin)
        found = {
            kind: run(case, **CASES[case], **{"class-weights": kind}).sha
            for kind in ("balanced", "federation", "none")
        }
    assert found["balanced"] == found["federation"] != found["none"]


def test_weights_of_all_are_those_of_the_sum():
    counts = {0: (5, 1), 1: (3, 1)}
    clients = {c: toys.info(c, train_counts=k) for c, k in counts.items()}
    strategy = SimpleNamespace(clients=clients, trainers=lambda: sorted(clients))
    assert read_weights(weights_of_all(strategy), (2,)) == pytest.approx([0.625, 2.5])
    clients[1] = toys.info(1, train_counts=(1, 1, 1))
    with pytest.raises(ConfigError, match="needs the same classes at all clients"):
        weights_of_all(strategy)


@pytest.mark.parametrize("text", ["", "[1]", "[1, -1]", "[1, NaN]", '"ab"', "[[[" * 9])
def test_a_client_takes_no_odd_weights(text):
    with pytest.raises(WireError, match="got weights of classes"):
        read_weights(text, (2,))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (toys.tiny("adafgl"), "'adafgl', got 'federation': its branches"),
        (toys.tiny("fclg"), "'none', as no class is learned, for unsupervised"),
        (
            {**toys.tiny("fedavg multi-task"), "dataset": "ESOL"},
            "'none', as no class is learned, for multi-task regression",
        ),
        (
            {**toys.tiny("fedavg"), "privacy.update-clip": 1.0,
             "privacy.update-noise": 1.0},
            "must not be 'federation' with noise on updates",
        ),
    ],
)  # fmt: skip
def test_what_knows_no_weights_of_classes_refuses_the_key(config, words):
    words = words.replace("'adafgl'", "adafgl")
    with pytest.raises(ConfigError, match=words):
        resolve({**defaults(), **config, "class-weights": "federation"})


def test_a_site_that_keeps_scores_stops_the_run_before_training(run, tmp_path):
    nodes = toys.two_sites(tmp_path, scores=False)
    with pytest.raises(RunFailedError, match=r"PolicyError \(scores\)"):
        run("fedavg", node_configs=nodes, **{"class-weights": "federation"})


def test_a_loss_that_reads_no_weights_is_refused_by_name(tmp_path, monkeypatch):
    client = client_of(tmp_path, "fedavg", **{"class-weights": "balanced"})
    client.loss = lambda batch, _: client.model(batch, None).sum()
    with pytest.raises(ConfigError, match="loss of method 'fedavg' does not read it"):
        client.train()
