"""Base of every client: one round of GNN training around a task's model and loss.

Nothing on ``self`` outlives a message: Flower builds a new client each time, possibly
in another process. What must last goes to :class:`~clients.store.ClientStore`.

A server that chooses the model can make training overflow, or fail, for some label
alone. Neither shows in the reply, but for the time that it took, and both are paid for.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from logging import WARNING
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from fedgraph_flwr.core.config import (
    OF_PAPERS,
    PAPER,
    READ_FEATURES,
    READ_WEIGHTS,
    RunSettings,
)
from fedgraph_flwr.core.data import (
    DiffusionSpec,
    GraphPartition,
    GraphSet,
    IntArray,
    balanced_weights,
    training_counts,
)
from fedgraph_flwr.core.errors import (
    ConfigError,
    DataError,
    PrivacyBudgetError,
    StorageError,
    WireError,
)
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.seeding import derive_seed
from fedgraph_flwr.core.wire import (
    CLASS_WEIGHTS,
    KEEP_FROM,
    LAST_ROUND,
    NUM_EXAMPLES,
    SERVER_ROUND,
    TRAIN_LOSS,
    WEIGHTS_HASH,
    NamedArrays,
    Parcel,
    count_key,
    join,
    select,
    with_prefix,
)
from fedgraph_flwr.core.words import visible
from fedgraph_flwr.methods.fedavg import SHARED

from .classic import ClassicClient, Header
from .graphs.batching import ClientData
from .job import Job, ModelSpec, P, Round, Start, recall
from .noisy_steps import NoisySteps
from .store import ClientStore
from .training import (
    epoch_positions,
    hash_tensors,
    make_optimizer,
    optimizer_tensors,
    places,
    read_shared,
    read_weights,
    to_arrays,
)

_ASKED = "asked-so-far"  # in the state
_START_NOISE = 1e-7  # standard deviation


Metrics = dict[str, int | float]


class GraphClient(ClassicClient, Generic[P]):
    """One client for the length of one message.

    :meth:`participate` is a round, in five verbs: load, measure, train, update, reply.
    A task fills in the model, its loss and its scores. A paper overrides the verb in
    which it differs, and calls the one of its base.
    """

    SENDS_UPDATES: ClassVar[bool] = True
    PER_GRAPH: ClassVar[bool] = False  # see is_per_graph; says so of this class alone
    MIN_BATCH: ClassVar[int] = 1  # graphs; a smaller last batch joins the one before
    DATA: ClassVar[type[ClientData]] = ClientData
    # Its own model reads the direction of edges, repeated edges and loops.
    READS_EDGES: ClassVar[bool] = False
    # Its model is that of the task, whose encoder a run may choose; never so in a class
    # with a build_model of its own that does not say so.
    TAKES_ENCODER: ClassVar[bool] = False
    ENCODERS: ClassVar[tuple[str, ...]] = (PAPER,)  # what build_model itself makes
    # Why its models cannot predict outside of a run, or other clients' items in it.
    WHY_NOT: ClassVar[str] = "its class has no function predict"
    NOT_ELSEWHERE: ClassVar[str] = ""

    @override
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "build_model" in own and not own.keys() & {"TAKES_ENCODER", "ENCODERS"}:
            cls.TAKES_ENCODER, cls.ENCODERS = False, (PAPER,)

    def __init__(self, job: Job[P]) -> None:
        self.job, self.params, self.data = job, job.params, job.data
        start = start_of(type(self), job.spec)
        self.model, self.shared_keys = start.model, list(start.shared)
        if job.device.type != "cpu":  # where it was built; to go over it takes time
            self.model.to(job.device)
        self.round = Round()  # of the message that is answered
        self.is_last = False  # the closing evaluation is answered
        self.noisy_steps: NoisySteps | None = None  # in runs with noise on gradients
        self.is_undone = False  # training overflowed, and the model is as it was before

    # A round -----------------------------------------------------------------------

    @override
    def participate(self, parcel: Parcel, header: Header) -> Parcel:
        """Evaluate the received model, train it, evaluate again, store, reply.

        Parameters
        ----------
        parcel : Parcel
            Shared tensors, or none if those stored are to be used; and whatever else
            the method sends.
        header : mapping
            ``server-round``; ``keep-from``, the round of the oldest checkpoint.

        Returns
        -------
        Parcel
            What :meth:`update` makes; scores at both points, the training loss and
            what privacy was spent.

        Raises
        ------
        DataError, WireError
            As :meth:`load`.
        """
        self.load(parcel, header)
        received = self.measure("post_aggregation")
        loss = self.train()
        trained = self.measure("post_training")
        return self.reply(received, loss, trained, self.update(self.trained()))

    @override
    def assess(self, parcel: Parcel, header: Header) -> Parcel:
        """Evaluate the received model with the client's private tensors.

        Parameters, ``Raises`` as :meth:`participate`. Returns scores, and the hash of
        the whole model.
        """
        self.is_last = True
        self.load(parcel, header)
        measured = self._measure("post_aggregation")
        about = Parcel(
            facts={WEIGHTS_HASH: hash_tensors(self.tensors())}, metrics=self.spent()
        )
        return join(self._counts("test"), measured, about)

    # Its verbs ---------------------------------------------------------------------

    def load(self, parcel: Parcel, header: Header) -> None:
        """Read a message, and set the model to its state at the start of the round.

        Raises
        ------
        DataError
            The client's state is gone, or cannot be used.
        WireError
            The number is no round, or comes before a round that the client has done;
            or the arrays are not what the model shares.
        """
        number, known = self._number(header), int(parcel.facts.get(LAST_ROUND, 0))
        after = self.goes_on_from(number, known)
        if after >= number:
            raise WireError(
                f"client {self.job.client_id} is asked for round {number} after its"
                f" round {after}; both ends must run the same version of fedgraph_flwr"
            )
        stored, fresh_start = recall(
            self.job.store,
            number,
            after,
            known=known,
            may_restart=self.job.may_restart,
        )
        named = self.tensors()
        shared = read_shared(
            select(SHARED, parcel.arrays),
            {n: named[n] for n in self.shared_keys},
            client_id=self.job.client_id,
        )
        if stored is None and not shared:
            self.without_state(number)
        elif not shared and set(self.shared_keys) - set(stored or {}):
            raise WireError(f"client {self.job.client_id} is sent no model")
        self.round = Round(
            number=number,
            after=after,
            keep_from=int(header.get(KEEP_FROM, 0)),
            received=self.put(shared, stored or {}),
            extras={n: a for n, a in parcel.arrays.items() if not n.startswith(SHARED)},
            facts=parcel.facts,
            stored=stored or {},
            fresh_start=fresh_start,
        )

    def measure(self, point: str) -> Parcel:
        """Evaluate the model as it is now, at a point of the round, if that is due.

        A model that ``evaluate-every`` leaves out is not evaluated.
        """
        after = self.round.number - (point != "post_training")
        is_due = self.job.settings.is_measured(after)
        return self._measure(point) if is_due else self.sizes()

    def train(self, num_epochs: int | None = None) -> Parcel:
        """Train, if there is anything to do; return the loss of the last epoch.

        ``num_epochs`` are ``local-epochs`` by default.
        """
        count = self.job.settings.local_epochs if num_epochs is None else num_epochs
        is_noisy = self.job.privacy.graph_clip > 0
        train = self.data.partition.train if is_noisy else self.trained_on()
        if not count or not len(train):
            return Parcel()
        self.model.train()
        with self.hiding_failure():
            if is_noisy:
                self.noisy_steps = NoisySteps(self, count, self._inputs())
            for number in range(count):
                loss = self.epoch(number)
            self._check_class_weights()
            # The loss is an exact function of graphs that noise is to hide.
            return Parcel(metrics={} if is_noisy else {TRAIN_LOSS: float(loss)})
        return Parcel()

    def epoch(self, number: int) -> Tensor:  # noqa: ARG002
        """Train on all batches once; return the mean loss per graph.

        ``number`` counts the epochs of this round from 0. The mean is read once a
        round, so that nothing waits for the device.
        """
        total = torch.zeros((), device=self.data.graphs.device)
        if self.noisy_steps is not None:
            self.noisy_steps.epoch()
            return total
        train, size = self.trained_on(), self.job.settings.batch_size
        for positions in epoch_positions(
            train, size, self.order, min_batch=self.MIN_BATCH
        ):
            batch = self.batch(positions)
            total += self.step(batch) * batch.num_graphs
        return total / len(train)

    def batch(self, positions: IntArray) -> Any:
        """Return the items at ``positions``, as the loss takes them."""
        return self.data.graphs.batch(positions)

    def step(self, batch: Any) -> Tensor:
        """Make a step of the optimiser; return the loss of the batch before it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(batch, self.noise) + self.penalty()
        loss.backward()  # type: ignore[no-untyped-call]
        self.steer()
        self.optimizer.step()
        return loss.detach()

    def steer(self) -> None:
        """Change gradients before a step; nothing unless overridden."""

    def whole_epoch(self) -> list[tuple[Any, float]]:
        """Batches of all training items in their order, and the share of each."""
        train, size = self.trained_on(), self.job.settings.batch_size
        parts = [train[at : at + size] for at in range(0, len(train), size)]
        batch = self.data.graphs.batch
        return [(batch(p), len(p) / len(train)) for p in parts]

    def update(self, trained: dict[str, Tensor]) -> Parcel:
        """Make what is sent after training: the trained shared tensors.

        Parameters
        ----------
        trained : dict of str to tensor
            In the order of ``shared_keys``; with noise, if the run protects updates.
        """
        return Parcel(arrays=with_prefix(SHARED, to_arrays(trained)))

    def reply(self, *parts: Parcel) -> Parcel:
        """Store what the next round goes on from, and join the parts of the reply.

        Who must not or cannot send has not done the round: make the parts before.
        """
        self.job.store.save(
            self.round.number,
            self.to_keep(),
            after=self.round.after,
            keep_from=self.round.keep_from,
        )
        return join(self._counts("train"), *parts, Parcel(metrics=self.spent()))

    def to_keep(self) -> dict[str, Tensor]:
        """Tensors to store after a round; those of before, if it is undone."""
        if self.is_undone:
            kept = dict(self.round.stored) or self._detached(self.private_keys())
        else:
            kept = self.state()
        return {**kept, **self.round.kept(), **self._asked()}

    # What a task fills in ----------------------------------------------------------

    @classmethod
    @abstractmethod
    def build_model(cls, spec: ModelSpec[P]) -> nn.Module:
        """Model before round 1, which depends on ``spec`` alone.

        Draws come from generators made of the specification's seed.
        """

    @classmethod
    def build_predictor(cls, spec: ModelSpec[P]) -> nn.Module:
        """Model that has the tensors of :meth:`predictor`, to be filled with them."""
        return cls.build_model(spec)

    @classmethod
    def predict(cls, model: Any, data: Any, params: P) -> Tensor:
        """Predict for a client's validation items, then for its test items.

        Parameters
        ----------
        model : Module
            As of :meth:`build_predictor`, in evaluation mode.
        data : ClientData
            As of ``DATA``.
        params : Settings
            Of the method.

        Returns
        -------
        float32 tensor, shape (num_val + num_test, num_outputs)
            Logits, the numbers that a regression predicts, or embeddings.
        """
        raise NotImplementedError(cls.WHY_NOT)

    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:
        """Names of the tensors that travel, as ``shared-group`` says."""
        names = [name for name, _ in places(model)]
        if settings.shared_group == "convs":
            return [n for n in names if n.startswith("convs.")]
        is_body = settings.shared_group == "body"
        return [n for n in names if not (is_body and n.startswith("readout."))]

    @abstractmethod
    def loss(self, batch: Any, generator: torch.Generator) -> Tensor:
        """Mean loss of a batch, to which :meth:`penalty` is added.

        Random draws come from ``generator``.
        """

    def weight(self, batch: Any) -> Any:
        """Factor by which the mean loss of a batch becomes a sum over graphs."""
        return batch.num_graphs

    def penalty(self) -> Tensor:
        """Return the part of the loss that depends on weights alone."""
        return torch.zeros(())

    @classmethod
    def is_per_graph(cls) -> bool:
        """Whether the loss is a mean over graphs, but for :meth:`penalty`.

        Each class that changes the training has to say so by ``PER_GRAPH``.
        """
        changes = ("loss", "step", "epoch", "train", "participate")
        own = [vars(c) for c in cls.__mro__ if issubclass(c, GraphClient)]
        makers = [o for o in own[:-1] if any(n in o for n in changes)]
        return all(o.get("PER_GRAPH", False) for o in makers)

    @classmethod
    def takes_samples(cls) -> bool:
        """Whether a client of one graph can train on samples of it."""
        return False

    @abstractmethod
    def scores(self, point: str) -> Parcel:
        """Evaluate the model as it is now, at ``point`` of the round.

        Parameters
        ----------
        point : str
            "post_aggregation" or "post_training".

        Returns
        -------
        Parcel
            ``metrics`` named ``eval/<split>/<point>/<metric>``, or in ``evaluation``
            what the server needs to evaluate itself.
        """

    @classmethod
    def check_graphs(cls, graphs: GraphSet, settings: RunSettings) -> None:
        """Refuse graphs that the model would take for others.

        Raises
        ------
        DataError
        """
        encoder = settings.encoder
        is_plain = graphs.is_undirected and graphs.is_simple
        if encoder in OF_PAPERS and not (is_plain or cls.READS_EDGES):
            raise DataError(
                f"{graphs.name} has {' and '.join(graphs.beside)}, which this model"
                " does not read: it sums over neighbours of undirected graphs without"
                " repeated edges or loops. Set encoder in the run config to a model"
                " that does, with a method that takes one (docs/methods.md#encoders),"
                " or merge edges in the schema"
            )
        if encoder == "gine" and not graphs.widths.get("num_edge_features"):
            why = f"{graphs.name} has none"
            why = why if settings.edge_features else "edge-features is false"
            raise DataError(
                f"encoder 'gine' reads features of edges, but {why}; set encoder to"
                " 'gin' in the run config"
            )
        weight = graphs.edge_weight
        if encoder == "gcn" and weight is not None and weight.min(initial=0) < 0:
            raise DataError(
                f"encoder 'gcn' divides by roots of sums of weights, and {graphs.name}"
                f" has a weight of {weight.min():g}; set encoder to 'graphconv' in the"
                " run config, or make weights >= 0"
            )

    @classmethod
    def unread(cls, graphs: GraphSet, settings: RunSettings) -> str:
        """Name what data carry and the model does not read, in words; "" for none."""
        encoder = settings.encoder
        if encoder == PAPER and cls.READS_EDGES:
            return ""
        reads = {"features": READ_FEATURES, "weights": READ_WEIGHTS}
        found = [w for w in graphs.beside if encoder not in reads.get(w, (encoder,))]
        words = [f"{' and '.join(found)} of edges"] * bool(found)
        if encoder == PAPER and graphs.graph_x is not None:
            words.append("features of graphs")
        return ", ".join(words)

    # Where papers differ -----------------------------------------------------------

    def private_keys(self) -> list[str]:
        """Names of tensors that stay and persist: all that do not travel."""
        shared = set(self.shared_keys)
        return [n for n in self.tensors() if n not in shared]

    @cached_property
    def optimizer(self) -> Optimizer:
        """The optimiser of this round, of all parameters."""
        parameters = self.model.parameters()
        return make_optimizer(parameters, self.job.settings, self.round.stored)

    def trained_on(self) -> IntArray:
        """Positions of the graphs to train on, ascending: all training graphs."""
        return self.data.partition.train

    @cached_property
    def class_weights(self) -> Tensor | None:
        """Weights of classes in the loss, (num_classes,); None if all weigh 1.

        Of targets those of 0 and of 1, (2, num_tasks).

        Raises
        ------
        WireError
            The server sent none, or no weights.
        """
        kind = self.job.settings.class_weights
        if kind == "none":
            return None
        counts = training_counts(self.data.partition)
        found = balanced_weights(counts)
        if kind == "federation":
            sent = str(self.round.facts.get(CLASS_WEIGHTS, ""))
            found = read_weights(sent, counts.shape)
        dtype = torch.get_default_dtype()
        return torch.tensor(found, dtype=dtype, device=self.job.device)

    def _check_class_weights(self) -> None:
        """Refuse a loss that has not read the weights that the run asks for."""
        asked = self.job.settings.class_weights
        if asked != "none" and "class_weights" not in vars(self):
            raise ConfigError(
                f"class-weights is {asked!r}, but the loss of method"
                f" {self.job.settings.method!r} does not read it; leave class-weights"
                " out of the run config, or let loss() of the client read"
                " self.class_weights"
            )

    def extra_state(self) -> dict[str, Tensor]:
        """Further tensors to keep; the next round finds them in ``stored``."""
        return {}

    def goes_on_from(self, number: int, known: int) -> int:  # noqa: ARG002
        """Round whose state round ``number`` goes on from; 0 for none.

        That is the last one that the server knows of: a round whose reply it does not
        have counts for neither side.
        """
        return known

    def without_state(self, number: int) -> None:
        """Refuse a round if nothing is stored from before it and no model came.

        Raises
        ------
        DataError
        """
        raise DataError(
            f"no private state of client {self.job.client_id} before round"
            f" {number} in {self.job.store.folder}, and the server sends no"
            " model to begin with; restore the folder, or start a new run"
        )

    # What only some papers offer ---------------------------------------------------

    @classmethod
    def diffusion(cls, params: P) -> DiffusionSpec | None:  # noqa: ARG003
        """How a second, weighted view of the graphs is made; None for none."""
        return None

    @classmethod
    def introduction(cls, params: P, store: ClientStore) -> dict[str, str]:  # noqa: ARG003
        """Texts, by name, that the server hands on to the other clients."""
        return {}

    def opening(self) -> NamedArrays:
        """Arrays for the other clients before round 1, if the strategy asks for them.

        Raises
        ------
        WireError
            The method has none.
        """
        raise WireError(
            f"client {self.job.client_id} is asked for an opening, which its method"
            " does not have; both ends must run the same version of fedgraph_flwr"
        )

    @classmethod
    def remark(cls, received: NamedArrays, sent: NamedArrays) -> str:  # noqa: ARG003
        """Half a sentence on mail, for a message's line in the log; "" for nothing."""
        return ""

    @classmethod
    def derived(cls, arrays: NamedArrays) -> NamedArrays:  # noqa: ARG003
        """Make ``evaluation`` of a parcel from its ``arrays``, if it follows alone."""
        return {}

    # What the verbs are made of ----------------------------------------------------

    def _number(self, header: Header) -> int:
        number = int(header[SERVER_ROUND])
        if number < 1:
            raise WireError(
                f"client {self.job.client_id} is asked for round {number}, rounds"
                " count from 1; both ends must run the same version of fedgraph_flwr"
            )
        return number

    def _counts(self, split: str) -> Parcel:
        count = len(self.data.partition.positions(split))
        return Parcel(metrics={NUM_EXAMPLES: count, **self.round.restart_metrics()})

    @torch.no_grad()
    def put(
        self, shared: NamedArrays, stored: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Copy received arrays into the model, then the stored private ones.

        Return what was received, as tensors of their own.
        """
        named, received = self.tensors(), {}
        for name, array in shared.items():
            own = torch.from_numpy(np.array(array)).to(named[name].device)
            named[name].copy_(own)
            received[name] = own
        for name in self.private_keys():
            if name in stored:
                named[name].copy_(stored[name])
        return received

    @cached_property
    def order(self) -> torch.Generator:
        """Stream of this round that draws the order of batches, on the CPU."""
        return self._stream("train", torch.device("cpu"))

    @cached_property
    def noise(self) -> torch.Generator:
        """Stream of this round from which losses draw."""
        return self._stream("dropout", self.job.device)

    def _stream(self, name: str, device: torch.device) -> torch.Generator:
        of_round = self.job.settings.seed, self.job.client_id, self.round.number
        return torch.Generator(device).manual_seed(derive_seed(*of_round, name))

    def _measure(self, point: str) -> Parcel:
        self.model.eval()
        with self.hiding_failure():
            return join(self.sizes(), self.scores(point))
        return self.sizes()

    @property
    def scored(self) -> GraphPartition:
        """The data as scores see them: no training graph, if noise is to hide each."""
        partition = self.data.partition
        is_hidden = self.job.privacy.graph_clip > 0
        return replace(partition, train=partition.train[:0]) if is_hidden else partition

    def sizes(self) -> Parcel:
        """Metric of the number of training graphs."""
        return Parcel(metrics={count_key("train"): len(self.data.partition.train)})

    def state(self) -> dict[str, Tensor]:
        """Tensors from which the next round goes on."""
        tensors = self._detached(self.private_keys()) | self.extra_state()
        if self.job.settings.persist_optimizer:
            tensors |= optimizer_tensors(self.optimizer)
        return tensors

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers of the model by name."""
        return {name: there[key] for name, (there, key) in self._places.items()}

    @cached_property
    def _places(self) -> dict[str, tuple[dict[str, Any], str]]:
        return dict(places(self.model))  # ``state_dict`` searches each time

    def predictor(self) -> dict[str, Tensor]:
        """Tensors of the client's model folder: the model, and what else it needs."""
        return self.tensors()

    def _detached(self, names: list[str]) -> dict[str, Tensor]:
        named = self.tensors()
        return {n: named[n].detach() for n in names}

    # Privacy of its updates --------------------------------------------------------

    @property
    def hides_labels(self) -> bool:
        """Whether failures are hidden: at a site, if noise hides labels."""
        return self.job.site.is_secret and self.job.privacy.hides_labels

    def trained(self) -> dict[str, Tensor]:
        """Shared tensors as trained; noisy, if the run protects updates.

        To be called once in a round.
        """
        is_noisy = self.job.privacy.update_clip and self.SENDS_UPDATES
        return self._noisy() if is_noisy else self._detached(self.shared_keys)

    @torch.no_grad()
    def _noisy(self) -> dict[str, Tensor]:
        """Add a clipped, noisy update to what was received; charge the account."""
        if self._overflowed():
            self._undo()
        named = self._detached(self.shared_keys)
        received = {n: w.cpu().numpy() for n, w in self.round.received.items()}
        self.job.site.check_received([*received.values()])
        noisy = self.job.site.noisy_update(
            [named[n].cpu().numpy() - w for n, w in received.items()],
            self.data.partition,
            server_round=self.round.number,
            inputs=self._inputs(),
        )
        return {
            n: torch.from_numpy(w + step)
            for (n, w), step in zip(received.items(), noisy, strict=True)
        }

    def _inputs(self) -> list[np.ndarray[Any, Any]]:
        """All that the round is computed from beside the data."""
        stored = [t for _, t in sorted(self.round.stored.items())]
        asked = self._asked().values()
        tensors = [*self.round.received.values(), *stored, *asked]
        return [t.cpu().numpy() for t in tensors]

    def _overflowed(self) -> bool:
        """Whether the model, or its update, holds NaN or infinity."""
        tensors = self.tensors()
        steps = [tensors[n] - w for n, w in self.round.received.items()]
        return not all(bool(t.isfinite().all()) for t in (*tensors.values(), *steps))

    def _undo(self) -> None:
        """Set the model to the start of the round, as if it had not been trained.

        A server that chooses the model can let it overflow for some label. Its update
        is then one of zeros, under noise and paid for, so that nobody sees whether it
        did; and the next round begins with numbers.
        """
        log(
            WARNING,
            "client %d, round %d: training overflowed, so the noise alone of its update"
            " is sent, and charged; lower learning-rate",
            self.job.client_id,
            self.round.number,
        )
        tensors, before = self.tensors(), self._start_tensors()
        for name in self.private_keys():
            tensors[name].copy_(self.round.stored.get(name, before[name]))
        for name, weight in self.round.received.items():
            tensors[name].copy_(weight)
        self.is_undone = True

    def _start_tensors(self) -> dict[str, Tensor]:
        start = dict(places(start_of(type(self), self.job.spec).model))
        return {name: there[key] for name, (there, key) in start.items()}

    def _asked(self) -> dict[str, Tensor]:
        """Digest of all that led to this round beside the data, for noise and state.

        At a site noise has its name too. Of names by states alone a server that asks
        for one round from two states would see by equal noise that these are equal: no
        label has changed anything.
        """
        if not self.hides_labels:
            return {}
        before = self.round.stored.get(_ASKED, torch.zeros(0, dtype=torch.uint8))
        digest = hashlib.sha256(before.numpy().tobytes())
        # A resume may change the threads, on which last digits depend.
        digest.update(f"{self.round.number}/{self.job.settings.torch_threads}".encode())
        received = [w.cpu().numpy() for w in self.round.received.values()]
        for array in (*received, *self.round.extras.values()):
            digest.update(f"/{array.dtype}{array.shape}".encode() + array.tobytes())
        return {_ASKED: torch.tensor(list(digest.digest()), dtype=torch.uint8)}

    def hiding_failure(self) -> AbstractContextManager[None]:
        """Go on after a failure in this block, if the site's updates are noisy.

        A server that chooses the model can make it fail for some label alone, and would
        learn that label past the noise. What was trained until then is sent under
        noise, and charged, as ever.
        """
        return self._hiding() if self.hides_labels else nullcontext()

    @contextmanager
    def _hiding(self) -> Iterator[None]:
        try:
            yield
        except (ConfigError, PrivacyBudgetError, StorageError, WireError):
            raise  # of the run, the budget or the disk
        except Exception as error:
            log(
                WARNING,
                "client %d, round %d: goes on without what failed, as the server must"
                " not learn of it: %s: %s",
                self.job.client_id,
                self.round.number,
                type(error).__name__,
                visible(str(error)),
            )

    def spent(self) -> dict[str, float]:
        """Metrics of the privacy spent so far; none in runs without noise."""
        if not self.job.privacy.is_on:
            return {}
        return self.job.site.spent(self.data.partition)


def start_of(client: type[GraphClient[P]], spec: ModelSpec[P]) -> Start:
    """Make the model before round 1 of clients of this class."""
    model = client.build_model(spec)
    if draw := spec.settings.start_noise:
        seed = derive_seed(spec.settings.seed, "start-noise", draw)
        noise = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for tensor in model.parameters():
                drawn = torch.randn(tensor.shape, generator=noise)
                tensor.add_(drawn, alpha=_START_NOISE)
    return Start(model, tuple(client.shared_names(model, spec.settings)))
