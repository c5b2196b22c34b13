"""FedGKD's distillation step by step against an independent one, and its settings."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import toys
from oracles import fedgkd_distil as oracle
from toys_fedgkd import fitted, make

from clients import fedgkd_distillation as d
from clients.fedgkd_distillation import match_gradients
from clients.models.node_gnn import NodeGNN
from fedgraph_flwr.core.wire import Parcel, with_prefix
from fedgraph_flwr.methods.fedgkd import NOISE_SEED, X0, Y0, FedGKDParams
from strategies.fedgkd import FedGKD

D, C, M = 6, 3, 2
Y = np.repeat(np.arange(C), M)
PAIRS = len(Y) * (len(Y) - 1) // 2
# By name: the recipe's, then the oracle's.
DEFAULT = {"gamma": 0.3, "temperature": 0.6, "scale": 1.0}
OTHERS = {
    "as in the paper": {},
    "in units of the data": {"scale": 0.2, "gamma": -0.2},
    "few edges, cold": {"gamma": 0.75, "temperature": 0.25},
}


def doubles_model(seed):
    generator = torch.Generator().manual_seed(seed)
    model = NodeGNN(
        D, C, hidden_dim=5, num_layers=2, dropout=0.5, generator=generator
    ).double()
    with torch.no_grad():
        for conv in model.convs:  # zeros at first
            conv.bias.uniform_(-0.3, 0.3, generator=generator)
    return model


def weights_of(model):
    named = [(c.weight, c.bias) for c in model.convs]
    named.append((model.readout.weight, model.readout.bias))
    return [[t.detach().numpy() for t in pair] for pair in named]


def draws(steps, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(len(Y), D)), rng.logistic(size=(steps, PAIRS))


def told(recipe):
    return {
        "rate": recipe.learning_rate,
        "gamma": recipe.gamma,
        "tau_g": recipe.temperature,
        "scale": recipe.scale,
    }


def assert_equal(found, want, tolerance):
    for name in ("x", "h", "y", "adjacency"):
        ours, theirs = getattr(found, name).numpy(), getattr(want, name)
        np.testing.assert_allclose(ours, theirs, err_msg=name, **tolerance)
    np.testing.assert_allclose(found.losses, want.losses, **tolerance)


# The whole loop ----------------------------------------------------------------------


@pytest.mark.parametrize("name", OTHERS)
def test_three_steps_of_distillation_are_those_of_the_oracle(name):
    """Features, labels, edges, embeddings and losses; edges come and go meanwhile."""
    model, (x0, noise) = doubles_model(1), draws(3)
    recipe = d.Recipe(steps=3, learning_rate=0.1, **{**DEFAULT, **OTHERS[name]})
    start = (torch.from_numpy(x0), torch.from_numpy(Y), torch.from_numpy(noise))
    found = d.distil(model, *start, recipe)
    want = oracle.distil(weights_of(model), x0, Y, noise, **told(recipe))
    assert_equal(found, want, {"rtol": 0, "atol": 2e-6})
    assert 0 < want.adjacency.sum() < len(Y) * (len(Y) - 1)
    assert np.abs(want.x - recipe.scale * x0).max() > 0.1 * recipe.scale
    assert len(want.losses) == 3


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_only_the_steps_that_are_asked_for_are_made(steps):
    """More noise than steps, and none at all: the common start and its own graph."""
    model, (x0, noise) = doubles_model(2), draws(3)
    recipe = d.Recipe(steps=steps, learning_rate=0.1, **DEFAULT)
    start = (torch.from_numpy(x0), torch.from_numpy(Y), torch.from_numpy(noise))
    found = d.distil(model, *start, recipe)
    want = oracle.distil(weights_of(model), x0, Y, noise[:steps], **told(recipe))
    assert_equal(found, want, {"rtol": 0, "atol": 2e-6})


@pytest.mark.parametrize("name", OTHERS)
def test_three_steps_of_gradient_matching_are_those_of_the_oracle(name):
    """Static distillation: a gradient of a gradient, by features and by edges."""
    final, (x0, noise) = doubles_model(6), draws(3)
    rng, starts = np.random.default_rng(7), []
    for model in map(doubles_model, (3, 4, 5)):
        targets = [rng.normal(size=w.shape) for w in model.parameters()]
        starts.append((model, [torch.from_numpy(t) for t in targets]))
    recipe = d.Recipe(steps=3, learning_rate=0.1, **{**DEFAULT, **OTHERS[name]})
    start = (torch.from_numpy(x0), torch.from_numpy(Y), torch.from_numpy(noise))
    found = match_gradients(starts, final, *start, recipe)
    want = oracle.match(
        [(weights_of(model), targets) for model, targets in starts],
        weights_of(final), x0, Y, noise, **told(recipe),
    )  # fmt: skip
    assert_equal(found, want, {"rtol": 0, "atol": 2e-6})
    assert len(want.losses) == 3


# What a client sends -----------------------------------------------------------------

SETTINGS = {"fedgkd.distil-steps": 3}


@pytest.fixture
def eager(monkeypatch):
    """Make steps that one sees, and edges that come and go."""
    quick = {"learning_rate": 0.05, "gamma": 0.1, "temperature": 0.5}
    monkeypatch.setattr("clients.fedgkd.Recipe", partial(d.Recipe, **quick))


def features_by_oracle(client, weights, *, steps=3, **changes):
    """Task features for ``SETTINGS`` and what the server sent, from ``weights``."""
    down = client.round.extras
    noise = d.gumbel_noise(int(down[NOISE_SEED][0]), steps, len(down[Y0]))
    settings = {"gamma": 0.1, "tau_g": 0.5, "rate": 0.05}
    return oracle.distil(
        weights, down[X0], down[Y0], noise.numpy(),
        **{**settings, "scale": 1.0, **changes},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {}),
        ({"fedgkd.x0-scale": "data"}, {"scale": None}),
        ({"fedgkd.distil-steps": 13}, {"steps": 13}),
    ],
)
@pytest.mark.usefixtures("eager")
def test_a_client_sends_what_it_distils_from_its_trained_model(
    tmp_path, options, changes
):
    """... with the settings of the run, and not from the model that it received."""
    client = make(tmp_path, **{**SETTINGS, "learning-rate": 0.1, **options})
    received = [[t.copy() for t in pair] for pair in weights_of(client.model)]
    fitted(client)
    if "scale" in changes:
        changes = {"scale": client.job.data.partition.graphs.x.astype(float).std()}
    sent = client.features()
    want = features_by_oracle(client, weights_of(client.model), **changes)
    other = features_by_oracle(client, received, **changes)
    for part in ("x", "h"):
        ours = sent[f"fedgkd/features-{part}"]
        np.testing.assert_allclose(ours, getattr(want, part), rtol=0, atol=2e-3)
        assert np.abs(ours - getattr(other, part)).max() > 2e-2


@pytest.mark.usefixtures("eager")
def test_a_client_matches_gradients_of_its_training_nodes(tmp_path):
    """Static: a new random model in each step, and the model that was received."""
    options = {**SETTINGS, "fedgkd.distillation": "static", "learning-rate": 0.1}
    client = make(tmp_path, **options)
    received = [[t.copy() for t in pair] for pair in weights_of(client.model)]
    fitted(client)
    down, graph = client.round.extras, client.graph
    seed, starts = int(down[NOISE_SEED][0]), []
    for model, _ in client._random_starts(seed):
        logs = torch.log_softmax(model(graph, None), 1)
        loss = -sum(logs[v, graph.y[v]] for v in graph.train.tolist()) / len(
            graph.train
        )
        starts.append(
            (weights_of(model), torch.autograd.grad(loss, model.parameters()))
        )
    first = [weights[0][0] for weights, _ in starts]
    assert len({w.tobytes() for w in first}) == 3
    noise = d.gumbel_noise(seed, 3, len(down[Y0]))
    want = oracle.match(
        starts, received, down[X0], down[Y0], noise.numpy(),
        rate=0.05, gamma=0.1, tau_g=0.5, scale=1.0,
    )  # fmt: skip
    sent = client.features()
    for part in ("x", "h"):
        ours = sent[f"fedgkd/features-{part}"]
        np.testing.assert_allclose(ours, getattr(want, part), rtol=0, atol=2e-3)
    assert np.abs(want.x - down[X0]).max() > 0.05


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_clients_of_equal_data_send_equal_features(tmp_path, kind):
    """Noise and random starts are common: what differs comes from the models."""
    options = {"fedgkd.distillation": kind, "dropout": 0.0}
    partition = toys.make_node_partition()
    one, other = (
        fitted(make(tmp_path, partition=replace(partition, client_id=c), **options))
        for c in (0, 2)
    )
    expected, found = one.features(), other.features()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_fedpub_sends_the_embedding_of_its_trained_model(tmp_path):
    client = make(tmp_path, method="fedpub", **{"learning-rate": 0.1})
    of_received = client.embedding()
    reply = client.participate(toys.parcel(client), {"server-round": 1})
    trained = {n: t.clone() for n, t in client.tensors().items()}
    sent = reply.arrays["fedpub/embedding"]
    other = make(tmp_path / "other", method="fedpub")
    with torch.no_grad():
        for name, tensor in other.tensors().items():
            tensor.copy_(trained[name])
    of_trained = other.embedding()
    np.testing.assert_array_equal(sent, of_trained)
    assert np.abs(sent - of_received).max() > 1e-2


# No setting is without effect --------------------------------------------------------

OF_CLIENTS = {
    "distillation": "static",
    "distil-steps": 12,
    "x0-scale": "data",
    "feature-map": "H",
    "proximal-lambda": 5.0,
}
OF_THE_START = {"nodes-per-class": 4}
OF_THE_SERVER = {"tau": 0.3, "tau-s": 1.0, "kernel": "square"}


def test_every_setting_is_tested_below():
    tested = {**OF_CLIENTS, **OF_THE_START, **OF_THE_SERVER}
    assert {f"fedgkd.{n}" for n in tested} == set(FedGKDParams.config_fields())


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return fitted(make(tmp_path_factory.mktemp("usual"))).features()


@pytest.mark.parametrize("name", OF_CLIENTS)
def test_each_setting_of_clients_changes_the_features_sent(tmp_path, usual, name):
    found = fitted(make(tmp_path, **{f"fedgkd.{name}": OF_CLIENTS[name]})).features()
    differ = found.keys() != usual.keys()
    assert differ or any(np.abs(found[n] - usual[n]).max() > 1e-5 for n in usual)


def server(**overrides):
    """A server after roll call, of three clients with six features and classes."""
    run = toys.resolved("fedgkd", **{f"fedgkd.{k}": v for k, v in overrides.items()})
    made = FedGKD(run.settings, run.params, experiment="e")
    info = type("Info", (), {"num_features": D, "num_classes": C})
    made.clients = dict.fromkeys(range(3), info)
    made.initialise({})
    return made


@pytest.mark.parametrize("name", OF_THE_START)
def test_each_setting_of_the_start_changes_what_is_sent_down(name):
    plain, changed = (
        s.extra_downlink(2) for s in (server(), server(**{name: OF_THE_START[name]}))
    )
    assert not np.array_equal(plain[X0], changed[X0])


@pytest.mark.parametrize("name", OF_THE_SERVER)
def test_each_setting_of_the_relator_changes_the_weights(name):
    rng = np.random.default_rng(0)
    replies = {
        c: Parcel(
            arrays=with_prefix(
                "fedgkd/features-",
                {"x": rng.normal(size=(8, 4)), "h": rng.normal(size=(8, 3))},
            ),
            metrics={},
        )
        for c in range(3)
    }
    plain, changed = (
        s.personalise(1, replies)
        for s in (server(), server(**{name: OF_THE_SERVER[name]}))
    )
    assert np.abs(plain - changed).max() > 1e-3


@pytest.mark.parametrize(("share", "is_warned"), [(0.45, False), (0.55, True)])
def test_a_client_that_makes_up_half_of_all_averages_is_named(
    monkeypatch, share, is_warned
):
    """The largest column of q, of three clients, sums to 3 times the share."""
    q = np.full((3, 3), (1 - share) / 2)
    q[:, 1] = share
    lines = []
    monkeypatch.setattr(
        "strategies.fedgkd.log", lambda _, text, *rest: lines.append(text % rest)
    )
    server()._tell(2, np.eye(3), q)
    warned = [line for line in lines if "client 1 makes up 55 % of all" in line]
    assert len(warned) == is_warned
