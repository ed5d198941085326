"""What vector instructions compute, on arrays: the manuals' pseudo-code, apart from operands and lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

U32, I32, U64, I64 = np.uint32, np.int32, np.uint64, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64
#: Smallest normal float.
NORMAL32 = F32(2.0**-126)


def wide(x: Any) -> Any:
    """To 64 bits, keeping the value."""
    return np.asarray(x).astype(I64 if np.asarray(x).dtype.kind == "i" else U64)


def flush(x: Any) -> Any:
    """Subnormal floats to zero of the same sign."""
    return np.where(np.abs(x) < NORMAL32, np.copysign(F32(0), x), x)


def fma64(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of floats in double, rounded to odd: one more rounding to float is then the only one.

    The product of two floats is exact in double; the sum's error is found by two-sum, and a result that is
    not exact gets its last bit set.
    """
    p = np.asarray(a, F64) * np.asarray(b, F64)
    c = np.asarray(c, F64)
    s = p + c
    t = s - p
    error = (p - (s - t)) + (c - t)
    inexact = (error != 0) & np.isfinite(s)
    if not inexact.any():
        return s
    raw = np.atleast_1d(s).view(I64).copy()
    inexact, error = np.atleast_1d(inexact), np.atleast_1d(error)
    even = inexact & (raw & 1 == 0)
    away = (error > 0) == (raw >= 0)  # the exact value lies further from zero
    raw[even & away] += 1
    raw[even & ~away] -= 1
    return raw.view(F64).reshape(np.shape(s))


def fma32(a: Any, b: Any, c: Any) -> Any:
    """One rounding. Rounding twice goes wrong only from a tie between floats, or at a subnormal: then with care."""
    s = np.asarray(a, F64) * b + c
    r = s.astype(F32)
    tie = (np.atleast_1d(s).view(I64) & I64(0x1FFFFFFF)) == I64(0x10000000)
    if tie.any() or ((np.abs(r) <= NORMAL32) & (s != 0)).any():
        return fma64(a, b, c).astype(F32)
    return r


def fma16(a: Any, b: Any, c: Any) -> Any:
    return fma64(a, b, c).astype(F16)  # 11-bit operands: the double sum is exact or odd


def min_float(a: Any, b: Any) -> Any:
    """The lesser number; of a number and a NaN the number; -0 below +0."""
    r = np.fmin(a, b)
    return np.where((a == b) & np.signbit(a), a, r)


def max_float(a: Any, b: Any) -> Any:
    r = np.fmax(a, b)
    return np.where((a == b) & ~np.signbit(a), a, r)


def median(a: Any, b: Any, c: Any) -> Any:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def median_float(a: Any, b: Any, c: Any) -> Any:
    """V_MED3_F32: with a NaN among them the least of the three."""
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, min_float(min_float(a, b), c), median(a, b, c))


def to_integer(x: Any, low: int, high: int, dtype: Any) -> Any:
    """Truncate a float to an integer, saturating; NaN gives 0."""
    value = np.nan_to_num(np.trunc(np.asarray(x, F64)), nan=0.0, posinf=float(high), neginf=float(low))
    return np.clip(value, low, high).astype(I64).astype(dtype)


def cvt_u32_f32(x: Any) -> Any:
    return to_integer(x, 0, 2**32 - 1, U32)


def cvt_i32_f32(x: Any) -> Any:
    return to_integer(x, -(2**31), 2**31 - 1, I32)


def round_to_zero_f16(x: Any) -> Any:
    """A float to half precision, towards zero."""
    h = np.asarray(x, F32).astype(F16)
    grown = np.abs(h.astype(F64)) > np.abs(np.asarray(x, F64))
    raw = np.atleast_1d(h).view(np.uint16)
    return np.where(np.atleast_1d(grown), raw - np.uint16(1), raw).view(F16).reshape(np.shape(h))


def exp2(x: Any) -> Any:
    """V_EXP_F32: subnormal operands count as zero, subnormal results become it."""
    return flush(np.exp2(flush(x).astype(F64)).astype(F32))


def log2(x: Any) -> Any:
    return np.log2(flush(x).astype(F64)).astype(F32)


def rcp(x: Any) -> Any:
    return flush((1.0 / flush(x).astype(F64)).astype(F32))


