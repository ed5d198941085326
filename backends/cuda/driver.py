"""Loads code objects into the CUDA driver and launches them.

A call writes addresses and scalars into a ready argument block and makes two driver calls: is the right
device current, launch. Everything else is decided in `prepare`. Kernels are context-independent handles
(cuLibrary*), so a launch follows whatever context of its device the caller has made current; where another
device or none is current, the device's primary context, which is torch's, is made so for the call.
"""

from __future__ import annotations

import array
import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from portagemm.backends.cuda import libcuda
from portagemm.backends.cuda.libcuda import DriverError
from portagemm.backends.cuda.probe import version_text
from portagemm.hal.errors import LaunchError
from portagemm.hal.program import ArgumentBlock, Launch, LaunchConfig, ObjectCode, TensorMap

#: Dynamic shared memory a kernel may have without asking for more, static part included.
_PLAIN_SHARED_BYTES = 48 * 1024
#: Largest cluster every device with clusters takes.
_PORTABLE_CLUSTER = 8
#: Alignment of argument blocks: tensor maps want 64 bytes, kernels may declare up to 128.
_ALIGN = 128

# CUlaunchConfig: 7 32-bit fields, padding, stream at 32, attributes at 40, their number at 48.
_CONFIG_BYTES, _CONFIG_STREAM_WORD = 56, 4
# CUlaunchAttribute: id, padding to 8, a 64-byte union.
_ATTRIBUTE_BYTES = 72

# CUtensorMapDataType by hal dtype name.
_TENSOR_MAP_TYPES = {"fp16": 6, "fp32": 7, "bf16": 9}
_TENSOR_MAP_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_TENSOR_MAP_BYTES, _TENSOR_MAP_ALIGN, _TENSOR_MAP_MAX_RANK = 128, 64, 5
_L2_PROMOTION_256B = 3

_FORK_HINT = (
    "CUDA cannot be used in a process forked after the parent used it; "
    "start workers by 'spawn' (torch.multiprocessing.get_context('spawn'))"
)


