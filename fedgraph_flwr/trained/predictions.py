"""Predictions as a table, and the score where labels are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.tasks.multitask_scores import (
    average_precision,
    mean_absolute_error,
    of_classes,
    roc_auc,
)

from ..errors import ConfigError
from ..files import write_csv
from ..tasks import AVERAGE_PRECISION
from .folder import EMBEDDING

_NUMBERS = ("regression", EMBEDDING)  # kinds whose outputs are told as they are
MEASURES = {"roc-auc": roc_auc, "mae": mean_absolute_error}  # of labels of tasks
SCALED = "mae in spreads of csv-label-scale"
_CUT = 0.5  # probability from which yes is predicted


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a model predicts for some items.

    Parameters
    ----------
    outputs : float32 array, shape (num_items, num_outputs)
        Logits, numbers or embeddings.
    names : list of str
        Of the items.
    column : str
        What a name is, e.g. "graph"; "row" counts from 0, as a run counts its own data.
    kind, metric : str
        See ``About``.
    labels_of : list of str
        Name of each class, or of each task.
    labels : array, optional
        Classes, (num_items,), or labels of tasks, (num_items, num_outputs).
    unfit : list of (str, str)
        Items that cannot be predicted, and why.
    rarest, by_precision : str, bool
        See ``About``.
    spreads : tuple of float
        By which a model learns each of several numbers; empty: as they are.
    threshold : float, optional
        Probability from which yes, or :attr:`sought` of two classes, is predicted;
        else one half.
    """

    outputs: NDArray[np.float32]
    names: list[str]
    column: str
    kind: str
    metric: str
    labels_of: list[str]
    labels: NDArray[Any] | None = None
    unfit: list[tuple[str, str]] = field(default_factory=list)
    rarest: str = ""
    by_precision: bool = False
    threshold: float | None = None
    spreads: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.threshold is None:
            return
        if self.kind in _NUMBERS or (self.is_of_classes and len(self.labels_of) != 2):
            raise ConfigError(
                "--threshold is for two classes, or labels yes and no, but this model"
                f" has {len(self.labels_of)} outputs of kind {self.kind!r}; leave it"
                " out, and rank items by the columns of the file"
            )
        if not 0 < self.threshold < 1:
            raise ConfigError(
                "--threshold must be a probability > 0 and < 1, got"
                f" {self.threshold:g}; choose one from a column p(...) of the file"
            )

    @property
    def is_of_classes(self) -> bool:
        """Whether each item is predicted to be of one class."""
        return self.kind in ("classes", "nodes")

    @property
    def sought(self) -> int:
        """Number of the rarest class; where it is not known, of the second."""
        names = self.labels_of
        return names.index(self.rarest) if self.rarest in names else 1

    @property
    def predicted(self) -> NDArray[np.int64]:
        """Number of each item's class; of labels yes and no, 1 or 0 for each."""
        if self.kind == "binary":
            found = self.probabilities >= (self.threshold or _CUT)
        elif self.threshold is None:
            found = self.outputs.argmax(1)
        else:
            is_sought = self.probabilities[:, self.sought] >= self.threshold
            found = np.where(is_sought, self.sought, 1 - self.sought)
        return np.asarray(found, np.int64)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Probability of each class, or of yes for each task: (num_items, num_outputs).

        The outputs themselves where they are numbers or embeddings.
        """
        outputs = self.outputs.astype(np.float64)
        if self.kind in _NUMBERS:
            return outputs
        from scipy.special import expit, softmax  # here: it takes a tenth of a second

        found = expit(outputs) if self.kind == "binary" else softmax(outputs, axis=1)
        return np.asarray(found, np.float64)

    def score(self) -> float | None:
        """Score in the metric of the run's results; None without labels.

        NaN where labels allow no score.
        """
        if self.labels is None or not len(self.labels):
            return None
        return self.measure(self.metric, self.outputs, self.labels)

    @property
    def decides(self) -> str:
        """Score by which the run chose its rounds."""
        if self.spreads:
            return SCALED
        return AVERAGE_PRECISION if self.by_precision else self.metric

    def measure(
        self, metric: str, outputs: NDArray[np.float32], labels: NDArray[Any]
    ) -> float:
        """Score outputs of some items, e.g. of another model; NaN if that is none."""
        if metric == "accuracy":
            return float((outputs.argmax(1) == labels).mean())
        if metric == AVERAGE_PRECISION:
            return of_classes(average_precision, outputs, labels, self.sought)
        if metric == SCALED:
            by = np.array(self.spreads)
            return mean_absolute_error(outputs / by, labels / by).mean
        return MEASURES[metric](outputs, labels).mean

    def by_target(self) -> dict[str, float]:
        """Score of each of several numbers, whose units may differ."""
        if self.labels is None or self.kind != "regression" or len(self.labels_of) < 2:
            return {}
        found = MEASURES[self.metric](self.outputs, self.labels).per_task
        return dict(zip(self.labels_of, found.tolist(), strict=True))

    def header(self) -> list[str]:
        """Names of the columns."""
        names = self.labels_of
        if self.kind == "regression":
            predicted = [f"prediction({t})" for t in names]
        elif self.kind == EMBEDDING:
            predicted = list(names)
        elif self.kind == "binary":
            predicted = [f"{what}({t})" for t in names for what in ("prediction", "p")]
        else:
            predicted = ["prediction", *(f"p({c})" for c in names)]
        labels = ["label"] if self.is_of_classes else [f"label({t})" for t in names]
        known = [] if self.labels is None else labels
        return [self.column, *predicted, *known, "problem"]

    def rows(self) -> list[list[str]]:
        """One row for each item; those that are unfit come last and say why."""
        found = [
            [name, *self._predicted(p, found), *self._labelled(at), ""]
            for at, (name, p, found) in enumerate(
                zip(self.names, self.probabilities, self.predicted, strict=True)
            )
        ]
        empty = [""] * (len(self.header()) - 2)
        return found + [[name, *empty, why] for name, why in self.unfit]

    def _predicted(self, p: NDArray[np.float64], found: Any) -> list[str]:
        told = [repr(float(v)) for v in p]
        if self.kind in _NUMBERS:
            return told
        if self.kind == "binary":
            yes = map(str, found)
            return [word for pair in zip(yes, told, strict=True) for word in pair]
        return [self.labels_of[found], *told]

    def _labelled(self, at: int) -> list[str]:
        if self.labels is None:
            return []
        label = self.labels[at]
        if label.ndim:
            told = [np.format_float_positional(v, trim="-") for v in label]
            return ["" if np.isnan(v) else t for v, t in zip(label, told, strict=True)]
        return [self.labels_of[int(label)]]

    def write(self, path: str | Path) -> None:
        """Write the table as CSV.

        Raises
        ------
        StorageError
        """
        write_csv(Path(path), (self.header(), *self.rows()))
