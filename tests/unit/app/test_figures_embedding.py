"""Maps of embeddings are drawn from whatever a results folder holds."""

from __future__ import annotations

import json

import numpy as np
import pytest
import toys
from sklearn.decomposition import PCA

from fedgraph_flwr.view import embedding
from fedgraph_flwr.view.embedding import draw_embeddings

pytestmark = pytest.mark.slow  # whole runs; the contracts are fast


def write_round(
    run, number, *, num_graphs=40, num_classes=2, num_clients=6, dim=8, **changes
):
    """Classes lie in different directions, clients do not; norms mean nothing."""
    rng = np.random.default_rng(number)
    labels = np.arange(num_graphs) % num_classes
    x = 3 * np.eye(num_classes, dim)[labels] + 0.4 * rng.normal(size=(num_graphs, dim))
    x *= rng.uniform(1, 1000, size=(num_graphs, 1))
    arrays = {
        "embeddings": x.astype(np.float32),
        "labels": labels,
        "clients": np.arange(num_graphs) // max(1, num_graphs // num_clients),
        "graph_ids": np.arange(num_graphs),
        **changes,
    }
    path = run / "embeddings" / f"round-{number:06d}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


DRAWN = {"config": {"embedding.figure-rounds": "0,1,3,12,20"}}


@pytest.fixture
def run(tmp_path):
    summary = {"method": "fclg", "dataset": "PROTEINS", "seed": 7, **DRAWN}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


@pytest.fixture
def kept(monkeypatch):
    """Figures that would have been written, by name."""
    figures = {}

    def keep(figure, path):
        figures[path.name] = figure
        return path

    monkeypatch.setattr(embedding, "save", keep)
    return figures


def points_of(axes):
    """Label of the legend -> points drawn for it."""
    return {of.get_label(): np.asarray(of.get_offsets()) for of in axes.collections}


def test_draws_the_rounds_that_the_run_names(run):
    for number in (0, 5, 12):
        write_round(run, number)
    drawn = draw_embeddings(run)
    assert drawn == [run / f"embeddings-round-{t}.png" for t in (0, 12)]
    for path in drawn:
        toys.assert_drawn(path)
    assert len(list(run.glob("*.png"))) == 2
    chosen = draw_embeddings(run, [5, 5, 3])  # round 3 was not kept
    assert chosen == [run / "embeddings-round-5.png"]


def test_colours_are_classes_on_the_left_and_clients_on_the_right(run, kept):
    path = write_round(run, 3, num_graphs=42)
    draw_embeddings(run)
    tsne_class, tsne_client, pca_class, pca_client = kept["embeddings-round-3.png"].axes
    assert [axes.get_title(loc="left") for axes in kept.popitem()[1].axes] == [
        "t-SNE, by class",
        "t-SNE, by client",
        "PCA, by class",
        "PCA, by client",
    ]
    saved = np.load(path)
    x = saved["embeddings"].astype(np.float64)
    model = PCA(2).fit(x / np.linalg.norm(x, axis=1, keepdims=True))
    expected = model.transform(x / np.linalg.norm(x, axis=1, keepdims=True))
    for axes, what in ((pca_class, "labels"), (pca_client, "clients")):
        drawn = points_of(axes)
        for value in np.unique(saved[what]):
            name = f"{what.rstrip('s').replace('label', 'class')} {value}"
            of_value = expected[saved[what] == value]
            np.testing.assert_allclose(drawn.pop(name), of_value, atol=1e-6)
        assert not drawn
    share = 100 * model.explained_variance_ratio_[0]
    assert pca_class.get_xlabel() == f"component 1 ({share:.0f} %)"
    # The left and the right panel show the same points; t-SNE keeps classes together.
    left, right = (
        np.concatenate(list(points_of(axes).values()))
        for axes in (tsne_class, tsne_client)
    )
    order = [np.lexsort(points.T) for points in (left, right)]
    np.testing.assert_array_equal(left[order[0]], right[order[1]])
    assert share_near_own_class(tsne_class) > 0.9


