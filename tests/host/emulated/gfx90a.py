"""The rocm backend with an emulated gfx90a in place of hardware and HIP: a compiler and a driver for tests.

The backend's own headers are compiled for the host, with `include/portagemm/vendor.hpp` of this folder before
the backend's. Launches take addresses of CPU tensors.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from portagemm.backends.rocm.backend import BACKEND as ROCM
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.device import Device
from portagemm.hal.errors import CompileError, LaunchError
from portagemm.hal.program import ArgumentBlock, LaunchConfig, ObjectCode
from portagemm.hal.target import Target

INCLUDE = Path(__file__).resolve().parent / "include"
COMPILERS = ("clang++-19", "clang++-22", "clang++")

DEVICE = Device("rocm", 0, "emulated MI250X", "gfx90a", 110, 8 << 20, 0, 64 << 10, 1024)


class Compiler:
    """clang for the host: its vector extensions are those of the AMD compilers."""

    name = "gfx90a emulator"

    def _path(self) -> str | None:
        return next((path for name in COMPILERS if (path := shutil.which(name))), None)

    def unavailable_reason(self) -> str | None:
        return None if self._path() else f"none of {', '.join(COMPILERS)} is installed"

    def identity(self) -> str:
        return f"gfx90a emulator, {Path(self._path() or '').name}"

    def flags(self, target: Target, options: CompileOptions) -> tuple[str, ...]:
        return ("-std=c++20", "-O1", "-fno-strict-aliasing", "-Wno-psabi", "-shared", "-fPIC")

    def compile(self, source: str, symbol: str, target: Target, options: CompileOptions) -> ObjectCode:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "kernel.cpp").write_text(source)
            include = [f"-I{d}" for d in options.include_dirs]
            command = [
                str(self._path()),
                *self.flags(target, options),
                *include,
                "kernel.cpp",
                "-o",
                "kernel.so",
            ]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode != 0:
                raise CompileError(symbol, target, self.name, done.stderr)
            return ObjectCode((Path(folder) / "kernel.so").read_bytes(), target, symbol, self.identity())


@functools.cache
def _stacks() -> mmap.mmap:
    """Stacks of a block's lanes, the same for every kernel and launch.

    Touching so much memory anew each time would be most of a launch's time, and one a library adds up to more
    address space than a small machine lets a process fork with.
    """
    return mmap.mmap(-1, DEVICE.threads_per_block * (256 << 10))  # stack_bytes of vendor.hpp


class Driver:
    """Loads a kernel as a library and runs it at once. Every launch has another order of lanes."""

    def __init__(self) -> None:
        self._kernels: dict[bytes, ctypes._CFuncPtr] = {}
        self.seeds = itertools.count()

    def current_stream(self, device_index: int) -> int:
        return 0

    def prepare(
        self, code: ObjectCode, config: LaunchConfig, arguments: ArgumentBlock, device_index: int
    ) -> Launch:
        kernel = self._kernels.get(code.code)
        if kernel is None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "kernel.so"
                path.write_bytes(code.code)
                kernel = getattr(ctypes.CDLL(str(path)), code.symbol)
            kernel.restype = ctypes.c_char_p
            kernel.argtypes = (
                ctypes.c_void_p,
                ctypes.c_longlong,
                ctypes.c_int,
                ctypes.c_longlong,
                ctypes.c_uint,
                ctypes.c_void_p,
            )
            self._kernels[code.code] = kernel
        return Launch(self, kernel, code.symbol, config, arguments)


class Launch:
    """See portagemm.hal.program.Launch."""

    def __init__(
        self,
        driver: Driver,
        kernel: ctypes._CFuncPtr,
        symbol: str,
        config: LaunchConfig,
        arguments: ArgumentBlock,
    ) -> None:
        self.driver, self.kernel, self.symbol, self.config, self.arguments = (
            driver,
            kernel,
            symbol,
            config,
            arguments,
        )

    def __call__(self, pointers: Sequence[int], scalars: Sequence[float], stream: int) -> None:
        block = bytearray(self.arguments.template)
        for offset, pointer in zip(self.arguments.pointer_offsets, pointers, strict=True):
            block[offset : offset + 8] = int(pointer).to_bytes(8, "little")
        for offset, scalar in zip(self.arguments.scalar_offsets, scalars, strict=True):
            block[offset : offset + 4] = bytes(ctypes.c_float(scalar))
        memory = (ctypes.c_char * len(block)).from_buffer(block)
        config = self.config
        stacks = ctypes.addressof(ctypes.c_char.from_buffer(_stacks()))
        seed = next(self.driver.seeds)
        error = self.kernel(memory, config.grid, config.block, config.shared_bytes, seed, stacks)
        if error:
            raise LaunchError(f"kernel {self.symbol}: {error.decode()}")


class Backend:
    """The manifest `portagemm.hal.registry` would give for rocm; `extra` is searched before all other headers."""

    name = "rocm"

    def __init__(self, extra: Path | None = None) -> None:
        self.extra, self._driver = extra, Driver()

    def unavailable_reason(self) -> str | None:
        return Compiler().unavailable_reason()

    def devices(self) -> Sequence[Device]:
        return (DEVICE,)

    def include_dirs(self) -> tuple[Path, ...]:
        return (*((self.extra,) if self.extra else ()), INCLUDE, *ROCM.include_dirs())

    def compilers(self) -> Sequence[Compiler]:
        return (Compiler(),)

    def driver(self) -> Driver:
        return self._driver


def workers() -> int:
    """Processes of the compiler at a time."""
    return max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
