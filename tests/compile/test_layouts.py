"""Layouts of shared memory: no place twice, no 16-byte chunk torn, no bank conflict, and the copy engine's swizzle.

Addresses come from the functions that kernels use, run on the host; a Python model of the banks counts what the
hardware would serialise: accesses of 16, 8 and 4 bytes go in phases of 8, 16 and 32 lanes, 32 banks of 4 bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from portagemm.hal.dtypes import BY_NAME
from portagemm.hal.profile import all_profiles
from portagemm.kernel_config import ATOMS, SCHEDULES

pytestmark = pytest.mark.quick

SM80 = "portagemm/arch/sm80.hpp"
SM90 = "portagemm/arch/sm90.hpp"
FMA = "portagemm/atom/fma.hpp"
OUTER = "portagemm/atom/fma_outer.hpp"
HOST = "portagemm/arch/host.hpp"
LAYOUTS = "layouts.hpp"

Stage = tuple[str, int, int, str]  # element, mn, k, order


def stages() -> list[Stage]:
    """Every swizzled stage that a tile of a built-in profile has."""
    found: dict[Stage, None] = {}
    for profile in all_profiles().values():
        for schedule, tiles in profile.tiles.items():
            for tile in tiles:
                part = ATOMS[tile.atom]
                if "swizzled_stage" not in part.stage_a or SCHEDULES[schedule].rows:
                    continue
                elements = [BY_NAME[part.element].cpp] if part.element else []
                if not elements:
                    named = {"tf32": "fp32"}
                    elements = [BY_NAME[named.get(a, a)].cpp for a in profile.atoms[tile.atom].a]
                for element in elements:
                    for mn in tile.block[:2]:
                        for order in part.orders:
                            # The planner gives no MN-major operand to a tile that is not whole panels.
                            if order == "k" or mn % 64 == 0:
                                found[element, mn, tile.block[2], order] = None
    return list(found)


def spell(stage: Stage) -> str:
    element, mn, k, order = stage
    return f"swizzled_stage<{element}, {mn}, {k}, major::{order}>"


# --- the hardware's rules -------------------------------------------------------------------------------


def swizzle_of_ptx(offset: int, span: int) -> int:
    """PTX ISA, Tensor Swizzling Modes: within 128-byte line i, 16-byte chunk j of each span lands on chunk j ^ i.

    The pattern repeats after span / 16 lines: 1024 bytes for the 128-byte mode, 512 for 64, 256 for 32.
    """
    line, chunk, rest = offset // 128, offset // 16 % 8, offset % 16
    return line * 128 + (chunk ^ line % (span // 16)) * 16 + rest


def conflicts(addresses: Sequence[int], width: int, lanes_at_once: int | None = None) -> int:
    """Extra passes of one access of a wave: addresses by lane, in bytes."""
    phase = lanes_at_once or {16: 8, 8: 16, 4: 32, 2: 32}[width]
    extra = 0
    for first in range(0, len(addresses), phase):
        words: dict[int, set[int]] = {}
        for address in addresses[first : first + phase]:
            for word in range(address // 4, (address + max(width, 4)) // 4):
                words.setdefault(word % 32, set()).add(word)
        extra += max(len(w) for w in words.values()) - 1
    return extra


def groups(values: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (values[i : i + size] for i in range(0, len(values), size))


def test_conflicts_are_counted() -> None:
    """The model itself: rows of 128 bytes, column by column, collide; a broadcast does not."""
    assert conflicts([lane * 4 for lane in range(32)], 4) == 0
    assert conflicts([lane * 128 for lane in range(32)], 4) == 31
    assert conflicts([0] * 32, 4) == 0
    assert conflicts([lane * 128 for lane in range(8)], 16) == 7
    assert conflicts([lane * 16 for lane in range(32)], 16) == 0
    assert conflicts([lane * 8 for lane in range(32)], 8) == 0


# --- maps -----------------------------------------------------------------------------------------------


def test_stages_are_bijections_of_whole_chunks(host_check: Any) -> None:
    all_stages = stages()
    assert {order for *_, order in all_stages} == {"k", "mn"} and len(all_stages) > 12
    body = "".join(f'print_soundness<{spell(s)}>("{spell(s)}");\n' for s in all_stages)
    found = host_check.run([LAYOUTS], f"void check() {{ {body} }}")
    for stage in all_stages:
        element, mn, k, _ = stage
        size = mn * k * (4 if element in ("fp32", "f32", "float", "pg::fp32") else 2)
        assert found[spell(stage)] == [0, 0, size], f"{stage}: faults, torn chunks, bytes"


def test_swizzle_is_the_copy_engines(host_check: Any) -> None:
    text = """
    template <int Columns> void strip(const char* name) {
        using atom = arch::wgmma_atom<bf16, 64, major::k, major::k>;
        using store = arch::tensor_store<bf16, block_tile<atom, 64, 64, 64, 1, 1>, Columns>;
        std::vector<i32> to;
        for (i32 offset = 0; offset < 8192; offset++) to.push_back(store::swizzle(offset));
        entry(name, to);
    }
    void check() {
        std::vector<i32> to;
        for (i32 offset = 0; offset < 8192; offset++) to.push_back(swizzle_128(offset));
        entry("stage", to);
        strip<64>("128");
        strip<32>("64");
        strip<16>("32");
    }
    """
    found = host_check.run([SM90, LAYOUTS], text)
    for name, span in (("stage", 128), ("128", 128), ("64", 64), ("32", 32)):
        assert found[name] == [swizzle_of_ptx(offset, span) for offset in range(8192)], name


@pytest.mark.parametrize(
    ("mn", "k", "order"), [(128, 64, "k"), (176, 64, "k"), (128, 64, "mn"), (256, 64, "mn")]
)
def test_tensor_copies_fill_stages(host_check: Any, mn: int, k: int, order: str) -> None:
    """Boxes of 64 elements by so many rows, swizzled by the engine, put each element where the stage has it."""
    stage = ("bf16", mn, k, order)
    found = host_check.run([LAYOUTS], f'void check() {{ print_offsets<{spell(stage)}>("offsets"); }}')
    for i in range(mn):
        for kk in range(k):
            along, row, rows = (kk, i, mn) if order == "k" else (i, kk, k)
            box = along // 64 * rows * 128
            want = box + swizzle_of_ptx(row * 128 + along % 64 * 2, 128)
            assert found["offsets"][i * k + kk] == want, (i, kk)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("order", ["k", "mn"])
def test_multicast_slices_cover_a_stage(host_check: Any, order: str, slices: int) -> None:
    """The blocks of a cluster write each byte of a stage once, in whole swizzle periods."""
    mn, k = 256, 64
    body = f"""
    using stage = {spell(("bf16", mn, k, order))};
    using copy = arch::tensor_copy<bf16, stage, arch::operand_name::b, {slices}>;
    void check() {{
        u8* memory = shared_start();
        arch::transaction_barrier full;
        for (i32 rank = 0; rank < {slices}; rank++) {{
            copy::registers r;
            copy::fetch(r, tile_source{{}}, memory, 0, 0, arch::copy_token{{&full, rank}});
        }}
        entry("addresses", vendor::addresses);
    }}
    """
    starts = sorted(host_check.run([SM90, LAYOUTS], body)["addresses"][::2])  # each box names its barrier too
    box = mn // slices * 128 if order == "k" else k * 128
    assert starts == list(range(0, mn * k * 2, box))
    assert all(start % 1024 == 0 for start in starts)


# --- what the matrix units read -------------------------------------------------------------------------


def ldmatrix_shapes() -> list[Stage]:
    """Stages of mma_16816, each size once."""
    found: dict[Stage, None] = {}
    for profile in all_profiles().values():
        staged = (tiles for schedule, tiles in profile.tiles.items() if not SCHEDULES[schedule].rows)
        for tile in (t for tiles in staged for t in tiles if t.atom == "mma_16816"):
            for mn in tile.block[:2]:
                for order in ("k", "mn"):
                    found["fp16", mn, tile.block[2], order] = None
    return list(found)


def test_ldmatrix(host_check: Any) -> None:
    """No bank conflict in either order, and each lane receives the elements that the atom's map promises."""
    shapes = ldmatrix_shapes()
    atom = "arch::mma_16816<fp16>"
    body = "".join(
        f'print_ldmatrix<{atom}, {spell(s)}, {of_a}>("{s[1:]} {of_a}");\n'
        for s in shapes
        for of_a in ("true", "false")
    )
    body += "".join(f'print_offsets<{spell(s)}>("{s[1:]}");\n' for s in shapes)
    found = host_check.run([SM80, LAYOUTS], f"void check() {{ {body} }}")
    for shape in shapes:
        _, mn, k, order = shape
        offsets = found[f"{shape[1:]}"]
        element_at = {offset: divmod(i, k) for i, offset in enumerate(offsets)}
        for of_a in ("true", "false"):
            waves = list(groups(found[f"{shape[1:]} {of_a}"], 32))
            assert len(waves) == mn // 16 * (k // 16)
            for wave, addresses in enumerate(waves):
                assert conflicts(addresses, 16) == 0, (shape, of_a, wave)
                mn0, k0 = wave // (k // 16) * 16, wave % (k // 16) * 16
                check_fragments(addresses, element_at, order, of_a == "true", mn0, k0)