def rsq(x: Any) -> Any:
    return (1.0 / np.sqrt(flush(x).astype(F64))).astype(F32)


def sqrt(x: Any) -> Any:
    return np.sqrt(flush(x).astype(F64)).astype(F32)


def fract(x: Any) -> Any:
    return np.minimum(x - np.floor(x), F32(1 - 2.0**-24)).astype(F32)


def ldexp32(x: Any, e: Any) -> Any:
    return np.ldexp(np.asarray(x, F64), np.clip(e, -1000, 1000)).astype(F32)


def frexp_exp(x: Any) -> Any:
    return np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(I32)


def frexp_mant(x: Any) -> Any:
    return np.where(np.isfinite(x), np.frexp(x)[0], x).astype(np.asarray(x).dtype)


def shift(x: Any, by: Any, bits: int, left: bool = False) -> Any:
    """A shift by the low bits of `by`."""
    x = np.asarray(x)
    amount = (np.asarray(by) & np.asarray(by).dtype.type(bits - 1)).astype(x.dtype)
    return x << amount if left else x >> amount


def mul_hi(a: Any, b: Any) -> Any:
    return ((wide(a) * wide(b)) >> (32 if np.asarray(a).dtype.kind == "i" else U64(32))).astype(
        np.asarray(a).dtype
    )


def sign24(x: Any) -> Any:
    return np.asarray(x, I32) << I32(8) >> I32(8)


def mul24(a: Any, b: Any) -> Any:
    return (np.asarray(a) & U32(0xFFFFFF)) * (np.asarray(b) & U32(0xFFFFFF))


def bfe_u32(x: Any, at: Any, width: Any) -> Any:
    at, width = at & U32(31), width & U32(31)
    return (x >> at) & ((U32(1) << width) - U32(1))


def bfe_i32(x: Any, at: Any, width: Any) -> Any:
    at, width = np.asarray(at, U32) & U32(31), np.asarray(width, U32) & U32(31)
    field = (np.asarray(x).view(U32) if np.ndim(x) else U32(int(x) & 0xFFFFFFFF)) >> at
    field = field & ((U32(1) << width) - U32(1))
    sign = np.where(width > 0, (U32(1) << np.where(width > 0, width - U32(1), U32(0))), U32(0))
    return np.asarray((field ^ sign) - sign, U32).view(I32)


def perm(a: Any, b: Any, select: Any) -> Any:
    """V_PERM_B32: bytes of {a, b} (b is the low half), 8-11 sign bytes, 12 zero, above 0xff."""
    a, b, select = np.broadcast_arrays(np.asarray(a, U32), np.asarray(b, U32), np.asarray(select, U32))
    both = (a.astype(U64) << U64(32)) | b
    result = np.zeros(a.shape, U32)
    for i in range(4):
        s = (select >> U32(8 * i)) & U32(0xFF)
        byte = ((both >> (U64(8) * (s & U32(7)).astype(U64))) & U64(0xFF)).astype(U32)
        sign_at = (U64(15) + U64(16) * (np.maximum(s, U32(8)) - U32(8) & U32(3)).astype(U64)).astype(U64)
        sign = np.where((both >> sign_at) & U64(1), U32(0xFF), U32(0))
        byte = np.where(s >= 13, U32(0xFF), np.where(s == 12, U32(0), np.where(s >= 8, sign, byte)))
        result |= byte << U32(8 * i)
    return result


def align_bits(a: Any, b: Any, by: Any) -> Any:
    both = (np.asarray(a).astype(U64) << U64(32)) | b
    return (both >> (np.asarray(by) & U32(31)).astype(U64)).astype(U32)


def align_bytes(a: Any, b: Any, by: Any) -> Any:
    return align_bits(a, b, (np.asarray(by) & U32(3)) * U32(8))


def first_bit_high(x: Any) -> Any:
    """Leading zeros; of 0: -1."""
    x = np.asarray(x, U32)
    return np.where(x == 0, U32(0xFFFFFFFF), U32(32) - np.frexp(x.astype(F64))[1].astype(U32))


def first_bit_low(x: Any) -> Any:
    """Trailing zeros; of 0: -1."""
    x = np.asarray(x, U32)
    lowest = x & (~x + U32(1))
    return np.where(x == 0, U32(0xFFFFFFFF), np.frexp(lowest.astype(F64))[1].astype(U32) - U32(1))


