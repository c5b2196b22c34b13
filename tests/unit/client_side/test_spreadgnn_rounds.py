"""Whole runs of SpreadGNN: who influences whom, when, at what cost, and who is told."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import toys
from matrix import mostly_slow
from oracles import spreadgnn as oracle
from stops import resumed
from toys_spreadgnn import MASKS, federation, final_models, start

from clients.base import GraphClient
from clients.spreadgnn import SpreadGNNClient
from clients.spreadgnn_mail import Neighbourhood
from fedgraph_flwr.core.errors import ConfigError, FedGraphError, RunFailedError
from fedgraph_flwr.core.mixing import mix
from fedgraph_flwr.core.network import build_topology
from fedgraph_flwr.core.wire import Parcel
from strategies.spreadgnn import SpreadGNN, make_topology

NEUTRAL = {"spreadgnn.task-reg": 0.0, "optimizer": "adam", "persist-optimizer": True}
TOPOLOGIES = {
    "complete": {},
    "ring": {"spreadgnn.topology": "ring"},
    "star": {"spreadgnn.topology": "star"},
    "random-regular": {"spreadgnn.topology": "random-regular", "spreadgnn.degree": 3},
    "watts-strogatz": {"spreadgnn.topology": "watts-strogatz", "spreadgnn.degree": 4},
}


@pytest.fixture(scope="module", autouse=True)
def six_tasks(toy_data):
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", federation)
        yield


@pytest.fixture
def spread(run):
    """Run SpreadGNN: ``spread(clients, **overrides)``."""
    return partial(start, run)


def neighbours(clients, **overrides):
    given = {k.split(".")[1].replace("-", "_"): v for k, v in overrides.items()}
    kind = given.pop("topology", "complete")
    return build_topology(kind, clients, **given).neighbours


def losses(finished):
    """Loss on test graphs after mixing, by (round, client)."""
    return {
        (int(r), int(c)): v
        for (r, c, split, point, _), v in finished.values("loss").items()
        if (split, point) == ("test", "post_aggregation")
    }


# The neutral setting ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "weights"),
    mostly_slow(
        product([3, 4], ["uniform", "samples"]), fast=[(3, "uniform"), (4, "samples")]
    ),
)
def test_complete_without_regulariser_equals_fedavg_in_every_round(
    spread, weights, clients
):
    rounds = {"num-server-rounds": 3, "dropout": 0.3}
    ours = spread(clients, **NEUTRAL, **rounds, **{"spreadgnn.weights": weights})
    plain = spread(
        clients,
        method="fedavg multi-task",
        **{k: v for k, v in NEUTRAL.items() if "." not in k},
        **rounds,
        weighting=weights,
    )
    assert losses(ours) == losses(plain)
    assert len(losses(ours)) == 4 * clients
    for model in final_models(ours).values():
        for name, array in plain.models["global"].items():
            np.testing.assert_array_equal(model[name], array)


# The course of models, against the paper's recursion ----------------------------------


@pytest.mark.parametrize(
    ("period", "name"),
    mostly_slow(
        product([1, 2], TOPOLOGIES),
        fast=[(1, "complete"), (1, "random-regular"), (2, "ring"), (2, "star")],
    ),
)
def test_models_follow_the_recursion_of_dpa_sgd(spread, monkeypatch, name, period):
    """Local training is replaced by a step towards a point of each client's own."""
    seen = {}
    rate = 0.25

    def towards(t, k, x):
        return [a - (k + 1) * (i + t) for i, a in enumerate(x)]

    towards.rounds = 6

    def step(self):
        bias = self.model.head.bias.data
        t = self.round.number - 1
        g = towards(t, self.job.client_id, bias.double().tolist())
        bias -= rate * bias.new_tensor(g)
        return Parcel()

    def look(self, point):
        if point == "post_aggregation":
            bias = self.model.head.bias.detach().double().tolist()
            seen[self.round.number - 1, self.job.client_id] = bias
        return Parcel()

    monkeypatch.setattr(GraphClient, "train", step)
    monkeypatch.setattr(SpreadGNNClient, "scores", look)
    options = TOPOLOGIES[name]
    spread(
        6,
        **options,
        **{"spreadgnn.period": period, "num-server-rounds": towards.rounds},
    )
    m = oracle.metropolis(neighbours(6, **options))
    start = [seen[0, k] for k in range(6)]
    course = oracle.dpa_sgd(m, period, start, towards, rate)
    for t, expected in enumerate(course):
        for k in range(6):
            np.testing.assert_allclose(seen[t, k], expected[k], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "eta"),
    mostly_slow(
        [("complete", 0.5), ("ring", 0.5), ("star", 0.2)],
        fast=[("ring", 0.5), ("star", 0.2)],
    ),
)
def test_omegas_follow_those_of_the_neighbours(spread, monkeypatch, name, eta):
    """Eq. (11) between clients: in round 3 with Omegas that are none of the start."""
    heads, sent, found = {}, {}, {}
    renew, update = Neighbourhood.renew, SpreadGNNClient.update

    def spy_renew(self, head, *, eta):
        heads.setdefault(self._client_id, []).append(head.double().numpy().copy())
        renew(self, head, eta=eta)

    def spy_update(self, trained):
        at = self.round.number - 1, self.job.client_id
        head = self.model.head.weight.detach().double()
        sent[at] = head.numpy().copy()
        covariance = self.round.around.covariance()
        found[at] = covariance.task_ids, covariance.omega.numpy().copy()
        return update(self, trained)

    monkeypatch.setattr(Neighbourhood, "renew", spy_renew)
    monkeypatch.setattr(SpreadGNNClient, "update", spy_update)
    monkeypatch.setattr("clients.spreadgnn.OMEGA_ETA", eta)
    options = {"local-epochs": 2, "learning-rate": 0.05}
    spread(4, **TOPOLOGIES[name], **options)
    renewals = [[heads[k][2 * t - 2 : 2 * t] for k in range(4)] for t in range(1, 3)]
    course = oracle.course_of_omegas(
        neighbours(4, **TOPOLOGIES[name]),
        [[int(t) for t in mask.split(",")] for mask in MASKS[4].split(";")],
        [[[]] * 4, *renewals],
        [[sent[t, k] for k in range(4)] for t in range(3)],
        eta,
    )
    for t, expected in enumerate(course):
        for k, (tasks, omega) in enumerate(expected):
            assert list(found[t, k][0]) == list(tasks)
            np.testing.assert_allclose(found[t, k][1], omega, rtol=0, atol=1e-6)
            if t:
                assert np.abs(omega - np.eye(len(omega)) / len(omega)).max() > 1e-2


