"""What is spent over several runs: summed on the client's disk, and refused."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import toys
from matrix import mostly_slow

from clients.privacy import accounts, laplace
from clients.privacy.accounts import FOLDER, OF_RUN_FOLDER, EdgeRecord, write_record
from clients.store import ClientStore
from fedgraph_flwr.core.errors import (
    DataError,
    FedGraphError,
    PrivacyBudgetError,
    RunFailedError,
)
from fedgraph_flwr.core.privacy_settings import describe

ROWS = np.array([40, 7, 12])


def record(folder, **kw):
    given = {"client": "client-0", "data": "tu:MUTAG", "rows": ROWS, **kw}
    return EdgeRecord(folder, **given)


def total(own, positions=slice(None)):
    (found,) = own.totals(positions)
    return found


# The record ----------------------------------------------------------------------


def test_charges_follow_the_rows_of_the_data_set_whatever_their_order(tmp_path):
    record(tmp_path).charge(np.array([0, 2]), 0.5)  # rows 40 and 12
    other_run = record(tmp_path, rows=np.array([12, 99]))
    assert total(other_run) == 0.5
    other_run.charge(np.array([0, 1]), 0.25)
    assert total(record(tmp_path)) == 0.75
    assert total(record(tmp_path, rows=np.array([7]))) == 0
    assert total(record(tmp_path), np.array([0, 1])) == 0.5  # rows 40 and 7
    stored = json.loads((tmp_path / "client-0" / "tu_MUTAG.json").read_text())["edge"]
    assert stored == {"40": 0.5, "12": 0.75, "99": 0.25}


@pytest.mark.parametrize("hidden", ["", "client-0"])
def test_an_account_that_may_not_be_read_is_not_taken_for_none(tmp_path, hidden):
    """As after a run under another user."""
    folder = tmp_path / "accounts"
    record(folder).charge(np.arange(3), 2.0)
    other = record(folder, client="client-3", budget=3.0)
    with (
        toys.shut(folder / hidden),
        pytest.raises(DataError, match=r"accounts.* be read: Permission.*: let this"),
    ):
        total(other)
    assert total(other) == 2.0


def test_a_row_has_one_account_whatever_clients_drew_it(tmp_path):
    """Clients of one site, or one that is hosted under another id in a later run."""
    first, second = (record(tmp_path, client=f"client-{c}", budget=2.5) for c in (0, 3))
    everyone = np.arange(3)
    first.charge(everyone, 1.0)
    assert total(second) == 1.0
    second.charge(np.array([0]), 1.0)  # row 40
    assert (total(first), first.own(everyone)) == (2.0, 1.0)
    assert total(second, np.array([1])) == 1.0
    with pytest.raises(PrivacyBudgetError, match="of row 40 to 3; "):
        first.charge(everyone, 1.0)
    assert total(record(tmp_path, client="client-7")) == 2.0


def test_data_sets_have_accounts_of_their_own_and_so_have_files(tmp_path):
    record(tmp_path).charge(np.array([0]), 1.0)
    assert total(record(tmp_path, data="BACE")) == 0
    files = [
        record(tmp_path, data="csv", source=f"{name}.csv", client=f"client-{k}")
        for k, name in enumerate("ab")
    ]
    files[0].charge(np.array([0]), 1.0)
    assert [total(own) for own in files] == [1.0, 0.0]


def test_a_file_keeps_its_account_under_another_name_and_under_another_id(tmp_path):
    def file(name, client):
        return record(tmp_path, data="csv", source=name, client=client, budget=2.5)

    file("a", "client-0").charge(np.array([0]), 1.0)
    assert total(file("a", "client-1")) == 1.0
    file("renamed", "client-0").charge(np.array([0]), 1.0)
    assert total(file("a", "client-0")) == 2.0
    with pytest.raises(PrivacyBudgetError, match="of row 40 to 3; "):
        file("again", "client-0").charge(np.array([0]), 1.0)
    assert total(file("other", "client-2")) == 0.0
    assert total(record(tmp_path, data="csv2", source="a")) == 0.0


def test_what_an_earlier_version_counted_by_client_still_counts(tmp_path):
    """Its files had a client's rows of a data set, and no name of a file."""
    for client, spent in (("client-0", {"40": 1.0, "7": 2.0}), ("client-1", {"40": 3})):
        for data in ("tu_MUTAG", "csv"):
            (tmp_path / client).mkdir(exist_ok=True)
            path = tmp_path / client / f"{data}.json"
            path.write_text(json.dumps({"edge": spent}))
    assert total(record(tmp_path)) == 4.0
    record(tmp_path).charge(np.array([0]), 0.5)
    assert total(record(tmp_path, client="client-9")) == 4.5
    assert total(record(tmp_path, data="csv", source="a.csv")) == 4.0


