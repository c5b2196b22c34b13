"""Ledger and views: what is charged, when, and that nothing undoes it."""

from __future__ import annotations

import hmac
import math
import sqlite3
import stat
from contextlib import closing

import numpy as np
import pytest
import toys
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from scipy import stats

from clients.privacy import noisy_views as views_module
from clients.privacy.accounts import Budgets, Ledger
from clients.privacy.laplace import GraphAdjacency
from clients.privacy.noisy_views import NoisyViews, site_secret
from clients.privacy.stream import noise_stream
from clients.site_database import SITE_FILE
from fedgraph_flwr.core.errors import (
    DataError,
    PrivacyBudgetError,
)
from fedgraph_flwr.core.privacy_settings import NOISE_MODES
from fedgraph_flwr.core.seeding import numpy_rng

GRAPHS = toys.random_graphs(10, seed=4)
SIZES = np.diff(GRAPHS.node_ptr)
TRAIN = np.array([0, 2, 3, 5, 6, 8, 9])


class Counting:
    """An adjacency that counts how often it is read."""

    def __init__(self, graphs=GRAPHS):
        self.inner, self.reads = GraphAdjacency(graphs), 0

    def upper_triangle(self, position):
        self.reads += 1
        return self.inner.upper_triangle(position)


class Untouchable:
    """An adjacency that must not be read."""

    def upper_triangle(self, position):
        raise AssertionError("the adjacency was read")


def ledger(root, num_graphs=10, **budgets):
    """Account of a client whose graphs are rows 100, 101, ... of a data set."""
    return Ledger(
        root / "run" / "client-2",
        data="MUTAG",
        rows=100 + np.arange(num_graphs),
        budgets=Budgets(**budgets),
    )


def change(root, statement):
    """Do to a site's file what nothing of ours does."""
    with closing(sqlite3.connect(root / SITE_FILE)) as db, db:
        db.execute(statement)


def make(folder, mode="once", adjacency=None, *, budget=float("inf"), **kw):
    options = {
        "num_nodes": SIZES,
        "positions": TRAIN,
        "name": "train",
        "epsilons": (1.0, 0.5),
        "post": "clamp01",
        "folder": folder,
        "seed": 7,
        "client_id": 2,
    }
    given = {**options, **kw}
    own = ledger(folder, len(given["num_nodes"]), edge=budget)
    return NoisyViews(adjacency or Counting(), mode=mode, ledger=own, **given)


def make_whole(folder, graphs, mode, **kw):
    """Views of all graphs, and their entries without noise."""
    sizes, everyone = np.diff(graphs.node_ptr), np.arange(len(graphs))
    own = {"num_nodes": sizes, "positions": everyone, **kw}
    clean = toys.clean_triangles(GraphAdjacency(graphs), sizes, everyone).values
    return make(folder, mode, Counting(graphs), **own), clean


def values(found):
    return [v.values.copy() for v in found]


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# Ledger --------------------------------------------------------------------------


def test_total_is_the_maximum_over_graphs_and_survives_restarts(tmp_path):
    ledger(tmp_path).charge_edges(np.array([0, 1]), 0.25)
    ledger(tmp_path).charge_edges(np.array([1, 2]), 0.5)
    account = ledger(tmp_path).read()
    assert account.edge[:4].tolist() == [0.25, 0.75, 0.5, 0.0]
    assert account.edge.max() == 0.75
    assert account.num_draws == 2


def test_refused_charges_change_nothing(tmp_path):
    own = ledger(tmp_path, edge=0.3)
    for _ in range(3):  # 3 * 0.1 > 0.3 in floating point
        own.charge_edges(np.array([4]), 0.1)
    key = r"of graph 4 to 0\.4; privacy\.budget-max.* Raise privacy\.budget-max,"
    with pytest.raises(PrivacyBudgetError, match=key):
        own.charge_edges(np.array([3, 4]), 0.1)
    assert own.read().edge[3] == 0
    own.charge_edges(np.array([3]), 0.1)


