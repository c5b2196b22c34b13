"""Random streams derived from (seed, client, round, purpose); nothing global.

Every stream is named by what it is for, so adding a draw in one place never shifts
the numbers drawn in another, and the process that serves a client does not matter.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(seed: int, *path: int | str) -> int:
    """Return a 63-bit seed for the stream named by ``path``.

    Parameters
    ----------
    seed : int
        Run seed or split seed.
    *path : int or str
        What the stream is for, e.g. ``("client", 3, "round", 7, "train")``.
    """
    text = "\x1f".join([str(seed), *(str(part) for part in path)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_rng(seed: int, *path: int | str) -> np.random.Generator:
    """NumPy generator of the stream named by ``path``."""
    return np.random.default_rng(derive_seed(seed, *path))
