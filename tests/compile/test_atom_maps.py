"""Maps of the matrix atoms, element by element, against the tables of the PTX ISA, and as parts of a product.

The tables are written here from the manual's formulas, in its own terms (groupID, threadID_in_group), and
know nothing of the headers; the maps are printed by the headers themselves, compiled for the host.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.quick

Place = tuple[int, int]
Map = Callable[[int, int], Place]

# --- the manual's tables ----------------------------------------------------------------------------------


def m16n8k16_a(lane: int, i: int) -> Place:
    """PTX ISA, Matrix Fragments for mma.m16n8k16 with floating point type: A, .f16 and .bf16."""
    group, thread = lane >> 2, lane % 4
    row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
    col = thread * 2 + (i & 1) if i < 4 else thread * 2 + (i & 1) + 8
    return row, col


def m16n8k16_b(lane: int, i: int) -> Place:
    """The same, B, as the manual gives it: (row along k, col along n)."""
    group, thread = lane >> 2, lane % 4
    row = thread * 2 + (i & 1) if i < 2 else thread * 2 + (i & 1) + 8
    return row, group


def m16n8_c(lane: int, i: int) -> Place:
    """C and D of every m16n8 shape: (row along m, col along n)."""
    group, thread = lane >> 2, lane % 4
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


def m16n8k8_tf32_a(lane: int, i: int) -> Place:
    """PTX ISA, Matrix Fragments for mma.m16n8k8: A, .tf32."""
    group, thread = lane >> 2, lane % 4
    return (group if i in (0, 2) else group + 8), (thread if i in (0, 1) else thread + 4)


def m16n8k8_tf32_b(lane: int, i: int) -> Place:
    """The same, B: (row along k, col along n)."""
    group, thread = lane >> 2, lane % 4
    return (thread if i == 0 else thread + 4), group


def wgmma_d(lane: int, i: int) -> Place:
    """PTX ISA, wgmma.mma_async.m64nNk16, Register Fragments, D (figure WGMMA .m64nNk16 D fragment layout)."""
    warp, thread = divmod(lane, 32)
    quad, first = divmod(i, 4)  # every four registers are an 8-column group of two rows
    row = 16 * warp + thread // 4 + (8 if first >= 2 else 0)
    return row, 8 * quad + 2 * (thread % 4) + first % 2


def pair_of_n8(b: Map, per_instruction: int) -> Map:
    """B of two instructions side by side along n, as (n, k): registers of the first, then of the second."""

    def place(lane: int, i: int) -> Place:
        second, own = divmod(i, per_instruction)
        k, n = b(lane, own)
        return n + 8 * second, k

    return place


def pair_c(lane: int, i: int) -> Place:
    """C of two instructions side by side along n."""
    row, col = m16n8_c(lane, i % 4)
    return row, col + 8 * (i // 4)


def swapped(b: Map) -> Map:
    """The manual's B (k, n) as this code's (n, k)."""
    return lambda lane, i: (b(lane, i)[1], b(lane, i)[0])


# --- the headers' maps ------------------------------------------------------------------------------------

SM80 = "portagemm/arch/sm80.hpp"
SM90 = "portagemm/arch/sm90.hpp"
FMA = "portagemm/atom/fma.hpp"
OUTER = "portagemm/atom/fma_outer.hpp"
HOST = "portagemm/arch/host.hpp"


def maps_of(host_check: Any, header: str, atom: str) -> dict[str, Any]:
    """{"shape": [m, n, k, lanes], "a" | "b" | "c": array (lanes, size, 2)} as the header has them."""
    found = host_check.run([header, "atom_maps.hpp"], f"void check() {{ print_atom<{atom}>(); }}")
    lanes = found["shape"][3]
    return {k: v if k == "shape" else np.array(v).reshape(lanes, -1, 2) for k, v in found.items()}


def compare(found: np.ndarray[Any, Any], table: Map, what: str) -> None:
    for lane in range(found.shape[0]):
        for i in range(found.shape[1]):
            assert tuple(found[lane, i]) == table(lane, i), f"{what} of lane {lane}, element {i}"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_mma_16816(host_check: Any, dtype: str) -> None:
    found = maps_of(host_check, SM80, f"arch::mma_16816<{dtype}>")
    assert found["shape"] == [16, 16, 16, 32]
    compare(found["a"], m16n8k16_a, "A")
    compare(found["b"], pair_of_n8(m16n8k16_b, 4), "B")
    compare(found["c"], pair_c, "C")


def test_mma_1688_tf32(host_check: Any) -> None:
    found = maps_of(host_check, SM80, "arch::mma_1688_tf32")
    assert found["shape"] == [16, 8, 8, 32]
    compare(found["a"], m16n8k8_tf32_a, "A")
    compare(found["b"], swapped(m16n8k8_tf32_b), "B")
    compare(found["c"], m16n8_c, "C")


@pytest.mark.parametrize("n", [16, 64, 176, 256])
def test_wgmma(host_check: Any, n: int) -> None:
    found = maps_of(host_check, SM90, f"arch::wgmma<bf16, {n}>")
    assert found["shape"] == [64, n, 16, 128]
    compare(found["c"], wgmma_d, "D")


@pytest.mark.parametrize("wave", [1, 32, 64])
def test_fma(host_check: Any, wave: int) -> None:
    # No manual: 4 x 4 outputs a lane, lanes in rows of 8, a lane's rows and columns one grid apart.
    across = min(wave, 8)
    down = wave // across
    found = maps_of(host_check, FMA, f"fma_atom<{wave}>")
    assert found["shape"] == [4 * down, 4 * across, 4, wave]
    compare(found["a"], lambda lane, i: (lane // across + down * (i // 4), i % 4), "A")
    compare(found["b"], lambda lane, i: (lane % across + across * (i // 4), i % 4), "B")
    compare(
        found["c"], lambda lane, i: (lane // across + down * (i // 4), lane % across + across * (i % 4)), "C"
    )


@pytest.mark.parametrize("wave", [32, 64])
def test_fma_outer(host_check: Any, wave: int) -> None:
    # No manual: 4 x 4 outputs a lane, bits 1 to 3 of a lane's number count columns, the others rows.
    found = maps_of(host_check, OUTER, f"fma_outer<{wave}>")
    assert found["shape"] == [wave // 2, 32, 1, wave]

    def down(lane: int) -> int:
        return 4 * (lane % 2 + lane // 16 * 2)

    def across(lane: int) -> int:
        return 4 * (lane >> 1 & 7)

    compare(found["a"], lambda lane, i: (down(lane) + i, 0), "A")
    compare(found["b"], lambda lane, i: (across(lane) + i, 0), "B")
    compare(found["c"], lambda lane, i: (down(lane) + i // 4, across(lane) + i % 4), "C")


def test_host_panel(host_check: Any) -> None:
    found = maps_of(host_check, HOST, "arch::host_panel<6, 2, 64>")
    _, n, *_ = found["shape"]
    assert found["shape"] == [6, n, 64, 1] and n in (8, 16, 32)
    compare(found["c"], lambda _, i: (i // n, i % n), "C")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="vector widths of x86")
@pytest.mark.parametrize(("flag", "m", "n"), [("-mno-avx", 6, 8), ("-mavx2", 6, 16), ("-mavx512f", 12, 32)])
def test_host_atom_of_each_vector_width(host_check: Any, flag: str, m: int, n: int) -> None:
    # constexpr checks alone: a machine without AVX-512 compiles them as well
    atom = "arch::host_atom<64>"
    sound = f"covers<1, {atom}::c_size, {m}, {n}>([](i32 l, i32 i) {{ return {atom}::c(l, i); }}, 1)"
    host_check.compiles([HOST], f"static_assert({atom}::m == {m} && {atom}::n == {n} && {sound});", flag)


REGISTER_ATOMS = [
    (SM80, "arch::mma_16816<fp16>", 2),
    (SM80, "arch::mma_1688_tf32", 1),
    (FMA, "fma_atom<1>", 1),
    (FMA, "fma_atom<32>", 1),
    (FMA, "fma_atom<64>", 1),
    (OUTER, "fma_outer<32>", 1),
    (OUTER, "fma_outer<64>", 1),
]


@pytest.mark.parametrize(
    ("header", "atom", "instructions"), REGISTER_ATOMS, ids=[a for _, a, _ in REGISTER_ATOMS]
)
def test_maps_multiply(host_check: Any, header: str, atom: str, instructions: int) -> None:
    """Fragments gathered by a and b, multiplied, and laid out by c, are the product of the matrices."""
    found = maps_of(host_check, header, atom)
    m, n, k, lanes, *_ = found["shape"]
    random = np.random.default_rng(0)
    left, right = random.integers(-9, 9, (m, k)), random.integers(-9, 9, (n, k))
    a = np.zeros((m, k), int)
    b = np.zeros((n, k), int)
    for lane in range(lanes):  # registers -> matrices, as the unit sees them
        for row, col in found["a"][lane]:
            a[row, col] = left[row, col]
        for row, col in found["b"][lane]:
            b[row, col] = right[row, col]
    product = a @ b.T
    out = np.full((m, n), 10**9)
    for lane in range(lanes):
        for row, col in found["c"][lane]:
            assert out[row, col] == 10**9, "an output is held twice"
            out[row, col] = product[row, col]
    assert (out == left @ right.T).all()
    assert found["b"].shape[1] % instructions == 0


_FMA_RUN = """
using atom = %s;
void check() {
    constexpr i32 depth = atom::k;
    static f32 a[atom::m][depth], b[atom::n][depth];
    for (i32 i = 0; i < atom::m; i++) for (i32 k = 0; k < depth; k++) a[i][k] = f32((i * 7 + k * 3) %% 11 - 5);
    for (i32 i = 0; i < atom::n; i++) for (i32 k = 0; k < depth; k++) b[i][k] = f32((i * 5 + k * 2) %% 13 - 6);
    i32 wrong = 0;
    for (i32 lane = 0; lane < atom::lanes; lane++) {
        atom::a_fragment fa;
        atom::b_fragment fb;
        f32 acc[atom::c_size] = {};
        for (i32 i = 0; i < atom::a_size; i++) fa.x[i] = a[atom::a(lane, i).row][atom::a(lane, i).col];
        for (i32 i = 0; i < atom::b_size; i++) fb.x[i] = b[atom::b(lane, i).row][atom::b(lane, i).col];
        atom::mma(acc, fa, fb);
        for (i32 r = 0; r < atom::c_size; r++) {
            const coord at = atom::c(lane, r);
            f32 want = 0;
            for (i32 k = 0; k < depth; k++) want += a[at.row][k] * b[at.col][k];
            wrong += acc[r] != want;
        }
    }
    entry("wrong", std::vector<i32>{wrong});
}
"""


@pytest.mark.parametrize(
    ("header", "atom"), [(h, a) for h, a, _ in REGISTER_ATOMS if h in (FMA, OUTER)], ids=lambda x: x
)
def test_fma_multiplies(host_check: Any, header: str, atom: str) -> None:
    """The FMA atoms themselves run on the host, lane by lane."""
    assert host_check.run([header], _FMA_RUN % atom)["wrong"] == [0]


# --- checks that must fail --------------------------------------------------------------------------------

_BROKEN = """
struct broken : {atom} {{
    {change}
}};
static_assert(maps_are_sound<broken>());
"""

MMA = "arch::mma_16816<fp16>"
CHANGES = {
    "a place twice": (
        SM80,
        MMA,
        "static constexpr coord c(i32 l, i32 i) { return {l / 4, l % 4 * 2 + i % 2}; }",
    ),
    "a place outside": (SM80, MMA, "static constexpr coord a(i32 l, i32 i) { return {l, i}; }"),
    "a place missing": (SM80, MMA, "static constexpr coord b(i32 l, i32 i) { return {l / 4, i}; }"),
    "no run": (
        SM80,
        MMA,
        "static constexpr coord a(i32 l, i32 i) { auto p = arch::mma_16816<fp16>::a(l, i ^ 1); return p; }",
    ),
    "run too long": (SM80, MMA, "static constexpr i32 c_run = 4;"),
    "run too long for A": (FMA, "fma_atom<32>", "static constexpr i32 a_run = 8;"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_unsound_maps_do_not_compile(host_check: Any, change: str) -> None:
    header, atom, text = CHANGES[change]
    message = host_check.error([header], _BROKEN.format(atom=atom, change=text))
    assert "maps_are_sound<broken>" in message


def test_sound_maps_compile(host_check: Any) -> None:
    """The same text without a fault compiles: the faults above are what fails."""
    host_check.compiles([SM80], _BROKEN.format(atom=MMA, change=""))
