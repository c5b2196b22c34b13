"""Omega in the results folder, and the maps drawn of it."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import toys
from matplotlib.image import imread

from fedgraph_flwr.core.files import write_npz
from fedgraph_flwr.core.wire import Parcel
from fedgraph_flwr.results.pooled import (
    TaskRelations,
    read_covariances,
    read_rounds,
)
from fedgraph_flwr.view import matrices as tasks
from fedgraph_flwr.view.matrices import draw_task_relations

NAMES_SENT = ("task-covariance", "task-ids")
NAMES = ["liver", "heart", "eye", "ear"]
OMEGA = np.array([[0.4, -0.1, 0.3], [-0.1, 0.1, 0.0], [0.3, 0.0, 0.5]])


def parcel(omega, tasks):
    arrays = {"task-covariance": omega.astype(np.float32), "task-ids": np.array(tasks)}
    return Parcel(evaluation=arrays)


@pytest.fixture
def keep(tmp_path):
    class Kept(TaskRelations):
        def __call__(self, measured_round, parcels):
            found = super().__call__(measured_round, parcels)
            for name, arrays in self.files.items():  # as the run's folder does
                write_npz(tmp_path / name, arrays)
            return found

    kept = Kept()
    kept.expect({c: toys.info(c, num_classes=4) for c in range(3)})
    return kept


def test_what_clients_hand_over_is_kept_by_round_and_client(keep, tmp_path):
    assert keep(0, {0: parcel(OMEGA, [0, 1, 3]), 1: Parcel()}) == []
    assert keep(4, {2: parcel(np.eye(2) / 2, [2, 3])}) == []
    assert keep(5, {1: Parcel()}) == []
    assert read_rounds(tmp_path) == [1, 5]  # after training in the round that ended
    ((tasks, omega),) = read_covariances(tmp_path, 1).values()
    assert tasks == (0, 1, 3)
    np.testing.assert_allclose(omega, OMEGA, atol=1e-7)
    assert list(read_covariances(tmp_path, 5)) == [2]
    assert read_covariances(tmp_path, 6) == {}


@pytest.mark.parametrize(
    ("tasks", "match"),
    [([0, 1], r"float32 of shape \(3, 3\), expected"), ([0, 1, 4], "tasks .* below")],
)
def test_what_is_no_covariance_is_refused(keep, tasks, match):
    for sent, found in ((tasks, match), ([0, 1, 2], "^$")):
        words = keep.misfit(0, 1, parcel(OMEGA, sent).evaluation, NAMES_SENT)
        assert re.search(found, words)


def test_a_run_keeps_omega(run):
    finished = run("fedgmtl", **{"task-masks": "0;1;0-1"})
    assert read_rounds(finished.path) == [1, 2, 3]
    assert set(read_covariances(finished.path, 3)) == {0, 1, 2}
    assert finished.summary["bytes_up_evaluation"] > 0


@pytest.fixture
def folder(keep, tmp_path):
    for t in (0, 1):
        keep(t, {0: parcel(OMEGA, [0, 1, 3]), 2: parcel(np.eye(2) / 2, [2, 3])})
    summary = {"method": "fedgmtl", "dataset": "toy", "tasks": [*NAMES[:3], "e" * 80]}
    summary |= {"seed": 7, "status": "failed"}
    summary |= {"owned_tasks": {"0": [0, 1], "2": [3]}, "metric": "roc-auc"}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_the_map_of_the_last_round_has_a_panel_per_client(folder, monkeypatch):
    figures_seen = []
    save = tasks.save
    monkeypatch.setattr(
        tasks, "save", lambda f, p: figures_seen.append(f) or save(f, p)
    )
    (path,) = draw_task_relations(folder)
    assert path.name == "task-covariance-round-000002.png"
    assert imread(path).std() > 0.01
    title = "fedgmtl on toy, seed 7 (FAILED), round 2"
    assert title in figures_seen[0].get_suptitle()
    panels = figures_seen[0].axes[:2]
    assert [p.get_title(loc="left") for p in panels] == ["client 0", "client 2"]
    names = [label.get_text() for label in panels[0].get_yticklabels()]
    assert names == ["liver", "heart", "eye", "e" * 25 + "…"]
    first = np.asarray(panels[0].images[0].get_array())
    assert first[0, 3] == pytest.approx(0.3 / math.sqrt(0.2))
    assert np.isnan(first[2]).all()  # task 2 is not known to client 0
    assert len(panels[0].patches) == 2  # its own tasks are framed
