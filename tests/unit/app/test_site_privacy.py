"""What one message to a site tells of its data, and what its audit log says it cost."""

from __future__ import annotations

import json

import numpy as np
import pytest
import toys
from commands import at_site
from flwr.app import Context, Message, RecordDict

import datasets
from clients.base import start_of
from clients.site_database import SITE_FILE, site_database
from clients.tasks.graph_classifier import GraphClassifierClient
from fedgraph_flwr.client_app import app
from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.wire import LAST_ROUND, Parcel, pack, unpack, with_prefix
from fedgraph_flwr.core.words import at_most
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.node import serve
from fedgraph_flwr.resolve import defaults, resolve

pytestmark = pytest.mark.usefixtures("task_identity", "own_data")
STRICT = {
    "update_clip_max": 0.5,
    "update_noise_min": 3.0,
    "update_epsilon_max": 8.0,
    "scores": False,
}
CLIPPED = {"privacy.update-clip": 0.5, "privacy.update-noise": 50.0}


@pytest.fixture
def own_data(toy_data, monkeypatch):
    """Give the site data of its own, which a test may change."""
    monkeypatch.setattr(datasets, "is_cut", lambda _: False)
    serve.clear_kept()
    yield
    serve.clear_kept()


class Asker:
    """A server, for what it asks of a site that hosts client 0."""

    def __init__(self, root, method="fedavg", *, policy=None, **config):
        self.root = root
        self.node = {"clients": "0", "state-dir": str(root), "data-path": "/toy"}
        self.node |= toys.policy(root / "policy", **(policy or {}))
        self.config = {**defaults(), **toys.tiny(method), **config}

    def send(self, kind, parcel=None, run=1, **header):
        context = Context(run, 1, self.node, RecordDict(), self.config)
        content = pack({} if parcel is None else {0: parcel}, header)
        return unpack(app(Message(content, 1, kind), context).content)

    def call(self, run=1):
        _, header = self.send("query", run=run, experiment="e")
        assert "error" not in header
        return header

    def train(self, number=1, *, arrays=None, run=1, kind="train", **facts):
        arrays = self.model() if arrays is None else arrays
        parcel = Parcel(arrays=arrays, facts={LAST_ROUND: 0} | facts)
        header = {"experiment": "e", "server-round": number, "keep-from": 0}
        parcels, _ = self.send(kind, parcel, run=run, **header)
        return parcels[0]

    def model(self, num_features=4, num_classes=2):
        run = resolve(self.config)
        spec = run.spec(num_features=num_features, num_classes=num_classes)
        return with_prefix(SHARED, start_of(run.method.client, spec).arrays())

    def log(self, event="answered"):
        text = (self.root / "audit.jsonl").read_text()
        return [r for r in map(json.loads, text.splitlines()) if r["event"] == event]

    def updates(self):
        """Noisy updates that the site has paid for."""
        return len(site_database(self.root).rows("SELECT 1 FROM updates"))


# Failure tells of the data ----------------------------------------------------------


def overflowing(arrays):
    """Weights with which the gradient overflows if a training graph has label 0."""
    made = {}
    for name, array in arrays.items():
        made[name] = np.zeros_like(array)
        if name.endswith("bias"):
            made[name][:] = 1e-30
    made["shared/post.weight"][:] = 1e25
    made["shared/readout.weight"][:] = [[-1e25], [1e25]]
    made["shared/readout.bias"][:] = [0, 1e30]
    return made


def label(monkeypatch, *zeros):
    """Give all training graphs label 1, but those at some positions 0."""

    def labelled(settings, client_id):
        own = toys.federation(settings, client_id)
        y = own.graphs.y.copy()
        y[own.train], y[own.train[list(zeros)]] = 1, 0
        return toys.renewed(own, graphs=toys.replace(own.graphs, y=y))

    monkeypatch.setattr(datasets, "load_partition", labelled)
    serve.clear_kept()


@pytest.mark.parametrize("zeros", [[], [3]])
def test_an_update_that_overflows_is_sent_as_noise_and_paid_for(
    tmp_path, monkeypatch, caplog, zeros
):
    label(monkeypatch, *zeros)
    config = {**CLIPPED, "shared-group": "all", "dropout": 0.0}
    asker = Asker(tmp_path, policy=STRICT, **config)
    asker.call()
    sent = overflowing(asker.model())
    with caplog.at_level("WARNING", logger="flwr"):
        reply = asker.train(arrays=sent)
    assert reply.error == ""
    assert set(reply.metrics) >= {"privacy/update-epsilon"}
    assert asker.updates() == 1
    assert asker.log()[-1]["outcome"] == "ok"
    noise = np.concatenate([(reply.arrays[n] - a).ravel() for n, a in sent.items()])
    assert np.isfinite(noise).all()
    notes = [w["note"] for w in asker.log("warning")]
    assert any("round 1: training overflowed" in n for n in notes) == bool(zeros)
    assert asker.train(2, arrays=sent, **{"last-round": 1}).error == ""
    assert asker.updates() == 2


