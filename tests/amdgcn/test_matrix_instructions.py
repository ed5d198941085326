"""MFMA and WMMA against the manuals' maps written out element by element, and three sums by rational arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from formats import encode, value
from gcn.faults import NotModelled, Unspecified
from gcn.matrix import MFMAS, WMMAS, shape_of
from single import Bench, assemble, tool

pytestmark = pytest.mark.quick

BYTES = {"f16": 2, "bf16": 2, "f32": 4, "i8": 1, "f64": 8}
ALL = [(arch, name) for arch in ("gfx90a", "gfx942", "gfx950") for name in MFMAS[arch]]


def _one(line: str, arch: str) -> Any:
    release = "22" if arch == "gfx950" else "19"
    if tool("llvm-mc", release) is None:
        pytest.skip(f"llvm-mc of LLVM {release} is not installed")
    return assemble([line], arch)[line]


def _encoded(element: str, x: int) -> int:
    """A small integer as an element's bits."""
    if element == "bf16":
        return encode("f32", float(x)) >> 16
    return encode({"i8": "i32"}.get(element, element), x if element == "i8" else float(x)) & (
        (1 << 8 * BYTES[element]) - 1
    )


def _place(b: Bench, r: int, lane: int, k: int, element: str, raw: int) -> None:
    """Element k of a lane's registers, in both waves."""
    size = BYTES[element]
    if size == 8:
        b.v[r + 2 * k, :, lane], b.v[r + 2 * k + 1, :, lane] = raw & 0xFFFFFFFF, raw >> 32
        return
    word, shift = divmod(k * size, 4)
    old = b.v[r + word, :, lane] & np.uint32(~(((1 << 8 * size) - 1) << 8 * shift) & 0xFFFFFFFF)
    b.v[r + word, :, lane] = old | np.uint32(raw << 8 * shift)


