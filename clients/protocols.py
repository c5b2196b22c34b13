"""Optional abilities of clients beyond training; each serves one kind of method."""

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
class TellsClasses(Protocol):
    """Sends what tells how many nodes of each class it has."""

    @classmethod
    def tells_class_counts(cls, params: Any) -> bool:
        """Whether it does with these parameters; a site must agree to that."""
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
    """Tells its site's operator something about received and sent mail."""

    @classmethod
    def remark(cls, received: NamedArrays, sent: NamedArrays) -> str:
        """Half a sentence for a message's line in the log; "" for nothing."""
        ...


@runtime_checkable
class Derives(Protocol):
    """Hands over something that is computed from the arrays beside it alone."""

    @classmethod
    def derived(cls, arrays: NamedArrays) -> NamedArrays:
        """Make ``evaluation`` of a parcel from its ``arrays``."""
        ...


@runtime_checkable
class Diffuses(Protocol):
    """Trains on a second, weighted view of its graphs."""

    @classmethod
    def diffusion(cls, params: Any) -> DiffusionSpec:
        """How the second view is made."""
        ...