# What a relay delivers ----------------------------------------------------------------


class Opaque:
    """A letter of which nothing can be asked."""

    def __getattribute__(self, name):
        raise AssertionError(f"the relay looked at {name} of a letter")


def relay(clients, **overrides):
    own = {"num-clients": clients, "task-masks": MASKS[clients]}
    run = toys.resolved("spreadgnn", **own, **overrides)
    strategy = SpreadGNN(run.settings, run.params, experiment="e")
    strategy.clients = dict.fromkeys(range(clients))
    strategy.topology = make_topology(clients, run.params)
    strategy.round.asked = list(range(clients))
    return strategy


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_relay_forwards_letters_unopened_to_neighbours_alone(name):
    strategy = relay(6, **TOPOLOGIES[name])
    sent = {k: Opaque() for k in range(6)}
    strategy.step(1, {k: Parcel(arrays={"to/all": sent[k]}) for k in range(6)})
    near = neighbours(6, **TOPOLOGIES[name])
    for k, mail in strategy.outgoing(2).items():
        assert set(mail) == {f"from/{j}" for j in near[k]}
        assert all(mail[f"from/{j}"] is sent[j] for j in near[k])
    strategy.step(2, dict.fromkeys(range(6), Parcel()))
    assert all(mail == {} for mail in strategy.outgoing(3).values())


def test_a_sealed_letter_reaches_its_receiver_and_no_other():
    strategy = relay(4, **{"spreadgnn.topology": "ring"})
    one, three, stray = Opaque(), Opaque(), Opaque()
    mail = {"to/1": one, "to/3": three, "to/2": stray}  # 2 is no neighbour of 0
    strategy.step(1, {0: Parcel(arrays=mail)})
    found = strategy.outgoing(2)
    assert found[1] == {"from/0": one}
    assert found[3] == {"from/0": three}
    assert found[2] == {}


