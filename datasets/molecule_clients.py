"""The molecules of one client, with their split."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.data import GraphPartition, IntArray

from . import graph_partitions, splits
from .cache import label_checksum
from .cuts import Whole, cut_once
from .encode import share_of
from .moleculenet import load_moleculenet
from .smiles_csv import client_file, load_client_file


def skewed_client(name: str, settings: RunSettings, client_id: int) -> GraphPartition:
    """Client of partition "quantity-skew" of a MoleculeNet set.

    Validation and test graphs are split off the whole set, and every client has them
    all; the others are shared out by :func:`graph_partitions.quantity_skew`.

    Source
    ------
    FedGraphNN's protocol, as used by FGCL and SpreadGNN.
    """
    molecules = load_moleculenet(
        name, data_dir=settings.data_dir, cache_dir=settings.cache_dir
    )
    labels = Whole(label_checksum(molecules.y, molecules.node_ptr), molecules.y)
    clients, val, test = _skewed(labels, settings)
    own = clients[client_id]
    rows = np.sort(np.concatenate([own, val, test]))
    return GraphPartition(
        client_id=client_id,
        graphs=molecules.take(rows, settings.features),
        graph_ids=np.asarray(molecules.row)[rows],  # whatever RDKit accepts
        train=np.searchsorted(rows, own),
        val=np.searchsorted(rows, val),
        test=np.searchsorted(rows, test),
        tasks=tuple(molecules.tasks),
        shares_held_out=True,
        whole_sha256=labels.sha256,
    )


@cut_once
def _skewed(
    labels: Whole[NDArray[Any]], settings: RunSettings
) -> tuple[list[IntArray], IntArray, IntArray]:
    """Training rows of each client, then validation and test rows of all."""
    seed = settings.split_seed
    train, val, test = splits.split_client(
        np.arange(len(labels.content)),
        labels.content,
        seed=seed,
        held_out=settings.held_out,
    )
    own = graph_partitions.quantity_skew(
        train, settings.num_clients, seed=seed, alpha=settings.dirichlet_alpha
    )
    return own, val, test


def file_client(name: str, settings: RunSettings, client_id: int) -> GraphPartition:  # noqa: ARG001
    """Client of partition "files": the molecules of its own CSV file.

    The split depends on the split seed and the number of usable rows only, hence not
    on how a file is reached, nor on other clients.
    """
    molecules = load_client_file(settings, client_id)
    bad = len(molecules.bad_row)
    return splits.split_graphs(
        client_id,
        molecules.take(np.arange(len(molecules)), settings.features),
        np.array(molecules.row),
        settings,
        source=client_file(settings, client_id).name,
        tasks=tuple(molecules.tasks),
        left_out=share_of(bad, bad + len(molecules), "molecules"),
    )
