"""Base of every client: a ``NumPyClient`` around one round of GNN training.

Nothing on ``self`` outlives a message: Flower builds a new client each time, possibly
in another process. What must last goes to :class:`~clients.store.ClientStore`.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common.logger import log
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgraph_flwr.config import RunSettings, Settings
from fedgraph_flwr.data import DiffusionSpec, IntArray
from fedgraph_flwr.errors import DataError, WireError
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.privacy import PrivacySettings
from fedgraph_flwr.seeding import derive_seed
from fedgraph_flwr.tasks import Task
from fedgraph_flwr.wire import FRESH_START, LAST_ROUND, NamedArrays, Scalar

from .graphs.batching import ClientData
from .privacy.site import PrivateSite
from .store import ClientStore, optimizer_tensors, restore_optimizer
from .training import train_epochs

Array = NDArray[np.generic]
Config = dict[str, bool | bytes | float | int | str]
Metrics = dict[str, bool | bytes | float | int | str]
_PREVIOUS = "previous/"
_BEGAN_AFRESH = "began-afresh"  # in the state: in which round, and what was lost
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "amsgrad": functools.partial(torch.optim.Adam, amsgrad=True),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything a client needs to answer one message.

    ``may_restart``: the site's operator lets a client begin afresh whose private state
    is lost; otherwise it fails.
    """

    settings: RunSettings
    params: Settings
    task: Settings
    learning: Task
    data: ClientData
    store: ClientStore
    site: PrivateSite
    device: torch.device
    may_restart: bool = False

    @property
    def privacy(self) -> PrivacySettings:
        """What the run protects."""
        return self.site.privacy

    @property
    def client_id(self) -> int:
        """Id of the client."""
        return self.data.partition.client_id


