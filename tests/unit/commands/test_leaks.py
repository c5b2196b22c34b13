"""Attacks on privacy: right about sound mechanisms, and able to find broken ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import toys

from clients import noisy_steps
from clients.privacy import noisy_views
from clients.privacy.laplace import add_noise
from fedgraph_flwr.core.errors import ConfigError
from simulations import leak_game
from simulations.leak_attacks import bound, clopper_pearson, explained, judge, power
from simulations.leak_game import Setting, Trial, known_game, play
from simulations.leaks import Size, attack, attack_all, plan

pytestmark = pytest.mark.slow  # whole runs; the contracts are fast

LEVEL = 0.05
ONE = {"fgcl.views": "one", "privacy.edge-epsilon": 1.0}
CLEAN = {"fgcl.views": "clean", "privacy.edge-epsilon": 0.0}
GRAPHS = {"privacy.graph-clip": 1.0, "privacy.graph-noise": 2.0}
PLAYED = sorted({*toys.AT_SITES, *toys.METHODS} - {"centralized"})


def setting(case="fedavg", graphs=1, **overrides):
    if case == "fedavg" and "privacy.edge-epsilon" in overrides:
        overrides |= {"dataset": "MUTAG", "features": "labels"}
    return Setting(tuple(toys.tiny(case, **overrides).items()), graphs, 0)


def attacked(found, which, own=40, victims=120):
    """Verdicts of one game by secret."""
    known_game.cache_clear()
    game, size = known_game(found), Size(own, victims, LEVEL)
    rows = attack(
        lambda trials: [play(found, t) for t in trials], game, size, "", [which]
    )
    return {row.secret: row for row in rows}


# Statistics ----------------------------------------------------------------------


def test_clopper_pearson_by_its_definition():
    assert clopper_pearson(0, 50, 0.1) == (0.0, pytest.approx(1 - 0.05 ** (1 / 50)))
    assert clopper_pearson(50, 50, 0.1) == (pytest.approx(0.05 ** (1 / 50)), 1.0)
    low, high = clopper_pearson(7, 20, 0.05)  # Clopper & Pearson's own kind of table
    assert low == pytest.approx(0.1539, abs=1e-4)
    assert high == pytest.approx(0.5922, abs=1e-4)


def laplace_scores(epsilon, trials, seed):
    """Scores of the best attack on one Laplace view."""
    rng = np.random.default_rng(seed)
    has_edge = np.arange(trials) % 2 == 1
    return np.clip(has_edge + rng.laplace(0, 1 / epsilon, trials), 0, 1), has_edge


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_what_is_shown_is_near_the_truth_and_seldom_above(epsilon):
    pairs = [
        (laplace_scores(epsilon, 1000, f), laplace_scores(epsilon, 4000, f + 1))
        for f in range(0, 100, 2)
    ]
    verdicts = [judge(*pair, level=0.05) for pair in pairs]
    shown = np.array([v.epsilon for v in verdicts])
    assert (shown > epsilon).sum() <= 5  # of 50; the level allows 2.5
    assert np.median(shown) > 0.6 * epsilon
    possible = 1 - math.exp(-epsilon / 2)
    covers = [v.low <= possible <= v.high for v in verdicts]
    assert np.mean(covers) > 0.9
    assert np.mean([v.advantage for v in verdicts]) == pytest.approx(possible, abs=0.02)
    forgiven = [judge(*pair, level=0.05, delta=0.3).epsilon for pair in pairs[:5]]
    assert max(forgiven) < shown[:5].min()


def test_bounds_by_hand():
    assert bound(0.0, 0.1) == pytest.approx(0.1)  # told as it is, one time in ten
    assert bound(math.log(3), 0.0) == pytest.approx(0.5)  # three quarters, one quarter
    assert bound(math.inf, 0.0) == 1.0
    least, in_most = power(200)
    rng = np.random.default_rng(0)
    low = np.array([judge(*worlds(rng, in_most), level=0.1).low for _ in range(300)])
    assert 0.7 < (low > 0).mean() < 0.9
    low = np.array([judge(*worlds(rng, 0.0), level=0.1).low for _ in range(300)])
    assert (low > 0).mean() < 0.05
    assert least < in_most


def worlds(rng, advantage):
    """Own trials that fix the threshold, and trials with an advantage."""
    is_one = np.arange(400) % 2 == 1
    says = rng.random(400) < np.where(is_one, 0.5 + advantage / 2, 0.5 - advantage / 2)
    return (is_one * 1.0, is_one), (says * 1.0, is_one)


def test_what_an_attacker_explains_of_a_vector():
    rng = np.random.default_rng(0)
    truth = rng.random((300, 3))
    mean = truth.mean(0)
    assert explained(truth, truth, mean, rng) == (1.0, 1.0, 1.0, 0.0)
    assert explained(np.tile(mean, (300, 1)), truth, mean, rng)[:2] == (0.0, 0.0)
    half = explained((truth + mean) / 2, truth, mean, rng)
    assert half.advantage == pytest.approx(0.75)
    assert 0.7 < half.low <= 0.75 <= half.high < 0.8


# The game ------------------------------------------------------------------------


def handed(found, game, world, name="x"):
    known_game.cache_clear()
    trial = Trial(0, game, world, name)
    return leak_game._hand_out(known_game(found), trial)


def test_the_worlds_differ_in_one_edge_and_in_nothing_else(toy_data):
    present = handed(setting(graphs=2), "edge", 1)[0].graphs
    without = leak_game._without_edge(present)
    assert present.edge_index.shape[1] - without.edge_index.shape[1] == 2
    edges = [
        set(map(tuple, g.edge_index[:, : g.edge_ptr[1]].T)) for g in (without, present)
    ]
    ((u, v), (w, x)) = sorted(edges[1] - edges[0])
    assert (u, v) == (x, w)
    assert edges[0] < edges[1]
    rest = [g.edge_index[:, g.edge_ptr[1] :] for g in (without, present)]
    np.testing.assert_array_equal(*rest)
    np.testing.assert_array_equal(without.x, present.x)


@pytest.mark.parametrize("case", ["fedavg", "fedavg node-classification"])
def test_another_takes_the_members_place(toy_data, case):
    found = setting(case, 3)
    member, of_member = handed(found, "member", 1)
    others = {tuple(handed(found, "member", 0, f"{n}")[1]) for n in range(9)}
    assert len(others) > 2
    for chosen in others:
        assert chosen[0] not in of_member
        assert chosen[1:] == tuple(of_member[1:])
    assert len(member.train) == 3
    assert len(member.val)


def test_draws_have_other_shares_of_labels_and_other_features(toy_data):
    found = setting(graphs=4)
    seen = [play(found, Trial(0, "data", 1, f"{n}")).secrets for n in range(9)]
    labels = np.array([s["labels"] for s in seen])
    np.testing.assert_allclose(labels.sum(1), 1)
    assert len(np.unique(labels, axis=0)) > 3
    assert np.ptp([s["features"] for s in seen], axis=0).max() > 0.05


@pytest.mark.parametrize("case", PLAYED)
def test_every_method_plays_and_repeats_itself(toy_data, case):
    found = setting(case, 3, **(CLEAN if case == "fgcl" else {}))
    known_game.cache_clear()
    which = known_game(found).games
    trials = [Trial(0, game, 0, "x") for game in which]
    once, again = ([play(found, t) for t in trials] for _ in range(2))
    assert [s.update.tobytes() for s in once] == [s.update.tobytes() for s in again]
    assert [s.metrics for s in once] == [s.metrics for s in again]
    assert bool(len(once[0].update)) != case.startswith("local")
    assert ("edge" in which) == toys.row(case).task.takes_edge_noise
    of_one = np.concatenate([once[-1].secrets[w] for w in ("labels", "features")])
    assert np.isfinite(of_one).all()


def test_numbers_that_are_told_at_times_are_read_too(toy_data):
    """Such as the class of a model that predicts one alone."""
    game = known_game(setting())
    silent = play(game.setting, Trial(0, "member", 1, "x"))._replace(metrics={})

    def played(trials):
        told = [{"one-class": 1.0} if t.world else {} for t in trials]
        return [silent._replace(metrics=m) for m in told]

    (row,) = attack(played, game, Size(20, 20, LEVEL), "", ["member"])
    assert row.verdicts["metrics"].advantage == 1.0
    assert row.verdicts["upload"].advantage == 0.0


def test_who_trains_in_one_place_is_refused(toy_data):
    with pytest.raises(ConfigError, match="trains in one place and sends nothing"):
        known_game(setting("centralized"))


# The client, attacked --------------------------------------------------------------

TELLS = """
import numpy as np
from fedgraph_flwr.api import *
from fedgraph_flwr.core.wire import Parcel

