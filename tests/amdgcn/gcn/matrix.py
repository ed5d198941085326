"""MFMA (CDNA2 ISA, 7; CDNA3 ISA, 7) and WMMA (RDNA3 ISA, 7.9): one block a wave.

Operand and result maps, with g = lane / M and e elements of K a lane:
  A element i: row lane % M, k = g * e + i        B element i: column lane % N, k = g * e + i
  C register r: column lane % N, row 4 * (64 / N) * (r / 4) + 4 * g + r % 4
WMMA on gfx11: lane % 16 is the row of A or column of B, all 16 k in its registers, lanes 16-31 hold the same as
0-15; C register r of lane l is row 2 * r + l / 16, column l % 16.

Products are summed in double and rounded once: the unit's own order and rounding are not modelled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .binding import Array, Binder, Bound, Target, number
from .faults import Unspecified
from .parse import Constant, Instruction, Register
from .waves import Convoy

F32, F64, U32 = np.float32, np.float64, np.uint32


class Shape(NamedTuple):
    """Of a matrix instruction: rows, columns, k, type of the operands, type of the sums."""

    m: int
    n: int
    k: int
    element: str
    result: str


_MFMA = re.compile(r"^v_mfma_(f32|i32|f64)_(\d+)x(\d+)x(\d+)_?(f16|bf16|bf16_1k|f32|i8|f64)$")
_WMMA = re.compile(r"^v_wmma_(f32|i32|f16)_16x16x16_(f16|bf16|iu8)$")
#: Instructions of one block; shape by the target's first digits. Others would have several blocks.
MFMAS: dict[str, tuple[str, ...]] = {
    "gfx90a": (
        "v_mfma_f32_32x32x8f16",
        "v_mfma_f32_16x16x16f16",
        "v_mfma_f32_32x32x8bf16_1k",
        "v_mfma_f32_16x16x16bf16_1k",
        "v_mfma_f32_32x32x2f32",
        "v_mfma_f32_16x16x4f32",
        "v_mfma_i32_32x32x8i8",
        "v_mfma_i32_16x16x16i8",
        "v_mfma_f64_16x16x4f64",
    ),
    "gfx942": (
        "v_mfma_f32_32x32x8_f16",
        "v_mfma_f32_16x16x16_f16",
        "v_mfma_f32_32x32x8_bf16",
        "v_mfma_f32_16x16x16_bf16",
        "v_mfma_f32_32x32x2_f32",
        "v_mfma_f32_16x16x4_f32",
        "v_mfma_i32_32x32x16_i8",
        "v_mfma_i32_16x16x32_i8",
        "v_mfma_f64_16x16x4_f64",
    ),
}
MFMAS["gfx950"] = (
    *MFMAS["gfx942"],
    "v_mfma_f32_32x32x16_f16",
    "v_mfma_f32_16x16x32_f16",
    "v_mfma_f32_32x32x16_bf16",
    "v_mfma_f32_16x16x32_bf16",
    "v_mfma_i32_32x32x32_i8",
    "v_mfma_i32_16x16x64_i8",
)
WMMAS = (
    "v_wmma_f32_16x16x16_f16",
    "v_wmma_f32_16x16x16_bf16",
    "v_wmma_f16_16x16x16_f16",
    "v_wmma_i32_16x16x16_iu8",
)
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "i8": 1, "f64": 8}


def shape_of(name: str) -> Shape | None:
    """The shape of an MFMA by its name."""
    match = _MFMA.match(name)
    if match is None:
        return None
    element = "bf16" if match[5] == "bf16_1k" else match[5]
    return Shape(int(match[2]), int(match[3]), int(match[4]), element, match[1])


@cache
def _values(element: str, flushed: bool) -> Array:
    """Every 16-bit pattern's value in double; with `flushed`, subnormals as zero."""
    raw = np.arange(1 << 16, dtype=np.uint32)
    if element == "f16":
        values = raw.astype(np.uint16).view(np.float16).astype(F64)
        smallest = 2.0**-14
    else:
        values = (raw << U32(16)).view(F32).astype(F64)
        smallest = 2.0**-126
    return np.where(np.abs(values) < smallest, 0.0, values) if flushed else values


def _elements(words: Array, element: str, flushed: bool, signed: bool = True) -> Array:
    """(registers, waves, lanes) of uint32 as (waves, lanes, elements) of double."""
    raw = np.ascontiguousarray(words.transpose(1, 2, 0))
    if element in ("f16", "bf16"):
        found: Array = _values(element, flushed)[raw.view(np.uint16)]
        return found
    if element == "i8":
        return raw.view(np.int8 if signed else np.uint8).astype(F64)
    return raw.view({"f32": F32, "f64": F64}[element]).astype(F64)


def _flush(x: Array) -> Array:
    return np.where(np.abs(x) < 2.0**-126, 0.0, x)


def _addend(b: Binder, k: int, count: int, kind: str) -> Callable[[Convoy], Any]:
    """Operand C: registers (count, waves, lanes), or an inline constant."""
    o = b.op(k)
    if isinstance(o, Constant):
        if o.real is None and o.integer != 0 and kind != "i32":
            raise b.fail("constant addend")
        value = o.real if o.real is not None else float(o.integer)
        return lambda c: value
    if not isinstance(o, Register) or o.kind not in "va" or o.count != count:
        raise b.fail("addend")
    b.note_read(o)
    v = number(o)
    if kind == "f64":
        return lambda c: _doubles(c.v[v : v + count])
    if kind == "f32":
        return lambda c: c.f[v : v + count].astype(F64)
    return lambda c: c.i[v : v + count].astype(F64)


