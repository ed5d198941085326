"""Vector instructions with carries, masks, lanes, or results of several kinds (CDNA2 ISA, 12.7 to 12.10)."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import arithmetic as m
from .arithmetic import F32, I64, U32, U64
from .binding import Binder, Bound, Target
from .parse import EXEC, VCC, Constant, Instruction
from .waves import Convoy, bits


def _carry(b: Binder) -> Bound:
    """v_add_co_u32 and its relatives: D, carry, S0, S1 [, carry in]."""
    name = b.i.name.replace("_co_ci_u32", "c_co_u32")
    name = {"v_subc_co_u32": "v_subb_co_u32", "v_subrevc_co_u32": "v_subbrev_co_u32"}.get(name, name)
    carries = name in ("v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32")
    if b.sdwa or b.dpp:
        raise b.fail("SDWA or DPP of a carry")
    x, y = b.source(2, "u32"), b.source(3, "u32")
    out = b.register(1, "s")
    carry_in = None
    if carries:
        r = b.register(4, "s")
        b.note_read(r)
        carry_in = r.first
    put = b.result(0, "u32")
    b.note_write(out)
    o, reverse, add = out.first, "subrev" in name or "subbrev" in name, "add" in name

    def run(c: Convoy) -> None:
        p, q = np.asarray(x(c)).astype(I64), np.asarray(y(c)).astype(I64)
        if reverse:
            p, q = q, p
        k = c.lane_mask(carry_in) if carry_in is not None else 0
        total = p + q + k if add else p - q - k
        carry = (total > 0xFFFFFFFF) if add else (total < 0)
        put(c, total.astype(U32))
        c.put_lane_mask(o, carry & c.mask)

    return b.done(run, "valu")


_TESTS = {
    "f": lambda a, b: np.zeros(np.broadcast(a, b).shape, bool),
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lg": lambda a, b: (a < b) | (a > b),
    "ne": np.not_equal,
    "ge": np.greater_equal,
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "tru": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    "t": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
}


def _class_of(x: Any, wanted: Any) -> Any:
    """V_CMP_CLASS_F32: whether the float is of one of the classes in the mask."""
    tiny = (np.abs(x) < m.NORMAL32) & (x != 0)
    raw = np.ascontiguousarray(x).view(U32)
    negative, finite = np.signbit(x), np.isfinite(x)
    quiet = np.isnan(x) & ((raw & U32(0x400000)) != 0)
    classes = [
        np.isnan(x) & ~quiet,
        quiet,
        np.isinf(x) & negative,
        finite & ~tiny & (x != 0) & negative,
        tiny & negative,
        (x == 0) & negative,
        (x == 0) & ~negative,
        tiny & ~negative,
        finite & ~tiny & (x != 0) & ~negative,
        np.isinf(x) & ~negative,
    ]
    found = np.zeros(np.broadcast(x, wanted).shape, bool)
    for bit, is_class in enumerate(classes):
        found |= is_class & (wanted >> U32(bit) & U32(1)).astype(bool)
    return found


def _compare(b: Binder) -> Bound:
    """v_cmp_* and v_cmpx_*. Inactive lanes give 0; v_cmpx writes EXEC (gfx9: and its mask)."""
    prefix, test, kind = b.i.name.split("_")[1:]
    to_exec = prefix == "cmpx"
    first = 0 if to_exec and not b.target.gfx9 else 1
    at = EXEC
    if first == 1:
        out = b.register(0, "s")
        at = out.first
        b.note_write(out)
    if to_exec:
        b.writes |= bits("s", EXEC, b.target.lanes // 32)
    if test == "class":
        if kind != "f32":
            raise b.fail("class of other than f32")
        x, y = b.source(first, "f32"), b.source(first + 1, "u32")
        fn = _class_of
    else:
        dpp = b.dpp
        b.dpp = False
        if dpp:
            raise b.fail("DPP of a comparison")
        number = _source_numbers(b, first)
        x, y = number(first, kind), number(first + 1, kind)
        fn = _TESTS[test]  # type: ignore[assignment]
    if to_exec:
        b.observes = b.reads

    def run(c: Convoy) -> None:
        hit = fn(x(c), y(c)) & c.mask
        c.put_lane_mask(at, hit)
        if to_exec and at != EXEC:
            c.put_lane_mask(EXEC, hit)

    return b.done(run, "valu")


def _source_numbers(b: Binder, first: int) -> Any:
    """How sources of a comparison are bound: SDWA counts them from 1 where a mask comes first."""
    if not b.sdwa or first == 1:
        return b.source
    raise b.fail("SDWA comparison without a result")


def _first_lane(b: Binder) -> Bound:
    """v_readfirstlane_b32: of the first active lane, lane 0 if there is none."""
    out = b.register(0, "s")
    r = b.register(1, "va")
    x = b.source(1, "u32")
    b.note_write(out)
    d = out.first
    if r.kind not in "va":
        raise b.fail("source")

    def run(c: Convoy) -> None:
        lane = c.mask.argmax(axis=1)
        c.s[:, d] = np.broadcast_to(x(c), c.mask.shape)[np.arange(c.n), lane]

    return b.done(run, "valu")


def _read_lane(b: Binder) -> Bound:
    out = b.register(0, "s")
    x, lane = b.source(1, "u32"), b.source(2, "u32")
    b.note_write(out)
    d, last = out.first, U32(b.target.lanes - 1)

    def run(c: Convoy) -> None:
        at = np.broadcast_to(lane(c) & last, (c.n, 1))[:, 0]
        c.s[:, d] = x(c)[np.arange(c.n), at]

    return b.done(run, "valu")


def _write_lane(b: Binder) -> Bound:
    """v_writelane_b32: one lane, whatever EXEC says."""
    r = b.register(0, "v")
    x, lane = b.source(1, "u32"), b.source(2, "u32")
    b.note_write(r)
    v, last = r.first, U32(b.target.lanes - 1)

    def run(c: Convoy) -> None:
        at = np.broadcast_to(lane(c) & last, (c.n, 1))[:, 0]
        c.v[v][np.arange(c.n), at] = np.broadcast_to(x(c), (c.n, 1))[:, 0]

    return b.done(run, "valu")


def _mad64(b: Binder) -> Bound:
    """v_mad_u64_u32 and v_mad_i64_i32: D (64), carry, S0, S1, S2 (64). The low half needs no upper half of S2."""
    signed = b.i.name == "v_mad_i64_i32"
    kind = "i32" if signed else "u32"
    x, y = b.source(2, kind), b.source(3, kind)
    factors = b.reads
    z = b.source(4, "u64")
    out = b.register(1, "s")
    put = b.result(0, "u64")
    d = b.register(0, "v", 2)
    b.note_write(out)
    o = out.first
    addend = b.op(4)
    low_addend = 0 if isinstance(addend, Constant) else bits(addend.kind, addend.first, 1)

    def run(c: Convoy) -> None:
        p = np.asarray(x(c)).astype(I64).astype(U64) * np.asarray(y(c)).astype(I64).astype(U64)
        q = np.asarray(z(c), U64)
        total = p + q
        put(c, np.broadcast_to(total, c.mask.shape))
        c.put_lane_mask(o, (total < p) & c.mask)

    low = bits("v", d.first, 1)
    return b.done(run, "valu", parts=((low, factors | low_addend), (b.writes & ~low, b.reads)))


def _div_scale(b: Binder) -> Bound:
    x, y, z = (b.source(k, "f32") for k in (2, 3, 4))
    out = b.register(1, "s")
    put = b.result(0, "f32")
    b.note_write(out)
    o = out.first

    def run(c: Convoy) -> None:
        value, scaled = m.div_scale(x(c), y(c), z(c))
        put(c, np.broadcast_to(value, c.mask.shape))
        c.put_lane_mask(o, scaled & c.mask)

    return b.done(run, "valu")


def _div_fmas(b: Binder) -> Bound:
    x, y, z = (b.source(k, "f32") for k in (1, 2, 3))
    put = b.result(0, "f32")
    b.reads |= bits("s", VCC, b.target.lanes // 32)

    def run(c: Convoy) -> None:
        put(c, m.div_fmas(x(c), y(c), z(c), c.lane_mask(VCC)))

    return b.done(run, "valu")


def _mbcnt(b: Binder) -> Bound:
    """v_mbcnt_lo/hi_u32_b32: how many set bits of S0 stand for lanes below one's own, plus S1."""
    x, y = b.source(1, "u32"), b.source(2, "u32")
    put = b.result(0, "u32")
    lane = np.arange(b.target.lanes)
    below = [min((1 << int(n)) - 1, 0xFFFFFFFF) if n < 32 else 0xFFFFFFFF for n in lane]
    if b.i.name == "v_mbcnt_hi_u32_b32":
        below = [(1 << int(n) - 32) - 1 if n >= 32 else 0 for n in lane]
    mask = np.array(below, U32)
    return b.done(lambda c: put(c, np.bitwise_count(x(c) & mask).astype(U32) + y(c)), "valu")


