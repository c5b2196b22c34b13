"""Privacy as a setting of any method: noise, what a run spends, what it says of it."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from clients.privacy import laplace
from clients.privacy.gaussian import epsilon_of
from clients.privacy.site import rounded_graphs
from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.privacy_settings import describe
from fedgraph_flwr.core.words import at_most
from strategies.base import AbstractGraphStrategy

ROUND = {"server-round": 1}
LABELS = {"features": "labels"}  # degrees tell edges
EDGES = {**LABELS, "privacy.edge-epsilon": 1.0}
UPDATES = {"privacy.update-clip": 0.5, "privacy.update-noise": 3.0}
PARTITION = {"partition-id": 0, "num-partitions": 2}  # all that simulation sets


# Any method -----------------------------------------------------------------------


def test_edge_noise_is_a_setting_of_any_method(run):
    clean, noisy = run("gcfl+", **LABELS), run("gcfl+", **EDGES)
    assert noisy.sha != clean.sha
    assert clean.summary["privacy"] is None
    spent = noisy.summary["privacy"]["per_client"]
    assert {s["edge-epsilon"] for s in spent.values()} == {1.0}
    assert noisy.sha == run("gcfl+", nodes=3, **EDGES).sha


def test_rounded_graphs_are_undirected_sorted_and_flipped_as_often_as_they_should():
    rng = np.random.default_rng(0)
    graphs = toys.random_graphs(400, seed=1)
    adjacency = laplace.GraphAdjacency(graphs)
    everyone = np.arange(len(graphs))
    num_nodes = np.diff(graphs.node_ptr)
    clean = toys.clean_triangles(adjacency, num_nodes, everyone)
    same = rounded_graphs(graphs, clean)
    assert np.array_equal(same.edge_index, graphs.edge_index)
    assert np.array_equal(same.edge_ptr, graphs.edge_ptr)
    noisy = toys.replace(clean, values=laplace.add_noise(clean.values, 2.0, rng))
    view = laplace.post_process(noisy, 2.0, "round")
    flipped = np.mean(view.values != clean.values)
    assert flipped == pytest.approx(math.exp(-1) / 2, abs=0.02)
    found = rounded_graphs(graphs, view)
    for g in range(len(graphs)):
        span = slice(found.edge_ptr[g], found.edge_ptr[g + 1])
        edges = found.edge_index[:, span].T.tolist()
        assert edges == sorted(edges)
        assert sorted([v, u] for u, v in edges) == edges


def flat(arrays, before):
    """All numbers by which arrays differ from those before."""
    pairs = zip(arrays, before, strict=True)
    return np.concatenate([(a - b).ravel().astype(np.float64) for a, b in pairs])


def noise_of(tmp_path, change=0.0, **settings):
    """Noise of one round, and the norm of the update below it."""
    client = toys.make_client(tmp_path, "fedavg", **UPDATES, **settings)
    received = [a + np.float32(change) for a in toys.shared_arrays(client)]
    sent, _, _ = client.fit(received, ROUND)
    update = flat(toys.shared_arrays(client), received)
    norm = np.linalg.norm(update)
    return flat(sent, received) - update * min(1, 0.5 / norm), norm


def test_what_is_sent_is_the_clipped_update_with_gaussian_noise(tmp_path):
    strong = {"hidden-dim": 64, "learning-rate": 0.1, "shared-group": "all"}
    noise, norm = noise_of(tmp_path, **strong)
    assert norm > 0.5
    assert kstest(noise / 1.5, "norm").pvalue > 0.01


def test_two_different_updates_never_have_the_same_noise(tmp_path):
    """Whichever was charged first: no count of charges names a stream."""
    a, b = (noise_of(tmp_path / str(c), c)[0] for c in (0.0, 0.5))
    assert np.abs(a - b).max() > 0.1


def sent_in(tmp_path, received, server_round=1):
    """Bytes that a client sends, made anew from its folder; what it has spent."""
    client = toys.make_client(tmp_path, "fedavg", **UPDATES)
    sent, _, metrics = client.fit(received, {"server-round": server_round})
    return b"".join(a.tobytes() for a in sent), metrics["privacy/update-epsilon"]


def test_a_round_that_is_repeated_sends_the_same_bytes_at_no_cost(tmp_path):
    """As after a kill between the charge and the reply, whatever came in between."""
    start = toys.shared_arrays(toys.make_client(tmp_path, "fedavg", **UPDATES))
    one, two, three = (epsilon_of({3.0: n}, 1e-5) for n in (1, 2, 3))
    first = sent_in(tmp_path, start)
    assert first[1] == pytest.approx(one)
    assert sent_in(tmp_path, start) == first
    second = sent_in(tmp_path, start, 2)
    assert second[1] == pytest.approx(two)
    assert sent_in(tmp_path, start) == (first[0], second[1])
    assert sent_in(tmp_path, start, 2) == second
    moved = [a + np.float32(0.5) for a in start]  # another selection of replies
    assert sent_in(tmp_path, moved)[1] == pytest.approx(three)


def test_gcfl_sends_the_noisy_update_itself(tmp_path):
    clients = [toys.make_client(tmp_path / m, m, **UPDATES) for m in ("fedavg", "gcfl")]
    start = toys.shared_arrays(clients[0])
    (weights, *_), (deltas, *_) = (c.fit(copy.deepcopy(start), ROUND) for c in clients)
    for w, d, s in zip(weights, deltas, start, strict=True):
        np.testing.assert_allclose(w - s, d, atol=1e-6)


def test_a_private_site_tells_its_data_apart_without_telling_which(
    run, toy_data, tmp_path
):
    """Under a key of its own: equal data at two sites look unlike."""
    told, facts = {}, AbstractGraphStrategy.facts

    def spy(self, client):
        told[client] = self.clients[client].identity
        return facts(self, client)

    def twins(settings, client_id):
        return toys.replace(toys.federation(settings, 0), client_id=client_id)

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", twins)
        patch.setattr(AbstractGraphStrategy, "facts", spy)
        site = {"clients": "0,1,2", "state-dir": str(tmp_path)}
        run("fedavg", node_configs=[site], **{"privacy.update-clip": 1.0})
    assert len(set(told.values())) == 3


# What is spent --------------------------------------------------------------------


def test_a_budget_stops_the_run_before_the_draw_that_exceeds_it(run, tmp_path):
    tight = {"privacy.noise-mode": "per_round", "privacy.budget-max": 9.0}
    with pytest.raises(RunFailedError, match=r"privacy\.budget-max allows 9"):
        run("fgcl", **tight, **{"results-dir": str(tmp_path)})
    (folder,) = tmp_path.iterdir()
    summary = toys.Run(folder, {}).summary
    assert summary["rounds"] == 2
    spent = summary["privacy"]["per_client"]
    assert {s["edge-epsilon"] for s in spent.values()} == {8.0}


# What a run says ------------------------------------------------------------------


@pytest.mark.slow
def test_sites_add_a_secret_to_the_noise_that_simulation_does_not(run):
    simulated = [run("fgcl").sha for _ in range(2)]
    sites = [run("fgcl", node_configs=[{"clients": "0,1,2"}]).sha for _ in range(2)]
    assert simulated[0] == simulated[1]
    assert len({*simulated, *sites}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("options", [EDGES, UPDATES], ids=["edges", "updates"])
def test_a_run_says_where_noise_is_no_secret(run, options):
    nodes = [PARTITION, {"clients": "1"}]
    privacy = run("fedavg", **options, node_configs=nodes).summary["privacy"]
    words = "2 of 3 clients drew their noise from the run seed alone"
    assert words in privacy["says"]
    assert "nobody who does not keep the seed secret" in privacy["says"]
    assert [s["secret"] for s in privacy["per_client"].values()] == [0.0, 1.0, 0.0]
    own = [{"clients": "0,1"}, {"clients": "2"}]
    privacy = run("fedavg", **options, node_configs=own).summary["privacy"]
    assert "seed" not in privacy["says"]
    assert {s["secret"] for s in privacy["per_client"].values()} == {1.0}


@pytest.mark.slow
def test_graphs_that_all_clients_hold_cost_what_all_of_them_draw(
    run, toy_data, tmp_path
):
    def load(settings, client_id):
        partition = toys.federation(settings, client_id)
        return toys.replace(partition, shares_held_out=True)

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", load)
        given = {"state-dir": str(tmp_path), "fgcl.views": "two"}
        first, second = (
            run("fgcl", **given, seed=seed).summary["privacy"] for seed in (1, 2)
        )
    assert first["edge_epsilon_per"]["training graph"]["total"] == 4.0
    held_out = {"clients": 3, "epsilon": 2.0, "total": 6.0, "total_lifetime": 6.0}
    assert first["edge_epsilon_per"]["validation or test graph"] == held_out
    product = "6 (3 clients x 2) in total"
    assert f"epsilon {product} per validation or test graph" in first["says"]
    totals = second["edge_epsilon_per"]
    assert totals["validation or test graph"]["total_lifetime"] == 12.0
    assert "(12 over all runs)" in second["says"]
    assert "(8 over all runs)" in second["says"]


@pytest.mark.parametrize(
    ("features", "is_all"),
    [("atoms-no-degree", False), ("atoms-strict", True), ("labels", True)],
)
def test_a_run_says_where_only_the_adjacency_is_protected(features, is_all):
    says = describe({0: {"edge-epsilon": 1.0}}, features=features)
    assert ("adjacency only" not in says) == is_all


def test_clients_that_have_spent_different_amounts_are_told_apart():
    says = describe({c: {"edge-epsilon": e} for c, e in enumerate([2.0, 40.0, 2.0])})
    assert "epsilon 40 in total per graph and site, at most;" in says
    assert " by client: 2 (clients 0, 2), 40 (client 1);" in says
    update = {"update-epsilon": 3.0, "update-delta": 1e-5}
    assert "by client: 0 (client 1), 3 (client 0);" in describe({0: update, 1: {}})
    assert "by client" not in describe({0: update, 1: update})
    assert describe({0: {}, 1: {}}) == ""


def test_epsilon_is_never_told_smaller_than_it_is():
    update = {"update-epsilon": 3.14140001, "update-delta": 1e-5}
    assert "updates: (3.142, 1e-05)-DP" in describe({0: update})
    edges = {0: {"edge-epsilon": 1.0000004}, 1: {"edge-epsilon": sum([0.1] * 3)}}
    says = describe(edges)
    assert "epsilon 1.00001 in total per graph" in says
    assert " by client: 0.3 (client 1), 1.001 (client 0);" in says
    for epsilon in (5e-324, 1e100):
        both = {0: update, 1: {**update, "update-epsilon": epsilon}}
        assert f"{at_most(epsilon)} (client 1)" in describe(both)
        assert float(at_most(epsilon)) >= epsilon


@given(st.floats(1e-12, 1e12), st.integers(2, 6))
def test_a_bound_that_is_written_is_one_and_close(bound, digits):
    told = float(at_most(bound, digits))
    assert bound * (1 - 2e-9) <= told <= bound * (1 + 1.001 * 10.0 ** (1 - digits))
