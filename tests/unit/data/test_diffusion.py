"""Diffusion views against series, exponentials, PyTorch Geometric; their cache."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets import diffusion
from datasets.diffusion import diffuse, load_diffusion
from fedgraph_flwr.core.data import DiffusionSpec, GraphSet
from fedgraph_flwr.core.errors import DataError

PPR = DiffusionSpec()
EVERYTHING = 1e-12  # a threshold that drops rounding noise only

TRIANGLE_AND_TAIL = (5, [(0, 1), (1, 2), (0, 2), (2, 3)])  # node 4 is isolated
PAIR = (2, [(0, 1)])
STAR = (6, [(0, leaf) for leaf in range(1, 6)])


def graph_set(*graphs, directed=False):
    """Graphs given as (number of nodes, pairs); pairs stand for both directions."""
    edges = [
        np.array(
            sorted({*pairs, *(() if directed else [(v, u) for u, v in pairs])}), int
        ).reshape(-1, 2)
        for _, pairs in graphs
    ]
    return GraphSet(
        name="toys",
        x=np.zeros(sum(n for n, _ in graphs), np.uint8),
        edge_index=np.concatenate(edges).T.astype(np.int32),
        node_ptr=np.cumsum([0, *(n for n, _ in graphs)]),
        edge_ptr=np.cumsum([0, *map(len, edges)]),
        y=np.zeros(len(graphs), np.int64),
        num_features=1,
        num_classes=1,
        is_undirected=not directed,
    )


def random_graph(num_nodes, density, seed):
    drawn = np.random.default_rng(seed).random((num_nodes, num_nodes)) < density
    return num_nodes, list(zip(*np.nonzero(np.triu(drawn, 1)), strict=True))


def matrices(view, graphs):
    """Weights of each graph as a matrix, sources in rows."""
    dense = []
    for graph, num_nodes in enumerate(np.diff(graphs.node_ptr)):
        span = slice(view.edge_ptr[graph], view.edge_ptr[graph + 1])
        matrix = np.zeros((num_nodes, num_nodes))
        source, target = view.edge_index[:, span]
        matrix[source, target] = view.weight[span]
        assert np.count_nonzero(matrix) == span.stop - span.start
        dense.append(matrix)
    return dense


def view_of(num_nodes, pairs, spec=PPR):
    graphs = graph_set((num_nodes, pairs))
    (matrix,) = matrices(diffuse(graphs, spec), graphs)
    return matrix


def transition(num_nodes, pairs):
    """T, entry by entry from its definition."""
    linked = {(u, v) for u, v in pairs} | {(v, u) for u, v in pairs}
    linked |= {(v, v) for v in range(num_nodes)}
    degree = [sum((u, v) in linked for u in range(num_nodes)) for v in range(num_nodes)]
    matrix = np.zeros((num_nodes, num_nodes))
    for u, v in linked:
        matrix[u, v] = 1 / math.sqrt(degree[u] * degree[v])
    return matrix


def sparsified(matrix, threshold):
    """The definition, column by column."""
    result = np.zeros_like(matrix)
    for v in range(len(matrix)):
        kept = [u for u in range(len(matrix)) if matrix[u, v] >= threshold]
        for u in kept:
            result[u, v] = matrix[u, v] / sum(matrix[w, v] for w in kept)
        if not kept:
            result[v, v] = 1.0
    return result


# --- numbers by hand ---


def test_direction_of_the_weights():
    graphs = graph_set((2, [(0, 1)]), directed=True)
    view = diffuse(graphs, PPR)
    assert view.edge_index.tolist() == [[0, 0, 1], [0, 1, 1]]  # none from 1 to 0
    # degrees 1 and 2: S_01 = sqrt(2) 2/3, S_11 = 1/3
    into_1 = np.array([math.sqrt(8), 1]) / (math.sqrt(8) + 1)
    assert view.weight == pytest.approx(np.array([1, *into_1]))


def test_a_column_without_entries_keeps_its_node():
    complete = (150, [(u, v) for v in range(150) for u in range(v)])
    high = DiffusionSpec(threshold=0.5)  # 0.2 + 0.8 / 150 on the diagonal
    assert view_of(*complete, high).tolist() == np.eye(150).tolist()


def test_an_entry_equal_to_the_threshold_stays():
    complete = (80, [(u, v) for v in range(80) for u in range(v)])  # 0.8 / 80 = 0.01
    assert np.count_nonzero(view_of(*complete)) == 80 * 80


# --- oracles ---

some_graphs = st.builds(
    random_graph, st.integers(1, 14), st.floats(0, 1), st.integers(0, 2**31 - 1)
)


@settings(max_examples=40, deadline=None)
@given(graph=some_graphs, alpha=st.floats(0.05, 1))
def test_ppr_is_the_series(graph, alpha):
    walk, term = transition(*graph), np.eye(graph[0])
    series = np.zeros_like(walk)
    for k in range(800):  # 0.95^800 < 1e-17
        series += alpha * (1 - alpha) ** k * term
        term = term @ walk
    for threshold in (EVERYTHING, 0.0173):
        spec = DiffusionSpec(alpha=alpha, threshold=threshold)
        expected = sparsified(series, threshold)
        assert view_of(*graph, spec) == pytest.approx(expected, abs=1e-6)


# --- properties ---


def test_a_graph_has_the_same_view_in_any_company():
    many = [random_graph(n, 0.3, seed) for seed in range(5) for n in (7, 3, 9, 1, 7)]
    whole = diffuse(graph_set(*many), PPR)
    alone = [diffuse(graph_set(graph), PPR) for graph in many]
    for name in ("edge_index", "weight"):
        joined = np.concatenate([getattr(view, name) for view in alone], axis=-1)
        assert np.array_equal(getattr(whole, name), joined)
    edges = whole.edge_index[:, : whole.edge_ptr[1]].T.tolist()
    assert edges == sorted(edges)


# --- refusals ---


def test_a_graph_too_large_is_named(monkeypatch):
    monkeypatch.setattr(diffusion, "MAX_NODES", 5)
    with pytest.raises(DataError, match=r"graph 1 of toys has 6 nodes.*at most 5; ch"):
        diffuse(graph_set(PAIR, STAR), PPR)
    diffuse(graph_set(PAIR, TRIANGLE_AND_TAIL), PPR)
    with pytest.raises(DataError, match=r"toys has no graphs"):
        diffuse(graph_set(PAIR).take(np.array([], int)), PPR)


# --- cache ---


def test_other_graphs_and_specs_have_other_entries(tmp_path):
    alone = (1, [])
    asked = [
        (graph_set(STAR, alone), PPR),
        (graph_set(STAR, alone), DiffusionSpec(alpha=0.15)),
        (graph_set(STAR, alone), DiffusionSpec(threshold=0.02)),
        (graph_set(alone, STAR), PPR),
        (graph_set(STAR, (2, [])), PPR),
        (graph_set((6, [(1, leaf) for leaf in (0, 2, 3, 4, 5)]), alone), PPR),
    ]
    for number, (graphs, spec) in enumerate([*asked, asked[0]], start=1):
        view = load_diffusion(graphs, spec, cache_dir=str(tmp_path))
        for name, array in vars(diffuse(graphs, spec)).items():
            np.testing.assert_array_equal(vars(view)[name], array)
        found = [p for p in (tmp_path / "diffusion").iterdir() if p.suffix != ".lock"]
        assert len(found) == min(number, len(asked))
