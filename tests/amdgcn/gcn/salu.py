"""Scalar arithmetic: SOP1, SOP2, SOPK, SOPC (CDNA2 ISA, 12.1 to 12.4; RDNA3 ISA, 16.1 to 16.4).

A row is name -> (type of the result, types of the sources, function). The function gives the result, or
(result, SCC).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic as m
from .arithmetic import F32, I32, I64, U32, U64
from .binding import SCC, Binder, Bound, Target, constant
from .parse import EXEC, NULL, Constant, Instruction, Register
from .waves import Convoy, bits

Row = tuple[str, tuple[str, ...], Callable[..., Any]]


def _logic(fn: Callable[..., Any]) -> Callable[..., Any]:
    """SCC = result is not 0."""

    def both(*xs: Any) -> Any:
        r = fn(*xs)
        return r, np.asarray(r) != 0

    return both


def _add(a: Any, b: Any) -> Any:
    total = np.asarray(a).astype(U64) + np.asarray(b).astype(U64)
    return total.astype(U32), total > U64(0xFFFFFFFF)


def _sub(a: Any, b: Any) -> Any:
    return np.asarray(a - b, U32), np.asarray(b) > a


def _signed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """SCC = signed overflow."""

    def both(a: Any, b: Any) -> Any:
        exact = fn(np.asarray(a).astype(I64), np.asarray(b).astype(I64))
        r = exact.astype(I32)
        return r, r != exact

    return both


def _choose(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Minimum or maximum; SCC = the first source was taken."""
    return lambda a, b: (fn(a, b), fn(a, b) == a)


def _bfe(x: Any, field: Any) -> Any:
    field = np.asarray(field, U32)
    at, width = field & U32(31), np.minimum(field >> U32(16) & U32(127), U32(32))
    if np.asarray(x).dtype.kind == "i":
        left = I64(64) - width.astype(I64)
        value = (
            (np.asarray(x).astype(I64) >> at.astype(I64))
            << np.minimum(left, I64(63))
            >> np.minimum(left, I64(63))
        )
        return np.where(width == 0, 0, value).astype(I32)
    return ((np.asarray(x).astype(U64) >> at.astype(U64)) & ((U64(1) << width.astype(U64)) - U64(1))).astype(
        U32
    )


def _bfe64(x: Any, field: Any) -> Any:
    field = np.asarray(field, U32)
    at, width = (field & U32(63)).astype(U64), np.minimum(field >> U32(16) & U32(127), U32(64)).astype(U64)
    ones = np.where(width >= 64, U64(2**64 - 1), (U64(1) << np.minimum(width, U64(63))) - U64(1))
    return (x >> at) & ones


