"""The journal of a site: what its operator finds in the file and in the log."""

from __future__ import annotations

import csv
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flwr.common.logger import log
from toys_spreadgnn import federation, start

import datasets
from clients.base import GraphClient
from fedgraph_flwr import client_app, journal, watch
from fedgraph_flwr.errors import DataError, RunFailedError
from fedgraph_flwr.journal import Entry, Journal


def entry(note="", **given):
    return Entry(time_utc="now", run=1, message="train", note=note, **given)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def said(caplog):
    """Lines of the log, from INFO on."""
    with caplog.at_level("INFO", logger="flwr"):
        yield lambda: caplog.messages


@pytest.fixture
def new_processes(monkeypatch):
    """Forget after every message what a process would remember, as at a site."""

    class Forgetful(set):
        def add(self, _):
            pass

    monkeypatch.setattr(watch._OncePerRun, "_said", Forgetful())


# The file ------------------------------------------------------------------------


def test_rows_are_added_at_the_end_under_one_line_of_names(tmp_path):
    path = tmp_path / "state" / "journal.csv"
    Journal(path).add([entry("a, b"), entry('"c"')])
    before = path.read_bytes()
    Journal(path).add([entry("d\ne\x1b[31m")])
    assert path.read_bytes().startswith(before)
    assert [row["note"] for row in rows(path)] == ["a, b", '"c"', "d e[31m"]
    assert len(path.read_text().splitlines()) == 4
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path):
    path = tmp_path / "journal.csv"
    Journal(path).add([entry("first")])
    with path.open("a") as file:
        file.write("now,1,cut")
    Journal(path).add([entry("second")])
    assert [row["note"] for row in rows(path)] == ["first", None, "second"]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "journal.csv"
    Journal(path).add([entry("first")])
    before = path.read_bytes()

    def full(file, content):
        file.write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "_write_all", full)
    with pytest.raises(OSError, match="No space left"):
        Journal(path).add([entry("second")])
    assert path.read_bytes() == before


def test_writers_at_once_lose_and_mix_no_line(tmp_path, monkeypatch):
    def in_pieces(file, content):  # as a system may
        for at in range(0, len(content), 100):
            file.write(content[at : at + 100])

    monkeypatch.setattr(journal, "_write_all", in_pieces)
    path, notes = tmp_path / "journal.csv", [str(n) * 500 for n in range(8)]

    def write(note):
        for _ in range(20):
            Journal(path).add([entry(note)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, notes))
    assert sorted(row["note"] for row in rows(path)) == sorted(notes * 20)


# A run ---------------------------------------------------------------------------


def test_the_journal_says_what_the_server_measured_and_counted(run, tmp_path, said):
    site = {"clients": "0,2", "state-dir": str(tmp_path)}
    finished = run("gcfl+", node_configs=[site, {"clients": "1"}])
    found = [r for r in rows(tmp_path / "journal.csv") if r["message"] != "warning"]
    assert {row["client"] for row in found} == {"0", "2"}
    assert {row["outcome"] for row in found} == {"ok"}
    assert {row["experiment"] for row in found} == {finished.path.name}
    assert {row["method"] for row in found} == {"gcfl+"}

    sent: dict[tuple, int] = {}
    for row in finished.ledger:
        at = row["round"], row["client"], row["direction"]
        sent[at] = sent.get(at, 0) + int(row["bytes"])
    measured = finished.values()
    rounds = [row for row in found if row["message"] == "train"]
    assert [row["round"] for row in rounds] == [r for r in "123" for _ in range(2)]
    for row in rounds:
        number, client = row["round"], row["client"]
        assert int(row["bytes_received"]) == sent[number, client, "down"]
        assert int(row["bytes_sent"]) == sent[number, client, "up"]
        loss = measured[number, client, "train", "post_training", "loss"]
        assert float(row["loss"]) == pytest.approx(loss, abs=1e-6)
        before = str(int(number) - 1), client, "test", "post_aggregation", "accuracy"
        assert float(row["score"]) == pytest.approx(measured[before], abs=1e-6)
    lines = [m for m in said() if m.startswith(f"run {found[0]['run']}, gcfl+, client")]
    own = [line for line in lines if "client 1" not in line]
    assert len(own) == len(found)
    assert "client 2, round 3: trained on " in own[-3]
    assert f", loss {float(rounds[-1]['loss']):.4f}, test accuracy " in own[-3]
    assert f"sent {int(rounds[-1]['bytes_sent']) / 1000:.1f} kB" in own[-3]


