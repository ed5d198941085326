"""The int8 atoms of each target, executed: there is no operation for them yet, so the kernel is the tests' own."""

from __future__ import annotations

import struct
from pathlib import Path

import card
import numpy as np
import pytest
from gcn.machine import Machine

from portagemm import prebuild
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.profile import get
from portagemm.plan import candidates, kernel_source

KERNEL = Path(__file__).resolve().parents[1] / "compile/include/int8_atom.hpp"

#: (profile, atom) -> m = n and k of the atom.
ATOMS = {
    ("mi250x", "mfma_32x32x8_i8"): (32, 32),
    ("mi250x", "mfma_16x16x16_i8"): (16, 64),
    ("mi300x", "mfma_32x32x16_i8"): (32, 32),
    ("mi300x", "mfma_16x16x32_i8"): (16, 64),
    ("rx7900xtx", "wmma_16x16x16_i8"): (16, 16),
}


@pytest.mark.parametrize(("name", "atom"), ATOMS)
def test_int8_product(name: str, atom: str) -> None:
    """Sums of products of all signed bytes, the least one too: exact, in every element."""
    reason = card.unavailable_reason()
    if reason:
        pytest.skip(reason)
    profile, (m, k) = get(name), ATOMS[name, atom]
    device = prebuild.described_device(profile)
    (problem,) = prebuild.problems(
        prebuild.Wanted(dtypes=("float16",), layouts=("nt",), epilogues=("none",), shapes=((64, 64, 64),))
    )
    some = kernel_source(candidates(problem, profile, device)[0].kernel, profile, profile.target(device))
    text = f"#include <portagemm/arch/{profile.arch}.hpp>\n"
    text += f'using atom = pg::arch::{profile.arch}::{atom};\n#include "{KERNEL}"\n'
    code = card.compiler().compile(text, "int8_atom", some.target, CompileOptions(some.include_dirs))

    random = np.random.default_rng(5)
    a, b = (random.integers(-128, 128, (m, k), np.int8) for _ in range(2))
    a[0], b[-1] = -128, -128
    d = np.full((m, m), 0x5A5A5A5A, np.int32)
    machine = Machine()
    for array, writable in ((a, False), (b, False), (d, True)):
        machine.memory.register(array.ctypes.data, array.nbytes, "operand", writable)
    arguments = struct.pack("<3Q", a.ctypes.data, b.ctypes.data, d.ctypes.data)
    machine.launch(card.Driver(machine).program(code), 1, profile.wave_size, 16384, arguments)
    assert np.array_equal(d, a.astype(np.int32) @ b.astype(np.int32).T)
