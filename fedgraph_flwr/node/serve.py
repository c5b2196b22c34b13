"""What one message asks of the clients of a node: each is made, asked and timed."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from logging import INFO, WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, MessageType

import datasets
from clients.privacy.accounts import Budgets
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
    clear_recent,
    default_state_dir,
    is_known,
)

from ..core import plugins
from ..core.attack_settings import OF_DATA, TRIGGER
from ..core.config import PAPER
from ..core.data import GraphPartition, join_training
from ..core.errors import ConfigError, DataError, FedGraphError, WireError, full_reason
from ..core.logs import log
from ..core.privacy_settings import METRIC as PRIVACY
from ..core.process import Kept, choose_device, log_failure
from ..core.rules import MOST_ROUNDS
from ..core.tasks import OF_EDGES
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
    TIMING,
    Lives,
    Parcel,
    Scalar,
    select,
)
from ..core.words import group_reasons, name_clients, shortened
from ..resolve import Resolved
from ..results.model_files import keep_own_model
from .gate import Visit
from .introduce import (
    guarded,
    identity,
    introduce,
    score_elsewhere,
    score_trigger,
)
from .node_config import FRESH_START, is_site, trusted_peers
from .policy import Policy, agree_at

if TYPE_CHECKING:
    import torch

    from clients.base import GraphClient
    from clients.graphs.batching import ClientData


def agree(
    visit: Visit, run_config: Mapping[str, Any], *, computes: bool = True
) -> tuple[Resolved, list[int]]:
    """Return the run as this node takes it, and the ids of the clients hosted here.

    ``computes``: whether torch will be needed, which takes seconds to import.
    """
    if plugins.named_in(run_config):  # whose files are compared with their pins
        resolved, hosted = agree_at(visit.node, visit.policy, run_config)
    else:
        node, config = tuple(visit.node.items()), tuple(run_config.items())
        resolved, hosted = _agreed(node, visit.policy, config)
    if computes:
        import torch  # here: a message that is refused needs none

        torch.set_num_threads(resolved.settings.torch_threads)
    return resolved, hosted


@lru_cache(maxsize=8)
def _agreed(
    node: tuple[tuple[str, Any], ...],
    policy: Policy,
    config: tuple[tuple[str, Any], ...],
) -> tuple[Resolved, list[int]]:
    return agree_at(dict(node), policy, dict(config))


def serve(
    visit: Visit,
    kind: str,
    context: Context,
    resolved: Resolved,
    parcels: Mapping[int, Parcel],
    header: Mapping[str, Scalar],
) -> dict[int, Parcel]:
    """Ask each client; one that fails is reported, and the others go on.

    Returns replies of clients whose state is on the disk; of others, why they failed.

    Parameters
    ----------
    visit : Visit
        What the site allows; what is done for each client is noted there.
    kind : str
        Of the message.
    resolved : Resolved
        The run, with the node's own folders.
    parcels : mapping of int to Parcel
        What each client is sent.
    header : mapping
        What all of them are told.
    """
    import torch

    lives = Lives.from_text(context.run_id, header.get(EARLIER_RUNS, ""))
    unsaved, root, experiment = Unsaved(), state_root(resolved), ""
    replies: dict[int, Parcel] = {}
    failed: dict[int, Exception] = {}
    refused: ConfigError | None = None
    # Vanishing gradients become denormal numbers, which CPUs compute 10x slower.
    torch.set_flush_denormal(True)
    for client_id, parcel in sorted(parcels.items()):
        started_at, begin = time.time(), time.perf_counter()
        try:
            if refused:
                raise refused.with_traceback(None)
            experiment = experiment or bound_to(kind, context, resolved, header)
            if resolved.params.is_sealed or resolved.secagg.on:
                begin_folder(root, experiment, client_id)
            store = ClientStore(
                root, experiment, client_id=client_id, lives=lives, unsaved=unsaved
            )
            if kind == MessageType.QUERY:
                device = choose_device(resolved.settings.device)
                partition = load_data(resolved, client_id, device, None).partition
                reply = introduce(
                    resolved, partition, store, node=visit.node, policy=visit.policy
                )
            else:
                name = visit.sum_name if kind == MessageType.TRAIN else None
                sum_name = name(client_id, parcel, header) if name else ""
                client = _ready(visit, kind, resolved, store, parcel, sum_name)
                if kind == MessageType.TRAIN:
                    reply = client.participate(parcel, header)
                elif kind == MessageType.EVALUATE:
                    reply = _assessed(visit, resolved, client, parcel, header)
                else:
                    reply = Parcel(arrays=client.opening())
                reply = guarded(reply, visit.policy)
        except Exception as error:  # one client's failure is not its neighbours'
            failed[client_id], reply = _failure(error, visit.spent.get(client_id))
            is_of_all = kind == MessageType.QUERY and datasets.is_cut(resolved.settings)
            if is_of_all and isinstance(error, ConfigError):
                refused = error  # each would load all data, and say the same
        timing = {STARTED_AT: started_at, COMPUTE_S: time.perf_counter() - begin}
        replies[client_id] = replace(reply, metrics={**reply.metrics, **timing})
    torch.set_flush_denormal(False)
    reasons = {c: full_reason(error) for c, error in failed.items()}
    for clients, _ in group_reasons(reasons):  # in full, and each reason once
        log_failure(f"{name_clients(clients)} failed", failed[clients[0]])
    try:
        unsaved.commit()
    except FedGraphError as error:
        log_failure(f"{name_clients(sorted(unsaved.clients))} failed", error)
        for client_id in unsaved.clients:
            metrics = replies[client_id].metrics.items()
            kept = {k: v for k, v in metrics if k.startswith((PRIVACY, *TIMING))}
            replies[client_id] = Parcel(error=full_reason(error), metrics=kept)
    return replies


def _failure(
    error: Exception, spent: Callable[[], Mapping[str, float]] | None
) -> tuple[Exception, Parcel]:
    """Reply of a client that failed: the server must know what it had spent before."""
    try:
        metrics = spent() if spent else {}
    except FedGraphError as unread:
        error, metrics = unread, {}
    return error, Parcel(error=full_reason(error), metrics=metrics)


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
    attack = resolved.attack
    if attack.kind in OF_DATA and client_id in attack.hostile(settings):
        partition = datasets.poison(partition, attack, settings)
    check_features(partition.graphs, resolved.privacy)
    client = resolved.method.client
    client.check_graphs(partition.graphs, settings)
    if words := client.unread(partition.graphs, settings):
        log(
            INFO,
            "client %d: %s are not read by encoder %r; others are in"
            " docs/methods.md#encoders",
            client_id,
            words,
            settings.encoder,
        )
    has_both = partition.graphs.is_undirected and settings.encoder != PAPER
    if has_both and settings.direction != "both":
        log(
            WARNING,
            "client %d: its graphs are undirected, direction %r%s; leave it out of the"
            " run config",
            client_id,
            settings.direction,
            " passes messages both ways, by two layers each"
            if settings.direction == "separate"
            else " is as 'both'",
        )
    if site is not None:
        partition = noisy_partition(partition, site)
    elif resolved.privacy.edge_epsilon > 0:
        bare = replace(partition, graphs=partition.graphs.without_edges())
        data = client.DATA.collate(bare, device)
        return replace(data, partition=partition)
    return _collated(resolved, partition, device)


def _pooled(resolved: Resolved, device: torch.device) -> ClientData:
    """Load the training items of all clients that train, once per process."""
    settings = resolved.settings

    def load() -> ClientData:
        trainers = sorted(set(range(settings.num_clients)) - settings.never_train)
        parts = [load_data(resolved, c, device, None).partition for c in trainers]
        of_nodes = datasets.label_kind(settings) in ("nodes", *OF_EDGES.values())
        joined = join_training(parts, of_nodes=of_nodes)
        return _collated(resolved, joined, device)

    return kept_data.get((resolved, device), load)


def _collated(
    resolved: Resolved, partition: GraphPartition, device: torch.device
) -> ClientData:
    settings = resolved.settings
    data = resolved.method.client.DATA.collate(partition, device)
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
    clear_recent()


def bound_to(
    kind: str, context: Context, resolved: Resolved, header: Mapping[str, Scalar]
) -> str:
    """Return the name of the experiment that this run is bound to."""
    root, config = state_root(resolved), resolved.to_config()
    experiment = str(header.get(EXPERIMENT, ""))
    if kind == MessageType.QUERY:  # which has bound it
        return experiment
    # A site that lost its disk, and may begin afresh, has no roll call to remember.
    is_afresh = context.node_config.get(FRESH_START) is True
    if is_afresh and not is_known(root, experiment):
        bind_run(root, context.run_id, experiment, config)
    check_run(root, context.run_id, experiment)
    bind_config(root, experiment, config)
    return experiment


def _ready(
    visit: Visit,
    kind: str,
    resolved: Resolved,
    store: ClientStore,
    parcel: Parcel,
    sum_name: str,
) -> GraphClient[Any]:
    """Make a client, once what it remembers is what the server knows of it."""
    policy, client_id = visit.policy, store.client_id
    check_round(LAST_ROUND, parcel.facts.get(LAST_ROUND))
    if kind == MessageType.TRAIN and client_id in resolved.settings.never_train:
        raise WireError(
            f"client {client_id} is asked to train, but held-out-clients of the run"
            " config holds it out; both ends must run the same version of"
            " fedgraph_flwr"
        )
    site = resolved.site(
        store,
        is_secret=is_site(visit.node),
        sum_name=sum_name,
        limits=Budgets(
            site=policy.edge_epsilon_max or math.inf,
            site_update=policy.update_epsilon_max or math.inf,
            site_graph=policy.graph_epsilon_max or math.inf,
            site_delta=policy.update_delta,
        ),
    )
    visit.releases[client_id] = site.released
    device = choose_device(resolved.settings.device)
    data = load_data(resolved, client_id, device, None)
    _check_memory(visit, resolved, store, site, data.partition, parcel.facts)
    if resolved.privacy.edge_epsilon > 0 and not resolved.params.TAKES_WEIGHTS:
        data = load_data(resolved, client_id, device, site)
    job = replace(
        resolved.job(data, store, site, device),
        may_restart=visit.node.get(FRESH_START) is True,
        trusted=trusted_peers(visit.node) if resolved.params.is_sealed else None,
        pooled=None if is_site(visit.node) else partial(_pooled, resolved, device),
    )
    return resolved.method.client(job)


def _check_memory(
    visit: Visit,
    resolved: Resolved,
    store: ClientStore,
    site: PrivateSite,
    partition: GraphPartition,
    facts: Mapping[str, Scalar],
) -> None:
    """Refuse to go on with other data or older state than the server knows of."""
    visit.policy.check_data(resolved, partition)
    known = facts.get(SAME_DATA)
    own = identity(resolved, partition, store, is_own=site.is_secret)
    if known and known != own:
        raise DataError(
            f"data of client {store.client_id} are not those that it had at roll call,"
            " or its state folder is another: restore both, or start a new run"
        )
    if resolved.privacy.is_on:
        _check_account(visit, resolved, site, partition, own, facts)


def _check_account(
    visit: Visit,
    resolved: Resolved,
    site: PrivateSite,
    partition: GraphPartition,
    own: str,
    facts: Mapping[str, Scalar],
) -> None:
    """Refuse an account of privacy that says less than the server knows of.

    Before anything is drawn: one that was lost and charged anew may say the same.
    """
    client_id = partition.client_id
    if site.is_secret:
        bind_data(site.folder, client_id, own)
    site.check_known_spending(
        {n: _amount(n, v) for n, v in select(SPENT, facts).items()},
        partition,
        last_round=int(facts.get(LAST_ROUND, 0)),
        sends_updates=resolved.method.client.SENDS_UPDATES,
    )
    spent = visit.spent[client_id] = partial(site.spent, partition)
    if site.is_secret:  # for the audit log
        visit.before[client_id] = spent()


def _assessed(
    visit: Visit,
    resolved: Resolved,
    client: GraphClient[Any],
    parcel: Parcel,
    header: Mapping[str, Scalar],
) -> Parcel:
    """Measure the last model, and keep it at this site."""
    reply = client.assess(parcel, header)
    if not resolved.settings.dry_run:
        keep_own_model(client, reply, rounds=int(header[SERVER_ROUND]) - 1)
    if resolved.attack.kind == TRIGGER:
        reply = score_trigger(resolved.attack, client, reply)
    return score_elsewhere(
        resolved,
        client,
        reply,
        parcel.facts.get(DATA_OF_ALL),
        load=lambda c: load_data(resolved, c, client.job.device, None),
        is_own=is_site(visit.node),
    )


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


def state_root(resolved: Resolved) -> Path:
    """State folder of this site, or of a simulation."""
    configured = resolved.settings.state_dir
    return Path(configured) if configured else default_state_dir()
