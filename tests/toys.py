"""Small federations for tests: graphs, partitions, settings, jobs, whole runs."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import Error, Message
from toy_graphs import (  # noqa: F401  as toys.NAME
    federation,
    make_node_partition,
    make_partition,
    make_whole_graph,
    random_graphs,
    with_tasks,
)

from clients.base import GraphClient, start_of
from clients.graphs.batching import Batch, CollatedGraphs
from clients.graphs.noisy_view import NoisyStructure, NoisyView
from clients.privacy.laplace import GraphAdjacency, Triangles
from clients.store import ClientStore
from datasets import find_dataset, molecules
from datasets.diffusion import diffuse
from fedgraph_flwr.core.config import RunSettings, build
from fedgraph_flwr.core.data import GraphSet, IntArray
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.fields import Kind
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.core.wire import Parcel, select, unpack, with_prefix
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.resolve import Resolved, defaults, resolve
from simulations.inline import InlineGrid
from simulations.tiny_runs import (  # noqa: F401  as toys.NAME
    TINY,
    Run,
    own,
    row,
    tiny,
)
from strategies.round_report import ClientInfo

if TYPE_CHECKING:
    from torch_geometric.data import Data

CPU = torch.device("cpu")


def seeded(seed: int = 0) -> torch.Generator:
    """Make a generator of random numbers."""
    return torch.Generator().manual_seed(seed)


def shared_keys(method: str) -> list[str]:
    """Names of the shared tensors of a method's toy model."""
    run = resolve({**defaults(), **tiny(method)})
    spec = run.spec(num_features=4, num_classes=2)
    return list(start_of(run.method.client, spec).shared)


def smiles_to_graph(smiles: str) -> tuple[np.ndarray, np.ndarray]:
    """Atoms as rows, and edges both ways, of one SMILES string."""
    mol = molecules.parse_smiles(smiles)
    kinds = [molecules.atom_kind(atom) for atom in mol.GetAtoms()]
    ends = [ends for *ends, _ in molecules.directed_bonds(mol)]
    pairs = np.array(ends, dtype=np.int32).reshape(-1, 2)
    return np.stack([molecules.atom_features(kind) for kind in kinds]), pairs.T


def assert_drawn(path: Path) -> np.ndarray:
    """The PNG has a sensible size, is mostly white and has more than empty axes."""
    from matplotlib.image import imread

    image = imread(path)[..., :3]
    assert min(image.shape[:2]) > 200
    assert 0.02 < np.mean(image.min(axis=2) < 0.9) < 0.6
    return image


def renewed(partition, **changes):
    """Change a partition, whose hashes are made again."""
    return replace(partition, **changes, split_hash="", data_hash="")


PLUGIN = "from fedgraph_flwr.api import *\nMETHOD = Method()\n"


def cut(view: NoisyView, positions: IntArray) -> NoisyStructure:
    """Structure of the graphs at ``positions``, in the first of the noisy views."""
    return view.rows(view.places(positions))


def clean_triangles(
    adjacency: GraphAdjacency, num_nodes: IntArray, positions: IntArray
) -> Triangles:
    """Triangles of 0 and 1, without any noise."""
    read = [adjacency.upper_triangle(int(g)) for g in positions]
    return Triangles(
        values=np.concatenate([np.zeros(0), *read]).astype(np.float32),
        num_nodes=num_nodes[positions],
        positions=positions,
    )


def to_pyg(graphs: GraphSet) -> list[Data]:
    """Make the same graphs PyG objects, one-hot features written out."""
    from torch_geometric.data import Data  # here: it takes two seconds

    x = torch.from_numpy(graphs.x)
    if x.dim() == 1:
        x = torch.nn.functional.one_hot(x.long(), graphs.num_features).float()
    found = []
    for g in range(len(graphs)):
        nodes = slice(graphs.node_ptr[g], graphs.node_ptr[g + 1])
        edges = slice(graphs.edge_ptr[g], graphs.edge_ptr[g + 1])
        found.append(
            Data(
                x=x[nodes],
                edge_index=torch.from_numpy(graphs.edge_index[:, edges]).long(),
                y=torch.tensor([graphs.y[g]]),
                num_nodes=nodes.stop - nodes.start,
            )
        )
    return found


