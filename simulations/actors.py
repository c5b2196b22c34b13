"""How many of Ray's actors find room on this machine."""

from __future__ import annotations

import os

from fedgraph_flwr.core.errors import ConfigError


def machine() -> tuple[float, float]:
    """Cores and GPUs of this machine.

    Raises
    ------
    ConfigError
        Ray is told to start actors elsewhere.
    """
    if (address := os.environ.get("RAY_ADDRESS", "")) not in ("", "local"):
        raise ConfigError(
            f"--plan knows this machine alone, and RAY_ADDRESS={address!r} names a"
            " cluster; unset it"
        )
    import torch

    return os.cpu_count() or 1, torch.cuda.device_count()


def num_actors(there: tuple[float, float], *, nodes: int, gpus: float) -> int:
    """Count processes that train at the same time, as Flower lets Ray start them.

    An actor has one core; with ``gpus`` > 0 it also has that share of a GPU.

    Parameters
    ----------
    there : (float, float)
        Cores and GPUs.

    Raises
    ------
    ConfigError
        There is no such share of a GPU.
    """
    cpus, devices = there
    allowed = min(nodes, int(min(cpus, devices / gpus) if gpus > 0 else cpus))
    if not allowed:
        raise ConfigError(
            f"--gpus {gpus:g} leaves room for no actor: this machine has {cpus:g}"
            f" core(s) and {devices:g} GPU(s); give a smaller share, or 0"
        )
    return allowed
