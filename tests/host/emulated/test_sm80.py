"""Schedules on mma.sync run on an emulated sm_80: numbers, synchronisation, and mutants of both.

Copies land at once or as late as waits allow, lanes run in many orders. What a compiler makes of the sources is
tests/compile/test_cuda_kernels.py's business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sm80
import torch

from portagemm import plan as planner
from portagemm.hal.dtypes import BF16, FP16, FP32, DType
from portagemm.hal.errors import LaunchError
from portagemm.hal.profile import TileConfig
from portagemm.problem import GemmProblem, View, build

ROOT = Path(__file__).resolve().parents[3]
HEADERS = ROOT / "backends/cuda/include/portagemm"
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
#: Late and early copies; lanes in order and shuffled.
SEEDS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Case:
    """A kernel and a problem. `pads`: extra elements a line of A and B. `grid`: 0: as planned."""

    schedule: str
    tile: TileConfig
    m: int
    n: int
    k: int
    layout: str = "nt"
    dtype: DType = BF16
    precision: str = "ieee"
    pads: tuple[int, int] = (0, 0)
    alignment: tuple[int, int] = (16, 16)
    grid: int = 0

    def __str__(self) -> str:
        t = self.tile
        parts = (self.schedule, t.atom, "x".join(map(str, t.block)), f"s{t.stages}l{t.loaders}", self.layout)
        return f"{'-'.join(parts)}-{self.m}x{self.n}x{self.k}-{self.alignment[0]}.{self.alignment[1]}"

    @property
    def problem(self) -> GemmProblem:
        return build(
            View(self.dtype, (self.m, self.k), self._strides(0), self.alignment[0]),
            View(self.dtype, (self.k, self.n), self._strides(1), self.alignment[1]),
            View(self.dtype, (self.m, self.n), (self.n, 1), 16),
            precision=self.precision,
        )

    def _strides(self, index: int) -> tuple[int, int]:
        rows, cols = ((self.m, self.k), (self.k, self.n))[index]
        pad = self.pads[index]
        return (1, rows + pad) if self.layout[index] == "t" else (cols + pad, 1)

    def operand(self, index: int, values: torch.Tensor) -> tuple[torch.Tensor, int]:
        """(memory that holds the values among NaN, address of the first)."""
        rows, cols = values.shape
        row, col = self._strides(index)
        memory = torch.full((rows * row + cols * col + 64,), float("nan"), dtype=TORCH[self.dtype.name])
        size = self.dtype.bytes
        start = (-memory.data_ptr() % 16 + self.alignment[index] % 16) // size
        view = memory[start:].as_strided((rows, cols), (row, col))
        view.copy_(values)
        return memory, view.data_ptr()


def verdicts(case: Case, extra: Path | None = None) -> list[str]:
    """What is wrong with the case's results, one launch a seed."""
    problem = case.problem
    assert not problem.swapped
    chosen = sm80.plan(problem, case.schedule, case.tile)
    if case.grid:
        chosen = replace(chosen, grid=case.grid)
    code = sm80.build(chosen, extra)
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(-3, 4, (case.m, case.k), generator=generator).double()
    b = torch.randint(-3, 4, (case.k, case.n), generator=generator).double()
    left, right = case.operand(0, a), case.operand(1, b)
    found = []
    for seed in SEEDS:
        d = torch.full((case.m, case.n), float("nan"), dtype=TORCH[case.dtype.name])
        try:
            sm80.launch(code, chosen, problem, (left[1], right[1], 0, d.data_ptr(), 0), seed)
        except LaunchError as error:
            found.append(f"seed {seed}: {error}")
            continue
        wrong = int((d.double() != a @ b).sum())
        found += [f"seed {seed}: {wrong} of {d.numel()} elements wrong"] if wrong else []
    return found


def _tile(block: tuple[int, int, int], stages: int, atom: str = "mma_16816", loaders: int = 1) -> TileConfig:
    return TileConfig(atom, block, (2, 2), stages, loaders=loaders)


def _outer_cases() -> list[Case]:
    """Outer products: chunks of 16 bytes, elements transposed on their way, ends within both; every wave tile."""
    found = []
    for block, waves, layout, extents, alignment in (
        ((128, 128, 16), (4, 2), "tn", (132, 136, 60), 16),
        ((128, 64, 16), (4, 1), "nt", (130, 66, 37), 4),
        ((64, 64, 16), (2, 2), "tt", (68, 70, 40), 8),
        ((128, 32, 16), (4, 1), "nn", (140, 37, 50), 8),
        ((32, 128, 16), (1, 4), "tn", (7, 131, 33), 4),
        ((32, 32, 16), (2, 1), "nt", (8, 9, 20), 4),
        ((32, 32, 8), (2, 1), "tt", (33, 40, 20), 16),
    ):
        tile = TileConfig("fma_outer", block, waves, 3, resident=2)
        found.append(Case("multistage", tile, *extents, layout, FP32, alignment=(alignment, alignment)))
    return found


