"""The rocm backend with an executor in place of hardware and HIP: real code objects, CPU tensors.

Launches take addresses of CPU tensors. What they may touch is registered by `tensors`: the operands that
portagemm.testing places, each to the last byte of its last element.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from gcn import elf
from gcn.machine import Machine
from gcn.parse import Instruction, instructions
from gcn.program import Program

from portagemm import launch, testing
from portagemm.backends.rocm.backend import BACKEND as ROCM
from portagemm.backends.rocm.compiler import ClangCompiler
from portagemm.hal.cache import default_cache
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.device import Device
from portagemm.hal.errors import LaunchError, PortaGemmError
from portagemm.hal.profile import get
from portagemm.hal.program import ArgumentBlock, LaunchConfig, ObjectCode
from portagemm.kernel_config import KernelConfig
from portagemm.plan import GemmPlan, kernel_source

#: Emulated cards: profile name -> device.
DEVICES = {
    "mi250x": Device("rocm", 0, "emulated MI250X", "gfx90a", 110, 8 << 20, 0, 64 << 10, 1024),
    "mi300x": Device("rocm", 0, "emulated MI300X", "gfx942", 304, 4 << 20, 0, 64 << 10, 1024),
    "rx7900xtx": Device("rocm", 0, "emulated RX 7900 XTX", "gfx1100", 96, 6 << 20, 0, 64 << 10, 1024),
}
#: Changes a disassembly before it is executed.
Edit = Callable[[list[Instruction]], list[Instruction]]


def unavailable_reason() -> str | None:
    """Why nothing can be executed here, or None."""
    return elf.unavailable_reason() or compiler().unavailable_reason()


def compiler() -> ClangCompiler:
    """The oldest clang the project supports and CI installs."""
    return ClangCompiler("clang++-19")


def extent(x: torch.Tensor) -> tuple[int, int]:
    """(address, bytes) from a tensor's first element to the end of its last."""
    if x.numel() == 0:
        return x.data_ptr(), 0
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), (last + 1) * x.element_size()


class Driver:
    """Executes each launch at once. `edit`: see Edit; `machine`: memory, counts and conflicts of the launches."""

    def __init__(self, machine: Machine, edit: Edit | None = None) -> None:
        self.machine, self.edit = machine, edit
        self.programs: dict[bytes, Program] = {}
        self.last: Program | None = None

    def current_stream(self, device_index: int) -> int:
        return 0

    def program(self, code: ObjectCode) -> Program:
        """The code object, bound once."""
        found = self.programs.get(code.code)
        if found is None:
            loaded = elf.load(code.code, code.symbol)
            listing = instructions(loaded.disassembly)
            if self.edit is not None:
                listing = self.edit(listing)
            found = self.programs[code.code] = Program(loaded, listing)
        return found

    def prepare(
        self, code: ObjectCode, config: LaunchConfig, arguments: ArgumentBlock, device_index: int
    ) -> Launch:
        return Launch(self, self.program(code), config, arguments)


@dataclass
class Launch:
    """See portagemm.hal.program.Launch."""

    driver: Driver
    program: Program
    config: LaunchConfig
    arguments: ArgumentBlock

    def __call__(self, pointers: Sequence[int], scalars: Sequence[float], stream: int) -> None:
        block = bytearray(self.arguments.template)
        for offset, pointer in zip(self.arguments.pointer_offsets, pointers, strict=True):
            block[offset : offset + 8] = int(pointer).to_bytes(8, "little")
        for offset, scalar in zip(self.arguments.scalar_offsets, scalars, strict=True):
            block[offset : offset + 4] = bytes(ctypes.c_float(scalar))
        config, driver = self.config, self.driver
        bound = self.program.code.metadata.get(".max_flat_workgroup_size", 1024)
        if config.block > bound:
            raise LaunchError(f"block of {config.block} threads, the kernel is for {bound}")
        driver.last = self.program
        # Its waves are half a step apart on purpose and meet at different barriers.
        driver.machine.staggered_barriers = "pingpong" in self.program.code.symbol
        driver.machine.launch(self.program, config.grid, config.block, config.shared_bytes, bytes(block))


