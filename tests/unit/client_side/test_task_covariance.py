"""Omega: closed form, alignment of different task sets, and its penalty."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import task_covariance as oracle

from clients.task_covariance import (
    TaskCovariance,
    align,
    closed_form,
    initial,
    normalise,
    own_rows,
    precision,
    trace_penalty,
    update,
)
from fedgraph_flwr.core.errors import WireError

SEEDS = st.integers(0, 2**32 - 1)
quick = settings(max_examples=25, deadline=None)


def heads(seed, tasks=5, width=7):
    """Rows of very different length, of full rank unless there are too many."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(tasks, width)) * rng.uniform(0.1, 3, (tasks, 1))


def random_omega(seed, tasks):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(tasks, tasks + 2))
    return a @ a.T / np.trace(a @ a.T)


def covariance(tasks, seed):
    return TaskCovariance(
        tuple(tasks), torch.from_numpy(random_omega(seed, len(tasks)))
    )


def plain(covariances):
    return [(c.task_ids, c.omega.numpy()) for c in covariances]


# The closed form ----------------------------------------------------------------------


@given(SEEDS, st.integers(1, 6), st.integers(6, 9))
@quick
def test_closed_form_is_the_matrix_square_root(seed, tasks, width):
    phi = heads(seed, tasks, width)
    omega = closed_form(torch.from_numpy(phi))
    np.testing.assert_allclose(omega, oracle.closed_form(phi), atol=1e-7)
    assert torch.equal(omega, omega.T)
    assert torch.linalg.eigvalsh(omega).min() > -1e-12
    assert omega.trace().item() == pytest.approx(1)


def test_unrelated_and_absent_heads_give_no_relation():
    none = torch.eye(3, dtype=torch.float64) / 3
    torch.testing.assert_close(closed_form(2 * torch.eye(3, 8)), none)
    torch.testing.assert_close(closed_form(torch.zeros(3, 8)), none)
    torch.testing.assert_close(initial((4, 6, 9)).omega, none)


def test_more_tasks_than_coordinates_have_an_omega_too():
    phi = torch.from_numpy(heads(0, tasks=9, width=4))
    omega = closed_form(phi)
    assert omega.trace().item() == pytest.approx(1)
    assert torch.linalg.matrix_rank(omega) == 4
    assert torch.isfinite(precision(omega)).all()
    nuclear = np.linalg.norm(phi.numpy(), "nuc")
    found = trace_penalty(phi, precision(omega)).item()
    assert found == pytest.approx(nuclear**2, rel=1e-4)  # 1e-7 on the diagonal


# The penalty --------------------------------------------------------------------------


@given(SEEDS)
@quick
def test_its_gradient_is_two_omega_inverse_phi_on_own_rows_and_nothing_else(seed):
    values, omega = heads(seed), random_omega(seed, 5)
    phi = torch.from_numpy(values).requires_grad_()
    own = own_rows((1, 4), range(5)).double()
    assert own.flatten().tolist() == [0, 1, 0, 0, 1]
    inverse = torch.linalg.inv(torch.from_numpy(omega))
    penalty = trace_penalty(phi, inverse, own)
    assert penalty.item() == pytest.approx(oracle.penalty(values, omega))
    (0.25 * penalty).backward()  # lambda
    expected = 0.25 * 2 * (np.linalg.inv(omega) @ values)
    np.testing.assert_allclose(phi.grad[[1, 4]], expected[[1, 4]])
    assert (phi.grad[[0, 2, 3]] == 0).all()
    assert phi.grad[[1, 4]].abs().min() > 0  # not inert, as in the authors' code


# Alignment and update -----------------------------------------------------------------


@given(SEEDS, st.floats(0, 1))
@quick
def test_alignment_and_update_are_those_of_the_equations(seed, eta):
    sets = ((0, 2, 5), (2, 3, 5), (0, 9))
    given_ = [covariance(tasks, seed + k) for k, tasks in enumerate(sets)]
    tasks = (0, 2, 3, 5, 7)
    found = align(given_, tasks)
    np.testing.assert_allclose(found, oracle.align(plain(given_), tasks))
    phi = heads(seed)
    omega = update(given_, torch.from_numpy(phi), tasks, eta=eta)
    expected = oracle.update(plain(given_), phi, tasks, eta)
    np.testing.assert_allclose(omega.omega, expected, atol=1e-7)
    assert omega.task_ids == tasks
    assert omega.omega.trace().item() == pytest.approx(1)
    assert torch.linalg.eigvalsh(omega.omega).min() > 0


def test_negative_eigenvalues_are_clipped():
    bad = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)  # 3 and -1
    found = normalise(bad)
    torch.testing.assert_close(found, torch.full((2, 2), 0.5).double())
    assert torch.linalg.eigvalsh(found).min() > 0


@pytest.mark.parametrize("tasks", [(0, 1), (1, 0, 2), (0, 0, 1)])
def test_a_covariance_that_does_not_fit_its_tasks_is_refused(tasks):
    with pytest.raises(WireError, match=r"name each task once, ascending; got shape"):
        TaskCovariance(tasks, torch.eye(3).double())
