"""What one message asks of the clients of a node: each is made, asked and watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flwr.app import Context

from clients.binding import (
    begin_folder,
    bind_config,
    bind_data,
    bind_run,
    check_run,
    is_known,
)
from clients.privacy.site import PrivateSite
from clients.protocols import Opens
from clients.store import ClientStore, default_state_dir

from .answers import FailedAfterDrawing, answer_all
from .data import GraphPartition
from .device import choose_device
from .elsewhere import score_elsewhere
from .errors import DataError, StorageError, WireError
from .files import Flushes
from .gate import visit
from .introduction import guarded, identity
from .lives import EARLIER_RUNS, Lives
from .loaded import load_data
from .node_config import FRESH_START, NodeConfig, is_site, trusted_peers
from .privacy import METRIC as PRIVACY
from .resolve import Resolved
from .results.model_folder import keep_own_model
from .rules import MOST_ROUNDS
from .wire import (
    COMPUTE_S,
    DATA_OF_ALL,
    EXPERIMENT,
    LAST_ROUND,
    SAME_DATA,
    SERVER_ROUND,
    SPENT,
    STARTED_AT,
    Parcel,
    Scalar,
    select,
)
from .wording import shortened

if TYPE_CHECKING:  # imported when a client has work to do: torch takes a second
    from clients.base import GraphClient
    from clients.classic import Header

Action: TypeAlias = "Callable[[GraphClient[Any], Parcel, Header], Parcel]"


class Asked:
    """What a message asks of clients of this node."""

    def __init__(
        self,
        context: Context,
        resolved: Resolved,
        parcels: Mapping[int, Parcel],
        header: Mapping[str, Scalar],
        action: Action,
        flushes: Flushes,
    ) -> None:
        self._context, self._resolved, self._flushes = context, resolved, flushes
        self._lives = Lives.from_text(context.run_id, header.get(EARLIER_RUNS, ""))
        self._parcels, self._header, self._action = parcels, header, action
        self._is_own = is_site(context.node_config)
        self._stores: dict[int, ClientStore] = {}

    def replies(self) -> dict[int, Parcel]:
        """Answer for each client whose state is on the disk; others have failed."""
        # A state may still be on its way to the disk.
        replies = answer_all(sorted(self._parcels), self._parcels, self._answer)
        timed = {
            c: (p.metrics[STARTED_AT], p.metrics[COMPUTE_S]) for c, p in replies.items()
        }
        return answer_all(sorted(replies), replies, self._pass_on, timed)

    def _pass_on(self, client_id: int, reply: Parcel) -> Parcel:
        try:
            if client_id in self._stores:
                self._flushes.check(self._stores[client_id].folder)
        except StorageError as error:
            drawn = {k: v for k, v in reply.metrics.items() if k.startswith(PRIVACY)}
            raise FailedAfterDrawing(drawn) from error
        return reply

    @cached_property  # once per message; what is refused is refused to every client
    def _experiment(self) -> str:
        root, config = state_root(self._resolved), self._resolved.to_config()
        run_id = self._context.run_id
        experiment = str(self._header.get(EXPERIMENT, ""))
        # A site that lost its disk, and may begin afresh, has no roll call to remember.
        if _may_restart(self._context.node_config) and not is_known(root, experiment):
            bind_run(root, run_id, experiment, config)
        check_run(root, run_id, experiment)
        bind_config(root, experiment, config)
        return experiment

    def _ready(self, client_id: int) -> GraphClient[Any]:
        parcel, resolved = self._parcels[client_id], self._resolved
        check_round(LAST_ROUND, parcel.facts.get(LAST_ROUND))
        root = state_root(resolved)
        if resolved.params.is_sealed:
            begin_folder(root, self._experiment, client_id)
        store = ClientStore(
            root,
            self._experiment,
            client_id=client_id,
            lives=self._lives,
            flushes=self._flushes,
        )
        self._stores[client_id] = store
        policy = visit().policy
        site = resolved.site(
            store,
            is_secret=self._is_own,
            edge_budget=policy.edge_budget,
            update_budget=policy.update_budget,
            update_delta=policy.update_delta,
        )
        visit().releases[client_id] = site.released
        partition = _check_memory(resolved, client_id, store, site, parcel)
        spent = partial(site.spent, partition) if resolved.privacy.is_on else dict
        if self._is_own and client_id not in visit().spent:  # for the audit log
            visit().before[client_id], visit().spent[client_id] = spent(), spent
        node = self._context.node_config
        try:
            return _make_client(resolved, client_id, store, site, node)
        except Exception as error:  # noisy graphs may have been drawn for it
            raise FailedAfterDrawing(spent()) from error

    def _answer(self, client_id: int, parcel: Parcel) -> Parcel:
        client = self._ready(client_id)
        try:
            reply = self._action(client, parcel, self._header)
            if self._action is assess_one:
                device = client.job.device
                reply = score_elsewhere(
                    self._resolved,
                    client,
                    reply,
                    parcel.facts.get(DATA_OF_ALL),
                    load=lambda c: load_data(self._resolved, c, device, None),
                    is_own=self._is_own,
                )
            return guarded(reply)
        except Exception as error:  # what it drew before is paid for all the same
            raise FailedAfterDrawing(client.spent()) from error


def check_round(name: str, value: Scalar | None) -> None:
    """Refuse a number that is no round, as the client's files are named after it."""
    if type(value) is not int or not 0 <= value <= MOST_ROUNDS + 1:
        raise WireError(
            f"{name} must be a round, from 0 to {MOST_ROUNDS + 1}, got"
            f" {shortened(value)} from the server; both ends must run the same version"
            " of fedgraph_flwr"
        )


