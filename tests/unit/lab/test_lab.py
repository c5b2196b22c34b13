"""The lab's own tools see a lost charge, other bytes, a run that cannot go on."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import drill
import numpy as np
import pytest
import same_weights
from drill import LOST, End, Ended, Moment, run_trial
from same_weights import ROOT
from small import PRIVATE, RUNS, small_run
from witness import account_faults

from clients.privacy.accounts import Budgets, Ledger
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.run_file import RunFile

END = End("abc", "rows\n", {("0", "edge-epsilon"): 2.0})
MOMENT = Moment(victim="process", share=0.5)
KILLED, DONE = Ended(status="killed", killed=True), Ended(status="completed")


def failed(says: str) -> Ended:
    return Ended(status="failed", says=says)


def finish(run: Path, *, weights="abc", rounds="rows\n", epsilon=2.0) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / "rounds.csv").write_text(rounds)
    privacy = {"per_client": {"0": {"edge-epsilon": epsilon, "secret": 0.0}}}
    summary = {"weights_sha256": weights, "privacy": privacy}
    (run / "summary.json").write_text(json.dumps(summary))
    return run


class Scripted:
    """An engine whose attempts end as they are given."""

    name, rounds = "scripted", 8

    def __init__(self, ends, *, may_lose=False, checkpoint=0, changes=None):
        self.ends, self.may_lose, self.checkpoint = list(ends), may_lose, checkpoint
        self.configs, self.changes = [], changes or {}

    def attempt(self, config, moment, folder):
        self.configs.append(config)
        new = folder / "results" / f"run-{len(self.configs)}"
        run = finish(Path(config.get("resume", new)), **self.changes)
        if self.checkpoint:
            with RunFile(run).writing() as writing:
                writing.checkpoint(self.checkpoint, {}, {})
        return self.ends.pop(0)

    def faults(self, folder):
        return []

    def own_end(self, name, run):
        return None


@pytest.mark.parametrize(
    ("ends", "options", "verdict", "attempts", "anew"),
    [
        ([KILLED, DONE], {}, "equal", 2, 0),
        ([KILLED, DONE], {"changes": {"weights": "abd"}}, "unequal", 2, 0),
        ([KILLED, DONE], {"changes": {"rounds": "more\n"}}, "unequal", 2, 0),
        ([KILLED, DONE], {"changes": {"epsilon": 1.0}}, "account", 2, 0),
        ([KILLED, failed("holds no checkpoint"), DONE], {}, "equal", 3, 1),
        ([KILLED, failed("no checkpoint")], {"checkpoint": 1}, "lost", 2, 0),
        ([failed(LOST), DONE], {}, "equal", 2, 0),
        ([KILLED, failed("no private state")], {}, "lost", 2, 0),
        ([KILLED, failed("node is gone"), DONE], {"may_lose": True}, "equal", 3, 0),
        ([failed(LOST)] * 9, {}, "lost", 5, 0),
    ],
)
def test_a_trial_has_its_verdict(tmp_path, ends, options, verdict, attempts, anew):
    engine = Scripted(ends, **options)
    trial = run_trial(engine, "local", END, [MOMENT], tmp_path)
    assert (trial.verdict, trial.attempts, trial.anew) == (verdict, attempts, anew)
    assert "resume" not in engine.configs[0]
    if ends[0] is KILLED:
        assert trial.kills == ["process at 50%"]
        assert engine.configs[1]["resume"] == str(tmp_path / "results" / "run-1")


@pytest.mark.parametrize(
    ("edge", "updates", "fault"),
    [
        ([1.0, 2.0], 1, ""),
        ([1.0, 1.5], 1, "edges 2.5 on record, 3 drawn"),
        ([3.0], 0, "update 0 on record, 1 drawn"),
        ([], 1, "edges 0 on record, 3 drawn"),
    ],
)
def test_a_draw_that_no_account_has(tmp_path, edge, updates, fault):
    folder = tmp_path / "run" / "client-0"
    own = Ledger(folder, data="data", rows=np.arange(2), budgets=Budgets(both=True))
    for graph, epsilon in enumerate(edge):
        own.charge_edges(np.array([graph]), epsilon)
    for _ in range(updates):
        own.charge_update(1.0, delta=1e-5, epsilon_of=lambda *_: 1.0, release="x")
    drawn = (("edges", 1.0, ""), ("edges", 2.0, ""), ("update", 1.0, "x"))
    drawn = [*drawn, ("update", 1.0, "x")]  # the same bytes once more
    lines = [
        {"path": str(folder), "kind": kind, "amount": amount}
        | ({"digest": digest} if digest else {})
        for kind, amount, digest in drawn
    ]
    witness = tmp_path / "witness.jsonl"
    witness.write_text("".join(json.dumps(line) + "\n" for line in lines))
    faults = account_faults(witness)
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)
    witness.write_text(json.dumps({**lines[0], "path": "", "uncharged": True}))
    assert account_faults(witness) == ["edges without a charge"]


def test_every_small_run_is_accepted_and_another(tmp_path):
    found = [resolve({**defaults(), **small_run(n, tmp_path, 2)}) for n in RUNS]
    assert len({str(r.to_config()) for r in found}) == len(RUNS)
    assert set(RUNS) >= PRIVATE


COUNT = """
import os, sqlite3, sys
import drill
counted = drill.count_changes(None if len(sys.argv) == 2 else (2, sys.argv[2]))
place = sqlite3.connect(sys.argv[1])
place.execute("create table if not exists t (x)")
for _ in range(3):
    place.execute("insert into t values (1)")
    place.commit()
print(counted[0])
"""


def test_commits_of_sqlite_are_moments_too(tmp_path):
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{Path(drill.__file__).parent}"}
    for when, code, rows in (("", 0, 3), ("before", -9, 1), ("after", -9, 2)):
        place = str(tmp_path / f"{when}.db")
        command = [sys.executable, "-c", COUNT, place, *when.split()]
        done = subprocess.run(command, env=env, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (code, b"" if code else b"3\n")
        with closing(sqlite3.connect(place)) as database:
            assert len(database.execute("select * from t").fetchall()) == rows


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kills_change_no_byte_and_lose_no_charge(tmp_path, capsys):
    given = ["--kills", "6", "--seed", "6", "--out", str(tmp_path / "out")]
    given += ["--failing", "0.5", "--methods", "fgcl-per-round,update-clip,gcfl+"]
    assert drill.main(given) == 0, capsys.readouterr().err


# Equal weights ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_hash_that_holds_and_one_that_does_not(tmp_path, capsys):
    argv = ["fedavg-synthetic", "num-server-rounds=1", "--seeds", "3"]
    weights = same_weights.weights_of(argv)[:12]
    command = f"`fedgraph run {' '.join(argv[:3])}\n  {' '.join(argv[3:])}`"
    for shown, code in ((weights, 0), ("0" * 12, 1)):
        (tmp_path / "page.md").write_text(f"- {command}: weights `{shown}`.\n")
        given = ["--documented", "--all", "--docs", str(tmp_path)]
        assert same_weights.main(given) == code
    assert "DIFFERS, 000000000000" in capsys.readouterr().out
