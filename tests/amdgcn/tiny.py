"""Kernels of a few lines of assembly, for tests of the executor itself."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from gcn.elf import CodeObject, Descriptor
from gcn.machine import Machine
from gcn.parse import instructions
from gcn.program import Program
from single import tool

#: Subnormals kept, round to nearest: the float mode that kernels of ours have.
MODE = 0xF << 16


def kernel(text: str, arch: str = "gfx90a", lds: int = 1024) -> Program:
    """Assemble a kernel: s[0:1] its arguments' address, s2 its work-group, v0 the thread. 256 VGPRs, 256 AGPRs."""
    mc, objdump = tool("llvm-mc", "19"), tool("llvm-objdump", "19")
    if mc is None or objdump is None:
        pytest.skip("llvm-mc-19 and llvm-objdump-19 are not installed (llvm-19)")
    wave = 32 if arch.startswith("gfx1") else 64
    features = "-mattr=+wavefrontsize32" if wave == 32 else "-mattr="
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.o"
        command = [
            mc,
            "-triple=amdgcn-amd-amdhsa",
            f"-mcpu={arch}",
            features,
            "-filetype=obj",
            "-o",
            str(out),
        ]
        subprocess.run(command, input=text + "\ns_endpgm\n", text=True, check=True)
        command = [objdump, "-d", f"--mcpu={arch}", str(out)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    descriptor = Descriptor(lds, 0, 16, 0, 63 | MODE, 2 << 1 | 1 << 7, 63, 1 << 3, 0)
    arguments = ({".offset": 0, ".size": 16, ".value_kind": "by_value"},)
    code = CodeObject("tiny", arch, wave, descriptor, arguments, {}, bytes(64), shown)
    return Program(code, instructions(shown))


class Run:
    """A launch of a tiny kernel: its first argument is the address of `out`, 64 KiB of words."""

    def __init__(
        self, program: Program, grid: int = 1, block: int = 128, machine: Machine | None = None
    ) -> None:
        self.out = np.zeros(1 << 14, np.uint32)
        self.machine = machine or Machine()
        self.machine.limit = 100_000
        self.machine.memory.register(self.out.ctypes.data, self.out.nbytes, "out")
        arguments = self.out.ctypes.data.to_bytes(8, "little") + bytes(8)
        self.machine.launch(program, grid, block, 0, arguments)


#: v2 = byte offset of the thread's word, s[4:5] = address of out.
PROLOGUE = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
v_lshlrev_b32_e32 v2, 2, v0
s_waitcnt lgkmcnt(0)
"""
