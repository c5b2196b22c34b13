"""Clients that learn of the edges of one graph, trained on all of it at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.data import SPLITS, IntArray
from fedgraph_flwr.core.tasks import AVERAGE_PRECISION
from fedgraph_flwr.core.wire import Parcel, count_key, evaluation_key

from ..base import Metrics
from ..graphs.batching import ClientData
from ..graphs.csr import send
from ..graphs.node_data import NodeData
from ..graphs.sampling import SampledGraph
from ..graphs.whole_graph import WholeGraph
from ..job import P
from ..models.encoders import EdgeGNN
from .node_classifier import NodeClassifierClient
from .scores import average_precision, link_scores, roc_auc


@dataclass(frozen=True, kw_only=True)
class EdgeData(NodeData):
    """A partition with its graph, seen at three times if its items have a time."""

    @cached_property
    def seen(self) -> Mapping[str, WholeGraph]:
        """Graph of the items of each split, with their classes.

        If items have times, edges after the newest of them pass no message.
        """
        parts = {name: self.partition.positions(name) for name in SPLITS}
        return {name: self._until(items) for name, items in parts.items()}

    @property
    @override
    def trained_on(self) -> WholeGraph:
        return self.seen["train"]

    def _until(self, items: IntArray) -> WholeGraph:
        graphs, whole = self.partition.graphs, self.whole
        assert graphs.item_edge is not None
        assert graphs.pairs is not None
        seen = np.arange(graphs.edge_index.shape[1])
        if graphs.time is not None and graphs.edge_time is not None and len(items):
            seen = np.flatnonzero(graphs.edge_time <= graphs.time[items].max())
        at, rows = (send(a, whole.y.device) for a in (items, seen))
        own = np.searchsorted(seen, graphs.item_edge[items])
        beside = {"edge_attr": whole.edge_attr, "edge_weight": whole.edge_weight}
        return replace(
            whole,
            edge_index=whole.edge_index[:, rows],
            y=whole.y[at],
            pairs=send(graphs.pairs[:, items], whole.y.device),
            item_edge=send(own, whole.y.device),
            **{n: None if t is None else t[rows] for n, t in beside.items()},  # type: ignore[arg-type]
        )


class EdgeClassifierClient(NodeClassifierClient[P]):
    """Cross-entropy and accuracy of classes of edges; one step is one local epoch.

    The model sees both ends of an edge, by an encoder of nodes, and the edge's own
    features.
    """

    DATA: ClassVar[type[ClientData]] = EdgeData
    HEAD = "edges"
    data: Any  # EdgeData, or LinkData
    model: EdgeGNN

    @override
    @classmethod
    def predict(cls, model: Any, data: Any, params: P) -> Tensor:
        return torch.cat([model(data.seen[name], None) for name in ("val", "test")])

    @override
    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        is_sample = isinstance(batch, SampledGraph)
        seen = batch if is_sample else self.data.seen["train"]
        logits = self.model(seen, generator)
        return nn.functional.cross_entropy(logits, seen.y, self.class_weights)

    @override
    def batch(self, positions: IntArray) -> SampledGraph:
        seen = self.data.seen["train"]
        at = np.searchsorted(self.data.partition.train, positions)
        rows = send(at, self.job.device)
        ends, local = torch.unique(seen.pairs[:, rows].cpu(), return_inverse=True)
        items = seen.items.rows(rows)
        pairs = local.to(self.job.device)
        about = {"y": seen.y[rows], "pairs": pairs, "items": items}
        return replace(self.around(ends), **about, num_graphs=len(rows))

    @override
    def held_out_logits(self) -> Tensor:
        return self.predict(self.model, self.data, self.params)


@dataclass(frozen=True, kw_only=True)
class LinkData(NodeData):
    """A partition with its graph, without the hidden links."""

    @cached_property
    def joined(self) -> Tensor:
        """Training links as source * num_nodes + target, ascending.

        Of an undirected one both directions.
        """
        graph = self.whole
        source, target = graph.pairs[:, graph.train]  # type: ignore[index]
        key = source * graph.num_nodes + target
        if self.partition.graphs.is_undirected:
            key = torch.cat([key, target * graph.num_nodes + source])
        found: Tensor = torch.unique(key)
        return found


class LinkPredictorClient(EdgeClassifierClient[P]):
    """Tells links from other pairs; hidden links are ranked among others.

    Each training link stands beside a pair with its source and another target, drawn
    uniformly in every step. A drawn pair that is a training link, or one node twice,
    does not count.
    """

    DATA: ClassVar[type[ClientData]] = LinkData
    HEAD = "links"
    data: LinkData

    @override
    @classmethod
    def predict(cls, model: Any, data: NodeData, params: P) -> Tensor:
        pairs = data.whole.pairs
        assert pairs is not None
        return model.links(data.whole, None, pairs[:, data.held_out])  # type: ignore[no-any-return]

    @override
    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Mean binary cross-entropy over training links and as many other pairs."""
        if isinstance(batch, SampledGraph):
            pairs, y = batch.pairs, batch.y
        else:
            pairs, y = self._with_others(batch.pairs[:, batch.train], generator)
        logits = self.model.links(batch, generator, pairs)[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(logits, y.to(logits))

    def _with_others(
        self, links: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Links, then drawn pairs that are none; 1 for each of the former."""
        joined, size = self.data.joined, self.graph.num_nodes
        target = torch.randint(
            size, links[0].shape, generator=generator, device=links.device
        )
        key = links[0] * size + target
        at = torch.searchsorted(joined, key).clamp(max=len(joined) - 1)
        counts = (joined[at] != key) & (target != links[0])
        others = torch.stack([links[0], target])[:, counts]
        y = torch.zeros(links.shape[1] + others.shape[1], device=links.device)
        y[: links.shape[1]] = 1
        return torch.cat([links, others], 1), y

    @override
    def batch(self, positions: IntArray) -> SampledGraph:
        links = self.graph.pairs[:, send(positions, self.job.device)]  # type: ignore[index]
        pairs, y = self._with_others(links, self.noise)
        ends, local = torch.unique(pairs.cpu(), return_inverse=True)
        local = local.to(self.job.device)
        num_links = links.shape[1]
        return replace(self.around(ends), y=y, pairs=local, num_graphs=num_links)

    @override
    @torch.no_grad()
    def scores(self, point: str) -> Parcel:
        """ROC-AUC, average precision and ranks of validation and test links."""
        partition = self.data.partition
        logits = self.predict(self.model, self.data, self.params).cpu()
        labels = partition.graphs.y[partition.held_out]
        found: Metrics = {}
        for split, rows in (
            ("val", slice(len(partition.val))),
            ("test", slice(len(partition.val), None)),
        ):
            mine, y = logits[rows], labels[rows]
            found[count_key(split)] = len(y)
            loss = nn.functional.binary_cross_entropy_with_logits
            beside = {
                "roc-auc": roc_auc(mine.numpy(), y).mean,
                AVERAGE_PRECISION: average_precision(mine.numpy(), y).mean,
                "loss": float(loss(mine, torch.from_numpy(np.array(y)))),
                **link_scores(mine.numpy(), self.job.settings.negatives),
            }
            found |= {
                evaluation_key(split, point, name): value
                for name, value in beside.items()
            }
        return Parcel(metrics=found)