def test_a_graph_that_is_drawn_twice_is_charged_twice(tmp_path):
    account = ledger(tmp_path).charge_edges(np.array([1, 1, 2]), 0.5)
    assert account.edge[:3].tolist() == [0.0, 1.0, 0.5]


@pytest.mark.parametrize("content", [b"", b"no database" * 999])
def test_a_damaged_ledger_is_an_error_not_a_fresh_start(tmp_path, content):
    ledger(tmp_path).charge_edges(np.array([0]), 1.0)
    (tmp_path / SITE_FILE).write_bytes(content)
    with pytest.raises(DataError, match=f"{SITE_FILE} .*; restore it from a copy"):
        ledger(tmp_path).charge_edges(np.array([0]), 1.0)


@pytest.mark.parametrize("epsilon", [math.nan, math.inf, -1.0])
def test_what_is_no_amount_is_never_charged(tmp_path, epsilon):
    with pytest.raises((DataError, PrivacyBudgetError)):
        ledger(tmp_path).charge_edges(np.array([0]), epsilon)
    assert ledger(tmp_path).read().num_draws == 0


def test_a_ledger_of_other_data_is_an_error(tmp_path):
    ledger(tmp_path, 3).charge_edges(np.array([0]), 1.0)
    with pytest.raises(DataError, match=r"has 3 graphs of client-2 .* holds 10"):
        ledger(tmp_path).read()


def test_updates_are_counted_by_noise_multiplier(tmp_path):
    seen = []

    def epsilon_of(updates, delta):
        seen.append((dict(updates), delta))
        return float(sum(updates.values()))

    own = ledger(tmp_path, update=3)
    how = {"delta": 1e-5, "epsilon_of": epsilon_of}
    for multiplier, name in ((2.0, "a"), (2.0, "b"), (4.0, "c")):
        own.charge_update(multiplier, **how, release=name)
    assert seen[-1] == ({2.0: 2, 4.0: 1}, 1e-5)
    assert ledger(tmp_path).read().client == (3.0, 1e-5)
    key = r"privacy\.update-budget-max allows 3"
    with pytest.raises(PrivacyBudgetError, match=key):
        own.charge_update(2.0, **how, release="d")
    unknown = {**how, "epsilon_of": lambda *_: math.nan}
    with pytest.raises(PrivacyBudgetError, match=key):
        own.charge_update(2.0, **unknown, release="d")
    own.charge_update(2.0, **how, release="b")  # was paid for: no budget stops it
    assert ledger(tmp_path).read().updates == {2.0: 2, 4.0: 1}


def test_two_notions_do_not_mix_unless_allowed(tmp_path):
    one, other = tmp_path / "a", tmp_path / "b"
    update = {"delta": 1e-5, "epsilon_of": lambda *_: 1.0, "release": "a"}
    ledger(one).charge_edges(np.array([0]), 1.0)
    with pytest.raises(PrivacyBudgetError, match=r"do not add up\. Set privacy\.both"):
        ledger(one).charge_update(2.0, **update)
    ledger(other).charge_update(2.0, **update)
    with pytest.raises(PrivacyBudgetError, match="under the 'client' notion"):
        ledger(other).charge_edges(np.array([0]), 1.0)
    account = ledger(one, both=True).charge_update(2.0, **update)
    assert (account.edge.max(), account.client) == (1.0, (1.0, 1e-5))


# Views: modes and totals ---------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "draws"), [("once", 1), ("per_round", 3), ("per_epoch", 6)]
)
def test_totals_of_the_modes_across_restarts(tmp_path, mode, draws):
    adjacency = Counting()
    for server_round in (1, 2, 3):
        for epoch in (0, 1):
            own = make(tmp_path, mode, adjacency)  # a new process for every epoch
            first = values(own.views(server_round, epoch))
            assert equal(first, values(own.views(server_round, epoch)))
            again = make(tmp_path, mode, adjacency).views(server_round, epoch)
            assert equal(first, values(again))
    spent = ledger(tmp_path).read()
    assert spent.edge.max() == pytest.approx(1.5 * draws)
    assert adjacency.reads == draws * len(TRAIN)
    untouched = np.setdiff1d(np.arange(10), TRAIN)
    assert (spent.edge[untouched] == 0).all()


