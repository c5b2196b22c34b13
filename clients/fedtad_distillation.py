"""Server side of FedTAD in torch: a generator of pseudo graphs, and distillation.

Zhu et al. 2024, arXiv:2404.14061; formulas of the authors' released code. The server
app hands :func:`distil` to the strategy, which computes without torch.

Pseudo features are made to look like what the clients' models were trained on. They
leave this module in no file and no message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize
from torch.optim import Adam, Optimizer
from typing_extensions import override

from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.seeding import derive_seed
from fedgraph_flwr.core.wire import NamedArrays, select, with_prefix
from fedgraph_flwr.methods.fedtad import (
    DECAY,
    HIDDEN,
    MODEL_STEPS,
    NEIGHBOURS,
    NODES,
    NOISE,
    RATE,
    FedTADParams,
)

from .base import GraphClient, start_of
from .graphs.ops import linear
from .graphs.whole_graph import DenseGraph
from .job import ModelSpec
from .models.node_gnn import NodeGNN
from .training import (
    as_in_a_run,
    optimizer_tensors,
    restore_optimizer,
    to_arrays,
)

_GENERATOR, _MODEL = "generator/", "model/"  # of what is kept


class Generator(nn.Module):
    """Features of pseudo nodes, from their classes and noise: tanh, then linear."""

    def __init__(
        self, num_features: int, num_classes: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        drawn = torch.randn(num_classes, num_classes, generator=generator)
        self.classes = nn.Parameter(drawn)
        widths = NOISE + num_classes, *HIDDEN, num_features
        self.layers = nn.ModuleList(linear(*w, generator) for w in pairwise(widths))

    @override
    def forward(self, labels: Tensor, z: Tensor) -> Tensor:
        """(num_nodes,), (num_nodes, NOISE) -> (num_nodes, num_features)."""
        h = torch.cat([self.classes[labels], z], 1)
        for layer in list(self.layers)[:-1]:
            h = torch.tanh(layer(h))
        return self.layers[-1](h)  # type: ignore[no-any-return]


def pseudo_labels(num_classes: int, num_nodes: int = NODES) -> Tensor:
    """As many nodes of each class, ascending; what is over is of the last class."""
    if num_classes > num_nodes:
        raise ConfigError(
            f"fedtad makes {num_nodes} pseudo nodes of at most as many classes, got"
            f" {num_classes}; take another method"
        )
    each = num_nodes // num_classes
    return (torch.arange(num_nodes) // each).clamp(max=num_classes - 1)


def pseudo_graph(x: Tensor, neighbours: int = NEIGHBOURS) -> DenseGraph:
    """Join each node to those of largest cosine, itself among them, in both ways.

    Edges carry no gradient to ``x``, (num_nodes, num_features).
    """
    unit = normalize(x.detach(), dim=1)
    near = (unit @ unit.t()).topk(neighbours, dim=1).indices
    chosen = torch.zeros_like(unit @ unit.t()).scatter_(1, near, 1.0)
    return DenseGraph(torch.maximum(chosen, chosen.t()).fill_diagonal_(0))


def weigh(shares: Tensor, labels: Tensor) -> Tensor:
    """Weights of nodes at each client, (n, num_nodes), of shares (n, C).

    Sums with them are sums over classes of shares times means over a class's nodes.
    """
    counts = torch.bincount(labels, minlength=shares.shape[1])
    return (shares / counts)[:, labels]


def semantic(taught: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy of clients' logits, (n, num_nodes, C), on the pseudo labels."""
    at = labels.expand(len(taught), -1).unsqueeze(2)
    losses = -log_softmax(taught, dim=2).gather(2, at).squeeze(2)
    return (weights * losses).sum()


def divergence(learned: Tensor, taught: Tensor, weights: Tensor) -> Tensor:
    """Distance (L1, mean over classes) of logits (num_nodes, C) from the clients'."""
    return (weights * (learned - taught).abs().mean(2)).sum()


def diversity(z: Tensor, x: Tensor) -> Tensor:
    """exp(-mean over pairs of nodes of noise apart times features apart), in (0, 1]."""
    noise = (z[:, None] - z).square().mean(2)
    return (-(noise * torch.cdist(x, x, p=1) / x.shape[1]).mean()).exp()


class Models(NamedTuple):
    """The averaged model, which learns, and the clients', ascending, which do not."""

    pupil: NodeGNN
    teachers: list[NodeGNN]

    def taught(self, x: Tensor, graph: DenseGraph) -> Tensor:
        """Logits of the teachers, without dropout, (n, num_nodes, C)."""
        return torch.stack([t.logits(x, graph) for t in self.teachers])


