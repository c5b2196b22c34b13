"""What is spent over several runs: summed on the client's disk, and refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from clients.privacy import laplace
from clients.privacy.lifetime import FOLDER, Lifetime
from fedgraph_flwr.errors import (
    DataError,
    FedGraphError,
    PrivacyBudgetError,
    RunFailedError,
)
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


@pytest.mark.parametrize(
    ("method", "options"),
    [("fgcl", {"fgcl.views": "one"}), ("fedavg", {"features": "labels"})],
)
@pytest.mark.parametrize("scope", ["run", "lifetime"])
def test_a_site_caps_what_all_runs_may_spend_whatever_they_ask(
    run, tmp_path, monkeypatch, method, options, scope
):
    state = str(tmp_path / "state")
    capped = {"clients": "1", "state-dir": state, "edge-budget-max": 3}
    places = {"state-dir": str(tmp_path / "elsewhere"), **options}
    budget = {"privacy.budget-scope": scope, "privacy.budget-max": 100.0}
    asked = {"privacy.edge-epsilon": 2.0, **budget, **places}
    nodes = [{"clients": "0,2"}, capped]
    assert {e for e, _ in spent(run(method, **asked, node_configs=nodes))} == {2.0}
    charged = next((tmp_path / "state").glob(f"{FOLDER}/client-1/*.json")).read_bytes()

    def forbidden(self, position):
        raise AssertionError("adjacency was read")

    monkeypatch.setattr(laplace.GraphAdjacency, "upper_triangle", forbidden)
    message = "client 1: .*to 4; edge-budget-max of this site's node-config allows 3"
    with pytest.raises(RunFailedError, match=message):
        run(method, **asked, node_configs=nodes, seed=5)
    after = next((tmp_path / "state").glob(f"{FOLDER}/client-1/*.json")).read_bytes()
    assert after == charged


def test_the_smaller_of_both_budgets_is_named(tmp_path):
    one = np.array([0])
    with pytest.raises(PrivacyBudgetError, match="of this site's node-config allows 1"):
        record(tmp_path, budget=2.0, site_budget=1.0).charge(one, 3.0)
    with pytest.raises(PrivacyBudgetError, match=r"privacy\.budget-max .* allows 1"):
        record(tmp_path, budget=1.0, site_budget=2.0).charge(one, 3.0)


@pytest.mark.parametrize("bad", [0, -1.0, True, "7", float("nan"), float("inf")])
def test_a_cap_that_is_none_is_refused_at_roll_call(run, tmp_path, bad):
    site = {"clients": "0,1,2", "state-dir": str(tmp_path), "edge-budget-max": bad}
    with pytest.raises(
        FedGraphError, match="edge-budget-max must be a finite number >"
    ):
        run("fedavg", node_configs=[site])


def test_a_site_with_a_cap_refuses_runs_without_noise_on_edges(run, tmp_path):
    site = {"clients": "0,1,2", "state-dir": str(tmp_path), "edge-budget-max": 7.0}
    with pytest.raises(FedGraphError, match="adds no noise to edges"):
        run("fedavg", node_configs=[site], **{"privacy.update-clip": 1.0})


@pytest.mark.parametrize(
    ("method", "features"), [("fgcl", "atoms"), ("fedavg", "degree")]
)
def test_a_site_with_a_cap_refuses_features_that_tell_edges(
    run, tmp_path, method, features
):
    site = {"clients": "0,1,2", "state-dir": str(tmp_path), "edge-budget-max": 7.0}
    kept = {"features": features, "privacy.keep-edge-features": True}
    with pytest.raises(FedGraphError, match="keeps features that tell edges"):
        run(method, node_configs=[site], **kept, **{"privacy.edge-epsilon": 1.0})


def test_a_cap_needs_a_folder_that_no_run_can_change(run):
    site = {"clients": "0,1,2", "edge-budget-max": 7.0}
    with pytest.raises(FedGraphError, match="edge-budget-max needs state-dir beside"):
        run("fedavg", node_configs=[site])


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
