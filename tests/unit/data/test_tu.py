"""TU data sets: reading, checking, caching."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import toys

import datasets
from datasets.cache import cache_root
from datasets.public.tu import load_tu, say_once
from fedgraph_flwr.core.errors import ConfigError, DataError
from fedgraph_flwr.resolve import defaults, resolve

# Three graphs: a path 1-2-3, a pair 4-5 (edge written twice, self-loop on 4), and a
# triangle 6-7-8. Edges stand out of order on purpose.
TINY = {
    "A": "2, 1\n1, 2\n2, 3\n3, 2\n4, 5\n5, 4\n4, 5\n4, 4\n"
    "6, 7\n7, 6\n8, 7\n7, 8\n6, 8\n8, 6\n",
    "graph_indicator": "1\n1\n1\n2\n2\n3\n3\n3\n",
    "graph_labels": "-1\n1\n-1\n",
    "node_labels": "5\n7\n5\n6\n6\n7\n7\n5\n",
}

# The table of ../shared/data/README.md: graphs, mean nodes, mean edges, graphs per
# class, feature columns.
COUNTS = {
    "MUTAG": (188, 17.93, 19.79, [63, 125], 7),
    "BZR": (405, 35.75, 38.36, [319, 86], 53),
    "COX2": (467, 41.22, 43.45, [365, 102], 35),
    "DHFR": (756, 42.43, 44.54, [295, 461], 53),
    "PTC_MR": (344, 14.29, 14.69, [192, 152], 18),
    "AIDS": (2000, 15.69, 16.20, [400, 1600], 38),
    "ENZYMES": (600, 32.63, 62.14, [100] * 6, 3),
    "PROTEINS": (1113, 39.06, 72.82, [663, 450], 3),
    "IMDB-BINARY": (1000, 19.77, 96.53, [500, 500], 136),
    "IMDB-MULTI": (1500, 13.00, 65.94, [500] * 3, 89),
}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Data folder with the data set TINY; no environment fallbacks."""
    monkeypatch.delenv("FEDGRAPH_DATA", raising=False)
    monkeypatch.delenv("FEDGRAPH_CACHE", raising=False)
    write_tiny(tmp_path / "data" / "TINY" / "raw")
    return tmp_path / "data"


def write_tiny(raw: Path, name="TINY", **changes):
    raw.mkdir(parents=True, exist_ok=True)
    for kind, content in {**TINY, **changes}.items():
        if content is not None:
            (raw / f"{name}_{kind}.txt").write_text(content)


def load_tiny(data: Path, features="labels"):
    return load_tu(
        "TINY", features, data_dir=str(data), cache_dir=str(data.parent / "cache")
    )


def entries(cache: Path):
    return [p for p in cache.glob("*") if p.suffix != ".lock"]


# --- reading ---


def test_tiny_by_hand(tiny):
    graphs = load_tiny(tiny)
    assert graphs.node_ptr.tolist() == [0, 3, 5, 8]
    assert graphs.edge_ptr.tolist() == [0, 4, 6, 12]
    assert graphs.edge_index.tolist() == [
        [0, 1, 1, 2, 0, 1, 0, 0, 1, 1, 2, 2],
        [1, 0, 2, 1, 1, 0, 1, 2, 0, 2, 0, 1],
    ]
    assert graphs.x.tolist() == [0, 2, 0, 1, 1, 2, 2, 0]
    assert graphs.y.tolist() == [0, 1, 0]
    assert (graphs.num_features, graphs.num_classes) == (3, 2)
    assert graphs.is_undirected
    assert (graphs.edge_index.dtype, graphs.x.dtype) == (np.int32, np.uint8)


