"""One client of SpreadGNN: its penalty, its Omega, what it keeps and what it sends."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys

from clients.base import GraphClient
from clients.letters import EVERYONE, Address, Letter, read, write
from clients.multitask_gnn import MultiTaskGNNClient
from clients.spreadgnn import SpreadGNNClient
from clients.spreadgnn_mail import Neighbourhood
from clients.store import ClientStore
from clients.task_covariance import closed_form
from clients.training import optimizer_tensors, restore_optimizer
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


# The neighbourhood --------------------------------------------------------------------


def test_omega_begins_as_an_ordinary_ridge(around):
    assert Neighbourhood(2, OWN).covariance().task_ids == OWN
    assert around.covariance().task_ids == (0, 1, 3, 4)
    assert torch.equal(around.covariance().omega, torch.eye(4).double() / 4)


def test_phi_has_own_rows_and_those_of_the_owners(around):
    own = head()
    phi = around.stack(own)
    of_0, of_5 = taught(0, (0,)).head_rows, taught(5, (0, 4)).head_rows
    expected = [(of_0[0] + of_5[0]) / 2, own[1], own[3], of_5[1]]
    for row, wanted in zip(phi, expected, strict=True):
        np.testing.assert_allclose(row, wanted, rtol=1e-6)


def test_own_rows_alone_carry_gradient(around):
    weight = head().requires_grad_()
    stacked = around.stack(weight.detach())
    phi = around.with_own(stacked, weight)
    assert torch.equal(phi.detach(), stacked)
    phi.sum().backward()
    assert weight.grad.sum(1).tolist() == [0, WIDTH, 0, WIDTH, 0, 0]


def test_own_rows_keep_their_places_when_a_task_is_heard_of(around):
    own = head()
    assert torch.equal(around.with_own(around.stack(own), own), around.stack(own))
    around.learn({7: taught(7, (2,))})  # between the client's own, 1 and 3
    assert torch.equal(around.with_own(around.stack(own), own), around.stack(own))


def test_omega_is_half_the_mean_of_the_neighbours_and_half_the_closed_form(around):
    """Worked entry by entry; nothing is clipped, as all eigenvalues are positive."""
    own = head()
    ids = (0, 1, 3, 4)
    matrices = {
        0: ((0,), taught(0, (0,)).omega.astype(float)),
        2: (ids, np.eye(4) / 4),
        5: ((0, 4), taught(5, (0, 4)).omega.astype(float)),
    }
    mean = np.zeros((4, 4))
    for a, s in enumerate(ids):
        for b, t in enumerate(ids):
            entries = [
                m[known.index(s), known.index(t)]
                for known, m in matrices.values()
                if s in known and t in known
            ]
            mean[a, b] = np.mean(entries)
    expected = 0.5 * mean + 0.5 * closed_form(around.stack(own)).numpy()
    assert np.linalg.eigvalsh(expected).min() > 1e-6
    around.renew(own, eta=0.5)
    found = around.covariance()
    np.testing.assert_allclose(found.omega, expected / np.trace(expected), atol=1e-9)
    assert found.task_ids == ids
    assert float(found.omega.trace()) == pytest.approx(1)


def test_a_newly_known_task_enters_omega(around):
    around.renew(head(), eta=1.0)
    before = around.covariance().omega
    around.learn({7: taught(7, (2,))})
    after = around.covariance()
    assert after.task_ids == (0, 1, 2, 3, 4)
    assert float(after.omega.trace()) == pytest.approx(1)
    kept = after.omega[[0, 1, 3, 4]][:, [0, 1, 3, 4]]
    np.testing.assert_allclose(kept / kept.trace(), before, atol=1e-6)


def test_what_was_heard_is_kept_between_rounds(around):
    around.renew(head(), eta=0.5)
    again = Neighbourhood.from_tensors(2, OWN, around.to_tensors())
    assert torch.equal(again.stack(head()), around.stack(head()))
    assert torch.equal(again.covariance().omega, around.covariance().omega)
    assert again.teachers().tolist() == [[0, 0], [5, 0], [5, 4]]
    for one in (around, again):
        one.renew(head(3), eta=0.5)
    assert torch.equal(again.covariance().omega, around.covariance().omega)


def test_a_lost_neighbour_is_learned_from_no_more(around):
    """Neither its heads nor its Omega, and all of it again once it writes."""
    before = {n: t.clone() for n, t in around.to_tensors().items()}
    alone = Neighbourhood(2, OWN)
    alone.learn({0: taught(0, (0,))})
    around.with_own(around.stack(head()), head())
    around.forget([5, 7])
    assert around.task_ids == (0, 1, 3)
    for one in (around, alone):
        one.renew(head(), eta=0.5)
    assert torch.equal(around.stack(head()), alone.stack(head()))
    assert torch.equal(around.covariance().omega, alone.covariance().omega)
    own = head()
    assert torch.equal(around.with_own(around.stack(own), own), around.stack(own))
    assert around.teachers().tolist() == [[0, 0]]
    around.learn({5: taught(5, (0, 4))})
    assert set(around.to_tensors()) >= set(before)


def test_the_order_of_letters_does_not_matter(around):
    other = Neighbourhood(2, OWN)
    other.learn({0: taught(0, (0,))})
    other.learn({5: taught(5, (0, 4))})
    for one in (around, other):
        one.renew(head(), eta=0.5)
    assert torch.equal(other.covariance().omega, around.covariance().omega)


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


ENTRY = {"key": "", "weight": None}


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
    second_round, monkeypatch
):
    """On own rows, and not zero; on everything else it is zero (erratum 1)."""
    client = second_round
    client.round.around.renew(client.model.head.weight.detach(), eta=0.5)
    client.invert()
    monkeypatch.setattr(MultiTaskGNNClient, "loss", lambda *_: torch.zeros(()))
    penalty = client.loss(whole_batch(client), torch.Generator())
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


def test_foreign_rows_get_no_gradient_from_the_data(second_round):
    client = second_round
    client.invert()
    found = gradients(client, client.loss(whole_batch(client), torch.Generator()))
    assert not found["head.weight"][[0, 2, 4, 5]].any()
    assert not found["head.bias"][[0, 2, 4, 5]].any()
    assert found["head.bias"][list(OWN)].all()


def test_no_penalty_and_no_omega_in_round_one(tmp_path):
    with_reg, without = (
        make(tmp_path / "a"),
        make(tmp_path / "b", **{"spreadgnn.task-reg": 0.0}),
    )
    for client in (with_reg, without):
        train(client, 1)
        assert client.round.around.covariance().task_ids == OWN
        assert torch.equal(
            client.round.around.covariance().omega, torch.eye(2).double() / 2
        )
    for name, tensor in with_reg.tensors().items():
        assert torch.equal(tensor, without.tensors()[name])


def test_omega_changes_from_round_two(second_round, tmp_path):
    train(make(tmp_path), 1)
    client = make(tmp_path)
    train(client, 2, letters_of(client, 1))
    omega = client.round.around.covariance().omega
    assert not torch.allclose(omega, torch.eye(4).double() / 4)
    assert float(omega.trace()) == pytest.approx(1)
    assert torch.linalg.eigvalsh(omega).min() > 0


def test_omega_is_renewed_after_every_epoch(tmp_path, monkeypatch):
    options = {"local-epochs": 2, "batch-size": 4}
    train(make(tmp_path, **options), 1)
    renewed, renew = [], Neighbourhood.renew
    monkeypatch.setattr(
        Neighbourhood, "renew", lambda *a, **k: (renewed.append(1), renew(*a, **k))
    )
    client = make(tmp_path, **options)
    train(client, 2, letters_of(client, 1))
    assert len(client.trained_on()) == 15  # four batches an epoch
    assert len(renewed) == 2


def test_mixing_by_hand(second_round):
    """Metropolis with degrees 2, 1 and 1: a third of each."""
    stored = second_round.job.store.load(1)  # after round 1: nothing came
    for name, tensor in second_round.tensors().items():
        kept = stored[name]
        mail = make(second_round.job.store.folder / "x").tensors()[name].detach()
        expected = (kept + (mail + 0) + (mail + 5)) / 3
        np.testing.assert_allclose(tensor.detach(), expected, rtol=1e-5, atol=1e-6)


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
    sent_in, plain = read(
        letter.tobytes(),
        run="experiment",
        sender=2,
        receiver=0,
        before_round=server_round + 1,
    )
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
    theirs = replace(
        taught(0, (0,), known=(0, 1)),
        tensors=dict(client._mixed_tensors()),
    )
    odd = replace(theirs, **spoil)
    mail = letters_of(client, 1) | as_mail(0, odd, 1)
    with caplog.at_level("WARNING", logger="flwr"):
        told = train(client, 2, mail).metrics
    assert "client 2 goes on without this mail: " in caplog.text
    assert told["unusable/0"] == 1
    assert "unusable/5" not in told
    assert client.round.around.task_ids == (
        0,
        1,
        3,
        4,
    )  # of client 5, which has task 0, too
    assert client.round.around.teachers().tolist() == [[5, 0], [5, 4]]


@pytest.mark.parametrize("step", ["fit", "evaluate"])
def test_a_model_from_the_server_is_refused(tmp_path, step):
    client = make(tmp_path)
    start = toys.shared_arrays(client)
    with pytest.raises(
        WireError, match="client 2 got a model from the server: refused"
    ):
        getattr(client, step)(start, {"server-round": 1})
    assert not client.job.store.folder.exists()


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


def test_of_two_messages_at_once_one_has_the_letters(tmp_path, monkeypatch):
    """A relay may send several, which a SuperNode answers side by side."""
    train(make(tmp_path), 1)
    mail, refused, check = letters_of(make(tmp_path), 1), [], SpreadGNNClient._check

    def ask():
        try:
            evaluated(tmp_path, 2, mail)
        except WireError as error:
            refused.append(str(error))

    other = threading.Thread(target=ask)

    def meanwhile(*arguments):
        if other.ident is None:  # at the first letter
            other.start()
            other.join(0.5)
        check(*arguments)

    monkeypatch.setattr(SpreadGNNClient, "_check", meanwhile)
    assert evaluated(tmp_path, 3, mail)[1] == {0, 5}
    other.join()
    assert "round 2, which was left out before round 3 was done" in refused[0]


def test_a_client_that_was_sent_back_makes_no_other_branch(tmp_path):
    """The round before is repeated, which drops the state after; then comes a new."""
    sent = [train(make(tmp_path), 1)]
    mail = letters_of(make(tmp_path), 1)
    sent.append(train(make(tmp_path), 2, mail))
    assert (
        train(make(tmp_path), 1).arrays["to/all"].tobytes()
        == sent[0].arrays["to/all"].tobytes()
    )
    why = "round 3 with the state after round 1, but round 2 was trained before and not"
    for replayed in ({}, mail):
        with pytest.raises(WireError, match=why):
            train(make(tmp_path), 3, replayed)
        with pytest.raises(WireError, match=why):
            evaluated(tmp_path, 3, replayed)
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


def test_rounds_between_mixing_send_nothing(tmp_path):
    sent = []
    for server_round in range(1, 5):
        client = make(tmp_path, **{"spreadgnn.period": 3})
        sent.append(bool(train(client, server_round).arrays))
    assert sent == [True, False, False, True]


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


def test_a_public_key_is_told_where_letters_are_sealed(tmp_path):
    client = make(tmp_path)
    store = ClientStore(tmp_path, "experiment", client_id=2)
    assert client.introduction(client.job.params, store) == {}
    sealed = make(tmp_path, **{"spreadgnn.seal": True})
    (name, key) = next(iter(sealed.introduction(sealed.job.params, store).items()))
    assert name == "public-key"
    assert len(bytes.fromhex(key)) == 128


def test_amsgrad_keeps_all_its_moments():
    def optimizer():
        weight = torch.nn.Parameter(torch.ones(3))
        return weight, torch.optim.Adam([weight], lr=0.1, amsgrad=True)

    def step(weight, adam, size):
        weight.grad = torch.full((3,), size)
        adam.step()

    weight, adam = optimizer()
    step(weight, adam, 5.0)
    kept = optimizer_tensors(adam)
    assert set(kept) == {
        "adam/exp_avg",
        "adam/exp_avg_sq",
        "adam/max_exp_avg_sq",
        "adam/step",
    }
    other, again = optimizer()
    other.data.copy_(weight.data)
    restore_optimizer(again, kept)
    for size in (0.1, 0.2):
        step(weight, adam, size)
        step(other, again, size)
    assert torch.equal(weight, other)
