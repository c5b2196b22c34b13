"""Servers that lie, clients that err: what sums of updates do not let through."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import suppress
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import toys
from flwr.app import ConfigRecord
from matrix import one_per_strategy

from clients.handed_in import HandedIn, KeptUpdates
from clients.privacy.gaussian import epsilon_of
from clients.sealing import KeyRing, Lock, fingerprint, read_site_key, site_key_file
from clients.site_database import site_database
from fedgraph_flwr import client_app
from fedgraph_flwr.agreement import check_owners
from fedgraph_flwr.api import GraphClassifierClient
from fedgraph_flwr.core.audit_log import FILE, AuditLog
from fedgraph_flwr.core.errors import ConfigError, RunFailedError, WireError
from fedgraph_flwr.core.secure_aggregation import (
    HANDED,
    KEYS,
    LABEL,
    MASKED,
    MEMBERS,
    MISSED,
    SecureAggregation,
    SumOf,
)
from fedgraph_flwr.core.wire import CLASS_WEIGHTS, Parcel, pack, unpack
from fedgraph_flwr.core.words import at_most
from fedgraph_flwr.methods.fedavg import SHARED
from simulations import contract
from simulations.inline import InlineGrid
from simulations.tiny_runs import Lab
from strategies.gcfl import even_cut
from strategies.sums import RoundSum, choose_members

ON = {
    "secure-aggregation.on": True,
    "num-clients": 4,
    "num-server-rounds": 2,
    "shared-group": "all",
}
SPLITS = {
    "gcfl.min-round": 2,
    "gcfl.seq-length": 2,
    "gcfl.mean-norm-threshold": 99.0,
    "gcfl.max-norm-threshold": 0.0,
}
VICTIM = 1
ZERO = {"learning-rate": 0.0}
SUM = {"secure-aggregation.scores": "sum"}
PERSONAL = (
    *("centralized", "fedaux", "fedgkd", "fedgta", "fedpub", "fedtad", "local"),
    *("fedproto", "scaffold", "spreadgnn"),
)


@pytest.fixture(scope="module", autouse=True)
def graphs(toy_data):
    return toy_data


def sites(root, *, peers=True, hosted=("0", "1", "2", "3"), **policy):
    """Node-configs of sites, each with the fingerprints of all others."""
    where = {int(c): root / name for name in hosted for c in name.split(",")}
    found = {}
    for c, folder in where.items():
        key = read_site_key(site_key_file(folder, c)).public_key().public_bytes_raw()
        found[c] = fingerprint(key.hex() + "00" * 96)
    named = {"peers": ",".join(f"{c}:{f}" for c, f in found.items())} if peers else {}
    return [
        {
            "clients": name,
            "state-dir": str(root / name),
            **toys.policy(root, **policy),
            **named,
        }
        for name in hosted
    ]


def audit(folder):
    return AuditLog(folder / FILE).records()


def lie(monkeypatch, change, *, server_round=1, to=VICTIM):
    """Let the server change the header of a round's message to one client."""

    def before(_, message):
        facts = message.content.get(f"{to}/facts", {})
        if MEMBERS in facts and toys.round_of(message) == server_round:
            told = {int(c): key for c, key in json.loads(facts[KEYS]).items()}
            told, *members = change(told)
            message.content[f"{to}/facts"] = ConfigRecord(
                {
                    **facts,
                    MEMBERS: " ".join(map(str, members or sorted(told))),
                    KEYS: json.dumps(told),
                }
            )

    toys.on_delivery(monkeypatch, before=before)


def thief(tmp_path, client, experiment="another"):
    """Keys of nobody that the site knows."""
    folder = tmp_path / "thief" / experiment / f"client-{client}"
    return KeyRing(folder, client_id=client).public_key


def without(*gone):
    return lambda keys: ({c: k for c, k in keys.items() if c not in gone},)


def with_key(client, key):
    return lambda keys: ({**keys, client: key(keys)},)


# What the server changes in one message, and the words of the client that refuses.
LIES = {
    "a run's key that its site did not sign": (
        lambda t: with_key(2, lambda keys: keys[2][:64] + thief(t, 2)[64:]),
        "key that client 2 .* is not signed by the site",
    ),
    "its own key is another": (
        lambda t: with_key(VICTIM, lambda _: thief(t, VICTIM)),
        "its own key is another, or two clients have one",
    ),
    "one key for two": (
        lambda _: with_key(2, lambda keys: keys[3]),
        "its own key is another, or two clients have one",
    ),
    "a sum of two": (lambda _: without(2, 3), r"sum of clients \(0, 1\): refused"),
    "a sum without it": (lambda _: without(VICTIM), r"\(0, 2, 3\): refused"),
    "a sum of some": (
        lambda _: lambda keys: (keys, 0, 1, 2),
        r"sum of clients \(0, 1, 2\): refused",
    ),
    "a sum of some, of whom alone it tells": (
        lambda _: without(3),
        r"sum of clients \(0, 1, 2\): refused",
    ),
    "no members": (
        lambda _: lambda _: ({},),
        "does not say whose sum it asks for",
    ),
    "one key in capitals": (
        lambda _: with_key(2, lambda keys: keys[3].upper()),
        "does not say whose sum it asks for",
    ),
}


