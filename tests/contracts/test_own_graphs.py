"""Methods on own graphs: every method of the fitting task, on tiny tables."""

import own_files
import pytest
from matrix import mostly_slow

from fedgraph_flwr import server_app
from fedgraph_flwr.core.errors import ConfigError, FedGraphError
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.core.tasks import LABEL_KINDS, OF_EDGES
from fedgraph_flwr.node import serve
from fedgraph_flwr.registry import METHODS, on_data
from fedgraph_flwr.results.reader import load_summary
from simulations.inline import run_inline

_WHOLE = ("classes", "binary", "regression")
_GCFL = {
    "gcfl.mean-norm-threshold": 1.0,
    "gcfl.max-norm-threshold": 2.0,
    "gcfl.seq-length": 2,
}
OWN = {
    "gcfl": _GCFL,
    "gcfl+": _GCFL,
    "fgcl": {"fgcl.views": "clean"},
    "fedsage+": {"fedsage-plus.rounds": 1},
    "fedgkd": {"fedgkd.distil-steps": 1},
}


def cases():
    """Each method with each kind of labels that a task of it can learn from."""
    return [
        (method, kind)
        for method, row in METHODS.items()
        for kind in LABEL_KINDS
        if on_data(row, kind).task.fits(kind)
    ]


ONE_GRAPH = "nodes", "edges", "links"
TASK_OF = {kind: key for key, kind in OF_EDGES.items()}
EDGES = """[edges]
directed = true
repeats = "keep"
label = "fraud"
classes = ["no", "yes"]
"""

# one for each kind of client
FAST = [
    ("gcfl+", "classes"),
    ("fedavg", "binary"),
    ("spreadgnn", "regression"),
    ("fclg", "classes"),
    ("fedgkd", "nodes"),
    ("fedsage+", "nodes"),
    ("fedavg", "edges"),
    ("fedavg", "links"),
]


@pytest.fixture
def start(tmp_path, monkeypatch, task_identity):
    """Run two rounds: ``start(method, kind, node_configs, **config)``."""
    monkeypatch.setattr(server_app, "draw_all", lambda _: None)

    def run(method, kind, node_configs=None, *, name="run", **config):
        serve.kept_data.clear()
        own = {
            "method": method,
            "dataset": "graph-csv" if kind in ONE_GRAPH else "graphs-csv",
            "task": TASK_OF.get(kind, "auto"),
            "num-clients": 2,
            "num-server-rounds": 1,
            "hidden-dim": 4,
            "num-layers": 2,
            "local-epochs": 1,
            "batch-size": 8,
            "device": "cpu",
            "data-dir": str(tmp_path / "data"),
            "cache-dir": str(tmp_path / "cache"),
            "results-dir": str(tmp_path / name / "results"),
            "state-dir": str(tmp_path / name / "state"),
            **({} if kind in ONE_GRAPH else {"csv-label-kind": kind}),
            **OWN.get(method, {}),
            **config,
        }
        path = run_inline(own, num_nodes=1, node_configs=node_configs)
        return load_summary(path), path

    yield run
    serve.kept_data.clear()


def write_site(folder, kind, seed, schema=False):
    """Write 16 small graphs, or one of 24 nodes of which every fourth has no label.

    Its edges have a class, and are directed and repeated, where these are learned.
    """
    rng = numpy_rng(seed, "site")
    head = own_files.SCHEMA
    if kind in ONE_GRAPH:
        labels = ["" if i % 4 == 0 else rng.choice(["ok", "bad"]) for i in range(24)]
        nodes = [f"{i},{rng.normal():.2f},{label}" for i, label in enumerate(labels)]
        edges = [f"{a},{b}" for a, b in rng.integers(0, 24, (40, 2)).tolist()]
        ends, head = "source,target", own_files.NODE_SCHEMA
        if kind == "edges":
            edges = [f"{edge},{rng.choice(['no', 'yes'])}" for edge in edges]
            ends, head = f"{ends},fraud", head + EDGES
        tables = rows("node,age,label", nodes), rows(ends, edges)
        own_files.write_graph(folder, *tables, head if schema else None)
        return
    names, answers = {
        "classes": ("label", lambda _: rng.choice(["no", "yes"])),
        "binary": ("t1,t2", lambda i: f"{i % 2},{'' if i % 5 == 0 else i // 2 % 2}"),
        "regression": ("t1,t2", lambda _: f"{rng.normal():.2f},{rng.normal():.2f}"),
    }[kind]
    if kind != "classes":
        head = head.replace('kind = "classes"', f'kind = "{kind}"')
        head = head.replace('["label"]', '["t1", "t2"]')
        head = head.replace('classes = ["no", "yes"]\n', "")
    graphs = [f"g{i},{answers(i)}" for i in range(16)]
    nodes = [
        f"g{i},{n},{rng.integers(20, 60)},{rng.choice(['x', 'y', 'z'])}"
        for i in range(16)
        for n in range(4)
    ]
    edges = [f"g{i},{a},{b}" for i in range(16) for a, b in ((0, 1), (1, 2), (3, 1))]
    own_files.write(
        folder,
        rows(f"graph,{names}", graphs),
        rows("graph,node,age,kind", nodes),
        rows("graph,source,target", edges),
        head if schema else None,
    )


