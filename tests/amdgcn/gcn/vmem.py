"""Vector and scalar memory: flat, global, buffer, scalar loads and stores (CDNA2 ISA, 7 to 9; RDNA3 ISA, 8 to 11)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .binding import Array, Binder, Bound, Run, Target, number
from .faults import NotModelled
from .parse import NULL, Constant, Instruction, Register
from .waves import Convoy, Transfer, bits

U32, U64 = np.uint32, np.uint64


class Width(NamedTuple):
    """bytes of an access; how a narrow one meets its register: zero or sign extended, or a half that is kept."""

    size: int
    signed: bool = False
    keep: bool = False
    high: bool = False


WIDTHS = {
    "ubyte": Width(1),
    "sbyte": Width(1, True),
    "ushort": Width(2),
    "sshort": Width(2, True),
    "short_d16": Width(2, keep=True),
    "short_d16_hi": Width(2, keep=True, high=True),
    "ubyte_d16": Width(1, keep=True),
    "ubyte_d16_hi": Width(1, keep=True, high=True),
    "dword": Width(4),
    "dwordx2": Width(8),
    "dwordx3": Width(12),
    "dwordx4": Width(16),
    "u8": Width(1),
    "i8": Width(1, True),
    "u16": Width(2),
    "i16": Width(2, True),
    "d16_b16": Width(2, keep=True),
    "d16_hi_b16": Width(2, keep=True, high=True),
    "d16_u8": Width(1, keep=True),
    "d16_hi_u8": Width(1, keep=True, high=True),
    "b32": Width(4),
    "b64": Width(8),
    "b96": Width(12),
    "b128": Width(16),
    # stores
    "byte": Width(1),
    "byte_d16_hi": Width(1, high=True),
    "short": Width(2),
    "b8": Width(1),
    "b16": Width(2),
    "d16_hi_b8": Width(1, high=True),
}
#: Cache policy: no effect on results in this model.
CACHE = ("glc", "slc", "dlc", "scc", "sc0", "sc1", "nt")
_NAME = re.compile(r"^(flat|global|buffer)_(load|store)_(\w+)$")

Addresses = Callable[[Convoy], Array]


def spread(c: Convoy, v: int, w: Width, words: Array) -> None:
    """Loaded words (words, active lanes) into registers from number v on."""
    if w.size < 4:
        value = words[0]
        if w.signed:
            value = (value << U32(32 - 8 * w.size)).view(np.int32) >> np.int32(32 - 8 * w.size)
            value = value.view(U32)
        if w.keep:
            old = c.v[v].reshape(-1) if c.full else c.v[v][c.mask]
            value = (old & U32(0xFFFF)) | value << U32(16) if w.high else (old & U32(0xFFFF0000)) | value
        words = value[None]
    if c.full:
        for k, word in enumerate(words):
            c.v[v + k] = word.reshape(c.n, -1)
    else:
        for k, word in enumerate(words):
            c.v[v + k][c.mask] = word


def gather(c: Convoy, v: int, w: Width) -> Array:
    """Registers to be stored: (words, active lanes)."""
    count = max(1, w.size // 4)
    raw = c.v[v : v + count]
    raw = raw.reshape(count, -1) if c.full else raw[:, c.mask]
    return raw >> U32(16) if w.high else raw


def _active(c: Convoy, addresses: Array) -> Array:
    full: Array = np.broadcast_to(addresses, c.mask.shape)
    return full.reshape(-1) if c.full else full[c.mask]


def _flat_address(b: Binder, at: int, scalar: int | None) -> Addresses:
    """The address operand at `at`; `scalar` is the position of a global instruction's scalar base."""
    offset = U64(b.integer("offset") & (1 << 64) - 1)
    base = None
    if scalar is not None and b.i.operands[scalar] != "off":
        r = b.register(scalar, "s", 2)
        b.note_read(r, observed=True)
        base = r.first // 2
    if base is None:
        r = b.register(at, "v", 2)
        b.note_read(r, observed=True)
        v = number(r)

        def pair(c: Convoy) -> Array:
            address: Array = (c.v[v + 1].astype(U64) << U64(32)) + c.v[v] + offset
            return address

        return pair
    r = b.register(at, "v", 1)
    b.note_read(r, observed=True)
    v = number(r)
    return lambda c: c.s64[:, base : base + 1] + offset + c.v[v]