@one_per_strategy(toys.CASES)
def test_sums_make_the_models_that_means_make(lab, method):
    """Or the method is refused, with what its server needs beside sums."""
    words = contract.adds_up_unseen(lab, method) or ""
    is_refused = method.split()[0] in ("gcfl", *PERSONAL)
    assert words.startswith("refused") == is_refused


def test_clients_that_mix_the_mean_have_the_models_that_a_server_mixes(run):
    config = {**ON, "num-server-rounds": 3, "min-fit-replies": 0.5}
    on, off = (
        run("self-weight", nodes=3, **{**config, "secure-aggregation.on": is_on})
        for is_on in (True, False)
    )
    assert [*on.models] == ["mean"]
    assert on.values("loss", "accuracy") == pytest.approx(
        off.values("loss", "accuracy"), abs=1e-5
    )


@pytest.mark.parametrize(
    ("method", "share", "more"),
    [
        ("fedavg graph-classification", 1, {"patience": 1, "min-rounds": 2}),
        ("fedavg graph-classification", 0.5, {}),
        ("fedavg multi-task", 1, {}),
        ("adafgl", 1, {"num-clients": 3}),
        ("gcfl+", 1, {}),
    ],
)
def test_sums_of_scores_are_their_means_and_nothing_tells_of_one(
    run, monkeypatch, tmp_path, method, share, more
):
    config = {**ON, **more, "num-server-rounds": 3, "min-fit-replies": share}
    each = run(method, nodes=3, **config)
    told = set()

    def look(_, reply):
        for parcel in unpack(reply.content)[0].values():
            told.update({*parcel.metrics, *parcel.facts, *parcel.evaluation})

    toys.on_delivery(monkeypatch, after=look)
    places = {f"{k}-dir": str(tmp_path / k) for k in ("state", "results")}
    found = run(method, nodes=3, **config, **places, **SUM)
    assert not [n for n in told if n.startswith(("eval/", "count/", "train-count"))]
    of = {}
    for row in toys.csv_rows(each.path / "rounds.csv"):
        key = tuple(row[k] for k in ("round", "split", "point", "metric"))
        of.setdefault(key, []).append((float(row["value"]), int(row["num_examples"])))
    rows = [
        r for r in toys.csv_rows(found.path / "rounds.csv") if r["point"] != "update"
    ]
    assert {r["client"] for r in rows} == {"-1"}
    # Of the rarest class, which nobody knows without counts of labels.
    of_class = ("average-precision", "precision-at")
    known = [r for r in rows if not r["metric"].startswith(of_class)]
    for row in rows if "multi-task" in method else known:
        values = of[tuple(row[k] for k in ("round", "split", "point", "metric"))]
        count = sum(n for _, n in values)
        mean = sum(v * n for v, n in values) / count
        assert int(row["num_examples"]) == count
        assert float(row["value"]) == pytest.approx(mean, abs=1e-5)
    assert found.sha == each.sha
    final = found.summary["final"]
    assert [*final["per_client"]] == ["-1"]
    assert final["protocol"] == each.summary["final"]["protocol"]


def test_who_is_lost_in_the_last_evaluation_takes_its_scores_along(
    run, monkeypatch, caplog
):
    toys.fail_when(monkeypatch, lambda c, n: (c, n) == (1, 4), step="assess")
    with caplog.at_level("WARNING", logger="flwr"):
        found = run("fedavg graph-classification", nodes=4, **DROP, **SUM)
    assert found.summary["status"] == "completed"
    assert found.summary["final"]["mean"] is None
    assert "the last model has no scores: clients [1] did not" in caplog.text


@pytest.mark.parametrize("name", LIES)
def test_a_client_that_is_lied_to_shows_nothing(run, monkeypatch, tmp_path, name):
    change, words = LIES[name]
    lie(monkeypatch, change(tmp_path))
    with pytest.raises(RunFailedError, match=words):
        run("fedavg graph-classification", nodes=4, **ON)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _: without(3), r"sum of clients \(0, 1, 2\): refused"),
        (lambda t: with_key(2, lambda _: thief(t, 2)), "client 2 .* is not signed"),
    ],
)
def test_a_later_round_has_the_clients_and_keys_of_the_first(
    run, monkeypatch, tmp_path, change, words
):
    lie(monkeypatch, change(tmp_path), server_round=2)
    with pytest.raises(RunFailedError, match=words):
        run("fedavg graph-classification", nodes=4, **ON)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: with_key(2, lambda _: thief(t, 2)), "client 2 has fingerprint"),
        (
            lambda t: with_key(9, lambda _: thief(t, 9)),
            "client 9 has fingerprint .* expected none by",
        ),
    ],
)
def test_sites_that_compared_fingerprints_take_no_other_key(
    run, monkeypatch, tmp_path, caplog, change, words
):
    """Nor do they take clients that a server invents."""
    nodes = sites(tmp_path, secure_aggregation="required")
    lie(monkeypatch, change(tmp_path))
    with (
        caplog.at_level("ERROR", logger="flwr"),
        pytest.raises(RunFailedError, match="WireError: see"),
    ):
        run("fedavg graph-classification", node_configs=nodes, **ON)
    assert re.search(words, caplog.text)


