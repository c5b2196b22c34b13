"""One name, one data set: sites with other files are refused, or used whole."""

from __future__ import annotations

import pytest
import toys
from toys import run_settings

from datasets.public.tu import load_tu
from fedgraph_flwr.agreement import (
    check_same_data,
    class_names,
)
from fedgraph_flwr.core.errors import ConfigError, RunFailedError
from fedgraph_flwr.results.reader import load_summary
from simulations.inline import run_inline

SMALL = {
    "method": "fedavg",
    "dataset": "tu:WARD",
    "num-clients": 2,
    "num-server-rounds": 1,
    "hidden-dim": 4,
    "device": "cpu",
}


def write_ward(folder, num_graphs, *, labels=(1, 2), of_nodes=(0, 1)):
    """Make paths of three nodes, with labels of graphs and nodes in turn."""
    raw = folder / "WARD" / "raw"
    raw.mkdir(parents=True)
    edges, graphs, nodes = [], [], []
    for g in range(num_graphs):
        a = 3 * g + 1
        for one, other in ((a, a + 1), (a + 1, a + 2)):
            edges += [f"{one}, {other}", f"{other}, {one}"]
        graphs += [g + 1] * 3
        nodes += [of_nodes[(g + k) % len(of_nodes)] for k in range(3)]
    content = {
        "A": edges,
        "graph_indicator": graphs,
        "graph_labels": [labels[g % len(labels)] for g in range(num_graphs)],
        "node_labels": nodes,
    }
    for kind, lines in content.items():
        (raw / f"WARD_{kind}.txt").write_text("".join(f"{line}\n" for line in lines))
    return str(folder)


def start(tmp_path, paths, **config):
    """Run two sites with a ``data-path`` each, or simulate where ``paths`` is one."""
    given = {**SMALL, "results-dir": str(tmp_path / "r"), "state-dir": str(tmp_path)}
    given["cache-dir"] = str(tmp_path / "cache")
    if isinstance(paths, str):
        return run_inline({**given, "data-dir": paths, **config}, num_nodes=2)
    own = {k: given[k] for k in ("state-dir", "cache-dir")}
    nodes = [
        {"clients": str(c), "data-path": path, **own} for c, path in enumerate(paths)
    ]
    return run_inline({**given, **config}, node_configs=nodes)


def test_two_wards_under_one_name_are_refused_in_chunks_and_used_whole(tmp_path):
    wards = [write_ward(tmp_path / "a", 30), write_ward(tmp_path / "b", 20)]
    hashes = [
        load_tu("WARD", data_dir=ward, cache_dir=str(tmp_path / "cache")).raw_sha256
        for ward in wards
    ]
    with pytest.raises(ConfigError) as error:
        start(tmp_path, wards)
    message = str(error.value)
    assert f"{hashes[0][:12]} (client 0); {hashes[1][:12]} (client 1)" in message
    assert "every site needs the same files" in message
    assert 'set partition="files"' in message

    summary = load_summary(start(tmp_path, wards, partition="files"))
    assert summary["features"] == "2 labels (0 to 1)"
    assert set(summary["data_sha256"].values()) == set(hashes)


def test_a_ward_that_makes_up_most_of_each_average_is_named(tmp_path, caplog):
    wards = [write_ward(tmp_path / f"w{n}", n) for n in (10, 12, 60)]
    three = {"partition": "files", "num-clients": 3}
    said = [
        load_summary(start(tmp_path, wards, **three, weighting=weighting))[
            "outweighing"
        ]
        for weighting in ("samples", "uniform")
    ]
    assert said[0].startswith("client 2 has 73.8% of the weight in averages")
    assert said[1] == ""
    assert [r.levelname for r in caplog.records if said[0] in r.message] == ["WARNING"]


@pytest.mark.parametrize(
    "told", ["}", "3", '"ab"', '{"a": 1}', "[1, 2]", '["\\n", ""]']
)
def test_what_a_client_says_instead_of_names_of_classes_ends_no_run(told):
    """They are read when models are written, after the last round."""
    assert class_names(info(0, classes=told)) == ["0", "1"]
    assert class_names(info(0, classes='["no", "yes"]')) == ["no", "yes"]


FILES = {"partition": "files"}
CLASSES = r'classes: \["1", "2"\] \(client 0\); \["2", "3"\] \(client 1\).*same set'
FEATURES = r"features: 2 labels \(0 to 1\) \(client 0\); 2 labels \(1 to 2\)"


@pytest.mark.parametrize(
    ("other", "config", "message"),
    [
        ({"labels": (2, 3)}, FILES, CLASSES),
        ({"of_nodes": (1, 2)}, {**FILES, "shared-group": "all"}, FEATURES),
        # Labels and sizes are not protected where edges are; a checksum of them is told
        ({}, {"privacy.edge-epsilon": 1.0}, "differ in checksums of labels of graphs"),
        ({}, {"privacy.update-clip": 1.0}, "ConfigError: see docs/conf"),
    ],
)
def test_wards_that_do_not_fit_are_refused(tmp_path, other, config, message):
    wards = [write_ward(tmp_path / "a", 30), write_ward(tmp_path / "b", 20, **other)]
    with pytest.raises((ConfigError, RunFailedError), match=message):
        start(tmp_path, wards, **config)


def info(client, *, raw="", **told):
    return toys.info(client, num_classes=2, raw_sha256=raw, introduced=told)


@pytest.mark.parametrize("dataset", ["graphs-csv", "graph-csv", "smiles-csv"])
def test_one_file_for_two_clients_is_refused(dataset):
    settings = run_settings(dataset=dataset, partition="files")
    message = r"clients 0 and 1 have the same graphs \(checksum of files a\).*own$"
    with pytest.raises(ConfigError, match=message):
        check_same_data(settings, {0: info(0, raw="a"), 1: info(1, raw="a")})