def whole(graphs: GraphSet) -> Batch:
    """Make one batch of all graphs."""
    return CollatedGraphs(graphs, CPU).batch(np.arange(len(graphs)))


def doubled(batch: Batch) -> Batch:
    """Give the same batch in double precision."""
    parts = {f.name: getattr(batch, f.name) for f in fields(Batch)}
    parts["x"] = batch.x.double() if batch.x.dim() == 2 else batch.x
    parts["adjacency"] = batch.adjacency.double()
    parts["membership"] = batch.membership.double()
    return Batch(**parts)


def run_settings(**changes) -> RunSettings:
    """Settings of PROTEINS in ten chunks, changed but not checked; keys as fields."""
    base = {"dataset": "PROTEINS", "num_clients": 10, "partition": "chunks"}
    given = {k.replace("_", "-"): v for k, v in {**base, **changes}.items()}
    info = find_dataset(given["dataset"])
    of_task = {"task": "graph-classification", "patience": 0, "min-rounds": 0}
    always = {"evaluate-every": 1, "checkpoint-every": 1, "encoder": "paper"}
    automatic = {**of_task, **always, **info.automatic}
    return build(RunSettings, {**defaults(), **given}, automatic)


# A method on its first task has the method's name; on another, "<method> <task>". Nodes
# have a check-list of their own.
CASES = sorted(
    [
        *METHODS,
        "local graph-embedding",
        "fedavg edge-classification",
        "gcfl+ link-prediction",
        *(f"{m} multi-task" for m in ("local", "fedavg", "fedprox", "gcfl+")),
    ]
)


def resolved(method: str = "fedavg", **overrides) -> Resolved:
    """Resolve ``TINY`` with ``overrides``, given as {"run-config-key": value}."""
    return resolve({**defaults(), **tiny(method, **overrides)})


# Cases that run at sites, too.
AT_SITES = [case for case in CASES if not row(case).strategy.IN_ONE_PLACE]


# Arrays that clients send beside shared tensors, as their method declares them; a site
# that clips updates refuses these methods.
SENT_BESIDE = {
    case: sent
    for case in CASES
    if (sent := [f for f in resolved(case).params.sends() if f.kind is Kind.ARRAY])
}


def sends_all(method: str) -> dict[str, Value]:
    """Find the setting with which clients send all that their method declares."""
    table = METHODS[method].params
    if resolved(method).params.sends() == table.FIELDS:
        return {}
    for key, f in table.config_fields().items():
        rule = f.metadata["rule"]
        for value in rule.choices or ((True, False) if rule.kind is bool else ()):
            with suppress(ConfigError):
                if resolved(method, **{key: value}).params.sends() == table.FIELDS:
                    return {key: value}
    raise AssertionError(f"no one setting of {method} lets it send all of its fields")


def make_client(root: Path, method: str = "fedavg", *, partition=None, **overrides):
    """Build one client as the ClientApp does."""
    run = resolved(method, **overrides)
    partition = partition or make_partition(held_out=run.settings.held_out)
    data = run.method.client.DATA.collate(partition, CPU)
    if spec := run.method.client.diffusion(run.params):
        data = data.with_view(diffuse(partition.graphs, spec))
    store = ClientStore(root, "experiment", client_id=partition.client_id)
    site = run.site(store, is_secret=False)
    job = replace(run.job(data, store, site, CPU), pooled=lambda: data)
    return run.method.client(job)


def in_doubles(client):
    """Give the client's diffusion view, stored as float32, as doubles."""
    view = client.job.data.view
    for half in ("_incoming", "_outgoing"):
        counts, columns, weight = getattr(view, half)
        setattr(view, half, (counts, columns, weight.double()))
    return client


def parcel(client, arrays=None, *, extras=None, facts=None) -> Parcel:
    """Shared tensors, by default as they are now, and what comes beside them."""
    arrays = shared_arrays(client) if arrays is None else arrays
    named = dict(zip(client.shared_keys, arrays, strict=True))
    return Parcel(
        arrays={**with_prefix(SHARED, named), **(extras or {})}, facts=facts or {}
    )


def begun(client, server_round: int = 1, *mail, **more):
    """The client as before the first epoch of a round; ``mail`` as of ``parcel``."""
    message = parcel(client, *mail, **more)
    client.load(message, {"server-round": server_round})
    return client