def sends_the_victim(change):
    """Let the victim alone get another model in round 1."""

    def other(_, message):
        parcels, header = unpack(message.content)
        if toys.round_of(message) == 1 and VICTIM in parcels:
            arrays = {n: change(a) for n, a in parcels[VICTIM].arrays.items()}
            victim = {VICTIM: replace(parcels[VICTIM], arrays=arrays)}
            name = f"{VICTIM}/arrays"
            message.content[name] = pack(victim, header)[name]

    return other


def other_weights(_, message):
    name = f"{VICTIM}/facts"
    if toys.round_of(message) == 1 and CLASS_WEIGHTS in message.content.get(name, {}):
        facts = {**message.content[name], CLASS_WEIGHTS: "[1.0, 2.0]"}
        message.content[name] = ConfigRecord(facts)


def other_config(grid, _):
    """From the first message on."""
    [*grid._contexts.values()][VICTIM].run_config["weighting"] = "uniform"


NOISE = {
    # Pasquini et al. 2022: models that leave one client's update alone in the sum.
    "another model": (sends_the_victim(lambda a: a + a.dtype.type(1)), {}),
    "weights of classes": (other_weights, {"class-weights": "federation"}),
    "run config": (other_config, {}),
}


@pytest.mark.parametrize("name", NOISE)
def test_what_one_client_is_told_makes_noise(run, monkeypatch, tmp_path, name):
    before, more = NOISE[name]
    toys.on_delivery(monkeypatch, before=before)
    nodes = sites(tmp_path, peers=False)
    with pytest.raises(RunFailedError, match=r"clients \[1\] covered .* another sum"):
        run("fedavg graph-classification", node_configs=nodes, **ON, **more)


def test_some_clients_may_not_hand_in_for_a_set_of_their_own(run, monkeypatch):
    lie(monkeypatch, without(3))
    with pytest.raises(RunFailedError, match=r"clients \[1\] covered .* another sum"):
        run("fedavg graph-classification", nodes=4, **DROP)


def test_a_vector_that_is_not_the_clients_spoils_the_sum_by_no_name(run, monkeypatch):
    def spoil(message, reply):
        name = f"{VICTIM}/arrays"
        if toys.round_of(message) == 1 and name in reply.content:
            parcels, header = unpack(reply.content)
            arrays = dict(parcels[VICTIM].arrays)
            arrays[MASKED] = np.arange(len(arrays[MASKED]), dtype=np.uint64)
            parcel = type(parcels[VICTIM])(arrays=arrays)
            reply.content[name] = pack({VICTIM: parcel}, header)[name]

    toys.on_delivery(monkeypatch, after=spoil)
    with pytest.raises(RunFailedError, match=r"pads did not cancel.* nobody can tell"):
        run("fedavg graph-classification", nodes=4, **ON)


def test_a_mean_out_of_proportion_stops_the_run(run):
    with pytest.raises(RunFailedError, match="mean of all, which shows no single"):
        run("fedavg graph-classification", nodes=4, **ON, **{"robust.guard": 1e-6})


def test_a_site_that_hosts_all_but_one_does_not_ask_for_its_update(run, tmp_path):
    nodes = sites(tmp_path, peers=False, hosted=("0,1,2", "3"))
    with pytest.raises(RunFailedError, match="WireError: see"):
        run("fedavg graph-classification", node_configs=nodes, **ON)


def test_a_run_again_without_one_client_needs_another_seed(run, tmp_path):
    """Two sums from one model differ by the update of the client that is missing."""
    nodes = sites(tmp_path, peers=False)
    run("fedavg graph-classification", node_configs=nodes, **ON)
    with pytest.raises(RunFailedError, match="WireError: see"):
        run(
            "fedavg graph-classification",
            node_configs=nodes,
            **ON,
            **{"held-out-clients": "3"},
        )
    again = {**ON, "held-out-clients": "3", "seed": 11}
    run("fedavg graph-classification", node_configs=nodes, **again)


DROP = {**ON, "min-fit-replies": 0.5, "num-server-rounds": 3}


def test_a_client_hands_in_for_no_sum_without_itself(run, monkeypatch):
    lie(monkeypatch, without(VICTIM))
    with pytest.raises(RunFailedError, match=r"\(0, 2, 3\): refused"):
        run("fedavg graph-classification", nodes=4, **DROP)


