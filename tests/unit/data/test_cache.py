"""When a cache entry is checked against its manifest."""

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


def opened(entry, builds):
    def build(_):
        builds.append(1)
        return Pair(np.arange(4), np.ones(3))

    return cache.open_or_build(entry, Pair, build)


def test_other_users_do_not_enter_a_cache_that_is_made(tmp_path):
    """It holds the graphs, whose files others may not read."""
    opened(tmp_path / "cache" / "diffusion" / "e", [])
    for folder in ("cache", "cache/diffusion"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def flip(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: flip(entry / "a.npy"),
        lambda entry: (entry / "a.npy").unlink(),
        lambda entry: (entry / "manifest.json").write_text('{"format": 1}'),
        lambda entry: [path.unlink() for path in entry.iterdir()],
    ],
    ids=["flip", "missing", "manifest", "emptied"],
)
def test_a_damaged_entry_is_built_again(tmp_path, caplog, damage):
    entry, builds = tmp_path / "e", []
    opened(entry, builds)
    opened(entry, builds)
    damage(entry)

    found = opened(entry, builds)

    assert len(builds) == 2
    np.testing.assert_array_equal(found.a, np.arange(4))
    assert "is damaged" in caplog.text