def _skinny_cases() -> list[Case]:
    """Fragments straight from memory: waves along K and N, ends of all extents, every width of an access."""
    found = []
    for block, waves, stages, extents, layout, alignments, dtype in (
        ((8, 16, 32), (4, 1), 2, (5, 37, 200), "nt", (16, 16), BF16),  # groups that not all waves have
        ((8, 16, 32), (8, 1), 4, (8, 16, 2048), "nt", (16, 16), FP16),
        ((8, 32, 32), (2, 2), 4, (1, 70, 408), "nt", (16, 16), FP16),  # more chunks left over than waves
        ((16, 32, 32), (4, 1), 2, (16, 40, 334), "nt", (2, 4), FP16),
        ((16, 16, 32), (8, 1), 2, (9, 17, 1000), "nt", (8, 8), FP16),
        ((32, 16, 32), (2, 1), 1, (31, 20, 6), "nt", (2, 4), BF16),  # no whole chunk
        ((16, 16, 32), (4, 1), 4, (11, 35, 516), "tt", (2, 4), FP16),  # A lies along m
    ):
        tile = TileConfig("mma_16816", block, waves, stages)
        found.append(Case("skinny", tile, *extents, layout, dtype, alignment=alignments))
    swapped = TileConfig("mma_16816", (8, 16, 32), (4, 1), 2, swap=True)
    return [*found, Case("skinny", swapped, 70, 3, 264, "nn")]


def _cases() -> list[Case]:
    small = (64, 64, 32)
    found = []
    for schedule, tile, grid in (
        ("multistage", _tile(small, 3), 0),
        ("split_multistage", _tile(small, 3, loaders=1), 1),
        ("split_multistage", _tile(small, 2, loaders=4), 1),
    ):
        found.append(Case(schedule, tile, 72, 80, 200, "nt", grid=grid))
        found.append(Case(schedule, tile, 72, 72, 104, "tn", FP16, grid=grid))
        found.append(Case(schedule, tile, 70, 66, 37, "nt", pads=(3, 3), grid=grid))  # tails
        found.append(Case(schedule, tile, 66, 66, 70, "nt", pads=(1, 0), alignment=(2, 4), grid=grid))
    found += [
        Case("multistage", _tile((64, 64, 64), 2), 72, 72, 200, "tt"),
        Case("multistage", TileConfig("mma_16816", (128, 32, 64), (4, 1), 3), 136, 40, 136, "nn"),
        Case("multistage", TileConfig("mma_16816", (32, 128, 64), (1, 4), 3), 40, 136, 72, "tt"),
        Case("multistage", _tile((64, 64, 16), 4), 72, 72, 104, "nn"),
        Case("multistage", _tile((64, 64, 16), 3, "mma_1688_tf32"), 68, 68, 60, "tt", FP32, "tf32"),
        Case("multistage", _tile((64, 64, 16), 3, "fma"), 68, 68, 60, "nn", FP32),
        *_outer_cases(),
        *_skinny_cases(),
        Case("split_multistage", _tile((64, 64, 16), 3, "mma_1688_tf32", 2), 68, 68, 60, "tn", FP32, "tf32"),
        Case("split_multistage", _tile((64, 64, 16), 3, "fma", 2), 68, 68, 60, "nt", FP32, grid=1),
        Case("split_multistage", _tile((64, 64, 32), 3, loaders=3), 72, 72, 136, "tt", grid=1),
    ]
    return found


@pytest.fixture(autouse=True)
def needs_compiler() -> None:
    if sm80.compiler() is None:
        pytest.skip(f"none of {', '.join(sm80.COMPILERS)} is installed")


@pytest.mark.parametrize("case", _cases(), ids=str)
def test_case(case: Case) -> None:
    """Exact results from small integers, whichever lane comes first and whenever copies land."""
    assert verdicts(case) == []