def test_who_fails_in_training_is_not_in_the_sum(run, monkeypatch):
    """The mean is of those who have trained, as without pads."""
    toys.fail_when(monkeypatch, lambda client, number: (client, number) == (1, 2))
    found = run("fedavg graph-classification", nodes=4, **DROP)
    plain = {**DROP, "secure-aggregation.on": False}
    expected = run("fedavg graph-classification", nodes=4, **plain)
    assert [f["client"] for f in found.summary["failures"]] == [1]
    for name, values in expected.models["global"].items():
        mine = found.models["global"][name]
        np.testing.assert_allclose(mine, values, rtol=1e-3, atol=1e-4)


def test_without_a_failure_handing_in_later_gives_the_same_bytes(run):
    at_once, later = (
        run("fedavg graph-classification", **{**DROP, "min-fit-replies": share})
        for share in (1, 0.5)
    )
    assert at_once.sha == later.sha


def test_who_is_lost_in_the_hand_in_is_waited_for(run, monkeypatch, tmp_path):
    """A run that is resumed repeats the round with the same clients and bytes."""
    places = {f"{k}-dir": str(tmp_path / k) for k in ("state", "results")}
    whole = run("fedavg graph-classification", nodes=4, **DROP)
    bound = client_app.bound_to
    lost = []

    def fails(kind, context, resolved, header):
        if header["server-round"] == 2 and "1" in str(context.node_config) and not lost:
            lost.append(context.node_id)
            raise OSError("gone")
        return bound(kind, context, resolved, header)

    monkeypatch.setattr(client_app, "bound_to", fails)
    words = r"handed nothing in \(secure-aggregation.hand-in-timeout-s = 300\)"
    with pytest.raises(RunFailedError, match=words):
        run("fedavg graph-classification", nodes=4, **DROP, **places)
    (path,) = (tmp_path / "results").iterdir()
    again = {**DROP, **places, "resume": str(path)}
    toys.fail_when(monkeypatch, lambda client, number: (client, number) == (3, 2))
    with pytest.raises(RunFailedError, match="have handed in this"):
        run("fedavg graph-classification", nodes=4, **again)
    monkeypatch.undo()
    found = run("fedavg graph-classification", nodes=4, **again)
    assert found.sha == whole.sha


@pytest.mark.parametrize(
    ("method", "share"), [("fedavg", 1), ("fedavg", 0.5), ("self-weight", 0.5)]
)
def test_a_killed_run_goes_on_to_the_same_bytes(toy_data, tmp_path, method, share):
    settings = {**DROP, "min-fit-replies": share, "num-clients": 3}
    settings.pop("num-server-rounds")
    contract.resumes_after_a_kill(Lab(tmp_path, settings), method)


@pytest.mark.parametrize(
    ("told", "members"),
    [
        ({0: (), 1: (), 3: ()}, (0, 1, 3)),
        ({0: (0, 1, 2), 1: (), 2: (), 3: ()}, (0, 1, 2)),
        ({0: (0, 1, 2), 1: (), 3: (), 4: ()}, (1, 3, 4)),
        ({0: (0, 1), 1: (0, 1), 2: (2, 3, 4), 3: (), 4: ()}, (2, 3, 4)),
        ({0: (0, 1), 1: (), 2: (), 3: (), 4: ()}, (1, 2, 3, 4)),
        ({0: (0, 1, 2), 1: (1, 2, 3), 2: (), 3: ()}, (1, 2, 3)),
        ({0: (0, 1, 2), 1: (1, 2, 3), 2: (0, 1, 2), 3: ()}, None),
    ],
)
def test_a_round_that_is_repeated_has_the_set_that_it_had(told, members):
    if members:
        assert choose_members(told, 1, 3, may_repeat=True) == members
        return
    with pytest.raises(RunFailedError, match="have handed in this"):
        choose_members(told, 1, 3, may_repeat=True)


def test_what_clients_trained_from_before_is_in_the_label(tmp_path):
    """The state that they keep depends on it, and the sum would show who differs."""

    def note(client, number, came, *, missed="", run=7, after=None):
        kept = KeptUpdates(tmp_path, "e", number, run)
        before = (number - 1 if after is None else after, 7)
        with kept.noting() as db:
            kept.note(db, client, came, before, missed)
        return kept.history(client)

    assert note(0, 1, "a") == note(1, 1, "a")
    assert note(2, 1, "b") != note(0, 1, "a")
    assert len({note(c, 2, "c") for c in (0, 1, 2)}) == 2
    # Who was away in round 2 is told what the others had.
    assert note(0, 3, "d") == note(3, 3, "d", missed="a c", after=0)
    assert note(0, 4, "e") != note(4, 4, "e")  # whose state nobody knows
    with pytest.raises(WireError, match="trained in round 3 from another model"):
        note(0, 3, "f", run=8)


