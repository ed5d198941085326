"""Kernel configs without a compiler: names, texts, headers and sizes of every kernel that the profiles can choose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from portagemm import plan, prebuild
from portagemm.hal import registry
from portagemm.hal.profile import all_profiles
from portagemm.hal.source import shared_include_dir
from portagemm.kernel_config import (
    ATOMS,
    COPIES,
    SCHEDULES,
    KernelConfig,
    block_threads,
    compute_threads,
    kernel_text,
    shared_bytes,
)

pytestmark = pytest.mark.quick

PROFILES = sorted(all_profiles())
DTYPES = ("float16", "bfloat16", "float32", "tf32")


@lru_cache
def kernels(profile_name: str) -> tuple[KernelConfig, ...]:
    """Kernels of a profile for aligned, unaligned and mixed operands, with and without an epilogue."""
    profile = all_profiles()[profile_name]
    device = prebuild.described_device(profile)
    found: dict[KernelConfig, None] = {}
    few = ((4, 4096, 4096), (4096, 4, 4096), (4096, 1, 4096))
    for epilogues, alignments, shapes in (
        (("none", "c", "bias", "bias+gelu", "c+silu"), (16,), prebuild.SHAPES),
        (("none",), (8, 4, 2), prebuild.SHAPES),
        (("none", "bias"), (16, 2), few),
    ):
        wanted = prebuild.Wanted(
            DTYPES, ("same", "float32"), alignments=alignments, epilogues=epilogues, shapes=shapes
        )
        for problem in prebuild.problems(wanted):
            one = (replace(problem, a=replace(problem.a, alignment=2)),) if 16 in alignments else ()
            for faced in (problem, *one):
                for candidate in plan.candidates(faced, profile, device):
                    found[candidate.kernel] = None
    return tuple(found)


def tiles(profile_name: str) -> Iterator[tuple[str, plan.TileConfig]]:
    for schedule, candidates in all_profiles()[profile_name].tiles.items():
        for tile in candidates:
            yield schedule, tile


@pytest.mark.parametrize("name", PROFILES)
def test_symbols(name: str) -> None:
    """One name, one kernel: packs and launches know kernels by it. It is an identifier and fits a file name."""
    profile = all_profiles()[name]
    texts: dict[str, str] = {}
    for kernel in kernels(name):
        symbol, text = kernel.symbol(profile.arch), kernel_text(kernel, profile)
        assert re.fullmatch(r"[a-z_][a-z0-9_]*", symbol) and len(symbol) < 200, symbol
        body = text.replace(symbol, "")
        assert texts.setdefault(symbol, body) == body, f"{symbol} names two kernels"
    assert len(texts) >= 4


@pytest.mark.parametrize("name", PROFILES)
def test_texts(name: str) -> None:
    """A text is the profile's facts, headers and one instantiation, with nothing left to fill in; always the same."""
    profile = all_profiles()[name]
    for kernel in kernels(name)[::7]:
        text = kernel_text(kernel, profile)
        assert text == kernel_text(kernel, profile)
        assert text.startswith("// arch_config.hpp, generated") and text.count("PG_ENTRY(") == 1
        assert f"wave_size = {profile.wave_size};" in text
        assert not re.search(r"\{[a-z_]+\}|None|True|False", text), text
        assert len(re.findall(r"^#include", text, re.M)) == len(set(re.findall(r"^#include.*$", text, re.M)))


def test_headers_exist() -> None:
    """Every part's header is a shared one or some backend's."""
    folders = [
        shared_include_dir(),
        Path(plan.__file__).parent,
        *(d for b in ("cuda", "rocm", "cpu") for d in registry.get(b).include_dirs()),
    ]
    archs = {name: {p.arch for p in all_profiles().values() if name in p.atoms} for name in ATOMS}
    for parts in (ATOMS, COPIES, SCHEDULES):
        for name, part in parts.items():
            for arch in archs[name] if parts is ATOMS else [""]:
                header = part.header.format(arch=arch)
                assert any(Path(folder, header).is_file() for folder in folders), f"{name}: {header}"


def test_parts_know_each_other() -> None:
    for name, schedule in SCHEDULES.items():
        assert schedule.copies and set(schedule.copies) <= set(COPIES), name
    for name, copy in COPIES.items():
        assert list(copy.widths) == sorted(copy.widths, reverse=True), f"{name}: widest first"
    for name, atom in ATOMS.items():
        assert set(atom.orders) <= {"k", "mn"}, name


@pytest.mark.parametrize("name", PROFILES)
def test_tiles_are_whole_atoms(name: str) -> None:
    """Waves cover the block, atoms the wave tile; threads are within the profile's limits."""
    profile = all_profiles()[name]
    for schedule, tile in tiles(name):
        assert schedule in profile.schedules and tile.atom in profile.atoms and tile.atom in ATOMS
        part = ATOMS[tile.atom]
        wave_m, wave_n = tile.block[0] // tile.waves[0], tile.block[1] // tile.waves[1]
        m, n = part.m(profile.wave_size, wave_n), part.n(profile.wave_size, wave_n)
        assert wave_m * tile.waves[0] == tile.block[0] and wave_n * tile.waves[1] == tile.block[1], tile
        if not SCHEDULES[schedule].rows:  # those take rows, not atoms
            assert wave_m % m == 0 and wave_n % n == 0, tile
        assert tile.block[2] % profile.atoms[tile.atom].shape[2] == 0, tile
        assert compute_threads(tile, profile.wave_size) <= profile.limits.threads_per_block


@pytest.mark.parametrize("name", PROFILES)
def test_every_tile_is_used(name: str) -> None:
    """A tile that no problem here can get would be compiled and tested nowhere."""
    used = {(k.schedule, k.tile) for k in kernels(name)}
    assert [t for t in tiles(name) if t not in used] == []


@pytest.mark.parametrize("name", ["h100", "a100", "rtx4090"])
def test_outer_products_are_resident(name: str) -> None:
    """As many blocks as a tile promises have shared memory (1 KiB of each is the system's), threads and registers."""
    profile = all_profiles()[name]
    limits, checked = profile.limits, 0
    assert limits.shared_bytes_per_unit and limits.threads_per_unit and limits.registers_per_unit
    for kernel in kernels(name):
        if kernel.tile.atom == "fma_outer":
            blocks, threads = kernel.tile.resident, block_threads(kernel, profile.wave_size)
            assert blocks * (shared_bytes(kernel, profile.wave_size) + 1024) <= limits.shared_bytes_per_unit
            assert blocks * threads <= limits.threads_per_unit
            rows, columns = (kernel.tile.block[i] // kernel.tile.waves[i] for i in (0, 1))
            # Sums, two steps' fragments, and 16 for addresses.
            held = rows * columns // 32 + 2 * (rows // 16 + columns // 32) * 4 + 16
            assert blocks * threads * held <= limits.registers_per_unit, kernel.tile
            checked += 1
    assert checked


@pytest.mark.parametrize("name", PROFILES)
def test_kernels_fit_their_profile(name: str) -> None:
    profile = all_profiles()[name]
    for kernel in kernels(name):
        assert block_threads(kernel, profile.wave_size) <= profile.limits.threads_per_block
        assert shared_bytes(kernel, profile.wave_size) <= profile.limits.shared_bytes_per_block
        for operand, mn in ((kernel.a, kernel.tile.block[0]), (kernel.b, kernel.tile.block[1])):
            widths = COPIES[operand.copy].widths
            assert operand.width in widths if widths else operand.width == 0
            assert mn % operand.slices == 0
