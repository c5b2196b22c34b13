"""The drill itself: it can see a lost charge, other bytes, a run that cannot go on."""

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clients.privacy.lifetime import FOLDER as LIFETIME
from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.files import project_root
from fedgraph_flwr.results.reader import load_summary
from simulations import flower, processes
from simulations.drill import __main__ as drill
from simulations.drill.failing import AFTER, BEFORE, draw_failures, failures_of
from simulations.drill.inline import InlineEngine
from simulations.drill.targets import NUM_ROUNDS, names, targets, with_failures
from simulations.drill.trials import (
    NO_REASON,
    Moment,
    Outcome,
    Reference,
    Trial,
    compare,
    draw_moments,
    measure,
    run_trial,
)
from simulations.drill.witness import ledger_faults

REFERENCE = Reference(
    weights="abc",
    rounds="rows\n",
    privacy={"0": {"edge-epsilon": 2.0}},
    seconds=10.0,
    files=20,
)
MOMENT = Moment(victim="process", share=0.5, at_s=5.0)


def finished(
    folder: Path, run="run", *, weights="abc", rounds="rows\n", epsilon=2.0
) -> Path:
    path = folder / "results" / run
    path.mkdir(parents=True, exist_ok=True)
    (path / "rounds.csv").write_text(rounds)
    privacy = {"per_client": {"0": {"edge-epsilon": epsilon, "secret": 0.0}}}
    summary = {"status": "completed", "weights_sha256": weights, "privacy": privacy}
    (path / "summary.json").write_text(json.dumps(summary))
    return path


class Scripted:
    """An engine whose attempts end as told; the last one leaves a results folder."""

    name = "scripted"
    num_rounds = NUM_ROUNDS
    most_kills = 2
    victims: tuple[str, ...] = ("process",)
    loses_runs = False
    reference = None

    def __init__(self, *outcomes: Outcome) -> None:
        self.left, self.configs = list(outcomes), []

    def attempt(self, config, moment, folder):
        self.configs.append(config)
        outcome = self.left.pop(0)
        if outcome.status == "completed" or outcome.says != NO_REASON:
            number = len(self.configs) if "resume" not in config else 1
            path = finished(folder, f"run-{number}") / "checkpoint"
            path.mkdir(exist_ok=True)
            (path / self.checkpoint).touch()
        return outcome

    def faults(self, folder):
        return []

    def own_reference(self, target, run):
        return self.reference

    def close(self):
        pass


def trial_of(
    folder: Path, *outcomes: Outcome, checkpoint="other", loses_runs=False
) -> tuple[Trial, Scripted]:
    engine = Scripted(*outcomes)
    engine.loses_runs = loses_runs
    engine.checkpoint = checkpoint
    (target,) = targets(["local"], folder)
    trial = run_trial(
        engine, target, REFERENCE, [MOMENT], number=0, folder=folder / "trial"
    )
    return trial, engine


KILLED, DONE = Outcome(status="killed"), Outcome(status="completed")


def test_a_killed_run_is_resumed_from_its_folder(tmp_path):
    trial, engine = trial_of(tmp_path, KILLED, DONE)
    assert (trial.verdict, trial.attempts, trial.anew) == ("equal", 2, 0)
    assert trial.kills == ["process at 50%"]
    assert "resume" not in engine.configs[0]
    resumed = engine.configs[1]["resume"]
    assert resumed == str(tmp_path / "trial" / "results" / "run-1")


def test_a_kill_that_a_run_survives_is_told_apart(tmp_path):
    survived = Outcome(status="completed", killed=True)
    trial, _ = trial_of(tmp_path, survived)
    assert (trial.verdict, trial.attempts) == ("equal", 1)
    assert trial.kills == ["process at 50% survived"]


def test_a_run_without_a_checkpoint_is_started_anew(tmp_path):
    refused = Outcome(status="failed", says="ConfigError: holds no checkpoint/round")
    trial, engine = trial_of(tmp_path, KILLED, refused, DONE)
    assert trial.anew == 1
    assert "resume" not in engine.configs[2]