def test_once_is_the_same_for_ever_and_the_others_are_not(tmp_path):
    times = [(1, 0), (1, 1), (2, 0), (2, 1)]
    for mode, distinct in (("once", 1), ("per_round", 2), ("per_epoch", 4)):
        found = [make(tmp_path / mode, mode).views(*t)[0].values for t in times]
        assert len({v.tobytes() for v in found}) == distinct


def test_the_two_views_are_independent_and_have_their_own_epsilon(tmp_path):
    graphs, both = toys.random_graphs(400, seed=1), (0.5, 0.1)
    how = {"epsilons": both, "post": "abs-degree"}
    own, clean = make_whole(tmp_path, graphs, "once", **how)
    found = own.views(1, 0)
    noise = [v.values - clean for v in found]
    assert noise[0].std() == pytest.approx(np.sqrt(2) / 0.5, rel=0.1)
    assert noise[1].std() == pytest.approx(np.sqrt(2) / 0.1, rel=0.1)
    assert abs(np.corrcoef(noise)[0, 1]) < 0.05


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 8},
        {"client_id": 3},
        {"secret": "s"},
        {"name": "held-out"},
        {"epsilons": (1.0000001, 0.5)},
    ],
)
def test_no_two_draws_share_their_noise(tmp_path, change):
    a = make(tmp_path / "a", post="abs-degree").views(1, 0)
    b = make(tmp_path / "b", post="abs-degree", **change).views(1, 0)
    assert not np.isclose(a[0].values, b[0].values, atol=1e-4).any()


def test_post_processing_may_change_at_no_cost(tmp_path):
    make(tmp_path).views(1, 0)
    rounded = make(tmp_path, adjacency=Untouchable(), post="round").views(9, 9)[0]
    assert set(np.unique(rounded.values)) <= {0.0, 1.0}
    assert ledger(tmp_path).read().edge.max() == 1.5


# Views: budget, crashes ----------------------------------------------------------


@pytest.mark.parametrize("mode", NOISE_MODES)
def test_the_draw_over_budget_is_refused_before_the_adjacency_is_read(tmp_path, mode):
    with pytest.raises(PrivacyBudgetError, match="Nothing was read"):
        make(tmp_path, mode, Untouchable(), budget=1.4).views(1, 0)
    assert ledger(tmp_path).read().edge.max() == 0


def test_a_resumed_run_cannot_reset_the_budget(tmp_path):
    make(tmp_path, "per_epoch", budget=3.0).views(1, 0)
    make(tmp_path, "per_epoch", budget=3.0).views(1, 1)
    refused = make(tmp_path, "per_epoch", Untouchable(), budget=3.0)
    for when in ((1, 0), (2, 0)):  # a round repeated, a round that is new
        with pytest.raises(PrivacyBudgetError):
            refused.views(*when)


def test_a_crash_while_reading_has_been_charged(tmp_path):
    with pytest.raises(AssertionError, match="was read"):
        make(tmp_path, adjacency=Untouchable()).views(1, 0)
    assert ledger(tmp_path).read().edge.max() == 1.5
    make(tmp_path).views(1, 0)
    assert ledger(tmp_path).read().edge.max() == 3.0  # over-counted, never under


