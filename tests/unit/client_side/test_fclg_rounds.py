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

from clients import training
from clients.fclg import FCLGClient
from clients.moon import MoonClient
from clients.tasks import graph_embedder
from fedgraph_flwr import client_app
from fedgraph_flwr.core import embedding_scores
from fedgraph_flwr.core.errors import ConfigError, DataError, RunFailedError
from fedgraph_flwr.core.wire import unpack
from fedgraph_flwr.results import selection
from simulations.contract import failing_client
from strategies.fedavg import FedAvg

ALONE = "local graph-embedding"
ROUND = {"server-round": 1}
INTERS = ("graphs", "nodes", "none", "kl", "mse", "previous-round")
QUICK = {"embedding.probe": False}
POOLED = {**QUICK, "embedding.evaluation": "pooled", "embedding.rounds": "0,1"}
NO_MOMENTS = {"persist-optimizer": False}
SILENT = {**POOLED, "embedding.rounds": "", "num-server-rounds": 2}


def weights(model) -> dict[str, torch.Tensor]:
    return {n: t.detach().clone().double() for n, t in model.state_dict().items()}


def loss_of(finished, client=0, server_round=1) -> float:
    key = (str(server_round), str(client), "train", "post_training", "loss")
    return finished.values("loss")[key]


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


@pytest.mark.parametrize("inter", INTERS)
def test_two_rounds_are_those_of_algorithm_1(tmp_path, monkeypatch, doubles, inter):
    """Three epochs; the model that comes back in round 2 is not the one sent."""
    config = {
        "local-epochs": 3,
        "batch-size": 3,
        "persist-optimizer": False,
        "weight-decay": 0.1,
        "fclg.inter": inter,
        **SILENT,
    }
    batches = watch_batches(monkeypatch, FCLGClient)
    partition = toys.make_partition(num_graphs=9, max_nodes=5, held_out=0.0)
    graphs = oracle.triples(partition.graphs)
    first = toys.make_client(tmp_path, "fclg", partition=partition, **config)
    start, before = weights(first.model), None
    for server_round in (1, 2):
        client = toys.make_client(tmp_path, "fclg", partition=partition, **config)
        toys.in_doubles(client)
        received = {n: t + 0.02 * server_round for n, t in start.items()}
        arrays = [received[n].numpy() for n in client.shared_keys]
        sent, _, _ = client.fit(arrays, {"server-round": server_round})
        expected = oracle.local_round(
            received,
            graphs,
            in_epochs(batches, 3, range(9)),
            lr=0.01,
            decay=0.1,
            inter=inter,
            before=before,
        )
        for name, array in zip(client.shared_keys, sent, strict=True):
            np.testing.assert_allclose(
                array, expected[name], rtol=0, atol=1e-7, err_msg=name
            )
        before, start = expected, {n: t * 0.9 for n, t in expected.items()}
        batches.clear()


@pytest.mark.parametrize("shared", mostly_slow(["all", "convs"], fast=["convs"]))
def test_two_rounds_are_those_of_moon(tmp_path, monkeypatch, doubles, shared):
    config = {
        "local-epochs": 2,
        "batch-size": 3,
        "persist-optimizer": False,
        "optimizer": "adamw",
        "weight-decay": 0.1,
        "dropout": 0.0,
        "moon.mu": 2.0,
        "shared-group": shared,
    }
    batches = watch_batches(monkeypatch, MoonClient)
    partition = toys.make_partition(num_graphs=20)
    graphs = [dense(partition.graphs, g) for g in range(20)]
    client = toys.make_client(tmp_path, "moon", partition=partition, **config)
    received, before = weights(client.model), None
    for server_round in (1, 2):
        client = toys.make_client(tmp_path, "moon", partition=partition, **config)
        for n in client.shared_keys:
            received[n] = received[n] * 0.9 + 0.01
        arrays = [received[n].numpy() for n in client.shared_keys]
        sent, _, _ = client.fit(arrays, {"server-round": server_round})
        expected = oracle.moon_round(
            received,
            graphs,
            partition.graphs.y,
            in_epochs(batches, 2, partition.train),
            lr=0.01,
            decay=0.1,
            mu=2.0,
            temperature=0.5,
            # Private layers persist: both teachers have those of the last round.
            before=before,
        )
        for name, array in zip(client.shared_keys, sent, strict=True):
            np.testing.assert_allclose(
                array, expected[name], rtol=0, atol=1e-7, err_msg=name
            )
        before, received = expected, dict(expected)
        batches.clear()


