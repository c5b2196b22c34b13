"""Clients that train as one do what each would do by itself."""

from __future__ import annotations

import collections
import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toys
from matrix import mostly_slow
from safetensors.numpy import load_file
from torch.utils._python_dispatch import TorchDispatchMode

import datasets
from clients.fedavg import Proximal
from clients.graphs.batching import CollatedGraphs
from clients.graphs.ops import dropout_mask
from clients.marks import done_by_stacks
from clients.optimizer import num_steps, optimizer_tensors
from clients.stacking import stack
from clients.stacking.batch import JoinedGraphs
from clients.stacking.groups import practise_together, stack_of
from clients.stacking.masks import draw_masks
from clients.store import ClientStore
from clients.tasks.graph_classifier import GraphClassifierClient
from clients.tasks.node_classifier import NodeClassifierClient
from fedgraph_flwr import together
from fedgraph_flwr.errors import RunFailedError
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.registry import METHODS, load_class
from fedgraph_flwr.tasks import GRAPH_CLASSIFICATION, NODE_CLASSIFICATION
from fedgraph_flwr.wire import Parcel, with_prefix

ON_GRAPHS = ["local", "fedavg", "fedprox", "gcfl", "gcfl+"]
ON_NODES = [f"{m} node-classification" for m in ON_GRAPHS]
ON_NODES += ["self-weight"]
WIDE = {"hidden-dim": 8, "dropout": 0.5, "num-clients": 5, "batch-size": 8}


@pytest.fixture
def stacks(monkeypatch):
    """Sizes of the stacks that were trained."""
    seen = []
    practise = stack.Stack.practise

    def counted(self):
        seen.append(len(self.clients))
        return practise(self)

    monkeypatch.setattr(stack.Stack, "practise", counted)
    return seen


def tensors(run):
    """Everything that server and clients stored, by file and name.

    States are named after the run of Flower, too.
    """
    places = [run.path, run.overrides["state-dir"]]
    files = [f for place in places for f in Path(place).rglob("*.safetensors")]
    return {
        (f"{path.parent.name}/{path.stem.split('-')[:2]}", name): array
        for path in files
        for name, array in load_file(path).items()
    }


def assert_alike(found, expected, *, tolerance=1e-5):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(
            found[name], array, atol=tolerance, err_msg=str(name)
        )


@pytest.mark.parametrize(
    "case",
    mostly_slow([*ON_GRAPHS, *ON_NODES], fast=["fedprox", "gcfl+", "self-weight"]),
)
def test_a_run_is_that_of_clients_one_by_one(run, stacks, case):
    """Clients have graphs of their own number and size, and a last, smaller batch."""
    one, many = (run(case, **WIDE, stacked=how) for how in ("off", "on"))
    assert max(stacks) > 1
    assert one.summary["stacked"] == 0
    assert many.summary["stacked"] == max(stacks)
    assert_alike(tensors(many), tensors(one))
    for name, value in one.values().items():
        assert many.values()[name] == pytest.approx(value, abs=1e-4), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "more"),
    [
        ("fedavg", {"optimizer": "adamw", "persist-optimizer": True}),
        ("fedavg", {"optimizer": "amsgrad", "persist-optimizer": True}),
        ("fedavg", {"client-fraction": 0.6}),
        ("fedavg", {"client-fraction": 0.6, "persist-optimizer": True}),
        ("fedavg", {"held-out-clients": "1", "shared-group": "all"}),
        ("fedavg", {"batch-size": 100, "local-epochs": 3}),
        ("fedavg", {"dropout": 0.0}),
        ("fedavg", {"dropout": 0.37, "num-layers": 1}),
        ("fedavg", {"shared-group": "all", "evaluate-on": "all"}),
        ("fedavg", {"patience": 1, "min-rounds": 1}),
        ("fedprox", {"fedprox.mu": 5.0}),
        ("fedprox", {"fedprox.mu": 0.0}),
        ("gcfl+", {"gcfl.seq-source": "last-grad-norm", "gcfl.min-round": 0}),
        ("local", {"local.epochs": 2}),
        ("fedavg node-classification", {"evaluate-every": 2}),
        ("gcfl+", {"evaluate-every": 2}),
        ("fedavg node-classification", {"num-layers": 3, "dropout": 0.2}),
        ("fedavg node-classification", {"num-layers": 1}),
        ("fedavg node-classification", {"shared-group": "convs"}),  # FedPer
        ("self-weight", {"self-weight.proximal-lambda": 1.0}),
    ],
    ids=str,
)
def test_so_it_is_with_any_setting(run, stacks, case, more):
    one, many = (run(case, **{**WIDE, **more, "stacked": how}) for how in ("off", "on"))
    assert stacks
    assert_alike(tensors(many), tensors(one))
    assert many.values() == pytest.approx(one.values(), abs=1e-4)
    for what in ("failures", "privacy", "num_examples", "clusters"):
        assert many.summary.get(what) == one.summary.get(what)