class Client(GraphClassifierClient):
    def update(self, trained):
        data = self.data.partition
        shares = np.bincount(data.graphs.y[data.train], minlength=2) / len(data.train)
        rng = np.random.default_rng(abs(hash(str(self.order.get_state().tolist()))))
        sent = rng.normal(size=2) if {is_noise} else shares
        return Parcel(arrays={{"shares": sent.astype(np.float32)}})

METHOD = Method(clients={{GRAPH_CLASSIFICATION: Client}})
"""


@pytest.mark.parametrize("is_noise", [False, True])
def test_a_planted_leak_is_found_and_noise_tells_nothing(
    toy_data, write_plugin, is_noise
):
    write_plugin("plugins/tells.py", TELLS.format(is_noise=is_noise))
    found = {**toys.tiny("fedavg"), "method": "plugins.tells:METHOD"}
    rows = attacked(Setting(tuple(found.items()), 4, 0), "data", 60, 60)
    told = rows["labels"].verdicts["upload"]
    assert told.low > 0.95 if not is_noise else told.advantage < 0.05
    assert rows["labels"].verdicts["model"].advantage < 0.99  # others hide it


@pytest.mark.parametrize(
    ("case", "options", "claimed"),
    [
        ("fgcl", ONE, 1.0),
        ("fgcl", {"fgcl.views": "two", "privacy.edge-epsilon": 1.0}, 2.0),
        ("fedavg", {"privacy.edge-epsilon": 1.0}, 1.0),
    ],
)
def test_a_sound_client_loses_what_its_noise_allows_and_no_more(
    toy_data, case, options, claimed
):
    row = attacked(setting(case, **options), "edge")["edge"]
    assert row.claim == (claimed, 0.0, ("view", "upload", "model", "metrics"))
    assert not row.is_broken
    view, upload = row.verdicts["view"], row.verdicts["upload"]
    most = bound(claimed, 0.0)
    assert view.low < most
    assert view.low > 0  # of 120 trials per world: the attacks do find something
    assert 0 < upload.low < upload.advantage < most


def test_without_noise_the_attacker_wins(toy_data):
    row = attacked(setting("fgcl", **CLEAN), "edge", 60, 30)["edge"]
    assert row.claim.epsilon == math.inf
    assert row.verdicts["upload"].advantage > 0.8
    assert "view" not in row.verdicts


@pytest.mark.parametrize(
    ("noise", "attacks"),
    [
        (GRAPHS, 4),
        ({"privacy.update-clip": 1.0, "privacy.update-noise": 2.0}, 2),
    ],
)
def test_a_member_is_hidden_by_noise_as_the_ledger_says(toy_data, noise, attacks):
    row = attacked(setting(graphs=2, **noise), "member", 40, 40)["member"]
    assert len(row.claim.attacks) == attacks
    assert 0 < row.claim.delta < 1e-3
    assert not row.is_broken


def halved(triangle, epsilon, rng):
    return add_noise(triangle, 2 * epsilon, rng)


def hardly_any(triangle, epsilon, rng):
    return add_noise(triangle, 1e3 * epsilon, rng)


@pytest.mark.parametrize(
    ("case", "options", "wrong", "trials"),
    [
        ("fgcl", ONE, halved, 150),
        ("fedavg", {"privacy.edge-epsilon": 1.0}, hardly_any, 40),
    ],
)
def test_too_little_noise_on_edges_is_found(
    toy_data, monkeypatch, case, options, wrong, trials
):
    monkeypatch.setattr(noisy_views, "add_noise", wrong)
    row = attacked(setting(case, **options), "edge", 40, trials)["edge"]
    assert row.claim.epsilon == 1.0
    assert row.is_broken
    assert row.verdicts["view"].epsilon > 1


def test_too_little_noise_on_gradients_is_found(toy_data, monkeypatch):
    usual = noisy_steps.add_noise
    monkeypatch.setattr(
        noisy_steps, "add_noise", lambda *a, **kw: usual(*a, **{**kw, "scale": 1e-3})
    )
    strong = {"privacy.graph-clip": 1.0, "privacy.graph-noise": 9.0}
    row = attacked(setting(graphs=1, **strong), "member", 60, 60)["member"]
    assert row.claim.epsilon < 1.5
    assert row.is_broken


# Tables ----------------------------------------------------------------------------


def test_a_plan_is_the_run_as_asked_then_each_protection():
    runs = plan({"method": "fgcl", "dropout": 0.1}, [1.0, 2.0])
    assert next(iter(runs)) == "as asked"
    assert runs["as asked"] == {"fgcl.views": "clean", "method": "fgcl", "dropout": 0.1}
    noisy = [name for name, own in runs.items() if "privacy.edge-epsilon" in own]
    assert len(noisy) == 4
    assert "fgcl.views" not in plan({"method": "fedavg"}, [1.0])["as asked"]


def test_real_molecules_lose_no_more_than_their_noise_allows(data_dir, tmp_path):
    base = {"method": "fgcl", "dataset": "BACE", "features": "atoms-no-degree"}
    base |= {"data-dir": str(data_dir), "cache-dir": str(tmp_path)}
    few = {"own_trials": 80, "victims": 40, "processes": 1}
    runs = plan(base, [0.1, 1.0, 10.0])
    rows, refused, _ = attack_all(runs, games=["edge"], client=0, graphs=2, **few)
    assert [why.partition(":")[0] for why in refused] == ["noise on gradients"]
    clean, summed, _, *noisy = rows
    # Without noise more is lost than epsilon 1 allows.
    assert clean.verdicts["upload"].low > bound(1.0, 0.0)
    assert summed.verdicts["upload"] == clean.verdicts["model"]
    assert [row.claim.epsilon for row in noisy] == [0.1, 1.0, 10.0, 0.2, 2.0, 20.0]
    assert not any(row.is_broken for row in rows)
    for row in noisy:
        upload = row.verdicts["upload"]
        assert upload.low <= bound(row.claim.epsilon, 0.0)
        assert upload.epsilon <= row.claim.epsilon
    strong = [row.verdicts["upload"].advantage for row in noisy[2::3]]
    assert min(strong) > 0.8  # the attack is one that can succeed
