"""Vector arithmetic with one result: VOP1, VOP2, VOP3 and their SDWA and DPP forms (CDNA2 ISA, 12.7 to 12.10).

A row of the table is name -> (type of the result, types of the sources, function).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic as m
from .arithmetic import F32, I32, I64, U32, U64
from .binding import Binder, Bound, Target
from .faults import NotModelled
from .parse import Instruction
from .waves import Convoy

Row = tuple[str, tuple[str, ...], Callable[..., Any]]

U, I, F, H = "u32", "i32", "f32", "f16"  # noqa: E741
TABLE: dict[str, Row] = {
    # moves and conversions
    "v_mov_b32": (U, (U,), lambda a: a),
    "v_mov_b64": ("u64", ("u64",), lambda a: a),
    "v_accvgpr_read_b32": (U, (U,), lambda a: a),
    "v_accvgpr_write_b32": (U, (U,), lambda a: a),
    "v_accvgpr_mov_b32": (U, (U,), lambda a: a),
    "v_not_b32": (U, (U,), np.bitwise_not),
    "v_bfrev_b32": (U, (U,), m.reverse_bits),
    "v_ffbh_u32": (U, (U,), m.first_bit_high),
    "v_ffbl_b32": (U, (U,), m.first_bit_low),
    "v_cvt_f32_u32": (F, (U,), lambda a: np.asarray(a).astype(F32)),
    "v_cvt_f32_i32": (F, (I,), lambda a: np.asarray(a).astype(F32)),
    "v_cvt_u32_f32": (U, (F,), m.cvt_u32_f32),
    "v_cvt_i32_f32": (I, (F,), m.cvt_i32_f32),
    "v_cvt_f32_f16": (F, (H,), lambda a: np.asarray(a).astype(F32)),
    "v_cvt_f16_f32": (H, (F,), lambda a: np.asarray(a).astype(m.F16)),
    "v_cvt_f32_ubyte0": (F, (U,), lambda a: (a & U32(0xFF)).astype(F32)),
    "v_cvt_f32_ubyte1": (F, (U,), lambda a: (a >> U32(8) & U32(0xFF)).astype(F32)),
    "v_cvt_f32_ubyte2": (F, (U,), lambda a: (a >> U32(16) & U32(0xFF)).astype(F32)),
    "v_cvt_f32_ubyte3": (F, (U,), lambda a: (a >> U32(24)).astype(F32)),
    "v_cvt_f64_f32": ("f64", (F,), lambda a: np.asarray(a).astype(m.F64)),
    "v_cvt_f32_f64": (F, ("f64",), lambda a: np.asarray(a).astype(F32)),
    "v_cvt_f64_i32": ("f64", (I,), lambda a: np.asarray(a).astype(m.F64)),
    "v_cvt_f64_u32": ("f64", (U,), lambda a: np.asarray(a).astype(m.F64)),
    "v_cvt_f16_u16": (H, ("u16",), lambda a: np.asarray(a).astype(m.F16)),
    "v_cvt_f16_i16": (H, ("i16",), lambda a: np.asarray(a).astype(m.F16)),
    # floats
    "v_add_f32": (F, (F, F), np.add),
    "v_sub_f32": (F, (F, F), np.subtract),
    "v_subrev_f32": (F, (F, F), lambda a, b: b - a),
    "v_mul_f32": (F, (F, F), np.multiply),
    "v_min_f32": (F, (F, F), m.min_float),
    "v_max_f32": (F, (F, F), m.max_float),
    "v_min3_f32": (F, (F, F, F), lambda a, b, c: m.min_float(m.min_float(a, b), c)),
    "v_max3_f32": (F, (F, F, F), lambda a, b, c: m.max_float(m.max_float(a, b), c)),
    "v_med3_f32": (F, (F, F, F), m.median_float),
    "v_fma_f32": (F, (F, F, F), m.fma32),
    "v_fract_f32": (F, (F,), m.fract),
    "v_trunc_f32": (F, (F,), np.trunc),
    "v_ceil_f32": (F, (F,), np.ceil),
    "v_floor_f32": (F, (F,), np.floor),
    "v_rndne_f32": (F, (F,), np.rint),
    "v_exp_f32": (F, (F,), m.exp2),
    "v_log_f32": (F, (F,), m.log2),
    "v_rcp_f32": (F, (F,), m.rcp),
    "v_rcp_iflag_f32": (F, (F,), m.rcp),
    "v_rsq_f32": (F, (F,), m.rsq),
    "v_sqrt_f32": (F, (F,), m.sqrt),
    "v_ldexp_f32": (F, (F, I), m.ldexp32),
    "v_frexp_exp_i32_f32": (I, (F,), m.frexp_exp),
    "v_frexp_mant_f32": (F, (F,), m.frexp_mant),
    "v_div_fixup_f32": (F, (F, F, F), m.div_fixup),
    "v_add_f16": (H, (H, H), np.add),
    "v_sub_f16": (H, (H, H), np.subtract),
    "v_mul_f16": (H, (H, H), np.multiply),
    "v_min_f16": (H, (H, H), m.min_float),
    "v_max_f16": (H, (H, H), m.max_float),
    "v_fma_f16": (H, (H, H, H), m.fma16),
    "v_add_f64": ("f64", ("f64", "f64"), np.add),
    "v_mul_f64": ("f64", ("f64", "f64"), np.multiply),
    # integers
    "v_add_u32": (U, (U, U), np.add),
    "v_sub_u32": (U, (U, U), np.subtract),
    "v_subrev_u32": (U, (U, U), lambda a, b: b - a),
    "v_add_i32": (I, (I, I), np.add),
    "v_sub_i32": (I, (I, I), np.subtract),
    "v_add_u16": ("u16", ("u16", "u16"), np.add),
    "v_sub_u16": ("u16", ("u16", "u16"), np.subtract),
    "v_mul_lo_u16": ("u16", ("u16", "u16"), np.multiply),
    "v_mad_u16": ("u16", ("u16", "u16", "u16"), lambda a, b, c: a * b + c),
    "v_min_u16": ("u16", ("u16", "u16"), np.minimum),
    "v_max_u16": ("u16", ("u16", "u16"), np.maximum),
    "v_lshlrev_b16": ("u16", ("u16", "u16"), lambda a, b: m.shift(b, a, 16, True)),
    "v_lshrrev_b16": ("u16", ("u16", "u16"), lambda a, b: m.shift(b, a, 16)),
    "v_ashrrev_i16": ("i16", ("u16", "i16"), lambda a, b: m.shift(b, a, 16)),
    "v_mul_lo_u32": (U, (U, U), np.multiply),
    "v_mul_hi_u32": (U, (U, U), m.mul_hi),
    "v_mul_hi_i32": (I, (I, I), m.mul_hi),
    "v_mul_u32_u24": (U, (U, U), m.mul24),
    "v_mul_i32_i24": (I, (I, I), lambda a, b: m.sign24(a) * m.sign24(b)),
    "v_mul_hi_u32_u24": (U, (U, U), lambda a, b: m.mul_hi(a & U32(0xFFFFFF), b & U32(0xFFFFFF))),
    "v_mad_u32_u24": (U, (U, U, U), lambda a, b, c: m.mul24(a, b) + c),
    "v_mad_i32_i24": (I, (I, I, I), lambda a, b, c: m.sign24(a) * m.sign24(b) + c),
    "v_mad_u32_u16": (U, ("u16", "u16", U), lambda a, b, c: np.asarray(a, U32) * np.asarray(b, U32) + c),
    "v_mad_i32_i16": (I, ("i16", "i16", I), lambda a, b, c: np.asarray(a, I32) * np.asarray(b, I32) + c),
    "v_and_b32": (U, (U, U), np.bitwise_and),
    "v_or_b32": (U, (U, U), np.bitwise_or),
    "v_xor_b32": (U, (U, U), np.bitwise_xor),
    "v_xnor_b32": (U, (U, U), lambda a, b: ~(a ^ b)),
    "v_lshlrev_b32": (U, (U, U), lambda a, b: m.shift(b, a, 32, True)),
    "v_lshrrev_b32": (U, (U, U), lambda a, b: m.shift(b, a, 32)),
    "v_ashrrev_i32": (I, (U, I), lambda a, b: m.shift(b, a, 32)),
    "v_lshlrev_b64": ("u64", (U, "u64"), lambda a, b: m.shift(b, a, 64, True)),
    "v_lshrrev_b64": ("u64", (U, "u64"), lambda a, b: m.shift(b, a, 64)),
    "v_ashrrev_i64": ("i64", (U, "i64"), lambda a, b: m.shift(b, a, 64)),
    "v_lshl_add_u64": ("u64", ("u64", U, "u64"), lambda a, b, c: m.shift(a, b, 8, True) + c),
    "v_min_u32": (U, (U, U), np.minimum),
    "v_max_u32": (U, (U, U), np.maximum),
    "v_min_i32": (I, (I, I), np.minimum),
    "v_max_i32": (I, (I, I), np.maximum),
    "v_min3_u32": (U, (U, U, U), lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_max3_u32": (U, (U, U, U), lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_min3_i32": (I, (I, I, I), lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_max3_i32": (I, (I, I, I), lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_med3_u32": (U, (U, U, U), m.median),
    "v_med3_i32": (I, (I, I, I), m.median),
    "v_bfe_u32": (U, (U, U, U), m.bfe_u32),
    "v_bfe_i32": (I, (I, U, U), m.bfe_i32),
    "v_bfi_b32": (U, (U, U, U), lambda a, b, c: (a & b) | (~a & c)),
    "v_bfm_b32": (U, (U, U), lambda a, b: ((U32(1) << (a & U32(31))) - U32(1)) << (b & U32(31))),
    "v_perm_b32": (U, (U, U, U), m.perm),
    "v_alignbit_b32": (U, (U, U, U), m.align_bits),
    "v_alignbyte_b32": (U, (U, U, U), m.align_bytes),
    "v_lshl_add_u32": (U, (U, U, U), lambda a, b, c: m.shift(a, b, 32, True) + c),
    "v_add_lshl_u32": (U, (U, U, U), lambda a, b, c: m.shift(a + b, c, 32, True)),
    "v_lshl_or_b32": (U, (U, U, U), lambda a, b, c: m.shift(a, b, 32, True) | c),
    "v_and_or_b32": (U, (U, U, U), lambda a, b, c: (a & b) | c),
    "v_or3_b32": (U, (U, U, U), lambda a, b, c: a | b | c),
    "v_xor3_b32": (U, (U, U, U), lambda a, b, c: a ^ b ^ c),
    "v_xad_u32": (U, (U, U, U), lambda a, b, c: (a ^ b) + c),
    "v_add3_u32": (U, (U, U, U), lambda a, b, c: a + b + c),
    "v_bcnt_u32_b32": (U, (U, U), lambda a, b: np.bitwise_count(np.asarray(a, U32)).astype(U32) + b),
    "v_sad_u32": (U, (U, U, U), lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c),
}
#: Other names of the same (RDNA3 ISA, 16).
for new, old in {
    "v_add_nc_u32": "v_add_u32",
    "v_sub_nc_u32": "v_sub_u32",
    "v_subrev_nc_u32": "v_subrev_u32",
    "v_add_nc_i32": "v_add_i32",
    "v_sub_nc_i32": "v_sub_i32",
    "v_add_nc_u16": "v_add_u16",
    "v_sub_nc_u16": "v_sub_u16",
    "v_clz_i32_u32": "v_ffbh_u32",
    "v_ctz_i32_b32": "v_ffbl_b32",
}.items():
    TABLE[new] = TABLE[old]

#: Integer operations that can saturate (VOP3 clamp).
SATURATING = {
    "v_add_u32": np.uint32,
    "v_sub_u32": np.uint32,
    "v_add_nc_u32": np.uint32,
    "v_sub_nc_u32": np.uint32,
    "v_add_i32": np.int32,
    "v_sub_i32": np.int32,
    "v_add_u16": np.uint16,
    "v_sub_u16": np.uint16,
}
SCALE = {"mul:2": 2.0, "mul:4": 4.0, "div:2": 0.5}


def _output(b: Binder, kind: str, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with clamp and output modifiers."""
    clamp = b.flag("clamp")
    factor = 1.0
    for key in ("mul", "div"):
        if b.flag(key):
            factor = SCALE[f"{key}:{b.value(key)}"]
    if kind[0] == "f":
        if factor == 1.0 and not clamp:
            return fn
        dtype = {"f16": m.F16, "f32": F32, "f64": m.F64}[kind]

        def modified(*xs: Any) -> Any:
            r = np.asarray(fn(*xs), dtype) * dtype(factor)
            return np.where(np.isnan(r), dtype(0), np.clip(r, dtype(0), dtype(1))) if clamp else r

        return modified
    if factor != 1.0:
        raise b.fail("output modifier of an integer")
    if clamp:
        if name not in SATURATING:
            raise b.fail("clamp")
        return m.saturating(fn, SATURATING[name])
    return fn


