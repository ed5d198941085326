"""Packed arithmetic (VOP3P): two halves or two floats a register pair, mixed precision, dot products.

op_sel picks the half that the low result takes of each source, op_sel_hi the one for the high result
(CDNA2 ISA, 6.4 and 12.11; RDNA3 ISA, 7.5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic as m
from .arithmetic import F16, F32, I32, I64, U32
from .binding import Binder, Bound, Source, Target, constant, number
from .parse import Constant, Instruction, Register
from .waves import Convoy

HALVES: dict[str, tuple[str, int, Callable[..., Any]]] = {
    "v_pk_add_f16": ("f16", 2, np.add),
    "v_pk_mul_f16": ("f16", 2, np.multiply),
    "v_pk_fma_f16": ("f16", 3, m.fma16),
    "v_pk_min_f16": ("f16", 2, m.min_float),
    "v_pk_max_f16": ("f16", 2, m.max_float),
    "v_pk_add_u16": ("u16", 2, np.add),
    "v_pk_sub_u16": ("u16", 2, np.subtract),
    "v_pk_add_i16": ("i16", 2, np.add),
    "v_pk_sub_i16": ("i16", 2, np.subtract),
    "v_pk_mul_lo_u16": ("u16", 2, np.multiply),
    "v_pk_mad_u16": ("u16", 3, lambda a, b, c: a * b + c),
    "v_pk_mad_i16": ("i16", 3, lambda a, b, c: a * b + c),
    "v_pk_min_u16": ("u16", 2, np.minimum),
    "v_pk_max_u16": ("u16", 2, np.maximum),
    "v_pk_min_i16": ("i16", 2, np.minimum),
    "v_pk_max_i16": ("i16", 2, np.maximum),
    "v_pk_lshlrev_b16": ("u16", 2, lambda a, b: m.shift(b, a, 16, True)),
    "v_pk_lshrrev_b16": ("u16", 2, lambda a, b: m.shift(b, a, 16)),
    "v_pk_ashrrev_i16": ("i16", 2, lambda a, b: m.shift(b, a, 16)),
}
FLOATS: dict[str, tuple[int, Callable[..., Any]]] = {
    "v_pk_add_f32": (2, np.add),
    "v_pk_mul_f32": (2, np.multiply),
    "v_pk_fma_f32": (3, m.fma32),
}


def _word(b: Binder, k: int, kind: str) -> Source:
    """A source of two halves as 32 bits."""
    o = b.op(k)
    if isinstance(o, Register):
        if o.negative or o.absolute:
            raise b.fail("sign modifier of a packed source")
        return b.source(k, "u32")
    if o.real is not None:
        value = U32(F16(o.real).view(np.uint16))
    else:
        value = constant(o, "u32")
    return lambda c: value


def _halves(b: Binder) -> Bound:
    kind, count, fn = HALVES[b.i.name]
    low, high = b.bits_of("op_sel", [0] * count), b.bits_of("op_sel_hi", [1] * count)
    neg_low, neg_high = b.bits_of("neg_lo", [0] * count), b.bits_of("neg_hi", [0] * count)
    clamp = b.flag("clamp")
    if clamp:
        if kind == "f16":
            plain = fn

            def fn(*xs: Any) -> Any:
                return np.clip(np.nan_to_num(plain(*xs)), F16(0), F16(1))
        else:
            fn = m.saturating(fn, {"u16": np.uint16, "i16": np.int16}[kind])
    dtype = {"f16": F16, "u16": np.uint16, "i16": np.int16}[kind]
    words = [_word(b, k + 1, kind) for k in range(count)]
    for k in range(count):
        o = b.op(k + 1)
        if isinstance(o, Constant) and o.real is not None and high[k]:
            raise b.fail("upper half of a floating-point constant")
    put = b.result(0, "u32")

    def half(word: Any, upper: int, negative: int) -> Any:
        x = np.atleast_1d((word >> U32(16) if upper else word) & U32(0xFFFF)).astype(np.uint16).view(dtype)
        return -x if negative else x

    def run(c: Convoy) -> None:
        values = [w(c) for w in words]
        lows = [half(w, s, n) for w, s, n in zip(values, low, neg_low, strict=True)]
        highs = [half(w, s, n) for w, s, n in zip(values, high, neg_high, strict=True)]
        r = np.atleast_1d(fn(*lows)).view(np.uint16).astype(U32)
        t = np.atleast_1d(fn(*highs)).view(np.uint16).astype(U32)
        put(c, r | t << U32(16))

    return b.done(run, "valu")


def _part(b: Binder, k: int, upper: int, negative: int) -> tuple[Source, int]:
    """One float of a packed source, and the bits of the register that holds it."""
    from .waves import bits

    o = b.op(k)
    if isinstance(o, Constant):
        if upper:
            raise b.fail("upper half of a constant")
        value = constant(o, "f32")
        value = -value if negative else value
        return (lambda c: value), 0
    if o.negative or o.absolute or o.count != 2:
        raise b.fail("packed source")
    b.note_read(o)
    if o.kind == "s":
        s = o.first + upper
        get: Source = lambda c: c.sf[:, s : s + 1]  # noqa: E731
    else:
        v = number(o) + upper
        get = lambda c: c.f[v]  # noqa: E731
    return ((lambda c: -get(c)) if negative else get), bits(o.kind, o.first + upper, 1)


def _floats(b: Binder) -> Bound:
    count, fn = FLOATS[b.i.name]
    low, high = b.bits_of("op_sel", [0] * count), b.bits_of("op_sel_hi", [1] * count)
    neg_low, neg_high = b.bits_of("neg_lo", [0] * count), b.bits_of("neg_hi", [0] * count)
    lows = [_part(b, k + 1, low[k], neg_low[k]) for k in range(count)]
    highs = [_part(b, k + 1, high[k], neg_high[k]) for k in range(count)]
    return _two_results(b, fn, lows, highs)


def _two_results(b: Binder, fn: Callable[..., Any], lows: Any, highs: Any) -> Bound:
    from .waves import bits

    d = b.register(0, "va", 2)
    b.note_write(d)
    v = number(d)
    put, put_high = b._put32_float(v), b._put32_float(v + 1)

    def run(c: Convoy) -> None:
        r = np.array(fn(*(get(c) for get, _ in lows)), F32)  # before either half is written
        t = fn(*(get(c) for get, _ in highs))
        put_high(c, t)
        put(c, r)

    parts = []
    for half, sources in enumerate((lows, highs)):
        read = 0
        for _, mask in sources:
            read |= mask
        parts.append((bits(d.kind, d.first + half, 1), read))
    return b.done(run, "valu", parts=tuple(parts))


def _move(b: Binder) -> Bound:
    """v_pk_mov_b32: the low result from the first source, the high one from the second."""
    select = b.bits_of("op_sel", [0, 0])
    b.used.add("op_sel_hi")
    if b.bits_of("op_sel_hi", [1, 1]) != [1, 1]:
        raise b.fail("op_sel_hi")
    parts = []
    for k in (0, 1):
        o = b.op(k + 1)
        if isinstance(o, Constant):
            value = constant(o, "u32") if o.real is None else constant(o, "f32").view(U32)
            if select[k] and o.real is None and o.integer not in (0, -1):
                raise b.fail("upper half of a constant")
            if select[k] and o.real is not None:
                raise b.fail("upper half of a constant")
            as_float = value.view(F32)
            parts.append(((lambda c, x=as_float: x), 0))
        else:
            parts.append(_part(b, k + 1, select[k], 0))
    return _two_results(b, lambda x: x, [parts[0]], [parts[1]])


def _mixed(b: Binder) -> Bound:
    """v_fma_mix_f32, v_fma_mixlo_f16, v_fma_mixhi_f16: sources are floats, or halves where op_sel_hi is set."""
    is_half, upper = b.bits_of("op_sel_hi", [0, 0, 0]), b.bits_of("op_sel", [0, 0, 0])
    clamp = b.flag("clamp")
    sources: list[Source] = []
    for k in range(3):
        get = b.source(k + 1, "f16" if is_half[k] else "f32", upper[k] if is_half[k] else 0)
        sources.append(get)
    x, y, z = sources
    name = b.i.name

    def value(c: Convoy) -> Any:
        r = m.fma32(x(c), y(c), z(c))
        return np.clip(np.nan_to_num(r), F32(0), F32(1)) if clamp else r

    if name == "v_fma_mix_f32":
        put = b.result(0, "f32")
        return b.done(lambda c: put(c, value(c)), "valu")
    put = b.result(0, "u32")
    d = number(b.register(0, "v"))
    shift, rest = (U32(16), U32(0xFFFF)) if name.endswith("hi_f16") else (U32(0), U32(0xFFFF0000))

    def run(c: Convoy) -> None:
        # One rounding: the sum is exact or odd in double.
        exact = m.fma64(x(c), y(c), z(c))
        h = np.atleast_1d(np.clip(exact, 0, 1) if clamp else exact).astype(F16).view(np.uint16).astype(U32)
        put(c, (c.v[d] & rest) | h << shift)

    return b.done(run, "valu")


def _bytes(word: Any, signed: bool) -> Any:
    raw = np.ascontiguousarray(word, U32)
    return raw.view(np.int8 if signed else np.uint8).reshape(*raw.shape, 4).astype(I64)


def _dot(b: Binder) -> Bound:
    """v_dot4_i32_i8, v_dot4_u32_u8, v_dot4_i32_iu8, v_dot4c_i32_i8, v_dot2_f32_f16, v_dot2c_f32_f16."""
    name = b.i.name
    for modifier in ("op_sel", "op_sel_hi"):
        b.used.add(modifier)
    if any(b.bits_of("op_sel", [0])) or not all(b.bits_of("op_sel_hi", [1])[:2]):
        raise b.fail("op_sel of a dot product")
    short = name.startswith(("v_dot4c", "v_dot2c"))
    x, y = _word(b, 1, ""), _word(b, 2, "")
    floats = "f32_f16" in name
    z = b.source(0 if short else 3, "f32" if floats else "i32")
    clamp = b.flag("clamp")
    signs = b.bits_of("neg_lo", [0, 0, 0])
    if name == "v_dot4_i32_iu8":
        signed = (bool(signs[0]), bool(signs[1]))
    else:
        signed = (name.endswith("i8"), name.endswith("i8"))
        if any(signs):
            raise b.fail("neg_lo")
    put = b.result(0, "f32" if floats else "i32")

    def integers(c: Convoy) -> None:
        p, q = _bytes(x(c), signed[0]), _bytes(y(c), signed[1])
        total = (p * q).sum(-1) + np.asarray(z(c)).astype(I64)
        if clamp:
            total = np.clip(total, -(2**31), 2**31 - 1)
        put(c, total.astype(I32))

    def halves(c: Convoy) -> None:
        p, q = (
            np.ascontiguousarray(w, U32).view(F16).reshape(*np.shape(w), 2).astype(m.F64)
            for w in (x(c), y(c))
        )
        put(c, ((p * q).sum(-1) + z(c)).astype(F32))

    return b.done(halves if floats else integers, "valu")


TABLE = {
    **dict.fromkeys(HALVES, _halves),
    **dict.fromkeys(FLOATS, _floats),
    "v_pk_mov_b32": _move,
    "v_fma_mix_f32": _mixed,
    "v_fma_mixlo_f16": _mixed,
    "v_fma_mixhi_f16": _mixed,
    "v_dot4_i32_i8": _dot,
    "v_dot4c_i32_i8": _dot,
    "v_dot4_i32_iu8": _dot,
    "v_dot2_f32_f16": _dot,
    "v_dot2c_f32_f16": _dot,
}


def bind(i: Instruction, target: Target) -> Bound:
    """An instruction of this file's table."""
    return TABLE[i.name](Binder(i, target))
