"""What a client is given, and what it remembers of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from fedgraph_flwr.core.config import RunSettings, Settings
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.privacy_settings import PrivacySettings
from fedgraph_flwr.core.seeding import derive_seed
from fedgraph_flwr.core.tasks import Task
from fedgraph_flwr.core.wire import FRESH_START, NamedArrays, Scalar

from .graphs.batching import ClientData
from .privacy.site import PrivateSite
from .store import ClientStore

P = TypeVar("P", bound=Settings)  # parameters of a method


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Generic[P]):
    """Everything that a model before round 1 depends on.

    Parameters
    ----------
    params, task : Settings
        Of the method, and of the kind of learning.
    num_features, num_classes : int
        Widths of input and output.
    client_id : int
        Only tensors that do not travel may depend on it.
    num_edge_features, num_graph_features : int
        Widths of what edges and whole graphs have; a weight of edges is one more.
    """

    settings: RunSettings
    params: P
    task: Settings
    num_features: int
    num_classes: int
    client_id: int = 0
    num_edge_features: int = 0
    num_graph_features: int = 0

    def common_generator(self) -> torch.Generator:
        """Stream of the initial tensors that all clients have in common."""
        seed = derive_seed(self.settings.seed, "common", "init")
        return torch.Generator().manual_seed(seed)

    def private_generator(self) -> torch.Generator:
        """Stream of initial tensors that are private if only convolutions travel."""
        is_common = self.settings.shared_group != "convs"
        owner = "common" if is_common else f"client-{self.client_id}"
        seed = derive_seed(self.settings.seed, owner, "init-private")
        return torch.Generator().manual_seed(seed)

    def shape(self) -> dict[str, Any]:
        """Arguments that most models take."""
        settings = self.settings
        return {
            "hidden_dim": settings.hidden_dim,
            "num_layers": settings.num_layers,
            "dropout": settings.dropout,
        }


@contextmanager
def seeded(spec: ModelSpec[Any]) -> Iterator[None]:
    """Let torch's own layers draw what all clients have in common, in this block."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.common_generator().initial_seed())
        yield


@dataclass(frozen=True)
class Start:
    """A model before round 1, and the names of its tensors that travel."""

    model: nn.Module
    shared: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the model's tensors."""
        return sum(t.nbytes for t in [*self.model.parameters(), *self.model.buffers()])

    def arrays(self) -> NamedArrays:
        """Return the tensors that travel, for the server."""
        tensors = self.model.state_dict()
        return {n: tensors[n].numpy().copy() for n in self.shared}

    def private(self) -> list[str]:
        """Names of the tensors that never leave a client."""
        shared = set(self.shared)
        return [n for n in self.model.state_dict() if n not in shared]


@dataclass(frozen=True, kw_only=True)
class Job(Generic[P]):
    """Everything a client needs to answer one message.

    Parameters
    ----------
    params, task : Settings
        Of the method, and of the kind of learning.
    learning : Task
        The kind of learning.
    store : ClientStore
        The client's private state.
    site : PrivateSite
        Draws the client's noise and keeps the account of it.
    may_restart : bool
        The site's operator lets a client begin afresh when its private state is lost;
        otherwise the client fails.
    pooled : callable, optional
        Gives the training items of all clients; None at a site, which has its own.
    trusted : mapping of int to str, optional
        Fingerprints of other clients' keys, by client, that the operator confirmed;
        None if the operator wrote down none.
    is_summed : bool
        The server sees sums of updates alone.
    """

    settings: RunSettings
    params: P
    task: Settings
    learning: Task
    data: ClientData
    store: ClientStore
    site: PrivateSite
    device: torch.device
    may_restart: bool = False
    pooled: Callable[[], ClientData] | None = None
    trusted: Mapping[int, str] | None = None
    is_summed: bool = False

    @property
    def privacy(self) -> PrivacySettings:
        """What the run protects."""
        return self.site.privacy

    @property
    def client_id(self) -> int:
        """Id of the client."""
        return self.data.partition.client_id

    @property
    def spec(self) -> ModelSpec[P]:
        """What the client's model is built from."""
        return ModelSpec(
            settings=self.settings,
            params=self.params,
            task=self.task,
            client_id=self.client_id,
            **self.data.partition.graphs.widths,
        )


_BEGAN_AFRESH = "began-afresh"  # in the state: in which round, and what was lost


@dataclass(frozen=True, kw_only=True)
class Round:
    """One message to a client, read, and the client's state from before it.

    Parameters
    ----------
    number : int
        Counted from 1.
    after : int
        The round whose state it goes on from; 0 for none.
    keep_from : int
        The round of the oldest checkpoint.
    received : dict of str to tensor
        Shared tensors as they came; empty if none did.
    extras : dict of str to array
        What came beside the shared tensors.
    facts : mapping of str to scalar
        Texts and flags that came.
    stored : dict of str to tensor
        That state; empty before the client's first round.
    fresh_start : int64 tensor (2,), optional
        The round in which the client began afresh, and the round whose state was lost.
    """

    number: int = 0
    after: int = 0
    keep_from: int = 0
    received: Mapping[str, Tensor] = field(default_factory=dict)
    extras: NamedArrays = field(default_factory=dict)
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    stored: Mapping[str, Tensor] = field(default_factory=dict)
    fresh_start: Tensor | None = None

    def restart_metrics(self) -> dict[str, int]:
        """Metrics that tell the server of a fresh start; empty without one."""
        if self.fresh_start is None:
            return {}
        return {FRESH_START: int(self.fresh_start[1])}

    def kept(self) -> dict[str, Tensor]:
        """Tensors to store; if this reply is lost, the next one tells of it again."""
        return {} if self.fresh_start is None else {_BEGAN_AFRESH: self.fresh_start}


def recall(
    store: ClientStore, number: int, after: int, *, known: int, may_restart: bool
) -> tuple[dict[str, Tensor] | None, Tensor | None]:
    """Load the client's state from before a round.

    Parameters
    ----------
    number, after : int
        The round, and the round whose state it goes on from; 0 for none.
    known : int
        The last round of this client that the server knows of; 0 for none.
    may_restart : bool
        Whether the client may begin afresh when its state is gone.

    Returns
    -------
    stored : dict of str to tensor, or None
        None if there is none.
    fresh_start : tensor, or None
        See :class:`Round`; None once the server has heard of it.

    Raises
    ------
    DataError
        As :meth:`ClientStore.load`, unless ``may_restart``.
    """
    try:
        stored = store.load(after)
    except DataError as error:
        if not may_restart:
            raise
        log(WARNING, "%s. Node-config fresh-start: it begins afresh", error)
        return None, torch.tensor([number, after])
    if stored is None or _BEGAN_AFRESH not in stored:
        return stored, None
    since = stored[_BEGAN_AFRESH]
    return stored, since if int(since[0]) > known else None
