"""Models on the test sets of all clients: every method, in simulation and at sites."""

from __future__ import annotations

import numpy as np
import pytest
import toys
from matrix import mostly_slow

from clients.base import GraphClient
from clients.tasks.node_classifier import NodeClassifierClient
from fedgraph_flwr import server_app
from fedgraph_flwr.core.errors import ConfigError, DataError, RunFailedError
from fedgraph_flwr.core.tasks import GRAPH_EMBEDDING
from fedgraph_flwr.node import introduce, serve
from fedgraph_flwr.results.printed import summary_table

ALL = {"evaluate-on": "all", "shared-group": "all", "privacy.edge-epsilon": 0.0}
CLEAN = {"fgcl": {"fgcl.views": "clean"}}
ALONE = {"adafgl", "fedsage+"}  # their models need what only the own graph has
CASES = [
    m for m in toys.CASES if toys.row(m).task is not GRAPH_EMBEDDING and m not in ALONE
]


@pytest.mark.parametrize(
    "method", mostly_slow(CASES, fast=["local", "gcfl+", "fedpub"])
)
def test_every_methods_models_are_scored_on_all_test_sets(run, method):
    plain = run(method, **{**ALL, "evaluate-on": "own"}, **CLEAN.get(method, {}))
    finished = run(method, nodes=2, **ALL, **CLEAN.get(method, {}))
    assert finished.sha == plain.sha
    summary = finished.summary
    assert summary["final"] == plain.summary["final"]
    assert plain.summary["on_all_clients"] is None
    found = summary["on_all_clients"]
    assert set(found["per_client"]) == set("012")
    assert summary["failures"] == []
    own, sizes = summary["final"]["per_client"], summary["num_examples"]
    if toys.row(method).strategy.ONE_MODEL and method != "fedstar":
        mean = sum(own[c] * sizes[c] for c in own) / sum(sizes[c] for c in own)
        assert found["per_client"] == dict.fromkeys("012", pytest.approx(mean))
    words = f"3 clients' models on the test sets of all clients: {summary['metric']}"
    assert f"{words} {found['mean']:.4f}" in " ".join(summary_table(summary).split())


def test_a_model_of_ones_own_is_right_where_it_is_right(run, monkeypatch):
    """Client c always says class c: its accuracy is that class's share of all tests."""
    labels = {}

    def say(self, _):
        own = int(self.model.state_dict()["convs.0.weight"].flatten()[0])
        graph = self.graph
        labels[graph.num_nodes] = graph.y[graph.test].numpy()
        logits = toys.torch.zeros((graph.num_nodes, 3))
        logits[:, own] = 1
        return logits

    def mark(self, num_epochs=None):
        with toys.torch.no_grad():
            self.tensors()["convs.0.weight"].fill_(self.job.client_id)
        return toys.Parcel()

    monkeypatch.setattr(NodeClassifierClient, "logits", say)
    monkeypatch.setattr(GraphClient, "train", mark)
    finished = run("local node-classification", **ALL)
    every = np.concatenate(list(labels.values()))
    assert len(labels) == 3
    expected = {str(c): pytest.approx((every == c).mean()) for c in range(3)}
    assert finished.summary["on_all_clients"]["per_client"] == expected


def test_no_score_on_test_sets_that_are_not_those_of_roll_call(run, toy_data):
    """Of which one is now what its client trained on; the others do not fail by it."""

    def other(settings, client):
        found = toys.federation(settings, client)
        swap = {"train": found.test, "test": found.train} if client == 1 else {}
        return toys.renewed(found, **swap)

    with toy_data.context() as patch:

        def late(_, message):
            if message.metadata.message_type == "evaluate":
                serve.kept_data.clear()
                patch.setattr("datasets.load_partition", other)

        toys.on_delivery(patch, before=late)
        summary = run("local", **ALL, **{"min-fit-replies": 0.5}).summary
    assert [(f["round"], f["client"]) for f in summary["failures"]] == [(4, 1)]
    assert set(summary["final"]["per_client"]) == {"0", "2"}
    assert summary["on_all_clients"]["num_clients"] == 0


def test_at_sites_a_common_model_needs_nothing_but_own_scores(run, tmp_path):
    at_sites = run("fedavg", node_configs=toys.two_sites(tmp_path), **ALL)
    simulated = run("fedavg", **ALL)
    assert at_sites.summary["on_all_clients"] == simulated.summary["on_all_clients"]
    silent = toys.two_sites(tmp_path / "silent", scores=False)
    told = run("fedavg", node_configs=silent, **ALL).summary["on_all_clients"]
    assert (told["num_clients"], told["mean"]) == (0, None)


@pytest.mark.parametrize("method", ["local", "gcfl+"])
def test_at_sites_models_of_single_clients_or_clusters_go_nowhere(
    run, tmp_path, method
):
    with pytest.raises(DataError, match="ConfigError: see docs"):
        run(method, node_configs=toys.two_sites(tmp_path), **ALL)


def test_a_site_reads_no_other_clients_data_even_if_it_was_not_asked(
    run, tmp_path, monkeypatch
):
    """As if the run had got through its roll call."""
    checked, introduced = introduce.check_elsewhere, set()

    def once(resolved, partition):
        if partition.client_id in introduced:
            checked(resolved, partition)
        introduced.add(partition.client_id)

    monkeypatch.setattr(introduce, "check_elsewhere", once)
    with pytest.raises(RunFailedError, match="ConfigError: see docs"):
        run("local", node_configs=toys.two_sites(tmp_path), **ALL)


@pytest.mark.parametrize("method", sorted({*toys.CASES} - {*CASES}))
def test_methods_whose_models_predict_nothing_elsewhere_are_refused(run, method):
    with pytest.raises(ConfigError, match="evaluate-on must be 'own'"):
        run(method, **ALL)


def test_noise_on_edges_is_the_owners_to_draw():
    with pytest.raises(ConfigError, match=r"\(privacy.edge-epsilon 2\), got 'all'"):
        toys.resolved("fgcl", **{"evaluate-on": "all"})


def test_clients_of_other_widths_are_refused():
    infos = {c: toys.info(c, num_features=4 + c) for c in range(2)}
    resolved = toys.resolved("local", **{**ALL, "shared-group": "convs"})
    with pytest.raises(ConfigError, match="if clients differ in"):
        server_app.common_start(resolved, infos)
    other = {c: toys.info(c, tasks=(t,)) for c, t in enumerate("ab")}
    with pytest.raises(ConfigError, match=r"different tasks.*'a'.*'b'"):
        server_app.common_start(resolved, other)
