"""Server side of Ditto: FedAvg; clients have models of their own beside.

Li et al. 2021, arXiv:2012.04221, Algorithm 1.
"""

from __future__ import annotations

from typing import final

from .fedavg import FedAvg


@final
class Ditto(FedAvg):
    """Averages models that are not those by which clients predict."""

    ONE_MODEL = False
    NO_HOLD_OUT = "every client ends with a model that it trains by itself"
