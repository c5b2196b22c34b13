"""What FCLG saves by embedding with its frozen teachers once, not once per batch."""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from clients.base import initial_arrays
from clients.fclg import FCLGClient
from clients.graphs.batching import Batch
from clients.losses.terms import model_contrast
from clients.models.weighted_gin import WeightedGIN
from clients.store import ClientStore
from fedgraph_flwr.client_app import load_data
from fedgraph_flwr.resolve import Resolved, defaults, resolve

from .presets import load_preset

CPU = torch.device("cpu")


class PerBatchClient(FCLGClient):
    """FCLG as Algorithm 1 writes it: both teachers embed every batch anew."""

    def begin_epoch(self, epoch: int) -> None:
        """Keep copies of the models instead of their embeddings."""
        if epoch == 0:
            self.glob_model = copy.deepcopy(self.model)
        self.prev_model = copy.deepcopy(self.model)

    def _contrast_graphs(self, u: Tensor, batch: Batch) -> Tensor:
        glob, prev = (self._teach(m, batch) for m in (self.glob_model, self.prev_model))
        return model_contrast(u, glob, prev, self._params().inter_temperature).mean()

    @torch.no_grad()
    def _teach(self, model: WeightedGIN, batch: Batch) -> Tensor:
        return model(batch)  # type: ignore[no-any-return]

    _INTER: ClassVar = {**FCLGClient._INTER, "graphs": _contrast_graphs}


def local_round(kind: type[FCLGClient], resolved: Resolved, scratch: Path) -> float:
    """Seconds of one local round of client 0, without loading or evaluation."""
    data = load_data(resolved, 0, CPU, None)
    store = ClientStore(scratch, kind.__name__, client_id=0)
    site = resolved.site(store, is_secret=False)
    client = kind(resolved.job(data, store, site, CPU))
    graphs = data.partition.graphs
    start = initial_arrays(
        kind,
        resolved.settings,
        resolved.params,
        num_features=graphs.num_features,
        num_classes=graphs.num_classes,
    )
    begin = time.perf_counter()
    client.fit(list(start.values()), {"server-round": 1})
    return time.perf_counter() - begin


def measure_teachers(repeats: int) -> tuple[float, float]:
    """Median seconds of a local round (PROTEINS): per batch, and once per epoch."""
    overrides = {"embedding.rounds": "", "torch-threads": 1}
    resolved = resolve({**defaults(), **load_preset("fclg-proteins"), **overrides})
    torch.set_num_threads(1)
    seconds: dict[type[FCLGClient], list[float]] = {PerBatchClient: [], FCLGClient: []}
    with tempfile.TemporaryDirectory() as scratch:
        for kind in seconds:  # load data, warm up
            local_round(kind, resolved, Path(scratch))
        for _ in range(repeats):
            for kind, times in seconds.items():
                times.append(local_round(kind, resolved, Path(scratch)))
    naive, ours = (statistics.median(times) for times in seconds.values())
    return naive, ours
