"""Graphs of a client that predicts labels of molecules, and their nodes without edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .batching import Batch, ClientData, SingleBatch
from .nodes import NodeBatch, NodeRows, Nodes

if TYPE_CHECKING:
    from .dense import DenseView


@dataclass(frozen=True, kw_only=True)
class MoleculeData(ClientData):
    """Collated graphs, and their nodes alone, for encoders that take edges apart."""

    @cached_property
    def nodes(self) -> NodeRows:
        """Nodes of the graphs without their edges; equal rows of features are stored once."""
        return NodeRows(self.partition.graphs, self.graphs.device)

    @cached_property
    def kept(self) -> dict[str, DenseView]:
        """Noisy views by name, kept for the next message of this process."""
        return {}

    @cached_property
    def evaluation_nodes(self) -> tuple[NodeBatch, ...]:
        """Nodes of the evaluation batches."""
        return tuple(self.nodes.batch(b.positions) for b in self.evaluation)

    def nodes_of(self, batch: Batch) -> Nodes:
        """Nodes of a batch, in the form that is fastest: itself if of one graph."""
        if isinstance(batch, SingleBatch):
            return batch
        return self.nodes.batch(batch.positions)
