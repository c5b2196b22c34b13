"""Relays that cheat: what sealed clients with honest code do not let them have."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import toys
from toys_spreadgnn import federation, start

from clients.base import GraphClient
from clients.letters import read
from clients.sealing import (
    KeyRing,
    fingerprint,
    fingerprint_of,
    read_site_key,
)
from clients.sealing import site_key_file as key_file
from fedgraph_flwr.core.errors import RunFailedError, WireError
from fedgraph_flwr.core.wire import unpack
from fedgraph_flwr.results.printed import describe_network
from strategies.spreadgnn import SpreadGNN

SEALED = {"spreadgnn.topology": "ring", "spreadgnn.seal": True}
RING = {0: (1, 3), 1: (0, 2), 2: (1, 3), 3: (0, 2)}


@pytest.fixture(scope="module", autouse=True)
def six_tasks(toy_data):
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", federation)
        yield


@pytest.fixture
def spread(run):
    """Run SpreadGNN: ``spread(clients, **overrides)``."""
    return partial(start, run)


# Mail ---------------------------------------------------------------------------------


def cheat(monkeypatch, trick, *, at):
    """Let ``trick(mail, mail of round 2)`` change what a relay hands out in a round."""
    outgoing, second = SpreadGNN.outgoing, {}

    def crooked(self, server_round):
        mail = {c: dict(box) for c, box in outgoing(self, server_round).items()}
        if server_round == 2:
            second.update({c: dict(box) for c, box in mail.items()})
        return trick(mail, second) if server_round in at else mail

    monkeypatch.setattr(SpreadGNN, "outgoing", crooked)


def alter_misdeliver_and_swap(mail, _):
    """One of each, to clients 0, 1 and 2."""
    mail[0]["from/1"] = mail[0]["from/1"].copy()
    mail[0]["from/1"][-20] ^= 1
    mail[1]["from/0"] = mail[3]["from/0"]
    mail[2] = {"from/1": mail[2]["from/3"], "from/3": mail[2]["from/1"]}
    return mail


def keep_the_same_back(mail, _):
    return {0: {"from/3": mail[0]["from/3"]}, 1: {"from/2": mail[1]["from/2"]}} | {
        2: {},
        3: mail[3],
    }


def nothing(mail, _):
    return {c: {} for c in mail}


def test_mail_of_a_relay_that_cheats_counts_as_missing(spread, monkeypatch, caplog):
    """It gains what it would by keeping the mail; the operator reads why."""
    found = []
    for trick in (keep_the_same_back, alter_misdeliver_and_swap):
        cheat(monkeypatch, trick, at=[2])
        caplog.clear()
        with caplog.at_level("WARNING", logger="flwr"):
            found.append(spread(4, **SEALED, **{"num-server-rounds": 2}))
        monkeypatch.undo()
    for words in (
        "cannot be opened: sealed with another key, or altered",
        "for client 1 is addressed to client 3: the relay",
        "written by client 3: the relay swapped senders",
    ):
        assert words in caplog.text
    honest, cheated = (run.summary["network"] for run in found)
    assert found[0].sha == found[1].sha
    assert not honest["unusable_letters_of"]
    assert "of client 1 could not be used" in describe_network(cheated)


def test_a_client_without_mail_says_so(spread, monkeypatch, caplog):
    cheat(monkeypatch, nothing, at=range(9))
    with caplog.at_level("WARNING", logger="flwr"):
        finished = spread(4, **SEALED, **{"num-server-rounds": 4})
    for client, near in RING.items():
        named = ", ".join(map(str, near))
        words = f"client {client} has had no usable mail of client(s) {named} in 2"
        assert sum(words in m for m in caplog.messages) == 1
    network = finished.summary["network"]
    lacking = {str(c): list(near) for c, near in RING.items()}
    assert network["without_mail_of"] == lacking
    assert "client 2 has no mail of 1, 3, who take part" in describe_network(network)


def test_a_client_that_lost_its_memory_does_not_begin_afresh(spread, monkeypatch):
    train = GraphClient.participate

    def forgetful(self, parcel, header):
        if header["server-round"] == 3 and self.job.client_id == 2:
            facts = {k: v for k, v in parcel.facts.items() if k != "last-round"}
            parcel = replace(parcel, facts=facts)
            with self.job.store.database.transaction() as db:
                db.execute("DELETE FROM states WHERE client = 2")
        return train(self, parcel, header)

    monkeypatch.setattr(GraphClient, "participate", forgetful)
    lost = "client 2 is asked for round 3 and has done round 2, but no longer has its"
    with pytest.raises(RunFailedError, match=lost):
        spread(4, **SEALED)


# Keys ---------------------------------------------------------------------------------


class Thief:
    """A relay with keys of its own, which tries to open whatever it is sent."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.told = folder, {}
        self.sent, self.opened = 0, 0

        def spy(message, reply):
            run = str(unpack(message.content)[1]["experiment"])
            self.try_all(run, unpack(reply.content)[0])

        toys.on_delivery(monkeypatch, after=spy)

    def ring(self, run):
        """Keys of its own in a run."""
        return KeyRing(self.folder / run / "client-0", client_id=0)

    def try_all(self, run, replies):
        """Try to open letters, sealed with the keys that clients told."""
        ring = self.ring(run)
        for client, reply in replies.items():
            if key := reply.facts.get("told/public-key"):
                self.told[client] = str(key)
            for name, letter in reply.arrays.items():
                self.sent += 1
                (ring.folder / "neighbours.json").unlink(missing_ok=True)
                ring.pin({client: self.told[client]})
                ends = {"sender": client, "receiver": int(name.removeprefix("to/"))}
                ends |= {"run": run, "lock": ring.lock(client)}
                with suppress(WireError):
                    read(letter.tobytes(), before_round=99, **ends)
                    self.opened += 1