def compute(b: Binder) -> tuple[Callable[[Convoy], Any], Callable[[Convoy, Any], None]]:
    """(value of a convoy, how it is written) of an instruction with one result."""
    name = b.i.name
    if name in ("v_fmac_f32", "v_fmaak_f32", "v_fmamk_f32", "v_mac_f32", "v_fmac_f16"):
        return _accumulating(b)
    if name == "v_cndmask_b32":
        return _select(b)
    if name not in TABLE:
        raise b.fail("unknown vector instruction")
    kind, kinds, fn = TABLE[name]
    half = b.bits_of("op_sel", [0] * 4) if not b.sdwa else [0] * 4
    sources = [
        b.source(k + 1, t, half[k] if int(t[1:]) == 16 else 0, floats=name != "v_mov_b32")
        for k, t in enumerate(kinds)
    ]
    if len(b.i.operands) != len(kinds) + 1:
        raise b.fail(f"{len(b.i.operands)} operands")
    fn = _output(b, kind, name, fn)
    put = b.result(0, kind)
    if len(sources) == 1:
        (x,) = sources
        return (lambda c: fn(x(c))), put
    if len(sources) == 2:
        x, y = sources
        return (lambda c: fn(x(c), y(c))), put
    x, y, z = sources
    return (lambda c: fn(x(c), y(c), z(c))), put


