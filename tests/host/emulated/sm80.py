"""An emulated sm_80 for tests: CUDA kernels of the mma.sync schedules compiled for the host and run by coroutines.

The backend's own sources are compiled, with `include_sm80` before them. The driver is the emulated gfx90a's:
kernels of both have one way to be called.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from gfx90a import Driver

from portagemm import plan as planner
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.device import Device
from portagemm.hal.errors import CompileError
from portagemm.hal.profile import ArchProfile, TileConfig, all_profiles
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource
from portagemm.hal.target import Target
from portagemm.plan import GemmPlan
from portagemm.problem import GemmProblem

INCLUDE = Path(__file__).resolve().parent / "include_sm80"
COMPILERS = ("g++", "clang++", "clang++-19", "clang++-22")
FLAGS = ("-std=c++20", "-O1", "-fno-strict-aliasing", "-w", "-shared", "-fPIC")

DEVICE = Device("cuda", 0, "emulated A100", "sm_80", 108, 40 << 20, 0, 163 << 10, 1024)
TARGET = Target("cuda", "sm_80", 32)


def compiler() -> str | None:
    """A C++20 compiler of the host, or None."""
    names = [name for name in (os.environ.get("CXX"), *COMPILERS) if name]
    return next((path for name in names if (path := shutil.which(name))), None)


def profile(schedule: str, tile: TileConfig) -> ArchProfile:
    """The a100 profile with one tile."""
    return replace(all_profiles()["a100"], schedules=(schedule,), tiles={schedule: (tile,)})


def plan(problem: GemmProblem, schedule: str, tile: TileConfig) -> GemmPlan:
    """The one plan of a problem that has K in one piece."""
    (only,) = (p for p in planner.candidates(problem, profile(schedule, tile), DEVICE) if p.slices == 1)
    return only


def build(chosen: GemmPlan, extra: Path | None = None) -> ObjectCode:
    """The plan's kernel for the host; headers in `extra` come before all others. Raises CompileError."""
    source: KernelSource = planner.kernel_source(
        chosen.kernel, profile(chosen.kernel.schedule, chosen.kernel.tile), TARGET
    )
    options = CompileOptions((*((extra,) if extra else ()), INCLUDE, *source.include_dirs))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.cpp").write_text(source.text)
        command = [
            str(compiler()),
            *FLAGS,
            *(f"-I{d}" for d in options.include_dirs),
            "kernel.cpp",
            "-o",
            "k.so",
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise CompileError(source.symbol, TARGET, "sm_80 emulator", done.stderr)
        return ObjectCode((Path(folder) / "k.so").read_bytes(), TARGET, source.symbol, "sm_80 emulator")


def launch(
    code: ObjectCode, chosen: GemmPlan, problem: GemmProblem, pointers: tuple[int, ...], seed: int
) -> None:
    """Run a kernel with an order of lanes and of copies given by the seed. Raises LaunchError."""
    driver = Driver()
    driver.seeds = iter(range(seed, seed + 1))  # type: ignore[assignment]
    prepared = driver.prepare(code, planner.launch_config(chosen), planner.arguments(problem, chosen), 0)
    prepared(pointers, (1.0, 0.0), 0)
