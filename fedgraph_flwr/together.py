"""Trains clients of one message as one, ahead of their answers; see `stacked`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .device import choose_device
from .errors import ConfigError
from .gate import visit
from .node_config import is_site
from .resolve import Resolved

if TYPE_CHECKING:
    from clients.adam import Optimizer
    from clients.base import GraphClient

    from .wire import Parcel

# Clients that are in memory at a time; those that fit together train as one.
MOST_AT_ONCE = {"cpu": 64, "cuda": 512}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A client that was trained with others; its reply is still to be made.

    The time that all took is shared out: one client's part begins when that of the one
    before ends.
    """

    client: GraphClient[Any]
    optimizer: Optimizer
    practised: Parcel
    began: float
    seconds: float


def trains_stacked(resolved: Resolved) -> bool:
    """Whether clients of a process train as one: `stacked` of the run config.

    "auto" does so on a GPU. On a CPU the bytes would depend on who shares a process.

    At a site whose updates are noisy they never do. Last digits of an update depend on
    the clients beside it, except where it is 0: a server that asks for a client alone
    and beside others would see whether it is.

    Raises
    ------
    ConfigError
        It is "on", and the clients can only train one by one.
    """
    mode = resolved.settings.stacked
    is_hidden = resolved.privacy.update_clip > 0 and is_site(visit().node)
    if mode == "on" and is_hidden:
        raise ConfigError(
            "stacked is 'on', but a site trains its clients one by one in a run with"
            " privacy.update-clip: last digits would tell a server more than the noisy"
            " updates do; set stacked to 'auto' or 'off'"
        )
    if mode == "off" or is_hidden:
        return False
    if mode == "auto" and choose_device(resolved.settings.device).type == "cpu":
        return False
    from clients.stacking.groups import stack_of

    can = stack_of(resolved.method.client) is not None
    if mode == "on" and not can:
        raise ConfigError(
            f"stacked is 'on', but clients of method {resolved.settings.method!r} on"
            " this data can only train one by one; set stacked to 'auto' or 'off', or"
            " choose a method that docs/performance.md names"
        )
    return can


def portions(ids: Sequence[int], resolved: Resolved) -> Iterator[Sequence[int]]:
    """Cut clients into parts, each of as many as may be in memory at a time."""
    size = MOST_AT_ONCE[choose_device(resolved.settings.device).type]
    for first in range(0, len(ids), size):
        yield ids[first : first + size]


def train_ahead(
    ids: Sequence[int], begin: Callable[[int], GraphClient[Any]]
) -> dict[int, Trained]:
    """Train those of some clients that fit together; the others are left out.

    Parameters
    ----------
    ids : sequence of int
    begin : callable
        Makes a client and sets it to the start of its round. If that raises, the
        client is left out, and whoever answers for it finds the reason again.
    """
    import torch

    from clients.stacking.groups import practise_together

    if len(ids) < 2:
        return {}
    began, begin_s = time.time(), time.perf_counter()
    clients = {}
    for client_id in ids:
        try:
            clients[client_id] = begin(client_id)
        except Exception:
            continue
    torch.set_flush_denormal(True)
    try:
        done = practise_together(list(clients.values()))
    finally:
        torch.set_flush_denormal(False)
    own = (time.perf_counter() - begin_s) / max(1, len(done))
    return {
        client_id: Trained(
            client=clients[client_id],
            optimizer=optimizer,
            practised=practised,
            began=began + k * own,
            seconds=own,
        )
        for k, (client_id, (optimizer, practised)) in enumerate(sorted(done.items()))
    }