def _accumulating(b: Binder) -> Any:
    name = b.i.name
    if name in ("v_fmaak_f32", "v_fmamk_f32"):
        # v_fmamk: D = S0 * K + S1; v_fmaak: D = S0 * S1 + K, both printed in the order of the sum.
        x, y, z = (b.source(k, F) for k in (1, 2, 3))
        put = b.result(0, F)
        return (lambda c: m.fma32(x(c), y(c), z(c))), put
    kind = H if name.endswith("f16") else F
    x, y, d = b.source(1, kind), b.source(2, kind), b.source(0, kind)
    put = b.result(0, kind)
    if name == "v_mac_f32":  # two roundings, subnormals to zero (LLVM, mac and mad do not honour the mode)
        fn = _output(b, F, name, lambda p, q, r: m.flush(m.flush(m.flush(p) * m.flush(q)) + m.flush(r)))
    else:
        fn = _output(b, kind, name, m.fma32 if kind == F else m.fma16)
    return (lambda c: fn(x(c), y(c), d(c))), put


def _select(b: Binder) -> Any:
    x, y = b.source(1, U, floats=False), b.source(2, U, floats=False)
    r = b.register(3, "s") if len(b.i.operands) > 3 else None
    if r is None:
        raise b.fail("without its mask")
    b.note_read(r)
    put = b.result(0, U)
    s = r.first
    return (lambda c: np.where(c.lane_mask(s), y(c), x(c))), put


