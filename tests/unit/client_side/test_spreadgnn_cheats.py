"""Relays that cheat: what sealed clients with honest code do not let them have."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import toys
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from flwr.app import Message, MessageType
from matrix import mostly_slow
from toys_spreadgnn import federation, start

from clients import store as client_store
from clients.base import GraphClient
from clients.letters import read
from clients.sealing import (
    KEY,
    KeyRing,
    Lock,
    fingerprint,
    fingerprint_of,
    read_site_key,
)
from clients.sealing import site_key_file as key_file
from clients.site_database import site_database
from fedgraph_flwr import client_app
from fedgraph_flwr.core.errors import DataError, RunFailedError, WireError
from fedgraph_flwr.core.wire import Parcel, pack, unpack
from fedgraph_flwr.node import serve
from fedgraph_flwr.results.folder import RunFolder
from fedgraph_flwr.results.printed import describe_network
from simulations.inline import InlineGrid
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


def cheat(monkeypatch, trick):
    """Let ``trick(strategy, round, mail)`` change what a relay hands out."""
    outgoing = SpreadGNN.outgoing

    def crooked(self, server_round):
        return trick(self, server_round, outgoing(self, server_round))

    monkeypatch.setattr(SpreadGNN, "outgoing", crooked)


def replay(strategy, server_round, mail):
    """Hand out all mail of round 1 again in round 3."""
    if server_round == 2:
        strategy.old = {c: dict(box) for c, box in mail.items()}
    return strategy.old if server_round == 3 else mail


def withhold(strategy, server_round, mail):
    return {c: {} for c in mail} if server_round == 3 else mail


def swap(_, server_round, mail):
    if server_round == 2:
        one, three = mail[0]["from/1"], mail[0]["from/3"]
        mail[0] = {"from/1": three, "from/3": one}
    return mail


def alter(_, server_round, mail):
    if server_round == 2:
        spoiled = mail[0]["from/1"].copy()
        spoiled[-20] ^= 1
        mail[0] = {**mail[0], "from/1": spoiled}
    return mail


def misdeliver(_, server_round, mail):
    if server_round == 2:
        mail[0] = {**mail[0], "from/1": mail[2]["from/1"]}
    return mail


def drop(senders):
    """Keep mail of these back from client 0 in round 2."""

    def without(_, server_round, mail):
        if server_round == 2:
            kept = {n: a for n, a in mail[0].items() if int(n[5:]) not in senders}
            mail[0] = kept
        return mail

    return without


@pytest.mark.parametrize(
    ("trick", "alike", "said"),
    [
        (replay, withhold, ()),
        (swap, drop({1, 3}), ("written by client 3: the relay swapped senders",)),
        (alter, drop({1}), ("cannot be opened: sealed with another key, or altered",)),
        (misdeliver, drop({1}), ("for client 0 is addressed to client 2: the relay",)),
    ],
)
def test_mail_of_a_relay_that_cheats_counts_as_missing(
    spread, monkeypatch, caplog, trick, alike, said
):
    """It gains what it would by keeping the mail; the operator reads why."""
    rounds = {"num-server-rounds": 3}
    with monkeypatch.context() as patch:
        cheat(patch, alike)
        without = spread(4, **SEALED, **rounds)
    cheat(monkeypatch, trick)
    with caplog.at_level("WARNING", logger="flwr"):
        finished = spread(4, **SEALED, **rounds)
    assert finished.sha == without.sha
    for words in said:
        assert words in caplog.text
    left_out = finished.summary["network"]["unusable_letters_of"]
    assert bool(left_out) == bool(said)
    network = describe_network(finished.summary["network"])
    assert ("of client 1 could not be used" in network) == bool(said)


def test_a_client_without_mail_says_so(spread, monkeypatch, caplog):
    cheat(monkeypatch, lambda _, __, mail: {c: {} for c in mail})
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


def test_a_relay_cannot_choose_the_start(spread, monkeypatch):
    keep = SpreadGNN.initialise

    def remember(self, arrays):
        self.common = arrays
        keep(self, arrays)

    def poison(strategy, server_round, mail):
        if server_round == 1:
            mail[0] = {f"shared/{n}": a * 0 for n, a in strategy.common.items()}
        return mail

    monkeypatch.setattr(SpreadGNN, "initialise", remember)
    cheat(monkeypatch, poison)
    with pytest.raises(
        RunFailedError, match=r"client 0: .*got a model from the server"
    ):
        spread(4, **SEALED)


def state_of(finished):
    return Path(finished.overrides["state-dir"])


# Rounds -------------------------------------------------------------------------------


def tap(monkeypatch, listener):
    """Call ``listener(grid, message, reply)`` after each message of the server."""
    deliver = InlineGrid.deliver

    def spy(self, message):
        reply = deliver(self, message)
        if not getattr(self, "is_cheating", False):
            self.is_cheating = True
            listener(self, message, reply)
            self.is_cheating = False
        return reply

    monkeypatch.setattr(InlineGrid, "deliver", spy)


def ask(grid, message, parcels, header, kind=None):
    """Send a message of the relay's own; parcels that come back."""
    kind = kind or message.metadata.message_type
    own = Message(pack(parcels, header), message.metadata.dst_node_id, kind)
    (reply,) = grid.send_and_receive([own])
    return unpack(reply.content)[0]


