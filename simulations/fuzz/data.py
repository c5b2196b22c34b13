"""Damaged data files of every format: refused, or read as they stand."""

from __future__ import annotations

import io
import pickle
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import datasets
from fedgraph_flwr.peers.topology import read_edges
from fedgraph_flwr.resolve import defaults, resolve

from ..drill.targets import NUM_CLIENTS, write_molecules
from ..presets.read import FOLDER, list_presets, load_preset
from .cases import Place
from .mutations import of_bytes, of_file, of_lines

_NUM_GRAPHS, _NUM_NODES = 30, 540  # Planetoid's classes validate on 500


def execute(rng: random.Random, place: Place, note: Callable[[str], None]) -> None:
    """Draw a format, damage a file of it, read it.

    Raises
    ------
    FedGraphError
        The file is refused.
    """
    name = rng.choice(sorted(_FORMATS))
    _FORMATS[name](rng, place, lambda what: note(f"{name}: {what}"))


def _load(place: Place, dataset: str, **more: Any) -> None:
    config = {
        "method": "fedavg",
        "dataset": dataset,
        "num-clients": 2,
        "data-dir": str(place.work / "data"),
        "cache-dir": str(place.work / "cache"),
        **more,
    }
    settings = resolve({**defaults(), **config}).settings
    for client in range(settings.num_clients):
        datasets.load_partition(settings, client)


def _damage(rng: random.Random, folder: Path, note: Callable[[str], None]) -> None:
    """Change or remove one file of a folder."""
    path = rng.choice(sorted(p for p in folder.rglob("*") if p.is_file()))
    how = rng.choice(["change"] * 8 + ["delete", "folder", "link"])
    if how == "change":
        how, data = of_file(rng, path.name, path.read_bytes())
        path.write_bytes(data)
    else:
        path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "link":
        path.symlink_to(path.name)  # to itself
    note(f"{path.name}: {how}")


def tu_files() -> dict[str, str]:
    """Small rings of two kinds, as a TU data set's raw files."""
    edges, graph_of, kinds, classes = [], [], [], []
    first = 1
    for graph in range(_NUM_GRAPHS):
        size = 3 + graph % 3
        ring = [(first + i, first + (i + 1) % size) for i in range(size)]
        edges += [pair for u, v in ring for pair in ((u, v), (v, u))]
        graph_of += [graph + 1] * size
        kinds += [i % 2 for i in range(size)]
        classes.append(graph % 2)
        first += size
    return {
        "A": "".join(f"{u}, {v}\n" for u, v in edges),
        "graph_indicator": "".join(f"{g}\n" for g in graph_of),
        "graph_labels": "".join(f"{c}\n" for c in classes),
        "node_labels": "".join(f"{k}\n" for k in kinds),
    }


_PLAIN = {"partition": "chunks", "features": "labels"}
_CLEAN = {"method": "fedavg", "features": "atoms-no-degree"}


def _tu(rng: random.Random, place: Place, note: Callable[[str], None]) -> None:
    raw = place.work / "data" / "RINGS" / "raw"
    raw.mkdir(parents=True)
    for name, text in tu_files().items():
        (raw / f"RINGS_{name}.txt").write_text(text)
    _damage(rng, raw, note)
    _load(place, "tu:RINGS", **_PLAIN)