def test_a_refusal_is_a_loss_where_there_is_a_checkpoint(tmp_path):
    refused = Outcome(status="failed", says="ConfigError: config.json cannot be read")
    trial, _ = trial_of(
        tmp_path, KILLED, refused, checkpoint="round-000001.safetensors"
    )
    assert (trial.verdict, trial.anew) == ("lost", 0)


def test_a_run_that_flower_lost_is_tried_again(tmp_path):
    trial, _ = trial_of(tmp_path, Outcome(status="failed", says=NO_REASON), DONE)
    assert (trial.verdict, trial.attempts, trial.kills) == ("equal", 2, [])


def test_a_run_that_cannot_go_on_is_lost_with_its_reason(tmp_path):
    refused = Outcome(status="failed", says="DataError: no private state")
    trial, _ = trial_of(tmp_path, KILLED, refused)
    assert (trial.verdict, trial.says) == ("lost", "DataError: no private state")


def test_a_run_that_flower_stops_is_resumed_again(tmp_path):
    stopped = Outcome(status="failed", says="RunFailedError: node is gone")
    trial, engine = trial_of(tmp_path, KILLED, stopped, DONE, loses_runs=True)
    assert trial.verdict == "equal"
    assert engine.configs[2]["resume"] == engine.configs[1]["resume"]


def test_a_run_whose_noise_is_its_own_is_compared_with_its_own_reference(tmp_path):
    engine = Scripted(KILLED, DONE)
    engine.checkpoint = "other"
    engine.reference = replace(REFERENCE, weights="of other noise")
    (target,) = targets(["local"], tmp_path)
    trial = run_trial(
        engine, target, REFERENCE, [MOMENT], number=0, folder=tmp_path / "trial"
    )
    assert (trial.verdict, trial.equal_rounds) == ("unequal", True)


def test_attempts_are_bounded(tmp_path):
    trial, _ = trial_of(tmp_path, *[Outcome(status="failed", says=NO_REASON)] * 9)
    assert trial.verdict == "lost"


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "equal"),
        ({"weights": "abd"}, "unequal"),
        ({"rounds": "rows\nrows\n"}, "unequal"),
        ({"epsilon": 1.0}, "ledger"),
    ],
)
def test_the_end_is_compared(tmp_path, change, verdict):
    trial = Trial(number=0, engine="inline", method="local")
    compare(trial, REFERENCE, finished(tmp_path, **change))
    assert trial.verdict == verdict


def witnessed(folder: Path, *amounts: float, **more) -> Path:
    ledger = folder / "state" / "run" / "client-0" / "privacy-ledger.json"
    lines = [
        {"path": str(ledger), "kind": kind, "amount": amount, **more}
        for kind, amount in zip(("edges", "edges", "update"), amounts, strict=False)
    ]
    witness = folder / "witness.jsonl"
    witness.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return witness


def write_ledgers(folder: Path, *, edge, updates, lifetime) -> None:
    for path, content in (
        ("run/client-0/privacy-ledger.json", {"edge": edge, "updates": updates}),
        (f"{LIFETIME}/client-0/data.json", {"edge": lifetime}),
    ):
        (folder / "state" / path).parent.mkdir(parents=True)
        (folder / "state" / path).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("edge", "updates", "lifetime", "fault"),
    [
        ([1.0, 2.0], {"1.0": 1}, {"0": 1.0, "7": 2.0}, ""),
        ([1.0, 1.5], {"1.0": 1}, {"0": 3.0}, "edges 2.5 on record, 3 drawn"),
        ([3.0], {}, {"0": 3.0}, "update 0 on record, 1 drawn"),
        ([3.0], {"1.0": 1}, {"0": 2.0}, f"{LIFETIME}/client-0: 2 on record, 3 drawn"),
    ],
)
def test_a_draw_that_no_ledger_knows_is_told(tmp_path, edge, updates, lifetime, fault):
    write_ledgers(tmp_path, edge=edge, updates=updates, lifetime=lifetime)
    faults = ledger_faults(witnessed(tmp_path, 1.0, 2.0, 1.0))
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)


