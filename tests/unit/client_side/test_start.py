"""A client's model before round 1, copied from what the process keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import toys
from torch import nn

from clients.start import Start
from fedgraph_flwr import client_app
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


@pytest.mark.parametrize("odd", [[], {"a": 1}, object(), torch.zeros(1)])
def test_a_model_that_holds_another_object_is_built_anew(tmp_path, odd):
    class Odd(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.seen = odd

    assert Start(Odd(), ()).copy() is None
    client = toys.make_client(tmp_path)

    class Client(type(client)):
        @classmethod
        def build_model(cls, spec):
            model = super().build_model(spec)
            model.seen = []
            return model

    starts = Kept()
    first, second = (Client(replace(client.job, starts=starts)) for _ in range(2))
    first.model.seen.append(1)

    assert second.model.seen == []
    assert same_tensors(first.model, second.model)


def test_a_hook_is_not_copied():
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: None)

    assert Start(model, ()).copy() is None


def test_bytes_of_a_start_are_those_of_its_tensors():
    assert Start(nn.Linear(3, 2), ()).nbytes == 4 * (3 * 2 + 2)


def test_a_run_keeps_starts_of_its_clients_and_forgets_them(tmp_path, toy_data):
    seen = []
    clear = client_app.clear_kept

    def cleared():
        seen.append((len(client_app.kept_starts), len(client_app.kept_data)))
        clear()

    toy_data.setattr(inline, "clear_kept", cleared)
    places = {f"{kind}-dir": str(tmp_path / kind) for kind in ("state", "results")}
    inline.run_inline({**toys.tiny("fedavg"), **places}, num_nodes=1)

    count = toys.resolved().settings.num_clients
    assert seen == [(count, count)]
    assert not len(client_app.kept_starts)
    assert not len(client_app.kept_data)
