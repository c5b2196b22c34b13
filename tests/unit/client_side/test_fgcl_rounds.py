"""Rounds of FGCL, and what is refused before training."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
import toys

from clients.fgcl import FGCLClient
from clients.graphs import noisy_view
from clients.losses import masked_bce
from clients.privacy import laplace
from fedgraph_flwr.core.errors import ConfigError, DataError, PrivacyBudgetError
from fedgraph_flwr.core.privacy_settings import NOISE_MODES
from fedgraph_flwr.methods.fgcl import FGCLParams
from fedgraph_flwr.resolve import defaults, resolve
from simulations.inline import run_inline

ROUND = {"server-round": 1}
ONE = {"fgcl.views": "one"}
TWO = {"fgcl.views": "two"}
CLEAN = {"fgcl.views": "clean", "privacy.edge-epsilon": 0.0}
TOTAL = {"privacy.edge-epsilon": 1.0, "privacy.edge-epsilon-of": "total"}
PLAIN = {"fgcl.contrast-weight": 0.0}
LABELS = {"features": "labels"}  # degrees tell edges
EDGES = {**LABELS, "privacy.edge-epsilon": 1.0}
UPDATES = {"privacy.update-clip": 0.5, "privacy.update-noise": 3.0}
ENCODERS = FGCLParams.config_fields()["fgcl.encoder"].metadata["rule"].choices


def make(tmp_path, *, alike=False, **overrides) -> FGCLClient:
    """Make a client; of nodes with features told row by row, if ``alike``."""
    partition = toys.with_tasks(toys.make_partition())
    if alike:
        x = np.eye(partition.graphs.num_features, dtype=np.float32)[partition.graphs.x]
        graphs = toys.replace(partition.graphs, x=x)
        partition = toys.replace(partition, graphs=graphs)
    return toys.make_client(tmp_path, "fgcl", partition=partition, **overrides)


def prepared(client) -> FGCLClient:
    """As before the first batch of round 1."""
    toys.begun(client)
    client.model.train()
    client.look(0)
    return client


def first_batch(client):
    return client.job.data.graphs.batch(client.job.data.partition.train[:8])


def views_of(client):
    """Its views, each by itself and nothing of them made beforehand."""
    return [noisy_view.NoisyView(t, device=toys.CPU) for t in client.triangles]


# The loss ------------------------------------------------------------------------


def test_one_view_is_cross_entropy_on_it(tmp_path):
    client = prepared(make(tmp_path, **ONE, dropout=0.0))
    batch = first_batch(client)
    logits = client.model(batch, toys.cut(views_of(client)[0], batch.positions), None)
    torch.testing.assert_close(client.loss(batch, None), masked_bce(logits, batch.y))


def test_two_views_without_contrast_are_the_mean_of_two_cross_entropies(tmp_path):
    client = prepared(make(tmp_path, **TWO, **PLAIN, dropout=0.0))
    batch = first_batch(client)
    each = [
        masked_bce(client.model(batch, toys.cut(v, batch.positions), None), batch.y)
        for v in views_of(client)
    ]
    assert len(each) == 2
    assert each[0] != each[1]
    torch.testing.assert_close(client.loss(batch, None), (each[0] + each[1]) / 2)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("mode", NOISE_MODES)
def test_the_contrast_is_that_of_the_paper_graph_by_graph(tmp_path, mode, alike):
    """Eq. (6) in a loop over graphs and negatives, on what the queue chose.

    Past negatives are the views that were drawn when they were pushed, as the paper's
    store keeps noisy graphs; they are kept here by hand.
    """
    options = {
        **{"privacy.noise-mode": mode, "dropout": 0.0, "fgcl.num-negatives": 2},
        **{"fgcl.contrast-weight": 2.0, "fgcl.temperature": 0.3},
    }
    client = prepared(make(tmp_path, alike=alike, **TWO, **options))
    kept = [views_of(client)[1]] * len(client.queue)  # view 1 of each entry's draw
    client.round = toys.replace(client.round, number=2)
    client.look(1)  # 0 would restore the store of the message before
    early = client.job.data.partition.train
    client.loss(client.job.data.graphs.batch(early), None)
    kept += [views_of(client)[1]] * len(early)
    client.round = toys.replace(client.round, number=3)
    client.look(1)
    batch = client.job.data.graphs.batch(early[:4])
    chosen = []
    choose = client.queue.choose
    client.queue.choose = lambda *a: chosen.append(choose(*a).copy()) or chosen[-1]
    stored = client.queue.positions.copy()
    total = client.loss(batch, None)
    used = np.unique(chosen[0])
    assert 1 < len(used) <= used[-1]  # some of them, with others in between

    def embed(positions, view):
        nodes = client.nodes.batch(positions)
        return client.model.embed(nodes, toys.cut(view, positions), None)

    def similarity(entry, ours):
        negative = embed(stored[[entry]], kept[entry])[0]
        return torch.exp(torch.cosine_similarity(negative, ours, 0) / 0.3)

    first, second = (embed(batch.positions, view) for view in views_of(client))
    terms = []
    for i in range(batch.num_graphs):
        row = chosen[0][i]
        if row[0] < 0:
            terms.append(torch.zeros(()))
            continue
        positive = torch.exp(torch.cosine_similarity(first[i], second[i], 0) / 0.3)
        negatives = [similarity(entry, second[i]) for entry in row]
        terms.append(-torch.log(positive / (positive + sum(negatives))))
    drawn = [kept[entry]._values[0] for entry in chosen[0].flat if entry >= 0]
    drawn.append(views_of(client)[1]._values[0])
    assert len({v.numpy().tobytes() for v in drawn}) == (1 if mode == "once" else 3)
    entropies = [masked_bce(client.model.head(h), batch.y) for h in (first, second)]
    expected = 2.0 * torch.stack(terms).mean() + sum(entropies) / 2
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-6)
    parameters = list(client.model.parameters())
    gradients = (torch.autograd.grad(loss, parameters) for loss in (total, expected))
    for ours, papers in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, papers, rtol=1e-4, atol=1e-6)


def test_views_too_large_to_be_kept_give_the_same(tmp_path, monkeypatch):
    found = []
    for limit in (noisy_view.MAX_KEPT, 0):
        monkeypatch.setattr(noisy_view, "MAX_KEPT", limit)
        client = prepared(make(tmp_path / str(limit), alike=True, **TWO, dropout=0.0))
        assert isinstance(client.view, noisy_view.KeptNoisyView) == (limit > 0)
        found.append(client.loss(first_batch(client), None))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("mode", NOISE_MODES)
def test_views_drawn_once_are_made_ready_once(tmp_path, mode):
    one = prepared(make(tmp_path, **TWO, **{"privacy.noise-mode": mode}))
    two = FGCLClient(one.job)  # as for the next message
    two.round = toys.replace(two.round, number=2)
    two.look(0)
    assert (two.view is one.view) == (mode == "once")
    assert two.triangles is not one.triangles
    ready = two.view
    two.look(1)
    assert (two.view is ready) == (mode != "per_epoch")


def test_the_store_begins_with_the_last_training_graphs_and_takes_in_batches(tmp_path):
    client = prepared(make(tmp_path, **TWO, **{"fgcl.num-negatives": 3}))
    train = client.job.data.partition.train
    assert client.queue.positions.tolist() == train[-3:].tolist()
    client.loss(first_batch(client), torch.Generator())
    expected = [*train[-3:].tolist(), *train[:8].tolist()]
    assert client.queue.positions.tolist() == expected


def test_the_store_outlives_the_round(tmp_path):
    first = make(tmp_path, **TWO)
    first.fit(toys.shared_arrays(first), ROUND)
    later = make(tmp_path, **TWO)
    toys.begun(later, 2, facts={"last-round": 1})
    later.look(0)
    assert later.queue.positions.tolist() == first.queue.positions.tolist()


def test_negatives_are_drawn_anew_in_every_round(tmp_path):
    drawn = []
    for number in (1, 2, 2):
        client = toys.begun(make(tmp_path, **TWO), number)
        client.look(0)
        drawn.append(client.draws.random())
    assert drawn[0] != drawn[1] == drawn[2]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_with_hardly_any_noise_the_views_are_the_clean_graphs(tmp_path, encoder):
    # Rounded: of an isolated node some encoders average neighbours in any noise.
    same = {"fgcl.encoder": encoder, "dropout": 0.0, "privacy.edge-post": "round"}
    clean = make(tmp_path / "clean", **CLEAN, **same)
    noisy = make(tmp_path / "noisy", **ONE, **same, **{"privacy.edge-epsilon": 1e9})
    for client in (clean, noisy):
        prepared(client)
    batch = first_batch(clean)
    torch.testing.assert_close(
        clean.loss(batch, None), noisy.loss(batch, None), atol=1e-6, rtol=1e-5
    )


def test_without_edges_only_nodes_matter(tmp_path):
    partition = toys.with_tasks(toys.make_partition())
    graphs = partition.graphs
    bare = toys.replace(
        graphs,
        edge_index=graphs.edge_index[:, :0],
        edge_ptr=np.zeros_like(graphs.edge_ptr),
    )
    options = {"fgcl.views": "no-edges", "privacy.edge-epsilon": 0.0}
    losses = []
    for name, own in (("a", graphs), ("b", bare)):
        client = toys.make_client(
            tmp_path / name,
            "fgcl",
            partition=toys.replace(partition, graphs=own),
            **options,
        )
        losses.append(client.fit(toys.shared_arrays(client), ROUND)[2])
    key = "eval/train/post_training/loss"
    assert losses[0][key] == losses[1][key]


def test_scores_are_those_of_view_0(tmp_path):
    client = prepared(make(tmp_path, **TWO))
    (triangles,) = client.held_out_views.views(0, 0)
    view = noisy_view.NoisyView(triangles, device=toys.CPU)
    (batch,), (nodes,) = client.data.evaluation, client.data.evaluation_nodes
    expected = client.model(batch, toys.cut(view, batch.positions), None)
    torch.testing.assert_close(client.logits(batch, nodes), expected)


NO_NOISE = {"privacy.edge-epsilon": 0.0}
FAINT = {**TWO, "fgcl.contrast-weight": 1e-12}  # cross-entropy is all that counts


@pytest.mark.parametrize(
    "options",
    [
        ONE,
        FAINT,
        {**FAINT, "privacy.noise-mode": "per_epoch"},
        {**TWO, **PLAIN},
        {"fgcl.views": "clean", **NO_NOISE},
        {"fgcl.views": "no-edges", **NO_NOISE},
    ],
)
def test_dropout_is_of_training_alone(tmp_path, options):
    scores, losses = [], []
    for rate in (0.0, 0.5):
        client = prepared(make(tmp_path / str(rate), **options, dropout=rate))
        scores.append(client.scores("post_aggregation").metrics)
        generator = torch.Generator().manual_seed(1)
        losses.append(client.loss(first_batch(client), generator).item())
    assert scores[0] == scores[1]
    assert losses[0] != losses[1]


def test_evaluation_is_cut_where_matrices_would_not_fit(tmp_path, monkeypatch):
    sizes = np.diff(toys.make_partition().graphs.node_ptr)
    whole, cut = (make(tmp_path / name, **ONE, dropout=0.0) for name in "ab")
    expected = whole.evaluate(toys.shared_arrays(whole), ROUND)[2]
    monkeypatch.setattr(noisy_view, "MAX_CELLS", int((sizes**2).max()))
    found = cut.evaluate(toys.shared_arrays(cut), ROUND)[2]
    assert len(cut.held_out.parts(np.arange(len(cut.job.data.partition.held_out)))) > 1
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name != "weights-sha256":
            assert found[name] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({**ONE, "batch-size": 100}, "batch-size"),
        ({**TWO, "batch-size": 1}, "fgcl.num-negatives"),
    ],
)
def test_batches_that_would_not_fit_are_refused_before_a_draw(
    tmp_path, monkeypatch, options, key
):
    make(tmp_path / "fits", **options)
    monkeypatch.setattr(noisy_view, "MAX_CELLS", 100)  # two graphs of seven nodes
    with pytest.raises(DataError, match=f"Nothing was drawn. Set {key} to 2 or less"):
        make(tmp_path / "refused", **options)
    assert not list(tmp_path.glob("refused/**/site.sqlite3"))


# Where noise goes -----------------------------------------------------------------


def test_training_and_evaluation_never_see_the_clean_edges(tmp_path, monkeypatch):
    """Once views are drawn, a client with other edges computes the same."""
    drawn = make(tmp_path, **TWO)
    expected = drawn.fit(toys.shared_arrays(drawn), ROUND)[2]

    def forbidden(self, position):
        raise AssertionError("adjacency was read again")

    monkeypatch.setattr(laplace.GraphAdjacency, "upper_triangle", forbidden)
    partition = drawn.job.data.partition
    bare = toys.replace(
        partition.graphs,
        edge_index=partition.graphs.edge_index[:, :0],
        edge_ptr=np.zeros_like(partition.graphs.edge_ptr),
    )
    blind = toys.make_client(
        tmp_path, "fgcl", partition=toys.replace(partition, graphs=bare), **TWO
    )
    found = blind.fit(toys.shared_arrays(blind), ROUND)[2]
    assert {k: v for k, v in found.items() if k.startswith("eval")} == {
        k: v for k, v in expected.items() if k.startswith("eval")
    }


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_encoder_trains_through_a_whole_run(run, encoder):
    finished = run("fgcl", **{"fgcl.encoder": encoder, "num-server-rounds": 1})
    losses = finished.values("loss")
    assert {key[2] for key in losses} == {"train", "val", "test"}
    assert all(map(math.isfinite, losses.values()))


@pytest.mark.parametrize("contrast", [0.0, 0.1])
def test_a_client_without_any_label_says_so(tmp_path, caplog, contrast):
    """Contrast does not train it either: negatives are known by their labels."""
    caplog.set_level(logging.WARNING, "flwr")
    partition = toys.with_tasks(toys.make_partition())
    y = partition.graphs.y.copy()
    y[partition.train] = np.nan
    partition = toys.replace(partition, graphs=toys.replace(partition.graphs, y=y))
    options = {**TWO, "fgcl.contrast-weight": contrast}
    client = toys.make_client(tmp_path, "fgcl", partition=partition, **options)
    start = toys.shared_arrays(client)
    sent, _, metrics = client.fit(start, ROUND)
    (line,) = [m for m in caplog.messages if "trains nothing" in m]
    assert f"none of its {len(partition.train)} training graphs has a label" in line
    for before, after in zip(start, sent, strict=True):
        np.testing.assert_array_equal(before, after)
    assert metrics["privacy/edge-epsilon"] == 2.0  # of the held-out graphs alone


# Refused before training --------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fgcl", {"privacy.edge-epsilon": 0.0}, "trains on noisy graphs, but"),
        ("fgcl", {"fgcl.views": "clean"}, "uses no noise, but privacy.edge-epsilon"),
        *(
            (
                "fgcl",
                {**TOTAL, "privacy.noise-mode": mode},
                "privacy.edge-epsilon-of must be 'view' where privacy.noise-mode",
            )
            for mode in ("per_round", "per_epoch")
        ),
        *(
            (
                "fgcl",
                {"fgcl.encoder": "gat", "privacy.edge-post": post},
                "privacy.edge-post must be one of .* for fgcl.encoder 'gat'",
            )
            for post in ("abs-degree", "debiased", "none")
        ),
        ("fgcl", {"privacy.edge-epsilon": -1.0}, "must be a finite number >= 0"),
        ("fgcl", {"privacy.edge-epsilon": math.inf}, "must be a finite number >= 0"),
        ("fgcl", {"features": "atoms"}, "its degree block is a function of the edges"),
        ("fgcl", UPDATES, "privacy.both to true to have both"),
        ("fgcl", {"dataset": "synthetic", "features": "labels"}, "is for multi-task"),
        ("moon", {"dataset": "BACE"}, "is for graph classification, which needs"),
        (
            "fedavg",
            {**EDGES, "privacy.edge-post": "clamp01"},
            "must be 'round' for method 'fedavg'",
        ),
        (
            "gcfl+",
            {**EDGES, "privacy.noise-mode": "per_round"},
            "must be 'once' for method 'gcfl\\+'",
        ),
        (
            "fedavg",
            {"privacy.edge-epsilon": 1.0, "features": "degree"},
            "the degrees of nodes are functions of the edges",
        ),
        ("fedavg", {"privacy.update-noise": 0.0}, "privacy.update-noise must be"),
        ("fedavg", {"privacy.update-delta": 1.0}, "privacy.update-delta must be"),
    ],
)
def test_what_contradicts_itself_is_refused(method, options, message):
    own = {**defaults(), **toys.tiny(method), **options}
    with pytest.raises(ConfigError, match=message):
        resolve(own)


def test_an_encoder_without_signs_still_takes_what_has_none():
    own = {"fgcl.encoder": "gat"}
    assert resolve({**defaults(), **toys.tiny("fgcl"), **own, **TWO})
    clean = {**CLEAN, "fgcl.encoder": "gat", "privacy.edge-post": "debiased"}
    assert resolve({**defaults(), **toys.tiny("fgcl"), **clean})


@pytest.mark.parametrize(
    ("options", "features"),
    [
        ({}, "atoms-no-degree"),
        ({"privacy.keep-edge-features": True}, "atoms"),
        (CLEAN, "atoms"),
    ],
)
def test_private_runs_leave_out_the_degree_by_default(options, features):
    own = {**defaults(), **toys.tiny("fgcl"), **options, "features": "auto"}
    assert resolve(own).settings.features == features


def test_the_draw_that_would_exceed_the_budget_reads_nothing(tmp_path, monkeypatch):
    def forbidden(self, position):
        raise AssertionError("adjacency was read")

    monkeypatch.setattr(laplace.GraphAdjacency, "upper_triangle", forbidden)
    client = make(tmp_path, **TWO, **{"privacy.budget-max": 3.9})
    with pytest.raises(PrivacyBudgetError, match="Nothing was read"):
        prepared(client)


@pytest.mark.parametrize("preset", ["fgcl-gcn-bace-1", "fedavg-lightgcn-sider"])
def test_presets_train_on_real_molecules(data_dir, tmp_path, preset):
    from simulations.presets import load_preset

    short = {"num-server-rounds": 1, "batch-size": 256}
    places = {"results-dir": str(tmp_path), "state-dir": str(tmp_path / "state")}
    config = {**load_preset(preset), **short, **places, "data-dir": data_dir}
    summary = toys.Run(run_inline(config), {}).summary
    assert summary["status"] == "completed"
    assert 0 < summary["final"]["mean"] < 1