def share_near_own_class(axes):
    """Share of points whose nearest middle of a class is that of their own."""
    groups = list(points_of(axes).values())
    middles = np.array([points.mean(axis=0) for points in groups])
    far = [np.linalg.norm(points[:, None] - middles, axis=2) for points in groups]
    right = [np.argmin(of, axis=1) == k for k, of in enumerate(far)]
    return np.mean(np.concatenate(right))


def test_head_says_which_run_and_round(run, kept):
    x = np.ones((12, 3), dtype=np.float32) + np.eye(12, 3, dtype=np.float32)
    x[4, 1], x[9, 0] = np.nan, np.inf
    write_round(run, 20, num_graphs=12, dim=3, embeddings=x)
    draw_embeddings(run)
    figure = kept["embeddings-round-20.png"]
    assert figure.get_suptitle().strip() == "fclg on PROTEINS, seed 7"
    facts = figure.texts[-1].get_text()
    assert facts.startswith("graph embeddings after round 20, rows of length 1; 10 ")
    assert facts.endswith("2 graphs with NaN or infinite entries left out")
    assert sum(map(len, points_of(figure.axes[2]).values())) == 10
    (run / "summary.json").write_text(json.dumps({"status": "failed", **DRAWN}))
    draw_embeddings(run)
    assert "(FAILED)" in kept["embeddings-round-20.png"].get_suptitle()


def test_tsne_shows_a_seeded_part_of_many_graphs(run, kept, monkeypatch):
    monkeypatch.setattr(embedding, "_MAX_TSNE", 30)
    write_round(run, 1, num_graphs=50, num_classes=3)
    found = []
    for seed in (0, 0, 1):
        (run / "summary.json").write_text(json.dumps({"seed": seed, **DRAWN}))
        draw_embeddings(run)
        axes = kept["embeddings-round-1.png"].axes
        assert axes[0].get_title(loc="left") == "t-SNE of 30 of 50 graphs, by class"
        assert sum(map(len, points_of(axes[2]).values())) == 50  # PCA shows all
        found.append(np.concatenate(list(points_of(axes[0]).values())))
        assert len(found[-1]) == 30
        assert share_near_own_class(axes[0]) > 0.9
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


@pytest.mark.parametrize("num_graphs", [1, 4, 5])
def test_few_graphs_have_no_tsne(run, kept, num_graphs):
    write_round(run, 0, num_graphs=num_graphs, dim=3)
    draw_embeddings(run)
    assert len(kept["embeddings-round-0.png"].axes) == (4 if num_graphs >= 5 else 2)


@pytest.mark.parametrize(
    "x",
    [np.ones((8, 3)), np.zeros((8, 3)), np.arange(8.0)[:, None] - 3],
    ids=["equal", "zero", "one column"],
)
def test_degenerate_embeddings_are_drawn(run, x):
    write_round(run, 0, num_graphs=8, embeddings=x.astype(np.float32))
    assert [p.name for p in draw_embeddings(run)] == ["embeddings-round-0.png"]


def test_more_clients_than_looks_are_counted_in_the_legend(run, kept):
    write_round(run, 0, num_graphs=80, num_clients=40)
    draw_embeddings(run)
    axes = kept["embeddings-round-0.png"].axes[3]
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(texts) == 28
    assert texts[-1] == "client 27  (+12 more)"
    assert len(points_of(axes)) == 40


def test_what_is_missing_or_cut_short_is_left_out(run, kept):
    assert draw_embeddings(run) == []
    assert draw_embeddings(run / "nowhere") == []
    whole = write_round(run, 1).read_bytes()
    write_round(run, 2, labels=None)
    write_round(run, 3, labels=np.zeros(7))
    write_round(run, 4, embeddings=np.full((40, 8), np.nan, dtype=np.float32))
    write_round(run, 5, embeddings=np.array([{}] * 40))  # would have to be unpickled
    folder = run / "embeddings"
    (folder / "round-000006.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "round-last.npz").write_bytes(whole)
    drawn = draw_embeddings(run, range(10))
    assert [p.name for p in drawn] == ["embeddings-round-1.png"]
    (run / "summary.json").unlink()
    draw_embeddings(run, [1])
    assert kept["embeddings-round-1.png"].get_suptitle().startswith("? on ?")
