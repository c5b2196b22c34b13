"""A client's graphs as a private run sees them, and what it has spent for that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import GraphPartition, GraphSet, IntArray, pointer
from fedgraph_flwr.core.errors import ConfigError, PrivacyBudgetError, WireError
from fedgraph_flwr.core.privacy_settings import (
    EDGE,
    EDGE_SHARED,
    EDGE_TRAIN,
    GRAPH_EPSILON,
    IN_SUMS,
    METRIC,
    OF_SITE,
    OVER_RUNS,
    SECRET,
    PrivacySettings,
)

from .accounts import ROUNDING, Budgets, Ledger
from .gaussian import (
    epsilon_of,
    epsilon_of_steps,
    privatise_update,
    release_name,
)
from .laplace import GraphAdjacency, Triangles
from .noisy_views import NoisyViews, site_secret
from .stream import Noise, noise_stream

_STEPS = 1000  # of rounding, at least, to a standard deviation of shared noise


@dataclass(frozen=True, kw_only=True)
class Release:
    """A noisy update as it was drawn, to be checked before it leaves the site."""

    update: list[NDArray[Any]]
    clip: float
    noise: float
    in_sums: float  # noise, with that of the sum's other members


@dataclass(frozen=True, kw_only=True)
class PrivateSite:
    """Ledger and noise of one client in one run.

    Parameters
    ----------
    folder : path
        ``<state-dir>/<experiment>/client-<id>``, on the client's disk.
    seed : int
        Run seed.
    is_secret : bool
        Noise also depends on a secret of the site. False in simulation, which must be
        repeatable, and protects nothing from one who knows the seed.
    limits : Budgets
        Of the site over all runs, whatever a run allows.
    share : float
        Part of ``update-noise`` that this client adds; others of its sum add theirs.
    sum_name : str
        Of the sum, if noise is shared: all members draw anew for another one.
    released : list of Release
        Noisy updates drawn so far, by this object.
    """

    privacy: PrivacySettings
    folder: Path
    seed: int
    is_secret: bool
    limits: Budgets = field(default_factory=Budgets)
    share: float = 1.0
    sum_name: str = ""
    released: list[Release] = field(default_factory=list, compare=False)

    def ledger(self, partition: GraphPartition) -> Ledger:
        """Account of the client, and of its graphs over all runs."""
        privacy = self.privacy
        edge = privacy.budget_max or math.inf
        return Ledger(
            self.folder,
            data=partition.graphs.name,
            rows=partition.graph_ids,
            source=partition.source,
            budgets=replace(
                self.limits,
                edge=edge,
                update=privacy.update_budget_max or math.inf,
                graph=privacy.graph_budget_max or math.inf,
                lifetime=edge if privacy.budget_scope == "lifetime" else math.inf,
                both=privacy.both,
            ),
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
        """Metrics that say what the client has spent; empty before the first charge.

        Of edges also what its site has: in this run and in all, by whichever clients.
        Validation and test graphs that clients of other sites hold too are counted by
        client, for the server to add up.
        """
        ledger = self.ledger(partition)
        account = ledger.read()
        found: dict[str, float] = {}
        if account.num_draws:
            found[f"{METRIC}edge-draws"] = account.num_draws
            parts = {EDGE: np.arange(len(account.edge))}
            if partition.shares_held_out:
                parts |= {EDGE_TRAIN: partition.train, EDGE_SHARED: partition.held_out}
            totals = ledger.totals(*parts.values())
            for (name, graphs), total in zip(parts.items(), totals, strict=True):
                spent = float(account.edge[graphs].max(initial=0.0))
                found[f"{METRIC}{name}"] = spent
                if name == EDGE_SHARED:
                    found[f"{METRIC}{name}{OVER_RUNS}"] = total.own
                    continue
                found[f"{METRIC}{name}{OF_SITE}"] = total.in_run
                found[f"{METRIC}{name}{OVER_RUNS}"] = total.over_runs
        if account.updates:
            found[f"{METRIC}update-epsilon"], found[f"{METRIC}update-delta"] = (
                account.client
            )
            if self.share < 1:
                sent, privacy = sum(account.updates.values()), self.privacy
                in_sums = epsilon_of({privacy.update_noise: sent}, privacy.update_delta)
                found[f"{METRIC}{IN_SUMS}"] = in_sums
        if account.steps:
            delta = self.privacy.update_delta
            found[f"{METRIC}{GRAPH_EPSILON}"] = epsilon_of_steps(account.steps, delta)
            over_runs = epsilon_of_steps(account.all_steps, delta)
            found[f"{METRIC}{GRAPH_EPSILON}{OVER_RUNS}"] = over_runs
            found[f"{METRIC}graph-delta"] = delta
        if found:
            found[f"{METRIC}{SECRET}"] = float(self.is_secret)
        return found

    def check_known_spending(
        self,
        known: Mapping[str, float],
        partition: GraphPartition,
        *,
        last_round: int,
        sends_updates: bool = True,
    ) -> None:
        """Refuse to go on if this disk records less than the client once reported.

        To be called before anything is drawn: a ledger that was lost and has been
        charged anew may say the same.

        Parameters
        ----------
        known : mapping
            What the client last told the server, as :meth:`spent` without the prefix.
        last_round : int
            The last round whose train message the client answered; 0 for none.
        sends_updates : bool
            The client's method sends something that noise on updates is for.

        Raises
        ------
        PrivacyBudgetError
            The ledger is gone, or is an older copy.
        """
        own = self.spent(partition)
        draws = self.privacy.edge_epsilon > 0 and len(partition.train) > 0
        trains = self.privacy.graph_clip > 0 and len(partition.train) > 0
        updates = self.privacy.update_clip > 0 and sends_updates
        must_have = draws or updates or trains
        is_gone = last_round >= 1 and must_have and not own
        less = [
            f"{name} {value:.6g}, now {own.get(METRIC + name, 0.0):.6g}"
            for name, value in sorted(known.items())
            if name
            not in (SECRET, "update-delta", "graph-delta")  # which may become less
            and own.get(METRIC + name, 0.0) < value * (1 - ROUNDING)
        ]
        if not is_gone and not less:
            return
        raise PrivacyBudgetError(
            f"client {partition.client_id} has replied to round {last_round}"
            f" and told the server what it had spent: {', '.join(less) or 'nothing'};"
            f" the ledger {self.ledger(partition).path} says"
            f" {'less' if own else 'nothing'}. What was released is unknown"
            " here, so nothing more is: restore the whole state folder from where it"
            " was, or start a new experiment and count both"
        )

    def noisy_update(
        self,
        update: list[NDArray[Any]],
        partition: GraphPartition,
        *,
        server_round: int,
        inputs: Sequence[NDArray[Any]],
    ) -> list[NDArray[Any]]:
        """Charge the ledger, then clip the update and add noise.

        ``inputs`` are the tensors that it was computed from, received and stored.
        """
        clip_norm, multiplier = self.privacy.update_clip, self._noise("update")
        release, rng = self._release("update", update, partition, server_round, inputs)
        # Before it is charged: an update that cannot be clipped is not sent.
        noisy = privatise_update(
            update,
            clip_norm=clip_norm,
            noise_multiplier=multiplier,
            rng=rng,
        )
        self.ledger(partition).charge_update(
            multiplier,
            delta=self.privacy.update_delta,
            epsilon_of=epsilon_of,
            release=release,
        )
        whole = self.privacy.update_noise
        drawn = Release(update=noisy, clip=clip_norm, noise=multiplier, in_sums=whole)
        self.released.append(drawn)
        return noisy

    def check_received(self, received: Sequence[NDArray[Any]]) -> None:
        """Refuse numbers beside which shared noise would be rounded away.

        What is sent is the sum of both, and the server chooses one of them.

        Raises
        ------
        WireError
        """
        grid = max((np.spacing(np.abs(a).max(initial=0)) for a in received), default=0)
        own = self.privacy.update_clip * self._noise("update")
        if self.share < 1 and not grid <= own / _STEPS:
            raise WireError(
                "the received model has numbers so large that noise of deviation"
                f" {own:g} would be rounded to steps of {grid:g}: refused, as members"
                " of a sum count on each other's noise; start from another model"
            )

    def _noise(self, kind: str) -> float:
        if kind == "update":
            return self.privacy.update_noise * self.share
        return self.privacy.graph_noise

    def noisy_steps(
        self,
        partition: GraphPartition,
        *,
        server_round: int,
        inputs: Sequence[NDArray[Any]],
        q: float,
        times: int,
    ) -> Noise:
        """Charge the steps of a round, and return the stream of their draws.

        ``inputs`` are the tensors that the round begins with, received and stored.
        """
        about, privacy = [np.array([q, times])], self.privacy
        release, rng = self._release("graph", about, partition, server_round, inputs)
        self.ledger(partition).charge_steps(
            q, privacy.graph_noise, times, delta=privacy.update_delta, release=release
        )
        return rng

    def _release(
        self,
        kind: str,
        content: Sequence[NDArray[Any]],
        partition: GraphPartition,
        server_round: int,
        inputs: Sequence[NDArray[Any]],
    ) -> tuple[str, Noise]:
        """Name what is released by all that makes it; and the stream of its noise."""
        secret = self._secret()
        release = release_name(
            content,
            server_round=server_round,
            inputs=inputs,
            clip_norm=getattr(self.privacy, f"{kind}_clip"),
            noise_multiplier=self._noise(kind),
            secret=secret + self.sum_name,
        )
        path = partition.client_id, f"{kind}-noise", release
        return release, noise_stream(secret, self.seed, *path)


def check_features(graphs: GraphSet, privacy: PrivacySettings) -> None:
    """Refuse noise on edges if something else tells them, or they carry more.

    Features of nodes may be their degrees, whatever the setting is called: data sets
    without node labels have degrees instead. No noise here covers direction, features,
    weights or times of edges.

    Raises
    ------
    ConfigError
    """
    if privacy.edge_epsilon == 0:
        return
    if graphs.beside:
        raise ConfigError(
            f"{graphs.name} has {' and '.join(graphs.beside)}, which noise on edges"
            f" (privacy.edge-epsilon {privacy.edge_epsilon:g}) does not cover; set it"
            " to 0, or read edges without them"
        )
    if privacy.keep_edge_features or not _degrees(graphs):
        return
    raise ConfigError(
        f"node features of {graphs.name} are the degrees of its nodes, or one of them"
        " is; they are functions of the edges that privacy.edge-epsilon is to protect."
        " Choose other features, or set privacy.keep-edge-features to true and report"
        " that only the adjacency is protected"
    )


def _degrees(graphs: GraphSet) -> bool:
    """Whether the features, or a column of them, are the degrees.

    One-hot degrees have the last column for all larger ones. The first may stand for
    another degree than 0, as where labels of nodes are degrees and no node has none. A
    column may be shifted and scaled, as a schema does with numbers.
    """
    degrees, largest = graphs.degrees(), graphs.num_features - 1
    low, high = int(degrees.argmin()), int(degrees.argmax())
    is_flat = degrees[low] == degrees[high]
    ids = graphs.x if graphs.x.ndim == 1 else graphs.x.argmax(axis=1)
    first = 0 if is_flat else degrees[low] - int(ids[low])
    one_hot = np.minimum(degrees - first, largest)
    if graphs.x.ndim == 1:
        return largest > 0 and np.array_equal(ids, one_hot)
    if largest > 0 and np.array_equal(graphs.x, np.eye(largest + 1)[one_hot]):
        return True
    if is_flat:
        return False
    share = (degrees - degrees[low]) / (degrees[high] - degrees[low])
    x = graphs.x.astype(np.float64)
    step = x[high] - x[low]
    on_line = np.isclose(x, x[low] + np.outer(share, step)).all(axis=0)
    return bool((on_line & (step != 0)).any())


def check_drawn(partition: GraphPartition, site: PrivateSite) -> None:
    """Refuse noisy graphs that a process has kept if their ledger is gone.

    Raises
    ------
    DataError
    """
    everything = np.arange(len(partition.graphs))
    site.ledger(partition).check_drawn(everything, site.privacy.edge_epsilon)


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
    edges = [np.stack(np.nonzero(view.matrix(g))) for g in range(len(view))]
    return replace(
        graphs,
        edge_index=np.concatenate(edges, axis=1).astype(np.int32),
        edge_ptr=pointer([each.shape[1] for each in edges]),
        is_undirected=True,
    )
