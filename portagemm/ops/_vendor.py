"""The vendor route: the same operation in torch's words, hence on cuBLAS, hipBLASLt or torch's CPU library.

Bias, C and activation are applied in fp32 before the one rounding, as our kernels do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def activate(x: Tensor, activation: str) -> Tensor:
    """The activation, by its name in portagemm.problem.ACTIVATIONS."""
    if activation == "relu":
        return F.relu(x)
    if activation == "gelu":
        return F.gelu(x)
    if activation == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    if activation == "silu":
        return F.silu(x)
    return x


def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    alpha: float,
    beta: float,
    activation: str,
) -> None:
    """out = activation(alpha * a @ b + beta * c + bias), b as torch.matmul takes it."""
    with torch.no_grad(), torch.autocast(a.device.type, enabled=False):
        if out.dtype == a.dtype and _is_plain(c, bias, alpha, activation):
            torch.matmul(a, b, out=out)
        else:
            out.copy_(_gemm_fp32(a, b, c, bias, alpha, beta, activation))


def recorded(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    alpha: float,
    beta: float,
    activation: str,
) -> Tensor:
    """The same as a new tensor, in operations that a tracer may replay for other shapes; alpha may be 0."""
    with torch.no_grad(), torch.autocast(a.device.type, enabled=False):
        if alpha == 0:  # BLAS: not read, so NaN in them does not matter
            a, b = torch.zeros_like(a), torch.zeros_like(b)
        if dtype == a.dtype and _is_plain(c, bias, alpha, activation):
            return torch.matmul(a, b)
        return _gemm_fp32(a, b, c, bias, alpha, beta, activation).to(dtype)


def _is_plain(c: Tensor | None, bias: Tensor | None, alpha: float, activation: str) -> bool:
    """Whether torch.matmul alone is all of it."""
    return c is None and bias is None and alpha == 1 and activation == "none"


def _gemm_fp32(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    alpha: float,
    beta: float,
    activation: str,
) -> Tensor:
    result = product_fp32(a, b)
    if alpha != 1:
        result = result * alpha
    return epilogue(result, c, bias, beta, activation)


def epilogue(x: Tensor, c: Tensor | None, bias: Tensor | None, beta: float, activation: str) -> Tensor:
    """activation(x + beta * c + bias) in fp32."""
    if c is not None:
        x = x + c.float() * beta
    if bias is not None:
        x = x + bias.float()
    return activate(x, activation)


def product_fp32(a: Tensor, b: Tensor) -> Tensor:
    """a @ b with an fp32 result that was never rounded to the operands' dtype."""
    if a.dtype == torch.float32:
        return torch.matmul(a, b)
    if a.is_cuda and a.dim() == b.dim() and a.dim() in (2, 3) and a.shape[:-2] == b.shape[:-2]:
        try:
            mm = torch.mm if a.dim() == 2 else torch.bmm
            return mm(a, b, out_dtype=torch.float32)
        except (TypeError, RuntimeError):  # this torch or this device does not offer it
            pass
    return torch.matmul(a.float(), b.float())
