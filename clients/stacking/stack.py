"""One round of a stack: several clients' models evaluated and trained as one.

Sums over neighbours run over one block-diagonal matrix, linear layers are batched
products, and the optimiser makes one step on stacked tensors. So the number of
operations does not grow with the clients. Random streams are each client's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.data import IntArray
from fedgraph_flwr.wire import RAREST, STACKED, Parcel, join

from ..adam import Optimizer
from ..base import GraphClient, train_loss
from ..graphs.whole_graph import NodeData
from ..losses.terms import pull_each
from ..optimizer import join_optimizers, part_optimizer
from ..tasks.class_scores import class_scores
from ..tasks.node_classifier import NodeClassifierClient
from ..training import batch_begins, epoch_positions
from .batch import JoinedGraphs, StackedBatch
from .masks import Masks, draw_masks
from .networks import Network, StackedGCN, StackedGIN
from .nodes import StackedNodes, stack_nodes

B = TypeVar("B")


class Stack(ABC, Generic[B]):
    """Clients of one class, models of one shape and optimisers at one step.

    Parameters
    ----------
    clients : sequence of GraphClient
        At the start of their round; with something to train on.
    optimizers : sequence of Optimizer
        One for each client.
    """

    NETWORK: ClassVar[type[Network[Any]]]

    def __init__(
        self, clients: Sequence[GraphClient[Any]], optimizers: Sequence[Optimizer]
    ) -> None:
        self.clients, self.optimizers = clients, optimizers
        self.device = clients[0].data.graphs.device
        self.network: Network[B] = self.NETWORK(clients[0].model)
        self._rows = [c.tensors() for c in clients]
        self.named = {
            name: nn.Parameter(self._stacked([r[name] for r in self._rows]))
            for name in self._rows[0]
        }
        self.received = {
            name: self._stacked([c.round.received[name] for c in clients])
            for name in clients[0].round.received
        }
        pulls = _pulls(clients[0])
        self._pulls = [c.pull_weight() for c in clients] if pulls else []  # type: ignore[attr-defined]
        streams = [c.generators(self.device) for c in clients]
        self.orders = [order for order, _ in streams]
        self.noises = [noise for _, noise in streams]

    def practise(self) -> list[Parcel]:
        """Evaluate, train, evaluate again; the clients' own models are trained then.

        Returns
        -------
        list of Parcel
            Of each client, what its own ``practise`` would return.
        """
        before = self._measure_if_due("post_aggregation")
        settings = self.clients[0].job.settings
        optimizer = join_optimizers(self.optimizers, self.named.values(), settings)
        losses = self.train(optimizer)
        after = self._measure_if_due("post_training")
        self._hand_back(optimizer)
        told = [train_loss(loss) for loss in losses.tolist()]
        size = Parcel(metrics={STACKED: len(self.clients)})
        return [join(*parts, size) for parts in zip(before, told, after, strict=True)]

    @classmethod
    def takes(cls, client: type[GraphClient[Any]]) -> bool:  # noqa: ARG003
        """Whether the network is that of a class of clients of the stack's task."""
        return True

    @classmethod
    @abstractmethod
    def num_batches(cls, client: GraphClient[Any]) -> int:
        """Count the steps of a client in an epoch."""

    @classmethod
    @abstractmethod
    def num_rows(cls, client: GraphClient[Any]) -> int:
        """Nodes of a client in one step, or in an evaluation if these are more."""

    @abstractmethod
    def train(self, optimizer: Optimizer) -> Tensor:
        """Train; return each client's mean loss of the last epoch, shape (C,)."""

    @abstractmethod
    def evaluate(self) -> tuple[Tensor, Tensor, list[IntArray]]:
        """Evaluate all held-out rows.

        Returns
        -------
        logits : tensor, shape (rows, num_classes)
        losses : tensor, shape (rows,)
        own : list of int arrays
            Rows of each client: of validation, then of test.
        """

    def mean_entropy(self, logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Cross-entropy of rows times their weights, summed for each client: (C,)."""
        entropy = nn.functional.cross_entropy(logits, y, reduction="none")
        return (entropy * weight).view(len(self.clients), -1).sum(1)

    def step(self, optimizer: Optimizer, batch: B, losses: Losses[B]) -> Tensor:
        """Make one step of the optimiser; return the losses before it, shape (C,)."""
        optimizer.zero_grad(set_to_none=True)
        loss = losses(batch, self._masks(batch))
        if self.received and any(self._pulls):
            weights = torch.tensor(self._pulls, device=self.device)
            loss = loss + pull_each(self.named, self.received, weights)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    def _masks(self, batch: B) -> Masks | None:
        if self.network.dropout == 0:
            return None
        return draw_masks(
            self.network.mask_sizes(batch),
            self.noises,
            width=self.network.width,
            dropout=self.network.dropout,
            device=self.device,
        )

    @torch.no_grad()
    def _measure_if_due(self, point: str) -> list[Parcel]:
        sizes = [c.sizes() for c in self.clients]
        if not self.clients[0].is_due(point):
            return sizes
        logits, losses, own = self.evaluate()
        found, lost = logits.cpu().numpy(), losses.cpu().numpy()
        scores = [
            class_scores(
                c.data.partition,
                point,
                found[rows],
                lost[rows],
                c.round.facts.get(RAREST),
            )
            for c, rows in zip(self.clients, own, strict=True)
        ]
        return [join(*parts) for parts in zip(sizes, scores, strict=True)]

    @torch.no_grad()
    def _stacked(self, rows: list[Tensor]) -> Tensor:
        return torch.stack(rows).to(self.device)

    def _hand_back(self, optimizer: Optimizer) -> None:
        """Put trained tensors, gradients and moments into the clients' own."""
        for name, stacked in self.named.items():
            trained = stacked.detach().cpu().unbind()
            grad = stacked.grad
            grads = [None] * len(trained) if grad is None else grad.cpu().unbind()
            for own, row, slope in zip(self._rows, trained, grads, strict=True):
                own[name].data, own[name].grad = row, slope
        if self.clients[0].job.settings.persist_optimizer:
            part_optimizer(optimizer, self.optimizers)


def _pulls(client: GraphClient[Any]) -> bool:
    """Whether the class whose loss a client has adds a pull to it."""
    owner = next(c for c in type(client).__mro__ if "loss" in vars(c))
    return "pull_weight" in vars(owner)


Losses = Callable[[B, "Masks | None"], Tensor]


@final
class GraphStack(Stack[StackedBatch]):
    """Clients that classify graphs with GIN."""

    NETWORK = StackedGIN

    @override
    @classmethod
    def num_batches(cls, client: GraphClient[Any]) -> int:
        num_train, settings = len(client.trained_on()), client.job.settings
        return len(batch_begins(num_train, settings.batch_size, client.MIN_BATCH))

    @override
    @classmethod
    def num_rows(cls, client: GraphClient[Any]) -> int:
        nodes, _ = client.data.graphs.pointers
        of_graph = np.diff(nodes)
        in_epoch = int(of_graph[client.trained_on()].sum())
        held_out = int(of_graph[client.data.partition.held_out].sum())
        return max(in_epoch // cls.num_batches(client), held_out)

    @override
    def train(self, optimizer: Optimizer) -> Tensor:
        counts = [len(c.trained_on()) for c in self.clients]
        of_all = torch.tensor(counts, device=self.device)
        for _ in range(self.clients[0].num_epochs()):
            total = torch.zeros(len(counts), device=self.device)
            for positions in self._epoch():
                batch = self._graphs.batch(positions)
                loss = self.step(optimizer, batch, self._losses)
                total += loss * torch.from_numpy(batch.num_graphs).to(self.device)
        return total / of_all

    @cached_property
    def _graphs(self) -> JoinedGraphs:
        return JoinedGraphs([c.data.graphs for c in self.clients])

    @cached_property
    def _held_out(self) -> StackedBatch:
        return self._graphs.batch([c.data.partition.held_out for c in self.clients])

    def _epoch(self) -> Iterator[tuple[IntArray, ...]]:
        """Positions of the graphs of each client's next batch."""
        each = [
            epoch_positions(
                c.trained_on(),
                c.job.settings.batch_size,
                order,
                min_batch=c.MIN_BATCH,
            )
            for c, order in zip(self.clients, self.orders, strict=True)
        ]
        return zip(*each, strict=True)

    def _losses(self, batch: StackedBatch, masks: Masks | None) -> Tensor:
        """Mean cross-entropy of each client's graphs, shape (C,)."""
        logits = self.network.logits(batch, self.named, masks)
        return self.mean_entropy(logits.flatten(0, 1), batch.y, batch.weight)

    @override
    def evaluate(self) -> tuple[Tensor, Tensor, list[IntArray]]:
        batch = self._held_out
        logits = self.network.logits(batch, self.named, None)
        height, flat = logits.shape[1], logits.flatten(0, 1)
        losses = nn.functional.cross_entropy(flat, batch.y, reduction="none")
        own = [k * height + np.arange(n) for k, n in enumerate(batch.num_graphs)]
        return flat, losses, own


@final
class NodeStack(Stack[StackedNodes]):
    """Clients that classify the nodes of one graph each with a GCN."""

    NETWORK = StackedGCN

    @override
    @classmethod
    def num_batches(cls, client: GraphClient[Any]) -> int:
        return 1

    @override
    @classmethod
    def num_rows(cls, client: GraphClient[Any]) -> int:
        return _whole(client).whole.num_nodes

    @override
    @classmethod
    def takes(cls, client: type[GraphClient[Any]]) -> bool:
        return issubclass(client, NodeClassifierClient) and client.FORM == "gcn"

    @override
    def train(self, optimizer: Optimizer) -> Tensor:
        for _ in range(self.clients[0].num_epochs()):
            loss = self.step(optimizer, self._graphs, self._losses)
        return loss

    @cached_property
    def _graphs(self) -> StackedNodes:
        return stack_nodes([_whole(c).whole for c in self.clients])

    def _losses(self, graphs: StackedNodes, masks: Masks | None) -> Tensor:
        """Mean cross-entropy of each client's training nodes, shape (C,)."""
        logits = self.network.logits(graphs, self.named, masks)
        chosen = logits.flatten(0, 1)[graphs.train]
        return self.mean_entropy(chosen, graphs.y, graphs.weight)

    @override
    def evaluate(self) -> tuple[Tensor, Tensor, list[IntArray]]:
        logits = self.network.logits(self._graphs, self.named, None)
        held_out = [c.data.partition.held_out for c in self.clients]
        height, ends = logits.shape[1], np.cumsum([len(h) for h in held_out])
        rows = np.concatenate([k * height + h for k, h in enumerate(held_out)])
        y = np.concatenate(
            [
                c.data.partition.graphs.y[h]
                for c, h in zip(self.clients, held_out, strict=True)
            ]
        )
        chosen = logits.flatten(0, 1)[torch.from_numpy(rows).to(self.device)]
        labels = torch.from_numpy(y).to(self.device)
        losses = nn.functional.cross_entropy(chosen, labels, reduction="none")
        return chosen, losses, np.split(np.arange(len(rows)), ends[:-1])


def _whole(client: GraphClient[Any]) -> NodeData:
    assert isinstance(client.data, NodeData)
    return client.data
