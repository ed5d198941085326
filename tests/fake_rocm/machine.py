"""A ROCm machine for one process: devices under a fixture tree, torch's CPU tensors in device memory's place.

Imported by scripts that tests run in child processes. Everything from the operation to hip-python is the package's own
and unmodified; replaced are torch's answers only: that it is a ROCm build, on which card a tensor lies, and which
stream is current there.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from portagemm import launch
from portagemm.backends.rocm import hip as binding
from portagemm.backends.rocm import kfd

#: hipErrorLaunchFailure
LAUNCH_FAILURE = 719

_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_char_p,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_int,
)


@dataclass(frozen=True)
class Launch:
    """What arrived at hipModuleLaunchKernel.

    Attributes:
        image: the loaded code object. kernel: its symbol.
        grid: blocks. block: threads of a block. dynamic_lds: bytes.
        arguments: the kernel's argument block. stream: handle, 0 the null stream. device: current one.
    """

    image: bytes
    kernel: str
    grid: int
    block: int
    dynamic_lds: int
    arguments: bytes
    stream: int
    device: int


Executor = Callable[[Launch], None]


class Machine:
    """The machine of this process.

    Attributes:
        card: HIP's index of the card on which CPU tensors lie.
        streams: card -> handle of torch's current stream there.
        launches: all that arrived. faults: what an executor raised, as text.
    """

    def __init__(self, executor: Executor | None = None) -> None:
        self.card = 0
        self.streams: dict[int, int] = {}
        self.launches: list[Launch] = []
        self.faults: list[str] = []
        self._executor = executor
        self._callback = _CALLBACK(self._launched)
        library = Path(os.environ["ROCM_PATH"]) / "lib" / "libamdhip64.so"
        if library.exists():
            ctypes.CDLL(str(library)).fake_hip_on_launch(self._callback)
        kfd.TOPOLOGY = Path(os.environ.get("FAKE_KFD", "/nonexistent"))
        kfd._KFD_DEVICE = kfd.TOPOLOGY / "device"
        torch.version.hip = "7.0.51831"
        torch._C._cuda_getCurrentRawStream = self._current_stream  # type: ignore[attr-defined]
        launch._device = _TensorsOnCard(self)  # type: ignore[assignment]
        launch.workspace = lambda device, size: torch.empty(size, dtype=torch.uint8)

    def _current_stream(self, index: int) -> int:
        # A CPU tensor has no index, so an operation asks for that of 0 and means the tensor's own card.
        if index not in (0, self.card):
            raise IndexError(f"the stream of card {index} is asked for, tensors lie on card {self.card}")
        return self.streams.get(self.card, 0)

    def _launched(
        self,
        image: int,
        image_bytes: int,
        kernel: bytes,
        grid: int,
        block: int,
        lds: int,
        arguments: int,
        size: int,
        stream: int | None,
        device: int,
    ) -> int:
        arrived = Launch(
            ctypes.string_at(image, image_bytes),
            kernel.decode(),
            grid,
            block,
            lds,
            ctypes.string_at(arguments, size),
            stream or 0,
            device,
        )
        self.launches.append(arrived)
        if self._executor is None:
            return 0
        try:
            self._executor(arrived)
        except Exception:
            self.faults.append(traceback.format_exc())
            print(self.faults[-1], file=sys.stderr)
            return LAUNCH_FAILURE
        return 0

    @staticmethod
    def hip() -> object:
        """hip-python's module, for what a program would do itself: streams, the current device."""
        return binding.runtime()


class _TensorsOnCard:
    """launch._device where a CPU tensor lies on the machine's card: all else is the real one's."""

    _real = launch._device

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __call__(self, kind: str, index: int) -> object:
        return type(self)._real("cuda", self._machine.card if kind == "cpu" else index)

    @classmethod
    def cache_clear(cls) -> None:
        """Forget the devices."""
        cls._real.cache_clear()
