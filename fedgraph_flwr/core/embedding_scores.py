"""Scores of graph embeddings: clusters against classes, and probes.

The labels only judge: ``cluster_scores`` clusters without them, ``probe_scores``
trains simple classifiers on frozen embeddings. scikit-learn takes seconds to import,
hence inside the functions that need it. Every computation is in float64, where the
squares of any float32 are finite, and on one thread, which makes it repeatable: with
several, sums are taken in another order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import DataError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

METRICS = ("accuracy", "macro-f1", "nmi", "ari", "smallest-cluster")

_NUM_STARTS = 10  # of k-means, of which the best is kept
_MAX_FOLDS = 10
_INNER_FOLDS = 5
_SVM_COSTS = [0.1, 1.0, 10.0, 100.0]


def transform(embeddings: ArrayLike, name: str) -> Floats:
    """Rescale embeddings of shape (N, d) before they are clustered.

    Parameters
    ----------
    embeddings : array_like, shape (N, d)
        Finite.
    name : str
        ``"raw"``: as they are. ``"l2"``: rows of length 1; zero rows stay zero.
        ``"log1p"``: sign(x) log(1 + |x|), entry by entry.

    Source
    ------
    Ours. Sum-pooled embeddings have norms of 10^2 to 10^4, which contrastive losses of
    cosines never train; k-means on raw ones parts off a few large graphs.
    """
    return _TRANSFORMS[name](_finite(embeddings))


def _unit_rows(x: Floats) -> Floats:
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1.0)


_TRANSFORMS: Mapping[str, Callable[[Floats], Floats]] = {
    "l2": _unit_rows,
    "raw": lambda x: x,
    "log1p": lambda x: np.copysign(np.log1p(np.abs(x)), x),
}
TRANSFORMS = tuple(_TRANSFORMS)


def match_clusters(labels: ArrayLike, assignment: ArrayLike, num_classes: int) -> Ints:
    """Name clusters after classes, one to one, so that most graphs are right.

    Returns the class that each graph's cluster is named after, shape (N,).

    Parameters
    ----------
    labels, assignment : array_like of int, shape (N,)
        Class and cluster of each graph, both in [0, num_classes).

    Source
    ------
    Hungarian method on the (C, C) table of counts, maximising its trace.
    """
    from scipy.optimize import linear_sum_assignment

    clusters = np.asarray(assignment, dtype=np.int64)
    counts = _count_pairs(clusters, np.asarray(labels, dtype=np.int64), num_classes)
    _, class_of_cluster = linear_sum_assignment(counts, maximize=True)
    predicted: Ints = np.asarray(class_of_cluster, dtype=np.int64)[clusters]
    return predicted


def cluster_scores(
    embeddings: ArrayLike, labels: ArrayLike, *, num_classes: int, seed: int
) -> dict[str, float]:
    """Cluster embeddings by k-means, k = number of classes, and score the clusters.

    Parameters
    ----------
    embeddings : array_like, shape (N, d)
        Already transformed; N at least ``num_classes``.
    labels : array_like of int, shape (N,)
        In [0, num_classes).
    seed : int
        Of the starts of k-means.

    Returns
    -------
    dict
        ``accuracy``: share of right graphs after `match_clusters`. ``macro-f1``: mean
        over all classes, where one that is never predicted counts 0. ``nmi``, ``ari``:
        normalised mutual information and adjusted Rand index, without matching.
        ``smallest-cluster``: share of graphs in the smallest of the C clusters, in
        [0, 1/C]; near 0 where k-means parted off outliers, 0 where a cluster is empty.

    Notes
    -----
    With fewer than C distinct rows each is a cluster and the other clusters are empty;
    scikit-learn's warning of that is held back. Rows that differ by rounding only are
    distinct: a collapsed encoder is clustered by its noise.

    Source
    ------
    FCLG, section on evaluation: k-means++ with 10 starts, at most 300 steps each.
    """
    from sklearn.metrics import (
        adjusted_rand_score,
        f1_score,
        normalized_mutual_info_score,
    )

    x, y = _finite(embeddings), np.asarray(labels, dtype=np.int64)
    if len(x) < num_classes:
        raise DataError(
            f"cannot cluster {len(x)} graphs into {num_classes} clusters, one for each"
            f" class: more clusters than graphs; evaluate at least {num_classes}"
            " graphs, of more clients or of a larger data set"
        )
    clusters = _k_means(x, num_classes, seed)
    predicted = match_clusters(y, clusters, num_classes)
    counts = _count_pairs(y, predicted, num_classes)
    of_all: Any = {"labels": range(num_classes), "average": "macro"}
    return {
        "accuracy": float(counts.diagonal().sum() / len(y)),
        "macro-f1": float(f1_score(y, predicted, **of_all, zero_division=0)),
        "nmi": float(normalized_mutual_info_score(y, clusters)),
        "ari": float(adjusted_rand_score(y, clusters)),
        "smallest-cluster": float(counts.sum(axis=0).min() / len(y)),
    }


def all_scores(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    num_classes: int,
    seed: int,
    headline: str = TRANSFORMS[0],
) -> dict[str, float]:
    """Score the clusters of every transform.

    Returns
    -------
    dict
        Those of ``headline``, one of `TRANSFORMS`, under the plain names of `METRICS`;
        and those of every transform as ``"<metric>-<transform>"``.
    """
    by_name = {
        name: cluster_scores(
            transform(embeddings, name), labels, num_classes=num_classes, seed=seed
        )
        for name in TRANSFORMS
    }
    scores = dict(by_name[headline])
    for name, of_transform in by_name.items():
        scores |= {f"{metric}-{name}": v for metric, v in of_transform.items()}
    return scores


def probe_scores(
    embeddings: ArrayLike, labels: ArrayLike, *, seed: int
) -> dict[str, float]:
    """Score classifiers that are trained on the frozen embeddings.

    Parameters
    ----------
    embeddings : array_like, shape (N, d)
        Raw: they are standardised here, column by column.
    labels : array_like of int, shape (N,)
    seed : int
        Of the folds.

    Returns
    -------
    dict
        Mean test accuracy over the folds. ``probe-accuracy``: logistic regression,
        C = 1. ``svm-accuracy``: SVM with an RBF kernel whose C is the best of 0.1, 1,
        10 and 100 (ties: the smallest) in 5 folds of the training part. Empty with
        fewer than two classes or a class of one graph; without ``svm-accuracy`` where
        a class has two, too few to choose C on the training part.

    Source
    ------
    Common protocol of unsupervised graph-level methods (InfoGraph, MVGRL, GraphCL):
    stratified cross-validation with 10 folds, or as many as the smallest class has
    graphs.

    Differs
    -------
    Mean and deviation of each column are those of the training part; the usual code
    does not standardise and offers more values of C.
    """
    x, y = _finite(embeddings), np.asarray(labels, dtype=np.int64)
    sizes = np.unique(y, return_counts=True)[1]
    if len(sizes) < 2 or sizes.min() < 2:
        return {}
    fits = dict(_PROBES)
    if sizes.min() < 3:
        del fits["svm-accuracy"]
    folds = list(_folds(y, _MAX_FOLDS, seed))
    scores: dict[str, list[float]] = {name: [] for name in fits}
    with one_thread():
        for train, test in folds:
            x_train, x_test = _standardise(x[train], x[test])
            for name, fit in fits.items():
                predicted = fit(x_train, y[train], seed).predict(x_test)
                scores[name].append(float(np.mean(predicted == y[test])))
    return {name: float(np.mean(values)) for name, values in scores.items()}


def one_thread() -> AbstractContextManager[Any]:
    """Limit the threads of BLAS and OpenMP to one in a ``with`` block."""
    limits: AbstractContextManager[Any] = _thread_pools().limit(limits=1)
    return limits


@cache
def _thread_pools() -> Any:
    """Find the thread pools of this process, once: the search takes 5 ms."""
    import sklearn.cluster  # noqa: F401  its OpenMP must be there to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class _KernelSVM:
    """SVM on an RBF kernel that is computed once for every C and inner fold."""

    def __init__(self, x: Floats, y: Ints, seed: int) -> None:
        from sklearn.model_selection import GridSearchCV
        from sklearn.svm import SVC

        # Without random_state it would draw from the global generator, for nothing.
        svm = SVC(kernel="precomputed", random_state=seed)
        spread = x.shape[1] * x.var()
        self._x, self._gamma = x, 1.0 / spread if spread > 0 else 1.0  # as "scale"
        folds = _folds(y, _INNER_FOLDS, seed)
        search = GridSearchCV(svm, {"C": _SVM_COSTS}, cv=folds)
        self.search = search.fit(self._kernel(x), y)  # takes the first of equals

    def predict(self, x: Floats) -> Ints:
        predicted: Ints = self.search.predict(self._kernel(x))
        return predicted

    def _kernel(self, x: Floats) -> Floats:
        from sklearn.metrics.pairwise import rbf_kernel

        kernel: Floats = rbf_kernel(x, self._x, gamma=self._gamma)
        return kernel


def _fit_logistic(x: Floats, y: Ints, seed: int) -> Any:  # noqa: ARG001
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=1.0, max_iter=1000).fit(x, y)


_PROBES: dict[str, Callable[[Floats, Ints, int], Any]]
_PROBES = {"probe-accuracy": _fit_logistic, "svm-accuracy": _KernelSVM}


def _folds(y: Ints, most: int, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Stratified (train, test) rows; no more folds than the smallest class has rows."""
    from sklearn.model_selection import StratifiedKFold

    count = min(most, int(np.unique(y, return_counts=True)[1].min()))
    folds = StratifiedKFold(count, shuffle=True, random_state=seed)
    yield from folds.split(np.zeros((len(y), 1)), y)


def _standardise(train: Floats, test: Floats) -> tuple[Floats, Floats]:
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train)
    return scaler.transform(train), scaler.transform(test)


def _k_means(x: Floats, num_clusters: int, seed: int) -> Ints:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    k_means = KMeans(
        num_clusters,
        init="k-means++",
        n_init=_NUM_STARTS,
        max_iter=300,
        random_state=seed,
    )
    with one_thread(), warnings.catch_warnings():
        # Fewer distinct rows than clusters; smallest-cluster tells it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(k_means.fit_predict(x), dtype=np.int64)


def _count_pairs(rows: Ints, columns: Ints, num_classes: int) -> Ints:
    flat = np.bincount(rows * num_classes + columns, minlength=num_classes**2)
    return flat.reshape(num_classes, num_classes)


def _finite(embeddings: ArrayLike) -> Floats:
    x: Floats = np.asarray(embeddings, dtype=np.float64)
    bad = ~np.isfinite(x).all(axis=1)
    if bad.any():
        raise DataError(
            f"{bad.sum()} of {len(x)} embeddings hold NaN or infinite entries, the"
            f" first that of graph {int(bad.argmax())}; only finite ones can be scored:"
            " the encoder diverged, lower learning-rate"
        )
    return x
