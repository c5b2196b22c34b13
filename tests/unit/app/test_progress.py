"""The line that a run prints after every round."""

from __future__ import annotations

from fedgraph_flwr.progress import Clock


def test_time_left_forgets_the_first_round_once_a_second_shows_the_pace():
    clock = Clock(10)
    assert clock.left(1, 40.0) == "6:00"
    assert clock.left(2, 2.0) == "0:16"
    assert clock.left(3, 4.0) == "0:21"  # 7 rounds of 3 s


def test_time_left_after_a_resume_counts_its_own_rounds():
    clock = Clock(10)
    assert clock.left(8, 30.0) == "1:00"
    assert clock.left(9, 2.0) == "0:02"