class GraphClient(NumPyClient):
    """One client for the length of one message.

    ``fit`` and ``evaluate`` are the same for every method. A task fills in the model,
    its loss and its scores; a paper overrides the parts in which it differs.
    Parameters travel as a list ordered like :attr:`shared_keys`; an empty list keeps
    the stored tensors.
    """

    UPLINK: ClassVar[str] = SHARED  # prefix of the names of what is sent
    TAKES_WEIGHTS: ClassVar[bool] = False  # of edges: draws noisy views itself
    SENDS_UPDATES: ClassVar[bool] = True
    MIN_BATCH: ClassVar[int] = 1  # graphs; a smaller last batch joins the one before
    DATA: ClassVar[type[ClientData]] = ClientData
    EXTRA_UPLINK: ClassVar[tuple[str, ...]] = ()  # names of what extra_uplink sends

    def __init__(self, job: Job) -> None:
        self.job, self.data = job, job.data
        graphs = self.data.partition.graphs
        self.model = self.build_model(
            job.settings,
            job.params,
            num_features=graphs.num_features,
            num_classes=graphs.num_classes,
            client_id=job.client_id,
        ).to(job.device)
        self.shared_keys = self.shared_names(self.model, job.settings)
        self.received: dict[str, Tensor] = {}
        self.stored: dict[str, Tensor] = {}
        self._restarted: Metrics = {}  # told until the server has heard of it
        self._began_afresh: dict[str, Tensor] = {}
        self.evaluation: NamedArrays = {}  # sent beside the metrics, if not empty
        self.extra_downlink: NamedArrays = {}  # received beside the shared tensors
        self.notes: Mapping[str, Scalar] = {}  # texts beside them
        self.trusted: Mapping[int, str] | None = None  # fingerprints, by client

    # What a task fills in --------------------------------------------------------

    @classmethod
    @abstractmethod
    def build_model(
        cls,
        settings: RunSettings,
        params: Settings,
        *,
        num_features: int,
        num_classes: int,
        client_id: int,
    ) -> nn.Module:
        """Model before round 1; its shared tensors do not depend on ``client_id``."""

    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:  # noqa: ARG003
        """Names of the tensors that travel: all parameters and buffers."""
        return list(model.state_dict())

    @classmethod
    def diffusion(cls, params: Settings) -> DiffusionSpec | None:  # noqa: ARG003
        """Say which second view of the graphs the method needs; None by default."""
        return None

    @classmethod
    def introduction(cls, params: Settings, store: ClientStore) -> dict[str, str]:  # noqa: ARG003
        """Texts to tell the server at roll call; none by default."""
        return {}

    @classmethod
    def shares_features(cls, params: Settings) -> bool:  # noqa: ARG003
        """Whether features of nodes leave the client; a site must agree to that."""
        return False

    def opening(self) -> NamedArrays:
        """Arrays to give before round 1, where the strategy asks; none by default."""
        return {}

    @abstractmethod
    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Mean loss of a batch; random draws come from ``generator``."""

    @abstractmethod
    def scores(self, server_round: int, point: str) -> Metrics:
        """Evaluate the model as it is now, at ``point`` of ``server_round``."""

    # Where papers differ ---------------------------------------------------------

    def uplink(self, trained: dict[str, Tensor]) -> list[Array]:
        """Arrays to send, ordered like ``shared_keys``: the trained shared tensors."""
        return to_arrays(list(trained.values()))

    def extra_uplink(self) -> NamedArrays:
        """Further arrays to send, of names ``EXTRA_UPLINK``; the model is trained."""
        return {}

    def private_keys(self) -> list[str]:
        """Tensors that stay and persist: all that do not travel."""
        shared = set(self.shared_keys)
        return [n for n in self.tensors() if n not in shared]

    def num_epochs(self, server_round: int) -> int:  # noqa: ARG002
        """Local epochs in this round."""
        return self.job.settings.local_epochs

    def trained_on(self) -> IntArray:
        """Positions of the graphs to train on, ascending: all training graphs."""
        return self.data.partition.train

    def begin_epoch(self, epoch: int) -> None:
        """Do what must be done before local epoch ``epoch``, counted from 0."""

    def end_step(self) -> None:
        """Do what must be done after each step of the optimiser."""

    def end_epoch(self, epoch: int) -> None:
        """Do what must be done after local epoch ``epoch``."""

    def extra_metrics(self) -> Metrics:
        """Further numbers to send after training."""
        return {}

    def extra_state(self) -> dict[str, Tensor]:
        """Further tensors to keep; they are in ``self.stored`` in the next round."""
        return {}

    # The client's own model of the round before, for methods that contrast with it --

    def as_previous(self) -> dict[str, Tensor]:
        """Shared tensors as they are now, for ``extra_state``; others stay anyway."""
        return {_PREVIOUS + n: t for n, t in self._detached(self.shared_keys).items()}

    def previous_model(self) -> Any:
        """Copy of the model with what ``as_previous`` kept; as received if nothing."""
        model = copy.deepcopy(self.model)
        named = model.state_dict()
        for name, tensor in self.stored.items():
            if name.startswith(_PREVIOUS):
                named[name.removeprefix(_PREVIOUS)].copy_(tensor)
        return model

    # NumPyClient -----------------------------------------------------------------

    def fit(
        self, parameters: list[Array], config: Config
    ) -> tuple[list[Array], int, Metrics]:
        """Evaluate the received model, train it, evaluate again, store, reply.

        A model that ``evaluate-every`` leaves out is not evaluated.

        Returns
        -------
        arrays, num_examples, metrics
            ``metrics`` holds ``eval/<split>/<point>/<metric>`` for both points and
            the training loss.
        """
        server_round = int(config["server-round"])
        optimizer = self._load(server_round, parameters)
        metrics = self._restarted | self._scores_if_due(
            server_round, "post_aggregation"
        )
        num_epochs = self.num_epochs(server_round)
        if num_epochs and len(self.data.partition.train):
            metrics |= self._train(optimizer, server_round, num_epochs)
        metrics |= self._scores_if_due(server_round, "post_training")
        trained = self._detached(self.shared_keys)
        self._save(server_round, optimizer, keep_from=int(config.get("keep-from", 0)))
        sent = self.uplink(self._privatised(trained))
        return sent, len(self.data.partition.train), metrics | self.spent()

    def evaluate(
        self, parameters: list[Array], config: Config
    ) -> tuple[float, int, Metrics]:
        """Evaluate the received model with the client's private tensors."""
        server_round = int(config["server-round"])
        self._load(server_round, parameters)
        metrics = self._restarted | self._scores(server_round, "post_aggregation")
        metrics["weights-sha256"] = self._hash()
        metrics |= self.spent()
        # Flower wants a loss; ours are among the metrics, by split.
        return 0.0, len(self.data.partition.test), metrics

    # Steps of a round ------------------------------------------------------------

    def _load(
        self, server_round: int, parameters: list[Array]
    ) -> torch.optim.Optimizer:
        if server_round < 1:
            raise WireError(
                f"client {self.job.client_id} is asked for round {server_round}, rounds"
                " count from 1; both ends must run the same version of fedgraph_flwr"
            )
        self.server_round = server_round
        self.stored = self._stored_before(server_round, parameters)
        named = self.tensors()
        with torch.no_grad():
            for name, array in self._received(parameters).items():
                named[name].copy_(torch.from_numpy(np.array(array)))
            # What is kept here wins: a start that is sent again, because the reply
            # to the first was lost, must not undo training.
            for name in self.private_keys():
                if name in self.stored:
                    named[name].copy_(self.stored[name])
        self.received = {
            n: named[n].detach().clone()
            for n in (self.shared_keys if parameters else [])
        }
        s = self.job.settings
        optimizer = _OPTIMIZERS[s.optimizer](
            list(self.model.parameters()),
            lr=s.learning_rate,
            weight_decay=s.weight_decay,
            fused=True,
        )
        if s.persist_optimizer:
            restore_optimizer(optimizer, self.stored)
        return optimizer

    def _stored_before(
        self, server_round: int, parameters: list[Array]
    ) -> dict[str, Tensor]:
        """State of the client's last round; nothing before its first."""
        last_round = int(self.notes.get(LAST_ROUND, 0))
        try:
            stored = self.job.store.load(server_round, last_round)
        except DataError as error:
            if not self.job.may_restart:
                raise
            log(WARNING, "%s. Node-config fresh-start: it begins afresh", error)
            stored = None
            self._note_restart(torch.tensor([server_round, last_round]))
        if stored is None:
            return self._missing_state(server_round, parameters)
        if _BEGAN_AFRESH in stored and int(stored[_BEGAN_AFRESH][0]) > last_round:
            self._note_restart(stored[_BEGAN_AFRESH])  # the reply to it was lost
        return stored

    def _note_restart(self, since: Tensor) -> None:
        """Tell of a fresh start in this reply, and remember it for the next."""
        self._restarted = {FRESH_START: int(since[1])}
        self._began_afresh = {_BEGAN_AFRESH: since}

    def _missing_state(
        self, server_round: int, parameters: list[Array]
    ) -> dict[str, Tensor]:
        """Nothing stored: normal before the first round, if a start was sent."""
        if not parameters:
            raise DataError(
                f"no private state of client {self.job.client_id} before round"
                f" {server_round} in {self.job.store.folder}, and the server sends no"
                " model to begin with; restore the folder, or start a new run"
            )
        return {}

    def _received(self, parameters: list[Array]) -> dict[str, Array]:
        if not parameters:
            return {}
        named = self.tensors()
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
        if not len(self.trained_on()):
            return self.extra_metrics()
        self.model.train()
        loss = self.run_epochs(optimizer, num_epochs, order=order, noise=noise)
        return {"eval/train/post_training/loss": loss, **self.extra_metrics()}

    def run_epochs(
        self,
        optimizer: torch.optim.Optimizer,
        num_epochs: int,
        *,
        order: torch.Generator,
        noise: torch.Generator,
    ) -> float:
        """Train; return the mean loss of the last epoch.

        ``order`` draws the batches (on the CPU), ``noise`` what a loss needs.
        """
        return train_epochs(
            lambda batch: self.loss(batch, noise),
            optimizer,
            self.data,
            num_epochs=num_epochs,
            batch_size=self.job.settings.batch_size,
            generator=order,
            min_batch=self.MIN_BATCH,
            train=self.trained_on(),
            begin_epoch=self.begin_epoch,
            end_step=self.end_step,
            end_epoch=self.end_epoch,
        )

    def _privatised(self, trained: dict[str, Tensor]) -> dict[str, Tensor]:
        """Shared tensors with a clipped and noisy update, where the run asks for it."""
        privacy, site = self.job.privacy, self.job.site
        if not privacy.update_clip or not self.SENDS_UPDATES:
            return trained
        received = {n: w.cpu().numpy() for n, w in self.received.items()}
        stored = [t.cpu().numpy() for _, t in sorted(self.stored.items())]
        noisy = site.noisy_update(
            [trained[n].cpu().numpy() - w for n, w in received.items()],
            self.data.partition,
            server_round=self.server_round,
            inputs=[*received.values(), *stored],
        )
        return {
            n: torch.from_numpy(w + step)
            for (n, w), step in zip(received.items(), noisy, strict=True)
        }

    def spent(self) -> dict[str, float]:
        """Metrics that say what privacy was spent so far; nothing in other runs."""
        if not self.job.privacy.is_on:
            return {}
        return self.job.site.spent(self.data.partition)

    def _scores(self, server_round: int, point: str) -> Metrics:
        self.model.eval()
        return self._sizes() | self.scores(server_round, point)

    def _sizes(self) -> Metrics:
        return {"count/train": len(self.data.partition.train)}

    def _scores_if_due(self, server_round: int, point: str) -> Metrics:
        """Scores of a model after a round that is to be measured."""
        settings, is_trained = self.job.settings, point == "post_training"
        after = server_round if is_trained else server_round - 1
        is_last = after == settings.num_server_rounds
        if after % settings.evaluate_every and not is_last:
            return self._sizes()
        return self._scores(server_round, point)

    def _save(
        self, server_round: int, optimizer: torch.optim.Optimizer, *, keep_from: int
    ) -> None:
        tensors = self._detached(self.private_keys()) | self.extra_state()
        if self.job.settings.persist_optimizer:
            tensors |= optimizer_tensors(optimizer)
        tensors |= self._began_afresh
        self.job.store.save(server_round, tensors, keep_from=keep_from)

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers of the model by name."""
        return dict(self.model.state_dict(keep_vars=True))

    def _detached(self, names: list[str]) -> dict[str, Tensor]:
        named = self.tensors()
        return {n: named[n].detach() for n in names}

    def _hash(self) -> str:
        """SHA-256 of every tensor of the model, shared and private, by name."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self._detached(list(self.tensors())).items()):
            digest.update(name.encode())
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()


def common_generator(settings: RunSettings) -> torch.Generator:
    """Stream of the initial tensors that all clients have in common."""
    generator = torch.Generator()
    generator.manual_seed(derive_seed(settings.seed, "common", "init"))
    return generator


def initial_arrays(
    client: type[GraphClient],
    settings: RunSettings,
    params: Settings,
    *,
    num_features: int,
    num_classes: int,
) -> NamedArrays:
    """Return the shared tensors before round 1, for the server."""
    model = client.build_model(
        settings,
        params,
        num_features=num_features,
        num_classes=num_classes,
        client_id=0,
    )
    tensors = model.state_dict()
    return {n: tensors[n].numpy().copy() for n in client.shared_names(model, settings)}


def to_arrays(tensors: list[Tensor]) -> list[Array]:
    """Tensors to NumPy arrays on the host."""
    return [t.cpu().numpy() for t in tensors]