def _counters(b: Binder, family: str, store: bool) -> dict[str, str]:
    """Counter -> class of an access in it.

    A flat access counts twice. On gfx9 it completes in no order with others (CDNA2 ISA, 9.5), later in order with
    those of both kinds (LLVM, hasFlatLgkmVMemCountInOrder).
    """
    counter = "vs" if store and not b.target.gfx9 else "vm"
    kind = "vector store" if counter == "vs" else "vector"
    if family != "flat":
        return {counter: kind}
    return dict.fromkeys((counter, "lgkm"), "flat") if b.target.gfx9 else {counter: kind, "lgkm": "lds"}


def _issuer(counters: dict[str, str], registers: int) -> tuple[Run, str]:
    """(what puts an access in flight, its class for who overwrites its registers)."""
    transfers = [(counter, Transfer(kind, registers)) for counter, kind in counters.items()]
    if len(transfers) == 1:
        ((counter, transfer),) = transfers
        return (lambda c: c.issue(counter, transfer)), transfer.kind

    def issue(c: Convoy) -> None:
        for counter, transfer in transfers:
            c.issue(counter, transfer)

    return issue, "flat"


def _flat(b: Binder) -> Bound:
    match = _NAME.match(b.i.name)
    if match is None or match[3] not in WIDTHS:
        raise b.fail("unknown memory access")
    family, direction, w = match[1], match[2], WIDTHS[match[3]]
    store = direction == "store"
    b.used.update(CACHE)
    scalar = 2 if family == "global" else None
    address = _flat_address(b, 0 if store else 1, scalar)
    data = b.register(1 if store else 0, "va", max(1, w.size // 4))
    v = number(data)
    counters = _counters(b, family, store)
    size = w.size
    if store:
        b.note_read(data, observed=True)
        begin, _ = _issuer(counters, 0)

        def write(c: Convoy) -> None:
            c.machine.memory.store(_active(c, address(c)), size, gather(c, v, w))
            begin(c)

        return b.done(write, "vmem")
    b.note_write(data)
    begin, kind = _issuer(counters, b.writes)

    def read(c: Convoy) -> None:
        spread(c, v, w, c.machine.memory.load(_active(c, address(c)), size))
        begin(c)

    return b.done(read, "vmem", loads=kind)


def _buffer(b: Binder) -> Bound:
    """Raw buffers: V#.stride 0, no swizzle. Words beyond num_records read 0 and are not written.

    CDNA2 ISA, 8.1.5: the range check of raw buffers compares offset + 4 words with num_records - soffset.
    """
    match = _NAME.match(b.i.name)
    if match is None or match[3] not in WIDTHS:
        raise b.fail("unknown memory access")
    store, w = match[2] == "store", WIDTHS[match[3]]
    b.used.update(CACHE)
    if b.flag("idxen") or b.flag("addr64"):
        raise b.fail("structured buffer")
    to_lds = b.flag("lds")
    offen, offset = b.flag("offen"), U64(b.integer("offset"))
    shift = -1 if to_lds else 0
    vector = None
    if offen:
        r = b.register(1 + shift, "v", 1)
        b.note_read(r, observed=True)
        vector = number(r)
    resource = b.register(2 + shift, "s", 4)
    b.note_read(resource, observed=True)
    s = resource.first
    o = b.op(3 + shift)
    scalar: Callable[[Convoy], Any]
    if isinstance(o, Constant):
        constant = U64(o.integer)
        scalar = lambda c: constant  # noqa: E731
    else:
        b.note_read(o, 1, observed=True)
        so = o.first
        scalar = lambda c: c.s[:, so : so + 1].astype(U64) if so != NULL else U64(0)  # noqa: E731
    counters = _counters(b, "buffer", store)
    size, count = w.size, max(1, w.size // 4)

    def place(c: Convoy) -> tuple[Array, Array]:
        """(addresses, how many bytes lie inside) of all lanes."""
        raw = c.s[:, s : s + 4].astype(U64)
        if (raw[:, 1] >> U64(16) & U64(0x3FFF)).any():
            raise NotModelled("buffer with a stride")
        base = raw[:, 0] | (raw[:, 1] & U64(0xFFFF)) << U64(32)
        inside = offset + (c.v[vector].astype(U64) if vector is not None else U64(0))
        extra = np.broadcast_to(np.asarray(scalar(c)), (c.n, 1))
        left = raw[:, 2:3].astype(np.int64) - extra.astype(np.int64) - np.asarray(inside).astype(np.int64)
        address = base[:, None] + extra + inside
        return np.broadcast_to(address, c.mask.shape), np.broadcast_to(left, c.mask.shape)

    if to_lds:
        return _buffer_to_lds(b, place, w)
    data = b.register(0, "va", count)
    v = number(data)
    unit = min(size, 4)

    def words(c: Convoy) -> Any:
        address, left = place(c)
        for k in range(count):
            yield k, address + U64(4 * k), c.mask & (left >= 4 * k + unit)

    if store:
        b.note_read(data, observed=True)
        begin, _ = _issuer(counters, 0)

        def write(c: Convoy) -> None:
            for k, address, mask in words(c):
                value = c.v[v + k][mask]
                c.machine.memory.store(address[mask], unit, (value >> U32(16) if w.high else value)[None])
            begin(c)

        return b.done(write, "vmem")
    if w.keep or w.signed:
        raise b.fail("narrow buffer load")
    b.note_write(data)
    begin, kind = _issuer(counters, b.writes)

    def read(c: Convoy) -> None:
        for k, address, mask in words(c):
            value = np.zeros(c.mask.shape, U32)
            value[mask] = c.machine.memory.load(address[mask], unit)[0]
            np.copyto(c.v[v + k], value, where=c.mask)
        begin(c)

    return b.done(read, "vmem", loads=kind)


def _buffer_to_lds(b: Binder, place: Any, w: Width) -> Bound:
    """buffer_load ... lds: lane i's words go to LDS at M0 + offset + lane * size (CDNA2 ISA, 8.1.9)."""
    if w.size not in (4, 12, 16):
        raise b.fail("width of a load to LDS")
    b.reads |= bits("s", 124, 1)
    b.observes |= bits("s", 124, 1)
    offset = b.integer("offset")

    def run(c: Convoy) -> None:
        address, left = place(c)
        mask = c.mask & (left >= w.size)
        values = np.zeros((w.size // 4, *c.mask.shape), U32)
        values[:, mask] = c.machine.memory.load(address[mask], w.size)
        _into_lds(c, values, offset, w.size)

    return b.done(run, "vmem")


def _into_lds(c: Convoy, values: Array, offset: int, size: int) -> None:
    start = (c.s[:, 124:125] & U32(0xFFFF)) + U32(offset)
    at = start + (np.arange(c.mask.shape[1]) * size).astype(U32)
    touched = c.machine.lds.store(c, at, size, 4, values)
    c.machine.lds.late(c, touched)  # nobody may rely on it before its own vmcnt
    c.issue("vm", Transfer("vector", 0, touched))


def _global_to_lds(b: Binder) -> Bound:
    """global_load_lds_dword and its wider forms (gfx940, gfx950): to LDS at M0 + offset + lane * size."""
    size = {"dword": 4, "dwordx3": 12, "dwordx4": 16}.get(b.i.name.rpartition("_")[2], 0)
    if not size:
        raise b.fail("width of a load to LDS")
    b.used.update(CACHE)
    address = _flat_address(b, 0, 1)
    b.reads |= bits("s", 124, 1)
    b.observes |= bits("s", 124, 1)
    offset = b.integer("offset")

    def run(c: Convoy) -> None:
        values = np.zeros((size // 4, *c.mask.shape), U32)
        values[:, c.mask] = c.machine.memory.load(np.broadcast_to(address(c), c.mask.shape)[c.mask], size)
        _into_lds(c, values, offset, size)

    return b.done(run, "vmem")


ATOMICS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "umax": max,
    "umin": min,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "swap": lambda a, b: b,
    "inc": lambda a, b: 0 if a >= b else a + 1,
    "dec": lambda a, b: b if a == 0 or a > b else a - 1,
}


def _atomic(b: Binder) -> Bound:
    """32-bit integer atomics, global and flat: lane by lane, in order."""
    family, _, rest = b.i.name.partition("_atomic_")
    operation = rest.replace("_u32", "").replace("_b32", "")
    operation = {"max": "umax", "min": "umin"}.get(operation, operation)
    if operation not in ATOMICS:
        raise b.fail("atomic")
    b.used.update(CACHE)
    returns = "glc" in b.i.modifiers or "sc0" in b.i.modifiers
    first = 1 if returns else 0
    address = _flat_address(b, first, first + 2 if family == "global" else None)
    data = b.register(first + 1, "va", 1)
    b.note_read(data, observed=True)
    v, fn = number(data), ATOMICS[operation]
    d = -1
    if returns:
        out = b.register(0, "va", 1)
        b.note_write(out)
        d = number(out)
    begin, kind = _issuer(_counters(b, family, not returns), b.writes)

    def run(c: Convoy) -> None:
        a, values = _active(c, address(c)), gather(c, v, Width(4))[0]
        before = np.zeros_like(values)
        for k, at in enumerate(a):
            one = np.array([at], U64)
            before[k] = c.machine.memory.load(one, 4)[0, 0]
            after = fn(int(before[k]), int(values[k])) & 0xFFFFFFFF
            c.machine.memory.store(one, 4, np.array([[after]], U32))
        if d >= 0:
            spread(c, d, Width(4), before[None])
        begin(c)

    return b.done(run, "vmem", loads=kind if returns else "")


_SCALAR = {"dword": 1, "dwordx2": 2, "dwordx4": 4, "dwordx8": 8, "dwordx16": 16}
_SCALAR |= {"b32": 1, "b64": 2, "b128": 4, "b256": 8, "b512": 16}


def _scalar(b: Binder) -> Bound:
    """s_load_*: the address is the base + offset, its two lowest bits ignored."""
    kind = b.i.name.removeprefix("s_load_")
    count = _SCALAR.get(kind, 0)
    if not count:
        raise b.fail("unknown scalar load")
    b.used.update(CACHE)
    out = b.register(0, "s", count)
    base = b.register(1, "s", 2)
    b.note_read(base, observed=True)
    offset = b.integer("offset")
    o = b.op(2)
    scalar = None
    if isinstance(o, Constant):
        offset += o.integer
    elif isinstance(o, Register) and o.first != NULL:
        b.note_read(o, 1, observed=True)
        scalar = o.first
    b.note_write(out)
    d, s = out.first, base.first // 2
    fixed = U64(offset & (1 << 64) - 1)
    transfer = Transfer("smem", b.writes)

    def run(c: Convoy) -> None:
        address = c.s64[:, s] + fixed
        if scalar is not None:
            address = address + c.s[:, scalar]
        c.s[:, d : d + count] = c.machine.memory.load(address & ~U64(3), 4 * count).T
        c.issue("lgkm", transfer)

    return b.done(run, "smem", loads="smem")


def _nothing(b: Binder) -> Bound:
    """Cache maintenance: caches are not modelled."""
    b.used.update(CACHE)
    return b.done(lambda c: None, "other")


def knows(name: str) -> bool:
    """Whether this file has the instruction."""
    match = _NAME.match(name)
    return bool(match and match[3] in WIDTHS) or name in SPECIAL or "_atomic_" in name


SPECIAL: dict[str, Callable[[Binder], Bound]] = {
    **{f"s_load_{k}": _scalar for k in _SCALAR},
    **{f"global_load_lds_{k}": _global_to_lds for k in ("dword", "dwordx3", "dwordx4")},
    **dict.fromkeys(
        (
            "buffer_wbl2",
            "buffer_invl2",
            "buffer_inv",
            "buffer_wbinvl1",
            "buffer_wbinvl1_vol",
            "buffer_gl0_inv",
            "buffer_gl1_inv",
            "s_dcache_inv",
            "s_dcache_wb",
        ),
        _nothing,
    ),
}


def bind(i: Instruction, target: Target) -> Bound:
    """A memory instruction."""
    b = Binder(i, target)
    if i.name in SPECIAL:
        return SPECIAL[i.name](b)
    if "_atomic_" in i.name:
        return _atomic(b)
    return _buffer(b) if i.name.startswith("buffer_") else _flat(b)
