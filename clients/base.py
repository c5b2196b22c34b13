"""Base of every client: a ``NumPyClient`` around one round of GNN training.

Nothing on ``self`` outlives a message: Flower builds a new client each time, possibly
in another process. What must last goes to :class:`~clients.store.ClientStore`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from logging import WARNING
from typing import ClassVar

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common.logger import log
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgraph_flwr.config import RunSettings, Settings
from fedgraph_flwr.errors import DataError, WireError
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.seeding import derive_seed
from fedgraph_flwr.wire import NamedArrays

from .batching import Batch, ClientData
from .models.gin import GIN, shared_keys
from .store import ClientStore, optimizer_tensors, restore_optimizer
from .training import evaluate, train_epochs

Array = NDArray[np.generic]
Config = dict[str, bool | bytes | float | int | str]
Metrics = dict[str, bool | bytes | float | int | str]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything a client needs to answer one message."""

    settings: RunSettings
    params: Settings
    data: ClientData
    store: ClientStore
    device: torch.device

    @property
    def client_id(self) -> int:
        """Id of the client."""
        return self.data.partition.client_id


def build_gin(
    settings: RunSettings, num_features: int, num_classes: int, *, client_id: int
) -> GIN:
    """GIN with the common start in ``convs`` and a start of its own elsewhere.

    With ``shared_group = "all"`` everything starts alike, whoever the client is.
    """
    owner = "common" if settings.shared_group == "all" else f"client-{client_id}"
    shared, private = torch.Generator(), torch.Generator()
    shared.manual_seed(derive_seed(settings.seed, "common", "init"))
    private.manual_seed(derive_seed(settings.seed, owner, "init-private"))
    return GIN(
        num_features,
        num_classes,
        hidden_dim=settings.hidden_dim,
        num_layers=settings.num_layers,
        dropout=settings.dropout,
        shared_generator=shared,
        private_generator=private,
    )


def initial_arrays(
    settings: RunSettings, num_features: int, num_classes: int
) -> NamedArrays:
    """Return the shared tensors before round 1, for the server."""
    model = build_gin(settings, num_features, num_classes, client_id=0)
    tensors = dict(model.named_parameters())
    return {
        n: tensors[n].detach().numpy().copy()
        for n in shared_keys(model, settings.shared_group)
    }


