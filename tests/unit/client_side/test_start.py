"""A client's model before round 1, copied from what the process keeps."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import toys
from torch import nn

from clients.start import Start, is_plain
from fedgraph_flwr import loaded
from fedgraph_flwr.kept import Kept
from fedgraph_flwr.registry import METHODS
from simulations import inline


class Tied(nn.Module):
    """Two names of one weight, a frozen one, buffers and an absent bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.again = self.first
        self.still = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("cache", torch.ones(1), persistent=False)
        self.norm = nn.BatchNorm1d(3)
        self.empty, self.nothing = nn.Sequential(), None
        self.eval()


def remade(client, starts):
    """Make the client again, as a later message to its process does."""
    return type(client)(replace(client.job, starts=starts))


def same_tensors(one, other):
    """Names, order and bits."""
    named, others = one.state_dict(), other.state_dict()
    assert list(named) == list(others)
    return all(torch.equal(t, others[n]) for n, t in named.items())


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_copy_is_the_model_that_would_be_built(tmp_path, method):
    built, starts = toys.make_client(tmp_path, method), Kept()
    assert is_plain(built.model)
    first = remade(built, starts)
    with torch.no_grad():
        for tensor in first.model.state_dict().values():
            tensor.add_(1)  # as training does
    second = remade(built, starts)

    assert len(starts) == 1
    assert first.model is not second.model
    assert same_tensors(second.model, built.model)
    assert not same_tensors(first.model, built.model)
    assert second.shared_keys == built.shared_keys
    assert list(second.tensors()) == list(built.model.state_dict())
    assert str(second.model) == str(built.model)


def test_each_client_has_a_start_of_its_own(tmp_path):
    starts = Kept()
    clients = [
        remade(toys.make_client(tmp_path, partition=toys.make_partition(c)), starts)
        for c in (0, 1)
    ]

    assert len(starts) == 2
    one, other = (c.model.state_dict() for c in clients)
    assert torch.equal(one["convs.0.mlp.0.weight"], other["convs.0.mlp.0.weight"])
    assert not torch.equal(one["pre.weight"], other["pre.weight"])


def test_a_copy_ties_what_was_tied_and_shares_nothing_else():
    model = Tied()
    model.norm.running_mean.add_(2)
    copied = Start(model, ()).copy().model

    assert same_tensors(model, copied)
    assert copied.second.weight is copied.first.weight
    assert copied.again is copied.first
    assert not copied.still.requires_grad
    assert copied.first.bias.requires_grad
    assert not copied.training
    assert copied.empty is not model.empty
    assert "cache" not in copied.state_dict()
    assert copied.cache is not model.cache
    pointers = {t.data_ptr() for t in [*model.parameters(), *model.buffers()]}
    assert not pointers & {
        t.data_ptr() for t in [*copied.parameters(), *copied.buffers()]
    }
    copied.register_buffer("more", torch.zeros(1), persistent=False)
    copied.register_forward_hook(lambda *_: None)
    copied.first.extra = nn.Linear(1, 1)
    assert not model._forward_hooks
    assert "more" not in model._non_persistent_buffers_set
    assert not hasattr(model.first, "extra")


def layer(change=lambda _: None, kind=nn.Linear):
    """A linear layer with something unusual."""
    model = kind(2, 2)
    change(model)
    return model


class Slotted(nn.Linear):
    """Keeps something outside of its ``__dict__``."""

    __slots__ = ("more",)


class Own(nn.Parameter):
    """A parameter of another class."""


ODD = {
    "a list": lambda m: setattr(m, "seen", []),
    "an empty dict": lambda m: setattr(m, "seen", {}),
    "another object": lambda m: setattr(m, "seen", object()),
    "a tensor that is no buffer": lambda m: setattr(m, "seen", torch.zeros(1)),
    "a hook of the module": lambda m: m.register_forward_hook(lambda *_: None),
    "a hook of a tensor": lambda m: m.weight.register_hook(lambda g: g * 2),
    "a hook after the gradient": lambda m: m.weight.register_post_accumulate_grad_hook(
        lambda _: None
    ),
    "an attribute of a tensor": lambda m: setattr(m.weight, "mine", True),
    "a gradient": lambda m: setattr(m.weight, "grad", torch.ones(2, 2)),
    "a buffer with a gradient": lambda m: m.register_buffer(
        "b", torch.ones(1, requires_grad=True)
    ),
    "a tensor that was computed": lambda m: m.register_buffer(
        "b", m.weight.detach().clone().requires_grad_() * 2
    ),
    "a view of another": lambda m: m.register_buffer("b", m.weight.detach()[0]),
    "rows that are one": lambda m: m.register_buffer("b", torch.ones(1).expand(2)),
    "a parameter of another class": lambda m: setattr(m, "w", Own(torch.ones(1))),
}


