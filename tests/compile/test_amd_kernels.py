"""AMD kernels without an AMD GPU: compiled by the oldest and the newest clang, disassembled, counted.

Every kernel of the profiles mi250x, mi300x and rx7900xtx (mi355x: clang 22 alone) that a tile, a dtype and a layout
make, with access widths and epilogues in turn. A code object must hold its atom's matrix instruction and no
other, no scratch, no spills, fit the LDS and leave room for other waves.

A run compiles each kernel by one of the two compilers, in turn; with PORTAGEMM_COMPILE_ALL=1 by both, and in all
access widths.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from portagemm import prebuild
from portagemm.backends.rocm.compiler import ClangCompiler
from portagemm.bench import static
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.errors import CompileError
from portagemm.hal.profile import get
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource
from portagemm.kernel_config import KernelConfig
from portagemm.plan import GemmPlan, candidates, kernel_source, plan
from portagemm.problem import GemmProblem

ALL = bool(os.environ.get("PORTAGEMM_COMPILE_ALL"))
PROFILES = ("mi250x", "mi300x", "rx7900xtx", "mi355x")
RELEASES = ("19", "22")

#: (arch, atom, dtype) -> what an atom is made of: its instruction and, for 16-bit operands of gfx90a, the exact one.
MATRIX = {
    ("gfx90a", "mfma_32x32x8", "fp16"): {"v_mfma_f32_32x32x8f16", "v_mfma_f32_32x32x2f32"},
    ("gfx90a", "mfma_32x32x8", "bf16"): {"v_mfma_f32_32x32x8bf16_1k", "v_mfma_f32_32x32x2f32"},
    ("gfx90a", "mfma_16x16x16", "fp16"): {"v_mfma_f32_16x16x16f16", "v_mfma_f32_16x16x4f32"},
    ("gfx90a", "mfma_16x16x16", "bf16"): {"v_mfma_f32_16x16x16bf16_1k", "v_mfma_f32_16x16x4f32"},
    ("gfx90a", "mfma_16x16x16_flush", "fp16"): {"v_mfma_f32_16x16x16f16"},
    ("gfx90a", "mfma_16x16x16_flush", "bf16"): {"v_mfma_f32_16x16x16bf16_1k"},
    ("gfx90a", "mfma_16x16x4_f32", "fp32"): {"v_mfma_f32_16x16x4f32"},
    ("gfx942", "mfma_32x32x8", "fp16"): {"v_mfma_f32_32x32x8_f16"},
    ("gfx942", "mfma_32x32x8", "bf16"): {"v_mfma_f32_32x32x8_bf16"},
    ("gfx942", "mfma_16x16x16", "fp16"): {"v_mfma_f32_16x16x16_f16"},
    ("gfx942", "mfma_16x16x16", "bf16"): {"v_mfma_f32_16x16x16_bf16"},
    ("gfx942", "mfma_16x16x4_f32", "fp32"): {"v_mfma_f32_16x16x4_f32"},
    ("gfx950", "mfma_32x32x16", "fp16"): {"v_mfma_f32_32x32x16_f16"},
    ("gfx950", "mfma_32x32x16", "bf16"): {"v_mfma_f32_32x32x16_bf16"},
    ("gfx950", "mfma_16x16x32", "fp16"): {"v_mfma_f32_16x16x32_f16"},
    ("gfx950", "mfma_16x16x32", "bf16"): {"v_mfma_f32_16x16x32_bf16"},
    ("gfx950", "mfma_16x16x4_f32", "fp32"): {"v_mfma_f32_16x16x4_f32"},
    ("gfx1100", "wmma_16x16x16", "fp16"): {"v_wmma_f32_16x16x16_f16"},
    ("gfx1100", "wmma_16x16x16", "bf16"): {"v_wmma_f32_16x16x16_bf16"},
}

#: Waves a SIMD must have room for, by registers. An interleaved tile of 128 x 128 has one wave a SIMD and hides
#: its latencies within it.
FLOOR = {"pingpong": 2, "interleave": 2, "single_buffer": 2, "gemv": 2, "reduce": 4}
ONE_WAVE = {("interleave", (128, 128, 32))}

#: dtype -> for each layout, bytes that divide addresses and rows.
ALIGNMENTS = {"float16": (16, 16, 16, 4), "bfloat16": (4, 16, 2, 16), "float32": (16, 16, 4, 16)}
EPILOGUES = ("none", "bias+gelu", "c+bias", "relu", "bias", "silu", "c", "gelu_tanh")


@dataclass(frozen=True)
class Item:
    """A kernel of the list. `config` is None for the kernel that adds up slices of K."""

    profile: str
    source: KernelSource
    config: KernelConfig | None
    block: int = 0
    lds_bytes: int = 0

    @property
    def schedule(self) -> str:
        return self.config.schedule if self.config else "reduce"


def _problems(dtype: str, layout: str, alignment: int, turn: int) -> list[GemmProblem]:
    wanted = prebuild.Wanted(
        dtypes=(dtype,),
        out=("float32" if turn % 3 == 2 else "same",),
        layouts=(layout,),
        alignments=(alignment,),
        epilogues=(EPILOGUES[turn % len(EPILOGUES)],),
        shapes=(*prebuild.SHAPES, (4, 4096, 4096), (4096, 1, 4096), (4096, 4, 4096)),
    )
    return list(prebuild.problems(wanted))


def _item(profile_name: str, chosen: GemmPlan, kernel: object) -> Item:
    profile = get(profile_name)
    target = profile.target(prebuild.described_device(profile))
    source = kernel_source(kernel, profile, target)  # type: ignore[arg-type]
    if isinstance(kernel, KernelConfig):
        return Item(profile_name, source, kernel, chosen.block, chosen.shared_bytes)
    return Item(profile_name, source, None)


def _only_for_few(chosen: GemmPlan, layout: str) -> bool:
    """What problems of few rows add: gemv, and K in slices (in one layout: their kernels have no epilogue)."""
    return chosen.kernel.schedule == "gemv" or (chosen.slices > 1 and layout == "nt")


@cache
def every_kernel(profile_name: str) -> tuple[Item, ...]:
    """All kernels of a profile, each once."""
    profile = get(profile_name)
    device = prebuild.described_device(profile)
    found: dict[str, Item] = {}
    turn = 0
    for dtype, alignments in ALIGNMENTS.items():
        for layout, usual in zip(prebuild.LAYOUTS, alignments, strict=True):
            for alignment in (16, 4, 2) if ALL and dtype != "float32" else (usual,):
                many, *few = _problems(dtype, layout, alignment, turn)
                chosen = list(candidates(many, profile, device))
                for problem in few:
                    chosen += [c for c in candidates(problem, profile, device) if _only_for_few(c, layout)]
                for plan_ in chosen:
                    for kernel in plan_.kernels:
                        item = _item(profile_name, plan_, kernel)
                        found.setdefault(item.source.symbol, item)
                turn += 1
    return tuple(found.values())


#: Parts of a profile's list, so that they run beside each other. A constant: collecting tests plans nothing.
SHARES = 8


def shares() -> list[tuple[str, str, int]]:
    """(profile, clang, share) of all."""
    return [
        (name, release, share)
        for name in PROFILES
        for release in (("22",) if name == "mi355x" else RELEASES)
        for share in range(SHARES)
    ]


def taken(name: str, release: str, share: int) -> list[Item]:
    """The kernels of a share: every other one where two compilers take turns, or one compiler has half the list."""
    items = every_kernel(name)
    mine = [x for i, x in enumerate(items) if ALL or i % 2 == RELEASES.index(release)]
    return mine[share::SHARES]


# --- tools -----------------------------------------------------------------------------------------------


@cache
def obstacle(release: str) -> str | None:
    """Why a release of clang or its tools cannot be used here, or None."""
    reason = ClangCompiler(f"clang++-{release}").unavailable_reason()
    missing = [t for t in ("llvm-objdump", "llvm-readelf") if shutil.which(f"{t}-{release}") is None]
    return reason or (f"{missing[0]}-{release} is not installed" if missing else None)


def clang(release: str) -> ClangCompiler:
    """The compiler of a release; skips where it or its binary tools are missing."""
    reason = obstacle(release)
    if reason:
        pytest.skip(reason)
    return ClangCompiler(f"clang++-{release}")


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    clang(request.param)
    return str(request.param)


def _tool(name: str, release: str, *arguments: str) -> str:
    done = subprocess.run([f"{name}-{release}", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def _compile(compiler: ClangCompiler, source: KernelSource) -> ObjectCode | CompileError:
    options = CompileOptions(source.include_dirs, source.defines)
    try:
        return compiler.compile(source.text, source.symbol, source.target, options)
    except CompileError as error:
        return error


def _notes(path: Path, release: str) -> dict[str, int]:
    """The numbers of the kernel's metadata (LLVM, AMDGPU usage: code object metadata)."""
    text = _tool("llvm-readelf", release, "-n", str(path))
    return {name: int(value) for name, value in re.findall(r"^\s+\.(\w+):\s+(\d+)$", text, re.MULTILINE)}


