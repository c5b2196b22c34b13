"""What is learned, how it is measured, and at which round a result is read.

A method has a client for each task that it can do (``Method.clients``). If labels are
numbers instead of yes or no, the task's ``regression`` stands in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from typing_extensions import override

from .config import RunSettings, Settings
from .errors import ConfigError
from .fields import Field, Kind, Phase
from .rules import Value, choice, flag, round_list

EMBEDDINGS = "embeddings"  # folder of pooled ones, in a run's folder
LABEL_KINDS = {
    "classes": "one class per graph",
    "binary": "yes/no labels per graph",
    "regression": "numbers to predict per graph",
    "nodes": "one class per node of a graph",
    "edges": "one class per edge of a graph",
    "links": "edges of a graph, some of them hidden",
}
_NEVER_EARLY: Mapping[str, Value] = {"patience": 0, "min-rounds": 0}
NO_SCORE = "no-score-task-"  # and its number: metric where labels allow no score
BY_TASK = "-task-"  # and its number, after an error's name: of one task alone
AVERAGE_PRECISION = "average-precision"
HITS = (1, 3, 10)  # ranks of a hidden link that count as a hit
LINK_SCORES = "mrr", *(f"hits-{k}" for k in HITS)
OF_COMMONEST = "-of-commonest"  # after accuracy: of predicting the commonest class
ONE_CLASS = "one-class"  # metric where all test items are predicted to be this class
AT_RECALL = {"precision-at-recall-50": 0.5, "precision-at-recall-90": 0.9}
CLASS_SCORES = {  # beside accuracy, from 0 to 1, and how tables call them
    AVERAGE_PRECISION: "average precision",
    "macro-f1": "macro-F1",
    "roc-auc": "ROC-AUC",
    **{name: f"precision@recall={share}" for name, share in AT_RECALL.items()},
}
THRESHOLD = "threshold"  # of a probability, chosen on validation items
# Counts of test items of one class, or of one target's yes, by the threshold.
CONFUSION = ("true-positives", "false-positives", "false-negatives", "true-negatives")
_OF_CLASSES = *CLASS_SCORES, f"accuracy{OF_COMMONEST}"
OF_MEAN = "-of-mean"  # after an error's name: that of predicting the labels' mean
ON_ALL = "-on-all"  # after a metric's name: on the test sets of all clients
POOLED = -1  # stands for "all clients together" where a client id is expected


@dataclass(frozen=True, kw_only=True)
class TaskSettings(Settings):
    """Settings of a task, whatever the method: none, unless a task adds some."""

    @property
    def pools(self) -> bool:
        """Whether clients hand embeddings and labels to the server, to be scored."""
        return False

    def check_run(self, settings: RunSettings, *, has_server_model: bool) -> None:
        """Raise ConfigError if these contradict other settings or the method.

        ``has_server_model`` says whether clients have a model in common.
        """


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings(TaskSettings):
    """How embeddings are evaluated, whatever the method that learns them."""

    TABLE = "embedding"
    FIELDS = (
        Field(
            EMBEDDINGS,
            Kind.ARRAY,
            (Phase.TRAINING, Phase.CLOSING),
            what="embeddings and labels of graphs (embedding.evaluation = 'pooled')",
            consent="pooled_evaluation",
        ),
    )

    evaluation: str = choice("local", "local", "pooled")
    """`local`: each client clusters its own graphs. `pooled`: clients send embeddings
    and labels to the server."""
    rounds: str = round_list("0,1,3,5,10,20")
    """Rounds after which embeddings are evaluated; the last always is. 0: the untrained
    encoder."""
    probe: bool = flag(True)
    """Also train a linear probe and an SVM on embeddings, before the first round and
    after the last."""
    figure_rounds: str = round_list("")
    """`pooled`: rounds whose embeddings are evaluated and drawn."""

    def evaluated_rounds(self) -> frozenset[int]:
        """List rounds whose aggregate is evaluated, apart from the last."""
        return frozenset([*round_numbers(self.rounds), *self.drawn_rounds()])

    def drawn_rounds(self) -> list[int]:
        """List rounds whose embeddings are drawn."""
        return round_numbers(self.figure_rounds)

    @property
    @override
    def pools(self) -> bool:
        return self.evaluation == "pooled"

    @override
    def sends(self) -> tuple[Field, ...]:
        return self.FIELDS if self.pools else ()

    @override
    def check_run(self, settings: RunSettings, *, has_server_model: bool) -> None:
        if self.pools and not has_server_model:
            raise ConfigError(
                "embedding.evaluation must be 'local' if every client has an encoder"
                " of its own, got 'pooled': embeddings of different encoders cannot be"
                " clustered together; set it to 'local' in the run config"
            )
        late = [r for r in self.drawn_rounds() if r > settings.num_server_rounds]
        if late or (self.figure_rounds and not self.pools):
            raise ConfigError(
                f"embedding.figure-rounds must be rounds up to num-server-rounds"
                f" {settings.num_server_rounds}, of a run with embedding.evaluation"
                f" 'pooled', got {self.figure_rounds!r} with {self.evaluation!r}; leave"
                " it empty to draw none"
            )


@dataclass(frozen=True, kw_only=True)
class MultiTaskSettings(TaskSettings):
    """What is trained on several labels per graph, whatever the method.

    FGCL has encoders of its own. Numbers are learned by absolute errors.

    Source
    ------
    He et al. 2021 (SpreadGNN), arXiv:2106.02743, Sec. 4.
    """

    TABLE = "multitask"

    encoder: str = choice("sage", "sage", "gat")
    """GraphSAGE, or GAT with two heads."""


def round_numbers(text: str) -> list[int]:
    """Read round numbers separated by commas."""
    return [int(part) for part in text.split(",") if part]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One kind of learning.

    Parameters
    ----------
    key : str
        What the run-config key ``task`` calls it.
    metric : str
        What results are stated in.
    larger_is_better : bool
        Of the metric.
    splits : tuple of str
        Splits on which every client is measured.
    headline : str
        The split of reported results.
    rules : tuple of str
        Keys of ``selection.PROTOCOLS`` that are reported, headline first.
    settings : type
        Configuration table of the task.
    automatic : mapping
        What ``"auto"`` means for shared settings, unless the data set or method knows.
    require : mapping
        Shared settings that the task cannot do without: key -> (test, words).
    labels : tuple of str
        Keys of ``LABEL_KINDS`` that it learns from or is measured by.
    takes_edge_noise : bool
        Whether noise can be put on the edges of each graph.
    regression : Task, optional
        The task that replaces it if labels are numbers.
    also : tuple of str
        Metrics that are reported beside the headline's.
    """

    name: str
    key: str
    metric: str
    larger_is_better: bool = True
    splits: tuple[str, ...]
    headline: str
    rules: tuple[str, ...]
    settings: type[TaskSettings] = TaskSettings
    automatic: Mapping[str, Value] = field(default_factory=lambda: _NEVER_EARLY)
    require: Mapping[str, tuple[Callable[[RunSettings], bool], str]]
    labels: tuple[str, ...] = ("classes",)
    regression: Task | None = None
    takes_edge_noise: bool = True
    also: tuple[str, ...] = ()

    @property
    def has_classes(self) -> bool:
        """Whether each graph or node is predicted to be of one class."""
        return self.also == _OF_CLASSES

    def of(self, label_kind: str) -> Task:
        """Return this task, or the one that replaces it for labels of this kind."""
        if self.regression is not None and label_kind in self.regression.labels:
            return self.regression
        return self

    def fits(self, label_kind: str) -> bool:
        """Whether data of this kind, a key of ``LABEL_KINDS``, can be learned from."""
        return label_kind in self.of(label_kind).labels

    def rules_for(self, settings: RunSettings) -> tuple[str, ...]:
        """List the rules of a run, headline first.

        If clients are drawn anew for each round, no rule can choose a round: other
        clients are measured each time, and all of them only after the last one.
        ``best_snapshot`` reads rounds that ``evaluate-every`` may leave out.
        """
        if settings.is_sampled:
            return ("final",)
        left_out = {"best_snapshot"} if settings.evaluate_every > 1 else set()
        return tuple(rule for rule in self.rules if rule not in left_out)

    def check(self, settings: RunSettings, label_kind: str) -> None:
        """Raise ConfigError if data or a shared setting do not fit the task.

        ``label_kind`` is what the data set knows of a graph, a key of ``LABEL_KINDS``.
        """
        if label_kind not in self.labels:
            kinds = self.labels + (self.regression.labels if self.regression else ())
            needed = " or ".join(LABEL_KINDS[kind] for kind in kinds)
            raise ConfigError(
                f"method {settings.method!r} is for {self.name}, which needs {needed},"
                f" but dataset {settings.dataset!r} has {LABEL_KINDS[label_kind]}; set"
                " method or dataset in the run config to one that fits"
            )
        if settings.is_sampled and settings.patience > 0:
            raise ConfigError(
                f"patience must be 0 with client-fraction < 1, got {settings.patience}"
                f" with {settings.client_fraction:g}: only clients drawn for a round"
                " are measured in it, so that rounds cannot be compared; set patience"
                " to 0 or client-fraction to 1 in the run config"
            )
        values = settings.to_config()
        for key, (holds, words) in self.require.items():
            if not holds(settings):
                raise ConfigError(
                    f"{key} must be {words} for {self.name}, got {values[key]!r};"
                    f" set {key} in the run config, or leave it out"
                )


