"""The fast pass of a GIN against its layers, called one by one."""

from __future__ import annotations

import pytest
import torch
import toys

from clients.graphs.batching import CollatedGraphs
from clients.models import gin
from clients.models.gin import GIN


def made(dropout):
    one, two = (torch.Generator().manual_seed(k) for k in (1, 2))
    shape = {"hidden_dim": 8, "num_layers": 3, "dropout": dropout}
    return GIN(4, 2, **shape, shared_generator=one, private_generator=two)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_outputs_and_gradients_are_those_of_the_layers_to_the_bit(dropout, monkeypatch):
    graphs = CollatedGraphs(toys.make_partition().graphs, toys.CPU)
    batch = graphs.batch(toys.np.arange(12))
    found = []
    for is_plain in (gin._are_plain, lambda _: False):
        monkeypatch.setattr(gin, "_are_plain", is_plain)
        model = made(dropout)
        logits = model(batch, torch.Generator().manual_seed(3))
        torch.nn.functional.cross_entropy(logits, batch.y).backward()
        with torch.no_grad():
            scored = model(batch, None)
        found.append([logits, scored, *(p.grad for p in model.parameters())])
    assert len(found[0]) == 2 + 2 * (1 + 3 * 2 + 2)
    assert all(map(torch.equal, *found))


def test_a_model_that_was_changed_is_called_layer_by_layer():
    model = made(0.0)
    assert gin._are_plain([*model.convs[0].mlp, model.post])
    model.convs[0].mlp.insert(1, torch.nn.BatchNorm1d(8))
    assert not gin._are_plain([*model.convs[0].mlp, model.post])
