"""Base of strategies whose clients give something before round 1."""

from __future__ import annotations

from abc import abstractmethod

from flwr.serverapp import Grid
from typing_extensions import override

from fedgraph_flwr.core.fields import Phase
from fedgraph_flwr.wire import Parcel

from .base import AbstractGraphStrategy
from .sending import exchange


class AbstractOpeningStrategy(AbstractGraphStrategy):
    """Asks every client for something in a round 0, in which nobody trains.

    ``outgoing`` and ``uplink`` of round 0 say what is sent and what must come back.
    Failures count as in any round.
    """

    @abstractmethod
    def has_opening(self) -> bool:
        """Whether this run has a round 0."""

    @abstractmethod
    def opened(self, replies: dict[int, Parcel]) -> None:
        """Take what clients gave, in ascending client order."""

    @override
    def prepare(self, grid: Grid, timeout: float) -> None:
        """Hold the opening, unless the run is resumed after it."""
        if self.first_round > 1 or not self.has_opening():
            return
        messages = self.begin_round(Phase.OPENING, 0, grid)
        replies = exchange(grid, messages, timeout)
        try:
            parcels = self.round.collect(replies)
            self.round.require(parcels)
            self.opened(parcels)
        finally:
            self.close_round()