def substitute(monkeypatch, keys):
    """Hand ``keys(run, j, key)`` to the neighbours of j."""
    facts = SpreadGNN.facts

    def crooked(self, client):
        told = facts(self, client)
        entries = json.loads(told["neighbours"])
        for j, entry in entries.items():
            entry["key"] = keys(self.experiment, int(j), entry["key"])
        return told | {"neighbours": json.dumps(entries)}

    monkeypatch.setattr(SpreadGNN, "facts", crooked)


@pytest.mark.parametrize("whose", ["site", "relay"])
def test_no_letter_is_sealed_to_a_run_key_that_its_site_did_not_sign(
    spread, monkeypatch, tmp_path, whose
):
    """The fingerprint is right, the run's key is of an earlier run, or the relay's."""
    first = spread(4, **SEALED, **{"num-server-rounds": 1})
    root = Path(first.overrides["state-dir"])
    old = KeyRing(root / first.path.name / "client-1", client_id=1).public_key
    thief = Thief(tmp_path / "relay", monkeypatch)

    def forged(run, j, key):
        if j != 1:
            return key
        return old if whose == "site" else key[:64] + thief.ring(run).public_key[64:]

    substitute(monkeypatch, forged)
    why = rf"clients 0, 2: .*client 1 .* is not signed by .* {fingerprint(old)}"
    with pytest.raises(RunFailedError, match=why):
        spread(4, **SEALED, **{"state-dir": str(root)})


def sites(root):
    """Node-configs of four sites, and their fingerprints written down."""
    keys = [read_site_key(key_file(root / str(c), c)).public_key() for c in RING]
    found = [fingerprint_of(key.public_bytes_raw()) for key in keys]
    return [
        {
            "clients": str(c),
            "state-dir": str(root / str(c)),
            **toys.policy(root, sealed_only=True),
            "peers": ",".join(f"{j}:{found[j]}" for j in near),
        }
        for c, near in RING.items()
    ]


def test_somebody_in_between_opens_all_if_no_site_compares_fingerprints(
    spread, monkeypatch, tmp_path
):
    thief = Thief(tmp_path / "relay", monkeypatch)
    substitute(monkeypatch, lambda run, *_: thief.ring(run).public_key)
    nodes = [
        {k: v for k, v in node.items() if k != "peers"}
        for node in sites(tmp_path / "sites")
    ]
    spread(4, node_configs=nodes, **SEALED, **{"num-server-rounds": 1})
    assert thief.opened == thief.sent == 8


def test_somebody_in_between_is_refused_by_sites_that_compared_fingerprints(
    spread, monkeypatch, tmp_path, caplog
):
    thief = Thief(tmp_path / "relay", monkeypatch)
    substitute(monkeypatch, lambda run, *_: thief.ring(run).public_key)
    own = fingerprint(thief.ring("any").public_key)
    with pytest.raises(RunFailedError, match="WireError: see"):
        spread(4, node_configs=sites(tmp_path / "sites"), **SEALED)
    assert f"client 1 has fingerprint {own}, exp" in caplog.text
    assert (thief.opened, thief.sent) == (0, 0)


def test_an_honest_relay_between_sites_that_know_each_other(
    spread, monkeypatch, tmp_path
):
    """It can open none of the letters that it carries."""
    thief = Thief(tmp_path / "relay", monkeypatch)
    two = {**SEALED, "num-server-rounds": 2}
    finished = spread(4, node_configs=sites(tmp_path / "sites"), **two)
    assert (thief.opened, thief.sent) == (0, 2 * 8)
    assert finished.summary["network"]["sealed"] is True
    assert finished.sha == spread(4, **two).sha


@pytest.mark.parametrize("method", ["spreadgnn", "fedavg multi-task"])
def test_a_site_for_sealed_letters_alone_refuses_every_other_run(
    spread, tmp_path, method
):
    with pytest.raises(RunFailedError, match=r"PolicyError \(sealed-only\): see"):
        spread(4, method=method, node_configs=sites(tmp_path))
