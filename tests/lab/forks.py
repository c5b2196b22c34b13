"""Child processes, forked from a server that has imported what runs import."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

# What takes seconds, and draws, opens and starts nothing when it is imported.
_PRELOAD = (
    "clients.tasks.graph_classifier",
    "cryptography.hazmat.primitives.ciphers.aead",
    "dp_accounting",
    "matplotlib.pyplot",
    "networkx",
    "rdkit.Chem",
    "simulations.inline",
    "sklearn.linear_model",
    "sklearn.manifold",
    "torch_geometric.datasets.graph_generator",
)


def warm_context(*modules: str) -> ForkServerContext:
    """Return the context of such children; the server imports ``modules`` as well."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules, *_PRELOAD])
    return context
