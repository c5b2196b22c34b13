"""The line that a run prints after every round."""

from __future__ import annotations

from fedgraph_flwr.results.progress import Clock


def test_time_left_is_told_once_a_second_round_of_this_process_shows_the_pace():
    clock, resumed, long = Clock(10), Clock(10), Clock(102)
    assert [clock.left(n, s) for n, s in ((1, 40.0), (2, 2.0))] == ["", "0:16"]
    assert clock.left(3, 4.0) == "0:21"  # 7 rounds of 3 s
    assert [resumed.left(n, s) for n, s in ((8, 30.0), (9, 2.0))] == ["", "0:02"]
    assert [long.left(n, s) for n, s in ((1, 1.0), (2, 37.0))] == ["", "1:01:40"]
