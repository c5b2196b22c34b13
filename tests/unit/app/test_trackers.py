"""Trackers: what they are given, and what real ones hold afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
import toys

from fedgraph_flwr.core.errors import ConfigError, DataError, FedGraphError
from fedgraph_flwr.results import trackers

NAME = "test/accuracy/post_aggregation/mean"


class Kept:
    """A tracker that keeps what it is given."""

    made: list[Kept]

    def __init__(self, folder, config, first):
        self.place, self.config, self.first = str(folder), config, first
        self.steps, self.is_closed = {}, False
        Kept.made.append(self)

    def log(self, step, values):
        self.steps.setdefault(step, {}).update(values)

    def close(self):
        self.is_closed = True


class Broken(Kept):
    def log(self, step, values):
        Kept.made.append(self)
        raise OSError("no network")


@pytest.fixture
def kept(monkeypatch):
    """Let ``wandb`` be a tracker that this test reads, installed or not."""
    Kept.made = []
    monkeypatch.setattr(trackers, "TRACKERS", {"wandb": (Kept, "json")})
    return Kept.made


@pytest.fixture(scope="module")
def finished(once):
    return once("fedavg", **{"num-server-rounds": 3}).path


def means(folder: Path) -> dict[int, float]:
    """Mean test accuracy by round, from the file itself."""
    found: dict[int, list[float]] = {}
    wanted = "test", "post_aggregation", "accuracy"
    for row in toys.csv_rows(folder / "rounds.csv"):
        if (row["split"], row["point"], row["metric"]) == wanted:
            found.setdefault(int(row["round"]), []).append(float(row["value"]))
    return {t: sum(v) / len(v) for t, v in found.items()}


def test_a_run_and_its_import_tell_the_same(run, kept):
    folder = run("fedavg", tracker="wandb", **{"num-server-rounds": 3}).path
    trackers.import_run(folder, "wandb")
    live, later = kept
    assert live.is_closed
    assert live.steps == later.steps
    assert {t: v[NAME] for t, v in live.steps.items() if NAME in v} == pytest.approx(
        means(folder)
    )
    assert not {"results-dir", "state-dir", "cache-dir", "resume"} & set(live.config)


def test_a_tracker_changes_no_weights_and_may_break_down(
    run, finished, kept, monkeypatch
):
    monkeypatch.setattr(trackers, "TRACKERS", {"wandb": (Broken, "json")})
    broken = run("fedavg", tracker="wandb", **{"num-server-rounds": 3})
    before = (finished / "rounds.csv").read_bytes()
    assert (broken.path / "rounds.csv").read_bytes() == before
    assert broken.summary["status"] == "completed"
    assert len(kept) == 2  # made, and asked once
    with pytest.raises(FedGraphError, match=r"wandb refused .*no network"):
        trackers.import_run(finished, "wandb")


def test_a_missing_package_is_refused_before_training(run, monkeypatch):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="pip install wandb there, or set tracker"):
        run("fedavg", tracker="wandb")


def test_folders_that_are_no_runs(kept, tmp_path):
    with pytest.raises(DataError, match="is no results folder"):
        trackers.import_run(tmp_path, "wandb")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match="has no round yet"):
        trackers.import_run(tmp_path, "wandb")
