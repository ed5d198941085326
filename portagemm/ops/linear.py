"""linear: x @ w.T + bias with an activation, as torch.nn.functional.linear defines it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _dispatch
from ._compile_break import opaque

OPERATION = _dispatch.Operation("linear", ("x", "w", "c", "bias"), transpose_b=True, bias_rank=1)


@opaque
def linear(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    fallback: str = "auto",
    deterministic: bool = True,
    batch_invariant: bool = False,
    constant_b: bool = False,
) -> Tensor:
    """activation(x @ w.T + bias) in one kernel, summed in fp32 and rounded once.

    Args:
        x: (..., K); fp16, bf16 or fp32.
        w: (N, K), as torch.nn.Linear keeps its weight; the dtype and device of `x`.
        bias: (N,); the dtype of `x` or fp32.
        activation: None, "none", "relu", "gelu" (erf form), "gelu_tanh" (tanh form) or "silu".
        out, out_dtype, fallback, deterministic, batch_invariant: as for matmul.
        constant_b: as for matmul; of `w`.

    Returns:
        (..., N).

    Raises: as matmul.
    """
    return _dispatch.execute(
        OPERATION,
        x,
        w,
        None,
        bias,
        out,
        1.0,
        0.0,
        (out_dtype, fallback, deterministic, batch_invariant, activation, constant_b),
    )


def request(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    fallback: str = "auto",
    deterministic: bool = True,
    batch_invariant: bool = False,
    constant_b: bool = False,
) -> _dispatch.Request:
    """The checked call, not run: for explain and tests."""
    options: tuple[Any, ...] = (out_dtype, fallback, deterministic, batch_invariant, activation, constant_b)
    return _dispatch.check(OPERATION, x, w, None, bias, out, 1.0, 0.0, options)