def _packed(rng: random.Random, place: Place, note: Callable[[str], None]) -> None:
    path = place.work / "data" / "tudataset_packed" / "RINGS.tar.xz"
    path.parent.mkdir(parents=True)
    how = rng.choice(["bytes", "file", "link", "outside", "device", "large"])
    files = tu_files()
    victim = rng.choice(sorted(files))
    if how == "file":
        how, files[victim] = of_lines(rng, files[victim])
    with tarfile.open(path, "w:xz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"RINGS/raw/RINGS_{name}.txt")
            data = text.encode(errors="surrogatepass")
            if name == victim:
                data = _special(rng, how, member, data, place)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    if how == "bytes":
        how, damaged = of_bytes(rng, path.read_bytes())
        path.write_bytes(damaged)
    note(f"{victim}: {how}")
    _load(place, "tu:RINGS", **_PLAIN)


def _special(
    rng: random.Random, how: str, member: tarfile.TarInfo, data: bytes, place: Place
) -> bytes:
    """Turn an archive's member into one that no data set has."""
    if how == "link":
        member.type = rng.choice([tarfile.SYMTYPE, tarfile.LNKTYPE])
        own = member.name
        member.linkname = rng.choice([str(place.canary / "patients.txt"), own, "../.."])
        return b""
    if how == "outside":
        member.name = rng.choice(
            [str(place.canary / "new.txt"), "../" * 6 + "canary/new.txt"]
        )
    elif how == "device":
        member.type = rng.choice([tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
        return b""
    elif how == "large":
        return data + b"1\n" * (1 << 26)
    return data


def _csv(rng: random.Random, place: Place, note: Callable[[str], None]) -> None:
    _damage(rng, write_molecules(place.work / "data"), note)
    columns, rows = rng.choice(["*", "", "a,b,c,d"]), rng.choice(["skip", "refuse"])
    more = {
        "num-clients": NUM_CLIENTS,
        "csv-label-columns": columns,
        "csv-bad-rows": rows,
    }
    _load(place, "smiles-csv", **_CLEAN, **more)


def _moleculenet(rng: random.Random, place: Place, note: Callable[[str], None]) -> None:
    raw = place.work / "data" / "moleculenet" / "bbbp" / "raw"
    raw.mkdir(parents=True)
    rows = [f"{i},m{i},{i % 2},{'C' * (1 + i % 7)}O" for i in range(40)]
    (raw / "BBBP.csv").write_text("\n".join(["num,name,p_np,smiles", *rows, ""]))
    _damage(rng, raw, note)
    _load(place, "BBBP", **_CLEAN)


class _Runs:
    """A pickle that writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self._path, "code from a data file"))


def _planetoid(rng: random.Random, place: Place, note: Callable[[str], None]) -> None:
    raw = place.work / "data" / "planetoid" / "Cora" / "raw"
    raw.mkdir(parents=True)
    parts = planetoid_parts()
    how = rng.choice(["file", "code", "value"])
    victim = rng.choice(sorted(set(parts) - {"test.index"}))
    if how == "code":
        parts[victim] = pickle.dumps(_Runs(place.canary / "ran.txt"))
    elif how == "value":
        odd: Any = rng.choice(
            [None, [], {0: [10**12]}, {"a": 1}, np.zeros((2, 2)), 10**9]
        )
        parts[victim] = pickle.dumps(odd)
    for name, data in parts.items():
        (raw / f"ind.cora.{name}").write_bytes(data)
    if how == "file":
        _damage(rng, raw, note)
    else:
        note(f"{victim}: {how}")
    _load(place, "Cora", partition="louvain")


def planetoid_parts() -> dict[str, bytes]:
    """Files of a small citation graph in Planetoid's format."""
    rng = np.random.default_rng(0)
    x = sparse.csr_matrix((rng.random((_NUM_NODES, 8)) < 0.4).astype(np.float32))
    y = np.eye(4, dtype=np.int32)[np.arange(_NUM_NODES) % 4]
    graph = {
        n: sorted({(n + 1) % _NUM_NODES, (n - 1) % _NUM_NODES, (n * 7) % _NUM_NODES})
        for n in range(_NUM_NODES)
    }
    known, train = _NUM_NODES - 20, 20
    parts = {
        "x": x[:train],
        "y": y[:train],
        "allx": x[:known],
        "ally": y[:known],
        "tx": x[known:],
        "ty": y[known:],
        "graph": graph,
    }
    found = {name: pickle.dumps(part) for name, part in parts.items()}
    index = "".join(f"{n}\n" for n in range(known, _NUM_NODES))
    return {**found, "test.index": index.encode()}


_EDGES = "edges = [[0, 1, 0.3],\n[1, 2, 0.3],\n[2, 3, 0.3],\n[3, 0, 0.3]]\n"
_PRESET = """description = "a trial"
paper = "none"
[config]
method = "gcfl+"
num-server-rounds = 3
[config.gcfl]
min-round = 2
"""
_DEEP = ("x = " + "[" * 50_000, "[" + "a." * 50_000 + "b]", "x = 1e999", "x = nan")


def _toml(rng: random.Random, path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if rng.random() < 0.15:
        path.write_text(rng.choice(_DEEP))
        return "unusual TOML"
    path.write_text(text)
    what, data = of_file(rng, path.name, path.read_bytes())
    path.write_bytes(data)
    return what


def _edges(rng: random.Random, place: Place, note: Callable[[str], None]) -> None:
    path = place.work / "edges.toml"
    note(_toml(rng, path, _EDGES))
    read_edges(str(path), 4)


def _presets(rng: random.Random, place: Place, note: Callable[[str], None]) -> None:
    folder = place.work / "presets"
    if rng.random() < 0.5:
        source = rng.choice(sorted(FOLDER.glob("*.toml")))
        note(f"{source.name}: {_toml(rng, folder / source.name, source.read_text())}")
    else:
        note(_toml(rng, folder / "trial.toml", _PRESET))
    for name in list_presets(folder):
        load_preset(name, folder)


_FORMATS: dict[str, Callable[[random.Random, Place, Callable[[str], None]], None]] = {
    "tu": _tu,
    "packed": _packed,
    "smiles-csv": _csv,
    "moleculenet": _moleculenet,
    "planetoid": _planetoid,
    "edges": _edges,
    "preset": _presets,
}
