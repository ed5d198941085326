"""In the GPU's place: the executor of tests/amdgcn runs the code object that was loaded, instruction by instruction.

Only the memory of the argument block's operands may be touched, each to the last byte of its last element.
"""

from __future__ import annotations

import struct
import sys
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "amdgcn"))

import model
from gcn import elf
from gcn.machine import Machine as Executor
from gcn.parse import instructions
from gcn.program import Program
from machine import Launch


class Execute:
    """An executor for machine.Machine. `seconds` of a launch are many: keep problems small."""

    def __init__(self) -> None:
        self.executor = Executor()
        self._programs: dict[tuple[bytes, str], Program] = {}

    def __call__(self, launch: Launch) -> None:
        """Run the launch. Raises what the executor finds: races, unwritten reads, accesses out of range ..."""
        key = launch.image, launch.kernel
        if key not in self._programs:
            loaded = elf.load(launch.image, launch.kernel)
            self._programs[key] = Program(loaded, instructions(loaded.disassembly))
        program = self._programs[key]
        self.executor.memory.forget()
        for name, address, size in operands(launch):
            self.executor.memory.register(address, size, name, writable=name == "d")
        self.executor.launch(program, launch.grid, launch.block, launch.dynamic_lds, launch.arguments)


def operands(launch: Launch) -> list[tuple[str, int, int]]:
    """(name, address, bytes) of the operands a GEMM's argument block names."""
    m, n, k, _, *batch = struct.unpack_from("<8i", launch.arguments, model.REST)
    parts = launch.kernel.split("_")
    dtype = model.DTYPES[parts[2]]
    dtypes = {
        "a": dtype,
        "b": dtype,
        "c": model.epilogue_dtype(parts, "c", dtype),
        "d": model.DTYPES.get(parts[3], dtype),
        "bias": model.epilogue_dtype(parts, "bias", dtype),
    }
    found = []
    for index, (name, extents) in enumerate(
        {"a": (m, k), "b": (n, k), "c": (m, n), "d": (m, n), "bias": (m, n)}.items()
    ):
        operand = model.operand(launch.arguments, index)
        if operand.address and prod((*batch, *extents)):
            found.append((name, operand.address, operand.bytes(extents, tuple(batch), dtypes[name])))
    return found
