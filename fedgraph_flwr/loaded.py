"""What a process keeps of clients between messages: their data."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import datasets
from clients.privacy.site import (
    PrivateSite,
    check_drawn,
    check_features,
    noisy_partition,
)
from clients.protocols import Diffuses

from .kept import Kept
from .resolve import Resolved

if TYPE_CHECKING:  # imported when a client has work to do: torch takes a second
    import torch

    from clients.graphs.batching import ClientData

kept_data: Kept[ClientData] = Kept()  # by all that `load_data` depends on
_MANY = 50  # clients of one node


def load_data(
    resolved: Resolved,
    client_id: int,
    device: torch.device,
    site: PrivateSite | None,
) -> ClientData:
    """Load and collate a client's graphs, with the views it needs, once per process.

    Features that tell edges are refused where edges are noisy.

    With ``site`` the graphs are noisy, and those of its experiment. Without it batches
    of a private run have no edges: its method draws noisy views itself.
    """
    key = resolved, client_id, device, site
    data = kept_data.get(key, lambda: _load(*key))
    if site is not None:
        check_drawn(data.partition, site)
    return data


def _load(
    resolved: Resolved,
    client_id: int,
    device: torch.device,
    site: PrivateSite | None,
) -> ClientData:
    settings = resolved.settings
    partition = datasets.load_partition(settings, client_id)
    check_features(partition.graphs, resolved.privacy)
    collate = resolved.method.client.DATA.collate
    if site is not None:
        partition = noisy_partition(partition, site)
    elif resolved.privacy.edge_epsilon > 0:
        bare = replace(partition, graphs=partition.graphs.without_edges())
        return replace(collate(bare, device), partition=partition)
    data = collate(partition, device)
    client = resolved.method.client
    if not issubclass(client, Diffuses):
        return data
    spec, cache_dir = client.diffusion(resolved.params), settings.cache_dir
    edges = datasets.load_diffusion(partition.graphs, spec, cache_dir=cache_dir)
    return data.with_view(edges)


def settle(hosted: Sequence[int]) -> None:
    """Let the garbage collector leave out what a process of many clients has loaded.

    Once per process: it stays, and each look at it costs.
    """
    if len(hosted) >= _MANY and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def clear_kept() -> None:
    """Forget what this process keeps of clients, for a run of other clients."""
    kept_data.clear()
