"""Loads, stores, atomics and LDS instructions: values, addresses, widths, waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gcn import ds, vmem
from gcn.faults import LdsOutOfRange, Misaligned, NotModelled, OutOfRange, UnwrittenLds
from single import Bench, assemble, tool

pytestmark = pytest.mark.quick

RANDOM = np.random.default_rng(1)
SIZES = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "b32": 4, "b64": 8, "b96": 12, "b128": 16}


def _range(n: int, count: int) -> str:
    return f"v{n}" if count == 1 else f"v[{n}:{n + count - 1}]"


class Setup:
    """A bench with a buffer of 8 KiB whose address is in s[8:9]; each lane's offset is in v2, its address in v[4:5]."""

    def __init__(self, arch: str, alignment: int = 4, full: bool = False) -> None:
        self.b = Bench(arch, 7, full)
        self.data = RANDOM.integers(0, 256, 8192, dtype=np.uint8)
        self.base = self.data.ctypes.data
        self.b.machine.memory.register(self.base, self.data.size, "buffer")
        shape = self.b.mask.shape
        # No two lanes at one place: each has 24 bytes of its own.
        order = RANDOM.permutation(shape[0] * shape[1]).reshape(shape)
        self.offset = (order * 24 + RANDOM.integers(0, 8 // alignment, shape) * alignment).astype(np.uint64)
        self.b.v[2] = self.offset.astype(np.uint32)
        address = self.offset + np.uint64(self.base)
        self.b.v[4], self.b.v[5] = address.astype(np.uint32), (address >> np.uint64(32)).astype(np.uint32)
        self.b.s[:, 8], self.b.s[:, 9] = self.base & 0xFFFFFFFF, self.base >> 32

    def at(self, wave: int, lane: int, more: int, size: int) -> int:
        start = int(self.offset[wave, lane]) + more
        return int.from_bytes(self.data[start : start + size].tobytes(), "little")


def _lines(arch: str) -> dict[str, tuple[str, str, bool]]:
    """line -> (family, kind of width, whether it stores)."""
    found = {}
    for kind, w in vmem.WIDTHS.items():
        data = _range(20, max(1, w.size // 4))
        for more, text in ((0, ""), (8, " offset:8")):
            found[f"global_load_{kind} {data}, v[4:5], off{text}"] = ("global", kind, False)
            found[f"flat_load_{kind} {data}, v[4:5]{text}"] = ("flat", kind, False)
            found[f"global_store_{kind} v[4:5], {data}, off{text}"] = ("global", kind, True)
            found[f"flat_store_{kind} v[4:5], {data}{text}"] = ("flat", kind, True)
            found[f"global_load_{kind} {data}, v2, s[8:9]{text}"] = ("global", kind, False)
            found[f"global_store_{kind} v2, {data}, s[8:9]{text}"] = ("global", kind, True)
            if more:
                found[f"buffer_load_{kind} {data}, v2, s[12:15], 0 offen{text}"] = ("buffer", kind, False)
                found[f"buffer_store_{kind} {data}, v2, s[12:15], s16 offen{text}"] = ("buffer", kind, True)
    return found


NARROW_LOADS = {"sbyte": (1, True), "sshort": (2, True), "i8": (1, True), "i16": (2, True)}


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100"])
def test_loads_and_stores(arch: str) -> None:
    """Every width, by pair of registers, by scalar base, through buffers; other lanes and bytes stay."""
    if tool("llvm-mc", "19") is None:
        pytest.skip("llvm-mc-19 is not installed (llvm-19)")
    lines = _lines(arch)
    found = assemble(lines, arch)
    assert len(found) > 80
    for line, i in found.items():
        family, kind, store = lines[line]
        w = vmem.WIDTHS[kind]
        more = 8 if "offset" in line else 0
        s = Setup(arch, min(w.size, 4))
        b = s.b
        if family == "buffer":
            if (w.keep or w.signed) and not store:
                with pytest.raises(NotModelled):
                    b.bind(i)
                continue
            b.s[:, 12], b.s[:, 13], b.s[:, 14], b.s[:, 15] = s.base & 0xFFFFFFFF, s.base >> 32, 8192, 0
            b.s[:, 16] = 0
        before, bytes_before = b.v.copy(), s.data.copy()
        bound = b.run(i)
        touched = np.zeros(8192, bool)
        for wave in range(2):
            for lane in range(b.target.lanes):
                if not b.mask[wave, lane]:
                    assert np.array_equal(b.v[20:24, wave, lane], before[20:24, wave, lane]), line
                    continue
                raw = b"".join(int(b.v[20 + k, wave, lane]).to_bytes(4, "little") for k in range(4))
                old = b"".join(int(before[20 + k, wave, lane]).to_bytes(4, "little") for k in range(4))
                inside = s.at(wave, lane, more, w.size)
                if store:
                    start = int(s.offset[wave, lane]) + more
                    touched[start : start + w.size] = True
                    source = old[2:] if "hi" in kind else old
                    assert inside == int.from_bytes(source[: w.size], "little"), line
                    continue
                if w.size >= 4:
                    assert raw[: w.size] == inside.to_bytes(w.size, "little"), line
                elif w.keep:
                    half = inside.to_bytes(2, "little")
                    wanted = old[:2] + half if "hi" in kind else half + old[2:4]
                    assert raw[:4] == wanted, line
                else:
                    value = inside - (1 << 8 * w.size) if w.signed and inside >> (8 * w.size - 1) else inside
                    assert int(b.v[20, wave, lane]) == value & 0xFFFFFFFF, line
        assert np.array_equal(s.data[~touched], bytes_before[~touched]), line
        # In flight until a wait: of the right counters, and only then usable.
        q = b.c.queues
        queues = (len(q.vm), len(q.lgkm), len(q.vs))
        stores_apart = store and arch == "gfx1100"
        assert queues == (0 if stores_apart else 1, 1 if family == "flat" else 0, 1 if stores_apart else 0), (
            line
        )
        assert (b.c.bad == bound.writes) if not store else b.c.bad == 0
        b.c.wait(vm=0)
        assert (b.c.bad == 0) == (family != "flat" or store), line
        b.c.wait(lgkm=0)
        assert b.c.bad == 0


def _one(line: str, arch: str = "gfx90a") -> Any:
    if tool("llvm-mc", "19") is None:
        pytest.skip("llvm-mc-19 is not installed (llvm-19)")
    return assemble([line], arch)[line]


def test_out_of_range_is_found() -> None:
    """One byte beyond the last, before the first, and writing what may only be read."""
    i = _one("global_load_dwordx4 v[20:23], v[4:5], off")
    for start, error in ((8192 - 16, False), (8192 - 15, True), (-1, True)):
        s = Setup("gfx90a", full=True)
        address = s.base + start
        s.b.v[4, 0, 3], s.b.v[5, 0, 3] = address & 0xFFFFFFFF, address >> 32
        if error:
            with pytest.raises(OutOfRange, match="16 bytes"):
                s.b.run(i)
        else:
            s.b.run(i)
    s = Setup("gfx90a")
    s.b.machine.memory.register(s.base, 8192, "buffer", writable=False)
    with pytest.raises(OutOfRange, match="read-only"):
        s.b.run(_one("global_store_dword v[4:5], v20, off"))


def test_inactive_lanes_need_no_address() -> None:
    s = Setup("gfx90a")
    s.b.v[4:6][:, ~s.b.mask] = 0
    s.b.run(_one("global_load_dword v20, v[4:5], off"))


def test_lanes_in_several_ranges() -> None:
    s = Setup("gfx90a", full=True)
    other = np.arange(64, dtype=np.uint32)
    s.b.machine.memory.register(other.ctypes.data, 256, "other")
    address = other.ctypes.data + np.arange(64, dtype=np.uint64) * 4
    s.b.v[4, 1], s.b.v[5, 1] = address.astype(np.uint32), (address >> np.uint64(32)).astype(np.uint32)
    s.b.run(_one("global_load_dword v20, v[4:5], off"))
    assert np.array_equal(s.b.v[20, 1], other) and int(s.b.v[20, 0, 9]) == s.at(0, 9, 0, 4)
    s.b.run(_one("global_store_dword v[4:5], v21, off"))
    assert np.array_equal(other, s.b.v[21, 1])


def test_buffers_check_their_range() -> None:
    """Words beyond num_records read 0 and are not written: no fault."""
    s = Setup("gfx90a", full=True)
    b = s.b
    b.s[:, 12], b.s[:, 13], b.s[:, 14], b.s[:, 15] = s.base & 0xFFFFFFFF, s.base >> 32, 40, 0
    b.v[2] = np.arange(64, dtype=np.uint32) * 4
    b.run(_one("buffer_load_dwordx2 v[20:21], v2, s[12:15], 0 offen"))
    words = s.data.view(np.uint32)
    for lane in range(64):
        assert b.v[20, 0, lane] == (words[lane] if lane < 10 else 0)
        assert b.v[21, 0, lane] == (words[lane + 1] if lane < 9 else 0)
    before = s.data.copy()
    b.run(_one("buffer_store_dword v22, v2, s[12:15], 0 offen"))
    assert np.array_equal(words[:10], b.v[22, 1, :10]) and np.array_equal(s.data[40:], before[40:])
    b.s[:, 13] |= 4 << 16
    with pytest.raises(NotModelled, match="stride"):
        b.run(_one("buffer_load_dword v20, v2, s[12:15], 0 offen"))


_ATOMIC = {
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


@pytest.mark.parametrize("name", _ATOMIC)
def test_atomics(name: str) -> None:
    """All lanes on one word: each sees what the one before left."""
    assert set(_ATOMIC) == set(vmem.ATOMICS)
    i = _one(f"global_atomic_{name} v20, v[4:5], v6, off glc")
    s = Setup("gfx90a")
    b = s.b
    b.v[4], b.v[5] = s.base & 0xFFFFFFFF, s.base >> 32
    b.v[6] = RANDOM.integers(0, 50, b.v[6].shape, dtype=np.uint32)
    s.data.view(np.uint32)[0] = 25
    b.run(i)
    at = 25
    for wave in range(2):
        for lane in np.flatnonzero(b.mask[wave]):
            assert int(b.v[20, wave, lane]) == at
            at = _ATOMIC[name](at, int(b.v[6, wave, lane])) & 0xFFFFFFFF
    assert int(s.data.view(np.uint32)[0]) == at


@pytest.mark.parametrize(
    ("line", "arch"),
    [(f"s_load_{k} s[20:{19 + n}], s[8:9], 0x10" if n > 1 else f"s_load_{k} s20, s[8:9], 0x10", a) for k, n, a in [
        ("dword", 1, "gfx90a"), ("dwordx2", 2, "gfx90a"), ("dwordx4", 4, "gfx90a"), ("dwordx8", 8, "gfx90a"),
        ("dwordx16", 16, "gfx90a"), ("b32", 1, "gfx1100"), ("b64", 2, "gfx1100"), ("b128", 4, "gfx1100"),
        ("b256", 8, "gfx1100"), ("b512", 16, "gfx1100"),
    ]],
)  # fmt: skip
def test_scalar_loads(line: str, arch: str) -> None:
    i = _one(line, arch)
    s = Setup(arch)
    bound = s.b.run(i)
    count = bound.writes.bit_count()
    assert np.array_equal(s.b.s[1, 20 : 20 + count], s.data.view(np.uint32)[4 : 4 + count])
    assert s.b.c.bad == bound.writes
    s.b.c.wait(lgkm=1)
    assert s.b.c.bad == bound.writes, "scalar loads have no order: only 0 will do"
    s.b.c.wait(lgkm=0)
    assert s.b.c.bad == 0


def test_scalar_load_with_register_offset() -> None:
    s = Setup("gfx90a")
    s.b.s[:, 10] = (32, 64)
    s.b.run(_one("s_load_dword s20, s[8:9], s10"))
    assert [int(x) for x in s.b.s[:, 20]] == [int(s.data.view(np.uint32)[k]) for k in (8, 16)]


@pytest.mark.parametrize(
    "line",
    ["buffer_wbl2", "buffer_invl2", "buffer_wbinvl1", "buffer_wbinvl1_vol", "s_dcache_inv", "s_dcache_wb"],
)
def test_caches_are_not_modelled(line: str) -> None:
    s = Setup("gfx90a")
    before = s.data.copy()
    s.b.run(_one(line))
    assert np.array_equal(before, s.data)


@pytest.mark.parametrize(
    ("line", "arch"),
    [("buffer_inv sc1", "gfx942"), ("buffer_gl0_inv", "gfx1100"), ("buffer_gl1_inv", "gfx1100")],
)
def test_caches_of_others(line: str, arch: str) -> None:
    Setup(arch).b.run(_one(line, arch))


@pytest.mark.parametrize(
    ("line", "arch", "size"),
    [
        ("global_load_lds_dword v[4:5], off offset:16", "gfx942", 4),
        ("global_load_lds_dwordx3 v[4:5], off", "gfx950", 12),
        ("global_load_lds_dwordx4 v[4:5], off", "gfx950", 16),
        ("buffer_load_dword v2, s[12:15], 0 offen lds", "gfx90a", 4),
    ],
)
def test_loads_to_lds(line: str, arch: str, size: int) -> None:
    """Lane i's words at M0 + offset + i * size, and in flight by vmcnt."""
    if arch == "gfx950" and tool("llvm-mc", "22") is None:
        pytest.skip("llvm-mc of LLVM 22 is not installed: gfx950")
    i = _one(line, arch)
    s = Setup(arch, full=True)
    b = s.b
    b.s[:, 12], b.s[:, 13], b.s[:, 14], b.s[:, 15] = s.base & 0xFFFFFFFF, s.base >> 32, 8192, 0
    b.s[:, 124] = (0, 1024)
    bound = b.run(i)
    more = 16 if "offset" in line else 0
    lds = b.machine.lds.data.view(np.uint8)
    for wave in range(2):
        for lane in (0, 5, 63):
            at = 1024 * wave + more + lane * size
            if size * 64 <= 1024 or wave == 1:
                source = s.at(wave, lane, more, size) if "global" in line else s.at(wave, lane, 0, size)
                assert int.from_bytes(lds[at : at + size].tobytes(), "little") == source
    assert len(b.c.queues.vm) == 1 and bound.observes >> (512 + 124) & 1


# --- LDS -------------------------------------------------------------------------------------------------


def _lds_lines() -> dict[str, str]:
    found = {}
    for name, access in ds.ACCESSES.items():
        count = max(1, access.width.size // 4)
        offsets = " offset0:1 offset1:3" if access.scale else " offset:32"
        if access.write:
            data = [_range(20 + 4 * k, count) for k in range(2 if access.scale else 1)]
            found[f"{name} v2, {', '.join(data)}{offsets}"] = name
        else:
            found[f"{name} {_range(20, count * (2 if access.scale else 1))}, v2{offsets}"] = name
    return found


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100"])
def test_lds_accesses(arch: str) -> None:
    """Every width, one place or two, halves kept; the bytes of active lanes and no others."""
    if tool("llvm-mc", "19") is None:
        pytest.skip("llvm-mc-19 is not installed (llvm-19)")
    lines = _lds_lines()
    found = assemble(lines, arch)
    if arch == "gfx90a":
        assert len(found) >= 26
    for line, i in found.items():
        name = lines[line]
        _, w, scale = ds.ACCESSES[name]
        b = Bench(arch, 3, lds=1 << 16)
        lanes = b.target.lanes
        lds = b.machine.lds
        lds.data[:] = RANDOM.integers(0, 1 << 32, lds.data.shape, dtype=np.uint32)
        lds.written[:] = 0  # by wave 0 in epoch 0 ...
        b.state.epoch[:] = 1  # ... and a barrier since
        # No two lanes at one place: 32 bytes a lane, or tracks for places that are far apart.
        n = np.arange(2 * lanes).reshape(2, lanes)
        together = scale // 16
        place = n * 32 if scale < 256 else n % together * 16 + n // together * 4 * scale
        b.v[2] = place
        starts = [scale, 3 * scale] if scale else [32]
        before, raw_before = b.v.copy(), lds.data.view(np.uint8).copy()
        bound = b.run(i)
        count = max(1, w.size // 4)
        touched = np.zeros(raw_before.size, bool)
        for wave in range(2):
            for lane in range(lanes):
                if not b.mask[wave, lane]:
                    assert np.array_equal(b.v[20:28, wave, lane], before[20:28, wave, lane]), line
                    continue
                for k, start in enumerate(starts):
                    at = int(place[wave, lane]) + start
                    inside = lds.data.view(np.uint8)[at : at + w.size].tobytes()
                    if ds.ACCESSES[name].write:
                        touched[at : at + w.size] = True
                        old = b"".join(
                            int(before[20 + 4 * k + n, wave, lane]).to_bytes(4, "little") for n in range(4)
                        )
                        assert inside == (old[2:] if "hi" in name else old)[: w.size], line
                        continue
                    got = b"".join(
                        int(b.v[20 + count * k + n, wave, lane]).to_bytes(4, "little") for n in range(count)
                    )
                    old = int(before[20, wave, lane]).to_bytes(4, "little")
                    if w.size >= 4:
                        assert got == inside, line
                    elif w.keep:
                        half = inside.ljust(2, b"\0")
                        assert got == (old[:2] + half if "hi" in name else half + old[2:]), line
                    else:
                        number = int.from_bytes(inside, "little", signed=name.split("_")[2] in ("i8", "i16"))
                        assert int.from_bytes(got, "little") == number & 0xFFFFFFFF, line
        after = lds.data.view(np.uint8)
        assert np.array_equal(after[~touched], raw_before[~touched]), line
        assert len(b.c.queues.lgkm) == 1 and (b.c.bad == bound.writes)
        b.c.wait(lgkm=0)
        assert b.c.bad == 0


def test_lds_faults() -> None:
    write, read = _one("ds_write_b64 v2, v[20:21]"), _one("ds_read_b64 v[20:21], v2")
    b = Bench("gfx90a", full=True)
    b.v[2] = np.arange(64) * 8
    b.v[2, 1] += 512
    with pytest.raises(UnwrittenLds, match="lane 0 of wave 0"):
        b.run(read)
    b.run(write)
    b.run(read)
    b.v[2, 1, 7] = 4096 - 4
    with pytest.raises(LdsOutOfRange, match="lane 7 of wave 1"):
        b.run(read)
    b.v[2, 1, 7] = 20
    with pytest.raises(Misaligned):
        b.run(read)


@pytest.mark.parametrize("name", ["ds_bpermute_b32", "ds_permute_b32"])
def test_permutations(name: str) -> None:
    i = _one(f"{name} v20, v2, v3 offset:8")
    b = Bench("gfx90a", 4)
    order = RANDOM.permutation(64)
    b.v[2] = order * 4
    before = b.v[20].copy()
    b.run(i)
    for lane in range(64):
        if not b.mask[0, lane]:
            assert b.v[20, 0, lane] == before[0, lane]
            continue
        if name == "ds_bpermute_b32":
            source = int(order[lane] + 2) % 64
        else:
            source = int(np.flatnonzero((order + 2) % 64 == lane)[0])
        assert b.v[20, 0, lane] == (b.v[3, 0, source] if b.mask[0, source] else 0)


def test_swizzles() -> None:
    for pattern, source in (
        (0x041F, lambda n: n ^ 1),
        (0x80B1, lambda n: n // 4 * 4 + (0b10110001 >> 2 * (n % 4) & 3)),
    ):
        i = _one(f"ds_swizzle_b32 v20, v2 offset:{pattern}")
        if "swizzle(" in i.text:
            with pytest.raises(NotModelled):
                Bench("gfx90a").bind(i)
            continue
        b = Bench("gfx90a", full=True)
        b.run(i)
        assert all(b.v[20, 0, n] == b.v[2, 0, source(n)] for n in range(64))


def test_every_memory_instruction_is_tested() -> None:
    """Tables against what this file assembles."""
    lines = [*_lines(""), *_lds_lines()]
    names = {line.split()[0] for line in lines}
    assert set(ds.ACCESSES) <= names
    for kind in vmem.WIDTHS:
        assert {f"global_load_{kind}", f"global_store_{kind}"} <= names
    tables = set(vmem.SPECIAL) | set(ds.SPECIAL)
    text = Path(__file__).read_text()
    for name in tables:
        stem = name.rpartition("_")[0] if name.startswith("s_load") else name
        assert stem in text, name


def test_known_names_assemble() -> None:
    """Each name of the tables is an instruction of some target: none is made up."""
    if tool("llvm-mc", "19") is None:
        pytest.skip("llvm-mc-19 is not installed (llvm-19)")
    left = set(ds.ACCESSES)
    for arch in ("gfx90a", "gfx1100"):
        left -= {_lds_lines()[line] for line in assemble(_lds_lines(), arch)}
    assert not left, left