def test_few_rows_in_batches_and_slices() -> None:
    """Blocks that walk tile after tile, of batches that repeat A, with K in one piece and cut; sums among NaN."""
    outer, inner, m, n, k = 2, 3, 5, 37, 200  # no wave but the first has elements of the last slice
    tile = TileConfig("mma_16816", (8, 16, 32), (2, 1), 2)
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(-3, 4, (inner, m, k), generator=generator).bfloat16()
    b = torch.randint(-3, 4, (outer, inner, n, k), generator=generator).bfloat16()
    problem = build(
        View(BF16, (outer, inner, m, k), (0, m * k, k, 1), 16),
        View(BF16, (outer, inner, k, n), (inner * n * k, n * k, 1, k), 16),
        View(FP32, (outer, inner, m, n), (inner * m * n, m * n, n, 1), 16),
    )
    assert problem.batch == (outer, inner)
    whole = replace(sm80.plan(problem, "skinny", tile), grid=4)
    cut = replace(planner.sliced(problem, sm80.profile("skinny", tile), sm80.DEVICE, whole, 3), grid=4)
    code = sm80.build(whole)
    assert cut.slices > 1 and cut.kernel == whole.kernel and not whole.kernel.flat
    want = a.double() @ b.double().transpose(-1, -2)
    for seed in SEEDS:
        d = torch.full((outer, inner, m, n), float("nan"))
        sm80.launch(code, whole, problem, (a.data_ptr(), b.data_ptr(), 0, d.data_ptr(), 0), seed)
        assert torch.equal(d.double(), want)
        rows = planner.workspace_bytes(problem, cut) // (4 * cut.slices * outer * inner * m)
        sums = torch.full((cut.slices, outer, inner, m, rows), float("nan"))
        sm80.launch(code, cut, problem, (a.data_ptr(), b.data_ptr(), 0, sums.data_ptr(), 0), seed)
        assert torch.equal(sums[..., :n].sum(0).double(), want)


# --- mutants -----------------------------------------------------------------------------------------------

MULTISTAGE, SPLIT, SKINNY = "schedule/multistage.hpp", "schedule/split_multistage.hpp", "kernels/skinny.hpp"
MUTANTS = {
    "multistage waits for a group too few": (
        MULTISTAGE,
        "wait_copy_groups<Stages - 2>",
        "wait_copy_groups<Stages - 1>",
    ),
    "multistage does not meet": (MULTISTAGE, "publish<scope::block>(tile.stage_a(s), *this);", ""),
    "multistage reads the old stage": (MULTISTAGE, "current = next(current);\n                land", "land"),
    "split: loaders do not wait": (SPLIT, "barriers.empty[at.stage].wait(at.phase ^ 1);", ""),
    "split: computing waves do not wait": (
        SPLIT,
        "barriers.full[at.stage].wait(at.phase);\n                    tile",
        "tile",
    ),
    "split: released before it is read": (
        SPLIT,
        "const i32 read = at.stage;",
        "const i32 read = at.stage; release(read);",
    ),
    "split: an arrival too many awaited": (
        SPLIT,
        "full[s].init(load_threads)",
        "full[s].init(load_threads + 1)",
    ),
    "split: copies are not awaited": (SPLIT, "full.arrive_after_copies();", "full.arrive();"),
    "a chunk's round": ("arch/sm80.hpp", "origin(i * Threads)", "origin(0)"),
    "tail of k": ("arch/sm80.hpp", "k + Stage::k <= s.k_end &&", ""),
    "skinny: the next group": (SKINNY, "k += tile::waves_k * tile::group", "k += tile::group"),
    "skinny: tail of k": (SKINNY, "left - u * atom::chunk_k - atom::k_of(lane)", "left - u * atom::chunk_k"),
    "skinny: the next chunk": (SKINNY, "k += tile::waves_k * tile::k)", "k += tile::k)"),
    "skinny: sums are not awaited": (
        SKINNY,
        "vendor::barrier(int(scope::block));\n\n        // Epi",
        "// Epi",
    ),
    "skinny: words in another order": (
        "arch/sm80_streamed.hpp",
        "column.word[2 * s], column.word[2 * s + 1]",
        "column.word[2 * s + 1], column.word[2 * s]",
    ),
    "outer: tail of k, elements": ("arch/sm80.hpp", "by_mn < r.room && by_k < k_room", "by_mn < r.room"),
    "outer: tail of k, chunks": ("arch/sm80.hpp", "by_k < k_room ? max", "true ? max"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, tmp_path: Path) -> None:
    """Each fault, planted in the sources, gives wrong numbers or a lane that waits for ever."""
    header, old, new = MUTANTS[name]
    folder = ROOT / "portagemm" if header == SKINNY else HEADERS
    text = (folder / header).read_text()
    assert text.count(old) == 1, f"{header} has {text.count(old)} places for this mutant"
    changed = tmp_path / header if header == SKINNY else tmp_path / "portagemm" / header
    changed.parent.mkdir(parents=True)
    changed.write_text(text.replace(old, new))
    schedule = "split_multistage" if header == SPLIT else "multistage"
    if name.startswith("skinny"):
        case = Case("skinny", TileConfig("mma_16816", (8, 16, 32), (2, 1), 4), 5, 37, 856, "nt", FP16)
    elif name.startswith("outer"):
        tile = TileConfig("fma_outer", (64, 64, 16), (2, 2), 3)
        case = Case(schedule, tile, 70, 72, 37, "tt", FP32, pads=(2, 3), alignment=(16, 4))
    else:
        grid = 1 if schedule == "split_multistage" else 0  # the others compute one tile a block
        case = Case(schedule, _tile((64, 64, 32), 3, loaders=2), 72, 72, 264, "nt", grid=grid)
    assert verdicts(case, tmp_path)
