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

from fedgraph_flwr.core.errors import ConfigError, RunFailedError
from fedgraph_flwr.core.robust_settings import RobustSettings
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.results.printed import summary_table
from strategies.robust import RULES, buckets, capped, join, levelled, rfa

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
    assert sorted(buckets(5, numpy_rng(1, "x")).sum(axis=1)) == [1, 1, 1]


@pytest.mark.parametrize(
    ("weights", "cut"),
    [
        ([1000, 1, 1, 1, 1], [8 / 3, 1, 1, 1, 1]),
        ([9, 9, 1, 1, 1], [6, 6, 1, 1, 1]),
        ([3, 1], [3, 1]),
        ([7], [7]),
    ],
)
def test_no_client_has_more_than_two_of_n_parts(weights, cut):
    assert capped(np.array(weights, float)).tolist() == pytest.approx(cut)


def test_whose_data_count_less_is_said():
    clip, rfa_alone = RobustSettings(rule="clip"), RobustSettings(rule="rfa")
    assert "client 2 tells of 5 times as much" in levelled({1: 2, 2: 10, 3: 0}, clip)
    assert levelled({1: 2, 2: 8}, clip) == levelled({}, clip) == ""
    assert levelled({1: 2, 2: 10}, rfa_alone) == ""


# In runs ----------------------------------------------------------------------------

SEVEN = {"num-clients": 7, "num-server-rounds": 2}
LIARS = {"robust.hostile": 2}
CASES = [
    ("fedavg", {"robust.rule": "median", "robust.mix": "nearest", **LIARS}),
    ("fedavg", {"robust.rule": "rfa"}),
    ("fedavg", {"robust.rule": "clip"}),
    (
        "fedavg",
        {"robust.rule": "trimmed", "robust.mix": "buckets"} | {"robust.hostile": 1},
    ),
    ("gcfl+", {"robust.rule": "multi-krum", **LIARS}),
    ("fedgmtl", {"robust.rule": "trimmed", **LIARS}),
    ("adafgl", {"robust.rule": "median", "adafgl.federated-rounds": 1}),
    ("fedsage+", {"robust.rule": "multi-krum", **LIARS}),
]


@pytest.mark.parametrize(
    ("method", "rule"), mostly_slow(CASES, fast=[CASES[0], CASES[3], CASES[4]])
)
def test_a_rule_gives_the_same_bytes_on_any_nodes_and_after_a_resume(lab, method, rule):
    whole = lab.run(method, **SEVEN, **rule)
    assert lab.run(method, nodes=3, **SEVEN, **rule).sha == whole.sha
    assert lab.once(method, **SEVEN).sha != whole.sha
    part = lab.run(method, **{**SEVEN, **rule, "num-server-rounds": 1})
    kept = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = lab.run(method, **SEVEN, **rule, **kept, resume=str(part.path))
    assert resumed.sha == whole.sha
    assert resumed.summary["robust"] == whole.summary["robust"]


@pytest.mark.parametrize("rule", ["median", "multi-krum", "rfa"])
def test_who_is_left_out_is_told_and_a_guard_of_0_fails_nobody(run, monkeypatch, rule):
    """What the victim sends otherwise fails it by name."""
    huge = arrays(lambda named: {n: np.full_like(a, 1e6) for n, a in named.items()})
    deliver_with(monkeypatch, huge)
    settings = {**SEVEN, "shared-group": "all", "robust.rule": rule}
    settings["robust.hostile"] = 1
    found = run(**settings, **{"robust.guard": 0.0}).summary
    assert found["failures"] == []
    told = found["robust"]["per_client"]
    assert {c: v["left_out"] for c, v in told.items() if v["left_out"]} == {"2": 2}
    assert told["2"]["rounds"] == 2
    total = sum(v["mean_weight"] for v in told.values())
    assert total == pytest.approx(7)
    words = f"of an equal part of the average): client {VICTIM} in 2 of 2 rounds"
    assert f"{words}; below 0.5 on average: client 2 (0." in found["robust"]["says"]
    assert found["robust"]["says"][:30] in summary_table(found)
    guarded = run(**settings, **LENIENT).summary
    assert {f["client"] for f in guarded["failures"]} == {VICTIM}
    assert "300 allowed; lower the learning rate" in guarded["failures"][0]["reason"]


