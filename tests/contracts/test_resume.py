"""Whatever stops a run, a resume ends with the bytes of the run that never stopped."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import threading

import pytest
import toys
from matrix import mostly_slow, one_per_strategy
from stops import (
    ROUNDS,
    contents,
    damage_checkpoint,
    drop_checkpoints,
    list_rounds,
    places,
    resumed,
    stopped,
)

from clients import store
from fedgraph_flwr.core.errors import (
    ConfigError,
    DataError,
    RunFailedError,
    StorageError,
)
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results import provenance
from fedgraph_flwr.results.folder import RunFolder
from fedgraph_flwr.results.run_file import RunFile
from fedgraph_flwr.trained.model_folder import read_about
from fedgraph_flwr.view.matrices import site_rounds
from simulations import contract
from simulations.cli import main as fedgraph
from simulations.contract import Killed, killed_at_checkpoint

NODES = "fedavg node-classification"
# A stop at any moment --------------------------------------------------------------


# Of what clients keep: nothing, layers, a former model, views, a graph, a branch.
@one_per_strategy(toys.CASES, also=["moon", "fclg", "fgcl", "fedavg multi-task"])
@pytest.mark.parametrize("at", mostly_slow([1, 2], fast=[2]))
def test_a_server_killed_before_a_checkpoint(lab, method, at):
    contract.resumes_after_a_kill(lab, method, at=at, num_rounds=3)


@pytest.mark.parametrize("method", ["fedavg", "fedstar", "spreadgnn", "local"])
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


def test_states_that_cannot_be_written_are_one_nodes_failure(
    run, monkeypatch, tmp_path
):
    def write(db, state, kept=store._write):
        if (state.store.client_id, state.server_round) == (1, 2):
            raise sqlite3.OperationalError("database or disk is full")
        kept(db, state)

    monkeypatch.setattr(store, "_write", write)
    some = {"min-fit-replies": 0.5, "num-server-rounds": 3}
    done = run("fedavg", nodes=3, **some, **places(tmp_path))
    ((number, client, reason),) = (f.values() for f in done.summary["failures"])
    assert (number, client) == (2, 1)
    assert "disk is full; make room on that disk" in reason


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


def test_runs_of_earlier_versions_are_refused(run, tmp_path):
    part = stopped(run, "fedavg", tmp_path)
    (part.path / "run.sqlite3").unlink()
    (part.path / "checkpoint").mkdir()
    config = json.loads((part.path / "config.json").read_text())
    (part.path / "config.json").write_text(json.dumps({**config, "stacked": "auto"}))
    with pytest.raises(ConfigError, match="begun by an earlier version of"):
        resumed(run, part, "fedavg")


def test_two_stops_and_two_resumes(run, once, tmp_path):
    part = stopped(run, "fedgkd", tmp_path, at=2)
    with killed_at_checkpoint(4), pytest.raises(Killed):
        resumed(run, part, "fedgkd")
    ours, whole = resumed(run, part, "fedgkd"), once("fedgkd", **ROUNDS)
    assert ours.sha == whole.sha
    assert ours.summary["bytes_up"] == whole.summary["bytes_up"]


def test_clients_that_are_sampled_now_and_then(run, once, tmp_path):
    some = {"client-fraction": 0.5, "num-clients": 5, "num-server-rounds": 8}
    part = stopped(run, "moon", tmp_path, at=6, **some)
    assert resumed(run, part, "moon").sha == once("moon", **some).sha


def test_early_stopping_stops_where_it_would_have(run, once, tmp_path):
    early = {"patience": 2, "min-rounds": 3, "num-server-rounds": 12, "seed": 3}
    early["shared-group"] = "convs"
    whole = once(NODES, **early)
    assert 3 < whole.summary["rounds"] < 12
    part = stopped(run, NODES, tmp_path, at=whole.summary["rounds"], **early)
    again = resumed(run, part, NODES)
    assert again.summary["rounds"] == whole.summary["rounds"]
    assert again.sha == whole.sha


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
@pytest.mark.parametrize("method", ["gcfl+", "fedgkd", "fclg"])
def test_many_clients_have_fewer_checkpoints_and_measure_less(
    given, num_clients, expected, method
):
    keys = {"checkpoint-every": given, "num-clients": num_clients}
    keys["num-server-rounds"] = 6
    settings = toys.resolved(method, **keys).settings
    assert [r for r in range(1, 7) if settings.is_checkpoint(r, 6)] == expected
    of_embeddings = settings.task == "graph-embedding"
    often = list(range(1, 7)) if num_clients < 1000 or of_embeddings else [5, 6]
    assert [r for r in range(1, 7) if settings.is_measured(r)] == often


def test_data_sets_that_fix_the_number_of_clients_count_for_what_is_automatic():
    settings = resolve({**defaults(), "dataset": "molecules"}).settings
    assert settings.num_clients == 7
    assert settings.evaluate_every == settings.checkpoint_every == 1


def test_rows_beyond_the_first_checkpoint_without_one_are_refused(run, tmp_path):
    part = stopped(run, "fedavg", tmp_path, at=4, **{"checkpoint-every": 2})
    drop_checkpoints(part.path)
    with pytest.raises(DataError, match="rows of round 3, but its checkpoints"):
        resumed(run, part, "fedavg")


@pytest.mark.parametrize("planned", [1, 4, 6])
def test_a_longer_run_measures_no_more_than_if_it_had_been_planned(run, once, planned):
    every = {"evaluate-every": 3}
    whole = once("fedpub", **every, **{"num-server-rounds": 7})
    part = run("fedpub", **every, **{"num-server-rounds": planned})
    again = resumed(run, part, "fedpub", **{"num-server-rounds": 7})
    assert again.sha == whole.sha
    assert again.rounds == whole.rounds


@pytest.mark.parametrize("every", [1, 3, 5])
def test_a_longer_run_that_is_killed_leaves_no_stale_checkpoint(
    run, once, tmp_path, every
):
    seldom = {"evaluate-every": 3, "checkpoint-every": every}
    whole = once("fedavg", **seldom, **{"num-server-rounds": 10})
    part = run("fedavg", **seldom, **{"num-server-rounds": 4}, **places(tmp_path))
    at = next(r for r in range(4, 11) if r % every == 0)
    longer = {"num-server-rounds": 10}
    with killed_at_checkpoint(at, None), pytest.raises(Killed):
        resumed(run, part, "fedavg", **longer)
    if at > 4:  # a round was done, and what it repeats is gone
        assert all(r < 4 for r in list_rounds(part.path, "checkpoint"))
    again = resumed(run, part, "fedavg", **longer)
    assert again.sha == whole.sha
    assert again.rounds == whole.rounds
    assert len(list_rounds(part.path, "checkpoint")) == 2


def test_a_run_that_ends_sooner_than_planned_measures_its_last_round(
    run, once, tmp_path
):
    seldom = {"evaluate-every": 3}
    part = stopped(run, "fedavg", tmp_path, at=5, **seldom)
    assert list_rounds(part.path, "checkpoint") == [3, 4]
    sooner = {"num-server-rounds": 4}
    again, whole = (
        resumed(run, part, "fedavg", **sooner),
        once("fedavg", **seldom, **sooner),
    )
    assert again.rounds == whole.rounds
    assert again.sha == whole.sha


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


@pytest.mark.parametrize("changed", ["code", "torch", ""])
def test_a_resume_with_other_code_or_packages_says_so(
    run, tmp_path, monkeypatch, caplog, changed
):
    part = stopped(run, "fedavg", tmp_path)
    if changed == "code":
        monkeypatch.setattr(provenance, "_code", lambda: "other")
    if changed == "torch":
        other = {**provenance.versions(), "torch": "9.9"}
        monkeypatch.setattr(provenance, "versions", lambda: other)
    caplog.set_level("WARNING", logger="flwr")
    with killed_at_checkpoint(5), pytest.raises(Killed):
        resumed(run, part, "fedavg")
    words = {"code": "the code has changed since", "torch": "-> 9.9 has changed since"}
    whole = resumed(run, part, "fedavg")  # by what resumed it before
    again = whole.summary
    assert read_about(whole.path / "models").versions == again["versions"]
    assert caplog.text.count(words.get(changed, "has changed")) == 2 * bool(changed)
    assert again["git_commit"] == ("unknown+dirty" if changed else "unknown")
    assert ("9.9" in again["versions"]["torch"]) == (changed == "torch")


def test_a_folder_that_was_moved_while_the_run_wrote_to_it_is_named(
    run, once, tmp_path, monkeypatch
):
    """No second folder is begun in its place, which nobody could resume."""
    moved = tmp_path / "moved"

    def move(client, number):
        if (client, number) == (1, 3):
            next((tmp_path / "results").iterdir()).rename(moved)
        return False

    with monkeypatch.context() as patch:
        toys.fail_when(patch, move, step="load")
        with pytest.raises(StorageError, match=r"was moved or deleted.*put it back"):
            run("fedavg", **ROUNDS, **places(tmp_path))
    assert not [*(tmp_path / "results").iterdir()]
    name = next((tmp_path / "state").glob("*/states.sqlite3")).parent.name
    moved.rename(tmp_path / "results" / name)
    part = toys.Run(tmp_path / "results" / name, {**ROUNDS, **places(tmp_path)})
    assert resumed(run, part, "fedavg").sha == once("fedavg", **ROUNDS).sha


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
    threading.Timer(2, rows.close).start()
    assert resumed(run, part, "fedavg").sha == once("fedavg", **ROUNDS).sha


def test_nor_are_models_kept_of_clusters_that_the_run_has_left(
    run, tmp_path, monkeypatch
):
    some = {"gcfl.min-round": 2, "gcfl.min-cluster-size": 2, "gcfl.seq-length": 2}
    some |= {"gcfl.mean-norm-threshold": 1e6, "gcfl.max-norm-threshold": 0.0}
    some |= {"checkpoint-every": 5, **ROUNDS, **places(tmp_path)}
    with monkeypatch.context() as patch:
        toys.lose_reply(patch, server_round=5, client=1)
        with pytest.raises(RunFailedError):
            run("gcfl+", **some)
    (path,) = (tmp_path / "results").iterdir()
    assert len([*(path / "models").glob("*.safetensors")]) > 1
    again = resumed(run, toys.Run(path, some), "gcfl+", **{"num-server-rounds": 1})
    assert again.summary["clusters"] == [[0, 1, 2]]
    (model,) = (path / "models").glob("*.safetensors")
    assert model.stem in read_about(path / "models").models


def test_nor_does_a_site_keep_them(run, tmp_path):
    some = {"spreadgnn.seal": True, "checkpoint-every": 5}
    part = stopped(run, "spreadgnn", tmp_path, at=5, **some)
    resumed(run, part, "spreadgnn", **{"num-server-rounds": 3})
    for number in range(3):
        folder = tmp_path / "state" / part.path.name / f"client-{number}"
        assert sorted(site_rounds(folder)) == [1, 2, 3]


# A resume that fails leaves no trace -------------------------------------------------


def missing_client() -> dict:
    return {"node_configs": [{"clients": "0,1"}], "roll-call-timeout-s": 0.01}


def test_a_resume_that_reaches_no_round_changes_nothing(run):
    part = run("gcfl", **ROUNDS)
    before = contents(part.path)
    with pytest.raises(RunFailedError, match=r"2"):
        resumed(run, part, "gcfl", **missing_client(), **{"num-server-rounds": 9})
    assert contents(part.path) == before


def test_a_resume_whose_first_round_fails_changes_nothing(run, monkeypatch):
    part = run("gcfl", **ROUNDS)
    before = contents(part.path)
    lose = {"num-server-rounds": 9}
    toys.lose_reply(monkeypatch, server_round=6, client=1)
    with pytest.raises(RunFailedError, match=r"round 6"):
        resumed(run, part, "gcfl", **lose)
    assert contents(part.path) == before
    monkeypatch.undo()


@pytest.mark.parametrize("method", ["fclg", "fedgmtl", "spreadgnn"])
def test_nor_does_one_of_a_method_that_keeps_what_it_evaluates(
    run, monkeypatch, method
):
    part = run(method, **ROUNDS)
    before = contents(part.path)
    toys.lose_reply(monkeypatch, server_round=6, client=1)
    with pytest.raises(RunFailedError, match=r"round 6"):
        resumed(run, part, method, nodes=3, **{"num-server-rounds": 9})
    assert contents(part.path) == before


def test_a_resume_that_is_killed_leaves_no_summary_of_the_run_before(run):
    part = run("fedavg", **ROUNDS)
    with killed_at_checkpoint(7), pytest.raises(Killed):
        resumed(run, part, "fedavg", **{"num-server-rounds": 9})
    assert not (part.path / "summary.json").exists()


@pytest.mark.parametrize("damage", ["gone", "shorter", "other"])
def test_files_of_rows_are_written_anew(run, once, tmp_path, damage):
    part = stopped(run, "fedavg", tmp_path)
    for rows in part.path.glob("*.csv"):
        text = rows.read_bytes()
        rows.write_bytes(text[:200] if damage == "shorter" else b"x" + text[1:])
        if damage == "gone":
            rows.unlink()
    assert resumed(run, part, "fedavg").rounds == once("fedavg", **ROUNDS).rounds


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


@pytest.mark.parametrize("at", [1, 3])
def test_a_link_to_a_folder_stands_for_it(run, once, tmp_path, at):
    part = stopped(run, "fedavg", tmp_path, at=at)
    link = tmp_path / "latest"
    link.symlink_to(part.path)
    assert (
        resumed(run, part, "fedavg", resume=str(link)).sha
        == once("fedavg", **ROUNDS).sha
    )
    assert not (tmp_path / "state" / "latest").exists()
    assert resumed(run, part, "fedavg", **{"num-server-rounds": 6}).path == part.path


def test_a_run_that_begins_again_under_another_name_is_refused(run, tmp_path):
    """Its clients have drawn noise, and paid for it, under the first."""
    part = stopped(run, "fgcl", tmp_path, at=1)
    moved = part.path.rename(part.path.with_name("mine"))
    with pytest.raises(ConfigError, match=f"was named '{part.path.name}'"):
        resumed(run, part, "fgcl", resume=str(moved))


def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(run, tmp_path):
    """Nobody would know any more which data and states clients had."""
    part = stopped(run, "fedavg", tmp_path)
    drop_checkpoints(part.path)
    before = contents(part.path)
    with pytest.raises(DataError, match="its checkpoints are gone"):
        resumed(run, part, "fedavg")
    assert contents(part.path) == before
    (part.path / "run.sqlite3").unlink()
    with pytest.raises(DataError, match=r"there is no .*run\.sqlite3, the record"):
        resumed(run, part, "fedavg")


def test_a_damaged_noisy_view_is_not_used(run, tmp_path):
    part = stopped(run, "fgcl", tmp_path)
    (view,) = (tmp_path / "state").glob("*/client-1/noisy-views-train.*")
    content = bytearray(view.read_bytes())
    content[-1] ^= 0x80  # the sign of a value
    view.write_bytes(content)
    with pytest.raises(RunFailedError, match=r"client 1.*cannot be read"):
        resumed(run, part, "fgcl")


def test_a_run_that_could_not_be_begun_leaves_nothing(tmp_path, monkeypatch):
    full = StorageError("no space left on device")

    def fail(*_):
        raise full

    monkeypatch.setattr("fedgraph_flwr.results.folder.write_json", fail)
    resolved = toys.resolved("fedavg", **places(tmp_path))
    with pytest.raises(StorageError):
        RunFolder.open(resolved, run_id=1)
    assert not [*(tmp_path / "results").iterdir()]


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "[" * 5000])
def test_a_configuration_that_cannot_be_read_is_named(run, tmp_path, text):
    part = stopped(run, "fedavg", tmp_path)
    (part.path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"resume: .*config.json cannot be read"):
        resumed(run, part, "fedavg")


def test_a_private_run_keeps_its_state_folder(run, tmp_path):
    """Its ledger is there, and another folder would begin a new account."""
    part = stopped(run, "fgcl", tmp_path)
    with pytest.raises(ConfigError, match="state-dir was"):
        resumed(run, part, "fgcl", **{"state-dir": str(tmp_path / "new")})


def test_a_folder_that_cannot_be_made_is_named(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the results folder"):
        run("fedavg", **{"results-dir": str(tmp_path / "file")})


def test_seeds_after_a_failed_one_are_run_whatever_was_raised(
    tmp_path, monkeypatch, capsys
):
    tried = []

    def broken(overrides, *, num_nodes):
        tried.append(overrides["seed"])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("simulations.run.run_inline", broken)
    arguments = ["run", "fedavg-synthetic", "--inline", "--seeds", "1,2,3"]
    assert fedgraph([*arguments, "--results", str(tmp_path)]) == 1
    assert tried == [1, 2, 3]
    assert capsys.readouterr().err.count("failed: fedavg-synthetic") == 3