def own_graphs(kind, client):
    partition = toys.make_partition(client, num_graphs=20, dense=kind == "real rows")
    if kind == "one graph to train on" and client < 3:
        return toys.renewed(partition, train=partition.train[:1])
    return partition


def own_nodes(kind, client):
    partition = toys.make_node_partition(client, num_nodes=20 + 5 * client)
    graphs = partition.graphs
    if kind == "sparse rows":
        at = np.arange(len(graphs.x))
        x = np.zeros((len(at), 40), np.float32)
        x[at, at % 40] = 1 + at
        return toys.renewed(partition, graphs=replace(graphs, x=x, num_features=40))
    if kind == "nodes without a class":
        y, none = graphs.y.copy(), partition.train[[0, 1, -1]]
        y[none] = -1
        graphs = replace(graphs, y=y)
        return toys.renewed(partition, graphs=graphs, train=partition.train[2:-1])
    none = {"nobody to test": "test", "nobody to train on": "train"}
    return (
        toys.renewed(partition, **{none[kind]: np.arange(0)}) if client else partition
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "kind", "make"),
    [
        *(("fedavg", k, own_graphs) for k in ("real rows", "one graph to train on")),
        ("fedavg node-classification", "sparse rows", own_nodes),
        ("fedavg node-classification", "nodes without a class", own_nodes),
        ("fedavg node-classification", "nobody to test", own_nodes),
        ("fedavg node-classification", "nobody to train on", own_nodes),
    ],
)
def test_data_of_all_forms(run, stacks, monkeypatch, case, kind, make):
    monkeypatch.setattr(datasets, "load_partition", lambda _, c: make(kind, c))
    one, many = (run(case, **WIDE, stacked=how) for how in ("off", "on"))
    assert bool(stacks) == (kind != "nobody to train on")
    assert_alike(tensors(many), tensors(one))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*ON_GRAPHS, *ON_NODES])
def test_equal_shapes_give_equal_bytes(run, stacks, monkeypatch, case):
    """Where batched products are to the bit those of single matrices."""

    def equally_large(settings, client_id):
        return replace(toys.federation(settings, 0), client_id=client_id)

    monkeypatch.setattr(datasets, "load_partition", equally_large)
    monkeypatch.setattr(torch, "bmm", one_by_one(torch.mm))
    monkeypatch.setattr(torch, "baddbmm", one_by_one(torch.addmm))
    keys = {**WIDE, "batch-size": 32}  # all graphs: as many nodes in each batch
    one, many = (run(case, **keys, stacked=how) for how in ("off", "on"))
    assert set(stacks) == {5}
    assert many.sha == one.sha


def one_by_one(product):
    """Make a batched product of single ones: libraries may compute the two apart."""

    def call(*batches):
        return torch.stack([product(*rows) for rows in zip(*batches, strict=True)])

    return call


@pytest.mark.slow
def test_adam_goes_on_from_what_is_stored(run, stacks):
    keys = {**WIDE, "persist-optimizer": True}
    one, many = (run("fedavg", **keys, stacked=how) for how in ("off", "on"))
    assert stacks
    found = tensors(many)
    assert any(name == "adam/exp_avg" for _, name in found)
    assert_alike(found, tensors(one))


@pytest.mark.slow
def test_noise_is_charged_to_stacked_clients(run, stacks):
    keys = {**WIDE, "privacy.update-clip": 0.5, "privacy.update-noise": 3.0}
    one, many = (run("fedavg", **keys, stacked=how) for how in ("off", "on"))
    assert stacks
    assert many.summary["privacy"] == one.summary["privacy"]
    assert one.summary["privacy"]


@pytest.mark.slow
def test_resuming_equals_never_stopping(run, stacks):
    whole = run("gcfl+", **WIDE, stacked="on")
    half = run("gcfl+", **{**WIDE, "num-server-rounds": 1}, stacked="on")
    again = run(
        "gcfl+",
        **WIDE,
        stacked="on",
        resume=str(half.path),
        **{"state-dir": half.overrides["state-dir"]},
    )
    assert again.sha == whole.sha


