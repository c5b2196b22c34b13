"""What one message asks of the clients of a node: each is made, asked and watched."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flwr.app import Context

import datasets
from clients.privacy.site import (
    PrivateSite,
    check_drawn,
    check_features,
    noisy_partition,
)
from clients.store import (
    ClientStore,
    Unsaved,
    begin_folder,
    bind_config,
    bind_data,
    bind_run,
    check_run,
    default_state_dir,
    is_known,
)

from ..core.data import GraphPartition
from ..core.errors import DataError, FedGraphError, WireError, full_reason
from ..core.privacy_settings import METRIC as PRIVACY
from ..core.process import Kept, choose_device, log_failure
from ..core.rules import MOST_ROUNDS
from ..core.wire import (
    COMPUTE_S,
    DATA_OF_ALL,
    EARLIER_RUNS,
    EXPERIMENT,
    LAST_ROUND,
    SAME_DATA,
    SERVER_ROUND,
    SPENT,
    STARTED_AT,
    Lives,
    Parcel,
    Scalar,
    select,
)
from ..core.words import group_reasons, name_clients, shortened
from ..resolve import Resolved
from ..results.model_files import keep_own_model
from .gate import visit
from .introduce import guarded, identity, score_elsewhere
from .node_config import FRESH_START, NodeConfig, is_site, trusted_peers

if TYPE_CHECKING:
    import torch

    from clients.base import GraphClient
    from clients.classic import Header
    from clients.graphs.batching import ClientData


Answer = Callable[[int, Parcel], Parcel]


def answer_all(
    ids: Sequence[int],
    parcels: Mapping[int, Parcel],
    answer: Answer,
) -> dict[int, Parcel]:
    """Answer for each client; one that raises is reported and the others go on."""
    replies: dict[int, Parcel] = {}
    failed: dict[int, Exception] = {}
    import torch

    # Vanishing gradients become denormal numbers, which CPUs compute 10x slower.
    torch.set_flush_denormal(True)
    for client_id in ids:
        started_at, begin = time.time(), time.perf_counter()
        try:
            reply = answer(client_id, parcels.get(client_id, Parcel()))
        except FailedAfterDrawing as drawn:
            failed[client_id] = error = drawn.why()
            reply = Parcel(error=full_reason(error), metrics=drawn.spent)
        except Exception as error:  # one client's failure is not its neighbours'
            failed[client_id] = error
            reply = Parcel(error=full_reason(error))
        timing = {STARTED_AT: started_at, COMPUTE_S: time.perf_counter() - begin}
        replies[client_id] = replace(reply, metrics={**reply.metrics, **timing})
    torch.set_flush_denormal(False)
    reasons = {c: full_reason(error) for c, error in failed.items()}
    for clients, _ in group_reasons(reasons):  # in full, and each reason once
        log_failure(f"{name_clients(clients)} failed", failed[clients[0]])
    return replies


def _failed(reply: Parcel, error: Exception) -> Parcel:
    """Reply of a client whose state is lost: what it drew and took, and the error."""
    kept = {
        name: value
        for name, value in reply.metrics.items()
        if name.startswith(PRIVACY) or name in (STARTED_AT, COMPUTE_S)
    }
    return Parcel(error=full_reason(error), metrics=kept)


class FailedAfterDrawing(Exception):
    """A client failed, and the server must know what it had spent of its privacy."""

    def __init__(self, spent: Mapping[str, float]) -> None:
        super().__init__()
        self.spent = dict(spent)

    def why(self) -> Exception:
        """Return what was raised."""
        assert isinstance(self.__cause__, Exception)
        return self.__cause__


kept_data: Kept[ClientData] = Kept()  # by all that `load_data` depends on
_MANY = 50  # clients of one node


def load_data(
    resolved: Resolved,
    client_id: int,
    device: torch.device,
    site: PrivateSite | None,
) -> ClientData:
    """Load and collate a client's graphs, with the views it needs, once per process.

    Features that tell edges are refused where edges are noisy.

    With ``site`` the graphs are noisy, and those of its experiment. Without it batches
    of a private run have no edges: its method draws noisy views itself.
    """
    key = resolved, client_id, device, site
    data = kept_data.get(key, lambda: _load(*key))
    if site is not None:
        check_drawn(data.partition, site)
    return data


def _load(
    resolved: Resolved,
    client_id: int,
    device: torch.device,
    site: PrivateSite | None,
) -> ClientData:
    settings = resolved.settings
    partition = datasets.load_partition(settings, client_id)
    check_features(partition.graphs, resolved.privacy)
    collate = resolved.method.client.DATA.collate
    if site is not None:
        partition = noisy_partition(partition, site)
    elif resolved.privacy.edge_epsilon > 0:
        bare = replace(partition, graphs=partition.graphs.without_edges())
        return replace(collate(bare, device), partition=partition)
    data = collate(partition, device)
    spec = resolved.method.client.diffusion(resolved.params)
    if spec is None:
        return data
    graphs, cache_dir = partition.graphs, settings.cache_dir
    edges = datasets.load_diffusion(graphs, spec, cache_dir=cache_dir)
    return data.with_view(edges)


def settle(hosted: Sequence[int]) -> None:
    """Let the garbage collector leave out what a process of many clients has loaded.

    Once per process: it stays, and each look at it costs.
    """
    if len(hosted) >= _MANY and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def clear_kept() -> None:
    """Forget what this process keeps of clients, for a run of other clients."""
    kept_data.clear()


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
    ) -> None:
        self._context, self._resolved = context, resolved
        self._lives = Lives.from_text(context.run_id, header.get(EARLIER_RUNS, ""))
        self._parcels, self._header, self._action = parcels, header, action
        self._is_own = is_site(context.node_config)
        self._unsaved = Unsaved()

    def replies(self) -> dict[int, Parcel]:
        """Answer for each client whose state is on the disk; others have failed."""
        replies = answer_all(sorted(self._parcels), self._parcels, self._answer)
        try:
            self._unsaved.commit()
        except FedGraphError as error:
            lost = self._unsaved.clients
            log_failure(f"{name_clients(sorted(lost))} failed", error)
            replies |= {c: _failed(replies[c], error) for c in lost}
        return replies

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
            unsaved=self._unsaved,
        )
        policy = visit().policy
        site = resolved.site(
            store,
            is_secret=self._is_own,
            edge_budget=policy.edge_epsilon_max or math.inf,
            update_budget=policy.update_epsilon_max or math.inf,
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
    return client.participate(parcel, header)


def open_one(client: GraphClient[Any], _: Parcel, __: Header) -> Parcel:
    """Ask a client for what it gives to other clients before round 1."""
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
    known = parcel.facts.get(SAME_DATA)
    own = identity(resolved, partition, store, is_own=site.is_secret)
    if known and known != own:
        words = (
            f"data of client {client_id} are not those that it had at roll call, or its"
            " state folder is another: restore both, or start a new run"
        )
        raise DataError(words)
    if site.is_secret and resolved.privacy.is_on:
        bind_data(store.folder, client_id, own)
    if resolved.privacy.is_on:
        site.check_known_spending(
            {n: _amount(n, v) for n, v in select(SPENT, parcel.facts).items()},
            partition,
            last_round=int(parcel.facts.get(LAST_ROUND, 0)),
            sends_updates=resolved.method.client.SENDS_UPDATES,
        )
    return partition
