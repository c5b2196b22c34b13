"""Differential privacy as settings of a run, whatever its method.

Three independent steps. ``edge_epsilon`` protects single edges of a client's graphs:
the method sees noisy graphs only (``clients.privacy.laplace``). ``update_clip`` and
``update_noise`` protect everything a client trains on, by noise on the updates that it
sends (``clients.privacy.gaussian``), and of these alone. ``graph_clip`` and
``graph_noise`` protect one training graph, by noise on every gradient of it
(``clients.privacy.per_graph``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .config import RunSettings, Settings
from .errors import ConfigError
from .rules import choice, flag, integer, number
from .words import at_most

METRIC = "privacy/"  # prefix under which clients report what they have spent
EDGE = "edge-epsilon"  # largest of a client's graphs
UPDATE_EPSILON = "update-epsilon"
IN_SUMS = "update-epsilon-in-sums"
GRAPH_EPSILON = "graph-epsilon"
EDGE_TRAIN = "edge-epsilon-train"  # where validation and test graphs are shared,
EDGE_SHARED = "edge-epsilon-shared"  # of training graphs, and of these
OVER_RUNS = "-lifetime"  # ending of each of the three: in all runs together
OF_SITE = "-site"  # ending of the first two: of all clients with one state folder
SECRET = "secret"  # 1 if noise depends on a secret of the client's site, else 0
EDGE_POSTS = ("clamp01", "round", "relu", "abs-degree", "debiased")
NOISE_MODES = ("once", "per_round", "per_epoch")
UNPROTECTED = "labels, node features, numbers of nodes and graphs"
UNPROTECTED_GRAPHS = "validation and test graphs, numbers of graphs"
EXACT = "exact metrics, losses and counts"  # beside noisy updates
_ROUNDING = 1e-9  # of sums of the same epsilons in another order
# Each atom has blocks that depend on its bonds, even without the one that counts them.
_ADJACENCY_ONLY = ("degree", "atoms", "atoms-no-degree")
TELLS_EDGES = {
    "degree": "the degrees of nodes are functions of the edges; use 'labels'",
    "connectivity": "features are the correlations that edges are made of",
    "atoms": (
        "its degree block is a function of the edges; use 'atoms-no-degree', or"
        " 'atoms-strict', which also drops the other blocks that depend on bonds"
    ),
    "atoms+bonds": "noise does not cover what edges carry; use 'atoms-no-degree'",
}


@dataclass(frozen=True, kw_only=True)
class PrivacySettings(Settings):
    """Noise on edges, updates and gradients of graphs; all are off by default."""

    TABLE = "privacy"

    edge_epsilon: float = number(0.0, 0)
    """Epsilon of each noisy view of a graph's edges; 0: no noise."""
    edge_epsilon_of: str = choice("view", "view", "total")
    """`total`: epsilon of all views together; only with `noise-mode` `once`."""
    edge_post: str = choice("auto", *EDGE_POSTS, auto=True)
    """What noisy edges become. `auto`: `clamp01` for methods with edge weights, else
    `round`."""
    noise_mode: str = choice(NOISE_MODES[0], *NOISE_MODES)
    """How often noise is drawn. `once` keeps one draw; others pay for each."""
    budget_max: float = number(0.0, 0)
    """Largest total epsilon of a graph's edges. A draw beyond it is refused. 0: no
    limit."""
    budget_scope: str = choice("run", "run", "lifetime")
    """What `budget-max` limits: a client in this run, or a site in all."""
    update_clip: float = number(0.0, 0)
    """Largest L2 norm of an update, to which noise is added; 0: no noise."""
    update_noise: float = number(1.0, 0, low_open=True)
    """Standard deviation of that noise, in units of `update-clip`."""
    update_noise_shared: int = integer(0, 0, 254)
    """Above 0: a sum's members share `update-noise`, without counting on so many of
    them. 0: each adds it all."""
    update_delta: float = number(1e-5, 0, 1, low_open=True, high_open=True)
    """Delta at which epsilon of updates, and of graphs, is stated."""
    update_budget_max: float = number(0.0, 0)
    """Largest total epsilon of updates; 0: no limit."""
    graph_clip: float = number(0.0, 0)
    """Largest L2 norm of one training graph's gradient; 0: no noise on gradients."""
    graph_noise: float = number(1.0, 0.3)
    """Standard deviation of noise on a batch's summed gradients, in units of
    `graph-clip`."""
    graph_budget_max: float = number(0.0, 0)
    """Largest epsilon of a training graph in this run; 0: no limit."""
    both: bool = flag(False)
    """Allow several kinds of noise in one run."""
    keep_edge_features: bool = flag(False)
    """Allow features that tell edges, such as degrees. Only the adjacency is then
    protected."""

    @property
    def is_on(self) -> bool:
        """Whether anything is protected."""
        return self.edge_epsilon > 0 or self.hides_labels

    @property
    def hides_labels(self) -> bool:
        """Whether labels of training items must not leave by another way."""
        return self.update_clip > 0 or self.graph_clip > 0


