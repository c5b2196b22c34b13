"""``python -m simulations.run``: what it accepts, and its exit codes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from threading import Thread

import pytest

from fedgraph_flwr.core.files import project_root
from fedgraph_flwr.core.words import BY_HAND
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.results.run_file import RunFile
from simulations.cli import SITE, VERBS
from simulations.cli import main as fedgraph
from simulations.presets import list_presets
from simulations.run import (
    How,
    execute,
    flower_line,
)


@pytest.fixture
def command(toy_data, tmp_path):
    """Run a toy preset inline; return the exit code."""

    def start(*arguments: str, preset: str = "gcfl-plus-synthetic") -> int:
        small = ["num-clients=3", "num-server-rounds=1", "hidden-dim=4"]
        if "--flower" not in arguments:
            small = [*small, "--inline"]
        where = [f"state-dir={tmp_path}/state", "--results", f"{tmp_path}/results"]
        own = [word for word in arguments if word != "--flower"]
        return fedgraph(["run", preset, *small, *where, *own])

    return start


def test_completed_runs_exit_with_0_and_one_folder_per_seed(command, tmp_path):
    assert command("--seeds", "1,2") == 0
    summaries = [
        json.loads(p.read_text()) for p in tmp_path.glob("results/*/summary.json")
    ]
    assert sorted(s["seed"] for s in summaries) == [1, 2]
    assert {s["status"] for s in summaries} == {"completed"}


def test_a_failed_run_exits_with_1_and_is_named(command, toy_data, capfd):
    def broken(settings, client_id):
        raise ValueError("no graphs today")

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", broken)
        assert command("--seeds", "7") == 1
    told = " ".join(capfd.readouterr().err.split())
    assert "seed 7" in told
    assert "no graphs today" in told


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["learning-rate=-1"], "learning-rate must be a finite number >= 0"),
        (["nonsense"], "a setting is written KEY=VALUE, got 'nonsense'"),
        (["seed=[1]"], "not a text, number, true or false"),
        (["--seeds", "1,x"], "--seeds needs numbers"),
        (["--nodes", "0"], "0 is not in the range x>=1"),
        (["--gpus", "-1"], "-1.0 is not in the range x>=0"),
        (["--gpus", "0.1"], "--gpus is for Flower's actors"),
        (["--flower", "--gpus", "1e9"], "1e+09 leaves room for no actor"),
        (
            ["--seeds", "10", "seed=3"],
            "--seeds or seed=..., not both",
        ),
        (["gcfl.eps1=1"], "Known: gcfl.max-norm-threshold, gcfl.mean-norm"),
        (["learning-rate=0.1,0.01"], "a run has one value: for several start"),
        (["learning-rate=[0.1,0.01]"], "a run has one value: for several"),
        (["rounds=3"], "Did you mean 'num-server-rounds'?"),
        (["lr=0.1"], "Did you mean 'learning-rate'?"),
        (["dataset=mutag"], "Did you mean 'MUTAG'?"),
        (["--flower", "--jobs", "2"], "--jobs needs --inline"),
        (["results-dir=/x"], "either --results or results-dir"),
    ],
)
def test_bad_requests_exit_with_2_before_anything_starts(
    command, arguments, match, capfd, tmp_path
):
    assert command(*arguments) == 2
    assert match in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("gcfl-plus-protein", "gcfl-plus-proteins"),
        ("gcfl-plus", "gcfl+"),
        ("GCFL +", "gcfl+"),
        ("fedavgg", "fedavg"),
    ],
)
def test_an_unknown_name_tells_the_nearest_method_or_preset(
    command, capfd, given, meant
):
    assert command(preset=given) == 2
    told = " ".join(capfd.readouterr().err.split())
    assert f"unknown method or preset {given!r}. Did you mean {meant!r}?" in told


def test_a_method_stands_for_its_defaults(command, tmp_path, capfd):
    assert command("dataset=synthetic", preset="fedavg") == 0
    told = capfd.readouterr().err
    (path,) = tmp_path.glob("results/*")
    assert f"completed: fedavg on synthetic seed 10: {path}\n" in told  # one line
    assert load_summary(path)["method"] == "fedavg"
    assert not METHODS.keys() & list_presets().keys()


def test_ctrl_c_ends_without_a_traceback(command, monkeypatch, capfd):
    def stop(*_, **__):
        raise KeyboardInterrupt("; so is run 7")

    monkeypatch.setattr("simulations.run.run_inline", stop)
    assert command("--seeds", "1,2") == 130
    told = capfd.readouterr().err
    assert told.endswith(f"{BY_HAND}; so is run 7\n")
    assert "Traceback" not in told


def test_a_signal_to_the_parent_ends_runs_and_begins_no_further_one(tmp_path):
    results = tmp_path / "results"
    command = [sys.executable, "-m", "simulations.cli", "run", "fedavg", "--inline"]
    command += ["--jobs", "2", "--seeds", "1,2,3,4,5", "--results", str(results)]
    sets = ["dataset=synthetic", "num-clients=2", "num-server-rounds=1000"]
    command += [*sets, f"state-dir={tmp_path}/state"]
    log_file = tmp_path / "log"
    with (
        log_file.open("w") as out,
        subprocess.Popen(
            command, cwd=project_root(), stderr=out, stdout=out, start_new_session=True
        ) as process,
    ):
        try:
            deadline = time.monotonic() + 60
            while sum(bool(RunFile(p).checkpoints()) for p in results.glob("*-*")) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.terminate()
            assert process.wait(30) == 130
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    begun = [load_summary(folder) for folder in results.iterdir()]
    assert sorted(s["seed"] for s in begun) == [1, 2]
    assert {s["error"] for s in begun} == {f"RunFailedError: {BY_HAND}"}
    assert log_file.read_text().count("stopped; to go on: resume=") == 2


def test_a_run_whose_process_is_killed_fails_alone(tmp_path):
    sets = {"method": "fedavg", "dataset": "synthetic", "num-server-rounds": 1000}
    sets |= {"results-dir": f"{tmp_path}/results", "state-dir": f"{tmp_path}/state"}
    how = How(jobs=2, inline=True, nodes=1)
    outcomes = execute([{**sets, "seed": seed} for seed in (1, 2)], how)

    def kill_one():
        while len(children := multiprocessing.active_children()) < 2:
            time.sleep(0.05)
        children[0].kill()

    Thread(target=kill_one, daemon=True).start()
    _, outcome = next(outcomes)
    assert str(outcome) == "its process ended with exit code -9"
    (other,) = multiprocessing.active_children()
    outcomes.close()  # as the command does that is stopped
    assert not other.is_alive()


def test_a_run_prints_the_line_of_flower_that_does_the_same():
    line = flower_line({"method": "gcfl+", "seed": 3, "dry-run": True})
    assert line == """flwr run . --run-config 'method="gcfl+" seed=3 dry-run=true'"""


def test_the_list_of_verbs_imports_none_of_them(capsys):
    code = "import sys; from simulations.cli import main; assert main(['--help']) == 0"
    code += "; assert not {'torch', 'flwr', 'numpy'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f"\n  {verb} " in done.stdout for verb in (*VERBS, "site"))


@pytest.mark.parametrize("verb", [*VERBS, *(f"site {v}" for v in SITE)])
def test_every_verb_has_help(verb, capsys):
    assert fedgraph([*verb.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"Usage: fedgraph {verb} ")
    assert "\\" not in told  # marks of rich
    assert fedgraph([*verb.split(), "--no-such-option"]) == 2
