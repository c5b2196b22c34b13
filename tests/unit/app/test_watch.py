"""What a site's operator finds of each message: in the audit log and in the log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toys
from toys_spreadgnn import federation, start

import datasets
from fedgraph_flwr import client_app
from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.node import message, serve


def lines(folder, event="answered"):
    """Lines of an audit log, of one event."""
    text = (folder / "audit.jsonl").read_text()
    return [r for r in map(json.loads, text.splitlines()) if r["event"] == event]


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

    monkeypatch.setattr(message, "_given", Forgetful())


# A run ---------------------------------------------------------------------------


def test_the_log_says_what_the_server_measured_and_counted(run, tmp_path, said):
    site = {"clients": "0,2", "state-dir": str(tmp_path)}
    finished = run("gcfl+", node_configs=[site, {"clients": "1"}])
    found = lines(tmp_path)
    assert {line["client"] for line in found} == {0, 2}
    assert {line["outcome"] for line in found} == {"ok"}
    assert {line["experiment"] for line in found} == {finished.path.name}
    assert {line["method"] for line in found} == {"gcfl+"}

    keys = ("round", "client", "direction", "record")
    counted = {tuple(str(r[k]) for k in keys): int(r["bytes"]) for r in finished.ledger}
    measured = finished.values()
    rounds = [line for line in found if line["message"] == "train"]
    assert [line["round"] for line in rounds] == [
        r for r in (1, 2, 3) for _ in range(2)
    ]
    for line in rounds:
        number, client = line["round"], line["client"]
        for name, direction in (("received", "down"), ("sent", "up")):
            for kind, size in line[name].items():
                assert size == counted[str(number), str(client), direction, kind]
        at = str(number), str(client)
        loss = measured[*at, "train", "post_training", "loss"]
        assert line["loss"] == pytest.approx(loss, abs=1e-6)
        before = str(number - 1), at[1], "test", "post_aggregation", "accuracy"
        assert line["score"] == pytest.approx(measured[before], abs=1e-6)
    told = [m for m in said() if m.startswith(f"run {found[0]['run']}, gcfl+, client")]
    own = [line for line in told if "client 1" not in line]
    assert len(own) == len(found)
    assert "client 2, round 3: trained on " in own[-3]
    assert f", loss {rounds[-1]['loss']:.4f}, test accuracy " in own[-3]
    assert f"sent {sum(rounds[-1]['sent'].values()) / 1000:.1f} kB" in own[-3]


def test_simulation_has_no_audit_log_and_no_lines_of_clients(run, said):
    finished = run("fedavg")
    state = Path(finished.overrides["state-dir"])
    assert list(state.rglob("states.sqlite3"))
    assert not list(state.rglob("audit.jsonl"))
    assert not (finished.path.parent / "audit.jsonl").exists()
    assert not [m for m in said() if ", client " in m]


def test_a_client_that_fails_and_a_message_that_is_refused(run, tmp_path, monkeypatch):
    site = {"clients": "0,1,2", "state-dir": str(tmp_path)}
    toys.fail_when(monkeypatch, lambda client, _: client == 1, why="no disk")
    with pytest.raises(RunFailedError):
        run("fedavg", node_configs=[site])
    trained = [line for line in lines(tmp_path) if line["message"] == "train"]
    assert [line["outcome"] for line in trained] == ["ok", "failed", "ok"]
    assert trained[1]["note"].startswith("ValueError: no disk")
    assert not {"loss", "score"} & set(trained[1])
    strict = {**site, **toys.policy(tmp_path, sealed_only=True)}
    with pytest.raises(RunFailedError):
        run("fedavg", node_configs=[strict])
    refused = lines(tmp_path)[-1]
    assert (refused["message"], refused["outcome"]) == ("roll call", "refused")
    assert "policy (sealed-only) does not allow" in refused["note"]


def test_nothing_is_answered_that_cannot_be_written_down(run, tmp_path, monkeypatch):
    (tmp_path / "audit.jsonl").mkdir()
    site = {"clients": "0,1,2", "state-dir": str(tmp_path)}
    seen = []
    monkeypatch.setattr(client_app, "agree", lambda *_: seen.append(1))
    with pytest.raises(RunFailedError, match="StorageError: see docs/failures"):
        run("fedavg", node_configs=[site])
    assert not seen


# Warnings ------------------------------------------------------------------------


@pytest.mark.parametrize("is_site", [True, False])
def test_a_warning_is_said_once_in_a_run(
    run, tmp_path, monkeypatch, said, request, is_site
):
    check = serve._check_memory

    def warning(visit, resolved, store, *others):
        log(30, "client %d has few graphs", store.client_id)
        check(visit, resolved, store, *others)

    if is_site:
        request.getfixturevalue("new_processes")
    site = {"clients": "0,1,2", "state-dir": str(tmp_path)}
    monkeypatch.setattr(serve, "_check_memory", warning)
    for _ in range(2):
        run("fedavg", node_configs=[site] if is_site else None)
    for client in range(3):
        assert said().count(f"client {client} has few graphs") == 2  # one for each run
    if is_site:
        noted = [w["note"] for w in lines(tmp_path, "warning") if "few" in w["note"]]
        assert sorted(noted) == sorted(f"client {c} has few graphs" for c in "001122")


# Sealed letters ------------------------------------------------------------------


@pytest.mark.parametrize(("seal", "kind"), [(True, "sealed"), (False, "open")])
def test_whether_letters_were_sealed_is_said_at_the_site_and_in_progress(
    run, toy_data, monkeypatch, tmp_path, said, seal, kind
):
    monkeypatch.setattr(datasets, "load_partition", federation)
    nodes = [{"clients": str(c), "state-dir": str(tmp_path / str(c))} for c in range(4)]
    options = {"spreadgnn.topology": "ring", "spreadgnn.seal": seal}
    start(run, 4, node_configs=nodes, **options)
    found = lines(tmp_path / "0")
    notes = [line["note"] for line in found if line["message"] == "train"]
    out = "2 sealed letters" if seal else "1 open letter"  # one for all neighbours
    later = f"mail: 2 {kind} letters in, {out} out"
    assert notes == [f"mail: no letters in, {out} out", later, later]
    word = "sealed" if seal else "not sealed"
    progress = [m for m in said() if m.startswith("round ") and "after round " in m]
    assert len(progress) == 3
    assert all(m.endswith(f" · letters {word}") for m in progress)
