"""GemmProblem: one batched GEMM as the planner and the kernels see it. No tensors, no pointers.

The kernels compute, for every batch index and every (m, n),

    D[m, n] = act(alpha * sum_k A[m, k] * B[n, k] + beta * C[m, n] + bias[m, n])

with A addressed as (m, k), B as (n, k) and C, D, bias as (m, n), each by two strides and up to four
batch strides, all in elements. A stride of 0 repeats an operand. So NN, NT, TN, TT, broadcast batches,
row or column bias and expanded views are all the same problem with other strides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from portagemm.hal.dtypes import DType

#: Batch dimensions a kernel can address once adjacent ones are merged.
MAX_BATCH_DIMS = 4

#: Names of the activations, as `linear` takes them. "gelu" is the erf form, "gelu_tanh" torch's approximate="tanh".
ACTIVATIONS: tuple[str, ...] = ("none", "relu", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True)
class Operand:
    """One matrix operand.

    Attributes:
        dtype: element type in memory.
        strides: elements between neighbours along (m, k) for A, (n, k) for B, (m, n) for C, D, bias.
            The stride of an extent-1 dimension is never read; canonical problems set it so that it
            does not hinder vector access.
        batch_strides: elements, one for each entry of GemmProblem.batch (0: broadcast).
        alignment: largest power of two up to 16 that divides the operand's address, in bytes.
    """

    dtype: DType
    strides: tuple[int, int]
    batch_strides: tuple[int, ...] = ()
    alignment: int = 16


@dataclass(frozen=True)
class GemmProblem:
    """Shapes, layouts and epilogue of one GEMM.

    Attributes:
        m, n, k: extents. batch: merged batch extents, at most MAX_BATCH_DIMS.
        a, b, d: operands; c, bias: operands of the epilogue, or None.
        activation: one of ACTIVATIONS.
        precision: for fp32 operands "ieee" (FP32 FMA) or "tf32"; "ieee" for 16-bit operands.
        swapped: A and B were exchanged so that D is addressed row by row (a column-major `out`).
    """

    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    d: Operand
    batch: tuple[int, ...] = ()
    c: Operand | None = None
    bias: Operand | None = None
    activation: str = "none"
    precision: str = "ieee"
    swapped: bool = field(default=False)
