"""Classifiers of the nodes of a graph that is corrected first (AdaFGL)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...graphs.whole_graph import NodeData
from ..adafgl_nets import AdaFGLPredictor, Branches, as_logits, correct, fused
from ..node_gnn import GCNConv, NodeGNN
from . import Architecture, Form, Generator
from .nodes import held_out


def _make(a: Architecture, generator: Generator, _: Generator) -> AdaFGLPredictor:
    widths = a.num_features, a.num_classes
    extractor = NodeGNN(*widths, **a.shape(), generator=generator, conv=GCNConv)
    branches = Branches(
        *widths,
        width=int(a.options["width"]),
        hops=int(a.options["hops"]),
        beta=float(a.options["beta"]),
        dropout=a.dropout,
        generator=generator,
    )
    return AdaFGLPredictor(extractor, branches)


def _outputs(
    model: AdaFGLPredictor, data: NodeData, options: Mapping[str, Any]
) -> Tensor:
    """Read the graph as it is corrected by what the extractor says of its own nodes."""
    graph, share = data.whole, float(model.share)
    logits: Tensor = model.extractor(graph, None)
    if share >= 0:
        known = torch.softmax(logits, 1)
        read = correct(
            graph,
            known,
            alpha=float(options["alpha"]),
            least=float(options["link-cosine"]),
            hops=int(options["hops"]),
        )
        logits = as_logits(fused(model.branches(read, None), known, share))
    return logits[held_out(data)]


FORMS = {"adafgl": Form(_make, NodeData, _outputs)}
