"""In the GPU's place: the executor of tests/amdgcn runs the code object that was loaded, instruction by instruction.

Only the memory of the argument block's operands may be touched, each to the last byte of its last element.
"""

from __future__ import annotations

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
    """(name, address, bytes) of the operands the argument block names."""
    x = model.arguments(launch)
    extents = {"a": (x.m, x.n) if x.reduces else (x.m, x.k), "b": (x.n, x.k)}
    sliced = "a" if x.reduces else "d"
    found = []
    for name, operand in x.operands.items():
        shape = extents.get(name, (x.m, x.n))
        if operand.address and prod((*x.batch, *shape)):
            size = operand.bytes(shape, x.batch, x.dtypes[name])
            more = max(x.slices - 1, 0) * x.slice_d * x.dtypes[name].itemsize if name == sliced else 0
            found.append((name, operand.address, size + more))
    return found
