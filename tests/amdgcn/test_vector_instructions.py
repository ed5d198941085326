"""Vector arithmetic, instruction by instruction, against models of one lane in exact rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from formats import add, encode, exactly, fma, is_nan, mul, value
from gcn import valu, valu_packed, valu_special
from gcn.faults import NotModelled
from single import Bench, assembled, tool

pytestmark = pytest.mark.quick

U32 = 0xFFFFFFFF
Model = Callable[..., Any]


def _round(x: float, how: Callable[[float], float]) -> float:
    return math.copysign(how(x), x) if math.isfinite(x) else x


def _integer(x: float, low: int, high: int) -> int:
    if math.isnan(x):
        return 0
    return high if x > high else low if x < low else int(x)


def _less(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    if a == b:
        return a if math.copysign(1, a) < 0 else b
    return min(a, b)


def _more(a: float, b: float) -> float:
    return -_less(-a, -b)


def _median(a: float, b: float, c: float) -> float:
    if any(math.isnan(x) for x in (a, b, c)):
        return _less(_less(a, b), c)
    return sorted((a, b, c))[1]


def _normal(x: float) -> float:
    """Without what is subnormal in single precision."""
    return math.copysign(0.0, x) if abs(x) < 2.0**-126 else x


def _guard(fn: Callable[[float], float], nan_below: float = -math.inf) -> Model:
    """A transcendental function of a flushed operand, its subnormal results flushed; poles as in IEEE."""

    def model(x: float) -> float:
        x = _normal(x)
        if math.isnan(x) or x < nan_below:
            return math.nan
        try:
            return _normal(value("f32", encode("f32", fn(x))))  # type: ignore[arg-type]
        except (ZeroDivisionError, OverflowError, ValueError):
            return math.nan if math.isnan(x) else math.copysign(math.inf, x)

    return model


def _exp2(x: float) -> float:
    return math.inf if x > 1000 else 0.0 if x < -1000 else 2.0**x


def _log2(x: float) -> float:
    return -math.inf if x == 0 else math.inf if math.isinf(x) else math.log2(x)


def _rsq(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else 0.0 if math.isinf(x) else 1 / math.sqrt(x)


def _rcp(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else 1 / x


def _perm(a: int, b: int, select: int) -> int:
    both = a << 32 | b
    result = 0
    for i in range(4):
        s = select >> 8 * i & 255
        if s < 8:
            byte = both >> 8 * s & 255
        elif s < 12:
            byte = 255 if both >> (15 + 16 * (s - 8)) & 1 else 0
        else:
            byte = 0 if s == 12 else 255
        result |= byte << 8 * i
    return result


def _field(x: int, at: int, width: int) -> int:
    return x >> (at & 31) & (1 << (width & 31)) - 1


def _signed_field(x: int, at: int, width: int) -> int:
    width &= 31
    field = _field(x & U32, at, width)
    return field - (1 << width) if width and field >> (width - 1) else field


def _low24(x: int) -> int:
    x &= 0xFFFFFF
    return x - (1 << 24) if x >> 23 else x


def _ldexp(x: float, e: int) -> Any:
    return Fraction(x) * Fraction(2) ** max(-400, min(400, e)) if math.isfinite(x) and x else x


def _fixup(q: float, b: float, c: float) -> float:
    negative = math.copysign(1, b) * math.copysign(1, c)
    if math.isnan(b) or math.isnan(c) or (b == 0 and c == 0) or (math.isinf(b) and math.isinf(c)):
        return math.nan
    if b == 0 or math.isinf(c):
        return math.copysign(math.inf, negative)
    if math.isinf(b) or c == 0:
        return math.copysign(0.0, negative)
    return math.copysign(q, negative)


def _mac(a: float, b: float, d: float) -> Any:
    product = value("f32", encode("f32", mul(_normal(a), _normal(b))))
    total = value("f32", encode("f32", add(_normal(float(product)), _normal(d))))
    return _normal(float(total))


F, H, U, I, D = "f32", "f16", "u32", "i32", "f64"  # noqa: E741
#: name -> (result, sources, model[, relative error allowed]).
MODELS: dict[str, tuple[Any, ...]] = {
    "v_mov_b32": (U, [U], lambda a: a),
    "v_mov_b64": ("u64", ["u64"], lambda a: a),
    "v_not_b32": (U, [U], lambda a: ~a),
    "v_bfrev_b32": (U, [U], lambda a: int(f"{a:032b}"[::-1], 2)),
    "v_ffbh_u32": (U, [U], lambda a: 32 - a.bit_length() if a else -1),
    "v_ffbl_b32": (U, [U], lambda a: (a & -a).bit_length() - 1 if a else -1),
    "v_cvt_f32_u32": (F, [U], Fraction),
    "v_cvt_f32_i32": (F, [I], Fraction),
    "v_cvt_u32_f32": (U, [F], lambda a: _integer(a, 0, U32)),
    "v_cvt_i32_f32": (I, [F], lambda a: _integer(a, -(2**31), 2**31 - 1)),
    "v_cvt_f32_f16": (F, [H], lambda a: a),
    "v_cvt_f16_f32": (H, [F], lambda a: a),
    **{f"v_cvt_f32_ubyte{k}": (F, [U], lambda a, k=k: float(a >> 8 * k & 255)) for k in range(4)},
    "v_cvt_f64_f32": (D, [F], lambda a: a),
    "v_cvt_f32_f64": (F, [D], lambda a: a),
    "v_cvt_f64_i32": (D, [I], float),
    "v_cvt_f64_u32": (D, [U], float),
    "v_cvt_f16_u16": (H, ["u16"], Fraction),
    "v_cvt_f16_i16": (H, ["i16"], Fraction),
    "v_add_f32": (F, [F, F], add),
    "v_sub_f32": (F, [F, F], lambda a, b: add(a, -b)),
    "v_subrev_f32": (F, [F, F], lambda a, b: add(b, -a)),
    "v_mul_f32": (F, [F, F], mul),
    "v_min_f32": (F, [F, F], _less),
    "v_max_f32": (F, [F, F], _more),
    "v_min3_f32": (F, [F, F, F], lambda a, b, c: _less(_less(a, b), c)),
    "v_max3_f32": (F, [F, F, F], lambda a, b, c: _more(_more(a, b), c)),
    "v_med3_f32": (F, [F, F, F], _median),
    "v_fma_f32": (F, [F, F, F], fma),
    "v_fract_f32": (
        F,
        [F],
        lambda a: (
            min(Fraction(a) - math.floor(a), Fraction(1) - Fraction(1, 1 << 24)) if exactly(a) else math.nan
        ),
        1e-6,
    ),
    "v_trunc_f32": (F, [F], lambda a: _round(a, lambda x: float(math.trunc(x)))),
    "v_ceil_f32": (F, [F], lambda a: _round(a, lambda x: float(math.ceil(x)))),
    "v_floor_f32": (F, [F], lambda a: _round(a, lambda x: float(math.floor(x)))),
    "v_rndne_f32": (F, [F], lambda a: _round(a, lambda x: float(round(x)))),
    "v_exp_f32": (F, [F], _guard(_exp2), 1e-6),
    "v_log_f32": (F, [F], _guard(_log2, -0.0), 1e-6),
    "v_rcp_f32": (F, [F], _guard(_rcp), 1e-6),
    "v_rcp_iflag_f32": (F, [F], _guard(_rcp), 1e-6),
    "v_rsq_f32": (F, [F], _guard(_rsq, -0.0), 1e-6),
    "v_sqrt_f32": (F, [F], _guard(math.sqrt, -0.0), 1e-6),
    "v_ldexp_f32": (F, [F, I], _ldexp),
    "v_frexp_exp_i32_f32": (I, [F], lambda a: math.frexp(a)[1] if math.isfinite(a) else 0),
    "v_frexp_mant_f32": (F, [F], lambda a: math.frexp(a)[0] if math.isfinite(a) else a),
    "v_div_fixup_f32": (F, [F, F, F], _fixup),
    "v_add_f16": (H, [H, H], add),
    "v_sub_f16": (H, [H, H], lambda a, b: add(a, -b)),
    "v_mul_f16": (H, [H, H], mul),
    "v_min_f16": (H, [H, H], _less),
    "v_max_f16": (H, [H, H], _more),
    "v_fma_f16": (H, [H, H, H], fma),
    "v_add_f64": (D, [D, D], add),
    "v_mul_f64": (D, [D, D], mul),
    "v_add_u32": (U, [U, U], lambda a, b: a + b),
    "v_sub_u32": (U, [U, U], lambda a, b: a - b),
    "v_subrev_u32": (U, [U, U], lambda a, b: b - a),
    "v_add_i32": (I, [I, I], lambda a, b: a + b),
    "v_sub_i32": (I, [I, I], lambda a, b: a - b),
    "v_add_u16": ("u16", ["u16", "u16"], lambda a, b: a + b),
    "v_sub_u16": ("u16", ["u16", "u16"], lambda a, b: a - b),
    "v_mul_lo_u16": ("u16", ["u16", "u16"], lambda a, b: a * b),
    "v_mad_u16": ("u16", ["u16", "u16", "u16"], lambda a, b, c: a * b + c),
    "v_min_u16": ("u16", ["u16", "u16"], min),
    "v_max_u16": ("u16", ["u16", "u16"], max),
    "v_lshlrev_b16": ("u16", ["u16", "u16"], lambda a, b: b << (a & 15)),
    "v_lshrrev_b16": ("u16", ["u16", "u16"], lambda a, b: b >> (a & 15)),
    "v_ashrrev_i16": ("i16", ["u16", "i16"], lambda a, b: b >> (a & 15)),
    "v_mul_lo_u32": (U, [U, U], lambda a, b: a * b),
    "v_mul_hi_u32": (U, [U, U], lambda a, b: a * b >> 32),
    "v_mul_hi_i32": (I, [I, I], lambda a, b: a * b >> 32),
    "v_mul_u32_u24": (U, [U, U], lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    "v_mul_i32_i24": (I, [I, I], lambda a, b: _low24(a) * _low24(b)),
    "v_mul_hi_u32_u24": (U, [U, U], lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32),
    "v_mad_u32_u24": (U, [U, U, U], lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c),
    "v_mad_i32_i24": (I, [I, I, I], lambda a, b, c: _low24(a) * _low24(b) + c),
    "v_mad_u32_u16": (U, ["u16", "u16", U], lambda a, b, c: a * b + c),
    "v_mad_i32_i16": (I, ["i16", "i16", I], lambda a, b, c: a * b + c),
    "v_and_b32": (U, [U, U], lambda a, b: a & b),
    "v_or_b32": (U, [U, U], lambda a, b: a | b),
    "v_xor_b32": (U, [U, U], lambda a, b: a ^ b),
    "v_xnor_b32": (U, [U, U], lambda a, b: ~(a ^ b)),
    "v_lshlrev_b32": (U, [U, U], lambda a, b: b << (a & 31)),
    "v_lshrrev_b32": (U, [U, U], lambda a, b: b >> (a & 31)),
    "v_ashrrev_i32": (I, [U, I], lambda a, b: b >> (a & 31)),
    "v_lshlrev_b64": ("u64", [U, "u64"], lambda a, b: b << (a & 63)),
    "v_lshrrev_b64": ("u64", [U, "u64"], lambda a, b: b >> (a & 63)),
    "v_ashrrev_i64": ("i64", [U, "i64"], lambda a, b: b >> (a & 63)),
    "v_lshl_add_u64": ("u64", ["u64", U, "u64"], lambda a, b, c: (a << (b & 7)) + c),
    "v_min_u32": (U, [U, U], min),
    "v_max_u32": (U, [U, U], max),
    "v_min_i32": (I, [I, I], min),
    "v_max_i32": (I, [I, I], max),
    "v_min3_u32": (U, [U, U, U], min),
    "v_max3_u32": (U, [U, U, U], max),
    "v_min3_i32": (I, [I, I, I], min),
    "v_max3_i32": (I, [I, I, I], max),
    "v_med3_u32": (U, [U, U, U], lambda *x: sorted(x)[1]),
    "v_med3_i32": (I, [I, I, I], lambda *x: sorted(x)[1]),
    "v_bfe_u32": (U, [U, U, U], _field),
    "v_bfe_i32": (I, [I, U, U], _signed_field),
    "v_bfi_b32": (U, [U, U, U], lambda a, b, c: (b & a) | (c & ~a)),
    "v_bfm_b32": (U, [U, U], lambda a, b: ((1 << (a & 31)) - 1) << (b & 31)),
    "v_perm_b32": (U, [U, U, U], _perm),
    "v_alignbit_b32": (U, [U, U, U], lambda a, b, c: (a << 32 | b) >> (c & 31)),
    "v_alignbyte_b32": (U, [U, U, U], lambda a, b, c: (a << 32 | b) >> 8 * (c & 3)),
    "v_lshl_add_u32": (U, [U, U, U], lambda a, b, c: (a << (b & 31)) + c),
    "v_add_lshl_u32": (U, [U, U, U], lambda a, b, c: (a + b) << (c & 31)),
    "v_lshl_or_b32": (U, [U, U, U], lambda a, b, c: a << (b & 31) | c),
    "v_and_or_b32": (U, [U, U, U], lambda a, b, c: a & b | c),
    "v_or3_b32": (U, [U, U, U], lambda a, b, c: a | b | c),
    "v_xor3_b32": (U, [U, U, U], lambda a, b, c: a ^ b ^ c),
    "v_xad_u32": (U, [U, U, U], lambda a, b, c: (a ^ b) + c),
    "v_add3_u32": (U, [U, U, U], lambda a, b, c: a + b + c),
    "v_bcnt_u32_b32": (U, [U, U], lambda a, b: a.bit_count() + b),
    "v_sad_u32": (U, [U, U, U], lambda a, b, c: abs(a - b) + c),
}
for _new, _old in {
    "v_add_nc_u32": "v_add_u32",
    "v_sub_nc_u32": "v_sub_u32",
    "v_subrev_nc_u32": "v_subrev_u32",
    "v_add_nc_i32": "v_add_i32",
    "v_sub_nc_i32": "v_sub_i32",
    "v_add_nc_u16": "v_add_u16",
    "v_sub_nc_u16": "v_sub_u16",
    "v_clz_i32_u32": "v_ffbh_u32",
    "v_ctz_i32_b32": "v_ffbl_b32",
    "v_accvgpr_read_b32": "v_mov_b32",
    "v_accvgpr_write_b32": "v_mov_b32",
    "v_accvgpr_mov_b32": "v_mov_b32",
}.items():
    MODELS[_new] = MODELS[_old]

#: Where each source lies, and results.
PLACES, RESULT = (2, 6, 10), 20
FILES = {"v_accvgpr_read_b32": ("v", "a"), "v_accvgpr_write_b32": ("a", "v"), "v_accvgpr_mov_b32": ("a", "a")}

EDGES32 = [
    0,
    0x80000000,
    0x7F800000,
    0xFF800000,
    0x7FC00000,
    1,
    0x80000001,
    0x7FFFFF,
    0x800000,
    0x3F800000,
    0xBF800000,
]
EDGES32 += [0x4F000000, 0xCF000000, 0x4F800000, 0x7F7FFFFF, 0x3F800001, 0x00FFFFFF, 0xFFFFFFFF, 0x7FFFFFFF]
EDGES16 = [0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0xFFFF, 0x7FFF]


def _name_of(register: str, at: int, kind: str) -> str:
    return f"{register}[{at}:{at + 1}]" if kind[1:] == "64" else f"{register}{at}"


def line_of(name: str) -> str:
    """Assembly of a table's instruction."""
    result, sources = MODELS[name][:2]
    to, of = FILES.get(name, ("v", "v"))
    operands = [_name_of(to, RESULT, result)]
    operands += [_name_of(of, p, k) for p, k in zip(PLACES, sources, strict=False)]
    return f"{name} {', '.join(operands)}"


