"""Run configuration: flat TOML values in, frozen dataclasses out.

Keys are kebab-case in TOML and snake_case in Python; this module is the one place
that translates. Each field declares a :class:`Rule`, which checks a value, words the
error and supplies bad values to the tests. The text ``"auto"`` stands, where a rule
allows it, for the value that the data set recommends (see ``resolve.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from .errors import ConfigError, unknown_name
from .fields import Field as MessageField
from .rules import (
    MOST_CLIENTS,
    MOST_ROUNDS,
    MOST_STEP,
    MOST_STEPS,
    Rule,
    Value,
    choice,
    client_choice,
    fanouts,
    flag,
    integer,
    named_clients,
    number,
    path,
    shown,
    task_masks,
    text,
)

AUTO = "auto"
ALL = 2**31 - 1  # neighbours: every one
PAPER = "paper"  # encoder of a method's own
GCN2 = "gcn2"  # in place of the papers' for nodes
OF_PAPERS = PAPER, GCN2  # take undirected graphs alone
# Of the others, those that read features of edges, and those that read their weights.
READ_FEATURES = "gine", "gatv2", "pna"
READ_WEIGHTS = "gcn", "graphconv", *READ_FEATURES
# May differ between a run and its continuation.
RESUME_MAY_CHANGE = {
    "resume",
    "checkpoint-every",
    "num-server-rounds",
    "results-dir",
    "state-dir",
    "data-dir",
    "cache-dir",
    "min-fit-replies",
    "late-after-s",
    "round-timeout-s",
    "roll-call-timeout-s",
    "torch-threads",
    "tracker",
}
SEVERAL = (
    "; a run has one value: for several start a run each, or let a suite's grid choose"
    " (docs/benchmark.md)"
)
T = TypeVar("T", bound="Settings")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of every configuration table; checks each field against its rule.

    ``RUN`` of a method's table: what the paper sets shared settings to, where these
    are ``"auto"``. ``NEEDS_ALL``: why it cannot do with some of the clients in a round;
    "" where it can. ``ADVICE``: how to choose what is ``"auto"`` and not published.
    ``NO_CLASS_WEIGHTS``: why its loss knows no weights of classes; "" where it does.
    ``TAKES_WEIGHTS``: its encoders take weights of edges, and its clients draw noisy
    views themselves. ``FIELDS``: what its clients' replies hold beside models.
    ``CLUSTERS``: sums of updates are of clusters, which norms of updates make.
    """

    TABLE: ClassVar[str] = ""
    RUN: ClassVar[Mapping[str, Value]] = {}
    NEEDS_ALL: ClassVar[str] = ""
    ADVICE: ClassVar[str] = ""
    NO_CLASS_WEIGHTS: ClassVar[str] = ""
    TAKES_WEIGHTS: ClassVar[bool] = False
    FIELDS: ClassVar[tuple[MessageField, ...]] = ()
    CLUSTERS: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for key, f in self.config_fields().items():
            check_value(key, getattr(self, f.name), f.metadata["rule"])

    def check(self, privacy: Settings) -> None:
        """Raise ConfigError if a method's table contradicts ``PrivacySettings``."""

    def check_shared(self, settings: RunSettings) -> None:
        """Raise ConfigError if a method's table contradicts shared settings."""

    def warnings(self, num_rounds: int) -> tuple[str, ...]:  # noqa: ARG002
        """Say what of a method's table means little in a run of so many rounds."""
        return ()

    def inert(self, epochs: int, steps: int) -> str:  # noqa: ARG002
        """Say what other method a run makes of a method; "" if it is itself.

        ``epochs`` and ``steps`` are the most that a client makes in a round.
        """
        return ""

    @property
    def is_sealed(self) -> bool:
        """Whether models go to neighbours alone, in letters sealed to the server."""
        return False

    def sends(self) -> tuple[MessageField, ...]:
        """Which of ``FIELDS`` clients send with these values."""
        return self.FIELDS

    @classmethod
    def key(cls, name: str) -> str:
        """Run-config key of the field ``name``, e.g. ``privacy.edge-epsilon``."""
        kebab = name.replace("_", "-")
        return f"{cls.TABLE}.{kebab}" if cls.TABLE else kebab

    @classmethod
    @cache  # asked for at every message
    def config_fields(cls) -> Mapping[str, Field[Any]]:
        """Fields by run-config key."""
        return MappingProxyType({cls.key(f.name): f for f in fields(cls)})

    @classmethod
    def defaults(cls) -> dict[str, Value]:
        """Return run-config defaults, as they stand in ``pyproject.toml``."""
        return {
            k: f.default
            for k, f in cls.config_fields().items()
            if f.default is not MISSING
        }

    def to_config(self) -> dict[str, Value]:
        """Back to run-config keys and values."""
        return {k: getattr(self, f.name) for k, f in self.config_fields().items()}


