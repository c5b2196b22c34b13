"""What a site's policy forbids does not leave it, whatever a run asks and sends.

Every method, three kinds of attack: a run config that asks for more than is allowed; a
site whose checks before the run are gone, so that the gate alone is left; and code of
the method that goes around the noise.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress

import numpy as np
import pytest
import toys
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from matrix import one_per_strategy
from toys import two_sites

from clients.base import GraphClient
from clients.privacy import site as privacy_site
from clients.privacy.gaussian import epsilon_of
from fedgraph_flwr.client_app import app
from fedgraph_flwr.core.errors import DataError, PolicyError, RunFailedError
from fedgraph_flwr.core.tasks import GRAPH_EMBEDDING
from fedgraph_flwr.core.wire import (
    IDENTITY,
    RAW_HASH,
    SPLIT_HASH,
    WEIGHTS_HASH,
    pack,
    unpack,
)
from fedgraph_flwr.node import serve
from fedgraph_flwr.node.policy import OPEN, Policy
from fedgraph_flwr.resolve import defaults

STRICT = {
    "update_clip_max": 0.5,
    "update_noise_min": 3.0,
    "min_examples": 5,
    "scores": False,
}
CLIPPED = {
    "privacy.update-clip": 0.5,
    "privacy.update-noise": 3.0,
    "num-server-rounds": 2,
}
CLEAN = {"fgcl": {"fgcl.views": "clean", "privacy.edge-epsilon": 0.0}}
POOLED = {"embedding.evaluation": "pooled"}
CROSS = {"fedsage-plus.cross-client": True}
HASHES = (SPLIT_HASH, IDENTITY, RAW_HASH, WEIGHTS_HASH)
# Each asks for something beyond a policy that allows clipped, noisy updates alone.
GREEDY = [
    *((m, CLEAN.get(m, {})) for m in toys.AT_SITES),
    *((m, POOLED) for m in toys.federated(GRAPH_EMBEDDING)),
    ("fedsage+", CROSS),
    ("gcfl+", {"gcfl.seq-source": "last-grad-norm"}),
    ("spreadgnn", {"spreadgnn.seal": True}),
    ("fedavg", {**CLIPPED, "privacy.update-clip": 0.6}),
    ("fedavg", {**CLIPPED, "privacy.update-noise": 2.9}),
    ("fedavg", {"privacy.edge-epsilon": 1.0, "features": "labels"}),
]
CAN_CLIP = sorted(set(toys.AT_SITES) - toys.SENT_BESIDE.keys())
SENDS = [m for m in CAN_CLIP if toys.row(m).client.SENDS_UPDATES]
IDS = [f"{m}-{'-'.join(map(str, o))}" for m, o in GREEDY]


def one_per_reply():
    """Of methods that send shared tensors alone the gate sees one for each task."""
    rows = {}
    for method, options in GREEDY:
        has_own = options or method in toys.SENT_BESIDE
        kind = (method, *options) if has_own else toys.row(method).task.name
        rows.setdefault(kind, (method, options))
    return list(rows.values())


@pytest.fixture
def left(monkeypatch):
    """Contents of all that leaves nodes, in order, with the kind of message."""
    found = []

    def keep(message, reply):
        kind = message.metadata.message_type
        if reply.has_error():
            found.append((kind, str(reply.error.reason).split("\nTraceback")[0]))
        else:
            found.append((kind, reply.content))

    toys.on_delivery(monkeypatch, after=keep)
    return found


@pytest.fixture
def own_data(monkeypatch):
    """Let sites have data of their own: one set shared out is refused with noise."""
    monkeypatch.setattr("datasets.is_cut", lambda _: False)


def told(content):
    """Parcels of a reply, without the times."""
    parcels, header = unpack(content)
    times = ("started-at", "compute-s")
    return header, {
        c: toys.replace(
            p, metrics={k: v for k, v in p.metrics.items() if k not in times}
        )
        for c, p in parcels.items()
    }


def assert_nothing_of_data(found):
    """No array, score, count by class nor open hash is in what left."""
    for kind, content in found:
        if isinstance(content, str):
            assert "PolicyError" in content, content
            continue
        values = [v for record in content.values() for v in record.values()]
        assert not any(isinstance(v, bytes) for v in values), kind
        _, parcels = told(content)
        for parcel in parcels.values():
            assert not [n for n in parcel.metrics if n.startswith(("eval/", "class-"))]
            assert not parcel.facts.get("raw-sha256")


# Before the run ---------------------------------------------------------------------


@pytest.mark.usefixtures("task_identity")
@pytest.mark.parametrize(("method", "options"), GREEDY, ids=IDS)
def test_a_run_that_asks_for_more_is_refused_before_data_are_read(
    tmp_path, monkeypatch, method, options
):
    monkeypatch.setattr("datasets.load_partition", lambda *_: pytest.fail("was read"))
    (site, _) = two_sites(tmp_path, **STRICT)
    config = {**defaults(), **toys.tiny(method), **options}
    context = Context(1, 1, {**site, "data-path": "/x"}, RecordDict(), config)
    reply = app(Message(pack({}, {"experiment": "e"}), 1, "query"), context)
    header, parcels = told(reply.content)
    assert parcels == {}
    assert header["error"].startswith(("PolicyError (update-", "PolicyError (edge-"))
    for kind in ("train", "evaluate", "query.opening"):
        content = pack({0: toys.Parcel()}, {"experiment": "e", "server-round": 1})
        with pytest.raises(RunFailedError, match=r"PolicyError \((update|edge)-"):
            app(Message(content, 1, kind), context)


# The gate alone ---------------------------------------------------------------------


@pytest.mark.parametrize(("method", "options"), one_per_reply())
def test_the_gate_holds_where_nothing_was_checked_before(
    run, tmp_path, monkeypatch, left, method, options
):
    """The policy is tightened after roll call, and no check before the run is left."""
    asks = ("pooled_evaluation", "raw_features", "statistics")
    nodes = two_sites(tmp_path, **dict.fromkeys(asks, True))

    def tighten(grid, message):
        if message.metadata.message_type != "query":
            monkeypatch.setattr(Policy, "check_run", lambda *_: None)
            strict = toys.policy(tmp_path, **STRICT)
            for context in grid._contexts.values():
                context.node_config |= strict

    toys.on_delivery(monkeypatch, before=tighten)
    with suppress(RunFailedError):  # of methods that send nothing it goes on
        run(method, node_configs=nodes, **{"num-server-rounds": 1, **options})
    after = [(kind, c) for kind, c in left if kind != "query"]
    assert after
    assert_nothing_of_data(after)


def without_noise(monkeypatch):
    """Let methods draw and pay for noise, and send their update without it."""
    trained = GraphClient.trained

    def around(self):
        named = self.tensors()
        before = {n: named[n].detach().clone() for n in self.shared_keys}
        trained(self)
        return before

    monkeypatch.setattr(GraphClient, "trained", around)


@pytest.mark.usefixtures("own_data")
@pytest.mark.parametrize("method", SENDS)
def test_an_update_that_went_around_the_noise_does_not_leave(
    run, tmp_path, monkeypatch, left, method
):
    without_noise(monkeypatch)
    config = {**CLIPPED, **CLEAN.get(method, {})}
    with pytest.raises(RunFailedError, match=r"PolicyError \(update-clip-max\)"):
        run(method, node_configs=two_sites(tmp_path, **STRICT), **config)
    assert_nothing_of_data(left)


# Clipped and noisy: it leaves, and nothing beside it --------------------------------


@pytest.mark.usefixtures("own_data")
def test_nothing_but_noisy_updates_tells_the_data(run, toy_data, tmp_path, left):
    """Unlike without a policy: no score, and no hash that somebody else can make."""

    def released(update, **_):
        rng = np.random.default_rng(5)
        return [rng.normal(0, 0.01, a.shape).astype(a.dtype) for a in update]

    def others(settings, client_id):
        own = toys.federation(settings, client_id)
        graphs = toys.random_graphs(len(own.graphs), seed=50 + client_id)
        return toys.renewed(own, graphs=toys.replace(graphs, name=own.graphs.name))

    def everything(name, load=toys.federation):
        left.clear()
        with toy_data.context() as patch:
            patch.setattr("datasets.load_partition", load)
            patch.setattr(privacy_site, "privatise_update", released)
            run(
                "fedavg",
                node_configs=two_sites(tmp_path / name, **STRICT),
                **CLIPPED,
            )
        sent, hashes = {}, []
        for kind, content in left:
            header, parcels = told(content)
            assert set(header) <= {"audit-head"}
            for client, parcel in parcels.items():
                arrays = {**parcel.arrays, **parcel.evaluation}
                facts = {k: v for k, v in parcel.facts.items() if k not in HASHES}
                blobs = {k: a.tobytes() for k, a in arrays.items()}
                what = kind, parcel.error, dict(parcel.metrics), facts, blobs
                sent.setdefault(client, []).append(what)
                hashes += [v for k, v in parcel.facts.items() if k in HASHES and v]
        return sent, hashes

    (ours, hashes), (theirs, _) = everything("a"), everything("b", others)
    assert ours == theirs
    assert all(any(blobs for *_, blobs in parcels) for parcels in ours.values())
    again, other_hashes = everything("c")
    assert again == ours
    assert len(hashes) == 3 * 3  # split, identity, model
    assert not set(hashes) & set(other_hashes)  # keyed: the same data, other secrets


@pytest.mark.usefixtures("own_data")
@one_per_strategy(SENDS)
def test_a_run_needs_no_scores_of_sites_to_complete(run, tmp_path, method):
    config = {**CLIPPED, **CLEAN.get(method, {})}
    finished = run(method, node_configs=two_sites(tmp_path, **STRICT), **config)
    assert finished.summary["status"] == "completed"
    assert finished.summary["failures"] == []
    spent = finished.summary["privacy"]["per_client"]
    two_rounds = pytest.approx(epsilon_of({3.0: 2}, 1e-5))
    assert [s["update-epsilon"] for s in spent.values()] == [two_rounds] * 3


# Records, numbers and texts that a method should not send ---------------------------


def arrays(parcel, **more):
    return toys.replace(parcel, arrays={**parcel.arrays, **more})


def other_update(parcel):
    name, array = next(iter(parcel.arrays.items()))
    return arrays(parcel, **{name: array + 1})


def metrics(**more):
    return lambda p: toys.replace(p, metrics={**p.metrics, **more})


def evaluation(**arrays):
    return lambda p: toys.replace(p, evaluation=arrays)


def facts(**more):
    return lambda p: toys.replace(p, facts=more)


LEAKS = [
    lambda p: arrays(p, x=np.ones(3)),
    other_update,
    evaluation(labels=np.arange(3)),
    evaluation(omega=np.ones((2, 2), np.float32)),
    metrics(**{"label-of-graph-7": 1}),
    metrics(**{"eval/test/Mary/loss": 1}),
    metrics(**{"grad-norm": 0.25}),
    metrics(**{"class-count/0": 9}),
    facts(patient="Mary"),
    facts(**{"raw-sha256": "a" * 64}),
    facts(**{"told/whole": "a" * 64}),
]


def test_a_reply_that_holds_more_stays_and_its_neighbour_goes_on(
    run, tmp_path, monkeypatch, left
):
    """Client 1 adds something else in every round."""
    train = GraphClient.participate

    def leaking(self, parcel, header):
        reply = train(self, parcel, header)
        leak = LEAKS[header["server-round"] - 1]
        return leak(reply) if self.job.client_id == 1 else reply

    monkeypatch.setattr(GraphClient, "participate", leaking)
    rounds = {"num-server-rounds": len(LEAKS), "min-fit-replies": 0.5}
    finished = run(
        "fedavg", node_configs=two_sites(tmp_path, **STRICT), **CLIPPED | rounds
    )
    failed = [(f["round"], f["client"]) for f in finished.summary["failures"]]
    assert failed == [(t, 1) for t in range(1, len(LEAKS) + 1)]
    for kind, content in left:
        if kind != "train":
            continue
        _, parcels = told(content)
        if 1 in parcels:
            assert parcels[1].error.startswith("PolicyError")
            assert "Mary" not in str(content)
            assert set(parcels[1].metrics) == {  # what it drew is paid for
                f"privacy/{n}" for n in ("update-epsilon", "update-delta", "secret")
            }
        else:
            assert all(p.arrays and not p.error for p in parcels.values())


@pytest.mark.parametrize(
    ("error", "where", "policy"),
    [
        (DataError, "clients.base.GraphClient.train", STRICT),
        (ValueError, "clients.base.GraphClient.train", STRICT),
        (KeyError, "fedgraph_flwr.client_app.check_round", {}),
    ],
)
def test_errors_carry_no_values(run, tmp_path, monkeypatch, left, error, where, policy):
    def fail(*_, **__):
        raise error("Mary is positive")

    monkeypatch.setattr(where, fail)
    with pytest.raises(RunFailedError, match=f"{error.__name__}: see docs/"):
        run("fedavg", node_configs=two_sites(tmp_path, **policy), **CLIPPED)
    assert "positive" not in str(left)
    assert "Mary is positive" in (tmp_path / "0,1" / "audit.jsonl").read_text()


# Messages that no server of ours sends ----------------------------------------------


def odd_messages():
    """Contents, by kind, that a hostile server might send."""
    weights = {"shared/x": np.ones(2, np.float32)}
    good = {"experiment": "e", "server-round": 1, "keep-from": 0}
    empty = pack({0: toys.Parcel()}, good)
    yield "train", RecordDict()
    yield "train", RecordDict({"header": MetricRecord({"a": 1})})
    yield "train", RecordDict({"header": ConfigRecord({}), "0/model": ConfigRecord({})})
    yield "train", pack({0: toys.Parcel(arrays=weights)}, good)
    yield "train", pack({7: toys.Parcel()}, good)
    yield "train", pack({0: toys.Parcel(facts={"spent/edge-epsilon": 9.0})}, good)
    yield "evaluate", pack({0: toys.Parcel(error="x")}, good)
    yield "evaluate", pack({0: toys.Parcel()}, {**good, "experiment": "../x"})
    yield "query.opening", empty
    for kind in ("train.model", "query.labels", "evaluate.all", "query.opening2"):
        yield kind, empty


@pytest.mark.usefixtures("task_identity")
@pytest.mark.parametrize(("kind", "content"), list(odd_messages()))
def test_an_odd_message_gets_no_answer_and_is_written_down(
    toy_data, tmp_path, kind, content
):
    (site, _) = two_sites(tmp_path, **STRICT)
    config = {**defaults(), **toys.tiny("fedavg"), **CLIPPED}
    context = Context(1, 1, site, RecordDict(), config)
    roll_call = Message(pack({}, {"experiment": "e"}), 1, "query")
    assert "error" not in told(app(roll_call, context).content)[0]
    found = []
    try:
        found.append((kind, app(Message(content, 1, kind), context).content))
    except RunFailedError as refusal:
        said = str(refusal)
    else:
        assert_nothing_of_data(found)
        (parcel,) = told(found[0][1])[1].values()
        said = parcel.error
    assert re.fullmatch(
        r"\w+Error: see docs/[a-z]+\.md; the text stands in the log of the site", said
    )
    lines = (tmp_path / "0,1" / "audit.jsonl").read_text().splitlines()
    assert '"outcome": "refused"' in lines[-1] or '"outcome": "failed"' in lines[-1]


@pytest.mark.parametrize(
    "partition", ["dominance", "dirichlet-labels", "iid-classwise"]
)
def test_numbers_of_graphs_do_not_tell_those_of_a_class(partition):
    """Of the whole set client 0 of "dominance" can get one class, and all of it."""
    config = {"dataset": "PROTEINS", "partition": partition, "num-clients": 2}
    run = toys.resolved("fedavg", **{**config, "privacy.edge-epsilon": 1.0})
    with pytest.raises(PolicyError, match=r"\(scores\) .*numbers of graphs tell"):
        Policy(scores=False).check_run(run)
    Policy().check_run(run)
    Policy(scores=False, pooled_evaluation=True).check_run(run)
    for other in ("files", "iid"):
        run = toys.resolved("fedavg", **{**config, "partition": other})
        Policy(scores=False).check_run(run)


# Each key by itself, also with the checks before the run gone ------------------------

KEYS = [
    ("fclg", POOLED, "pooled-evaluation", ("embeddings", "labels", "graph_ids")),
    ("fedsage+", CROSS, "raw-features", ("rows",)),
    ("fedgta", {}, "statistics", ("fedgta/moments",)),
    ("fedproto", {}, "statistics", ("fedproto/",)),
    ("fedtad", {}, "statistics", ("fedtad/",)),
    ("scaffold", {}, "statistics", ("control/",)),
    ("spreadgnn", {}, "sealed-only", ("to/",)),
    ("fedavg", {}, "sealed-only", ("shared/",)),
]


@pytest.mark.parametrize(("method", "options", "key"), [row[:3] for row in KEYS])
def test_each_key_refuses_a_run_by_its_config(method, options, key):
    own = Policy(sealed_only=True) if key == "sealed-only" else Policy(min_examples=1)
    with pytest.raises(PolicyError, match=rf"\({key}\)"):
        own.check_run(toys.resolved(method, **options))


@pytest.mark.parametrize(("method", "options", "key", "names"), KEYS)
def test_each_key_holds_by_itself(
    run, tmp_path, monkeypatch, left, method, options, key, names
):
    monkeypatch.setattr(Policy, "check_run", lambda *_: None)
    asked = {key: True} if key == "sealed-only" else {"min-examples": 1}
    nodes = two_sites(tmp_path, **asked)
    with pytest.raises(RunFailedError, match=rf"PolicyError \({key}\): see"):
        run(method, node_configs=nodes, **{"num-server-rounds": 2, **options})
    for _, content in left:
        for parcel in told(content)[1].values():
            found = [*parcel.arrays, *parcel.evaluation]
            assert not [n for n in found if n.startswith(names)]


def test_counts_by_class_need_consent_at_the_gate_too(run, tmp_path, monkeypatch, left):
    introduce = serve.introduce

    def telling(*args, **kw):
        return introduce(*args, **{**kw, "policy": OPEN})

    monkeypatch.setattr(serve, "introduce", telling)
    with pytest.raises(DataError, match=r"\(pooled-evaluation\)"):
        run("fedavg", node_configs=two_sites(tmp_path, min_examples=1))
    assert "class-count" not in str(left)


def test_a_reply_that_is_too_large_stays(run, tmp_path, left):
    with pytest.raises(RunFailedError, match=r"\(reply-bytes-max\): see"):
        run("fedavg", node_configs=two_sites(tmp_path, reply_bytes_max=2000))
    assert not [c for k, c in left if k == "train" and not isinstance(c, str)]


def test_a_site_with_too_few_examples_takes_no_part_and_tells_no_number(run, tmp_path):
    with pytest.raises(DataError, match=r"\(min-examples\): see") as said:
        run("fedavg", node_configs=two_sites(tmp_path, min_examples=14))
    assert "12" not in re.sub(r"\bnode \d+", "", str(said.value))


def test_the_budget_of_updates_is_the_sites_over_all_runs(run, tmp_path):
    """Two runs of one update of two clients each; the third run is refused."""
    one = {"privacy.update-clip": 0.5, "privacy.update-noise": 3.0}
    config = {**one, "num-server-rounds": 1}
    budget = epsilon_of({3.0: 4}, 1e-5)
    cap = {"update_clip_max": 0.5, "update_epsilon_max": round(budget + 0.01, 4)}
    nodes = [two_sites(tmp_path, **cap)[0], {"clients": "2"}]
    run("fedavg", node_configs=nodes, seed=1, **config)
    run("fedavg", node_configs=nodes, seed=2, **config)
    with pytest.raises(RunFailedError, match=r"PrivacyBudgetError: see docs/privacy"):
        run("fedavg", node_configs=nodes, seed=3, **config)


def test_what_left_by_consent_is_written_down(run, tmp_path):
    nodes = two_sites(tmp_path, pooled_evaluation=True)
    run("fclg", node_configs=nodes, **POOLED, **{"num-server-rounds": 1})
    text = (tmp_path / "2" / "audit.jsonl").read_text()
    lines = [r for r in map(json.loads, text.splitlines()) if r["event"] == "answered"]
    assert [r["consents"] for r in lines] == [["pooled-evaluation"]] * 3