def test_a_server_that_lied_in_an_earlier_round_gets_noise(run, monkeypatch):
    """In round 1 the victim has another model; what that server makes of it is its."""
    opened = RoundSum.open

    def forgive(self, replies, guard):
        if self.server_round > 1:
            return opened(self, replies, guard)
        model = {SHARED + n: a for n, a in self.received.items()}
        parcels = {c: replace(p, arrays=model) for c, p in replies.items()}
        return parcels, np.zeros(0)

    other = sends_the_victim(lambda a: a * 2)
    monkeypatch.setattr(RoundSum, "open", forgive)
    toys.on_delivery(monkeypatch, before=other)
    with pytest.raises(RunFailedError, match=r"round 2: clients \[1\] covered"):
        run("fedavg graph-classification", nodes=4, **ON)


def test_no_client_chooses_whose_sum_is_made(run, monkeypatch):
    def claim(message, reply):
        parcels, header = unpack(reply.content)
        if toys.round_of(message) == 2 and HANDED in parcels.get(0, Parcel()).arrays:
            arrays = {HANDED: np.array([0, 1, 2])}
            record = pack({0: Parcel(arrays=arrays)}, header)["0/arrays"]
            reply.content["0/arrays"] = record

    honest = run("fedavg graph-classification", nodes=4, **DROP)
    toys.on_delivery(monkeypatch, after=claim)
    assert run("fedavg graph-classification", nodes=4, **DROP).sha == honest.sha


def test_a_task_that_few_clients_have_is_in_no_sum():
    owned = {0: (0,), 1: (0,), 2: (0, 1), 3: (1,)}
    clients = {
        c: toys.info(c, tasks=("a", "b"), task_ids=ids) for c, ids in owned.items()
    }
    with pytest.raises(ConfigError, match=r"clients \[2, 3\] alone .* of task 'b'"):
        check_owners(SecureAggregation(on=True), clients)
    check_owners(SecureAggregation(on=True, least=2), clients)
    check_owners(SecureAggregation(), clients)


def test_nothing_of_a_run_is_kept_for_a_hand_in(run, tmp_path):
    run("fedavg graph-classification", **DROP, **{"state-dir": str(tmp_path)})
    (path,) = tmp_path.glob("*/states.sqlite3")
    assert sqlite3.connect(path).execute("SELECT * FROM vectors").fetchall() == []


def test_labels_and_pads_by_known_answers(tmp_path):
    """A later version that makes others does not go with this one."""
    keys = {c: f"{k}{c}" for c, k in enumerate("abcd")}
    about = {
        "experiment": "e",
        "run": 7,
        "server_round": 2,
        "config_sha256": "c",
        "history": "h",
        "size": 9,
    }
    sum_of = SumOf((0, 1, 3), keys)
    known = "412e95c6e5232df714693fed2cc6fb0a8b68933da3d20786c61518c5302cc810"
    assert sum_of.label(**about).hex() == known
    others = [sum_of.label(**{**about, k: type(v)(3)}) for k, v in about.items()]
    others += [SumOf((0, 1), keys).label(**about)]
    others += [SumOf((0, 1, 3), {**keys, 2: "c"}).label(**about)]
    assert len({*others, sum_of.label(**about)}) == len(others) + 1
    vector = np.zeros(2, np.uint64)
    Lock(b"s" * 32, b"t" * 64).pad(vector, b"l" * 32, minus=False)
    assert [*vector] == [0x592BF4FA4AE1182, 0xEE6747B76CA9068B]
    with pytest.raises(WireError, match="round 1, in which it has not trained"):
        KeptUpdates(tmp_path, "e", 1, 7).read(0)


def test_a_client_hands_in_once(tmp_path):
    """Another vector under one label, or one round for another set, is refused."""
    first = {
        "experiment": "e",
        "client": 0,
        "server_round": 1,
        "members": (0, 1, 2),
        "label": b"l",
        "received": "r",
        "vector": "v",
    }
    site = site_database(tmp_path)

    def remember(**changes):
        with site.transaction() as db:
            HandedIn(**{**first, **changes}).remember(db, over_runs=True)

    for changes in ({}, {}, {"label": b"m"}, {"client": 1, "vector": "w"}):
        remember(**changes)  # the same again, of a resumed run, of another client
    for changes, words in (
        ({"vector": "w"}, "another update of round 1 under the same pads"),
        ({"members": (0, 1, 3), "received": "s"}, "two sums of one round"),
        ({"experiment": "f", "members": (0, 1, 3)}, "two sums of one model"),
    ):
        with pytest.raises(WireError, match=words):
            remember(**changes)


