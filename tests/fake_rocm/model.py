"""A stand-in for the GPU: computes what the argument block asks for, from the addresses in it.

It shows that everything arrived (addresses, strides, extents, scalars, geometry), not that the kernel's code is right:
that is tests/amdgcn's and tests/host/emulated's business.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

import torch
from machine import Launch

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
OPERAND_BYTES, REST = 56, 280  # hal/include/portagemm/params.hpp


@dataclass(frozen=True)
class Matrix:
    """An operand of the argument block: address, strides and batch strides in elements."""

    address: int
    strides: tuple[int, int]
    batch_strides: tuple[int, ...]

    def bytes(self, extents: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype) -> int:
        """From the first element to the end of the last."""
        shape, strides = (*batch, *extents), (*self.batch_strides, *self.strides)
        return (sum((s - 1) * d for s, d in zip(shape, strides, strict=True)) + 1) * dtype.itemsize

    def tensor(self, extents: tuple[int, int], batch: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The memory itself, (batch..., rows, columns)."""
        shape, strides = (*batch, *extents), (*self.batch_strides, *self.strides)
        raw = (ctypes.c_char * self.bytes(extents, batch, dtype)).from_address(self.address)
        return torch.frombuffer(raw, dtype=dtype).as_strided(shape, strides)


def operand(block: bytes, index: int) -> Matrix:
    address, row, column, *batch = struct.unpack_from("<Q6q", block, index * OPERAND_BYTES)
    return Matrix(address, (row, column), tuple(batch))


def execute(launch: Launch) -> None:
    """D = alpha * A B^T + beta * C + bias, rounded once. Raises where the launch cannot be right."""
    block = launch.arguments
    m, n, k, _ = struct.unpack_from("<4i", block, REST)
    batch = struct.unpack_from("<4i", block, REST + 16)
    alpha, beta = struct.unpack_from("<2f", block, REST + 32)
    (tiles,) = struct.unpack_from("<q", block, REST + 40)
    parts = launch.kernel.split("_")
    dtype = DTYPES[parts[2]]
    out = DTYPES.get(parts[3], dtype)
    if launch.block % 64 or not 1 <= launch.grid <= tiles:
        raise ValueError(f"{launch.grid} blocks of {launch.block} threads for {tiles} tiles")
    a, b, c, d, bias = (operand(block, i) for i in range(5))
    result = alpha * a.tensor((m, k), batch, dtype).double() @ b.tensor((n, k), batch, dtype).double().mT
    if beta != 0:
        result += beta * c.tensor((m, n), batch, epilogue_dtype(parts, "c", dtype)).double()
    if bias.address:
        result += bias.tensor((m, n), batch, epilogue_dtype(parts, "bias", dtype)).double()
    if "gelu" in parts or "relu" in parts or "silu" in parts:
        raise NotImplementedError("activations")
    d.tensor((m, n), batch, out).copy_(result.to(out))


def epilogue_dtype(parts: list[str], prefix: str, otherwise: torch.dtype) -> torch.dtype:
    """The dtype the kernel's name gives for C ("cfp32") or the bias ("biasfp16")."""
    names = [part.removeprefix(prefix) for part in parts if part.startswith(prefix)]
    return next((DTYPES[name] for name in names if name in DTYPES), otherwise)
