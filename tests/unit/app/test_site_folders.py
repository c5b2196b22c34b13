"""Attacks by a run config: what it can make a site read, write, delete and tell."""

from __future__ import annotations

import re

import pytest
from flwr.app import Context, Message, RecordDict

from clients.store import STATES
from fedgraph_flwr.client_app import app
from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.errors import FedGraphError
from fedgraph_flwr.core.wire import LAST_ROUND, Parcel, pack, unpack
from fedgraph_flwr.node.gate import for_others
from fedgraph_flwr.node.node_config import own_folders
from fedgraph_flwr.resolve import defaults, resolve
from simulations.inline import run_inline

SECRETS = ("root:x:0", "Mary", "positive HIV", "patient", "thesis", "ward-7")
SHADOW = "root:x:0:0:root:/root:/bin/bash\nMary:x:1:1::/:/bin/sh\n"
PATIENTS = "patient,smiles,status\nMary,CCO,positive HIV\nJohn,CC,negative\n"
GOOD = "smiles,toxic\n" + "".join(f"{'C' * k},{k % 2}\n" for k in range(1, 13))
SMALL = {
    "method": "fedavg",
    "dataset": "smiles-csv",
    "num-clients": 1,
    "num-server-rounds": 1,
    "hidden-dim": 4,
    "persist-optimizer": True,
    "device": "cpu",
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Two places: ``victim``, which no operator named, and ``own``, a site's."""
    monkeypatch.setenv("FEDGRAPH_CACHE", str(tmp_path / "default-cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "default-state"))
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "victim"))
    for name in ("passwd", "patients.csv"):
        path = tmp_path / "victim" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(SHADOW if name == "passwd" else PATIENTS)
    own = tmp_path / "ward-7"
    own.mkdir()
    (own / "own.csv").write_text(GOOD)
    return tmp_path


def attack(site, node, **config):
    """Start a run as an attacker; return what the server was told."""
    victim = site / "victim"
    given = {
        **SMALL,
        "data-dir": str(victim),
        "state-dir": str(victim / "state"),
        "cache-dir": str(victim / "cache"),
        "results-dir": str(site / "results"),
        **config,
    }
    before = sorted(victim.rglob("*"))
    try:
        run_inline(given, node_configs=[{"clients": "0", **node}])
        told = ""
    except FedGraphError as error:
        told = f"{type(error).__name__}: {error}"
    assert sorted(victim.rglob("*")) == before  # nothing written or deleted
    assert not [secret for secret in SECRETS if secret in told]
    assert str(site) not in told.replace(str(site / "results"), "")
    return told


@pytest.mark.parametrize(
    "config",
    [
        {"data-dir": "passwd"},
        {"data-dir": "patients.csv", "csv-label-columns": "status"},
        {"dataset": "tu:WARD", "method": "fedavg", "partition": "chunks"},
        {"dataset": "Cora", "method": "fedavg"},
    ],
    ids=str,
)
def test_a_site_without_data_path_reads_no_file(site, caplog, config):
    if "data-dir" in config:
        config = {**config, "data-dir": str(site / "victim" / config["data-dir"])}
    told = attack(site, {}, **config)
    assert "ConfigError: see docs/configuration.md" in told
    assert "without data-path, the only place that a site reads from" in caplog.text
    assert not (site / "default-cache").exists()


def test_folders_of_the_run_mean_nothing_at_a_site_which_says_so(site, caplog):
    own = {
        "data-path": str(site / "ward-7" / "own.csv"),
        "state-dir": str(site / "ward-7" / "state"),
        "cache-dir": str(site / "ward-7" / "cache"),
    }
    assert attack(site, own) == ""  # completed, on the site's own file
    assert list((site / "ward-7" / "state").rglob(STATES))
    assert list((site / "ward-7" / "cache").glob("smiles-csv-*"))
    said = "the run sets data-dir, state-dir, cache-dir, which mean nothing at this"
    assert [said in m for m in caplog.messages].count(True) == 1
    assert not (site / "default-cache").exists()


@pytest.mark.parametrize(
    ("path", "config", "told"),
    [
        ("ward-7/table.csv", {"csv-smiles-column": "Smile"}, "no column 'Smile'"),
        (
            "ward-7/table.csv",
            {"csv-label-columns": "status"},
            "line 2, column 'status': a label",
        ),
        ("ward-7/tabl.csv", {}, "ward-7/tabl.csv"),
        ("ward-7/passwd", {}, "passwd has no column 'smiles'"),
        ("ward-7/raw", {"csv-bad-rows": "refuse"}, "raw, line 2: cannot be read as"),
    ],
)
def test_errors_tell_place_and_kind_and_the_log_all(site, caplog, path, config, told):
    own = site / "ward-7"
    (own / "table.csv").write_text(PATIENTS)
    (own / "passwd").write_text(SHADOW)
    (own / "raw").write_bytes(b"patient,Mary\n\xff\xfe")
    said = attack(site, {"data-path": str(site / path)}, **config)
    assert re.search(r"[a-z]+Error: see docs/[a-z-]+\.md; the text stands in the", said)
    assert not [word for word in (told, "ward-7", "Smile") if word in said]
    assert told in caplog.text
    assert str(site / path) in caplog.text


def test_every_path_of_a_run_is_replaced_at_a_site(site):
    paths = {
        key
        for key, f in RunSettings.config_fields().items()
        if f.metadata["rule"].absolute
    }
    settings = resolve({**defaults(), **dict.fromkeys(paths, "/run")}).settings
    found = own_folders(settings, {"clients": "0"}).to_config()
    assert {found[key] for key in paths} == {""}


@pytest.mark.usefixtures("task_identity")
@pytest.mark.parametrize("kind", ["train", "evaluate", "query.opening"])
@pytest.mark.parametrize(
    "content", [pack({0: Parcel()}, {"experiment": "e"}), RecordDict()]
)
def test_a_message_without_a_roll_call_tells_no_more(site, kind, content):
    """Flower sends the text of whatever a ClientApp raises."""
    own = site / "ward-7"
    node = {"clients": "0,1", "data-path": str(own / "own.csv"), "state-dir": str(own)}
    config = {**defaults(), **SMALL, "num-clients": 2}
    context = Context(1, 0, node, RecordDict(), config)
    with pytest.raises(
        FedGraphError, match=r"ConfigError: see docs/configuration\.md;"
    ) as caught:
        app(Message(content, 1, kind), context)
    assert str(site) not in str(caught.value)
    assert caught.value.__suppress_context__
    assert {path.name for path in own.iterdir()} == {"own.csv", "audit.jsonl"}


@pytest.mark.usefixtures("task_identity")
@pytest.mark.parametrize("value", [None, "../x", -1, "x" * 10**6])
@pytest.mark.parametrize("name", ["server-round", "keep-from"])
def test_what_is_no_round_reaches_no_file(site, name, value):
    own = site / "ward-7"
    context = context_of(site)
    header = {"experiment": "e", "server-round": 1, "keep-from": 0, name: value}
    header = {k: v for k, v in header.items() if v is not None}
    with pytest.raises(FedGraphError, match=r"WireError: see docs/failures\.md;") as e:
        app(Message(pack({0: Parcel()}, header), 1, "train"), context)
    assert len(str(e.value)) < 90
    assert [path.name for path in (own / "state").iterdir()] == ["audit.jsonl"]


@pytest.mark.usefixtures("task_identity")
@pytest.mark.parametrize("value", [None, "[1", -1])
def test_a_last_round_that_is_none_is_refused(site, value):
    """Nor is one that got lost taken for a client's first."""
    context = context_of(site)
    header = {"experiment": "e", "server-round": 1, "keep-from": 0}
    facts = {} if value is None else {LAST_ROUND: value}
    content = pack({0: Parcel(facts=facts)}, header)
    assert "WireError: see docs/failures.md" in failure(context, content)


def context_of(site):
    """Context of a node that hosts client 0 on its own molecules."""
    own = site / "ward-7"
    node = {
        "clients": "0",
        "data-path": str(own / "own.csv"),
        "state-dir": str(own / "state"),
    }
    return Context(1, 0, node, RecordDict(), {**defaults(), **SMALL})


def failure(context, content):
    """Why client 0 fails to answer."""
    reply = app(Message(content, 1, "train"), context)
    parcels, _ = unpack(reply.content)
    return parcels[0].error


@pytest.mark.parametrize(
    ("reason", "left"),
    [
        (
            "DataError: /a/Mary.csv, line 2: got 'HIV'",
            "DataError: see docs/own-data.md",
        ),
        ("WireError: " + "x" * 10**6, "WireError: see docs/failures.md"),
        ("Mary: positive HIV", "Error: see docs/failures.md"),
        ("PolicyError: policy (Mary) of scores", "PolicyError: see docs/privacy.md"),
        (
            "PolicyError: this site's policy (scores) does not allow Mary",
            "PolicyError (scores): see docs/privacy.md",
        ),
    ],
)
def test_words_for_others(reason, left):
    assert for_others(reason) == f"{left}; the text stands in the log of the site"
