"""Whatever stops a run, a resume ends with the bytes of the run that never stopped."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest
import toys
from matrix import mostly_slow, one_per_strategy
from stops import (
    ROUNDS,
    contents,
    damage_checkpoint,
    drop_checkpoints,
    list_rounds,
    resumed,
    stopped,
)

from fedgraph_flwr.core.errors import (
    ConfigError,
    DataError,
    FedGraphError,
    RunFailedError,
    StorageError,
)
from fedgraph_flwr.results import provenance
from fedgraph_flwr.results.folder import RunFolder
from fedgraph_flwr.results.run_file import RunFile
from fedgraph_flwr.trained.model_folder import read_about
from simulations import contract

# A stop at any moment --------------------------------------------------------------


# Of what clients keep: nothing, layers, a former model, views, a graph, a branch.
@one_per_strategy(toys.CASES, also=["moon", "fclg", "fgcl", "fedavg multi-task"])
@pytest.mark.parametrize("at", mostly_slow([1, 2], fast=[2]))
def test_a_server_killed_before_a_checkpoint(lab, method, at):
    contract.resumes_after_a_kill(lab, method, at=at, num_rounds=3)


@pytest.mark.parametrize("method", ["fedstar", "spreadgnn"])
def test_a_checkpoint_that_was_deleted_as_advised(run, once, method, tmp_path):
    part = stopped(run, method, tmp_path, at=4)
    damage_checkpoint(part.path, 3)
    with pytest.raises(DataError, match=r"round 3 in .* is damaged.*delete it") as told:
        resumed(run, part, method)
    subprocess.run(str(told.value).partition("delete it: ")[2], shell=True, check=True)
    assert list_rounds(part.path, "checkpoint") == [2]
    assert resumed(run, part, method).sha == once(method, **ROUNDS).sha


def test_a_full_disk_names_the_file_and_loses_nothing(run, once, tmp_path):
    full = StorageError("cannot write round-000003: no space left on device")
    part = stopped(run, "gcfl+", tmp_path, error=full)
    assert "no space left" in part.summary["error"]
    assert resumed(run, part, "gcfl+").sha == once("gcfl+", **ROUNDS).sha


def test_failures_are_in_their_file_and_not_in_checkpoints(run, monkeypatch, tmp_path):
    """Reasons are a site's words: no cell begins as a formula, and no line ends."""
    why = '=1+1\n"quoted", ä'
    toys.fail_when(monkeypatch, lambda c, t: c == 1 and t in (1, 3, 5), why=why)
    some = {**ROUNDS, "min-fit-replies": 0.5}
    whole = run("fedavg", **some)
    part = stopped(run, "fedavg", tmp_path, at=4, **some)
    assert "quoted" not in json.dumps(RunFile(part.path).facts(3))
    again = resumed(run, part, "fedavg", **some)
    assert again.summary["failures"] == whole.summary["failures"]
    assert [f["round"] for f in again.summary["failures"]] == [1, 3, 5]
    shown = why.replace("\n", r"\n")
    assert all(shown in f["reason"] for f in again.summary["failures"])
    texts = {(r.path / "failures.csv").read_text() for r in (whole, again)}
    assert len(texts) == 1
    assert not re.search(r"(^|,)[=+@-]", texts.pop(), re.MULTILINE)


# Before the first checkpoint the server has nothing of any method; clients may have.
BEFORE_ANY = ["fedavg", "moon", "fclg", "fgcl", "fedgmtl", "fedsage+", "adafgl"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "at"), [*((m, 4) for m in toys.CASES), *((m, 2) for m in BEFORE_ANY)]
)
def test_a_stop_two_rounds_after_the_last_checkpoint(run, once, method, at, tmp_path):
    part = stopped(run, method, tmp_path, at=at, **{"checkpoint-every": 2})
    assert resumed(run, part, method).sha == once(method, **ROUNDS).sha