@pytest.mark.parametrize("seed", range(3))
def test_any_set_is_read_as_by_a_slow_loop(tmp_path, seed):
    """Loops, repeats, graphs without edges wherever they stand, one graph alone."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, rng.integers(1, 5))
    sizes[rng.integers(len(sizes))] += 1
    graph_of = np.repeat(np.arange(len(sizes)), sizes)
    u, v = np.triu_indices(len(graph_of), 1)
    u, v = (ends[graph_of[u] == graph_of[v]] for ends in (u, v))
    some = rng.integers(0, len(u), rng.integers(1, 4))
    lines = np.stack([u[some], v[some]], 1)
    loops = np.repeat(rng.integers(0, len(graph_of), 2)[:, None], 2, axis=1)
    lines = np.concatenate([lines, lines[:, ::-1], lines[:1], loops])
    labels, classes = (
        rng.integers(-2, 3, len(graph_of)),
        rng.integers(-1, 2, len(sizes)),
    )
    numbers = rng.normal(size=(len(graph_of), 2))
    write_tiny(
        tmp_path / "data" / "TINY" / "raw",
        A="".join(f"{a + 1}, {b + 1}\n" for a, b in rng.permutation(lines)),
        graph_indicator="".join(f"{g + 1}\n" for g in graph_of),
        graph_labels="".join(f"{c}\n" for c in classes),
        node_labels="".join(f"{c}\n" for c in labels),
        node_attributes="".join(f"{a!r}, {b!r}\n" for a, b in numbers.tolist()),
    )
    graphs = load_tiny(tmp_path / "data", "labels+attributes")
    assert graphs.node_ptr.tolist() == [0, *np.cumsum(sizes)]
    for g, first in enumerate(graphs.node_ptr[:-1].tolist()):
        own = {(a - first, b - first) for a, b in lines if a != b and graph_of[a] == g}
        edges = graphs.edge_index[:, graphs.edge_ptr[g] : graphs.edge_ptr[g + 1]]
        assert [tuple(e) for e in edges.T.tolist()] == sorted(own)
    assert graphs.is_undirected
    kinds = sorted(set(classes.tolist()))
    assert graphs.y.tolist() == [kinds.index(c) for c in classes]
    assert graphs.classes == [str(c) for c in kinds]
    one_hot = [
        [float(c == k) for k in range(min(labels), max(labels) + 1)] for c in labels
    ]
    np.testing.assert_array_equal(graphs.x[:, :2], numbers.astype(np.float32))
    np.testing.assert_array_equal(graphs.x[:, 2:], one_hot)
    only = load_tiny(tmp_path / "data", "labels")
    assert only.x.tolist() == (labels - min(labels)).tolist()
    ends = [a for a, b in {tuple(line) for line in lines.tolist()} if a != b]
    degrees = [ends.count(node) for node in range(len(graph_of))]
    assert load_tiny(tmp_path / "data", "degree").x.tolist() == degrees


def test_larger_degrees_are_clipped(tiny, monkeypatch):
    monkeypatch.setattr("datasets.public.tu.MAX_DEGREE", {"TINY": 1})
    graphs = load_tiny(tiny, "degree")
    assert graphs.x.tolist() == [1] * 8
    assert graphs.num_features == 2


ATTRIBUTES = "".join(f"{k}.5, {-k}\n" for k in range(8))


@pytest.mark.parametrize(
    ("features", "labels", "width", "columns"),
    [
        ("labels+attributes", True, 5, "2 attributes, 3 labels (5 to 7)"),
        ("labels+attributes", False, 2, "2 attributes"),
        ("attributes", True, 2, "2 attributes; not used: node labels"),
        ("labels", True, 3, "3 labels (5 to 7); not used: node attributes"),
        ("labels", False, 3, "degrees up to 2; not used: node attributes"),
    ],
)
def test_attributes_are_used_and_what_is_used_is_said(
    tiny, caplog, features, labels, width, columns
):
    raw = tiny / "TINY" / "raw"
    write_tiny(raw, node_attributes=ATTRIBUTES)
    if not labels:
        (raw / "TINY_node_labels.txt").unlink()
    caplog.set_level(logging.INFO, "flwr.fedgraph")
    say_once.cache_clear()
    graphs = [load_tiny(tiny, features) for _ in range(2)][1]
    assert caplog.messages.count(f"TINY: features: {columns}") == 1
    assert graphs.num_features == width


def test_auto_takes_labels_and_attributes_of_a_set_of_no_paper(tiny):
    write_tiny(tiny / "TINY" / "raw", node_attributes=ATTRIBUTES, edge_labels="1\n")
    given = {"dataset": "tu:TINY", "data-dir": str(tiny), "num-clients": 1}
    folders = {"cache-dir": str(tiny.parent / "cache"), "partition": "chunks"}
    settings = resolve({**defaults(), "method": "fedavg", **given, **folders}).settings
    graphs = datasets.load_partition(settings, 0).graphs
    assert graphs.num_features == 5
    assert graphs.columns == "2 attributes, 3 labels (5 to 7)"
    assert graphs.unused == "edge labels"
    assert graphs.classes == ["-1", "1"]


def test_environment_names_the_folders(tiny, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tiny))
    monkeypatch.setenv("FEDGRAPH_CACHE", str(tiny.parent / "elsewhere"))
    load_tu("TINY")
    assert len(entries(tiny.parent / "elsewhere")) == 1
    assert cache_root("/given") == Path("/given")
    monkeypatch.delenv("FEDGRAPH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/fedgraph-flwr")


# --- what is wrong with the files ---


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("A", "1, 2\nx, 1\n", r"TINY_A.txt in .*raw: must .* 'x' .* at row 1.*; corr"),
        ("A", "1, 2\n1e99, 1\n", r"TINY_A.txt in .* whole numbers"),
        ("A", "1\n2\n", r"TINY_A.txt .*: must have 2 column\(s\), got 1"),
        ("A", "1, 2\n2, 1", r"TINY_A.txt .* does not end with a newline"),
        ("A", "1, 2\n2, 9\n", r"line 2 has edge \[2, 9\], .* nodes 1\.\.8"),
        ("A", "1, 2\n3, 4\n", r"line 2 has edge \[3, 4\], which joins two graphs"),
        ("A", "", r"TINY_A.txt in .*: is empty; .* If its graphs have none, add a"),
        ("A", "1, 2\n\n2, 1\n", r"TINY_A.txt .*raw: has blank lines"),
        ("A", "1, 1\n", r"no edges but self-loops; a set needs one .*, add a graph"),
        ("graph_labels", "1\n2\n", r"2 labels for the 3 graphs"),
        ("graph_indicator", "1\n1\n1\n2\n2\n3\n3\n", r"TINY_node_labels.txt .*8 lines"),
        ("graph_indicator", "1\n1\n1\n3\n3\n3\n3\n3\n", r"line 4 says 3"),
        ("graph_indicator", "1\n1\n1\n2\n2\n1\n3\n3\n", r"line 6 says 1"),
        ("node_labels", "5\n7\n", r"2 lines for the 8 nodes"),
        ("A", None, r"raw lacks TINY_A.txt"),
        ("graph_labels", None, r"lacks TINY_graph_labels.txt; fetch"),
        ("node_labels", "5\nnan\n" * 4, r"TINY_node_labels.txt .*\[nan\] in line 2"),
        ("node_labels", "0\n9000000000\n" * 4, r"labels span 9000000001 numbers"),
        ("node_attributes", "1\ninf\n" * 4, r"line 2 holds NaN, infinity"),
        ("node_attributes", "1\n2\n1e39\n4\n" * 2, r"line 3 .*beyond float32"),
    ],
)
def test_bad_raw_files_are_named(tiny, kind, content, message):
    raw = tiny / "TINY" / "raw"
    (raw / f"TINY_{kind}.txt").unlink(missing_ok=True)
    write_tiny(raw, **{kind: content})
    with pytest.raises(DataError, match=message):
        load_tiny(tiny, "labels+attributes")
    assert entries(tiny.parent / "cache") == []


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("graph_labels", "-1.0\n1.0\n-1e0\n"),
        ("graph_indicator", "\ufeff" + TINY["graph_indicator"]),
        ("A", TINY["A"].replace("\n", "\r\n")),
    ],
)
def test_what_other_programs_write_is_read_alike(tiny, kind, content):
    plain = load_tiny(tiny)
    write_tiny(tiny / "TINY" / "raw", **{kind: content})
    other = load_tiny(tiny)
    assert other.raw_sha256 != plain.raw_sha256
    for name in ("x", "y", "edge_index", "node_ptr", "classes"):
        assert np.array_equal(getattr(other, name), getattr(plain, name)), name


def test_what_is_not_there_names_the_places(tiny, monkeypatch):
    monkeypatch.setattr("datasets.cache._download", None)  # must not be tried
    with pytest.raises(
        DataError, match=r"'GONE' is not in .*tudataset/GONE/raw.*set data"
    ):
        load_tu("GONE", data_dir=str(tiny), cache_dir=str(tiny.parent / "c"))
    (tiny / "tudataset" / "EMPTY" / "raw").mkdir(parents=True)
    with pytest.raises(DataError, match=r"EMPTY/raw lacks EMPTY_A.txt"):
        load_tu("EMPTY", data_dir=str(tiny), cache_dir=str(tiny.parent / "c"))
    with pytest.raises(DataError, match=r"no node attributes.*set features to"):
        load_tiny(tiny, "attributes")
    (tiny.parent / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be used: .*set cache-dir"):
        load_tu("TINY", data_dir=str(tiny), cache_dir=str(tiny.parent / "file" / "c"))
    with pytest.raises(DataError, match=r"data-dir is '/nowhere', which is not a"):
        load_tu("GONE", data_dir="/nowhere", cache_dir=str(tiny.parent / "c"))


# --- cache ---


def test_cache_is_used_and_read_only(tiny, caplog):
    caplog.set_level(logging.INFO, "flwr.fedgraph")
    load_tiny(tiny)
    graphs = load_tiny(tiny)
    assert caplog.text.count("converting") == 1
    assert isinstance(graphs.x, np.memmap)
    assert not graphs.x.flags.writeable


def test_a_file_of_the_same_size_and_time_is_another_one(tiny):
    """Tools that unpack or copy set the time back."""
    for labels, classes in (("1\n2\n1\n", [0, 1, 0]), ("1\n1\n2\n", [0, 0, 1])):
        write_tiny(tiny / "TINY" / "raw", graph_labels=labels)
        for path in (tiny / "TINY" / "raw").glob("*"):
            os.utime(path, ns=(1, 1))
        assert load_tiny(tiny).y.tolist() == classes


def test_a_new_graph_alone_can_be_predicted(tiny):
    write_tiny(
        tiny / "TINY" / "raw",
        A="1, 2\n",
        graph_indicator="1\n1\n",
        graph_labels="9\n",
        node_labels="5\n7\n",
    )
    config = toys.run_settings(dataset="tu:TINY", cache_dir=str(tiny.parent / "cache"))
    new = datasets.load_new(config, tiny, [])
    assert (new.names, new.column, new.graphs.x.tolist()) == (["1"], "graph", [0, 2])
    assert new.graphs.x.flags.writeable  # a copy: torch warns about read-only arrays


def test_a_client_without_a_folder_beside_others_is_refused(tiny):
    """It would read graphs in data-dir itself, which stand for another client's."""
    write_tiny(tiny / "client-0" / "TINY" / "raw")
    folders = {"data_dir": str(tiny), "cache_dir": str(tiny.parent / "cache")}
    own = {"dataset": "tu:TINY", "partition": "files", "num_clients": 2}
    config = toys.run_settings(**own, **folders)
    assert len(datasets.load_partition(config, 0).graphs) == 3
    with pytest.raises(DataError, match=r"folders of 1 client.*but no client-1"):
        datasets.load_partition(config, 1)


# --- partitions of it ---


def test_more_clients_than_graphs(tiny):
    folders = {"data_dir": str(tiny), "cache_dir": str(tiny.parent / "cache")}
    config = toys.run_settings(dataset="tu:TINY", num_clients=4, **folders)
    with pytest.raises(ConfigError, match=r"more clients than graphs.* 4, .*3 graphs"):
        datasets.load_partition(config, 0)
    config = toys.run_settings(dataset="tu:TINY", num_clients=2, **folders)
    with pytest.raises(DataError, match=r"client 0 gets \d of 3 .*lower num-clients"):
        datasets.load_partition(config, 0)


# --- real data ---


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_readme(name, data_dir, real_cache):
    num_graphs, mean_nodes, mean_edges, per_class, width = COUNTS[name]
    graphs = load_tu(name, cache_dir=real_cache)
    assert len(graphs) == num_graphs
    assert round(graphs.num_nodes / num_graphs, 2) == mean_nodes
    assert round(graphs.edge_index.shape[1] / 2 / num_graphs, 2) == mean_edges
    assert np.bincount(graphs.y).tolist() == per_class
    assert graphs.num_features == width
    assert graphs.num_classes == len(per_class)
    assert graphs.is_undirected