def test_mail_waits_for_a_client_that_does_not_reply():
    """Addressed or not: what it has read already, it leaves out itself."""
    strategy = relay(3)
    old, new = Opaque(), Opaque()
    strategy.step(1, {0: Parcel(arrays={"to/all": old}), 1: Parcel(), 2: Parcel()})
    strategy.step(2, {0: Parcel(arrays={"to/all": new}), 1: Parcel()})
    assert strategy.outgoing(3)[2] == {"from/0": new}
    assert strategy.outgoing(3)[1] == {"from/0": new}
    strategy.step(3, {0: Parcel(), 1: Parcel()})
    assert strategy.outgoing(4)[2] == {"from/0": new}
    assert strategy.outgoing(4)[1] == {}


def test_mail_in_transit_survives_the_checkpoint():
    before, after = relay(4), relay(4)
    mail = {k: np.array([k], np.uint8) for k in range(4)}
    before._asked = [0, 1, 2, 3]
    complaint = {"silent/2": 2, "unusable/1": 1, "silent/9": 1}
    replies = {k: Parcel(arrays={"to/all": mail[k]}) for k in (0, 1, 3)}
    before.step(1, {**replies, 0: replace(replies[0], metrics=complaint)})
    arrays, facts = before.state()
    after.restore(arrays, json.loads(json.dumps(facts)))
    assert after.outgoing(2) == before.outgoing(2)
    assert after.missed == {2: [1]}
    assert after.gone == [2]
    for strategy in (before, after):
        assert strategy.silent == {0: [2], 1: [], 3: []}
        assert strategy.unusable == {1: 1}


def test_a_client_whose_model_is_not_finite_says_so_itself(spread, monkeypatch):
    def diverge(self):
        if self.job.client_id == 1 and self.round.number == 2:
            self.model.head.bias.data[0] = math.nan
        return Parcel()

    monkeypatch.setattr(GraphClient, "train", diverge)
    monkeypatch.setattr(SpreadGNNClient, "scores", lambda *_: Parcel())
    with pytest.raises(RunFailedError, match=r"client 1: .*client 1 sends no letter"):
        spread(3)


# What the relay sees ------------------------------------------------------------------


def everything_the_relay_held(monkeypatch):
    """Raw bytes of all messages, as they grow."""
    held = bytearray()

    def spy(*both):
        for message in both:
            for record in message.content.values():
                held.extend(record.deflate())

    toys.on_delivery(monkeypatch, after=spy)
    return held


def needles(monkeypatch):
    """Sixteen bytes from the middle of all that clients ever wrote into letters."""
    found = {}
    letter = SpreadGNNClient._letter

    def spy(self):
        made = letter(self)
        at = f"{self.job.client_id}/{self.round.number}"
        parts = {**made.tensors, "rows": made.head_rows, "omega": made.omega}
        for name, array in parts.items():
            raw = array.tobytes()
            middle = len(raw) // 8 * 4
            piece = raw[max(0, middle - 8) : middle + 8]
            if len(piece) == 16 and len(set(piece)) > 4:
                found[f"{at}/{name}"] = piece
        return made

    monkeypatch.setattr(SpreadGNNClient, "_letter", spy)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seal", [False, True])  # of open letters it sees all
def test_all_that_the_relay_ever_held_shows_no_tensor_if_sealed(
    spread, monkeypatch, seal
):
    held, sent = everything_the_relay_held(monkeypatch), needles(monkeypatch)
    finished = spread(4, nodes=2, **TOPOLOGIES["ring"], **{"spreadgnn.seal": seal})
    for path in sorted(finished.path.rglob("*")):
        if path.is_file():
            held.extend(path.read_bytes())
    assert len(sent) > 100
    seen = {name for name, piece in sent.items() if piece in held}
    if not seal:  # the test can see
        assert seen == set(sent)
        return
    assert seen == set()
    assert b"head.weight" not in held
    root = Path(finished.overrides["state-dir"])
    keys = list(root.rglob("*.key"))
    assert len(keys) == 2 * 4  # of the site and of the run
    for key in keys:
        assert key.read_bytes() not in held
        assert key.read_bytes().hex().encode() not in held
    assert all(p.stat().st_mode & 0o077 == 0 for p in keys)


