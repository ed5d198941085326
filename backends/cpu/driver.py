"""Loads shared libraries and runs their kernels, one call a block, on a pool of threads.

A kernel is ``extern "C" void SYMBOL(const void* args, int64_t block, int64_t grid, void* shared)``. `shared`
is scratch of the running thread, aligned to 64 bytes and not cleared. The launch returns when all blocks are
done. Calls into a kernel release Python's lock, so blocks run in parallel.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from portagemm.backends.cpu import cpuinfo
from portagemm.hal.errors import LaunchError
from portagemm.hal.program import ArgumentBlock, Launch, LaunchConfig, ObjectCode

#: Alignment of argument blocks and scratch: a cache line, and the widest vector register.
_ALIGN = 64

#: A kernel, called with (args, block, grid, shared).
_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class CpuDriver:
    """The one driver object of the process; `backend.BACKEND.driver()` hands it out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kernels: dict[tuple[bytes, str], Callable[..., None]] = {}  # mapped for good

    def current_stream(self, device_index: int) -> int:
        """0: launches are synchronous."""
        return 0

    def prepare(
        self, code: ObjectCode, config: LaunchConfig, arguments: ArgumentBlock, device_index: int
    ) -> Launch:
        """Map the library and bind the launch. Raises LaunchError: code of another CPU, a GPU's geometry."""
        where = f"kernel {code.symbol} on cpu"
        if device_index != 0:
            raise LaunchError(f"{where}: device index: needed {device_index}, available 0")
        for what, given in (("threads of a block", config.block), ("blocks of a cluster", config.cluster)):
            if given != 1:
                raise LaunchError(f"{where}: {what}: needed {given}, available 1")
        if config.grid < 1 or config.shared_bytes < 0 or arguments.tensor_maps:
            maps = len(arguments.tensor_maps)
            raise LaunchError(f"{where}: not a launch for a CPU: {config}, {maps} tensor maps")
        size = len(arguments.template)
        for unit, offsets in ((8, arguments.pointer_offsets), (4, arguments.scalar_offsets)):
            for offset in offsets:
                if offset % unit or not 0 <= offset <= size - unit:
                    value = f"{unit}-byte value at byte {offset}"
                    raise LaunchError(f"{where}: argument block of {size} bytes: {value}")
        return CpuLaunch(self._kernel(code, where), where, config, arguments)

    def _kernel(self, code: ObjectCode, where: str) -> Callable[..., None]:
        compiled_for = code.compiler.rpartition(" ")[2]
        here = f"cpu-{cpuinfo.features_digest()}"
        if compiled_for.startswith("cpu-") and compiled_for != here:
            raise LaunchError(
                f"{where}: it was compiled for another CPU ({compiled_for}, this one is {here}) and might "
                "use instructions this one lacks; compile it here"
            )
        key = (code.code, code.symbol)
        with self._lock:
            if key not in self._kernels:
                try:
                    library = _load(code.code, code.symbol)
                    self._kernels[key] = _PROTOTYPE((code.symbol, library))
                except (OSError, AttributeError) as error:
                    raise LaunchError(f"{where} cannot be loaded: {error}") from error
            return self._kernels[key]


