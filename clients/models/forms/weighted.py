"""Models of several labels per graph that were trained on noisy edges (FGCL)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...graphs.batching import Batch
from ...graphs.molecule_data import MoleculeData
from ...graphs.structure import NoEdges, SparseStructure, Structure
from ..weighted_encoders import GraphModel
from . import Architecture, Form, Generator


def _make(a: Architecture, generator: Generator, _: Generator) -> GraphModel:
    return GraphModel(
        str(a.options["encoder"]),
        a.num_features,
        a.num_classes,
        hidden_dim=a.hidden_dim,
        dropout=a.dropout,
        generator=generator,
    )


def _outputs(
    model: GraphModel, data: MoleculeData, options: Mapping[str, Any]
) -> Tensor:
    """Read clean edges, each of weight 1, or nodes alone."""
    with_edges = options["edges"] != "none"
    pairs = zip(data.evaluation, data.evaluation_nodes, strict=True)
    return torch.cat([model(n, _structure(b, with_edges), None) for b, n in pairs])


def _structure(batch: Batch, with_edges: bool) -> Structure:
    if with_edges:
        return SparseStructure(batch)
    return NoEdges(len(batch.graph_of_node), batch.y.device)


FORMS = {"weighted": Form(_make, MoleculeData, _outputs)}
