"""The maps of the AMD atoms, against AMD's tables and against what they are for.

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

Place = tuple[int, int]  # lane, index in the lane


@dataclass(frozen=True)
class Instruction:
    """One MFMA of a single block: m = n, k, and the elements of K a lane holds."""

    m: int
    k: int
    lanes: int = 64

    @property
    def held(self) -> int:
        return self.k * self.m // self.lanes

    def places_a(self, i: int, k: int) -> list[Place]:
        """A[i][k] (and B[k][i]): lanes count rows first, then groups of `held` elements of K."""
        return [(i + self.m * (k // self.held), k % self.held)]

    def place_d(self, i: int, j: int) -> Place:
        """D[i][j]: blocks of four rows go round the lane groups, then to the next four registers."""
        groups = self.lanes // self.m
        block, row = divmod(i, 4)
        return j + self.m * (block % groups), 4 * (block // groups) + row


@dataclass(frozen=True)
class Wmma(Instruction):
    """One WMMA of RDNA3 by 32 lanes: a lane holds a whole row of A, and so does the lane 16 further on."""

    m: int = 16
    k: int = 16
    lanes: int = 32

    @property
    def held(self) -> int:
        return self.k

    def places_a(self, i: int, k: int) -> list[Place]:
        return [(i, k), (i + 16, k)]

    def place_d(self, i: int, j: int) -> Place:
        """D[i][j]: even rows in lanes 0-15, odd rows in lanes 16-31."""
        return j + 16 * (i % 2), i // 2


INSTRUCTIONS = {
    "v_mfma_f32_32x32x8f16": Instruction(32, 8),
    "v_mfma_f32_16x16x16f16": Instruction(16, 16),
    "v_mfma_f32_32x32x8bf16_1k": Instruction(32, 8),
    "v_mfma_f32_16x16x16bf16_1k": Instruction(16, 16),
    "v_mfma_f32_32x32x2f32": Instruction(32, 2),
    "v_mfma_f32_16x16x4f32": Instruction(16, 4),
    "v_mfma_i32_32x32x8i8": Instruction(32, 8),
    "v_mfma_i32_16x16x16i8": Instruction(16, 16),
    "v_mfma_f32_32x32x8_f16": Instruction(32, 8),
    "v_mfma_f32_16x16x16_f16": Instruction(16, 16),
    "v_mfma_f32_32x32x8_bf16": Instruction(32, 8),
    "v_mfma_f32_16x16x16_bf16": Instruction(16, 16),
    "v_mfma_f32_32x32x2_f32": Instruction(32, 2),
    "v_mfma_f32_16x16x4_f32": Instruction(16, 4),
    "v_mfma_i32_32x32x16_i8": Instruction(32, 16),
    "v_mfma_i32_16x16x32_i8": Instruction(16, 32),
    "v_mfma_f32_32x32x16_f16": Instruction(32, 16),
    "v_mfma_f32_16x16x32_f16": Instruction(16, 32),
    "v_mfma_f32_32x32x16_bf16": Instruction(32, 16),
    "v_mfma_f32_16x16x32_bf16": Instruction(16, 32),
    "v_wmma_f32_16x16x16_f16": Wmma(),
    "v_wmma_f32_16x16x16_bf16": Wmma(),
    "v_wmma_i32_16x16x16_iu8": Wmma(),
}

#: atom: (its instruction, the instruction for subnormals)
ATOMS = {
    "gfx90a-mfma_32x32x8-fp16": ("v_mfma_f32_32x32x8f16", "v_mfma_f32_32x32x2f32"),
    "gfx90a-mfma_16x16x16-fp16": ("v_mfma_f32_16x16x16f16", "v_mfma_f32_16x16x4f32"),
    "gfx90a-mfma_32x32x8-bf16": ("v_mfma_f32_32x32x8bf16_1k", "v_mfma_f32_32x32x2f32"),
    "gfx90a-mfma_16x16x16-bf16": ("v_mfma_f32_16x16x16bf16_1k", "v_mfma_f32_16x16x4f32"),
    "gfx90a-mfma_32x32x8_flush-fp16": ("v_mfma_f32_32x32x8f16", None),
    "gfx90a-mfma_16x16x16_flush-bf16": ("v_mfma_f32_16x16x16bf16_1k", None),
    "gfx90a-mfma_32x32x2_f32-fp32": ("v_mfma_f32_32x32x2f32", None),
    "gfx90a-mfma_16x16x4_f32-fp32": ("v_mfma_f32_16x16x4f32", None),
    "gfx90a-mfma_32x32x8_i8-int8": ("v_mfma_i32_32x32x8i8", None),
    "gfx90a-mfma_16x16x16_i8-int8": ("v_mfma_i32_16x16x16i8", None),
    "gfx942-mfma_32x32x8-fp16": ("v_mfma_f32_32x32x8_f16", None),
    "gfx942-mfma_16x16x16-bf16": ("v_mfma_f32_16x16x16_bf16", None),
    "gfx942-mfma_32x32x2_f32-fp32": ("v_mfma_f32_32x32x2_f32", None),
    "gfx942-mfma_16x16x4_f32-fp32": ("v_mfma_f32_16x16x4_f32", None),
    "gfx942-mfma_32x32x16_i8-int8": ("v_mfma_i32_32x32x16_i8", None),
    "gfx942-mfma_16x16x32_i8-int8": ("v_mfma_i32_16x16x32_i8", None),
}
#: Atoms that are one instruction, under its name.
SINGLE = (
    "v_mfma_f32_32x32x16_f16",
    "v_mfma_f32_16x16x32_bf16",
    "v_wmma_f32_16x16x16_f16",
    "v_wmma_i32_16x16x16_iu8",
)
ATOMS |= {name: (name, None) for name in SINGLE}

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
    "v_mfma_i32_32x32x8i8": {
        "a": {(0, 3): (0, 3), (0, 4): (32, 0), (31, 7): (63, 3)},
        "c": {(4, 0): (32, 0), (8, 0): (0, 4), (31, 31): (63, 15)},
    },
    "v_mfma_i32_16x16x32_i8": {
        "a": {(0, 7): (0, 7), (0, 8): (16, 0), (15, 31): (63, 7)},
        "c": {(4, 5): (21, 0), (15, 15): (63, 3)},
    },
    "v_mfma_f32_16x16x32_f16": {"a": {(2, 8): (18, 0), (15, 31): (63, 7)}, "c": {(4, 5): (21, 0)}},
    "v_wmma_f32_16x16x16_f16": {
        "a": {(3, 0): (3, 0), (15, 15): (15, 15)},
        "c": {(0, 3): (3, 0), (1, 3): (19, 0), (2, 0): (0, 1), (15, 15): (31, 7)},
    },
    "v_mfma_f32_32x32x2f32": {"a": {(3, 0): (3, 0), (3, 1): (35, 0)}, "c": {(12, 1): (33, 4)}},
    "v_mfma_f32_16x16x4f32": {"a": {(3, 0): (3, 0), (3, 3): (51, 0)}, "c": {(12, 1): (49, 0)}},
}


@dataclass
class Maps:
    """An atom's maps: (lane, index) -> (row, col), and its shape."""

    shape: tuple[int, int, int] = (0, 0, 0)
    lanes: int = 0
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
            found[name].lanes = values[3]
        else:
            getattr(found[name], kind)[values[0], values[1]] = (values[2], values[3])
    return dict(found)


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instruction_maps_are_the_manuals(name: str, maps: dict[str, Maps]) -> None:
    """Every element of A, B and D lies where the table puts it."""
    table, ours = INSTRUCTIONS[name], maps[name]
    assert ours.shape == (table.m, table.m, table.k) and ours.lanes == table.lanes
    places = {place: (i, k) for i in range(table.m) for k in range(table.k) for place in table.places_a(i, k)}
    assert ours.a == places
    assert ours.b == places
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
            places = table.places_a(i, k)
            assert len({a[place] for place in places}) == len({b[place] for place in places}) == 1
            left[i, k], right[i, k] = a[places[0]], b[places[0]]
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
    size = len(ours.a) // ours.lanes
    fragment_a, fragment_b = np.zeros((ours.lanes, size)), np.zeros((ours.lanes, size))
    for place, element in ours.a.items():
        fragment_a[place] = a[element]
    for place, element in ours.b.items():
        fragment_b[place] = b[element]
    acc = np.zeros((ours.lanes, len(ours.c) // ours.lanes))
    table = INSTRUCTIONS[instruction]
    # As the atoms do: `held` elements an instruction, in the order of the fragment.
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
        found = (patterns * np.uint16(2) - np.uint16(1)).astype(np.uint16) < 2 * largest
        assert np.array_equal(found, is_subnormal)
