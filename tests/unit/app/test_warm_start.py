"""Runs that begin from a former model, and dry runs that keep nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from clients.site_database import SITE_FILE, site_database
from clients.store import bind_run, bound_runs, forget
from fedgraph_flwr import server_app
from fedgraph_flwr.core.errors import ConfigError, WireError
from fedgraph_flwr.results.model_files import WarmStart

pytestmark = pytest.mark.slow  # whole runs; the contracts are fast

ALL = {"shared-group": "all"}


@pytest.fixture
def starts(toy_data, monkeypatch):
    """What strategies were initialised with."""
    seen = []
    make = server_app._make_strategy

    def watched(*arguments):
        strategy = make(*arguments)
        original = strategy.initialise

        def initialise(arrays):
            seen.append(arrays)
            original(arrays)

        strategy.initialise = initialise
        return strategy

    monkeypatch.setattr(server_app, "_make_strategy", watched)
    return seen


def test_a_run_begins_with_the_very_tensors_of_the_former_model(run, starts):
    former = run("fedavg", **ALL)
    fresh = starts[0]
    later = run("fedprox", **{"init-from": str(former.path)}, **ALL)
    (file,) = (former.path / "models").glob("*.safetensors")
    model = load_file(file)
    assert model.keys() == starts[1].keys()
    for name, array in starts[1].items():
        assert array.tobytes() == model[name].tobytes()
    assert any((fresh[n] != starts[1][n]).any() for n in fresh)
    (told,) = later.summary["lineage"]
    assert told["experiment"] == former.path.name
    assert (told["model"], told["rounds"], told["method"]) == ("global", 3, "fedavg")
    again = run("fedavg", **{"init-from": str(later.path / "models")}, **ALL)
    assert [t["experiment"] for t in again.summary["lineage"]] == [
        later.path.name, former.path.name
    ]  # fmt: skip


def test_a_former_model_of_another_split_is_warned_of(run, caplog):
    """It may have been trained on graphs that test here."""
    caplog.set_level("WARNING", "flwr")
    former = run("fedavg", **ALL, **{"num-server-rounds": 1})
    short = {**ALL, "num-server-rounds": 1, "init-from": str(former.path)}
    words = "another split of synthetic (split-seed was 123, is 7): it may have learned"
    run("fedavg", **short)
    assert words not in caplog.text
    run("fedavg", **short, **{"split-seed": 7})
    assert words in caplog.text
    run("fedavg", **short, folds=3)
    assert "(folds was 1, is 3)" in caplog.text


def test_one_of_several_models_is_named_by_its_file(run, starts):
    former = run("fedgkd")
    with pytest.raises(ConfigError, match=r"files there: client-0.safetensors, cl"):
        run("fedgkd", **{"init-from": str(former.path)})
    chosen = former.path / "models" / "client-1.safetensors"
    run("fedgkd", **{"init-from": str(chosen)})
    model = load_file(chosen)
    assert all((starts[-1][n] == model[n]).all() for n in starts[-1])


def test_a_model_of_another_shape_is_refused_by_name(run):
    init = {"init-from": str(run("fedavg", **ALL).path)}
    with pytest.raises(ConfigError, match=r"pre.weight: \(8, 4\) there, \(4, 4\) here"):
        run("fedavg", **init, **ALL, **{"hidden-dim": 4})


# Dry runs -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gcfl+", "spreadgnn"])
def test_a_dry_run_leaves_its_report_and_nothing_else(run, method):
    found = run(method, nodes=2, **{"dry-run": True})
    assert [p.name for p in found.path.iterdir()] == ["dry-run.json"]
    report = json.loads((found.path / "dry-run.json").read_text())
    assert report["seconds"] > 0
    assert report["planned_rounds"] == 3
    for client in "012":
        entry = report["clients"][client]
        assert entry["seconds"] > 0
        assert entry["seconds"] <= report["seconds"]
        assert entry["bytes_up"] > 0
    state = Path(found.overrides["state-dir"])
    kept = [p for p in state.rglob("*") if p.is_file()]
    # The log of the site, and the key by which it is known, are no part of a run.
    names = {p.relative_to(state).parts[0] for p in kept} - {"identity", "journal.csv"}
    site = {SITE_FILE, f"{SITE_FILE}-journal"}
    assert names <= {"audit.jsonl", "audit.lock", *site}, kept


def test_what_a_dry_run_drew_of_privacy_is_kept(run):
    noisy = {"privacy.update-clip": 1.0, "dry-run": True}
    found = run("fedavg", **noisy)
    state = Path(found.overrides["state-dir"])
    query = "SELECT count(*) FROM updates WHERE experiment = ?"
    assert site_database(state).rows(query, found.path.name) == [(3,)]


def test_only_the_run_itself_can_be_forgotten(tmp_path):
    config = {"dry-run": True}
    bind_run(tmp_path, 1, "one", config)
    bind_run(tmp_path, 2, "two", config)
    (tmp_path / "one" / "client-0").mkdir(parents=True)
    with pytest.raises(WireError, match="experiment 'two' at this site, now the serv"):
        forget(tmp_path, 2, "one", config, [0])
    with pytest.raises(WireError, match="seed was None and is now 1; refused"):
        forget(tmp_path, 1, "one", {**config, "seed": 1}, [0])
    assert (tmp_path / "one" / "client-0").is_dir()
    forget(tmp_path, 1, "one", config, [0])
    assert not (tmp_path / "one").exists()
    assert bound_runs(tmp_path) == {"two": [2]}


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_start_that_nobody_can_train_from_is_refused_at_once(tmp_path, value):
    """Also where it is finite there, and infinite in this run's type."""
    warm = WarmStart(path=tmp_path, arrays={"w": np.array([value])}, lineage=[])
    with pytest.raises(ConfigError, match="has NaN or infinity in w; nobody"):
        warm.start({"w": np.zeros(1, np.float32)})
