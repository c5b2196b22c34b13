"""Public data that came from several places, which are the clients.

The data folder is only read; nothing of it is downloaded, but TU sets. All clients of a
set have the same columns of features.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphSet, IntArray, distinct_edges, pointer
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.files import sha256_of

from ..cache import cache_root, graphs_of_files, kept_files
from .tu import find_raw, load_tu

TWITCH = ("DE", "EN", "ES", "FR", "PT", "RU", "TW")
AIRPORTS = ("USA", "Brazil", "Europe")
ABIDE = (
    "CALTECH", "CMU", "LEUVEN_1", "LEUVEN_2", "MAX_MUN", "NYU", "OHSU", "OLIN", "SBL",
    "STANFORD", "UCLA_1", "UCLA_2", "UM_1", "UM_2", "USM", "YALE",
)  # fmt: skip
PTC = ("PTC_MR", "PTC_FR", "PTC_MM", "PTC_FM")
HOSPITALS = ("KKI", "OHSU", "Peking_1")
# names in the READMEs of the four sets, each of which numbers them in its own way
ATOMS = (
    "In", "P", "O", "N", "Na", "C", "Cl", "S", "Br", "F", "As", "K", "B", "Cu", "Zn",
    "I", "Ba", "Sn", "Pb", "Te", "Ca",
)  # fmt: skip
BONDS = ("single", "double", "triple", "aromatic")
REGIONS = 111
DENSITY = 0.2  # share of pairs of regions that are edges
AGE = (17.0, 8.0)  # years: subtracted, divided by
_MOST_BIN = 17
_CURE = "fetch the data set again"

Client = Callable[[str, str, str], GraphSet]  # member, data_dir, cache_dir


def degree_bins(degrees: IntArray) -> NDArray[np.uint8]:
    """Half octaves of degrees: floor(2 log2(degree + 1)), up to 17 (degree 361).

    So sets whose degrees differ have the same 18 columns.
    """
    bins = np.floor(2 * np.log2(degrees + 1.0) + 1e-9)
    found: NDArray[np.uint8] = np.minimum(bins, _MOST_BIN).astype(np.uint8)
    return found


def _cached(
    name: str,
    paths: list[Path],
    build: Callable[[list[Path]], GraphSet],
    cache_dir: str,
) -> GraphSet:
    def convert(digest: str) -> GraphSet:
        mark = f"{name} {digest}"  # several clients may read one file
        return replace(build(paths), raw_sha256=sha256(mark.encode()).hexdigest())

    return graphs_of_files(name, paths, convert, cache_dir)


def _one_graph(name: str, x: NDArray[Any], edges: IntArray, y: IntArray) -> GraphSet:
    """Graph of all nodes; ``edges`` (2, n) in any direction, without loops in it."""
    ends = np.concatenate([edges, edges[::-1]], axis=1)
    both = distinct_edges(ends[0], ends[1], len(x))
    return GraphSet(
        name=name,
        x=x,
        edge_index=both.astype(np.int32),
        node_ptr=pointer([len(x)]),
        edge_ptr=pointer([both.shape[1]]),
        y=y.astype(np.int64),
        num_features=x.shape[1] if x.ndim == 2 else _MOST_BIN + 1,
        num_classes=int(y.max()) + 1,
        is_undirected=True,
    )


def _twitch(member: str, data_dir: str, cache_dir: str) -> GraphSet:
    """Friendships between streamers of a country; class: explicit language or not."""

    def build(paths: list[Path]) -> GraphSet:
        with np.load(paths[0], allow_pickle=False) as file:
            parts = {key: file[key] for key in file.files}
        x = np.zeros(parts["feat_shape"], np.float32)
        counts = np.diff(parts["feat_indptr"])
        x[np.repeat(np.arange(len(x)), counts), parts["feat_indices"]] = 1
        edges = parts["edges"].T.astype(np.int64)
        return _one_graph("twitch", x, edges, parts["mature"])

    what, files = f"Twitch {member}", [f"{member}.npz"]
    paths = kept_files(what, "twitch", ".", files, data_dir, cache_dir)
    return _cached(f"twitch-{member}", paths, build, cache_dir)


def _airports(member: str, data_dir: str, cache_dir: str) -> GraphSet:
    """Flights between airports of a region; class: quarter of the activity."""
    region = member.lower()

    def build(paths: list[Path]) -> GraphSet:
        ids, y = np.loadtxt(paths[0], np.int64, skiprows=1, ndmin=2).T
        order = np.argsort(ids)
        ends = np.loadtxt(paths[1], np.int64, ndmin=2)
        edges = np.searchsorted(ids[order], ends).T
        if not np.array_equal(ids[order][edges.T], ends):
            raise ValueError("an edge joins an airport without label")
        made = _one_graph("airports", np.zeros(len(ids), np.uint8), edges, y[order])
        return replace(made, x=degree_bins(made.degrees()))

    files = [f"labels-{region}-airports.txt", f"{region}-airports.edgelist"]
    what, below = f"airports {member}", f"{region}/raw"
    paths = kept_files(what, "airports", below, files, data_dir, cache_dir)
    return _cached(f"airports-{member}", paths, build, cache_dir)


def _abide(member: str, data_dir: str, cache_dir: str) -> GraphSet:
    """Connectomes of a hospital; class: autism or not.

    Persons of ``in_871``. Nodes are regions, with their row of the matrix of
    correlations as features, and 0 for themselves. Edges are the 20 % of pairs of
    largest correlation, which is above 0 and their weight. ``graph_x`` has
    (age - 17) / 8, and 1 for women.
    """

    def build(paths: list[Path]) -> GraphSet:
        with paths[0].open(newline="", encoding="utf-8") as opened:
            rows = list(csv.DictReader(opened))
        own = [r for r in rows if r["site"] == member and r["in_871"] == "1"]
        with np.load(paths[1], allow_pickle=False) as file:
            weights = file["fc"][[int(r["row"]) for r in own]].astype(np.float32)
        ends = np.triu_indices(REGIONS, 1)
        x = np.zeros((len(own), REGIONS, REGIONS), np.float32)
        x[:, *ends] = weights
        x += x.transpose(0, 2, 1)
        count = round(DENSITY * len(ends[0]))
        kept = np.argsort(-weights, axis=1, kind="stable")[:, :count]
        is_edge = np.zeros(x.shape, np.bool_)
        for row, pairs in enumerate(kept):
            is_edge[row, ends[0][pairs], ends[1][pairs]] = True
        is_edge |= is_edge.transpose(0, 2, 1)
        person, source, target = np.nonzero(is_edge)
        of_person = [(float(r["age"]), r["sex"] == "F") for r in own]
        return GraphSet(
            name="abide",
            x=x.reshape(-1, REGIONS),
            edge_index=np.stack([source, target]).astype(np.int32),
            node_ptr=pointer([REGIONS] * len(own)),
            edge_ptr=pointer(np.bincount(person, minlength=len(own))),
            y=np.array([int(r["label"]) for r in own], np.int64),
            num_features=REGIONS,
            num_classes=2,
            is_undirected=True,
            edge_weight=x[is_edge],
            graph_x=((np.array(of_person) - [AGE[0], 0]) / [AGE[1], 1]).astype("f4"),
        )

    files = ["subjects.csv", "fc_ho.npz"]
    paths = kept_files("ABIDE", "abide", ".", files, data_dir, cache_dir)
    return _cached(f"abide-{member}", paths, build, cache_dir)


def _ptc(member: str, data_dir: str, cache_dir: str) -> GraphSet:
    """Compounds of one assay, with atoms and bonds as columns of ATOMS and BONDS."""
    found = load_tu(member, with_edges=True, data_dir=data_dir, cache_dir=cache_dir)
    readme = find_raw(member, data_dir, cache_root(cache_dir)) / "README.txt"
    both = f"{found.raw_sha256} {sha256_of(readme) if readme.is_file() else ''}"
    return replace(
        found,
        name="ptc",
        x=_renumbered(readme, "Node labels:", ATOMS, found.x),
        edge_attr=_renumbered(readme, "Edge labels:", BONDS, found.edge_attr),
        num_features=len(ATOMS),
        num_edge_features=len(BONDS),
        raw_sha256=sha256(both.encode()).hexdigest(),
        columns="",
    )


def _renumbered(
    readme: Path, heading: str, names: tuple[str, ...], own: Any
) -> NDArray[np.uint8]:
    """Labels of a set as places in ``names``, by the list below a heading."""
    lines = readme.read_text("utf-8", "replace") if readme.is_file() else ""
    listed = [line.split() for line in lines.partition(heading)[2].strip().splitlines()]
    stop = next((k for k, words in enumerate(listed) if not words), len(listed))
    try:
        place = [names.index(word) for _, word in listed[:stop]]
        if [int(k) for k, _ in listed[:stop]] == list(range(len(place))):
            found: NDArray[np.uint8] = np.array(place, np.uint8)[own]
            return found
    except (ValueError, IndexError):
        pass
    raise DataError(
        f"{readme} has no list {heading!r} of 0 and more, with names of"
        f" {', '.join(names)}, for all labels of the set; {_CURE}"
    )


def _hospitals(member: str, data_dir: str, cache_dir: str) -> GraphSet:
    """Connectomes of a hospital; node labels, which no two sets share, are not used."""
    found = load_tu(member, "degree", data_dir=data_dir, cache_dir=cache_dir)
    x = degree_bins(found.degrees())
    return replace(found, name="adhd", x=x, num_features=_MOST_BIN + 1, columns="")


# Function that loads a client, by data set, and the clients.
NATURAL: Mapping[str, tuple[Client, tuple[str, ...]]] = MappingProxyType(
    {
        "twitch": (_twitch, TWITCH),
        "airports": (_airports, AIRPORTS),
        "abide": (_abide, ABIDE),
        "abide-4": (_abide, ("NYU", "UM_1", "USM", "UCLA_1")),
        "ptc": (_ptc, PTC),
        "adhd": (_hospitals, HOSPITALS),
    }
)


def natural_graphs(settings: RunSettings, client_id: int) -> GraphSet:
    """Load the graphs, or the one graph whose nodes have classes, of a client.

    ``dataset`` is a key of ``NATURAL``, in whose order clients are counted. Arrays are
    memory-mapped, with all nodes and graphs of the files, in their order.

    Raises
    ------
    DataError
        Files are missing or cannot be read.
    """
    load, members = NATURAL[settings.dataset]
    return load(members[client_id], settings.data_dir, settings.cache_dir)