U, I, D = "u32", "i32", "u64"  # noqa: E741
_BITWISE: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
TABLE: dict[str, Row] = {
    "s_mov_b32": (U, (U,), lambda a: a),
    "s_mov_b64": (D, (D,), lambda a: a),
    "s_not_b32": (U, (U,), _logic(np.bitwise_not)),
    "s_not_b64": (D, (D,), _logic(np.bitwise_not)),
    "s_abs_i32": (I, (I,), _logic(np.abs)),
    "s_brev_b32": (U, (U,), m.reverse_bits),
    "s_bcnt1_i32_b32": (U, (U,), _logic(lambda a: np.bitwise_count(np.asarray(a)).astype(U32))),
    "s_bcnt1_i32_b64": (U, (D,), _logic(lambda a: np.bitwise_count(np.asarray(a)).astype(U32))),
    "s_ff1_i32_b32": (U, (U,), m.first_bit_low),
    "s_flbit_i32_b32": (U, (U,), m.first_bit_high),
    "s_sext_i32_i8": (I, (U,), lambda a: np.asarray(a).astype(np.int8).astype(I32)),
    "s_sext_i32_i16": (I, (U,), lambda a: np.asarray(a).astype(np.int16).astype(I32)),
    "s_add_u32": (U, (U, U), _add),
    "s_sub_u32": (U, (U, U), _sub),
    "s_add_i32": (I, (I, I), _signed(np.add)),
    "s_sub_i32": (I, (I, I), _signed(np.subtract)),
    "s_absdiff_i32": (I, (I, I), _logic(lambda a, b: np.abs(np.asarray(a - b, I32)))),
    "s_mul_i32": (U, (U, U), np.multiply),
    "s_mul_hi_u32": (U, (U, U), m.mul_hi),
    "s_mul_hi_i32": (I, (I, I), m.mul_hi),
    "s_min_u32": (U, (U, U), _choose(np.minimum)),
    "s_max_u32": (U, (U, U), _choose(np.maximum)),
    "s_min_i32": (I, (I, I), _choose(np.minimum)),
    "s_max_i32": (I, (I, I), _choose(np.maximum)),
    "s_lshl_b32": (U, (U, U), _logic(lambda a, b: m.shift(a, b, 32, True))),
    "s_lshr_b32": (U, (U, U), _logic(lambda a, b: m.shift(a, b, 32))),
    "s_ashr_i32": (I, (I, U), _logic(lambda a, b: m.shift(a, b, 32))),
    "s_lshl_b64": (D, (D, U), _logic(lambda a, b: m.shift(a, b, 64, True))),
    "s_lshr_b64": (D, (D, U), _logic(lambda a, b: m.shift(a, b, 64))),
    "s_ashr_i64": ("i64", ("i64", U), _logic(lambda a, b: m.shift(a, b, 64))),
    "s_bfm_b32": (U, (U, U), lambda a, b: ((U32(1) << (a & U32(31))) - U32(1)) << (b & U32(31))),
    "s_bfe_u32": (U, (U, U), _logic(_bfe)),
    "s_bfe_i32": (I, (I, U), _logic(_bfe)),
    "s_bfe_u64": (D, (D, U), _logic(_bfe64)),
    "s_pack_ll_b32_b16": (U, (U, U), lambda a, b: (a & U32(0xFFFF)) | b << U32(16)),
    "s_pack_lh_b32_b16": (U, (U, U), lambda a, b: (a & U32(0xFFFF)) | (b & U32(0xFFFF0000))),
    "s_pack_hh_b32_b16": (U, (U, U), lambda a, b: a >> U32(16) | (b & U32(0xFFFF0000))),
    **{
        f"s_lshl{n}_add_u32": (
            U,
            (U, U),
            lambda a, b, n=n: (
                ((np.asarray(a).astype(U64) << U64(n)) + np.asarray(b).astype(U64)).astype(U32),
                ((np.asarray(a).astype(U64) << U64(n)) + np.asarray(b).astype(U64)) > U64(0xFFFFFFFF),
            ),
        )
        for n in (1, 2, 3, 4)
    },
    **{f"s_{name}_b32": (U, (U, U), _logic(fn)) for name, fn in _BITWISE.items()},
    **{f"s_{name}_b64": (D, (D, D), _logic(fn)) for name, fn in _BITWISE.items()},
}
for _new, _old in {
    "s_and_not1_b32": "s_andn2_b32",
    "s_and_not1_b64": "s_andn2_b64",
    "s_or_not1_b32": "s_orn2_b32",
    "s_or_not1_b64": "s_orn2_b64",
    "s_ctz_i32_b32": "s_ff1_i32_b32",
    "s_clz_i32_u32": "s_flbit_i32_b32",
}.items():
    TABLE[_new] = TABLE[_old]

_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "lg": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}


