"""Models on the test sets of all clients: where that is possible (``evaluate-on``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .data import GraphPartition
from .errors import ConfigError
from .resolve import Resolved
from .wire import Parcel

if TYPE_CHECKING:
    from clients.base import GraphClient
    from clients.graphs.batching import ClientData


def score_elsewhere(
    resolved: Resolved,
    client: GraphClient[Any],
    reply: Parcel,
    *,
    load: Callable[[int], ClientData],
    is_own: bool,
) -> Parcel:
    """Add the score of the last model on all clients' test sets, if the run wants it.

    Of a model that all clients have, the server knows it from their own scores.

    Parameters
    ----------
    resolved : Resolved
    client : GraphClient
        Right after the closing evaluation.
    reply : Parcel
        Its answer.
    load : callable
        Loads the data of a client.
    is_own : bool
        An operator configured this node, which has no other clients' data.

    Raises
    ------
    ConfigError
        As :func:`check_elsewhere`.
    """
    partition = client.data.partition
    if is_own:
        check_elsewhere(resolved, partition)
    graphs = partition.graphs
    if not scores_elsewhere(resolved, graphs.num_features, graphs.num_classes):
        return reply
    from clients.elsewhere import score_on_all

    found = score_on_all(client, map(load, range(resolved.settings.num_clients)))
    return replace(reply, metrics={**reply.metrics, **found.metrics})


def scores_elsewhere(resolved: Resolved, num_features: int, num_classes: int) -> bool:
    """Whether clients score their models on the test sets of all after the last round.

    If all have one whole model, the mean of their own scores says the same.
    """
    if resolved.settings.evaluate_on == "own":
        return False
    from clients.base import private_names  # here: it takes a second

    method = resolved.method
    spec = resolved.spec(num_features=num_features, num_classes=num_classes)
    return not method.strategy.ONE_MODEL or bool(private_names(method.client, spec))


def check_elsewhere(resolved: Resolved, partition: GraphPartition) -> None:
    """Refuse, at a site, to evaluate models of single clients or clusters elsewhere.

    Raises
    ------
    ConfigError
    """
    settings, graphs = resolved.settings, partition.graphs
    if not scores_elsewhere(resolved, graphs.num_features, graphs.num_classes):
        return
    raise ConfigError(
        f"evaluate-on must be 'own' at sites for method {settings.method!r} with"
        f" shared-group {settings.shared_group!r}, got 'all': models of single clients"
        " or clusters, or the clients' test data, would have to travel to other sites;"
        " set it to 'own', or use a method with one common model and shared-group 'all'"
    )