class GraphClient(NumPyClient):
    """One client for the length of one message.

    ``fit`` and ``evaluate`` are the same for every method; a paper overrides the
    parts in which it differs. Parameters travel as a list ordered like
    :attr:`shared_keys`; an empty list keeps the stored tensors.
    """

    UPLINK: ClassVar[str] = SHARED  # prefix of the names of what is sent

    def __init__(self, job: Job) -> None:
        self.job = job
        graphs = job.data.partition.graphs
        self.model = build_gin(
            job.settings,
            graphs.num_features,
            graphs.num_classes,
            client_id=job.client_id,
        ).to(job.device)
        self.shared_keys = shared_keys(self.model, job.settings.shared_group)
        self.received: dict[str, Tensor] = {}

    # Where papers differ ---------------------------------------------------------

    def uplink(self, trained: dict[str, Tensor]) -> list[Array]:
        """Arrays to send, ordered like ``shared_keys``: the trained shared tensors."""
        return to_arrays(list(trained.values()))

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Mean cross-entropy of the batch."""
        return nn.functional.cross_entropy(self.model(batch, generator), batch.y)

    def private_keys(self) -> list[str]:
        """Tensors that stay and persist: all that do not travel."""
        shared = set(self.shared_keys)
        return [n for n, _ in self.model.named_parameters() if n not in shared]

    def num_epochs(self, server_round: int) -> int:  # noqa: ARG002
        """Local epochs in this round."""
        return self.job.settings.local_epochs

    def extra_metrics(self) -> Metrics:
        """Further numbers to send after training."""
        return {}

    # NumPyClient -----------------------------------------------------------------

    def fit(
        self, parameters: list[Array], config: Config
    ) -> tuple[list[Array], int, Metrics]:
        """Evaluate the received model, train it, evaluate again, store, reply.

        Returns
        -------
        arrays, num_examples, metrics
            ``metrics`` holds ``eval/<split>/<point>/<metric>`` for both points and
            the training loss.
        """
        server_round = int(config["server-round"])
        optimizer = self._load(server_round, parameters)
        metrics = self._scores("post_aggregation")
        num_epochs = self.num_epochs(server_round)
        if num_epochs:
            metrics |= self._train(optimizer, server_round, num_epochs)
        metrics |= self._scores("post_training")
        trained = self._named_parameters(self.shared_keys)
        self._save(server_round, optimizer)
        return self.uplink(trained), len(self.job.data.partition.train), metrics

    def evaluate(
        self, parameters: list[Array], config: Config
    ) -> tuple[float, int, Metrics]:
        """Evaluate the received model with the client's private tensors."""
        self._load(int(config["server-round"]), parameters)
        metrics = self._scores("post_aggregation")
        metrics["weights-sha256"] = self._hash()
        loss = float(metrics["eval/test/post_aggregation/loss"])
        return loss, len(self.job.data.partition.test), metrics

    # Steps of a round ------------------------------------------------------------

    def _load(
        self, server_round: int, parameters: list[Array]
    ) -> torch.optim.Optimizer:
        stored = self.job.store.load(server_round)
        if stored is None:
            stored = self._missing_state(server_round, parameters)
        named = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, array in self._received(parameters).items():
                named[name].copy_(torch.from_numpy(np.array(array)))
            # What is kept here wins: a start that is sent again, because the reply
            # to the first was lost, must not undo training.
            for name in self.private_keys():
                if name in stored:
                    named[name].copy_(stored[name])
        self.received = {
            n: named[n].detach().clone()
            for n in (self.shared_keys if parameters else [])
        }
        s = self.job.settings
        optimizer = torch.optim.Adam(
            list(named.values()),
            lr=s.learning_rate,
            weight_decay=s.weight_decay,
            fused=True,
        )
        if s.persist_optimizer:
            restore_optimizer(optimizer, stored)
        return optimizer

    def _missing_state(
        self, server_round: int, parameters: list[Array]
    ) -> dict[str, Tensor]:
        """Nothing stored: normal in round 1, worth a word later, fatal for a model."""
        where = (
            f"no private state of client {self.job.client_id} before round"
            f" {server_round} in {self.job.store.folder}"
        )
        if not parameters:
            raise DataError(f"{where}; restore the folder, or start a new run")
        if server_round > 1:
            log(WARNING, "%s: its private layers start afresh", where)
        return {}

    def _received(self, parameters: list[Array]) -> dict[str, Array]:
        if not parameters:
            return {}
        named = dict(self.model.named_parameters())
        expected = [tuple(named[n].shape) for n in self.shared_keys]
        if [p.shape for p in parameters] != expected:
            raise WireError(
                f"client {self.job.client_id} received arrays of shapes"
                f" {[p.shape for p in parameters]}, its model shares {expected};"
                ' shared-group = "all" needs equal features and classes everywhere'
            )
        return dict(zip(self.shared_keys, parameters, strict=True))

    def _train(
        self, optimizer: torch.optim.Optimizer, server_round: int, num_epochs: int
    ) -> Metrics:
        job = self.job
        seed = derive_seed(job.settings.seed, job.client_id, server_round, "train")
        order = torch.Generator().manual_seed(seed)
        noise = torch.Generator(job.device).manual_seed(
            derive_seed(job.settings.seed, job.client_id, server_round, "dropout")
        )
        loss = train_epochs(
            lambda batch: self.loss(batch, noise),
            optimizer,
            job.data,
            num_epochs=num_epochs,
            batch_size=job.settings.batch_size,
            generator=order,
        )
        return {"eval/train/post_training/loss": loss, **self.extra_metrics()}

    def _scores(self, point: str) -> Metrics:
        metrics: Metrics = {"count/train": len(self.job.data.partition.train)}
        for split, score in evaluate(self.model, self.job.data).items():
            metrics[f"eval/{split}/{point}/accuracy"] = score.accuracy
            metrics[f"eval/{split}/{point}/loss"] = score.loss
            metrics[f"count/{split}"] = score.num_examples
        return metrics

    def _save(self, server_round: int, optimizer: torch.optim.Optimizer) -> None:
        tensors = self._named_parameters(self.private_keys())
        if self.job.settings.persist_optimizer:
            tensors |= optimizer_tensors(optimizer)
        self.job.store.save(server_round, tensors)

    def _named_parameters(self, names: list[str]) -> dict[str, Tensor]:
        named = dict(self.model.named_parameters())
        return {n: named[n].detach() for n in names}

    def _hash(self) -> str:
        """SHA-256 of every tensor of the model, shared and private, by name."""
        digest = hashlib.sha256()
        for name, tensor in sorted(
            self._named_parameters(
                [n for n, _ in self.model.named_parameters()]
            ).items()
        ):
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()


def to_arrays(tensors: list[Tensor]) -> list[Array]:
    """Tensors to NumPy arrays on the host."""
    return [t.cpu().numpy() for t in tensors]
