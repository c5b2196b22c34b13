"""Answers for each client of a node: one that fails is named, and the others go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import datasets
from clients.store import default_state_dir

from .disclosure import full_reason, public_reason
from .errors import DataError
from .gate import visit
from .node_config import is_site
from .terminal import log_failure
from .wire import COMPUTE_S, STARTED_AT, Parcel
from .wording import group_reasons, name_clients

Answer = Callable[[int, Parcel], Parcel]


def answer_all(
    ids: Sequence[int],
    parcels: Mapping[int, Parcel],
    answer: Answer,
    spent: Mapping[int, tuple[float, float]] | None = None,
) -> dict[int, Parcel]:
    """Answer for each client; one that raises is reported and the others go on.

    ``spent`` says when work for a client began before, and how many seconds it took.
    """
    replies: dict[int, Parcel] = {}
    failed: dict[int, Exception] = {}
    import torch

    # Vanishing gradients become denormal numbers, which CPUs compute 10x slower.
    torch.set_flush_denormal(True)
    for client_id in ids:
        started_at, before = (spent or {}).get(client_id, (time.time(), 0.0))
        begin = time.perf_counter() - before
        try:
            reply = answer(client_id, parcels.get(client_id, Parcel()))
        except FailedAfterDrawing as drawn:
            failed[client_id] = error = drawn.why()
            reply = Parcel(error=reason_of(error), metrics=drawn.spent)
        except Exception as error:  # one client's failure is not its neighbours'
            failed[client_id] = error
            reply = Parcel(error=reason_of(error))
        timing = {STARTED_AT: started_at, COMPUTE_S: time.perf_counter() - begin}
        replies[client_id] = replace(reply, metrics={**reply.metrics, **timing})
    torch.set_flush_denormal(False)
    reasons = {c: full_reason(error) for c, error in failed.items()}
    for clients, _ in group_reasons(reasons):  # in full, and each reason once
        log_failure(f"{name_clients(clients)} failed", failed[clients[0]])
    return replies


class FailedAfterDrawing(Exception):
    """A client failed, and the server must know what it had spent of its privacy."""

    def __init__(self, spent: Mapping[str, float]) -> None:
        super().__init__()
        self.spent = dict(spent)

    def why(self) -> Exception:
        """Return what was raised."""
        assert isinstance(self.__cause__, Exception)
        return self.__cause__


def reason_of(error: Exception) -> str:
    """Word an error for the server; at a site, leave out what it reveals of data."""
    node = visit().node
    if not is_site(node):
        return full_reason(error)
    own = [str(node.get(key, "")) for key in ("data-path", "state-dir", "cache-dir")]
    for default in (default_state_dir, datasets.cache_root):
        with suppress(DataError):  # a user without a home folder has none
            own.append(str(default()))
    return public_reason(error, own)
