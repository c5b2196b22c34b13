"""What leaves a client with noisy updates is made from them, but for what is listed.

Two worlds: other graphs, features and labels at every client, and the same noisy
updates. Whatever differs between the messages of the two, or between the models, has
gone around the mechanism.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import toys
from matrix import one_per_strategy

from clients.privacy.gaussian import epsilon_of
from clients.privacy.site import PrivateSite
from fedgraph_flwr import client_app
from fedgraph_flwr.errors import ConfigError

# Sent exactly, as docs/privacy.md says: scores and losses with the counts that they are
# means over, how long it took, and the hash of the model that was scored last.
EXACT_METRICS = ("eval/", "count/", "started-at", "compute-s")
EXACT_FACTS = ("weights-sha256",)
NOISY = {
    "privacy.update-clip": 0.5,
    "privacy.update-noise": 3.0,
    "num-server-rounds": 2,
}
OPTIONS = {"fgcl": {"fgcl.views": "clean", "privacy.edge-epsilon": 0.0}}
SENDS_MORE = {"fedgkd", "fedpub", "spreadgnn"}  # and fedsage+ with cross-client
SENDS_NOTHING = {m for m in toys.CASES if not toys.row(m).client.SENDS_UPDATES}
ALLOWED = sorted(set(toys.CASES) - SENDS_MORE - SENDS_NOTHING)


def noisy(method):
    return {**NOISY, **OPTIONS.get(method, {})}


@functools.cache
def released(shape, server_round, client):
    """Stands for the noisy update of both worlds."""
    return np.random.default_rng([server_round, client]).normal(0, 0.01, shape)


def other_data(settings, client_id):
    """As many graphs, or nodes, and nothing else in common with the toy federation."""
    own = toys.federation(settings, client_id)
    if len(own.graphs) == 1:  # whose nodes are classified
        graphs = toys.make_whole_graph(own.graphs.num_nodes, seed=50 + client_id)
    else:
        graphs = toys.random_graphs(len(own.graphs), seed=50 + client_id)
    y = own.graphs.y.copy()
    y[: len(y) // 2] = y[0]
    return toys.replace(own, graphs=toys.replace(graphs, name=own.graphs.name, y=y))


def what_leaves(run, toy_data, method, load, **options):
    """Messages of all clients without what is listed above, and the models."""
    sent, listed = [], []
    pack, charge = client_app.pack, PrivateSite.noisy_update

    def packed(parcels, *header):
        for client, p in parcels.items():
            exact = {k: v for k, v in p.metrics.items() if k.startswith(EXACT_METRICS)}
            numbers = {k: v for k, v in p.metrics.items() if k not in exact}
            texts = {k: v for k, v in p.facts.items() if k not in EXACT_FACTS}
            sent.append((client, p.error, numbers, texts))
            for arrays in (p.arrays, p.evaluation):
                sent.append({k: np.asarray(a).tobytes() for k, a in arrays.items()})
            listed.append({k: v for k, v in exact.items() if k.startswith("eval/")})
        return pack(parcels, *header)

    def forced(self, update, partition, *, server_round, inputs):
        charge(self, update, partition, server_round=server_round, inputs=inputs)
        client = partition.client_id
        return [released(a.shape, server_round, client).astype(a.dtype) for a in update]

    with toy_data.context() as patch:
        patch.setattr("datasets.load_partition", load)
        patch.setattr(PrivateSite, "noisy_update", forced)
        patch.setattr(client_app, "pack", packed)
        finished = run(method, **noisy(method), **options)
    models = {
        name: {k: a.tobytes() for k, a in model.items()}
        for name, model in finished.models.items()
    }
    return (sent, models), listed


@pytest.mark.parametrize("method", ALLOWED)
def test_nothing_but_noisy_updates_tells_the_data(run, toy_data, method):
    (ours, our_scores), (theirs, their_scores) = (
        what_leaves(run, toy_data, method, load)
        for load in (toys.federation, other_data)
    )
    assert ours == theirs
    assert any(part for part in ours[0] if isinstance(part, dict))
    assert our_scores != their_scores  # else the two worlds are one


@one_per_strategy(ALLOWED)
def test_a_run_with_noisy_updates_completes_and_says_what_it_cost(run, method):
    finished = run(method, **noisy(method))
    privacy = finished.summary["privacy"]
    two_rounds = epsilon_of({3.0: 2}, 1e-5)
    for spent in privacy["per_client"].values():
        assert spent["update-epsilon"] == pytest.approx(two_rounds)
        assert spent["update-delta"] == 1e-5
    assert "of its updates alone" in privacy["says"]
    assert not finished.summary["failures"]
    assert all(
        np.isfinite(a).all() for m in finished.models.values() for a in m.values()
    )


@pytest.mark.parametrize("method", sorted(SENDS_MORE))
def test_methods_that_send_more_than_updates_are_refused(method):
    with pytest.raises(ConfigError, match=r"privacy\.update-clip is 0\.5, but"):
        toys.resolved(method, **NOISY)


@pytest.mark.parametrize(
    ("method", "setting", "what"),
    [
        ("fedsage+", {"fedsage-plus.cross-client": True}, "raw feature rows"),
        ("gcfl+", {"gcfl.seq-source": "last-grad-norm"}, "norms of their gradients"),
        *(
            (m, {"embedding.evaluation": "pooled"}, "embeddings and labels")
            for m in ("fclg", "infograph", "mvgrl")
        ),
    ],
)
def test_settings_that_send_more_than_updates_are_refused(method, setting, what):
    toys.resolved(method, **setting)
    with pytest.raises(ConfigError, match=f"privacy.update-clip is 0.5, .*{what}"):
        toys.resolved(method, **NOISY, **setting)