_Require = Mapping[str, tuple[Callable[[RunSettings], bool], str]]
_HOLDS_OUT: _Require = {
    "held-out": (lambda s: s.held_out > 0, "> 0, to validate and test,")
}
_NO_CLASSES: _Require = {
    "class-weights": (
        lambda s: s.class_weights == "none",
        "'none', as no class is learned,",
    )
}
_OF_TARGETS: _Require = {
    **_HOLDS_OUT,
    "shared-group": (lambda s: s.shared_group == "all", "'all'"),
}
GRAPH_CLASSIFICATION = Task(
    name="graph classification",
    key="graph-classification",
    metric="accuracy",
    splits=("val", "test"),
    headline="test",
    rules=("final", "best_val", "best_snapshot"),
    also=_OF_CLASSES,
    require=_HOLDS_OUT,
)
GRAPH_EMBEDDING = Task(
    name="unsupervised graph embedding",
    key="graph-embedding",
    metric="accuracy",
    splits=("all",),
    headline="all",
    rules=("final", "best_labelled"),
    settings=EmbeddingSettings,
    automatic={**_NEVER_EARLY, "evaluate-every": 1},
    require={
        **_NO_CLASSES,
        "held-out": (lambda s: s.held_out == 0, "0, as no label is learned from,"),
        "patience": (lambda s: s.patience == 0, "0, as nothing is held out,"),
        "evaluate-every": (
            lambda s: s.evaluate_every == 1,
            "1, as embedding.rounds says when,",
        ),
        "shared-group": (lambda s: s.shared_group == "all", "'all'"),
        "dropout": (lambda s: s.dropout == 0, "0, as teachers and student compare,"),
        "batch-size": (lambda s: s.batch_size >= 2, ">= 2, to have negatives,"),
        "split-noise-labels": (
            lambda s: s.split_noise_labels == 0,
            "0, as no label is learned from,",
        ),
        "evaluate-on": (
            lambda s: s.evaluate_on == "own",
            "'own', as embeddings predict nothing,",
        ),
        "held-out-clients": (
            lambda s: not s.held_out_clients,
            "empty, as all are measured after the same rounds,",
        ),
    },
)
MULTI_TASK_REGRESSION = Task(
    name="multi-task regression",
    key="multi-task",
    metric="mae",
    larger_is_better=False,
    splits=("val", "test"),
    headline="test",
    rules=("final", "best_val", "best_test"),
    settings=MultiTaskSettings,
    labels=("regression",),
    also=("rmse", "mae" + OF_MEAN, "rmse" + OF_MEAN),
    require={**_OF_TARGETS, **_NO_CLASSES},
)
MULTI_TASK_CLASSIFICATION = replace(
    MULTI_TASK_REGRESSION,
    name="multi-task classification",
    metric="roc-auc",
    larger_is_better=True,
    labels=("binary",),
    also=(AVERAGE_PRECISION, *AT_RECALL),
    require=_OF_TARGETS,
    regression=MULTI_TASK_REGRESSION,
)
NODE_CLASSIFICATION = Task(
    name="node classification",
    key="node-classification",
    metric="accuracy",
    splits=("val", "test"),
    headline="test",
    rules=("best_val", "final", "best_val_trained"),
    also=_OF_CLASSES,
    # Patience: FedGKD Sec. 5.1. Rounds at least: ours, as FedAvg stands still on Cora
    # for some 25 rounds before it learns.
    automatic={"patience": 20, "min-rounds": 50},
    labels=("nodes",),
    takes_edge_noise=False,  # one noisy matrix of all pairs of nodes would not fit
    require=_HOLDS_OUT,
)
EDGE_CLASSIFICATION = replace(
    NODE_CLASSIFICATION,
    name="edge classification",
    key="edge-classification",
    labels=("edges",),
    automatic={**NODE_CLASSIFICATION.automatic, "encoder": "gatv2"},
)
LINK_PREDICTION = replace(
    EDGE_CLASSIFICATION,
    name="link prediction",
    key="link-prediction",
    metric="roc-auc",
    labels=("links",),
    require={**_HOLDS_OUT, **_NO_CLASSES},
    also=(AVERAGE_PRECISION, *LINK_SCORES),
)
# What is learned of a graph's edges, in data that know the classes of its nodes.
OF_EDGES = {task.key: task.labels[0] for task in (EDGE_CLASSIFICATION, LINK_PREDICTION)}
TASKS = (
    GRAPH_CLASSIFICATION,
    GRAPH_EMBEDDING,
    MULTI_TASK_CLASSIFICATION,
    MULTI_TASK_REGRESSION,
    NODE_CLASSIFICATION,
    EDGE_CLASSIFICATION,
    LINK_PREDICTION,
)
