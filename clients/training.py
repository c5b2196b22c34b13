"""The local epoch and the evaluation of a classifier, as pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedgraph_flwr.data import IntArray

from .graphs.batching import Batch, ClientData

Loss = Callable[[Batch], Tensor]


def epoch_positions(
    train: IntArray, batch_size: int, generator: torch.Generator, *, min_batch: int = 1
) -> Iterator[IntArray]:
    """Positions of the graphs of each batch, drawn from ``generator`` (on the CPU).

    A last batch of fewer than ``min_batch`` graphs joins the one before it.
    """
    order: IntArray = torch.randperm(len(train), generator=generator).numpy()
    begins = batch_begins(len(train), batch_size, min_batch)
    for begin, end in itertools.pairwise([*begins, len(order)]):
        yield train[order[begin:end]]


def batch_begins(num_graphs: int, batch_size: int, min_batch: int = 1) -> list[int]:
    """Where each batch of an epoch begins."""
    begins = list(range(0, num_graphs, batch_size))
    if len(begins) > 1 and num_graphs - begins[-1] < min_batch:
        begins.pop()
    return begins


def train_epochs(
    loss_of: Loss,
    optimizer: Optimizer,
    data: ClientData,
    *,
    num_epochs: int,
    batch_size: int,
    generator: torch.Generator,
    min_batch: int = 1,
    train: IntArray | None = None,
    begin_epoch: Callable[[int], None] = lambda _epoch: None,
    end_step: Callable[[], None] = lambda: None,
    end_epoch: Callable[[int], None] = lambda _epoch: None,
) -> float:
    """Train for ``num_epochs`` and return the mean loss per graph of the last one.

    The loss is read once per epoch, so the loop never waits for the device.
    """
    train = data.partition.train if train is None else train
    mean = torch.zeros(())
    for epoch in range(num_epochs):
        begin_epoch(epoch)
        total = torch.zeros((), device=data.graphs.device)
        for positions in epoch_positions(
            train, batch_size, generator, min_batch=min_batch
        ):
            batch = data.graphs.batch(positions)
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            end_step()
            total += loss.detach() * batch.num_graphs
        end_epoch(epoch)
        mean = total / len(train)
    return float(mean)


@torch.no_grad()
def evaluate(model: nn.Module, data: ClientData) -> tuple[Tensor, Tensor]:
    """Evaluate the "val", then the "test" graphs, on the device.

    Returns
    -------
    logits : tensor, shape (num_val + num_test, num_classes)
    losses : tensor, shape (num_val + num_test,)
        Cross-entropy of each graph.
    """
    logits = torch.cat([model(batch, None) for batch in data.evaluation])
    y = torch.cat([batch.y for batch in data.evaluation])
    return logits, nn.functional.cross_entropy(logits, y, reduction="none")


def gradient_norm(parameters: list[nn.Parameter]) -> float:
    """L2 norm of the gradients left by the last mini-batch."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(
        torch.linalg.vector_norm(torch.cat([g.flatten().double() for g in grads]))
    )
