"""Keys of a site's node-config: what is misspelt must not be lost."""

import pytest

from fedgraph_flwr import node_config
from fedgraph_flwr.errors import ConfigError, RunFailedError
from simulations.inline import run_inline

MISSPELT = (
    "edge-budget",
    "edge_budget_max",
    "edge-budget-mx",
    "Edge-Budget-Max",
    "share-embedding",
    "share_features",
    "statedir",
    "state_dir",
    "data-dir",
    "data_path",
    "client",
    "partitionid",
)


@pytest.mark.parametrize("key", MISSPELT)
def test_a_key_like_one_of_ours_is_refused_and_all_are_listed(key):
    with pytest.raises(ConfigError) as error:
        node_config.check_keys({"clients": "0", key: 1})
    message = str(error.value)
    assert f"unknown node-config key {key!r}. Did you mean" in message
    assert all(known in message for known in node_config.KEYS)


@pytest.mark.parametrize("key", node_config.KEYS)
def test_our_own_keys_pass(key):
    node_config.check_keys({key: 1})


def test_keys_of_other_apps_are_ignored_and_named_once(run, caplog):
    site = {"clients": "0,1,2", "gpu-model": "a", "site-name": "x"}
    assert node_config.check_keys(site) == ["gpu-model", "site-name"]
    with caplog.at_level("WARNING", logger="flwr"):
        run("fedavg", node_configs=[site], **{"num-server-rounds": 2})
    assert [m for m in caplog.messages if "node-config" in m] == [
        "node-config key 'gpu-model' means nothing here, it is ignored",
        "node-config key 'site-name' means nothing here, it is ignored",
        "the run sets state-dir, cache-dir, which mean nothing at this site: its"
        " folders come from its node-config alone",
    ]


def test_a_misspelt_cap_stops_the_run_at_roll_call(tmp_path):
    site = {"clients": "0,1,2", "state-dir": str(tmp_path), "edge-budget": 7.0}
    overrides = {
        "method": "fedavg",
        "num-clients": 3,
        "num-server-rounds": 1,
        "results-dir": str(tmp_path / "results"),
    }
    with pytest.raises(RunFailedError, match="unknown node-config key 'edge-budget'"):
        run_inline(overrides, node_configs=[site])
