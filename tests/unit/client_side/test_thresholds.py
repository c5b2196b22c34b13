"""Thresholds, precision at fixed recall and counts of test items, by scikit-learn."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import toys
from commands import at_site
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax
from sklearn import metrics

from clients.tasks.scores import (
    Ranks,
    best_threshold,
    confusion,
    precision_at,
    probabilities,
)
from fedgraph_flwr.trained import load_model


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_thresholds_and_precisions_are_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    p = rng.integers(1, 12, 30) / 12  # with ties
    y = rng.random(30) < rng.choice([0.1, 0.5])
    y[:2] = True, False
    precision, recall, limits = metrics.precision_recall_curve(y, p)
    for least in (0.5, 0.9):
        (found,) = precision_at(least)(Ranks(p[None], y[None]))
        assert found == pytest.approx(precision[:-1][recall[:-1] >= least].max())
    for of_yes in (True, False):
        limit = best_threshold(p, y, of_yes=of_yes)
        f1 = [metrics.f1_score(y == of_yes, (p >= t) == of_yes) for t in limits]
        best = np.flatnonzero(np.isclose(f1, max(f1)))
        assert limit == limits[best[-1]]  # of equals the highest
    counts = metrics.confusion_matrix(y, p >= limit)
    tn, fp, fn, tp = counts.ravel().tolist()
    assert [*confusion(p >= limit, y).values()] == [tp, fp, fn, tn]


def test_what_tells_nothing_has_no_threshold():
    one = np.array([0.2, 0.7])
    for p, y in ((one, [1, 1]), (one, [0, 0]), (one * np.nan, [0, 1])):
        assert np.isnan(best_threshold(p, np.array(y, bool)))
    assert np.isnan(precision_at(0.5)(Ranks(one[None], np.ones((1, 2), bool))))


def test_probabilities_are_those_of_logits():
    logits = np.array([[0.5, -2.0], [30.0, 1.0]], np.float32)
    wide = logits.astype(float)
    np.testing.assert_array_equal(probabilities(logits, is_binary=True), expit(wide))
    found = probabilities(logits, is_binary=False)
    np.testing.assert_array_equal(found, softmax(wide, axis=1))


@pytest.mark.parametrize("commoner", [0.0, 1.0])
def test_a_targets_threshold_is_best_for_the_rarer_answer(tmp_path, commoner):
    case = "fedavg multi-task"
    part = toys.federation(toys.resolved(case).settings, 1)
    y = np.full_like(part.graphs.y, commoner)
    y[[part.train[0], *part.val[:2], part.test[0]]] = 1 - commoner
    part = toys.renewed(part, graphs=replace(part.graphs, y=y))
    client = toys.make_client(tmp_path, case, partition=part)
    held_out, num_val = y[part.held_out], len(part.val)
    of_val = np.array([-1, -2, 2, 1, -3]) * (1 if commoner == 0 else -1)
    logits = np.zeros_like(held_out)
    logits[:num_val] = of_val[:, None]
    found = client._counted("post_aggregation", logits, held_out)
    p = expit(logits[:num_val].astype(float))
    for k in (0, 1):
        args = p[:, k], held_out[:num_val, k] == 1
        limit = found[f"eval/val/post_aggregation/threshold-task-{k}"]
        assert limit == best_threshold(*args, of_yes=commoner == 0)
        assert limit != best_threshold(*args, of_yes=commoner == 1)


@pytest.mark.parametrize("case", ["fedavg", "fedavg multi-task"])
def test_a_common_model_has_the_median_and_the_command_line_wins(
    run, case, tmp_path, capsys
):
    finished = run(case, **{"shared-group": "all"})
    told = finished.summary["final"]["confusion"]
    models = finished.path / "models"
    (kept,) = json.loads((models / "model.json").read_text())["thresholds"].values()
    for name, clients in told.items():
        limits = [of["threshold"] for of in clients.values() if "threshold" in of]
        assert kept.get(name) == (pytest.approx(np.median(limits)) if limits else None)
    assert "on validation items best by F1: p(" in (models / "README.md").read_text()
    words = ["predict", str(models), "/toys", "--test", "--client", "1", "--json"]
    words += ["--out", str(tmp_path / "p.csv")]
    for limit, noes in (("", None), ("0", "FN 0, TN 0"), ("1", "TP 0, FP 0")):
        assert at_site([*words, *(["--threshold", limit] if limit else [])]) == 0
        note = json.loads(capsys.readouterr().out)["notes"][0]
        assert ("as --threshold says" in note) == bool(limit)
        assert (noes or ">= 0.") in note
    found = load_model(models).predict_test("/toys", client=1)
    half = replace(found, thresholds={}).predicted
    is_binary = found.kind == "binary"
    plain = found.outputs >= 0 if is_binary else found.outputs.argmax(1)
    np.testing.assert_array_equal(half, plain)


def test_numbers_have_no_threshold(run, tmp_path, capsys):
    finished = run("fedavg multi-task", dataset="ESOL")
    words = ["predict", str(finished.path / "models"), "/toys", "--test", "--client"]
    words += ["1", "--out", str(tmp_path / "p.csv"), "--threshold", "0.5"]
    assert at_site(words) == 2
    assert "--threshold is for two classes" in capsys.readouterr().err
