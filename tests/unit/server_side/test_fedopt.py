"""FedAdam and FedYogi: Flower's own classes, and the settings that make them FedAvg."""

import numpy as np
import pytest
import toys
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower

from fedgraph_flwr.core.wire import Parcel, with_prefix
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.fedopt import FedOptParams
from strategies import fedopt
from strategies.fedavg import FedAvg
from strategies.fedopt import FedOpt, second_moment


def model(seed):
    drawn = np.random.default_rng(seed).normal(size=6).astype(np.float32)
    return {"w": drawn[:4].reshape(2, 2), "running_mean": drawn[4:]}


def replies(number):
    named = [with_prefix(SHARED, model((number, c))) for c in range(3)]
    return {c: Parcel(arrays=arrays) for c, arrays in enumerate(named)}


def play(made, rounds=4):
    made.clients = {c: toys.info(c, num_train=c + 1) for c in range(3)}
    made.initialise(model(0))
    for number in range(1, rounds + 1):
        made.step(number, replies(number))
        yield made.theta


def ours(rule="adam", **params):
    own = FedOptParams(**params)
    return FedOpt(toys.run_settings(), own, rule=rule, experiment="e")


def plain():
    return play(FedAvg(toys.run_settings(), FedOptParams(), experiment="e"))


@pytest.mark.parametrize(
    ("rule", "theirs"), [("adam", flower.FedAdam), ("yogi", flower.FedYogi)]
)
def test_steps_are_those_of_flowers_classes(rule, theirs, monkeypatch):
    """Flower has the mean of our replies, which is tested elsewhere."""
    sizes = {"eta": 0.05, "tau": 0.01}
    betas = {"beta_1": fedopt.BETA_1, "beta_2": fedopt.BETA_2}
    other, means = theirs(**sizes, **betas), [m["w"] for m in plain()]
    mean = {"w": None}
    monkeypatch.setattr(
        flower.FedAvg,
        "aggregate_train",
        lambda *_: (ArrayRecord({"w": Array(mean["w"])}), None),
    )
    other.current_arrays = {"w": model(0)["w"]}
    for number, theta in enumerate(play(ours(rule, flower=True, **sizes)), 1):
        mean["w"] = means[number - 1]
        found = other.aggregate_train(number, [])[0]
        other.current_arrays = {n: a.numpy() for n, a in found.items()}
        np.testing.assert_allclose(theta["w"], other.current_arrays["w"], atol=1e-6)
        assert theta["w"].dtype == np.float32


@pytest.mark.parametrize("rule", ["adam", "yogi"])
def test_a_large_tau_is_fedavg_rate_0_rests_and_statistics_are_averaged(
    rule, monkeypatch
):
    monkeypatch.setattr(fedopt, "BETA_1", 0.0)
    monkeypatch.setattr(fedopt, "BETA_2", 1.0)  # v stays tau^2
    far = ours(rule, eta=2e8, tau=1e8)
    rounds = zip(plain(), play(far), play(ours(rule, eta=0.0)), strict=True)
    for expected, theta, still in rounds:
        np.testing.assert_allclose(theta["w"], expected["w"], atol=1e-6)
        np.testing.assert_array_equal(still["w"], model(0)["w"])
        for found in (theta, still):
            np.testing.assert_array_equal(
                found["running_mean"], expected["running_mean"]
            )


def test_by_hand_from_tau_squared():
    """0.1 + 0.5 (0.1 x 2) / (sqrt(0.99 x 1 + 0.01 x 4) + 1), and yogi's v."""
    made = ours(eta=0.5, tau=1.0)
    made.clients = {0: toys.info(0)}
    made.initialise({"w": np.array([0.1])})
    made.step(1, {0: Parcel(arrays={SHARED + "w": np.array([2.1])})})
    assert made.theta["w"] == pytest.approx(0.1 + 0.1 / (1.03**0.5 + 1))
    v, delta = np.array([1.0, 9.0]), np.array([2.0, 2.0])
    np.testing.assert_allclose(second_moment("yogi", v, delta, 0.75), [2.0, 8.0])
