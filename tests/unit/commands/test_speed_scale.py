"""The table of how a run grows with its clients."""

import pytest

from simulations.speed import scale, timing
from simulations.speed.__main__ import main


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Run in this process, and let tables be wide."""
    monkeypatch.setattr(timing.console, "width", 200)
    monkeypatch.setattr(scale, "in_own_process", lambda call, *given: call(*given))


@pytest.mark.slow
def test_a_row_for_each_number_of_clients_and_a_figure(tmp_path, capsys):
    figure = tmp_path / "scale.png"
    argv = ["scale", "--clients", "2", "4", "--rounds", "2", "--figure", str(figure)]

    assert main([*argv, "--set", f"cache-dir={tmp_path}/cache"]) == 0

    out = capsys.readouterr().out
    rows = [line.strip("│ ").split("│") for line in out.splitlines() if "│" in line]
    found = [[float(cell) for cell in row] for row in rows[-2:]]
    assert [row[0] for row in found] == [2, 4]
    assert all(value > 0 for row in found for value in row)
    start, least_round = found[0][1:3]
    assert least_round < start + least_round < 60
    assert found[0][-1] < found[1][-1]  # more rows on the disk
    assert figure.stat().st_size > 1000
