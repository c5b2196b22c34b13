"""Scores of embeddings: by brute force, by scikit-learn and by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_info, threadpool_limits

from fedgraph_flwr.core.embedding_scores import (
    METRICS,
    TRANSFORMS,
    all_scores,
    cluster_scores,
    match_clusters,
    probe_scores,
    transform,
)
from fedgraph_flwr.core.errors import DataError


def blobs(sizes, *, spread=0.05, dim=8, seed=0):
    """One tight ball of graphs per class, around a corner of the simplex."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    order = rng.permutation(len(labels))
    x = np.eye(len(sizes), dim)[labels] + spread * rng.normal(size=(len(labels), dim))
    return x[order].astype(np.float32), labels[order]


def noise(num_graphs, dim, num_classes, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_graphs, dim)).astype(np.float32)
    return x, np.arange(num_graphs) % num_classes


@st.composite
def clusterings(draw):
    num_classes = draw(st.integers(1, 6))
    pair = st.tuples(*[st.integers(0, num_classes - 1)] * 2)
    pairs = np.array(draw(st.lists(pair, min_size=1, max_size=40)))
    return pairs[:, 0], pairs[:, 1], num_classes


@settings(max_examples=80, deadline=None)
@given(clusterings())
def test_no_other_naming_of_the_clusters_is_right_more_often(case):
    labels, assignment, num_classes = case
    predicted = match_clusters(labels, assignment, num_classes)
    best = max(
        np.mean(np.array(names)[assignment] == labels)
        for names in itertools.permutations(range(num_classes))
    )
    assert np.mean(predicted == labels) == best
    # One to one: clusters never share a class, and none is torn apart.
    named = set(zip(assignment, predicted, strict=True))
    assert len(named) == len({a for a, _ in named}) == len({p for _, p in named})


@pytest.mark.parametrize("value", [0.0, 0.1, 1e30])
def test_equal_embeddings_score_the_majority_share(value):
    labels = np.array([1, 1, 1, 0, 2, 1, 0, 2, 1, 0])
    x = np.full((10, 5), value, dtype=np.float32)
    scores = cluster_scores(x, labels, num_classes=3, seed=0)
    assert scores["accuracy"] == 0.5
    assert scores["macro-f1"] == pytest.approx(2 * 0.5 / 1.5 / 3)  # two classes count 0
    assert scores["nmi"] == pytest.approx(0, abs=1e-12)
    assert scores["ari"] == pytest.approx(0, abs=1e-12)
    assert scores["smallest-cluster"] == 0


@pytest.mark.parametrize("seed", [0, 3])
def test_scores_are_those_of_scikit_learn_on_the_matched_prediction(seed):
    num_classes = 2 + seed
    x, labels = noise(90, 3, num_classes, seed=seed)
    scores = cluster_scores(x, labels, num_classes=num_classes, seed=seed)
    k_means = KMeans(num_classes, n_init=10, max_iter=300, random_state=seed)
    clusters = k_means.fit_predict(x.astype(np.float64))
    predicted = match_clusters(labels, clusters, num_classes)
    classes = list(range(num_classes))
    f1 = f1_score(labels, predicted, labels=classes, average="macro", zero_division=0)
    assert scores["macro-f1"] == pytest.approx(f1)
    assert scores["accuracy"] == pytest.approx(np.mean(predicted == labels))
    sizes = np.bincount(clusters, minlength=num_classes)
    assert scores["smallest-cluster"] == pytest.approx(sizes.min() / 90)


def test_transforms_by_hand():
    x = np.array([[3.0, -4.0], [0.0, 0.0], [0.0, np.e - 1]])
    assert transform(x, "raw").tolist() == x.tolist()
    assert transform(x, "l2") == pytest.approx(
        np.array([[0.6, -0.8], [0.0, 0.0], [0.0, 1.0]])
    )
    expected = np.array([[np.log(4), -np.log(5)], [0, 0], [0, 1]])
    assert transform(x, "log1p") == pytest.approx(expected)
    assert x[0].tolist() == [3.0, -4.0]


