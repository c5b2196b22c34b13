"""What is spent over several runs: summed on the client's disk, and refused."""

from __future__ import annotations

import json
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import toys
from matrix import mostly_slow

from clients.privacy import laplace
from clients.privacy.accounts import Budgets, Ledger
from clients.site_database import EARLIER_ACCOUNTS, SITE_FILE, site_database
from clients.store import ClientStore
from fedgraph_flwr.core.errors import (
    DataError,
    PrivacyBudgetError,
    RunFailedError,
)

ROWS = np.array([40, 7, 12])


def record(root, client=0, run="run", rows=ROWS, data="tu:MUTAG", source="", **budgets):
    return Ledger(
        root / run / f"client-{client}",
        data=data,
        rows=rows,
        source=source,
        budgets=Budgets(**budgets),
    )


def total(own, positions=slice(None)):
    (found,) = own.totals(positions)
    return found.over_runs


def change(root, statement):
    """Do to a site's file what nothing of ours does."""
    with closing(sqlite3.connect(root / SITE_FILE)) as db, db:
        db.execute(statement)


# The account ---------------------------------------------------------------------


def test_charges_follow_the_rows_of_the_data_set_whatever_their_order(tmp_path):
    record(tmp_path).charge_edges(np.array([0, 2]), 0.5)  # rows 40 and 12
    other_run = record(tmp_path, run="other", rows=np.array([12, 99]))
    assert total(other_run) == 0.5
    other_run.charge_edges(np.array([0, 1]), 0.25)
    assert total(record(tmp_path)) == 0.75
    assert total(record(tmp_path, rows=np.array([7]))) == 0
    assert total(record(tmp_path), np.array([0, 1])) == 0.5  # rows 40 and 7
    assert other_run.totals(np.arange(2))[0].in_run == 0.25
    assert other_run.read().edge.tolist() == [0.25, 0.25]


def test_a_row_has_one_account_whatever_clients_drew_it(tmp_path):
    """Clients of one site, or one that is hosted under another id in a later run."""
    first, second = (record(tmp_path, client=c, lifetime=2.5) for c in (0, 3))
    everyone = np.arange(3)
    first.charge_edges(everyone, 1.0)
    assert total(second) == 1.0
    second.charge_edges(np.array([0]), 1.0)  # row 40
    assert first.totals(everyone) == [(2.0, 2.0, 1.0)]
    assert total(second, np.array([1])) == 1.0
    with pytest.raises(PrivacyBudgetError, match="of row 40 to 3; "):
        first.charge_edges(everyone, 1.0)
    assert total(record(tmp_path, client=7)) == 2.0


def test_a_file_keeps_its_account_under_another_name_and_under_another_id(tmp_path):
    def file(name, client):
        return record(tmp_path, data="csv", source=name, client=client, lifetime=2.5)

    file("a", 0).charge_edges(np.array([0]), 1.0)
    assert total(file("a", 1)) == 1.0
    file("renamed", 0).charge_edges(np.array([0]), 1.0)
    assert total(file("a", 0)) == 2.0
    with pytest.raises(PrivacyBudgetError, match="of row 40 to 3; "):
        file("again", 0).charge_edges(np.array([0]), 1.0)
    assert total(file("other", 2)) == 0.0
    assert total(record(tmp_path, data="csv2", source="a")) == 0.0