def _listing(code: ObjectCode, folder: Path, release: str) -> str:
    path = folder / f"{code.symbol}.co"
    path.write_bytes(code.code)
    return _tool("llvm-objdump", release, "-d", str(path))


def faults(item: Item, code: ObjectCode, folder: Path, release: str) -> list[str]:
    """What is wrong with a code object; each finding begins with the kernel's name."""
    listing = _listing(code, folder, release)
    used = Counter(i.name for i in static.instructions(listing))
    notes, counted = _notes(folder / f"{code.symbol}.co", release), static.remarks(code.log)
    profile, kernel, found = get(item.profile), item.config, []

    def expect(holds: bool, what: str) -> None:
        if not holds:
            found.append(f"{code.symbol} (clang {release}): {what}")

    for name in ("private_segment_fixed_size", "sgpr_spill_count", "vgpr_spill_count"):
        expect(notes.get(name) == 0, f"{name} is {notes.get(name)}")
    expect(not any(op.startswith(("scratch_", "buffer_")) for op in used), "private memory is accessed")
    lds = notes["group_segment_fixed_size"] + item.lds_bytes
    expect(lds <= profile.limits.shared_bytes_per_block, f"{lds} bytes of LDS")
    expect(notes["wavefront_size"] == profile.wave_size, "wave size")
    floor = FLOOR[item.schedule]
    if kernel is not None:
        expect(notes["max_flat_workgroup_size"] == item.block, "block size differs from the plan's")
        if (kernel.schedule, kernel.tile.block) in ONE_WAVE:
            floor = 1
    expect(counted["occupancy"] >= floor, f"{counted['occupancy']} waves a SIMD, not {floor}")
    matrix = {re.sub(r"_(e64|vgprcd|acccd)$", "", op) for op in used if op.startswith(("v_mfma", "v_wmma"))}
    wanted = MATRIX.get((profile.arch, kernel.tile.atom, kernel.a.dtype), set()) if kernel else set()
    expect(matrix == wanted, f"has {sorted(matrix)}, not {sorted(wanted)}")
    if kernel is None or kernel.schedule == "gemv":
        return found
    if not wanted:
        fused = ("v_fma_f32", "v_fmac_f32_e32", "v_pk_fma_f32", "v_dual_fmac_f32", "v_fma_mix_f32")
        expect(any(op.startswith(fused) for op in used), "no fused multiply-add")
    expect(used["s_barrier"] > 0, "no barrier")
    if kernel.a.copy == "vgpr" and kernel.a.width == kernel.b.width == 16:
        expect(used["global_load_dwordx4"] + used["global_load_b128"] > 0, "no 16-byte loads")
        expect(used["ds_read_b128"] + used["ds_load_b128"] > 0, "no 16-byte reads of the LDS")
    return found