def _base(name: str, side: int) -> int:
    return 256 if FILES.get(name, ("v", "v"))[side] == "a" else 0


def fill(b: Bench, r: int, kind: str) -> None:
    """A register (or pair) with values of a type: edges, small ones, anything."""
    shape = b.v[r].shape
    anything = b.random.integers(0, 1 << 32, shape, dtype=np.uint32)
    if kind == "f64":
        real = b.random.normal(size=shape) * 2.0 ** b.random.integers(-200, 200, shape)
        raw = real.view(np.uint64)
        b.v[r], b.v[r + 1] = raw.astype(np.uint32), (raw >> np.uint64(32)).astype(np.uint32)
        return
    if kind[1:] == "64":
        b.v[r], b.v[r + 1] = anything, b.random.integers(0, 1 << 32, shape, dtype=np.uint32)
        return
    if kind[1:] == "16":
        edges = b.random.choice(np.array(EDGES16, np.uint32), shape)
        near = b.random.normal(size=shape).astype(np.float16).view(np.uint16).astype(np.uint32)
    else:
        edges = b.random.choice(np.array(EDGES32, np.uint32), shape)
        scale = 2.0 ** b.random.integers(-8, 8, shape)
        near = (b.random.normal(size=shape) * scale).astype(np.float32).view(np.uint32)
    which = b.random.integers(0, 4, shape)
    if kind[0] == "f":
        anything = np.where(which == 2, anything, near)
    chosen = np.where(which == 0, edges, np.where(which == 1, near, anything))
    b.v[r] = chosen & np.uint32(0xFFFF) | anything << np.uint32(16) if kind[1:] == "16" else chosen


