"""The check-list that every registered method passes."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import toys
from matrix import mostly_slow, one_per_strategy

from fedgraph_flwr import client_app
from fedgraph_flwr.core.errors import ConfigError, RunFailedError
from fedgraph_flwr.core.seeding import derive_seed
from fedgraph_flwr.core.tasks import (
    GRAPH_CLASSIFICATION,
    GRAPH_EMBEDDING,
    MULTI_TASK_CLASSIFICATION,
    NODE_CLASSIFICATION,
)
from fedgraph_flwr.core.wire import TRAIN_LOSS, Parcel
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import ROUNDS, load_summary
from simulations import contract
from simulations.inline import InlineGrid

ALL = pytest.mark.parametrize("method", toys.CASES)
ONE_PER_STRATEGY = one_per_strategy(toys.CASES)
MEASURED = [
    *toys.of_task(GRAPH_CLASSIFICATION),
    *toys.of_task(MULTI_TASK_CLASSIFICATION),
    *toys.of_task(NODE_CLASSIFICATION),
]


@ALL
def test_defaults_build_and_survive_the_round_trip_through_the_config(method):
    first = toys.resolved(method)
    again = resolve({**defaults(), **first.to_config()})
    assert again.to_config() == first.to_config()


@ONE_PER_STRATEGY
def test_training_changes_every_model(lab, method):
    contract.learns(lab, method)


@ALL
def test_labels_of_test_items_change_no_weights(lab, method):
    contract.learns_from_no_test_label(lab, method)


@pytest.mark.parametrize("method", MEASURED)
def test_dropout_is_of_training_alone(tmp_path, method):
    scores, losses = [], []
    for rate in (0.0, 0.5):
        settings = toys.resolved(method, dropout=rate).settings
        partition = toys.federation(settings, 0)
        client, again = (
            toys.make_client(
                tmp_path / f"{rate}-{k}", method, partition=partition, dropout=rate
            )
            for k in "ab"
        )
        mail = toys.parcel(client)
        if method == "spreadgnn":  # its model comes from no server
            mail = Parcel(facts={"neighbours": "{}"})
        client.load(mail, {"server-round": 1})
        scores.append(client.scores("post_aggregation").metrics)
        losses.append(again.participate(mail, {"server-round": 1}).metrics[TRAIN_LOSS])
    assert scores[0] == scores[1]
    assert any("loss" in name for name in scores[0])
    assert losses[0] != losses[1]


@ONE_PER_STRATEGY
def test_another_seed_gives_other_bytes(lab, method):
    contract.other_seed_other_bytes(lab, method)


@ONE_PER_STRATEGY
def test_learning_rate_zero_changes_nothing(lab, method):
    contract.rests_at_rate_zero(lab, method)


@pytest.mark.parametrize(
    "method", mostly_slow(MEASURED, fast=["fedavg multi-task", "fedsage", "gcfl+"])
)
def test_measuring_seldom_leaves_out_rounds_and_changes_nothing(run, method, caplog):
    rounds = {"num-server-rounds": 5, "patience": 0}
    always = run(method, **rounds)
    with caplog.at_level("INFO", logger="flwr"):
        seldom = run(method, **rounds, **{"evaluate-every": 2})
    assert seldom.sha == always.sha
    said = [m for m in caplog.messages if "after round " in m]
    assert [m.split("after round ")[1][0] for m in said] == list("00224")
    everything, found = always.values(), seldom.values()
    kept = {
        key: value
        for key, value in everything.items()
        if key[2] == "train" or int(key[0]) in (0, 2, 4, 5)
    }
    assert found == kept
    assert len(found) < len(everything)
    assert seldom.summary["final"] == always.summary["final"]
    assert seldom.summary["best_val"]["round"] in (2, 4, 5)
    assert "best_snapshot" not in seldom.summary["rules"]  # it reads every round


def test_methods_that_need_every_round_measured_say_so():
    own = {**defaults(), **toys.tiny("fclg"), "evaluate-every": 2}
    with pytest.raises(ConfigError, match="evaluate-every must be 1, as"):
        resolve(own)


@one_per_strategy(toys.federated())
def test_identical_clients_give_that_client_back(run, toy_data, method):
    def twin(settings, client_id):
        one = replace(toys.federation(settings, 0), client_id=client_id)
        return replace(one, graph_ids=1000 * client_id + one.graph_ids)

    def same_order(seed, _client, *purpose):
        return derive_seed(seed, "twin", *purpose)

    one_round = {"num-server-rounds": 1, "batch-size": 100, "dropout": 0.0}
    one_round |= {"fgcl.views": "clean", "privacy.edge-epsilon": 0.0}  # no own noise
    one_round |= {"fedtad.distillations": 0}  # what a generator makes depends on n
    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", twin)
        # Adam makes steps of rounding errors where a gradient is zero.
        patch.setattr("clients.base.derive_seed", same_order)
        many = run(method, **one_round, **{"shared-group": "all"})
        single = run(method, **one_round, **{"shared-group": "all", "num-clients": 1})
    for name, array in next(iter(single.models.values())).items():
        np.testing.assert_allclose(
            next(iter(many.models.values()))[name], array, atol=1e-6
        )


@ONE_PER_STRATEGY
@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [1, 2])
def test_resuming_equals_never_stopping(lab, method, stop_after):
    contract.resumes_exactly(lab, method, stop_after=stop_after)


def test_resuming_with_another_learning_rate_is_refused_by_name(run):
    part = run("fedavg", **{"num-server-rounds": 1})
    with pytest.raises(ConfigError, match=r"learning-rate was 0.01 and is now 0.5"):
        run("fedavg", **{"resume": str(part.path), "learning-rate": 0.5})


@ONE_PER_STRATEGY
def test_a_failed_client_is_named_counted_and_survived(lab, method):
    contract.survives_a_failed_client(lab, method)


@pytest.mark.parametrize(
    "method", mostly_slow(toys.CASES, fast=["fedavg", "gcfl+", "spreadgnn"])
)
def test_too_few_replies_stop_the_run_and_keep_what_was_computed(lab, method, tmp_path):
    words = f"min-fit-replies = 1 needs 3. client 1: {contract.REASON}"
    failing = contract.failing_client()
    with failing, pytest.raises(RunFailedError, match=words):
        lab.run(method, **{"results-dir": str(tmp_path)})
    (folder,) = tmp_path.iterdir()
    summary = load_summary(folder)
    assert (summary["status"], summary["rounds"]) == ("failed", 1)
    assert contract.REASON in summary["error"]
    assert "\n1,0,train,post_training,loss," in (folder / ROUNDS).read_text()


@pytest.fixture(scope="module")
def on_three_nodes(lab):
    """Runs on three nodes whose replies arrive the other way round, by method.

    With the names of arrays that clients sent.
    """
    made, pack, pull = {}, client_app.pack, InlineGrid.pull_messages

    def run(method):
        sent: set[str] = set()

        def spy(parcels, header=None):
            for parcel in parcels.values():
                sent.update(parcel.arrays)
            return pack(parcels, header)

        def turned(self, ids):
            return list(pull(self, ids))[::-1]

        if method not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(client_app, "pack", spy)
                patch.setattr(InlineGrid, "pull_messages", turned)
                made[method] = lab.run(method, nodes=3), sent
        return made[method]

    return run


@ALL
def test_the_same_seed_gives_the_same_bytes_on_any_nodes(lab, on_three_nodes, method):
    one, (three, _) = lab.once(method), on_three_nodes(method)
    assert (three.sha, three.rounds) == (one.sha, one.rounds)


@ALL
def test_only_shared_tensors_travel(on_three_nodes, method):
    _, sent = on_three_nodes(method)
    row = toys.row(method)
    prefix = "delta/" if method.startswith("gcfl") else "shared/"
    shared = {prefix + n for n in toys.shared_keys(method)}
    declared = toys.SENT_BESIDE.get(method, [])
    beside = {n for n in sent if any(f.match(n) for f in declared)}
    assert all(any(f.match(n) for n in beside) for f in declared)
    assert sent == (shared | beside if row.has_server_model else beside)
    if row.task is GRAPH_CLASSIFICATION and not row.strategy.IN_ONE_PLACE:
        private = ("pre", "post", "readout")
        assert not any(n.split("/")[1].startswith(private) for n in sent)


# Neutral settings: a method with its special part switched off is plain averaging.


@pytest.mark.parametrize("method", ["gcfl", "gcfl+"])
def test_gcfl_that_never_splits_equals_fedavg_in_every_round(run, once, method):
    never = {"gcfl.max-norm-threshold": 1e9, "gcfl.mean-norm-threshold": 1e9}
    ours, plain = run(method, **never), once("fedavg")
    for key, value in plain.values("loss").items():
        assert ours.values("loss")[key] == pytest.approx(value, abs=1e-5), key
    for name, array in plain.models["global"].items():
        np.testing.assert_allclose(ours.models["cluster-0"][name], array, atol=1e-5)


def test_fedprox_without_its_term_equals_fedavg_to_the_byte(run, once):
    prox = {"batch-size": 4, "fedprox.mu": 0.0}
    assert run("fedprox", **prox).sha == once("fedavg").sha
    assert run("fedprox", **{"fedprox.mu": 1.0}).sha != once("fedavg").sha


@ALL
def test_every_evaluation_and_byte_is_recorded(lab, method):
    contract.completes(lab, method)
    finished, task = lab.once(method), toys.row(method).task
    seen, summary = finished.values(), finished.summary
    last = "3", "2", task.headline, "post_aggregation", task.metric
    assert summary["final"]["per_client"]["2"] == seen[last]
    assert all(0 <= v <= 1 for k, v in seen.items() if k[4] == task.metric)
    rounds = {k[0] for k in seen if k[1:] == last[1:]}
    assert rounds == set("03" if task is GRAPH_EMBEDDING else "0123")
    if task is GRAPH_CLASSIFICATION:  # trained models are measured too
        for client, split, number in product("012", ("val", "test"), "123"):
            assert math.isfinite(seen[number, client, split, "post_training", "loss"])
    for way in ("up", "down"):
        sizes = [int(r["bytes"]) for r in finished.ledger if r["direction"] == way]
        assert summary[f"bytes_{way}"] == sum(sizes) > 0


def test_gcfl_splits_show_in_clusters_and_summary(run):
    often = {"gcfl.max-norm-threshold": 0.0, "gcfl.mean-norm-threshold": 1e9}
    finished = run("gcfl", **often)
    sizes = [len(members) for members in finished.clusters.values()]
    assert sizes == [2, 2, 2]  # a cluster of two is below min-cluster-size
    assert sorted(c for members in finished.clusters["3"] for c in members) == [0, 1, 2]
    assert finished.summary["num_clusters"] == len(finished.models) == 2