def _amount(name: str, value: Scalar) -> float:
    """Refuse what the server says was spent if it is no amount."""
    if not isinstance(value, int | float) or not value >= 0:
        raise WireError(
            f"{SPENT}{name} must be a number >= 0, got {shortened(value)} from the"
            " server; both ends must run the same version of fedgraph_flwr"
        )
    return float(value)


def _may_restart(node: NodeConfig) -> bool:
    return node.get(FRESH_START) is True


def _make_client(
    resolved: Resolved,
    client_id: int,
    store: ClientStore,
    site: PrivateSite,
    node: NodeConfig,
) -> GraphClient[Any]:
    device = choose_device(resolved.settings.device)
    takes_weights = resolved.params.TAKES_WEIGHTS
    is_private = resolved.privacy.edge_epsilon > 0 and not takes_weights
    data = load_data(resolved, client_id, device, site if is_private else None)
    job = replace(
        resolved.job(data, store, site, device),
        may_restart=_may_restart(node),
        trusted=trusted_peers(node),
    )
    return resolved.method.client(job)


def state_root(resolved: Resolved) -> Path:
    """State folder of this site, or of a simulation."""
    configured = resolved.settings.state_dir
    return Path(configured) if configured else default_state_dir()


def train_one(client: GraphClient[Any], parcel: Parcel, header: Header) -> Parcel:
    """Train a client, unless the run holds it out from training."""
    if client.job.client_id in client.job.settings.never_train:
        raise WireError(
            f"client {client.job.client_id} is asked to train, but held-out-clients of"
            " the run config holds it out; both ends must run the same version of"
            " fedgraph_flwr"
        )
    return client.train(parcel, header)


def open_one(client: GraphClient[Any], _: Parcel, __: Header) -> Parcel:
    """Ask a client for what it gives to other clients before round 1."""
    if not isinstance(client, Opens):
        raise WireError(
            f"client {client.job.client_id} is asked for an opening, which its method"
            " does not have; both ends must run the same version of fedgraph_flwr"
        )
    return Parcel(arrays=client.opening())


def assess_one(client: GraphClient[Any], parcel: Parcel, header: Header) -> Parcel:
    """Measure the last model, and keep it at this site."""
    reply = client.assess(parcel, header)
    if not client.job.settings.dry_run:
        keep_own_model(client, reply, rounds=int(header[SERVER_ROUND]) - 1)
    return reply


def _check_memory(
    resolved: Resolved,
    client_id: int,
    store: ClientStore,
    site: PrivateSite,
    parcel: Parcel,
) -> GraphPartition:
    """Refuse to go on with other data or older state than the server knows of.

    Before anything is drawn: an account that was lost and charged anew may say the
    same. Return the client's data.
    """
    device = choose_device(resolved.settings.device)
    partition = load_data(resolved, client_id, device, None).partition
    visit().policy.check_data(resolved, partition)
    told = parcel.facts.get(SAME_DATA)
    own = identity(resolved, partition, store, is_own=site.is_secret)
    if told and told != own:
        words = (
            f"data of client {client_id} are not those that it had at roll call, or its"
            " state folder is another: restore both, or start a new run"
        )
        raise DataError(words)
    if site.is_secret and resolved.privacy.is_on:
        bind_data(store.folder, client_id, own)
    if resolved.privacy.is_on:
        site.check_told(
            {n: _amount(n, v) for n, v in select(SPENT, parcel.facts).items()},
            partition,
            last_round=int(parcel.facts.get(LAST_ROUND, 0)),
            sends_updates=resolved.method.client.SENDS_UPDATES,
        )
    return partition