@pytest.mark.parametrize(
    ("policy", "peers", "on", "words"),
    [
        ({"secure_aggregation": "required"}, True, False, "secure-aggregation"),
        ({"secure_aggregation": "first-seen"}, True, False, "secure-aggregation"),
        ({"secure_aggregation": "required"}, False, True, "secure-aggregation"),
        ({"least_in_sum": 5}, True, True, "least-in-sum"),
    ],
)
def test_a_site_may_ask_for_more(run, tmp_path, policy, peers, on, words):
    nodes = sites(tmp_path, peers=peers, **policy)
    with pytest.raises(RunFailedError, match=rf"PolicyError \({words}\): see"):
        run(
            "fedavg graph-classification",
            node_configs=nodes,
            **{**ON, "secure-aggregation.on": on},
        )


def test_sites_that_require_sums_send_nothing_else(run, monkeypatch, tmp_path):
    """And the weights are those of a simulation, on any number of nodes."""
    seen = []

    def look(message, reply):
        parcels = unpack(reply.content)[0]
        seen.extend(
            name for p in parcels.values() for name in (*p.arrays, *p.evaluation)
        )

    toys.on_delivery(monkeypatch, after=look)
    nodes = sites(tmp_path, secure_aggregation="required", least_in_sum=4)
    found = run("fedavg graph-classification", node_configs=nodes, **ON)
    assert set(seen) == {MASKED, "mask-label"}
    assert found.summary["secure_aggregation"]["compared_by"] == [0, 1, 2, 3]
    lines = [r["sum_of"] for r in audit(tmp_path / "2") if r.get("sum_of")]
    assert [line["members"] for line in lines] == [[0, 1, 2, 3]] * 2
    assert {line["keys"] for line in lines} == {"fingerprints"}
    for count in (1, 3):
        assert run("fedavg graph-classification", nodes=count, **ON).sha == found.sha


def misses(_, message):
    """Tell the victim that others have trained from something without it."""
    facts = message.content.get(f"{VICTIM}/facts", {})
    if MEMBERS in facts and toys.round_of(message) == 1:
        told = ConfigRecord({**facts, MISSED: "0" * 64})
        message.content[f"{VICTIM}/facts"] = told


def sends(name, change):
    """A client whose step returns another parcel."""

    def of(monkeypatch):
        before = getattr(GraphClassifierClient, name)
        monkeypatch.setattr(
            GraphClassifierClient, name, lambda *given: change(before(*given))
        )

    return of


def with_arrays(change):
    return lambda parcel: replace(parcel, arrays=change(dict(parcel.arrays)))