def raw_of(b: Bench, r: int, kind: str, wave: int, lane: int) -> int:
    """Bits of a source or result."""
    if kind[1:] == "64":
        return b.pair(r, wave, lane)
    return int(b.v[r, wave, lane]) & (1 << int(kind[1:])) - 1


def same(kind: str, got: int, wanted: int, error: float) -> bool:
    """Equal bits, or NaN for NaN, or within a relative error."""
    if is_nan(kind, wanted):
        return is_nan(kind, got)
    if got == wanted:
        return True
    if not error:
        return False
    a, b = float(value(kind, got)), float(value(kind, wanted))
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= error * max(abs(b), 2.0**-126)


LINES = tuple(line_of(name) for name in MODELS)


def get(line: str, lines: tuple[str, ...]) -> Any:
    """(arch, instruction) of a line; skips where the assembler is missing."""
    if tool("llvm-mc", "19") is None:
        pytest.skip("llvm-mc-19 is not installed (llvm-19)")
    found = assembled(lines)
    if line not in found and tool("llvm-mc", "22") is None:
        pytest.skip("llvm-mc of LLVM 22 is not installed: gfx950")
    return found[line]


@pytest.mark.parametrize("name", MODELS)
def test_one_result(name: str) -> None:
    """Random and special values in every lane; inactive lanes keep what they have."""
    result, sources, model, *error = MODELS[name]
    arch, i = get(line_of(name), LINES)
    b = Bench(arch, len(name))
    for place, kind in zip(PLACES, sources, strict=False):
        fill(b, place + _base(name, 1), kind)
    d = RESULT + _base(name, 0)
    before = b.v[d].copy()
    bound = b.run(i)
    assert bound.writes
    for wave in range(2):
        for lane in range(b.target.lanes):
            got = raw_of(b, d, result, wave, lane)
            if not b.mask[wave, lane]:
                assert int(b.v[d, wave, lane]) == int(before[wave, lane]), "an inactive lane was written"
                continue
            raw = [
                raw_of(b, p + _base(name, 1), k, wave, lane) for p, k in zip(PLACES, sources, strict=False)
            ]
            wanted = encode(result, model(*(value(k, x) for k, x in zip(sources, raw, strict=True))))
            assert same(result, got, wanted, error[0] if error else 0.0), (
                f"{i.text}: {[hex(x) for x in raw]} gave {got:#x}, not {wanted:#x}"
            )


def test_every_table_row_has_a_model() -> None:
    assert set(valu.TABLE) == set(MODELS)


# --- forms of operands -----------------------------------------------------------------------------------


def _f(x: int) -> float:
    return float(value("f32", x))


def _h(x: int) -> float:
    return float(value("f16", x))


def _e(x: Any) -> int:
    return encode("f32", x)


