"""matmul: the matrix product, as torch.matmul defines it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _dispatch
from ._compile_break import opaque

OPERATION = _dispatch.Operation("matmul", ("a", "b", "c", "bias"))


@opaque
def matmul(
    a: Tensor,
    b: Tensor,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    fallback: str = "auto",
    deterministic: bool = True,
    batch_invariant: bool = False,
    constant_b: bool = False,
) -> Tensor:
    """The matrix product of `a` and `b`, with torch.matmul's shapes: vectors, matrices, broadcast batches.

    Any strides are taken as they are (transposed, sliced, expanded, misaligned): nothing is copied.
    Products are accumulated in fp32 and rounded once. fp32 operands follow
    ``torch.get_float32_matmul_precision()``: "highest" is IEEE fp32, "high" and "medium" are TF32.

    Args:
        a: (..., M, K) or (K,); fp16, bf16 or fp32, on any CPU or GPU.
        b: (..., K, N) or (K,); the dtype and device of `a`.
        out: result tensor of the result's exact shape, any strides; must share no memory with an input.
        out_dtype: the dtype of `a` (default) or torch.float32.
        fallback: what to do where no kernel of ours fits: "auto" takes torch's library and says so (log,
            explain), "error" raises, "vendor" always takes torch's library.
        deterministic: equal inputs give equal bytes. All kernels are; False promises less, not more.
        batch_invariant: True: a row of the result has the same bytes however many rows `a` has and wherever in
            `a` it lies: one kernel for all M, so few rows are slower. Rows of `a` must be contiguous. Where no
            kernel of ours can do it the call raises UnsupportedError: torch's library does not promise it.
        constant_b: True: no kernel in flight writes `b`, as with frozen weights. The kernel may then read it
            before the kernels launched earlier have ended. Wrong results if it is not so.

    Returns:
        (..., M, N) without the dimensions that a vector operand lacks.

    Under autocast the operands are cast first, unless `out` is given, as torch.matmul does. In a function
    under torch.compile the call is a graph break.

    Raises:
        DTypeError, ShapeError, DeviceError, LayoutError, AutogradError, OptionError, OperandError: one
            operand cannot be used; the message names it, what was given and what is allowed.
        UnsupportedError, NoCompilerError, BackendUnavailableError, CompileError: no kernel, under "error".
        LaunchError: the device refused the kernel.
    """
    return _dispatch.execute(
        OPERATION,
        a,
        b,
        None,
        None,
        out,
        1.0,
        0.0,
        (out_dtype, fallback, deterministic, batch_invariant, None, constant_b),
    )


def request(
    a: Tensor,
    b: Tensor,
    *,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    fallback: str = "auto",
    deterministic: bool = True,
    batch_invariant: bool = False,
    constant_b: bool = False,
) -> _dispatch.Request:
    """The checked call, not run: for explain and tests."""
    options: tuple[Any, ...] = (out_dtype, fallback, deterministic, batch_invariant, None, constant_b)
    return _dispatch.check(OPERATION, a, b, None, None, out, 1.0, 0.0, options)