def bind(i: Instruction, target: Target) -> Bound:
    """A vector instruction with one result, or a pair of them (gfx11's dual issue)."""
    if i.pair is not None:
        return _dual(i, target)
    b = Binder(i, target)
    value, put = compute(b)
    # Compilers clear one half of a register that was never written before they load the other: registers are tracked
    # whole, so this counts as a definition. What they hold until then is a NaN, and shows in a wrong result.
    clears = i.name == "v_and_b32" and not {"0xffff", "0xffff0000"}.isdisjoint(i.operands[1:])
    parts = ((b.writes, 0),) if clears else ()
    return b.done(lambda c: put(c, value(c)), "valu", parts=parts)


def _dual(i: Instruction, target: Target) -> Bound:
    """Both halves read before either writes (RDNA3 ISA, 7.6)."""
    parts = []
    for half in (i, i.pair):
        assert half is not None
        renamed = Instruction(
            half.address,
            half.size,
            half.mnemonic,
            half.name.replace("v_dual_", "v_"),
            _with_mask(half),
            half.modifiers,
            half.words,
            i.text,
        )
        b = Binder(renamed, target)
        value, put = compute(b)
        parts.append((b.done(lambda c: None, "valu"), value, put))
    (one, value, put), (two, other, put_other) = parts

    def run(c: Convoy) -> None:
        x, y = np.array(value(c)), np.array(other(c))
        put(c, x)
        put_other(c, y)

    if one.writes & two.writes:
        raise NotModelled(f"both halves write the same register: {i}")
    independent = ((one.writes, one.reads), (two.writes, two.reads))
    return Bound(run, one.reads | two.reads, one.writes | two.writes, "valu", parts=independent)


def _with_mask(i: Instruction) -> tuple[str, ...]:
    """Operands of a half; v_dual_cndmask_b32 leaves out its mask, which is VCC."""
    if i.name == "v_dual_cndmask_b32" and len(i.operands) == 3:
        return (*i.operands, "vcc_lo")
    return i.operands


__all__ = ["I64", "TABLE", "U64", "bind"]
