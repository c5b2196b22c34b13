"""FedSage+ with rows of other clients: the loss, the exchange before round 1."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from matrix import mostly_slow
from oracles import fedsage_plus as oracle

from clients import fedsage_plus, fedsage_plus_generator
from clients.fedsage_plus import FedSagePlusClient
from clients.fedsage_plus_generator import cross_loss
from fedgraph_flwr import registry
from fedgraph_flwr.core.errors import ConfigError, RunFailedError, WireError
from fedgraph_flwr.core.wire import Parcel, select, unpack
from fedgraph_flwr.methods.fedsage_plus import ROWS, ROWS_OF, FedSagePlusParams
from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.results.run_file import RunFile
from simulations.inline import InlineGrid
from strategies.fedavg import FedAvg

CROSS = {"fedsage-plus.cross-client": True}
# Otherwise no node of the toy federation gets a neighbour.
MENDED = {"fedsage-plus.rounds": 10}
UNEVEN = {"min-fit-replies": 0.5}
COLUMNS = "round", "client", "direction", "record", "bytes"


def table(finished, *, without=()):
    rows = [tuple(r[k] for k in COLUMNS) for r in finished.ledger]
    return [row for row in rows if row[0] not in without]


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
    deliver = InlineGrid.deliver

    def spy(self, message):
        reply = deliver(self, message)
        down, header = unpack(message.content)
        at = int(header.get("server-round", -1))
        seen.append((at, "down", down))
        if not reply.has_error():
            seen.append((at, "up", unpack(reply.content)[0]))
        return reply

    monkeypatch.setattr(InlineGrid, "deliver", spy)
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
    found = cross_loss(
        torch.from_numpy(features), [torch.from_numpy(o) for o in others]
    )
    expected = oracle.cross_loss(features.reshape(6, 4), others)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_many_alike_clients_weigh_as_much_as_one():
    rng = np.random.default_rng(0)
    made, rows = (torch.from_numpy(rng.normal(size=s)) for s in ((5, 2, 3), (4, 3)))
    one, seven = (cross_loss(made, [rows] * n).item() for n in (1, 7))
    assert seven == pytest.approx(one)


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


# Off -----------------------------------------------------------------------------


@pytest.mark.slow
def test_without_it_messages_and_results_are_those_of_plain_averaging(
    run, mail, monkeypatch
):
    ours = run("fedsage+")
    assert {at for at, _, _ in mail} == {-1, 1, 2, 3, 4}  # 4 closes
    names = {n for _, _, parcels in mail for p in parcels.values() for n in p.arrays}
    assert all(name.startswith("shared/") for name in names)
    row = replace(registry.METHODS["fedsage+"], strategy=FedAvg)
    monkeypatch.setitem(registry.METHODS, "fedsage+", row)
    plain = run("fedsage+")
    assert (ours.sha, ours.rounds) == (plain.sha, plain.rounds)
    assert table(ours) == table(plain)
    assert ours.summary.keys() == plain.summary.keys()
    facts = [
        RunFile(ours.path).facts(t)["facts"] for t in RunFile(ours.path).checkpoints()
    ]
    assert facts == [{}, {}]


def test_without_it_a_client_gives_nothing_even_if_asked(tmp_path):
    partition = toys.make_node_partition(num_nodes=40)
    assert toys.make_client(tmp_path, "fedsage+", partition=partition).opening() == {}


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
        drawn[seed] = [
            int(np.flatnonzero((partition.graphs.x == row).all(1))[0])
            for row in found[ROWS]
        ]
        assert drawn[seed] == sorted(set(drawn[seed]))
        assert len(drawn[seed]) == 5
        assert set(drawn[seed]) <= set(partition.train)
    assert drawn[10] != drawn[11]


def test_all_training_nodes_if_there_are_fewer_and_none_if_none(tmp_path):
    partition = toys.make_node_partition(num_nodes=10)
    for train in (partition.train[:4], partition.train[:0]):
        part = replace(partition, train=train)
        client = toys.make_client(tmp_path, "fedsage+", partition=part, **CROSS)
        assert np.array_equal(client.opening()[ROWS], partition.graphs.x[train])


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


@pytest.mark.parametrize("nodes", mostly_slow([1, 3], fast=[3]))
def test_everybody_gets_the_rows_of_the_others_and_never_its_own(cross, mail, nodes):
    cross(nodes=nodes)
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


@pytest.mark.slow
def test_the_exchange_carries_the_declared_bytes_and_is_in_the_ledger(run, cross, mail):
    finished = cross(nodes=3)
    rows = 4 * 5 * 6  # float32, cross-rows, features of the toy graph
    up = [p for at, way, parcels in mail if (at, way) == (0, "up")
          for p in parcels.values()]  # fmt: skip
    assert [sum(a.nbytes for a in p.arrays.values()) for p in up] == [rows] * 3
    assert not any(p.arrays for at, way, parcels in mail if (at, way) == (0, "down")
                   for p in parcels.values())  # fmt: skip
    opening = [r for r in table(finished) if r[0] == "0" and r[3] == "arrays"]
    assert [r[1:3] for r in opening] == [("0", "up"), ("1", "up"), ("2", "up")]
    own = run("fedsage+", nodes=3, **MENDED)
    sizes = [
        {
            r[1]: int(r[4])
            for r in table(x)
            if r[0] == "1" and r[2:4] == ("down", "arrays")
        }
        for x in (finished, own)
    ]
    for row in opening:  # beside the floats, names and shapes
        assert rows < int(row[4]) < rows + 1000
        more = sizes[0][row[1]] - sizes[1][row[1]]
        assert 2 * rows < more < 2 * rows + 500
    later, others = (table(x, without=("0", "1")) for x in (finished, own))
    sent = [[r for r in rows if r[3] == "arrays"] for rows in (later, others)]
    assert sent[0] == sent[1]  # metrics say more if a model predicts one class
    for direction, key in (("up", "bytes_up"), ("down", "bytes_down")):
        total = sum(int(r[4]) for r in table(finished) if r[2] == direction)
        assert finished.summary[key] == total


@pytest.mark.slow
def test_the_same_bytes_on_any_number_of_nodes_in_any_order(cross, monkeypatch):
    usual = cross()
    pull = InlineGrid.pull_messages
    monkeypatch.setattr(
        InlineGrid, "pull_messages", lambda self, ids: list(pull(self, ids))[::-1]
    )
    for nodes in (2, 3):
        spread = cross(nodes=nodes)
        assert (spread.sha, spread.rounds) == (usual.sha, usual.rounds)
    assert cross(seed=11).sha != usual.sha


def test_a_client_of_another_method_has_nothing_to_open_with(tmp_path):
    client = toys.make_client(tmp_path, "fedavg")
    with pytest.raises(WireError, match="client 0 is asked for an opening, which its"):
        client.opening()


def test_others_are_sorted_by_number_and_not_by_name(tmp_path):
    client = toys.make_client(
        tmp_path, "fedsage+", partition=toys.make_node_partition(), **CROSS
    )
    rows = {f"{ROWS_OF}{c}": np.full((2, 6), c, np.float32) for c in (10, 2, 1)}
    toys.begun(client, extras=rows)
    found = client._rows_of_others(torch.zeros(1, 6))
    assert [int(rows[0, 0]) for rows in found] == [1, 2, 10]


@pytest.mark.parametrize("stop_after", mostly_slow([1, 2], fast=[2]))
def test_resuming_equals_never_stopping_and_asks_nobody_again(cross, mail, stop_after):
    whole = cross()
    part = cross(**{"num-server-rounds": stop_after})
    places = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    mail.clear()
    resumed = cross(**places, resume=str(part.path))
    assert 0 not in {at for at, _, _ in mail}
    assert not any(rows_down(mail, stop_after + 1).values())
    assert (resumed.sha, resumed.rounds) == (whole.sha, whole.rounds)
    # Headers of a resumed run name the run before.
    parcels = [[r for r in table(t) if r[3] != "header"] for t in (resumed, whole)]
    assert parcels[0] == parcels[1]
    assert resumed.summary["disclosed"] == whole.summary["disclosed"]


@pytest.mark.slow
def test_who_has_not_trained_before_a_stop_gets_its_rows_after_it(
    cross, mail, monkeypatch
):
    with monkeypatch.context() as patch:
        fail_in(patch, 1, "train")
        whole = cross(**UNEVEN)
    with monkeypatch.context() as patch:
        fail_in(patch, 1, "train")
        part = cross(**UNEVEN, **{"num-server-rounds": 1})
    # Its first message after the failure was the closing evaluation, with the rows.
    places = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    mail.clear()
    resumed = cross(**UNEVEN, **places, resume=str(part.path))
    assert {c: sorted(r) for c, r in rows_down(mail, 2).items()} == {
        0: [], 1: [0, 2], 2: []
    }  # fmt: skip
    assert not any(rows_down(mail, 3).values())
    assert (resumed.sha, resumed.rounds) == (whole.sha, whole.rounds)


@pytest.mark.slow
def test_with_partial_participation_rows_wait_for_who_has_not_trained(cross, mail):
    share = {"num-clients": 6, "client-fraction": 0.5, "num-server-rounds": 3}
    cross(**share, patience=0)
    given = [c for at, way, parcels in mail if (at, way) == (0, "up") for c in parcels]
    assert sorted(given) == list(range(6))
    trained: set[int] = set()
    for server_round in (1, 2, 3, 4):  # 4 closes, with all clients
        got = rows_down(mail, server_round)
        assert {c for c, rows in got.items() if rows} == set(got) - trained
        assert all(set(rows) == set(range(6)) - {c} for c, rows in got.items() if rows)
        trained |= set(got)
    assert trained == set(range(6))


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


@pytest.mark.slow
def test_a_lost_node_costs_its_clients_rows(cross, mail, monkeypatch):
    toys.lose_reply(monkeypatch, server_round=0, client=2)
    finished = cross(nodes=3, **UNEVEN)
    (failure,) = finished.summary["failures"]
    assert (failure["round"], failure["client"]) == (0, 2)
    assert "connection lost" in failure["reason"]
    assert sorted(rows_down(mail, 1)[2]) == [0, 1]


def test_too_few_that_gave_stop_the_run_before_any_training(
    cross, monkeypatch, tmp_path
):
    fail_in(monkeypatch, 1, "opening")
    with pytest.raises(RunFailedError, match=r"round 0: 2 of 3 clients.*disk full"):
        cross(**{"results-dir": str(tmp_path)})
    (path,) = tmp_path.glob("2*")
    summary = load_summary(path)
    assert (summary["status"], summary["rounds"]) == ("failed", 0)
    assert summary["failures"][0]["client"] == 1
    assert summary["bytes_up"] > 0


@pytest.mark.slow
def test_a_client_without_training_nodes_gives_no_rows_and_gets_those_of_others(
    cross, toy_data, mail
):
    def bare(settings, client_id):
        partition = toys.federation(settings, client_id)
        return replace(
            partition, train=partition.train[: 0 if client_id == 1 else None]
        )

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", bare)
        finished = cross()
    assert finished.summary["failures"] == []
    got = rows_down(mail, 1)
    assert {c: sorted(rows) for c, rows in got.items()} == {0: [2], 1: [0, 2], 2: [0]}
    assert "0 of client 1" in finished.summary["disclosed"]


def test_clients_that_send_no_rows_or_others_fail_by_name(cross, monkeypatch):
    monkeypatch.setattr(FedSagePlusClient, "opening", lambda _: {})
    with pytest.raises(RunFailedError, match=r"clients 0-2: .* lacks \['cross/rows'\]"):
        cross()

    def wide(self):
        return {ROWS: np.zeros((2, 6 + self.job.client_id), np.float32)}

    monkeypatch.setattr(FedSagePlusClient, "opening", wide)
    with pytest.raises(RunFailedError, match=r"client 2: .*'cross/rows' .*\(2, 8\)"):
        cross()


def test_who_gets_no_rows_says_so(cross, caplog, monkeypatch):
    for client in (0, 1):
        fail_in(monkeypatch, client, "opening")
    caplog.set_level(logging.WARNING, logger="flwr")
    cross(**{"min-fit-replies": 0.3})
    said = [r.getMessage() for r in caplog.records if "got no rows" in r.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("client 2 got no rows of other clients")


# Privacy -------------------------------------------------------------------------


@pytest.mark.slow
def test_the_run_warns_and_its_summary_says_who_saw_what(run, cross, caplog):
    caplog.set_level(logging.WARNING, logger="flwr")
    finished = cross()
    (warning,) = (r for r in caplog.records if "raw feature rows" in r.getMessage())
    assert warning.levelno == logging.WARNING
    assert "up to 5 training nodes" in warning.getMessage()
    assert finished.summary["disclosed"].endswith(
        "5 of client 0, 5 of client 1, 5 of client 2"
    )
    caplog.clear()
    assert "disclosed" not in run("fedsage+").summary
    assert "raw feature" not in caplog.text


@pytest.mark.slow
def test_the_generator_and_what_it_made_stay_at_home(cross, mail):
    finished = cross()
    up = {n for _, way, parcels in mail if way == "up"
          for p in parcels.values() for n in p.arrays}  # fmt: skip
    shared = {f"shared/{n}" for n in toys.shared_keys("fedsage+")}
    assert up == {ROWS, *shared}
    # The server forgets rows once all have trained.
    file = RunFile(finished.path)
    for number in file.checkpoints():
        assert not any(n.startswith(ROWS) for n in file.read(number, "")[0])


def test_noise_on_updates_is_refused_beside_raw_rows():
    with pytest.raises(ConfigError, match=r"feature rows of nodes.*, which noise on"):
        toys.resolved("fedsage+", **CROSS, **{"privacy.update-clip": 1.0})
    toys.resolved("fedsage+", **{"privacy.update-clip": 1.0})


@pytest.mark.slow
def test_a_site_that_did_not_agree_refuses_at_roll_call(run, cross, mail, tmp_path):
    agreed = toys.policy(tmp_path, raw_features=True)
    sites = [{"clients": "0,1", **agreed}, {"clients": "2"}]
    with pytest.raises(RunFailedError, match=r"PolicyError \(raw-features\): see"):
        cross(node_configs=sites)
    assert {at for at, _, _ in mail} == {-1}
    assert run("fedsage+", node_configs=sites).summary["status"] == "completed"


@pytest.mark.slow
def test_sites_that_agreed_give_what_a_simulation_gives(cross, tmp_path):
    agreed = toys.policy(tmp_path, raw_features=True)
    sites = [{"clients": c, **agreed} for c in ("2", "1,0")]
    assert cross(node_configs=sites).sha == cross().sha


@pytest.mark.slow
def test_rows_are_used_once(cross, monkeypatch):
    seen: list[int] = []
    train = fedsage_plus.train_generator

    def spy(*args, others, **kw):
        seen.append(len(others))
        return train(*args, others=others, **kw)

    monkeypatch.setattr(fedsage_plus, "train_generator", spy)
    cross()
    assert seen == [2, 2, 2]


# No setting is without effect ----------------------------------------------------

OTHERS = {
    "rounds": 3,
    "cross-client": False,
    "local-epochs": 2,
}
FIELDS = [*FedSagePlusParams.config_fields(), "local-epochs"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_each_setting_changes_what_is_generated_or_given(tmp_path, monkeypatch, name):
    def one_each(counts, _):
        nodes = torch.arange(len(counts))
        return nodes, torch.zeros_like(nodes)

    monkeypatch.setattr(fedsage_plus, "choose_neighbours", one_each)
    rows = np.full((3, 6), 0.5, np.float32)

    def made(folder, **changed):
        own = {"fedsage-plus.rounds": 2, "fedsage-plus.cross-client": True, **changed}
        client = toys.make_client(
            tmp_path / folder,
            "fedsage+",
            partition=toys.make_node_partition(),
            **{"local-epochs": 1, **own},
        )
        toys.begun(client, extras={f"{ROWS_OF}1": rows})
        generated = client.mended().x[20:].detach().numpy()
        return [generated, *client.opening().values()]

    plain = made("plain")
    changed = made("changed", **{name: OTHERS[name.removeprefix("fedsage-plus.")]})
    same = [a.shape == b.shape and np.allclose(a, b, atol=1e-5)
            for a, b in zip(plain, changed, strict=False)]  # fmt: skip
    assert not all(same)