def check_fragments(
    rows: Sequence[int], element_at: dict[int, tuple[int, int]], order: str, of_a: bool, mn0: int, k0: int
) -> None:
    """PTX ISA, ldmatrix: matrix j's rows come from lanes 8j to 8j + 7; register j of a lane is row lane / 4, columns
    2 (lane % 4) and the next, of matrix j, or the same of its transpose."""
    for lane in range(32):
        for i in range(8):
            matrix, half = divmod(i, 2)
            row, col = lane // 4, lane % 4 * 2 + half
            if order == "mn":
                row, col = col, row  # .trans
            got = element_at[rows[matrix * 8 + row] + col * 2]
            # mma.m16n8k16's A: matrices 1, 3 are rows 8 to 15, 2, 3 columns 8 to 15. B: k first, then the next 8 of n.
            high_mn, high_k = (matrix % 2, matrix // 2) if of_a else (matrix // 2, matrix % 2)
            want = (mn0 + 8 * high_mn + lane // 4, k0 + 8 * high_k + lane % 4 * 2 + half)
            assert got == want, (lane, i)


_MOVED = """
// Places that a wave's atoms move by constants, against the same read at its own place.
template <class Stage, bool OfA>
void moved(const char* name, i32 wave_extent) {
    using atom = arch::mma_16816<fp16>;
    constexpr i32 step = OfA ? atom::m : atom::n;
    const u8* stage = shared_start();
    i32 reads = 0, wrong = 0;
    for (i32 origin = 0; origin < Stage::mn; origin += wave_extent)
        for (i32 by = 0; by < wave_extent; by += step)
            for (i32 k = 0; k < Stage::k; k += atom::k)
                for (i32 lane = 0; lane < 32; lane++, reads++) {
                    vendor::addresses.clear();
                    if constexpr (OfA) {
                        atom::a_fragment f;
                        atom::read_a_at<Stage>(f, stage, atom::place_a<Stage>(origin, lane), by, k);
                        atom::read_a<Stage>(f, stage, origin + by, k, lane);
                    } else {
                        atom::b_fragment f;
                        atom::read_b_at<Stage>(f, stage, atom::place_b<Stage>(origin, lane), by, k);
                        atom::read_b<Stage>(f, stage, origin + by, k, lane);
                    }
                    wrong += vendor::addresses.size() != 2 || vendor::addresses[0] != vendor::addresses[1];
                }
    entry(name, std::vector<i32>{reads > 0, wrong});
}
"""


def test_places_move_by_constants(host_check: Any) -> None:
    """A lane computes its place once; what it reads from there for other atoms is what it would read at theirs."""
    calls = {}
    for profile in all_profiles().values():
        for tile in (t for tiles in profile.tiles.values() for t in tiles if t.atom == "mma_16816"):
            for of_a, mn, waves in (
                ("true", tile.block[0], tile.waves[0]),
                ("false", tile.block[1], tile.waves[1]),
            ):
                for order in ("k", "mn"):
                    stage = spell(("fp16", mn, tile.block[2], order))
                    name = f"{mn}x{tile.block[2]} {order} by {waves}, A: {of_a}"
                    calls[name] = f'moved<{stage}, {of_a}>("{name}", {mn // waves});'
    found = host_check.run([SM80, LAYOUTS], f"{_MOVED} void check() {{ {''.join(calls.values())} }}")
    assert found == {name: [1, 0] for name in calls}


_ELEMENT_READS = """
template <class Atom, class Stage, bool OfA>
void reads(const char* name) {
    std::vector<i32> at;
    constexpr i32 step = OfA ? Atom::m : Atom::n, size = OfA ? Atom::a_size : Atom::b_size;
    constexpr i32 run = OfA ? Atom::a_run : Atom::b_run;
    for (i32 mn = 0; mn < Stage::mn; mn += step)
        for (i32 k = 0; k < Stage::k; k += Atom::k)
            for (i32 i = 0; i < size; i += run)
                for (i32 lane = 0; lane < Atom::lanes; lane++) {
                    const coord c = OfA ? Atom::a(lane, i) : Atom::b(lane, i);
                    at.push_back(Stage::offset(mn + c.row, k + c.col));
                }
    entry(name, at);
}
"""


@pytest.mark.parametrize(
    ("atom", "header", "width"),
    [("arch::mma_1688_tf32", SM80, 4), ("fma_atom<32>", FMA, 16)],
    ids=["mma_1688_tf32", "fma"],
)
def test_reads_by_map(host_check: Any, atom: str, header: str, width: int) -> None:
    """TF32 fragments are read element by element, FMA's by 16 bytes along K: neither conflicts."""
    shapes = [s for s in stages() if s[3] == "k" and s[0] == BY_NAME["fp32"].cpp]
    assert shapes
    body = "".join(
        f'reads<{atom}, {spell(s)}, {of_a}>("{s[1:]} {of_a}");\n'
        for s in shapes
        for of_a in ("true", "false")
    )
    found = host_check.run([header, LAYOUTS], f"{_ELEMENT_READS} void check() {{ {body} }}")
    for name, addresses in found.items():
        worst = max(conflicts(wave, width) for wave in groups(addresses, 32))
        assert worst == 0, f"{name}: {worst} extra passes"


def padded_shapes() -> list[tuple[int, int]]:
    """(mn, k) of every padded stage that a tile of a built-in profile has."""
    tiles = (t for p in all_profiles().values() for tiles in p.tiles.values() for t in tiles)
    return sorted({(mn, t.block[2]) for t in tiles if t.atom == "fma_outer" for mn in t.block[:2]})


_PLACED_READS = """
template <class Stage, bool OfA>
void placed(const char* name) {
    using atom = fma_outer<32>;
    std::vector<i32> at;
    for (i32 k = 0; k < Stage::k; k++)
        for (i32 lane = 0; lane < 32; lane++) {
            const i32 place = OfA ? atom::place_a<Stage>(0, lane) : atom::place_b<Stage>(0, lane);
            at.push_back(place + Stage::offset(0, k));
        }
    entry(name, at);
}
"""


def test_padded_stages(host_check: Any) -> None:
    """Each element once and chunks whole; a step's reads are conflict-free, and pairs of lanes share them."""
    shapes = padded_shapes()
    assert shapes
    body = ""
    for mn, k in shapes:
        stage = f"padded_stage<f32, {mn}, {k}>"
        body += f'print_soundness<{stage}>("{mn} {k}");\n'
        body += f'placed<{stage}, true>("{mn} {k} A"); placed<{stage}, false>("{mn} {k} B");\n'
    found = host_check.run([OUTER, LAYOUTS], f"{_PLACED_READS} void check() {{ {body} }}")
    for mn, k in shapes:
        assert found[f"{mn} {k}"] == [0, 0, (mn + 4) * k * 4]
        for operand, partner in (("A", 2), ("B", 1)):
            for wave in groups(found[f"{mn} {k} {operand}"], 32):
                assert conflicts(wave, 16) == 0
                assert all(wave[lane] == wave[lane ^ partner] for lane in range(32))


@pytest.mark.parametrize(("order", "width", "worst"), [("mn", 16, 0), ("mn", 4, 0), ("k", 4, 1)])
def test_copies_into_padded_stages(host_check: Any, order: str, width: int, worst: int) -> None:
    """Every element has its place, at most two of a wave's stores in one bank where they transpose."""
    threads, mn, k = 256, 128, 16
    text = f"""
    using copy = arch::async_copy<f32, padded_stage<f32, {mn}, {k}>, major::{order}, {width}, {threads}>;
    void check() {{ print_asynchronous_copy<copy, {threads}>("to", 512, 256); }}
    """
    to = host_check.run([OUTER, SM80, LAYOUTS], text)["to"]
    pitch = (mn + 4) * 4
    assert sorted(to) == [row * pitch + at for row in range(k) for at in range(0, mn * 4, width)]
    rounds = len(to) // threads
    for i in range(rounds):
        for warp in groups([to[thread * rounds + i] for thread in range(threads)], 32):
            assert conflicts(warp, width) <= worst


def wgmma_shapes() -> list[Stage]:
    """Stages of wgmma, each size once; MN-major ones in whole panels of 64."""
    found: dict[Stage, None] = {}
    for tile in all_profiles()["h100"].tiles["warp_specialized"]:
        for mn in tile.block[:2]:
            found["bf16", mn, tile.block[2], "k"] = None
            if mn % 64 == 0:
                found["bf16", mn, tile.block[2], "mn"] = None
    return list(found)


_DESCRIPTORS = """
template <class Stage>
void descriptors(const char* name, const char* fields_name) {
    using atom = arch::wgmma<bf16, 64>;
    const u8* memory = shared_start();
    std::vector<i64> fields;
    for (i32 mn = 0; mn < Stage::mn; mn += 64)
        for (i32 k = 0; k < Stage::k; k += 16) {
            const u64 d = atom::describe<Stage>(memory, mn, k);
            for (u64 x : {d & 0x3fff, d >> 16 & 0x3fff, d >> 32 & 0x3fff, d >> 49 & 7, d >> 62}) fields.push_back(x);
        }
    entry(fields_name, fields);
    print_offsets<Stage>(name);
}
"""


def test_wgmma_descriptors(host_check: Any) -> None:
    """Where the matrix unit looks for element (mn, k) by a descriptor is where the stage has it.

    PTX ISA, Asynchronous warpgroup-level matrix shared memory layout, 128-byte swizzle. K-major: row mn of a
    group of 8 is 128 bytes after the last, groups are a stride apart. MN-major: row k is, groups of 8 k are a
    stride apart, panels of 64 mn the leading offset. The swizzle acts on address bits, from any start in a line.
    """
    shapes = wgmma_shapes()
    body = "".join(f'descriptors<{spell(s)}>("{s[1:]}", "{s[1:]} fields");\n' for s in shapes)
    found = host_check.run([SM90, LAYOUTS], f"{_DESCRIPTORS} void check() {{ {body} }}")
    for shape in shapes:
        _, mn, k, order = shape
        offsets, fields = found[f"{shape[1:]}"], list(groups(found[f"{shape[1:]} fields"], 5))
        starts = [(m, kk) for m in range(0, mn, 64) for kk in range(0, k, 16)]
        for (mn0, k0), (start, leading, stride, base, mode) in zip(starts, fields, strict=True):
            assert (base, mode) == (0, 1), "base offset 0, 128-byte swizzle"
            for i in range(min(64, mn - mn0)):
                for kk in range(16):
                    if order == "k":
                        linear = i // 8 * stride * 16 + i % 8 * 128 + kk * 2
                    else:
                        linear = i // 64 * leading * 16 + kk // 8 * stride * 16 + kk % 8 * 128 + i % 64 * 2
                    address = swizzle_of_ptx(start * 16 + linear, 128)
                    assert address == offsets[(mn0 + i) * k + k0 + kk], (shape, mn0, k0, i, kk)


# --- stores ---------------------------------------------------------------------------------------------

_TENSOR_STORE = """
using atom = arch::wgmma_atom<bf16, %(n)d, major::k, major::k>;
using tile = block_tile<atom, 128, %(n)d, 64, 2, 1>;
using store = arch::tensor_store<bf16, tile, %(columns)d>;
using output = epilogue<activation::none, false, false, bf16, bf16>;
struct consumer {
    static constexpr bool loads = false, computes = true, whole_block = false;
    i32 thread;
};
struct arguments {
    gemm_params params;
    arch::tensor_copy_args copies;
};
void check() {
    static arguments args;
    static plain_accumulator<tile> acc;
    auto& memory = *reinterpret_cast<store::shared*>(shared_start());
    for (i32 thread = 0; thread < 256; thread++) {
        store::store(acc, output(args.params, work{}), args, memory, work{}, consumer{thread});
    }
    entry("all", vendor::addresses);
}
"""


@pytest.mark.parametrize(("n", "columns"), [(128, 64), (128, 32), (128, 16), (176, 88), (80, 40)])
def test_stmatrix(host_check: Any, n: int, columns: int) -> None:
    """Each chunk of a warp's 16 rows is written once, where the copy engine looks for it, without conflicts."""
    strips, steps, row_bytes = n // columns, -(-columns // 16), columns * 2
    text = _TENSOR_STORE % {"n": n, "columns": columns}
    found = host_check.run([SM90, "kernels/gemm.hpp", LAYOUTS], text)["all"]
    lanes = list(groups(found, strips * steps))
    assert len(lanes) == 256
    for warp in range(8):
        for strip in range(strips):
            start = (warp * 2 + strip % 2) * 16 * row_bytes
            written = set()
            for step in range(steps):
                # The last 8 columns are two matrices, whose rows the first 16 lanes name.
                named = 32 if columns - step * 16 >= 16 else 16
                at = [lanes[warp * 32 + lane][strip * steps + step] for lane in range(named)]
                assert conflicts(at, 16) == 0
                for lane, address in enumerate(at):
                    # matrix j of x4 is (rows 8 (j % 2), columns 8 (j / 2)) of 16 x 16, as registers hold them
                    j, row = divmod(lane, 8)
                    linear = (row + j % 2 * 8) * row_bytes + step * 32 + j // 2 * 16
                    placed = swizzle_of_ptx(linear, row_bytes) if row_bytes in (128, 64, 32) else linear
                    assert address == start + placed
                    written.add(address)
            assert len(written) == 16 * row_bytes // 16


_STAGED_STORE = """
template <class Store, class Tile>
void strips(const char* name, i32 lanes) {
    static plain_accumulator<Tile> acc;
    static f32 strip[Tile::atom::m * Store::pitch];
    using atom = typename Tile::atom;
    std::vector<i32> wrong;
    for (i32 i = 0; i < Tile::atoms_m; i++)
        for (i32 s = 0; s < Store::strips; s++) {
            for (f32& x : strip) x = -1;
            for (i32 lane = 0; lane < lanes; lane++) {
                for (i32 ii = 0; ii < Tile::atoms_m; ii++)
                    for (i32 j = 0; j < Tile::atoms_n; j++)
                        for (i32 r = 0; r < atom::c_size; r++) {
                            const coord at = atom::c(lane, r);
                            acc.value[ii][j][r] = f32((ii * atom::m + at.row) * 1024 + j * atom::n + at.col);
                        }
                Store::write_strip(acc, strip, i, s, lane);
            }
            i32 faults = 0;
            for (i32 row = 0; row < atom::m; row++)
                for (i32 col = 0; col < Tile::wave_n / Store::strips; col++)
                    faults += strip[row * Store::pitch + col] !=
                              f32((i * atom::m + row) * 1024 + s * (Tile::wave_n / Store::strips) + col);
            wrong.push_back(faults);
        }
    entry(name, wrong);
    std::string pitch = std::string(name) + " pitch";
    entry(pitch.c_str(), std::vector<i32>{Store::pitch});
}
"""

#: atom, header, lanes, wave tile, columns of a strip.
STRIPS = [
    ("arch::mma_16816<fp16>", SM80, 32, (64, 32), 32),
    ("arch::mma_16816<fp16>", SM80, 32, (32, 64), 32),
    ("arch::mma_1688_tf32", SM80, 32, (64, 32), 32),
    ("arch::mma_1688_tf32", SM80, 32, (32, 32), 16),
    ("fma_atom<32>", FMA, 32, (32, 32), 32),
    ("fma_atom<64>", FMA, 64, (64, 32), 32),
    ("fma_outer<32>", OUTER, 32, (32, 64), 32),
    ("arch::wgmma_atom<bf16, 256, major::k, major::k>", SM90, 128, (64, 256), 32),
    ("arch::wgmma_atom<bf16, 176, major::k, major::k>", SM90, 128, (64, 176), 16),
]


@pytest.mark.parametrize(
    ("atom", "header", "lanes", "wave", "columns"), STRIPS, ids=[f"{s[0]}-{s[3]}-{s[4]}" for s in STRIPS]
)
def test_staged_strips(
    host_check: Any, atom: str, header: str, lanes: int, wave: tuple[int, int], columns: int
) -> None:
    """A strip holds its rows and columns of the accumulators; writing it and reading whole rows is conflict-free."""
    tile = f"block_tile<{atom}, {wave[0]}, {wave[1]}, 64, 1, 1>"
    text = f"""
    {_STAGED_STORE}
    using tile = {tile};
    void check() {{ strips<staged_store<f32, 1, tile, {columns}>, tile>("strip", {lanes}); print_atom<tile::atom>(); }}
    """
    # write_strip is private: what it leaves in memory is what counts
    flags = ("-fno-access-control", f"-DPG_CHECK_WAVE_SIZE={min(lanes, 64) if lanes == 64 else 32}")
    found = host_check.run([header, "portagemm/store.hpp", "atom_maps.hpp"], text, *flags)
    assert not any(found["strip"])
    pitch = found["strip pitch"][0]
    size = len(found["c"]) // 2 // lanes
    places = list(groups(list(groups(found["c"], 2)), size))
    row, col = places[0][0]
    run = next(r for r in (4, 2, 1) if places[0][:r] == [[row, col + i] for i in range(r)])
    for i in range(0, size, run):
        at = [(row * pitch + col % columns) * 4 for row, col in (places[lane][i] for lane in range(lanes))]
        for warp in groups(at, 32):
            assert conflicts(warp, 4 * run) == 0, f"writes of register {i}"
    # Phases that span rows of a narrow strip meet half the banks twice: once more, where four rows would be idle.
    for vector in (1, 2, 4):
        for first in range(0, columns * 16 // vector, 32):
            units = [divmod(v, columns // vector) for v in range(first, first + 32)]
            at = [(row * pitch + unit * vector) * 4 for row, unit in units]
            allowed = 0 if columns == 32 else vector
            assert conflicts(at, 4 * vector) <= allowed, f"reads of {vector}"


# --- copies by registers, and asynchronous ones ---------------------------------------------------------


WHERE = ("200, 100, 0, 0", "200, 100, 64, 32", "77, 50, 64, 32", "65, 33, 64, 32", "64, 32, 64, 0")


def test_register_copies(host_check: Any) -> None:
    """Every order and width fills a stage with the operand, with zeros outside of it, and nothing but the stage.

    In two parts, with products in between, and at once; by 96 threads, whose last round is not whole, and by 64.
    """
    calls = {}
    for element, size in (("fp16", 2), ("f32", 4)):
        for order, source, width in itertools.product(("k", "mn"), ("k", "mn", "strided"), (16, 8, 4, 2)):
            if width < size or (source == "strided" and width != size):
                continue
            for threads, at_once, rows in (
                (96, "false", 64),
                (96, "true", 64),
                (64, "true", 96),
                (64, "true", 80),
            ):
                stage = spell((element, rows, 32, order))
                if order == "mn" and rows * size > 128 and rows * size % 128:
                    continue
                copy = f"<{element}, {stage}, major::{source}, {width}, {threads}, {at_once}>"
                for where in WHERE if rows == 64 else WHERE[:3]:
                    calls[f"{copy} {where}"] = f"wrong_after_copy{copy}({where})"
    text = f'void check() {{ entry("wrong", std::vector<i32>{{{", ".join(calls.values())}}}); }}'
    found = host_check.run([LAYOUTS], text)["wrong"]
    assert [name for name, wrong in zip(calls, found, strict=True) if wrong] == []


@pytest.mark.parametrize("order", ["k", "mn"])
@pytest.mark.parametrize("width", [16, 8, 4])
def test_asynchronous_copies(host_check: Any, width: int, order: str) -> None:
    """Chunks of all threads cover a stage once, by 16 bytes without conflicts within eight lanes."""
    stage = spell(("fp16", 128, 32, order))
    copy = f"arch::async_copy<fp16, {stage}, major::{order}, {width}, 256>"
    cases = {"whole": (512, 256), "k_tail": (512, 21), "mn_tail": (77, 256), "both": (5, 3), "none": (0, 0)}
    calls = "".join(
        f'print_asynchronous_copy<copy, 256>("{name}", {mn_end}, {k_end});'
        for name, (mn_end, k_end) in cases.items()
    )
    found = host_check.run([SM80, LAYOUTS], f"using copy = {copy}; void check() {{ {calls} }}")
    for name in cases:
        assert sorted(found[name]) == list(range(0, 128 * 32 * 2, width)), name
    if width == 16:
        rounds = 128 * 32 * 2 // 16 // 256
        for i in range(rounds):
            at = [found["whole"][thread * rounds + i] for thread in range(256)]
            assert sum(conflicts(warp, 16) for warp in groups(at, 32)) == 0


# --- the host's stages ----------------------------------------------------------------------------------


def test_host_stages(host_check: Any) -> None:
    """Rows as they are, and panels side by side: each float once."""
    stages_ = {
        "rows k": "arch::row_stage<96, 64, major::k>",
        "rows mn": "arch::row_stage<96, 64, major::mn>",
        "panels": "arch::panel_stage<96, 64, 16>",
        "wide panels": "arch::panel_stage<96, 64, 32>",
    }
    body = "".join(f'print_offsets<{cpp}>("{name}");' for name, cpp in stages_.items())
    found = host_check.run([HOST, LAYOUTS], f"void check() {{ {body} }}")
    for name in stages_:
        assert sorted(found[name]) == list(range(0, 96 * 64 * 4, 4)), name
    # A step of K of a panel is that many floats side by side.
    at = found["panels"]
    assert all(at[i * 64 + k] == at[i // 16 * 16 * 64 + k] + i % 16 * 4 for i in range(96) for k in range(64))
