"""What a process has just written it does not read, unless the file is another."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from clients import store as store_module
from clients.store import ClientStore, RecentStates
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.files import Flushes, stamp


@pytest.fixture(autouse=True)
def recent(monkeypatch) -> RecentStates:
    fresh = RecentStates()
    monkeypatch.setattr(store_module, "recent", fresh)
    return fresh


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """Names of the files that are read."""
    names: list[str] = []
    read = store_module.read_arrays

    def noted(path, *rest):
        names.append(path.name)
        return read(path, *rest)

    monkeypatch.setattr(store_module, "read_arrays", noted)
    return names


def write(root, server_round: int, value: float, client: int = 0) -> ClientStore:
    """Save as the answer to a message does."""
    with Flushes() as flushes:
        store = ClientStore(root, "e", client_id=client, flushes=flushes)
        tensors = {"w": torch.full((3,), value)}
        store.save(server_round, tensors, after=server_round - 1)
    return store


def test_what_was_just_written_is_not_read(tmp_path, reads):
    assert write(tmp_path, 1, 7.0).load(1)["w"].tolist() == [7, 7, 7]
    assert reads == []


def test_a_state_has_one_order_wherever_it_comes_from(tmp_path, reads):
    with Flushes() as flushes:
        store = ClientStore(tmp_path, "e", client_id=0, flushes=flushes)
        store.save(1, {n: torch.zeros(1) for n in "bca"}, after=0)
    assert [*store.load(1)] == ["a", "b", "c"]
    assert reads == []
    assert [*store.load(1)] == ["a", "b", "c"]
    assert reads == ["round-000001.safetensors"]


def test_who_takes_a_state_may_change_it(tmp_path, reads):
    """A round that fails half-way is repeated from the state on the disk."""
    store = write(tmp_path, 1, 7.0)
    store.load(1)["w"].zero_()
    assert store.load(1)["w"].tolist() == [7, 7, 7]
    assert reads == ["round-000001.safetensors"]


def test_tensors_that_train_on_after_they_were_saved_are_not_those_kept(tmp_path):
    weight = torch.ones(3)
    with Flushes() as flushes:
        store = ClientStore(tmp_path, "e", client_id=0, flushes=flushes)
        store.save(1, {"w": weight})
        weight.zero_()
    assert store.load(1)["w"].tolist() == [1, 1, 1]


def test_a_state_that_another_process_wrote_since_is_read(tmp_path, reads):
    store = write(tmp_path, 1, 7.0)
    ClientStore(tmp_path, "e", client_id=0).save(1, {"w": torch.full((3,), 8.0)})
    assert store.load(1)["w"].tolist() == [8, 8, 8]
    assert reads == ["round-000001.safetensors"]


def test_the_place_on_the_disk_of_a_state_may_become_that_of_another_round(
    tmp_path, reads
):
    """Clocks of disks are coarse: a file may look as it did before."""
    write(tmp_path, 1, 7.0)
    folder = ClientStore(tmp_path, "e", client_id=0).folder
    (folder / "round-000001.safetensors").rename(folder / "round-000002.safetensors")
    with pytest.raises(DataError, match="is that of"):
        ClientStore(tmp_path, "e", client_id=0).load(2)
    assert reads == ["round-000002.safetensors"]


def test_an_earlier_round_is_read(tmp_path, reads):
    write(tmp_path, 1, 7.0)
    assert write(tmp_path, 2, 8.0).load(1)["w"].tolist() == [7, 7, 7]
    assert reads == ["round-000001.safetensors"]


def test_a_damaged_file_is_named_though_its_state_is_known(tmp_path):
    store = write(tmp_path, 1, 7.0)
    path = store.folder / "round-000001.safetensors"
    blob = bytearray(path.read_bytes())
    blob[-5] ^= 1
    path.write_bytes(blob)
    os.utime(path, ns=(0, 0))  # clocks of disks may be coarser than this test
    with pytest.raises(DataError, match="its checksum is not"):
        store.load(1)


def test_a_state_that_is_gone_is_gone(tmp_path):
    store = write(tmp_path, 1, 7.0)
    (store.folder / "round-000001.safetensors").unlink()
    with pytest.raises(DataError, match="is gone"):
        store.load(1)


def kept(recent: RecentStates, folder, size: int):
    """Keep so many bytes of a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "file"
    path.write_bytes(b"x")
    recent.keep(path, stamp(path), {"w": np.zeros(size, np.uint8)})
    return path


def test_no_more_is_kept_than_the_limit(tmp_path):
    recent = RecentStates(limit=10)
    first, second = (kept(recent, tmp_path / "e" / name, 6) for name in "ab")
    assert recent.take(second) is None
    assert recent.take(first) is not None
    assert recent.take(kept(recent, tmp_path / "e" / "b", 6)) is not None


def test_a_later_state_takes_the_place_of_the_one_before(tmp_path):
    recent = RecentStates(limit=10)
    for size in (6, 7, 8):
        path = kept(recent, tmp_path / "e" / "a", size)
    assert len(recent.take(path)["w"]) == 8


def test_another_experiment_takes_the_place_of_the_one_before(tmp_path):
    recent = RecentStates(limit=10)
    first = kept(recent, tmp_path / "e" / "a", 6)
    second = kept(recent, tmp_path / "f" / "a", 6)
    assert recent.take(first) is None
    assert recent.take(second) is not None