def test_a_draw_before_its_charge_is_told(tmp_path):
    write_ledgers(tmp_path, edge=[3.0], updates={}, lifetime={"0": 3.0})
    witness = witnessed(tmp_path, 1.0, uncharged=True)
    (fault,) = ledger_faults(witness)
    assert "without a charge" in fault
    first = witness.read_text().replace(json.loads(witness.read_text())["path"], "")
    witness.write_text(first)
    assert ledger_faults(witness) == ["edges drawn without a charge"]


def test_the_same_seed_draws_the_same_moments():
    jobs = list(drill.plan(20, names(), 3, most=2))
    again = list(drill.plan(20, names(), 3, most=2))
    assert sum(count for *_, count, _ in jobs) == 20
    assert [job[:3] for job in jobs] == [job[:3] for job in again]
    drawn = [draw_moments(job[3], REFERENCE, "ab"[: job[2]]) for job in jobs]
    assert drawn == [draw_moments(j[3], REFERENCE, "ab"[: j[2]]) for j in again]
    both = {moment.at_file is None for moments in drawn for moment in moments}
    assert both == {True, False}
    timed = draw_moments(random.Random(1), replace(REFERENCE, files=0), "a" * 9)
    assert all(m.at_file is None and 0 <= m.share < 1 for m in timed)