def _check(items: list[Item], release: str, folder: Path) -> None:
    compiler = clang(release)
    workers = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda item: _compile(compiler, item.source), items))
    found: list[str] = []
    for item, result in zip(items, results, strict=True):
        if isinstance(result, CompileError):
            found.append(str(result))
        else:
            found += faults(item, result, folder, release)
    assert not found, "\n".join(found)


# --- every kernel ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_list_has_every_tile(name: str) -> None:
    """Each tile of the profile is in the list with all layouts and dtypes it takes: none is silently left out."""
    profile = get(name)
    seen: dict[tuple[str, object], set[tuple[str, str, str]]] = {}
    for item in every_kernel(name):
        if item.config:
            k = item.config
            seen.setdefault((k.schedule, k.tile), set()).add((k.a.dtype, k.a.major, k.b.major))
    for schedule, tiles in profile.tiles.items():
        for tile in tiles:
            layouts = seen.get((schedule, tile), set())
            assert layouts, f"{schedule} {tile}"
            if schedule != "gemv":
                dtypes = {d for d in profile.atoms[tile.atom].a if d != "tf32"}
                majors = [(a, b) for a in ("k", "mn") for b in ("k", "mn")]
                assert layouts >= {(d, a, b) for d in dtypes for a, b in majors}, f"{schedule} {tile}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "release", "share"), shares())
