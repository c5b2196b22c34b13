"""Models on the test sets of all clients: where that is possible (``evaluate-on``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from logging import WARNING
from typing import TYPE_CHECKING, Any

from flwr.common.logger import log

from .data import GraphPartition, hash_federation
from .errors import ConfigError, DataError
from .resolve import Resolved
from .wire import Parcel, Scalar

if TYPE_CHECKING:
    from clients.base import GraphClient
    from clients.graphs.batching import ClientData


def score_elsewhere(
    resolved: Resolved,
    client: GraphClient[Any],
    reply: Parcel,
    told: Scalar | None,
    *,
    load: Callable[[int], ClientData],
    is_own: bool,
) -> Parcel:
    """Add the score of the last model on all clients' test sets, if the run wants it.

    Of a model that all clients have, the server knows it from their own scores. There
    is none if the data of a client cannot be loaded, or have changed: that is no
    failure of the others.

    Parameters
    ----------
    resolved : Resolved
    client : GraphClient
        Right after the closing evaluation.
    reply : Parcel
        Its answer.
    told : str, optional
        Hash of all clients' identities, from the server.
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

    identities: dict[int, str] = {}

    def checked(client_id: int) -> ClientData:
        data = load(client_id)
        known = "" if resolved.privacy.is_on else data.partition.data_hash
        identities[client_id] = known
        return data

    try:
        everyone = range(resolved.settings.num_clients)
        found = score_on_all(client, map(checked, everyone))
        if hash_federation(identities) != told:
            raise DataError("the data of a client are not those that it had before")
    except DataError as error:
        own = client.job.client_id
        log(WARNING, "no score of client %d on all test sets: %s", own, error)
        return reply
    return replace(reply, metrics={**reply.metrics, **found.metrics})


def scores_elsewhere(resolved: Resolved, num_features: int, num_classes: int) -> bool:
    """Whether clients score their models on the test sets of all after the last round.

    If all have one whole model, the mean of their own scores says the same.
    """
    if resolved.settings.evaluate_on == "own":
        return False
    from clients.base import start_of  # here: it takes a second

    method = resolved.method
    spec = resolved.spec(num_features=num_features, num_classes=num_classes)
    return not method.strategy.ONE_MODEL or bool(
        start_of(method.client, spec).private()
    )


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
