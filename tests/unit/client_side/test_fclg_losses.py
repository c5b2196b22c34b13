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
from torch.nn import functional as f

from clients.graphs.csr import CollatedDiffusion
from clients.job import Round
from clients.losses import distill_kl, distill_mse, model_contrast, nt_xent
from clients.models.weighted_gin import WeightedGIN
from clients.training import epoch_positions
from datasets.diffusion import diffuse
from fedgraph_flwr.core.data import DiffusionSpec, GraphSet
from fedgraph_flwr.core.errors import ConfigError, DataError

LOG_2 = math.log(2)
SPEC = DiffusionSpec()
INTERS = ("graphs", "nodes", "none", "kl", "mse", "previous-round")
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


def partition_of(graphs: GraphSet, client_id=0):
    partition = toys.make_partition(client_id, num_graphs=5, held_out=0.0)
    ids = np.arange(len(graphs))
    nobody = ids[:0]
    return type(partition)(
        client_id=client_id,
        graphs=graphs,
        graph_ids=ids,
        train=ids,
        val=nobody,
        test=nobody,
    )


# NT-Xent (5), (6) ----------------------------------------------------------------


@given(sizes, st.floats(0.1, 2.0))
@settings(max_examples=25, deadline=None)
def test_nt_xent_is_that_of_the_paper_term_by_term(size, temperature):
    seed, b, d = size
    u, v = rows(seed, 2, b, d)
    expected = oracle.nt_xent(list(u), list(v), temperature)
    got = nt_xent(u, v, temperature)
    torch.testing.assert_close(got, expected, **EXACT)


@given(sizes)
@settings(max_examples=25, deadline=None)
def test_nt_xent_is_a_cross_entropy_symmetric_and_blind_to_order(size):
    seed, b, d = size
    u, v = rows(seed, 2, b, d)
    got = nt_xent(u, v, 0.5)
    z = torch.cat([f.normalize(u), f.normalize(v)])
    scores = z @ z.T / 0.5
    scores[range(2 * b), range(2 * b)] = -math.inf
    partner = torch.tensor([*range(b, 2 * b), *range(b)])
    torch.testing.assert_close(got, f.cross_entropy(scores, partner), **EXACT)
    torch.testing.assert_close(nt_xent(v, u, 0.5), got, **EXACT)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(b))
    permuted = nt_xent(u[order], v[order], 0.5)
    torch.testing.assert_close(permuted, got, **EXACT)


def test_nt_xent_of_one_graph_is_zero_and_moves_nothing():
    u, v = rows(0, 2, 1, 3).float()
    u.requires_grad_()
    loss = nt_xent(u, v, 0.5)
    loss.backward()
    assert loss.item() == 0
    assert not u.grad.any()


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


def test_equal_teachers_give_log_2_and_no_gradient_at_all():
    u, glob = rows(2, 2, 5, 7).float()
    u.requires_grad_()
    loss = model_contrast(u, glob, glob, 0.5).mean()
    loss.backward()
    assert loss.item() == np.float32(LOG_2)
    assert u.grad.abs().max() < 1e-6


def test_it_pulls_to_the_global_model_and_pushes_from_the_previous_one():
    u, glob, prev = rows(4, 3, 1, 5)
    u.requires_grad_()
    model_contrast(u, glob, prev, 0.5).sum().backward()
    nearer = (u - 1e-3 * u.grad).detach()

    def lead(row):
        return f.cosine_similarity(row, glob) - f.cosine_similarity(row, prev)

    assert lead(nearer) > lead(u.detach())


# Distillation (2), (3) -----------------------------------------------------------


@given(sizes, st.floats(0.1, 2.0))
@settings(max_examples=25, deadline=None)
def test_distillation_is_that_of_the_paper_and_never_negative(size, temperature):
    seed, b, d = size
    u, teacher = rows(seed, 2, b, d)
    kl, mse = distill_kl(u, teacher, temperature), distill_mse(u, teacher)
    expected = oracle.distill_kl(list(u), list(teacher), temperature, normalize=False)
    torch.testing.assert_close(kl, torch.as_tensor(expected).double(), **EXACT)
    expected = oracle.distill_mse(list(u), list(teacher), normalize=False)
    torch.testing.assert_close(mse, expected, **EXACT)
    assert kl >= -1e-12
    assert mse >= 0
    assert distill_kl(u, u.clone(), temperature).item() == 0
    assert distill_mse(u, u.clone()).item() == 0


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


