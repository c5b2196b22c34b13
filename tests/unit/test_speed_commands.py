"""Commands that measure speed: they run, and their shares are shares."""

from __future__ import annotations

from dataclasses import replace

import toys

from clients.spreadgnn import SpreadGNNClient
from fedgraph_flwr.resolve import defaults, resolve
from simulations import node_memory, speed_dense, speed_multitask


def two_tasks(settings=None, client_id=0):
    return toys.with_tasks(toys.make_partition(client_id, dense=True))


def test_time_per_molecule_is_told_beside_plain_pyg(monkeypatch, capsys):
    monkeypatch.setattr(speed_multitask, "load_partition", two_tasks)
    monkeypatch.setattr(speed_multitask.console, "width", 120)
    found = []
    measured = speed_multitask.shares
    monkeypatch.setattr(
        speed_multitask, "shares", lambda e: found.append(measured(e)) or found[-1]
    )
    given = ["--datasets", "SIDER", "--sizes", "1", "4", "--repeats", "1"]
    assert speed_multitask.main(given) == 0
    out = capsys.readouterr().out
    assert "SIDER: 12 molecules" in out
    rows = [line.strip("│ ").split("│") for line in out.splitlines() if "│" in line]
    assert [[c.strip() for c in row[:2]] for row in rows] == [
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
        known.append((self._regularises, self.around.task_ids))

    monkeypatch.setattr(SpreadGNNClient, "_invert", spy)
    partition = replace(two_tasks(), task_ids=(0,))
    speed_multitask.our_epoch(resolve(config), partition, tmp_path)()
    assert known == [(True, (0, 1))]


def test_noisy_graphs_are_timed_dense_and_as_edge_lists(monkeypatch, capsys):
    found = {}

    def here(kind, num_nodes, repeats):
        assert repeats == 2
        found[kind, num_nodes] = speed_dense.measure(kind, num_nodes, repeats)
        return found[kind, num_nodes]

    monkeypatch.setattr(speed_dense, "apart", here)
    monkeypatch.setattr(speed_dense, "CELLS", 50)
    monkeypatch.setattr(speed_dense.console, "width", 120)
    assert speed_dense.main(["--sizes", "3", "10", "--repeats", "2"]) == 0
    assert list(found) == [(k, n) for n in (3, 10) for k in ("kept", "dense", "edges")]
    assert all(seconds > 0 and mib >= 0 for seconds, mib in found.values())
    out = capsys.readouterr().out
    rows = [line.strip("│ ").split("│") for line in out.splitlines() if "│" in line]
    cells = [[c.strip() for c in row] for row in rows]
    assert [row[:2] for row in cells if len(row) == 10] == [["3", "5"], ["10", "1"]]
    assert "median of 2" in out
    # Half precision: each epsilon raw and post-processed, and an error of 1e-3 at most.
    halves = [row for row in cells if len(row) == 4]
    assert [row[0] for row in halves] == ["0.1", "0.1", "1", "1", "10", "10"]
    assert all(0 < float(row[3]) < 1e-3 for row in halves)


def test_memory_of_a_client_is_measured_and_held_against_the_limit(monkeypatch, capsys):
    monkeypatch.setattr(node_memory.console, "width", 200)
    given = ["--nodes", "800", "--clients", "2", "--methods", "fedgkd"]
    found = []

    def here(action, argument):
        found.append(action(argument))
        return found[-1], 5.0 if action is node_memory.train else 9.0

    monkeypatch.setattr(node_memory, "in_own_process", here)
    assert node_memory.main([*given, "--set", "local-epochs=1"]) == 1
    assert "ABOVE 4 GB" in capsys.readouterr().out
    assert found[0].startswith("800 nodes, 5509 edges")
    assert "after 1 epochs" in found[2]
    assert node_memory.main([*given, "--limit-gb", "5"]) == 0
    assert "within 5 GB" in capsys.readouterr().out


def test_peak_memory_of_another_process_is_told():
    said, peak = node_memory.in_own_process(str.upper, "done")
    assert said == "DONE"
    assert 0.01 < peak < 3
