"""FedTAD: reliability, pseudo graphs, distillation; neutral settings, what travels."""

from functools import partial

import numpy as np
import pytest
import torch
import toys
from oracles import fedtad as oracle

from clients import fedtad_distillation as made
from clients.fedtad import likeness
from clients.models.node_gnn import NodeGNN
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.seeding import derive_seed
from fedgraph_flwr.core.wire import Parcel, select, unpack
from fedgraph_flwr.methods.fedtad import RELIABILITY, FedTADParams
from strategies.fedtad import FedTAD, shares_of

KINDS = ("landing", "none", "counts")
WIDTHS = {"num_features": 6, "num_classes": 3}


# What a client tells ---------------------------------------------------------------


def told(tmp_path, part, kind):
    given = {"fedtad.reliability": kind}
    client = toys.make_client(tmp_path, "fedtad", partition=part, **given)
    return client.reliability().numpy()


def shuffled(part):
    """The same client, with its nodes in another order."""
    graphs = part.graphs
    order = np.random.default_rng(1).permutation(graphs.num_nodes)
    at = np.argsort(order)
    edges = at[graphs.edge_index]
    edges = edges[:, np.lexsort(edges[::-1])].astype(np.int32)
    changed = {"x": graphs.x[order], "y": graphs.y[order], "edge_index": edges}
    roles = {r: np.sort(at[getattr(part, r)]) for r in ("train", "val", "test")}
    return toys.renewed(part, graphs=toys.replace(graphs, **changed), **roles)


@pytest.mark.parametrize("kind", KINDS)
def test_reliability_is_the_oracles_whatever_the_order_of_nodes(tmp_path, kind):
    """The last node, which trains, is isolated."""
    part = toys.make_node_partition(num_nodes=21)
    graphs = part.graphs
    adjacency = np.zeros((21, 21))
    adjacency[tuple(graphs.edge_index)] = 1
    assert 20 in part.train
    assert not adjacency[20].any()
    found = told(tmp_path / "a", part, kind)
    args = graphs.x, adjacency, graphs.y, part.train, 3, kind
    np.testing.assert_allclose(found, oracle.reliability(*args), rtol=1e-5)
    np.testing.assert_allclose(told(tmp_path / "b", shuffled(part), kind), found, 1e-5)
    y = graphs.y.copy()
    rest = np.concatenate([part.val, part.test])
    y[rest] = y[rest[::-1]]
    other = toys.renewed(part, graphs=toys.replace(graphs, y=y))
    np.testing.assert_array_equal(told(tmp_path / "c", other, kind), found)
    same = toys.replace(graphs, x=np.ones_like(graphs.x))
    if kind != "landing":
        counts = np.bincount(graphs.y[part.train], minlength=3)
        alike = told(tmp_path / "d", toys.renewed(part, graphs=same), kind)
        np.testing.assert_allclose(alike, counts, rtol=1e-6)


def test_neighbours_of_opposite_features_count_nothing():
    star = torch.tensor([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]]).to_sparse_csr()
    found = likeness(torch.tensor([[2.0], [-1], [-1]]), star)
    assert found.tolist() == [0, 0, 0]  # not (1 - 2) / 3


def test_shares_of_a_class_sum_to_1_or_nobody_has_it():
    found = shares_of(np.array([[3.0, 0, 0], [1, 2, 0]]))
    np.testing.assert_array_equal(found, [[0.75, 0, 0], [0.25, 1, 0]])


# What the server makes -------------------------------------------------------------


def test_pseudo_graphs_are_the_oracles():
    x = torch.randn(30, 6, generator=toys.seeded())
    loops = made.pseudo_graph(x).adjacency + torch.eye(30)
    assert loops.tolist() == oracle.pseudo_graph(x.numpy())
    assert torch.equal(loops, loops.T)
    assert loops.sum(1).min() >= 5
    order = torch.randperm(30, generator=toys.seeded())
    mixed = made.pseudo_graph(x[order]).adjacency + torch.eye(30)
    assert torch.equal(mixed, loops[order][:, order])
    labels = made.pseudo_labels(7).tolist()
    assert labels == [*np.repeat(range(7), 14), 6, 6]