def check_value(key: str, value: object, rule: Rule) -> None:
    """Raise ConfigError unless ``rule`` allows ``value``."""
    if not rule.allows(value):
        many = isinstance(value, str) and "," in value and rule.kind in (int, float)
        cure = f"set it in the run config{SEVERAL if many else ''}"
        raise ConfigError(
            f"{key} must be {rule.describe()}, got {shown(value)}"
            f" ({type(value).__name__}); {cure}"
        )


def build(
    cls: type[T], run_config: Mapping[str, Value], automatic: Mapping[str, Value]
) -> T:
    """Build one table from a run config.

    Parameters
    ----------
    cls : type
        Table to build; only its own keys are read.
    run_config : mapping
        Flat run config; keys of the table that it lacks are an error.
    automatic : mapping
        Values that replace ``"auto"``, by run-config key.

    Raises
    ------
    ConfigError
        Missing key, wrong type, value out of range, or ``"auto"`` without a
        recommended value.
    """
    values: dict[str, Any] = {}
    unpublished: dict[str, str] = {}
    for key, f in cls.config_fields().items():
        if key not in run_config:
            raise ConfigError(
                f"run-config key {key!r} is missing; its default belongs in"
                " [tool.flwr.app.config] of pyproject.toml"
            )
        value = run_config[key]
        rule: Rule = f.metadata["rule"]
        if rule.auto and value == AUTO:
            if key not in automatic:
                unpublished[key] = replace(rule, auto=False).describe()
                continue
            value = automatic[key]
        if rule.kind is float and isinstance(value, int) and rule.allows(value):
            value = float(value)
        if rule.kind is str and not isinstance(value, str) and rule.allows(value):
            value = f"{value:g}"
        values[f.name] = value
    if unpublished:
        raise ConfigError(
            f"{', '.join(unpublished)} {'is' if len(unpublished) == 1 else 'are'}"
            " 'auto', but no value is published for this data set; set in the run"
            f" config: {'; '.join(f'{k} to {v}' for k, v in unpublished.items())}."
            + (f" {cls.ADVICE}" if cls.ADVICE else "")
        )
    return cls(**values)


