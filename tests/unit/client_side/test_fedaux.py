"""FedAux: pooling along a projection, its model, weights and what travels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import fedaux as oracle

from clients import fedaux
from clients.fedaux import AuxGNN, pool
from clients.graphs.whole_graph import DenseGraph
from clients.models.masked_gnn import MaskedGNN

SIZES = {"hidden_dim": 5, "num_layers": 2, "dropout": 0.0}


def drawn(n=9, width=4, seed=0):
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(n, width))
    h[0] = 0  # as after ReLU
    apv = rng.normal(size=width)
    s = np.array(oracle.scores(h.tolist(), apv.tolist()))
    return torch.from_numpy(h), torch.from_numpy(s)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.sampled_from([0.05, 0.3, 0.7, 1.0, 3.0]))
def test_pooling_is_the_papers_in_series_and_in_blocks(seed, sigma):
    h, s = drawn(seed=seed)
    expected = oracle.pooled(h.tolist(), s.tolist(), sigma)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedaux, "_ROWS", 4)
        for wide in (0.0, 9.0):  # the series for all, and for none
            if not (wide == 0 and sigma < 0.3):  # where it has hundreds of terms
                patch.setattr(fedaux, "_WIDE", wide)
                found = pool(h, s, sigma).numpy()
                np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


def test_both_ways_have_the_gradients_of_finite_differences(monkeypatch):
    h, s = (t.requires_grad_() for t in drawn())
    for wide in (0.0, 9.0):
        monkeypatch.setattr(fedaux, "_WIDE", wide)
        assert torch.autograd.gradcheck(lambda h, s: pool(h, s, 0.8), (h, s))


def test_a_narrow_kernel_sees_itself_a_wide_one_all():
    h, s = drawn()
    mean = h.mean(0).expand_as(h)
    torch.testing.assert_close(pool(h, s, 1e-9)[1:], h[1:])
    torch.testing.assert_close(pool(h, s, 1e4), mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(pool(h, s, 0), mean)
    torch.testing.assert_close(pool(h, s * 0, 0.3), mean)


def graph(n=9):
    upper = np.triu(np.random.default_rng(0).random((n, n)) < 0.4, 1)
    return DenseGraph(torch.from_numpy((upper | upper.T).astype(np.float32)))


def test_the_model_reads_a_node_beside_its_pool():
    model = AuxGNN(4, 3, **SIZES, generator=toys.seeded(), sigma=0.9).eval()
    x, edges = torch.randn(9, 4, generator=toys.seeded(1)), graph()
    plain = MaskedGNN(4, 3, **SIZES, generator=toys.seeded()).eval()
    h = torch.relu(plain.convolve(x, edges))  # the same start
    s = oracle.scores(h.tolist(), model.apv.tolist())
    z = torch.tensor(oracle.pooled(h.tolist(), s, 0.9))
    weight, bias = model.readout.weight, model.readout.bias
    expected = torch.cat([h, z], 1) @ weight.T + bias
    torch.testing.assert_close(model.logits(x, edges), expected, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        model.apv *= 7  # its direction counts
    torch.testing.assert_close(model.logits(x, edges), expected, atol=1e-5, rtol=1e-4)
    model.train().logits(x, edges).square().sum().backward()
    assert model.apv.grad @ model.apv.detach() == pytest.approx(0, abs=1e-4)
    assert model.masks[-1].shape == weight.shape == (3, 10)
