"""Differentially private client updates: clip, add Gaussian noise, account.

Applies to any method that sends tensors: the update is all shared tensors of a client
together, as one flat vector, minus what the client received.

What is protected. Each client adds the noise itself, before anything leaves it, so the
guarantee is client-level and holds against the server and all who see the updates
(the local model): for any two data sets that the *whole client* might hold, the updates
it sends in all rounds are (epsilon, delta)-indistinguishable. Neighbours are

``replace`` (default)
    The client's whole data set is replaced by any other. Two clipped updates are up to
    2 C apart, so noise of standard deviation sigma C has the effective multiplier
    sigma / 2.
``zero-out``
    The client's update is replaced by the zero vector. They are up to C apart, so the
    multiplier is sigma itself. Weaker: an epsilon quoted for it must say so.

Composition is over the rounds in which the client took part; each sees the results of
those before (adaptive composition). No amplification by sampling of clients or graphs
is claimed: the server knows who takes part. Not covered: numbers of examples, metrics,
figures and whatever else a reply holds beside the update. As for edge noise, a seed
that others know protects nothing, and doubles are not hardened.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.errors import ConfigError, DataError
from fedgraph_flwr.seeding import numpy_rng

from .ledger import Account

Array = NDArray[np.generic]
ACCOUNTANTS = ("pld", "rdp")
SENSITIVITIES = {"replace": 2.0, "zero-out": 1.0}  # in units of C


def update_norm(update: Sequence[Array]) -> float:
    """L2 norm of all tensors together, in doubles."""
    return math.sqrt(sum(float(np.sum(np.square(a, dtype=np.float64))) for a in update))


def clip_update(update: Sequence[Array], clip_norm: float) -> list[Array]:
    """Scale all tensors by min(1, C / norm), the norm being that of all together.

    Parameters
    ----------
    update : list of float arrays
        Trained minus received, all shared tensors.
    clip_norm : float
        C > 0.

    Raises
    ------
    ConfigError
        C is not a finite number > 0.
    DataError
        A tensor is not of floats, or a value is not finite: its norm bounds nothing.
    """
    _check_positive("clip_norm", clip_norm)
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
    rng: np.random.Generator,
) -> list[Array]:
    """Clip to C, then add N(0, (sigma C)^2) to every coordinate.

    Parameters
    ----------
    update : list of float arrays
    clip_norm : float
        C > 0.
    noise_multiplier : float
        sigma > 0.
    rng : numpy.random.Generator
        :func:`update_rng`, once the ledger has been charged.

    Source
    ------
    McMahan et al. 2018, arXiv:1710.06963, Sec. 3. Differs: each client adds the noise
    of the whole mechanism to its own update, as it does not trust the server.
    """
    _check_positive("noise_multiplier", noise_multiplier)
    # In doubles up to the last step: rounding is post-processing only if it comes last.
    clipped = clip_update([_doubled(a) for a in update], clip_norm)
    scale = noise_multiplier * clip_norm
    return [
        np.asarray(np.add(c, rng.normal(0.0, scale, c.shape))).astype(a.dtype)
        for a, c in zip(update, clipped, strict=True)
    ]


def update_rng(
    account: Account, *, seed: int, client_id: int, secret: str = ""
) -> np.random.Generator:
    """Return the generator of the noise of the update that was charged last.

    It is named by how many updates were charged, not by the round: a round that is
    repeated may have another update, and the same noise on both would reveal their
    difference. A run that is resumed where it stopped still draws the same noise.

    Parameters
    ----------
    account : Account
        What ``Ledger.charge_update`` returned for this update.
    seed, client_id : int
    secret : str
        As for edge noise, see :func:`clients.privacy.views.site_secret`; without one
        the noise hides nothing from those who know the run's seed.
    """
    serial = sum(account.updates.values())
    return numpy_rng(seed, client_id, "update-noise", secret, serial)


def epsilon_of(
    updates: Mapping[float, int],
    delta: float,
    *,
    accountant: str = "pld",
    relation: str = "replace",
) -> float:
    """Epsilon of a client's noisy updates together.

    Parameters
    ----------
    updates : mapping of float to int
        In how many rounds the client sent an update with each noise multiplier.
    delta : float
        In (0, 1).
    accountant : str
        ``"pld"``, privacy loss distributions: tight up to a discretisation that errs
        upwards. ``"rdp"``, Renyi: an upper bound, larger by 4 to 10 % (measured
        for sigma from 1 to 20 and 1 to 50 rounds).
    relation : str
        ``"replace"`` or ``"zero-out"``, see the module.

    Raises
    ------
    ConfigError
        A value is not allowed.
    """
    _check_delta(delta)
    _check_name("accountant", accountant, ACCOUNTANTS)
    _check_name("relation", relation, SENSITIVITIES)
    counts = tuple(sorted((s, n) for s, n in updates.items() if n))
    for noise_multiplier, _ in counts:
        _check_positive("noise_multiplier", noise_multiplier)
    return _compose(counts, delta, accountant, SENSITIVITIES[relation])


@lru_cache  # a tenth of a second and more; the clients of a node ask for the same
def _compose(
    counts: tuple[tuple[float, int], ...],
    delta: float,
    accountant: str,
    sensitivity: float,
) -> float:
    if not counts:
        return 0.0
    # here, because it takes a second to import, which other runs need not pay
    from dp_accounting import GaussianDpEvent, pld, rdp

    found = {"pld": pld.PLDAccountant, "rdp": rdp.RdpAccountant}[accountant]()
    for noise_multiplier, count in counts:
        found.compose(GaussianDpEvent(noise_multiplier / sensitivity), count)
    return float(found.get_epsilon(delta))


def _doubled(array: Array) -> Array:
    is_float = np.issubdtype(array.dtype, np.floating)
    return array.astype(np.float64) if is_float else array


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(
            f"{name} must be a finite number > 0, got {value!r}; set it in the run"
            " config"
        )


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(
            f"delta must be a number > 0 and < 1, got {delta!r}; below 1 / (number of"
            " clients) is usual; set it in the run config"
        )


def _check_name(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ConfigError(
            f"{what} must be one of {tuple(known)}, got {name!r}; set it in the run"
            " config"
        )