def of_round(message, server_round):
    return unpack(message.content)[1].get("server-round") == server_round


def test_a_round_is_repeated_with_the_same_mail_alone(spread, monkeypatch):
    """Otherwise each answer would score another mix of what the relay cannot read."""
    answers = {}

    def try_again(grid, message, reply):
        if not of_round(message, 3):
            return
        first = unpack(reply.content)[0][0]
        parcels, header = unpack(message.content)
        zero = parcels[0]
        same = {0: zero}
        less = {0: Parcel(arrays={}, facts=zero.facts)}
        some = {n: a for n, a in zero.arrays.items() if n == "from/1"}
        other = {0: Parcel(arrays=some, facts=zero.facts)}
        scores = MessageType.EVALUATE
        answers["same"] = ask(grid, message, same, header)[0]
        answers["none"] = ask(grid, message, less, header)[0]
        answers["one"] = ask(grid, message, other, header)[0]
        answers["scores"] = ask(grid, message, other, header, scores)[0]
        back = {**header, "server-round": 2}
        new = {**zero.facts, "last-round": 1}
        answers["back"] = ask(grid, message, {0: Parcel(facts=new)}, back)[0]
        losses = {k: v for k, v in first.metrics.items() if k.startswith("eval/")}
        again = answers["same"].metrics
        answers["equal"] = bool(losses) and losses == {k: again[k] for k in losses}

    tap(monkeypatch, try_again)
    usual = spread(4, **SEALED, **{"num-server-rounds": 4})
    assert answers.pop("same").error == ""
    assert answers.pop("equal")
    for what in ("none", "one", "scores"):
        assert "round 3 again, with other mail or state" in answers[what].error, what
    assert "round 2 again, with other mail or state" in answers["back"].error
    monkeypatch.undo()
    assert usual.summary["status"] == "completed"


def test_neighbours_named_twice_do_not_change_the_weights(spread, monkeypatch):
    """As 1 and 01: more of them, of the same mail and keys, mix otherwise."""
    answers = {}

    def try_again(grid, message, _):
        if not of_round(message, 3):
            return
        parcels, header = unpack(message.content)
        told = json.loads(parcels[0].facts["neighbours"])
        for what, more in (("01", told["1"]), ("0", told["1"])):
            facts = {"neighbours": json.dumps({**told, what: more})}
            mine = Parcel(arrays=parcels[0].arrays, facts=parcels[0].facts | facts)
            answers[what] = ask(grid, message, {0: mine}, header)[0]

    tap(monkeypatch, try_again)
    spread(4, **SEALED)
    for answer in answers.values():
        assert "expected numbers of other clients, each once" in answer.error
    assert set(answers) == {"01", "0"}


def test_there_is_no_round_before_the_first(spread, monkeypatch):
    """It would be a branch of the start, of which no memory is kept."""
    answers, deliver = {}, InlineGrid.deliver

    def early(self, message):
        if of_round(message, 1) and not answers:
            parcels, header = unpack(message.content)
            answers[0] = None
            early_header = {**header, "server-round": 0}
            answers[0] = ask(self, message, {0: parcels[0]}, early_header)[0]
        return deliver(self, message)

    monkeypatch.setattr(InlineGrid, "deliver", early)
    finished = spread(4, **SEALED, **{"spreadgnn.period": 2})
    assert "rounds count from 1" in answers[0].error
    monkeypatch.undo()
    assert finished.sha == spread(4, **SEALED, **{"spreadgnn.period": 2}).sha