# Invariants of training ----------------------------------------------------------


@pytest.fixture
def plain_sgd(monkeypatch):
    """Replace the optimizers: Adam amplifies the rounding of vanishing gradients."""
    table = dict.fromkeys(training._KINDS, torch.optim.SGD)
    monkeypatch.setattr(training, "_KINDS", table)


@pytest.mark.slow
def test_with_one_epoch_fclg_is_intra_fedavg(run, plain_sgd):
    def model(epochs, which):
        options = {"local-epochs": epochs, "fclg.inter": which}
        return run("fclg", **SILENT, **NO_MOMENTS, **options).models["global"]

    alone = model(1, "none")
    assert close(model(1, "graphs"), alone, 1e-6)
    assert close(model(1, "nodes"), alone, 1e-6)
    assert not close(model(1, "mse"), alone, 1e-4)


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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fclg", "infograph"])
def test_how_it_is_evaluated_does_not_matter_to_training(once, method):
    """In particular, embedding all graphs leaves running statistics alone."""
    two = {**QUICK, "num-server-rounds": 2}
    often = once(method, **two, **{"embedding.rounds": "0,1,2"})
    never = once(method, **SILENT)
    assert often.sha == never.sha
    assert often.values("loss") == never.values("loss")


@pytest.mark.parametrize(
    "method", mostly_slow(["fclg", "infograph", "mvgrl"], fast=["fclg"])
)
def test_pooled_runs_do_not_depend_on_the_nodes(once, method):
    one = once(method, **POOLED)
    for nodes in (2, 3):
        other = once(method, nodes=nodes, **POOLED)
        assert other.sha == one.sha
        assert other.rounds == one.rounds
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
def pooled(run):
    return run("fclg", nodes=2, **{**POOLED, "embedding.probe": True})


@pytest.mark.slow
def test_the_pool_holds_every_graph_of_every_client_once_in_order(pooled):
    names = [p.name for p in sorted((pooled.path / "embeddings").iterdir())]
    assert names == [f"round-{r:06d}.npz" for r in (0, 1, 3)]
    parts = [toys.make_partition(c, num_graphs=20 + 5 * c) for c in range(3)]
    for table in tables(pooled):
        assert table["embeddings"].shape == (75, 2 * 8)
        assert table["embeddings"].dtype == np.float32
        for name, expected in (
            ("clients", np.repeat([0, 1, 2], [20, 25, 30])),
            ("labels", np.concatenate([p.graphs.y for p in parts])),
            ("graph_ids", np.concatenate([p.graph_ids for p in parts])),
        ):
            np.testing.assert_array_equal(table[name], expected)


def test_the_last_pool_is_that_of_the_last_model(pooled, tmp_path):
    table = tables(pooled)[-1]
    for c in range(3):
        partition = toys.make_partition(c, num_graphs=20 + 5 * c, held_out=0.0)
        client = toys.make_client(tmp_path, "fclg", partition=partition)
        model = {n: torch.from_numpy(a) for n, a in pooled.models["global"].items()}
        client.model.load_state_dict(model)
        np.testing.assert_array_equal(
            client.embed_all(), table["embeddings"][table["clients"] == c]
        )


def test_the_first_pool_is_that_of_the_untrained_encoder(pooled, tmp_path):
    partition = toys.make_partition(0, held_out=0.0)
    client = toys.make_client(tmp_path, "fclg", partition=partition)
    first = tables(pooled)[0]["embeddings"][:20]
    np.testing.assert_array_equal(client.embed_all(), first)