def test_without_a_gpu_clients_train_one_by_one(run, stacks):
    run("fedavg", **WIDE)
    assert stacks == []


@pytest.mark.parametrize("case", ["moon", "fedgkd", "fedavg multi-task"])
def test_a_method_that_cannot_is_refused(run, case):
    with pytest.raises(RunFailedError, match="stacked is 'on', but clients of method"):
        run(case, stacked="on")


def test_which_methods_can():
    can = {
        f"{name} {task.key}"
        for name, method in METHODS.items()
        for task, client in method.clients.items()
        if stack_of(load_class(client))
    }
    on_graphs = {f"{name} {GRAPH_CLASSIFICATION.key}" for name in ON_GRAPHS}
    plain = {*ON_GRAPHS, "self-weight"}
    assert can == on_graphs | {f"{name} {NODE_CLASSIFICATION.key}" for name in plain}


def test_a_loss_of_ones_own_is_never_left_out():
    class Smooth(GraphClassifierClient):
        def loss(self, batch, generator):
            return super().loss(batch, generator) * 2

    class Counts(NodeClassifierClient):
        def end_step(self):
            pass

    class Whole(GraphClassifierClient):
        def train(self, parcel, header):
            return super().train(parcel, header)

    class Frozen(NodeClassifierClient):
        def __init__(self, job):
            super().__init__(job)
            self.model.readout.requires_grad_(False)

    assert stack_of(GraphClassifierClient)
    assert stack_of(Smooth) is None
    assert stack_of(load_class((Proximal, Smooth))) is None

    class Wrapped(GraphClassifierClient):
        @functools.wraps(GraphClassifierClient.loss)
        def loss(self, batch, generator):
            return super().loss(batch, generator) * 2

    class Begins(GraphClassifierClient):
        def begin(self, parcel, header):
            return super().begin(parcel, header)

    class Smaller(NodeClassifierClient):
        @property
        def graph(self):
            return replace(self.data.whole, train=self.data.whole.train[:2])

    class Looks(NodeClassifierClient):
        def uplink(self, trained):
            self.logits(None)
            return super().uplink(trained)

    changed = (Counts, Whole, Frozen, Wrapped, Begins, Smaller, Looks)
    assert [stack_of(c) for c in changed] == [None] * len(changed)


class Behind(GraphClassifierClient, Proximal):
    """Its loss is that of the task: nothing pulls."""


class Lets(load_class((Proximal, GraphClassifierClient))):
    """Nothing pulls any more."""

    loss = GraphClassifierClient.loss


class Names(GraphClassifierClient):
    """Has a function of that name, which its loss does not know."""

    def pull_weight(self):
        return 10.0


@pytest.mark.parametrize("kind", [Behind, Lets, Names])
def test_a_pull_is_there_if_the_loss_has_it(tmp_path, kind):
    one, many = [], []
    for found in (one, many):
        for k in range(2):
            base = begun(
                tmp_path / str(len(one)),
                toys.make_partition(k),
                "fedprox",
                **{"fedprox.mu": 20.0, "local-epochs": 4},
            )
            client = kind(base.job)
            start = base.round.received
            arrays = {n: t.detach().numpy().copy() for n, t in start.items()}
            parcel = Parcel(arrays=with_prefix(SHARED, arrays))
            client.round = client.begin(parcel, {"server-round": 1})
            found.append(client)
    for client in one:
        client.practise(client.optimizer())
    assert set(practise_together(many)) == {0, 1}
    for left, right in zip(one, many, strict=True):
        assert_alike(
            {n: t.detach().numpy() for n, t in right.tensors().items()},
            {n: t.detach().numpy() for n, t in left.tensors().items()},
        )


def test_damaged_moments_of_one_client_fail_it_alone(run, monkeypatch):
    load = ClientStore.load

    def damaged(self, *args):
        found = load(self, *args)
        if found and self.client_id == 1:
            found["adam/exp_avg"] = found["adam/exp_avg"][:-1]
        return found

    monkeypatch.setattr(ClientStore, "load", damaged)
    keys = {**WIDE, "persist-optimizer": True, "min-fit-replies": 0.5}
    many = run("fedavg", **keys, stacked="on")
    assert {f["client"] for f in many.summary["failures"]} == {1}


@pytest.mark.parametrize("change", ["frozen", "own loss", "other model"])
def test_a_changed_client_trains_by_itself(tmp_path, change):
    clients = [begun(tmp_path, toys.make_partition(k)) for k in range(3)]
    if change == "frozen":
        clients[0].model.post.requires_grad_(False)
    elif change == "own loss":
        clients[0].loss = lambda *_: torch.zeros((), requires_grad=True)
    else:
        clients[0].model.__class__ = type("Other", (type(clients[0].model),), {})
    assert set(practise_together(clients)) == {1, 2}


