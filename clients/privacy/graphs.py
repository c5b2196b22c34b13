"""A client's graphs as a private run sees them, and what it has spent for that."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data import GraphPartition, GraphSet, IntArray, pointer
from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.privacy import (
    EDGE,
    EDGE_SHARED,
    EDGE_TRAIN,
    METRIC,
    OVER_RUNS,
    SECRET,
    PrivacySettings,
)

from .gaussian import epsilon_of, privatise_update, update_rng
from .laplace import GraphAdjacency, Triangles
from .ledger import Ledger
from .lifetime import FOLDER as LIFETIME
from .lifetime import Lifetime
from .views import NoisyViews, site_secret


@dataclass(frozen=True, kw_only=True)
class PrivateSite:
    """Where a client keeps its ledger and its noise.

    Parameters
    ----------
    privacy : PrivacySettings
    folder : path
        ``<state-dir>/<experiment>/client-<id>``, on the client's disk.
    seed : int
        Run seed; with ``is_secret`` noise also depends on a secret of the site.
    is_secret : bool
        False in simulation, which must be repeatable: noise then is a function of the
        run seed, and protects nothing from one who knows it.
    edge_budget : float
        Largest epsilon of a graph over all runs, whatever a run allows.
    """

    privacy: PrivacySettings
    folder: Path
    seed: int
    is_secret: bool
    edge_budget: float = math.inf

    def lifetime(self, partition: GraphPartition) -> Lifetime:
        """Record of all runs of the client."""
        state = self.folder.parent.parent
        return Lifetime(
            state / LIFETIME / self.folder.name,
            data=partition.graphs.name,
            rows=partition.graph_ids,
            budget=self.privacy.lifetime_budget,
            site_budget=self.edge_budget,
        )

    def ledger(self, partition: GraphPartition) -> Ledger:
        """Ledger of the client."""
        return Ledger(
            self.folder,
            num_graphs=len(partition.graphs),
            lifetime=self.lifetime(partition),
            dp_budget_max=self.privacy.edge_budget,
            update_budget_max=self.privacy.update_budget,
            allow=self.privacy.both,
        )

    def views(
        self,
        partition: GraphPartition,
        positions: IntArray,
        *,
        name: str,
        epsilons: tuple[float, ...],
        mode: str,
    ) -> NoisyViews:
        """Noisy views of some of the client's graphs."""
        graphs = partition.graphs
        return NoisyViews(
            GraphAdjacency(graphs),
            num_nodes=np.diff(graphs.node_ptr),
            positions=positions,
            name=name,
            epsilons=epsilons,
            post=self.privacy.edge_post,
            mode=mode,
            ledger=self.ledger(partition),
            folder=self.folder,
            seed=self.seed,
            client_id=partition.client_id,
            secret=self._secret(),
        )

    def _secret(self) -> str:
        return site_secret(self.folder) if self.is_secret else ""

    def spent(self, partition: GraphPartition) -> dict[str, float]:
        """Metrics that say what the client has spent; empty before the first charge."""
        account = self.ledger(partition).read()
        found: dict[str, float] = {}
        if account.num_draws:
            found[f"{METRIC}edge-draws"] = account.num_draws
            parts = {EDGE: np.arange(len(account.edge))}
            if partition.shares_held_out:
                parts |= {EDGE_TRAIN: partition.train, EDGE_SHARED: partition.held_out}
            lifetime = self.lifetime(partition)
            for name, graphs in parts.items():
                spent = float(account.edge[graphs].max(initial=0.0))
                found[f"{METRIC}{name}"] = spent
                found[f"{METRIC}{name}{OVER_RUNS}"] = lifetime.total(graphs)
        if account.updates:
            found[f"{METRIC}update-epsilon"], found[f"{METRIC}update-delta"] = (
                account.client
            )
        if found:
            found[f"{METRIC}{SECRET}"] = float(self.is_secret)
        return found

    def noisy_update(
        self, update: list[NDArray[Any]], partition: GraphPartition
    ) -> list[NDArray[Any]]:
        """Charge the ledger, then clip the update and add noise."""
        account = self.ledger(partition).charge_update(
            self.privacy.update_noise,
            delta=self.privacy.update_delta,
            epsilon_of=epsilon_of,
        )
        return privatise_update(
            update,
            clip_norm=self.privacy.update_clip,
            noise_multiplier=self.privacy.update_noise,
            rng=update_rng(
                account,
                seed=self.seed,
                client_id=partition.client_id,
                secret=self._secret(),
            ),
        )


def check_features(graphs: GraphSet, privacy: PrivacySettings) -> None:
    """Refuse noise on edges where the nodes' features are their degrees.

    Whatever the setting is called: data sets without node labels have degrees instead.

    Raises
    ------
    ConfigError
    """
    if privacy.edge_epsilon == 0 or privacy.keep_edge_features or not _degrees(graphs):
        return
    raise ConfigError(
        f"node features of {graphs.name} are the degrees of its nodes, functions of the"
        " edges that privacy.edge-epsilon is to protect; choose a data set with node"
        " labels, or set privacy.keep-edge-features to true and report that only the"
        " adjacency is protected"
    )


def _degrees(graphs: GraphSet) -> bool:
    """Whether the features are one-hot degrees, the last column for all larger ones."""
    if graphs.x.ndim != 1 or graphs.num_features < 2:
        return False
    largest = graphs.num_features - 1
    return np.array_equal(graphs.x, np.minimum(graphs.degrees(), largest))


def noisy_partition(partition: GraphPartition, site: PrivateSite) -> GraphPartition:
    """Replace every graph of a client by a noisy one, drawn once and kept.

    For methods that take graphs: pairs are rounded to edges or none, which is
    post-processing. Training and evaluation see the same noisy graphs.
    """
    views = site.views(
        partition,
        np.arange(len(partition.graphs)),
        name="all",
        epsilons=(site.privacy.edge_epsilon,),
        mode="once",
    )
    (view,) = views.views(0, 0)
    return replace(partition, graphs=rounded_graphs(partition.graphs, view))


def rounded_graphs(graphs: GraphSet, view: Triangles) -> GraphSet:
    """Graphs whose edges are the ones of ``view``, a view of them all of 0 and 1."""
    num_nodes = np.diff(graphs.node_ptr)
    edges, counts = [], []
    ptr = view.ptr
    for g, n in enumerate(num_nodes):
        u, v = np.triu_indices(n, 1)
        kept = view.values[ptr[g] : ptr[g + 1]] > 0
        u, v = u[kept], v[kept]
        source, target = np.concatenate([u, v]), np.concatenate([v, u])
        order = np.lexsort((target, source))
        edges.append(np.stack([source[order], target[order]]).astype(np.int32))
        counts.append(2 * len(u))
    return replace(
        graphs,
        edge_index=np.concatenate(edges, axis=1),
        edge_ptr=pointer(counts),
        is_undirected=True,
    )
