"""A run trains with the optimiser of PyTorch that its config names."""

import pytest
import torch
import toys
from torch import nn

from clients.training import make_optimizer

THEIRS = {
    "adam": torch.optim.Adam,
    "amsgrad": lambda *a, **k: torch.optim.Adam(*a, amsgrad=True, **k),
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def weights():
    """Three tensors; the loss never looks at the last."""
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(s)) for s in ((3, 4), (5,), (2,))]


def descend(made, steps, optimizer):
    for number in range(steps):
        optimizer.zero_grad(set_to_none=True)
        matrix, vector, _ = made
        loss = (matrix.sum() - number).square()
        if number != 1:  # in the second step the vector has no gradient
            loss = loss + (vector**3).sum()
        if number == 0:  # from here on second moments shrink, which AMSGrad's do not
            loss = 100 * loss
        loss.backward()
        optimizer.step()
    return [w.detach().clone() for w in made]


@pytest.mark.parametrize("kind", THEIRS)
def test_a_run_trains_with_the_optimiser_that_it_names(kind):
    settings = toys.run_settings(
        optimizer=kind, learning_rate=0.1, weight_decay=0.1, persist_optimizer=False
    )
    ours, theirs = weights(), weights()
    one = make_optimizer(ours, settings, {})
    other = THEIRS[kind](theirs, lr=0.1, weight_decay=0.1, fused=True)
    found, expected = descend(ours, 5, one), descend(theirs, 5, other)
    assert all(map(torch.equal, found, expected))