def _clamp(x: int) -> int:
    v = _f(x)
    return _e(0.0 if math.isnan(v) else min(max(v, 0.0), 1.0))


def _signed(x: int, width: int) -> int:
    x &= (1 << width) - 1
    return x - (1 << width) if x >> (width - 1) else x


def _clamp16(v: float) -> float:
    return 0.0 if math.isnan(v) else min(max(v, 0.0), 1.0)


def _pack(low: int, high: int) -> int:
    return low & 0xFFFF | (high & 0xFFFF) << 16


def _halves(fn: Callable[..., int], *select: tuple[int, int]) -> Model:
    """A packed operation; select: halves of (low result, high result) of each source."""

    def model(*raw: int) -> int:
        low = [r >> 16 * s[0] & 0xFFFF for r, s in zip(raw, select, strict=True)]
        high = [r >> 16 * s[1] & 0xFFFF for r, s in zip(raw, select, strict=True)]
        return _pack(fn(*low), fn(*high))

    return model


def _h16(fn: Model) -> Callable[..., int]:
    return lambda *raw: encode("f16", fn(*(_h(r) for r in raw)))


P = (0, 1)
#: line -> (kind of the sources' values, model of raw bits of v2, v6, v10, and of the result's old bits).
FORMS: dict[str, tuple[str, Model]] = {
    "v_add_f32_e64 v20, -v2, |v6|": (F, lambda a, b, c, d: _e(add(-_f(a), abs(_f(b))))),
    "v_mul_f32_e64 v20, -|v2|, v6 clamp": (F, lambda a, b, c, d: _clamp(_e(mul(-abs(_f(a)), _f(b))))),
    "v_add_f32_e64 v20, v2, v6 mul:2": (F, lambda a, b, c, d: _e(mul(_f(_e(add(_f(a), _f(b)))), 2.0))),
    "v_add_f32_e64 v20, v2, v6 div:2": (F, lambda a, b, c, d: _e(mul(_f(_e(add(_f(a), _f(b)))), 0.5))),
    "v_add_f32_e32 v20, 0.5, v6": (F, lambda a, b, c, d: _e(add(0.5, _f(b)))),
    "v_add_f32_e32 v20, 0x40490fdb, v6": (F, lambda a, b, c, d: _e(add(_f(0x40490FDB), _f(b)))),
    "v_add_u32_e32 v20, -16, v6": (U, lambda a, b, c, d: b - 16),
    "v_and_b32_e32 v20, 1.0, v6": (U, lambda a, b, c, d: 0x3F800000 & b),
    "v_add_u32_e64 v20, v2, v6 clamp": (U, lambda a, b, c, d: min(a + b, U32)),
    "v_sub_u32_e64 v20, v2, v6 clamp": (U, lambda a, b, c, d: max(a - b, 0)),
    "v_sub_u16_e64 v20, v2, v6 clamp": (U, lambda a, b, c, d: max((a & 0xFFFF) - (b & 0xFFFF), 0)),
    "v_mov_b32_e32 v20, 0.15915494": (U, lambda a, b, c, d: 0x3E22F983),
    "v_cvt_f32_f16_sdwa v20, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1": (
        F,
        lambda a, b, c, d: _e(_h(a >> 16)),
    ),
    "v_add_u32_sdwa v20, v2, v6 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_3 src1_sel:WORD_0": (
        U,
        lambda a, b, c, d: d & 0xFFFF | ((a >> 24) + (b & 0xFFFF)) << 16,
    ),
    "v_add_u32_sdwa v20, sext(v2), v6 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:DWORD": (
        U,
        lambda a, b, c, d: _signed(a >> 8, 8) + b,
    ),
    "v_lshlrev_b32_sdwa v20, v2, v6 dst_sel:BYTE_2 dst_unused:UNUSED_PAD src0_sel:BYTE_0 src1_sel:BYTE_2": (
        U,
        lambda a, b, c, d: ((b >> 16 & 255) << (a & 31) & 255) << 16,
    ),
    "v_min_u16_sdwa v20, v2, v6 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD": (
        U,
        lambda a, b, c, d: min(a >> 16, b & 0xFFFF),
    ),
    "v_add_f16_e64 v20, v2, v6 clamp": (
        H,
        lambda a, b, c, d: encode("f16", _clamp16(_h(encode("f16", add(_h(a), _h(b)))))),
    ),
    "v_fma_f16 v20, v2, v6, v10 op_sel:[1,0,0,0]": (
        H,
        lambda a, b, c, d: encode("f16", fma(_h(a >> 16), _h(b), _h(c))) | d & 0xFFFF0000,
    ),
    "v_fma_f16 v20, v2, v6, v10 op_sel:[0,1,1,1]": (
        H,
        lambda a, b, c, d: encode("f16", fma(_h(a), _h(b >> 16), _h(c >> 16))) << 16 | d & 0xFFFF,
    ),
    "v_add_nc_u16 v20, v2, v6 op_sel:[0,1,1]": (
        U,
        lambda a, b, c, d: (a + (b >> 16) & 0xFFFF) << 16 | d & 0xFFFF,
    ),
    # accumulating and mixed
    "v_fmac_f32_e32 v20, v2, v6": (F, lambda a, b, c, d: _e(fma(_f(a), _f(b), _f(d)))),
    "v_fmac_f16_e32 v20, v2, v6": (
        H,
        lambda a, b, c, d: encode("f16", fma(_h(a), _h(b), _h(d))) | d & 0xFFFF0000,
    ),
    "v_mac_f32_e32 v20, v2, v6": (F, lambda a, b, c, d: _e(_mac(_f(a), _f(b), _f(d)))),
    "v_fmaak_f32 v20, v2, v6, 0x40490fdb": (F, lambda a, b, c, d: _e(fma(_f(a), _f(b), _f(0x40490FDB)))),
    "v_fmamk_f32 v20, v2, 0x40490fdb, v6": (F, lambda a, b, c, d: _e(fma(_f(a), _f(0x40490FDB), _f(b)))),
    "v_fma_mix_f32 v20, v2, v6, v10 op_sel:[1,0,0] op_sel_hi:[1,0,0]": (
        F,
        lambda a, b, c, d: _e(fma(_h(a >> 16), _f(b), _f(c))),
    ),
    "v_fma_mix_f32 v20, -v2, |v6|, v10 op_sel_hi:[0,0,1]": (
        F,
        lambda a, b, c, d: _e(fma(-_f(a), abs(_f(b)), _h(c))),
    ),
    "v_fma_mixlo_f16 v20, v2, v6, v10 op_sel_hi:[0,1,0]": (
        F,
        lambda a, b, c, d: encode("f16", fma(_f(a), _h(b), _f(c))) | d & 0xFFFF0000,
    ),
    "v_fma_mixhi_f16 v20, v2, v6, v10": (
        F,
        lambda a, b, c, d: encode("f16", fma(_f(a), _f(b), _f(c))) << 16 | d & 0xFFFF,
    ),
    "v_pack_b32_f16 v20, v2, v6": (U, lambda a, b, c, d: _pack(a, b)),
    "v_pack_b32_f16 v20, v2, v6 op_sel:[1,1,0]": (U, lambda a, b, c, d: _pack(a >> 16, b >> 16)),
    # packed halves
    "v_pk_add_f16 v20, v2, v6": (H, _halves(_h16(add), P, P)),
    "v_pk_mul_f16 v20, v2, v6 op_sel:[1,0] op_sel_hi:[0,1]": (H, _halves(_h16(mul), (1, 0), P)),
    "v_pk_fma_f16 v20, v2, v6, v10": (H, _halves(_h16(fma), P, P, P)),
    "v_pk_min_f16 v20, v2, v6": (H, _halves(_h16(_less), P, P)),
    "v_pk_max_f16 v20, v2, v6": (H, _halves(_h16(_more), P, P)),
    "v_pk_add_u16 v20, v2, v6": (U, _halves(lambda a, b: a + b, P, P)),
    "v_pk_add_u16 v20, v2, -1": (U, lambda a, b, c, d: _pack(a - 1, (a >> 16) - 1)),
    "v_pk_sub_u16 v20, v2, v6": (U, _halves(lambda a, b: a - b, P, P)),
    "v_pk_sub_u16 v20, v2, v6 clamp": (U, _halves(lambda a, b: max(a - b, 0), P, P)),
    "v_pk_add_i16 v20, v2, v6": (U, _halves(lambda a, b: a + b, P, P)),
    "v_pk_sub_i16 v20, v2, v6": (U, _halves(lambda a, b: a - b, P, P)),
    "v_pk_mul_lo_u16 v20, v2, v6": (U, _halves(lambda a, b: a * b, P, P)),
    "v_pk_mad_u16 v20, v2, v6, v10": (U, _halves(lambda a, b, c: a * b + c, P, P, P)),
    "v_pk_mad_i16 v20, v2, v6, v10": (U, _halves(lambda a, b, c: a * b + c, P, P, P)),
    "v_pk_min_u16 v20, v2, v6": (U, _halves(min, P, P)),
    "v_pk_max_u16 v20, v2, v6": (U, _halves(max, P, P)),
    "v_pk_min_i16 v20, v2, v6": (U, _halves(lambda a, b: min(_signed(a, 16), _signed(b, 16)), P, P)),
    "v_pk_max_i16 v20, v2, v6": (U, _halves(lambda a, b: max(_signed(a, 16), _signed(b, 16)), P, P)),
    "v_pk_lshlrev_b16 v20, v2, v6": (U, _halves(lambda a, b: b << (a & 15), P, P)),
    "v_pk_lshrrev_b16 v20, v2, v6": (U, _halves(lambda a, b: b >> (a & 15), P, P)),
    "v_pk_ashrrev_i16 v20, v2, v6": (U, _halves(lambda a, b: _signed(b, 16) >> (a & 15), P, P)),
    # dot products
    "v_dot4_i32_i8 v20, v2, v6, v10": (
        U,
        lambda a, b, c, d: sum(_signed(a >> s, 8) * _signed(b >> s, 8) for s in (0, 8, 16, 24)) + c,
    ),
    "v_dot4c_i32_i8_e32 v20, v2, v6": (
        U,
        lambda a, b, c, d: sum(_signed(a >> s, 8) * _signed(b >> s, 8) for s in (0, 8, 16, 24)) + d,
    ),
    "v_dot4_i32_iu8 v20, v2, v6, v10 neg_lo:[1,0,0]": (
        U,
        lambda a, b, c, d: sum(_signed(a >> s, 8) * (b >> s & 255) for s in (0, 8, 16, 24)) + c,
    ),
    # lanes and bits
    "v_cvt_pkrtz_f16_f32 v20, v2, v6": (F, lambda a, b, c, d: _pack(_truncated(a), _truncated(b))),
    "v_cvt_pk_rtz_f16_f32 v20, v2, v6": (F, lambda a, b, c, d: _pack(_truncated(a), _truncated(b))),
    "v_cvt_pk_bf16_f32 v20, v2, v6": (F, lambda a, b, c, d: _pack(_bf16(a), _bf16(b))),
}


