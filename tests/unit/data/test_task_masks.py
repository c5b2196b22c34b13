"""Which client learns which task, and what that does to its labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import toys

from datasets.splits import assign_tasks, mask_tasks
from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.resolve import defaults, resolve

SETS = {"SIDER": (27, 4), "Tox21": (12, 8), "MUV": (17, 8), "QM8": (12, 8)}


def settings(masks: str, *, clients: int = 2) -> RunSettings:
    return toys.run_settings(
        dataset="BACE",
        features="atoms",
        partition="quantity-skew",
        num_clients=clients,
        task_masks=masks,
    )


@pytest.mark.parametrize(("num_tasks", "num_clients"), SETS.values(), ids=SETS)
@pytest.mark.parametrize("seed", range(6))
def test_exclusive_masks_are_disjoint_and_cover_all_tasks(num_tasks, num_clients, seed):
    own = assign_tasks("exclusive", num_tasks, num_clients, seed=seed)
    assert sorted(t for tasks in own for t in tasks) == list(range(num_tasks))
    assert all(own)
    assert all(list(tasks) == sorted(tasks) for tasks in own)


def test_exclusive_masks_are_uniform_over_what_leaves_nobody_without():
    """Two tasks of three go to one of two clients: six ways, all as likely."""
    drawn = [assign_tasks("exclusive", 3, 2, seed=s)[0] for s in range(1200)]
    counts = {own: drawn.count(own) for own in set(drawn)}
    assert set(counts) == {(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)}
    assert max(counts.values()) < 260  # 200 expected, standard deviation 13
    assert min(counts.values()) > 140


def test_listed_and_shared_masks():
    assert assign_tasks("0-2;4,3;5", 6, 3, seed=0) == [(0, 1, 2), (3, 4), (5,)]
    assert assign_tasks("0-2;1,1;0", 3, 3, seed=0) == [(0, 1, 2), (1,), (0,)]
    assert assign_tasks("all", 3, 2, seed=0) == [(0, 1, 2)] * 2


@pytest.mark.parametrize(
    ("masks", "clients", "message"),
    [
        ("0,1;3", 2, r"together tasks 0-3, got '0,1;3', 2 client\(s\) .*\[0, 1, 3\]"),
        ("0-3;4", 2, r"together tasks 0-3, got '0-3;4'"),
        ("0-1;2-3", 3, r"the tasks of 3 client\(s\), .* got '0-1;2-3', 2 client"),
        ("0-3;3-2", 2, r"one or more each, as 0-2,5"),
        ("exclusive", 5, r"gives each of 4 task\(s\) to 1 .*num-clients to 1 to 4"),
        ("overlapping", 1, r"num-clients is 1; set num-clients to 2 to 8"),
    ],
)
def test_masks_that_cannot_be_are_refused(masks, clients, message):
    with pytest.raises(ConfigError, match=message):
        assign_tasks(masks, 4, clients, seed=0)


@pytest.mark.parametrize("text", ["", "0,;1", "a", "0 1", "Exclusive", "0;1;", "-1"])
def test_masks_that_are_no_list_are_refused(text):
    with pytest.raises(ConfigError, match=r"task-masks must be 'all', 'exclusive', "):
        settings(text)


def test_classes_have_no_masks():
    config = {**defaults(), "method": "fedavg", "task-masks": "exclusive"}
    with pytest.raises(ConfigError, match="items have one class, as in dataset 'Cora'"):
        resolve({**config, "dataset": "Cora"})
    with pytest.raises(ConfigError, match="task-masks must be 'all' where items have"):
        resolve(config)


def test_only_training_labels_of_own_tasks_stay():
    before = toys.with_tasks(toys.make_partition(1))
    after = mask_tasks(before, settings("0;1"))
    train, others = before.train, np.setdiff1d(np.arange(20), before.train)
    assert after.task_ids == after.owned_tasks == (1,)
    assert np.isnan(after.graphs.y[train, 0]).all()
    np.testing.assert_array_equal(after.graphs.y[train, 1], before.graphs.y[train, 1])
    np.testing.assert_array_equal(after.graphs.y[others], before.graphs.y[others])
    assert not np.isnan(before.graphs.y[:, 0]).any()  # not changed in place
    assert mask_tasks(before, settings("all")) is before
    assert before.owned_tasks == (0, 1)


def test_masks_are_part_of_the_split_hash():
    plain = toys.with_tasks(toys.make_partition(1))
    hashes = {
        mask_tasks(plain, settings(masks)).split_hash
        for masks in ("all", "0;1", "1;0", "0-1;0-1")
    }
    assert len(hashes) == 4
    assert replace(plain, task_ids=None).split_hash == plain.split_hash