def test_clients_of_other_widths_or_steps_stack_apart(tmp_path):
    sizes = [(20, 4), (20, 4), (90, 4), (95, 4), (20, 5)]
    clients = [
        begun(tmp_path, toys.make_partition(k, num_graphs=n, num_features=f))
        for k, (n, f) in enumerate(sizes)
    ]
    assert set(practise_together(clients)) == {0, 1, 2, 3}


def test_who_has_made_one_step_stacks_apart_from_who_has_made_none(tmp_path):
    options = {"persist-optimizer": True, "local-epochs": 1, "batch-size": 100}
    clients = [begun(tmp_path, toys.make_partition(k), **options) for k in range(3)]
    stepped = clients[0].optimizer()
    clients[0].practise(stepped)
    clients[0].round = replace(clients[0].round, stored=optimizer_tensors(stepped))
    assert num_steps(clients[0].optimizer()) == 1
    assert set(practise_together(clients)) == {1, 2}


def test_a_width_that_random_words_do_not_divide_trains_one_by_one(tmp_path):
    partitions = [toys.make_partition(k) for k in range(2)]
    for width, expected in ((6, set()), (8, {0, 1})):
        clients = [begun(tmp_path, p, **{"hidden-dim": width}) for p in partitions]
        assert set(practise_together(clients)) == expected
    clients = [begun(tmp_path, p, **{"hidden-dim": 6}, dropout=0.0) for p in partitions]
    assert set(practise_together(clients)) == {0, 1}


def test_one_bad_client_of_a_stack_is_one_bad_client(run, stacks, monkeypatch):
    begin = GraphClassifierClient.begin

    @done_by_stacks
    def bad(self, parcel, header):
        if self.job.client_id == 1:
            raise ValueError("no graphs today")
        return begin(self, parcel, header)

    monkeypatch.setattr(GraphClassifierClient, "begin", bad)
    many = run("fedavg", **WIDE, **{"min-fit-replies": 0.5}, stacked="on")
    assert set(stacks) == {3}  # one client has a batch more
    failed = many.summary["failures"]
    assert {(f["client"], f["reason"]) for f in failed} == {
        (1, "ValueError: no graphs today")
    }


@pytest.mark.slow
@pytest.mark.parametrize("step", ["num_epochs", "pull_weight"])
def test_a_step_that_fails_for_one_client_fails_it_alone(
    run, stacks, monkeypatch, step
):
    make = getattr(Proximal, step)

    @done_by_stacks
    def bad(self):
        if self.job.client_id == 1:
            raise ValueError("not today")
        return make(self)

    monkeypatch.setattr(Proximal, step, bad, raising=False)
    many = run("fedprox", **WIDE, **{"min-fit-replies": 0.5}, stacked="on")
    failed = {(f["client"], f["reason"]) for f in many.summary["failures"]}
    assert failed == {(1, "ValueError: not today")}


def test_a_client_that_trains_on_a_node_without_class_fails_alone(run, monkeypatch):
    """As it does one by one: it must not learn that the node is of class 0."""

    def load(_, client):
        partition = toys.make_node_partition(client)
        y = partition.graphs.y.copy()
        y[partition.train[:1]] = -1 if client == 1 else 0
        return toys.renewed(partition, graphs=replace(partition.graphs, y=y))

    monkeypatch.setattr(datasets, "load_partition", load)
    few = {**WIDE, "min-fit-replies": 0.5, "num-server-rounds": 1}
    many = run("fedavg node-classification", **few, stacked="on")
    (failure,) = many.summary["failures"]
    assert (failure["client"], failure["round"]) == (1, 1)
    assert "Target -1 is out of bounds" in failure["reason"]


@pytest.mark.slow
def test_each_client_is_pulled_by_its_own_weight(run, stacks, monkeypatch):
    def own(self):
        return 3.0 * self.job.client_id

    monkeypatch.setattr(Proximal, "pull_weight", own)
    one, many = (run("fedprox", **WIDE, stacked=how) for how in ("off", "on"))
    assert stacks
    assert_alike(tensors(many), tensors(one))