def test_every_target_is_a_run_of_its_own(tmp_path):
    found = targets(names(), tmp_path)
    assert len({str(t.overrides) for t in found}) == len(found) == 15
    assert {t.overrides["num-server-rounds"] for t in found} == {NUM_ROUNDS}
    assert [t.name for t in found if t.is_private] == [
        "fgcl-once",
        "fgcl-per-round",
        "fgcl-per-epoch",
        "update-clip",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--methods", "gcfl"], "unknown drill 'gcfl'"),
        (["--kills", "0"], "at least 1"),
        (["--engine", "ray", "--jobs", "2"], "--engine inline"),
        (["--failing", "1.5"], "must be a share"),
        (["--failing", "nan"], "must be a share"),
        (["--failing", "0.5", "--engine", "ray"], "needs --engine inline"),
        (["--failing", "0.5", "--methods", "spreadgnn"], "leaves out SpreadGNN"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path, capsys, arguments, says):
    assert drill.main([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'gcfl\\+'"):
        targets(["gcfl"], tmp_path)


def test_the_table_counts_verdicts():
    trials = [
        Trial(number=0, engine="inline", method="local", kills=["a", "b"]),
        Trial(
            number=1,
            engine="inline",
            method="fclg",
            status="completed",
            equal_weights=True,
            equal_rounds=True,
            kills=["a"],
            anew=1,
        ),
    ]
    rows = drill.table(trials).splitlines()
    assert rows[2] == "| local | 1 | 2 | 0 | 0 | 1 | 0 | 0 |"
    assert rows[3] == "| fclg | 1 | 1 | 1 | 0 | 0 | 0 | 1 |"
    assert rows[4] == "| **sum** | 2 | 3 | 1 | 0 | 1 | 0 | 1 |"


def test_the_table_of_victims_counts_what_was_killed():
    trials = [
        Trial(number=0, engine="ray", method="local", kills=["actor at 3%"] * 2),
        Trial(number=1, engine="ray", method="fclg", kills=["superlink at 9%"]),
    ]
    assert drill.table_of_victims(trials).splitlines() == [
        "| method | actor | superlink |",
        "| --- | ---: | ---: |",
        "| local | 2 | 0 |",
        "| fclg | 0 | 1 |",
        "| **sum** | 2 | 1 |",
    ]


HOOKED = """
from flwr.supercore import heartbeat
from flwr.supercore.corestate import sql_corestate
from flwr.supernode import fleet_http_connection, start_client_internal as supernode
import fedgraph_flwr.client_app, time
from clients.privacy import ledger
begin = time.monotonic()
supernode.time.sleep(60)
print(
    heartbeat.HEARTBEAT_DEFAULT_INTERVAL,
    fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL,
    sql_corestate.HEARTBEAT_DEFAULT_INTERVAL,
    time.monotonic() - begin < 10,
    ledger.Ledger.charge_edges.__module__,
)
"""


@pytest.mark.slow  # a process that loads torch
def test_processes_of_flower_get_the_settings_of_a_drill(tmp_path):
    own = processes.environment(tmp_path / "flwr", witness=tmp_path / "lines")
    done = subprocess.run(
        [sys.executable, "-c", HOOKED],
        cwd=project_root(),
        env=own,
        capture_output=True,
        text=True,
        check=False,
    )
    expected = "15 15 30 True simulations.drill.witness"
    assert done.stdout.strip() == expected, done.stderr
    assert (tmp_path / "flwr").is_dir()


def test_a_process_is_found_by_its_home_and_killed(tmp_path):
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    own = {**os.environ, "FLWR_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=own) as started:
        while not flower.pids(tmp_path, "time.sleep"):  # it has no command at first
            assert started.poll() is None
        assert flower.pids(tmp_path) == [started.pid]
        assert flower.pids(tmp_path, "-c import") == [started.pid]
        assert flower.pids(tmp_path / "other") == []
        assert not processes.is_orphan(started.pid)
        assert processes.has_loaded(started.pid, "libc")
        assert not processes.has_loaded(started.pid, "libtorch")
        assert flower.pids(tmp_path, "another command") == []
        processes.kill([started.pid])
        assert started.wait(10) == -signal.SIGKILL
    processes.kill([started.pid])  # already gone: nothing to do
    assert processes.is_orphan(started.pid)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_undisturbed_run_draws_noise_of_the_secrets_it_is_given(tmp_path):
    (target,) = targets(["update-clip"], tmp_path, num_rounds=2)
    found = [
        measure(
            InlineEngine(
                tmp_path,
                sites=("0,2", "1,3"),
                secrets={f"client-{c}": secret * 64 for c in range(4)},
            ),
            target,
            tmp_path / name,
        ).weights
        for name, secret in (("one", "a"), ("same", "a"), ("other", "b"))
    ]
    assert found[0] == found[1] != found[2]


def test_failures_are_drawn_for_rounds_and_the_closing_one():
    kinds = {"num_rounds": 8, "num_clients": 4}
    every = draw_failures(random.Random(1), 1.0, **kinds)
    rounds = [int(key.split("/")[0]) for key in every]
    assert rounds == list(range(1, 10)), "one a round"
    assert set(every.values()) == {BEFORE, AFTER}
    assert draw_failures(random.Random(1), 1.0, **kinds) == every
    assert draw_failures(random.Random(1), 0.0, **kinds) == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_fails_as_drawn_and_its_undisturbed_run_as_it_did(tmp_path):
    (target,) = map(with_failures, targets(["gcfl+"], tmp_path))
    drawn = {"2/1": BEFORE, "5/3": AFTER, "9/0": BEFORE}
    engine = InlineEngine(tmp_path, failures=drawn)
    found = measure(engine, target, tmp_path / "one" / "trial")
    (path,) = (tmp_path / "one" / "trial" / "results").iterdir()
    assert failures_of(load_summary(path)) == drawn
    assert engine.own_reference(target, path).weights == found.weights
    whole = measure(InlineEngine(tmp_path), target, tmp_path / "whole")
    assert whole.weights != found.weights


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_of_runs_whose_clients_fail_change_no_byte(tmp_path, capsys):
    """Before states were named after their run, 4 of these 11 trials were unequal."""
    options = ["--kills", "16", "--failing", "0.5", "--seed", "6"]
    code = drill.main([*options, "--out", str(tmp_path / "out")])
    assert code == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_dozen_kills_change_no_byte_and_lose_no_charge(tmp_path, capsys):
    code = drill.main(["--kills", "12", "--seed", "5", "--out", str(tmp_path / "out")])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    outcomes, kills = (s.split("|") for s in shown.out.splitlines() if "**sum**" in s)
    assert int(outcomes[3]) >= 12, "kills that were carried out"
    assert int(kills[2]) == int(outcomes[3])