def test_names_of_the_tensors_are_those_of_the_specification():
    names = {n: tuple(t.shape) for n, t in encoder(num_layers=2).state_dict().items()}
    assert names == {
        "convs.0.mlp.0.weight": (6, 4),
        "convs.0.mlp.0.bias": (6,),
        "convs.0.mlp.2.weight": (6, 6),
        "convs.0.mlp.2.bias": (6,),
        "convs.1.mlp.0.weight": (6, 6),
        "convs.1.mlp.0.bias": (6,),
        "convs.1.mlp.2.weight": (6, 6),
        "convs.1.mlp.2.bias": (6,),
    }


def test_the_start_is_the_same_for_every_client_and_another_for_another_seed(tmp_path):
    def start(client_id, **kw):
        partition = toys.make_partition(client_id, held_out=0.0)
        client = toys.make_client(tmp_path, "fclg", partition=partition, **kw)
        return torch.cat([t.flatten() for t in client.model.state_dict().values()])

    assert torch.equal(start(0), start(1))
    assert not torch.equal(start(0), start(0, seed=11))


# The client's loss ---------------------------------------------------------------


@pytest.mark.parametrize("inter", INTERS)
def test_the_loss_is_that_of_three_real_models(tmp_path, doubles, inter):
    """Cached teachers against copies of the models that they stand for."""
    client = toys.in_doubles(make(tmp_path, inter=inter))
    whole_set = client.job.data.partition.graphs
    graphs = oracle.triples(whole_set)
    move(client.model, 1, 0.05)
    before = weights(client.model)  # of the round before, for "previous-round"
    stored = {f"previous/{n}": t for n, t in before.items()}
    client.round = Round(stored=stored)
    move(client.model, 2, 0.05)
    glob = weights(client.model)
    client.freeze(0)
    move(client.model, 3, 0.05)
    prev = before if inter == "previous-round" else weights(client.model)
    client.freeze(1)
    move(client.model, 4, 0.05)
    positions = np.array([7, 0, 3, 12, 11])
    batch = client.job.data.graphs.batch(positions)
    expected = oracle.loss(
        weights(client.model),
        glob,
        prev,
        [graphs[g] for g in positions],
        inter=inter,
    )
    got = client.loss(batch, torch.Generator())
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("inter", ["graphs", "nodes", "previous-round"])
def test_in_the_first_epoch_the_contrast_is_log_2_without_a_gradient(tmp_path, inter):
    both = make(tmp_path, inter=inter)
    alone = make(tmp_path, inter="none")
    both.freeze(0)
    move(both.model, 5)  # whatever the model in training is by now
    alone.model.load_state_dict(both.model.state_dict())
    batch = both.job.data.graphs.batch(np.arange(8))
    with_it = both.loss(batch, torch.Generator())
    inter_loss = with_it - alone.loss(batch, torch.Generator())
    assert inter_loss.item() == pytest.approx(LOG_2, abs=1e-6)
    if inter == "nodes":
        second = both.contrast_nodes(torch.cat(both.model.layers(batch), 1), batch)
    else:
        second = both.contrast_graphs(both.model(batch), batch)
        assert second.item() == np.float32(LOG_2)
    second.backward()
    steepest = max(
        0.0 if p.grad is None else p.grad.abs().max().item()
        for p in both.model.parameters()
    )
    assert steepest < 1e-6


@pytest.mark.parametrize("inter", INTERS)
def test_teachers_take_no_gradient_and_leave_the_mode_alone(tmp_path, inter):
    client = make(tmp_path, inter=inter)
    client.model.train()
    client.freeze(0)
    client.freeze(1)
    assert client.model.training
    held = [getattr(client, name) for name in ("glob", "prev") if inter != "none"]
    assert not any(t.requires_grad for t in held)
    nodes = client.job.data.partition.graphs.num_nodes
    assert all(len(t) == (nodes if inter == "nodes" else 20) for t in held)


def test_eq_8_counts_graphs_and_not_nodes(tmp_path):
    client = make(tmp_path, inter="nodes")
    client.freeze(0)
    move(client.model, 1, 0.5)
    client.freeze(1)
    move(client.model, 2, 0.5)

    def contrast(*positions):
        batch = client.job.data.graphs.batch(np.array(positions))
        h = torch.cat(client.model.layers(batch), 1)
        return client.contrast_nodes(h, batch).item()

    numbers = np.diff(client.job.data.partition.graphs.node_ptr)
    small, large = int(numbers.argmin()), int(numbers.argmax())
    assert numbers[small] == 1 < numbers[large]
    mean = (contrast(small) + contrast(large)) / 2
    assert contrast(small, large) == pytest.approx(mean, rel=1e-5)
    assert contrast(small) != pytest.approx(contrast(large), rel=1e-3)


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
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(key, value, words):
    with pytest.raises(ConfigError, match=words):
        toys.resolved("fclg", **{key: value})