def test_all_scores_name_metric_and_transform():
    x, labels = noise(60, 4, 3)
    x *= np.linspace(0.01, 30, 60)[:, None].astype(np.float32)
    by_headline = {
        name: all_scores(x, labels, num_classes=3, seed=1, headline=name)
        for name in TRANSFORMS
    }
    for name, scores in by_headline.items():
        own = cluster_scores(transform(x, name), labels, num_classes=3, seed=1)
        assert {m: scores[m] for m in METRICS} == own
        assert {m: scores[f"{m}-{name}"] for m in METRICS} == own
        assert len(scores) == len(METRICS) * (1 + len(TRANSFORMS))
    assert len({scores["accuracy"] for scores in by_headline.values()}) == 3


def test_same_seed_same_scores_on_any_number_of_threads(monkeypatch):
    x, labels = noise(1200, 48, 4)
    seen = []
    fit_predict = KMeans.fit_predict

    def spy(self, data):
        seen.append({pool["num_threads"] for pool in threadpool_info()})
        return fit_predict(self, data)

    monkeypatch.setattr(KMeans, "fit_predict", spy)
    found = []
    for threads in (1, 2, 2):
        with threadpool_limits(limits=threads):
            found.append(cluster_scores(x, labels, num_classes=4, seed=5))
    assert found[0] == found[1] == found[2]
    assert seen == [{1}] * 3
    assert cluster_scores(x, labels, num_classes=4, seed=6) != found[0]


def test_what_cannot_be_scored_says_why():
    x, labels = noise(4, 3, 2)
    with pytest.raises(DataError, match=r"4 graphs into 6 clusters.*more clusters"):
        cluster_scores(x, labels, num_classes=6, seed=0)
    x[1, 0], x[3] = np.nan, [np.inf, -np.inf, 1]
    message = r"2 of 4 embeddings hold NaN .* graph 1;.*lower learning-rate"
    for score in (
        lambda: cluster_scores(x, labels, num_classes=2, seed=0),
        lambda: all_scores(x, labels, num_classes=2, seed=0, headline="l2"),
        lambda: probe_scores(x, labels, seed=0),
    ):
        with pytest.raises(DataError, match=message):
            score()


def test_probes_equal_scikit_learn_s_nested_cross_validation():
    """Neither the scale nor the choice of C sees the fold that is tested on."""
    seed = 0
    x, labels = blobs((16, 14, 8), spread=0.7, dim=5, seed=seed)
    x *= np.linspace(1, 9, 5, dtype=np.float32)
    logistic, svm = [], []
    folds = StratifiedKFold(8, shuffle=True, random_state=seed).split(x, labels)
    for train, test in folds:
        scaler = StandardScaler().fit(x[train].astype(np.float64))
        x_train, x_test = (scaler.transform(x[rows]) for rows in (train, test))
        search = GridSearchCV(
            SVC(gamma=1 / (5 * x_train.var())),
            {"C": [0.1, 1, 10, 100]},
            cv=StratifiedKFold(5, shuffle=True, random_state=seed),
        )
        svm.append(search.fit(x_train, labels[train]).score(x_test, labels[test]))
        model = LogisticRegression(max_iter=1000).fit(x_train, labels[train])
        logistic.append(model.score(x_test, labels[test]))
    scores = probe_scores(x, labels, seed=seed)
    assert scores["svm-accuracy"] == pytest.approx(np.mean(svm))
    assert scores["probe-accuracy"] == pytest.approx(np.mean(logistic))


def test_small_classes_leave_probes_out():
    x, _ = noise(12, 3, 2)
    assert probe_scores(x, np.zeros(12, dtype=int), seed=0) == {}
    assert probe_scores(x, [0] * 11 + [1], seed=0) == {}
    assert set(probe_scores(x, [0] * 10 + [1] * 2, seed=0)) == {"probe-accuracy"}
    assert len(probe_scores(x, [0] * 9 + [5] * 3, seed=0)) == 2