def _load(code: bytes, symbol: str) -> ctypes.CDLL:
    """Map a library's bytes: from anonymous memory, because temporary folders are often mounted noexec."""
    if hasattr(os, "memfd_create"):
        try:
            # NOTE: the descriptor stays open. The loader knows libraries by path, so a number used again
            # would hand out the library loaded under it before.
            descriptor = os.memfd_create(symbol[:200])
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(code)
            return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
        except OSError:  # no /proc, or a policy against executable memory files
            pass
    with tempfile.TemporaryDirectory(prefix="portagemm-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, f"{symbol}.so")
        path.write_bytes(code)
        return ctypes.CDLL(str(path))


class _Workers:
    """A pool of as many threads as any launch has asked for, made anew after a fork."""

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # Threads do not survive a fork, and a lock may have been held by one of them.
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0

    def submit(self, size: int, function: Callable[..., None], *arguments: Any) -> Future[None]:
        """Run on a pool of at least `size` threads. RuntimeError: the interpreter is shutting down."""
        with self._lock:
            if self._pool is None or self._size < size:
                if self._pool is not None:
                    self._pool.shutdown(wait=False)  # finishes what it has
                self._pool = ThreadPoolExecutor(size, thread_name_prefix="portagemm")
                self._size = size
            return self._pool.submit(function, *arguments)


_workers = _Workers()
_scratch = threading.local()


def threads() -> int:
    """Threads a launch may use: torch.get_num_threads(), else the usable cores."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else cpuinfo.usable_cores()


def _scratch_address(size: int) -> int:
    """Address of this thread's scratch, at least `size` bytes."""
    if not size:
        return 0
    if getattr(_scratch, "size", 0) < size:
        _scratch.memory = ctypes.create_string_buffer(size + _ALIGN)
        _scratch.size = size
        _scratch.address = _aligned(_scratch.memory)
    address: int = _scratch.address
    return address


def _aligned(memory: Any) -> int:
    return -(-ctypes.addressof(memory) // _ALIGN) * _ALIGN


class CpuLaunch:
    """A prepared launch. Thread-safe: each call in progress has an argument block of its own."""

    __slots__ = (
        "_arguments", "_free", "_grid", "_kernel", "_pointers", "_scalars", "_shared_bytes", "_where",
    )  # fmt: skip

    def __init__(
        self, kernel: Callable[..., None], where: str, config: LaunchConfig, arguments: ArgumentBlock
    ) -> None:
        self._kernel, self._where = kernel, where
        self._grid, self._shared_bytes = config.grid, config.shared_bytes
        self._arguments = arguments
        self._pointers = tuple(offset // 8 for offset in arguments.pointer_offsets)
        self._scalars = tuple(offset // 4 for offset in arguments.scalar_offsets)
        self._free = [_Slot(arguments.template)]

    def __call__(self, pointers: Sequence[int], scalars: Sequence[float], stream: int) -> None:
        """Run the kernel and return when it is done. An exception in a worker is raised here."""
        if len(pointers) != len(self._pointers) or len(scalars) != len(self._scalars):
            raise LaunchError(
                f"{self._where}: pointers: needed {len(self._pointers)}, given {len(pointers)}; "
                f"scalars: needed {len(self._scalars)}, given {len(scalars)}"
            )
        try:
            slot = self._free.pop()
        except IndexError:
            slot = _Slot(self._arguments.template)
        for index, pointer in zip(self._pointers, pointers):  # noqa: B905  lengths are equal
            slot.words[index] = pointer
        for index, scalar in zip(self._scalars, scalars):  # noqa: B905
            slot.floats[index] = scalar
        lanes = 1 if self._grid == 1 else min(self._grid, threads())
        if lanes == 1:
            self._blocks(slot.address, 0, 1)
        else:
            self._spread(slot.address, lanes)
        self._free.append(slot)

    def _spread(self, address: int, lanes: int) -> None:
        """Blocks 0, lanes, 2 * lanes ... here, the others on workers."""
        futures = []
        inline = []
        for lane in range(1, lanes):
            try:
                futures.append(_workers.submit(lanes - 1, self._blocks, address, lane, lanes))
            except RuntimeError:  # the interpreter is shutting down, or no thread can be started
                inline.append(lane)
        try:
            for lane in (0, *inline):
                self._blocks(address, lane, lanes)
        finally:
            _wait_all(futures)  # even on an interrupt: workers still read the argument block
        for future in futures:
            future.result()

    def _blocks(self, address: int, first: int, step: int) -> None:
        kernel, grid = self._kernel, self._grid
        shared = _scratch_address(self._shared_bytes)
        for block in range(first, grid, step):
            kernel(address, block, grid, shared)


def _wait_all(futures: Sequence[Future[None]]) -> None:
    """Wait until all are done; an interrupt is raised after that."""
    interrupt: BaseException | None = None
    while True:
        try:
            wait(futures)
            break
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


class _Slot:
    """Memory of one argument block."""

    __slots__ = ("address", "floats", "memory", "words")

    def __init__(self, template: bytes) -> None:
        size = -(-len(template) // 8) * 8
        self.memory = ctypes.create_string_buffer(size + _ALIGN)
        self.address = _aligned(self.memory)
        start = self.address - ctypes.addressof(self.memory)
        view = memoryview(self.memory).cast("B")[start : start + size]
        view[: len(template)] = template
        self.words, self.floats = view.cast("Q"), view.cast("f")