@pytest.mark.slow
def test_pooled_scores_are_those_of_all_embeddings_together(pooled):
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
def test_the_emd_in_the_summary_is_that_of_the_formula(pooled, run, toy_data):
    def emd(labels_of):
        everyone = np.concatenate(labels_of)
        classes = range(everyone.max() + 1)
        p = [np.mean(everyone == k) for k in classes]
        return sum(
            len(y) / len(everyone) * sum(abs(np.mean(y == k) - p[k]) for k in classes)
            for y in labels_of
        )

    def uneven(settings, client_id):
        partition = toys.federation(settings, client_id)
        y = np.minimum(np.arange(len(partition.graphs)) % 3, client_id)
        graphs = replace(partition.graphs, y=y, num_classes=3)
        return replace(partition, graphs=graphs)

    table = tables(pooled)[0]
    parts = [table["labels"][table["clients"] == c] for c in range(3)]
    assert pooled.summary["emd"] == pytest.approx(emd(parts), abs=1e-12)
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", uneven)
        finished = run("fclg", **POOLED, **{"num-server-rounds": 1})
    parts = [uneven(toys.resolved("fclg").settings, c).graphs.y for c in range(3)]
    assert emd(parts) > 0.5
    assert finished.summary["emd"] == pytest.approx(emd(parts), abs=1e-12)
    assert finished.summary["class_counts"] == [[20, 0, 0], [9, 16, 0], [10, 10, 10]]


def test_before_training_is_a_round_that_labels_may_choose():
    table = {0: {0: 0.5, 1: 0.7}, 1: {0: 0.6}, 3: {0: 0.7, 1: 0.4}}
    best = selection.best_labelled(table)  # round 1: 0.65, with 1 as before
    assert (best["round"], best["num_clients_chosen_by"]) == (1, 2)
    best = selection.best_labelled({**table, 1: {0: 0.5}})
    assert (best["round"], best["mean"]) == (0, 0.6)


@pytest.mark.slow
def test_counts_of_classes_stay_at_a_site_that_shares_no_labels(run, once, tmp_path):
    simulated = once("fclg", **QUICK).summary
    assert simulated["class_counts"] == [[10, 10], [13, 12], [15, 15]]
    assert simulated["emd"] == once("fclg", **POOLED).summary["emd"]
    few = {**QUICK, "num-server-rounds": 1, "embedding.rounds": ""}
    agreed = toys.policy(tmp_path, pooled_evaluation=True)
    sites = [{"clients": "0,1", **agreed}, {"clients": "2"}]
    kept = run("fclg", node_configs=sites, **few).summary
    assert kept["emd"] is kept["class_counts"] is None
    sites[1] |= agreed
    assert run("fclg", node_configs=sites, **few).summary["emd"] == simulated["emd"]


@pytest.mark.slow
def test_there_is_no_emd_of_different_data_sets(run, toy_data):
    def another(settings, client_id):
        partition = toys.federation(settings, client_id)
        graphs = replace(partition.graphs, raw_sha256=str(client_id) * 64)
        return replace(partition, graphs=graphs)

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", another)
        assert run("fedavg", **{"num-server-rounds": 1}).summary["emd"] is None


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 2])
def test_a_lost_client_does_not_change_the_number_of_classes(
    run, toy_data, monkeypatch, lost
):
    """Class 2 is with client 2 alone; k-means must look for 3 clusters all the same."""

    def rare(settings, client_id):
        partition = toys.federation(settings, client_id)
        y = partition.graphs.y.copy()
        if client_id == 2:
            y[:5] = 2
        graphs = replace(partition.graphs, y=y, num_classes=3)
        return replace(partition, graphs=graphs)

    asked = []
    scores = embedding_scores.all_scores

    def spy(*args, num_classes, **kw):
        asked.append(num_classes)
        return scores(*args, num_classes=num_classes, **kw)

    toys.fail_when(monkeypatch, lambda client, _: client == lost)
    monkeypatch.setattr("fedgraph_flwr.results.pooled.all_scores", spy)
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", rare)
        run("fclg", **POOLED, **{"min-fit-replies": 0.5})
    assert asked == [3, 3, 3]