@pytest.mark.parametrize("step", ["loss", "scores"])
def test_the_server_does_not_hear_that_work_on_the_data_failed(
    tmp_path, monkeypatch, caplog, step
):
    """Replies have the same numbers and arrays, and the same is paid."""

    def fails(*_):
        raise ValueError("of the data")

    found = []
    for name in ("well", "failing"):
        asker = Asker(tmp_path / name, policy=STRICT, **CLIPPED)
        asker.call()
        if name == "failing":
            monkeypatch.setattr(GraphClassifierClient, step, fails)
        with caplog.at_level("WARNING", logger="flwr"):
            replies = [asker.train(), asker.train(2, kind="evaluate")]
        assert [r.error for r in replies] == ["", ""]
        found.append([sorted({*r.metrics, *r.facts, *r.arrays}) for r in replies])
        spent = [r.metrics["privacy/update-epsilon"] for r in replies]
        assert spent == [
            line["spent_after"]["update-epsilon"] for line in asker.log()[1:]
        ]
        assert asker.updates() == 1
    assert found[0] == found[1]
    notes = [w["note"] for w in asker.log("warning")]
    assert any("round 1: goes on without what failed" in note for note in notes)
    assert "ValueError: of the data" in notes[-1]


# Two answers that are equal tell of the data ------------------------------------------


PRIVATE = {"shared-group": "convs", "dropout": 0.0, "weight-decay": 0.0}


def sure(arrays):
    """Weights that say 0 of every graph, and need no training if all labels are 0."""
    made = {n: np.zeros_like(a) for n, a in arrays.items()}
    made["shared/convs.1.mlp.2.bias"][:] = 1e6
    return made


@pytest.mark.parametrize("zeros", [range(12), range(11)])
def test_equal_private_layers_do_not_show_in_equal_noise(tmp_path, monkeypatch, zeros):
    """A round is asked twice, from states that are equal if all labels are 0."""
    label(monkeypatch, *zeros)
    asker = Asker(tmp_path, policy=STRICT, **CLIPPED, **PRIVATE)
    asker.config["persist-optimizer"] = False
    asker.call()
    usual = asker.model()
    huge = {n: np.full_like(a, 3e38) for n, a in usual.items()}  # overflows, surely
    replies = []
    for first in (sure(usual), huge):
        assert asker.train(arrays=first).error == ""
        replies.append(asker.train(2, arrays=usual, **{LAST_ROUND: 1}))
    assert any(
        not np.array_equal(replies[0].arrays[n], replies[1].arrays[n]) for n in usual
    )
    assert asker.updates() == 4
    assert asker.train(arrays=huge).error == ""  # as a resume may
    again = asker.train(2, arrays=usual, **{LAST_ROUND: 1})
    assert all(np.array_equal(again.arrays[n], replies[1].arrays[n]) for n in usual)
    assert asker.updates() == 4


def test_a_server_that_asks_twice_does_not_see_whether_training_changed_a_model(
    tmp_path, monkeypatch
):
    """The hash of the whole model told whether all labels are those of the model."""
    label(monkeypatch, *range(12))
    asker = Asker(tmp_path, policy=STRICT, **CLIPPED, **PRIVATE)
    asker.call()
    sent = sure(asker.model())
    replies = [asker.train(2, arrays=sent, kind="evaluate")]
    assert asker.train(arrays=sent).error == ""
    replies.append(asker.train(2, arrays=sent, kind="evaluate", **{LAST_ROUND: 1}))
    first, second = (reply.facts["weights-sha256"] for reply in replies)
    assert first != second


# The audit log says what it cost ----------------------------------------------------


def test_what_a_refused_reply_had_cost_is_in_the_log(tmp_path, capsys):
    asker = Asker(tmp_path, policy={"reply_bytes_max": 1500}, **CLIPPED)
    asker.call()
    for number in (1, 2):
        with pytest.raises(RunFailedError, match=r"\(reply-bytes-max\)"):
            asker.train(number)
    _, first, second = asker.log()
    assert [line["client"] for line in (first, second)] == [0, 0]
    assert [line["outcome"] for line in (first, second)] == ["refused", "refused"]
    assert "spent_before" not in first
    assert second["spent_before"] == first["spent_after"]
    spent = [line["spent_after"]["update-epsilon"] for line in (first, second)]
    assert 0 < spent[0] < spent[1]
    assert at_site(["audit", str(tmp_path / "audit.jsonl")]) == 0
    assert f"update {at_most(spent[1])}" in capsys.readouterr().out


# Data and accounts that change in mid-run -------------------------------------------


def test_an_update_is_not_asked_again_of_labels_that_have_changed(
    tmp_path, monkeypatch
):
    """Two answers would be equal if no new label has changed the update."""
    asker = Asker(tmp_path, policy=STRICT, **CLIPPED)
    asker.call()
    assert asker.train().error == ""
    label(monkeypatch, 3)
    assert asker.train().error.startswith("DataError: see")
    note = asker.log()[-1]["note"]
    assert "data of client 0 are not those with which it began" in note
    assert asker.updates() == 1


@pytest.mark.parametrize("rate", [0.5, None])
def test_a_run_without_roll_call_ends_none_at_a_site_that_may_begin_afresh(
    tmp_path, rate
):
    asker = Asker(tmp_path)
    asker.node["fresh-start"] = True
    asker.call(run=5)
    assert asker.train(run=5).error == ""
    honest = asker.config
    asker.config = {**honest, "learning-rate": rate or honest["learning-rate"]}
    assert asker.train(run=6).error.startswith("WireError: see")
    assert "Flower run 6 is not known at this site" in asker.log()[-1]["note"]
    asker.config = honest
    assert asker.train(2, run=5, **{"last-round": 1}).error == ""
    (tmp_path / SITE_FILE).unlink()
    assert asker.train(3, run=5, **{"last-round": 2}).error == ""
    assert asker.train(run=6).error.startswith("WireError: see")
    assert "Flower run 6 is not known at this site" in asker.log()[-1]["note"]
