"""Ditto: equal to local training and to FedAvg where it must be, and to plain torch."""

import copy

import numpy as np
import pytest
import torch
import toys
from torch.nn.functional import cross_entropy

from simulations.contract import NOISY
from simulations.tiny_runs import OF_TASK

FREE = {"ditto.proximal-lambda": 0.0}
TASKS = "graph-classification", "multi-task", "node-classification"


def on(task):
    return {"task": task, **OF_TASK.get(toys.row(f"fedavg {task}").task.name, {})}


def arrays(finished):
    return [row for row in finished.ledger if row["record"] == "arrays"]


@pytest.mark.parametrize("task", TASKS)
def test_without_pull_it_is_local_and_the_global_model_is_always_fedavgs(run, task):
    own = on(task)
    free, pulled, alone, averaged = (
        run(m, **own, **more)
        for m, more in (("ditto", FREE), ("ditto", {}), ("local", {}), ("fedavg", {}))
    )
    assert free.rounds == alone.rounds
    assert free.summary["final"] == alone.summary["final"]
    assert pulled.values() != alone.values()
    for found in (free, pulled):
        assert arrays(found) == arrays(averaged)
        for name, array in averaged.models["global"].items():
            np.testing.assert_array_equal(found.models["global"][name], array)


def test_noise_is_on_what_is_sent_and_paid_once(run):
    ours, theirs = run("ditto", **NOISY), run("fedavg", **NOISY)
    assert ours.summary["privacy"] == theirs.summary["privacy"]
    for name, array in theirs.models["global"].items():
        np.testing.assert_array_equal(ours.models["global"][name], array)


def test_two_rounds_are_those_of_plain_torch(tmp_path):
    """Full-graph Adam on the loss + lambda / 2 ||v - W||^2, with W as it came."""
    config = {**on(TASKS[2]), "dropout": 0.0, "ditto.proximal-lambda": 3.0}
    config |= {"shared-group": "all", "local-epochs": 3, "weight-decay": 0.0}
    part = toys.make_node_partition()
    first = toys.make_client(tmp_path, "ditto", partition=part, **config)
    v, graph = copy.deepcopy(first.model), first.graph
    adam = torch.optim.Adam(v.parameters(), lr=first.job.settings.learning_rate)
    sent = toys.shared_arrays(first)
    for number in (1, 2):
        client = toys.make_client(tmp_path, "ditto", partition=part, **config)
        mail = toys.parcel(client, sent, facts={"last-round": number - 1})
        client.participate(mail, {"server-round": number})
        for _ in range(3):
            adam.zero_grad()
            far = sum(
                (p - torch.from_numpy(w)).square().sum()
                for p, w in zip(v.parameters(), sent, strict=True)
            )
            loss = cross_entropy(v(graph, None)[graph.train], graph.y[graph.train])
            (loss + 1.5 * far).backward()
            adam.step()
        for name, tensor in v.state_dict().items():
            torch.testing.assert_close(
                client.tensors()[name], tensor, atol=1e-6, rtol=0
            )
        sent = [w + np.float32(0.1) for w in sent]