def _doubles(words: Array) -> Array:
    raw = words[0::2].astype(np.uint64) | words[1::2].astype(np.uint64) << np.uint64(32)
    return raw.view(F64)


def _mfma(b: Binder) -> Bound:
    """EXEC is ignored (CDNA3 ISA, 7)."""
    shape = shape_of(b.i.name)
    if shape is None or b.i.name not in MFMAS.get(b.target.arch, ()):
        raise b.fail("unknown matrix instruction")
    m, n, k, element, result = shape
    groups = 64 // m
    held = k // groups  # elements of a lane
    words = max(1, held * BYTES[element] // 4)
    width = 2 if result == "f64" else 1
    count = m * n // 64 * width
    ra, rb = b.register(1, "va", words), b.register(2, "va", words)
    b.note_read(ra)
    b.note_read(rb)
    addend = _addend(b, 3, count, result)
    out = b.register(0, "va", count)
    b.note_write(out)
    a, bb, d = number(ra), number(rb), number(out)
    flushed = b.target.mfma_flushes and element in ("f16", "bf16")
    rows = 4 if result != "f64" else 1

    def run(c: Convoy) -> None:
        left = _elements(c.v[a : a + words], element, flushed)
        right = _elements(c.v[bb : bb + words], element, flushed)
        left = left.reshape(c.n, groups, m, held).transpose(0, 2, 1, 3).reshape(c.n, m, k)
        right = right.reshape(c.n, groups, n, held).transpose(0, 1, 3, 2).reshape(c.n, k, n)
        product = left @ right
        blocks = product.reshape(c.n, m // (rows * groups), groups, rows, n).transpose(1, 3, 0, 2, 4)
        total = addend(c)
        if flushed:
            total = _flush(np.asarray(total))
        total = blocks.reshape(count // width, c.n, 64) + total
        if result == "f32":
            value = total.astype(F32)
            c.f[d : d + count] = np.where(np.abs(value) < F32(2.0**-126), F32(0), value) if flushed else value
        elif result == "i32":
            c.i[d : d + count] = total.astype(np.int64).astype(np.int32)
        else:
            raw = np.ascontiguousarray(total).view(np.uint64)
            c.v[d : d + count : 2] = raw.astype(U32)
            c.v[d + 1 : d + count : 2] = (raw >> np.uint64(32)).astype(U32)

    return b.done(run, "mfma")


def _wmma(b: Binder) -> Bound:
    """gfx11, waves of 32 lanes, EXEC all ones."""
    match = _WMMA.match(b.i.name)
    if match is None or b.target.lanes != 32:
        raise b.fail("unknown matrix instruction")
    result, element = match[1], match[2]
    signed = [True, True]
    if element == "iu8":
        signs = b.bits_of("neg_lo", [0, 0, 0])
        signed = [bool(signs[0]), bool(signs[1])]
    clamp = b.flag("clamp")
    if clamp and result != "i32":
        raise b.fail("clamp")
    high = b.bits_of("op_sel", [0, 0, 0])
    words = 4 if element == "iu8" else 8
    ra, rb = b.register(1, "v", words), b.register(2, "v", words)
    b.note_read(ra)
    b.note_read(rb)
    kind = "i8" if element == "iu8" else element
    if result == "f16":
        o = b.register(3, "v", 8)
        b.note_read(o)
        v = number(o)
        half = U32(16 if high[2] else 0)

        def halves(c: Convoy) -> Any:
            return (c.v[v : v + 8] >> half).astype(np.uint16).view(np.float16).astype(F64)

        addend: Callable[[Convoy], Any] = halves
    else:
        if any(high):
            raise b.fail("op_sel")
        addend = _addend(b, 3, 8, result)
    out = b.register(0, "v", 8)
    b.note_write(out)
    a, bb, d = number(ra), number(rb), number(out)

    def run(c: Convoy) -> None:
        if not c.full:
            raise Unspecified(f"EXEC is not all ones: {b.i}")
        operands = []
        for at, name, sign in ((a, "A", signed[0]), (bb, "B", signed[1])):
            raw = c.v[at : at + words]
            if (raw[:, :, :16] != raw[:, :, 16:]).any():
                raise Unspecified(f"lanes 16-31 of {name} differ from lanes 0-15: {b.i}")
            operands.append(_elements(raw[:, :, :16], kind, False, sign))
        product = operands[0] @ operands[1].transpose(0, 2, 1)  # (waves, row, column)
        total = product.reshape(c.n, 8, 2, 16).transpose(1, 0, 2, 3).reshape(8, c.n, 32) + addend(c)
        if result == "f32":
            c.f[d : d + 8] = total.astype(F32)
        elif result == "i32":
            exact = total.astype(np.int64)
            c.i[d : d + 8] = (np.clip(exact, -(2**31), 2**31 - 1) if clamp else exact).astype(np.int32)
        else:
            value = total.astype(np.float16).view(np.uint16).astype(U32) << half
            c.v[d : d + 8] = (c.v[d : d + 8] & ~(U32(0xFFFF) << half)) | value

    return b.done(run, "mfma")


def bind(i: Instruction, target: Target) -> Bound:
    """A matrix instruction."""
    b = Binder(i, target)
    return _wmma(b) if i.name.startswith("v_wmma") else _mfma(b)