# What must not leave a site, and the words of its log.
KEPT = {
    "a sum without it": (
        "fedavg",
        lambda m: toys.on_delivery(m, before=misses),
        {"least_in_sum": 4},
        "allows sums of all clients alone",
    ),
    "a tensor less": (
        "fedavg",
        sends("update", with_arrays(lambda a: a.popitem() and a)),
        {},
        "pads cover the tensors of a model that came",
    ),
    "a number that wraps": (
        "fedavg",
        sends("update", with_arrays(lambda a: {n: v + 2.0**24 for n, v in a.items()})),
        {},
        "a sum takes up to",
    ),
    "arrays of no update": (
        "fedavg",
        sends("assess", lambda p: replace(p, arrays={f"{SHARED}w": np.zeros(1)})),
        {},
        "arrays that are no update",
    ),
    "a norm": ("gcfl+", lambda _: None, {"scores": False}, "not allow norms"),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_no_pad_covers_stays(run, monkeypatch, tmp_path, caplog, name):
    method, spoil, policy, words = KEPT[name]
    spoil(monkeypatch)
    nodes = sites(tmp_path, secure_aggregation="first-seen", **policy)
    with caplog.at_level("ERROR", logger="flwr"), suppress(RunFailedError):
        run(f"{method} graph-classification", node_configs=nodes, **ON)
    assert words in caplog.text


SHARED_NOISE = {
    "privacy.update-clip": 1.0,
    "privacy.update-noise": 8.0,
    "privacy.update-noise-shared": 1,
    "weighting": "uniform",
}


def test_members_of_a_sum_share_its_noise(run, tmp_path):
    """Of four one is not counted on: three have the whole noise of a sum."""
    still = {**ON, **SHARED_NOISE, "learning-rate": 0.0, "num-server-rounds": 1}
    rounds = {**ON, **SHARED_NOISE, "num-server-rounds": 3}
    start = run("fedavg graph-classification", **{**ON, "num-server-rounds": 1, **ZERO})
    noisy = run("fedavg graph-classification", **still)
    (was,), (now,) = start.models.values(), noisy.models.values()
    drawn = np.concatenate([(now[n] - was[n]).ravel() for n in was])
    expected = 8 / 3**0.5 * 4**0.5 / 4  # of a mean of four
    assert drawn.std() == pytest.approx(expected, rel=5 / (2 * len(drawn)) ** 0.5)
    summary = run("fedavg graph-classification", **rounds).summary
    spent = summary["privacy"]["per_client"]["0"]
    delta = spent["update-delta"]
    own, whole = (epsilon_of({n: 3}, delta) for n in (8 / 3**0.5, 8.0))
    assert spent["update-epsilon"] == pytest.approx(own)
    assert spent["update-epsilon-in-sums"] == pytest.approx(whole)
    assert f"epsilon {at_most(whole)} in sums, against" in summary["privacy"]["says"]
    policy = {"update_clip_max": 1.0, "update_noise_min": 8.0}
    for trusts in (True, False):
        needed = {"secure_aggregation": "required", "shared_noise": trusts}
        nodes = sites(tmp_path / str(trusts), **needed, **policy)
        if trusts:
            run("fedavg graph-classification", node_configs=nodes, **rounds)
            continue
        with pytest.raises(RunFailedError, match=r"PolicyError \(update-noise-min\)"):
            run("fedavg graph-classification", node_configs=nodes, **rounds)


def test_members_draw_anew_for_another_sum(run, monkeypatch, tmp_path):
    """The same again costs nothing; what others missed makes another sum, paid for."""
    deliver, sums, spent = InlineGrid.deliver, np.zeros((3, 1), np.uint64), []

    def thrice(self, message):
        nonlocal sums
        key = next((k for k in message.content if k.endswith("/facts")), "")
        facts = message.content.get(key, {})
        if MEMBERS not in facts:
            return deliver(self, message)
        replies = []
        for missed in ({}, {}, {MISSED: "0" * 64}):
            message.content[key] = ConfigRecord({**facts, **missed})
            replies.append(deliver(self, message))
        parcels = [p for r in replies for p in unpack(r.content)[0].values()]
        sums = sums + np.stack([p.arrays[MASKED] for p in parcels])
        spent.append([p.metrics["privacy/update-epsilon"] for p in parcels])
        return replies[0]

    monkeypatch.setattr(InlineGrid, "deliver", thrice)
    policy = {"update_clip_max": 1.0, "update_noise_min": 8.0, "shared_noise": True}
    nodes = sites(tmp_path, **policy, secure_aggregation="required")
    still = {**ON, **SHARED_NOISE, "num-server-rounds": 1, **ZERO}
    run("fedavg graph-classification", node_configs=nodes, **still)
    first, again, other = sums.view(np.int64)[:, :-2] / 2.0**30
    np.testing.assert_array_equal(first, again)
    whole = 8 / 3**0.5 * 4**0.5  # of four members, of whom three are counted on
    for drawn, expected in ((first, whole), (other - first, whole * 2**0.5)):
        assert drawn.std() == pytest.approx(expected, rel=5 / (2 * drawn.size) ** 0.5)
    one, two = (epsilon_of({8 / 3**0.5: k}, 1e-5) for k in (1, 2))
    for found in spent:
        assert found == pytest.approx([one, one, two])


def test_scores_alone_have_other_pads_than_an_update(run, monkeypatch):
    """Else the first numbers of an update would open, whose other pads are as long."""
    deliver, labels, lengths = InlineGrid.deliver, {}, set()

    def lying(self, message):
        key = next((k for k in message.content if k.endswith("/facts")), "")
        asked = message.content.get(key, {})
        if MEMBERS in asked and toys.round_of(message) == 1 and not key.startswith("0"):
            message.metadata.__dict__["_message_type"] = "evaluate"
        reply = deliver(self, message)
        for client, parcel in unpack(reply.content)[0].items():
            if MASKED in parcel.arrays and toys.round_of(message) == 1:
                labels.setdefault(client, bytes(parcel.arrays[LABEL]))
                lengths.add(len(parcel.arrays[MASKED]))
        return reply

    monkeypatch.setattr(InlineGrid, "deliver", lying)
    with pytest.raises(RunFailedError):
        run("fedavg graph-classification", nodes=4, **ON, **SUM)
    assert len(lengths) == 2
    assert len(labels) == 4
    assert labels[0] not in [labels[c] for c in (1, 2, 3)]


def test_numbers_that_round_shared_noise_away_are_refused(
    run, monkeypatch, tmp_path, caplog
):
    def huge(_, message):
        for name in [n for n in message.content if n.endswith("/arrays")]:
            client = int(name.split("/")[0])
            parcels, header = unpack(message.content)
            parcel = parcels[client]
            arrays = {n: np.full_like(a, 2.0**28) for n, a in parcel.arrays.items()}
            parcels[client] = replace(parcel, arrays=arrays)
            message.content = pack(parcels, header)

    toys.on_delivery(monkeypatch, before=huge)
    policy = {"update_clip_max": 1.0, "update_noise_min": 8.0, "shared_noise": True}
    nodes = sites(tmp_path, **policy, secure_aggregation="required")
    with pytest.raises(RunFailedError, match="0 of 4 clients replied"):
        run("fedavg graph-classification", node_configs=nodes, **ON, **SHARED_NOISE)
    assert "of deviation 4.6188 would be rounded to steps of 32" in caplog.text


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("fedavg", {"secure-aggregation.on": False}, "needs secure-aggregation.on ="),
        ("fedavg", {"privacy.update-clip": 0.0}, "needs secure-aggregation.on ="),
        ("fedavg", {"weighting": "samples"}, 'needs weighting "uniform"'),
        ("gcfl+", {}, "needs a method without clusters"),
        ("fedavg", {"privacy.update-noise-shared": 3}, "may be 2 at most, as a sum"),
        ("fedavg", {"min-fit-replies": 0.5, "privacy.update-noise-shared": 2}, "be 1"),
    ],
)
def test_noise_is_shared_where_it_is_enough(method, given, words):
    with pytest.raises(ConfigError, match=words):
        toys.resolved(method, **{**ON, **SHARED_NOISE, **given})