def test_sealed_letters_on_two_nodes_give_the_hash_of_open_ones_on_one(once):
    ring = {"num-clients": 4, "task-masks": MASKS[4], **TOPOLOGIES["ring"]}
    sealed = once("spreadgnn", nodes=2, **ring, **{"spreadgnn.seal": True})
    assert sealed.sha == once("spreadgnn", **ring).sha


@pytest.mark.slow
def test_a_sealed_run_resumes_exactly(run, spread):
    sealed = {**TOPOLOGIES["ring"], "spreadgnn.seal": True, "num-server-rounds": 4}
    whole = spread(4, **sealed)
    part = spread(4, **{**sealed, "num-server-rounds": 2})
    again = resumed(run, part, "spreadgnn", **sealed)
    assert (again.sha, again.rounds) == (whole.sha, whole.rounds)


# Clients that go ----------------------------------------------------------------------


def leave(monkeypatch, client, rounds):
    for name in ("participate", "assess"):
        usual = getattr(GraphClient, name)

        def gone(self, parcel, header, *, usual=usual):
            if self.job.client_id == client and header["server-round"] in rounds:
                raise ConnectionError("power cut")
            return usual(self, parcel, header)

        monkeypatch.setattr(GraphClient, name, gone)


def spy_rows(monkeypatch, *, keep=False):
    """Weights by (round, client); models are mixed only to ``keep`` the run as is."""
    rows = {}
    load = SpreadGNNClient.load

    def spy(self, parcel, header):
        def noted(models, row, me):
            rows[header["server-round"], me] = row
            return mix(models, row, me) if keep else models[me]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("clients.spreadgnn.mix", noted)
            return load(self, parcel, header)

    monkeypatch.setattr(SpreadGNNClient, "load", spy)
    return rows


@pytest.mark.slow
def test_neighbours_of_a_client_that_left_go_on_without_it(spread, monkeypatch):
    rows = spy_rows(monkeypatch)
    leave(monkeypatch, 2, range(2, 9))
    finished = spread(4, **TOPOLOGIES["ring"], **{"min-fit-replies": 0.5})
    third = pytest.approx(1 / 3)
    assert rows[2, 1] == {0: third, 1: third, 2: third}  # sent in round 1
    assert rows[3, 1] == {0: third, 1: pytest.approx(2 / 3)}
    assert rows[3, 0] == {0: third, 1: third, 3: third}
    summary, network = finished.summary, finished.summary["network"]
    assert summary["status"] == "completed"
    assert [(f["round"], f["client"]) for f in summary["failures"]] == [
        (2, 2),
        (3, 2),
        (4, 2),
    ]
    assert network["dropped_out"] == [2]
    assert network["missed_rounds"] == {"2": [2, 3, 4]}
    assert network["rest_is_connected"] is True
    assert network["rest"] == [[0, 1, 3]]
    assert set(summary["final"]["per_client"]) == {"0", "1", "3"}


# Edge lists and bad input -------------------------------------------------------------


@pytest.mark.slow
def test_an_isolated_client_is_allowed_and_named(spread, tmp_path, caplog):
    file = tmp_path / "edges.toml"
    file.write_text("edges = [[0, 1], [1, 3]]")
    options = {"spreadgnn.topology": "file", "spreadgnn.edges-file": str(file)}
    with caplog.at_level("WARNING", logger="flwr"):
        finished = spread(4, **options)
    assert "client 2 has no neighbour: it trains alone" in caplog.text
    assert "not connected: [[0, 1, 3], [2]] learn apart" in caplog.text
    assert finished.summary["network"]["isolated"] == [2]
    assert finished.summary["network"]["spectral_gap"] == pytest.approx(0, abs=1e-12)


def test_a_bad_edge_list_stops_the_run_before_training(spread, tmp_path):
    file, results = tmp_path / "edges.toml", tmp_path / "results"
    file.write_text("edges = [[0, 9]]")
    options = {"spreadgnn.topology": "file", "spreadgnn.edges-file": str(file)}
    with pytest.raises(ConfigError, match=r"\[0, 9\]"):
        spread(3, **options, **{"results-dir": str(results)})
    assert list(results.iterdir()) == []


def test_a_task_of_nobody_stops_the_run_before_training(spread, tmp_path):
    options = {"task-masks": "0,1;2;3,5", "results-dir": str(tmp_path)}
    with pytest.raises(FedGraphError, match=r"together tasks 0-"):
        spread(3, **options)
    assert list(tmp_path.iterdir()) == []