def test_a_crash_while_keeping_gives_the_same_views_later(tmp_path, monkeypatch):
    expected = values(make(tmp_path / "other").views(1, 0))
    with monkeypatch.context() as patch:
        patch.setattr(views_module, "write_arrays", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make(tmp_path).views(1, 0)
    assert equal(values(make(tmp_path).views(1, 0)), expected)


def test_the_charge_is_on_the_disk_before_the_read(tmp_path):
    class Spying(Counting):
        def upper_triangle(self, position):
            assert ledger(tmp_path).read().edge[position] == 1.5
            return super().upper_triangle(position)

    make(tmp_path, adjacency=Spying()).views(1, 0)


def test_views_without_the_charge_of_one_graph_are_an_error(tmp_path):
    make(tmp_path).views(1, 0)
    change(tmp_path, f"DELETE FROM edges WHERE position = {TRAIN[0]}")
    with pytest.raises(DataError, match=r"are not in the ledger .* says 0 was spent"):
        make(tmp_path).views(2, 0)


def test_views_of_other_settings_are_an_error(tmp_path):
    make(tmp_path).views(1, 0)
    for change in ({"epsilons": (2.0,)}, {"seed": 8}, {"positions": TRAIN[1:]}):
        with pytest.raises(DataError, match="use another experiment"):
            make(tmp_path, adjacency=Untouchable(), **change).views(1, 0)
    grown = SIZES + (np.arange(10) == TRAIN[0])
    with pytest.raises(DataError, match="graphs must not change within an experiment"):
        make(tmp_path, adjacency=Untouchable(), num_nodes=grown).views(2, 0)


def test_damaged_views_are_an_error(tmp_path):
    own = make(tmp_path)
    own.views(1, 0)
    (tmp_path / "noisy-views-train.safetensors").write_bytes(b"no")
    with pytest.raises(DataError, match="delete the file to draw anew"):
        make(tmp_path).views(1, 0)


# Secret --------------------------------------------------------------------------


def test_the_secret_is_drawn_once_per_site_and_private(tmp_path):
    secret = site_secret(tmp_path / "a")
    assert len(secret) == 64
    assert site_secret(tmp_path / "a") == secret != site_secret(tmp_path / "b")
    mode = (tmp_path / "a" / "noise-secret").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    assert len(list((tmp_path / "a").iterdir())) == 1
    (tmp_path / "a" / "noise-secret").write_text("")  # a power cut
    with pytest.raises(DataError, match="is empty; restore the state folder"):
        site_secret(tmp_path / "a")


# The stream ----------------------------------------------------------------------


def test_noise_of_a_site_is_chacha20_under_the_whole_secret():
    """The first word by the cipher itself, and its two transformations by hand."""
    secret, path = "ab" * 32, ("edge-noise", 3)
    key = hmac.digest(secret.encode(), b"7\x1fedge-noise\x1f3", "sha256")
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    word = int.from_bytes(cipher.update(bytes(8)), "little")
    sign, u = 1 - 2 * (word & 1), ((word >> 1) + 0.5) / 2**63
    laplace = noise_stream(secret, 7, *path).laplace(0.0, 2.0, 1)
    assert laplace == pytest.approx(-2.0 * sign * math.log(u))
    normal = noise_stream(secret, 7, *path).normal(0.0, 2.0, 1)
    assert normal == pytest.approx(sign * 2.0 * stats.norm.isf(u / 2))
    for other in ("ab" * 31 + "ac", "ac" + "ab" * 31):
        assert noise_stream(other, 7, *path).laplace(0.0, 2.0, 1) != laplace


def test_both_noises_of_a_site_are_those_they_are_called():
    stream = noise_stream("s", 1, "x")
    laplace, normal = stream.laplace(1.0, 3.0, 40_000), stream.normal(1.0, 3.0, 40_000)
    assert stats.kstest(laplace, stats.laplace(1.0, 3.0).cdf).pvalue > 0.01
    assert stats.kstest(normal, stats.norm(1.0, 3.0).cdf).pvalue > 0.01
    assert stream.normal(0.0, 1.0, (2, 3)).shape == (2, 3)
    assert stream.laplace(0.0, 1.0, 0).size == 0


def test_noise_of_a_simulation_is_numpys_as_ever():
    ours = noise_stream("", 7, "x").laplace(0.0, 1.0, 4)
    np.testing.assert_array_equal(ours, numpy_rng(7, "x").laplace(0.0, 1.0, 4))