def _truncated(raw: int) -> int:
    """A float to half precision, towards zero."""
    x = _f(raw)
    if not math.isfinite(x):
        return encode("f16", x)
    nearest = encode("f16", x)
    near = _h(nearest)
    return nearest - 1 if abs(near) > abs(x) else nearest


def _bf16(raw: int) -> int:
    if math.isnan(_f(raw)):
        return raw >> 16 | 0x40
    low, high = raw & 0xFFFF, raw >> 16
    return high + (low > 0x8000 or (low == 0x8000 and high & 1))


FORM_LINES = tuple(FORMS)


@pytest.mark.parametrize("line", FORMS)
def test_forms(line: str) -> None:
    """Modifiers, constants, SDWA, halves, accumulation."""
    kind, model = FORMS[line]
    arch, i = get(line, FORM_LINES)
    b = Bench(arch, len(line))
    for r in (2, 6, 10, 20):
        fill(b, r, "f32" if kind == F else "u32")
        if kind == H:
            fill(b, r, "f16")
    before = b.v.copy()
    b.run(i)
    halves = kind == H or "f16" in line.split()[0].replace("_f32_f16", "").replace("mix_f32", "")
    for wave in range(2):
        for lane in range(b.target.lanes):
            if not b.mask[wave, lane]:
                assert b.v[20, wave, lane] == before[20, wave, lane]
                continue
            raw = [int(before[r, wave, lane]) for r in (2, 6, 10, 20)]
            wanted = (
                model(*raw) if model.__code__.co_argcount in (4,) else model(*raw[: _count(line)])
            ) & U32
            got = int(b.v[20, wave, lane])
            if halves:
                good = all(same("f16", got >> s & 0xFFFF, wanted >> s & 0xFFFF, 0.0) for s in (0, 16))
            else:
                good = same("f32" if kind == F else "u32", got, wanted, 0.0)
            assert good, f"{i.text}: {[hex(x) for x in raw]} gave {got:#x}, not {wanted:#x}"


def _count(line: str) -> int:
    return line.count(", v")