def test_rounds_between_checkpoints_keep_rows_but_no_matrices(run, once, tmp_path):
    whole = once("fedpub", **ROUNDS)
    part = stopped(run, "fedpub", tmp_path, at=4, **{"checkpoint-every": 2})
    again = resumed(run, part, "fedpub")
    assert again.sha == whole.sha
    assert again.rounds == whole.rounds
    assert list_rounds(again.path, "rounds") == [2, 4, 5]
    assert list_rounds(again.path, "checkpoint") == [4, 5]
    assert list_rounds(whole.path, "rounds") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("given", "num_clients", "expected"),
    [("auto", 999, [1, 2, 3, 4, 5, 6]), ("auto", 1000, [5, 6]), (4, 1000, [4, 6])],
)
def test_many_clients_have_fewer_checkpoints_and_measure_less(
    given, num_clients, expected
):
    keys = {"checkpoint-every": given, "num-clients": num_clients}
    keys["num-server-rounds"] = 6
    settings = toys.resolved("gcfl+", **keys).settings
    assert [r for r in range(1, 7) if settings.is_checkpoint(r, 6)] == expected
    often = list(range(1, 7)) if num_clients < 1000 else [5, 6]
    assert [r for r in range(1, 7) if settings.is_measured(r)] == often


POOLED = {"embedding.evaluation": "pooled", "embedding.rounds": "0,1,4"}


@pytest.mark.parametrize(
    ("method", "folder", "some"),
    [
        ("fedpub", "rounds", {}),
        ("fedgmtl", "task-covariance", {}),
        ("fclg", "embeddings", POOLED),
    ],
)
def test_files_of_rounds_that_the_run_has_left_are_gone(
    run, tmp_path, method, folder, some
):
    """Figures show them, and tasks' sources are read from the last one."""
    some = {**some, "checkpoint-every": 5}
    part = stopped(run, method, tmp_path, at=5, **some)
    assert list_rounds(part.path, folder)[-1] >= 4
    sooner = {"num-server-rounds": 3}
    again, whole = resumed(run, part, method, **sooner), run(method, **some, **sooner)
    assert list_rounds(again.path, folder) == list_rounds(whole.path, folder)


@pytest.mark.parametrize("changed", ["code", "torch"])
def test_a_resume_with_other_code_or_packages_says_so(
    run, tmp_path, monkeypatch, caplog, changed
):
    part = stopped(run, "fedavg", tmp_path)
    if changed == "code":
        monkeypatch.setattr(provenance, "_code", lambda: "other")
    else:
        other = {**provenance.versions(), "torch": "9.9"}
        monkeypatch.setattr(provenance, "versions", lambda: other)
    caplog.set_level("WARNING", logger="flwr")
    whole = resumed(run, part, "fedavg")
    again = whole.summary
    assert read_about(whole.path / "models").versions == again["versions"]
    words = {"code": "the code has changed since", "torch": "-> 9.9 has changed since"}
    assert caplog.text.count(words[changed]) == 1
    assert again["git_commit"] == "unknown+dirty"
    assert ("9.9" in again["versions"]["torch"]) == (changed == "torch")


