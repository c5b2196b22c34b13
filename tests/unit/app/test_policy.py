"""The policy file of a site: what is in it holds; one that cannot be read forbids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import toys

from clients.base import start_of
from fedgraph_flwr.core.errors import DataError, PolicyError, RunFailedError
from fedgraph_flwr.node.policy import OPEN, Policy, _model_bytes, read_policy
from fedgraph_flwr.resolve import defaults

SITE = {"clients": "0,1,2", "state-dir": "/s"}
PAGE = Path(__file__).parents[3] / "docs" / "privacy-details.md"


def written(folder, text):
    path = folder / "policy.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return {**SITE, "policy": str(path)}


def test_every_key_of_a_file_is_read(tmp_path):
    given = {
        "methods": ("fedavg", "fgx:METHOD"),  # a plug-in is not imported
        "datasets": ("smiles-csv", "tu:MUTAG"),
        "min_examples": 50,
        "update_clip_max": 1.0,
        "update_noise_min": 2.5,
        "update_epsilon_max": 8.0,
        "update_delta": 1e-6,
        "edge_epsilon_max": 4.0,
        "reply_bytes_max": 1_000_000,
        "scores": False,
    }
    assert policy_at({**SITE, **toys.policy(tmp_path, **given)}) == Policy(**given)
    shares = {"sealed_only": True, "pooled_evaluation": True, "raw_features": True}
    assert policy_at({**SITE, **toys.policy(tmp_path, **shares)}) == Policy(**shares)


def test_a_site_without_a_file_shares_nothing_and_simulation_all():
    found = policy_at(SITE)
    assert found == Policy()
    assert not found.pooled_evaluation
    assert not found.raw_features
    assert policy_at({"partition-id": 0, "num-partitions": 2}) == OPEN


def policy_at(node):
    return read_policy(node)[0]


CLIP = "update-clip-max = 1\nupdate-noise-min = 1\n"
BAD = [
    ("clip = 1", "unknown policy key 'clip'.*update-clip-max"),
    ("update-clip-mx = 1", "unknown policy key.*Did you mean 'update-clip-max'"),
    ("Scores = false", "unknown policy key 'Scores'. Did you mean 'scores'"),
    ("update-clip-max = '1'", "update-clip-max must be a finite number >= 0.*got '1'"),
    ("update-clip-max = -1", "update-clip-max must be a finite number >= 0"),
    ("edge-epsilon-max = inf", "edge-epsilon-max must be a finite number"),
    ("update-delta = 0", "update-delta must be a finite number > 0"),
    ("min-examples = 1.5", "min-examples must be an int"),
    ("scores = 'no'", "scores must be true or false, got 'no'"),
    ("methods = []", "methods must be a list of at least one name"),
    ("methods = [1]", "methods must be a list of at least one name"),
    ("methods = ['fedavgg']", "unknown method 'fedavgg'. Did you mean 'fedavg'"),
    ("datasets = ['MUTAGG']", "MUTAGG"),
    ("methods = ['a/b:c']", "a plug-in is named module:NAME"),
    ("update-noise-min = 1", "update-noise-min is set without update-clip-max"),
    ("update-epsilon-max = 1", "update-epsilon-max is set without update-clip-max"),
    ("graph-noise-min = 1", "graph-noise-min is set without graph-clip-max"),
    ("graph-clip-max = 1", "set without graph-noise-min and graph-epsilon-max"),
    ("update-clip-max = 1", "set without update-noise-min and update-epsilon-max"),
    (CLIP + "sealed-only = true", "sealed-only = true contradicts"),
    (CLIP + "shared-noise = true", "shared-noise = true without secure-aggregation"),
    (CLIP + "raw-features = true", "raw-features = true contradicts"),
    ("scores = false\nscores = true", "is not valid TOML"),
    (b"\xff\xfe", "is not valid TOML"),
]


@pytest.mark.parametrize(("text", "why"), BAD, ids=lambda v: repr(v)[:30])
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(tmp_path, text, why):
    with pytest.raises(PolicyError, match=f"(?s){why}") as caught:
        policy_at(written(tmp_path, text))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("policy.toml", "an absolute path;"),
        ("/none/missing.toml", "(?i)no such file"),
        ("/", "is a dir"),
    ],
)
def test_a_file_that_is_none_is_refused(path, why):
    with pytest.raises(PolicyError, match=f"(?i){why}"):
        policy_at({**SITE, "policy": path})


def test_a_budget_needs_a_folder_that_no_run_can_change(tmp_path):
    node = written(tmp_path, "edge-epsilon-max = 2.0")
    policy_at(node)
    with pytest.raises(
        PolicyError, match="edge-epsilon-max needs node-config state-di"
    ):
        policy_at({k: v for k, v in node.items() if k != "state-dir"})


def test_a_bad_file_refuses_even_what_every_policy_allows(run, tmp_path):
    node = {**written(tmp_path, "scores = maybe"), "state-dir": str(tmp_path)}
    with pytest.raises(RunFailedError, match="PolicyError: see docs/privacy") as caught:
        run("local", node_configs=[node])
    assert "maybe" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert (
        "is not valid TOML: Invalid value (at line 1"
        in (tmp_path / "audit.jsonl").read_text()
    )


@pytest.mark.parametrize(
    ("key", "config", "allowed"),
    [
        ("methods", {"method": "fedavg"}, ["fedprox", "local"]),
        ("datasets", {"dataset": "synthetic"}, ["smiles-csv"]),
    ],
)
def test_other_names_are_refused_whatever_else_the_run_says(key, config, allowed):
    policy = Policy(**{key: tuple(allowed)})
    policy.check_names({**defaults(), key[:-1]: allowed[0]})
    with pytest.raises(
        PolicyError, match=rf"policy \({key}\) does not allow {key[:-1]}"
    ):
        policy.check_names({**defaults(), **config, "num-clients": "nonsense"})
    with pytest.raises(PolicyError, match="does not allow"):
        policy.check_names({})


def test_the_page_lists_every_key_with_its_default():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    found = {r.split("|")[1].strip(" `"): r.split("|")[2].strip(" `") for r in rows}
    expected = {
        Policy.key(f): "[]" if d == () else str(d).lower() for f, d in _defaults()
    }
    assert {k: v for k, v in found.items() if k in expected} == expected


def _defaults():
    return [(f.name, f.default) for f in Policy.config_fields().values()]


def test_examples_of_the_page_are_policies(tmp_path):
    blocks = PAGE.read_text().split("```toml\n")[1:]
    assert len(blocks) == 2  # a hospital's and a bank's
    for block in blocks:
        policy_at(written(tmp_path, block.split("```")[0]))


def test_graphs_without_a_label_of_the_runs_choice_are_no_examples():
    """By a rare column of labels a run would train on a single graph."""
    partition = toys.with_tasks(toys.make_partition(0), "binary")
    y = np.full_like(partition.graphs.y, np.nan)
    y[partition.train[0], 0] = 1.0
    y[partition.val] = 1.0
    rare = toys.replace(partition, graphs=toys.replace(partition.graphs, y=y))
    run = toys.resolved()
    Policy(min_examples=1).check_data(run, rare)
    with pytest.raises(PolicyError, match="client 0 with 1 labelled training"):
        Policy(min_examples=2).check_data(run, rare)
    Policy(min_examples=len(partition.train)).check_data(run, partition)


@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("gcfl+", "local-epochs"),
        ("adafgl", "adafgl.personal-epochs"),
        ("fedgkd", "fedgkd.distil-steps"),
        ("fedgta", "fedgta.steps"),
        ("fedsage+", "fedsage-plus.rounds"),
    ],
)
def test_more_work_in_a_round_than_the_policy_allows_is_refused(method, key):
    policy = Policy(epochs_max=6, statistics=True)
    small = {"local-epochs": 1, key: 6}
    policy.check_run(toys.resolved(method, **small))
    with pytest.raises(PolicyError, match=rf"epochs-max\) does not .* {key} 7; set"):
        policy.check_run(toys.resolved(method, **{**small, key: 7}))


def test_a_model_larger_than_the_policy_allows_is_refused_at_roll_call(
    run, tmp_path, caplog
):
    large = {"hidden-dim": 2048, "num-layers": 8}
    policy = written(tmp_path, "model-bytes-max = 1_000_000")
    node = {**policy, "state-dir": str(tmp_path / "state")}
    assert run("fedavg", node_configs=[node]).summary["status"] == "completed"
    with pytest.raises(DataError, match=r"PolicyError \(model-bytes-max\)"):
        run("fedavg", node_configs=[node], **large)
    assert "policy (model-bytes-max) does not allow a model of 2" in caplog.text
    assert "make it at most 1000000 (hidden-dim, num-layers)" in caplog.text


def test_a_models_size_is_that_of_its_tensors_and_takes_no_memory():
    for method in toys.CASES:
        run = toys.resolved(method)
        graphs = toys.make_partition(0).graphs
        widths = graphs.num_features, graphs.num_classes
        spec = run.spec(num_features=widths[0], num_classes=widths[1])
        with torch.device("meta"):  # a model that cannot be made there is made here
            start_of(run.method.client, spec)
        expected = start_of(run.method.client, spec).nbytes
        assert _model_bytes(run, graphs) == expected
