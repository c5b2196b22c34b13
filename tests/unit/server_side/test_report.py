"""What a client's numbers turn into."""

from __future__ import annotations

import pytest

from fedgraph_flwr.core.wire import Parcel, count_key, evaluation_key
from strategies.round_report import busy_seconds, read_evaluations


def test_a_received_model_belongs_to_the_round_before():
    metrics = {
        evaluation_key("val", "post_aggregation", "loss"): 0.25,
        evaluation_key("train", "post_training", "loss"): 0.5,
        count_key("val"): 3,
        count_key("train"): 9,
        "compute-s": 1.0,  # no evaluation
    }
    received, trained = read_evaluations(7, 4, metrics)
    assert (received.server_round, received.point) == (6, "post_aggregation")
    assert (received.value, received.num_examples) == (0.25, 3)
    assert (trained.server_round, trained.split) == (7, "train")
    assert (trained.client, trained.num_examples) == (4, 9)


@pytest.mark.parametrize(
    ("spans", "busy"),
    [
        ([], 0),
        ([(1, 2)], 2),
        ([(1, 2), (1, 2)], 2),  # side by side
        ([(1, 2), (2, 2)], 3),  # overlapping
        ([(1, 5), (2, 1)], 5),  # one inside the other
        ([(5, 1), (1, 2)], 3),  # apart, in any order
        ([(-3, 4), (9, 8)], 2),  # clipped to the round
        ([(-9, 4), (99, 4)], 0),  # a clock that is off
    ],
)
def test_busy_seconds_of_a_round_from_0_to_10(spans, busy):
    parcels = [Parcel(metrics={"started-at": s, "compute-s": t}) for s, t in spans]
    assert busy_seconds(parcels, 0, 10) == busy
