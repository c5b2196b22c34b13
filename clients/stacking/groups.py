"""Which clients of a process train as one, and that they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from logging import WARNING
from numbers import Integral
from typing import Any, TypeAlias

from flwr.common.logger import log
from torch import Tensor

from fedgraph_flwr.wire import Parcel
from fedgraph_flwr.wording import visible

from ..adam import Optimizer
from ..base import GraphClient
from ..graphs.batching import ClientData, CollatedGraphs
from ..graphs.whole_graph import NodeData
from ..marks import is_done_by_stacks
from ..optimizer import num_steps
from ..tasks.graph_classifier import GraphClassifierClient
from ..tasks.node_classifier import NodeClassifierClient
from .buckets import LIMITS, buckets
from .stack import GraphStack, NodeStack, Stack

# What a class may change and still be stacked: a stack calls it, or training does not.
# A change of anything else that clients have is one of training.
_FREE = {
    "DATA",
    "FORM",
    "MIN_BATCH",
    "SENDS_UPDATES",
    "assess",
    "check_elsewhere",
    "goes_on_from",
    "num_epochs",
    "predictor",
    "private_keys",
    "shared_names",
    "spent",
    "without_state",
    "_places",
    "_abc_impl",
    "_is_protocol",
}
# What each client is given, which a class may replace, and how names are looked up.
_GIVEN = {"data", "job", "model", "params", "round", "shared_keys"}
_LOOK_UPS = {"__init__", "__new__", "__getattr__", "__getattribute__", "__setattr__"}
Kind: TypeAlias = type[Stack[Any]]
Key: TypeAlias = tuple[Kind, Hashable]
Member: TypeAlias = tuple[GraphClient[Any], Optimizer, int]  # with its size
_STACKS: dict[type[GraphClient[Any]], Kind] = {
    GraphClassifierClient: GraphStack,
    NodeClassifierClient: NodeStack,
}


def stack_of(client: type[GraphClient[Any]]) -> Kind | None:
    """Return what trains clients of a class as one; None if nothing does.

    A class that overrides a step of training in a way of its own trains one by one.
    """
    own = client.__mro__[: client.__mro__.index(GraphClient) + 1]
    for part in own:
        for name, step in vars(part).items():
            if not _is_step(name) or is_done_by_stacks(step):
                continue
            if not getattr(step, "__isabstractmethod__", False):
                return None
    found = (s for task, s in _STACKS.items() if issubclass(client, task))
    return next((s for s in found if s.takes(client)), None)


@cache  # asked for each name of each client's class
def _is_step(name: str) -> bool:
    """Whether training depends on what a class, or a client, has under a name."""
    if name in _GIVEN | _LOOK_UPS:
        return True
    is_known = any(hasattr(task, name) for task in _STACKS)
    return is_known and name not in _FREE and not name.startswith("__")


def practise_together(
    clients: Sequence[GraphClient[Any]],
) -> dict[int, tuple[Optimizer, Parcel]]:
    """Train those clients that can be trained as one with another.

    Parameters
    ----------
    clients : sequence of GraphClient
        At the start of their round. Their models lie on the host, whatever the device.

    Returns
    -------
    dict of int to (Optimizer, Parcel)
        By client, for :meth:`GraphClient.finish`; of those that were trained.
    """
    groups: dict[Key, list[Member]] = defaultdict(list)
    for client in clients:
        try:
            optimizer = client.optimizer()
            if (key := _key(client, optimizer)) is not None:
                size = key[0].num_rows(client) * client.job.settings.hidden_dim
                groups[key].append((client, optimizer, size))
        except Exception:  # whoever trains this client by itself finds the reason
            continue
    done: dict[int, tuple[Optimizer, Parcel]] = {}
    for stack, members in _cut(groups):
        if len(members) < 2:
            continue
        own, optimizers, _ = zip(*members, strict=True)
        try:
            practised = stack(own, optimizers).practise()
        except Exception as error:  # e.g. out of memory: none of them has changed
            log(WARNING, "cannot train %d clients as one, so one by one: %s: %s",
                len(own), type(error).__name__, visible(str(error)))  # fmt: skip
            continue
        for client, optimizer, parcel in zip(own, optimizers, practised, strict=True):
            done[client.job.client_id] = optimizer, parcel
    return done


def _cut(groups: Mapping[Key, list[Member]]) -> Iterator[tuple[Kind, list[Member]]]:
    """Cut clients that fit together into those of like sizes."""
    for (stack, _), members in groups.items():
        device = members[0][0].data.graphs.device.type
        sizes = [size for *_, size in members]
        for chosen in buckets(sizes, LIMITS[device]):
            yield stack, [members[k] for k in chosen]


def _key(client: GraphClient[Any], optimizer: Optimizer) -> Key | None:
    """Return a stack and what its clients have in common; None for a client of none."""
    stack, data = stack_of(type(client)), client.data
    num_train = len(client.trained_on())
    if stack is None or not stack.NETWORK.fits(client.model):
        return None
    if (
        type(data) not in (ClientData, NodeData)
        or type(data.graphs) is not CollatedGraphs
        or not data.graphs.is_sound
    ):
        return None
    if any(map(_is_step, vars(client).keys() - _GIVEN)):
        return None  # a step of the client's own
    if not all(t.requires_grad for t in client.tensors().values()):
        return None  # some are frozen
    num_epochs = client.num_epochs()
    if not num_train or not len(data.partition.held_out):
        return None
    if not isinstance(num_epochs, Integral) or num_epochs <= 0:
        return None
    x = data.whole.features if isinstance(data, NodeData) else data.graphs.x
    return stack, (
        type(client),
        tuple((n, tuple(t.shape)) for n, t in client.tensors().items()),
        tuple(client.round.received),
        x.dim() if isinstance(x, Tensor) else type(x),
        num_epochs,
        float(client.model.dropout),
        stack.num_batches(client),
        num_steps(optimizer),
    )