def test_simulation_has_no_journal_and_no_lines_of_clients(run, said):
    finished = run("fedavg")
    state = Path(finished.overrides["state-dir"])
    assert list(state.rglob("round-*.safetensors"))
    assert not list(state.rglob("journal.csv"))
    assert not [m for m in said() if ", client " in m]


def test_a_client_that_fails_and_a_message_that_is_refused(run, tmp_path, monkeypatch):
    site = {"clients": "0,1,2", "state-dir": str(tmp_path)}
    fail(monkeypatch, client=1)
    with pytest.raises(RunFailedError):
        run("fedavg", node_configs=[site])
    trained = [r for r in rows(tmp_path / "journal.csv") if r["message"] == "train"]
    assert [row["outcome"] for row in trained] == ["ok", "failed", "ok"]
    assert trained[1]["note"].startswith("DataError: the disk is gone")
    assert trained[1]["loss"] == trained[1]["score"] == ""
    with pytest.raises(RunFailedError):
        run("fedavg", node_configs=[{**site, "sealed-only": True}])
    refused = rows(tmp_path / "journal.csv")[-1]
    assert (refused["message"], refused["outcome"]) == ("roll call", "refused")
    assert "started with sealed-only=true" in refused["note"]


def fail(monkeypatch, *, client):
    train = GraphClient.train

    def spoiled(self, parcel, header):
        if self.job.client_id == client:
            raise DataError("the disk is gone", public="the disk is gone")
        return train(self, parcel, header)

    monkeypatch.setattr(GraphClient, "train", spoiled)


def test_a_journal_that_cannot_be_written_costs_no_reply(run, tmp_path, said):
    (tmp_path / "journal.csv").mkdir()
    site = {"clients": "0,1,2", "state-dir": str(tmp_path)}
    assert run("fedavg", node_configs=[site]).summary["status"] == "completed"
    complaints = [m for m in said() if "journal.csv has no line of this message" in m]
    assert len(complaints) == 1
    assert "IsADirectoryError" in complaints[0]


# Warnings ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flwr", "flwr.fedgraph"])
@pytest.mark.parametrize("is_site", [True, False])
def test_a_warning_is_said_once_in_a_run(
    run, tmp_path, monkeypatch, said, request, name, is_site
):
    if is_site:
        request.getfixturevalue("new_processes")
    site = {"clients": "0,1,2", "state-dir": str(tmp_path)}
    warn_at_every_message(monkeypatch, name)
    for _ in range(2):
        run("fedavg", node_configs=[site] if is_site else None)
    for client in range(3):
        assert said().count(f"client {client} has few graphs") == 2  # one for each run
    if is_site:
        noted = [
            r["note"] for r in rows(tmp_path / "journal.csv") if "few" in r["note"]
        ]
        assert sorted(noted) == sorted(f"client {c} has few graphs" for c in "001122")


def warn_at_every_message(monkeypatch, name):
    make = client_app._make_client

    def warning(resolved, client_id, *others):
        log_of(name)("client %d has few graphs", client_id)
        return make(resolved, client_id, *others)

    monkeypatch.setattr(client_app, "_make_client", warning)


def log_of(name):
    return datasets.partition.log.warning if name == "flwr.fedgraph" else warn


def warn(*words):
    log(30, *words)


# Sealed parcels ------------------------------------------------------------------


@pytest.mark.parametrize(("seal", "kind"), [(True, "sealed"), (False, "open")])
def test_whether_parcels_were_sealed_is_said_at_the_site_and_in_progress(
    run, toy_data, monkeypatch, tmp_path, said, seal, kind
):
    monkeypatch.setattr(datasets, "load_partition", federation)
    nodes = [{"clients": str(c), "state-dir": str(tmp_path / str(c))} for c in range(4)]
    options = {"spreadgnn.topology": "ring", "spreadgnn.seal": seal}
    start(run, 4, node_configs=nodes, **options)
    found = rows(tmp_path / "0" / "journal.csv")
    notes = [row["note"] for row in found if row["message"] == "train"]
    out = "2 sealed letters" if seal else "1 open letter"  # one for all neighbours
    later = f"mail: 2 {kind} letters in, {out} out"
    assert notes == [f"mail: no letters in, {out} out", later, later]
    word = "sealed" if seal else "not sealed"
    progress = [m for m in said() if m.startswith("round ") and "after round " in m]
    assert len(progress) == 3
    assert all(m.endswith(f" · parcels {word}") for m in progress)
