"""Server side of FedTAD in torch: a generator of pseudo graphs, and distillation.

Zhu et al. 2024, arXiv:2404.14061; formulas and constants of the authors' released code.
The server app hands :func:`distil` to the strategy, which computes without torch.
Pseudo features look like what the clients' models were trained on: they leave this
module in no file and no message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

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

from .base import start_of
from .graphs.ops import linear
from .graphs.whole_graph import DenseGraph
from .models.node_gnn import NodeGNN
from .training import as_in_a_run, optimizer_tensors, restore_optimizer, to_arrays

NODES, NOISE = 100, 32  # of a pseudo graph; width of what its features are made from
NEIGHBOURS = 5  # of a pseudo node, itself among them
HIDDEN = 64, 128, 256  # widths of the generator
MODEL_STEPS = 5  # in which the model learns from one pseudo graph
RATE, DECAY = 1e-3, 5e-4  # of both optimisers
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
        layers = [linear(*w, generator) for w in pairwise(widths)]
        steps = [step for layer in layers for step in (layer, nn.Tanh())]
        self.steps = nn.Sequential(*steps[:-1])

    @override
    def forward(self, labels: Tensor, z: Tensor) -> Tensor:
        """(num_nodes,), (num_nodes, NOISE) -> (num_nodes, num_features)."""
        return self.steps(torch.cat([self.classes[labels], z], 1))  # type: ignore[no-any-return]


def pseudo_labels(num_classes: int, num_nodes: int = NODES) -> Tensor:
    """As many nodes of each class, ascending; what is over is of the last class."""
    if num_classes > num_nodes:
        words = f"fedtad takes at most {num_nodes} classes, got {num_classes}"
        raise ConfigError(f"{words}; take another method")
    each = num_nodes // num_classes
    return (torch.arange(num_nodes) // each).clamp(max=num_classes - 1)


def pseudo_graph(x: Tensor, neighbours: int = NEIGHBOURS) -> DenseGraph:
    """Join each node to those of largest cosine, itself among them, in both ways.

    Edges carry no gradient to ``x``, (num_nodes, num_features).
    """
    unit = normalize(x.detach(), dim=1)
    cosines = unit @ unit.t()
    near = cosines.topk(neighbours, dim=1).indices
    chosen = torch.zeros_like(cosines).scatter_(1, near, 1.0)
    return DenseGraph(torch.maximum(chosen, chosen.t()).fill_diagonal_(0))


def weigh(shares: Tensor, labels: Tensor) -> Tensor:
    """Weigh nodes, (n, num_nodes): sums are those of shares, (n, C), times means."""
    return (shares / torch.bincount(labels, minlength=shares.shape[1]))[:, labels]


def divergence(learned: Tensor, taught: Tensor, weights: Tensor) -> Tensor:
    """Distance (L1, mean over classes) of logits (num_nodes, C) from the clients'."""
    return (weights * (learned - taught).abs().mean(2)).sum()


def diversity(z: Tensor, x: Tensor) -> Tensor:
    """exp(-mean over pairs of nodes of noise apart times features apart), in (0, 1]."""
    noise = (z[:, None] - z).square().mean(2)
    return (-(noise * torch.cdist(x, x, p=1) / x.shape[1]).mean()).exp()


def all_logits(models: Sequence[NodeGNN], x: Tensor, graph: DenseGraph) -> Tensor:
    """Logits of several models, without dropout, (num_models, num_nodes, C)."""
    return torch.stack([model.logits(x, graph) for model in models])


def generator_terms(
    models: Sequence[NodeGNN], x: Tensor, z: Tensor, labels: Tensor, weights: Tensor
) -> dict[str, Tensor]:
    """Terms of the generator's loss; the first model is the averaged one."""
    learned, *taught = all_logits(models, x, pseudo_graph(x))
    clients = torch.stack(taught)
    at = labels.expand(len(clients), -1).unsqueeze(2)
    entropies = -log_softmax(clients, dim=2).gather(2, at).squeeze(2)
    return {
        "semantic": (weights * entropies).sum(),
        "divergence": divergence(learned, clients.detach(), weights),
        "diversity": len(clients) * diversity(z, x),
    }


def distil(
    client: Any,
    make_spec: Any,
    widths: Mapping[str, int],
    server_round: int,
    models: Sequence[NamedArrays],
    shares: NDArray[np.float64],
    kept: NamedArrays,
) -> tuple[NamedArrays, NamedArrays, dict[str, float]]:
    """Train a generator, and the averaged model on what it makes, in turns.

    Parameters
    ----------
    client, make_spec : type, callable
        What builds a model, and from which widths.
    models : sequence of dict of str to array
        The averaged one, then the clients', ascending.
    shares : float64 array, shape (n, C)
        Phi-hat.
    kept : dict of str to array
        What the round before returned; empty before the first.

    Returns
    -------
    The averaged model as it has learned; generator and states of both optimisers, to be
    kept; to be logged, terms of the generator's last loss and the norm of its features.
    """
    spec = make_spec(**widths)
    with as_in_a_run(spec.settings.torch_threads):
        draws, init = (
            torch.Generator().manual_seed(derive_seed(spec.settings.seed, *path))
            for path in (("server", server_round, "distil"), ("server", "generator"))
        )
        built: list[Any] = [start_of(client, spec).model for _ in models]
        model, *teachers = built
        for module, arrays in zip(built, models, strict=True):
            module.load_state_dict(_tensors(arrays))
            module.requires_grad_(False)
        g = Generator(spec.num_features, spec.num_classes, init)
        of_g, of_model = _go_on(g, _GENERATOR, kept), _go_on(model, _MODEL, kept)
        labels = pseudo_labels(spec.num_classes)
        weights = weigh(torch.from_numpy(shares).float(), labels)
        for _ in range(spec.params.distillations):
            z = torch.randn(NODES, NOISE, generator=draws)
            terms = generator_terms(built, g(labels, z), z, labels, weights)
            loss = spec.params.semantic_weight * terms["semantic"]
            _step(of_g, loss - terms["divergence"] + terms["diversity"])
            x = g(labels, z).detach()
            graph = pseudo_graph(x)
            taught = all_logits(teachers, x, graph)
            model.requires_grad_(True)
            for _ in range(MODEL_STEPS):
                learned = model.logits(x, graph, draws)
                _step(of_model, divergence(learned, taught, weights))
            model.requires_grad_(False)
        learned_arrays = to_arrays(model.state_dict())
        keeps = {
            **with_prefix(_GENERATOR, g.state_dict() | optimizer_tensors(of_g)),
            **with_prefix(_MODEL, optimizer_tensors(of_model)),
        }
    told = {n: float(t.detach()) for n, t in terms.items()} | {"norm": float(x.norm())}
    return {n: learned_arrays[n] for n in models[0]}, to_arrays(keeps), told


def _tensors(arrays: NamedArrays) -> dict[str, Tensor]:
    return {n: torch.from_numpy(np.array(a)) for n, a in arrays.items()}


def _go_on(module: nn.Module, name: str, kept: NamedArrays) -> Optimizer:
    """Make the optimiser of a module; set it, and a generator, to what was kept."""
    optimizer = Adam(module.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    stored = _tensors(select(name, kept))
    module.load_state_dict(
        {n: stored.get(n, t) for n, t in module.state_dict().items()}
    )
    restore_optimizer(optimizer, stored)
    return optimizer


def _step(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
