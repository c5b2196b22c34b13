"""Clients of a stack are of like sizes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import toys

import datasets
from clients.stacking import buckets as module
from clients.stacking import stack
from clients.stacking.buckets import LIMITS, Limits, buckets

STACKED = {
    "hidden-dim": 8,
    "batch-size": 5_000,
    "stacked": "on",
    "num-server-rounds": 1,
}


def price(cut, sizes, launch):
    """Launches and sizes with padding; among equals, the number of buckets."""
    padded = sum(len(part) * max(sizes[k] for k in part) for part in cut)
    return launch * len(cut) + padded, len(cut)


def is_allowed(cut, sizes, most):
    return all(len(p) == 1 or len(p) * max(sizes[k] for k in p) <= most for p in cut)


def every_cut(sizes):
    """Cuts of the clients in the order of their sizes."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    for ends in itertools.product([False, True], repeat=len(order) - 1):
        cut = [[order[0]]]
        for is_new, client in zip(ends, order[1:], strict=True):
            cut.append([client]) if is_new else cut[-1].append(client)
        yield cut


@pytest.mark.parametrize("seed", range(200))
def test_no_cut_costs_less(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 20, rng.integers(1, 9)).tolist()
    limits = Limits(launch=int(rng.integers(0, 30)), most=int(rng.integers(1, 150)))
    found = buckets(sizes, limits)
    assert sorted(itertools.chain(*found)) == list(range(len(sizes)))
    assert all(part == sorted(part) for part in found)
    assert is_allowed(found, sizes, limits.most)
    allowed = [c for c in every_cut(sizes) if is_allowed(c, sizes, limits.most)]
    best = min(price(cut, sizes, limits.launch) for cut in allowed)
    assert price(found, sizes, limits.launch) == best


def test_clients_of_one_size_are_not_cut_unless_they_are_too_many():
    assert buckets([], Limits(launch=1, most=1)) == []
    assert buckets([7] * 512, Limits(launch=1, most=7 * 512)) == [list(range(512))]
    halves = buckets([7] * 512, Limits(launch=1, most=7 * 256))
    assert [len(part) for part in halves] == [256, 256]


def test_padding_of_clients_as_large_as_those_of_a_skewed_partition():
    """Of three orders of magnitude: padded to the largest, 12 % is used."""
    sizes = np.sort(np.random.default_rng(0).lognormal(10, 1.5, 200).astype(int))
    cpu = LIMITS["cpu"]
    found = buckets(sizes.tolist(), cpu)
    padded = sum(len(part) * sizes[part].max() for part in found)
    assert sizes.sum() / (len(sizes) * sizes.max()) < 0.13
    assert sizes.sum() / padded > 0.9
    assert len(found) < len(sizes) / 4


@pytest.mark.parametrize("case", ["fedavg", "fedavg node-classification"])
def test_a_stack_holds_clients_of_like_sizes(run, monkeypatch, case):
    """Of four small clients and two large ones; one more fits to none."""
    sizes = [20, 300, 21, 5000, 20, 310, 22]

    def partition(settings, client):
        if case == "fedavg":
            return toys.make_partition(client, num_graphs=sizes[client] // 2)
        return toys.make_node_partition(client, num_nodes=sizes[client])

    seen, practise = [], stack.Stack.practise

    def watched(self):
        seen.append([c.job.client_id for c in self.clients])
        return practise(self)

    monkeypatch.setattr(datasets, "load_partition", partition)
    monkeypatch.setattr(stack.Stack, "practise", watched)
    monkeypatch.setitem(module.LIMITS, "cpu", Limits(launch=1_000, most=2**20))
    done = run(case, **{**STACKED, "num-clients": len(sizes)})
    assert seen == [[0, 2, 4, 6], [1, 5]]
    assert done.summary["stacked"] == 4
    assert not done.summary["failures"]


def test_a_stack_is_no_larger_than_the_device_allows(run, monkeypatch):
    seen, practise = [], stack.Stack.practise

    def watched(self):
        nodes = [c.data.partition.graphs.y.size for c in self.clients]
        seen.append(len(nodes) * max(nodes) * STACKED["hidden-dim"])
        return practise(self)

    def partition(settings, client):
        return toys.make_node_partition(client, num_nodes=50)

    monkeypatch.setattr(datasets, "load_partition", partition)
    monkeypatch.setattr(stack.Stack, "practise", watched)
    monkeypatch.setitem(module.LIMITS, "cpu", Limits(launch=1, most=1_000))
    run("fedavg node-classification", **{**STACKED, "num-clients": 6})
    assert seen == [800] * 3
