"""A stand-in for the GPU: computes what the argument block asks for, from the addresses in it.

It shows that everything arrived (addresses, strides, extents, scalars, geometry), not that the kernel's code is right:
that is tests/amdgcn's and tests/host/emulated's business.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from machine import Launch

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
ACTIVATIONS: dict[
    str, Callable[[torch.Tensor], torch.Tensor]
] = {  # a name that begins another comes after it
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu": torch.nn.functional.gelu,
    "relu": torch.nn.functional.relu,
    "silu": torch.nn.functional.silu,
}
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


def _operand(block: bytes, index: int) -> Matrix:
    address, row, column, *batch = struct.unpack_from("<Q6q", block, index * OPERAND_BYTES)
    return Matrix(address, (row, column), tuple(batch))


@dataclass(frozen=True)
class Arguments:
    """A GEMM's or a reduce kernel's argument block, with the dtypes its kernel's name gives.

    K comes in `slices` parts of `slice_k`, whose sums lie `slice_d` elements apart.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    alpha: float
    beta: float
    tiles: int
    slices: int
    slice_k: int
    slice_d: int
    operands: dict[str, Matrix]
    dtypes: dict[str, torch.dtype]
    reduces: bool


def arguments(launch: Launch) -> Arguments:
    """The launch's arguments."""
    block, parts = launch.arguments, launch.kernel.split("_")
    m, n, k, _, *batch = struct.unpack_from("<8i", block, REST)
    alpha, beta, tiles = struct.unpack_from("<2fq", block, REST + 32)
    slices, slice_k, slice_d = struct.unpack_from("<2iq", block, REST + 56)
    reduces = parts[2] == "reduce"
    named = [DTYPES[name] for name in (part.partition("x")[0] for part in parts) if name in DTYPES]
    first, out = named[0], named[1] if len(named) > 1 and parts[3] in DTYPES else named[0]
    dtypes = {
        "a": torch.float32 if reduces else first,
        "b": first,
        "c": _epilogue_dtype(parts, "c", first),
        "d": out,
        "bias": _epilogue_dtype(parts, "bias", first),
    }
    operands = {name: _operand(block, i) for i, name in enumerate(dtypes)}
    return Arguments(
        m, n, k, tuple(batch), alpha, beta, tiles, slices, slice_k, slice_d, operands, dtypes, reduces
    )


def execute(launch: Launch) -> None:
    """D = act(alpha * A B^T + beta * C + bias), rounded once. Raises where the launch cannot be right."""
    x = arguments(launch)
    if launch.block % 32 or not 1 <= launch.grid <= x.tiles:
        raise ValueError(f"{launch.grid} blocks of {launch.block} threads for {x.tiles} pieces of work")

    def view(name: str, extents: tuple[int, int], piece: int = 0) -> torch.Tensor:
        operand, dtype = x.operands[name], x.dtypes[name]
        moved = replace(operand, address=operand.address + piece * x.slice_d * dtype.itemsize)
        return moved.tensor(extents, x.batch, dtype)

    if x.reduces:
        sums = [view("a", (x.m, x.n), piece).double() for piece in range(x.slices)]
        view("d", (x.m, x.n)).copy_(_epilogue(launch, x, torch.stack(sums).sum(0), view))
        return
    a, b = view("a", (x.m, x.k)).double(), view("b", (x.n, x.k)).double()
    if x.slices <= 1:
        view("d", (x.m, x.n)).copy_(_epilogue(launch, x, a @ b.mT, view))
        return
    for piece in range(x.slices):
        part = slice(piece * x.slice_k, (piece + 1) * x.slice_k)
        view("d", (x.m, x.n), piece).copy_(a[..., part] @ b[..., part].mT)


def _epilogue(
    launch: Launch, x: Arguments, sums: torch.Tensor, view: Callable[[str, tuple[int, int]], torch.Tensor]
) -> torch.Tensor:
    result = x.alpha * sums
    for name, factor in (("c", x.beta), ("bias", 1.0)):
        if factor != 0 and x.operands[name].address:
            result = result + factor * view(name, (x.m, x.n)).double()
    activation = next((name for name in ACTIVATIONS if f"_{name}" in launch.kernel), None)
    return ACTIVATIONS[activation](result) if activation is not None else result


def _epilogue_dtype(parts: list[str], prefix: str, otherwise: torch.dtype) -> torch.dtype:
    """The dtype the kernel's name gives for C ("cfp32") or the bias ("biasfp16")."""
    names = [part.removeprefix(prefix) for part in parts if part.startswith(prefix)]
    return next((DTYPES[name] for name in names if name in DTYPES), otherwise)
