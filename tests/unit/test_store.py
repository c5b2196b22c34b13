"""A client's disk: atomic, two rounds deep, blind to the future."""

from __future__ import annotations

import pytest
import torch

from clients.privacy.lifetime import FOLDER as LIFETIME
from clients.store import (
    ClientStore,
    default_state_dir,
    optimizer_tensors,
    restore_optimizer,
)
from fedgraph_flwr.errors import DataError, WireError


@pytest.fixture
def store(tmp_path) -> ClientStore:
    return ClientStore(tmp_path, "experiment", client_id=4)


def test_the_last_two_rounds_are_kept(store):
    for r in range(1, 5):
        store.save(r, {"w": torch.full((2,), float(r))})
    names = sorted(p.name for p in store.folder.iterdir())
    assert names == ["round-000003.safetensors", "round-000004.safetensors"]
    assert store.load(5)["w"].tolist() == [4, 4]
    assert store.load(4)["w"].tolist() == [3, 3]  # the round is repeated


@pytest.mark.parametrize("name", ["", "..", "../a", "a/b", "/a", LIFETIME])
def test_a_server_cannot_name_another_folder(tmp_path, name):
    """Nor a place without a privacy record."""
    with pytest.raises(WireError, match="must be that of a plain folder"):
        ClientStore(tmp_path, name, client_id=0)


def test_nothing_before_the_first_round(store):
    assert store.load(1) is None
    store.save(3, {"w": torch.zeros(1)})
    assert store.load(3) is None


def test_a_resumed_run_overwrites_the_future_and_ignores_it(store):
    for r in (1, 2, 3):
        store.save(r, {"w": torch.tensor([float(r)])})
    store.save(2, {"w": torch.tensor([20.0])})
    assert store.load(3)["w"].tolist() == [20]


def test_a_half_written_file_is_never_read(store):
    store.save(1, {"w": torch.ones(1)})
    (store.folder / "round-000002.999.tmp").write_bytes(b"half")
    assert store.load(9)["w"].tolist() == [1]


def test_a_damaged_file_is_named_with_the_cure(store):
    store.save(1, {"w": torch.ones(1)})
    (store.folder / "round-000001.safetensors").write_bytes(b"not tensors")
    with pytest.raises(DataError, match=r"round-000001.*cannot be read.*delete"):
        store.load(2)


def test_state_goes_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / "fedgraph-flwr"


def _optimizer(seed: int) -> tuple[list[torch.nn.Parameter], torch.optim.Adam]:
    generator = torch.Generator().manual_seed(seed)
    weights = [
        torch.nn.Parameter(torch.randn(shape, generator=generator))
        for shape in ((3, 2), (4,))
    ]
    return weights, torch.optim.Adam(weights, 0.1, weight_decay=0.01, fused=True)


def _step(weights, optimizer) -> None:
    optimizer.zero_grad()
    sum(((w - 1) ** 2).sum() for w in weights).backward()
    optimizer.step()


def test_a_stored_optimizer_goes_on_as_if_never_stopped(store):
    weights, optimizer = _optimizer(0)
    _step(weights, optimizer)
    store.save(1, optimizer_tensors(optimizer))
    copies, fresh = _optimizer(1)
    with torch.no_grad():
        for copy, weight in zip(copies, weights, strict=True):
            copy.copy_(weight)
    restore_optimizer(fresh, store.load(2))
    for _ in range(3):
        _step(weights, optimizer)
        _step(copies, fresh)
    for copy, weight in zip(copies, weights, strict=True):
        assert torch.equal(copy, weight)


def test_before_the_first_step_there_is_nothing_to_store():
    _, optimizer = _optimizer(0)
    assert optimizer_tensors(optimizer) == {}
    restore_optimizer(optimizer, {})
    assert not optimizer.state
