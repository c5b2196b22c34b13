"""Keys of a site's node-config: what is misspelt must not be lost."""

import pytest

from fedgraph_flwr.core.errors import ConfigError, RunFailedError
from fedgraph_flwr.node import node_config
from simulations.inline import run_inline

SMALL = {"method": "fedavg", "num-clients": 3, "num-server-rounds": 1}
MISSPELT = ("polcy", "Policy", "policy-file", "fresh_start", "data_path", "client")


@pytest.mark.parametrize("key", MISSPELT)
def test_a_key_like_one_of_ours_is_refused_and_all_are_listed(key):
    with pytest.raises(ConfigError) as error:
        node_config.check_keys({"clients": "0", key: 1})
    message = str(error.value)
    assert f"unknown node-config key {key!r}. Did you mean" in message
    assert all(known in message for known in node_config.KEYS)


def test_keys_of_other_apps_are_ignored_and_named_once(run, caplog):
    site = {"clients": "0,1,2", "gpu-model": "a", "rack": "x"}
    assert node_config.check_keys(site) == ["gpu-model", "rack"]
    with caplog.at_level("WARNING", logger="flwr"):
        run("fedavg", node_configs=[site], **{"num-server-rounds": 2})
    assert [m for m in caplog.messages if "node-config" in m] == [
        "node-config key 'gpu-model' is ignored: it means nothing here",
        "node-config key 'rack' is ignored: it means nothing here",
        "the run sets state-dir, cache-dir, which mean nothing at this site: its"
        " folders come from its node-config alone",
    ]


def test_a_misspelt_policy_stops_the_run_at_roll_call(tmp_path):
    site = {"clients": "0,1,2", "state-dir": str(tmp_path), "polcy": "/p.toml"}
    with pytest.raises(RunFailedError, match="ConfigError: see docs"):
        run_inline({**SMALL, "results-dir": str(tmp_path)}, node_configs=[site])


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({"client": "2", "site-name": "south"}, "'client'. Did you mean 'clients'?"),
        ({}, "does not know its clients; start the SuperNode with"),
    ],
)
def test_a_node_without_clients_says_why_in_its_log_and_at_roll_call(
    tmp_path, caplog, site, words
):
    overrides = {**SMALL, "roll-call-timeout-s": 0.5, "results-dir": str(tmp_path)}
    nodes = [{"clients": "0,1", "state-dir": str(tmp_path)}, site]
    with (
        caplog.at_level("WARNING", logger="flwr"),
        pytest.raises(RunFailedError, match="hosts no client"),
    ):
        run_inline(overrides, node_configs=nodes)
    assert [m for m in caplog.messages if m.startswith("this node hosts no client")]
    assert words in caplog.text


FIRST = "6668 7aad f862 bd77 6c8f c18b 8e9f 8e20"


@pytest.mark.parametrize(
    "given",
    [f"1:{FIRST},3:{FIRST}", f" 3: {FIRST.upper().replace(' ', '')}, 1:{FIRST}"],
)
def test_fingerprints_of_peers_with_or_without_spaces(given):
    site = {"peers": given, "state-dir": "s"}
    assert node_config.trusted_peers(site) == {1: FIRST, 3: FIRST}
    assert node_config.trusted_peers({"clients": "0"}) is None


@pytest.mark.parametrize(
    "given", ["", FIRST, f"1:{FIRST[:-1]}", f"x:{FIRST}", f"1:{FIRST},1:{FIRST}", "1:,"]
)
def test_peers_that_are_none_are_refused(given):
    with pytest.raises(ConfigError, match="peers must be client:fingerprint, 32 hexa"):
        node_config.trusted_peers({"peers": given, "state-dir": "s"})


def test_peers_need_a_state_folder_of_the_site():
    with pytest.raises(ConfigError, match="peers needs state-dir beside it"):
        node_config.trusted_peers({"peers": f"1:{FIRST}"})


@pytest.mark.parametrize("key", node_config.RETIRED)
def test_a_key_that_has_gone_is_refused_with_what_to_write_instead(key):
    cure = f"{key!r} no longer exists; write `.* = .*` into the"
    with pytest.raises(ConfigError, match=cure):
        node_config.check_keys({"clients": "0", key: True})
