"""When a cache entry is checked against its manifest."""

from dataclasses import dataclass

import numpy as np

from datasets import cache


@dataclass
class Pair:
    """A record with two arrays and a name."""

    a: np.ndarray
    b: np.ndarray
    name: str = "pair"


def opened(entry, builds=None):
    def build(_):
        (builds if builds is not None else []).append(1)
        return Pair(np.arange(4), np.ones(3))

    return cache.open_or_build(entry, Pair, build)


def test_other_users_do_not_enter_a_cache_that_is_made(tmp_path):
    """It holds the graphs, whose files others may not read."""
    opened(tmp_path / "cache" / "diffusion" / "e")
    for folder in ("cache", "cache/diffusion"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def test_a_change_after_the_check_is_seen(tmp_path):
    entry, builds = tmp_path / "e", []
    opened(entry, builds)
    opened(entry, builds)
    content = bytearray((entry / "a.npy").read_bytes())
    content[-1] ^= 1
    (entry / "a.npy").write_bytes(content)

    found = opened(entry, builds)

    assert len(builds) == 2
    np.testing.assert_array_equal(found.a, np.arange(4))