@pytest.mark.slow
def test_a_stack_that_fails_leaves_its_clients_to_themselves(run, monkeypatch, caplog):
    one = run("fedavg", **WIDE, stacked="off")

    def full(*_):
        raise torch.OutOfMemoryError("2 GiB too few")

    monkeypatch.setattr(stack.GraphStack, "train", full)
    caplog.set_level("WARNING", "flwr")
    many = run("fedavg", **WIDE, stacked="on")
    assert many.sha == one.sha
    assert "clients as one, so one by one: OutOfMemoryError: 2 GiB" in caplog.text


def test_masks_are_those_of_the_clients_own_streams():
    sizes = [np.array([3, 5]), np.array([2, 1])]
    drawn = draw_masks(
        sizes, streams(2), width=8, dropout=0.3, device=toys.CPU
    )  # fmt: skip
    for client, generator in enumerate(streams(2)):
        for layer, rows in enumerate(sizes):
            like = torch.zeros(2, int(rows.max()), 8)
            mask, scale = drawn.of(layer, like)
            own = torch.zeros(int(rows[client]), 8)
            expected, same = dropout_mask(own, 0.3, generator)
            assert scale == same
            assert torch.equal(mask[client, : len(own)], expected)


def streams(count):
    return [torch.Generator().manual_seed(k) for k in range(count)]


def test_a_stacked_batch_holds_each_clients_own():
    partitions = [toys.make_partition(k, num_graphs=6 + k) for k in range(3)]
    single = [CollatedGraphs(p.graphs, toys.CPU) for p in partitions]
    positions = [p.train[::-1].copy() for p in partitions]
    joined_batch = JoinedGraphs(single).batch(positions)
    count, width = joined_batch.x.shape[:2]
    height = len(joined_batch.y) // count
    blocks = joined_batch.adjacency.to_dense().view(count, width, count, width)
    members = joined_batch.membership.to_dense().view(count, height, count, width)
    for k, (graphs, chosen) in enumerate(zip(single, positions, strict=True)):
        own = graphs.batch(chosen)
        n, g = len(own.x), own.num_graphs
        assert torch.equal(joined_batch.x[k, :n], own.x)
        assert not joined_batch.x[k, n:].any()
        assert torch.equal(blocks[k, :n, k, :n], own.adjacency.to_dense())
        assert torch.equal(members[k, :g, k, :n], own.membership.to_dense())
        assert torch.equal(joined_batch.y.view(count, height)[k, :g], own.y)
        weight = joined_batch.weight.view(count, height)[k]
        assert weight[:g].tolist() == pytest.approx([1 / g] * g)
        assert not weight[g:].any()
        graph_of_node = joined_batch.graph_of_node.view(count, width)[k] - k * height
        assert torch.equal(graph_of_node[:n], own.graph_of_node)
        assert set(graph_of_node[n:].tolist()) <= {height - 1}
        blocks[k, :n, k, :n] = members[k, :g, k, :n] = 0
    assert not blocks.any()
    assert not members.any()


class Counter(TorchDispatchMode):
    """Counts operators as they reach a device."""

    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*ON_GRAPHS, *ON_NODES])
def test_operators_do_not_grow_with_clients(run, monkeypatch, case):
    """A round of 50 clients launches at most half as many again as one of 5."""
    practise, seen = stack.Stack.practise, []

    def counted(self):
        with Counter() as counter:
            practised = practise(self)
        seen.append((len(self.clients), counter.seen))
        return practised

    monkeypatch.setattr(stack.Stack, "practise", counted)
    monkeypatch.setattr(together, "MOST_AT_ONCE", {"cpu": 50})
    if case in ON_GRAPHS:  # of others some clients have more classes
        same = functools.partial(toys.make_partition, num_graphs=20)
        monkeypatch.setattr(datasets, "load_partition", lambda _, c: same(c))
    one_batch = {**WIDE, "batch-size": 100, "stacked": "on", "num-server-rounds": 1}
    for count in (5, 50):
        run(case, **{**one_batch, "num-clients": count})
    (few, before), (many, after) = seen
    assert (few, many) == (5, 50)
    assert after.total() <= 1.5 * before.total(), after - before


def begun(root, partition, method="fedavg", **overrides):
    """Make a client at the start of round 1."""
    given = {"hidden-dim": 8, "dropout": 0.5, "batch-size": 32, **overrides}
    client = toys.make_client(
        root / str(partition.client_id), method, partition=partition, **given
    )
    start = {n: t.detach().numpy() for n, t in client.tensors().items()}
    arrays = with_prefix(SHARED, {n: start[n] for n in client.shared_keys})
    client.round = client.begin(Parcel(arrays=arrays), {"server-round": 1})
    return client