def private_features(features: str, privacy: PrivacySettings) -> str:
    """Say what ``features = "auto"`` means, given the data set's usual features."""
    is_noisy = privacy.edge_epsilon > 0 and not privacy.keep_edge_features
    return "atoms-no-degree" if is_noisy and features == "atoms" else features


def check_privacy(
    privacy: PrivacySettings,
    settings: RunSettings,
    *,
    takes_weights: bool,
    takes_noise: bool = True,
) -> None:
    """Refuse settings that would not protect what they seem to.

    Parameters
    ----------
    takes_weights : bool
        The method takes noisy views as they are; others take graphs.
    takes_noise : bool
        The task can do with noise on edges at all.

    Raises
    ------
    ConfigError
    """
    kinds = ("edge_epsilon", "update_clip", "graph_clip")
    used = [privacy.key(kind) for kind in kinds if getattr(privacy, kind) > 0]
    if len(used) > 1 and not privacy.both:
        raise ConfigError(
            f"{' and '.join(used)} protect different things, and their epsilons do not"
            " add up; set all but one of them to 0, or privacy.both to true to have"
            " both, reported side by side"
        )
    if privacy.graph_clip > 0 and settings.class_weights != "none":
        raise ConfigError(
            "class-weights must be 'none' with privacy.graph-clip, got"
            f" {settings.class_weights!r}: they are exact functions of training labels;"
            " leave class-weights out of the run config"
        )
    if privacy.edge_epsilon == 0:
        return
    if not takes_noise:
        raise ConfigError(
            "privacy.edge-epsilon needs a value for every pair of nodes, too many in"
            f" the one graph of dataset {settings.dataset!r}; set it to 0 in the run"
            " config (privacy.update-clip protects updates)"
        )
    if not takes_weights and privacy.edge_post != "round":
        raise ConfigError(
            f"privacy.edge-post must be 'round' for method {settings.method!r}, which"
            f" takes graphs and no edge weights, got {privacy.edge_post!r}; leave it"
            " 'auto'"
        )
    if not takes_weights and privacy.noise_mode != "once":
        raise ConfigError(
            f"privacy.noise-mode must be 'once' for method {settings.method!r}, got"
            f" {privacy.noise_mode!r}; only methods that take edge weights draw again"
        )
    if privacy.edge_epsilon_of == "total" and privacy.noise_mode != "once":
        raise ConfigError(
            "privacy.edge-epsilon-of must be 'view' where privacy.noise-mode is"
            f" {privacy.noise_mode!r}: the total grows with every round of a run whose"
            " rounds are not known in advance; leave noise-mode 'once', or bound the"
            " total by privacy.budget-max"
        )
    if settings.split_noise_edges or settings.split_noise_features:
        raise ConfigError(
            "split-noise-edges and split-noise-features must be 0 in a run with"
            f" privacy.edge-epsilon, got {settings.split_noise_edges:g} and"
            f" {settings.split_noise_features:g}: what is rewired depends on every"
            " edge, so that one edge would change many of the pairs that get noise, and"
            " features that are degrees are not known as such once they are shuffled;"
            " set both to 0 in the run config"
        )
    why = TELLS_EDGES.get(settings.features)
    has_bonds = settings.features == "atoms+bonds"
    if why and (has_bonds or not privacy.keep_edge_features):
        keep = (
            "; or set privacy.keep-edge-features to true and report that only the"
            " adjacency is protected"
        )
        raise ConfigError(
            f"features {settings.features!r} undo privacy.edge-epsilon:"
            f" {why}{'' if has_bonds else keep}"
        )


