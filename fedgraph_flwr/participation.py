"""Which clients never train: the setting ``held-out-clients``."""

from __future__ import annotations

from functools import lru_cache

from .errors import ConfigError
from .seeding import numpy_rng

SHARE = r"0?\.\d{1,6}"
LIST = r"\d{1,6}(,\d{1,6})*"


@lru_cache(maxsize=16)  # asked for at every message
def held_out_clients(text: str, num_clients: int, seed: int) -> frozenset[int]:
    """Read the clients that are held out from training.

    Parameters
    ----------
    text : str
        A share of the clients, rounded to whole clients and drawn from ``seed`` alone;
        or numbers of clients separated by commas; or "" for none.
    num_clients : int
    seed : int
        The split seed: runs that are compared hold out the same clients.

    Raises
    ------
    ConfigError
        A number is no client's or stands there twice, no client is held out, or none is
        left to train.
    """
    if not text:
        return frozenset()
    if "." in text:
        count = round(float(text) * num_clients)
        rng = numpy_rng(seed, "held-out-clients")
        chosen = [int(c) for c in rng.choice(num_clients, size=count, replace=False)]
    else:
        chosen = [int(part) for part in text.split(",")]
    if len(set(chosen)) < len(chosen) or max(chosen, default=0) >= num_clients:
        raise ConfigError(
            f"held-out-clients must be numbers of clients below {num_clients}, each"
            f" once, got {text!r}; correct it in the run config"
        )
    if not 0 < len(chosen) < num_clients:
        raise ConfigError(
            "held-out-clients must hold out at least one client and leave at least one"
            f" to train, got {text!r}, which is {len(chosen)} of {num_clients}; change"
            " it in the run config, or leave it out"
        )
    return frozenset(chosen)