def test_terms_are_the_oracles_and_equal_shares_make_means():
    z, x = torch.randn(2, 9, 6, generator=toys.seeded()).double()
    found = float(made.diversity(z, x))
    assert found == pytest.approx(oracle.diversity(z.numpy(), x.numpy()))
    assert 0 < found < 1 == float(made.diversity(z, x[:1].expand(9, -1)))
    labels, shares = torch.tensor([0] * 3 + [1] * 4 + [2] * 2), torch.rand(2, 3)
    learned, *taught = torch.randn(3, 9, 3, generator=toys.seeded())
    for some in (shares, torch.full((2, 3), 0.5)):
        apart = made.divergence(learned, torch.stack(taught), made.weigh(some, labels))
        by_node = [(learned - t).abs().mean(1) for t in taught]
        expected = oracle.per_class(by_node, labels.tolist(), some)
        torch.testing.assert_close(apart, expected)
    means = [torch.stack([b[labels == c].mean() for c in range(3)]) for b in by_node]
    torch.testing.assert_close(apart, torch.stack(means).sum(1).mean())


def resolved(**changes):
    given = {"encoder": "gcn2", "dropout": 0.0, "fedtad.distillations": 2, **changes}
    run = toys.resolved("fedtad", **given)
    return run, partial(made.distil, run.method.client, run.spec, WIDTHS)


def models(run, count=3, spread=0.3):
    start = made.start_of(run.method.client, run.spec(**WIDTHS)).arrays()
    rng = np.random.default_rng(0)
    return [
        {n: np.float32(a + spread * rng.normal(size=a.shape)) for n, a in start.items()}
        for _ in range(count)
    ]


SHARES = np.array([[0.3, 1, 0], [0.7, 0, 0]])  # nobody has the last class


def test_two_rounds_are_the_oracles(monkeypatch):
    """Optimisers go on over the average that is put in between."""
    monkeypatch.setattr(made, "NODES", 12)
    monkeypatch.setattr(made.pseudo_labels, "__defaults__", (12,))
    run, distil = resolved(**{"fedtad.semantic-weight": 0.3})
    given, seed = models(run), run.settings.seed
    init = toys.seeded(derive_seed(seed, "server", "generator"))
    g = [p.detach() for p in made.Generator(6, 3, init).parameters()]
    slow = oracle.Server(g, [0] * 4 + [1] * 4 + [2] * 4, SHARES, 0.3, 5)
    ours = [[torch.from_numpy(a) for a in m.values()] for m in given]
    kept = {}
    for number in (1, 2):
        draws = toys.seeded(derive_seed(seed, "server", number, "distil"))
        noise = torch.randn(2, 12, 32, generator=draws)
        theta, kept, _ = distil(number, given, SHARES, kept)
        expected = slow.distil(ours[0], ours[1:], noise)
        for mine, theirs in zip(theta.values(), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=2e-5)
        names = [n for n in select("generator/", kept) if "adam" not in n]
        for name, theirs in zip(names, slow.g, strict=True):
            np.testing.assert_allclose(kept[f"generator/{name}"], theirs, atol=2e-5)
    assert max(np.abs(theta[n] - a).max() for n, a in given[0].items()) > 1e-3
    assert not [n for n in kept if not n.startswith(("generator/", "model/"))]


def test_gradients_are_finite_differences():
    """Of both losses; what the clients' models say is a constant of the distance."""
    gen = toys.seeded(3)
    shape = {"hidden_dim": 4, "num_layers": 2, "dropout": 0.5, "ends_in_conv": True}
    nets = [NodeGNN(3, 2, **shape, generator=gen).double() for _ in range(3)]
    g, labels = made.Generator(3, 2, gen).double(), torch.tensor([0, 0, 0, 1, 1, 1])
    z = torch.randn(6, 32, generator=gen).double()
    weights = made.weigh(torch.tensor([[0.2, 0.5], [0.8, 0.5]]).double(), labels)
    x = g(labels, z).detach()
    graph = made.pseudo_graph(x)
    fixed = made.all_logits(nets[1:], x, graph).detach()

    def of_generator(is_numeric):
        x = g(labels, z)
        terms = made.generator_terms(nets, x, z, labels, weights)
        if is_numeric:
            terms["divergence"] = made.divergence(
                nets[0].logits(x, graph), fixed, weights
            )
        return terms["semantic"] - terms["divergence"] + terms["diversity"]

    def of_model(_):
        return made.divergence(nets[0].logits(x, graph), fixed, weights)

    for loss, module in ((of_generator, g), (of_model, nets[0])):
        for tensor in module.parameters():
            (found,) = torch.autograd.grad(loss(False), tensor)
            flat, k = tensor.data.view(-1), int(found.abs().argmax())
            old, ends = flat[k].item(), []
            for moved in (old + 1e-6, old - 1e-6):
                flat[k] = moved
                ends.append(float(loss(True).detach()))
            flat[k] = old
            expected = (ends[0] - ends[1]) / 2e-6
            assert found.view(-1)[k] == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_each_step_changes_its_own_part_and_only_the_learner_has_dropout(monkeypatch):
    run, distil = resolved(**{"dropout": 0.5, "fedtad.distillations": 1})
    given = models(run)
    before = [{n: a.copy() for n, a in m.items()} for m in given]
    calls, logits = [], NodeGNN.logits

    def watched(self, x, graph, generator=None):
        calls.append((id(self), generator is not None))
        return logits(self, x, graph, generator)

    monkeypatch.setattr(NodeGNN, "logits", watched)
    theta, kept, _ = distil(1, given, SHARES, {})
    assert {who for who, drops in calls if drops} == {calls[0][0]}
    assert [drops for _, drops in calls] == [False] * 5 + [True] * made.MODEL_STEPS
    monkeypatch.setattr(made, "MODEL_STEPS", 0)
    still, same, _ = distil(1, given, SHARES, {})
    begun = made.Generator(
        6, 3, toys.seeded(derive_seed(run.settings.seed, "server", "generator"))
    )
    for name, tensor in begun.state_dict().items():
        assert not np.array_equal(same[f"generator/{name}"], tensor)
        np.testing.assert_array_equal(
            kept[f"generator/{name}"], same[f"generator/{name}"]
        )
    for name, array in given[0].items():
        np.testing.assert_array_equal(still[name], array)
        assert not np.array_equal(theta[name], array)
        for old, now in zip(before, given, strict=True):
            np.testing.assert_array_equal(old[name], now[name])


