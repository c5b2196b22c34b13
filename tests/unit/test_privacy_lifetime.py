"""What is spent over several runs: summed on the client's disk, and refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from clients.privacy.lifetime import FOLDER, Lifetime
from fedgraph_flwr.errors import DataError, PrivacyBudgetError, RunFailedError
from fedgraph_flwr.privacy import describe

ROWS = np.array([40, 7, 12])


def record(folder, **kw):
    return Lifetime(folder, **{"data": "tu:MUTAG", "rows": ROWS, **kw})


# The record ----------------------------------------------------------------------


def test_charges_follow_the_rows_of_the_data_set_whatever_their_order(tmp_path):
    record(tmp_path).charge(np.array([0, 2]), 0.5)  # rows 40 and 12
    other_run = record(tmp_path, rows=np.array([12, 99]))
    assert other_run.total() == 0.5
    other_run.charge(np.array([0, 1]), 0.25)
    assert record(tmp_path).total() == 0.75
    assert record(tmp_path, rows=np.array([7])).total() == 0
    assert record(tmp_path).total(np.array([0, 1])) == 0.5  # rows 40 and 7
    stored = json.loads((tmp_path / "tu_MUTAG.json").read_text())["edge"]
    assert stored == {"40": 0.5, "12": 0.75, "99": 0.25}


def test_data_sets_and_clients_have_records_of_their_own(tmp_path):
    record(tmp_path / "client-0").charge(np.array([0]), 1.0)
    assert record(tmp_path / "client-0", data="BACE").total() == 0
    assert record(tmp_path / "client-1").total() == 0


def test_the_charge_over_budget_is_refused_and_changes_nothing(tmp_path):
    own = record(tmp_path, budget=0.3)
    for _ in range(3):  # 3 * 0.1 > 0.3 in floating point
        own.charge(np.array([0]), 0.1)
    with pytest.raises(PrivacyBudgetError, match=r"of row 40 to 0\.4; privacy\.budget"):
        own.charge(np.array([1, 0]), 0.1)
    assert record(tmp_path, rows=np.array([7])).total() == 0
    with pytest.raises(PrivacyBudgetError, match=r"row 7 to 0\.4"):
        own.charge(np.array([1, 1]), 0.2)  # a graph drawn twice costs twice


@pytest.mark.parametrize("text", ["", "{}", '{"edge": [1]}', '{"edge": {"1": -1}}'])
def test_a_damaged_record_is_an_error_not_a_fresh_start(tmp_path, text):
    record(tmp_path).path.write_text(text)
    with pytest.raises(DataError, match="what earlier runs spent is unknown"):
        record(tmp_path).charge(np.array([0]), 1.0)


# Runs ----------------------------------------------------------------------------

MODES = {"once": 4.0, "per_round": 12.0}


def spent(finished):
    return spent_in(finished.summary)


def spent_in(summary):
    found = summary["privacy"]["per_client"].values()
    return {(s["edge-epsilon"], s["edge-epsilon-lifetime"]) for s in found}


@pytest.mark.parametrize(("mode", "each"), MODES.items())
def test_runs_on_the_same_data_add_up(run, tmp_path, mode, each):
    same = {"privacy.noise-mode": mode, "state-dir": str(tmp_path / "state")}
    first = run("fgcl", **same)
    summary = first.summary
    shutil.rmtree(first.path)  # results are not where the record is
    second = run("fgcl", **same, seed=5)
    assert spent_in(summary) == {(each, each)}
    assert "over all runs" not in summary["privacy"]["says"]
    assert spent(second) == {(each, 2 * each)}
    assert f"({2 * each:g} over all runs)" in second.summary["privacy"]["says"]
    assert spent(run("fgcl", **{**same, "state-dir": str(tmp_path / "b")})) == {
        (each, each)
    }


def test_runs_of_methods_that_take_graphs_add_up_too(run, tmp_path):
    noisy = {"privacy.edge-epsilon": 1.5, "features": "labels"}
    noisy["state-dir"] = str(tmp_path / "state")
    assert spent(run("fedavg", **noisy)) == {(1.5, 1.5)}
    assert spent(run("gcfl+", **noisy)) == {(1.5, 3.0)}


def test_a_budget_for_the_lifetime_refuses_the_next_run(run, tmp_path):
    same = {"privacy.budget-max": 7.0, "state-dir": str(tmp_path / "state")}
    run("fgcl", **same)
    assert spent(run("fgcl", **same)) == {(4.0, 8.0)}  # a budget of the run
    failing = {**same, "privacy.budget-scope": "lifetime"}
    with pytest.raises(RunFailedError, match="over all runs of row"):
        run("fgcl", **failing, **{"results-dir": str(tmp_path / "refused")})
    stored = json.loads(
        next((tmp_path / "state" / FOLDER / "client-1").glob("*.json")).read_text()
    )["edge"]
    assert max(stored.values()) == 8.0  # the refused run drew nothing


def test_resuming_is_the_same_run(run):
    noisy = {"privacy.noise-mode": "per_round", "num-server-rounds": 3}
    part = run("fgcl", **{**noisy, "num-server-rounds": 2})
    again = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("fgcl", **noisy, **again, resume=str(part.path))
    assert spent(resumed) == {(12.0, 12.0)}


def test_the_line_of_a_run_says_both_totals_where_they_differ():
    once = {"edge-epsilon": 2.0, "edge-epsilon-lifetime": 2.0}
    again = {**once, "edge-epsilon-lifetime": 6.0}
    assert "at most; not protected" in describe({0: once})
    assert "at most (6 over all runs); not protected" in describe({0: once, 1: again})
