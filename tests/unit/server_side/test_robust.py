"""Robust rules against loops, Flower's functions and SciPy; and in whole runs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import toys
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import select_multikrum
from matrix import mostly_slow
from oracles import robust as oracle
from scipy.optimize import minimize
from spoiling import LENIENT, VICTIM, arrays, deliver_with

from fedgraph_flwr.core.config import Settings
from fedgraph_flwr.core.errors import ConfigError, RunFailedError
from fedgraph_flwr.core.robust_settings import WEIGHT, RobustSettings
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.results.printed import summary_table
from strategies.fedavg import FedAvg
from strategies.robust import RULES, capped, join, levelled, rfa

MIXES = ("none", "nearest", "buckets")


def updates(n, size=7, seed=0):
    return np.random.default_rng((seed, n)).normal(size=(n, size))


def joined(rows, rule, mix="none", hostile=1, weights=None):
    how = RobustSettings(rule=rule, mix=mix, hostile=hostile)
    weights = np.ones(len(rows)) if weights is None else np.array(weights, float)
    return join(rows, weights, how, numpy_rng(1, "x"))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mix", MIXES)
def test_rules_by_loops(rule, mix):
    """``part`` says what each client did: with it, most rules are a weighted sum."""
    for (n, f), tied in product([(9, 1), (12, 2), (5, 1)], (False, True)):
        if n < RobustSettings(rule=rule, mix=mix, hostile=f).least:
            continue
        rows = np.round(updates(n)) if tied else updates(n)
        weights = np.linspace(1, 1.5, n)
        mixed = rows.tolist()
        if mix == "nearest":
            mixed = oracle.nearest(mixed, f)
        elif mix == "buckets":
            mixed = oracle.buckets(mixed, numpy_rng(1, "x").permutation(n))
        own = weights if mix == "none" else np.ones(len(mixed))
        found, part = joined(rows, rule, mix, f, weights)
        np.testing.assert_allclose(
            found, oracle.RULES[rule](mixed, own, f), rtol=0, atol=1e-12
        )
        assert part.min() >= 0
        if rule not in ("median", "trimmed"):
            np.testing.assert_allclose(part @ rows, found, atol=1e-12)
        if rule != "clip":
            assert part.sum() == pytest.approx(1)


def test_flowers_functions_and_scipy_agree():
    for n, f, seed in product((7, 10), (1, 2), range(20)):
        rows = updates(n, seed=seed)
        found, _ = joined(rows, "trimmed", hostile=f)
        np.testing.assert_allclose(found, trim_mean(rows, (f + 0.5) / n), atol=1e-12)
        found, _ = joined(rows, "median", hostile=f)
        np.testing.assert_allclose(found, np.median(rows, axis=0), atol=1e-12)
        sent = [RecordDict({"a": ArrayRecord([row])}) for row in rows]
        chosen = select_multikrum(sent, f, n - f)
        _, part = joined(rows, "multi-krum", hostile=f)
        assert [*np.flatnonzero(part)] == sorted(map(sent.index, chosen))
        weights = np.linspace(1, 1.5, n)

        def total(z, rows=rows, weights=weights):
            return weights @ np.linalg.norm(rows - z, axis=1)

        found, _ = joined(rows, "rfa", weights=weights)
        assert total(found) < minimize(total, rows.mean(axis=0)).fun * (1 + 1e-4)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mix", MIXES)
def test_what_every_rule_keeps(rule, mix):
    n, f = 11, 2
    same = np.tile(updates(1), (n, 1))
    found, part = joined(same, rule, mix, f)
    np.testing.assert_allclose(found, same[0], atol=1e-12)
    if rule != "multi-krum" and mix == "none":  # which take the first of equals
        np.testing.assert_allclose(part, 1 / n)
    rows = updates(n)
    usual, _ = joined(rows, rule, mix, f)
    np.testing.assert_allclose(joined(8 * rows, rule, mix, f)[0], 8 * usual)
    rows[0], rows[5] = 1e30, -1e30
    honest = np.delete(rows, [0, 5], axis=0)
    spread = honest.max() - honest.min()
    if mix != "buckets" or rule != "multi-krum":  # 6 pairs are too few for it
        found, part = joined(rows, rule, mix, f)
        assert np.abs(found).max() < 2 * np.sqrt(rows.shape[1]) * spread
        assert part[[0, 5]].max() < 0.1 / n


def test_what_makes_a_rule_the_mean():
    rows = updates(9)
    for rule in ("trimmed", "multi-krum"):
        found, _ = joined(rows, rule, hostile=0)
        np.testing.assert_allclose(found, rows.mean(axis=0), atol=1e-12)
    weights = np.linspace(1, 1.5, 9)
    found, _ = rfa(rows, weights, 0, nu=1e9)
    np.testing.assert_allclose(found, weights @ rows / weights.sum(), atol=1e-9)
    _, part = joined(np.ones((5, 2)), "multi-krum")  # ties go to the lowest
    assert part.tolist() == [0.25] * 4 + [0]
    _, part = joined(np.array([[0.0, 1], [0, 2], [0, 2], [4, 2], [9, 3]]), "trimmed")
    assert part.tolist() == pytest.approx([1 / 9, 5 / 18, 5 / 18, 1 / 3, 0])


def test_whose_weight_and_whose_data_count_less():
    for weights, cut in (
        ([1000, 1, 1, 1, 1], [8 / 3, 1, 1, 1, 1]),
        ([9, 9, 1, 1, 1], [6, 6, 1, 1, 1]),
        ([3, 1], [3, 1]),
    ):
        assert capped(np.array(weights, float)).tolist() == pytest.approx(cut)
    clip, weighted = RobustSettings(rule="clip"), RobustSettings(rule="rfa")
    assert "client 2 tells of 5 times as much" in levelled({1: 2, 2: 10, 3: 0}, clip)
    assert levelled({1: 2, 2: 8}, clip) == levelled({}, clip) == ""
    assert levelled({1: 2, 2: 10}, weighted) == ""


def test_a_step_by_hand():
    """Client 3 has nothing to train on; a counter is the middle one, rounded."""
    for rule, low, high in (("median", 9, 9), ("clip", 8, 8), ("rfa", 8.9, 9.1)):
        how = RobustSettings(rule=rule)
        strategy = FedAvg(toys.run_settings(), Settings(), experiment="x", robust=how)
        sizes = (1, 100, 2, 0)
        strategy.clients = {c: toys.info(c, num_train=n) for c, n in enumerate(sizes)}
        strategy.initialise({"w": np.float32([5]), "n": np.array(0)})
        numbers = zip((6, 9, 65, 500), (1, 4, 9, 9), strict=True)
        sent = {
            c: Parcel(arrays={"shared/w": np.float32([w]), "shared/n": np.array(n)})
            for c, (w, n) in enumerate(numbers)
        }
        strategy.step(1, sent)
        assert strategy.theta["n"] == 4
        assert low <= strategy.theta["w"] <= high
        weights = [e for e in strategy.report.evaluations if e.metric == WEIGHT]
        assert [e.client for e in weights] == [0, 1, 2]


# In runs ----------------------------------------------------------------------------

SEVEN = {"num-clients": 7, "num-server-rounds": 2}
CASES = [  # rule, mix, hostile
    ("fedavg", "median", "nearest", 2),
    ("fedavg", "rfa", "none", 0),
    ("fedavg", "clip", "none", 0),
    ("fedavg", "trimmed", "buckets", 1),
    ("gcfl+", "multi-krum", "none", 2),
    ("fedgmtl", "trimmed", "none", 2),
    ("adafgl", "median", "none", 0),
    ("fedsage+", "multi-krum", "none", 2),
]


def keys(rule, mix="none", hostile=0):
    return {"robust.rule": rule, "robust.mix": mix, "robust.hostile": hostile}


@pytest.mark.parametrize(
    ("method", "rule", "mix", "hostile"),
    mostly_slow(CASES, fast=[CASES[0], CASES[3], CASES[4]]),
)
def test_a_rule_gives_the_same_bytes_on_any_nodes_and_after_a_resume(
    lab, method, rule, mix, hostile
):
    settings = {**SEVEN, **keys(rule, mix, hostile)}
    if method == "adafgl":
        settings["adafgl.federated-rounds"] = 1
    whole = lab.run(method, **settings)
    assert lab.run(method, nodes=3, **settings).sha == whole.sha
    assert lab.once(method, **{**settings, **keys("mean")}).sha != whole.sha
    part = lab.run(method, **{**settings, "num-server-rounds": 1})
    kept = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = lab.run(method, **settings, **kept, resume=str(part.path))
    assert resumed.sha == whole.sha
    assert resumed.summary["robust"] == whole.summary["robust"]


@pytest.mark.parametrize("rule", ["median", "multi-krum", "rfa"])
def test_who_is_left_out_is_told_and_a_guard_of_0_fails_nobody(run, monkeypatch, rule):
    """What the victim sends otherwise fails it by name."""
    huge = arrays(lambda named: {n: np.full_like(a, 1e6) for n, a in named.items()})
    deliver_with(monkeypatch, huge)
    settings = {**SEVEN, "shared-group": "all", **keys(rule, hostile=1)}
    found = run(**settings, **{"robust.guard": 0.0}).summary
    assert found["failures"] == []
    told = found["robust"]["per_client"]
    assert {c: v["left_out"] for c, v in told.items() if v["left_out"]} == {"2": 2}
    assert {v["rounds"] for v in told.values()} == {2}
    assert sum(v["mean_weight"] for v in told.values()) == pytest.approx(7)
    words = f"client {VICTIM} (left out in 2 of 2 rounds, 0."
    assert words in found["robust"]["says"]
    assert found["robust"]["says"][:30] in summary_table(found)
    guarded = run(**settings, **LENIENT).summary
    assert {f["client"] for f in guarded["failures"]} == {VICTIM}
    assert "300 allowed; lower the learning rate" in guarded["failures"][0]["reason"]


def test_a_round_with_too_few_replies_fails_by_name(run, monkeypatch):
    toys.fail_when(monkeypatch, lambda client, number: (client, number) == (1, 2))
    words = r"round 2: 6 clients count in an average, robust.rule 'multi-krum' needs 7"
    with pytest.raises(RunFailedError, match=words):
        run(**SEVEN, **keys("multi-krum", hostile=2), **LENIENT)


def test_a_cluster_gets_no_fewer_clients_than_its_rule_needs(run):
    eager = {"min-round": 0, "min-cluster-size": 2, "max-norm-threshold": 0.0}
    eager = {f"gcfl.{k}": v for k, v in {**eager, "mean-norm-threshold": 1e9}.items()}
    smallest = {
        rule: min(
            map(
                len,
                run("gcfl", **SEVEN, **eager, **keys(rule, hostile=f)).summary[
                    "clusters"
                ],
            )
        )
        for rule, f in (("mean", 0), ("median", 1))
    }
    assert smallest["mean"] < 3 <= smallest["median"]


UNREAD, NUMBER = "robust.rule must not be 'mean' with", "hostile must be at least 1 for"
NO_AVERAGE, OWN = "server does not average models by combine", "an average of its own"
REFUSED = [
    ("fedavg", 3, keys("mean", "nearest"), UNREAD),
    ("fedavg", 3, keys("mean", hostile=1), UNREAD),
    ("fedavg", 3, keys("trimmed"), NUMBER),
    ("fedavg", 3, keys("multi-krum"), NUMBER),
    ("fedavg", 3, keys("rfa", "nearest"), NUMBER),
    ("fedavg", 3, keys("rfa", "buckets"), NUMBER),
    ("fedavg", 4, keys("median", hostile=2), "needs 5 clients in a round"),
    ("fedavg", 4, keys("trimmed", "nearest", 2), "needs 5 clients in a round"),
    ("fedavg", 6, keys("multi-krum", hostile=2), "needs 7 clients in a round"),
    ("fedavg", 8, keys("clip", "buckets", 2), "needs 9 clients in a round"),
    ("fedavg", 12, keys("multi-krum", "buckets", 2), "needs 13 clients in a round"),
    *(
        (m, 3, keys("rfa"), NO_AVERAGE)
        for m in ("local", "centralized", "fedproto", "self-weight", "spreadgnn")
    ),
    ("scaffold", 3, keys("rfa"), "adds up controls"),
    ("fedtad", 3, keys("rfa"), "learns from each client's model"),
    *((m, 3, keys("rfa"), OWN) for m in ("fedaux", "fedgkd", "fedgta", "fedpub")),
]


def test_what_no_rule_can_do_is_refused_and_every_other_method_takes_one(write_plugin):
    """Of a plug-in with a step of its own nobody could tell that a rule did nothing."""
    step = "class Own(FedAvg):\n    def step(self, server_round, replies): ..."
    made = f"from fedgraph_flwr.api import *\n{step}\nMETHOD = Method(strategy=Own)\n"
    write_plugin("plugins/own.py", made)
    for method, n, changes, words in [
        *REFUSED,
        ("own:METHOD", 3, keys("rfa"), NO_AVERAGE),
    ]:
        with pytest.raises(ConfigError, match=words):
            toys.resolved(**{"method": method, "num-clients": n, **changes})
    for method in METHODS.keys() - {m for m, *_ in REFUSED[6:] if m != "fedavg"}:
        toys.resolved(method, **keys("median"))
    noisy = toys.resolved(**keys("median"), **{"privacy.update-clip": 1.0})
    assert "makes all of them about equally far" in noisy.warnings[0]