def check_tables(tables: list[type[Settings]], run_config: Mapping[str, Value]) -> None:
    """Refuse unknown keys and check the values of every table, used or not."""
    rules = {
        k: f.metadata["rule"] for t in tables for k, f in t.config_fields().items()
    }
    for key, value in run_config.items():
        if key not in rules:
            cure = "docs/configuration.md lists all keys, with the papers' symbols."
            raise ConfigError(unknown_name("run-config key", key, rules, cure))
        if not (rules[key].auto and value == AUTO):
            check_value(key, value, rules[key])


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """Settings of every method; "auto" is the value of the data set or the method."""

    method: str = text("gcfl+")
    """Name of a method, or of a plug-in as `module:NAME`."""
    dataset: str = text("synthetic")
    """Name of a data set, a group of sets, or own data (`datasets/README.md`)."""
    task: str = choice(
        "auto",
        "graph-classification",
        "graph-embedding",
        "multi-task",
        "node-classification",
        "edge-classification",
        "link-prediction",
        auto=True,
    )
    """What to learn. `auto`: the method's first task that fits the data."""
    data_dir: str = path("")
    """Folder with data. Empty: `FEDGRAPH_DATA`, else data are downloaded. A site reads
    its `data-path`."""
    results_dir: str = path("")
    """Folder for results. Empty: `results/` of the project, else
    `~/fedgraph-results`."""
    state_dir: str = path("")
    """Folder for clients' private state. Empty: `~/.local/state/fedgraph-flwr`. A site
    has its own."""
    cache_dir: str = path("")
    """Folder for converted data. Empty: `FEDGRAPH_CACHE`, else
    `~/.cache/fedgraph-flwr`. A site has its own."""
    resume: str = path("")
    """Results folder of the run to continue."""
    init_from: str = path("")
    """Results folder with one model, or a model file, from which shared tensors
    start."""
    dry_run: bool = flag(False)
    """Roll call and one round. Only a report of seconds and bytes is kept."""

    num_clients: int = integer("auto", 1, MOST_CLIENTS, auto=True)
    """Clients, numbered from 0. A group of data sets fixes it."""
    num_server_rounds: int = integer("auto", 1, MOST_ROUNDS, auto=True)
    """Rounds in total, also on resume."""
    patience: int = integer("auto", 0, MOST_ROUNDS, auto=True)
    """Training ends when the round with the best validation score is this many rounds
    old; 0: never."""
    min_rounds: int = integer("auto", 0, MOST_ROUNDS, auto=True)
    """`patience` ends no training before this round."""
    evaluate_every: int = integer("auto", 1, MOST_ROUNDS, auto=True)
    """Clients measure the model every so many rounds. `auto`: 1; 5 from 1000 clients
    on."""
    evaluate_on: str = choice("own", "own", "all")
    """`all`: each client's last model is also scored on all clients' test sets."""
    checkpoint_every: int = integer("auto", 1, MOST_ROUNDS, auto=True)
    """The server keeps its state every so many rounds; a resume repeats the rounds
    since. `auto`: as `evaluate-every`."""
    client_fraction: float = number(1.0, 0, 1, low_open=True)
    """Share of clients drawn for each round. Below 1 only the last round is
    reported."""
    held_out_clients: str = client_choice("")
    """Clients that never train and are measured at the end. A share is drawn from
    `split-seed`."""
    partition: str = choice(
        "auto",
        "chunks",
        "chunks-overlap",
        "datasets",
        "iid",
        "dirichlet-labels",
        "dirichlet-quantity",
        "dominance",
        "files",
        "iid-classwise",
        "louvain",
        "louvain-delta",
        "metis",
        "metis-overlap",
        "metis-overlap-replacement",
        "natural",
        "planted",
        "quantity-skew",
        auto=True,
    )
    """How one data set is shared out among clients."""
    component: str = choice("largest", "largest", "all")
    """Nodes of a public graph: those of its largest connected component, or all."""
    dirichlet_alpha: float = number("auto", 0, low_open=True, auto=True)
    """Concentration of Dirichlet partitions and of `quantity-skew`; smaller is more
    skewed."""
    dominance: float = number(0.8, 0, 1)
    """Partition `dominance`: share of class c that goes to the clients k with k mod C =
    c."""
    held_out: float = number("auto", 0, 1, high_open=True, auto=True)
    """Share of each client's graphs, or of all nodes, kept from training: half
    validates, half tests."""
    split: str = choice("random", "random", "classes", "scaffold", "time")
    """How items are held out: at random, within classes of a client (`classes`), rare
    scaffolds (`scaffold`), the newest (`time`)."""
    folds: int = integer(1, 1, 20)
    """Parts of a cross-validation within each client; 1: none, `held-out` decides."""
    fold: int = integer(0, 0, 19)
    """Which part tests in this run, from 0; the next validates, the others train."""
    features: str = choice(
        "auto",
        "labels",
        "degree",
        "attributes",
        "labels+attributes",
        "atoms",
        "atoms+bonds",
        "atoms-no-degree",
        "atoms-strict",
        "row-normalized",
        "raw",
        "connectivity",
        "schema",
        auto=True,
    )
    """What describes a node; with `atoms+bonds` edges, too."""
    task_masks: str = task_masks("all")
    """Label columns that each client trains on. `exclusive`: a column has one owner;
    `overlapping`: two."""
    csv_smiles_column: str = text("smiles")
    """`smiles-csv`: column with the SMILES."""
    csv_label_columns: str = text("")
    """`smiles-csv`: label columns, separated by commas. Empty or `*`: every other
    column with numbers."""
    csv_label_kind: str = choice("auto", "binary", "regression", "classes", auto=True)
    """Own data: labels 0 and 1 (`binary`), numbers (`regression`), or one class
    (`classes`)."""
    csv_label_scale: str = text("")
    """Mean and spread that scale numbers to predict, as in
    `logD=2.4:1.4,IC50=690000:1500000`."""
    csv_bad_rows: str = choice("skip", "skip", "refuse")
    """Own data: leave out a row that cannot be used, or stop."""
    negatives: int = integer(20, 1, 10_000)
    """`link-prediction`: pairs without an edge beside which each hidden link is
    ranked."""
    planted_nodes: int = integer(100, 8, 10_000_000)
    """Data set `planted`: nodes of each client."""
    planted_degree: float = number(5.13, 0)
    """`planted`: mean number of edges of a node."""
    planted_features: int = integer(32, 1, 10_000)
    """`planted`: features of a node."""
    tell_statistics: bool = flag(False)
    """Clients send counts and means of their graphs before round 1."""
    seed: int = integer(10, 0, 2**31 - 1)
    """Run seed: initial tensors, order of batches, dropout."""
    start_noise: int = integer(0, 0, 2**31 - 1)
    """For noise floors: above 0 initial tensors are moved by about 1e-7, as this number
    draws."""
    split_seed: int = integer(123, 0, 2**31 - 1)
    """Seed of partition, split and generated graphs."""
    split_noise_features: float = number(0.0, 0, 1)
    """Share of a client's nodes that swap their features."""
    split_noise_edges: float = number(0.0, 0, 1)
    """Share of each graph's edges that are replaced."""
    split_noise_labels: float = number(0.0, 0, 1)
    """Share of training labels that are made wrong."""

    local_epochs: int = integer("auto", 0, 100_000, auto=True)
    """Epochs per client and round; 0 trains nothing."""
    batch_size: int = integer("auto", 1, MOST_STEPS, auto=True)
    """Items per mini-batch. On one graph a step takes all of it, unless `fanout` is
    set."""
    fanout: str = fanouts("")
    """Of one graph: neighbours drawn around a batch, by layer (`15,10`), or `all`.
    Empty: no batches."""
    optimizer: str = choice("auto", "adam", "adamw", "amsgrad", "sgd", auto=True)
    """`adam` adds weight decay to the gradient, `adamw` does not. `amsgrad`: largest
    second moment. `sgd`: no moments."""
    learning_rate: float = number(1e-3, 0, MOST_STEP)
    """Step size of the optimizer."""
    weight_decay: float = number("auto", 0, MOST_STEP, auto=True)
    """L2 term of the optimizer."""
    persist_optimizer: bool = flag("auto", auto=True)
    """Keep the optimizer's moments between rounds, on the client's disk."""
    hidden_dim: int = integer("auto", 1, 16_384, auto=True)
    """Width of hidden layers."""
    encoder: str = choice(
        "auto",
        PAPER,
        "gin",
        "gine",
        "gcn",
        GCN2,
        "graphconv",
        "gatv2",
        "mlp",
        "pna",
        "sage",
        auto=True,
    )
    """Layers that read nodes and edges; `mlp`: no edges. `paper`: the method's own.
    `auto`: that, or `gatv2` for edges."""
    direction: str = choice("both", "both", "forward", "separate")
    """How messages pass along directed edges; `separate`: both ways, by layers of
    their own."""
    edge_features: bool = flag(True)
    """Whether models see features and weights of edges."""
    pna_degree: float = number(0.0, 0)
    """`pna`: mean number of edges that end at a node. 0: as clients tell by
    `tell-statistics`."""
    num_layers: int = integer("auto", 1, 1000, auto=True)
    """Number of convolutions."""
    dropout: float = number("auto", 0, 1, high_open=True, auto=True)
    """Dropout probability."""
    class_weights: str = choice("none", "none", "balanced", "federation")
    """Loss weighs classes by n / (C n_c): counts of own training labels (`balanced`),
    or of all clients' (`federation`)."""
    shared_group: str = choice("auto", "convs", "body", "all", auto=True)
    """Tensors that travel: `all`, all but the last layer (`body`), or the
    convolutions, as clients with different features need."""
    weighting: str = choice("auto", "samples", "uniform", auto=True)
    """Weights of clients in an average: by training graphs (`samples`), or equal."""

    tracker: str = choice("none", "none", "tensorboard", "wandb", "mlflow")
    """Where scores, bytes and seconds of each round also go."""
    device: str = text("auto")
    """`auto` (first GPU that torch sees, else CPU), `cpu`, `cuda` or `cuda:N`."""
    torch_threads: int = integer(1, 1, 1024)
    """Threads of torch per process. Another number may change last bits."""
    min_fit_replies: float = number(1.0, 0, 1, low_open=True)
    """Quorum: share of a round's clients that must reply. With fewer the run stops."""
    late_after_s: float = number(0.0, 0)
    """Seconds that a round waits once the quorum has replied; 0: until
    `round-timeout-s`."""
    round_timeout_s: float = number(3600.0, 0, low_open=True)
    """Seconds after which a client that has not replied has failed in the round."""
    roll_call_timeout_s: float = number(300.0, 0, low_open=True)
    """Seconds that the server waits for every client at the start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.late_after_s > 0 and self.min_fit_replies == 1:
            raise ConfigError(
                f"late-after-s is {self.late_after_s:g}, but min-fit-replies is 1: a"
                " round then needs every reply, and leaves nobody behind; lower"
                " min-fit-replies, e.g. to 0.75, or leave late-after-s out of the run"
                " config"
            )

        _ = self.never_train  # which checks it

    @property
    def never_train(self) -> frozenset[int]:
        """Clients that ``held-out-clients`` holds out from training."""
        given = self.held_out_clients, self.num_clients, self.split_seed
        return named_clients(*given)

    def is_checkpoint(self, server_round: int, last_round: int) -> bool:
        """Whether the server keeps its state and matrices after this round."""
        is_due = server_round % self.checkpoint_every == 0
        return is_due or server_round == last_round

    def fanouts(self) -> tuple[int, ...]:
        """Most neighbours of a node that are drawn at each layer; empty: no batches."""
        if not self.fanout:
            return ()
        counts = [ALL if n == "all" else int(n) for n in self.fanout.split(",")]
        return tuple(counts * self.num_layers if len(counts) == 1 else counts)

    def is_measured(self, after: int) -> bool:
        """Whether clients evaluate the model after this round."""
        return after == self.num_server_rounds or after % self.evaluate_every == 0

    @property
    def clients_per_round(self) -> int:
        """How many clients train in a round, as ``client-fraction`` says."""
        return max(1, round(self.client_fraction * self.num_training))

    @property
    def is_sampled(self) -> bool:
        """Whether clients are drawn anew for each round."""
        return self.clients_per_round < self.num_training

    @property
    def first_trainer(self) -> int:
        """The first client that is not held out from training."""
        return min(set(range(self.num_clients)) - self.never_train)

    @property
    def num_training(self) -> int:
        """How many clients are not held out from training."""
        return self.num_clients - len(self.never_train)
