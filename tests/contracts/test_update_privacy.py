"""What leaves a client with noisy updates is made from them, but for what is listed.

Two worlds: other graphs, features and labels at every client, and the same noisy
updates. Whatever differs between the messages of the two, or between the models, has
gone around the mechanism.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import toys
from matrix import one_per_strategy

from clients.privacy.gaussian import epsilon_of
from clients.privacy.site import PrivateSite
from fedgraph_flwr import client_app
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.wire import COUNT, EVAL, TIMING, WEIGHTS_HASH, pack
from simulations import contract
from simulations.contract import NOISY

OPTIONS = {"fgcl": {"fgcl.views": "clean", "privacy.edge-epsilon": 0.0}}
SENDS_NOTHING = {m for m in toys.CASES if not toys.row(m).client.SENDS_UPDATES}
ALLOWED = sorted(set(toys.CASES) - toys.SENT_BESIDE.keys() - SENDS_NOTHING)


# Sent exactly, as docs/privacy.md says: scores and losses with the counts that they are
# means over, how long it took, and the hash of the model that was scored last.
EXACT = (EVAL, COUNT, *TIMING)  # metrics; of facts, WEIGHTS_HASH


class Leaving(NamedTuple):
    """Everything that left the clients of one world, by name, and its scores."""

    sent: list[tuple[str, object]]
    scores: list[dict[str, Any]]


def other_federation(settings, client_id):
    """Make as many graphs or nodes as :func:`toys.federation`, with other content."""
    own, seed = toys.federation(settings, client_id), 50 + client_id
    if len(own.graphs) == 1:  # whose nodes are classified
        graphs = toys.make_whole_graph(own.graphs.num_nodes, seed=seed)
    else:
        graphs = toys.random_graphs(len(own.graphs), seed=seed)
    y = own.graphs.y.copy()
    y[: len(y) // 2] = y[0]
    return replace(own, graphs=replace(graphs, name=own.graphs.name, y=y))


def what_leaves(lab, case, load):
    """Run a case with noisy updates that are given, and note all that is sent."""
    found = Leaving([], [])
    charge = PrivateSite.noisy_update

    def packed(parcels, *header):
        for client, parcel in parcels.items():
            metrics, facts = parcel.metrics.items(), parcel.facts.items()
            sent = [("the error", parcel.error)]
            sent += [(f"metric {k}", v) for k, v in metrics if not k.startswith(EXACT)]
            sent += [(f"fact {k}", v) for k, v in facts if k != WEIGHTS_HASH]
            for arrays in (parcel.arrays, parcel.evaluation):
                sent += [(f"array {k}", a.tobytes()) for k, a in arrays.items()]
            found.sent.extend((f"{what} of client {client}", v) for what, v in sent)
            found.scores.append({k: v for k, v in metrics if k.startswith(EVAL)})
        return pack(parcels, *header)

    def forced(self, update, partition, **rest):
        charge(self, update, partition, **rest)
        at = rest["server_round"], partition.client_id
        return [given(a.shape, *at).astype(a.dtype) for a in update]

    with (
        mock.patch("datasets.load_partition", load),
        mock.patch.object(PrivateSite, "noisy_update", forced),
        mock.patch.object(client_app, "pack", packed),
    ):
        finished = lab.run(case, **noisy(case))
    for name, model in finished.models.items():
        sent = [(f"{k} of model {name}", a.tobytes()) for k, a in model.items()]
        found.sent.extend(sent)
    return found


def first_difference(ours, theirs):
    """Name the first thing that two worlds send differently; "" if there is none."""
    for (name, one), (other_name, other) in zip(ours, theirs, strict=False):
        if name != other_name or one != other:
            return str(name) if name == other_name else f"that {name} is sent"
    return "" if len(ours) == len(theirs) else "how much is sent"


@functools.cache
def given(shape, server_round, client):
    """Stand for the noisy update of both worlds."""
    return np.random.default_rng([server_round, client]).normal(0, 0.01, shape)


def noisy(method):
    return {**NOISY, **OPTIONS.get(method, {})}


@one_per_strategy(ALLOWED, also=["moon", "infograph"])
def test_nothing_but_noisy_updates_tells_the_data(lab, method):
    ours, theirs = (
        what_leaves(lab, method, load) for load in (toys.federation, other_federation)
    )
    assert ours.scores != theirs.scores, "two worlds with other data are one"
    assert first_difference(ours.sent, theirs.sent) == ""


@one_per_strategy(ALLOWED, also=["moon", "infograph"])
def test_the_contract_finds_nothing_at_a_sites_gate(lab, method):
    words = contract.protects_updates(lab, method, **OPTIONS.get(method, {}))
    assert words is None, "the setting is refused"


@one_per_strategy(ALLOWED)
def test_a_run_with_noisy_updates_completes_and_says_what_it_cost(run, method):
    finished = run(method, **noisy(method))
    privacy = finished.summary["privacy"]
    two_rounds = epsilon_of({noisy(method)["privacy.update-noise"]: 2}, 1e-5)
    for spent in privacy["per_client"].values():
        assert spent["update-epsilon"] == pytest.approx(two_rounds)
        assert spent["update-delta"] == 1e-5
    assert "of its updates alone" in privacy["says"]
    assert not finished.summary["failures"]
    assert all(
        np.isfinite(a).all() for m in finished.models.values() for a in m.values()
    )


@pytest.mark.parametrize("method", sorted(toys.SENT_BESIDE))
def test_methods_that_send_more_than_updates_are_refused(method):
    with pytest.raises(ConfigError, match=r"privacy\.update-clip is 0\.5, but"):
        toys.resolved(method, **NOISY)


@pytest.mark.parametrize(
    ("method", "setting", "what"),
    [
        ("fedsage+", {"fedsage-plus.cross-client": True}, "feature rows of nodes"),
        ("gcfl+", {"gcfl.seq-source": "last-grad-norm"}, "norms of gradients"),
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
