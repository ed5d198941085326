"""Kernels for gfx90a without an AMD GPU: compiled by the oldest and the newest clang, disassembled, counted.

Every tile of profile mi250x is compiled with every layout, both ends of the access widths, and epilogues in
turn. A code object must hold the atom's MFMA and no other, no scratch, no spills, and fit the LDS.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from portagemm import prebuild
from portagemm.backends.rocm.compiler import ClangCompiler
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.errors import CompileError
from portagemm.hal.profile import get
from portagemm.hal.program import ObjectCode
from portagemm.kernel_config import KernelConfig
from portagemm.plan import GemmPlan, candidates, kernel_source
from portagemm.problem import GemmProblem

LDS_BYTES = 64 * 1024

#: What an atom is made of: its instruction and, for 16-bit operands, the exact one for subnormals.
MFMA = {
    ("mfma_32x32x8", "fp16"): {"v_mfma_f32_32x32x8f16", "v_mfma_f32_32x32x2f32"},
    ("mfma_32x32x8", "bf16"): {"v_mfma_f32_32x32x8bf16_1k", "v_mfma_f32_32x32x2f32"},
    ("mfma_16x16x16", "fp16"): {"v_mfma_f32_16x16x16f16", "v_mfma_f32_16x16x4f32"},
    ("mfma_16x16x16", "bf16"): {"v_mfma_f32_16x16x16bf16_1k", "v_mfma_f32_16x16x4f32"},
    ("mfma_32x32x2_f32", "fp32"): {"v_mfma_f32_32x32x2f32"},
    ("mfma_16x16x4_f32", "fp32"): {"v_mfma_f32_16x16x4f32"},
}

EPILOGUES = ("none", "bias+gelu", "c+bias", "relu", "bias", "silu", "c", "gelu_tanh")
DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Item:
    """A kernel of the list. `variant` numbers the layouts and widths of one tile."""

    variant: int
    plan: GemmPlan

    @property
    def kernel(self) -> KernelConfig:
        return self.plan.kernel


def _problem(dtype: str, layout: str, alignment: int, turn: int) -> GemmProblem:
    wanted = prebuild.Wanted(
        dtypes=(dtype,),
        out=("float32" if turn % 3 == 2 else "same",),
        layouts=(layout,),
        alignments=(alignment,),
        epilogues=(EPILOGUES[turn % len(EPILOGUES)],),
        shapes=((4096, 4096, 4096),),
    )
    (problem,) = prebuild.problems(wanted)
    return problem


@cache
def every_kernel() -> dict[str, list[Item]]:
    """Kernels by tile: ``fp16 pingpong mfma_32x32x8 128x128x32``."""
    profile = get("mi250x")
    device = prebuild.described_device(profile)
    found: dict[str, list[Item]] = {}
    turn = 0
    for dtype in DTYPES:
        variant = 0
        for layout in prebuild.LAYOUTS:
            for alignment in (16, 4, 2) if layout == "nt" and dtype != "float32" else (16, 4):
                for plan in candidates(_problem(dtype, layout, alignment, turn), profile, device):
                    kernel = plan.kernel
                    tile = "x".join(map(str, kernel.tile.block))
                    name = f"{kernel.a.dtype}-{kernel.schedule}-{kernel.tile.atom}-{tile}"
                    found.setdefault(name, []).append(Item(variant, plan))
                variant += 1
                turn += 1
    return found


# --- tools -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", params=["19", "22"])
def clang(request: pytest.FixtureRequest) -> tuple[ClangCompiler, str]:
    """A compiler and its release; skips where it or its binary tools are missing."""
    release: str = request.param
    compiler = ClangCompiler(f"clang++-{release}")
    reason = compiler.unavailable_reason()
    if reason:
        pytest.skip(reason)
    for tool in ("llvm-objdump", "llvm-readelf"):
        if shutil.which(f"{tool}-{release}") is None:
            pytest.skip(f"{tool}-{release} is not installed")
    return compiler, release


def _tool(name: str, release: str, *arguments: str) -> str:
    done = subprocess.run([f"{name}-{release}", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def _compile(compiler: ClangCompiler, item: Item) -> ObjectCode | CompileError:
    profile = get("mi250x")
    source = kernel_source(item.kernel, profile, profile.target(prebuild.described_device(profile)))
    options = CompileOptions(source.include_dirs, source.defines)
    try:
        return compiler.compile(source.text, source.symbol, source.target, options)
    except CompileError as error:
        return error


def _notes(path: Path, release: str) -> dict[str, int]:
    """The numbers of the kernel's metadata (LLVM, AMDGPU usage: code object metadata)."""
    text = _tool("llvm-readelf", release, "-n", str(path))
    return {name: int(value) for name, value in re.findall(r"^\s+\.(\w+):\s+(\d+)$", text, re.MULTILINE)}


def _instructions(path: Path, release: str) -> Counter[str]:
    text = _tool("llvm-objdump", release, "-d", str(path))
    return Counter(re.findall(r"^\s+([a-z]+_\w+)", text, re.MULTILINE))