@pytest.mark.parametrize(("arch", "name"), ALL)
def test_mfma(arch: str, name: str) -> None:
    """Random small integers: every element of D = A B + C. The second wave has another A; EXEC does not matter."""
    m, n, k, element, result = shape_of(name)  # type: ignore[misc]
    groups = 64 // m
    held = k // groups
    words = max(1, held * BYTES[element] // 4)
    width = 2 if result == "f64" else 1
    count = m * n // 64 * width
    a = f"v[0:{words - 1}]" if words > 1 else "v0"
    bb = f"v[8:{7 + words}]" if words > 1 else "v8"
    acc = f"a[32:{31 + count}]"
    i = _one(f"{name} {acc}, {a}, {bb}, a[64:{63 + count}]", arch)
    b = Bench(arch, 2)
    left = b.random.integers(-3, 4, (m, k))
    right = b.random.integers(-3, 4, (k, n))
    base = b.random.integers(-9, 10, (m, n))
    for lane in range(64):
        for e in range(held):
            at_k = held * (lane // m) + e
            _place(b, 0, lane, e, element, _encoded(element, int(left[lane % m, at_k])))
            _place(b, 8, lane, e, element, _encoded(element, int(right[at_k, lane % n])))

    def spot(lane: int, r: int) -> tuple[int, int]:
        """(row, column) of result register r: tables of the manuals."""
        if result == "f64":
            return lane // 16 + 4 * r, lane % 16
        if m == 32:
            return 8 * (r // 4) + 4 * (lane // 32) + r % 4, lane % 32
        return 4 * (lane // 16) + r, lane % 16

    kind = {"f32": "f32", "i32": "i32", "f64": "f64"}[result]
    for lane in range(64):
        for r in range(count // width):
            raw = encode(kind, int(base[spot(lane, r)]))
            b.v[256 + 64 + width * r, :, lane] = raw & 0xFFFFFFFF
            if width == 2:
                b.v[256 + 65 + width * r, :, lane] = raw >> 32
    bound = b.run(i)
    wanted = left @ right + base
    for lane in range(64):
        for r in range(count // width):
            at = 256 + 32 + width * r
            raw = b.pair(at, 1, lane) if width == 2 else int(b.v[at, 1, lane])
            assert value(kind, raw) == wanted[spot(lane, r)], (lane, r)
    assert bound.kind == "mfma" and bound.writes.bit_count() == count


def test_constant_addend_and_vector_registers() -> None:
    i = _one("v_mfma_f32_16x16x16f16 v[32:35], v[0:1], v[8:9], 0", "gfx90a")
    b = Bench("gfx90a")
    b.v[0:2] = b.v[8:10] = 0x3C003C00
    b.run(i)
    assert (b.v[32:36].view(np.float32) == 16).all()


@pytest.mark.parametrize(("arch", "kept"), [("gfx90a", False), ("gfx942", True)])
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_subnormals(arch: str, kept: bool, element: str) -> None:
    """MI200 takes 16-bit subnormals for zero; others and the fp32 instruction keep them."""
    suffix = {"f16": "f16", "bf16": "bf16_1k"}[element] if arch == "gfx90a" else f"_{element}"
    tiny = 0x0200 if element == "f16" else 0x0040  # half the smallest normal
    one = 0x3C00 if element == "f16" else 0x3F80
    exact = 2.0**-15 if element == "f16" else 2.0**-127
    i = _one(f"v_mfma_f32_16x16x16{suffix} v[32:35], v[0:1], v[8:9], 0", arch)
    for left, right in ((tiny, one), (one, tiny)):
        b = Bench(arch)
        b.v[0:2], b.v[8:10] = left | left << 16, right | right << 16
        b.run(i)
        assert (b.v[32:36].view(np.float32).astype(float) == (16 * exact if kept else 0.0)).all()
    wide = _one(f"v_mfma_f32_16x16x4{'' if arch == 'gfx90a' else '_'}f32 v[32:35], v0, v8, 0", arch)
    b = Bench(arch)
    b.v[0], b.v[8] = encode("f32", 2.0**-130), encode("f32", 1.0)
    b.run(wide)
    assert (b.v[32:36].view(np.float32).astype(float) == 4 * 2.0**-130).all()


def test_integers_wrap() -> None:
    """The i32 sum of an int8 MFMA has no saturation."""
    i = _one("v_mfma_i32_16x16x16i8 v[32:35], v0, v8, v[32:35]", "gfx90a")
    b = Bench("gfx90a")
    b.v[0] = b.v[8] = 0x7F7F7F7F
    b.v[32:36] = 0x7FFFFFFF
    b.run(i)
    assert (b.v[32:36] == (0x7FFFFFFF + 16 * 127 * 127) & 0xFFFFFFFF).all()


def test_unknown_shapes_and_modifiers() -> None:
    for line in (
        "v_mfma_f32_4x4x4f16 v[32:35], v[0:1], v[8:9], 0",
        "v_mfma_f32_16x16x16f16 v[32:35], v[0:1], v[8:9], 0 cbsz:1",
    ):
        with pytest.raises(NotModelled):
            Bench("gfx90a").bind(_one(line, "gfx90a"))


# --- WMMA ------------------------------------------------------------------------------------------------


def _fill(b: Bench, r: int, matrix: Any, element: str) -> None:
    """Rows of A or columns of B (16 x 16, k last) in lanes 0-15, again in 16-31."""
    for lane in range(32):
        for k in range(16):
            _place(b, r, lane, k, element, _encoded(element, int(matrix[lane % 16, k])))


@pytest.mark.parametrize("name", WMMAS)
def test_wmma(name: str) -> None:
    result, element = name.split("_")[2], name.rpartition("_")[2]
    kind = "i8" if element == "iu8" else element
    words = 4 if kind == "i8" else 8
    more = " neg_lo:[1,1,0]" if kind == "i8" else ""
    i = _one(f"{name} v[32:39], v[0:{words - 1}], v[8:{7 + words}], v[40:47]{more}", "gfx1100")
    b = Bench("gfx1100", 5, full=True)
    left, right = b.random.integers(-3, 4, (16, 16)), b.random.integers(-3, 4, (16, 16))
    base = b.random.integers(-9, 10, (16, 16))
    _fill(b, 0, left, kind)
    _fill(b, 8, right, kind)
    old = b.v[32:40].copy()
    form = {"f32": "f32", "i32": "i32", "f16": "f16"}[result]
    for lane in range(32):
        for r in range(8):
            b.v[40 + r, :, lane] = encode(form, int(base[2 * r + lane // 16, lane % 16]))
    b.run(i)
    wanted = left @ right.T + base
    for lane in range(32):
        for r in range(8):
            raw = int(b.v[32 + r, 1, lane])
            assert value(form, raw) == wanted[2 * r + lane // 16, lane % 16]
            if result == "f16":
                assert raw >> 16 == int(old[r, 1, lane]) >> 16, "the other half stays"


def test_unsigned_bytes_and_clamp() -> None:
    i = _one("v_wmma_i32_16x16x16_iu8 v[32:39], v[0:3], v[8:11], v[40:47] neg_lo:[1,0,0] clamp", "gfx1100")
    b = Bench("gfx1100", full=True)
    b.v[0:4], b.v[8:12], b.v[40:48] = 0x80808080, 0xFFFFFFFF, 0x80000000
    b.run(i)
    assert (b.v[32:40] == 0x80000000).all(), "-128 * 255 * 16 below the least integer"
    b.v[40:48] = 0
    b.run(i)
    assert (b.v[32:40].view(np.int32) == -128 * 255 * 16).all()


def test_lanes_must_be_replicated() -> None:
    i = _one("v_wmma_f32_16x16x16_f16 v[32:39], v[0:7], v[8:15], v[40:47]", "gfx1100")
    for r, name in ((0, "A"), (15, "B")):
        b = Bench("gfx1100", full=True)
        b.v[0:16] = 0
        b.v[r, 0, 20] = 1
        with pytest.raises(Unspecified, match=f"of {name} differ"):
            b.run(i)
    b = Bench("gfx1100")
    with pytest.raises(Unspecified, match="EXEC"):
        b.run(i)
