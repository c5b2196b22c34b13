"""Noise on gradients of single graphs: what is clipped, drawn, charged and refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from oracles.per_graph import clipped, gradients
from scipy import stats

from clients.privacy import per_graph
from clients.privacy.accounts import Budgets
from clients.privacy.gaussian import epsilon_of, epsilon_of_steps
from clients.privacy.per_graph import clip_scale
from clients.privacy.stream import noise_stream
from fedgraph_flwr.core.errors import ConfigError, PrivacyBudgetError

ON = {"privacy.graph-clip": 0.5, "privacy.graph-noise": 1.5, "batch-size": 4}
EVERYONE = {**ON, "batch-size": 64, "dropout": 0.0, "shared-group": "all"}
MODELS = [
    ("fedavg", {}),
    ("moon", {}),
    ("fedprox", {"fedprox.mu": 5.0}),
    *(("fedavg", {"encoder": e}) for e in ("gin", "gcn", "sage", "graphconv", "gatv2")),
    ("fedavg multi-task", {}),
    ("fedavg multi-task", {"encoder": "gin"}),
    ("fedgmtl", {}),
]


def steps_of(tmp_path, method="fedavg", num_epochs=1, *, partition=None, **more):
    """A client before its first step, and the steps."""
    if partition is None:
        partition = toys.make_partition(num_graphs=20, max_nodes=8)
        if "multi-task" in method or method == "fedgmtl":
            partition = toys.with_tasks(partition)
    client = toys.make_client(
        tmp_path, method, partition=partition, **{**EVERYONE, **more}
    )
    toys.begun(client)
    client.model.train()
    if method == "moon":
        client.freeze()
    elif method == "fedgmtl":
        client.relate()
    steps = client_steps(client, num_epochs)
    steps._masks = None  # no dropout
    return client, steps


def client_steps(client, num_epochs=1):
    from clients.noisy_steps import NoisySteps

    return NoisySteps(client, num_epochs, client._inputs())


def summed(client, steps, positions, clip):
    """What a step adds noise to, as one vector, and by which way it came."""
    way = steps._kept if steps._is_kept else steps._apart
    total = way(positions, clip)
    flat = [total.get(p, torch.zeros_like(p)) for p in client.model.parameters()]
    return torch.cat([g.flatten() for g in flat]).detach().double()


@pytest.mark.parametrize(("method", "more"), MODELS)
def test_the_sum_is_that_of_each_graphs_clipped_gradient(tmp_path, method, more):
    client, steps = steps_of(tmp_path, method, **more)
    steps._masks = None
    train = client.data.partition.train
    each = gradients(client, train)
    for clip in (0.05, float(each.norm(dim=1).median()), math.inf):
        found = summed(client, steps, train, clip)
        expected = clipped(each, clip).sum(0)
        np.testing.assert_allclose(found, expected, atol=3e-6 * each.norm(), rtol=0)
    is_kept = method in ("fedavg", "moon", "fedprox") and "gatv2" not in more.values()
    assert steps._is_kept == (is_kept or "gin" in more.values())


@pytest.mark.parametrize("more", [{}, {"encoder": "gcn"}])
def test_a_graph_less_moves_the_sum_by_the_clip_at_most(tmp_path, more):
    client, steps = steps_of(tmp_path, **more)
    train, clip = client.data.partition.train, 0.1
    whole = summed(client, steps, train, clip)
    moved = [
        (whole - summed(client, steps, np.delete(train, k), clip)).norm()
        for k in range(len(train))
    ]
    assert max(moved) <= clip * (1 + 1e-5)
    assert min(moved) > 0


def test_a_gradient_that_overflows_counts_for_nothing():
    squares = torch.tensor([0.0, 4.0, math.inf, math.nan], dtype=torch.float64)
    np.testing.assert_array_equal(clip_scale(squares, 1.0), [1, 0.5, 0, 0])
    x, graph = torch.tensor([[1.0], [math.inf]]), torch.arange(2)
    part = torch.nn.Linear(1, 1)
    out = x * part.weight
    rows = {part: per_graph.Rows(x, out, graph)}
    total = per_graph.by_book_keeping(out.sum(), rows, 2, math.inf)
    assert float(total[part.weight]) == 1


def test_a_step_is_the_sum_and_noise_on_every_tensor_by_the_expected_batch(tmp_path):
    """Also on private tensors; also if nobody is drawn."""
    client, steps = steps_of(tmp_path, **{"shared-group": "convs", "batch-size": 4})
    n = len(client.data.partition.train)
    assert steps._q * n == pytest.approx(4)
    assert steps._per_epoch == 3
    client.optimizer.step = lambda: None
    for positions in (client.data.partition.train[:7], np.array([], int)):
        steps._rng = noise_stream("", 0, "test")
        steps._step(positions)
        got = torch.cat([p.grad.flatten() for p in client.model.parameters()])
        total = summed(client, steps, positions, 0.5) if len(positions) else 0
        noise = got.double() * 4 - total
        assert stats.kstest(noise / (0.5 * 1.5), "norm").pvalue > 0.01
    for parameter in client.model.parameters():
        assert parameter.grad.count_nonzero() == parameter.numel()


@pytest.mark.parametrize("method", ["fedprox", "fedprox multi-task", "fedgmtl"])
def test_what_depends_on_weights_alone_is_added_after_the_noise(tmp_path, method):
    key, found = "fedgmtl.task-reg" if method == "fedgmtl" else "fedprox.mu", []
    for weight in (0.0, 10.0):
        client, steps = steps_of(tmp_path / f"{weight}", method, **{key: weight})
        client.optimizer.step = lambda: None
        with torch.no_grad():
            for parameter in client.model.parameters():
                parameter += 1
        steps._rng = noise_stream("", 0, "test")
        steps._step(client.data.partition.train)
        found.append([p.grad.clone() for p in client.model.parameters()])
    client.model.zero_grad()
    client.penalty().backward()
    for parameter, without, added in zip(
        client.model.parameters(), *found, strict=True
    ):
        expected = 0 if parameter.grad is None else parameter.grad
        torch.testing.assert_close(added - without, expected + 0 * added)


@pytest.mark.parametrize("secret", ["", "0f"])
def test_each_graph_is_drawn_by_itself_with_the_same_probability(tmp_path, secret):
    client, steps = steps_of(tmp_path, **{"batch-size": 4})
    steps._rng = noise_stream(secret, 0, "test")
    train, drawn = client.data.partition.train, []
    steps._step = drawn.append
    for _ in range(1000):
        steps.epoch()
    counts = np.array([np.isin(train, taken) for taken in drawn]).sum(0)
    trials = len(drawn)
    expected, sd = trials / 3, math.sqrt(trials * 2 / 9)
    assert np.abs(counts - expected).max() < 4 * sd
    sizes = np.bincount([len(taken) for taken in drawn], minlength=13)
    binomial = stats.binom.pmf(np.arange(13), 12, 1 / 3) * trials
    likely = slice(8)
    expected = binomial[likely] * sizes[likely].sum() / binomial[likely].sum()
    assert stats.chisquare(sizes[likely], expected).pvalue > 1e-3


def test_draws_follow_from_content_and_not_from_the_order_of_the_run(tmp_path):
    def drawn(root, change=0.0, server_round=1):
        client = toys.make_client(root, **EVERYONE)
        arrays = [a + np.float32(change) for a in toys.shared_arrays(client)]
        return toys.begun(client, server_round, arrays)

    one = client_steps(drawn(tmp_path))._rng.random(5)
    account = drawn(tmp_path).spent()["privacy/graph-epsilon"]
    np.testing.assert_array_equal(client_steps(drawn(tmp_path))._rng.random(5), one)
    assert drawn(tmp_path).spent()["privacy/graph-epsilon"] == account
    other = client_steps(drawn(tmp_path, 0.5))._rng.random(5)
    assert (other != one).all()
    expected = epsilon_of_steps({(1.0, 1.5): 2}, 1e-5)
    spent = drawn(tmp_path).spent()
    assert spent["privacy/graph-epsilon"] == pytest.approx(expected)
    assert spent["privacy/graph-epsilon-lifetime"] == spent["privacy/graph-epsilon"]


def test_steps_are_charged_once_and_before_the_first(tmp_path, monkeypatch):
    client, _ = steps_of(tmp_path / "a")
    first = client.spent()["privacy/graph-epsilon"]

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("clients.noisy_steps.NoisySteps._step", crash)
    for _ in range(2):
        client = toys.begun(toys.make_client(tmp_path / "b", **EVERYONE))
        with pytest.raises(KeyboardInterrupt):
            client.train(1)
        assert client.spent()["privacy/graph-epsilon"] == first


def test_a_budget_stops_before_the_first_step(tmp_path):
    most = epsilon_of_steps({(1.0, 1.5): 1}, 1e-5)
    steps_of(tmp_path / "a", **{"privacy.graph-budget-max": most})
    with pytest.raises(PrivacyBudgetError, match="graph-budget-max allows"):
        steps_of(tmp_path / "b", num_epochs=2, **{"privacy.graph-budget-max": most})


def test_a_sites_policy_counts_all_runs_and_clients(tmp_path):
    client = toys.begun(toys.make_client(tmp_path, **EVERYONE))
    most = epsilon_of_steps({(1.0, 1.5): 3}, 1e-5)
    site = replace(client.job.site, limits=Budgets(site_graph=most))
    for experiment, number in (("a", 0), ("a", 1), ("b", 0)):
        folder = tmp_path / experiment / f"client-{number}"
        about = {"server_round": 1, "inputs": [], "q": 1.0, "times": 1}
        replace(site, folder=folder).noisy_steps(client.data.partition, **about)
    with pytest.raises(PrivacyBudgetError, match="graph-epsilon-max of this site"):
        site.noisy_steps(client.data.partition, **about)


def test_epsilon_is_that_of_the_gaussian_if_all_are_drawn():
    # Replacing there is twice adding here.
    assert epsilon_of_steps({(1.0, 2.0): 50}, 1e-5) == pytest.approx(
        epsilon_of({4.0: 50}, 1e-5), rel=2e-4
    )
    for (n, size, steps, sigma), epsilon in {
        (90, 16, 300, 2.0): 4.8,
        (1000, 64, 800, 1.0): 10,
        (3000, 128, 1150, 4.0): 1.2,
    }.items():
        found = epsilon_of_steps({(size / n, sigma): steps}, n**-1.1)
        assert found == pytest.approx(epsilon, rel=0.05)


REFUSED = [
    *((m, {}, "needs a loss that is a mean") for m in ("fclg", "infograph", "mvgrl")),
    ("spreadgnn", {}, "needs a loss that is a mean"),
    ("fedavg edge-classification", {}, "needs a loss that is a mean"),
    (
        "fgcl",
        {"privacy.edge-epsilon": 0.0, "fgcl.views": "clean"},
        "loss that is a mean",
    ),
    ("fedavg", {"class-weights": "balanced"}, "class-weights must be 'none'"),
    ("fedavg", {"privacy.update-clip": 1.0}, "protect different things"),
    ("gcfl+", {"gcfl.seq-source": "last-grad-norm"}, "norms of gradients"),
    ("fedavg", {"privacy.graph-noise": 0.1}, "graph-noise must be"),
]


@pytest.mark.parametrize(("method", "more", "words"), REFUSED)
def test_what_noise_would_not_protect_is_refused(method, more, words):
    with pytest.raises(ConfigError, match=words):
        toys.resolved(method, **{**ON, **more})


def test_a_model_in_which_graphs_meet_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(ConfigError, match="BatchNorm1d"):
        per_graph.check_model(model)


def advantage(client, steps, trials=600):
    """How much more often an attacker says "in" if a graph was trained on.

    The attacker knows all graphs, the model and who was drawn, but not the noise.
    """
    train, said = client.data.partition.train, []
    client.optimizer.step = lambda: None
    clip = client.job.privacy.graph_clip
    rest = summed(client, steps, train[1:], clip)
    canary = summed(client, steps, train, clip) - rest
    for trial in range(trials):
        steps._rng = noise_stream("", trial, "audit")
        is_in = trial % 2
        steps._step(train if is_in else train[1:])
        got = torch.cat([p.grad.flatten() for p in client.model.parameters()])
        seen = (got.double() * len(train) - rest) @ canary / canary.norm()
        said.append(float(seen) > float(canary.norm()) / 2)
    said = np.array(said, float)
    return said[1::2].mean() - said[::2].mean()


@pytest.mark.slow
def test_an_attack_by_canary_finds_what_the_noise_allows_and_no_more(tmp_path):
    """Power: standard error 0.04; a clip that is broken by a factor of 4 shows."""
    strong = {"privacy.graph-clip": 0.01, "privacy.graph-noise": 1.0}
    client, steps = steps_of(tmp_path, **strong)
    bound = 2 * stats.norm.cdf(0.5) - 1  # of a Gaussian mechanism, 0.383
    found = advantage(client, steps)
    assert abs(found - bound) < 0.12
    epsilon = epsilon_of_steps({(1.0, 1.0): 1}, 1e-5)
    assert found < math.tanh(epsilon / 2)
    kept = steps._kept
    steps._kept = lambda positions, clip: kept(positions, 4 * clip)  # a broken clip
    assert advantage(client, steps) > 0.9
