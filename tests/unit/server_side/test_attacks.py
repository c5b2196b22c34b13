"""Attacks on updates and on training data, against loops; and in whole runs."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import toys
from matrix import mostly_slow
from oracles import attacks as oracle

import datasets
from datasets.partition import load_partition
from datasets.poisoning import poison, triggered_test, with_trigger
from datasets.synthetic import client_group
from fedgraph_flwr.core.attack_settings import OF_UPDATES, AttackSettings
from fedgraph_flwr.core.errors import ConfigError, DataError, RunFailedError
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.core.wire import flatten
from fedgraph_flwr.results.printed import summary_table
from strategies.attacks import distances_from_mean, falsify


def sent(rows, hostile, kind, strength=1.0):
    updates = dict(enumerate(rows))
    how = AttackSettings(kind=kind, clients="0", strength=strength)
    return falsify(updates, {c: numpy_rng(1, "x", c) for c in hostile}, how)


@pytest.mark.parametrize("kind", ["sign", "scale", "ipm", "alie"])
def test_what_hostile_clients_send_by_loops(kind):
    """Of 10 clients with 2 hostile alie sends the mean, of 10 with 3 less than it."""
    for (n, hostile), s in product([(10, {2, 7}), (10, {0, 1, 9}), (30, {4})], (1, 4)):
        rows = np.random.default_rng(n).normal(size=(n, 5))
        found = sent(rows, hostile, kind, s)
        expected = oracle.falsified(rows.tolist(), hostile, kind, s)
        assert found.keys() == expected.keys()
        for client, row in expected.items():
            np.testing.assert_allclose(found[client], row, atol=1e-12)


def test_noise_has_the_length_of_the_update_and_a_stream_of_each_client():
    rows = np.ones((3, 40_000))
    found = sent(rows, {0, 2}, "noise", 3.0)
    for row in found.values():
        assert np.linalg.norm(row) == pytest.approx(3 * 200, rel=0.02)
        assert abs(row.mean()) < 0.1
    assert not np.array_equal(found[0], found[2])
    assert np.array_equal(found[2], sent(rows, {2}, "noise", 3.0)[2])
    # Without anybody else in a round they know each other; data attacks send nothing.
    assert sent(rows[:2], {0, 1}, "ipm")[1].tolist() == [-1.0] * 40_000
    assert sent(rows, {1}, "labels") == sent(rows, set(), "sign") == {}


def test_how_far_updates_lie_from_their_mean():
    rows = [np.array([3.0, 4.0]), np.array([3.0, -4.0])]
    np.testing.assert_allclose(distances_from_mean(rows), [4 / 3, 4 / 3])
    assert not len(distances_from_mean([np.ones(2), -np.ones(2)]))
    assert not len(distances_from_mean([]))


# Data -------------------------------------------------------------------------------

TRIGGER = AttackSettings(
    kind="trigger", clients="0", target_class=1, poisoned=0.5, trigger_nodes=3
)


@pytest.mark.parametrize("dense", [False, True])
def test_a_trigger_by_loops(dense):
    graphs = toys.random_graphs(12, dense=dense)
    chosen = np.array([1, 4, 5, 11])
    found = with_trigger(graphs, chosen, TRIGGER)
    often = np.bincount(graphs.x).argmax() if not dense else graphs.x.sum(0).argmax()
    for g in range(12):
        nodes = slice(*graphs.node_ptr[g : g + 2])
        edges, now = (
            [*map(tuple, s.edge_index[:, slice(*s.edge_ptr[g : g + 2])].T.tolist())]
            for s in (graphs, found)
        )
        top, expected = [], {*edges}
        if g in chosen:
            top, expected = oracle.clique(nodes.stop - nodes.start, edges, 3)
        assert now == sorted(expected)
        x = graphs.x[nodes].copy()
        x[top] = np.eye(4)[often] if dense else often
        np.testing.assert_array_equal(found.x[nodes], x)
    assert found.edge_index.dtype == graphs.edge_index.dtype
    assert (found.x.dtype, found.y.tolist()) == (graphs.x.dtype, graphs.y.tolist())


def test_poison_reaches_training_items_alone_and_keeps_the_hashes():
    own, settings = toys.make_partition(num_graphs=40), toys.run_settings()
    labels = poison(own, AttackSettings(kind="labels", clients="0"), settings)
    flipped = own.graphs.y.copy()
    flipped[own.train] = 1 - flipped[own.train]
    np.testing.assert_array_equal(labels.graphs.y, flipped)
    bad = poison(own, TRIGGER, settings)
    changed = np.flatnonzero(bad.graphs.y != own.graphs.y)
    others = [g for g in own.train if own.graphs.y[g] == 0]
    assert len(changed) == round(len(others) / 2)
    assert {*changed} < {*others}
    assert {*bad.graphs.y[changed]} == {1}
    by_hand = with_trigger(own.graphs, changed, TRIGGER)
    np.testing.assert_array_equal(bad.graphs.edge_index, by_hand.edge_index)
    for made in (labels, bad):
        assert (made.data_hash, made.split_hash) == (own.data_hash, own.split_hash)
    for is_in in (True, False):
        seen = triggered_test(own, TRIGGER, is_in=is_in)
        assert seen.test.tolist() == [g for g in own.test if own.graphs.y[g] == 0]
        assert {*seen.graphs.y[seen.test]} == {1}
        assert (len(seen.graphs.edge_index[0]) > len(own.graphs.edge_index[0])) is is_in


def test_what_a_trigger_cannot_stand_in_is_refused():
    graphs = toys.random_graphs(3)
    directed = replace(graphs, is_undirected=False)
    with pytest.raises(DataError, match="has direction, which edges of a trigger"):
        with_trigger(directed, np.arange(3), TRIGGER)
    with pytest.raises(ConfigError, match=r"target-class must be below 2.*got 7"):
        with_trigger(graphs, np.arange(3), replace(TRIGGER, target_class=7))


# In runs ----------------------------------------------------------------------------


def keys(kind, clients="1,4", strength=1.0, **more):
    named = {"kind": kind, "clients": clients, "strength": strength, **more}
    return {f"attack.{k}": v for k, v in named.items()}


SIX = {"num-clients": 6, "num-server-rounds": 2, "shared-group": "all"}
CASES = [
    *(("fedavg", kind) for kind in (*OF_UPDATES, "labels", "trigger")),
    *((m, "sign") for m in ("gcfl+", "fedgkd", "adafgl", "fedgmtl", "fedgta", "fclg")),
]


@pytest.mark.parametrize(
    ("method", "kind"),
    mostly_slow(CASES, fast=[CASES[2], CASES[6], ("gcfl+", "sign")]),
)
def test_an_attack_gives_the_same_bytes_on_any_nodes_and_after_a_resume(
    lab, method, kind
):
    settings = {**SIX, **keys(kind, strength=2.0, **{"target-class": 1})}
    if method == "adafgl":
        settings["adafgl.federated-rounds"] = 1
    whole = lab.run(method, **settings)
    assert lab.run(method, nodes=4, **settings).sha == whole.sha
    assert lab.once(method, **SIX).sha != whole.sha
    part = lab.run(method, **{**settings, "num-server-rounds": 1})
    kept = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = lab.run(method, **settings, **kept, resume=str(part.path))
    assert resumed.sha == whole.sha
    assert resumed.summary["attacked"] == whole.summary["attacked"]
    assert resumed.summary["update_spread"] == whole.summary["update_spread"]


def test_an_attack_on_updates_by_what_the_mean_becomes(run, once):
    """A mean is linear in the update of a hostile client."""
    one = {**SIX, "num-server-rounds": 1}
    off = once("fedavg", **one)
    assert run(**one, **keys("scale")).sha == off.sha  # its own update, once
    sign, twice = run(**one, **keys("sign")), run(**one, **keys("scale", strength=2.0))
    models = (flatten(r.models["global"]) for r in (off, sign, twice))
    honest, turned, scaled = models
    assert np.abs(honest - turned).max() > 1e-3
    np.testing.assert_allclose(honest - turned, 2 * (scaled - honest), atol=1e-5)
    assert "update_spread" not in off.summary
    assert "attacked" not in off.summary
    assert "distance_from_mean" not in off.rounds


def test_scores_of_an_attacked_run_are_those_of_honest_clients(run):
    found = run(**SIX, **keys("trigger", **{"target-class": 1, "poisoned": 1.0}))
    summary = found.summary
    for rule in summary["rules"]:
        assert set(summary[rule]["per_client"]) == set("0235")
        assert summary[rule]["protocol"].count("of 6") == 0
    told, last = summary["attacked"], ("2", "test", "post_aggregation")
    assert told["clients"] == [1, 4]
    for metric, mean in told["shares"].items():
        seen = {k[1]: v for k, v in found.values(metric).items() if k[2:4] == last[1:]}
        assert set(seen) == set("0235")
        assert np.mean([*seen.values()]) == pytest.approx(mean)
    assert "by clients 1, 4: all scores are those of the other" in told["says"]
    assert told["says"][:30] in summary_table(summary)
    points = {k[3] for k in found.values() if k[1] in "14"}
    assert points == {"hostile"}
    far = found.values("distance_from_mean")
    for number, h in summary["update_spread"].items():
        of_round = [v for k, v in far.items() if k[0] == number]
        assert len(of_round) == 4
        assert np.sqrt(np.mean(np.square(of_round))) == pytest.approx(h)


def test_hostile_clients_alone_train_on_other_labels_and_are_pooled_nowhere(run, once):
    def losses(found):
        seen = found.values("loss").items()
        return {k[1]: v for k, v in seen if (k[0], k[2]) == ("1", "train")}

    usual, bad = losses(once("fedavg", **SIX)), losses(run(**SIX, **keys("labels")))
    assert {c for c in usual if usual[c] != bad[c]} == {"1", "4"}
    found = run("fclg", **SIX, **keys("sign"), **{"embedding.evaluation": "pooled"})
    of_all = [
        r.split(",") for r in found.rounds.splitlines() if r.split(",")[1] == "-1"
    ]
    assert {size for *_, size in of_all} == {str(20 + 30 + 35 + 45)}


def test_numbers_past_the_guard_fail_a_hostile_client_by_name(run):
    found = run(**SIX, **keys("scale", strength=1e6), **{"min-fit-replies": 0.5})
    assert {f["client"] for f in found.summary["failures"]} == {1, 4}
    assert "300 allowed" in found.summary["failures"][0]["reason"]


PAIR, NO_SERVER = "do not go together", "its server averages no models that it sees"
REFUSED = [
    ("fedavg", keys("sign", ""), PAIR),
    ("fedavg", keys("none", "1"), PAIR),
    ("fedavg", keys("sign", "0,1,2,3,4,5"), "leave at least one out"),
    ("fedavg", keys("sign", "6"), "attack.clients must be numbers of clients below 6"),
    ("fedavg", keys("sign", "1,2") | {"held-out-clients": "2"}, r"train \(0-1, 3-5\)"),
    ("fedavg", keys("sign", "1,2") | {"held-out-clients": "0,3,4,5"}, "not all, of"),
    *((m, keys("sign"), NO_SERVER) for m in ("local", "centralized", "spreadgnn")),
    ("fedavg", keys("sign") | {"secure-aggregation.on": True}, NO_SERVER),
    ("fclg", keys("labels"), "needs a task of classification, got 'graph-embedding'"),
    ("fedgkd", keys("trigger"), "needs a task of graph-classification"),
]


def test_what_no_attack_can_do_is_refused():
    for method, changes, words in REFUSED:
        with pytest.raises(ConfigError, match=words):
            toys.resolved(method, **{**SIX, **changes})
    share = [
        toys.resolved(**{**SIX, **keys("sign", "0.34"), "split-seed": s})
        for s in (1, 2, 3)
    ]
    drawn = {r.attack.hostile(r.settings) for r in share}
    assert {len(clients) for clients in drawn} == {2}
    assert len(drawn) > 1


def test_a_site_is_not_made_to_lie(run, tmp_path, caplog):
    nodes = [{"clients": "0,1,2,3,4,5", "state-dir": str(tmp_path)}]
    with pytest.raises(RunFailedError, match="refused the roll call: ConfigError"):
        run(**SIX, **keys("sign"), node_configs=nodes)
    assert "attack.kind must be 'none' at sites, got 'sign'" in caplog.text


def test_a_part_too_small_for_its_rule_is_told(run, caplog):
    eager = {"min-round": 0, "min-cluster-size": 2, "max-norm-threshold": 0.0}
    eager = {f"gcfl.{k}": v for k, v in {**eager, "mean-norm-threshold": 1e9}.items()}
    with caplog.at_level(logging.WARNING, "flwr"):
        run(
            "gcfl", **{**SIX, **eager}, **{"robust.rule": "median", "robust.hostile": 2}
        )
    assert "a cluster needs 5 clients (robust.rule 'median'" in caplog.text


# Rules against attacks --------------------------------------------------------------

RULES = {
    "mean": {},
    "median": {"robust.rule": "median"},
    "trimmed": {"robust.rule": "trimmed", "robust.hostile": 2},
    "multi-krum": {"robust.rule": "multi-krum", "robust.hostile": 2},
    "rfa": {"robust.rule": "rfa"},
    "clip": {"robust.rule": "clip"},
    "nearest": {"robust.rule": "median", "robust.mix": "nearest", "robust.hostile": 2},
}


@pytest.fixture(scope="module")
def alike(lab):
    """Ten clients of one kind, whose graphs a GIN tells apart; accuracy of a run."""

    def load(settings, client):
        found = load_partition(settings, client)
        turned = np.abs(found.graphs.y - client_group(client))
        return replace(found, graphs=replace(found.graphs, y=turned))

    def accuracy(rule, **attack):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(datasets, "load_partition", load)
            ten = {"num-clients": 10, "num-server-rounds": 12, "local-epochs": 3}
            size = {"shared-group": "all", "hidden-dim": 16, "batch-size": 16}
            found = lab.run(**ten, **size, **RULES[rule], **attack).summary
        return [found["final"]["per_client"][c] for c in "01245679"]

    return accuracy


@pytest.mark.slow
def test_every_rule_withstands_two_of_ten_that_turn_the_mean(alike):
    attack = keys("sign", "3,8", 4.0)
    assert np.mean(alike("mean", **attack)) < 1.2 * 0.5
    for rule in RULES.keys() - {"mean"}:
        usual = np.mean(alike(rule))
        assert usual > 0.9
        assert np.mean(alike(rule, **attack)) > usual - 0.03, rule