@pytest.mark.parametrize(
    "change",
    [
        {"spreadgnn.weights": "samples"},
        {"learning-rate": 0.5},
        {"seed": 77},
        {"method": "fedavg", "spreadgnn.seal": False},
        {"method": "local"},
    ],
)
def test_a_run_of_another_config_does_not_go_on_with_an_experiment(
    spread, monkeypatch, change
):
    """It would answer a round again, or tell in the open what came sealed."""
    refused = []

    def go_on(grid, message, _):
        if not of_round(message, 3) or refused:
            return
        context = grid._contexts[message.metadata.dst_node_id]
        _, header = unpack(message.content)
        other = InlineGrid(
            grid._app,
            [context.node_config],
            run_config={**context.run_config, **change},
            run_id=1,
        )
        (node,) = other.get_node_ids()
        about = {"experiment": header["experiment"]}
        call = Message(pack({}, about), node, MessageType.QUERY)
        (answer,) = other.send_and_receive([call])
        refused.append(str(unpack(answer.content)[1].get("error")))

    tap(monkeypatch, go_on)
    finished = spread(4, **SEALED)
    for reason in refused:
        assert "began at this site with another run config" in reason
    assert refused
    assert finished.summary["status"] == "completed"


@pytest.mark.parametrize("told", mostly_slow([1, 4, 5], fast=[4]))
def test_a_relay_that_turns_back_the_round_is_found_out(spread, monkeypatch, told):
    def keep(strategy, server_round, mail):
        if server_round == 3:
            strategy.old = {c: dict(box) for c, box in mail.items()}
        return strategy.old if server_round == 7 else mail

    train = GraphClient.participate

    def misled(self, parcel, header):
        if header["server-round"] == 7 and self.job.client_id == 2:
            parcel = without_last_round(parcel)
            header = {**header, "server-round": told}
        return train(self, parcel, header)

    cheat(monkeypatch, keep)
    monkeypatch.setattr(GraphClient, "participate", misled)
    why = rf"client 2: .*asked for round {told}[ ,].*: refused, as"
    with pytest.raises(RunFailedError, match=why):
        spread(4, **SEALED, **{"num-server-rounds": 7})


def without_last_round(parcel):
    return replace(
        parcel, facts={k: v for k, v in parcel.facts.items() if k != "last-round"}
    )


def test_a_client_that_lost_its_memory_does_not_begin_afresh(spread, monkeypatch):
    train = GraphClient.participate

    def forgetful(self, parcel, header):
        if header["server-round"] == 3 and self.job.client_id == 2:
            parcel = without_last_round(parcel)
            with self.job.store.database.transaction() as db:
                db.execute("DELETE FROM states WHERE client = 2")
        return train(self, parcel, header)

    monkeypatch.setattr(GraphClient, "participate", forgetful)
    lost = "client 2 is asked for round 3 and has done round 2, but no longer has its"
    with pytest.raises(RunFailedError, match=lost):
        spread(4, **SEALED)


# Experiments --------------------------------------------------------------------------


