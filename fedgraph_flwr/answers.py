"""Answers for each client of a node: one that fails is named, and the others go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .errors import full_reason
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
            reply = Parcel(error=full_reason(error), metrics=drawn.spent)
        except Exception as error:  # one client's failure is not its neighbours'
            failed[client_id] = error
            reply = Parcel(error=full_reason(error))
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
