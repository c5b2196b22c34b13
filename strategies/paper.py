"""What a paper's strategy fills in and may ask, and how the server may score."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

from fedgraph_flwr.core.attack_settings import AttackSettings
from fedgraph_flwr.core.config import RunSettings, Settings
from fedgraph_flwr.core.data import hash_federation
from fedgraph_flwr.core.fields import Phase
from fedgraph_flwr.core.network import Network
from fedgraph_flwr.core.privacy_settings import PrivacySettings
from fedgraph_flwr.core.robust_settings import RobustSettings
from fedgraph_flwr.core.secure_aggregation import MISSED, SecureAggregation
from fedgraph_flwr.core.tasks import NODE_CLASSIFICATION, OF_EDGES
from fedgraph_flwr.core.wire import (
    BY_PRECISION,
    CLASS_WEIGHTS,
    DATA_OF_ALL,
    LAST_ROUND,
    RAREST,
    SAME_DATA,
    SPENT,
    Lives,
    NamedArrays,
    Parcel,
    Scalar,
    with_prefix,
)
from fedgraph_flwr.core.words import shortened

from .directory import Directory
from .replies import Layout
from .round_report import ClientInfo, Evaluation, Rarest, RoundReport

Observer = Callable[[Any, RoundReport], None]  # the strategy, its last round
Stopper = Callable[[Iterable[Evaluation]], bool]


class Evaluator:
    """Base class, which evaluates nothing; tasks with server-side scores extend it.

    ``files``: arrays of the last call for the results folder, by the names of NPZ
    files. They are written when the round is recorded, and no sooner.
    """

    def __init__(self) -> None:
        self.files: dict[str, NamedArrays] = {}

    def expect(self, clients: Mapping[int, ClientInfo]) -> None:
        """Learn from the roll call who takes part."""

    def misfit(
        self,
        measured_round: int,  # noqa: ARG002
        client: int,  # noqa: ARG002
        arrays: NamedArrays,
        names: Collection[str],  # noqa: ARG002
    ) -> str:
        """Say why what a client handed over must not count; "" if it may.

        Parameters
        ----------
        measured_round : int
            The round whose model the client received.
        names : collection of str
            Arrays that the strategy says clients hand over. An evaluator may know the
            names itself.
        """
        found = f"it handed over {shortened(sorted(arrays))}, which nobody needs"
        return found if arrays else ""

    def __call__(
        self,
        measured_round: int,  # noqa: ARG002
        parcels: Mapping[int, Parcel],  # noqa: ARG002
    ) -> list[Evaluation]:
        """Score the model after ``measured_round``; all parcels are fit for it."""
        return []


class Paper(ABC):
    """What a paper fills in, and what it knows of its clients.

    Everything that deals with Flower's messages is in
    :class:`~strategies.base.AbstractGraphStrategy`, which extends this class.

    Parameters
    ----------
    params : Settings
        Parameters of the method.
    experiment : str
        Name under which clients keep their private state.
    observer : callable
        Given this strategy and a :class:`RoundReport` once per round, after
        aggregation and before the state changes again. The next round's messages are
        out by then, so that a round is written while clients compute.
    evaluator : Evaluator
        Evaluates at the server what clients hand over for it.
    stopper : callable
        Given the evaluations that are new, says whether training ends here; asked
        before each round.
    privacy : PrivacySettings, optional
        What the run protects, None: nothing. Clients report nothing else as spent.
    robust : RobustSettings, optional
        Rule that replaces the mean, and the guard; None: the defaults.
    secagg : SecureAggregation, optional
        Whether the server sees sums alone; None: it does not.
    config_sha256 : str
        Of the run config, as sums are labelled.
    attack : AttackSettings, optional
        What some clients do to the others; None: nothing.
    """

    HAS_MODEL: ClassVar[bool] = True  # common to several clients
    TAKES_START: ClassVar[bool] = True  # hands out what :meth:`initialise` is given
    HAS_NEIGHBOURS: ClassVar[bool] = False  # clients train with each other
    OWN_CLUSTERS: ClassVar[bool] = False  # a client's model is trained by it alone
    ONE_MODEL: ClassVar[bool] = False  # after the last round, sent to all clients
    IN_ONE_PLACE: ClassVar[bool] = False  # trains on all data, as only simulations can
    UNSPLIT: ClassVar[str] = ""  # what a run of one cluster to the end is, in words
    # Why no client can be held out from training; "" where the server has a model for
    # a client that never trains.
    NO_HOLD_OUT: ClassVar[str] = "its server has no model for clients that never train"
    # Why ``robust.rule`` cannot replace a mean; "" where :meth:`step` asks ``combine``
    # or ``join`` for every mean. Whoever overrides ``step`` says it anew.
    NO_RULE: ClassVar[str] = ""

    def __init__(
        self,
        settings: RunSettings,
        params: Settings,
        *,
        experiment: str,
        observer: Observer = lambda _strategy, _report: None,
        evaluator: Evaluator | None = None,
        stopper: Stopper = lambda _evaluations: False,
        privacy: PrivacySettings | None = None,
        robust: RobustSettings | None = None,
        secagg: SecureAggregation | None = None,
        config_sha256: str = "",
        attack: AttackSettings | None = None,
    ) -> None:
        self.settings = settings
        self.params = params
        self.privacy = privacy
        self.robust = robust or RobustSettings()
        self.secagg = secagg or SecureAggregation()
        self.config_sha256 = config_sha256
        self.attack = attack or AttackSettings()
        self.hostile = self.attack.hostile(settings)
        self.experiment = experiment
        self.observer = observer
        self.evaluator = evaluator or Evaluator()
        self.stopper = stopper
        self.clients: dict[int, ClientInfo] = {}
        self.client_hashes: dict[int, str] = {}
        self.spent: dict[int, dict[str, float]] = {}  # of their privacy budgets
        self.last_rounds: dict[int, int] = {}  # the last good reply of each client
        self.keep_from = 0  # round of the oldest checkpoint, for clients' states
        self.lives = Lives()  # whose rounds these clients' states are of
        self.first_round = 1
        self.first_choice = 1  # results of earlier rounds are not the method's
        self.last_round = settings.num_server_rounds
        self.directory = Directory(
            settings, experiment=experiment, fields=params.sends()
        )
        self.compute_s: dict[int, float] = {}  # seconds of each client's last reply
        self.scores_elsewhere = False  # clients do, on the test sets of all
        self.rarest: Rarest | None = None  # class, where it is known
        # Of secure aggregation, by client: what it has trained from, and, since then,
        # what others have.
        self.histories: dict[int, tuple[str, tuple[str, ...]]] = {}
        self.class_weights = ""  # of all clients, as JSON; "" if no loss reads them
        self.phase = Phase.TRAINING  # of the exchange that is under way
        self._began_at = 0.0
        self._clock_s = 0.0  # Unix time when the round began, less monotonic time
        self._unseen: RoundReport | None = None  # by the observer

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Let no rule pass in silence: a new ``step`` may average in its own way."""
        super().__init_subclass__(**arguments)
        if "step" in vars(cls) and "NO_RULE" not in vars(cls):
            cls.NO_RULE = "its server does not average models by combine()"

    @classmethod
    def why_no_sums(
        cls,
        robust: RobustSettings,
        settings: RunSettings,  # noqa: ARG003
        **options: Any,  # noqa: ARG003
    ) -> str:
        """Say why its server needs more than sums of updates; "" if it does not.

        ``options`` are those of the method, which tell variants apart.
        """
        if robust.is_on:
            return f"robust.rule {robust.rule!r} compares updates"
        if cls.weight is not Paper.weight:
            return "it weighs clients by itself, and clients must weigh themselves"
        return cls.NO_RULE

    # What a paper fills in -------------------------------------------------------

    @abstractmethod
    def initialise(self, arrays: NamedArrays) -> None:
        """Set the state before round 1 from the common initial shared tensors."""

    @abstractmethod
    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:
        """Arrays to send to each client."""

    @abstractmethod
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """Aggregate the replies, given in ascending client order."""

    @abstractmethod
    def models(self) -> dict[str, NamedArrays]:
        """Return the server's models by name, for the results folder."""

    @abstractmethod
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        """Arrays and JSON facts from which :meth:`restore` continues exactly."""

    @abstractmethod
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        """Set the state that :meth:`state` returned."""

    def uplink(self, server_round: int, client: int) -> Layout:  # noqa: ARG002
        """Arrays that a client must send; nothing unless overridden."""
        return {}

    def misfits(self, replies: Mapping[int, Parcel]) -> dict[int, str]:  # noqa: ARG002
        """Say whose replies do not go with the others', though good by themselves."""
        return {}

    def neighbours(self, client: int) -> Collection[int]:  # noqa: ARG002
        """Clients whose mail a client may complain of; only peers have any."""
        return ()

    def hands_over(self) -> tuple[str, ...]:
        """Names of what clients hand over beside their arrays after training."""
        return ()

    def facts(self, client: int) -> dict[str, Scalar]:
        """Facts for a client: its data, its last round, its privacy spent so far.

        The client refuses to go on from less. It learns which class is the rarest of
        all clients' training labels. One that is to score its model on the test sets of
        all learns which data these are.
        """
        facts: dict[str, Scalar] = {LAST_ROUND: self.last_rounds.get(client, 0)}
        if identity := self.clients[client].identity:
            facts[SAME_DATA] = identity
        if self.scores_elsewhere and self.phase is Phase.CLOSING:
            everyone = {c: i.identity for c, i in self.clients.items()}
            facts[DATA_OF_ALL] = hash_federation(everyone)
        if self.rarest is not None:
            facts |= {RAREST: self.rarest.number, BY_PRECISION: self.rarest.chooses}
        if self.class_weights:
            facts[CLASS_WEIGHTS] = self.class_weights
        if missed := self.histories.get(client, ("", ()))[1]:
            facts[MISSED] = " ".join(missed)
        return facts | with_prefix(SPENT, self.spent.get(client, {}))

    def remarks(self) -> dict[str, Any]:
        """Return further entries for ``summary.json``; none unless overridden."""
        return {}

    def inert(self) -> str:
        """Say why the method did nothing of its own, after its name; "" if it did."""
        if len(self.clusters()) == 1 and self.UNSPLIT:
            return self.UNSPLIT
        epochs, size = self.settings.local_epochs, self.settings.batch_size
        most = max(self.clients[c].num_train for c in self.trainers())
        is_whole = self.settings.task in (NODE_CLASSIFICATION.key, *OF_EDGES)
        steps = epochs * (1 if is_whole else math.ceil(most / size))
        return self.params.inert(epochs, steps)

    def network(self) -> Network | None:
        """Say which clients are neighbours, and who has dropped out; None without."""
        return None

    def peers(self) -> dict[int, list[int]]:
        """Return the clients from whose models each client learns, ascending."""
        return {c: [j for j in sorted(self.clients) if j != c] for c in self.clients}

    def clusters(self) -> list[list[int]]:
        """Return the sets of clients that train one server model; all by default."""
        each = [[client] for client in sorted(self.clients)]
        return each if self.OWN_CLUSTERS else [self.trainers()]

    def sums(self) -> list[list[int]]:
        """Return the sets of clients of whose updates the server asks for a sum."""
        return [self.trainers()]

    def trainers(self) -> list[int]:
        """Return all clients but those held out from training, ascending."""
        return sorted(set(self.clients) - self.settings.never_train)

    def weight(self, client: int) -> float:
        """Weight of a client's model in an average, as ``weighting`` says."""
        if self.settings.weighting == "uniform":
            return 1.0
        return float(self.clients[client].num_train)

    @property
    def sites(self) -> dict[int, str]:
        """Names of the clients' sites, as far as sites have names."""
        return {c: i.site for c, i in sorted(self.clients.items()) if i.site}

    def now(self) -> float:
        """Unix time, to whatever the clock was set since the round began."""
        return self._clock_s + time.monotonic()

    def load(self, clients: Iterable[int]) -> float:
        """Seconds that these clients took last, as far as known."""
        return sum(self.compute_s.get(c, 0.0) for c in clients)
