"""Small tables of own graphs, written by hand, for tests."""

from __future__ import annotations

from pathlib import Path

GRAPHS = "graph,label\ng1,no\ng2,yes\ng3,no\n"
NODES = """graph,node,age,kind
g1,a,10,x
g1,b,20,y
g2,a,30,x
g2,b,,z
g2,c,50,y
g3,a,60,x
"""
EDGES = "graph,source,target,weight\ng1,a,b,2\ng2,a,b,1\ng2,b,a,1\ng2,c,c,1\n"
SCHEMA = """format = 1
dataset = "graphs-csv"

[target]
kind = "classes"
columns = ["label"]
classes = ["no", "yes"]

[[feature]]
column = "age"
kind = "number"
shift = 20.0
scale = 10.0
missing = "indicator"

[[feature]]
column = "kind"
kind = "category"
categories = ["x", "y"]
other = true
"""
NODE_NODES = "node,age,label\na,1.5,ok\nb,2,\nc,3,bad\nd,4,ok\n"
NODE_EDGES = "source,target\na,b\nb,a\nc,d\n"
NODE_SCHEMA = """format = 1
dataset = "graph-csv"
[target]
kind = "classes"
columns = ["label"]
classes = ["ok", "bad"]
[[feature]]
column = "age"
kind = "number"
"""


def write(
    folder: Path,
    graphs: str | bytes | None = GRAPHS,
    nodes: str | bytes | None = NODES,
    edges: str | bytes | None = EDGES,
    schema: str | bytes | None = SCHEMA,
) -> Path:
    """Write a folder of whole graphs; None leaves a file out."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = {
        "graphs.csv": graphs,
        "nodes.csv": nodes,
        "edges.csv": edges,
        "schema.toml": schema,
    }
    for name, text in parts.items():
        if text is not None:
            (folder / name).write_bytes(
                text if isinstance(text, bytes) else text.encode()
            )
    return folder


def write_graph(
    folder: Path,
    nodes: str | bytes | None = NODE_NODES,
    edges: str | bytes | None = NODE_EDGES,
    schema: str | bytes | None = NODE_SCHEMA,
) -> Path:
    """Write a folder of one graph whose nodes are classified."""
    return write(folder, None, nodes, edges, schema)
