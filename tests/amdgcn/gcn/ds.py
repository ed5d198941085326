"""LDS instructions (CDNA2 ISA, 11; RDNA3 ISA, 12)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .binding import Array, Binder, Bound, Target, number
from .lds import conflicts, phases
from .parse import Instruction
from .vmem import WIDTHS, Width
from .waves import Convoy, Transfer

U32 = np.uint32


class Access(NamedTuple):
    """An instruction's shape: one place of `width`, or two a `scale` of bytes apart for each unit of offset."""

    write: bool
    width: Width
    scale: int = 0


ACCESSES: dict[str, Access] = {}
for _new, _old in (("u8", "u8"), ("i8", "i8"), ("u16", "u16"), ("i16", "i16")):
    ACCESSES[f"ds_read_{_old}"] = ACCESSES[f"ds_load_{_new}"] = Access(False, WIDTHS[_new])
for _k in ("b32", "b64", "b96", "b128"):
    ACCESSES[f"ds_read_{_k}"] = ACCESSES[f"ds_load_{_k}"] = Access(False, WIDTHS[_k])
    ACCESSES[f"ds_write_{_k}"] = ACCESSES[f"ds_store_{_k}"] = Access(True, WIDTHS[_k])
for _k in ("b8", "b16"):
    ACCESSES[f"ds_write_{_k}"] = ACCESSES[f"ds_store_{_k}"] = Access(True, WIDTHS[_k])
    ACCESSES[f"ds_write_{_k}_d16_hi"] = ACCESSES[f"ds_store_{_k}_d16_hi"] = Access(
        True, Width(WIDTHS[_k].size, high=True)
    )
for _k, _size in (("u16", 2), ("u8", 1)):
    for _hi in ("", "_hi"):
        ACCESSES[f"ds_read_{_k}_d16{_hi}"] = ACCESSES[f"ds_load_{_k}_d16{_hi}"] = Access(
            False, Width(_size, keep=True, high=bool(_hi))
        )
for _size, _k in ((4, "b32"), (8, "b64")):
    _w = WIDTHS[_k]
    ACCESSES[f"ds_read2_{_k}"] = ACCESSES[f"ds_load_2addr_{_k}"] = Access(False, _w, _size)
    ACCESSES[f"ds_write2_{_k}"] = ACCESSES[f"ds_store_2addr_{_k}"] = Access(True, _w, _size)
    ACCESSES[f"ds_read2st64_{_k}"] = ACCESSES[f"ds_load_2addr_stride64_{_k}"] = Access(False, _w, 64 * _size)
    ACCESSES[f"ds_write2st64_{_k}"] = ACCESSES[f"ds_store_2addr_stride64_{_k}"] = Access(True, _w, 64 * _size)


def narrowest(names: set[str]) -> int:
    """Bytes of the narrowest access among instructions, at most 4: the granule that is tracked."""
    return min((min(4, ACCESSES[n].width.size) for n in names if n in ACCESSES), default=4)


@lru_cache(maxsize=1 << 14)
def _extra(addresses: bytes, active: bytes, size: int, write: bool) -> int:
    """Conflicts of one wave's access. Loops repeat their addresses: each pattern is counted once."""
    return conflicts(np.frombuffer(addresses, U32), size, write, np.frombuffer(active, bool))


def _count(c: Convoy, i: Instruction, addresses: Array, size: int, write: bool) -> None:
    """Bank conflicts of each wave, where they are asked for."""
    table = c.machine.conflicts
    if table is None:
        return
    passes, extra = table.get(i.address, (0, 0))
    for wave in range(c.n):
        if c.mask[wave].any():
            passes += len(phases(size, write, c.mask.shape[1]))
            extra += _extra(addresses[wave].tobytes(), c.mask[wave].tobytes(), size, write)
    table[i.address] = passes, extra


