"""The line that a run prints after every round."""

from __future__ import annotations

from fedgraph_flwr.results.progress import Clock


def test_no_time_is_told_until_a_second_round_shows_the_pace():
    clock = Clock(10)
    assert clock.left(1, 40.0) == ""
    assert clock.left(2, 2.0) == "0:16"
    assert clock.left(3, 4.0) == "0:21"  # 7 rounds of 3 s


def test_time_left_after_a_resume_counts_its_own_rounds():
    clock = Clock(10)
    assert clock.left(8, 30.0) == ""
    assert clock.left(9, 2.0) == "0:02"


def test_hours_are_told_apart():
    clock = Clock(102)
    clock.left(1, 1.0)
    assert clock.left(2, 37.0) == "1:01:40"