def test_the_charge_over_budget_is_refused_and_changes_nothing(tmp_path):
    own = record(tmp_path, budget=0.3)
    for _ in range(3):  # 3 * 0.1 > 0.3 in floating point
        own.charge(np.array([0]), 0.1)
    with pytest.raises(PrivacyBudgetError, match=r"of row 40 to 0\.4; privacy\.budget"):
        own.charge(np.array([1, 0]), 0.1)
    assert total(record(tmp_path, rows=np.array([7]))) == 0
    with pytest.raises(PrivacyBudgetError, match=r"row 7 to 0\.4"):
        own.charge(np.array([1, 1]), 0.2)  # a graph drawn twice costs twice


def test_records_are_read_again_only_if_they_have_changed(tmp_path, monkeypatch):
    others = [record(tmp_path, client=f"client-{k}") for k in (1, 2, 3)]
    for other in others:
        other.charge(np.array([0]), 0.1)
        os.utime(other.path, ns=(0, 0))
    read = []
    parse = accounts.parse_record
    monkeypatch.setattr(accounts, "parse_record", lambda t: read.append(t) or parse(t))
    monkeypatch.setattr(accounts, "_TICK_NS", -1)  # as if written long ago
    accounts.tally.cache_clear()
    own = record(tmp_path)
    assert [total(own) for _ in range(3)] == [math.fsum([0.1] * 3)] * 3
    assert len(read) == 3
    others[0].charge(np.array([0]), 1.0)
    read.clear()
    assert total(own) == math.fsum([1.1, 0.1, 0.1])
    assert len(read) == 1
    shutil.rmtree(others[1].path.parent)
    assert total(own) == math.fsum([1.1, 0.1])
    others[2].path.write_text("{}")
    with pytest.raises(DataError, match="what earlier runs spent is unknown"):
        total(own)
    others[2].path.write_text('{"edge": {"40": 2}}')
    assert total(own) == math.fsum([1.1, 2])


def test_totals_are_exact_sums_however_often_records_change(tmp_path):
    rng = np.random.default_rng(4)
    spent: dict[int, dict[int, float]] = {}
    own = record(tmp_path, client="client-99", rows=np.arange(6))
    for _ in range(60):
        client = int(rng.integers(5))
        path = record(tmp_path, client=f"client-{client}").path
        if client in spent and rng.random() < 0.2:
            del spent[client]
            path.unlink()
        else:
            rows = rng.choice(6, size=3, replace=False).tolist()
            spent[client] = {r: float(10.0 ** rng.uniform(-12, 4)) for r in rows}
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"edge": spent[client]}))
        expected = [
            math.fsum(found.get(row, 0.0) for found in spent.values())
            for row in range(6)
        ]
        assert own.totals(*np.arange(6)[:, None]) == expected


@pytest.mark.parametrize("spent", ["NaN", "Infinity", "-1", "1e999"])
def test_a_record_of_no_number_is_an_error(tmp_path, spent):
    path = record(tmp_path).path
    path.parent.mkdir()
    path.write_text(f'{{"edge": {{"40": {spent}}}}}')
    with pytest.raises(DataError, match="what earlier runs spent is unknown"):
        total(record(tmp_path, client="client-1"))


def test_a_record_that_changes_within_a_tick_of_the_clock_is_read_again(
    tmp_path, monkeypatch
):
    other, own = (record(tmp_path, client=f"client-{k}") for k in (1, 2))
    other.charge(np.array([0]), 1.0)
    assert total(own) == 1.0
    mark = (1, 1, 1, 1)
    monkeypatch.setattr(accounts, "_mark", lambda _: (mark, time.time_ns()))
    assert total(own) == 1.0
    other.path.write_text('{"edge": {"40": 2}}')
    assert total(own) == 2.0


@pytest.mark.parametrize("text", ["", "{}", '{"edge": [1]}', '{"edge": {"1": -1}}'])
def test_a_damaged_record_is_an_error_not_a_fresh_start(tmp_path, text):
    other = record(tmp_path, client="client-1").path
    other.parent.mkdir()
    other.write_text(text)
    with pytest.raises(DataError, match="what earlier runs spent is unknown"):
        record(tmp_path).charge(np.array([0]), 1.0)