@pytest.mark.parametrize(
    ("count", "dropout", "is_still"), [(2, 0.0, True), (4, 0.0, True), (4, 0.5, False)]
)
def test_equal_clients_teach_nothing_without_dropout(
    monkeypatch, count, dropout, is_still
):
    monkeypatch.setattr(made, "DECAY", 0.0)
    run, distil = resolved(dropout=dropout, **{"fedtad.distillations": 1})
    given = models(run, count=1) * count
    theta, _, terms = distil(1, given, np.full((count - 1, 3), 1 / (count - 1)), {})
    assert terms["divergence"] == 0
    found = [np.array_equal(theta[n], a) for n, a in given[0].items()]
    assert all(found) is is_still


# Whole runs ------------------------------------------------------------------------


def test_without_distillation_it_is_fedavg_and_says_so(run, once):
    plain, off = once("fedavg node-classification"), {"fedtad.distillations": 0}
    none = run("fedtad", **off)
    assert (none.sha, none.rounds) == (plain.sha, plain.rounds)
    assert not toys.resolved("fedtad", **off).params.sends()
    assert none.summary["inert"] == "has fedtad.distillations 0: FedAvg"
    alike = run("fedtad", **{"fedtad.reliability": "uniform"})
    assert len({none.sha, alike.sha, once("fedtad").sha}) == 3


def test_reliability_travels_once_and_nothing_else_beside_models(run, monkeypatch):
    """The reply of client 1 in round 1 is lost, so it tells again."""
    sent = []

    def look(message, reply):
        for client, parcel in unpack(reply.content)[0].items():
            sent.append((toys.round_of(message), client, {*parcel.arrays}))

    toys.on_delivery(monkeypatch, after=look)
    toys.lose_reply(monkeypatch, server_round=1, client=1)
    run("fedtad", nodes=3, **{"min-fit-replies": 0.5})
    told = [at[:2] for at in sent if RELIABILITY in at[2]]
    assert sorted(told) == [(1, 0), (1, 1), (1, 2), (2, 1)]
    names = {n for _, _, names in sent for n in names}
    assert {n for n in names if not n.startswith("shared/")} == {RELIABILITY}


@pytest.mark.parametrize(
    ("phi", "words"),
    [([-1, 2], "least is -1"), ([6, 6], "sum to 12, the least is 6, and it has 9")],
)
def test_a_reliability_that_cannot_be_is_that_clients_failure(phi, words):
    server = FedTAD(toys.run_settings(), FedTADParams(), experiment="e")
    server.clients = {c: toys.info(c, num_train=9) for c in (0, 1)}
    good = {RELIABILITY: np.float32([5, 4])}
    replies = {0: Parcel(arrays={RELIABILITY: np.float32(phi)}), 1: Parcel(arrays=good)}
    found = server.misfits(replies)
    assert found.keys() == {0}
    assert words in found[0]


def test_parts_of_models_and_too_many_classes_are_refused():
    with pytest.raises(ConfigError, match="shared-group must be 'all' for fedtad"):
        toys.resolved("fedtad", **{"shared-group": "body"})
    with pytest.raises(ConfigError, match="at most 100 classes, got 101"):
        made.pseudo_labels(101)
