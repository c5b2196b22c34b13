"""FedPer: the encoder is averaged, the last layer is the client's own.

Arivazhagan et al. 2019, arXiv:1912.00818; as a baseline of FedGKD, Sec. B.2.

Message fields
--------------
down, up  ``shared/<name>``: the tensors of the convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ..config import Settings, Value


@dataclass(frozen=True, kw_only=True)
class FedPerParams(Settings):
    """FedPer has no parameters of its own."""

    RUN: ClassVar[Mapping[str, Value]] = {"shared-group": "convs"}