def test_kernels(name: str, release: str, share: int, tmp_path: Path) -> None:
    _check(taken(name, release, share), release, tmp_path)


# --- the plan of choice -----------------------------------------------------------------------------------


def _default(dtype: str) -> GemmPlan:
    profile = get("mi250x")
    (problem,) = prebuild.problems(
        prebuild.Wanted(dtypes=(dtype,), layouts=("nt",), epilogues=("none",), shapes=((4096, 4096, 4096),))
    )
    return plan(problem, profile, prebuild.described_device(profile), use_tables=False)


def _row(chosen: GemmPlan, profile_name: str, release: str, folder: Path) -> tuple[static.Row, str]:
    profile = get(profile_name)
    result = _compile(clang(release), _item(profile_name, chosen, chosen.kernel).source)
    assert isinstance(result, ObjectCode), str(result)
    listing = _listing(result, folder, release)
    return static.row(chosen, profile, result.log, listing, release, (4096, 4096, 4096)), listing


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_main_loop_of_the_default_plan(dtype: str, release: str, tmp_path: Path) -> None:
    """gfx90a, subnormals kept: half of the slots are MFMAs, two waves a SIMD, no bank conflicts."""
    row, _ = _row(_default(dtype), "mi250x", release, tmp_path)
    assert row.schedule == "pingpong" and row.loop is not None and row.matrix_share is not None
    assert row.matrix_share >= 0.5, row
    assert row.occupancy >= 2 and row.lds_conflicts == 0 and row.spills == 0
    assert row.loop.lds_read_bytes == 2 * 8 * 16 + 2 * 8  # two steps: 8 fragments, and whether one is suspect


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_flushing_atoms_need_no_care(dtype: str, release: str, tmp_path: Path) -> None:
    """The same plan by the bare instructions (docs: a profile's choice): nearly all slots are MFMAs."""
    exact = _default(dtype)
    tile = replace(exact.kernel.tile, atom=f"{exact.kernel.tile.atom}_flush")
    row, listing = _row(replace(exact, kernel=replace(exact.kernel, tile=tile)), "mi250x", release, tmp_path)
    assert row.matrix_share is not None and row.matrix_share >= 0.9, row
    used = {i.name for i in static.instructions(listing) if i.matrix}
    wanted = MATRIX["gfx90a", tile.atom, exact.kernel.a.dtype]
    assert {re.sub(r"_(e64|vgprcd|acccd)$", "", name) for name in used} == wanted


# --- int8: atoms without a public operation ----------------------------------------------------------------

INT8 = {
    ("gfx90a", "mfma_32x32x8_i8"): "v_mfma_i32_32x32x8i8",
    ("gfx90a", "mfma_16x16x16_i8"): "v_mfma_i32_16x16x16i8",
    ("gfx942", "mfma_32x32x16_i8"): "v_mfma_i32_32x32x16_i8",
    ("gfx942", "mfma_16x16x32_i8"): "v_mfma_i32_16x16x32_i8",
    ("gfx1100", "wmma_16x16x16_i8"): "v_wmma_i32_16x16x16_iu8",
}
INT8_KERNEL = Path(__file__).parent / "include" / "int8_atom.hpp"


def int8_source(arch: str, atom: str) -> str:
    """A kernel int8_atom(const args): D (m, n) += A (m, k) B (n, k)^T of one atom; args: a, b, d (addresses)."""
    return f'#include <portagemm/arch/{arch}.hpp>\nusing atom = pg::arch::{arch}::{atom};\n#include "{INT8_KERNEL}"\n'


@pytest.mark.parametrize(("arch", "atom"), INT8)
def test_int8_atoms(arch: str, atom: str, release: str, tmp_path: Path) -> None:
    profile = next(get(name) for name in PROFILES if get(name).arch == arch)
    item = every_kernel(profile.name)[0]
    source = replace(item.source, text=int8_source(arch, atom), symbol="int8_atom")
    result = _compile(clang(release), source)
    assert isinstance(result, ObjectCode), str(result)
    used = {i.name for i in static.instructions(_listing(result, tmp_path, release)) if i.matrix}
    assert {re.sub(r"_(e64|vgprcd|acccd)$", "", name) for name in used} == {INT8[arch, atom]}
    counted = static.remarks(result.log)
    assert counted["scratch"] == counted["vgpr_spills"] == counted["sgpr_spills"] == 0


