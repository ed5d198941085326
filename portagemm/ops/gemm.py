"""gemm: BLAS's matrix product with alpha, beta and C, and the epilogue."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _check, _dispatch
from ._compile_break import opaque

FP32_MAX = _check.FP32_MAX
OPERATION = _dispatch.Operation("gemm", ("a", "b", "c", "bias"), matrices=True)


@opaque
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Tensor | None = None,
    activation: str | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    fallback: str = "auto",
    deterministic: bool = True,
    batch_invariant: bool = False,
    constant_b: bool = False,
) -> Tensor:
    """activation(alpha * a @ b + beta * c + bias), summed in fp32 and rounded once.

    BLAS's rules for zeros: with ``beta=0`` C is not read, with ``alpha=0`` A and B are not, so NaN or Inf in
    what is not read do not reach the result.

    Args:
        a: (..., M, K); b: (..., K, N), at least two dimensions, batches broadcast; as for matmul.
        c: broadcasts to the result; the dtype of `a` or fp32. It may be the very same view as `out`.
        alpha, beta: Python numbers.
        bias: broadcasts to the result; the dtype of `a` or fp32. (N,) is one a column, (M, 1) one a row.
        activation: None, "none", "relu", "gelu" (erf form), "gelu_tanh" (tanh form) or "silu".
        out, out_dtype, fallback, deterministic, batch_invariant, constant_b: as for matmul.

    Raises: as matmul; also OperandError where beta is not 0 and there is no C.
    """
    # Tested here so that the usual scalars cost no call; NaN and Inf fail the test and pass the check.
    if not (type(alpha) is float and -FP32_MAX <= alpha <= FP32_MAX):
        alpha = _check.scalar("alpha", alpha)
    if not (type(beta) is float and -FP32_MAX <= beta <= FP32_MAX):
        beta = _check.scalar("beta", beta)
    return _dispatch.execute(
        OPERATION,
        a,
        b,
        c,
        bias,
        out,
        alpha,
        beta,
        (out_dtype, fallback, deterministic, batch_invariant, activation, constant_b, alpha == 0, beta == 0),
    )


def request(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: Tensor | None = None,
    activation: str | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    fallback: str = "auto",
    deterministic: bool = True,
    batch_invariant: bool = False,
    constant_b: bool = False,
) -> _dispatch.Request:
    """The checked call, not run: for explain and tests."""
    alpha, beta = _check.scalar("alpha", alpha), _check.scalar("beta", beta)
    options: tuple[Any, ...] = (
        out_dtype,
        fallback,
        deterministic,
        batch_invariant,
        activation,
        constant_b,
        alpha == 0,
        beta == 0,
    )
    return _dispatch.check(OPERATION, a, b, c, bias, out, alpha, beta, options)
