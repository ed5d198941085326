"""One instruction at a time: assembled by llvm-mc, disassembled, executed on registers that a test fills."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gcn import program
from gcn.binding import TARGETS
from gcn.lds import Lds
from gcn.machine import Machine
from gcn.parse import EXEC, Instruction, instructions
from gcn.waves import Convoy, State

ARCHS = ("gfx90a", "gfx942", "gfx1100", "gfx950")


def tool(name: str, release: str) -> str | None:
    """An LLVM tool: on PATH with its release, or in the release's folder."""
    return shutil.which(f"{name}-{release}") or shutil.which(name, path=f"/usr/lib/llvm-{release}/bin")


def _release(arch: str) -> str:
    return "22" if arch == "gfx950" else "19"


def assemble(lines: Iterable[str], arch: str) -> dict[str, Instruction]:
    """The lines that the assembler takes for a target, as the disassembler shows them. {} without tools."""
    mc, objdump = tool("llvm-mc", _release(arch)), tool("llvm-objdump", _release(arch))
    if mc is None or objdump is None:
        return {}
    left = list(lines)
    features = "+wavefrontsize32" if arch.startswith("gfx1") else ""
    command = [mc, "-triple=amdgcn-amd-amdhsa", f"-mcpu={arch}", f"-mattr={features}", "-filetype=obj"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lines.o"
        while left:
            text = "\n".join(left) + "\n"
            done = subprocess.run([*command, "-o", str(out)], input=text, capture_output=True, text=True)
            if done.returncode == 0:
                break
            wrong = {int(n) for n in re.findall(r"<stdin>:(\d+):\d+: error", done.stderr)}
            assert wrong, done.stderr
            left = [line for n, line in enumerate(left, 1) if n not in wrong]
        if not left:
            return {}
        shown = subprocess.run(
            [objdump, "-d", f"--mcpu={arch}", str(out)], capture_output=True, text=True, check=True
        )
    found = instructions(shown.stdout)
    assert len(found) == len(left), f"{len(left)} lines gave {len(found)} instructions"
    return dict(zip(left, found, strict=True))


@cache
def assembled(lines: tuple[str, ...]) -> dict[str, tuple[str, Instruction]]:
    """line -> (first target that has it, instruction)."""
    result: dict[str, tuple[str, Instruction]] = {}
    for arch in ARCHS:
        left = [line for line in lines if line not in result]
        for line, i in assemble(left, arch).items():
            result[line] = (arch, i)
    return result


class Bench:
    """Two waves with registers to fill, and whatever an instruction needs besides.

    Attributes:
        c: the convoy. v (registers, waves, lanes), s (waves, registers): its registers. mask (waves, lanes): EXEC.
    """

    def __init__(self, arch: str, seed: int = 0, full: bool = False, lds: int = 4096) -> None:
        self.target = TARGETS[arch]
        lanes = self.target.lanes
        self.random = np.random.default_rng(seed)
        self.machine = Machine()
        self.machine.lds = Lds(1, lds, 2, 1)
        self.machine._waves, self.machine._groups = 2, [0]
        agprs = 256 if self.target.gfx9 else 0
        self.state = State(2, lanes, 256, agprs)
        self.state.v[:] = self.random.integers(0, 1 << 32, self.state.v.shape, dtype=np.uint32)
        self.state.s[:] = self.random.integers(0, 1 << 32, self.state.s.shape, dtype=np.uint32)
        self.c = Convoy(self.machine, self.state, 0, 2, 0, 0)
        self.v, self.s = self.state.v, self.state.s
        mask = np.ones((2, lanes), bool) if full else self.random.random((2, lanes)) < 0.7
        self.set_exec(mask)

    @property
    def mask(self) -> Any:
        return self.c.mask

    def set_exec(self, mask: Any) -> None:
        self.c.put_lane_mask(EXEC, mask)

    def bind(self, i: Instruction) -> Any:
        return program.bind(i, self.target)

    def run(self, i: Instruction) -> Any:
        """Execute; returns what was bound."""
        bound = self.bind(i)
        with np.errstate(all="ignore"):
            bound.run(self.c)
        return bound

    def pair(self, r: int, wave: int, lane: int) -> int:
        """64 bits of two vector registers."""
        return int(self.v[r, wave, lane]) | int(self.v[r + 1, wave, lane]) << 32