# --- hiprtc's prelude --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def prelude(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The header that hiprtc includes before every source, out of its library."""
    named = os.environ.get("PORTAGEMM_HIPRTC_BUILTINS")
    folders = (Path("/usr/lib/x86_64-linux-gnu"), Path("/opt/rocm/lib"))
    libraries = [Path(named)] if named else [p for f in folders for p in f.glob("libhiprtc-builtins.so*")]
    if not libraries:
        pytest.skip("no libhiprtc-builtins (Debian: libhiprtc-builtins5; or PORTAGEMM_HIPRTC_BUILTINS)")
    library = ctypes.CDLL(str(sorted(libraries)[0]))
    size = ctypes.c_uint.in_dll(library, "__hipRTC_header_size").value
    start = ctypes.addressof(ctypes.c_char.in_dll(library, "__hipRTC_header"))
    path = tmp_path_factory.mktemp("hiprtc") / "prelude.h"
    path.write_bytes(ctypes.string_at(start, size).rstrip(b"\0"))
    return path


class _WithPrelude(ClangCompiler):
    """clang in hiprtc's place: its header first, and the one macro that newer compilers no longer define."""

    header: Path

    def flags(self, target: object, options: CompileOptions) -> tuple[str, ...]:
        extra = ("-D__HIPCC_RTC__", "-D__AMDGCN_WAVEFRONT_SIZE=64", "-Wno-macro-redefined", "-include")
        return (*super().flags(target, options), *extra, str(self.header))  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", ["pingpong", "interleave", "single_buffer", "gemv", "reduce"])
def test_with_the_prelude_of_hiprtc(schedule: str, release: str, prelude: Path) -> None:
    """No name of ours clashes with those that hiprtc declares."""
    clang(release)
    compiler = _WithPrelude(f"clang++-{release}")
    compiler.header = prelude
    item = next(i for i in every_kernel("mi250x") if i.schedule == schedule)
    result = _compile(compiler, item.source)
    assert isinstance(result, ObjectCode), str(result)


# --- what a compile says -----------------------------------------------------------------------------------


def test_remarks_are_in_the_log(release: str) -> None:
    """Registers, scratch and occupancy of a kernel are kept with its code object."""
    compiler = clang(release)
    result = _compile(compiler, every_kernel("mi250x")[0].source)
    assert isinstance(result, ObjectCode)
    for remark in ("VGPRs:", "ScratchSize [bytes/lane]: 0", "Occupancy [waves/SIMD]:"):
        assert remark in result.log
    assert result.compiler == compiler.identity()


def test_objects_do_not_depend_on_the_folder(release: str, tmp_path: Path) -> None:
    """The same headers elsewhere give the same bytes: a cache key needs no path."""
    compiler, source = clang(release), every_kernel("mi250x")[0].source
    copies = []
    for number, folder in enumerate(source.include_dirs):
        where = tmp_path / str(number)
        (where / "portagemm").mkdir(parents=True)
        for name in ("portagemm", "kernels"):
            if (folder / name).is_dir() and any((folder / name).glob("*.hpp")):
                shutil.copytree(folder / name, where / name, dirs_exist_ok=True, symlinks=True)
        copies.append(where)
    here = _compile(compiler, source)
    there = compiler.compile(source.text, source.symbol, source.target, CompileOptions(tuple(copies)))
    assert isinstance(here, ObjectCode)
    assert here.code == there.code


def test_missing_instruction_is_named(release: str) -> None:
    """An atom on a target without its instruction is a compile error that says which one and where it is."""
    for name, atom, other, message in (
        (
            "mi250x",
            "mfma_32x32x8",
            "gfx942",
            r"v_mfma_f32_32x32x8\w+ is an instruction of gfx90a; this target",
        ),
        ("mi300x", "mfma_16x16x16", "gfx90a", r"v_mfma_f32_16x16x16_\w+ is an instruction of gfx942; this"),
        (
            "rx7900xtx",
            "wmma_16x16x16",
            "gfx1030",
            r"v_wmma_f32_16x16x16_\w+ is an instruction of gfx1100; this",
        ),
    ):
        item = next(i for i in every_kernel(name) if i.config and i.config.tile.atom == atom)
        target = type(item.source.target)(backend="rocm", arch=other, wave_size=get(name).wave_size)
        result = _compile(clang(release), replace(item.source, target=target))
        assert isinstance(result, CompileError)
        assert re.search(message, str(result)), str(result)[:2000]