def _access(b: Binder) -> Bound:
    access = ACCESSES[b.i.name]
    w, scale = access.width, access.scale
    if b.flag("gds"):
        raise b.fail("global data share")
    if scale:
        offsets = [U32(b.integer("offset0") * scale), U32(b.integer("offset1") * scale)]
    else:
        offsets = [U32(b.integer("offset"))]
    at = b.register(0 if access.write else 1, "v", 1)
    b.note_read(at, observed=True)
    a, size, count = number(at), w.size, max(1, w.size // 4)
    # b96 and b128 must be aligned to 16 bytes, b64 to 8, as without the unaligned mode.
    aligned = {12: 16}.get(size, size)
    i = b.i
    if access.write:
        data = [b.register(k + 1, "va", count) for k in range(len(offsets))]
        for r in data:
            b.note_read(r, observed=True)
        numbers = [number(r) for r in data]

        def write(c: Convoy) -> None:
            for v, offset in zip(numbers, offsets, strict=True):
                addresses = c.v[a] + offset
                values = c.v[v : v + count]
                if w.high:
                    values = values >> U32(16)
                touched = c.machine.lds.store(c, addresses, size, aligned, values)
                _count(c, i, addresses, size, True)
                c.issue("lgkm", Transfer("lds", 0, touched))
            _one(c, len(numbers))

        return b.done(write, "lds")
    out = b.register(0, "va", count * len(offsets))
    b.note_write(out)
    d, registers = number(out), b.writes

    def read(c: Convoy) -> None:
        found = []
        base = np.array(c.v[a])
        for offset in offsets:
            addresses = base + offset
            values, touched = c.machine.lds.load(c, addresses, size, aligned)
            _count(c, i, addresses, size, False)
            found.append((values, touched))
        for k, (values, touched) in enumerate(found):
            _into(c, d + k * count, w, values)
            c.issue("lgkm", Transfer("lds", registers, touched))
        _one(c, len(found))

    return b.done(read, "lds", loads="lds")


def _one(c: Convoy, count: int) -> None:
    """The two halves of one instruction count once: join their transfers."""
    if count == 2:
        queue = c.queues.lgkm
        second, first = queue.pop(), queue.pop()
        joined = first.lds._replace(
            granules=np.concatenate([first.lds.granules, second.lds.granules], axis=2)
        )
        queue.append(Transfer("lds", first.registers, joined))


def _into(c: Convoy, v: int, w: Width, words: Array) -> None:
    """Words (words, waves, lanes) into the registers of active lanes."""
    if w.size < 4:
        value = words[0]
        if w.signed:
            up = 32 - 8 * w.size
            value = ((value << U32(up)).view(np.int32) >> np.int32(up)).view(U32)
        if w.keep:
            old = c.v[v]
            value = (old & U32(0xFFFF)) | value << U32(16) if w.high else (old & U32(0xFFFF0000)) | value
        words = value[None]
    for k, word in enumerate(words):
        if c.full:
            c.v[v + k] = word
        else:
            np.copyto(c.v[v + k], word, where=c.mask)


def _permute(b: Binder) -> Bound:
    """ds_permute_b32, ds_bpermute_b32: registers of other lanes, through the LDS unit but not its memory."""
    out, at, data = b.register(0, "v", 1), b.register(1, "v", 1), b.register(2, "v", 1)
    for r in (at, data):
        b.note_read(r)
    b.note_write(out)
    d, a, v = number(out), number(at), number(data)
    offset, backward, last = U32(b.integer("offset")), b.i.name == "ds_bpermute_b32", U32(b.target.lanes - 1)
    transfer = Transfer("lds", b.writes)

    def run(c: Convoy) -> None:
        lane = ((c.v[a] + offset) >> U32(2) & last).astype(np.int64)
        source = np.where(c.mask, c.v[v], U32(0))
        if backward:
            value = np.take_along_axis(source, lane, axis=1)
        else:
            value = np.zeros_like(source)
            for wave in range(c.n):
                active = c.mask[wave]
                value[wave][lane[wave][active]] = source[wave][active]
        np.copyto(c.v[d], value, where=c.mask)
        c.issue("lgkm", transfer)

    return b.done(run, "lds", loads="lds")


def _swizzle(b: Binder) -> Bound:
    """ds_swizzle_b32 in its bit mode (and, or, xor within 32 lanes) and its quad mode."""
    out, data = b.register(0, "v", 1), b.register(1, "v", 1)
    b.note_read(data)
    b.note_write(out)
    d, v = number(out), number(data)
    text = b.value("offset", "0")
    lane = np.arange(b.target.lanes)
    if text.startswith("swizzle("):
        raise b.fail("symbolic swizzle")
    pattern = int(text, 0)
    if pattern & 0x8000:
        source = lane // 4 * 4 + (pattern >> 2 * (lane % 4) & 3)
    else:
        within = ((lane % 32 & (pattern & 31)) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31)
        source = lane // 32 * 32 + within
    transfer = Transfer("lds", b.writes)

    def run(c: Convoy) -> None:
        np.copyto(c.v[d], np.where(c.mask, c.v[v], U32(0))[:, source], where=c.mask)
        c.issue("lgkm", transfer)

    return b.done(run, "lds", loads="lds")


SPECIAL: dict[str, Callable[[Binder], Bound]] = {
    "ds_permute_b32": _permute,
    "ds_bpermute_b32": _permute,
    "ds_swizzle_b32": _swizzle,
}


def knows(name: str) -> bool:
    """Whether this file has the instruction."""
    return name in ACCESSES or name in SPECIAL


def bind(i: Instruction, target: Target) -> Bound:
    """An LDS instruction."""
    b = Binder(i, target)
    return SPECIAL[i.name](b) if i.name in SPECIAL else _access(b)


__all__: list[Any] = ["bind", "knows", "narrowest"]