def rows(head, lines):
    return "\n".join([head, *lines, ""])


def write_federation(root, kind):
    for site in range(2):
        write_site(root / f"site-{site}", kind, site)
    write_site(root / "_any", kind, 0, schema=True)
    (root / "_any" / "schema.toml").rename(root / "schema.toml")


@pytest.mark.parametrize(("method", "kind"), mostly_slow(cases(), fast=FAST))
def test_every_method_runs_on_own_graphs(start, tmp_path, method, kind):
    write_federation(tmp_path / "data", kind)
    summary, _ = start(method, kind)
    assert summary["status"] == "completed"
    assert summary["rounds"] == 1
    assert len(summary["weights_sha256"]) == 64


@pytest.mark.parametrize("kind", mostly_slow([*_WHOLE, *ONE_GRAPH], fast=["nodes"]))
def test_sites_of_their_own_compute_what_a_simulation_does(start, tmp_path, kind):
    write_federation(tmp_path / "data", kind)
    simulated, _ = start("fedavg", kind)
    sites = []
    for client in range(2):
        own = tmp_path / f"ward-{client}"
        write_site(own, kind, client, schema=True)
        sites.append({"clients": str(client), "data-path": str(own)})
    deployed, _ = start("fedavg", kind, sites, name="sites", **{"data-dir": ""})
    assert deployed["weights_sha256"] == simulated["weights_sha256"]
    assert deployed["split_hash"] == simulated["split_hash"]


def sites_of(tmp_path, kind, **extra):
    own = [tmp_path / f"ward-{client}" for client in range(2)]
    for client, folder in enumerate(own):
        write_site(folder, kind, client, schema=True)
    return own, [
        {"clients": str(c), "data-path": str(f), **extra} for c, f in enumerate(own)
    ]


def test_sites_with_another_schema_are_refused_before_round_1(start, tmp_path):
    own, sites = sites_of(tmp_path, "classes")
    text = own_files.SCHEMA.replace("shift = 20.0", "shift = 21.0")
    (own[1] / "schema.toml").write_text(text)
    message = r"clients differ in features: .*give all of them one schema.toml"
    with pytest.raises(ConfigError, match=message):
        start("fedavg", "classes", sites)
    left = (tmp_path / "run" / "results").iterdir()
    assert [p.name for p in left] == ["audit.jsonl"]


def test_a_site_tells_a_server_of_a_bad_row_no_place_and_no_value(
    start, tmp_path, caplog
):
    own, sites = sites_of(tmp_path, "classes")
    nodes = (own[1] / "nodes.csv").read_text().splitlines()
    nodes[3] = "g0,2,SECRET,x"
    (own[1] / "nodes.csv").write_text("\n".join(nodes) + "\n")
    with pytest.raises(FedGraphError) as caught:
        start("fedavg", "classes", sites, **{"csv-bad-rows": "refuse"})
    told = str(caught.value)
    assert "DataError: see docs/own-data.md" in told
    assert not any(word in told for word in ("SECRET", "'age'", "line 4", "nodes.csv"))
    assert "nodes.csv, line 4" in caplog.text
    summary, _ = start("fedavg", "classes", sites)  # "skip" leaves the graph out
    assert summary["status"] == "completed"


def test_statistics_are_told_if_asked_for_and_agreed_to(start, tmp_path):
    _, sites = sites_of(tmp_path, "nodes")
    policy = tmp_path / "policy.toml"
    policy.write_text("statistics = true\n")
    sites[1]["policy"] = str(policy)
    _, path = start("fedavg", "nodes", sites, **{"tell-statistics": True})
    head, first, second = (path / "statistics.csv").read_text().splitlines()
    assert head.startswith("client,num_graphs,num_nodes,nodes_per_graph")
    assert set(first) == set("0,")  # site 0 did not agree
    assert second.startswith("1,1,24,24,")
    counts = dict(zip(head.split(","), second.split(","), strict=True))
    assert int(counts["count_0"]) + int(counts["count_1"]) == 18
    _, silent = start("fedavg", "nodes", sites, name="silent")
    assert not (silent / "statistics.csv").exists()
    noise = {"tell-statistics": True, "privacy.update-clip": 1.0}
    with pytest.raises(ConfigError, match=r"tell-statistics must be false in a run"):
        start("fedavg", "nodes", sites, **noise)
