"""Manifest of the rocm backend."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from portagemm.hal.compiler import Compiler
from portagemm.hal.device import Device
from portagemm.hal.errors import BackendUnavailableError
from portagemm.hal.program import Driver

from . import compiler, hip, kfd

_PROBE_SECONDS = 60


class RocmBackend:
    """AMD GPUs (see portagemm.hal.registry.Backend)."""

    name = "rocm"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._driver: Driver | None = None

    def unavailable_reason(self) -> str | None:
        """Why no kernel can run here, or None.

        The cheap causes first: no AMD device, no access to it, no hip-python, then hip-python's own four
        outcomes (no library, missing symbol, no device, success). Opens no device in this process.
        """
        if kfd.TOPOLOGY.is_dir():
            reason = kfd.access_reason()
            if reason:
                return reason
            if not kfd.nodes():
                return "the kernel's topology (/sys/class/kfd) lists no AMD GPU"
        reason = hip.package_reason()
        if reason:
            return reason
        try:
            hip.runtime()
        except RuntimeError as error:
            return str(error)
        if not kfd.TOPOLOGY.is_dir():
            return _probe_elsewhere()[1]  # WSL2 has the runtime without /sys/class/kfd
        if not self.devices():
            return f"every AMD GPU is hidden: {'; '.join(kfd.notes())}"
        return None

    def notes(self) -> tuple[str, ...]:
        """What this process's environment does to the list of devices, for `portagemm devices`. Never raises."""
        return kfd.notes()

    def devices(self) -> Sequence[Device]:
        """The devices in HIP's order, read from the kernel's topology; without one, by a child process.

        Initialising HIP here would break a later fork.
        """
        if kfd.TOPOLOGY.is_dir():
            return kfd.devices()
        if hip.package_reason() is not None:
            return ()
        try:
            hip.runtime()
        except RuntimeError:
            return ()
        return _probe_elsewhere()[0]

    def include_dirs(self) -> tuple[Path, ...]:
        """This backend's headers."""
        return (Path(__file__).resolve().parent / "include",)

    def compilers(self) -> Sequence[Compiler]:
        """hiprtc, then clang."""
        return compiler.compilers()

    def driver(self) -> Driver:
        """The driver, one for the process. Raises BackendUnavailableError with unavailable_reason()."""
        with self._lock:
            if self._driver is None:
                reason = self.unavailable_reason()
                if reason is not None:
                    raise BackendUnavailableError("rocm", reason)
                from .driver import RocmDriver

                self._driver = RocmDriver()
            return self._driver


_PROBE = """
import json
from portagemm.backends.rocm import hip as binding
hip = binding.runtime()
try:
    count = binding.check("hipGetDeviceCount", hip.hipGetDeviceCount())
except binding.HipError as error:
    raise SystemExit(binding.explain(error, "libamdhip64.so"))
found = []
for index in range(count):
    p = binding.device_properties(hip, index)
    arch, features = binding.arch_and_features(p.gcnArchName)
    name = p.name.decode() if isinstance(p.name, bytes) else str(p.name)
    found.append(dict(
        backend="rocm", index=index, name=name.strip(chr(0)), arch=arch, compute_units=p.multiProcessorCount,
        l2_bytes=p.l2CacheSize, memory_bytes=p.totalGlobalMem, shared_bytes_per_block=p.sharedMemPerBlock,
        threads_per_block=p.maxThreadsPerBlock,
        memory_bandwidth=p.memoryClockRate * 1e3 * 2 * p.memoryBusWidth / 8,
        driver_version=str(binding.check("hipDriverGetVersion", hip.hipDriverGetVersion())),
        notes=[features] if features else []))
print(json.dumps(found))
"""


@cache
def _probe_elsewhere() -> tuple[tuple[Device, ...], str | None]:
    """(devices, reason for none), asked of HIP in a child process so that this one may still fork."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        return (), f"asking HIP for its devices failed: {error}"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return (), lines[-1] if lines else f"asking HIP for its devices ended with status {done.returncode}"
    entries = json.loads(done.stdout.splitlines()[-1])
    found = tuple(Device(**{**entry, "notes": tuple(entry["notes"])}) for entry in entries)
    return found, None if found else "the HIP runtime lists no device"


BACKEND = RocmBackend()