def test_a_record_that_cannot_be_written_is_named(run, once, tmp_path):
    part = stopped(run, "fedavg", tmp_path)
    with sqlite3.connect(part.path / "run.sqlite3") as db:
        db.execute(
            "CREATE TRIGGER full BEFORE INSERT ON times WHEN NEW.at = 4"
            " BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
    with pytest.raises(DataError, match=r"run.sqlite3.*the disk is full"):
        resumed(run, part, "fedavg")
    with sqlite3.connect(part.path / "run.sqlite3") as db:
        db.execute("DROP TRIGGER full")
    whole, again = once("fedavg", **ROUNDS), resumed(run, part, "fedavg")
    assert (again.sha, again.rounds) == (whole.sha, whole.rounds)


def test_a_reader_that_holds_on_holds_up_no_round_for_good(run, once, tmp_path):
    part = stopped(run, "fedavg", tmp_path)
    reader = sqlite3.connect(part.path / "run.sqlite3", check_same_thread=False)
    rows = reader.execute("SELECT * FROM ledger")
    assert next(rows)
    threading.Timer(0.5, rows.close).start()
    assert resumed(run, part, "fedavg").sha == once("fedavg", **ROUNDS).sha


# A resume that fails leaves no trace -------------------------------------------------


@pytest.mark.parametrize("method", ["gcfl", "fclg", "fedgmtl", "spreadgnn"])
def test_a_resume_whose_first_round_fails_changes_nothing(run, monkeypatch, method):
    two, four = {"num-server-rounds": 2}, {"num-server-rounds": 4}
    part = run(method, **two)
    before = contents(part.path)
    toys.lose_reply(monkeypatch, server_round=3, client=1)
    with pytest.raises(RunFailedError, match=r"round 3"):
        resumed(run, part, method, nodes=3, **four)
    assert contents(part.path) == before


def test_two_resumes_of_one_folder_exclude_each_other(run, tmp_path):
    part = stopped(run, "fedavg", tmp_path)
    resume = {**part.overrides, "resume": str(part.path)}
    resolved = toys.resolved("fedavg", **resume)
    folder = RunFolder.open(resolved, run_id=1)
    with pytest.raises(ConfigError, match="another run is writing"):
        RunFolder.open(resolved, run_id=2)
    folder.close()
    RunFolder.open(resolved, run_id=3).close()


def test_a_folder_that_was_renamed_is_refused(run, tmp_path):
    """Under the name of another run clients would go on with that run's states."""
    part = stopped(run, "fedavg", tmp_path / "a")
    other = stopped(run, "fedavg", tmp_path / "b", seed=2)
    moved = tmp_path / "moved" / other.path.name
    shutil.copytree(part.path, moved)
    swap = {**part.overrides, "state-dir": other.overrides["state-dir"]}
    with pytest.raises(ConfigError, match=f"was named '{part.path.name}'"):
        resumed(run, toys.Run(moved, swap), "fedavg")


def test_a_private_run_keeps_its_state_folder(run, tmp_path):
    """Its ledger is there, and another folder would begin a new account."""
    part = stopped(run, "fgcl", tmp_path)
    with pytest.raises(ConfigError, match="state-dir was"):
        resumed(run, part, "fgcl", **{"state-dir": str(tmp_path / "new")})


def spoiled(name, content=None):
    """Write other content into a file of the run's folder, or delete it."""

    def spoil(part):
        (part.path / name).unlink()
        if content is not None:
            (part.path / name).write_bytes(content)

    return spoil


def spoil_view(part):
    (view,) = Path(part.overrides["state-dir"]).glob("*/client-1/noisy-views-train.*")
    content = bytearray(view.read_bytes())
    content[-1] ^= 0x80  # the sign of a value
    view.write_bytes(content)


def begun_earlier(part):
    spoiled("run.sqlite3")(part)
    (part.path / "checkpoint").mkdir()
    config = json.loads((part.path / "config.json").read_text())
    (part.path / "config.json").write_text(json.dumps({**config, "stacked": "auto"}))


FEW = {"checkpoint-every": 5}
DAMAGES = {  # method, settings, what is done to the folder, words of the refusal
    "version": ("fedavg", {}, begun_earlier, "begun by an earlier version of"),
    "config": ("fedavg", {}, spoiled("config.json", b"["), "config.json cannot be re"),
    "no record": ("fedavg", {}, spoiled("run.sqlite3"), r"there is no .*run\.sqlite3"),
    "record": ("fedavg", {}, spoiled("run.sqlite3", b"x" * 999), "cannot be read"),
    "gone": ("fedavg", {}, lambda p: drop_checkpoints(p.path), "checkpoints are gone"),
    "bit": (
        "fedavg",
        {},
        lambda p: damage_checkpoint(p.path),
        "is damaged.*delete it",
    ),
    "only": (
        "fedavg",
        {"checkpoint-every": 2},
        lambda p: damage_checkpoint(p.path),
        "restore it from a copy, or start a new run",
    ),
    "roll call": (
        "fedavg",
        FEW,
        spoiled("roll-call.json", b'{"clients": {"0": {}}}'),
        "roll-call.json cannot be read",
    ),
    "view": ("fgcl", {}, spoil_view, r"client 1.*cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_named_and_left_as_it_is(run, tmp_path, damage):
    method, settings, spoil, words = DAMAGES[damage]
    at = {2: 4, 5: 5}.get(settings.get("checkpoint-every"), 3)
    part = stopped(run, method, tmp_path, at=at, **settings)
    spoil(part)
    before = contents(part.path)
    with pytest.raises(FedGraphError, match=words):
        resumed(run, part, method)
    assert contents(part.path) == before