@pytest.mark.slow
def test_more_classes_than_pooled_graphs_stops_with_the_reason(run, toy_data):
    def tiny(settings, client_id):
        partition = toys.make_partition(client_id, num_graphs=2, held_out=0.0)
        y = 3 * client_id + np.arange(2)
        graphs = replace(partition.graphs, y=y, num_classes=9)
        return replace(partition, graphs=graphs)

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", tiny)
        with pytest.raises(DataError, match="cannot cluster 6 graphs of all clients"):
            run("fclg", **POOLED)
        unscored = run("fclg", **QUICK).summary
    assert unscored["status"] == "completed"
    assert unscored["final"]["mean"] is None


@pytest.mark.slow
def test_resuming_a_pooled_run_equals_never_stopping(run):
    more = {**POOLED, "num-server-rounds": 4}
    whole = run("fclg", **more)
    part = run("fclg", **{**more, "num-server-rounds": 2})
    again = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("fclg", **more, **again, resume=str(part.path))
    assert resumed.path == part.path
    assert resumed.summary["resumed_from_round"] == 2
    assert resumed.sha == whole.sha
    assert resumed.rounds == whole.rounds
    for key in ("final", "best_labelled", "emd", "class_counts", "bytes_up_evaluation"):
        assert resumed.summary[key] == whole.summary[key]
    for at in (0, 1, 4):
        name = f"embeddings/round-{at:06d}.npz"
        ours, theirs = np.load(resumed.path / name), np.load(whole.path / name)
        assert all(np.array_equal(ours[n], theirs[n]) for n in theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fclg", {**SILENT, "fclg.inter": "previous-round"}),
        (
            ALONE,
            {**QUICK, "embedding.rounds": "", "num-server-rounds": 2},
        ),
        ("moon", {"moon.mu": 5.0, "num-server-rounds": 2}),
        pytest.param("infograph", SILENT, marks=pytest.mark.slow),
        pytest.param(
            "mvgrl", {**SILENT, "infomax.moon-mu": 1.0}, marks=pytest.mark.slow
        ),
    ],
)
def test_what_a_client_keeps_survives_a_stop(run, method, options):
    more = {**options, "local-epochs": 2}
    if method == ALONE:
        more["fclg.inter"] = "previous-round"
    whole = run(method, **more)
    part = run(method, **{**more, "num-server-rounds": 1})
    again = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run(method, **more, **again, resume=str(part.path))
    assert resumed.sha == whole.sha
    assert resumed.rounds == whole.rounds


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


@pytest.mark.parametrize(
    "method", mostly_slow(["fclg", ALONE, "infograph", "mvgrl"], fast=["fclg", ALONE])
)
def test_locally_evaluated_clients_send_shared_tensors_and_numbers_only(
    run, method, monkeypatch
):
    sent = watch_replies(monkeypatch)
    finished = run(method, **QUICK)
    shared = {f"shared/{n}" for n in toys.shared_keys(method)}
    expected = set() if method == ALONE else shared
    assert {n for parcel in sent for n in parcel.arrays} == expected
    assert not any(parcel.evaluation for parcel in sent)
    for parcel in sent:
        assert all(isinstance(v, int | float) for v in parcel.metrics.values())
        assert set(parcel.facts) <= {
            "split-hash", "raw-sha256", "identity", "weights-sha256",
        }  # fmt: skip
    assert "evaluation" not in {row["record"] for row in finished.ledger}
    assert finished.summary["bytes_up_evaluation"] == 0
    assert not (finished.path / "embeddings").exists()


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


@pytest.mark.slow
def test_strategies_never_see_what_is_pooled(run, monkeypatch):
    """Neither names nor labels: ``Parcel.evaluation`` is for the evaluator alone."""
    seen, step = [], FedAvg.step

    def spy(self, server_round, replies):
        seen.extend(replies.values())
        return step(self, server_round, replies)

    monkeypatch.setattr(FedAvg, "step", spy)
    run("fclg", **POOLED)
    assert len(seen) == 9
    assert not any(parcel.evaluation for parcel in seen)


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