@pytest.mark.parametrize("method", ["infograph", "mvgrl", "local graph-embedding"])
@pytest.mark.parametrize(("key", "value"), [("dropout", 0.3), ("held-out", 0.2)])
def test_they_are_refused_for_the_whole_task(method, key, value):
    with pytest.raises(ConfigError, match=f"{key} must be 0"):
        toys.resolved(method, **{key: value})


def test_clients_of_their_own_encoder_cannot_be_pooled():
    with pytest.raises(ConfigError, match=r"evaluation must be 'local' if every"):
        toys.resolved("local graph-embedding", **{"embedding.evaluation": "pooled"})


def test_the_diffusion_view_is_that_of_the_settings():
    def spec(method, **named):
        run = toys.resolved(method, **{f"{method}.{k}": v for k, v in named.items()})
        return run.method.client.diffusion(run.params)

    assert spec("fclg") == DiffusionSpec()
    assert spec("mvgrl") == spec("fclg")  # FCLG's defaults are those of MVGRL
    assert spec("infograph") is None


# Small and strange clients -------------------------------------------------------


def test_a_last_batch_of_one_graph_joins_the_one_before(tmp_path):
    for num_graphs, expected in ((9, [4, 5]), (8, [4, 4]), (10, [4, 4, 2]), (1, [1])):
        partition = toys.make_partition(num_graphs=num_graphs, held_out=0.0)
        client = make(tmp_path, partition=partition)
        generator, least = torch.Generator().manual_seed(0), client.MIN_BATCH
        found = [*epoch_positions(partition.train, 4, generator, min_batch=least)]
        assert [len(p) for p in found] == expected
        assert sorted(np.concatenate(found)) == [*range(num_graphs)]


def test_training_uses_those_batches(tmp_path, monkeypatch):
    nine = toys.make_partition(num_graphs=9, held_out=0.0)
    client = toys.make_client(tmp_path, "fclg", partition=nine, **{"batch-size": 4})
    seen, loss = [], type(client).loss

    def spy(self, batch, generator):
        seen.append(batch.num_graphs)
        return loss(self, batch, generator)

    monkeypatch.setattr(type(client), "loss", spy)
    client.fit(toys.shared_arrays(client), {"server-round": 2, "last-round": 0})
    assert seen == [4, 5]


@pytest.mark.parametrize("inter", INTERS)
@pytest.mark.parametrize(
    "num_nodes", [[1], [5], [1, 1, 1], [3, 1, 4]], ids=lambda n: f"nodes {n}"
)
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


def test_the_loss_of_a_client_with_one_graph_is_that_of_the_models_alone(tmp_path):
    """Nothing to tell the graph from: only the second loss trains."""
    still = {"embedding.rounds": "", "learning-rate": 0.0}
    alone = partition_of(toys.random_graphs(3).take(np.array([1])))
    for inter, expected in (("none", 0.0), ("graphs", LOG_2), ("kl", 0.0)):
        client = toys.make_client(
            tmp_path, "fclg", partition=alone, **still, **{"fclg.inter": inter}
        )
        _, _, metrics = client.fit(toys.shared_arrays(client), ROUND)
        loss = metrics["eval/train/post_training/loss"]
        assert loss == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("method", ["infograph", "mvgrl"])
@pytest.mark.parametrize("num_nodes", [[1], [5], [1, 1], [3, 1, 4]], ids=str)
def test_baselines_train_on_them_too(tmp_path, method, num_nodes):
    client = toys.make_client(
        tmp_path,
        method,
        partition=partition_of(edgeless(num_nodes)),
        **{"embedding.rounds": ""},
    )
    arrays, _, metrics = client.fit(toys.shared_arrays(client), ROUND)
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


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("evaluation", ["local", "pooled"])
def test_embeddings_that_are_not_finite_name_the_client(
    tmp_path, monkeypatch, bad, evaluation
):
    partition = toys.make_partition(3, held_out=0.0)
    client = toys.make_client(
        tmp_path,
        "fclg",
        partition=partition,
        **{"embedding.evaluation": evaluation},
    )
    embed = type(client).embed

    def broken(self, batch):
        found = embed(self, batch)
        found[[2, 5], [0, 1]] = bad
        return found

    monkeypatch.setattr(type(client), "embed", broken)
    with pytest.raises(DataError, match="client 3: embeddings of 2 of 20 graphs hold"):
        client.fit(toys.shared_arrays(client), ROUND)
    with pytest.raises(DataError, match="client 3: embeddings of 2 of 20 graphs hold"):
        client.evaluate(toys.shared_arrays(client), AFTER_3)
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
