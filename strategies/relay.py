"""Base of strategies that carry mail between clients, which train with each other."""

from __future__ import annotations

from abc import ABC, abstractmethod

from fedgraph_flwr.peers.topology import Network


class Relay(ABC):
    """A strategy whose clients have neighbours instead of a server's model."""

    @abstractmethod
    def network(self) -> Network | None:
        """Who talks to whom, and who has dropped out; None before roll call."""

    @abstractmethod
    def peers(self) -> dict[int, list[int]]:
        """Clients whose models have reached each client, ascending."""
