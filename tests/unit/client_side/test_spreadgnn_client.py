"""One client of SpreadGNN: its penalty, its Omega, what it keeps and what it sends."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import toys

from clients.base import GraphClient
from clients.letters import EVERYONE, Address, Letter, read, write
from clients.spreadgnn_mail import Neighbourhood
from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.mixing import Peer
from fedgraph_flwr.core.wire import Parcel

OWN, WIDTH = (1, 3), 8
REG = 0.01


def taught(j, task_ids, *, known=None, seed=None):
    """What neighbour ``j`` with these tasks sends."""
    rng = np.random.default_rng(j if seed is None else seed)
    known = task_ids if known is None else known
    root = rng.normal(size=(len(known), len(known)))
    omega = root @ root.T + np.eye(len(known))
    return Letter(
        tensors={},
        task_ids=np.array(task_ids, np.int64),
        head_rows=rng.normal(size=(len(task_ids), WIDTH)).astype(np.float32),
        omega_task_ids=np.array(known, np.int64),
        omega=(omega / np.trace(omega)).astype(np.float32),
        peer=Peer(num_neighbours=1, num_examples=1),
    )


@pytest.fixture
def around():
    """Client 2 with tasks 1, 3 and neighbours 0, of task 0, and 5, of tasks 0, 4."""
    found = Neighbourhood(2, OWN)
    found.learn({5: taught(5, (0, 4)), 0: taught(0, (0,))})
    return found


def head(seed=9, num_tasks=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tasks, WIDTH, generator=generator)


# The client ---------------------------------------------------------------------------


def partition():
    one = toys.make_partition(2, num_graphs=25)
    y = np.full((25, 6), np.nan, np.float32)
    y[:, list(OWN)] = np.arange(25)[:, None] // np.array([2, 3]) % 2
    graphs = replace(one.graphs, y=y, num_classes=6)
    return replace(one, graphs=graphs, tasks=tuple("abcdef"), task_ids=OWN)


def make(tmp_path, **overrides):
    """Client 2, between its neighbours 0 and 5, before round 1."""
    return toys.make_client(
        tmp_path,
        "spreadgnn",
        partition=partition(),
        **{"spreadgnn.task-reg": REG, "hidden-dim": WIDTH, **overrides},
    )


ENTRY = {"key": ""}


def message(mail=None):
    """What the relay sends: the neighbours, and letters of theirs."""
    told = json.dumps({"0": ENTRY, "5": ENTRY})
    return Parcel(arrays=mail or {}, facts={"neighbours": told})


def train(client, server_round, mail=None):
    return client.participate(message(mail), {"server-round": server_round})


def begin(client, server_round, mail=None):
    client.load(message(mail), {"server-round": server_round})
    return client


def letters_of(client, server_round):
    """The neighbours' letters: the client's own model with their own tasks."""
    mail = {}
    for j, task_ids in ((0, (0,)), (5, (0, 4))):
        theirs = replace(
            taught(j, task_ids),
            tensors={n: a + j for n, a in client._mixed_tensors().items()},
        )
        mail |= as_mail(j, theirs, server_round)
    return mail


def as_mail(j, contents, server_round):
    to = Address(
        run="experiment", server_round=server_round, sender=j, receiver=EVERYONE
    )
    return {f"from/{j}": np.frombuffer(write(to, contents), np.uint8)}


@pytest.fixture
def second_round(tmp_path):
    """The client in round 2, after the letters of round 1 were mixed."""
    train(make(tmp_path), 1)
    client = make(tmp_path)
    return begin(client, 2, letters_of(client, 1))


def whole_batch(client):
    return client.job.data.graphs.batch(client.trained_on())


def gradients(client, loss):
    named = dict(client.model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        n: torch.zeros_like(p) if g is None else g
        for (n, p), g in zip(named.items(), found, strict=True)
    }


def test_the_penaltys_gradient_is_two_lambda_omega_inverse_phi(
    second_round,
):
    """On own rows, and not zero; on everything else it is zero (erratum 1)."""
    client = second_round
    client.round.around.renew(client.model.head.weight.detach(), eta=0.5)
    client.invert()
    penalty = client.penalty()
    found = gradients(client, penalty)
    omega = client.round.around.covariance().omega.numpy()
    phi = client.round.around.stack(client.model.head.weight.detach()).double().numpy()
    inverse = np.linalg.inv(omega + 1e-7 * np.eye(4))
    expected = 2 * REG * (inverse @ phi)[1:3]  # tasks 1 and 3 among 0, 1, 3, 4
    rows = found.pop("head.weight").numpy()
    np.testing.assert_allclose(rows[list(OWN)], expected, rtol=1e-5)
    assert np.abs(expected).min() > 1e-5
    assert not rows[[0, 2, 4, 5]].any()
    assert not any(g.any() for g in found.values())
    value = REG * np.trace(phi.T @ inverse @ phi)
    assert float(penalty.detach()) == pytest.approx(value, rel=1e-5)


def test_no_penalty_and_no_omega_in_round_one(tmp_path):
    with_reg = make(tmp_path / "a")
    without = make(tmp_path / "b", **{"spreadgnn.task-reg": 0.0})
    for client in (with_reg, without):
        train(client, 1)
        relations = client.round.around.covariance()
        assert relations.task_ids == OWN
        assert torch.equal(relations.omega, torch.eye(2).double() / 2)
    for name, tensor in with_reg.tensors().items():
        assert torch.equal(tensor, without.tensors()[name])


@pytest.mark.parametrize(
    ("sync", "travels"), [("all", True), ("owners", True), ("none", False)]
)
def test_what_becomes_of_the_head(tmp_path, sync, travels):
    train(make(tmp_path, **{"spreadgnn.head-sync": sync}), 1)
    client = make(tmp_path, **{"spreadgnn.head-sync": sync})
    kept = client.job.store.load(1)["head.weight"]
    begin(client, 2, letters_of(client, 1))
    now = client.model.head.weight.detach()
    contents = client._letter()
    assert ("head.weight" in contents.tensors) == travels
    assert contents.head_rows.shape == (2, WIDTH)
    start = make(tmp_path / "x").model.head.weight.detach()
    mean = (kept + start + (start + 5)) / 3
    if sync == "all":
        np.testing.assert_allclose(now, mean, rtol=1e-5, atol=1e-6)
    elif sync == "owners":
        np.testing.assert_allclose(now[list(OWN)], kept[list(OWN)], rtol=1e-6)
        np.testing.assert_allclose(now[0], start[0] + 2.5, rtol=1e-5)
        np.testing.assert_allclose(now[4], start[4] + 5, rtol=1e-5)
        np.testing.assert_allclose(now[[2, 5]], mean[[2, 5]], rtol=1e-5)
        own_bias = client.job.store.load(1)["head.bias"][list(OWN)]
        bias = client.model.head.bias.detach()[list(OWN)]
        np.testing.assert_allclose(bias, own_bias, rtol=1e-6)
    else:
        assert torch.equal(now, kept)


@pytest.mark.parametrize("server_round", [1, 2])
def test_a_letter_holds_what_the_specification_lists(tmp_path, server_round):
    for at in range(1, server_round + 1):
        client = make(tmp_path)
        mail = letters_of(client, at - 1) if at > 1 else None
        reply = train(client, at, mail)
    ((name, letter),) = reply.arrays.items()
    assert name == "to/all"
    ends = {"run": "experiment", "sender": 2, "receiver": 0}
    sent_in, plain = read(letter.tobytes(), before_round=server_round + 1, **ends)
    assert sent_in == server_round
    sent = Letter.decode(2, plain)
    assert sent.task_ids.tolist() == list(OWN)
    trained = client.tensors()
    assert set(sent.tensors) == set(trained)
    for tensor_name, array in sent.tensors.items():
        np.testing.assert_array_equal(array, trained[tensor_name].detach())
    rows = trained["head.weight"].detach()[list(OWN)]
    np.testing.assert_array_equal(sent.head_rows, rows)
    num_train = len(client.job.data.partition.train)
    assert sent.peer == Peer(num_neighbours=2, num_examples=num_train)
    # Omega, renewed from round 2 on, over the tasks of the neighbourhood
    known = OWN if server_round == 1 else (0, 1, 3, 4)
    assert sent.omega_task_ids.tolist() == list(known)
    own = client.round.around.covariance().omega
    np.testing.assert_array_equal(sent.omega, own.numpy().astype(np.float32))
    ridge = np.eye(len(known)) / len(known)
    assert np.allclose(sent.omega, ridge) == (server_round == 1)


@pytest.mark.parametrize(
    "spoil",
    [
        {"task_ids": np.array([10**9])},
        {"omega_task_ids": np.array([0, 6])},
        {"head_rows": np.zeros((1, WIDTH + 1), np.float32)},
        {"tensors": {"head.bias": np.zeros(6, np.float32)}},
    ],
)
def test_a_letter_that_does_not_fit_counts_as_missing(tmp_path, caplog, spoil):
    train(make(tmp_path), 1)
    client = make(tmp_path)
    tensors = {"tensors": dict(client._mixed_tensors())}
    odd = replace(taught(0, (0,), known=(0, 1)), **{**tensors, **spoil})
    mail = letters_of(client, 1) | as_mail(0, odd, 1)
    with caplog.at_level("WARNING", logger="flwr"):
        told = train(client, 2, mail).metrics
    assert "client 2 goes on without this mail: " in caplog.text
    assert told["unusable/0"] == 1
    assert "unusable/5" not in told
    assert client.round.around.task_ids == (0, 1, 3, 4)  # client 5 has 0, too
    assert client.round.around.teachers().tolist() == [[5, 0], [5, 4]]


@pytest.mark.parametrize("step", ["fit", "evaluate"])
def test_a_model_from_the_server_is_refused(tmp_path, step):
    client = make(tmp_path)
    start = toys.shared_arrays(client)
    with pytest.raises(WireError, match="client 2 got a model from the server: ref"):
        getattr(client, step)(start, {"server-round": 1})
    assert not client.job.store.folder.exists()


def test_there_is_no_round_before_the_first(tmp_path):
    """It would be a branch of the start, of which no memory is kept."""
    with pytest.raises(WireError, match="rounds count from 1"):
        train(make(tmp_path), 0)


def test_a_silent_neighbour_is_told_and_forgotten(tmp_path):
    told, known = {}, {}
    for server_round in range(1, 6):
        client = make(tmp_path)
        mail = letters_of(client, server_round - 1) if server_round > 1 else {}
        if server_round > 2:
            mail.pop("from/0")
        metrics = train(client, server_round, mail).metrics
        told[server_round] = metrics.get("silent/0", 0)
        known[server_round] = set(client.round.around.teachers()[:, 0].tolist())
        assert "silent/5" not in metrics
    assert told == {1: 0, 2: 0, 3: 0, 4: 2, 5: 3}
    assert known == {1: set(), 2: {0, 5}, 3: {0, 5}, 4: {5}, 5: {5}}


# What a relay can ask for -------------------------------------------------------------


def evaluated(tmp_path, server_round, mail):
    """Scores, and the neighbours whose letters were mixed."""
    client = make(tmp_path)
    reply = client.assess(message(mail), {"server-round": server_round})
    scores = {k: v for k, v in reply.metrics.items() if k.startswith("eval/")}
    return scores, set(client.round.around.teachers()[:, 0].tolist())


def test_the_closing_evaluation_is_repeated_and_trained_with_its_mail(tmp_path):
    train(make(tmp_path), 1)
    mail = letters_of(make(tmp_path), 1)
    first = evaluated(tmp_path, 2, mail)
    assert first[0]
    assert first[1] == {0, 5}
    assert evaluated(tmp_path, 2, mail) == first
    longer = make(tmp_path)
    train(longer, 2, mail)  # a resume that makes the run longer
    assert longer.round.around.teachers()[:, 0].tolist() == [0, 5, 5]


def test_a_letter_that_was_evaluated_is_read_in_no_later_round(tmp_path):
    """A relay would have scores of any mail, under ever higher numbers of rounds."""
    train(make(tmp_path), 1)
    mail = letters_of(make(tmp_path), 1)
    assert evaluated(tmp_path, 2, {"from/0": mail["from/0"]})[1] == {0}
    assert evaluated(tmp_path, 3, mail)[1] == {5}
    for server_round in (4, 700_000):
        assert evaluated(tmp_path, server_round, mail)[1] == set()


def test_a_client_that_was_sent_back_makes_no_other_branch(tmp_path):
    """The round before is repeated, which drops the state after; then comes a new."""
    sent = [train(make(tmp_path), 1)]
    mail = letters_of(make(tmp_path), 1)
    sent.append(train(make(tmp_path), 2, mail))
    first = train(make(tmp_path), 1)
    assert first.arrays["to/all"].tobytes() == sent[0].arrays["to/all"].tobytes()
    why = "round 3 with the state after round 1, but round 2 was trained before and not"
    for replayed in ({}, mail):
        for asked in (
            lambda *of: train(make(tmp_path), *of),
            partial(evaluated, tmp_path),
        ):
            with pytest.raises(WireError, match=why):
                asked(3, replayed)
    again = train(make(tmp_path), 2, mail)  # as a resume does
    assert again.arrays["to/all"].tobytes() == sent[1].arrays["to/all"].tobytes()
    train(make(tmp_path), 3)


def test_a_client_that_failed_in_a_round_goes_on_with_newer_letters(
    tmp_path, monkeypatch
):
    """Those of the round that failed count as read: a relay may have made it fail."""
    train(make(tmp_path), 1)
    mail = letters_of(make(tmp_path), 1)
    with monkeypatch.context() as patch:
        patch.setattr(GraphClient, "train", fail)
        with pytest.raises(MemoryError):
            train(make(tmp_path), 2, mail)
    client, newer = make(tmp_path), letters_of(make(tmp_path), 2)
    train(client, 3, {"from/0": newer["from/0"], "from/5": mail["from/5"]})
    assert client.round.around.teachers().tolist() == [[0, 0]]


def fail(*_):
    raise MemoryError


def test_omega_goes_to_the_server_or_stays_at_the_site(tmp_path):
    told = make(tmp_path / "open")
    reply = train(told, 1)
    assert reply.evaluation["task-ids"].tolist() == list(OWN)
    assert not list(told.job.store.folder.glob("omega-*"))
    sealed = make(tmp_path / "sealed", **{"spreadgnn.seal": True})
    alone = Parcel(facts={"neighbours": "{}"})
    assert not sealed.participate(alone, {"server-round": 1}).evaluation
    kept = np.load(sealed.job.store.folder / "omega-000001.npz")
    np.testing.assert_allclose(kept["omega"], np.eye(2) / 2)
    assert kept["task_ids"].tolist() == list(OWN)
    assert kept["learned_from"].shape == (0, 2)
