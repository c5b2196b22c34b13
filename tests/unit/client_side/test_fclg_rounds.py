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
from oracles import infograph, mvgrl
from oracles.jsd import dense

from clients.fclg import FCLGClient
from clients.moon import MoonClient
from fedgraph_flwr.core import embedding_scores
from fedgraph_flwr.core.errors import RunFailedError
from simulations.contract import failing_client

ROUND = {"server-round": 1}
INTERS = ("graphs", "nodes", "none", "kl", "mse", "previous-round")
QUICK = {"embedding.probe": False}
POOLED = {**QUICK, "embedding.evaluation": "pooled", "embedding.rounds": "0,1"}
OWN_STEPS = {"batch-size": 3, "persist-optimizer": False, "weight-decay": 0.1}
SILENT = {**POOLED, "embedding.rounds": "", "num-server-rounds": 2}


def weights(model) -> dict[str, torch.Tensor]:
    return {n: t.detach().clone().double() for n, t in model.state_dict().items()}


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


# Evaluation: what leaves a site --------------------------------------------------


REFUSED = r"PolicyError \(pooled-evaluation\): see docs/privacy.md"


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


# MOON ----------------------------------------------------------------------------


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
