"""One name, one data set: sites with other files are refused, or used whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toys import make_partition, run_settings

from datasets import load_partition
from datasets.public.tu import load_tu
from fedgraph_flwr.agreement import (
    check_same_data,
    class_names,
    describe_features,
    describe_left_out,
    tell_data,
)
from fedgraph_flwr.core.errors import ConfigError, RunFailedError
from fedgraph_flwr.results.reader import load_summary
from simulations.inline import run_inline
from strategies.round_report import ClientInfo

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


def summary_of(path):
    return load_summary(path)


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

    summary = summary_of(start(tmp_path, wards, partition="files"))
    assert summary["features"] == "2 labels (0 to 1)"
    assert set(summary["data_sha256"].values()) == set(hashes)


def test_a_ward_that_makes_up_most_of_each_average_is_named(tmp_path, caplog):
    wards = [write_ward(tmp_path / f"w{n}", n) for n in (10, 12, 60)]
    three = {"partition": "files", "num-clients": 3}
    said = [
        summary_of(start(tmp_path, wards, **three, weighting=weighting))["outweighing"]
        for weighting in ("samples", "uniform")
    ]
    assert said[0].startswith("client 2 has 73.8% of the weight in averages")
    assert said[1] == ""
    assert [r.levelname for r in caplog.records if said[0] in r.message] == ["WARNING"]


def test_every_graph_of_a_ward_is_used_wherever_its_folder_is(tmp_path):
    write_ward(tmp_path / "wards" / "client-0", 30)
    one = write_ward(tmp_path / "b", 20)
    common = {
        "dataset": "tu:WARD",
        "partition": "files",
        "num_clients": 2,
        "cache_dir": str(tmp_path / "cache"),
    }
    nested = run_settings(**common, data_dir=str(tmp_path / "wards"))
    alone = run_settings(**common, data_dir=one)
    for settings, client, size in ((nested, 0, 30), (alone, 1, 20)):
        part = load_partition(settings, client)
        used = np.concatenate([part.train, part.val, part.test])
        assert sorted(used) == list(range(size))
        assert len(part.train) == 0.8 * size
    with pytest.raises(ConfigError, match="own graphs, but data-dir is empty"):
        load_partition(run_settings(**common), 0)


def test_the_same_files_at_every_site_are_cut_as_in_simulation(tmp_path):
    folders = [write_ward(tmp_path / name, 30) for name in "ab"]

    found = [summary_of(start(tmp_path, p)) for p in (folders, folders[0])]
    assert found[0]["weights_sha256"] == found[1]["weights_sha256"]


@pytest.mark.parametrize(
    "told", ["}", "3", '"ab"', '{"a": 1}', "[1, 2]", '["\\n", ""]']
)
def test_what_a_client_says_instead_of_names_of_classes_ends_no_run(told):
    """They are read when models are written, after the last round."""
    assert class_names(info(0, classes=told)) == ["0", "1"]
    assert class_names(info(0, classes='["no", "yes"]')) == ["no", "yes"]


def test_one_folder_for_all_is_nobodys_own(tmp_path):
    folder = write_ward(tmp_path / "a", 30)
    with pytest.raises(ConfigError, match=r"clients 0 and 1 have the same graphs.*own"):
        start(tmp_path, folder, partition="files")


def test_nor_that_of_all_clients_of_a_node_where_no_checksum_is_told(tmp_path):
    """With noise on updates the account of a client would count its graphs once."""
    folder = tmp_path / "a"
    write_ward(folder, 30)
    node = {"clients": "0,1", "data-path": str(folder), "state-dir": str(tmp_path)}
    config = {**SMALL, "partition": "files", "num-server-rounds": 1}
    config |= {"privacy.update-clip": 1.0, "privacy.update-noise": 3.0}
    config |= {"results-dir": str(tmp_path / "r"), "cache-dir": str(tmp_path / "c")}
    with pytest.raises(RunFailedError, match="ConfigError: see docs"):
        run_inline(config, node_configs=[node])
    for client, count in enumerate((30, 20)):
        write_ward(folder / f"client-{client}", count)
    run_inline(config, node_configs=[node])


@pytest.mark.parametrize(
    ("other", "config", "message"),
    [
        (
            {"labels": (2, 3)},
            {},
            r'classes: \["1", "2"\] \(client 0\); \["2", "3"\] \(client 1\).*same set',
        ),
        (
            {"of_nodes": (1, 2)},
            {"shared-group": "all"},
            r"features: 2 labels \(0 to 1\) \(client 0\); 2 labels \(1 to 2\)",
        ),
    ],
)
def test_numbers_that_mean_other_things_are_refused(tmp_path, other, config, message):
    wards = [write_ward(tmp_path / "a", 30), write_ward(tmp_path / "b", 20, **other)]
    with pytest.raises(ConfigError, match=message):
        start(tmp_path, wards, partition="files", **config)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        # Labels and sizes are not protected where edges are; a checksum of them is told
        ({"privacy.edge-epsilon": 1.0}, "differ in checksums of labels of graphs"),
        ({"privacy.update-clip": 1.0}, "ConfigError: see docs/conf"),
    ],
)
def test_private_runs_do_not_mix_wards_either(tmp_path, config, told):
    wards = [write_ward(tmp_path / "a", 30), write_ward(tmp_path / "b", 20)]
    with pytest.raises((ConfigError, RunFailedError), match=told):
        start(tmp_path, wards, **config)


def info(client, *, raw="", **told):
    return ClientInfo(
        client=client,
        node_id=client,
        num_train=1,
        num_val=1,
        num_test=1,
        num_features=2,
        num_classes=2,
        group=-1,
        split_hash="",
        raw_sha256=raw,
        introduced=told,
    )


def test_groups_and_generated_data_are_not_compared():
    different = {0: info(0, raw="a", classes="x"), 1: info(1, raw="b", classes="y")}
    for dataset, partition in (("synthetic", "planted"), ("molecules", "datasets")):
        check_same_data(run_settings(dataset=dataset, partition=partition), different)
    with pytest.raises(ConfigError, match=r"a \(client 0\); b \(client 1\)"):
        check_same_data(run_settings(), different)
    sider = run_settings(dataset="SIDER", partition="quantity-skew")
    with pytest.raises(ConfigError, match=r"every site needs the same files$"):
        check_same_data(sider, different)
    smiles = run_settings(dataset="smiles-csv", partition="files")
    check_same_data(smiles, {0: info(0, whole="a"), 1: info(1, whole="a")})


@pytest.mark.parametrize("dataset", ["graphs-csv", "graph-csv", "smiles-csv"])
def test_one_file_for_two_clients_is_refused(dataset):
    settings = run_settings(dataset=dataset, partition="files")
    message = r"clients 0 and 1 have the same graphs \(checksum of files a\).*own$"
    with pytest.raises(ConfigError, match=message):
        check_same_data(settings, {0: info(0, raw="a"), 1: info(1, raw="a")})


def test_what_clients_tell_is_bounded():
    part = make_partition()
    assert tell_data(part, tells_labels=True) == {}
    many = [str(k) for k in range(300)]
    part = replace(part, graphs=replace(part.graphs, classes=many), whole_sha256="w")
    told = tell_data(part, tells_labels=False)
    assert list(told) == ["classes"]
    assert len(told["classes"]) < 120
    assert "300 classes" in told["classes"]
    assert tell_data(part, tells_labels=True)["whole"] == "w"


def test_features_are_described_once_or_by_client():
    one = {c: info(c, columns="3 labels", unused="edge labels") for c in range(2)}
    assert describe_features(one) == "3 labels; not used: edge labels"
    two = {**one, 2: info(2, columns="2 attributes")}
    assert describe_features(two) == (
        "clients 0, 1: 3 labels; not used: edge labels | clients 2: 2 attributes"
    )
    assert describe_features({0: info(0)}) == ""


def test_shares_that_are_left_out_are_named_by_client():
    lost = {"left-out": "4.6 % of edges"}
    clients = {2: info(2, **lost), 0: info(0), 1: info(1, **lost)}
    assert describe_left_out(clients) == (
        "client 1: 4.6 % of edges; client 2: 4.6 % of edges"
    )