def write_earlier(root, name, content):
    path = root / EARLIER_ACCOUNTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_what_an_earlier_version_counted_in_files_still_counts(tmp_path):
    for client, spent in ((0, {"40": 1.0, "7": 2.0}), (1, {"40": 3})):
        for data in ("tu_MUTAG", "csv", "csv--a.csv"):
            write_earlier(tmp_path, f"client-{client}/{data}.json", {"edge": spent})
    write_earlier(tmp_path, "updates.json", {"updates": {"2.0": 3, "4.0": 1}})
    assert total(record(tmp_path)) == 0.0  # until there is something to charge
    record(tmp_path).charge_edges(np.array([0]), 0.5)
    assert total(record(tmp_path, client=9)) == 4.5
    assert total(record(tmp_path, data="csv", source="a.csv")) == 8.0
    assert total(record(tmp_path, data="csv", source="b.csv", client=9)) == 4.0
    assert record(tmp_path).read().edge.tolist() == [0.5, 0.0, 0.0]
    seen = []
    record(tmp_path, client=1, run="b", site_update=99).charge_update(
        2.0, delta=1e-5, epsilon_of=lambda n, _: seen.append(dict(n)) or 1, release="a"
    )
    assert seen == [{2.0: 1}, {2.0: 4, 4.0: 1}]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", '{"edge": [1]}', '{"edge": {"1": -1}}', '{"edge": {"40": NaN}}'),
        *('{"edge": {"40": Infinity}}', '{"edge": {"40": 1}, "sha256": "0"}'),
    ],
)
def test_damaged_files_of_an_earlier_version_are_no_fresh_start(tmp_path, text):
    write_earlier(tmp_path, "client-1/tu_MUTAG.json", text)
    for _ in range(2):
        with pytest.raises(DataError, match="what earlier runs spent is unknown"):
            record(tmp_path).charge_edges(np.array([0]), 1.0)
    assert not (tmp_path / SITE_FILE).exists()


def test_the_charge_over_budget_is_refused_and_changes_nothing(tmp_path):
    own = record(tmp_path, lifetime=0.3)
    for _ in range(3):  # 3 * 0.1 > 0.3 in floating point
        own.charge_edges(np.array([0]), 0.1)
    with pytest.raises(PrivacyBudgetError, match=r"of row 40 to 0\.4; privacy\.budget"):
        own.charge_edges(np.array([1, 0]), 0.1)
    assert total(record(tmp_path, rows=np.array([7]))) == 0
    with pytest.raises(PrivacyBudgetError, match=r"row 7 to 0\.4"):
        own.charge_edges(np.array([1, 1]), 0.2)  # a graph drawn twice costs twice


def test_updates_of_all_clients_of_a_site_count_together(tmp_path):
    def send(client, release):
        record(tmp_path, client=client, run=release, site_update=2).charge_update(
            2.0, delta=1e-5, epsilon_of=lambda n, _: sum(n.values()), release=release
        )

    send(0, "a")
    send(1, "b")
    with pytest.raises(PrivacyBudgetError, match="over all runs to 3; update-epsilon-"):
        send(0, "c")


@pytest.mark.parametrize("name", ["client", "source"])
def test_charges_of_a_site_at_the_same_time_are_all_counted(tmp_path, name):
    def charge(k):
        names = {name: str(k % 2)}
        record(tmp_path, lifetime=30, **names).charge_edges(np.array([1]), 1.0)

    with ThreadPoolExecutor(4) as pool:
        done = [f.exception() for f in [pool.submit(charge, k) for k in range(40)]]
    assert sum(error is None for error in done) == 30
    assert total(record(tmp_path)) == 30


# Runs ----------------------------------------------------------------------------


def most_of(root, client):
    """Largest epsilon of a graph that a client has drawn in all runs."""
    query = "SELECT sum(epsilon) FROM edges WHERE client = ? GROUP BY row"
    return max(s for (s,) in site_database(root).rows(query, f"client-{client}"))


def spent(finished):
    return spent_in(finished.summary)


def spent_in(summary):
    found = summary["privacy"]["per_client"].values()
    return {(s["edge-epsilon"], s["edge-epsilon-lifetime"]) for s in found}


def test_runs_on_the_same_data_add_up(run, tmp_path):
    each = 8.0  # of two rounds
    same = {"privacy.noise-mode": "per_round", "state-dir": str(tmp_path / "state")}
    same["num-server-rounds"] = 2
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