def _pack_half(b: Binder) -> Bound:
    """v_pack_b32_f16."""
    half = b.bits_of("op_sel", [0, 0, 0])
    x, y = b.source(1, "f16", half[0]), b.source(2, "f16", half[1])
    b.used.add("op_sel")
    put = b.result(0, "u32")

    def bits16(v: Any) -> Any:
        return np.atleast_1d(v).view(np.uint16).astype(U32)

    return b.done(lambda c: put(c, bits16(x(c)) | bits16(y(c)) << U32(16)), "valu")


def _pack_rtz(b: Binder) -> Bound:
    """v_cvt_pkrtz_f16_f32."""
    x, y = b.source(1, "f32"), b.source(2, "f32")
    put = b.result(0, "u32")

    def low(v: Any) -> Any:
        return np.atleast_1d(m.round_to_zero_f16(v)).view(np.uint16).astype(U32)

    return b.done(lambda c: put(c, low(x(c)) | low(y(c)) << U32(16)), "valu")


def to_bfloat(x: Any) -> Any:
    """bf16 bits of floats, to nearest even; NaN stays NaN."""
    raw = np.atleast_1d(np.asarray(x, F32)).view(U32)
    rounded = raw + U32(0x7FFF) + (raw >> U32(16) & U32(1))
    return np.where(np.isnan(np.atleast_1d(x)), raw | U32(0x400000), rounded) >> U32(16)