def edge_totals(
    spent: Mapping[int, Mapping[str, float]],
) -> dict[str, dict[str, float]]:
    """Largest epsilon of an edge, by kind of graph; empty if no edge is protected.

    Of any "graph" of a site, or, where clients hold the same validation and test
    graphs, of a "training graph" of a site and of a "validation or test graph", which
    each client of every site charges. ``total`` is ``epsilon`` times ``clients``, which
    hold the graph at whatever sites; ``total_lifetime`` that of all runs. What other
    sites draw of the same graph is not known.
    """
    clients = [s for s in spent.values() if EDGE in s]

    def total(name: str, num_clients: int) -> dict[str, float]:
        epsilon = max(s.get(name + OF_SITE, s[name]) for s in clients)
        lifetime = max(s.get(name + OVER_RUNS, 0.0) for s in clients)
        return {
            "clients": num_clients,
            "epsilon": epsilon,
            "total": num_clients * epsilon,
            "total_lifetime": num_clients * lifetime,
        }

    if not clients:
        return {}
    if not any(EDGE_SHARED in s for s in clients):
        return {"graph": total(EDGE, 1)}
    train, shared = total(EDGE_TRAIN, 1), total(EDGE_SHARED, len(clients))
    # Earlier runs may have had more clients, or others: one site knows of its own. What
    # it says of any graph is of a shared one if that of training graphs is less.
    of_any = max(s.get(EDGE + OVER_RUNS, 0.0) for s in clients)
    is_first = of_any <= train["total_lifetime"] <= train["total"]
    if not is_first and of_any > shared["total_lifetime"] * (1 + _ROUNDING):
        shared["total_lifetime"] = of_any
    return {"training graph": train, "validation or test graph": shared}


def _describe_edges(graph: str, found: Mapping[str, float]) -> str:
    """Say in one line what was spent of each ``graph``."""
    is_shared = found["clients"] > 1
    each = f" ({found['clients']} clients x {at_most(found['epsilon'], 6)})"
    over_all = f" ({at_most(found['total_lifetime'], 6)} over all runs)"
    return (
        f"epsilon {at_most(found['total'], 6)}{each if is_shared else ''} in total"
        f" per {graph}{'' if is_shared else ' and site'}, at most"
        f"{over_all if found['total_lifetime'] > found['total'] else ''}"
    )


def describe(spent: Mapping[int, Mapping[str, float]], *, features: str = "") -> str:
    """Say in one line what clients have spent; "" if nothing is protected.

    ``features`` is the setting of that name: some say something of the edges.
    """
    edge = edge_totals(spent)
    update = [s for s in spent.values() if UPDATE_EPSILON in s]
    parts = []
    if edge:
        only = f" adjacency only, features {features!r} depend on edges;"
        totals = ", ".join(_describe_edges(*row) for row in edge.items())
        parts.append(
            f"edges: {totals};"
            f"{_by_client(EDGE, spent)}"
            f"{only if features in _ADJACENCY_ONLY else ''}"
            f" not protected: {UNPROTECTED}"
        )
    if update:
        worst = max(update, key=lambda s: s[UPDATE_EPSILON])
        summed = max(s.get(IN_SUMS, 0.0) for s in update)
        in_sums = (
            f", by its own noise; epsilon {at_most(summed)} in sums, against the server"
            " and as many of the others as privacy.update-noise-shared says"
            if summed
            else ""
        )
        parts.append(
            f"updates: ({at_most(worst[UPDATE_EPSILON])}, {worst['update-delta']:g})-DP"
            f" for a client's whole data, at most, of its updates alone{in_sums};"
            f"{_by_client(UPDATE_EPSILON, spent)}"
            f" the run as a whole is not private: {EXACT} leave in every round"
        )
    graph = [s for s in spent.values() if GRAPH_EPSILON in s]
    if graph:
        worst = max(graph, key=lambda s: s[GRAPH_EPSILON])
        over_all = max(s[GRAPH_EPSILON + OVER_RUNS] for s in graph)
        parts.append(
            f"graphs: ({at_most(worst[GRAPH_EPSILON])}, {worst['graph-delta']:g})-DP"
            f" for one training graph, at most ({at_most(over_all)} over all runs);"
            f"{_by_client(GRAPH_EPSILON, spent)} not protected: {UNPROTECTED_GRAPHS}"
        )
    if not parts:
        return ""
    noisy = [s for s in spent.values() if s]
    exposed = sum(not s.get(SECRET) for s in noisy)
    if exposed:
        parts.append(
            f"{exposed} of {len(noisy)} clients drew their noise from the run seed"
            " alone, as in simulation: whoever knows the seed can repeat it and take it"
            " off, so it protects nobody who does not keep the seed secret"
        )
    return "privacy of " + "; ".join(parts)


def _by_client(name: str, spent: Mapping[int, Mapping[str, float]]) -> str:
    """List epsilon of every client; "" if all have spent the same."""
    clients: dict[float, list[int]] = {}
    for client, own in sorted(spent.items()):
        clients.setdefault(float(at_most(own.get(name, 0.0))), []).append(client)
    if len(clients) < 2:
        return ""
    each = ", ".join(
        f"{epsilon:g} (client{'s' * (len(ids) > 1)} {', '.join(map(str, ids))})"
        for epsilon, ids in sorted(clients.items())
    )
    return f" by client: {each};"
