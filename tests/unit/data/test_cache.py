"""When a cache entry is checked against its manifest."""

import os
from dataclasses import dataclass

import numpy as np
import pytest

from datasets import cache


@dataclass
class Pair:
    """A record with two arrays and a name."""

    a: np.ndarray
    b: np.ndarray
    name: str = "pair"


@pytest.fixture
def checked(monkeypatch):
    """Arrays whose checksum was taken, one after the other."""
    found, describe = [], cache._describe
    monkeypatch.setattr(
        cache, "_describe", lambda array: found.append(1) or describe(array)
    )
    monkeypatch.setattr(cache, "_checked", {})
    return found


def opened(entry, builds=None):
    def build(_):
        (builds if builds is not None else []).append(1)
        return Pair(np.arange(4), np.ones(3))

    return cache.open_or_build(entry, Pair, build)


def age(entry, seconds=10):
    """Make files old enough for a time stamp to tell a change."""
    for path in entry.iterdir():
        told = path.stat().st_mtime - seconds
        os.utime(path, (told, told))


def test_other_users_do_not_enter_a_cache_that_is_made(tmp_path):
    """It holds the graphs, whose files others may not read."""
    opened(tmp_path / "cache" / "diffusion" / "e")
    for folder in ("cache", "cache/diffusion"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def test_an_old_entry_is_checked_once_in_a_process(tmp_path, checked):
    opened(tmp_path / "e")
    age(tmp_path / "e")
    checked.clear()

    first, second = opened(tmp_path / "e"), opened(tmp_path / "e")

    assert len(checked) == 2  # arrays, of one opening
    np.testing.assert_array_equal(first.a, second.a)


def test_an_entry_that_was_written_just_now_is_checked_each_time(tmp_path, checked):
    opened(tmp_path / "e")
    checked.clear()

    opened(tmp_path / "e")
    opened(tmp_path / "e")

    assert len(checked) == 4


def test_a_change_after_the_check_is_seen(tmp_path, checked):
    entry, builds = tmp_path / "e", []
    opened(entry, builds)
    age(entry)
    opened(entry, builds)
    content = bytearray((entry / "a.npy").read_bytes())
    content[-1] ^= 1
    (entry / "a.npy").write_bytes(content)
    age(entry, 5)

    found = opened(entry, builds)

    assert len(builds) == 2
    np.testing.assert_array_equal(found.a, np.arange(4))
