"""Whole rounds of FCLG and MOON against real model copies, and evaluation."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from matrix import mostly_slow
from oracles import fclg as oracle
from oracles import fedprox, infograph, mvgrl
from oracles.jsd import dense

from clients.fclg import FCLGClient
from clients.moon import MoonClient
from fedgraph_flwr import client_app
from fedgraph_flwr.core import embedding_scores
from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.wire import unpack
from fedgraph_flwr.results import selection
from simulations.contract import failing_client

ROUND = {"server-round": 1}
INTERS = ("graphs", "nodes", "none", "kl", "mse", "previous-round")
QUICK = {"embedding.probe": False}
POOLED = {**QUICK, "embedding.evaluation": "pooled", "embedding.rounds": "0,1"}
OWN_STEPS = {"batch-size": 3, "persist-optimizer": False, "weight-decay": 0.1}
SILENT = {**POOLED, "embedding.rounds": "", "num-server-rounds": 2}


def weights(model) -> dict[str, torch.Tensor]:
    return {n: t.detach().clone().double() for n, t in model.state_dict().items()}


def close(ours: dict, theirs: dict, atol: float) -> bool:
    assert set(ours) == set(theirs)
    return all(np.allclose(ours[n], theirs[n], rtol=0, atol=atol) for n in ours)


# Rounds against the transcription ------------------------------------------------


def watch_batches(monkeypatch, client_type) -> list[list[int]]:
    """Collect the positions of each batch that a client is trained on."""
    seen, loss = [], client_type.loss

    def spy(self, batch, generator):
        seen.append(batch.positions.tolist())
        return loss(self, batch, generator)

    monkeypatch.setattr(client_type, "loss", spy)
    return seen


def in_epochs(batches, num_epochs, rows):
    """Cut the batches into epochs; each must cover all rows once, in its own order."""
    per_epoch = len(batches) // num_epochs
    epochs = [list(e) for e in zip(*[iter(batches)] * per_epoch, strict=True)]
    orders = [tuple(itertools.chain(*epoch)) for epoch in epochs]
    assert all(sorted(order) == sorted(rows) for order in orders)
    assert len(epochs) == len(set(orders)) == num_epochs
    assert per_epoch > 2
    return epochs


def assert_sent(client, sent, expected):
    for name, array in zip(client.shared_keys, sent, strict=True):
        np.testing.assert_allclose(
            array, expected[name], rtol=0, atol=1e-7, err_msg=name
        )


@pytest.mark.parametrize("inter", INTERS)
def test_two_rounds_are_those_of_algorithm_1(tmp_path, monkeypatch, doubles, inter):
    """Three epochs; the model that comes back in round 2 is not the one sent."""
    config = {**OWN_STEPS, "local-epochs": 3, "fclg.inter": inter, **SILENT}
    batches = watch_batches(monkeypatch, FCLGClient)
    partition = toys.make_partition(num_graphs=9, max_nodes=5, held_out=0.0)
    graphs = oracle.triples(partition.graphs)
    start, before = None, None
    for server_round in (1, 2):
        client = toys.make_client(tmp_path, "fclg", partition=partition, **config)
        toys.in_doubles(client)
        start = start or weights(client.model)
        received = {n: t + 0.02 * server_round for n, t in start.items()}
        arrays = [received[n].numpy() for n in client.shared_keys]
        sent, _, _ = client.fit(arrays, {"server-round": server_round})
        epochs = in_epochs(batches, 3, range(9))
        teachers = {"inter": inter, "before": before}
        expected = oracle.local_round(
            received, graphs, epochs, lr=0.01, decay=0.1, **teachers
        )
        assert_sent(client, sent, expected)
        before, start = expected, {n: t * 0.9 for n, t in expected.items()}
        batches.clear()


@pytest.mark.parametrize("shared", mostly_slow(["all", "convs"], fast=["convs"]))
def test_two_rounds_are_those_of_moon(tmp_path, monkeypatch, doubles, shared):
    config = {**OWN_STEPS, "local-epochs": 2, "optimizer": "adamw", "dropout": 0.0}
    config |= {"moon.mu": 2.0, "shared-group": shared}
    batches = watch_batches(monkeypatch, MoonClient)
    partition = toys.make_partition(num_graphs=20)
    graphs = [dense(partition.graphs, g) for g in range(20)]
    received, before = {}, None
    for server_round in (1, 2):
        client = toys.make_client(tmp_path, "moon", partition=partition, **config)
        received = received or weights(client.model)
        for n in client.shared_keys:
            received[n] = received[n] * 0.9 + 0.01
        arrays = [received[n].numpy() for n in client.shared_keys]
        sent, _, _ = client.fit(arrays, {"server-round": server_round})
        epochs = in_epochs(batches, 2, partition.train)
        # Private layers persist: both teachers have those of the last round.
        teachers = {"mu": 2.0, "temperature": 0.5, "before": before}
        expected = oracle.moon_round(
            received, graphs, partition.graphs.y, epochs, lr=0.01, decay=0.1, **teachers
        )
        assert_sent(client, sent, expected)
        before, received = expected, dict(expected)
        batches.clear()


# Invariants of training ----------------------------------------------------------


def shuffled(settings, client_id):
    """The toy federation with labels that say nothing, and more classes."""
    partition = toys.federation(settings, client_id)
    rng = np.random.default_rng(client_id)
    y = rng.permutation(partition.graphs.y)
    return replace(partition, graphs=replace(partition.graphs, y=y))


@pytest.mark.parametrize(
    "method", mostly_slow(["fclg", "infograph", "mvgrl"], fast=["infograph"])
)
def test_no_label_reaches_training(run, toy_data, method):
    """Not even where labels are at hand: every client scores itself each round."""
    options = {**QUICK, "num-server-rounds": 2, "num-clients": 2}
    true = run(method, **options)
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", shuffled)
        false = run(method, **options)
    assert false.sha == true.sha
    assert false.values("loss") == true.values("loss")
    assert false.rounds != true.rounds  # the scores do see them


@pytest.mark.parametrize(
    "method", mostly_slow(["fclg", "infograph", "mvgrl"], fast=["fclg"])
)
def test_pooled_runs_do_not_depend_on_the_nodes(once, method):
    one, other = once(method, **POOLED), once(method, nodes=3, **POOLED)
    assert (other.sha, other.rounds) == (one.sha, one.rounds)
    for ours, theirs in zip(tables(one), tables(other), strict=True):
        assert all(np.array_equal(ours[n], theirs[n]) for n in ours)


# Evaluation: pooled --------------------------------------------------------------


def tables(finished) -> list[dict[str, np.ndarray]]:
    """Read what was pooled, by round."""
    return [
        dict(np.load(path))
        for path in sorted((finished.path / "embeddings").glob("*.npz"))
    ]


@pytest.fixture(scope="module")
def pooled(once):
    return once("fclg", nodes=3, **POOLED)


@pytest.mark.parametrize("at", [0, -1])
def test_a_pool_is_that_of_the_model_of_its_round(pooled, tmp_path, at):
    """The first of the untrained encoder, the last of the last model."""
    table = tables(pooled)[at]
    for c in range(3):
        partition = toys.make_partition(c, num_graphs=20 + 5 * c, held_out=0.0)
        client = toys.make_client(tmp_path, "fclg", partition=partition)
        if at:
            model = {n: torch.from_numpy(a) for n, a in pooled.models["global"].items()}
            client.model.load_state_dict(model)
        found = table["embeddings"][table["clients"] == c]
        np.testing.assert_array_equal(client.embed_all(), found)


@pytest.mark.slow
def test_pooled_scores_are_those_of_all_embeddings_together(run):
    pooled = run("fclg", **{**POOLED, "embedding.probe": True})
    for server_round, table in zip((0, 1, 3), tables(pooled), strict=True):
        expected = embedding_scores.all_scores(
            table["embeddings"], table["labels"], num_classes=2, seed=10, headline="l2"
        )
        if server_round != 1:
            expected |= embedding_scores.probe_scores(
                table["embeddings"], table["labels"], seed=10
            )
        found = {
            key[4]: value
            for key, value in pooled.values(*expected, "probe-accuracy").items()
            if key[:4] == (str(server_round), "-1", "all", "post_aggregation")
        }
        assert found == expected
    rows = [r.split(",") for r in pooled.rounds.splitlines()[1:]]
    assert {r[6] for r in rows if r[1] == "-1"} == {"75"}
    assert {r[0] for r in rows if r[1] == "-1"} == {"0", "1", "3"}
    assert {r[2:5:2][0] for r in rows if r[1] != "-1"} == {"train"}


def test_the_summary_holds_both_rules(pooled):
    scores = {
        int(key[0]): value
        for key, value in pooled.values("accuracy").items()
        if key[1] == "-1"
    }
    assert set(scores) == {0, 1, 3}
    summary = pooled.summary
    assert summary["rules"] == ["final", "best_labelled"]
    assert summary["final"]["per_client"] == {"-1": scores[3]}
    best = max(scores, key=lambda r: (scores[r], -r))
    assert summary["best_labelled"]["round"] == best
    assert summary["best_labelled"]["mean"] == scores[best]
    assert "optimistic" in summary["best_labelled"]["protocol"]


@pytest.mark.slow
def test_the_emd_in_the_summary_is_that_of_the_formula(run, toy_data):
    def uneven(settings, client_id):
        partition = toys.federation(settings, client_id)
        y = np.minimum(np.arange(len(partition.graphs)) % 3, client_id)
        graphs = replace(partition.graphs, y=y, num_classes=3)
        return replace(partition, graphs=graphs)

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", uneven)
        finished = run("fclg", **POOLED, **{"num-server-rounds": 1})
    counts = np.array([[20, 0, 0], [9, 16, 0], [10, 10, 10]])
    assert finished.summary["class_counts"] == counts.tolist()
    sizes, everyone = counts.sum(1), counts.sum(0) / counts.sum()
    apart = np.abs(counts / sizes[:, None] - everyone).sum(1)
    emd = sizes @ apart / sizes.sum()
    assert finished.summary["emd"] == pytest.approx(emd, abs=1e-12)


def test_before_training_is_a_round_that_labels_may_choose():
    table = {0: {0: 0.5, 1: 0.7}, 1: {0: 0.6}, 3: {0: 0.7, 1: 0.4}}
    best = selection.best_labelled(table)  # round 1: 0.65, with 1 as before
    assert (best["round"], best["num_clients_chosen_by"]) == (1, 2)
    best = selection.best_labelled({**table, 1: {0: 0.5}})
    assert (best["round"], best["mean"]) == (0, 0.6)


@pytest.mark.slow
def test_a_lost_client_does_not_change_the_number_of_classes(
    run, toy_data, monkeypatch
):
    """Class 2 is with client 2 alone; k-means must look for 3 clusters all the same."""

    def rare(settings, client_id):
        partition = toys.federation(settings, client_id)
        y = partition.graphs.y.copy()
        y[: 5 * (client_id == 2)] = 2
        graphs = replace(partition.graphs, y=y, num_classes=3)
        return replace(partition, graphs=graphs)

    asked, scores = [], embedding_scores.all_scores

    def spy(*args, num_classes, **kw):
        asked.append(num_classes)
        return scores(*args, num_classes=num_classes, **kw)

    toys.fail_when(monkeypatch, lambda client, _: client == 2)
    monkeypatch.setattr("fedgraph_flwr.results.pooled.all_scores", spy)
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", rare)
        run("fclg", **POOLED, **{"min-fit-replies": 0.5})
    assert asked == [3, 3, 3]


@pytest.mark.slow
def test_resuming_a_pooled_run_equals_never_stopping(run):
    more = {**POOLED, "num-server-rounds": 4}
    whole = run("fclg", **more)
    part = run("fclg", **{**more, "num-server-rounds": 2})
    again = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("fclg", **more, **again, resume=str(part.path))
    assert (resumed.sha, resumed.rounds) == (whole.sha, whole.rounds)
    for key in ("final", "best_labelled", "emd", "class_counts", "bytes_up_evaluation"):
        assert resumed.summary[key] == whole.summary[key]
    for ours, theirs in zip(tables(resumed), tables(whole), strict=True):
        assert all(np.array_equal(ours[n], theirs[n]) for n in theirs)


# Evaluation: what leaves a site --------------------------------------------------


def watch_replies(monkeypatch) -> list:
    """Collect the parcels that nodes send up."""
    sent, pack = [], client_app.pack

    def spy(parcels, header=None):
        content = pack(parcels, header)
        sent.extend(unpack(content)[0].values())
        return content

    monkeypatch.setattr(client_app, "pack", spy)
    return sent


@pytest.mark.slow
def test_pooled_clients_send_a_record_apart_in_evaluated_rounds(run, monkeypatch):
    sent = watch_replies(monkeypatch)
    finished = run("fclg", **POOLED)
    shared = {f"shared/{n}" for n in toys.shared_keys("fclg")}
    assert {n for parcel in sent for n in parcel.arrays} == shared
    given = [parcel.evaluation for parcel in sent if parcel.evaluation]
    assert len(given) == 3 * 3
    assert {frozenset(g) for g in given} == {
        frozenset(("embeddings", "labels", "graph_ids"))
    }
    rows = [row for row in finished.ledger if row["record"] == "evaluation"]
    assert {(row["round"], row["client"]) for row in rows} == {
        # Message t + 1 carries what is known of the model after round t.
        (t, c)
        for t in ("1", "2", "4")
        for c in ("0", "1", "2")
    }
    assert {row["direction"] for row in rows} == {"up"}
    assert finished.summary["bytes_up_evaluation"] == sum(int(r["bytes"]) for r in rows)


REFUSED = r"PolicyError \(pooled-evaluation\): see docs/privacy.md"


def test_it_does_train_where_its_embeddings_are_not_asked_for(run):
    few = {**QUICK, "num-server-rounds": 1, "embedding.rounds": ""}
    finished = run("fclg", node_configs=[{"clients": "0,1,2"}], **few)
    assert finished.summary["status"] == "completed"


def test_one_site_that_refuses_stops_the_run_before_any_training(
    run, monkeypatch, tmp_path
):
    batches = watch_batches(monkeypatch, FCLGClient)
    agreed = {"clients": "0,1", **toys.policy(tmp_path, pooled_evaluation=True)}
    with pytest.raises(RunFailedError, match=REFUSED):
        run("fclg", node_configs=[agreed, {"clients": "2"}], **POOLED)
    assert batches == []


@pytest.mark.parametrize("options", [QUICK, POOLED], ids=["local", "pooled"])
def test_every_site_keeps_the_embeddings_of_the_last_model(once, tmp_path, options):
    finished = once("fclg", **options)
    root = finished.path.parents[1] / "state" / finished.summary["experiment"]
    for c in range(3):
        kept = dict(np.load(root / f"client-{c}" / "embeddings.npz"))
        partition = toys.make_partition(c, num_graphs=20 + 5 * c, held_out=0.0)
        client = toys.make_client(tmp_path, "fclg", partition=partition)
        model = {n: torch.from_numpy(a) for n, a in finished.models["global"].items()}
        client.model.load_state_dict(model)
        np.testing.assert_array_equal(kept["embeddings"], client.embed_all())
        np.testing.assert_array_equal(kept["labels"], partition.graphs.y)
        np.testing.assert_array_equal(kept["graph_ids"], partition.graph_ids)
        assert not list((root / f"client-{c}").glob("*.tmp"))


# Evaluation: local ---------------------------------------------------------------


@pytest.mark.slow
def test_local_scores_are_those_of_each_client(run):
    probed = {"num-clients": 2, "embedding.probe": True, "embedding.rounds": "0,1"}
    finished = run("fclg", **probed)
    root = finished.path.parents[1] / "state" / finished.summary["experiment"]
    for c in range(2):
        kept = np.load(root / f"client-{c}" / "embeddings.npz")
        e, y = kept["embeddings"], kept["labels"]
        expected = embedding_scores.all_scores(
            e, y, num_classes=2, seed=10, headline="l2"
        ) | embedding_scores.probe_scores(e, y, seed=10)
        found = {
            key[4]: value
            for key, value in finished.values(*expected).items()
            if key[:4] == ("3", str(c), "all", "post_aggregation")
        }
        assert found == expected
    measured = {key[0] for key in finished.values("accuracy")}
    assert measured == {"0", "1", "3"}
    assert finished.summary["final"]["num_clients"] == 2


# MOON ----------------------------------------------------------------------------


# A method, the key of the term's weight, and the method without the term.
TERMS = pytest.mark.parametrize(
    ("method", "weight", "plain"),
    [
        ("moon", "moon.mu", "fedavg"),
        ("infograph", "infomax.moon-mu", "infograph"),
        ("mvgrl", "infomax.moon-mu", "mvgrl"),
    ],
)


@pytest.mark.slow
@TERMS
def test_moon_without_weight_is_fedavg(once, method, weight, plain):
    two = {"num-server-rounds": 2}
    without = once(plain, **two).models["global"]
    assert close(once(method, **two, **{weight: 0.0}).models["global"], without, 1e-6)
    strong = once(method, **two, **{weight: 5.0}).models["global"]
    assert not close(strong, without, 1e-4)


@pytest.mark.parametrize("method", ["infograph", "mvgrl"])
def test_a_baseline_trains_on_the_loss_of_its_oracle(tmp_path, method):
    """One step on all graphs: what is told is the loss of the model that was sent."""
    one = {"local-epochs": 1, "batch-size": 100, "hidden-dim": 5}
    client = toys.make_client(tmp_path, method, **one)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in client.model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    graphs, start = client.job.data.partition.graphs, copy.deepcopy(client.model)
    if method == "infograph":
        expected = infograph.loss(start.train(), graphs)
    else:
        matrices = [s for _, _, s in oracle.triples(graphs)]
        expected = mvgrl.loss(start, graphs, matrices)
    reply = client.participate(toys.parcel(client), ROUND)
    told = reply.metrics["eval/train/post_training/loss"]
    assert told == pytest.approx(expected, rel=1e-4)


def slopes_of(loss, client) -> list[torch.Tensor]:
    parameters = list(client.model.parameters())
    return list(torch.autograd.grad(loss, parameters, retain_graph=True))


@pytest.mark.parametrize("method", ["infograph", "mvgrl"])
def test_fedprox_s_term_is_added_to_the_loss_of_a_baseline(tmp_path, method):
    client = toys.make_client(tmp_path, method, **{"infomax.proximal-mu": 0.6})
    toys.begun(client)
    client.model.train()
    named = dict(client.model.named_parameters())
    received = {n: p.detach().numpy().copy() for n, p in named.items()}
    with torch.no_grad():
        for parameter in named.values():
            parameter += 0.1
    (batch,) = client.job.data.batches()
    total, objective = client.loss(batch, None), client.objective(batch)
    moved = {n: p.detach().numpy() for n, p in named.items()}
    expected = fedprox.penalty(moved, received, 0.6)
    assert (total - objective).item() == pytest.approx(expected, rel=1e-4)
    pairs = zip(slopes_of(total, client), slopes_of(objective, client), strict=True)
    for ours, plain in pairs:
        torch.testing.assert_close(ours, plain + 0.6 * 0.1, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["infograph", "mvgrl"])
def test_moon_s_term_is_added_to_the_loss_of_a_baseline(tmp_path, method):
    """By three real models and the log of a softmax over two cosines."""
    term = {"infomax.moon-mu": 2.0}
    client = toys.make_client(tmp_path, method, **term)
    toys.begun(client)
    torch.manual_seed(3)
    for model in (client.model, moved := copy.deepcopy(client.model)):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.2 * torch.randn_like(parameter)
    received = copy.deepcopy(client.model)
    stored = {f"previous/{n}": t for n, t in moved.state_dict().items()}
    client.round = replace(client.round, stored=stored)
    client.model.train()
    client.freeze()
    with torch.no_grad():
        for parameter in client.model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    (batch,) = client.job.data.batches()
    total = client.loss(batch, None)  # BatchNorm's running values move first
    z, towards, away = (
        client.represent(m, batch).double() for m in (client.model, received, moved)
    )
    pairs = [torch.cosine_similarity(z, other) / 0.5 for other in (towards, away)]
    expected = -torch.log_softmax(torch.stack(pairs), dim=0)[0].mean()
    objective = client.objective(batch)
    assert (total - objective).item() == pytest.approx(2.0 * expected.item(), rel=1e-4)
    assert expected.item() != pytest.approx(math.log(2), rel=1e-3)
    pairs = slopes_of(total, client), slopes_of(objective + 2.0 * expected, client)
    for ours, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-5)


# Found in review -----------------------------------------------------------------


def test_scores_of_some_clients_are_kept_apart_from_those_of_all(run):
    with failing_client(client=1, server_round=2):
        finished = run("fclg", **POOLED, **{"min-fit-replies": 0.5})
    seen = {k[0]: k[2] for k in finished.values("accuracy")}
    assert seen == {"0": "all", "1": "answered", "3": "all"}
    assert finished.summary["best_labelled"]["round"] != 1
    assert finished.summary["final"]["mean"] is not None


def test_a_node_with_a_configuration_of_its_own_is_a_site(run):
    node = {"partition-id": 0, "num-partitions": 1, "data-path": "/data"}
    with pytest.raises(RunFailedError, match=REFUSED):
        run("fclg", node_configs=[node], **POOLED)