def faults(item: Item, code: ObjectCode, folder: Path, release: str) -> list[str]:
    """What is wrong with a code object; each finding begins with the kernel's name."""
    path = folder / f"{code.symbol}.co"
    path.write_bytes(code.code)
    notes, used = _notes(path, release), _instructions(path, release)
    kernel, found = item.kernel, []

    def expect(holds: bool, what: str) -> None:
        if not holds:
            found.append(f"{code.symbol} (clang {release}): {what}")

    for name in ("private_segment_fixed_size", "sgpr_spill_count", "vgpr_spill_count"):
        expect(notes.get(name) == 0, f"{name} is {notes.get(name)}")
    lds = notes["group_segment_fixed_size"] + item.plan.shared_bytes
    expect(lds <= LDS_BYTES, f"{lds} bytes of LDS")
    expect(notes["max_flat_workgroup_size"] == item.plan.block, "block size differs from the plan's")
    expect(notes["wavefront_size"] == 64, "wave size")
    expect(not any(op.startswith(("scratch_", "buffer_")) for op in used), "private memory is accessed")
    mfma = {re.sub(r"_(e64|vgprcd|acccd)$", "", op) for op in used if op.startswith("v_mfma")}
    wanted = MFMA.get((kernel.tile.atom, kernel.a.dtype), set())
    expect(mfma == wanted, f"has {sorted(mfma)}, not {sorted(wanted)}")
    if not wanted:
        fused = ("v_fma_f32", "v_fmac_f32_e32", "v_pk_fma_f32")
        expect(any(op in used for op in fused), "no fused multiply-add")
    expect(used["s_barrier"] > 0, "no barrier")
    if kernel.a.copy == "vgpr" and kernel.a.width == kernel.b.width == 16:
        expect(used["global_load_dwordx4"] > 0, "no 16-byte loads")
        expect(used["ds_read_b128"] > 0, "no 16-byte reads of the LDS")
    return found


def _check(items: list[Item], clang: tuple[ClangCompiler, str], folder: Path) -> None:
    compiler, release = clang
    workers = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda item: _compile(compiler, item), items))
    found: list[str] = []
    for item, result in zip(items, results, strict=True):
        if isinstance(result, CompileError):
            found.append(str(result))
        else:
            found += faults(item, result, folder, release)
    assert not found, "\n".join(found)


# --- tests -----------------------------------------------------------------------------------------------


def _split() -> tuple[dict[str, list[Item]], dict[str, list[Item]]]:
    """(sample, rest): of every tile one variant for each compiler's short run, another for every tile."""
    sample, rest = {}, {}
    for number, (name, items) in enumerate(every_kernel().items()):
        chosen = {number % len(items), (number + len(items) // 2) % len(items)}
        sample[name] = [item for i, item in enumerate(items) if i in chosen]
        rest[name] = [item for i, item in enumerate(items) if i not in chosen]
    return sample, rest


SAMPLE, REST = _split()


def test_list_has_every_tile() -> None:
    """Each tile of the profile is in the list with all layouts: none is silently left out."""
    profile = get("mi250x")
    for schedule, tiles in profile.tiles.items():
        for tile in tiles:
            label = f"{schedule}-{tile.atom}-{'x'.join(map(str, tile.block))}"
            listed = [items for name, items in every_kernel().items() if name.endswith(label)]
            assert listed, label
            for items in listed:
                assert {(i.kernel.a.major, i.kernel.b.major) for i in items} == {
                    ("k", "k"),
                    ("k", "mn"),
                    ("mn", "k"),
                    ("mn", "mn"),
                }


@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name: str, clang: tuple[ClangCompiler, str], tmp_path: Path) -> None:
    """Two kernels of every tile."""
    _check(SAMPLE[name], clang, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", REST)
def test_rest(name: str, clang: tuple[ClangCompiler, str], tmp_path: Path) -> None:
    """All the others."""
    _check(REST[name], clang, tmp_path)


@pytest.mark.quick
def test_remarks_are_in_the_log(clang: tuple[ClangCompiler, str]) -> None:
    """Registers, scratch and occupancy of a kernel are kept with its code object."""
    result = _compile(clang[0], next(iter(SAMPLE.values()))[0])
    assert isinstance(result, ObjectCode)
    for remark in ("VGPRs:", "ScratchSize [bytes/lane]: 0", "Occupancy [waves/SIMD]:"):
        assert remark in result.log
    assert result.compiler == clang[0].identity()


@pytest.mark.quick
def test_objects_do_not_depend_on_the_folder(clang: tuple[ClangCompiler, str], tmp_path: Path) -> None:
    """The same headers elsewhere give the same bytes: a cache key needs no path."""
    profile = get("mi250x")
    item = next(iter(SAMPLE.values()))[0]
    source = kernel_source(item.kernel, profile, profile.target(prebuild.described_device(profile)))
    copies = []
    for number, folder in enumerate(source.include_dirs):
        where = tmp_path / str(number)
        (where / "portagemm").mkdir(parents=True)
        for name in ("portagemm", "kernels"):
            if (folder / name).is_dir() and any((folder / name).glob("*.hpp")):
                shutil.copytree(folder / name, where / name, dirs_exist_ok=True, symlinks=True)
        copies.append(where)
    here = _compile(clang[0], item)
    there = clang[0].compile(source.text, source.symbol, source.target, CompileOptions(tuple(copies)))
    assert isinstance(here, ObjectCode)
    assert here.code == there.code


@pytest.mark.quick
def test_missing_instruction_is_named(clang: tuple[ClangCompiler, str]) -> None:
    """A gfx90a atom on a target without its instruction is a compile error that says which one."""
    profile = get("mi250x")
    item = next(i for items in SAMPLE.values() for i in items if i.kernel.tile.atom == "mfma_32x32x8")
    target = profile.target(prebuild.described_device(profile))
    source = kernel_source(item.kernel, profile, target)
    other = type(target)(backend="rocm", arch="gfx1100", wave_size=64)
    with pytest.raises(CompileError, match=r"v_mfma_f32_32x32x8\w+ is an instruction of gfx90a"):
        clang[0].compile(source.text, source.symbol, other, CompileOptions(source.include_dirs))
