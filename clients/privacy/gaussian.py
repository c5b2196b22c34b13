"""Differentially private client updates: clip, add Gaussian noise, account.

The update is all shared tensors of a client together, as one flat vector, minus what
the client received; any method that sends tensors may use it.

What is protected. Each client adds the noise itself (the local model), so the guarantee
holds against the server and all who see the updates: for any two data sets that the
*whole client* might hold, the updates it sends in all rounds are (epsilon,
delta)-indistinguishable. Two clipped updates are up to 2 C apart, so noise of standard
deviation sigma C has the effective multiplier sigma / 2.

Composition is adaptive, over the rounds in which the client took part. No amplification
by sampling is claimed: the server knows who takes part. Not covered is whatever else a
reply holds: numbers of examples, metrics, figures. A seed that others know protects
nothing, and doubles are not hardened.

Noise and charge go by the content of a release (:func:`release_name`). A round that is
repeated after a crash sends the same bytes, at no further cost, and two different
updates never have the same noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.errors import ConfigError, DataError

from .stream import Noise

Array = NDArray[np.generic]
SENSITIVITY = 2.0  # in units of C, for replacing all of a client's data
_INTERVAL = 1e-3  # of privacy loss; epsilon is rounded up, by 1e-4 of it or less
_LEAST = 1e-6  # noise in units of the sensitivity: epsilon 5e11


def update_norm(update: Sequence[Array]) -> float:
    """L2 norm of all tensors together, in doubles."""
    return math.sqrt(sum(float(np.sum(np.square(a, dtype=np.float64))) for a in update))


def clip_update(update: Sequence[Array], clip_norm: float) -> list[Array]:
    """Scale all tensors by min(1, C / norm), the norm being that of all together.

    Raises
    ------
    DataError
        A tensor is not of floats, or a value is not finite: its norm bounds nothing.
    """
    for array in update:
        if not np.issubdtype(array.dtype, np.floating):
            raise DataError(
                f"a private update must be of floats, got a tensor of {array.dtype}:"
                " counters cannot be clipped; share parameters only"
            )
    norm = update_norm(update)
    if not math.isfinite(norm):
        raise DataError(
            "a private update must be finite, got NaN or infinity; lower the learning"
            " rate, or skip this round"
        )
    scale = min(1.0, clip_norm / norm) if norm else 1.0
    return [np.asarray(a * np.asarray(scale, a.dtype)) for a in update]


def privatise_update(
    update: Sequence[Array],
    *,
    clip_norm: float,
    noise_multiplier: float,
    rng: Noise,
) -> list[Array]:
    """Clip to C, then add N(0, (sigma C)^2) to every coordinate.

    Parameters
    ----------
    update : list of float arrays
    clip_norm, noise_multiplier : float
        C and sigma, > 0.
    rng : Noise
        Of this release alone, once the ledger has been charged.

    Source
    ------
    McMahan et al. 2018, arXiv:1710.06963, Sec. 3. Differs: each client adds the noise
    of the whole mechanism to its own update, as it does not trust the server.
    """
    # In doubles up to the last step: rounding is post-processing only if it comes last.
    clipped = clip_update([_doubled(a) for a in update], clip_norm)
    scale = noise_multiplier * clip_norm
    return [
        np.asarray(np.add(c, rng.normal(0.0, scale, c.shape))).astype(a.dtype)
        for a, c in zip(update, clipped, strict=True)
    ]


def release_name(
    update: Sequence[Array],
    *,
    server_round: int,
    inputs: Sequence[Array],
    clip_norm: float,
    noise_multiplier: float,
    secret: str,
) -> str:
    """Digest of all that makes a noisy update, for the client's own disk.

    Parameters
    ----------
    update : list of float arrays
        Before it is clipped.
    inputs : list of array
        What it was computed from, beside the data: received and stored tensors. Two
        answers are then equal if the server sent the same, which tells it nothing.
    secret : str
        Of the site: another one makes another release.
    """
    about = (server_round, clip_norm, noise_multiplier, secret)
    digest = hashlib.sha256(repr(about).encode())
    for arrays in (inputs, update):
        digest.update(f"/{len(arrays)}".encode())
        for array in arrays:
            digest.update(f"/{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def epsilon_of(updates: Mapping[float, int], delta: float) -> float:
    """Epsilon of a client's noisy updates together, for replacing all of its data.

    Exact: Gaussian mechanisms with multipliers s_i are together one with
    ``sum(s_i ** -2) ** -0.5``. ``updates`` counts updates by noise multiplier.

    Raises
    ------
    ConfigError
        The noise bounds nothing.

    Source
    ------
    Balle and Wang 2018, arXiv:1805.06530, Theorem 8, as dp_accounting has it; Dong et
    al. 2022, arXiv:1905.02383, Corollary 3.3.
    """
    counts = tuple(sorted((s, n) for s, n in updates.items() if n))
    return _compose(counts, delta)


@lru_cache  # dp_accounting takes a second to import; clients of a node ask alike
def _compose(counts: tuple[tuple[float, int], ...], delta: float) -> float:
    if not counts:
        return 0.0
    precision = sum(n * (1 / s) * (1 / s) for s, n in counts)
    together = precision**-0.5 / SENSITIVITY  # in units of the sensitivity
    if together < _LEAST:
        raise ConfigError(
            f"noise of {together * SENSITIVITY:.3g} times the norm, for all updates"
            " together, is too little to account for: it bounds nothing; raise"
            " privacy.update-noise in the run config"
        )
    # here, because it takes a second to import, which other runs need not pay
    from dp_accounting import get_epsilon_gaussian

    with np.errstate(all="ignore"):  # of steps of its search
        return float(get_epsilon_gaussian(together, delta))


def epsilon_of_steps(steps: Mapping[tuple[float, float], int], delta: float) -> float:
    """Epsilon of one training graph by all these noisy steps.

    Parameters
    ----------
    steps : mapping of (float, float) to int
        How many steps took each graph with probability q, under noise of sigma C.

    Source
    ------
    Privacy loss distributions, as dp_accounting has them, adding or removing a graph.
    """
    return _compose_steps(tuple(sorted(steps.items())), delta)


@lru_cache(maxsize=1024)  # composing takes a tenth of a second, or more
def _compose_steps(
    steps: tuple[tuple[tuple[float, float], int], ...], delta: float
) -> float:
    # here, because it takes a second to import, which other runs need not pay
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    account = PLDAccountant(value_discretization_interval=_INTERVAL)
    for (q, sigma), times in steps:
        step: dp.DpEvent = dp.GaussianDpEvent(sigma)
        if q < 1:
            step = dp.PoissonSampledDpEvent(q, step)
        account.compose(step, times)
    return float(account.get_epsilon(delta))


def _doubled(array: Array) -> Array:
    is_float = np.issubdtype(array.dtype, np.floating)
    return array.astype(np.float64) if is_float else array