def _pack_bfloat(b: Binder) -> Bound:
    """v_cvt_pk_bf16_f32 (gfx950)."""
    x, y = b.source(1, "f32"), b.source(2, "f32")
    put = b.result(0, "u32")
    return b.done(lambda c: put(c, to_bfloat(x(c)) | to_bfloat(y(c)) << U32(16)), "valu")


def _swap(b: Binder) -> Bound:
    """v_swap_b32."""
    x, y = b.source(0, "u32"), b.source(1, "u32")
    put, other = b.result(0, "u32"), b.result(1, "u32")

    def run(c: Convoy) -> None:
        p, q = np.array(x(c)), np.array(y(c))
        put(c, q)
        other(c, p)

    return b.done(run, "valu")


def _permlane_swap(b: Binder) -> Bound:
    """v_permlane32_swap_b32, v_permlane16_swap_b32 (gfx950): odd groups of the first against even of the second."""
    width = 32 if "permlane32" in b.i.name else 16
    x, y = b.source(0, "u32"), b.source(1, "u32")
    put, other = b.result(0, "u32"), b.result(1, "u32")
    lane = np.arange(b.target.lanes)
    odd = lane // width % 2 == 1

    def run(c: Convoy) -> None:
        p, q = np.array(x(c)), np.array(y(c))
        put(c, np.where(odd, q[:, lane ^ width], p))
        other(c, np.where(odd, q, p[:, lane ^ width]))

    return b.done(run, "valu")


def _nop(b: Binder) -> Bound:
    return b.done(lambda c: None, "valu")


TABLE = {
    **{f"v_{n}_co_u32": _carry for n in ("add", "sub", "subrev", "addc", "subb", "subbrev")},
    **{f"v_{n}_co_ci_u32": _carry for n in ("add", "sub", "subrev")},
    "v_readfirstlane_b32": _first_lane,
    "v_readlane_b32": _read_lane,
    "v_writelane_b32": _write_lane,
    "v_mad_u64_u32": _mad64,
    "v_mad_i64_i32": _mad64,
    "v_div_scale_f32": _div_scale,
    "v_div_fmas_f32": _div_fmas,
    "v_mbcnt_lo_u32_b32": _mbcnt,
    "v_mbcnt_hi_u32_b32": _mbcnt,
    "v_pack_b32_f16": _pack_half,
    "v_cvt_pkrtz_f16_f32": _pack_rtz,
    "v_cvt_pk_rtz_f16_f32": _pack_rtz,
    "v_cvt_pk_bf16_f32": _pack_bfloat,
    "v_swap_b32": _swap,
    "v_permlane32_swap_b32": _permlane_swap,
    "v_permlane16_swap_b32": _permlane_swap,
    "v_nop": _nop,
}
_FLOAT_TESTS = (
    "f",
    "lt",
    "eq",
    "le",
    "gt",
    "lg",
    "ge",
    "o",
    "u",
    "nge",
    "nlg",
    "ngt",
    "nle",
    "neq",
    "nlt",
    "tru",
    "t",
)
_INTEGER_TESTS = ("f", "lt", "eq", "le", "gt", "ne", "ge", "t")
for _prefix in ("cmp", "cmpx"):
    for _kind in ("f16", "f32", "f64"):
        TABLE |= {f"v_{_prefix}_{t}_{_kind}": _compare for t in _FLOAT_TESTS}
    for _kind in ("i16", "u16", "i32", "u32", "i64", "u64"):
        TABLE |= {f"v_{_prefix}_{t}_{_kind}": _compare for t in _INTEGER_TESTS}
    TABLE[f"v_{_prefix}_class_f32"] = _compare


def bind(i: Instruction, target: Target) -> Bound:
    """An instruction of this file's table."""
    return TABLE[i.name](Binder(i, target))
