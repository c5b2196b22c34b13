"""FedSage+ with rows of other clients: the loss, the exchange before round 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from oracles import fedsage_plus as oracle
from stops import resumed

from clients import fedsage_plus, fedsage_plus_generator
from clients.fedsage_plus import FedSagePlusClient
from clients.fedsage_plus_generator import cross_loss
from fedgraph_flwr.core.wire import Parcel, select, unpack
from fedgraph_flwr.methods.fedsage_plus import ROWS, ROWS_OF

CROSS = {"fedsage-plus.cross-client": True}
# Otherwise no node of the toy federation gets a neighbour.
MENDED = {"fedsage-plus.rounds": 10}
UNEVEN = {"min-fit-replies": 0.5}


@pytest.fixture(autouse=True)
def five_rows(monkeypatch):
    """Each client gives five rows."""
    for module in ("clients", "strategies"):
        monkeypatch.setattr(f"{module}.fedsage_plus.CROSS_ROWS", 5)


@pytest.fixture
def cross(run):
    def start(**overrides):
        return run("fedsage+", **{**MENDED, **CROSS, **overrides})

    return start


@pytest.fixture
def mail(monkeypatch):
    """Parcels of every message, as (round, way, {client: parcel}); -1 for roll call."""
    seen: list[tuple[int, str, dict[int, Parcel]]] = []

    def spy(message, reply):
        down, header = unpack(message.content)
        at = int(header.get("server-round", -1))
        seen.append((at, "down", down))
        if not reply.has_error():
            seen.append((at, "up", unpack(reply.content)[0]))

    toys.on_delivery(monkeypatch, after=spy)
    return seen


def rows_down(mail, server_round):
    """Rows that each client was handed in a round: {client: {other: rows}}."""
    return {
        client: {int(c): a for c, a in select(ROWS_OF, parcel.arrays).items()}
        for at, way, parcels in mail
        if (at, way) == (server_round, "down")
        for client, parcel in parcels.items()
    }


def fail_in(monkeypatch, client, method):
    """Let one client raise the first time it is asked for this."""
    usual, left = getattr(FedSagePlusClient, method), [1]

    def broken(self, *arguments):
        if self.job.client_id == client and left:
            left.pop()
            raise ValueError("disk full")
        return usual(self, *arguments)

    monkeypatch.setattr(FedSagePlusClient, method, broken)


# The loss ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_cross_loss_is_that_of_the_oracle(seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(3, 2, 4))
    # More than 25 rows: cdist then multiplies matrices.
    others = [rng.normal(size=(n, 4)) for n in (1, 7, 40)[: seed + 1]]
    found = cross_loss(torch.from_numpy(features), [*map(torch.from_numpy, others)])
    expected = oracle.cross_loss(features.reshape(6, 4), others)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_the_generator_learns_the_rows_of_others(tmp_path, monkeypatch):
    def one_each(counts, _):
        return torch.arange(len(counts)), torch.zeros(len(counts), dtype=torch.int64)

    monkeypatch.setattr(fedsage_plus, "choose_neighbours", one_each)
    partition = toys.make_node_partition(num_nodes=40)
    rows = np.full((3, 6), 0.9, np.float32)

    def distance(**options):
        client = toys.make_client(
            tmp_path, "fedsage+", partition=partition, **{**MENDED, **CROSS, **options}
        )
        toys.begun(client, extras={f"{ROWS_OF}1": rows})
        features, _ = client._generate()
        return (features - torch.from_numpy(rows[:1])).square().mean().item()

    near = distance()
    monkeypatch.setattr(fedsage_plus, "train_generator", without_others)
    assert near < distance()


def without_others(*given, **named):
    return fedsage_plus_generator.train_generator(*given, **{**named, "others": ()})


# The exchange --------------------------------------------------------------------


def test_rows_are_drawn_from_training_nodes(tmp_path):
    partition = toys.make_node_partition(3, num_nodes=40)
    drawn = {}
    for seed in (10, 11):
        options = {**CROSS, "num-clients": 4, "seed": seed}
        client = toys.make_client(tmp_path, "fedsage+", partition=partition, **options)
        found = client.opening()
        assert set(found) == {ROWS}
        assert np.array_equal(found[ROWS], client.opening()[ROWS])
        assert found[ROWS].dtype == np.float32
        same = (partition.graphs.x == found[ROWS][:, None]).all(2)
        drawn[seed] = [int(np.flatnonzero(row)[0]) for row in same]
        assert drawn[seed] == sorted(set(drawn[seed]))
        assert len(drawn[seed]) == 5
        assert set(drawn[seed]) <= set(partition.train)
    assert drawn[10] != drawn[11]


def test_sparse_and_one_hot_features_travel_as_dense_floats(tmp_path):
    partition = toys.make_node_partition(num_nodes=40, num_features=30)
    columns = (np.arange(40) % 30).astype(np.uint8)
    for x in (np.eye(30, dtype=np.float32)[columns], columns):
        part = replace(partition, graphs=replace(partition.graphs, x=x))
        client = toys.make_client(tmp_path, "fedsage+", partition=part, **CROSS)
        rows = client.opening()[ROWS]
        assert rows.shape == (5, 30)
        assert rows.dtype == np.float32
        assert (rows.sum(1) == 1).all()


def test_everybody_gets_the_rows_of_the_others_and_never_its_own(cross, mail):
    cross(nodes=3)
    given = {
        c: p.arrays[ROWS]
        for at, way, parcels in mail
        if (at, way) == (0, "up")
        for c, p in parcels.items()
    }
    assert sorted(given) == [0, 1, 2]
    got = rows_down(mail, 1)
    assert {c: sorted(rows) for c, rows in got.items()} == {
        0: [1, 2], 1: [0, 2], 2: [0, 1]
    }  # fmt: skip
    for rows in got.values():
        for other, array in rows.items():
            assert array.dtype == np.float32
            assert np.array_equal(array, given[other])
    for later in (2, 3, 4):
        assert not any(rows_down(mail, later).values())


def test_others_are_sorted_by_number_and_not_by_name(tmp_path):
    client = toys.make_client(
        tmp_path, "fedsage+", partition=toys.make_node_partition(), **CROSS
    )
    rows = {f"{ROWS_OF}{c}": np.full((2, 6), c, np.float32) for c in (10, 2, 1)}
    toys.begun(client, extras=rows)
    found = client._rows_of_others(torch.zeros(1, 6))
    assert [int(rows[0, 0]) for rows in found] == [1, 2, 10]


def test_resuming_equals_never_stopping_and_asks_nobody_again(run, cross, mail):
    whole = cross()
    part = cross(**{"num-server-rounds": 2})
    mail.clear()
    again = resumed(run, part, "fedsage+", **{"num-server-rounds": 3})
    assert 0 not in {at for at, _, _ in mail}
    assert not any(rows_down(mail, 3).values())
    assert (again.sha, again.rounds) == (whole.sha, whole.rounds)
    assert again.summary["disclosed"] == whole.summary["disclosed"]


# What goes wrong -----------------------------------------------------------------


@pytest.mark.slow
def test_a_client_that_gave_nothing_is_named_and_its_rows_are_missing(
    cross, mail, monkeypatch
):
    fail_in(monkeypatch, 1, "opening")
    finished = cross(nodes=2, **UNEVEN)
    assert finished.summary["status"] == "completed"
    assert finished.summary["failures"] == [
        {"round": 0, "client": 1, "reason": "ValueError: disk full"}
    ]
    got = rows_down(mail, 1)
    assert {c: sorted(rows) for c, rows in got.items()} == {0: [2], 1: [0, 2], 2: [0]}
    assert finished.summary["disclosed"].endswith("5 of client 0, 5 of client 2")
