"""Clients that fail in a drill, before or after they have stored their round."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from clients.base import GraphClient
from fedgraph_flwr.wire import SERVER_ROUND

BEFORE, AFTER = "before it began", "after it was stored"
_WORDS = "the drill let a round fail "
Failures = Mapping[str, str]  # by "ROUND/CLIENT"


def draw_failures(
    rng: random.Random, share: float, *, num_rounds: int, num_clients: int
) -> dict[str, str]:
    """Let one client fail in about this share of rounds, closing ones included."""
    return {
        f"{number}/{rng.randrange(num_clients)}": rng.choice([BEFORE, AFTER])
        for number in range(1, num_rounds + 2)
        if rng.random() < share
    }


def failures_of(summary: Mapping[str, Any]) -> dict[str, str]:
    """Failures of a run that a drill had drawn."""
    return {
        f"{f['round']}/{f['client']}": f["reason"].rpartition(_WORDS)[2]
        for f in summary["failures"]
        if _WORDS in f["reason"]
    }


def let_fail(failures: Failures) -> None:
    """Patch this process's clients."""
    begin, finish = GraphClient.begin, GraphClient.finish

    def fails(client: GraphClient[Any], header: Mapping[str, Any], when: str) -> None:
        key = f"{header[SERVER_ROUND]}/{client.job.client_id}"
        if failures.get(key) == when:
            raise RuntimeError(f"{_WORDS}{when}")

    def begins(self: GraphClient[Any], parcel: Any, header: Any) -> Any:
        fails(self, header, BEFORE)
        return begin(self, parcel, header)

    def finishes(self: GraphClient[Any], one: Any, two: Any, header: Any) -> Any:
        reply = finish(self, one, two, header)
        fails(self, header, AFTER)
        return reply

    patched: Any = GraphClient
    patched.begin, patched.finish = begins, finishes