def test_a_budget_for_the_lifetime_refuses_the_next_run(run, tmp_path):
    same = {"privacy.budget-max": 7.0, "state-dir": str(tmp_path / "state")}
    same["num-server-rounds"] = 1
    run("fgcl", **same)
    assert spent(run("fgcl", **same)) == {(4.0, 8.0)}  # a budget of the run
    failing = {**same, "privacy.budget-scope": "lifetime"}
    with pytest.raises(RunFailedError, match="over all runs of row"):
        run("fgcl", **failing, **{"results-dir": str(tmp_path / "refused")})
    assert most_of(tmp_path / "state", 1) == 8.0  # the refused run drew nothing


@pytest.mark.parametrize(
    ("method", "options", "scope"),
    [
        ("fgcl", {"fgcl.views": "one"}, "run"),
        ("fedavg", {"features": "labels"}, "lifetime"),
    ],
)
def test_a_site_caps_what_all_runs_may_spend_whatever_they_ask(
    run, tmp_path, monkeypatch, method, options, scope
):
    state = str(tmp_path / "state")
    cap = toys.policy(tmp_path, edge_epsilon_max=3)
    capped = {"clients": "1", "state-dir": state, **cap}
    places = {"state-dir": str(tmp_path / "elsewhere"), **options}
    budget = {"privacy.budget-scope": scope, "privacy.budget-max": 100.0}
    asked = {"privacy.edge-epsilon": 2.0, **budget, **places, "num-server-rounds": 1}
    nodes = [{"clients": "0,2"}, capped]
    assert {e for e, _ in spent(run(method, **asked, node_configs=nodes))} == {2.0}
    charged = most_of(tmp_path / "state", 1)

    def forbidden(self, position):
        raise AssertionError("adjacency was read")

    monkeypatch.setattr(laplace.GraphAdjacency, "upper_triangle", forbidden)
    with pytest.raises(RunFailedError, match="client 1: PrivacyBudgetError: see"):
        run(method, **asked, node_configs=nodes, seed=5)
    assert most_of(tmp_path / "state", 1) == charged == 2.0


def test_the_smaller_of_both_budgets_is_named(tmp_path):
    one = np.array([0])
    with pytest.raises(PrivacyBudgetError, match="of this site's policy allows 1"):
        record(tmp_path, lifetime=2.0, site=1.0).charge_edges(one, 3.0)
    with pytest.raises(PrivacyBudgetError, match=r"privacy\.budget-max .* allows 1"):
        record(tmp_path, lifetime=1.0, site=2.0).charge_edges(one, 3.0)


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
    state, partition = tmp_path / "state", toys.make_partition(0)
    site = toys.resolved(method, **noise).site(
        ClientStore(state, finished.path.name, client_id=0), is_secret=False
    )
    before = told(finished)
    site.check_known_spending(before, partition, last_round=3)  # all is as it was
    site.check_known_spending({}, partition, last_round=0)
    kept = (state / SITE_FILE).read_bytes()
    change(state, "UPDATE edges SET epsilon = epsilon / 2")
    change(state, "UPDATE updates SET epsilon = epsilon / 2")
    name = "update-epsilon" if kind == "updates" else "edge-epsilon"
    with pytest.raises(PrivacyBudgetError, match=f"{name} .*, now .* says less"):
        site.check_known_spending(before, partition, last_round=3)
    (state / SITE_FILE).write_bytes(kept)
    if kind != "updates":
        for of in ("edge-epsilon-site", "edge-epsilon-lifetime"):
            told_more = {**before, of: 2 * before[of]}
            with pytest.raises(PrivacyBudgetError, match=f"{of} .*, now"):
                site.check_known_spending(told_more, partition, last_round=3)
    (state / SITE_FILE).unlink()
    with pytest.raises(PrivacyBudgetError, match=r"says nothing.* restore the whole"):
        site.check_known_spending(before, partition, last_round=3)
    with pytest.raises(PrivacyBudgetError, match=r"told the server .* nothing; the"):
        site.check_known_spending({}, partition, last_round=1)
    site.check_known_spending({}, partition, last_round=0)


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
