"""Operands on no 16-byte boundary (realign.hpp) on an emulated sm_80: every misalignment, and no byte read beside them.

Numbers are exact. Operands lie among NaN, between pages without access, and the emulator knows what may be read.
"""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sm80
import torch

from portagemm import plan as planner
from portagemm.hal.dtypes import BF16, DType
from portagemm.hal.profile import TileConfig
from portagemm.hal.program import ArgumentBlock
from portagemm.kernel_config import KernelConfig
from portagemm.plan import GemmPlan
from portagemm.problem import GemmProblem, View, access_bytes, build

ROOT = Path(__file__).resolve().parents[3]
REALIGN = ROOT / "hal/include/portagemm/realign.hpp"
SCHEDULE = ROOT / "backends/cuda/include/portagemm/schedule/realigned_multistage.hpp"
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16}
SEEDS = (0, 3)
SMALL = TileConfig("mma_16816", (64, 64, 32), (2, 2), 3)


@dataclass(frozen=True)
class Case:
    """A product of operands that start `starts` elements behind a 16-byte boundary, lines `pads` longer than they are.

    `flush`: the side of the page without access that the operands touch, before or behind them.
    """

    m: int
    n: int
    k: int
    layout: str = "nt"
    starts: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    batch: int = 0
    dtype: DType = BF16
    tile: TileConfig = SMALL
    flush: str = "behind"

    def __str__(self) -> str:
        tile = f"{'x'.join(map(str, self.tile.block))}s{self.tile.stages}"
        extents = f"{self.batch or ''}{'x' if self.batch else ''}{self.m}x{self.n}x{self.k}"
        rest = f"from{self.starts[0]}.{self.starts[1]}-pad{self.pads[0]}.{self.pads[1]}"
        return f"{self.layout}-{extents}-{rest}-{self.dtype}-{tile}-{self.flush}"

    def shape(self, index: int) -> tuple[int, int]:
        return ((self.m, self.k), (self.k, self.n))[index]

    def strides(self, index: int) -> tuple[int, int]:
        rows, cols = self.shape(index)
        pad = self.pads[index]
        return (1, rows + pad) if self.layout[index] == "t" else (cols + pad, 1)

    def span(self, index: int) -> int:
        """Elements from the first to the last of one matrix."""
        (rows, cols), (row, col) = self.shape(index), self.strides(index)
        return (rows - 1) * row + (cols - 1) * col + 1

    @property
    def problem(self) -> GemmProblem:
        lead = (self.batch,) if self.batch else ()

        def view(index: int) -> View:
            step = (self.span(index),) if self.batch else ()
            return View(
                self.dtype,
                (*lead, *self.shape(index)),
                (*step, *self.strides(index)),
                16 + 2 * (self.starts[index] % 8),
            )

        line = -(-self.n // 8) * 8  # D is aligned, so that one kernel serves many extents
        step = (self.m * line,) if self.batch else ()
        return build(view(0), view(1), View(self.dtype, (*lead, self.m, self.n), (*step, line, 1), 16))


class Fenced:
    """NaN between two pages without access, and an operand in it."""

    def __init__(self, case: Case, index: int, values: torch.Tensor) -> None:
        page, batches = mmap.PAGESIZE, max(1, case.batch)
        self.elements = case.span(index) * batches
        start = case.starts[index]
        pages = -(-(self.elements * 2 + 16) // page)
        self.memory = mmap.mmap(-1, (pages + 2) * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        libc = ctypes.CDLL(None)
        for fence in (base, base + (pages + 1) * page):
            assert libc.mprotect(ctypes.c_void_p(fence), page, 0) == 0
        raw = (ctypes.c_char * (pages * page)).from_address(base + page)
        inner = torch.frombuffer(raw, dtype=TORCH[case.dtype.name])
        inner.fill_(float("nan"))
        # As near to the fence as the misalignment lets it lie.
        at = start if case.flush == "before" else pages * page // 2 - self.elements
        if case.flush == "behind":
            at -= (at - start) % 8
        shape = (batches, *case.shape(index))
        self.view = inner[at:].as_strided(shape, (case.span(index), *case.strides(index)))
        if 0 in case.strides(index):  # each line is the same memory
            inner[at : at + self.elements].copy_(values.flatten()[: self.elements])
        else:
            self.view.copy_(values)
        self.address = base + page + 2 * at

    @property
    def bytes(self) -> tuple[int, int]:
        return self.address, self.address + 2 * self.elements


_libraries: dict[tuple[KernelConfig, Path | None], ctypes.CDLL] = {}


def _library(chosen: GemmPlan, extra: Path | None) -> ctypes.CDLL:
    """The plan's kernel, built once a session; headers in `extra` come first."""
    key = (chosen.kernel, extra)
    if key not in _libraries:
        code = sm80.build(chosen, extra)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.so"
            path.write_bytes(code.code)
            _libraries[key] = ctypes.CDLL(str(path))
    return _libraries[key]


def _run(
    chosen: GemmPlan,
    arguments: ArgumentBlock,
    operands: tuple[Fenced, Fenced],
    d: torch.Tensor,
    seed: int,
    extra: Path | None,
) -> str | None:
    """One launch: what went wrong, or None. Only bytes from an operand's first to its last may be read."""
    library = _library(chosen, extra)
    kernel = getattr(library, chosen.kernel.symbol("sm_80"))
    kernel.restype = ctypes.c_char_p
    left, right = operands
    (ctypes.c_longlong * 6).in_dll(library, "pg_readable")[:] = [*left.bytes, *right.bytes, 0, 0]
    block = bytearray(arguments.template)
    pointers = (left.address, right.address, 0, d.data_ptr(), 0)
    for offset, pointer in zip(arguments.pointer_offsets, pointers, strict=True):
        block[offset : offset + 8] = pointer.to_bytes(8, "little")
    for offset, scalar in zip(arguments.scalar_offsets, (1.0, 0.0), strict=True):
        block[offset : offset + 4] = bytes(ctypes.c_float(scalar))
    memory = (ctypes.c_char * len(block)).from_buffer(block)
    grid, shared = ctypes.c_longlong(chosen.grid), ctypes.c_longlong(chosen.shared_bytes)
    error = kernel(memory, grid, chosen.block, shared, seed)
    return error.decode() if error else None


def _operands(case: Case) -> tuple[torch.Tensor, tuple[Fenced, Fenced]]:
    """(the product, its operands in memory)."""
    generator = torch.Generator().manual_seed(1)
    batches = max(1, case.batch)
    a = torch.randint(-3, 4, (batches, case.m, case.k), generator=generator).double()
    b = torch.randint(-3, 4, (batches, case.k, case.n), generator=generator).double()
    left, right = Fenced(case, 0, a), Fenced(case, 1, b)
    return left.view.double() @ right.view.double(), (left, right)


def verdicts(case: Case, extra: Path | None = None) -> list[str]:
    """What is wrong with the case's results, one launch a seed."""
    problem = case.problem
    assert not problem.swapped
    chosen = sm80.plan(problem, "realigned_multistage", case.tile)
    wanted, operands = _operands(case)
    found = []
    for seed in SEEDS:
        d = torch.full((*wanted.shape[:-1], problem.d.strides[0]), float("nan"), dtype=TORCH[case.dtype.name])
        error = _run(chosen, planner.arguments(problem, chosen), operands, d, seed, extra)
        wrong = int((d[..., : case.n].double() != wanted).sum())
        if error or wrong:
            found.append(f"{case}: seed {seed}: {error or f'{wrong} of {wanted.numel()} elements wrong'}")
    return found


@pytest.fixture(autouse=True)
def needs_compiler() -> None:
    if sm80.compiler() is None:
        pytest.skip(f"none of {', '.join(sm80.COMPILERS)} is installed")


LAYOUTS = ("nn", "nt", "tn", "tt")


def _pads(case: Case, remainder: int, of: int) -> Case:
    """The case with lines `remainder` elements longer than a multiple of `of`."""
    pads = []
    for index in (0, 1):
        rows, cols = case.shape(index)
        line = rows if case.layout[index] == "t" else cols
        pads.append((remainder - line) % of)
    return replace(case, pads=(pads[0], pads[1]))


def _misaligned(layout: str) -> list[Case]:
    """Every start behind a 16-byte boundary for both operands, odd lines of all remainders."""
    return [
        _pads(Case(70, 66, 101, layout, (start, (3 * start + 1) % 8), flush=flush), line, 8)
        for start, line, flush in zip(
            range(8), (1, 3, 5, 7) * 2, ("before", "behind", "behind", "before") * 2, strict=True
        )
    ]


def _extents(layout: str) -> list[Case]:
    """Ends within chunks, words, steps of K and tiles; operands of a single element."""
    sizes = ((1, 1), (3, 64), (65, 8), (128, 5))
    depths = (1, 2, 7, 8, 9, 31, 32, 33, 64, 96, 127, 161)
    cases = [
        _pads(
            Case(
                *sizes[i % 4],
                k,
                layout,
                (1 + 2 * (i % 4), 7 - 2 * (i % 4)),
                flush=("before", "behind")[i % 2],
            ),
            1,
            2,
        )
        for i, k in enumerate(depths)
    ]
    packed = [replace(case, pads=(0, 0), starts=(1, 1)) for case in cases]
    return cases + [case for case in packed if _widths(case) == _widths(cases[0])]


def _widths(case: Case) -> tuple[int, int]:
    problem = case.problem
    return access_bytes(problem.a, int(problem.a.strides[1] == 1)), access_bytes(
        problem.b, int(problem.b.strides[1] == 1)
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_misalignment(layout: str) -> None:
    cases = _misaligned(layout)
    assert {_widths(case) for case in cases} == {(2, 2)}
    assert [text for case in cases for text in verdicts(case)] == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_extents(layout: str) -> None:
    cases = _extents(layout)
    assert {_widths(case) for case in cases} == {(2, 2)} and len(cases) >= 12
    assert [text for case in cases for text in verdicts(case)] == []


WIDE = {
    # One operand by asynchronous copies, which land late.
    (2, 16): [_pads(Case(130, 70, k, "nn", (s, 0)), 0, 8) for s in (1, 5) for k in (96, 200, 201)],
    (16, 2): [_pads(Case(70, 130, k, "tt", (0, s)), 0, 8) for s in (3, 7) for k in (96, 200, 201)],
}


@pytest.mark.parametrize("widths", WIDE, ids=str)
def test_widths(widths: tuple[int, int]) -> None:
    """One operand that needs no shift."""
    assert {_widths(case) for case in WIDE[widths]} == {widths}
    assert [text for case in WIDE[widths] for text in verdicts(case)] == []


def test_batches() -> None:
    """Each batch begins at another misalignment."""
    cases = [Case(37, 45, k, "nn", (s, s), batch=3) for s, k in ((1, 33), (0, 65), (7, 101))]
    assert [text for case in cases for text in verdicts(case)] == []


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_repeated_lines(layout: str) -> None:
    """Lines with a stride of 0 (expanded operands): all of a matrix is one line."""
    cases = []
    for k in (31, 64, 101):
        for flush in ("before", "behind"):
            case = Case(70, 66, k, layout, (3, 5), flush=flush)
            lines = [case.shape(i)[case.layout[i] == "n"] for i in (0, 1)]
            cases += [replace(case, pads=(-lines[0], 1)), replace(case, pads=(1, -lines[1]))]
    assert [text for case in cases for text in verdicts(case)] == []


def _tile_cases() -> list[Case]:
    def tile(block: tuple[int, int, int], waves: tuple[int, int], stages: int) -> TileConfig:
        return TileConfig("mma_16816", block, waves, stages)

    return [
        Case(70, 66, 293, "nt", (1, 2), tile=tile((64, 64, 64), (2, 2), 2)),
        Case(70, 66, 133, "tn", (7, 3), (1, 1), tile=tile((64, 64, 16), (2, 2), 4)),
        _pads(Case(130, 66, 229, "nn", (3, 0), tile=tile((128, 128, 32), (2, 2), 3)), 0, 8),
        Case(130, 66, 165, "nt", (5, 6), tile=tile((128, 128, 32), (2, 4), 3)),
        Case(
            258, 66, 133, "nt", (3, 1), tile=tile((256, 128, 16), (4, 2), 4)
        ),  # one step's fragments at a time
    ]


@pytest.mark.parametrize("case", _tile_cases(), ids=str)
def test_tiles(case: Case) -> None:
    assert verdicts(case) == []


def test_slices_of_k() -> None:
    """Slices that begin within a matrix: the sums of all of them are the product."""
    case = Case(70, 66, 420, "nn", (3, 1), (1, 1))
    profile, problem = sm80.profile("realigned_multistage", case.tile), case.problem
    chosen = planner.sliced(
        problem, profile, sm80.DEVICE, sm80.plan(problem, "realigned_multistage", case.tile), 3
    )
    assert chosen.slices == 3
    wanted, operands = _operands(case)
    sums = torch.full((planner.workspace_bytes(problem, chosen) // 4,), float("nan"))
    first = planner.steps(problem, chosen, profile, sm80.DEVICE)[0]
    assert _run(chosen, first.arguments, operands, sums, 3, None) is None
    parts = sums.view(3, case.m, -1)[:, :, : case.n]
    assert bool((parts.double().sum(0) == wanted[0]).all())
    assert not bool((parts[0].double() == wanted[0]).all())


# --- mutants -----------------------------------------------------------------------------------------------

ENDS = Case(70, 66, 101, "nt", (3, 5), flush="behind")
TALL = Case(70, 66, 101, "tt", (3, 5), (1, 1))
MIXED = Case(130, 70, 200, "nn", (1, 0), (0, 2))
MUTANTS = {
    "one word twice": (REALIGN, "*vendor::in_global(at + 1)", "*vendor::in_global(at)", ENDS),
    "two words too few": (REALIGN, "shift & 8 ? word[i + 2]", "false ? word[i + 2]", ENDS),
    "a word too few": (REALIGN, "shift & 4 ? by_two[i + 1]", "false ? by_two[i + 1]", ENDS),
    "half a word too few": (REALIGN, "(shift & 2) * 8", "(shift & 1) * 8", ENDS),
    "words beside the matrix": (REALIGN, "if (p.valid == 0 || p.whole_words) continue;", "continue;", ENDS),
    "words before the matrix": (REALIGN, "p.word >= matrix &&", "", ENDS),
    "words behind the matrix": (REALIGN, "<= matrix + size(r.source)", ">= matrix", ENDS),
    "narrow reads too long": (REALIGN, "if (v < p.valid) {", "{", ENDS),
    "the first step": (REALIGN, "return k > 0 && k <= r.last;", "return k <= r.last;", ENDS),
    "the last word": (
        REALIGN,
        "Stage::k - 1) - 2 * width;",
        "Stage::k - 1);",
        Case(64, 64, 128, "tt", (3, 5)),
    ),
    "tail of k": (REALIGN, "keep(chunk, part_of(r, k, i, thread).valid);", "", ENDS),
    "tail of k, whole": (REALIGN, "i64(s.k_end - Stage::k)", "i64(s.k_end)", TALL),
    "rows beyond": (REALIGN, "if (by.row < r.room) load", "load", ENDS),
    "stores late": (
        SCHEDULE,
        "arch::wait_copy_groups<Stages - 2>",
        "arch::wait_copy_groups<Stages - 1>",
        MIXED,
    ),
    "does not meet": (SCHEDULE, "publish<scope::block>(tile.stage_a(s), *this);", "", ENDS),
    "a step ahead too few": (
        SCHEDULE,
        "tile.source_a, k_of(tile, kt + Stages), token",
        "tile.source_a, k_of(tile, kt), token",
        ENDS,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, tmp_path: Path) -> None:
    """Each fault, planted in the sources, gives wrong numbers or reads what is not the operands'."""
    header, old, new, case = MUTANTS[name]
    text = header.read_text()
    assert text.count(old) == 1, f"{header.name} has {text.count(old)} places for this mutant"
    changed = tmp_path / header.relative_to(next(d for d in header.parents if d.name == "include"))
    changed.parent.mkdir(parents=True)
    changed.write_text(text.replace(old, new))
    assert verdicts(case) == []
    assert verdicts(case, tmp_path)
