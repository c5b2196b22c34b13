"""AdaFGL: links, smoothing, signed similarity, fusion, its two stages, what travels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys
from oracles import adafgl as oracle
from toys import seeded
from toys_fedgkd import ON_NODES, make

from clients.adafgl import homophily_score
from clients.models.adafgl_nets import (
    Outputs,
    fused,
    predicted_links,
    signed_similarity,
)
from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.core.wire import Parcel

STAGES = {"adafgl.federated-rounds": 2, "adafgl.personal-epochs": 2}
LAST = {"server-round": 3}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def random_edges(n=7, seed=0):
    upper = np.triu(np.random.default_rng(seed).random((n, n)) < 0.4, 1)
    upper[:, -1] = False  # the last node is isolated
    return (upper | upper.T).astype(float)


# Parts -----------------------------------------------------------------------------


@pytest.mark.parametrize("least", [0.9, 0.97, 1.0])
def test_links_agree_with_the_oracle(least):
    known = torch.softmax(3 * drawn(8, 3), 1)
    found = predicted_links(known, least)
    np.testing.assert_array_equal(found, oracle.links(known.tolist(), least))
    assert torch.equal(found, found.t())
    alike = predicted_links(known[:1].expand(4, 3), 0.999)
    np.testing.assert_array_equal(alike, 1 - np.eye(4))


@pytest.mark.parametrize("beta", [0.0, 0.2, 1.0])
def test_signed_similarity_and_what_it_spreads_agree_with_the_oracle(beta):
    f, edges = drawn(7, 3), random_edges(seed=2)
    found = signed_similarity(f, torch.from_numpy(edges), beta)
    want = oracle.signed_similarity(f.tolist(), edges, beta)
    np.testing.assert_allclose(found, want, atol=1e-9)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_fusion_agrees_with_the_oracle_and_rows_sum_to_one(share):
    parts = [drawn(5, 3, seed=k) for k in range(4)]
    known = torch.softmax(drawn(5, 3, seed=9), 1)
    found = fused(Outputs(*parts), known, share)
    homo, *others = (z.tolist() for z in parts)
    want = oracle.fused(homo, others, known.tolist(), share)
    np.testing.assert_allclose(found, want, atol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1)


def clique_graph(tmp_path, y, edges):
    part = toys.make_node_partition()
    client = make(tmp_path, method="adafgl", partition=part)
    hat = torch.from_numpy(oracle.normalized(edges)).to(torch.get_default_dtype())

    class Graph(type(client.graph)):
        def __init__(self):
            pass

        def propagate(self, x):
            return hat @ x

    return Graph(), torch.tensor(y)


def test_the_homophily_score_by_hand_and_by_the_oracle(tmp_path):
    rng = np.random.default_rng
    two = np.kron(np.eye(2), np.ones((4, 4)) - np.eye(4))
    graph, y = clique_graph(tmp_path, [0] * 4 + [1] * 4, two)
    train = torch.arange(8)
    scores = [homophily_score(graph, y, train, 2, rng(s)) for s in range(5)]
    assert max(scores) == 1.0
    ring = np.roll(np.eye(8), 1, 0) + np.roll(np.eye(8), -1, 0)
    graph, y = clique_graph(tmp_path, [0, 1] * 4, ring)
    found = homophily_score(graph, y, train, 2, rng(3))
    order = rng(3).permutation(8)
    want = oracle.homophily(ring, y.tolist(), order[:4], order[4:], 2)
    assert found == want
    assert homophily_score(graph, y, train[:0], 2, rng(0)) == 0.5


# Stages ----------------------------------------------------------------------------


def test_the_first_stage_is_fedavg(run, once):
    ours = run("adafgl", **ON_NODES, **{"adafgl.federated-rounds": 9})
    plain = once("fedavg", **ON_NODES)
    for key, value in plain.values("loss", "accuracy").items():
        assert ours.values("loss", "accuracy")[key] == value
    for name, array in plain.models["global"].items():
        found = ours.models["global"][f"extractor.{name}"]
        np.testing.assert_array_equal(found, array)


def test_no_array_goes_up_after_the_first_stage_and_the_model_down_once(run):
    finished = run("adafgl", **STAGES, **{"num-server-rounds": 5})
    sent = {
        (r["direction"], int(r["round"]))
        for r in finished.ledger
        if r["record"] == "arrays" and int(r["bytes"])
    }
    assert sent == {("up", 1), ("up", 2), ("down", 1), ("down", 2), ("down", 3)}


def test_a_result_is_chosen_among_the_clients_own_rounds(run):
    few = {"num-server-rounds": 6, "adafgl.federated-rounds": 4}
    found = run("adafgl", **ON_NODES, **few).summary
    for rule in ("best_val", "best_val_trained"):
        assert found[rule]["round"] > 4
        assert found[rule]["protocol"].endswith("; of the rounds from 5 on")
    alone = run("adafgl", **ON_NODES, **few | {"adafgl.federated-rounds": 6}).summary
    assert alone["best_val"]["mean"] is None  # no client trained by itself


def personal(client):
    """Let a client train a first round of its own."""
    return client.participate(toys.parcel(client), LAST)


def test_a_round_of_its_own_keeps_the_extractor_and_trains_the_branches(tmp_path):
    client = make(tmp_path, method="adafgl", **STAGES)
    before = {n: t.detach().clone() for n, t in client.tensors().items()}
    reply = personal(client)
    assert reply.arrays == {}
    moved = {n for n, t in client.tensors().items() if not torch.equal(t, before[n])}
    assert moved == {n for n in before if n.startswith("branches.")}
    assert np.isfinite(reply.metrics["eval/test/post_training/loss"])


@pytest.mark.parametrize("kept", [True, False])
def test_two_rounds_of_its_own_are_those_of_the_oracle(tmp_path, monkeypatch, kept):
    part = toys.make_node_partition()
    part = toys.renewed(part, train=part.train[:-1])  # 5 keep a label, 6 are checked
    how = {"alpha": 0.3, "beta": 0.4, "hops": 2, "weight-decay": 0.1}
    how |= {"learning-rate": 0.05, "link-cosine": 0.999}
    for name, value in {**how, "width": 5}.items():
        constant = name.replace("-", "_").upper()
        monkeypatch.setattr(f"clients.adafgl.{constant}", value)
    options = {**STAGES, "dropout": 0.0}
    options |= {"optimizer": "adamw", "persist-optimizer": kept}  # of the first stage
    client, later = (
        make(tmp_path, method="adafgl", partition=part, **options) for _ in range(2)
    )
    edges, train = np.zeros((20, 20)), part.train.tolist()
    edges[tuple(part.graphs.edge_index)] = 1
    with torch.no_grad():
        known = torch.softmax(client.model.extractor(client.graph, None), 1).tolist()
    start = {n: t.detach().clone() for n, t in client.model.branches.named_parameters()}
    *branches, links = oracle.own_stage(
        start,
        part.graphs.x,
        edges,
        part.graphs.y,
        train,
        known,
        how,
        steps=4,
    )
    assert 0 < links.sum() < 19 * 20  # some, and not all pairs
    order = numpy_rng(client.job.settings.seed, 0, "hcs").permutation(train)
    score = oracle.homophily(edges, part.graphs.y, order[:5], order[5:], 3)
    assert 0 < score < 1
    homo, *others = (z.tolist() for z in branches)
    want = oracle.fused(homo, others, known, score)
    personal(client)
    later.participate(Parcel(facts={"last-round": 3}), {"server-round": 4})
    found = later.logits(None).exp().detach()
    np.testing.assert_allclose(found, want, atol=1e-4)


def test_a_client_that_missed_its_first_own_round_still_gets_the_model(
    run, monkeypatch
):
    toys.fail_when(monkeypatch, lambda client, number: (client, number) == (1, 3))
    options = {**STAGES, "num-server-rounds": 4, "min-fit-replies": 0.5}
    finished = run("adafgl", **options)
    got = {
        (int(r["round"]), int(r["client"]))
        for r in finished.ledger
        if r["direction"] == "down" and r["record"] == "arrays" and int(r["bytes"])
    }
    assert {(t, c) for t, c in got if t > 2} == {(3, 0), (3, 1), (3, 2), (4, 1)}


def test_a_run_without_a_round_of_the_clients_own_is_doubted():
    longer = {**STAGES, "num-server-rounds": 3, "batch-size": "auto"}
    assert toys.resolved("adafgl", **longer).warnings == ()
    (told,) = toys.resolved("adafgl", **{**longer, "num-server-rounds": 2}).warnings
    assert "no client trains on its own" in told


def test_too_many_nodes_are_refused_before_any_training(run, monkeypatch):
    monkeypatch.setattr("clients.models.adafgl_nets.MOST_NODES", 3)
    words = "round 1: .* adafgl takes at most 3 per client"
    with pytest.raises(RunFailedError, match=words):
        run("adafgl", **STAGES)
