"""Commands that measure speed: they run, and their shares are shares."""

from __future__ import annotations

from dataclasses import replace

import toys

from clients.spreadgnn import SpreadGNNClient
from fedgraph_flwr.registry import defaults, resolve
from simulations import speed_multitask


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
