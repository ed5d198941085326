"""The CPU backend's manifest."""

from __future__ import annotations

import platform
import threading
from collections.abc import Sequence
from pathlib import Path

from portagemm.backends.cpu import cpuinfo
from portagemm.backends.cpu.compiler import CxxCompiler
from portagemm.backends.cpu.driver import CpuDriver
from portagemm.hal.compiler import Compiler
from portagemm.hal.device import Device
from portagemm.hal.program import Driver

#: Scratch is ordinary memory: what a block may have is the profile's decision. A bound against nonsense only.
_SHARED_BYTES = 64 << 20


class CpuBackend:
    """The host, as one device. Always available; compiling needs a C++ compiler."""

    name = "cpu"

    def __init__(self) -> None:
        self._compilers: tuple[Compiler, ...] = (CxxCompiler(),)
        self._driver: CpuDriver | None = None
        self._lock = threading.Lock()

    def unavailable_reason(self) -> str | None:
        """None: a kernel that is cached or packed runs without a compiler."""
        return None

    def devices(self) -> Sequence[Device]:
        """The CPU. `compute_units` are the cores this process may use now."""
        return (
            Device(
                backend=self.name,
                index=0,
                name=cpuinfo.name(),
                arch="native",
                compute_units=cpuinfo.usable_cores(),
                l2_bytes=cpuinfo.last_level_cache_bytes(),
                memory_bytes=cpuinfo.memory_bytes(),
                shared_bytes_per_block=_SHARED_BYTES,
                threads_per_block=1,
                notes=(platform.machine(), f"cpu-{cpuinfo.features_digest()}"),
            ),
        )

    def include_dirs(self) -> tuple[Path, ...]:
        """This backend's headers."""
        return (Path(__file__).parent / "include",)

    def compilers(self) -> Sequence[Compiler]:
        """The system's C++ compiler."""
        return self._compilers

    def driver(self) -> Driver:
        """The loader and launcher."""
        with self._lock:
            if self._driver is None:
                self._driver = CpuDriver()
            return self._driver


BACKEND = CpuBackend()
