"""One round of one client: the message, and the client's stored state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import WARNING

import torch
from flwr.common.logger import log
from torch import Tensor

from fedgraph_flwr.errors import DataError
from fedgraph_flwr.wire import FRESH_START, NamedArrays, Scalar

from .store import ClientStore

_BEGAN_AFRESH = "began-afresh"  # in the state: in which round, and what was lost


@dataclass(frozen=True, kw_only=True)
class Round:
    """One message to a client, read, and the client's state from before it.

    Parameters
    ----------
    number : int
        Counted from 1.
    after : int
        The round whose state it goes on from; 0 for none.
    received : dict of str to tensor
        Shared tensors as they came; empty if none did.
    extras : dict of str to array
        What came beside the shared tensors.
    facts : mapping of str to scalar
        Texts and flags that came.
    stored : dict of str to tensor
        That state; empty before the client's first round.
    fresh_start : int64 tensor (2,), optional
        The round in which the client began afresh, and the round whose state was lost.
    """

    number: int = 0
    after: int = 0
    received: Mapping[str, Tensor] = field(default_factory=dict)
    extras: NamedArrays = field(default_factory=dict)
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    stored: Mapping[str, Tensor] = field(default_factory=dict)
    fresh_start: Tensor | None = None

    def told(self) -> dict[str, int]:
        """Metrics that tell the server of a fresh start; empty without one."""
        if self.fresh_start is None:
            return {}
        return {FRESH_START: int(self.fresh_start[1])}

    def kept(self) -> dict[str, Tensor]:
        """Tensors to store; if this reply is lost, the next one tells of it again."""
        return {} if self.fresh_start is None else {_BEGAN_AFRESH: self.fresh_start}


def recall(
    store: ClientStore, number: int, after: int, *, told: int, may_restart: bool
) -> tuple[dict[str, Tensor] | None, Tensor | None]:
    """Load the client's state from before a round.

    Parameters
    ----------
    store : ClientStore
    number : int
        The round.
    after : int
        The round whose state it goes on from; 0 for none.
    told : int
        The last round of this client that the server knows of; 0 for none.
    may_restart : bool
        Whether the client may begin afresh when its state is gone.

    Returns
    -------
    stored : dict of str to tensor, or None
        None if there is none.
    fresh_start : tensor, or None
        See :class:`Round`; None once the server has heard of it.

    Raises
    ------
    DataError
        As :meth:`ClientStore.load`, unless ``may_restart``.
    """
    try:
        stored = store.load(after)
    except DataError as error:
        if not may_restart:
            raise
        log(WARNING, "%s. Node-config fresh-start: it begins afresh", error)
        return None, torch.tensor([number, after])
    if stored is None or _BEGAN_AFRESH not in stored:
        return stored, None
    since = stored[_BEGAN_AFRESH]
    return stored, since if int(since[0]) > told else None
