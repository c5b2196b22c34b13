"""The subgraph of one client, with its train, validation and test nodes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphPartition, GraphSet, IntArray
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.seeding import derive_seed, numpy_rng
from fedgraph_flwr.core.tasks import OF_EDGES

from . import synthetic
from .cache import Whole, label_checksum
from .partitioners import partition_nodes
from .public.natural import natural_graphs
from .public.node_graphs import load_node_graph
from .public.transfers import TRANSFERS, given_tests, load_transfers
from .splits import TEST, TRAIN, VAL, check_is_drawn, fold_roles, with_roles
from .tabular.encode import NO_ROLE


def node_client(name: str, settings: RunSettings, client_id: int) -> GraphPartition:
    """Subgraph of one client of a graph whose nodes are classified.

    Roles of nodes are drawn on the whole graph before it is cut, so that a node of
    several clients has the same role at each.

    Source
    ------
    FedGKD, Sec. 5.1 and B.1, on the protocol of FED-PUB's code.
    """
    places = {"data_dir": settings.data_dir, "cache_dir": settings.cache_dir}
    tests = np.zeros(0, np.int64)
    if name in TRANSFERS:
        whole, tests = load_transfers(name, **places), given_tests(name, **places)
    else:
        component = settings.component
        whole = load_node_graph(name, settings.features, component, **places)
    ids = cut_graph(
        Whole(f"{whole.name} {whole.raw_sha256}", whole),
        settings.partition,
        settings.num_clients,
        settings.split_seed,
        settings.dirichlet_alpha,
    )[client_id]
    roles = np.full(whole.num_nodes, NO_ROLE)
    drawn = np.setdiff1d(np.flatnonzero(whole.y >= 0), tests)
    if settings.split == "classes":  # of this client
        seed = derive_seed(settings.split_seed, name, client_id)
        roles[ids] = roles_by_class(whole.y[ids], settings, seed)
    elif settings.task not in OF_EDGES:  # whose roles are drawn of a client's edges
        roles[drawn] = draw_roles(len(drawn), settings, settings.split_seed)
    if len(tests):  # the publisher's; what is drawn to test trains
        check_is_drawn(settings, f"nodes of {name}")
        roles[drawn] = np.where(roles[drawn] == TEST, TRAIN, roles[drawn])
        roles[tests] = TEST
    sha256, graph = label_checksum(whole.y, whole.node_ptr), whole.induced(ids)
    return with_roles(client_id, graph, ids, roles[ids], whole_sha256=sha256)


def natural_node_client(settings: RunSettings, client_id: int) -> GraphPartition:
    """Whole graph of one place, whose roles are drawn with as many of each class."""
    graph = natural_graphs(settings, client_id)
    seed = derive_seed(settings.split_seed, settings.dataset, client_id)
    roles = draw_roles(graph.num_nodes, settings, seed, y=graph.y)
    return with_roles(client_id, graph, np.arange(graph.num_nodes), roles)


def planted_client(settings: RunSettings, client_id: int) -> GraphPartition:
    """Graph of one client of data set "planted"; its roles are drawn on its own."""
    graph = synthetic.generate_planted(client_id, settings)
    seed = derive_seed(settings.split_seed, "planted", client_id)
    roles = draw_roles(graph.num_nodes, settings, seed)
    ids = client_id * settings.planted_nodes + np.arange(graph.num_nodes)
    group = synthetic.client_group(client_id)
    return with_roles(client_id, graph, ids, roles, group=group)


def draw_roles(
    num_nodes: int,
    settings: RunSettings,
    seed: int,
    *,
    what: str = "nodes",
    y: IntArray | None = None,
) -> IntArray:
    """Role of each node: ``TRAIN``, ``VAL`` or ``TEST``, shape (num_nodes,).

    Of a random permutation the first round((1 - held_out) N) nodes train, the next
    round(held_out N / 2) test, the rest validate. With classes ``y`` as many nodes have
    each role, but of each class its share; of a class with three nodes or more one has
    each, where counts allow. An error calls the nodes ``what``. With ``folds`` it is
    :func:`~datasets.splits.fold_roles` that gives roles.

    Raises
    ------
    DataError
        There are too few nodes to train, validate and test.
    """
    if settings.folds > 1:
        return fold_roles(num_nodes, settings, seed, what, y)
    held_out = settings.held_out
    num_train = round((1 - held_out) * num_nodes)
    num_test = round(held_out / 2 * num_nodes)
    if num_train < 1 or num_test < 1 or num_train + num_test >= num_nodes:
        raise DataError(
            f"{num_nodes} {what} with held-out {held_out:g} leave {num_train} to train,"
            f" {num_test} to test and {num_nodes - num_train - num_test} to validate;"
            " at least one each is needed: change held-out, or take or label more"
        )
    order = numpy_rng(seed, "nodes", "roles").permutation(num_nodes)
    roles = np.full(num_nodes, VAL)
    if y is None:
        roles[order[:num_train]] = TRAIN
        roles[order[num_train : num_train + num_test]] = TEST
        return roles
    members = [order[y[order] == k] for k in np.unique(y)]
    for role, count in ((TEST, num_test), (VAL, num_nodes - num_train - num_test)):
        sizes = np.array([len(of_class) for of_class in members])
        shares = _shares(sizes, count, keep=2 if role == TEST else 1)
        for k, n in enumerate(shares):
            roles[members[k][:n]] = role
            members[k] = members[k][n:]
    for of_class in members:
        roles[of_class] = TRAIN
    return roles


def roles_by_class(y: IntArray, settings: RunSettings, seed: int) -> IntArray:
    """Role of each node of one client, drawn within each class.

    Of n nodes of a class the first floor((1 - held_out) n) of a permutation train,
    those up to floor((1 - held_out / 2) n) validate, the rest test: a class may have
    no training node.

    Source
    ------
    Protocol of FedTAD and OpenFGL.
    """
    rng, roles = numpy_rng(seed, "nodes", "roles"), np.full(len(y), NO_ROLE)
    shares = 1 - settings.held_out, 1 - settings.held_out / 2
    for label in np.unique(y[y >= 0]):
        members = rng.permutation(np.flatnonzero(y == label))
        ends = [int(len(members) * share + 1e-9) for share in shares]
        for role, part in zip((TRAIN, VAL, TEST), np.split(members, ends), strict=True):
            roles[part] = role
    return roles


def _shares(sizes: IntArray, count: int, *, keep: int) -> IntArray:
    """Share ``count`` out by sizes; each has one if it then keeps as many as ``keep``.

    Beside that, parts lie as near to their shares as whole numbers allow.
    """
    ideal = sizes * count / sizes.sum()
    most = np.maximum(sizes - keep, 0)
    least = np.minimum(1, most)
    found: IntArray = np.clip(np.floor(ideal).astype(np.int64), least, most)
    while (left := count - int(found.sum())) > 0:
        room = found < (most if (found < most).any() else sizes)
        found[np.argmax(np.where(room, ideal - found, -np.inf))] += 1
    for _ in range(-left):
        gives = found > (least if (found > least).any() else 0)
        found[np.argmax(np.where(gives, found - sizes / (sizes.sum() + 1), -1))] -= 1
    return found


@lru_cache(maxsize=2)
def cut_graph(
    whole: Whole[GraphSet], kind: str, num_clients: int, seed: int, alpha: float
) -> list[IntArray]:
    """Cut a graph, whose features do not matter, into the nodes of each client."""
    return partition_nodes(kind, whole.content, num_clients, seed=seed, alpha=alpha)