def test_a_round_with_too_few_replies_fails_by_name(run, monkeypatch):
    toys.fail_when(monkeypatch, lambda client, number: (client, number) == (1, 2))
    rule = {"robust.rule": "multi-krum", **LIARS, "min-fit-replies": 0.5}
    words = r"round 2: 6 clients count in an average, robust.rule 'multi-krum' needs 7"
    with pytest.raises(RunFailedError, match=words):
        run(**SEVEN, **rule)


def test_a_cluster_gets_no_fewer_clients_than_its_rule_needs(run):
    eager = {
        "gcfl.min-round": 0,
        "gcfl.min-cluster-size": 2,
        "gcfl.mean-norm-threshold": 1e9,
        "gcfl.max-norm-threshold": 0.0,
    }
    for rule, hostile, least in (("mean", 0, 1), ("median", 1, 3)):
        robust = {"robust.rule": rule, "robust.hostile": hostile}
        found = run("gcfl", **SEVEN, **eager, **robust)
        assert min(map(len, found.summary["clusters"])) >= least
        if rule == "mean":
            assert min(map(len, found.summary["clusters"])) < 3


NO_AVERAGE = "server does not average models by combine"
REFUSED = [
    ("fedavg", {"robust.mix": "nearest"}, "robust.rule must not be 'mean' with"),
    ("fedavg", {"robust.hostile": 1}, "robust.rule must not be 'mean' with"),
    *(
        ("fedavg", {"robust.rule": r}, "hostile must be at least 1")
        for r in ("trimmed", "multi-krum")
    ),
    *(
        (
            "fedavg",
            {"robust.rule": "rfa", "robust.mix": m},
            "hostile must be at least 1",
        )
        for m in MIXES[1:]
    ),
    *(
        (
            "fedavg",
            {"robust.rule": r, "robust.mix": m, **LIARS, "num-clients": n},
            f"needs {n + 1} clients in",
        )
        for r, m, n in [
            ("median", "none", 4),
            ("trimmed", "nearest", 4),
            ("multi-krum", "none", 6),
            ("clip", "buckets", 8),
            ("multi-krum", "buckets", 12),
        ]
    ),
    *(
        (m, {"robust.rule": "rfa"}, NO_AVERAGE)
        for m in ("local", "centralized", "spreadgnn")
    ),
    *(
        (m, {"robust.rule": "rfa"}, "an average of its own")
        for m in ("self-weight", "fedgkd", "fedgta", "fedpub")
    ),
]


@pytest.mark.parametrize(("method", "changes", "words"), REFUSED)
def test_what_no_rule_can_do_is_refused(method, changes, words):
    with pytest.raises(ConfigError, match=words):
        toys.resolved(method, **changes)


def test_every_other_method_takes_a_rule_and_noise_beside_it_is_warned_of():
    refused = {m for m, *_ in REFUSED} - {"fedavg"}
    for method in METHODS.keys() - refused:
        toys.resolved(method, **{"robust.rule": "median"})
    noisy = toys.resolved(**{"robust.rule": "median", "privacy.update-clip": 1.0})
    assert "makes all of them about equally far" in noisy.warnings[0]


def test_a_plugin_that_averages_by_itself_is_refused(write_plugin):
    """Nobody could tell that the rule did nothing."""
    step = "class Own(FedAvg):\n    def step(self, server_round, replies): ..."
    made = "METHOD = Method(strategy=Own)"
    write_plugin("plugins/own.py", f"from fedgraph_flwr.api import *\n{step}\n{made}\n")
    with pytest.raises(ConfigError, match=NO_AVERAGE):
        toys.resolved(**{"method": "own:METHOD", "robust.rule": "rfa"})
