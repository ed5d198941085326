"""Scalar arithmetic, instruction by instruction, against models of one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from formats import encode, value
from gcn import salu
from gcn.faults import NotModelled
from single import Bench, assembled, tool

pytestmark = pytest.mark.quick

U32, U64 = (1 << 32) - 1, (1 << 64) - 1
#: A model gives the result, or (result, SCC); None leaves SCC alone.
Model = Callable[..., Any]


def _nonzero(width: int, fn: Model) -> Model:
    return lambda *x: (fn(*x), fn(*x) & (1 << width) - 1 != 0)


def _overflow(fn: Model) -> Model:
    return lambda a, b: (fn(a, b), not -(1 << 31) <= fn(a, b) < 1 << 31)


def _field(signed: bool) -> Model:
    def model(x: int, f: int) -> int:
        at, width = f & 31, min(f >> 16 & 127, 32)
        field = (x & U32) >> at & (1 << width) - 1
        if signed and width:
            whole = x >> at  # an arithmetic shift: x has its sign
            field = whole & (1 << width) - 1
            field -= (field >> width - 1 & 1) << width
        return field

    return model


U, I, D, J = "u32", "i32", "u64", "i64"  # noqa: E741
MODELS: dict[str, tuple[str, list[str], Model]] = {
    "s_mov_b32": (U, [U], lambda a: a),
    "s_mov_b64": (D, [D], lambda a: a),
    "s_not_b32": (U, [U], _nonzero(32, lambda a: ~a)),
    "s_not_b64": (D, [D], _nonzero(64, lambda a: ~a)),
    "s_abs_i32": (I, [I], _nonzero(32, abs)),
    "s_brev_b32": (U, [U], lambda a: int(f"{a:032b}"[::-1], 2)),
    "s_bcnt1_i32_b32": (U, [U], _nonzero(32, int.bit_count)),
    "s_bcnt1_i32_b64": (U, [D], _nonzero(32, int.bit_count)),
    "s_ff1_i32_b32": (U, [U], lambda a: (a & -a).bit_length() - 1 if a else -1),
    "s_flbit_i32_b32": (U, [U], lambda a: 32 - a.bit_length() if a else -1),
    "s_sext_i32_i8": (I, [U], lambda a: (a & 127) - (a & 128)),
    "s_sext_i32_i16": (I, [U], lambda a: value("i16", a)),
    "s_add_u32": (U, [U, U], lambda a, b: (a + b, a + b > U32)),
    "s_sub_u32": (U, [U, U], lambda a, b: (a - b, b > a)),
    "s_add_i32": (I, [I, I], _overflow(lambda a, b: a + b)),
    "s_sub_i32": (I, [I, I], _overflow(lambda a, b: a - b)),
    "s_absdiff_i32": (
        I,
        [I, I],
        lambda a, b: (
            abs(value("i32", a - b & U32)),  # type: ignore[arg-type]
            (a - b) & U32 != 0,
        ),
    ),
    "s_mul_i32": (U, [U, U], lambda a, b: a * b),
    "s_mul_hi_u32": (U, [U, U], lambda a, b: a * b >> 32),
    "s_mul_hi_i32": (I, [I, I], lambda a, b: a * b >> 32),
    "s_min_u32": (U, [U, U], lambda a, b: (min(a, b), a <= b)),
    "s_max_u32": (U, [U, U], lambda a, b: (max(a, b), a >= b)),
    "s_min_i32": (I, [I, I], lambda a, b: (min(a, b), a <= b)),
    "s_max_i32": (I, [I, I], lambda a, b: (max(a, b), a >= b)),
    "s_lshl_b32": (U, [U, U], _nonzero(32, lambda a, b: a << (b & 31))),
    "s_lshr_b32": (U, [U, U], _nonzero(32, lambda a, b: a >> (b & 31))),
    "s_ashr_i32": (I, [I, U], _nonzero(32, lambda a, b: a >> (b & 31))),
    "s_lshl_b64": (D, [D, U], _nonzero(64, lambda a, b: a << (b & 63))),
    "s_lshr_b64": (D, [D, U], _nonzero(64, lambda a, b: a >> (b & 63))),
    "s_ashr_i64": (J, [J, U], _nonzero(64, lambda a, b: a >> (b & 63))),
    "s_bfm_b32": (U, [U, U], lambda a, b: ((1 << (a & 31)) - 1) << (b & 31)),
    "s_bfe_u32": (U, [U, U], _nonzero(32, _field(False))),
    "s_bfe_i32": (I, [I, U], _nonzero(32, _field(True))),
    "s_bfe_u64": (D, [D, U], _nonzero(64, lambda x, f: x >> (f & 63) & (1 << min(f >> 16 & 127, 64)) - 1)),
    "s_pack_ll_b32_b16": (U, [U, U], lambda a, b: a & 0xFFFF | (b & 0xFFFF) << 16),
    "s_pack_lh_b32_b16": (U, [U, U], lambda a, b: a & 0xFFFF | b >> 16 << 16),
    "s_pack_hh_b32_b16": (U, [U, U], lambda a, b: a >> 16 | b >> 16 << 16),
    **{
        f"s_lshl{n}_add_u32": (U, [U, U], lambda a, b, n=n: ((a << n) + b, (a << n) + b > U32))
        for n in (1, 2, 3, 4)
    },
}
_LOGIC: dict[str, Model] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
    "and_not1": lambda a, b: a & ~b,
    "or_not1": lambda a, b: a | ~b,
}
for _name, _fn in _LOGIC.items():
    MODELS[f"s_{_name}_b32"] = (U, [U, U], _nonzero(32, _fn))
    MODELS[f"s_{_name}_b64"] = (D, [D, D], _nonzero(64, _fn))
MODELS["s_ctz_i32_b32"] = MODELS["s_ff1_i32_b32"]
MODELS["s_clz_i32_u32"] = MODELS["s_flbit_i32_b32"]

EDGES = [0, 1, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x00080004, 0x00200000, 0x0010001F, 0x8000, 0x80]


def _operand(at: int, kind: str) -> str:
    return f"s[{at}:{at + 1}]" if kind[1:] == "64" else f"s{at}"


def line_of(name: str) -> str:
    result, sources, _ = MODELS[name]
    return f"{name} " + ", ".join(
        [_operand(20, result), *(_operand(p, k) for p, k in zip((2, 6), sources, strict=False))]
    )


LINES = tuple(line_of(n) for n in MODELS)


def _get(line: str, lines: tuple[str, ...]) -> Any:
    if tool("llvm-mc", "19") is None:
        pytest.skip("llvm-mc-19 is not installed (llvm-19)")
    return assembled(lines)[line]


def _read(b: Bench, at: int, kind: str, wave: int) -> int:
    raw = int(b.s[wave, at]) | int(b.s[wave, at + 1]) << 32
    return raw if kind[1:] == "64" else raw & U32


def _value(kind: str, raw: int) -> int:
    return raw - (1 << 64) if kind == "i64" and raw >> 63 else int(value(kind, raw)) if kind != "u64" else raw


@pytest.mark.parametrize("name", MODELS)
def test_one_result(name: str) -> None:
    """All pairs of edges and many others; the result and SCC."""
    result, sources, model = MODELS[name]
    arch, i = _get(line_of(name), LINES)
    b = Bench(arch, 1)
    numbers = EDGES + [int(x) for x in b.random.integers(0, 1 << 32, 6)]
    for x in numbers:
        for y in numbers[:: 1 if len(sources) == 2 else 6]:
            b.s[:, 2], b.s[:, 6] = x, y
            b.s[:, 3], b.s[:, 7] = y, x
            b.c.scc[:] = (True, False)
            bound = b.run(i)
            raw = [_read(b, p, k, 0) for p, k in zip((2, 6), sources, strict=False)]
            wanted = model(*(_value(k, r) for k, r in zip(sources, raw, strict=True)))
            wanted, scc = wanted if isinstance(wanted, tuple) else (wanted, None)
            width = int(result[1:])
            got = _read(b, 20, result, 0)
            assert got == wanted & (1 << width) - 1, f"{i.text}: {[hex(r) for r in raw]} gave {got:#x}"
            if scc is None:
                assert b.c.scc.tolist() == [True, False] and not bound.writes >> 640 & 1
            else:
                assert b.c.scc.tolist() == [scc, scc], f"{i.text}: {[hex(r) for r in raw]}"


def test_every_table_row_has_a_model() -> None:
    assert set(salu.TABLE) == set(MODELS)


# --- the others ------------------------------------------------------------------------------------------

_TESTS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
_COMPARE = [f"s_cmp_{t}_{k}" for t in _TESTS for k in (I, U)] + ["s_cmp_eq_u64", "s_cmp_lg_u64"]
_COMPARE_LINES = tuple(f"{n} {_operand(2, n[-3:])}, {_operand(6, n[-3:])}" for n in _COMPARE)


@pytest.mark.parametrize("name", _COMPARE)
def test_comparisons(name: str) -> None:
    kind = name[-3:]
    arch, i = _get(_COMPARE_LINES[_COMPARE.index(name)], _COMPARE_LINES)
    b = Bench(arch)
    for x in EDGES:
        for y in EDGES:
            b.s[:, 2], b.s[:, 6], b.s[:, 3], b.s[:, 7] = x, y, y, y
            b.run(i)
            wanted = _TESTS[name.split("_")[2]](*(_value(kind, _read(b, p, kind, 0)) for p in (2, 6)))
            assert b.c.scc.all() == wanted and b.c.scc.any() == wanted


_SHORT_LINES = tuple(f"s_cmpk_{t}_{k} s2, 0x8001" for t in _TESTS for k in (I, U))


@pytest.mark.parametrize("line", _SHORT_LINES)
def test_comparisons_with_short_constants(line: str) -> None:
    """Extended by its sign for signed comparisons, by zeros for others."""
    arch, i = _get(line, _SHORT_LINES)
    test, kind = line.split()[0].split("_")[2:]
    constant = 0x8001 - 0x10000 if kind == I else 0x8001
    b = Bench(arch)
    for x in (*EDGES, 0x8001, 0xFFFF8001, 0xFFFF8000):
        b.s[:, 2] = x
        b.run(i)
        assert bool(b.c.scc[0]) == _TESTS[test](_value(kind, x), constant)


OTHERS = (
    "s_cselect_b32 s20, s2, s6",
    "s_cselect_b64 s[20:21], s[2:3], s[6:7]",
    "s_addc_u32 s20, s2, s6",
    "s_subb_u32 s20, s2, s6",
    "s_movk_i32 s20, 0x8001",
    "s_addk_i32 s20, 0x8001",
    "s_mulk_i32 s20, 0x8001",
    "s_bitset0_b32 s20, s2",
    "s_bitset1_b32 s20, s2",
    "s_cmov_b32 s20, s2",
    "s_getpc_b64 s[20:21]",
    "s_bitcmp0_b32 s2, s6",
    "s_bitcmp1_b32 s2, s6",
    "s_bitcmp0_b64 s[2:3], s6",
    "s_bitcmp1_b64 s[2:3], s6",
    "s_mov_b32 s20, 0x12345678",
    "s_mov_b32 s20, -16",
    "s_mov_b32 s20, 1.0",
    "s_mov_b64 s[20:21], -1",
    "s_mov_b64 exec, s[2:3]",
    "s_mov_b32 exec_lo, s2",
)
_SAVED: dict[str, Model] = {
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
_SAVE_LINES = tuple(
    f"s_{n}_saveexec_b{w} {'s[20:21], s[2:3]' if w == 64 else 's20, s2'}" for n in _SAVED for w in (32, 64)
)


@pytest.mark.parametrize("line", _SAVE_LINES)
def test_exec_is_saved(line: str) -> None:
    """The old EXEC in the result, the new one in the lanes' mask, SCC if any lane is left."""
    arch, i = _get(line, _SAVE_LINES)
    b = Bench(arch, 3)
    width = int(line.split()[0][-2:])
    model = _SAVED[line.split("_saveexec")[0][2:]]
    kind = f"u{width}"
    old = [_read(b, 126, kind, w) for w in range(2)]
    sources = [_read(b, 2, kind, w) for w in range(2)]
    bound = b.run(i)
    assert bound.observes & 3 << 514 or bound.observes & 1 << 514
    for w in range(2):
        wanted = model(sources[w], old[w]) & (1 << width) - 1
        assert _read(b, 20, kind, w) == old[w] and _read(b, 126, kind, w) == wanted
        assert bool(b.c.scc[w]) == (wanted != 0)
        if width == b.target.lanes:
            assert [bool(x) for x in b.mask[w]] == [bool(wanted >> n & 1) for n in range(width)]


