"""The maps of the gfx90a atoms, against AMD's tables and against what they are for.

The tables are written as the manual and AMD's matrix instruction calculator give them (``--register-layout``):
from an element of the matrix to its lane and its place there, that is in the other direction than the headers.
Then a wave is emulated: operands are dealt to lanes by the atom's maps, every instruction is computed from the
manual's tables, and the result collected by the atom's map must be the product.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[3]
LANES = 64

Place = tuple[int, int]  # lane, index in the lane


@dataclass(frozen=True)
class Instruction:
    """One MFMA of a single block: m = n, k, and the elements of K a lane holds."""

    m: int
    k: int

    @property
    def held(self) -> int:
        return self.k * self.m // LANES

    def place_a(self, i: int, k: int) -> Place:
        """A[i][k] (and B[k][i]): lanes count rows first, then groups of `held` elements of K."""
        return i + self.m * (k // self.held), k % self.held

    def place_d(self, i: int, j: int) -> Place:
        """D[i][j]: blocks of four rows go round the lane groups, then to the next four registers."""
        groups = LANES // self.m
        block, row = divmod(i, 4)
        return j + self.m * (block % groups), 4 * (block // groups) + row


INSTRUCTIONS = {
    "v_mfma_f32_32x32x8f16": Instruction(32, 8),
    "v_mfma_f32_16x16x16f16": Instruction(16, 16),
    "v_mfma_f32_32x32x8bf16_1k": Instruction(32, 8),
    "v_mfma_f32_16x16x16bf16_1k": Instruction(16, 16),
    "v_mfma_f32_32x32x2f32": Instruction(32, 2),
    "v_mfma_f32_16x16x4f32": Instruction(16, 4),
}

#: atom: (its instruction, the instruction for subnormals)
ATOMS = {
    "mfma_32x32x8-fp16": ("v_mfma_f32_32x32x8f16", "v_mfma_f32_32x32x2f32"),
    "mfma_16x16x16-fp16": ("v_mfma_f32_16x16x16f16", "v_mfma_f32_16x16x4f32"),
    "mfma_32x32x8-bf16": ("v_mfma_f32_32x32x8bf16_1k", "v_mfma_f32_32x32x2f32"),
    "mfma_16x16x16-bf16": ("v_mfma_f32_16x16x16bf16_1k", "v_mfma_f32_16x16x4f32"),
    "mfma_32x32x2_f32-fp32": ("v_mfma_f32_32x32x2f32", None),
    "mfma_16x16x4_f32-fp32": ("v_mfma_f32_16x16x4f32", None),
}

#: Single entries of the tables, written out by hand: element -> (lane, index).
ENTRIES = {
    "v_mfma_f32_32x32x8f16": {
        "a": {(0, 0): (0, 0), (0, 3): (0, 3), (0, 4): (32, 0), (5, 7): (37, 3), (31, 2): (31, 2)},
        "c": {
            (0, 0): (0, 0),
            (3, 0): (0, 3),
            (4, 0): (32, 0),
            (8, 0): (0, 4),
            (31, 31): (63, 15),
            (20, 7): (39, 8),
        },
    },
    "v_mfma_f32_16x16x16f16": {
        "a": {(0, 0): (0, 0), (0, 4): (16, 0), (0, 15): (48, 3), (15, 9): (47, 1)},
        "c": {(0, 0): (0, 0), (3, 5): (5, 3), (4, 5): (21, 0), (15, 15): (63, 3)},
    },
    "v_mfma_f32_32x32x2f32": {"a": {(3, 0): (3, 0), (3, 1): (35, 0)}, "c": {(12, 1): (33, 4)}},
    "v_mfma_f32_16x16x4f32": {"a": {(3, 0): (3, 0), (3, 3): (51, 0)}, "c": {(12, 1): (49, 0)}},
}


@dataclass
class Maps:
    """An atom's maps: (lane, index) -> (row, col), and its shape."""

    shape: tuple[int, int, int] = (0, 0, 0)
    a: dict[Place, Place] = field(default_factory=dict)
    b: dict[Place, Place] = field(default_factory=dict)
    c: dict[Place, Place] = field(default_factory=dict)


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Maps]:
    """All maps, printed by a program that includes the header."""
    compiler = next((c for c in ("g++", "clang++") if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("no C++ compiler: neither g++ nor clang++")
    program = tmp_path_factory.mktemp("maps") / "maps"
    folders = [ROOT / "backends/cpu/include", ROOT / "backends/rocm/include", ROOT / "hal/include"]
    subprocess.run(
        [
            compiler,
            "-std=c++20",
            "-O1",
            "-DPG_CHECK_MAPS",  # bijection and runs, by the header's own static_asserts
            *(f"-I{f}" for f in folders),
            str(Path(__file__).with_suffix("").with_name("atom_maps_rocm.cpp")),
            "-o",
            str(program),
        ],
        check=True,
    )
    found: defaultdict[str, Maps] = defaultdict(Maps)
    for line in subprocess.run(
        [str(program)], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        name, kind, *numbers = line.split()
        values = [int(n) for n in numbers]
        if kind == "shape":
            found[name].shape = (values[0], values[1], values[2])
            assert values[3] == LANES
        else:
            getattr(found[name], kind)[values[0], values[1]] = (values[2], values[3])
    return dict(found)


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instruction_maps_are_the_manuals(name: str, maps: dict[str, Maps]) -> None:
    """Every element of A, B and D lies where the table puts it."""
    table, ours = INSTRUCTIONS[name], maps[name]
    assert ours.shape == (table.m, table.m, table.k)
    elements = [(i, k) for i in range(table.m) for k in range(table.k)]
    assert len(ours.a) == len(ours.b) == len(elements)
    for i, k in elements:
        assert ours.a[table.place_a(i, k)] == (i, k)
        assert ours.b[table.place_a(i, k)] == (i, k)
    assert len(ours.c) == table.m**2
    for i in range(table.m):
        for j in range(table.m):
            assert ours.c[table.place_d(i, j)] == (i, j)


@pytest.mark.parametrize("name", ENTRIES)
def test_single_entries(name: str, maps: dict[str, Maps]) -> None:
    """Single entries by number, so that a fault shared by both formulas would show."""
    for kind, entries in ENTRIES[name].items():
        for element, place in entries.items():
            assert getattr(maps[name], kind)[place] == element


def _issue(table: Instruction, a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> None:
    """One instruction on registers: a, b are (lanes, held), acc is (lanes, registers), by the manual's tables."""
    left, right = np.zeros((table.m, table.k)), np.zeros((table.m, table.k))
    for i in range(table.m):
        for k in range(table.k):
            left[i, k], right[i, k] = a[table.place_a(i, k)], b[table.place_a(i, k)]
    product = left @ right.T
    for i in range(table.m):
        for j in range(table.m):
            acc[table.place_d(i, j)] += product[i, j]


@pytest.mark.parametrize(
    ("name", "instruction"), [(name, way) for name, ways in ATOMS.items() for way in ways if way]
)
def test_atom_multiplies(name: str, instruction: str, maps: dict[str, Maps]) -> None:
    """What an atom's instructions compute from fragments dealt by its maps is A * B^T, on both of its ways."""
    ours = maps[name]
    m, n, k = ours.shape
    rng = np.random.default_rng(7)
    a, b = rng.integers(-8, 9, (m, k)).astype(float), rng.integers(-8, 9, (n, k)).astype(float)
    size = len(ours.a) // LANES
    fragment_a, fragment_b = np.zeros((LANES, size)), np.zeros((LANES, size))
    for place, element in ours.a.items():
        fragment_a[place] = a[element]
    for place, element in ours.b.items():
        fragment_b[place] = b[element]
    acc = np.zeros((LANES, len(ours.c) // LANES))
    table = INSTRUCTIONS[instruction]
    # As mfma::mma does: `held` elements an instruction, in the order of the fragment.
    for first in range(0, size, table.held):
        part = slice(first, first + table.held)
        _issue(table, fragment_a[:, part], fragment_b[:, part], acc)
    result = np.zeros((m, n))
    for place, element in ours.c.items():
        result[element] = acc[place]
    assert np.array_equal(result, a @ b.T)


def test_subnormals_are_found_in_every_place() -> None:
    """The packed test of gfx90a.hpp, in NumPy, on all 16-bit patterns: subnormal or not, in either half."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    for largest, exponent in ((0x3FF, 0x7C00), (0x7F, 0x7F80)):
        is_subnormal = ((patterns & exponent) == 0) & ((patterns & 0x7FFF) != 0)
        found = ((patterns & 0x7FFF) - np.uint16(1)).astype(np.uint16) < largest
        assert np.array_equal(found, is_subnormal)