@pytest.mark.parametrize("name", ["client", "source"])
def test_charges_of_a_site_at_the_same_time_are_all_counted(
    tmp_path, monkeypatch, name
):
    def slowly(*content):
        time.sleep(0.005)  # so that others read before it is written, if they can
        write_record(*content)

    monkeypatch.setattr(accounts, "write_record", slowly)

    def charge(k):
        names = {name: f"client-{k % 2}"}
        record(tmp_path, budget=30, **names).charge(np.array([1]), 1.0)

    with ThreadPoolExecutor(4) as pool:
        done = [f.exception() for f in [pool.submit(charge, k) for k in range(40)]]
    assert sum(error is None for error in done) == 30
    assert total(record(tmp_path)) == 30


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
    cap = toys.policy(tmp_path, edge_epsilon_max=3)
    capped = {"clients": "1", "state-dir": state, **cap}
    places = {"state-dir": str(tmp_path / "elsewhere"), **options}
    budget = {"privacy.budget-scope": scope, "privacy.budget-max": 100.0}
    asked = {"privacy.edge-epsilon": 2.0, **budget, **places}
    nodes = [{"clients": "0,2"}, capped]
    assert {e for e, _ in spent(run(method, **asked, node_configs=nodes))} == {2.0}
    charged = next((tmp_path / "state").glob(f"{FOLDER}/client-1/*.json")).read_bytes()

    def forbidden(self, position):
        raise AssertionError("adjacency was read")

    monkeypatch.setattr(laplace.GraphAdjacency, "upper_triangle", forbidden)
    with pytest.raises(RunFailedError, match="client 1: PrivacyBudgetError: see"):
        run(method, **asked, node_configs=nodes, seed=5)
    after = next((tmp_path / "state").glob(f"{FOLDER}/client-1/*.json")).read_bytes()
    assert after == charged


def test_the_smaller_of_both_budgets_is_named(tmp_path):
    one = np.array([0])
    with pytest.raises(PrivacyBudgetError, match="of this site's policy allows 1"):
        record(tmp_path, budget=2.0, site_budget=1.0).charge(one, 3.0)
    with pytest.raises(PrivacyBudgetError, match=r"privacy\.budget-max .* allows 1"):
        record(tmp_path, budget=1.0, site_budget=2.0).charge(one, 3.0)


def test_a_site_with_a_cap_refuses_runs_without_noise_on_edges(run, tmp_path):
    cap = toys.policy(tmp_path, edge_epsilon_max=7.0)
    site = {"clients": "0,1,2", "state-dir": str(tmp_path), **cap}
    with pytest.raises(FedGraphError, match=r"PolicyError \(edge-epsilon-max\)"):
        run("fedavg", node_configs=[site], **{"privacy.update-clip": 1.0})


@pytest.mark.parametrize(
    ("method", "features"), [("fgcl", "atoms"), ("fedavg", "degree")]
)
def test_a_site_with_a_cap_refuses_features_that_tell_edges(
    run, tmp_path, method, features
):
    cap = toys.policy(tmp_path, edge_epsilon_max=7.0)
    site = {"clients": "0,1,2", "state-dir": str(tmp_path), **cap}
    kept = {"features": features, "privacy.keep-edge-features": True}
    with pytest.raises(FedGraphError, match=r"PolicyError \(edge-epsilon-max\)"):
        run(method, node_configs=[site], **kept, **{"privacy.edge-epsilon": 1.0})


@pytest.fixture
def same_rows(toy_data):
    """Clients that hold the same graphs, as in chunks-overlap or with one file."""

    def load(settings, client_id):
        partition = toys.federation(settings, client_id)
        return toys.replace(partition, graph_ids=np.arange(len(partition.graphs)))

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", load)
        yield


@pytest.mark.usefixtures("same_rows")
def test_a_run_says_what_all_clients_of_a_site_drew_of_a_graph(run, tmp_path):
    noisy = {"privacy.edge-epsilon": 1.5, "features": "labels"}
    again = {**noisy, "state-dir": str(tmp_path), "num-server-rounds": 1}
    run("fedavg", **again, seed=1)
    privacy = run("fedavg", **again, seed=2).summary["privacy"]
    assert "epsilon 4.5 in total per graph and site, at most (9 over" in privacy["says"]
    assert privacy["edge_epsilon_per"] == {
        "graph": {"clients": 1, "epsilon": 4.5, "total": 4.5, "total_lifetime": 9.0}
    }
    assert {s["edge-epsilon"] for s in privacy["per_client"].values()} == {1.5}


