"""Our GIN is PyG's GIN, and a dense one, and blind to the numbering of nodes."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from oracles.gin import dense_forward, twin
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrize import register_parametrization
from torch_geometric.data import Batch as PygBatch
from torch_geometric.loader import DataLoader

from clients.base import start_of
from clients.graphs.batching import ClientData, CollatedGraphs
from clients.models.gin import GINConv
from clients.tasks.class_scores import class_scores
from clients.tasks.graph_classifier import GraphClassifierClient
from clients.training import evaluate, train_epochs
from fedgraph_flwr.data import GraphSet
from fedgraph_flwr.resolve import defaults, resolve


def build_gin(num_features=4, num_classes=2, client_id=0, **keys):
    widths = {"num_features": num_features, "num_classes": num_classes}
    spec = replace(toys.resolved(**keys).spec(**widths), client_id=client_id)
    return GraphClassifierClient.build_model(spec)


@pytest.fixture
def model():
    return build_gin()


@pytest.mark.parametrize("dense", [False, True])
def test_logits_and_gradients_equal_pygs(model, dense):
    graphs = toys.random_graphs(9, dense=dense)
    reference = twin(model, 4, 2)
    ours = model(CollatedGraphs(graphs, toys.CPU).batch(np.arange(9)), None)
    theirs = reference(PygBatch.from_data_list(toys.to_pyg(graphs)))
    torch.testing.assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for name, parameter in reference.ours().items():
        got = dict(model.named_parameters())[name].grad
        torch.testing.assert_close(got, parameter.grad, rtol=1e-4, atol=1e-5)


def test_logits_equal_the_dense_oracle(model):
    graphs = toys.random_graphs(5, dense=True)
    weights = {n: p.detach().numpy() for n, p in model.named_parameters()}
    for g in range(5):
        one = graphs.take(np.array([g]))
        n = one.num_nodes
        adjacency = np.zeros((n, n))
        adjacency[one.edge_index[0], one.edge_index[1]] = 1
        expected = dense_forward(weights, one.x, adjacency, num_layers=2)
        batch = CollatedGraphs(one, toys.CPU).batch(np.array([0]))
        got = model(batch, None)[0].detach().numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_renumbering_nodes_changes_nothing(model):
    graph = toys.random_graphs(8, dense=True).take(np.array([7]))
    n = graph.num_nodes
    new = np.random.default_rng(0).permutation(n)  # node v becomes new[v]
    edges = new[graph.edge_index]
    order = np.lexsort((edges[1], edges[0]))
    x = np.empty_like(graph.x)
    x[new] = graph.x
    renumbered = GraphSet(
        name="toy", x=x, edge_index=edges[:, order], node_ptr=graph.node_ptr,
        edge_ptr=graph.edge_ptr, y=graph.y, num_features=4, num_classes=2,
        is_undirected=True,
    )  # fmt: skip
    logits = [
        model(CollatedGraphs(g, toys.CPU).batch(np.array([0])), None)
        for g in (graph, renumbered)
    ]
    torch.testing.assert_close(logits[0], logits[1])


def test_training_without_dropout_equals_a_plain_pyg_loop(model):
    partition = toys.make_partition(num_graphs=40)
    data = ClientData.collate(partition, toys.CPU)
    reference = twin(model, 4, 2)
    cross_entropy = torch.nn.functional.cross_entropy
    loss = train_epochs(
        lambda b: cross_entropy(model(b, None), b.y),
        torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4, fused=True),
        data,
        num_epochs=3,
        batch_size=7,
        generator=torch.Generator().manual_seed(1),
    )
    optimizer = torch.optim.Adam(reference.parameters(), 1e-2, weight_decay=5e-4)
    shuffle = torch.Generator().manual_seed(1)
    graphs = toys.to_pyg(partition.graphs)
    for _ in range(3):
        order = partition.train[torch.randperm(24, generator=shuffle).numpy()]
        total = 0.0
        for batch in DataLoader([graphs[p] for p in order], batch_size=7):
            optimizer.zero_grad()
            value = cross_entropy(reference(batch), batch.y)
            value.backward()
            optimizer.step()
            total += value.item() * batch.num_graphs
    assert loss == pytest.approx(total / 24, abs=1e-5)
    named = dict(model.named_parameters())
    for name, parameter in reference.ours().items():
        torch.testing.assert_close(named[name], parameter, rtol=1e-4, atol=1e-5)


def test_evaluation_equals_one_graph_at_a_time(model):
    partition = toys.make_partition(num_graphs=35)
    data = ClientData.collate(partition, toys.CPU, max_nodes=20)
    logits, losses = evaluate(model, data)
    scores = class_scores(partition, "here", logits.numpy(), losses.numpy()).metrics
    reference = twin(model, 4, 2)
    graphs = toys.to_pyg(partition.graphs)
    for split in ("val", "test"):
        chosen = partition.positions(split)
        one_by_one = [
            reference(PygBatch.from_data_list([graphs[p]]))[0].detach() for p in chosen
        ]
        y = torch.from_numpy(partition.graphs.y[chosen])
        logits = torch.stack(one_by_one)
        assert scores[f"count/{split}"] == len(chosen) == 7
        hits = (logits.argmax(1) == y).double().mean().item()
        assert scores[f"eval/{split}/here/accuracy"] == pytest.approx(hits)
        expected = torch.nn.functional.cross_entropy(logits, y).item()
        assert scores[f"eval/{split}/here/loss"] == pytest.approx(expected, abs=1e-6)


def test_the_paper_model_shares_24960_numbers_and_nothing_private():
    run = resolve({**defaults(), "dataset": "PROTEINS"})
    spec = run.spec(num_features=3, num_classes=2)
    shared = start_of(GraphClassifierClient, spec).arrays()
    assert len(shared) == 12
    assert sum(a.size for a in shared.values()) == 24_960
    assert all(a.dtype == np.float32 for a in shared.values())
    assert all(n.startswith("convs.") for n in shared)


class OtherConv(GINConv):
    """A layer that could do anything, and does what it did."""


def pieces(model, batch, dropout: float) -> list[torch.Tensor]:
    """Return logits with and without gradients, and all gradients."""
    model.dropout = dropout
    seed = torch.Generator().manual_seed(5) if dropout else None
    with torch.no_grad():
        alone = model(batch, None)
    model.zero_grad()
    logits = model(batch, seed)
    (
        logits.sin() * torch.arange(1.0, 1 + logits.numel()).view_as(logits)
    ).sum().backward()
    drawn = [] if seed is None else [seed.get_state()]
    return [alone, logits, *drawn, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("hidden", [5, 64])
@pytest.mark.parametrize("dense", [False, True])
def test_all_layers_in_one_step_equal_layer_after_layer_to_the_bit(
    dense, hidden, dropout
):
    model, other = (build_gin(**{"hidden-dim": hidden}) for _ in range(2))
    for conv in other.convs:
        conv.__class__ = OtherConv
    batch = CollatedGraphs(toys.random_graphs(30, dense=dense), toys.CPU).batch(
        np.arange(30)[::-1]
    )
    found, expected = pieces(model, batch, dropout), pieces(other, batch, dropout)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


def test_a_frozen_part_gets_no_gradient(model):
    frozen = [model.convs[0].mlp[0].weight, model.post.bias, *model.pre.parameters()]
    for parameter in frozen:
        parameter.requires_grad_(False)
    batch = CollatedGraphs(toys.random_graphs(9), toys.CPU).batch(np.arange(9))
    model(batch, None).sum().backward()
    left = [n for n, p in model.named_parameters() if p.grad is None]
    assert left == ["pre.weight", "pre.bias", "convs.0.mlp.0.weight", "post.bias"]


class Shifted(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def shift_linear(model):
    model.convs[1].mlp[2].__class__ = Shifted


def shift_post(model):
    model.post.__class__ = Shifted


def hook_conv(model):
    model.convs[0].register_forward_hook(lambda _module, _given, y: y + 1)


def hook_linear(model):
    model.convs[1].mlp[0].register_forward_pre_hook(lambda _module, given: given[0] + 1)


def hook_relu(model):
    model.convs[0].mlp[1].register_forward_hook(lambda _module, _given, y: y + 1)


def hook_post(model):
    model.post.register_full_backward_hook(lambda _module, given, _: (given[0] * 2,))


def leave_out_a_bias(model):
    model.convs[0].mlp[0].bias = None


def other_activation(model):
    model.convs[0].mlp[1] = torch.nn.Tanh()


def more_steps(model):
    model.convs[0].mlp.append(torch.nn.Tanh())


def set_forward(model):
    conv = model.convs[0]
    conv.forward = lambda *given: 1 + GINConv.forward(conv, *given)


def set_forward_of_post(model):
    model.post.forward = torch.relu


class Called(torch.nn.Linear):
    def __call__(self, x):
        return 1 + super().__call__(x)


def own_call(model):
    model.convs[0].mlp[0].__class__ = Called


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return 2 * weight


def parametrize(model):
    register_parametrization(model.convs[0].mlp[2], "weight", Doubled())


def hold_as_buffer(model):
    linear = model.convs[0].mlp[0]
    doubled = 2 * linear.weight.detach()
    del linear.weight
    linear.register_buffer("weight", doubled)


def parametrize_post(model):
    register_parametrization(model.post, "bias", Doubled())


CHANGES = [
    *(shift_linear, shift_post, hook_conv, hook_linear, hook_relu, hook_post),
    *(leave_out_a_bias, other_activation, more_steps, set_forward, own_call),
    *(set_forward_of_post, parametrize, parametrize_post, hold_as_buffer),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_whose_parts_somebody_changed_does_what_they_say(model, change):
    batch = CollatedGraphs(toys.random_graphs(9), toys.CPU).batch(np.arange(9))
    before = pieces(model, batch, 0.0)
    change(model)
    after = pieces(model, batch, 0.0)
    assert any(
        a.shape != b.shape or not a.equal(b) for a, b in zip(before, after, strict=True)
    )


def test_hooks_of_all_modules_are_called(model):
    batch = CollatedGraphs(toys.random_graphs(9), toys.CPU).batch(np.arange(9))
    called = []
    handle = register_module_forward_hook(lambda m, *_: called.append(type(m)))
    try:
        model(batch, None)
    finally:
        handle.remove()
    assert called.count(GINConv) == 2


def test_a_patched_layer_is_called(model, monkeypatch):
    batch = CollatedGraphs(toys.random_graphs(9), toys.CPU).batch(np.arange(9))
    monkeypatch.setattr(GINConv, "forward", lambda _self, x, _: torch.zeros_like(x))
    assert len(model(batch, None).unique(dim=0)) == 1


def test_layers_may_have_widths_of_their_own(model):
    """Dropout is drawn for what they put out."""
    other = copy.deepcopy(model)
    for m in (model, other):
        torch.manual_seed(0)
        m.dropout = 0.3
        m.convs[1].mlp[2], m.post = torch.nn.Linear(8, 24), torch.nn.Linear(24, 6)
        m.readout = torch.nn.Linear(6, 2)
    other.convs[0].__class__ = OtherConv
    batch = CollatedGraphs(toys.random_graphs(9), toys.CPU).batch(np.arange(9))
    seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
    assert model(batch, seeds[0]).equal(other(batch, seeds[1]))
    assert seeds[0].get_state().equal(seeds[1].get_state())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_of_gradients_are_those_of_layer_after_layer(model, dropout):
    """For instance of a penalty on gradients."""
    other = copy.deepcopy(model)
    other.convs[0].__class__ = OtherConv
    batch = CollatedGraphs(toys.random_graphs(9, dense=True), toys.CPU).batch(
        np.arange(9)
    )
    found = []
    for m in (model.double(), other.double()):
        m.dropout, seed = dropout, torch.Generator().manual_seed(1)
        features = batch.x.double().requires_grad_()
        doubled = replace(
            batch, x=features, adjacency=batch.adjacency.double(),
            membership=batch.membership.double(),
        )  # fmt: skip
        loss = m(doubled, seed).sin().sum()
        (slope,) = torch.autograd.grad(loss, features, create_graph=True)
        (loss + slope.square().sum()).backward()
        found.append([p.grad for p in m.parameters()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_products_with_second_derivatives_are_those_of_layer_after_layer(model):
    other = copy.deepcopy(model)
    other.convs[0].__class__ = OtherConv
    batch = CollatedGraphs(toys.random_graphs(9), toys.CPU).batch(np.arange(9))
    weight = model.convs[0].mlp[0].weight.detach()

    def product(m):
        def loss(w):
            named = {"convs.0.mlp.0.weight": w}
            return torch.func.functional_call(m, named, (batch, None)).sin().sum()

        return torch.autograd.functional.hvp(loss, weight, torch.ones_like(weight))[1]

    assert product(model).abs().max() > 0
    torch.testing.assert_close(product(model), product(other), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("global_rng_untouched")
def test_the_shared_start_is_common_and_the_private_one_is_not():
    one, other = build_gin(), build_gin(9, 3, client_id=1)
    for name in (n for n in one.state_dict() if n.startswith("convs.")):
        assert torch.equal(one.get_parameter(name), other.get_parameter(name))
    assert not torch.equal(one.post.weight, other.post.weight)
    models = [build_gin(client_id=c, **{"shared-group": "all"}) for c in (0, 1)]
    assert torch.equal(models[0].post.weight, models[1].post.weight)