def test_selection_carries_and_bits() -> None:
    def run(k: int, scc: bool, x: int, y: int, old: int = 0) -> tuple[Bench, int]:
        arch, i = _get(OTHERS[k], OTHERS)
        b = Bench(arch)
        b.s[:, 2], b.s[:, 3], b.s[:, 6], b.s[:, 7], b.s[:, 20], b.c.scc[:] = x, y, y, x, old, scc
        b.run(i)
        return b, _read(b, 20, "u64", 0)

    for scc in (False, True):
        assert run(0, scc, 5, 9)[1] & U32 == (5 if scc else 9)
        assert run(1, scc, 5, 9)[1] == (5 | 9 << 32 if scc else 9 | 5 << 32)
        for x, y in ((1, 2), (U32, 0), (U32, U32), (0, U32), (0, 0)):
            b, got = run(2, scc, x, y)
            assert got & U32 == x + y + scc & U32 and b.c.scc[0] == (x + y + scc > U32)
            b, got = run(3, scc, x, y)
            assert got & U32 == x - y - scc & U32 and b.c.scc[0] == (x - y - scc < 0)
        assert run(9, scc, 5, 0, 7)[1] & U32 == (5 if scc else 7)
    assert run(4, False, 0, 0)[1] & U32 == 0xFFFF8001
    b, got = run(5, False, 0, 0, 0x80000000)
    assert got & U32 == 0x80000000 + 0xFFFF8001 & U32 and b.c.scc[0]
    assert run(6, False, 0, 0, 3)[1] & U32 == 3 * (0x8001 - 0x10000) & U32
    assert run(7, False, 33, 0, 7)[1] & U32 == 5 and run(8, False, 33, 0, 4)[1] & U32 == 6
    for k, wanted in ((11, True), (12, False)):
        assert run(k, False, 0b101, 33)[0].c.scc[0] == wanted
    for k, wanted in ((13, False), (14, True)):
        assert run(k, False, 0, 33)[0].c.scc[0] == (wanted if 33 >> 1 & 1 else not wanted)


