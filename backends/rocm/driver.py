"""Loads code objects and launches kernels through hip-python."""

from __future__ import annotations

import ctypes
import hashlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from portagemm.hal.errors import LaunchError
from portagemm.hal.program import ArgumentBlock, LaunchConfig, ObjectCode

from . import hip as binding
from . import kfd

# HIP multiplies grid by block into a 32-bit count of work items (see hipModuleLaunchKernel).
_MAX_WORK_ITEMS = 2**32 - 1

# hipFunction_attribute and hipStreamCaptureMode, by number: the names differ between hip-python releases.
_MAX_THREADS_PER_BLOCK, _SHARED_SIZE_BYTES = 0, 1
_CAPTURE_MODE_RELAXED = 2

# Keys of hipModuleLaunchKernel's `extra` list.
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 3


@dataclass(frozen=True)
class _Limits:
    """What a device allows, read from the runtime."""

    arch: str
    features: str
    threads_per_block: int
    shared_bytes: int


class HipLaunch:
    """A prepared launch. Thread-safe: each thread has an argument block of its own.

    HIP copies the block before hipModuleLaunchKernel returns, so a thread's next call may overwrite it.
    """

    def __init__(
        self,
        hip: Any,
        symbol: str,
        function: Any,
        config: LaunchConfig,
        arguments: ArgumentBlock,
        device: int,
    ) -> None:
        self._hip, self._symbol, self._function = hip, symbol, function
        self._config, self._device = config, device
        self._template = arguments.template
        self._pointers = tuple(offset // 8 for offset in arguments.pointer_offsets)
        self._scalars = tuple(offset // 4 for offset in arguments.scalar_offsets)
        self._threads = threading.local()

    def __call__(self, pointers: Sequence[int], scalars: Sequence[float], stream: int) -> None:
        """Enqueue the kernel on `stream` of its device, whichever device is current.

        Raises LaunchError naming kernel, geometry and HIP's error.
        """
        try:
            words, floats, extra, _ = self._threads.buffers
        except AttributeError:
            words, floats, extra, _ = self._threads.buffers = self._buffers()
        for index, pointer in zip(self._pointers, pointers, strict=True):
            words[index] = pointer
        for index, scalar in zip(self._scalars, scalars, strict=True):
            floats[index] = scalar
        hip = self._hip
        status, current = hip.hipGetDevice()
        if current == self._device and status == 0:
            self._launch(stream, extra)
            return
        try:
            with _current_device(hip, self._device):
                self._launch(stream, extra)
        except binding.HipError as error:
            binding.take_last_error(hip)
            raise LaunchError(f"kernel {self._symbol} on rocm:{self._device}: {error}") from error

    def _buffers(self) -> tuple[Any, Any, Any, Any]:
        """The block as 8-byte words and as floats, hipModuleLaunchKernel's `extra`, and the size it points to."""
        size = len(self._template)
        words = (ctypes.c_uint64 * -(-size // 8))()
        ctypes.memmove(words, self._template, size)
        floats = (ctypes.c_float * (size // 4)).from_buffer(words)
        length = ctypes.c_size_t(size)
        extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(words), _BUFFER_SIZE, ctypes.addressof(length), _END
        )
        return words, floats, extra, length

    def _launch(self, stream: int, extra: Any) -> None:
        config = self._config
        (error, *_) = self._hip.hipModuleLaunchKernel(
            self._function, config.grid, 1, 1, config.block, 1, 1, config.shared_bytes, stream, None, extra
        )
        if error != 0:
            binding.take_last_error(self._hip)
            raise LaunchError(
                f"kernel {self._symbol} on rocm:{self._device}: "
                f"{binding.HipError('hipModuleLaunchKernel', error)}, for grid {config.grid}, "
                f"block {config.block}, {config.shared_bytes} B of dynamic LDS"
            )


class RocmDriver:
    """The driver of the rocm backend (see portagemm.hal.program.Driver)."""

    def __init__(self) -> None:
        self._hip = binding.runtime()
        self._lock = threading.Lock()
        self._functions: dict[tuple[bytes, str, int], tuple[Any, Any, bytes]] = {}
        self._limits: dict[int, _Limits] = {}

    def prepare(
        self, code: ObjectCode, config: LaunchConfig, arguments: ArgumentBlock, device_index: int
    ) -> HipLaunch:
        """Load `code` (once a code object and device) and bind the launch.

        Raises LaunchError naming kernel, need and limit: wrong arch, threads, LDS, grid; or HIP's error.
        Checked here and not left to HIP, which reports a too large kernel as an invalid value, or not at all.
        """
        where = f"kernel {code.symbol} on rocm:{device_index}"
        for unit, offsets in ((8, arguments.pointer_offsets), (4, arguments.scalar_offsets)):
            for offset in offsets:
                if offset % unit or not 0 <= offset <= len(arguments.template) - unit:
                    raise LaunchError(
                        f"{where}: {unit}-byte value at byte {offset} of an argument block of "
                        f"{len(arguments.template)} bytes"
                    )
        if arguments.tensor_maps:
            raise LaunchError(f"{where}: tensor maps are Hopper's; AMD kernels take addresses only")
        try:
            limits = self.limits(device_index)
            if code.target.code_arch != limits.arch:
                raise LaunchError(
                    f"{where}: compiled for {code.target.code_arch}, the device is {limits.arch}"
                    + (f" ({limits.features})" if limits.features else "")
                    + _other_order(code.target.code_arch, device_index)
                )
            function = self._function(code, device_index)
            with _current_device(self._hip, device_index):
                static = self._attribute(function, _SHARED_SIZE_BYTES)
                most_threads = min(
                    self._attribute(function, _MAX_THREADS_PER_BLOCK), limits.threads_per_block
                )
        except binding.HipError as error:
            binding.take_last_error(self._hip)
            raise LaunchError(f"{where}: {error}") from error
        needed = static + config.shared_bytes
        if needed > limits.shared_bytes:
            raise LaunchError(
                f"{where}: needs {needed} B of LDS a block, available are {limits.shared_bytes} B"
            )
        if not 1 <= config.block <= most_threads:
            raise LaunchError(
                f"{where}: needs {config.block} threads a block, available are 1 to {most_threads}"
            )
        most_blocks = _MAX_WORK_ITEMS // config.block
        if not 1 <= config.grid <= most_blocks:
            raise LaunchError(
                f"{where}: needs a grid of {config.grid} blocks, available are 1 to {most_blocks}"
            )
        if config.cluster != 1:
            raise LaunchError(f"{where}: needs clusters of {config.cluster} blocks, available is 1")
        return HipLaunch(self._hip, code.symbol, function, config, arguments, device_index)

    def current_stream(self, device_index: int) -> int:
        """Handle of torch's current stream on that device; the null stream where torch has no ROCm."""
        return _stream_reader()(device_index)

    def limits(self, device_index: int) -> _Limits:
        """The device's limits. Raises LaunchError for an index that HIP does not know."""
        known = self._limits.get(device_index)
        if known is None:
            try:
                properties = binding.device_properties(self._hip, device_index)
            except binding.HipError as error:
                binding.take_last_error(self._hip)
                raise LaunchError(f"rocm:{device_index}: {error}") from error
            arch, features = binding.arch_and_features(properties.gcnArchName)
            known = _Limits(
                arch, features, int(properties.maxThreadsPerBlock), int(properties.sharedMemPerBlock)
            )
            self._limits[device_index] = known
        return known

    def _attribute(self, function: Any, number: int) -> int:
        attribute = self._hip.hipFunction_attribute(number)
        return int(binding.check("hipFuncGetAttribute", self._hip.hipFuncGetAttribute(attribute, function)))

    def _function(self, code: ObjectCode, device_index: int) -> Any:
        """The kernel's handle; its module stays loaded as long as the driver lives."""
        key = (hashlib.sha256(code.code).digest(), code.symbol, device_index)
        with self._lock:
            held = self._functions.get(key)
            if held is None:
                with _current_device(self._hip, device_index), _relaxed_capture():
                    module = binding.check("hipModuleLoadData", self._hip.hipModuleLoadData(code.code))
                    function = binding.check(
                        "hipModuleGetFunction", self._hip.hipModuleGetFunction(module, code.symbol.encode())
                    )
                # NOTE: the bytes stay too: HIP goes on using a code object's memory without a copy of its own
                # (clr, FatBinaryInfo::AddDevProgram).
                held = self._functions[key] = (module, function, code.code)
            return held[1]


def _other_order(arch: str, index: int) -> str:
    """What to do where the kernel's list of devices, by which the profile was chosen, has this arch at `index`."""
    listed = kfd.devices()
    if index >= len(listed) or listed[index].arch != arch:
        return ""
    return (
        f"; the kernel's list has {arch} at that number, so HIP counts the devices in another order: "
        "leave one kind of them by ROCR_VISIBLE_DEVICES=GPU-<unique id>"
    )


@contextmanager
def _current_device(hip: Any, index: int) -> Iterator[None]:
    """Make `index` the calling thread's device for the block, if it is another now."""
    before = int(binding.check("hipGetDevice", hip.hipGetDevice()))
    if before == index:
        yield
        return
    binding.check("hipSetDevice", hip.hipSetDevice(index))
    try:
        yield
    finally:
        binding.check("hipSetDevice", hip.hipSetDevice(before))


@contextmanager
def _relaxed_capture() -> Iterator[None]:
    """Let this thread load a module while a stream of its own captures a graph.

    hip-python takes no input for this call, whose one argument is read and written: hence ctypes.
    """
    libraries = binding.loaded_libraries("libamdhip64.so")
    exchange: Any = (
        getattr(ctypes.CDLL(str(libraries[0])), "hipThreadExchangeStreamCaptureMode", None)
        if libraries
        else None
    )
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
    swapped = exchange(ctypes.byref(mode)) == 0
    try:
        yield
    finally:
        if swapped:
            exchange(ctypes.byref(mode))


def _stream_reader() -> Callable[[int], int]:
    """How to read torch's current stream: its raw getter where there is one, else the public object."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.version, "hip", None) is None:
        return lambda index: 0
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return lambda index: int(raw(index))
    return lambda index: int(torch.cuda.current_stream(index).cuda_stream)
