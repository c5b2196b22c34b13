"""``graphs/products.py``: the other library is used where it gives the same bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import toys

from clients.graphs import products
from clients.graphs.batching import CollatedGraphs
from clients.tasks.graph_classifier import GraphClassifierClient

SHAPES = [(n, n) for n in (8, 16, 37, 64, 100, 128, 192, 256)] + [(64, 20), (20, 64)]
ROWS = (1, 767, 768, 1000, 1024, 5000)


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Each test finds out by itself where libraries agree; nothing is derived."""
    products._agrees.cache_clear()
    with torch.no_grad():
        yield
    products._agrees.cache_clear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of what oneDNN multiplies."""
    found: list[tuple[int, ...]] = []
    other = products._onednn

    def onednn(x: torch.Tensor, *given: object) -> torch.Tensor:
        found.append(tuple(x.shape))
        return other(x, *given)

    monkeypatch.setattr(products, "_onednn", onednn)
    return found


def agree() -> bool:
    """Whether this machine's libraries give the same bits for the usual width."""
    return products._agrees(64, 64)


@pytest.mark.parametrize(("num_out", "num_in"), SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_products_are_pytorchs_to_the_bit(num_out, num_in, rows):
    generator = torch.Generator().manual_seed(rows)
    x, grad = (torch.randn(rows, n, generator=generator) for n in (num_in, num_out))
    x[x < 0.2] = 0
    matrix, bias = (
        torch.randn(num_out, num_in, generator=generator),
        torch.randn(num_out, generator=generator),
    )
    given = [t.clone() for t in (x, grad, matrix, bias)]

    found = products.linear_relu(x, matrix, bias), products.times(grad, matrix)

    assert torch.equal(found[0], torch.addmm(bias, x, matrix.t()).relu_())
    assert torch.equal(found[1], grad.mm(matrix))
    assert all(map(torch.equal, (x, grad, matrix, bias), given))


SPECIAL = [float(n) for n in ("nan", "inf", "-inf", "-0.0", "1e-41", "3e38")]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same bits, where any NaN is a NaN."""
    left, right = (t.masked_fill(t.isnan(), 7.0) for t in (a, b))
    return torch.equal(left, right) and torch.equal(a.isnan(), b.isnan())


@pytest.mark.parametrize("place", ["entry", "row", "bias", "matrix"])
@pytest.mark.parametrize("value", SPECIAL)
def test_what_is_no_number_stays_none(value, place):
    generator = torch.Generator().manual_seed(1)
    x, matrix = (torch.randn(n, 64, generator=generator) for n in (1024, 64))
    bias = torch.randn(64, generator=generator)
    {"entry": x[5, 3:4], "row": x[9], "bias": bias[2:3], "matrix": matrix[7, 7:8]}[
        place
    ].fill_(value)

    found = products.linear_relu(x, matrix, bias), products.times(x, matrix)

    assert same(found[0], torch.addmm(bias, x, matrix.t()).relu_())
    assert same(found[1], x.mm(matrix))
    if place != "matrix" and value != value:
        assert found[0].isnan().any()


def test_layout_and_type_are_minded():
    generator = torch.Generator().manual_seed(1)
    x, matrix = (torch.randn(64, n, generator=generator).t() for n in (1024, 64))
    bias = torch.zeros(64)
    expected = torch.addmm(bias, x, matrix.t()).relu_()

    assert torch.equal(products.linear_relu(x, matrix, bias), expected)
    assert torch.equal(products.times(x, matrix), x.mm(matrix))
    with pytest.raises(RuntimeError, match="dtype"):
        products.times(x, matrix.double())


def test_strided_matrices_and_biases_are_left_to_pytorch(calls):
    usual = [(1024, 64)] * 2 if agree() else []  # of ``times`` with ``square``
    calls.clear()
    x = torch.randn(1024, 64, generator=torch.Generator().manual_seed(1))
    square, bias = torch.eye(64), torch.zeros(64)
    strided = (
        (torch.eye(128)[:64, :64], bias),
        (square[:1].expand(64, 64), bias),
        (square, torch.ones(1).expand(64)),
        (square, torch.arange(128.0)[::2]),
    )
    for matrix, offset in strided:
        expected = torch.addmm(offset, x, matrix.t()).relu_()
        assert torch.equal(products.linear_relu(x, matrix, offset), expected)
        assert torch.equal(products.times(x, matrix), x.mm(matrix))
    assert calls == usual


def test_products_that_are_differentiated_keep_their_graph():
    matrix = torch.eye(64, requires_grad=True)
    x = torch.rand(1024, 64)
    with torch.enable_grad():
        products.times(x, matrix).sum().backward()
        assert matrix.grad is not None
        products.linear_relu(x, matrix, torch.zeros(64)).sum().backward()
    assert matrix.grad.abs().sum() > 0


def test_one_odd_layer_among_others_is_not_padded():
    agree()
    x, square, odd = torch.rand(1000, 64), torch.eye(64), torch.ones(1, 64)
    assert products.padded(x, [square, odd]) == 1000


def test_what_others_set_does_not_decide():
    expected = agree()
    products._agrees.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert agree() is expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_few_rows_odd_widths_and_other_types_are_left_to_pytorch(calls):
    agree()
    calls.clear()
    for x, width in (
        (torch.ones(767, 64), 64),
        (torch.ones(5000, 15), 15),
        (torch.ones(5000, 193), 193),
        (torch.ones(5000, 64, dtype=torch.float64), 64),
    ):
        square = torch.eye(width, dtype=x.dtype)
        assert torch.equal(products.times(x, square), x)
        assert torch.equal(products.linear_relu(x, square, square[0] * 0), x)
        assert products.padded(x, [square]) == len(x)
    assert calls == []


def test_a_library_with_other_bits_is_not_used(monkeypatch):
    other = products._onednn
    monkeypatch.setattr(products, "_onednn", lambda *given: other(*given) * (1 + 2e-7))
    x, square = torch.rand(1000, 64), torch.rand(64, 64)

    assert torch.equal(products.times(x, square), x.mm(square))
    assert products.padded(x, [square]) == 1000


def test_without_the_library_all_is_pytorchs(monkeypatch, calls):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    x, square = torch.rand(1000, 64), torch.rand(64, 64)

    assert torch.equal(products.times(x, square), x.mm(square))
    assert products.padded(x, [square]) == 1000
    assert calls == []


def test_to_find_out_draws_nothing_of_others(calls):
    before = torch.get_rng_state()
    agree()
    assert calls
    assert torch.equal(torch.get_rng_state(), before)


def test_padding_is_small_and_gives_few_numbers_of_rows(monkeypatch):
    monkeypatch.setattr(products, "_agrees", lambda *_: True)
    square = torch.empty(64, 64)

    def padded(number: int) -> int:
        return products.padded(torch.empty(number, 0), [square, square])

    rows = range(1, 20_000)
    found = [padded(n) for n in rows]

    assert all(p == n for n, p in zip(rows, found, strict=True) if n < 768)
    assert all(
        n <= p <= max(n + 63, n * 17 / 16) for n, p in zip(rows, found, strict=True)
    )
    assert found == sorted(found)
    assert len({p for p in found if p >= 768}) < 100
    assert all(padded(p) == p for p in set(found))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_rows_that_pad_a_batch_reach_no_graph(calls, monkeypatch, dropout):
    same = torch.equal if agree() else torch.allclose
    monkeypatch.setattr(products, "_agrees", lambda *_: True)
    calls.clear()
    run = toys.resolved(**{"hidden-dim": 64})
    spec = run.spec(num_features=4, num_classes=2)
    model = GraphClassifierClient.build_model(spec)
    model.dropout = dropout
    graphs = CollatedGraphs(toys.random_graphs(300), toys.CPU)
    batch = graphs.batch(np.arange(300))
    num_nodes = len(batch.x)
    assert num_nodes % 64

    def trained() -> list[torch.Tensor]:
        model.zero_grad()
        noise = torch.Generator().manual_seed(5) if dropout else None
        with torch.enable_grad():
            logits = model(batch, noise)
            logits.sin().sum().backward()
        return [logits.detach(), *(p.grad.clone() for p in model.parameters())]

    found = trained()
    assert {rows for rows, _ in calls} == {-(-num_nodes // 64) * 64}
    monkeypatch.setattr(products, "_by_onednn", lambda *_: False)
    monkeypatch.setattr("clients.models.gin_pass.padded", lambda x, _: len(x))
    assert all(map(same, found, trained()))
