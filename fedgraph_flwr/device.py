"""Choice of the device that clients train on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .errors import ConfigError

if TYPE_CHECKING:
    import torch


def choose_device(name: str) -> torch.device:
    """Turn ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:N"`` into a device.

    ``"auto"`` is the first GPU where there is one, else the CPU.

    Raises
    ------
    ConfigError
        Another name, or a GPU that this machine does not have.
    """
    import torch  # here: it takes a second

    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError(
            f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {name!r}"
        )
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {name!r}, but this machine has {torch.cuda.device_count()} CUDA"
            ' devices; use device="cpu" or "auto"'
        )
    return device
