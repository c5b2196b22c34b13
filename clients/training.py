"""The local epoch and the evaluation of a classifier, as pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedgraph_flwr.data import IntArray

from .adam import Optimizer
from .graphs.batching import Batch, ClientData

Loss = Callable[[Batch], Tensor]


def epoch_batches(
    data: ClientData,
    batch_size: int,
    generator: torch.Generator,
    *,
    min_batch: int = 1,
    train: IntArray | None = None,
) -> Iterator[Batch]:
    """Training batches in a random order drawn from ``generator`` (on the CPU).

    A last batch of fewer than ``min_batch`` graphs joins the one before it. ``train``
    are the positions to train on; None: all training graphs.
    """
    train = data.partition.train if train is None else train
    order: IntArray = torch.randperm(len(train), generator=generator).numpy()
    begins = list(range(0, len(order), batch_size))
    if len(begins) > 1 and len(order) - begins[-1] < min_batch:
        begins.pop()
    for begin, end in itertools.pairwise([*begins, len(order)]):
        yield data.graphs.batch(train[order[begin:end]])


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
        for batch in epoch_batches(
            data, batch_size, generator, min_batch=min_batch, train=train
        ):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            end_step()
            total += loss.detach() * batch.num_graphs
        end_epoch(epoch)
        mean = total / len(train)
    return float(mean)


@dataclass(frozen=True, kw_only=True)
class Score:
    """Result of one evaluation of one split."""

    accuracy: float
    loss: float
    num_examples: int
    logits: Tensor  # (num_examples, num_classes), on the host
    y: Tensor  # (num_examples,), on the host


@torch.no_grad()
def evaluate(model: nn.Module, data: ClientData) -> dict[str, Score]:
    """Accuracy and mean cross-entropy on the "val" and "test" graphs."""
    hits, losses, outputs, labels = [], [], [], []
    for batch in data.evaluation:
        logits = model(batch, None)
        outputs.append(logits)
        labels.append(batch.y)
        hits.append(logits.argmax(1) == batch.y)
        losses.append(nn.functional.cross_entropy(logits, batch.y, reduction="none"))
    both = torch.stack([torch.cat(hits).to(torch.float64), torch.cat(losses).double()])
    both = both.cpu()  # (2, num_val + num_test)
    logits, y = torch.cat(outputs).cpu(), torch.cat(labels).cpu()
    parts = {"val": slice(0, data.num_val), "test": slice(data.num_val, len(y))}
    return {
        split: Score(
            accuracy=float(both[0, rows].mean()),
            loss=float(both[1, rows].mean()),
            num_examples=len(y[rows]),
            logits=logits[rows],
            y=y[rows],
        )
        for split, rows in parts.items()
    }


def gradient_norm(parameters: list[nn.Parameter]) -> float:
    """L2 norm of the gradients left by the last mini-batch."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(
        torch.linalg.vector_norm(torch.cat([g.flatten().double() for g in grads]))
    )
