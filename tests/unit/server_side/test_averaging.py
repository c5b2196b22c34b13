"""Weighted means against numbers by hand and Flower's own FedAvg."""

from __future__ import annotations

import numpy as np
import pytest
import toys
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from fedgraph_flwr.core.config import Settings
from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.wire import Parcel
from strategies.averaging import (
    out_of_proportion,
    outweighing,
    weighted_mean,
)
from strategies.fedavg import FedAvg
from strategies.personal import mix


def test_by_hand():
    models = [{"w": np.float32([1, 2])}, {"w": np.float32([5, 6])}]
    mean = weighted_mean(models, [3, 1])
    assert mean["w"].tolist() == [2, 3]
    assert mean["w"].dtype == np.float32
    assert weighted_mean(models, [1, 0])["w"].tolist() == [1, 2]
    counters = [{"n": np.array(4)}, {"n": np.array(9)}]  # the first's
    assert weighted_mean(counters, [1, 1])["n"] == 4


def test_flowers_fedavg_agrees():
    rng = np.random.default_rng(0)
    models = [
        {
            "a": rng.normal(size=(4, 3)).astype(np.float32),
            "b": rng.normal(size=5).astype(np.float32),
        }
        for _ in range(5)
    ]
    sizes = rng.integers(1, 100, 5).tolist()
    records = [
        RecordDict(
            {
                "arrays": ArrayRecord({k: Array(v) for k, v in m.items()}),
                "metrics": MetricRecord({"num-examples": n}),
            }
        )
        for m, n in zip(models, sizes, strict=True)
    ]
    theirs = aggregate_arrayrecords(records, "num-examples")
    ours = weighted_mean(models, sizes)
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name].numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"w": np.zeros(3, np.float32)}, "must share the same tensors"),
        ({"v": np.zeros(2, np.float32)}, "must share the same tensors"),
        ({"w": np.float32([0, np.nan])}, "NaN or infinity; lower the learning rate"),
    ],
)
@pytest.mark.parametrize(
    "average",
    [
        lambda models: weighted_mean(models, [1, 1]),
        lambda models: mix(models, np.ones((1, 2))),
    ],
    ids=["weighted_mean", "mix"],
)
def test_models_that_cannot_be_averaged(average, other, match):
    with pytest.raises(WireError, match=match):
        average([{"w": np.zeros(2, np.float32)}, other])


@pytest.mark.parametrize(
    ("name", "sizes", "sent", "absurd"),
    [
        ("w", (0.1, 0.2, 300, 0.1), 0.1, []),
        ("w", (0.1, 0.2, 301, 0.1), 0.1, [2]),
        ("w", (0.1, 3e38, 3e38), 0.1, [1, 2]),  # as many as the others and the server
        ("w", (301, 0.1), None, [0]),
        ("w", (1e9, 2e9, 5e9), None, []),  # rows of large features, at all clients
        ("w", (1e6, 1e9, 2e6), 1.0, [1]),  # statistics of batches
        ("w", (0.0, 1e-9, 200), 0.0, []),  # below 1 nothing is far from another
        ("w", (), 0.1, []),
        # Client 1 has sent what no batch has touched, or client 0 alone replied.
        ("bn.running_var", (400, 0.0, 500), 1.0, []),
        ("bn.running_var", (400,), 1.0, []),
        ("bn.running_var", (0.1, 0.2, 301), 1.0, [2]),
    ],
)
def test_numbers_out_of_all_proportion_are_named(name, sizes, sent, absurd):
    model = {} if sent is None else {name: np.float32([sent]), "more": np.float32([1])}
    models = {c: {name: np.float32([0, -size])} for c, size in enumerate(sizes)}
    found = out_of_proportion(models, model, 300)
    assert sorted(found) == absurd
    for words in found.values():
        assert f"array '{name}' holds numbers as large as" in words
        assert "lower the learning rate" in words


@pytest.mark.parametrize("weights", [[0, 0], [1, -1], [1]])
def test_weights_that_do_not_fit(weights):
    with pytest.raises(ValueError, match="weights"):
        weighted_mean([{"w": np.zeros(2)}] * 2, weights)


@pytest.mark.parametrize(
    ("sizes", "weighting", "mean"),
    [
        ((0, 3), "samples", 7),  # nodes of a client may all be held out
        ((0, 0), "samples", 1),  # nobody has trained: the old model stays
        ((0, 3), "uniform", 6),
    ],
)
def test_who_has_nothing_to_train_on_weighs_nothing_by_samples(sizes, weighting, mean):
    strategy = FedAvg(
        toys.run_settings(weighting=weighting), Settings(), experiment="x"
    )
    strategy.clients = {c: toys.info(c, num_train=n) for c, n in enumerate(sizes)}
    strategy.initialise({"w": np.float32([1])})
    sent = {c: Parcel(arrays={"shared/w": np.float32([5 + 2 * c])}) for c in (0, 1)}
    strategy.step(1, sent)
    assert strategy.theta["w"].tolist() == [mean]


@pytest.mark.parametrize(
    ("weights", "sites", "who"),
    [
        ([100, 120, 1_000_000], {}, "client 2 has 100.0% of the weight"),
        ([60, 30, 10], {}, "client 0 has 60.0% of the weight"),
        ([50, 30, 20], {}, ""),  # no more than all others together
        ([1, 1, 1], {}, ""),
        ([30, 10], {}, ""),  # of two, one is always larger
        ([99, 1], {}, "client 0 has 99.0% of the weight"),
        ([], {}, ""),
        # A site that speaks for many clients, none of them large.
        (
            [20, 20, 20, 20, 5],
            {1: "north", 2: "north", 3: "north"},
            "site north has 70",
        ),
        ([20, 20, 20], {0: "north", 1: "north", 2: "north"}, ""),
    ],
)
def test_whoever_makes_up_most_of_an_average_is_named(weights, sites, who):
    found = outweighing(dict(enumerate(weights)), sites)
    assert found.startswith(who)
    assert bool(found) == bool(who)
