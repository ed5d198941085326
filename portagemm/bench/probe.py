"""The read-only probe: the time of the best of several kernels that only read the same bytes.

It is the floor of whatever must read its weights once. Its kernels go the way of all others: compiled by the
backend's compiler (or found in the cache or a pack), launched by its driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import pack

import torch

from portagemm import launch as launching
from portagemm.hal.device import Device
from portagemm.hal.profile import Selection
from portagemm.hal.program import ArgumentBlock, LaunchConfig, ObjectCode
from portagemm.hal.registry import get
from portagemm.hal.source import KernelSource, arch_config, shared_include_dir

from .timing import Call, Effort, Timer

#: Bytes of one load, and to what every stretch of the buffer is aligned.
_PIECE = 16
_ALIGNMENT = 256

#: Holds kernels/.
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class ReadKernel:
    """A variant: threads of a block, loads a thread has in flight, blocks a unit (0: as the data needs)."""

    threads: int
    unroll: int
    blocks_per_unit: int = 0

    @property
    def symbol(self) -> str:
        """The kernel's name. Variants that differ in their grid only share it."""
        return f"pg_read_t{self.threads}_u{self.unroll}"

    def grid(self, pieces: int, units: int) -> int:
        """Blocks for so many 16-byte pieces on a device of so many compute units."""
        cover = max(-(-pieces // (self.threads * self.unroll)), 1)
        return min(cover, units * self.blocks_per_unit) if self.blocks_per_unit else cover


GPU_KERNELS: tuple[ReadKernel, ...] = (
    ReadKernel(128, 8),
    ReadKernel(256, 4),
    ReadKernel(256, 8),
    ReadKernel(512, 4),
    ReadKernel(256, 8, 4),
    ReadKernel(512, 4, 4),
    ReadKernel(512, 8, 2),
    ReadKernel(1024, 4, 2),
    ReadKernel(256, 16),
)
CPU_KERNELS: tuple[ReadKernel, ...] = (ReadKernel(1, 4, 1), ReadKernel(1, 8, 1), ReadKernel(1, 16, 1))


def kernels(backend: str) -> tuple[ReadKernel, ...]:
    """The variants tried on a backend."""
    return CPU_KERNELS if backend == "cpu" else GPU_KERNELS


def source(kernel: ReadKernel, selection: Selection) -> KernelSource:
    """A variant's source for the target of a selection."""
    backend = get(selection.target.backend)
    text = (
        f"{arch_config(selection.profile)}\n"
        "#include <kernels/read_probe.hpp>\n"
        f"PG_ENTRY({kernel.symbol}, pg::read_params, {kernel.threads}, 1, "
        f"(pg::read_probe<{kernel.threads}, {kernel.unroll}>))\n"
    )
    folders = (*backend.include_dirs(), shared_include_dir(), _PACKAGE)
    return KernelSource(kernel.symbol, text, selection.target, folders)


class ReadProbe:
    """Times reads on one device. Results are kept by size: rows of a suite share them."""

    def __init__(self, device: Device, timer: Timer) -> None:
        self._device, self._timer = device, timer
        self._effort = Effort(seconds=0.05, least=7, most=20)
        self._data = torch.empty(0, dtype=torch.uint8)
        self._sink = torch.zeros(4, dtype=torch.int32, device=device.torch_device)
        self._codes: dict[str, ObjectCode] = {}
        self._known: dict[tuple[str, int], float] = {}

    def alone(self, size: int) -> float:
        """Microseconds to read `size` bytes once, cache flushed. Raises what compiling raises."""
        if ("alone", size) not in self._known:
            reads = self._reads(size, 1)
            calls: dict[str, Call] = {name: partial(read, 0) for name, read in reads.items()}
            self._known["alone", size] = min(self._timer.alone(calls, self._effort).values())
        return self._known["alone", size]

    def chain(self, size: int, count: int) -> float:
        """Microseconds a read of `size` bytes takes in a graph of `count` reads of different bytes."""
        if ("chain", size) not in self._known:
            reads = self._reads(size, count)
            calls: dict[str, Sequence[Call]] = {
                name: [partial(read, number) for number in range(count)] for name, read in reads.items()
            }
            self._known["chain", size] = min(self._timer.chain(calls, self._effort).values())
        return self._known["chain", size]

    def _reads(self, size: int, count: int) -> dict[str, Callable[[int], None]]:
        """Each variant as a function of which of `count` stretches of `size` bytes to read."""
        stride = -(-size // _ALIGNMENT) * _ALIGNMENT
        if self._data.numel() < stride * count:
            self._data = torch.empty(0, dtype=torch.uint8)  # give the old one back first
            self._data = torch.empty(stride * count, dtype=torch.uint8, device=self._device.torch_device)
            self._data.view(torch.int32).random_()
        pieces = max(size // _PIECE, 1)
        driver = get(self._device.backend).driver()
        index = self._device.index
        start, sink = self._data.data_ptr(), self._sink.data_ptr()

        def bind(kernel: ReadKernel) -> Callable[[int], None]:
            config = LaunchConfig(kernel.grid(pieces, self._device.compute_units), kernel.threads)
            arguments = ArgumentBlock(pack("<QQq", 0, 0, pieces), pointer_offsets=(0, 8), scalar_offsets=())
            launch = driver.prepare(self._code(kernel), config, arguments, index)

            def read(number: int) -> None:
                launch((start + number * stride, sink), (), driver.current_stream(index))

            return read

        return {f"{kernel}": bind(kernel) for kernel in kernels(self._device.backend)}

    def _code(self, kernel: ReadKernel) -> ObjectCode:
        if kernel.symbol not in self._codes:
            selection = launching.selection_of(self._device)
            self._codes[kernel.symbol] = launching.code_of(source(kernel, selection)).code
        return self._codes[kernel.symbol]