@pytest.mark.slow
def test_sites_that_agreed_give_what_a_simulation_gives(run, once, tmp_path):
    agreed = toys.policy(tmp_path, pooled_evaluation=True)
    sites = [{"clients": c, **agreed} for c in ("2", "1,0")]
    assert run("fclg", node_configs=sites, **POOLED).rounds == (
        once("fclg", **POOLED).rounds
    )


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


@pytest.mark.slow
def test_a_client_with_one_graph_takes_part_and_is_scored_with_the_others_only(
    run, toy_data
):
    def lonely(settings, client_id):
        if client_id:
            return toys.federation(settings, client_id)
        return toys.make_partition(0, num_graphs=1, held_out=0.0)

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", lonely)
        for method in ("fclg", "infograph", "mvgrl"):
            finished = run(method, **SILENT)
            assert len(tables(finished)[-1]["labels"]) == 1 + 25 + 30
            assert math.isfinite(finished.summary["final"]["mean"])
        unscored = run("fclg", **QUICK, **{"num-server-rounds": 1})
    assert unscored.summary["failures"] == []
    assert set(unscored.summary["final"]["per_client"]) == {"1", "2"}


@pytest.mark.slow
def test_clients_alone_neither_send_nor_receive_a_model_after_the_start(once):
    alone = once(ALONE, **QUICK)
    assert alone.models == {}
    rows = [r for r in alone.ledger if r["record"] == "arrays"]
    assert {(r["round"], r["direction"]) for r in rows} == {("1", "down")}


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


def test_moon_keeps_the_model_at_the_end_of_the_round_and_sends_no_other(
    tmp_path, monkeypatch
):
    client = toys.make_client(tmp_path, "moon")
    sent, _, _ = client.fit(toys.shared_arrays(client), ROUND)
    kept = client.job.store.load(1)
    for name, array in zip(client.shared_keys, sent, strict=True):
        np.testing.assert_array_equal(kept[f"previous/{name}"], array)


# Found in review -----------------------------------------------------------------


def test_scores_of_some_clients_are_kept_apart_from_those_of_all(run):
    with failing_client(client=1, server_round=2):
        finished = run("fclg", **POOLED, **{"min-fit-replies": 0.5})
    seen = {k[0]: k[2] for k in finished.values("accuracy")}
    assert seen == {"0": "all", "1": "answered", "3": "all"}
    assert finished.summary["best_labelled"]["round"] != 1
    assert finished.summary["final"]["mean"] is not None


@pytest.mark.slow
def test_arrays_that_do_not_fit_together_name_the_client(run, monkeypatch):
    own = graph_embedder.EmbeddingClient._own

    def short(self, embeddings):
        arrays = own(self, embeddings)
        if self.job.client_id == 2:
            arrays["labels"] = arrays["labels"][:-1]
        return arrays

    monkeypatch.setattr(graph_embedder.EmbeddingClient, "_own", short)
    finished = run("fclg", **POOLED, **{"min-fit-replies": 0.5})
    assert {f["client"] for f in finished.summary["failures"]} == {2}
    reason = finished.summary["failures"][0]["reason"]
    assert (
        "array 'labels' is int64 of shape (29,), expected int64 of shape (30,)"
        in reason
    )


@pytest.mark.parametrize("extra", [{"data-path": "/data"}, {"clients": "0,1,2"}])
def test_a_node_with_a_configuration_of_its_own_is_a_site(run, extra):
    node = {"partition-id": 0, "num-partitions": 1, **extra}
    with pytest.raises(RunFailedError, match=REFUSED):
        run("fclg", node_configs=[node], **POOLED)


@pytest.mark.parametrize(
    "bad",
    [
        {"embedding.figure-rounds": "1"},
        {**POOLED, "embedding.figure-rounds": "1,4"},
    ],
)
def test_figures_that_would_not_be_drawn_are_refused(bad):
    with pytest.raises(ConfigError, match=r"figure-rounds must be rounds up to .* 3"):
        toys.resolved("fclg", **bad)


@pytest.mark.slow
def test_rounds_to_draw_are_evaluated(run):
    drawn = {**POOLED, "embedding.rounds": "", "embedding.figure-rounds": "2"}
    assert {k[0] for k in run("fclg", **drawn).values("accuracy")} == {"2", "3"}
