"""Number formats one value at a time, in exact rational arithmetic: the tests' own model, apart from the executor's."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import NamedTuple


class Format(NamedTuple):
    """An IEEE format: bits of the significand with its leading one, least and greatest exponent, struct's letters."""

    bits: int
    low: int
    high: int
    letter: str
    raw: str


F16 = Format(11, -14, 15, "e", "H")
F32 = Format(24, -126, 127, "f", "I")
F64 = Format(53, -1022, 1023, "d", "Q")
FORMATS = {"f16": F16, "f32": F32, "f64": F64}


def value(kind: str, raw: int) -> float | int:
    """The value of a register's bits: a Python float (exact) or an integer."""
    width = int(kind[1:])
    raw &= (1 << width) - 1
    if kind[0] == "f":
        f = FORMATS[kind]
        return float(struct.unpack("<" + f.letter, struct.pack("<" + f.raw, raw))[0])
    return raw - (1 << width) if kind[0] == "i" and raw >> (width - 1) else raw


def encode(kind: str, x: float | int | Fraction) -> int:
    """The bits of a value, rounded once to nearest even."""
    width = int(kind[1:])
    if kind[0] != "f":
        return int(x) & (1 << width) - 1
    f = FORMATS[kind]
    sign_bit = 1 << (width - 1)
    exponent_ones = ((1 << (width - f.bits)) - 1) << (f.bits - 1)
    if isinstance(x, float) and math.isnan(x):
        return exponent_ones | 1 << (f.bits - 2)
    negative = math.copysign(1.0, x) < 0 if isinstance(x, float) else x < 0
    sign = sign_bit if negative else 0
    if isinstance(x, float) and math.isinf(x):
        return sign | exponent_ones
    exact = abs(Fraction(x))
    if exact == 0:
        return sign
    exponent = exact.numerator.bit_length() - exact.denominator.bit_length()
    if Fraction(2) ** exponent > exact:
        exponent -= 1
    exponent = max(exponent, f.low)
    unit = Fraction(2) ** (exponent - f.bits + 1)
    count, rest = divmod(exact, unit)
    whole = int(count)
    if rest * 2 > unit or (rest * 2 == unit and whole & 1):
        whole += 1
    if whole >> f.bits:
        whole, exponent = whole >> 1, exponent + 1
    if exponent > f.high:
        return sign | exponent_ones
    if whole >> (f.bits - 1):  # normal: the leading one is not stored
        return sign | (exponent - f.low + 1) << (f.bits - 1) | whole - (1 << (f.bits - 1))
    return sign | whole


def is_nan(kind: str, raw: int) -> bool:
    """Whether bits are a NaN."""
    return kind[0] == "f" and math.isnan(value(kind, raw))


def exactly(*values: float) -> bool:
    """Whether all values are finite: then rational arithmetic serves, else Python's own rules for infinities."""
    return all(math.isfinite(v) for v in values)


def add(a: float, b: float) -> float | Fraction:
    """a + b, not rounded."""
    if not exactly(a, b):
        return a + b
    exact = Fraction(a) + Fraction(b)
    return exact if exact else a + b


def mul(a: float, b: float) -> float | Fraction:
    """a * b, not rounded."""
    if not exactly(a, b):
        return a * b
    exact = Fraction(a) * Fraction(b)
    return exact if exact else a * b


def fma(a: float, b: float, c: float) -> float | Fraction:
    """a * b + c, not rounded."""
    if not exactly(a, b, c):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        return exact
    sign = math.copysign(1, a) * math.copysign(1, b)
    product_zero = a == 0 or b == 0
    if product_zero and c == 0:
        return -0.0 if sign < 0 and math.copysign(1, c) < 0 else 0.0
    return 0.0