@pytest.mark.usefixtures("same_rows")
def test_a_cap_is_the_sites_and_not_each_clients(run, tmp_path):
    noisy = {"privacy.edge-epsilon": 1.5, "features": "labels"}
    cap = toys.policy(tmp_path, edge_epsilon_max=4.0)
    site = {"clients": "0,1,2", "state-dir": str(tmp_path), **cap}
    with pytest.raises(RunFailedError, match="client 2: PrivacyBudgetError: see"):
        run("fedavg", **noisy, node_configs=[site])


def test_resuming_is_the_same_run(run):
    noisy = {"privacy.noise-mode": "per_round", "num-server-rounds": 3}
    part = run("fgcl", **{**noisy, "num-server-rounds": 2})
    again = {k: part.overrides[k] for k in ("results-dir", "state-dir")}
    resumed = run("fgcl", **noisy, **again, resume=str(part.path))
    assert spent(resumed) == {(12.0, 12.0)}


def told(finished, client=0):
    """What a client told the server last, as the server sends it back."""
    spent = finished.summary["privacy"]["per_client"][str(client)]
    return {name: float(value) for name, value in spent.items()}


NOISE = {
    "edges": ("fedavg", {"privacy.edge-epsilon": 1.5, "features": "labels"}),
    "views": ("fgcl", {"privacy.noise-mode": "per_round"}),
    "updates": ("fedavg", {"privacy.update-clip": 1.0}),
}


@pytest.mark.parametrize("kind", mostly_slow(NOISE, fast=["edges"]))
def test_a_client_whose_ledger_says_less_than_it_told_refuses(run, tmp_path, kind):
    method, noise = NOISE[kind]
    finished = run(method, **noise, **{"state-dir": str(tmp_path / "state")})
    (experiment,) = (tmp_path / "state").glob("*/client-0/privacy-ledger.json")
    folder, partition = experiment.parent, toys.make_partition(0)
    site = toys.resolved(method, **noise).site(
        ClientStore(tmp_path / "state", folder.parent.name, client_id=0),
        is_secret=False,
    )
    before = told(finished)
    site.check_known_spending(before, partition, last_round=3)  # all is as it was
    site.check_known_spending({}, partition, last_round=0)
    kept = experiment.read_text()
    experiment.unlink()
    with pytest.raises(PrivacyBudgetError, match=r"say nothing.* restore the whole"):
        site.check_known_spending(before, partition, last_round=3)
    with pytest.raises(PrivacyBudgetError, match=r"told the server .* nothing; the"):
        site.check_known_spending({}, partition, last_round=1)
    site.check_known_spending({}, partition, last_round=0)
    older = json.loads(kept)
    del older["sha256"]  # as one who means to would
    older["edge"] = [e / 2 for e in older["edge"]]
    older["client"][0] /= 2
    experiment.write_text(json.dumps(older))
    name = "update-epsilon" if kind == "updates" else "edge-epsilon"
    with pytest.raises(PrivacyBudgetError, match=f"{name} .*, now .* say less"):
        site.check_known_spending(before, partition, last_round=3)
    experiment.write_text(kept)
    site.check_known_spending(before, partition, last_round=3)
    if kind != "updates":
        record = folder.parent / OF_RUN_FOLDER
        record.rename(tmp_path / "aside")
        told_more = {**before, "edge-epsilon-site": 2 * before["edge-epsilon-site"]}
        with pytest.raises(PrivacyBudgetError, match=r"edge-epsilon-site .*, now"):
            site.check_known_spending(told_more, partition, last_round=3)
        (tmp_path / "aside").rename(record)
        shutil.rmtree(tmp_path / "state" / FOLDER)
        with pytest.raises(
            PrivacyBudgetError, match=r"edge-epsilon-lifetime .*, now 0"
        ):
            site.check_known_spending(before, partition, last_round=3)


def test_a_client_that_charges_nothing_needs_no_ledger(tmp_path):
    site = toys.resolved("local", **{"privacy.update-clip": 1.0}).site(
        ClientStore(tmp_path, "e", client_id=0), is_secret=False
    )
    partition = toys.make_partition(0)
    site.check_known_spending({}, partition, last_round=4, sends_updates=False)
    clean = toys.resolved("fedavg").site(
        ClientStore(tmp_path, "e", client_id=0), is_secret=False
    )
    clean.check_known_spending({}, partition, last_round=4)


def test_the_line_of_a_run_says_both_totals_where_they_differ():
    once = {"edge-epsilon": 2.0, "edge-epsilon-lifetime": 2.0}
    again = {**once, "edge-epsilon-lifetime": 6.0}
    assert "at most; not protected" in describe({0: once})
    assert "at most (6 over all runs); not protected" in describe({0: once, 1: again})