class Thief:
    """A relay with keys of its own, which tries to open whatever it is sent."""

    def __init__(self, folder):
        self.folder = folder
        self.sent, self.opened, self.refused = 0, 0, []

    def ring(self, run):
        """Keys of its own in a run."""
        return KeyRing(self.folder / run / "client-0", client_id=0)

    def keys(self, run, client):
        """Facts by which a client takes the relay for all its neighbours."""
        entry = {"key": self.ring(run).public_key, "weight": None}
        return {"neighbours": json.dumps({str(j): entry for j in RING[client]})}

    def listen(self, monkeypatch):
        """Try whatever clients send, from roll call on."""
        told = {}

        def take(grid, message, reply):
            found, _ = unpack(reply.content)
            for client, parcel in found.items():
                if "told/public-key" in parcel.facts:
                    told[client] = str(parcel.facts["told/public-key"])
            run = str(unpack(message.content)[1]["experiment"])
            self.try_all(run, told, found)

        tap(monkeypatch, take)

    def try_all(self, run, told, replies):
        """Try to open letters, sealed with the keys that clients told."""
        ring = self.ring(run)
        for client, reply in replies.items():
            if reply.error:
                self.refused.append(reply.error)
            for name, parcel in reply.arrays.items():
                self.sent += 1
                pins = ring.folder / "neighbours.json"
                pins.unlink(missing_ok=True)
                ring.pin({client: told[client]})
                receiver = int(name.removeprefix("to/"))
                try:
                    read(
                        parcel.tobytes(),
                        run=run,
                        sender=client,
                        receiver=receiver,
                        before_round=99,
                        lock=ring.lock(client),
                    )
                except WireError:
                    continue
                self.opened += 1


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_relay_that_renames_the_experiment_reads_nothing(
    spread, monkeypatch, tmp_path, is_bound
):
    """In round 3 it names another, where clients have no pins; then the honest one."""
    thief = Thief(tmp_path / "relay")

    def rename(grid, message, reply):
        if not of_round(message, 3):
            return
        parcels, header = unpack(message.content)
        side = {**header, "experiment": "0-side"}
        call = Message(
            pack({}, {"experiment": "0-side"}),
            message.metadata.dst_node_id,
            MessageType.QUERY,
        )
        (answer,) = grid.send_and_receive([call])
        found, about = unpack(answer.content)
        if "error" in about:
            thief.refused.append(str(about["error"]))
        told = {c: str(p.facts["told/public-key"]) for c, p in found.items()}
        zero = {"last-round": 0}
        own = {c: Parcel(facts=zero | thief.keys("0-side", c)) for c in parcels}
        thief.try_all("0-side", told, ask(grid, message, own, side))

    tap(monkeypatch, rename)
    if not is_bound:  # the attack is one
        monkeypatch.setattr(client_app, "bind_run", lambda *_: None)
        for module in (serve, client_store):
            monkeypatch.setattr(module, "check_run", lambda *_: None)
    finished = spread(4, **SEALED)
    assert finished.summary["status"] == "completed"
    assert finished.summary["failures"] == []
    assert (thief.opened, thief.sent) == ((0, 0) if is_bound else (8, 8))
    assert len(thief.refused) == (5 if is_bound else 0)
    for reason in thief.refused:
        assert f"is experiment {finished.path.name!r} at this site, now" in reason
    experiments = {p.parents[1].name for p in state_of(finished).rglob("run.key")}
    assert experiments == {finished.path.name, *([] if is_bound else ["0-side"])}


# Keys ---------------------------------------------------------------------------------


def substitute(monkeypatch, keys, *, since=1):
    """Hand ``keys(run, j, key)`` to the neighbours of j, from a round on."""
    facts = SpreadGNN.facts

    def crooked(self, client):
        told = facts(self, client)
        if self.report.server_round < since:
            return told
        entries = json.loads(told["neighbours"])
        for j, entry in entries.items():
            entry["key"] = keys(self.experiment, int(j), entry["key"])
        return told | {"neighbours": json.dumps(entries)}

    monkeypatch.setattr(SpreadGNN, "facts", crooked)


def test_keys_that_change_during_a_run_are_refused(spread, monkeypatch, tmp_path):
    thief = Thief(tmp_path / "relay")

    def other(run, j, key):
        return thief.ring(run).public_key if j == 1 else key

    substitute(monkeypatch, other, since=2)
    with pytest.raises(
        RunFailedError, match=r"clients 0, 2: .*key of client 1 changed"
    ):
        spread(4, **SEALED)


@pytest.mark.parametrize("whose", ["site", "relay"])
def test_no_letter_is_sealed_to_a_run_key_that_its_site_did_not_sign(
    spread, monkeypatch, tmp_path, whose
):
    """The fingerprint is right, the run's key is of an earlier run, or the relay's."""
    first = spread(4, **SEALED)
    root = state_of(first)
    old = {
        c: KeyRing(root / first.path.name / f"client-{c}", client_id=c).public_key
        for c in RING
    }
    thief = Thief(tmp_path / "relay")

    def forged(run, j, key):
        if j != 1:
            return key
        return old[1] if whose == "site" else key[:64] + thief.ring(run).public_key[64:]

    substitute(monkeypatch, forged)
    why = rf"clients 0, 2: .*client 1 .* is not signed by .* {fingerprint(old[1])}"
    with pytest.raises(RunFailedError, match=why):
        spread(4, **SEALED, **{"state-dir": str(root)})


def sites(root):
    """Node-configs of four sites, and their fingerprints written down."""
    found = {
        c: fingerprint_of(
            read_site_key(key_file(root / str(c), c)).public_key().public_bytes_raw()
        )
        for c in RING
    }
    return [
        {
            "clients": str(c),
            "state-dir": str(root / str(c)),
            **toys.policy(root, sealed_only=True),
            "peers": ",".join(f"{j}:{found[j]}" for j in near),
        }
        for c, near in RING.items()
    ]


