"""FCLG's losses, encoder and settings, against the slow transcription."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import fclg as oracle

from clients.graphs.csr import CollatedDiffusion
from clients.losses import distill_kl, distill_mse, model_contrast, nt_xent
from clients.models.weighted_gin import WeightedGIN
from clients.training import epoch_positions
from datasets.diffusion import diffuse
from fedgraph_flwr.core.data import DiffusionSpec, GraphPartition, GraphSet
from fedgraph_flwr.core.errors import ConfigError, DataError

SPEC = DiffusionSpec()
ROUND = {"server-round": 1}
AFTER_3 = {"server-round": 4, "last-round": 0}  # of which this client did none
EXACT = {"rtol": 1e-10, "atol": 1e-10}
sizes = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 5))


def rows(seed: int, *shape: int) -> torch.Tensor:
    draws = np.random.default_rng(seed).normal(size=shape)
    return torch.from_numpy(draws).double()


def view_of(graphs, spec=SPEC):
    view = CollatedDiffusion(diffuse(graphs, spec), graphs.node_ptr, toys.CPU)
    return view.batch(np.arange(len(graphs)))


def weights(model) -> dict[str, torch.Tensor]:
    return {n: t.detach().clone().double() for n, t in model.state_dict().items()}


def encoder(num_features=4, **kw) -> WeightedGIN:
    options = {"hidden_dim": 6, "num_layers": 3}
    return WeightedGIN(
        num_features, **{**options, **kw}, generator=torch.Generator().manual_seed(1)
    )


def make(tmp_path, partition=None, **overrides):
    named = {f"fclg.{k}".replace("_", "-"): v for k, v in overrides.items()}
    return toys.make_client(tmp_path, "fclg", partition=partition, **named)


def move(model, seed: int, scale=0.2) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += scale * torch.empty_like(p).uniform_(-1, 1, generator=generator)


def edgeless(num_nodes: list[int], num_classes=2) -> GraphSet:
    """Graphs without any edge."""
    ends = np.cumsum([0, *num_nodes]).astype(np.int64)
    return GraphSet(
        name="edgeless",
        x=(np.arange(ends[-1]) % 4).astype(np.uint8),
        edge_index=np.zeros((2, 0), np.int32),
        node_ptr=ends,
        edge_ptr=np.zeros(len(ends), np.int64),
        y=np.arange(len(num_nodes), dtype=np.int64) % num_classes,
        num_features=4,
        num_classes=num_classes,
        is_undirected=True,
    )


def partition_of(graphs: GraphSet):
    ids = np.arange(len(graphs))
    parts = {"train": ids, "val": ids[:0], "test": ids[:0]}
    return GraphPartition(client_id=0, graphs=graphs, graph_ids=ids, **parts)


# NT-Xent (5), (6) ----------------------------------------------------------------


@given(sizes, st.floats(0.1, 2.0))
@settings(max_examples=25, deadline=None)
def test_nt_xent_is_that_of_the_paper_term_by_term(size, temperature):
    seed, b, d = size
    u, v = rows(seed, 2, b, d)
    expected = oracle.nt_xent(list(u), list(v), temperature)
    got = nt_xent(u, v, temperature)
    torch.testing.assert_close(got, expected, **EXACT)


def test_nt_xent_stays_finite_for_zeros_and_for_norms_of_sum_pooling():
    u, v = rows(3, 2, 4, 3).float()
    big = (u * 1e4).requires_grad_()
    loss = nt_xent(big, v * 1e4, 0.1)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(big.grad).all()
    zero = torch.zeros(4, 3, requires_grad=True)
    loss = nt_xent(zero, v * 0, 0.1)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(7), rel=1e-6)  # of 2B - 1 equal ones
    assert torch.isfinite(zero.grad).all()


# Contrast between models (7), (8) ------------------------------------------------


@given(sizes, st.floats(0.1, 2.0))
@settings(max_examples=30, deadline=None)
def test_model_contrast_is_that_of_the_paper_and_in_range(size, temperature):
    seed, b, d = size
    u, glob, prev = rows(seed, 3, b, d)
    got = model_contrast(u, glob, prev, temperature)
    for k in range(b):
        expected = oracle.contrast(u[k], glob[k], prev[k], temperature)
        torch.testing.assert_close(got[k], expected, rtol=1e-7, atol=1e-9)
    most = math.log1p(math.exp(2 / temperature))
    assert ((got > 0) & (got <= most * (1 + 1e-12))).all()


# Distillation (2), (3) -----------------------------------------------------------


@given(sizes, st.floats(0.1, 2.0))
@settings(max_examples=25, deadline=None)
def test_distillation_is_that_of_the_paper(size, temperature):
    seed, b, d = size
    u, teacher = rows(seed, 2, b, d)
    expected = oracle.distill_kl(list(u), list(teacher), temperature, normalize=False)
    kl, mse = distill_kl(u, teacher, temperature), distill_mse(u, teacher)
    torch.testing.assert_close(kl, torch.as_tensor(expected).double(), **EXACT)
    expected = oracle.distill_mse(list(u), list(teacher), normalize=False)
    torch.testing.assert_close(mse, expected, **EXACT)


# Encoder -------------------------------------------------------------------------


@pytest.mark.parametrize("is_dense", [False, True])
def test_embeddings_of_both_views_are_those_of_dense_matrices(is_dense):
    graphs = toys.random_graphs(12, dense=is_dense)
    model = encoder()
    move(model, 3)  # no bias or scale at its start
    w = weights(model)
    batch, view = toys.whole(graphs), view_of(graphs)
    for g, (x, adjacency, s) in enumerate(oracle.triples(graphs)):
        for messages, found in ((adjacency, model(batch)), (s, model(batch, view))):
            expected = oracle.pool(oracle.nodes(w, x, messages))
            torch.testing.assert_close(
                found[g].double(), expected, rtol=1e-4, atol=1e-4
            )


# The client's loss ---------------------------------------------------------------


@pytest.mark.parametrize("inter", ["graphs", "nodes"])
def test_teachers_of_many_batches_are_those_of_one(tmp_path, monkeypatch, inter):
    client = make(tmp_path, inter=inter)
    client.freeze(0)
    together = client.glob
    batches = type(client.job.data).batches

    def small(self):
        return batches(self, max_nodes=9)

    monkeypatch.setattr(type(client.job.data), "batches", small)
    client.freeze(0)
    torch.testing.assert_close(client.glob, together, rtol=1e-5, atol=1e-5)


# Settings ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("fclg.inter", "moon", r"fclg.inter must be one of 'graphs'"),
        ("batch-size", 1, r"batch-size must be >= 2, to have negatives, .*got 1"),
        ("dropout", 0.3, r"dropout must be 0, as teachers and student .*got 0.3"),
        ("held-out", 0.2, r"held-out must be 0, as no label is .*got 0.2"),
        ("shared-group", "convs", r"shared-group must be 'all' .*got 'convs'"),
        ("embedding.evaluation", "both", r"embedding.evaluation must be one of"),
        ("embedding.rounds", "1,x", r"embedding.rounds must be round numbers"),
        ("embedding.figure-rounds", "1", r"figure-rounds must be rounds up to .* 3"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(key, value, words):
    with pytest.raises(ConfigError, match=words):
        toys.resolved("fclg", **{key: value})


# Small and strange clients -------------------------------------------------------


def test_a_last_batch_of_one_graph_joins_the_one_before(tmp_path):
    for num_graphs, expected in ((9, [4, 5]), (8, [4, 4]), (10, [4, 4, 2]), (1, [1])):
        partition = toys.make_partition(num_graphs=num_graphs, held_out=0.0)
        client = make(tmp_path, partition=partition)
        generator, least = torch.Generator().manual_seed(0), client.MIN_BATCH
        found = [*epoch_positions(partition.train, 4, generator, min_batch=least)]
        assert [len(p) for p in found] == expected
        assert sorted(np.concatenate(found)) == [*range(num_graphs)]


@pytest.mark.parametrize("inter", ["graphs", "nodes", "kl"])
@pytest.mark.parametrize("num_nodes", [[1], [3, 1, 4]], ids=str)
def test_graphs_without_edges_and_single_graphs_are_trained_on(
    tmp_path, inter, num_nodes
):
    quiet = {"embedding.rounds": "", "local-epochs": 3, "fclg.inter": inter}
    client = toys.make_client(
        tmp_path, "fclg", partition=partition_of(edgeless(num_nodes)), **quiet
    )
    arrays, num_examples, metrics = client.fit(toys.shared_arrays(client), ROUND)
    assert num_examples == len(num_nodes)
    assert all(np.isfinite(a).all() for a in arrays)
    assert math.isfinite(metrics["eval/train/post_training/loss"])


def test_a_client_with_more_classes_than_graphs_trains_and_is_not_scored(tmp_path):
    few = partition_of(edgeless([2, 3, 4], num_classes=4))
    client = toys.make_client(tmp_path, "fclg", partition=few)
    _, _, metrics = client.fit(toys.shared_arrays(client), ROUND)
    assert not [name for name in metrics if name.startswith("eval/all")]
    assert math.isfinite(metrics["eval/train/post_training/loss"])
    pooled = {"embedding.evaluation": "pooled"}
    client = toys.make_client(tmp_path, "fclg", partition=few, **pooled)
    reply = client.participate(toys.parcel(client), ROUND)
    assert len(reply.evaluation["labels"]) == 3


@pytest.mark.parametrize("evaluation", ["local", "pooled"])
def test_embeddings_that_are_not_finite_name_the_client(
    tmp_path, monkeypatch, evaluation
):
    how = {"embedding.evaluation": evaluation}
    three = toys.make_partition(3, held_out=0.0)
    client = toys.make_client(tmp_path, "fclg", partition=three, **how)
    embed = type(client).embed

    def broken(self, batch):
        found = embed(self, batch)
        found[[2, 5], [0, 1]] = torch.tensor([math.nan, -math.inf])
        return found

    monkeypatch.setattr(type(client), "embed", broken)
    for step, header in (("fit", ROUND), ("evaluate", AFTER_3)):
        with pytest.raises(DataError, match="client 3: embeddings of 2 of 20 graphs"):
            getattr(client, step)(toys.shared_arrays(client), header)
    assert not (client.job.store.folder / "embeddings.npz").exists()


@pytest.mark.parametrize("method", ["fclg", "infograph", "mvgrl"])
def test_embeddings_are_those_of_the_encoder_alone_and_in_order(tmp_path, method):
    client = toys.make_client(tmp_path, method)
    client.model.eval()
    found = client.embed_all()
    assert found.dtype == np.float32
    for position in (0, 5, 19):
        batch = client.job.data.graphs.batch(np.array([position]))
        alone = client.embed(batch).detach().numpy()[0]
        np.testing.assert_allclose(found[position], alone, rtol=1e-4, atol=1e-4)
    if method == "fclg":  # U alone, no second view
        whole_batch = client.job.data.graphs.batch(np.arange(20))
        u = client.model(whole_batch).detach().numpy()
        np.testing.assert_allclose(found, u, rtol=1e-5, atol=1e-5)
