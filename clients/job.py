"""The job that a client is given, and the sizes that its model is built from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from fedgraph_flwr.config import RunSettings, Settings
from fedgraph_flwr.privacy import PrivacySettings
from fedgraph_flwr.seeding import derive_seed
from fedgraph_flwr.tasks import Task
from fedgraph_flwr.wire import NamedArrays

from .graphs.batching import ClientData
from .privacy.site import PrivateSite
from .store import ClientStore

P = TypeVar("P", bound=Settings)  # parameters of a method


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Generic[P]):
    """Everything that a model before round 1 depends on.

    Parameters
    ----------
    settings : RunSettings
    params, task : Settings
        Of the method, and of the kind of learning.
    num_features, num_classes : int
        Widths of input and output.
    client_id : int
        Only tensors that do not travel may depend on it.
    """

    settings: RunSettings
    params: P
    task: Settings
    num_features: int
    num_classes: int
    client_id: int = 0

    def common_generator(self) -> torch.Generator:
        """Stream of the initial tensors that all clients have in common."""
        seed = derive_seed(self.settings.seed, "common", "init")
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
    settings : RunSettings
    params, task : Settings
        Of the method, and of the kind of learning.
    learning : Task
        The kind of learning.
    data : ClientData
    store : ClientStore
        The client's private state.
    site : PrivateSite
        Draws the client's noise and keeps the account of it.
    device : torch.device
    may_restart : bool
        The site's operator lets a client begin afresh when its private state is lost;
        otherwise the client fails.
    trusted : mapping of int to str, optional
        Fingerprints of other clients' keys, by client, that the operator confirmed;
        None if the operator wrote down none.
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
    trusted: Mapping[int, str] | None = None

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
        graphs = self.data.partition.graphs
        return ModelSpec(
            settings=self.settings,
            params=self.params,
            task=self.task,
            num_features=graphs.num_features,
            num_classes=graphs.num_classes,
            client_id=self.client_id,
        )