@pytest.mark.parametrize("has_peers", [True, False])
def test_somebody_in_between_from_the_start(
    spread, monkeypatch, tmp_path, caplog, has_peers
):
    """Who compares no fingerprints trusts the relay on first use."""
    nodes = sites(tmp_path / "sites")
    if not has_peers:
        nodes = [{k: v for k, v in n.items() if k != "peers"} for n in nodes]
    thief = Thief(tmp_path / "relay")
    thief.listen(monkeypatch)
    substitute(monkeypatch, lambda run, *_: thief.ring(run).public_key)
    if has_peers:
        own = fingerprint(thief.ring("any").public_key)
        with pytest.raises(RunFailedError, match="WireError: see"):
            spread(4, node_configs=nodes, **SEALED)
        assert f"client 1 has fingerprint {own}, exp" in caplog.text
        assert (thief.opened, thief.sent) == (0, 0)
        return
    spread(4, node_configs=nodes, **SEALED)
    assert thief.sent == 3 * 8
    assert thief.opened == thief.sent


def test_an_honest_relay_between_sites_that_know_each_other(
    spread, monkeypatch, tmp_path
):
    """It can open none of the letters that it carries."""
    thief = Thief(tmp_path / "relay")
    thief.listen(monkeypatch)
    finished = spread(4, node_configs=sites(tmp_path / "sites"), **SEALED)
    assert (thief.opened, thief.sent) == (0, 3 * 8)
    assert finished.summary["network"]["sealed"] is True
    assert finished.sha == spread(4, **SEALED).sha


def test_a_neighbour_of_no_known_fingerprint_is_refused_by_name(
    spread, tmp_path, caplog
):
    nodes = sites(tmp_path)
    first, _ = nodes[0]["peers"].split(",")
    nodes[0]["peers"] = first
    with pytest.raises(RunFailedError, match="client 0: WireError: see"):
        spread(4, node_configs=nodes, **SEALED)
    why = r"client 3 has fingerprint .*, expected none by node-config peers"
    assert re.search(why, caplog.text)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("spreadgnn", {"spreadgnn.seal": False}),
        ("fedavg multi-task", {}),
        ("local multi-task", {}),
    ],
)
def test_a_site_for_sealed_letters_alone_refuses_every_other_run(
    spread, tmp_path, method, options
):
    with pytest.raises(RunFailedError, match=r"PolicyError \(sealed-only\): see"):
        spread(4, method=method, node_configs=sites(tmp_path), **options)


def test_a_run_whose_folder_its_sites_have_deleted_is_not_begun_again(
    spread, monkeypatch, tmp_path
):
    """A run's key that was stolen from it would open letters of a run of its name."""
    first = spread(4, **SEALED)
    root, name = state_of(first), first.path.name
    old = KeyRing(root / name / "client-1", client_id=1).public_key
    stolen = (root / name / "client-1" / KEY).read_bytes()
    shutil.rmtree(root / name)

    key = X25519PrivateKey.from_private_bytes(stolen)
    opened = []

    def listen(grid, message, reply):
        for client, parcel in unpack(reply.content)[0].items():
            if "to/1" in parcel.arrays:
                ring = KeyRing(root / name / f"client-{client}", client_id=client)
                both = [bytes.fromhex(k) for k in (ring.public_key, old)]
                run_key = X25519PublicKey.from_public_bytes(both[0][32:64])
                lock = Lock(key.exchange(run_key), b"".join(sorted(both)))
                parts = {"run": name, "sender": client, "receiver": 1}
                read(
                    parcel.arrays["to/1"].tobytes(), before_round=9, lock=lock, **parts
                )
                opened.append(client)

    tap(monkeypatch, listen)
    substitute(monkeypatch, lambda _, j, key: old if j == 1 else key)
    monkeypatch.setattr(RunFolder, "experiment", name)
    with pytest.raises(DataError, match=r"client 0 in .* is gone .*keys.* run sqlite3"):
        spread(4, **SEALED, **{"state-dir": str(root)})
    assert not opened
    # A site's operator may allow it, as after the loss of a disk.
    with site_database(root).transaction() as db:
        db.execute("DELETE FROM notes WHERE what LIKE '%sealed'")
    spread(4, **SEALED, **{"state-dir": str(root)})
    assert len(opened) == 6
