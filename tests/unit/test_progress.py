"""The line that a run prints after every round."""

from __future__ import annotations

from fedgraph_flwr import progress


def test_time_left_forgets_the_first_round_once_the_second_shows_the_pace(monkeypatch):
    times = iter([0.0, 40.0, 42.0, 46.0])  # start; 40 s of start-up; then 2 s and 4 s
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    clock = progress.Clock(0, 10)
    assert clock.left(1) == "6:00"
    assert clock.left(2) == "0:16"
    assert clock.left(3) == "0:21"  # 7 rounds of 3 s


def test_time_left_after_a_resume_counts_its_own_rounds(monkeypatch):
    times = iter([100.0, 130.0, 132.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    clock = progress.Clock(7, 10)
    assert clock.left(8) == "1:00"
    assert clock.left(9) == "0:02"