class Backend:
    """The manifest `portagemm.hal.registry` would give for rocm; `extra` is searched before all other headers."""

    name = "rocm"

    def __init__(
        self, device: Device, extra: Path | None = None, edit: Edit | None = None, apart: bool = False
    ) -> None:
        self.device, self.extra = device, extra
        self.machine = Machine(apart=apart)
        self._driver = Driver(self.machine, edit)

    def unavailable_reason(self) -> str | None:
        return unavailable_reason()

    def devices(self) -> Sequence[Device]:
        return (self.device,)

    def include_dirs(self) -> tuple[Path, ...]:
        return (*((self.extra,) if self.extra else ()), *ROCM.include_dirs())

    def compilers(self) -> Sequence[ClangCompiler]:
        return (compiler(),)

    def driver(self) -> Driver:
        return self._driver


class tensors:
    """While active, what portagemm.testing places and workspaces are the memory that kernels may access.

    Operands are read-only. Workspaces begin as NaN.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __enter__(self) -> None:
        self._place, self._workspace = testing.place, launch.workspace
        register = self.machine.memory.register

        def place(values: Any, *args: Any) -> testing.Placed:
            placed = self._place(values, *args)
            output = values is None
            register(*extent(placed.view), "output" if output else "operand", writable=output)
            return placed

        def workspace(device: Device, size: int) -> torch.Tensor:
            words = torch.full((-(-size // 4),), float("nan"))
            register(words.data_ptr(), size, "workspace")
            return words

        testing.place, launch.workspace = place, workspace  # type: ignore[assignment]

    def __exit__(self, *exc: object) -> None:
        testing.place, launch.workspace = self._place, self._workspace
        self.machine.memory.forget()


class Always:
    """launch._device with an emulated card in the CPU's place."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def __call__(self, kind: str, index: int) -> Device:
        return self.device

    def cache_clear(self) -> None:
        """Nothing is kept."""


def forget_launches() -> None:
    """Launches prepared for another card or other headers."""
    with launch._lock:
        launch._prepared.clear()


@cache
def shared(profile: str) -> Backend:
    """The unchanged backend on a card: its programs are bound once a session."""
    return Backend(DEVICES[profile])


def run(backend: Backend, case: testing.Case, plan: GemmPlan) -> testing.CaseResult:
    """A case under a plan: nothing but its own operands may be accessed."""
    backend.machine.memory.forget()
    return testing.run_case(case, "cpu", plan)


_pool: ThreadPoolExecutor | None = None


def build(kernels: Iterable[KernelConfig], profile: str) -> list[Future[None]]:
    """Begin to compile kernels, a few at a time, into the caches. A failure shows where the kernel is needed."""
    global _pool
    facts = get(profile)
    target = facts.target(DEVICES[profile])
    clang = compiler()

    def one(kernel: KernelConfig) -> None:
        source = kernel_source(kernel, facts, target)
        options = CompileOptions(source.include_dirs, source.defines)
        flags = clang.flags(target, options)
        try:
            default_cache().get_or_build(
                source,
                lambda: clang.compile(source.text, source.symbol, target, options),
                clang.identity(),
                flags,
            )
        except PortaGemmError:
            pass

    if _pool is None:
        _pool = ThreadPoolExecutor(workers())
    # In the order of the tests; workers of one run take turns, and each kernel is compiled once by whoever comes first.
    listed = list(dict.fromkeys(kernels))
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579":
        listed = listed[1::2] + listed[::2]
    return [_pool.submit(one, k) for k in listed]


def stop() -> None:
    """What has not begun to compile is not needed any more."""
    if _pool is not None:
        _pool.shutdown(wait=False, cancel_futures=True)


def workers() -> int:
    """Processes of the compiler at a time."""
    return max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
