"""Each measurement runs, at its smallest, and its figures have an order in them."""

from __future__ import annotations

import bench
import pytest

pytestmark = pytest.mark.slow
FEW = ["--dataset", "synthetic", "--clients", "3", "--rounds", "1", "--turns", "1"]


def cells(out):
    """Rows of the printed tables, without their headings."""
    rows = [line.strip("│ ").split("│") for line in out.splitlines() if "│" in line]
    return [[cell.strip() for cell in row] for row in rows]


def test_a_round_is_told_beside_a_plain_loop_and_its_own_operators(capsys):
    assert bench.main(["round", *FEW, "--nodes"]) == 0
    _, _, table = capsys.readouterr().out.rpartition("a round")
    found = {row[0]: [float(c) for c in row[1:3]] for row in cells(table)}
    clients, plain, operators, inline = found.values()
    assert list(found)[:2] == ["our clients in a loop", "plain loop, 1 threads"]
    assert 0 < operators[0] < clients[0]
    assert plain[1] == 1
    assert inline[0] > 0
    assert clients[1] == pytest.approx(plain[0] / clients[0], rel=0.2)


def test_trees_take_turns_and_are_told_as_ratios(monkeypatch, capsys):
    seconds, asked = {"a": [2.0, 0.0], "b": [3.0, 1.5]}, []

    def turn_in(tree, given):
        asked.append((tree.name, given[0]))
        return {"loop": seconds[tree.name]}

    monkeypatch.setattr(bench, "_turn_in", turn_in)
    assert bench.main(["beside", "a", "b", "--turns", "2"]) == 0
    assert asked == [("a", "round"), ("b", "round")] * 2
    (row,) = cells(capsys.readouterr().out)  # the CPU of one is not known
    assert row == ["loop, s", "2.000", "1.500 (1.500 to 1.500)"]


def test_a_tree_answers_with_the_medians_of_its_turn():
    given = ["round", "--json", *FEW, "--nodes"]
    found = bench._turn_in(bench.Path(__file__).parents[3], given)
    assert len(found) == 4
    assert all(wall > 0 and cpu > 0 for wall, cpu in found.values())


@pytest.mark.deploy
@pytest.mark.timeout(900)
def test_a_round_over_sites_is_told_beside_the_work(capsys):
    given = ["--dataset", "synthetic", "--clients", "2", "--rounds", "2"]
    assert bench.main(["sites", *given]) == 0
    rows = {row[0]: row[1:3] for row in cells(capsys.readouterr().out)}
    inline, worker, alone = [tuple(map(float, row)) for row in rows.values()]
    assert list(rows)[1:] == ["a worker that stays", "a process each"]
    assert all(seconds > 0 for seconds in (*inline, *worker, *alone))


def test_a_run_grows_with_its_clients(monkeypatch, capsys):
    monkeypatch.setattr(bench, "in_own_process", lambda call, *given: call(*given))
    assert bench.main(["scale", "--clients", "2", "8", "--rounds", "2"]) == 0
    few, many = [[float(c) for c in row] for row in cells(capsys.readouterr().out)[-2:]]
    assert (few[0], many[0]) == (2, 8)
    assert all(value > 0 for value in few + many)
    assert few[-1] < many[-1]  # more rows on the disk
