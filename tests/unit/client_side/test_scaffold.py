"""SCAFFOLD: its invariants, and two quadratics on whose optimum FedAvg stalls."""

import numpy as np
import pytest
import toys

from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.wire import Parcel, select, with_prefix
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.scaffold import CONTROL, ScaffoldParams
from simulations.tiny_runs import OF_TASK
from strategies.scaffold import Scaffold

SGD = {"optimizer": "sgd", "learning-rate": 0.1, "weight-decay": 0.0}
KINDS = pytest.mark.parametrize("kind", ["gradient", "difference"])


def on(task):
    named = toys.row(f"fedavg {task}").task.name
    return {"task": task, **OF_TASK.get(named, {}), "dropout": 0.0}


def same(one, other, **close):
    for name, array in other.models["global"].items():
        np.testing.assert_allclose(one.models["global"][name], array, **close)


@KINDS
@pytest.mark.parametrize("task", ["graph-classification", "node-classification"])
def test_round_1_is_fedavgs_and_the_next_is_not(run, task, kind):
    config = {**on(task), **SGD, "scaffold.control": kind}
    for rounds, is_same in ((1, True), (2, False)):
        some = {**config, "num-server-rounds": rounds}
        ours, theirs = run("scaffold", **some), run("fedavg", **some)
        found = [
            np.array_equal(ours.models["global"][n], a)
            for n, a in theirs.models["global"].items()
        ]
        assert all(found) is is_same


@KINDS
def test_one_step_is_gradient_descent_and_one_client_trains_alone(run, kind):
    config = {**on("node-classification"), **SGD, "scaffold.control": kind}
    one_step = {**config, "local-epochs": 1, "weighting": "uniform"}
    for some in (one_step, {**config, "num-clients": 1}):
        same(run("scaffold", **some), run("fedavg", **some), rtol=1e-4, atol=1e-6)


@KINDS
def test_controls_are_gradients_and_add_up(tmp_path, kind):
    """Plain descent: with one step both options are the gradient at W."""
    config = {**on("node-classification"), **SGD, "scaffold.control": kind}
    config |= {"local-epochs": 1}
    parts = [toys.make_node_partition(seed=k) for k in (0, 1)]
    clients = [
        toys.make_client(tmp_path / str(k), "scaffold", partition=part, **config)
        for k, part in enumerate(parts)
    ]
    settings = clients[0].job.settings
    server = Scaffold(settings, ScaffoldParams(), experiment="e")
    server.clients = {c: toys.info(c) for c in (0, 1)}
    named = clients[0].tensors()
    server.initialise({n: named[n].detach().numpy().copy() for n in named})
    before = dict(server.theta)
    replies = {}
    for c, client in enumerate(clients):
        mail = Parcel(arrays=server.outgoing(1)[c])
        replies[c] = client.participate(mail, {"server-round": 1})
    for reply in replies.values():
        trained = select(SHARED, reply.arrays)
        for name, moved in select(CONTROL, reply.arrays).items():
            step = (before[name] - trained[name]) / 0.1
            np.testing.assert_allclose(moved, step, atol=1e-5)
    server.step(1, replies)
    own = [c.extra_state() for c in clients]
    for name, common in server.control.items():
        mean = sum(o[CONTROL + name].numpy() for o in own) / 2
        np.testing.assert_allclose(common, mean, atol=1e-6)
    mail = Parcel(arrays=server.outgoing(2)[0], facts={"last-round": 1})
    again = toys.make_client(tmp_path / "0", "scaffold", partition=parts[0], **config)
    sent = again.participate(mail, {"server-round": 2}).arrays
    for name, common in server.control.items():  # the step is g + c - c_i
        step = (server.theta[name] - sent[SHARED + name]) / 0.1
        np.testing.assert_allclose(step, sent[CONTROL + name] + common, atol=1e-5)


def test_it_reaches_an_optimum_on_which_fedavg_stalls():
    """Losses a_i (w - b_i)^2 / 2, five steps; our server, and a client by hand."""
    a, b, rate, steps = np.array([1.0, 4.0]), np.array([0.0, 1.0]), 0.1, 5
    best = (a * b).sum() / a.sum()
    for is_controlled in (True, False):
        server = Scaffold(toys.run_settings(), ScaffoldParams(), experiment="e")
        server.clients = {c: toys.info(c) for c in (0, 1)}
        server.initialise({"w": np.array(5.0)})
        own = np.zeros(2)
        for number in range(1, 400):
            replies = {}
            for c, sent in server.outgoing(number).items():
                w = start = float(sent[SHARED + "w"])
                common = float(sent[CONTROL + "w"])
                for _ in range(steps):
                    w -= rate * (a[c] * (w - b[c]) - own[c] + common)
                new = own[c] - common + (start - w) / (steps * rate)
                new = new if is_controlled else 0.0
                made = with_prefix(SHARED, {"w": np.array(w)})
                made |= with_prefix(CONTROL, {"w": np.array(new - own[c])})
                replies[c], own[c] = Parcel(arrays=made), new
            server.step(number, replies)
        far = abs(float(server.theta["w"]) - best)
        assert bool(far < 1e-8) is is_controlled


def test_absent_clients_count_in_the_common_control():
    server = Scaffold(toys.run_settings(), ScaffoldParams(), experiment="e")
    server.clients = {c: toys.info(c) for c in range(4)}
    server.initialise({"w": np.zeros(1)})
    arrays = {SHARED + "w": np.ones(1), CONTROL + "w": np.full(1, 2.0)}
    server.step(1, {3: Parcel(arrays=arrays)})
    assert (server.theta["w"], server.control["w"]) == (1.0, 0.5)


def test_differences_need_plain_descent_with_a_rate():
    second = {"scaffold.control": "difference"}
    for wrong in ({}, {"optimizer": "sgd", "learning-rate": 0.0}):
        with pytest.raises(ConfigError, match=r"scaffold\.control 'difference' reads"):
            toys.resolved("scaffold", **second, **wrong)
