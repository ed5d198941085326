"""From an instruction to a Python closure over a convoy: operands, results, and which registers are touched.

Sources and results have types: u16 i16 f16 u32 i32 f32 u64 i64 f64. A 16-bit source is the low half of its
register unless op_sel or SDWA says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dpp import lanes_of
from .faults import NotModelled
from .parse import NULL, Constant, Instruction, Register, operand
from .waves import AGPR, SCC_BIT, Convoy, bits

Array = np.ndarray[Any, Any]
Run = Callable[[Convoy], None]
Source = Callable[[Convoy], Any]

DTYPES: dict[str, Any] = {
    "u16": np.uint16,
    "i16": np.int16,
    "f16": np.float16,
    "u32": np.uint32,
    "i32": np.int32,
    "f32": np.float32,
    "u64": np.uint64,
    "i64": np.int64,
    "f64": np.float64,
}
SCC = 1 << SCC_BIT


@dataclass
class Bound:
    """An instruction ready to run.

    reads, writes: bits of registers. observes: those of `reads` whose value decides more than registers (an
    address, a branch, EXEC, what is stored): they must be defined. parts: (written, read) pairs where results
    do not depend on all sources. loads: class of a load, whose `writes` arrive later. kind: for statistics.
    """

    run: Run
    reads: int
    writes: int
    kind: str
    observes: int = 0
    parts: tuple[tuple[int, int], ...] = ()
    loads: str = ""


@dataclass
class Target:
    """What differs between the instruction sets.

    mfma_flushes: 16-bit MFMAs take subnormal operands for zero and flush such results (MI200).
    """

    arch: str
    lanes: int
    lds_bytes: int = 65536
    mfma_flushes: bool = False

    @property
    def gfx9(self) -> bool:
        return self.arch.startswith("gfx9")

    @property
    def preserves_high_half(self) -> bool:
        """16-bit results leave the upper half alone (gfx10 and later); gfx9 mostly clears it."""
        return not self.gfx9


TARGETS = {
    "gfx90a": Target("gfx90a", 64, mfma_flushes=True),
    "gfx942": Target("gfx942", 64),
    "gfx950": Target("gfx950", 64, lds_bytes=163840),
    "gfx1100": Target("gfx1100", 32),
}


def _as(kind: str, value: Any) -> Any:
    """Reinterpret 32- or 64-bit integers."""
    if kind in ("u32", "u64"):
        return value
    if np.ndim(value) == 0:
        return np.asarray(value).reshape(1).view(DTYPES[kind])[0]
    return np.ascontiguousarray(value).view(DTYPES[kind])


def constant(c: Constant, kind: str) -> Any:
    """An inline constant or literal as a source of that type."""
    width = int(kind[1:])
    if c.real is not None:
        # Floating-point inline constants of an integer source of 32 bits are the bits of a float.
        real = {16: np.float16, 32: np.float32, 64: np.float64}[width](c.real)
        return real if kind[0] == "f" else real.view(DTYPES[kind])
    if width == 64:
        if c.literal:
            if kind == "f64":
                return np.uint64(c.integer << 32).view(np.float64)  # a literal is the upper half
            # Zero-extended, as LLVM uses it for s_mov_b64 (S_MOV_B64_IMM_PSEUDO); signed ones do not occur.
            if kind == "i64" and c.integer >> 31:
                raise NotModelled(f"64-bit source with literal {c.integer:#x}")
        return np.uint64(c.integer & (1 << 64) - 1).view(DTYPES[kind])
    raw = c.integer & (1 << width) - 1
    return DTYPES["u" + str(width)](raw).view(DTYPES[kind])


def number(r: Register) -> int:
    """Index of a vector register in the unified file."""
    return r.first + (AGPR if r.kind == "a" else 0)


class Binder:
    """Collects what an instruction touches while its operands are bound."""

    def __init__(self, i: Instruction, target: Target) -> None:
        self.i, self.target = i, target
        self.reads = self.writes = self.observes = 0
        self.used: set[str] = set()
        self.sdwa = i.mnemonic.endswith("_sdwa")
        self.dpp = i.mnemonic.endswith("_dpp")

    def fail(self, what: str) -> NotModelled:
        return NotModelled(f"{what}: {self.i}")

    # --- modifiers ---

    def flag(self, name: str) -> bool:
        """Whether a modifier is there; it counts as known."""
        self.used.add(name)
        return name in self.i.modifiers

    def value(self, name: str, default: str = "") -> str:
        self.used.add(name)
        return self.i.modifiers.get(name, default)

    def integer(self, name: str, default: int = 0) -> int:
        return int(self.value(name, str(default)), 0)

    def bits_of(self, name: str, default: list[int]) -> list[int]:
        """A list modifier such as op_sel:[0,1]."""
        text = self.value(name)
        if not text:
            return default
        return [int(x) for x in text.strip("[]").split(",")]

    def done(self, run: Run, kind: str, **more: Any) -> Bound:
        """The bound instruction. Raises NotModelled if a modifier was not looked at."""
        unknown = set(self.i.modifiers) - self.used
        if unknown:
            raise self.fail(f"modifiers {sorted(unknown)}")
        return Bound(run, self.reads, self.writes, kind, self.observes, **more)

    # --- operands ---

    def op(self, k: int) -> Register | Constant:
        if k >= len(self.i.operands):
            raise self.fail(f"operand {k} is missing")
        return operand(self.i.operands[k])

    def register(self, k: int, kinds: str = "va", count: int | None = None) -> Register:
        r = self.op(k)
        if not isinstance(r, Register) or r.kind not in kinds or (count is not None and r.count != count):
            raise self.fail(f"operand {k} is not {count or 'some'} registers of {kinds}")
        return r

    def note_read(self, r: Register, count: int | None = None, observed: bool = False) -> None:
        if r.kind == "s" and r.first == NULL:
            return
        mask = bits(r.kind, r.first, r.count if count is None else count)
        self.reads |= mask
        if observed:
            self.observes |= mask

    def note_write(self, r: Register) -> None:
        if r.kind == "s" and r.first == NULL:
            return
        self.writes |= bits(r.kind, r.first, r.count)

    def _raw32(self, k: int, r: Register) -> Source:
        """The register's 32 bits for each lane."""
        self.note_read(r, 1)
        if r.kind == "s":
            if r.first == NULL:
                zero = np.uint32(0)
                return lambda c: zero
            s = r.first
            return lambda c: c.s[:, s : s + 1]
        v = number(r)
        return lambda c: c.v[v]

    def source(self, k: int, kind: str, half: int = 0, floats: bool = True) -> Source:
        """Operand k as a typed source of a vector instruction, sign modifiers, SDWA and DPP included."""
        o = self.op(k)
        width = int(kind[1:])
        if isinstance(o, Constant):
            value = constant(o, kind)
            if o.absolute:
                value = abs(value)
            if o.negative:
                value = -value
            if half and width == 16:
                raise self.fail("upper half of a constant")
            return lambda c: value
        get: Source
        if width == 64:
            get = self._pair(o, kind)
        elif width == 32 and not self.sdwa and not (self.dpp and k == 1):
            get = self._plain32(o, kind)
        else:
            raw = self._raw32(k, o)
            if self.dpp and k == 1:
                raw = self._permuted(raw)
            if self.sdwa and k in (1, 2):
                raw = self._selected(raw, f"src{k - 1}_sel", o.signed)
            elif o.signed:
                raise self.fail("sext outside SDWA")
            if width == 32:
                dtype = DTYPES[kind]
                get = raw if kind == "u32" else lambda c: np.ascontiguousarray(raw(c)).view(dtype)
            else:
                dtype = DTYPES[kind]
                if half:
                    get = lambda c: (raw(c) >> 16).astype(np.uint16).view(dtype)  # noqa: E731
                else:
                    get = lambda c: raw(c).astype(np.uint16).view(dtype)  # noqa: E731
        if o.absolute or o.negative:
            get = self._signs(get, kind, o.negative, o.absolute, floats)
        return get

    def _signs(self, get: Source, kind: str, negative: bool, absolute: bool, floats: bool) -> Source:
        if kind[0] != "f" and floats:
            raise self.fail("sign modifier of an integer source")
        if kind[0] != "f":  # v_cndmask and moves: the sign bit of what is taken for a float
            top = DTYPES[kind](1 << int(kind[1:]) - 1)
            if absolute and negative:
                return lambda c: get(c) | top
            return (lambda c: get(c) & ~top) if absolute else (lambda c: get(c) ^ top)
        if absolute and negative:
            return lambda c: -np.abs(get(c))
        return (lambda c: np.abs(get(c))) if absolute else (lambda c: -get(c))

    def _plain32(self, o: Register, kind: str) -> Source:
        self.note_read(o, 1)
        if o.kind == "s":
            s = o.first
            if s == NULL:
                zero = DTYPES[kind](0)
                return lambda c: zero
            if kind == "u32":
                return lambda c: c.s[:, s : s + 1]
            return (lambda c: c.sf[:, s : s + 1]) if kind == "f32" else (lambda c: c.si[:, s : s + 1])
        v = number(o)
        if kind == "u32":
            return lambda c: c.v[v]
        return (lambda c: c.f[v]) if kind == "f32" else (lambda c: c.i[v])

    def _pair(self, o: Register, kind: str) -> Source:
        self.note_read(o, 2)
        if o.count != 2:
            raise self.fail(f"64-bit source of {o.count} registers")
        dtype = DTYPES[kind]
        if o.kind == "s":
            s = o.first // 2
            return lambda c: c.s64[:, s : s + 1].view(dtype)
        v = number(o)

        def pair(c: Convoy) -> Array:
            high = c.v[v + 1].astype(np.uint64)
            return ((high << np.uint64(32)) | c.v[v]).view(dtype)

        return pair

    def _selected(self, raw: Source, name: str, signed: bool) -> Source:
        """SDWA source select (CDNA2 ISA, 6.3 and VOP_SDWA)."""
        select = self.value(name, "DWORD")
        if select == "DWORD":
            return raw
        unit, _, at = select.partition("_")
        width = {"BYTE": 8, "WORD": 16}[unit]
        shift, ones = np.uint32(int(at) * width), np.uint32((1 << width) - 1)
        if signed:
            up = np.uint32(32 - width)
            down = np.int32(32 - width)

            def extended(c: Convoy) -> Array:
                high = np.ascontiguousarray(raw(c) >> shift << up)
                return (high.view(np.int32) >> down).view(np.uint32)

            return extended
        return lambda c: (raw(c) >> shift) & ones

    def _permuted(self, raw: Source) -> Source:
        """DPP: the first source from other lanes; lanes without a source read 0 or are not written."""
        index, valid, zero = lanes_of(self, self.target.lanes)
        self.dpp_valid = valid if not zero else None
        if zero and not valid.all():
            return lambda c: np.where(valid & np.take(c.mask, index, axis=1), raw(c)[:, index], np.uint32(0))
        return lambda c: raw(c)[:, index]

    # --- results ---

    def result(self, k: int, kind: str) -> Callable[[Convoy, Any], None]:
        """Operand k as a vector result, written in active lanes."""
        r = self.register(k, "va")
        self.note_write(r)
        v = number(r)
        width = int(kind[1:])
        put32 = self._put32(v)
        if self.sdwa:
            return self._sdwa_result(v, kind, put32)
        if self.dpp:
            return self._dpp_result(v, kind)
        if width == 32:
            return put32 if kind == "u32" else self._put_typed(v, kind)
        if width == 64:
            high32 = self._put32(v + 1)
            if r.count != 2:
                raise self.fail("64-bit result")

            def pair(c: Convoy, x: Any) -> None:
                x = np.ascontiguousarray(x).view(np.uint64)
                put32(c, x.astype(np.uint32))
                high32(c, (x >> np.uint64(32)).astype(np.uint32))

            return pair
        return self._put_half(v, put32)

    def _put32(self, v: int) -> Callable[[Convoy, Any], None]:
        def put(c: Convoy, x: Any) -> None:
            if c.full:
                c.v[v] = x
            else:
                np.copyto(c.v[v], x, where=c.mask)

        return put

    def _put_typed(self, v: int, kind: str) -> Callable[[Convoy, Any], None]:
        if kind == "f32":
            return self._put32_float(v)

        def put(c: Convoy, x: Any) -> None:
            if c.full:
                c.i[v] = x
            else:
                np.copyto(c.i[v], x, where=c.mask)

        return put

    def _put32_float(self, v: int) -> Callable[[Convoy, Any], None]:
        """A float into one register."""

        def put(c: Convoy, x: Any) -> None:
            if c.full:
                c.f[v] = x
            else:
                np.copyto(c.f[v], x, where=c.mask)

        return put

    def _put_half(self, v: int, put32: Callable[[Convoy, Any], None]) -> Callable[[Convoy, Any], None]:
        select = self.bits_of("op_sel", [0, 0, 0, 0])
        high = bool(len(select) > 3 and select[3]) or bool(
            len(select) == 2 and self._one_source and select[1]
        )
        if len(select) == 3 and self._two_sources:
            high = bool(select[2])
        keep = high or self.target.preserves_high_half or self.i.name in KEEPS_HIGH_HALF
        shift = np.uint32(16 if high else 0)
        rest = np.uint32(0xFFFF if high else 0xFFFF0000)

        def put(c: Convoy, x: Any) -> None:
            raw = np.ascontiguousarray(x).view(np.uint16).astype(np.uint32) << shift
            put32(c, (c.v[v] & rest) | raw if keep else raw)

        return put

    @property
    def _one_source(self) -> bool:
        return len(self.i.operands) == 2

    @property
    def _two_sources(self) -> bool:
        return len(self.i.operands) == 3

    def _sdwa_result(self, v: int, kind: str, put32: Callable[[Convoy, Any], None]) -> Any:
        select = self.value("dst_sel", "DWORD")
        unused = self.value("dst_unused", "UNUSED_PAD")
        width = int(kind[1:])

        def raw32(x: Any) -> Any:
            if width == 16:
                return np.ascontiguousarray(x).view(np.uint16).astype(np.uint32)
            return np.ascontiguousarray(x).view(np.uint32)

        if select == "DWORD":
            return lambda c, x: put32(c, raw32(x))
        unit, _, at = select.partition("_")
        size = {"BYTE": 8, "WORD": 16}[unit]
        shift, ones = np.uint32(int(at) * size), np.uint32((1 << size) - 1)
        if unused not in ("UNUSED_PAD", "UNUSED_PRESERVE"):
            raise self.fail(unused)
        keep = unused == "UNUSED_PRESERVE"

        def put(c: Convoy, x: Any) -> None:
            part = (raw32(x) & ones) << shift
            put32(c, (c.v[v] & ~(ones << shift)) | part if keep else part)

        return put

    def _dpp_result(self, v: int, kind: str) -> Any:
        width = int(kind[1:])
        if width != 32:
            raise self.fail("DPP of other than 32 bits")
        rows, banks = self.integer("row_mask", 15), self.integer("bank_mask", 15)
        lane = np.arange(self.target.lanes)
        enabled = (rows >> lane // 16 & 1).astype(bool) & (banks >> lane // 4 % 4 & 1).astype(bool)

        def put(c: Convoy, x: Any) -> None:
            where = c.mask & enabled
            if self.dpp_valid is not None:
                where = where & self.dpp_valid
            np.copyto(c.v[v], np.ascontiguousarray(x).view(np.uint32), where=where)

        return put


#: gfx9 instructions with a 16-bit result that leave the upper half alone (LLVM, zeroesHigh16BitsOfDest).
KEEPS_HIGH_HALF = {
    "v_fma_f16",
    "v_mad_f16",
    "v_mad_u16",
    "v_mad_i16",
    "v_div_fixup_f16",
    "v_fma_mixlo_f16",
    "v_fma_mixhi_f16",
}
