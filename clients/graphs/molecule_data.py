"""A client's molecules: collated graphs, and their nodes without edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .batching import Batch, ClientData, SingleBatch
from .node_rows import NodeBatch, NodeRows, Nodes


@dataclass(frozen=True, kw_only=True)
class MoleculeData(ClientData):
    """Collated graphs, and their nodes alone, for encoders that take edges apart."""

    @cached_property
    def nodes(self) -> NodeRows:
        """Nodes without edges; equal rows of features are stored once."""
        return NodeRows(self.partition.graphs, self.graphs.device)

    @cached_property
    def evaluation_nodes(self) -> tuple[NodeBatch, ...]:
        """Nodes of the evaluation batches."""
        return tuple(self.nodes.batch(b.positions) for b in self.evaluation)

    def nodes_of(self, batch: Batch) -> Nodes:
        """Nodes of a batch, in the form that is fastest: itself if of one graph."""
        if isinstance(batch, SingleBatch):
            return batch
        return self.nodes.batch(batch.positions)