def shared_arrays(client) -> list[np.ndarray]:
    """Return the shared tensors as they are now, ordered like ``shared_keys``."""
    named = client.tensors()
    return [named[n].detach().numpy().copy() for n in client.shared_keys]


def info(client: int, **changes) -> ClientInfo:
    """Tell what a client with one of everything says at roll call."""
    names = ("num_train", "num_val", "num_test", "num_features", "num_classes", "group")
    ones = dict.fromkeys(names, 1)
    texts = {"split_hash": "", "raw_sha256": ""}
    return ClientInfo(client=client, **{"node_id": 0, **texts, **ones, **changes})


def policy(folder: Path, **keys: Any) -> dict[str, str]:
    """Write a policy; return the entry of node-config that names it."""
    text = "".join(
        f"{name.replace('_', '-')} = {_toml(value)}\n" for name, value in keys.items()
    )
    path = folder / f"policy-{hashlib.sha256(text.encode()).hexdigest()[:8]}.toml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return {"policy": str(path)}


def two_sites(root: Path, **keys: Any) -> list[dict[str, str]]:
    """Node-configs of clients 0 and 1, and of client 2; with a policy if asked for."""
    named = policy(root, **keys) if keys else {}
    return [
        {"clients": clients, "state-dir": str(root / clients), **named}
        for clients in ("0,1", "2")
    ]


def _toml(value: Any) -> str:
    is_odd = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_odd else json.dumps(value)


def of_task(task) -> list[str]:
    """Cases of a task."""
    return [case for case in CASES if row(case).task is task]


def federated(task=None) -> list[str]:
    """Cases that train common models, of one task or of all."""
    return [
        case
        for case in (CASES if task is None else of_task(task))
        if row(case).has_server_model
    ]


@contextmanager
def shut(folder: Path) -> Iterator[None]:
    """Let nobody search a folder; root, who may all the same, acts as another user."""
    before, me = folder.stat().st_mode, os.geteuid()
    folder.chmod(0)
    os.seteuid(me or 65534)
    try:
        yield
    finally:
        os.seteuid(me)
        folder.chmod(before)


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def fail_when(
    monkeypatch,
    when: Callable[[int, int], bool],
    *,
    step: str = "participate",
    why: str = "disk full",
) -> None:
    """Let clients raise at a step if ``when(client, round)`` holds."""
    usual = getattr(GraphClient, step)

    def fail(self, parcel, header):
        if when(self.job.client_id, header["server-round"]):
            raise ValueError(why)
        return usual(self, parcel, header)

    monkeypatch.setattr(GraphClient, step, fail)


def sent_models(monkeypatch) -> dict[int, dict[str, np.ndarray]]:
    """Shared tensors by client, as each sends them next; filled while a run goes on."""
    sent: dict[int, dict[str, np.ndarray]] = {}
    update = GraphClient.update

    def spy(self, trained):
        reply = update(self, trained)
        sent[self.job.client_id] = select(SHARED, reply.arrays)
        return reply

    monkeypatch.setattr(GraphClient, "update", spy)
    return sent


def on_delivery(
    monkeypatch,
    *,
    before: Callable[[InlineGrid, Message], None] = lambda *_: None,
    after: Callable[[Message, Message], None] = lambda *_: None,
) -> None:
    """Call ``before(grid, message)`` and ``after(message, reply)`` for each message."""
    deliver = InlineGrid.deliver

    def watched(self, message):
        before(self, message)
        reply = deliver(self, message)
        after(message, reply)
        return reply

    monkeypatch.setattr(InlineGrid, "deliver", watched)


def round_of(message: Message) -> Value | None:
    """Round of a message; None at roll call."""
    return message.content.get("header", {}).get("server-round")


def lose_reply(monkeypatch, *, server_round: int, client: int) -> None:
    """Let the reply of a client's node get lost after the node has computed it."""
    deliver = InlineGrid.deliver

    def lose(self, message):
        reply = deliver(self, message)
        parcels, header = unpack(message.content)
        if header.get("server-round") == server_round and client in parcels:
            return Message(Error(2, "connection lost"), reply_to=message)
        return reply

    monkeypatch.setattr(InlineGrid, "deliver", lose)
