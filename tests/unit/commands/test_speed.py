"""Commands that measure speed: they run, and their shares are shares."""

from __future__ import annotations

from dataclasses import replace

import pytest
import toys

from clients.spreadgnn import SpreadGNNClient
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import RoundTimes
from simulations.speed import memory, molecules, rounds, timing, views
from simulations.speed.__main__ import main


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setattr(timing.console, "width", 200)


def two_tasks(settings=None, client_id=0):
    return toys.with_tasks(toys.make_partition(client_id, dense=True))


def cells(out: str) -> list[list[str]]:
    """Rows of the printed tables, without their headings."""
    rows = [line.strip("│ ").split("│") for line in out.splitlines() if "│" in line]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_timer_takes_turns_and_leaves_out_the_first():
    called, now = [], [0.0]

    def action(name, *seconds):
        left = iter(seconds)

        def call():
            called.append(name)
            now[0] += next(left)

        return call

    found = timing.median_seconds(
        {"a": action("a", 9, 1, 2, 5), "b": action("b", 9, 3, 3, 4)},
        3,
        clock=lambda: now[0],
    )
    assert found == {"a": 2, "b": 3}
    assert called == ["a", "b"] * 4


@pytest.mark.slow
def test_a_round_is_told_beside_plain_loops(monkeypatch, capsys):
    """Our loop runs the same batches as the plain one; Flower's times are given."""
    monkeypatch.setattr(
        rounds.datasets, "load_partition", lambda _, c: toys.make_partition(c)
    )
    row = RoundTimes(3, wall_s=4, busy_s=2, client_compute_s=1)
    asked = []

    def timed_rounds(_, num_nodes):
        asked.append(num_nodes)
        return {"times": [None, None, row]}

    monkeypatch.setattr(rounds, "timed_rounds", timed_rounds)
    given = ["--dataset", "PROTEINS", "--clients", "3", "--repeats", "1"]
    assert main(["round", *given]) == 0
    found = cells(capsys.readouterr().out)
    kinds = [row[0].partition(" ")[0] for row in found]
    assert kinds == ["plain"] * 2 + ["ours", "ours:"] + ["ours"] * 4
    assert asked == [2, 3]
    assert 0 < float(found[3][1]) < float(found[2][1])  # operators alone
    assert 0 < float(found[3][3]) < float(found[2][3])
    assert found[-1][1] == "4.000"
    best = min(float(row[1]) for row in found[:2])
    assert float(found[-1][2][:-1]) == pytest.approx(best / 4, abs=0.01)
    assert main(["round", *given, "--nodes", "1"]) == 0
    assert asked == [2, 3, 1]


def test_parts_of_the_server_are_timed(capsys):
    assert main(["server", "--clients", "3", "6", "--repeats", "1"]) == 0
    found = cells(capsys.readouterr().out)
    assert [row[0] for row in found] == ["3"] * 7 + ["6"] * 7
    assert all(float(row[2]) >= 0 for row in found)


def test_overhead_is_the_time_that_no_client_computes(monkeypatch, capsys):
    times = RoundTimes(1, wall_s=1, busy_s=0.5, client_compute_s=1)
    summary = {"wall_s": 8, "overhead_s": 2, "times": [times] * 3}
    monkeypatch.setattr(rounds, "timed_rounds", lambda *_, **__: summary)
    assert main(["overhead", "--repeats", "2"]) == 0
    assert "median overhead: 25.0% of wall time" in capsys.readouterr().out


@pytest.mark.slow
def test_time_per_molecule_is_told_beside_plain_pyg(monkeypatch, capsys):
    monkeypatch.setattr(molecules, "load_partition", two_tasks)
    found = []
    measured = molecules.shares
    monkeypatch.setattr(
        molecules, "shares", lambda e: found.append(measured(e)) or found[-1]
    )
    given = ["--datasets", "SIDER", "--batches", "1", "4", "--repeats", "1"]
    assert main(["molecules", *given]) == 0
    out = capsys.readouterr().out
    assert "SIDER: 12 molecules" in " ".join(out.split())
    assert [row[:2] for row in cells(out)] == [
        ["sage", "1"],
        ["sage", "4"],
        ["gat", "1"],
        ["gat", "4"],
    ]
    for inside, beside, num_ops in found:
        assert 0 < inside < 1
        assert 0 < inside + beside < 1
        assert num_ops > 100


def test_the_penalty_is_part_of_what_is_timed(monkeypatch, tmp_path):
    config = {**defaults(), "method": "spreadgnn", "dataset": "SIDER"}
    known = []
    invert = SpreadGNNClient._invert

    def spy(self):
        invert(self)
        known.append((self._regularises, self.round.around.task_ids))

    monkeypatch.setattr(SpreadGNNClient, "_invert", spy)
    partition = replace(two_tasks(), task_ids=(0,))
    molecules.our_epoch(resolve(config), partition, tmp_path)()
    assert known == [(True, (0, 1))]


def here(found):
    """Stand in for a process of its own; keep what was asked and answered."""

    def call(action, *arguments):
        found.append((arguments, action(*arguments)))
        return found[-1][1]

    return call


def test_noisy_graphs_are_timed_dense_and_as_edge_lists(monkeypatch, capsys):
    found = []
    monkeypatch.setattr(views, "in_own_process", here(found))
    monkeypatch.setattr(views, "CELLS", 50)
    assert main(["views", "--nodes", "3", "10", "--repeats", "2"]) == 0
    kinds = ("kept", "dense", "edges")
    assert [given for given, _ in found] == [(k, n, 2) for n in (3, 10) for k in kinds]
    assert all(seconds > 0 and mib >= 0 for _, (seconds, mib) in found)
    rows = cells(capsys.readouterr().out)
    assert [row[:2] for row in rows] == [["3", "5"], ["10", "1"]] * 2  # time, memory


def test_memory_of_a_client_is_measured_and_held_against_the_limit(monkeypatch, capsys):
    given = ["memory", "--nodes", "800", "--clients", "2,3", "--methods", "fedgkd"]
    said = []

    def of_known_size(_, action, argument):
        said.append(action(argument))
        return said[-1], 5.0 if action is memory.train else 9.0

    monkeypatch.setattr(memory, "in_own_process", of_known_size)
    assert main([*given, "--set", "local-epochs=1"]) == 1
    assert "ABOVE 4 GB" in capsys.readouterr().out
    assert said[0].startswith("800 nodes, 5509 edges")
    assert ["after 1 epochs" in words for words in said] == [False, False, True, True]
    assert main([*given, "--limit-gb", "5"]) == 0
    assert "within 5 GB" in capsys.readouterr().out


@pytest.mark.slow  # a process that loads torch
def test_peak_memory_of_another_process_is_told():
    said, peak = timing.in_own_process(memory.with_peak, str.upper, "done")
    assert said == "DONE"
    assert 0.01 < peak < 3


def test_what_another_process_raises_is_raised_here():
    with pytest.raises(ValueError, match="invalid literal"):
        timing.in_own_process(int, "x")
