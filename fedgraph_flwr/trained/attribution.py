"""Integrated gradients: how much each input adds to an output of a trained model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.graphs.masked import graph_of, masking_layers, with_inputs
from clients.models.encoders import EdgeEncoder
from clients.training import as_in_a_run
from datasets import target_scales
from datasets.splits import TEST, with_roles

from ..core.data import GraphSet, IntArray
from ..core.errors import ConfigError, DataError
from .model import TrainedModel
from .model_folder import EMBEDDING

TOLERANCE = 0.01  # of the difference, or of a number that a model learns, if more
_FIRST, _LAST = 64, 4096  # steps


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What nodes and edges add to one output for one item.

    Parameters
    ----------
    output : str
        Its name.
    value, baseline : float
        Log-odds of a class, or of yes; or a number in units of the files. The baseline
        has the same nodes with features 0, and no message along any edge.
    gap : float
        ``value - baseline`` less the sum of all contributions.
    of_nodes, of_edge_features : float64 arrays
        A contribution for each feature of each node, or edge.
    of_edges : float64 array, shape (num_edges,)
    edges : int64 array, shape (2, num_edges)
        Of an undirected graph each edge once, for both directions.
    """

    output: str
    value: float
    baseline: float
    gap: float
    of_nodes: NDArray[np.float64]
    of_edges: NDArray[np.float64]
    of_edge_features: NDArray[np.float64]
    edges: IntArray


def explain(
    model: TrainedModel, graphs: GraphSet, item: int, output: str = ""
) -> Explanation:
    """Explain one output for one item: a graph, a node or a pair of nodes.

    Parameters
    ----------
    item : int
        Its row among the items of ``graphs``.
    output : str
        Of a class, the predicted one without a name; of several targets, a name.

    Raises
    ------
    ConfigError
        The model has no such output, or none that is a prediction.
    DataError
        As ``TrainedModel.outputs``.

    Source
    ------
    Sundararajan et al. 2017, arXiv:1703.01365, Eq. 1, by the midpoint rule. Steps
    double until contributions add up within ``TOLERANCE``, at most to 4096.
    """
    kind, names = model.about.kind, model.about.outputs
    if kind == EMBEDDING or (output and output not in names):
        raise ConfigError(
            f"output must be one of {', '.join(names)} of a model that predicts, got"
            f" {output or 'an embedding'!r}; name another, or take another model"
        )
    is_of_classes = kind in ("classes", "nodes", "edges")
    if not (output or is_of_classes or len(names) == 1):
        raise ConfigError(
            f"the model predicts {len(names)} targets; choose one of"
            f" {', '.join(names)} by --output"
        )
    if kind in ("classes", "binary", "regression"):
        graphs, item = graphs.take(np.array([item])), 0
    count = len(graphs.y)
    partition = with_roles(0, graphs, np.arange(count), np.full(count, TEST))
    settings, client, params = model.settings, model.client, model.spec.params
    client.check_graphs(graphs, settings)
    data = client.DATA.collate(partition, model.device)
    graph: Any = graph_of(data)
    x, attr = _dense(graph.x, graphs.num_features), graph.edge_attr
    if attr is not None:
        attr = _dense(attr, graphs.num_edge_features)
    ones = torch.ones(graph.edge_index.shape[1], device=x.device)
    chosen = [names.index(output) if output else 0]

    def outcome(share: float) -> tuple[Tensor, list[Tensor]]:
        inputs = [share * x, share * ones] + ([] if attr is None else [share * attr])
        inputs = [t.detach().requires_grad_() for t in inputs]
        made = with_inputs(data, inputs[0], (*inputs, None)[2], inputs[1])
        edges, mask = graph.edge_index, inputs[1]
        if isinstance(model.module, EdgeEncoder) and not graph.is_undirected:
            back = model.module.turned(graph)
            edges = torch.cat([edges, edges[:, back].flip(0)], 1)
            mask = torch.cat([mask, mask[back]])
        with masking_layers(model.module, edges, mask):
            row = client.predict(model.module, made, params)[item]
        rest = torch.arange(len(row), device=row.device) != chosen[0]
        is_odds = is_of_classes and len(row) > 1
        return row[chosen[0]] - (row[rest].logsumexp(0) if is_odds else 0), inputs

    with as_in_a_run(settings.torch_threads):
        if is_of_classes and not output:
            with torch.no_grad():
                chosen[0] = int(
                    client.predict(model.module, data, params)[item].argmax()
                )
        value, baseline = (float(outcome(share)[0].detach()) for share in (1.0, 0.0))
        steps, allowed = _FIRST, TOLERANCE * max(1.0, abs(value - baseline))
        while True:
            found = _integral(outcome, steps)
            parts = [
                g * t.double() for g, t in zip(found, [x, ones, attr], strict=False)
            ]
            gap = value - baseline - float(sum(p.sum() for p in parts))
            if abs(gap) <= allowed or steps >= _LAST:
                break
            steps *= 2
    if not np.isfinite(gap):
        raise DataError(
            f"model {model.name!r} predicts NaN or infinity on the way from no features"
            " to those of this item; train again with a lower learning rate"
        )
    scales = target_scales(settings, list(names)) if kind == "regression" else ()
    shift, unit = scales[chosen[0]] if scales else (0.0, 1.0)
    of_nodes, of_edges, *rest = [p.cpu().numpy() * unit for p in parts]
    ends = graph.edge_index.cpu().numpy()
    of_attr = rest[0] if rest else np.zeros((len(of_edges), 0))
    if graphs.is_undirected:
        ends, of_edges, of_attr = _once(ends, of_edges, of_attr)
    return Explanation(
        output=names[chosen[0]],
        value=value * unit + shift,
        baseline=baseline * unit + shift,
        gap=gap * unit,
        of_nodes=of_nodes,
        of_edges=of_edges,
        of_edge_features=of_attr,
        edges=ends,
    )


def _integral(outcome: Any, steps: int) -> list[Tensor]:
    """Mean gradient on the way from nothing to all inputs, in float64."""
    total: list[Any] = []
    for step in range(steps):
        out, inputs = outcome((step + 0.5) / steps)
        grads = torch.autograd.grad(out, inputs, allow_unused=True)
        some = [
            torch.zeros_like(t) if g is None else g
            for g, t in zip(grads, inputs, strict=True)
        ]
        total = [
            a + g.double()
            for a, g in zip(total or [0.0] * len(some), some, strict=True)
        ]
    return [t / steps for t in total]


def _dense(x: Tensor, width: int) -> Tensor:
    """Features as rows; a number of a column becomes a row with a 1."""
    return torch.nn.functional.one_hot(x, width).float() if x.dim() == 1 else x


def _once(edges: IntArray, *values: NDArray[Any]) -> tuple[Any, ...]:
    """Join both directions of each edge; values are added."""
    pairs, at = np.unique(np.sort(edges, axis=0), axis=1, return_inverse=True)
    sums = [np.zeros((pairs.shape[1], *v.shape[1:])) for v in values]
    for total, v in zip(sums, values, strict=True):
        np.add.at(total, at.reshape(-1), v)
    return pairs, *sums