#: Packed floats: line -> model of pairs.
PAIRS: dict[str, Model] = {
    "v_pk_add_f32 v[20:21], v[2:3], v[6:7]": lambda a, b, c: [add(x, y) for x, y in zip(a, b, strict=True)],
    "v_pk_mul_f32 v[20:21], v[2:3], v[6:7] op_sel:[1,0] op_sel_hi:[0,1]": lambda a, b, c: [
        mul(a[1], b[0]),
        mul(a[0], b[1]),
    ],
    "v_pk_fma_f32 v[20:21], v[2:3], v[6:7], v[10:11] neg_lo:[1,0,0] neg_hi:[0,1,0]": lambda a, b, c: [
        fma(-a[0], b[0], c[0]),
        fma(a[1], -b[1], c[1]),
    ],
    "v_pk_fma_f32 v[20:21], v[2:3], v[6:7], 1.0 op_sel_hi:[1,1,0]": lambda a, b, c: [
        fma(a[0], b[0], 1.0),
        fma(a[1], b[1], 1.0),
    ],
    "v_pk_mov_b32 v[20:21], v[2:3], v[6:7] op_sel:[1,0]": lambda a, b, c: [a[1], b[0]],
}


@pytest.mark.parametrize("line", PAIRS)
def test_packed_floats(line: str) -> None:
    arch, i = get(line, tuple(PAIRS))
    b = Bench(arch, 3)
    for r in (2, 3, 6, 7, 10, 11):
        fill(b, r, "f32")
    b.run(i)
    for wave in range(2):
        for lane in np.flatnonzero(b.mask[wave]):
            pairs = [[_f(int(b.v[r + k, wave, lane])) for k in (0, 1)] for r in (2, 6, 10)]
            for k, exact in enumerate(PAIRS[line](*pairs)):
                got = int(b.v[20 + k, wave, lane])
                assert same("f32", got, _e(exact), 0.0), f"{i.text}: {pairs} gave {got:#x} in half {k}"


# --- carries, masks and lanes ----------------------------------------------------------------------------

_CARRY = {
    "v_add_co_u32 v20, vcc, v2, v6": lambda a, b, k: a + b,
    "v_sub_co_u32 v20, vcc, v2, v6": lambda a, b, k: a - b,
    "v_subrev_co_u32 v20, vcc, v2, v6": lambda a, b, k: b - a,
    "v_addc_co_u32 v20, vcc, v2, v6, vcc": lambda a, b, k: a + b + k,
    "v_subb_co_u32 v20, vcc, v2, v6, vcc": lambda a, b, k: a - b - k,
    "v_subbrev_co_u32 v20, vcc, v2, v6, vcc": lambda a, b, k: b - a - k,
    "v_add_co_ci_u32 v20, vcc_lo, v2, v6, vcc_lo": lambda a, b, k: a + b + k,
    "v_sub_co_ci_u32 v20, vcc_lo, v2, v6, vcc_lo": lambda a, b, k: a - b - k,
    "v_subrev_co_ci_u32 v20, vcc_lo, v2, v6, vcc_lo": lambda a, b, k: b - a - k,
}


@pytest.mark.parametrize("line", _CARRY)
def test_carries(line: str) -> None:
    """32 of 33 bits in the register, the last in the mask; 0 for inactive lanes."""
    arch, i = get(line, tuple(_CARRY))
    b = Bench(arch, 1)
    fill(b, 2, "u32")
    fill(b, 6, "u32")
    carry = b.c.lane_mask(106)
    b.run(i)
    after = b.c.lane_mask(106)
    for wave in range(2):
        for lane in range(b.target.lanes):
            exact = _CARRY[line](int(b.v[2, wave, lane]), int(b.v[6, wave, lane]), int(carry[wave, lane]))
            assert bool(after[wave, lane]) == (b.mask[wave, lane] and not 0 <= exact <= U32)
            if b.mask[wave, lane]:
                assert int(b.v[20, wave, lane]) == exact & U32


_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "f": lambda a, b: False,
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "lg": lambda a, b: a < b or a > b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
    "o": lambda a, b: a == a and b == b,
    "u": lambda a, b: a != a or b != b,
    "nge": lambda a, b: not a >= b,
    "nlg": lambda a, b: not (a < b or a > b),
    "ngt": lambda a, b: not a > b,
    "nle": lambda a, b: not a <= b,
    "neq": lambda a, b: a != b,
    "nlt": lambda a, b: not a < b,
    "tru": lambda a, b: True,
    "t": lambda a, b: True,
}
COMPARISONS = sorted(n for n in valu_special.TABLE if n.startswith("v_cmp") and "class" not in n)


def _compare_line(name: str, arch: str) -> str:
    kind = name.rpartition("_")[2]
    x, y = (_name_of("v", r, kind) for r in (2, 6))
    if arch.startswith("gfx1"):
        return f"{name}_e64 {'' if 'cmpx' in name else 's20, '}{x}, {y}"
    return f"{name}_e64 s[20:21], {x}, {y}"


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100"])
def test_comparisons(arch: str) -> None:
    """Every comparison of every type, its mask in scalar registers; v_cmpx in EXEC too."""
    lines = {_compare_line(n, arch): n for n in COMPARISONS}
    if tool("llvm-mc", "19") is None:
        pytest.skip("llvm-mc-19 is not installed (llvm-19)")
    from single import assemble

    found = assemble(lines, arch)
    # gfx11 says t where gfx9 says tru, of floats; it lacks some of the others.
    assert all("_t_f" in line for line in set(lines) - set(found)) or arch != "gfx90a"
    for line, i in found.items():
        name = lines[line]
        test, kind = name.split("_")[2:]
        b = Bench(arch, len(name))
        fill(b, 2, kind)
        fill(b, 6, kind)
        equal = b.random.random(b.mask.shape) < 0.3
        for k in (0, 1):
            b.v[6 + k][equal] = b.v[2 + k][equal]
        active = b.mask.copy()
        b.run(i)
        register = 126 if "cmpx" in name and arch == "gfx1100" else 20
        mask = b.c.lane_mask(register)
        for wave in range(2):
            for lane in range(b.target.lanes):
                x, y = (value(kind, raw_of(b, r, kind, wave, lane)) for r in (2, 6))
                wanted = bool(active[wave, lane]) and _TESTS[test](x, y)
                assert bool(mask[wave, lane]) == wanted, f"{i.text}: {x} and {y}"
        assert np.array_equal(b.mask, mask if "cmpx" in name else active)


