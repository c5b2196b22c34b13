"""Products of many rows with a small matrix: by oneDNN if its numbers are the same.

PyTorch multiplies float32 matrices by another library, MKL on x86. oneDNN takes half
its time on some processors, but prepares itself for each new number of rows, which
takes longer than a product: see :func:`padded`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

_LEAST_ROWS = 768  # fewer take as long either way
_WIDTHS = range(16, 193)  # of matrices for which libraries were seen to agree
_PER_OCTAVE = 16  # numbers of rows between one power of 2 and the next
_LEAST_STEP = 64  # rows


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``relu(x @ weight.T + bias)``: (rows, in), (out, in), (out,) -> (rows, out)."""
    if _by_onednn(x, weight) and bias.is_contiguous():
        return _onednn(x, weight, bias).relu_()  # its own ReLU makes 0 of NaN
    return torch.addmm(bias, x, weight.t()).relu_()


def times(x: Tensor, matrix: Tensor) -> Tensor:
    """``x @ matrix``: (rows, out), (out, in) -> (rows, in)."""
    if _by_onednn(x, matrix):
        return _onednn(x, matrix.t(), None)
    return x.mm(matrix)


def padded(x: Tensor, matrices: Iterable[Tensor]) -> int:
    """Rows that ``x`` should have for products with these matrices, one after another.

    At most a sixteenth more than it has, or 63, and the same for many numbers. Rows of
    oneDNN's products depend on one row of ``x`` each, whatever the others hold.
    """
    rows = x.shape[0]
    if not (rows >= _LEAST_ROWS and all(_by_onednn(x, m) for m in matrices)):
        return rows
    step = max(_LEAST_STEP, (1 << rows.bit_length() - 1) // _PER_OCTAVE)
    return -(-rows // step) * step


def _by_onednn(x: Tensor, matrix: Tensor) -> bool:
    """Whether oneDNN is to multiply, which keeps no graph and overlooks strides."""
    if x.shape[0] < _LEAST_ROWS or torch.is_grad_enabled():
        return False
    is_usual = _is_usual(x) and _is_usual(matrix) and matrix.is_contiguous()
    return is_usual and _agrees(*matrix.shape)


def _is_usual(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.is_cpu


@cache
def _agrees(num_out: int, num_in: int) -> bool:
    """Whether both libraries give the same numbers for matrices of this shape, here."""
    if num_out not in _WIDTHS or num_in not in _WIDTHS:
        return False
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    generator = torch.Generator("cpu").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(
            shape, generator=generator, dtype=torch.float32, device="cpu"
        )

    matrix, bias = draw(num_out, num_in), draw(num_out)
    with torch.no_grad():
        for rows in (_LEAST_ROWS, 4 * _LEAST_ROWS):
            x, grad = draw(rows, num_in), draw(rows, num_out)
            there = torch.addmm(bias, x, matrix.t()), grad.mm(matrix)
            here = _onednn(x, matrix, bias), _onednn(grad, matrix.t(), None)
            if not all(map(torch.equal, there, here)):
                return False
    return True


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``."""
    product: Any = torch.ops.mkldnn._linear_pointwise.default
    return product(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]