def generator_terms(
    models: Models, x: Tensor, z: Tensor, labels: Tensor, weights: Tensor
) -> dict[str, Tensor]:
    """Terms of the generator's loss; models are as in evaluation."""
    graph = pseudo_graph(x)
    taught = models.taught(x, graph)
    learned = models.pupil.logits(x, graph)
    return {
        "semantic": semantic(taught, labels, weights),
        "divergence": divergence(learned, taught.detach(), weights),
        "diversity": len(taught) * diversity(z, x),
    }


def distil(
    client: type[GraphClient[FedTADParams]],
    make_spec: Callable[..., ModelSpec[FedTADParams]],
    widths: Mapping[str, int],
    server_round: int,
    theta: NamedArrays,
    models: Sequence[NamedArrays],
    shares: NDArray[np.float64],
    kept: NamedArrays,
) -> tuple[NamedArrays, NamedArrays, dict[str, float]]:
    """Train the generator and the averaged model in turns.

    Parameters
    ----------
    client, make_spec : type, callable
        What builds a model, and from which widths.
    theta : dict of str to array
        The averaged model.
    models : sequence of dict of str to array
        The clients', ascending.
    shares : float64 array, shape (n, C)
        Phi-hat.
    kept : dict of str to array
        Generator and states of both optimisers after the last round; empty before the
        first. Moments of the model's outlast the averages in between.

    Returns
    -------
    theta, kept, terms
        The new ones; terms of the generator's last loss, and the norm of its features.
    """
    spec = make_spec(**widths)
    seed, params = spec.settings.seed, spec.params
    with as_in_a_run(spec.settings.torch_threads):
        draws = _stream(seed, server_round, "distil")
        pupil = _loaded(client, spec, theta)
        teachers = [_loaded(client, spec, m).requires_grad_(False) for m in models]
        both = Models(pupil, teachers)
        g = Generator(
            spec.num_features, spec.num_classes, _stream(seed, 0, "generator")
        )
        of_g, of_model = _go_on(g, _GENERATOR, kept), _go_on(pupil, _MODEL, kept)
        labels = pseudo_labels(spec.num_classes)
        weights = weigh(torch.from_numpy(shares).float(), labels)
        for _ in range(params.distillations):
            z = torch.randn(NODES, NOISE, generator=draws)
            pupil.requires_grad_(False)
            terms = generator_terms(both, g(labels, z), z, labels, weights)
            loss = params.semantic_weight * terms["semantic"] - terms["divergence"]
            _step(of_g, loss + terms["diversity"])
            pupil.requires_grad_(True)
            with torch.no_grad():
                x = g(labels, z)
                graph = pseudo_graph(x)
                taught = both.taught(x, graph)
            for _ in range(MODEL_STEPS):
                learned = pupil.logits(x, graph, draws)
                _step(of_model, divergence(learned, taught, weights))
        terms["norm of features"] = x.norm()
        trained = pupil.state_dict()
        keeps = {
            **with_prefix(_GENERATOR, g.state_dict() | optimizer_tensors(of_g)),
            **with_prefix(_MODEL, optimizer_tensors(of_model)),
        }
    told = {name: float(value.detach()) for name, value in terms.items()}
    return to_arrays({n: trained[n] for n in theta}), to_arrays(keeps), told


def _stream(seed: int, server_round: int, name: str) -> torch.Generator:
    derived = derive_seed(seed, "server", server_round, name)
    return torch.Generator().manual_seed(derived)


def _loaded(
    client: type[GraphClient[FedTADParams]],
    spec: ModelSpec[FedTADParams],
    arrays: NamedArrays,
) -> Any:
    model = start_of(client, spec).model
    model.load_state_dict({n: torch.from_numpy(np.array(a)) for n, a in arrays.items()})
    return model


def _go_on(module: nn.Module, name: str, kept: NamedArrays) -> Optimizer:
    """Make the optimiser of a module, and set both to what was kept of them."""
    optimizer = Adam(module.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    stored = {n: torch.from_numpy(np.array(a)) for n, a in select(name, kept).items()}
    module.load_state_dict(
        {n: t for n, t in stored.items() if n in module.state_dict()}, strict=False
    )
    restore_optimizer(optimizer, stored)
    return optimizer


def _step(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
