"""The CUDA backend's manifest."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from portagemm.backends.cuda.compiler import NvccCompiler, NvrtcCompiler
from portagemm.backends.cuda.driver import CudaDriver
from portagemm.backends.cuda.probe import probe
from portagemm.hal.compiler import Compiler
from portagemm.hal.device import Device
from portagemm.hal.errors import BackendUnavailableError
from portagemm.hal.program import Driver


class CudaBackend:
    """NVIDIA devices through the CUDA driver."""

    name = "cuda"

    def __init__(self) -> None:
        self._compilers: tuple[Compiler, ...] = (NvrtcCompiler(), NvccCompiler())
        self._driver: CudaDriver | None = None
        self._lock = threading.Lock()

    def unavailable_reason(self) -> str | None:
        """No driver, one too old, no device, or what the driver said; None if kernels can run here."""
        return probe().reason

    def devices(self) -> Sequence[Device]:
        """The devices in torch's order; empty when there are none. Never initialises CUDA here."""
        return probe().devices

    def include_dirs(self) -> tuple[Path, ...]:
        """This backend's headers."""
        return (Path(__file__).parent / "include",)

    def compilers(self) -> Sequence[Compiler]:
        """NVRTC, then nvcc."""
        return self._compilers

    def driver(self) -> Driver:
        """The loader and launcher. Raises BackendUnavailableError."""
        with self._lock:
            if self._driver is None:
                reason = self.unavailable_reason()
                if reason is not None:
                    raise BackendUnavailableError(self.name, reason)
                self._driver = CudaDriver()
            return self._driver


BACKEND = CudaBackend()