def source(b: Binder, k: int, kind: str, observed: bool = False) -> Callable[[Convoy], Any]:
    """Operand k of a scalar instruction, for each wave: shape (waves,), or a constant."""
    o = b.op(k) if b.i.operands[k] not in _FLAGS else None
    if o is None:
        return _flag(b, b.i.operands[k], kind)
    width = int(kind[1:])
    if isinstance(o, Constant):
        value = constant(o, kind)
        return lambda c: value
    if o.kind != "s":
        raise b.fail("vector register as a scalar source")
    b.note_read(o, width // 32, observed)
    s = o.first
    if s == NULL:
        zero = constant(Constant(0), kind)
        return lambda c: zero
    if width == 64:
        if o.count != 2 or s % 2:
            raise b.fail("64-bit scalar source")
        dtype = {"u64": U64, "i64": I64}[kind]
        return lambda c: c.s64[:, s // 2].view(dtype)
    if kind == "u32":
        return lambda c: c.s[:, s]
    return (lambda c: c.si[:, s]) if kind == "i32" else (lambda c: c.sf[:, s])


_FLAGS = ("src_scc", "scc", "src_vccz", "src_execz")


def _flag(b: Binder, name: str, kind: str) -> Callable[[Convoy], Any]:
    if name not in ("src_scc", "scc"):
        raise b.fail(name)
    b.reads |= SCC
    dtype = {"u32": U32, "i32": I32, "u64": U64}[kind]
    return lambda c: c.scc.astype(dtype)


def result(b: Binder, k: int, width: int) -> Callable[[Convoy, Any], None]:
    """Operand k as a scalar result; EXEC changes the mask of lanes."""
    r: Register = b.register(k, "s")
    s = r.first
    if s == NULL:
        return lambda c, x: None
    b.note_write(r)
    if s in (EXEC, EXEC + 1):
        b.observes |= b.reads
    if width == 64:
        if r.count != 2 or s % 2:
            raise b.fail("64-bit scalar result")

        def pair(c: Convoy, x: Any) -> None:
            c.s64[:, s // 2] = np.asarray(x).view(U64) if np.ndim(x) else U64(int(x) & (1 << 64) - 1)
            if s == EXEC:
                c.exec_changed()

        return pair

    def single(c: Convoy, x: Any) -> None:
        c.s[:, s] = np.asarray(x).view(U32) if np.ndim(x) else np.asarray(x).reshape(1).view(U32)
        if s in (EXEC, EXEC + 1):
            c.exec_changed()

    return single


def _table(b: Binder) -> Bound:
    kind, kinds, fn = TABLE[b.i.name]
    if len(b.i.operands) != len(kinds) + 1:
        raise b.fail("operands")
    sources = [source(b, k + 1, t) for k, t in enumerate(kinds)]
    put = result(b, 0, int(kind[1:]))
    sample = fn(*(np.zeros(1, np.dtype(_NUMPY[t])) for t in kinds))
    if not isinstance(sample, tuple):
        return b.done(lambda c: put(c, fn(*(x(c) for x in sources))), "salu")
    b.writes |= SCC

    def run(c: Convoy) -> None:
        r, scc = fn(*(x(c) for x in sources))
        put(c, r)
        c.scc[:] = scc

    return b.done(run, "salu")


_NUMPY = {"u32": U32, "i32": I32, "u64": U64, "i64": I64, "f32": F32}


def _compare(b: Binder) -> Bound:
    """s_cmp_*, s_cmpk_* (whose constant is extended by the type), s_bitcmp*."""
    _, _, rest = b.i.name.partition("_")
    if rest.startswith("bitcmp"):
        wanted = rest[6] == "1"
        width = 64 if rest.endswith("64") else 32
        x, y = source(b, 0, f"u{width}"), source(b, 1, "u32")
        last = U32(width - 1)

        def fn(p: Any, q: Any) -> Any:
            return ((p >> (q & last).astype(np.asarray(p).dtype)) & np.asarray(p).dtype.type(1)) == wanted
    else:
        _, test, kind = rest.split("_")
        x = source(b, 0, kind)
        if rest.startswith("cmpk"):
            raw = int(b.i.operands[1], 0)
            raw = raw - 0x10000 if kind == "i32" and raw & 0x8000 else raw
            value = _NUMPY[kind](raw)
            y = lambda c: value  # noqa: E731
        else:
            y = source(b, 1, kind)
        fn = _COMPARE[test]
    b.writes |= SCC

    def run(c: Convoy) -> None:
        c.scc[:] = fn(x(c), y(c))

    return b.done(run, "salu")


def _select(b: Binder) -> Bound:
    width = int(b.i.name[-2:])
    x, y = source(b, 1, f"u{width}"), source(b, 2, f"u{width}")
    b.reads |= SCC
    put = result(b, 0, width)
    return b.done(lambda c: put(c, np.where(c.scc, x(c), y(c))), "salu")


def _carry(b: Binder) -> Bound:
    """s_addc_u32, s_subb_u32."""
    x, y = source(b, 1, "u32"), source(b, 2, "u32")
    b.reads |= SCC
    put = result(b, 0, 32)
    b.writes |= SCC
    add = b.i.name == "s_addc_u32"

    def run(c: Convoy) -> None:
        p, q, k = np.asarray(x(c)).astype(I64), np.asarray(y(c)).astype(I64), c.scc.astype(I64)
        total = p + q + k if add else p - q - k
        put(c, total.astype(U32))
        c.scc[:] = (total > 0xFFFFFFFF) if add else (total < 0)

    return b.done(run, "salu")


_SAVED: dict[str, Callable[..., Any]] = {
    "and": lambda s, e: s & e,
    "or": lambda s, e: s | e,
    "xor": lambda s, e: s ^ e,
    "andn2": lambda s, e: s & ~e,
    "orn2": lambda s, e: s | ~e,
    "andn1": lambda s, e: ~s & e,
    "orn1": lambda s, e: ~s | e,
    "and_not1": lambda s, e: s & ~e,
    "or_not1": lambda s, e: s | ~e,
    "and_not0": lambda s, e: ~s & e,
    "or_not0": lambda s, e: ~s | e,
}


def _save_exec(b: Binder) -> Bound:
    """D = EXEC, then EXEC = S op EXEC."""
    name, _, rest = b.i.name[2:].partition("_saveexec_b")
    width, fn = int(rest), _SAVED[name]
    x = source(b, 1, f"u{width}", observed=True)
    put = result(b, 0, width)
    b.reads |= bits("s", EXEC, width // 32)
    b.writes |= bits("s", EXEC, width // 32) | SCC

    def run(c: Convoy) -> None:
        old = np.array(c.s64[:, EXEC // 2] if width == 64 else c.s[:, EXEC])
        new = np.asarray(fn(x(c), old), old.dtype)
        put(c, old)
        if width == 64:
            c.s64[:, EXEC // 2] = new
        else:
            c.s[:, EXEC] = new
        c.scc[:] = new != 0
        c.exec_changed()

    return b.done(run, "salu")


def _short(b: Binder) -> Bound:
    """s_movk_i32, s_addk_i32, s_mulk_i32: a sign-extended 16-bit constant."""
    raw = int(b.i.operands[1], 0) & 0xFFFF
    value = I32(raw - 0x10000 if raw & 0x8000 else raw)
    name = b.i.name
    if name == "s_movk_i32":
        put = result(b, 0, 32)
        return b.done(lambda c: put(c, value), "salu")
    x = source(b, 0, "i32")
    put = result(b, 0, 32)
    if name == "s_mulk_i32":
        return b.done(lambda c: put(c, x(c) * value), "salu")
    b.writes |= SCC
    fn = _signed(np.add)

    def run(c: Convoy) -> None:
        r, overflow = fn(x(c), value)
        put(c, r)
        c.scc[:] = overflow

    return b.done(run, "salu")


def _bit(b: Binder) -> Bound:
    """s_bitset0/1_b32."""
    x, at = source(b, 0, "u32"), source(b, 1, "u32")
    put = result(b, 0, 32)
    one = b.i.name == "s_bitset1_b32"

    def run(c: Convoy) -> None:
        bit = U32(1) << (np.asarray(at(c)) & U32(31))
        put(c, np.asarray(x(c) | bit if one else x(c) & ~bit, U32))

    return b.done(run, "salu")


def _move_if(b: Binder) -> Bound:
    """s_cmov_b32: only where SCC is set."""
    x, old = source(b, 1, "u32"), source(b, 0, "u32")
    b.reads |= SCC
    put = result(b, 0, 32)
    return b.done(lambda c: put(c, np.where(c.scc, x(c), old(c))), "salu")


def _where(b: Binder) -> Bound:
    """s_getpc_b64: the address after this instruction."""
    put = result(b, 0, 64)
    end = b.i.end
    return b.done(lambda c: put(c, np.full(c.n, c.machine.image_address + end, U64)), "salu")


SPECIAL: dict[str, Callable[[Binder], Bound]] = {
    "s_cselect_b32": _select,
    "s_cselect_b64": _select,
    "s_addc_u32": _carry,
    "s_subb_u32": _carry,
    "s_movk_i32": _short,
    "s_addk_i32": _short,
    "s_mulk_i32": _short,
    "s_bitset0_b32": _bit,
    "s_bitset1_b32": _bit,
    "s_cmov_b32": _move_if,
    "s_getpc_b64": _where,
    **{f"s_{name}_saveexec_b{w}": _save_exec for name in _SAVED for w in (32, 64)},
    **{f"s_cmp_{t}_{k}": _compare for t in _COMPARE for k in ("i32", "u32")},
    **{f"s_cmpk_{t}_{k}": _compare for t in _COMPARE for k in ("i32", "u32")},
    **{f"s_cmp_{t}_u64": _compare for t in ("eq", "lg")},
    **{f"s_bitcmp{v}_b{w}": _compare for v in (0, 1) for w in (32, 64)},
}


def bind(i: Instruction, target: Target) -> Bound:
    """A scalar instruction."""
    b = Binder(i, target)
    return SPECIAL[i.name](b) if i.name in SPECIAL else _table(b)