def test_constants_and_masks() -> None:
    for k, wanted in ((15, 0x12345678), (16, U32 - 15), (17, 0x3F800000), (18, U64)):
        arch, i = _get(OTHERS[k], OTHERS)
        b = Bench(arch)
        b.run(i)
        assert _read(b, 20, "u64" if k == 18 else "u32", 0) == wanted
    for k, arch in ((19, "gfx90a"), (20, "gfx1100")):
        _, i = _get(OTHERS[k], OTHERS)
        b = Bench(arch)
        b.s[:, 2:4] = 0x0000FFFF
        bound = b.run(i)
        assert bool(b.mask[0, 15]) and not b.mask[0, 16]
        assert bound.observes >> 514 & 1, "what goes to EXEC must be defined"


def test_program_counter() -> None:
    arch, i = _get(OTHERS[10], OTHERS)
    b = Bench(arch)
    b.machine.image_address = 0x7F0000000000
    b.run(i)
    assert _read(b, 20, "u64", 1) == 0x7F0000000000 + i.end


def test_every_scalar_instruction_is_tested() -> None:
    lines = (*OTHERS, *_SAVE_LINES, *_COMPARE_LINES, *_SHORT_LINES)
    assert set(salu.SPECIAL) <= {line.split()[0] for line in lines}


def test_unknown_is_an_error() -> None:
    lines = ("s_quadmask_b32 s0, s1", "s_mov_b32 s0, src_shared_base", "s_setreg_b32 hwreg(HW_REG_MODE), s0")
    for line in lines:
        arch, i = _get(line, lines)
        with pytest.raises(NotModelled):
            Bench(arch).bind(i)


def test_results_are_encoded() -> None:
    """The model's own conversions."""
    assert encode("i32", -1) == U32 and np.float32(value("f32", 0x3F800000)) == 1
