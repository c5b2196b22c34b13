"""Every method on federations that are uneven, interrupted or partly broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import toys
from matrix import one_per_strategy
from oracles.gin import twin
from plain_fedavg import plain_fedavg
from stops import resumed
from threadpoolctl import threadpool_info, threadpool_limits

from clients.tasks.graph_classifier import GraphClassifierClient
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.tasks import GRAPH_CLASSIFICATION
from fedgraph_flwr.core.wire import unpack
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.printed import summary_table
from simulations.contract import failing_client
from strategies.fedavg import FedAvg

FEDERATED = one_per_strategy(toys.federated())
CLASSIFIERS = pytest.mark.parametrize(
    "method", sorted({*toys.of_task(GRAPH_CLASSIFICATION)} & {*toys.AT_SITES})
)
EAGER = {  # splits as soon and as often as it may
    "num-clients": 5,
    "batch-size": 64,
    "gcfl.mean-norm-threshold": 1e9,
    "gcfl.max-norm-threshold": 0.0,
}


@CLASSIFIERS
def test_clients_of_other_widths_train_in_one_federation(run, toy_data, method):
    def uneven(settings, client_id):
        return toys.make_partition(
            client_id, num_features=3 + client_id, num_classes=2 + client_id
        )

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", uneven)
        if method == "fedproto":  # of whose classes means are averaged
            with pytest.raises(ConfigError, match="classes, of which means cannot be"):
                run(method)
            return
        finished = run(method)
        assert set(finished.summary["final"]["per_client"]) == {"0", "1", "2"}
        assert finished.summary["failures"] == []


@pytest.mark.parametrize("shared", ["all", "convs", "none"])
def test_fedavg_is_a_plain_loop_of_pyg(run, shared):
    """The models, not only scores: with equal starts, batches and no dropout."""
    rounds, rate, decay = 4, 0.05, 0.01
    finished = run(
        "local" if shared == "none" else "fedavg",
        **{"num-server-rounds": rounds, "learning-rate": rate, "weight-decay": decay},
        **{"shared-group": "convs" if shared == "convs" else "all"},
        **{"batch-size": 64, "dropout": 0.0},
    )
    resolved = resolve({**defaults(), **finished.overrides})
    settings = resolved.settings
    partitions = [toys.federation(settings, c) for c in range(settings.num_clients)]
    spec = resolved.spec(num_features=4, num_classes=2)
    models = [
        twin(GraphClassifierClient.build_model(replace(spec, client_id=c)), 4, 2)
        for c in range(settings.num_clients)
    ]
    scores = plain_fedavg(
        partitions,
        models,
        shared=shared,
        rounds=rounds,
        batch_size=64,
        rate=rate,
        decay=decay,
    )
    found = finished.summary["final"]["per_client"]
    assert [found[str(c)] for c in range(len(models))] == pytest.approx(scores)
    for name, tensor in finished.models.get("global", {}).items():
        expected = models[0].ours()[name].detach().numpy()
        np.testing.assert_allclose(tensor, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "given", "why"),
    [
        ("gcfl+", {"gcfl.max-norm-threshold": 1e9}, "never split: FedAvg up to"),
        ("gcfl", {**EAGER, "num-clients": 3, "gcfl.min-cluster-size": 2}, ""),
        ("fedprox", {"fedprox.mu": 0.0}, "has fedprox.mu 0: FedAvg"),
        ("fedprox", {"batch-size": 999}, "makes one step a round, without a pull"),
        ("moon", {"moon.mu": 0.0}, "has moon.mu 0: FedAvg"),
        ("fedavg", {}, ""),
        ("fedprox", {"batch-size": 4}, ""),
    ],
)
def test_a_method_that_did_nothing_of_its_own_is_marked(run, method, given, why):
    """Also if it split before a stop, and not after."""
    part = run(method, **{"num-server-rounds": 3}, **given)
    whole = resumed(run, part, method, **{"num-server-rounds": 4})
    for summary in (part.summary, whole.summary):
        assert summary["inert"].startswith(why)
        assert bool(summary["inert"]) == bool(why)
        line = f"{method} did nothing of its own: it {why}"
        assert (line in summary_table(summary)) == bool(why)
    assert (len(part.summary["clusters"]) > 1) == (method == "gcfl")


def test_resuming_between_splits_equals_never_stopping(run):
    whole = run("gcfl+", **EAGER, **{"num-server-rounds": 5})
    counts = [len(members) for members in whole.clusters.values()]
    assert 1 < counts[1] < counts[-1], "no split before and after the resume"
    part = run("gcfl+", **EAGER, **{"num-server-rounds": 2})
    again = resumed(run, part, "gcfl+", **{"num-server-rounds": 5})
    assert again.clusters == whole.clusters
    assert (again.sha, again.rounds) == (whole.sha, whole.rounds)
    assert again.summary["best_snapshot"] == whole.summary["best_snapshot"]


@FEDERATED
def test_a_client_that_missed_the_first_round_joins_the_second(run, method):
    with failing_client(1, 1):
        finished = run(method, **{"min-fit-replies": 0.5})
    assert [f["round"] for f in finished.summary["failures"]] == [1]
    assert set(finished.summary["final"]["per_client"]) == {"0", "1", "2"}


def test_a_message_of_the_papers_model_carries_24960_floats(run, monkeypatch):
    floats: dict[str, list[int]] = {"down": [], "up": []}

    def spy(*both):
        for way, message in zip(("down", "up"), both, strict=True):
            for parcel in unpack(message.content)[0].values():
                assert all(a.dtype == np.float32 for a in parcel.arrays.values())
                floats[way].append(sum(a.size for a in parcel.arrays.values()))

    toys.on_delivery(monkeypatch, after=spy)
    sizes = {"hidden-dim": 64, "num-layers": 3, "num-server-rounds": 1}
    finished = run("gcfl", **sizes)
    # roll call (nothing), one round, evaluation (down only); three clients each
    assert floats["up"] == [0] * 3 + [24_960] * 3 + [0] * 3
    assert floats["down"] == [24_960] * 6
    (size,) = {int(r["bytes"]) for r in finished.ledger if r["record"] == "arrays"
               and r["direction"] == "up"}  # fmt: skip
    assert 4 * 24_960 < size < 4 * 24_960 + 2_000  # names and shapes


def test_the_server_computes_on_one_blas_thread(run, monkeypatch):
    seen: list[int] = []
    step = FedAvg.step

    def spy(self, server_round, replies):
        pools = threadpool_info()
        seen.extend(p["num_threads"] for p in pools if p["user_api"] == "blas")
        step(self, server_round, replies)

    monkeypatch.setattr(FedAvg, "step", spy)
    with threadpool_limits(limits=2, user_api="blas"):
        run("fedavg")
    assert set(seen) == {1}