@pytest.mark.parametrize("name", ["v_cmp_class_f32", "v_cmpx_class_f32"])
def test_classes(name: str) -> None:
    """Each class of floats by its bit."""
    arch, i = get(
        f"{name}_e64 s[20:21], v2, v6",
        tuple(f"{n}_class_f32_e64 s[20:21], v2, v6" for n in ("v_cmp", "v_cmpx")),
    )
    examples = [
        0x7F800001,
        0x7FC00000,
        0xFF800000,
        0xBF800000,
        0x80000001,
        0x80000000,
        0,
        1,
        0x3F800000,
        0x7F800000,
    ]
    b = Bench(arch, 0, full=True)
    for lane in range(64):
        b.v[2, :, lane] = examples[lane % 10]
        b.v[6, :, lane] = 1 << (lane // 3 % 10)
    b.run(i)
    for lane in range(64):
        assert bool(b.c.lane_mask(20)[0, lane]) == (lane % 10 == lane // 3 % 10)


OTHERS = (
    "v_cndmask_b32_e64 v20, v2, -v6, s[20:21]",
    "v_readfirstlane_b32 s20, v2",
    "v_readlane_b32 s20, v2, s30",
    "v_writelane_b32 v20, s20, s30",
    "v_mad_u64_u32 v[20:21], s[20:21], v2, v6, v[10:11]",
    "v_mad_i64_i32 v[20:21], s[20:21], v2, v6, v[10:11]",
    "v_mbcnt_lo_u32_b32 v20, v2, v6",
    "v_mbcnt_hi_u32_b32 v20, v2, v6",
    "v_swap_b32 v20, v2",
    "v_permlane32_swap_b32 v20, v2",
    "v_permlane16_swap_b32 v20, v2",
    "v_nop",
    "v_dot2_f32_f16 v20, v2, v6, v10",
    "v_dot2c_f32_f16_e32 v20, v2, v6",
    "v_dual_add_f32 v20, v2, v6 :: v_dual_mul_f32 v11, v3, v9",
    "v_dual_mov_b32 v2, v7 :: v_dual_mov_b32 v7, v2",
)


def _other(line: str, seed: int = 0, full: bool = False) -> tuple[Bench, Any]:
    arch, i = get(line, OTHERS)
    return Bench(arch, seed, full), i


def test_select_by_mask() -> None:
    b, i = _other(OTHERS[0])
    chosen = b.c.lane_mask(20)
    b.run(i)
    wanted = np.where(chosen, b.v[6] ^ np.uint32(1 << 31), b.v[2])
    assert np.array_equal(b.v[20][b.mask], wanted[b.mask])


def test_first_active_lane() -> None:
    b, i = _other(OTHERS[1])
    mask = b.mask.copy()
    mask[0, :7] = False
    mask[0, 7] = True
    mask[1] = False  # none: lane 0
    b.set_exec(mask)
    b.run(i)
    assert b.s[0, 20] == b.v[2, 0, 7] and b.s[1, 20] == b.v[2, 1, 0]


def test_lane_by_number() -> None:
    b, i = _other(OTHERS[2])
    b.s[:, 30] = (5, 64 + 9)
    b.run(i)
    assert b.s[0, 20] == b.v[2, 0, 5] and b.s[1, 20] == b.v[2, 1, 9]
    b, i = _other(OTHERS[3])
    b.set_exec(np.zeros_like(b.mask))
    b.s[:, 30] = (5, 9)
    before = b.v[20].copy()
    b.run(i)
    before[0, 5], before[1, 9] = b.s[0, 20], b.s[1, 20]
    assert np.array_equal(b.v[20], before)


@pytest.mark.parametrize("line", OTHERS[4:6])
def test_products_of_64_bits(line: str) -> None:
    b, i = _other(line, 2)
    bound = b.run(i)
    carry = b.c.lane_mask(20)
    signed = "i64" in line
    for wave in range(2):
        for lane in np.flatnonzero(b.mask[wave]):
            x, y = (int(value("i32" if signed else "u32", int(b.v[r, wave, lane]))) for r in (2, 6))
            exact = x * y + b.pair(10, wave, lane)
            assert b.pair(20, wave, lane) == exact & (1 << 64) - 1
            if not signed:
                assert bool(carry[wave, lane]) == (exact >> 64 != 0)
    low, sources = bound.parts[0]
    assert low == 1 << 20 and not sources >> 11 & 1, (
        "the low half does not depend on the upper half of the addend"
    )


DIVISION = (
    "v_div_scale_f32 v11, s[20:21], v2, v2, v6",
    "v_div_scale_f32 v12, vcc, v6, v2, v6",
    "v_rcp_f32_e32 v13, v11",
    "v_fma_f32 v14, -v11, v13, 1.0",
    "v_fma_f32 v13, v14, v13, v13",
    "v_mul_f32_e32 v14, v12, v13",
    "v_fma_f32 v15, -v11, v14, v12",
    "v_fma_f32 v14, v15, v13, v14",
    "v_fma_f32 v15, -v11, v14, v12",
    "v_div_fmas_f32 v15, v15, v13, v14",
    "v_div_fixup_f32 v20, v15, v2, v6",
)


def test_division() -> None:
    """The steps that compilers make of v6 / v2 give the rounded quotient, near the ends of the range too."""
    b = Bench("gfx90a", 1, full=True)
    ends = [
        1.0,
        3.0,
        2.0**-126,
        2.0**126,
        1.5 * 2.0**127,
        2.0**-64,
        2.0**64,
        2.0**-100,
        2.0**100,
        1 / 3,
        0.0,
        math.inf,
    ]
    pairs = [(n, d) for n in ends for d in ends][:144]
    random = [(float(x), float(y)) for x, y in b.random.normal(size=(112, 2)).astype(np.float32)]
    for start in range(0, 256, 128):
        for k, (n, d) in enumerate((pairs + random)[start : start + 128]):
            b.v[6, k // 64, k % 64], b.v[2, k // 64, k % 64] = encode("f32", n), encode("f32", d)
        for line in DIVISION:
            b.run(get(line, DIVISION)[1])
        for k in range(128):
            n, d = (_f(int(b.v[r, k // 64, k % 64])) for r in (6, 2))
            if d == 0 or not exactly(n, d):
                exact: Any = math.nan if n == d or n != n else math.inf if d == 0 or math.isinf(n) else 0.0
            else:
                exact = Fraction(n) / Fraction(d)
            got = int(b.v[20, k // 64, k % 64])
            if isinstance(exact, Fraction) and abs(exact) >= Fraction(2) ** 127:
                continue  # a quotient that overflows does so in the steps before
            tiny = abs(float(exact)) < 2.0**-124 if exact == exact else False
            wanted = encode("f32", exact)
            assert same("f32", got, wanted, 0.0) or (tiny and abs(got - wanted) <= 1), (
                n,
                d,
                hex(got),
                hex(wanted),
            )


def test_bits_below_the_lane() -> None:
    for line, first in ((OTHERS[6], 0), (OTHERS[7], 32)):
        b, i = _other(line)
        b.run(i)
        for lane in np.flatnonzero(b.mask[0]):
            below = max(0, min(int(lane) - first, 32))
            wanted = (int(b.v[2, 0, lane]) & (1 << below) - 1).bit_count() + int(b.v[6, 0, lane])
            assert int(b.v[20, 0, lane]) == wanted & U32


def test_exchanges() -> None:
    b, i = _other(OTHERS[8])
    x, y = b.v[20].copy(), b.v[2].copy()
    b.run(i)
    assert np.array_equal(b.v[20][b.mask], y[b.mask]) and np.array_equal(b.v[2][b.mask], x[b.mask])
    assert np.array_equal(b.v[2][~b.mask], y[~b.mask])
    for line, width in ((OTHERS[9], 32), (OTHERS[10], 16)):
        b, i = _other(line, full=True)
        x, y = b.v[20].copy(), b.v[2].copy()
        b.run(i)
        for lane in range(64):
            if (
                lane // width % 2
            ):  # odd groups of the first register and even groups of the second change places
                assert b.v[20, 0, lane] == y[0, lane - width] and b.v[2, 0, lane] == y[0, lane]
            else:
                assert b.v[2, 0, lane] == x[0, lane + width] and b.v[20, 0, lane] == x[0, lane]


def test_nothing_happens() -> None:
    b, i = _other(OTHERS[11])
    before = b.v.copy()
    b.run(i)
    assert np.array_equal(before, b.v)


def test_dot_products_of_halves() -> None:
    for line, added in ((OTHERS[12], 10), (OTHERS[13], 20)):
        b, i = _other(line)
        for r in (2, 6):
            raw = b.random.normal(size=(*b.mask.shape, 2)).astype(np.float16)
            b.v[r] = np.ascontiguousarray(raw).view(np.uint32)[..., 0]
        b.v[added] = b.random.normal(size=b.mask.shape).astype(np.float32).view(np.uint32)
        before = b.v.copy()
        b.run(i)
        for lane in np.flatnonzero(b.mask[0]):
            x, y, z = (int(before[r, 0, lane]) for r in (2, 6, added))
            exact = _h(x) * _h(y) + _h(x >> 16) * _h(y >> 16) + _f(z)
            assert same("f32", int(b.v[20, 0, lane]), _e(exact), 1e-6)


def test_dual_instructions() -> None:
    """Both halves read before either writes."""
    b, i = _other(OTHERS[14])
    for r in (2, 6, 3, 9):
        fill(b, r, "f32")
    b.run(i)
    for lane in np.flatnonzero(b.mask[0]):
        x, y, z, w = (_f(int(b.v[r, 0, lane])) for r in (2, 6, 3, 9))
        assert same("f32", int(b.v[20, 0, lane]), _e(add(x, y)), 0.0)
        assert same("f32", int(b.v[11, 0, lane]), _e(mul(z, w)), 0.0)
    b, i = _other(OTHERS[15])
    x2, x7 = b.v[2].copy(), b.v[7].copy()
    b.run(i)
    assert np.array_equal(b.v[2][b.mask], x7[b.mask]) and np.array_equal(b.v[7][b.mask], x2[b.mask])


# --- DPP -------------------------------------------------------------------------------------------------

DPP: dict[str, Callable[[int], int | None]] = {
    "quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf": lambda n: n ^ 1,
    "row_shl:1 row_mask:0xf bank_mask:0xf": lambda n: n + 1 if n % 16 < 15 else None,
    "row_shr:3 row_mask:0xf bank_mask:0xf": lambda n: n - 3 if n % 16 >= 3 else None,
    "row_ror:4 row_mask:0xf bank_mask:0xf": lambda n: n // 16 * 16 + (n - 4) % 16,
    "row_mirror row_mask:0xf bank_mask:0xf": lambda n: n // 16 * 16 + 15 - n % 16,
    "row_half_mirror row_mask:0xf bank_mask:0xf": lambda n: n // 8 * 8 + 7 - n % 8,
    "row_bcast:15 row_mask:0xf bank_mask:0xf": lambda n: n // 16 * 16 - 1 if n >= 16 else None,
    "row_bcast:31 row_mask:0xf bank_mask:0xf": lambda n: 31 if n >= 32 else None,
    "row_newbcast:5 row_mask:0xf bank_mask:0xf": lambda n: n // 16 * 16 + 5,
    "row_shl:1 row_mask:0x5 bank_mask:0x3": lambda n: (
        n + 1 if n % 16 < 15 and n // 16 in (0, 2) and n // 4 % 4 < 2 else None
    ),
}
DPP_LINES = tuple(f"v_add_u32_dpp v20, v2, v6 {c}" for c in DPP)
DPP11: dict[str, Callable[[int], int | None]] = {
    "row_share:3 row_mask:0xf bank_mask:0xf": lambda n: n // 16 * 16 + 3,
    "row_xmask:5 row_mask:0xf bank_mask:0xf": lambda n: n ^ 5,
}
DPP11_LINES = tuple(f"v_add_nc_u32_dpp v20, v2, v6 {c}" for c in DPP11)


@pytest.mark.parametrize("control", [*DPP, *DPP11])
def test_data_parallel_primitives(control: str) -> None:
    """Lanes without a source, or masked by row or bank, keep what they have."""
    newer = control in DPP11
    lines = DPP11_LINES if newer else DPP_LINES
    arch, i = get(f"v_add{'_nc' if newer else ''}_u32_dpp v20, v2, v6 {control}", lines)
    b = Bench(arch, 5, full=True)
    before = b.v[20].copy()
    b.run(i)
    source = (DPP11 if newer else DPP)[control]
    for lane in range(b.target.lanes):
        of = source(lane)
        wanted = before[0, lane] if of is None else int(b.v[2, 0, of]) + int(b.v[6, 0, lane]) & U32
        assert b.v[20, 0, lane] == wanted, lane


def test_bound_control() -> None:
    """bound_ctrl: lanes without a source read 0."""
    line = "v_add_u32_dpp v20, v2, v6 row_shl:1 row_mask:0xf bank_mask:0xf bound_ctrl:0"
    arch, i = get(line, (line,))
    b = Bench(arch, 5, full=True)
    b.run(i)
    assert (
        b.v[20, 0, 15] == b.v[6, 0, 15]
        and int(b.v[20, 0, 14]) == int(b.v[2, 0, 15]) + int(b.v[6, 0, 14]) & U32
    )


# --- completeness ----------------------------------------------------------------------------------------


def _tested() -> set[str]:
    """Names that this file tests."""
    lines = [*FORMS, *PAIRS, *_CARRY, *OTHERS, *DIVISION]
    names = {line.split()[0] for line in lines} | set(MODELS) | set(COMPARISONS)
    names |= {"v_cmp_class_f32", "v_cmpx_class_f32"}
    return {n.removesuffix("_e32").removesuffix("_e64").removesuffix("_sdwa") for n in names}


def test_every_vector_instruction_is_tested() -> None:
    known = set(valu.TABLE) | set(valu_packed.TABLE) | set(valu_special.TABLE)
    assert known <= _tested(), known - _tested()


def test_unknown_is_an_error() -> None:
    """Neither an instruction nor a modifier is guessed."""
    lines = ("v_sin_f32 v0, v1", "v_mul_legacy_f32 v0, v1, v2", "v_add_u32_e32 v0, ttmp0, v1")
    for line in lines:
        arch, i = get(line, lines)
        with pytest.raises(NotModelled):
            Bench(arch).bind(i)
