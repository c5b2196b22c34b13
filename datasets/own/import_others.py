"""Makes own tables of graphs and molecules that other programs wrote.

NetworkX reads GraphML and GEXF, RDKit reads SDF, and torch reads files of PyG, of which
nothing but tensors, plain values and PyG's own ``Data`` is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple
from xml.etree.ElementTree import ParseError, parse

from typing_extensions import override

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.words import shortened

from ..tabular.encode import LeftOut, first_few
from ..tabular.schema_file import KEYS
from ..tabular.table import Rows, Table
from .import_tables import (
    by_site,
    check_unique,
    column_of,
    import_tables,
    new_folder,
    renamed,
    write,
)

_Columns = dict[str, list[str]]
_EDGE_IDS = "id"  # an attribute that NetworkX gives edges
_OF_PEOPLE = "label"  # which every node of GEXF has; its own id if there is no other
_MASKS = {f"{role}_mask": role for role in ("train", "val", "test")}


@dataclass(frozen=True)
class ReadTable(Table):
    """Columns of a file that is no table."""

    found: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @override
    @cached_property
    def rows(self) -> Rows:
        return Rows(range(1, len(next(iter(self.found.values()), ())) + 1), self.found)


class Graph(NamedTuple):
    """A graph that was read: its own values, and columns of nodes and edges."""

    name: str
    about: dict[str, str]
    nodes: _Columns
    edges: _Columns


def import_others(
    files: Sequence[Path],
    out: Path,
    *,
    names: Mapping[str, str],
    edge_names: Mapping[str, str],
    site: str = "",
    drop: Sequence[str] = (),
) -> list[str]:
    """Write tables of one graph, of whole graphs if there are several, or molecules.

    Returns what was kept and left out, in words.

    Parameters
    ----------
    files : sequence of Path
        All of one kind; or a folder of such.
    out : Path
        A new folder.
    names, edge_names : mapping of str
        Attribute of what is predicted (graphs if there are several, else nodes), and of
        edges, by the name of the column that it gets: label, weight, ....
    site : str
        Attribute of graphs, nodes or molecules; "" makes one folder.
    drop : sequence of str
        Attributes to leave out.

    Raises
    ------
    DataError
        A file cannot be read, is of another kind than the first, or says nothing that
        tables can hold; or a package is missing that reads it.
    StorageError
        ``out`` cannot be written.
    """
    given = [p for f in files for p in (sorted(f.iterdir()) if f.is_dir() else [f])]
    given = [p for p in given if p.name[0] != "."]
    kinds = sorted({p.suffix.lower() for p in given})
    if len(kinds) != 1 or kinds[0] not in READERS:
        raise DataError(
            f"files must be of one kind, {', '.join(READERS)}, got"
            f" {', '.join(kinds) or 'none'}; import each kind into a folder of its own"
        )
    notes, read, found = list[str](), READERS[kinds[0]], list[Any]()
    for path in given:
        try:
            found += read(path, notes)
        except ImportError as error:
            raise DataError(
                f"{path} needs the package {error.name}, which is not installed: pip"
                f" install {error.name}"
            ) from error
        except DataError:
            raise
        except (ParseError, EOFError, *_ODD) as error:
            why = shortened(" ".join(f"{type(error).__name__}: {error}".split()))
            raise DataError(
                f"{path} cannot be read as {kinds[0]}: {why}; write it again with"
                f" {_WRITERS[kinds[0]]}"
            ) from error
    notes = list(dict.fromkeys(notes))
    if kinds[0] == ".sdf":
        return notes + _write_molecules(given[0], found, out, names, site, drop)
    if not any(len(g.nodes["node"]) for g in found):
        raise DataError(f"{given[0]} has no graph with a node; {_WRITERS[kinds[0]]}")
    if kinds[0] == ".gexf" and _OF_PEOPLE not in names.values():
        for graph in found:
            if graph.nodes.pop(_OF_PEOPLE, None):
                notes.append(
                    f"{graph.name}: {_OF_PEOPLE} of nodes is left out, as programs show"
                    " it to people; --label label, or --id label, takes it"
                )
    pyg = {"label": "y", "weight": "edge_weight"} if kinds[0] == ".pt" else {}
    one, path = len(found) == 1, given[0]
    items = _joined([({}, g.nodes) if one else (_of(g), g.nodes) for g in found])
    joins = _joined([({}, g.edges) if one else (_of(g), g.edges) for g in found])
    about = _joined([({}, {k: [v] for k, v in g.about.items()}) for g in found])
    whose = items if one else about
    names, edge_names = (
        {n: c for n, c in pyg.items() if c in cells and n not in given} | dict(given)
        for cells, given in ((whose, names), (joins, edge_names))
    )
    edges = ReadTable(path, (), joins)
    of_edges = {**{end: end for end in KEYS["edges"]}, **edge_names}
    if one:
        if found[0].about:
            notes.append(f"left out, as of the graph: {', '.join(found[0].about)}")
        return notes + import_tables(
            edges,
            ReadTable(path, (), items),
            out,
            edge_names=of_edges,
            node_names={"node": "node", **names},
            site=site,
            drop=drop,
        )
    graphs = ReadTable(path, (), {"graph": [g.name for g in found], **about})
    columns = renamed(graphs, {"graph": "graph", **names}, [*drop, site])
    check_unique(graphs, columns["graph"])
    homes = column_of(graphs, site) if site else ["all"] * len(found)
    folders = by_site(homes, [True] * len(homes), notes)
    parts = {
        "nodes.csv": renamed(ReadTable(path, (), items), {}, drop),
        "edges.csv": renamed(edges, {"graph": "graph", **of_edges}, drop),
    }
    with new_folder(out) as made:
        for name, rows in folders.items():
            place, inside = made / (name if site else ""), {found[r].name for r in rows}
            write(place / "graphs.csv", columns, rows)
            for file, cells in parts.items():
                at = [k for k, g in enumerate(cells["graph"]) if g in inside]
                write(place / file, cells, at)
            notes.append(f"{out / (name if site else '')}: {len(rows)} graphs")
    return notes


def _of(graph: Graph) -> dict[str, str]:
    return {"graph": graph.name}


def _joined(parts: Sequence[tuple[Mapping[str, str], _Columns]]) -> _Columns:
    """Join columns of several graphs, each after values that all of its rows have."""
    names = dict.fromkeys(name for same, own in parts for name in (*same, *own))
    found: _Columns = {name: [] for name in names}
    for same, own in parts:
        size = len(next(iter(own.values()), ()))
        for name, cells in found.items():
            cells += own.get(name, [same.get(name, "")] * size)
    return found


def _columns(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str], place: str, notes: list[str]
) -> _Columns:
    """Columns of attributes of nodes or edges, behind those that name them."""
    names = dict.fromkeys(str(name) for row in rows for name in row)
    if taken := [name for name in (*KEYS["nodes"], *keys) if name in names]:
        raise DataError(
            f"{place}: an attribute is called {taken[0]!r}, as a column of own tables"
            " that names graphs, nodes or ends; give it another name"
        )
    found: _Columns = {}
    for name in names:
        cells = [row.get(name, "") for row in rows]
        if odd := [c for c in cells if not isinstance(c, str | int | float)]:
            kind = type(odd[0]).__name__
            notes.append(f"{place}: {name} is left out, as it holds {kind}s")
            continue
        found[name] = [str(cell).strip() for cell in cells]
    return found


def _networkx(path: Path, notes: list[str]) -> list[Graph]:
    """Read the graphs of a file of GraphML or GEXF."""
    import networkx as nx
    from networkx.readwrite.graphml import GraphMLReader

    is_gexf = path.suffix.lower() == ".gexf"
    try:
        graphs = [nx.read_gexf(path)] if is_gexf else [*GraphMLReader()(path=path)]
    except nx.NetworkXException as error:
        raise ValueError(str(error)) from error
    there = sum(e.tag.endswith("}node") for e in parse(path).iter())
    if there != (size := sum(map(len, graphs))):
        raise DataError(
            f"{path} has {there} nodes, but names {size} different ones; give each node"
            " its own id, and list every end of an edge as a node"
        )
    found = []
    for number, graph in enumerate(graphs):
        about = dict(graph.graph)
        of_nodes = about.pop("node_default", {})
        of_edges = about.pop("edge_default", {})
        about = {
            k: str(v)
            for k, v in about.items()
            if isinstance(v, str | int | float) and not (is_gexf and k == "mode")
        }
        nodes, edges = list(graph.nodes(data=True)), list(graph.edges(data=True))
        names = [str(name).strip() for name, _ in nodes]
        rows = [{**of_nodes, **row} for _, row in nodes]
        joins = [{**of_edges, **row} for *_, row in edges]
        if is_gexf and [row.get(_OF_PEOPLE) for row in rows] == names:
            rows = [{k: row[k] for k in row if k != _OF_PEOPLE} for row in rows]
        joins = [{k: row[k] for k in row if k != _EDGE_IDS} for row in joins]
        way = "both directions alike"
        if graph.is_directed():
            way = "one direction: directed = true in [edges] of the schema"
        notes.append(f"{path.name}: edges are of {way}")
        ends = {
            "source": [str(edge[0]).strip() for edge in edges],
            "target": [str(edge[1]).strip() for edge in edges],
        }
        found.append(
            Graph(
                path.stem if len(graphs) == 1 else f"{path.stem}-{number}",
                about,
                {"node": names, **_columns(rows, (), f"{path}, nodes", notes)},
                {**ends, **_columns(joins, [*ends], f"{path}, edges", notes)},
            )
        )
    return found


def _pyg(path: Path, notes: list[str]) -> list[Graph]:
    """Read graphs of PyG: a ``Data``, a list of them, or what a data set saves."""
    import torch
    from torch_geometric.data import Data, separate
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    safe = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    try:
        with torch.serialization.safe_globals(safe):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:  # whose message tells how to run any code
        strange = re.search(r"GLOBAL (\S+)", str(error))
        what = f"{strange[1]}, which could run code" if strange else "other things"
        raise ValueError(f"it holds {what}, and is not loaded") from error
    if isinstance(found, tuple) and isinstance(found[0], dict | Data):
        whole = Data.from_dict(found[0]) if isinstance(found[0], dict) else found[0]
        slices = found[1]
        found = [whole]
        if slices is not None:
            count = len(next(iter(slices.values()))) - 1
            cut = [(whole, k, slices) for k in range(count)]
            found = [separate.separate(Data, *c, decrement=False) for c in cut]
    found = Data.from_dict(found) if isinstance(found, dict) else found
    graphs = list(found) if isinstance(found, list | tuple) else [found]
    if odd := [g for g in graphs if not isinstance(g, Data)]:
        raise DataError(
            f"{path} must hold graphs of class Data, got {type(odd[0]).__name__}; save"
            " Data, or a list of them, by torch.save"
        )
    one = len(graphs) == 1
    return [
        _of_pyg(
            graph.to_dict(), str(k), f"{path}{'' if one else f', graph {k}'}", notes
        )
        for k, graph in enumerate(graphs)
    ]


def _of_pyg(values: dict[str, Any], name: str, place: str, notes: list[str]) -> Graph:
    """Give each tensor to nodes, edges or the graph, by its name and number of rows."""
    import torch

    edges = values.pop("edge_index", None)
    if not isinstance(edges, torch.Tensor) or edges.dim() != 2 or len(edges) != 2:
        got = edges.shape if isinstance(edges, torch.Tensor) else type(edges).__name__
        raise DataError(
            f"{place}: edge_index must be a tensor of two rows, got {got}; save graphs"
            " of PyG's class Data, with edge_index"
        )
    x, most = values.get("x"), int(edges.max()) + 1 if edges.numel() else 0
    size = values.pop("num_nodes", most if x is None else len(x))
    if edges.is_floating_point() or most > size or (edges < 0).any():
        raise DataError(
            f"{place}: edge_index must name nodes 0 to {size - 1}, got {edges.dtype}"
            f" from {edges.min()} to {edges.max()}; correct it, or set num_nodes"
        )
    about = dict[str, str]()
    items: _Columns = {"node": [str(k) for k in range(size)]}
    joins: _Columns = dict(zip(KEYS["edges"], map(_texts, edges), strict=True))
    for key, value in values.items():
        rows = len(value) if isinstance(value, torch.Tensor) and value.dim() else 1
        if isinstance(value, str | int | float):
            about[key] = str(value)
        elif not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            kind = type(value).__name__
            notes.append(f"left out: {key}, which is no dense tensor, but {kind}")
        elif key in _MASKS and value.dim() == 1 and rows == size:
            split = items.setdefault("split", [""] * size)
            for row in value.nonzero()[:, 0].tolist():
                split[row] = _MASKS[key]
        elif rows == 1 and (key == "y" or size > 1):
            about |= {k: v[0] for k, v in _wide(key, value.reshape(1, -1)).items()}
        elif rows == edges.shape[1] and ("edge" in key or rows != size):
            joins |= _wide(key, value)
        elif rows == size and key not in _MASKS:
            items |= _wide(key, value)
        else:
            notes.append(
                f"left out: {key} of shape {tuple(value.shape)}, as it has no row for"
                " each node or edge"
            )
    return Graph(name, about, items, joins)


def _wide(key: str, value: Any) -> _Columns:
    """Columns of a tensor with a row for each node or edge."""
    flat = value.reshape(len(value), -1)
    if flat.shape[1] == 1:
        return {key: _texts(flat[:, 0])}
    return {f"{key}_{k}": _texts(column) for k, column in enumerate(flat.T)}


def _texts(values: Any) -> list[str]:
    """Write numbers with the fewest digits that tell; NaN is empty."""
    numbers = values.float() if str(values.dtype) == "torch.bfloat16" else values
    return ["" if t == "nan" else t for t in numbers.numpy().astype(str).tolist()]


def _sdf(path: Path, notes: list[str]) -> list[dict[str, str]]:
    """Read molecules of an SDF file, each as its SMILES, title and properties."""
    from rdkit import Chem, rdBase

    found, bad = list[dict[str, str]](), list[str]()
    with rdBase.BlockLogs():
        supplier = Chem.SDMolSupplier(str(path))
        for number in range(len(supplier)):
            mol = supplier[number]
            if mol is None or not mol.GetNumAtoms():
                rough = Chem.MolFromMolBlock(
                    supplier.GetItemText(number), sanitize=False
                )
                why = ["no atoms" if rough else "not a mol block"]
                if rough and rough.GetNumAtoms():
                    problems = Chem.DetectChemistryProblems(rough)
                    why = [p.Message() for p in problems] or ["refused by RDKit"]
                bad.append(f"molecule {number + 1}: {why[0]}")
                continue
            own = {n: mol.GetProp(n).strip() for n in mol.GetPropNames()}
            if own.pop("smiles", None) is not None:
                notes.append(f"{path.name}: smiles is made anew of the structure")
            own = {"title": mol.GetProp("_Name").strip(), **own}
            found.append({"smiles": Chem.MolToSmiles(mol), **own})
    if not found or LeftOut("molecules", len(found) + len(bad), len(bad)).is_much():
        raise DataError(
            f"{path}: {len(bad)} of {len(found) + len(bad)} molecules cannot be used"
            f"{': ' * bool(bad)}{first_few(bad)}; correct them, and end each with $$$$"
        )
    if bad:
        notes.append(f"{path.name}: {len(bad)} left out: {first_few(bad)}")
    return found


def _write_molecules(
    path: Path,
    rows: Sequence[Mapping[str, str]],
    out: Path,
    names: Mapping[str, str],
    site: str,
    drop: Sequence[str],
) -> list[str]:
    """Write a CSV file of molecules, or one for each site."""
    whole = dict.fromkeys(name for row in rows for name in row)
    cells = {name: [row.get(name, "") for row in rows] for name in whole}
    if not any(cells["title"]):
        del cells["title"]
    table, notes = ReadTable(path, (), cells), list[str]()
    columns = renamed(table, {"smiles": "smiles", **names}, [*drop, site])
    homes = column_of(table, site) if site else ["molecules"] * len(rows)
    with new_folder(out) as made:
        for name, at in by_site(homes, [True] * len(rows), notes).items():
            write(made / f"{name}.csv", columns, at)
            notes.append(f"{out / name}.csv: {len(at)} molecules")
    return notes


def edge_list(path: Path) -> ReadTable:
    """Read lines of source, target and, if there is one, weight, between blanks.

    Raises
    ------
    DataError
        Naming the line.
    """
    rows = list[list[str]]()
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as text: {error}; save it as UTF-8"
        ) from error
    for number, line in enumerate(lines, 1):
        cells = line.partition("#")[0].split()
        size = len(rows[0]) if rows else len(cells)
        is_odd = bool(cells) and (len(cells) != size or size not in (2, 3))
        if is_odd or not all(map(_is_number, cells[2:])):
            raise DataError(
                f"{path}, line {number}: must be source, target and, in all lines or"
                f" none, a finite weight, with blanks between, got {shortened(line)!r};"
                " correct it, or save a CSV file with a line of names"
            )
        rows += [cells] * bool(cells)
    if not rows:
        raise DataError(f"{path} has no edge; write source, target, weight in a line")
    columns = map(list, zip(*rows, strict=True))
    names = (*KEYS["edges"], "weight")[: len(rows[0])]
    return ReadTable(path, (), dict(zip(names, columns, strict=True)))


def _is_number(cell: str) -> bool:
    try:
        return isfinite(float(cell))
    except ValueError:
        return False


READERS: dict[str, Callable[[Path, list[str]], Iterable[Any]]] = {
    ".graphml": _networkx,
    ".gexf": _networkx,
    ".pt": _pyg,
    ".sdf": _sdf,
}
_NX = "networkx.write_graphml or write_gexf"
_WRITERS = {
    ".graphml": _NX,
    ".gexf": _NX,
    ".pt": "torch.save, of PyG's Data, or a list of them, with tensors and texts alone",
    ".sdf": "RDKit's SDWriter",
}
# What readers raise of odd files: also NetworkX's and RDKit's own errors.
_ODD = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)
