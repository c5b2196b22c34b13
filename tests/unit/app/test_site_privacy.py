"""What one message to a site tells of its data, and what its audit log says it cost."""

from __future__ import annotations

import json

import numpy as np
import pytest
import toys
from flwr.app import Context, Message, RecordDict

import datasets
from clients.base import initial_arrays
from clients.tasks.graph_classifier import GraphClassifierClient
from fedgraph_flwr import loaded
from fedgraph_flwr.client_app import app
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.wire import Parcel, pack, unpack, with_prefix

pytestmark = pytest.mark.usefixtures("task_identity", "own_data")
STRICT = {
    "update_clip_max": 0.5,
    "update_noise_min": 3.0,
    "update_epsilon_max": 8.0,
    "scores": False,
    "error_texts": False,
}
CLIPPED = {"privacy.update-clip": 0.5, "privacy.update-noise": 50.0}
EDGES = {"privacy.edge-epsilon": 1.0, "features": "labels"}
TIMES = ("started-at", "compute-s")


@pytest.fixture
def own_data(toy_data, monkeypatch):
    """Give the site data of its own, which a test may change."""
    monkeypatch.setattr(datasets, "is_cut", lambda _: False)
    loaded.clear_kept()
    yield
    loaded.clear_kept()


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
        parcel = Parcel(arrays=self.model() if arrays is None else arrays, facts=facts)
        header = {"experiment": "e", "server-round": number, "keep-from": 0}
        parcels, _ = self.send(kind, parcel, run=run, **header)
        return parcels[0]

    def model(self):
        run = resolve(self.config)
        spec = run.spec(num_features=4, num_classes=2)
        return with_prefix(SHARED, initial_arrays(run.method.client, spec))

    def log(self, event="answered"):
        text = (self.root / "audit.jsonl").read_text()
        return [r for r in map(json.loads, text.splitlines()) if r["event"] == event]

    def updates(self):
        """Noisy updates that the site has paid for."""
        path = self.root / "privacy-lifetime" / "updates.json"
        if not path.exists():
            return 0
        return sum(json.loads(path.read_text())["updates"].values())


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
    loaded.clear_kept()


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


@pytest.mark.parametrize("method", ["infograph", "fedavg multi-task"])
def test_weights_with_which_scores_overflow_fail_nobody(tmp_path, method):
    asker = Asker(tmp_path, method, policy=STRICT, **CLIPPED)
    asker.call()
    huge = {n: np.full_like(a, 3e38) for n, a in asker.model().items()}
    assert asker.train(arrays=huge).error == ""
    assert asker.train(2, arrays=huge, kind="evaluate").error == ""
    assert asker.updates() == 1


def test_without_noise_on_updates_what_fails_is_named(tmp_path, monkeypatch):
    def fails(*_):
        raise ValueError("of the data")

    monkeypatch.setattr(GraphClassifierClient, "scores", fails)
    asker = Asker(tmp_path)
    asker.call()
    assert asker.train().error.startswith("ValueError")
