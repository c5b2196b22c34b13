"""The random stream of a client's noise: from a secret of its site, or the run seed.

With a secret the stream is ChaCha20 under a key of 256 bits, HMAC-SHA256 of the whole
secret over the stream's name: part of the noise in the clear, as on coordinates whose
update is known to be 0, tells nothing of the rest. Without one, in simulation, it is
NumPy's PCG64 seeded by the run, which can be repeated and protects nothing.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.seeding import numpy_rng

Floats = NDArray[np.float64]


class SecretStream:
    """Laplace and normal numbers, in doubles, from a ChaCha20 key stream.

    Each takes 64 bits: one is the sign, 63 are a uniform u in (0, 1] from which the
    magnitude follows exactly, -log(u) or the normal quantile of 1 - u / 2.

    Parameters
    ----------
    key : bytes of length 32
        Of this stream alone.
    """

    def __init__(self, key: bytes) -> None:
        # Here and below: an import that runs without noise have no need of.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
        self._key_stream = cipher.encryptor()

    def laplace(self, loc: float, scale: float, size: int | tuple[int, ...]) -> Floats:
        """Draw as ``numpy.random.Generator.laplace`` does."""
        sign, u = self._draw(size)
        return loc - scale * sign * np.log(u)

    def normal(self, loc: float, scale: float, size: int | tuple[int, ...]) -> Floats:
        """Draw as ``numpy.random.Generator.normal`` does."""
        from scipy.special import ndtri

        sign, u = self._draw(size)
        return np.asarray(loc - scale * sign * ndtri(u / 2))

    def random(self, size: int) -> Floats:
        """Draw uniform numbers, as ``numpy.random.Generator.random`` does."""
        return self._draw(size)[1]

    def _draw(self, size: int | tuple[int, ...]) -> tuple[Floats, Floats]:
        count = int(np.prod(size))
        words = np.frombuffer(self._key_stream.update(bytes(8 * count)), "<u8")
        words = words.reshape(size)
        sign = 1 - 2 * (words & np.uint64(1)).astype(np.float64)
        return sign, ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-63


Noise = np.random.Generator | SecretStream


def noise_stream(secret: str, seed: int, *path: int | str) -> Noise:
    """Stream of noise named by ``seed`` and ``path``.

    Parameters
    ----------
    secret : str
        See :func:`clients.privacy.noisy_views.site_secret`; "" in simulation.
    seed : int
        Run seed.
    *path : int or str
        What the noise is for.
    """
    if not secret:
        return numpy_rng(seed, *path)
    name = "\x1f".join(map(str, (seed, *path)))
    key = hmac.digest(secret.encode(), name.encode(), hashlib.sha256)
    return SecretStream(key)