class CudaDriver:
    """The one driver object of the process; `backend.BACKEND.driver()` hands it out."""

    def __init__(self) -> None:
        self._library = libcuda.load()
        self._lock = threading.Lock()
        self._pid: int | None = None  # the process that initialised the driver through this object
        self._contexts: dict[int, int] = {}  # device -> its primary context, retained for good
        # Kernels stay loaded for good: a captured graph may hold one long after its launcher is gone.
        self._kernels: dict[tuple[bytes, str], int] = {}
        self._dynamic_shared: dict[tuple[int, int], int] = {}  # (kernel, device) -> limit set so far
        self._raw_stream: Callable[[int], int] | None = None

    def current_stream(self, device_index: int) -> int:
        """Handle of torch's current stream on that device (0: the legacy default stream)."""
        if self._raw_stream is None:
            self._raw_stream = _stream_getter()
        return self._raw_stream(device_index)

    def prepare(
        self, code: ObjectCode, config: LaunchConfig, arguments: ArgumentBlock, device_index: int
    ) -> Launch:
        """Load the kernel on the device and bind the launch; also while this thread captures a graph.

        Raises LaunchError when the device cannot take the kernel: arch, threads, shared memory, cluster or
        grid. Nothing has been launched then and the device stays usable.
        """
        where = f"kernel {code.symbol} on cuda:{device_index}"
        try:
            with self._relaxed_capture(), self._device(device_index) as device:
                kernel = self._kernel(code, device)
                self._check(code, config, kernel, device, where)
                context = self._contexts[device]
                return CudaLaunch(self._library, where, config, arguments, kernel, device, context)
        except DriverError as error:
            raise LaunchError(f"{where} cannot be loaded: {error}{self._hint(error.code, code)}") from error

    # -- context ---------------------------------------------------------------------------------

    @contextmanager
    def _relaxed_capture(self) -> Iterator[None]:
        """Allow this thread calls that a capture in progress would forbid, such as loading a kernel."""
        self._initialise()
        mode = ctypes.c_int(libcuda.CAPTURE_MODE_RELAXED)
        libcuda.call(self._library, "cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self._library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def _initialise(self) -> None:
        pid = os.getpid()
        if self._pid == pid:
            return
        if self._pid is not None:  # before any lock: its holder may not exist in this process
            raise LaunchError(_FORK_HINT)
        libcuda.call(self._library, "cuInit", 0)
        self._pid = pid

    @contextmanager
    def _device(self, index: int) -> Iterator[int]:
        """Make the device's primary context current for a while; yields its CUdevice."""
        handle = ctypes.c_int()
        libcuda.call(self._library, "cuDeviceGet", ctypes.byref(handle), index)
        device = handle.value
        with self._lock:
            if device not in self._contexts:
                context = ctypes.c_void_p()
                libcuda.call(self._library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
                self._contexts[device] = context.value or 0
        libcuda.call(self._library, "cuCtxPushCurrent_v2", self._contexts[device])
        try:
            yield device
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    # -- loading ---------------------------------------------------------------------------------

    def _kernel(self, code: ObjectCode, device: int) -> int:
        """The kernel's handle, loaded into the current context, so that its first launch loads nothing."""
        key = (code.code, code.symbol)
        with self._lock:
            if key not in self._kernels:
                self._check_version(code)
                library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
                options = (None, None, 0, None, None, 0)  # neither for the JIT nor for the library
                libcuda.call(self._library, "cuLibraryLoadData", ctypes.byref(library), code.code, *options)
                name = code.symbol.encode()
                libcuda.call(self._library, "cuLibraryGetKernel", ctypes.byref(kernel), library, name)
                self._kernels[key] = kernel.value or 0
            handle = self._kernels[key]
        function = ctypes.c_void_p()
        libcuda.call(self._library, "cuKernelGetFunction", ctypes.byref(function), handle)
        if hasattr(self._library, "cuFuncLoad"):  # CUDA 12.4: lazy loading ends here
            libcuda.call(self._library, "cuFuncLoad", function)
        return handle

    def _check_version(self, code: ObjectCode) -> None:
        """Minor versions of the compiler may be newer than the driver's CUDA, major ones may not."""
        words = code.compiler.split()
        if len(words) < 2 or not words[1].split(".")[0].isdigit():
            return
        major = int(words[1].split(".")[0])
        version = libcuda.driver_version(self._library)
        if major > version // 1000:
            raise LaunchError(
                f"kernel {code.symbol} was compiled by {code.compiler}, but the NVIDIA driver supports CUDA "
                f"{version_text(version)} at most: update the driver, or install "
                f"portagemm[cuda{version // 1000}]"
            )

    def _check(self, code: ObjectCode, config: LaunchConfig, kernel: int, device: int, where: str) -> None:
        """Compare the launch with the limits of device and kernel, and raise those that can be raised."""

        def refuse(what: str, needed: object, available: object) -> None:
            raise LaunchError(f"{where}: {what}: needed {needed}, available {available}")

        threads = self._kernel_attribute(libcuda.FUNC_MAX_THREADS_PER_BLOCK, kernel, device)
        if not 1 <= config.block <= threads:
            refuse("threads of a block", config.block, f"1 to {threads}")
        grid = libcuda.attribute(self._library, libcuda.MAX_GRID_DIM_X, device)
        if not 1 <= config.grid <= grid:
            refuse("blocks of the grid", config.grid, f"1 to {grid}")
        if config.cluster > 1:
            if not libcuda.attribute(self._library, libcuda.CLUSTER_LAUNCH, device):
                refuse("blocks of a cluster", config.cluster, "1 (the device has no clusters)")
            if config.grid % config.cluster:
                refuse("blocks of the grid", f"a multiple of the cluster's {config.cluster}", config.grid)
        static = self._kernel_attribute(libcuda.FUNC_SHARED_SIZE_BYTES, kernel, device)
        limit = libcuda.attribute(self._library, libcuda.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device)
        if static + config.shared_bytes > limit:
            refuse("shared memory of a block", f"{static + config.shared_bytes} bytes", f"{limit} bytes")
        with self._lock:
            if config.cluster > _PORTABLE_CLUSTER:
                self._set_attribute(libcuda.FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, kernel, device)
            # Only ever raised: another launch of this kernel may rely on the larger value. Not touched
            # without need: the driver waits for running copies when it is set.
            present = self._dynamic_shared.get((kernel, device), _PLAIN_SHARED_BYTES - static)
            if config.shared_bytes > present:
                self._set_attribute(
                    libcuda.FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, config.shared_bytes, kernel, device
                )
                self._dynamic_shared[kernel, device] = config.shared_bytes

    def _kernel_attribute(self, which: int, kernel: int, device: int) -> int:
        value = ctypes.c_int()
        libcuda.call(self._library, "cuKernelGetAttribute", ctypes.byref(value), which, kernel, device)
        return value.value

    def _set_attribute(self, which: int, value: int, kernel: int, device: int) -> None:
        libcuda.call(self._library, "cuKernelSetAttribute", which, value, kernel, device)

    def _hint(self, code: int, kernel: ObjectCode) -> str:
        if code == libcuda.NOT_INITIALIZED:
            return f". {_FORK_HINT}"
        return f" (compiled for {kernel.target.code_arch} by {kernel.compiler})"


def _stream_getter() -> Callable[[int], int]:
    """The cheapest way to torch's current stream that this torch has."""
    import torch

    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return raw  # type: ignore[no-any-return]
    return lambda index: torch.cuda.current_stream(index).cuda_stream


def _attributes(config: LaunchConfig) -> list[tuple[int, ...]]:
    """CUlaunchAttributes as 32-bit words: the id, 4 bytes of padding, the value."""
    attributes: list[tuple[int, ...]] = []
    if config.cluster > 1:
        attributes.append((libcuda.LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 0, config.cluster, 1, 1))
    if config.programmatic:
        attributes.append((libcuda.LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1))
    return attributes


class _Slot:
    """The memory of one launch in flight on the host: argument block, launch configuration, parameters.

    All in one allocation: [argument block | pointer to it | CUlaunchConfig | CUlaunchAttribute ...]. The driver
    copies it before the launch call returns.
    """

    __slots__ = (
        "address", "config", "config_words", "device", "device_ref", "floats", "map_addresses", "memory",
        "params", "words",
    )  # fmt: skip

    def __init__(self, config: LaunchConfig, arguments: ArgumentBlock) -> None:
        size = -(-len(arguments.template) // _ALIGN) * _ALIGN
        attributes = _attributes(config)
        self.memory = ctypes.create_string_buffer(
            _ALIGN + size + 8 + _CONFIG_BYTES + len(attributes) * _ATTRIBUTE_BYTES
        )
        base = ctypes.addressof(self.memory)
        start = -base % _ALIGN
        params = start + size
        launch = params + 8
        attribute = launch + _CONFIG_BYTES
        view = memoryview(self.memory).cast("B")
        # The argument block, and its two views for what changes with each call.
        self.address = base + start
        view[start : start + len(arguments.template)] = arguments.template
        self.words, self.floats = view[start:params].cast("Q"), view[start:params].cast("f")
        # The kernel's one parameter.
        view[params:launch].cast("Q")[0] = self.address
        self.params = ctypes.byref(self.memory, params)
        # CUlaunchConfig.
        self.config = ctypes.byref(self.memory, launch)
        self.config_words = view[launch:attribute].cast("Q")
        numbers = view[launch:attribute].cast("I")
        for number, value in enumerate((config.grid, 1, 1, config.block, 1, 1, config.shared_bytes)):
            numbers[number] = value
        if attributes:
            self.config_words[5] = base + attribute
            numbers[12] = len(attributes)
        for number, values in enumerate(attributes):
            at = attribute + number * _ATTRIBUTE_BYTES
            view[at : at + 4 * len(values)].cast("I")[:] = array.array("I", values)
        # Where the driver writes the current device.
        self.device = ctypes.c_int(-1)
        self.device_ref = ctypes.byref(self.device)
        # Addresses the tensor maps carry; None: not encoded yet.
        self.map_addresses: list[int | None] = [None] * len(arguments.tensor_maps)


class CudaLaunch:
    """A prepared launch. Thread-safe: each call in progress has a slot of its own, kept for the next one."""

    __slots__ = (
        "_arguments", "_config", "_context", "_device", "_free", "_get_device", "_kernel", "_launch",
        "_library", "_map_operands", "_pointer_words", "_scalar_floats", "_where",
    )  # fmt: skip

    def __init__(
        self,
        library: Any,
        where: str,
        config: LaunchConfig,
        arguments: ArgumentBlock,
        kernel: int,
        device: int,
        context: int,
    ) -> None:
        _check_block(arguments, where)
        self._library, self._where, self._config, self._arguments = library, where, config, arguments
        self._kernel, self._device, self._context = ctypes.c_void_p(kernel), device, context
        self._launch, self._get_device = library.cuLaunchKernelEx, library.cuCtxGetDevice
        self._pointer_words = tuple(offset // 8 for offset in arguments.pointer_offsets)
        self._scalar_floats = tuple(offset // 4 for offset in arguments.scalar_offsets)
        self._map_operands = tuple((i, entry.operand) for i, entry in enumerate(arguments.tensor_maps))
        self._free = [_Slot(config, arguments)]

    def __call__(self, pointers: Sequence[int], scalars: Sequence[float], stream: int) -> None:
        """Enqueue the kernel on `stream`, a stream of this launch's device. Raises LaunchError."""
        if len(pointers) != len(self._pointer_words) or len(scalars) != len(self._scalar_floats):
            raise self._count_error(pointers, scalars)
        try:
            slot = self._free.pop()
        except IndexError:
            slot = _Slot(self._config, self._arguments)
        words = slot.words
        for index, pointer in zip(self._pointer_words, pointers):  # noqa: B905  lengths are equal
            words[index] = pointer
        floats = slot.floats
        for index, scalar in zip(self._scalar_floats, scalars):  # noqa: B905
            floats[index] = scalar
        slot.config_words[_CONFIG_STREAM_WORD] = stream
        if self._get_device(slot.device_ref) or slot.device.value != self._device:
            status = self._launch_elsewhere(slot, pointers)
        else:
            for number, operand in self._map_operands:
                if slot.map_addresses[number] != pointers[operand]:
                    self._address_map(slot, number, pointers[operand])
            status = self._launch(slot.config, self._kernel, slot.params, None)
        self._free.append(slot)
        if status:
            raise self._error("cannot be launched", status)

    def _launch_elsewhere(self, slot: _Slot, pointers: Sequence[int]) -> int:
        """Launch while another device or none is current; what was current is so again afterwards."""
        status: int = self._library.cuCtxPushCurrent_v2(self._context)
        if status:
            return status
        try:
            for number, operand in self._map_operands:  # the driver wants a context for these as well
                if slot.map_addresses[number] != pointers[operand]:
                    self._address_map(slot, number, pointers[operand])
            return int(self._launch(slot.config, self._kernel, slot.params, None))
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def _address_map(self, slot: _Slot, number: int, pointer: int) -> None:
        """Make a tensor map of the slot carry `pointer`: encode it at its first use, then re-address it."""
        entry = self._arguments.tensor_maps[number]
        if pointer & 15:
            raise LaunchError(
                f"{self._where}: operand {entry.operand} is read by TMA: its address must be a multiple of "
                f"16 bytes, given {pointer:#x}"
            )
        if slot.map_addresses[number] is None:
            status = _encode(self._library, entry, slot.address + entry.offset, pointer)
        else:
            status = self._library.cuTensorMapReplaceAddress(slot.address + entry.offset, pointer)
        if status:
            slot.map_addresses[number] = None
            raise self._error(f"has a tensor map ({entry}) the driver refuses", status)
        slot.map_addresses[number] = pointer

    def _error(self, what: str, status: int) -> LaunchError:
        c = self._config
        text = libcuda.error_text(self._library, status)
        geometry = f"grid {c.grid}, block {c.block}, cluster {c.cluster}, {c.shared_bytes} bytes shared"
        hint = f". {_FORK_HINT}" if status == libcuda.NOT_INITIALIZED else ""
        return LaunchError(f"{self._where} {what}: {text} ({geometry}){hint}")

    def _count_error(self, pointers: Sequence[int], scalars: Sequence[float]) -> LaunchError:
        return LaunchError(
            f"{self._where}: pointers: needed {len(self._pointer_words)}, given {len(pointers)}; "
            f"scalars: needed {len(self._scalar_floats)}, given {len(scalars)}"
        )


def _encode(library: Any, entry: TensorMap, target: int, pointer: int) -> int:
    """Write a tensor map for `pointer` to address `target`. Returns a CUresult."""
    rank = len(entry.shape)
    return int(
        library.cuTensorMapEncodeTiled(
            target,
            _TENSOR_MAP_TYPES[entry.dtype],
            rank,
            pointer,
            (ctypes.c_uint64 * rank)(*entry.shape),
            (ctypes.c_uint64 * rank)(*entry.strides),
            (ctypes.c_uint32 * rank)(*entry.box),
            (ctypes.c_uint32 * rank)(*([1] * rank)),
            0,  # not interleaved
            _TENSOR_MAP_SWIZZLES[entry.swizzle_bytes],
            _L2_PROMOTION_256B,
            0,  # elements outside read as zero
        )
    )


def _check_block(arguments: ArgumentBlock, where: str) -> None:
    """Refuse an argument block that the memory views or the driver could not take as it is."""
    size = len(arguments.template)

    def refuse(what: str) -> None:
        raise LaunchError(f"{where}: argument block of {size} bytes: {what}")

    for offset in arguments.pointer_offsets:
        if offset % 8 or not 0 <= offset <= size - 8:
            refuse(f"pointer at byte {offset}")
    for offset in arguments.scalar_offsets:
        if offset % 4 or not 0 <= offset <= size - 4:
            refuse(f"scalar at byte {offset}")
    for entry in arguments.tensor_maps:
        name = f"tensor map of operand {entry.operand}"
        rank = len(entry.shape)
        if entry.offset % _TENSOR_MAP_ALIGN or not 0 <= entry.offset <= size - _TENSOR_MAP_BYTES:
            refuse(f"{name} at byte {entry.offset}; multiples of {_TENSOR_MAP_ALIGN} are allowed")
        if not 1 <= rank <= _TENSOR_MAP_MAX_RANK or len(entry.box) != rank or len(entry.strides) != rank - 1:
            refuse(f"{name}: shape {entry.shape}, strides {entry.strides}, box {entry.box}")
        if not 0 <= entry.operand < len(arguments.pointer_offsets):
            refuse(f"{name}: there are {len(arguments.pointer_offsets)} pointers")
        if entry.dtype not in _TENSOR_MAP_TYPES or entry.swizzle_bytes not in _TENSOR_MAP_SWIZZLES:
            refuse(f"{name}: dtype {entry.dtype}, swizzle of {entry.swizzle_bytes} bytes")