def reverse_bits(x: Any) -> Any:
    x = np.ascontiguousarray(np.asarray(x, U32))
    raw = np.unpackbits(x.view(np.uint8).reshape(*x.shape, 4), axis=-1, bitorder="little")[..., ::-1]
    return np.packbits(raw, axis=-1, bitorder="little").view(U32).reshape(x.shape)


def saturating(fn: Any, dtype: Any) -> Any:
    """The integer operation with clamp: computed wide, then saturated."""
    info = np.iinfo(dtype)
    return lambda *xs: np.clip(fn(*(np.asarray(x).astype(I64) for x in xs)), info.min, info.max).astype(dtype)


def bfloat(x: Any) -> Any:
    """bf16 bits as float."""
    return (np.asarray(x).astype(U32) << U32(16)).view(F32)


def div_scale(a: Any, b: Any, c: Any) -> tuple[Any, Any]:
    """V_DIV_SCALE_F32 of (S0, denominator S1, numerator S2): (scaled S0, VCC).

    Scaled by 2^64 where the quotient's steps would leave the range of normal floats (CDNA2 ISA, 12.10).
    """
    a, b, c = np.broadcast_arrays(*(np.asarray(x, F32) for x in (a, b, c)))
    exponent_b, exponent_c = np.frexp(b)[1] + 126, np.frexp(c)[1] + 126  # biased
    with np.errstate(all="ignore"):
        ratio = np.abs(c.astype(F64)) / np.abs(b.astype(F64))
        inverse_small = np.abs(1.0 / b.astype(F64)) < NORMAL32
        quotient_small = ratio < NORMAL32
    up = (a.astype(F64) * 2.0**64).astype(F32)
    is_b, is_c = a == b, a == c
    result, scaled = a.copy(), np.zeros(a.shape, bool)
    zero = (b == 0) | (c == 0)
    far = ~zero & (exponent_c - exponent_b >= 96)
    subnormal_b = ~zero & ~far & (np.abs(b) < NORMAL32)
    both = ~zero & ~far & ~subnormal_b & inverse_small & quotient_small
    inverse = ~zero & ~far & ~subnormal_b & ~both & inverse_small
    quotient = ~zero & ~far & ~subnormal_b & ~both & ~inverse & quotient_small
    small_c = ~zero & ~far & ~subnormal_b & ~both & ~inverse & ~quotient & (exponent_c <= 23)
    result = np.where(zero, F32(np.nan), result)
    scaled |= far | both | quotient
    result = np.where(far & is_b, up, result)
    result = np.where(subnormal_b, up, result)
    down = (a.astype(F64) * 2.0**-64).astype(F32)
    # NOTE: the manual prints 2^64 here, which overflows a denominator of 2^126; only 2^-64 gives the quotient.
    result = np.where(both & is_b, down, result)
    result = np.where(inverse, down, result)
    result = np.where(quotient & is_c, up, result)
    return np.where(small_c, up, result).astype(F32), scaled


def div_fmas(a: Any, b: Any, c: Any, scaled: Any) -> Any:
    """V_DIV_FMAS_F32: where VCC says that a step was scaled, the sum by 2^64 or, of a small quotient, 2^-64."""
    total = fma64(a, b, c)
    factor = np.where(np.frexp(np.asarray(c, F32))[1] + 126 > 127, 2.0**64, 2.0**-64)
    return np.where(scaled, total * factor, total).astype(F32)


def div_fixup(q: Any, b: Any, c: Any) -> Any:
    """V_DIV_FIXUP_F32 of (quotient, denominator, numerator): special cases of a division."""
    q, b, c = np.broadcast_arrays(*(np.asarray(x, F32) for x in (q, b, c)))
    sign = np.where(np.signbit(b) ^ np.signbit(c), F32(-1), F32(1))
    r = np.copysign(q, sign)
    infinite = np.isinf(b) & np.isinf(c) | (b == 0) & (c == 0)
    r = np.where(np.isinf(c) | (b == 0), sign * F32(np.inf), r)
    r = np.where((np.isinf(b) | (c == 0)) & ~(np.isinf(c) | (b == 0)), sign * F32(0), r)
    r = np.where(infinite | np.isnan(b) | np.isnan(c), F32(np.nan), r)
    return r.astype(F32)
