"""Privacy as a setting of any method: noise, what a run spends, what it says of it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from matrix import one_per_strategy
from scipy.stats import kstest

from clients.fgcl import FGCLClient
from clients.privacy import laplace
from clients.privacy.gaussian import epsilon_of
from clients.privacy.site import rounded_graphs
from fedgraph_flwr.core.data import hash_federation, hash_split
from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.privacy_settings import describe
from fedgraph_flwr.core.tasks import GRAPH_CLASSIFICATION
from fedgraph_flwr.core.wire import pack, unpack
from fedgraph_flwr.core.words import at_most
from fedgraph_flwr.results.printed import summary_table
from simulations.inline import InlineGrid
from strategies.base import AbstractGraphStrategy

ROUND = {"server-round": 1}
LABELS = {"features": "labels"}  # degrees tell edges
EDGES = {**LABELS, "privacy.edge-epsilon": 1.0}
UPDATES = {"privacy.update-clip": 0.5, "privacy.update-noise": 3.0}
TWO = {"fgcl.views": "two"}
CLEAN = {"fgcl.views": "clean", "privacy.edge-epsilon": 0.0}
PARTITION = {"partition-id": 0, "num-partitions": 2}  # all that simulation sets
CLASSIFIERS = toys.of_task(GRAPH_CLASSIFICATION)


# Any method -----------------------------------------------------------------------


@one_per_strategy(CLASSIFIERS)
def test_edge_noise_is_a_setting_of_any_method(run, method):
    clean = run(method, **LABELS)
    noisy = run(method, **EDGES)
    assert noisy.sha != clean.sha
    assert clean.summary["privacy"] is None
    spent = noisy.summary["privacy"]["per_client"]
    assert {s["edge-epsilon"] for s in spent.values()} == {1.0}
    assert noisy.sha == run(method, nodes=3, **EDGES).sha


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


def test_what_is_sent_is_the_clipped_update_with_gaussian_noise(tmp_path):
    strong = {"hidden-dim": 64, "learning-rate": 0.1, "shared-group": "all"}
    client = toys.make_client(tmp_path, "fedavg", **UPDATES, **strong)
    received = toys.shared_arrays(client)
    sent, _, _ = client.fit(received, ROUND)
    trained = toys.shared_arrays(client)
    update = np.concatenate(
        [(t - r).ravel() for t, r in zip(trained, received, strict=True)]
    )
    noisy = np.concatenate(
        [(s - r).ravel() for s, r in zip(sent, received, strict=True)]
    )
    assert np.linalg.norm(update) > 0.5
    noise = noisy - 0.5 * update / np.linalg.norm(update)
    assert kstest(noise / 1.5, "norm").pvalue > 0.01


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


def noise_of(tmp_path, change):
    """Noise of one round, from a client that was charged for another before."""
    client = toys.make_client(tmp_path, "fedavg", **UPDATES)
    received = toys.shared_arrays(client)
    for array in received:
        array += np.float32(change)
    sent, _, _ = client.fit(received, ROUND)
    trained = toys.shared_arrays(client)
    flat = [
        np.concatenate(
            [
                (a - r).ravel().astype(np.float64)
                for a, r in zip(x, received, strict=True)
            ]
        )
        for x in (sent, trained)
    ]
    return flat[0] - flat[1] * min(1, 0.5 / np.linalg.norm(flat[1]))


def test_two_different_updates_never_have_the_same_noise(tmp_path):
    """Whichever was charged first: no count of charges names a stream."""
    a, b = (noise_of(tmp_path / str(k), change) for k, change in enumerate((0.0, 0.5)))
    assert np.abs(a - b).max() > 0.1


def test_self_train_sends_nothing_and_pays_nothing(run):
    assert run("local", **UPDATES).summary["privacy"] is None


def test_gcfl_sends_the_noisy_update_itself(tmp_path):
    clients = [toys.make_client(tmp_path / m, m, **UPDATES) for m in ("fedavg", "gcfl")]
    start = toys.shared_arrays(clients[0])
    (weights, *_), (deltas, *_) = (c.fit(copy.deepcopy(start), ROUND) for c in clients)
    for w, d, s in zip(weights, deltas, start, strict=True):
        np.testing.assert_allclose(w - s, d, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{**EDGES}, {"privacy.update-clip": 1.0}], ids=["edges", "updates"]
)
def test_private_sites_send_no_hash_of_their_files(run, toy_data, options, tmp_path):
    """In simulation, where one machine has everything, runs on equal data show it."""

    def hashed(settings, client_id):
        partition = toys.federation(settings, client_id)
        graphs = toys.replace(partition.graphs, raw_sha256="ab" * 32)
        return toys.replace(partition, graphs=graphs)

    one = {"num-server-rounds": 1}
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", hashed)
        # As parts of one data set have; sites of this one make their own.
        patch.setattr("fedgraph_flwr.agreement._check_different", lambda *_: None)
        clean = run("fedavg", **one).summary
        private = run("fedavg", **one, **options).summary
        site = {"clients": "0,1,2", "state-dir": str(tmp_path)}
        own = run("fedavg", node_configs=[site], **one, **options).summary
        open_site = run("fedavg", node_configs=[site], **one).summary
    assert set(clean["data_sha256"].values()) == {"ab" * 32}
    assert clean["class_counts"]
    assert private["class_counts"] is None
    assert private["split_hash"] == clean["split_hash"] == open_site["split_hash"]
    assert set(own["data_sha256"].values()) == {""}
    assert own["class_counts"] is None
    assert own["split_hash"] != clean["split_hash"]  # of ids alone


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "is_hidden"), [(EDGES, False), ({"privacy.update-clip": 1.0}, True)]
)
def test_the_hash_of_a_split_confirms_no_guess_of_labels(
    run, tmp_path, options, is_hidden
):
    """Splits keep shares of classes: who guesses all labels can compute them."""
    site = {"clients": "0,1,2", "state-dir": str(tmp_path)}
    first, second = (
        run("fedavg", node_configs=[site], **{"num-server-rounds": 1}, **options)
        for _ in range(2)
    )
    guess = hash_federation(
        {c: hash_split(toys.make_partition(c, num_graphs=20 + 5 * c)) for c in range(3)}
    )
    assert (first.summary["split_hash"] != guess) == is_hidden
    assert (first.summary["split_hash"] != second.summary["split_hash"]) == is_hidden
    if is_hidden:  # and a resume is that of the same run
        again = {**first.overrides, "num-server-rounds": 2, "resume": str(first.path)}
        method = again.pop("method", "fedavg")
        resumed = run(method, **{"node_configs": [site], **again})
        assert resumed.summary["split_hash"] == first.summary["split_hash"]


# What is spent --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "views", "expected"),
    [
        ("once", "one", 2.0),
        ("once", "two", 4.0),
        ("per_round", "two", 3 * 4.0),
        ("per_epoch", "two", 3 * 2 * 4.0),
    ],
)
def test_a_run_reports_what_its_clients_have_spent(run, mode, views, expected):
    noisy = {"privacy.noise-mode": mode, "fgcl.views": views, "local-epochs": 2}
    finished = run("fgcl", **noisy)
    spent = finished.summary["privacy"]["per_client"]
    assert {c: s["edge-epsilon"] for c, s in spent.items()} == dict.fromkeys(
        "012", expected
    )
    says = finished.summary["privacy"]["says"]
    assert f"epsilon {expected:g} in total per graph" in says
    assert "not protected: labels, node features" in says


@pytest.mark.slow
@pytest.mark.parametrize(("views", "of_each"), [("two", 1.0), ("one", 2.0)])
def test_a_total_is_shared_out_among_the_views(run, views, of_each):
    options = {"fgcl.views": views, "num-server-rounds": 2}
    whole = {"privacy.edge-epsilon": 2.0, "privacy.edge-epsilon-of": "total"}
    total = run("fgcl", **options, **whole)
    spent = total.summary["privacy"]["per_client"]
    assert {s["edge-epsilon"] for s in spent.values()} == {2.0}
    by_view = run("fgcl", **options, **{"privacy.edge-epsilon": of_each})
    assert total.sha == by_view.sha


@pytest.fixture
def shared(toy_data):
    """Clients with the same validation and test graphs, as far as they can tell."""

    def load(settings, client_id):
        partition = toys.federation(settings, client_id)
        return toys.replace(partition, shares_held_out=True)

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", load)
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "train", "held_out"),
    [("fgcl", TWO, 4.0, 2.0), ("fedavg", EDGES, 1.0, 1.0)],
)
@pytest.mark.usefixtures("shared")
def test_graphs_that_all_clients_hold_cost_what_all_of_them_draw(
    run, tmp_path, method, options, train, held_out
):
    again = {"state-dir": str(tmp_path), **options}
    first, second = (
        run(method, **again, seed=seed).summary["privacy"] for seed in (1, 2)
    )
    assert first["edge_epsilon_per"]["training graph"]["total"] == train
    assert first["edge_epsilon_per"]["validation or test graph"] == {
        "clients": 3,
        "epsilon": held_out,
        "total": 3 * held_out,
        "total_lifetime": 3 * held_out,
    }
    product = f"{3 * held_out:g} (3 clients x {held_out:g}) in total"
    assert f"epsilon {train:g} in total per training graph" in first["says"]
    assert f"epsilon {product} per validation or test graph" in first["says"]
    totals = second["edge_epsilon_per"]
    assert totals["validation or test graph"]["total_lifetime"] == 6 * held_out
    assert f"({6 * held_out:g} over all runs)" in second["says"]
    assert f"({2 * train:g} over all runs)" in second["says"]


@pytest.mark.slow
def test_earlier_runs_with_more_clients_count_for_graphs_that_all_hold(
    run, tmp_path, toy_data
):
    def load(settings, client_id):
        partition = toys.federation(settings, client_id)
        rows, held_out = partition.graph_ids.copy(), partition.held_out
        rows[held_out] = np.arange(len(held_out))
        rows[partition.train] += 1000
        return toys.replace(partition, graph_ids=rows, shares_held_out=True)

    again = {**EDGES, "state-dir": str(tmp_path), "num-server-rounds": 1}
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", load)
        many = run("fedavg", **again, **{"num-clients": 8}).summary["privacy"]
        few = run("fedavg", **again, seed=5).summary["privacy"]
    total = "validation or test graph"
    assert many["edge_epsilon_per"][total]["total_lifetime"] == 8.0
    assert few["edge_epsilon_per"][total]["total_lifetime"] == pytest.approx(11.0)
    assert "in total per validation or test graph, at most (11 over" in few["says"]


def test_only_clients_that_train_spend(run):
    some = {"client-fraction": 0.34, "privacy.noise-mode": "per_round"}
    finished = run("fgcl", **some, **{"num-server-rounds": 4})
    spent = finished.summary["privacy"]["per_client"]
    rounds = [
        sum(
            r["client"] == c and r["record"] == "arrays" and r["direction"] == "up"
            for r in finished.ledger
        )
        for c in "012"
    ]
    found = [spent[c]["edge-epsilon"] for c in "012"]
    assert sum(rounds) == 4
    # A client that never trained has released one view of its held-out graphs.
    assert found == [max(2.0, 4.0 * count) for count in rounds]


def test_a_budget_stops_the_run_before_the_draw_that_exceeds_it(run, tmp_path):
    tight = {"privacy.noise-mode": "per_round", "privacy.budget-max": 9.0}
    with pytest.raises(RunFailedError, match=r"privacy\.budget-max allows 9"):
        run("fgcl", **tight, **{"results-dir": str(tmp_path)})
    (folder,) = tmp_path.iterdir()
    summary = toys.Run(folder, {}).summary
    assert summary["rounds"] == 2
    spent = summary["privacy"]["per_client"]
    assert {s["edge-epsilon"] for s in spent.values()} == {8.0}


def test_an_update_budget_stops_the_run(run):
    tight = {**UPDATES, "privacy.update-budget-max": epsilon_of({3.0: 2}, 1e-5) + 1e-6}
    with pytest.raises(RunFailedError, match=r"privacy\.update-budget-max allows"):
        run("fedavg", **tight)


@pytest.mark.slow
def test_resuming_does_not_forget_what_was_spent(run):
    noisy = {"privacy.noise-mode": "per_round", "num-server-rounds": 3}
    part = run("fgcl", **{**noisy, "num-server-rounds": 2})
    again = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("fgcl", **noisy, **again, resume=str(part.path))
    whole = run("fgcl", **noisy)
    assert resumed.summary["privacy"] == whole.summary["privacy"]


@pytest.mark.slow
def test_what_a_client_drew_before_it_failed_is_counted(run, monkeypatch):
    def broken(action):
        def act(self, parcel, header):
            answer = action(self, parcel, header)
            if self.job.client_id == 1:
                raise ValueError("disk full")
            return answer

        return act

    for name in ("participate", "assess"):
        monkeypatch.setattr(FGCLClient, name, broken(getattr(FGCLClient, name)))
    noisy = {"min-fit-replies": 0.5, "privacy.noise-mode": "per_round"}
    finished = run("fgcl", **noisy, **{"num-server-rounds": 3})
    spent = finished.summary["privacy"]["per_client"]
    assert {c: s["edge-epsilon"] for c, s in spent.items()} == dict.fromkeys(
        "012", 12.0
    )


# What a run says ------------------------------------------------------------------


@pytest.mark.slow
def test_sites_add_a_secret_to_the_noise_that_simulation_does_not(run):
    simulated = [run("fgcl").sha for _ in range(2)]
    sites = [run("fgcl", node_configs=[{"clients": "0,1,2"}]).sha for _ in range(2)]
    assert simulated[0] == simulated[1]
    assert len({*simulated, *sites}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({**PARTITION, "partition-id": 1}, "3 of 3 clients drew their noise from the"),
        ({"clients": "1"}, "2 of 3 clients drew their noise from the run seed alone"),
    ],
)
@pytest.mark.parametrize("noise", ["edges", "updates"])
def test_a_run_says_where_noise_is_no_secret(run, noise, second, words):
    options = EDGES if noise == "edges" else UPDATES
    nodes = [PARTITION, second]
    privacy = run("fedavg", **options, node_configs=nodes).summary["privacy"]
    assert words in privacy["says"]
    assert "nobody who does not keep the seed secret" in privacy["says"]
    secrets = [s["secret"] for s in privacy["per_client"].values()]
    assert secrets == [0.0, float("clients" in second), 0.0]
    own = [{"clients": "0,1"}, {"clients": "2"}]
    privacy = run("fedavg", **options, node_configs=own).summary["privacy"]
    assert "seed" not in privacy["says"]
    assert {s["secret"] for s in privacy["per_client"].values()} == {1.0}


def test_features_that_tell_edges_can_be_kept_knowingly(run):
    kept = {"features": "atoms", "privacy.keep-edge-features": True}
    summary = run("fgcl", **kept, **{"num-server-rounds": 1}).summary
    assert "adjacency only, features 'atoms' depend" in summary["privacy"]["says"]
    assert summary["privacy"]["says"] in " ".join(summary_table(summary).split())


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


@pytest.mark.slow
def test_both_notions_side_by_side(run):
    both = {**UPDATES, **EDGES, "privacy.both": True}
    says = run("fedavg", **both).summary["privacy"]["says"]
    assert "edges: epsilon 1 in total" in says
    assert "-DP for a client's whole data, at most, of its updates alone;" in says
    assert "the run as a whole is not private: exact metrics, losses and co" in says


@pytest.mark.slow
@pytest.mark.parametrize("value", ["[[[", "9", -1.0, math.nan])
def test_what_the_server_says_was_spent_must_be_an_amount(run, monkeypatch, value):
    deliver = InlineGrid.deliver

    def spoil(self, message):
        parcels, header = unpack(message.content)
        if header.get("server-round") == 2 and 1 in parcels:
            told = {**parcels[1].facts, "spent/update-epsilon": value}
            parcels = {**parcels, 1: replace(parcels[1], facts=told)}
            message.content = pack(parcels, header)
        return deliver(self, message)

    monkeypatch.setattr(InlineGrid, "deliver", spoil)
    finished = run("fedavg", **UPDATES, **{"min-fit-replies": 0.5})
    reasons = [f["reason"] for f in finished.summary["failures"] if f["client"] == 1]
    assert reasons
    assert all("must be a number >= 0, got" in r for r in reasons)
