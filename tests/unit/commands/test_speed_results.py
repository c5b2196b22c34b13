"""The command that writes the results of many clients, and opens them."""

import pytest

from fedgraph_flwr.results.reader import read_rows, read_summary
from simulations.speed import results, timing
from simulations.speed.__main__ import main


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Run in this process, and let tables be wide."""
    monkeypatch.setattr(timing.console, "width", 200)
    monkeypatch.setattr(results, "in_own_process", lambda call, *given: call(*given))


def test_results_are_written_as_a_run_writes_them_and_opened(
    tmp_path, monkeypatch, capsys
):
    kept = {}
    monkeypatch.setitem(
        results._OPEN,
        "simulations.report",
        lambda config, run: kept.update(
            summary=read_summary(run),
            rows=list(read_rows(run / "rounds.csv")),
            page=results.write_report([run], tmp_path / "again.html").read_text(),
            config=config,
        ),
    )
    rounds = ["--rounds", "4", "--set", "evaluate-every=3"]
    assert main(["results", "--clients", "3", *rounds]) == 0

    assert kept["summary"]["status"] == "completed"
    assert (
        kept["summary"]["num_clients"] == kept["summary"]["final"]["num_clients"] == 3
    )
    measured = {(row[3], int(row[0])) for row in kept["rows"] if row[2] == "val"}
    assert measured == {
        *(("post_aggregation", n) for n in (0, 3, 4)),
        *(("post_training", n) for n in (3, 4)),
    }
    assert f"{kept['summary']['final']['mean']:.3f}" in kept["page"]
    out = capsys.readouterr().out
    told = {line.strip("│ ").split("│")[0].strip() for line in out.splitlines()}
    assert {"the server writes", *results._OPEN, "rounds.csv", "all files"} <= told
