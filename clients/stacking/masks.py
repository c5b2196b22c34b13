"""Dropout masks of a stack: each client's from its own stream, as without the stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data import IntArray

from ..graphs.csr import send
from ..graphs.ops import draw_words, mask_of
from .padding import begins

WORD = 4  # entries that one random word serves


@dataclass(frozen=True)
class Masks:
    """Random words of some layers, to be used one after the other.

    Parameters
    ----------
    words : int64 tensor, shape (total rows, width / 4)
        One row for each row of each layer of each client.
    first : list of int64 arrays, each of shape (C,)
        For each layer: the row of ``words`` where a client's rows begin.
    dropout : float
    """

    words: Tensor
    first: list[IntArray]
    dropout: float

    def of(self, layer: int, like: Tensor) -> tuple[Tensor, float]:
        """Mask and scale of a layer: of shape (C, rows, width), as ``like``."""
        begin = send(self.first[layer], like.device)[:, None]
        rows = begin + torch.arange(like.shape[1], device=like.device)
        rows = rows.clamp_(max=len(self.words) - 1)  # of padding: any will do
        return mask_of(self.words[rows.flatten()], like, self.dropout)


def draw_masks(
    sizes: Sequence[IntArray],
    generators: Sequence[torch.Generator],
    *,
    width: int,
    dropout: float,
    device: torch.device,
) -> Masks:
    """Draw the words of several layers, each client's in one go.

    Parameters
    ----------
    sizes : sequence of int arrays, each of shape (C,)
        For each layer, in the order of their use: rows of each client.
    generators : sequence of torch.Generator
        One for each client.
    width : int
        Entries of a row; a multiple of 4.
    dropout : float
    device : torch.device
    """
    table = np.array(sizes)  # (layers, C)
    totals = table.sum(0)
    words = torch.empty(
        (int(totals.sum()), width // WORD), dtype=torch.int64, device=device
    )
    parts = torch.split(words, totals.tolist())
    for part, generator in zip(parts, generators, strict=True):
        draw_words(part, generator)
    within = np.cumsum(table, axis=0) - table
    return Masks(words, list(begins(totals) + within), dropout)