@pytest.mark.parametrize("odd", sorted(ODD))
def test_a_model_with_something_unusual_is_not_copied(odd):
    assert is_plain(layer())
    assert is_plain(Tied())
    assert not is_plain(layer(ODD[odd]))
    assert not is_plain(nn.Sequential(layer(), layer(ODD[odd])))


def test_neither_is_one_with_slots():
    assert not is_plain(layer(kind=Slotted))


@pytest.mark.parametrize("draws", [False, True])
def test_a_model_that_is_not_copied_is_built_once_for_each_message(tmp_path, draws):
    """So numbers that it takes from PyTorch's own generator are the same too."""
    client = toys.make_client(tmp_path)
    built = []

    class Client(type(client)):
        @classmethod
        def build_model(cls, spec):
            model = super().build_model(spec)
            if draws:
                model.own = nn.Linear(2, 2)
            else:
                model.seen = []
            built.append(model)
            return model

    found = []
    for starts in (None, Kept()):
        built.clear()
        torch.manual_seed(3)
        clients = [Client(replace(client.job, starts=starts)) for _ in range(3)]
        assert [c.model for c in clients] == built
        found.append([torch.cat([p.flatten() for p in m.parameters()]) for m in built])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_first_message_gets_what_was_built_for_it(tmp_path):
    client, starts = toys.make_client(tmp_path), Kept()
    built = []

    class Client(type(client)):
        @classmethod
        def build_model(cls, spec):
            built.append(super().build_model(spec))
            return built[-1]

    made = [Client(replace(client.job, starts=starts)) for _ in range(3)]

    assert made[0].model is built[0]
    assert len(built) == 1


def test_classes_of_clients_have_starts_of_their_own(tmp_path):
    client, starts = toys.make_client(tmp_path), Kept()

    class Client(type(client)):
        @classmethod
        def build_model(cls, spec):
            model = super().build_model(spec)
            torch.nn.init.zeros_(model.pre.bias)
            return model

    for _ in range(2):
        assert Client(replace(client.job, starts=starts)).model.pre.bias.sum() == 0
        assert remade(client, starts).model.pre.bias.abs().sum() > 0


@pytest.mark.parametrize(
    ("clients", "before", "freezes"), [(50, 0, 1), (49, 0, 0), (50, 7, 0)]
)
def test_what_a_process_of_many_clients_has_loaded_is_left_out(
    monkeypatch, clients, before, freezes
):
    """By the garbage collector; once, so that later garbage is found."""
    seen = []
    fake = SimpleNamespace(
        get_freeze_count=lambda: before,
        collect=lambda: seen.append("collect"),
        freeze=lambda: seen.append("freeze"),
    )
    monkeypatch.setattr(loaded, "gc", fake)

    loaded.settle(range(clients))

    assert seen == ["collect", "freeze"] * freezes


def test_bytes_of_a_start_are_those_of_its_tensors():
    assert Start(nn.Linear(3, 2), ()).nbytes == 4 * (3 * 2 + 2)


def test_a_run_keeps_starts_of_its_clients_and_forgets_them(tmp_path, toy_data):
    seen = []
    clear = loaded.clear_kept

    def cleared():
        seen.append((len(loaded.kept_starts), len(loaded.kept_data)))
        clear()

    toy_data.setattr(inline, "clear_kept", cleared)
    places = {f"{kind}-dir": str(tmp_path / kind) for kind in ("state", "results")}
    inline.run_inline({**toys.tiny("fedavg"), **places}, num_nodes=1)

    count = toys.resolved().settings.num_clients
    assert seen == [(count, count)]
    assert not len(loaded.kept_starts)
    assert not len(loaded.kept_data)
