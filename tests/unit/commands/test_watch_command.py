"""The state of a run in the terminal."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
from pathlib import Path

import pytest
from rich.console import Console

from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.view.gather import gather
from simulations import watch
from simulations.cli import main as fedgraph


@pytest.fixture(scope="module")
def finished(once):
    return once("fedavg", **{"num-server-rounds": 3}).path


@pytest.fixture
def copy(finished, tmp_path):
    """A copy that is new: other files' tests may have made the run long ago."""
    to = tmp_path / "copy"
    return Path(shutil.copytree(finished, to, copy_function=shutil.copyfile))


def drawn(folder: Path, *, width: int = 80, now: float | None = None) -> str:
    console = Console(file=io.StringIO(), width=width)
    now = time.time() if now is None else now
    console.print(watch.picture(gather([folder])[0], width, now))
    return console.file.getvalue()


def test_a_run_that_goes_on(copy):
    (copy / "summary.json").unlink()
    text = drawn(copy)
    assert "unfinished" in text
    assert "round 3 of 3" in text
    assert "nothing new" not in text
    late = drawn(copy, now=time.time() + 100)
    assert "nothing new for" in late
    assert all(len(line) <= 40 for line in drawn(copy, width=40).splitlines())


def test_of_errors_the_largest_stands_first(copy, monkeypatch):
    (copy / "summary.json").unlink()
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "task": "multi-task"}))
    rows = ["1,0,test,post_aggregation,rmse,9.0,4"]
    rows += [f"1,{c},test,post_aggregation,mae,0.{c}5,4" for c in range(3)]
    (copy / "rounds.csv").write_text("\n".join(["header", *rows, ""]))
    monkeypatch.setattr(watch, "_MOST_ROWS", 1)
    text = drawn(copy)
    assert "mean test mae 0.1500 after round 1" in text
    assert "2       0.2500" in text
    assert "2 more  better" in text


def test_it_ends_with_the_run(copy, monkeypatch, capsys):
    summary = (copy / "summary.json").read_text()
    (copy / "summary.json").unlink()
    looks = []

    def finish(seconds):
        looks.append(seconds)
        failed = {**json.loads(summary), "status": "failed", "error": "too few"}
        (copy / "summary.json").write_text(json.dumps(failed))

    monkeypatch.setattr(watch.time, "sleep", finish)
    assert fedgraph(["watch", str(copy), "--every", "0.5"]) == 1
    assert looks == [0.5]
    told = capsys.readouterr().out
    assert "too few" in told
    assert f'to go on: resume="{copy}"' in told.replace("\n", "")
    assert told.endswith("\n")  # a shell's prompt, or a file's next line, comes after


def test_sites_cannot_steer_the_terminal(copy):
    summary = load_summary(copy)
    reason = json.dumps("[red]x\n\x1b]0;y\x07")
    with (copy / "failures.csv").open("a", newline="") as failures:
        csv.writer(failures).writerow([1, 0, reason])
    changes = {"sites": {"\x1b[2J": [0]}, "metric": "\x1b[2J[red]a"}
    (copy / "summary.json").write_text(json.dumps({**summary, **changes}))
    rounds = (copy / "rounds.csv").read_text()
    (copy / "rounds.csv").write_text(rounds.replace("accuracy", changes["metric"]))
    with (copy / "ledger.csv").open("a") as ledger:
        ledger.write("1,0,\x1b[2J,arrays,5\n")
    text = drawn(copy)
    assert text.count("[2J[red]a") == 2  # of the mean, and above the clients'
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]x" in text  # no markup of ours


def test_failures_are_told_while_it_goes_on(copy):
    (copy / "summary.json").unlink()
    (copy / "failures.csv").write_text('round,client,reason\n2,1,"""too late"""\n')
    assert "round 2, client 1 : too late" in drawn(copy)


def test_no_run_is_refused(tmp_path, capsys):
    assert fedgraph(["watch", str(tmp_path)]) == 2
    assert "is no results folder" in capsys.readouterr().err
    assert fedgraph(["watch", str(tmp_path), "--every", "nan"]) == 2
    assert "--every needs a number > 0" in capsys.readouterr().err
