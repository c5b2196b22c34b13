"""What leaves a client with noisy updates is made from them, but for what is listed.

Two worlds: other graphs, features and labels at every client, and the same noisy
updates. Whatever differs between the messages of the two, or between the models, has
gone around the mechanism.
"""

from __future__ import annotations

import pytest
import toys
from matrix import one_per_strategy

from clients.privacy.gaussian import epsilon_of
from fedgraph_flwr.core.errors import ConfigError
from simulations import contract
from simulations.contract import NOISY

OPTIONS = {"fgcl": {"fgcl.views": "clean", "privacy.edge-epsilon": 0.0}}
SENDS_NOTHING = {m for m in toys.AT_SITES if not toys.row(m).client.SENDS_UPDATES}
ALLOWED = sorted(set(toys.AT_SITES) - toys.SENT_BESIDE.keys() - SENDS_NOTHING)


@one_per_strategy(ALLOWED, also=["moon", "infograph"])
def test_nothing_but_noisy_updates_tells_the_data(lab, method):
    words = contract.protects_updates(lab, method, **OPTIONS.get(method, {}))
    assert words is None, "the setting is refused"


def test_a_run_with_noisy_updates_says_what_it_cost(run):
    privacy = run("fedavg", **NOISY).summary["privacy"]
    two_rounds = epsilon_of({NOISY["privacy.update-noise"]: 2}, 1e-5)
    for spent in privacy["per_client"].values():
        assert spent["update-epsilon"] == pytest.approx(two_rounds)
        assert spent["update-delta"] == 1e-5
    assert "of its updates alone" in privacy["says"]


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