def test_what_is_sent_tells_nothing_alone(run, monkeypatch):
    """Sums of fewer than all are uniform, though all updates are small."""
    vectors = {}

    def look(message, reply):
        if toys.round_of(message) == 1:
            for c, parcel in unpack(reply.content)[0].items():
                vectors[c] = parcel.arrays[MASKED]

    toys.on_delivery(monkeypatch, after=look)
    run("fedavg graph-classification", nodes=4, **ON)
    whole = sum(vectors.values())
    assert np.abs(whole.view(np.int64)).max() < 2**45
    for few in ((0,), (1, 2), (0, 2, 3)):
        part = sum(vectors[c] for c in few)
        bits = np.unpackbits(part.view(np.uint8)).reshape(-1, 64).mean(axis=0)
        assert np.abs(bits - 0.5).max() < 5 * 0.5 / len(part) ** 0.5


def test_sums_of_clusters(run, monkeypatch):
    """Clusters split by norms that clients tell; none gets fewer than ``least``."""
    sets, config = [], {**ON, **SPLITS, "num-clients": 9, "num-server-rounds": 6}

    def before(_, message):
        for client, parcel in unpack(message.content)[0].items():
            if members := parcel.facts.get(MEMBERS):
                sets.append((toys.round_of(message), str(client), members))

    toys.on_delivery(monkeypatch, before=before)
    found = run("gcfl+", nodes=3, **config)
    last = [*map(tuple, found.summary["clusters"])]
    assert len(last) > 1
    assert min(map(len, last)) >= 3
    for number, client, members in sets:
        assert client in members.split()
        same = {m for r, c, m in sets if r == number and c in members.split()}
        assert same == {members}
    assert run("gcfl+", nodes=1, **config).sha == found.sha


@pytest.mark.parametrize("n", [6, 9, 17])
def test_even_cuts_by_all_cuts(n):
    rng = np.random.default_rng(n)
    for _ in range(5 if n < 17 else 1):
        ties = rng.random((n, n))
        ties = ties + ties.T
        np.fill_diagonal(ties, 0)
        sides = even_cut(ties, 3)
        assert sorted(sides[0] + sides[1]) == [*range(n)]
        assert min(map(len, sides)) >= 3
        assert sides[0][0] == 0

        def weight(rows, ties=ties):
            rest = [j for j in range(len(ties)) if j not in rows]
            return ties[np.ix_(list(rows), rest)].sum()

        best = min(
            weight(rows)
            for size in range(3, n // 2 + 1)
            for rows in combinations(range(n), size)
        )
        # Beyond 16 rows it is found by moving single ones.
        assert weight(sides[0]) <= best * (1 + 1e-9 if n <= 16 else 1.05)


REFUSED = {
    "gcfl graph-classification": "it compares directions of updates",
    "local graph-classification": "its server does not average models",
    "fedpub graph-classification": "each client has an average of its own",
    "centralized graph-classification": "it weighs clients by itself",
}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *(({"method": m.split()[0]}, w) for m, w in REFUSED.items()),
        ({"client-fraction": 0.5}, "client-fraction is 0.5"),
        ({"min-fit-replies": 0.5, "checkpoint-every": 2}, "checkpoint-every is 2"),
        ({"method": "self-weight", "weighting": "samples"}, "of equal weights"),
        ({"robust.rule": "median"}, "robust.rule 'median' compares updates"),
        ({"method": "gcfl+", "min-fit-replies": 0.5}, "left with too few"),
        ({"attack.kind": "sign", "attack.clients": "0"}, "models that it sees"),
        ({"num-clients": 2}, "2 clients train, and a sum is of 3"),
        ({**SUM, "secure-aggregation.on": False}, "secure-aggregation.on is false"),
        ({**SUM, "class-weights": "federation"}, "class-weights tells of single"),
        ({**SUM, "evaluate-on": "all"}, "evaluate-on tells of single"),
        ({**SUM, "tell-statistics": True}, "tell-statistics tells of single"),
        ({**SUM, "held-out-clients": "3"}, "held-out-clients tells of single"),
    ],
)
def test_what_does_not_go_with_sums_is_refused(settings, words):
    config = {**ON, "method": "fedavg", **settings}
    with pytest.raises(ConfigError, match=words):
        toys.resolved(config.pop("method"), **config)
