"""What a client may offer beyond training; each is asked for by one kind of method."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from fedgraph_flwr.data import DiffusionSpec
from fedgraph_flwr.wire import NamedArrays

from .store import ClientStore


@runtime_checkable
class Opens(Protocol):
    """Gives something to the other clients before round 1."""

    def opening(self) -> NamedArrays:
        """Arrays to give, once the strategy asks for them."""
        ...

    @classmethod
    def shares_features(cls, params: Any) -> bool:
        """Whether features of nodes leave the client; a site must agree to that."""
        ...


@runtime_checkable
class Introduces(Protocol):
    """Tells the server something at roll call, for a relay to hand on."""

    @classmethod
    def introduction(cls, params: Any, store: ClientStore) -> dict[str, str]:
        """Texts to tell, by name."""
        ...


@runtime_checkable
class Remarks(Protocol):
    """Has something to say to its site's operator of what came and what is sent."""

    @classmethod
    def remark(cls, received: NamedArrays, sent: NamedArrays) -> str:
        """Half a sentence for the line of a message; "" for nothing."""
        ...


@runtime_checkable
class Diffuses(Protocol):
    """Trains on a second, weighted view of its graphs."""

    @classmethod
    def diffusion(cls, params: Any) -> DiffusionSpec:
        """How the second view is made."""
        ...
