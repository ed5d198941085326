"""The CUDA driver's C interface through ctypes: library, entry points, error texts, facts of the devices.

NOTE: this file uses the standard library alone and imports nothing of this package. `probe.py` runs it in a
child process (``python libcuda.py`` prints the devices as JSON), because asking the driver needs cuInit, and
a process that has called cuInit cannot use CUDA after a fork.
"""

from __future__ import annotations

import ctypes
import json
import sys
from functools import cache
from typing import Any

#: Names to load, the linker's first. WSL2 keeps the library where no linker path points.
LIBRARY_NAMES: tuple[str, ...] = (
    ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
)

#: Oldest CUDA version of the driver that has the library and launch interface used here (R525).
MINIMUM_VERSION = 12000

SUCCESS = 0
NOT_INITIALIZED = 3
NO_DEVICE = 100
INVALID_CONTEXT = 201

# CUdevice_attribute
MAX_THREADS_PER_BLOCK = 1
MAX_GRID_DIM_X = 5
MULTIPROCESSOR_COUNT = 16
INTEGRATED = 18
COMPUTE_MODE = 20
ECC_ENABLED = 32
MEMORY_CLOCK_RATE = 36  # kHz
GLOBAL_MEMORY_BUS_WIDTH = 37  # bits
L2_CACHE_SIZE = 38
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
CLUSTER_LAUNCH = 120

# CUfunction_attribute
FUNC_MAX_THREADS_PER_BLOCK = 0
FUNC_SHARED_SIZE_BYTES = 1
FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14

# CUlaunchAttributeID, CUstreamCaptureMode
LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
CAPTURE_MODE_RELAXED = 2

_P = ctypes.c_void_p
_I = ctypes.c_int
_U = ctypes.c_uint

#: Entry points and their argument types; all return a CUresult. Written from cuda.h of CUDA 12.0 and 13.0.
#: None: called on every launch, with ready-made ctypes objects alone, since converting by type takes longer.
PROTOTYPES: dict[str, tuple[Any, ...] | None] = {
    "cuInit": (_U,),
    "cuDriverGetVersion": (_P,),
    "cuGetErrorName": (_I, _P),
    "cuGetErrorString": (_I, _P),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, _I),
    "cuDeviceGetName": (_P, _I, _I),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuDeviceTotalMem_v2": (_P, _I),
    "cuDevicePrimaryCtxRetain": (_P, _I),
    "cuCtxGetCurrent": (_P,),
    "cuCtxGetDevice": None,
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_P,),
    "cuThreadExchangeStreamCaptureMode": (_P,),
    "cuLibraryLoadData": (_P, _P, _P, _P, _U, _P, _P, _U),
    "cuLibraryGetKernel": (_P, _P, ctypes.c_char_p),
    "cuKernelGetFunction": (_P, _P),
    "cuKernelGetAttribute": (_P, _I, _P, _I),
    "cuKernelSetAttribute": (_I, _I, _P, _I),
    "cuFuncLoad": (_P,),
    "cuLaunchKernelEx": None,
    "cuTensorMapEncodeTiled": (_P, _I, _U, _P, _P, _P, _P, _P, _I, _I, _I, _I),
    "cuTensorMapReplaceAddress": (_P, _P),
}


class DriverError(Exception):
    """A driver call failed. `code` is its CUresult, `call` the entry point's name."""

    def __init__(self, call: str, code: int, text: str) -> None:
        self.call, self.code, self.text = call, code, text
        super().__init__(f"{call}: {text}")


@cache
def load() -> ctypes.CDLL:
    """The driver's library, with argument types set. No call is made. Raises OSError if there is none.

    A function that this driver does not have yet is simply absent (hasattr tells).
    """
    failures = []
    for name in LIBRARY_NAMES:
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            failures.append(str(error))
            continue
        for function, types in PROTOTYPES.items():
            if types is not None and hasattr(library, function):
                getattr(library, function).argtypes = types
        return library
    raise OSError("; ".join(failures))


def error_text(library: ctypes.CDLL, code: int) -> str:
    """``CUDA_ERROR_NAME (code): description`` in the driver's own words."""
    parts = []
    for function in ("cuGetErrorName", "cuGetErrorString"):
        text = ctypes.c_char_p()
        if hasattr(library, function):
            getattr(library, function)(code, ctypes.byref(text))
        parts.append((text.value or b"").decode(errors="replace"))
    name, description = parts
    return f"{name or 'unknown error'} ({code})" + (f": {description}" if description else "")


def call(library: ctypes.CDLL, function: str, *arguments: Any) -> None:
    """Call an entry point. Raises DriverError unless it returns CUDA_SUCCESS."""
    if not hasattr(library, function):
        raise DriverError(function, -1, "this driver does not have it; CUDA 12.0 (R525) or newer is needed")
    code = getattr(library, function)(*arguments)
    if code != SUCCESS:
        raise DriverError(function, code, error_text(library, code))


def driver_version(library: ctypes.CDLL) -> int:
    """The newest CUDA version the driver supports, as 1000 * major + 10 * minor. Needs no cuInit."""
    version = ctypes.c_int()
    call(library, "cuDriverGetVersion", ctypes.byref(version))
    return version.value


def is_initialised(library: ctypes.CDLL) -> bool:
    """Whether this process has called cuInit (torch does at its first use of CUDA). Changes nothing."""
    context = ctypes.c_void_p()
    return bool(library.cuCtxGetCurrent(ctypes.byref(context)) != NOT_INITIALIZED)


def attribute(library: ctypes.CDLL, which: int, device: int) -> int:
    """A CUdevice_attribute of a device; 0 where this driver does not know it."""
    value = ctypes.c_int()
    if library.cuDeviceGetAttribute(ctypes.byref(value), which, device) != SUCCESS:
        return 0
    return value.value


def read_devices(library: ctypes.CDLL) -> list[dict[str, Any]]:
    """Facts of every visible device, in the driver's order (which torch shares). Opens no context.

    cuInit must have been called. Raises DriverError.
    """
    count = ctypes.c_int()
    call(library, "cuDeviceGetCount", ctypes.byref(count))
    rows = []
    for index in range(count.value):
        device = ctypes.c_int()
        call(library, "cuDeviceGet", ctypes.byref(device), index)
        name = ctypes.create_string_buffer(256)
        call(library, "cuDeviceGetName", name, len(name), device.value)
        memory = ctypes.c_size_t()
        call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device.value)

        def get(which: int, device: int = device.value) -> int:
            return attribute(library, which, device)

        rows.append(
            {
                "name": name.value.decode(errors="replace"),
                "major": get(COMPUTE_CAPABILITY_MAJOR),
                "minor": get(COMPUTE_CAPABILITY_MINOR),
                "compute_units": get(MULTIPROCESSOR_COUNT),
                "l2_bytes": get(L2_CACHE_SIZE),
                "memory_bytes": memory.value,
                "shared_bytes_per_block": get(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
                "threads_per_block": get(MAX_THREADS_PER_BLOCK),
                # Both edges of the memory clock carry data.
                "memory_bandwidth": 2.0 * get(MEMORY_CLOCK_RATE) * 1e3 * get(GLOBAL_MEMORY_BUS_WIDTH) / 8,
                "ecc": get(ECC_ENABLED),
                "integrated": get(INTEGRATED),
                "compute_mode": get(COMPUTE_MODE),
            }
        )
    return rows


def report() -> dict[str, Any]:
    """What a child process prints: ``{"devices": [...]}`` or ``{"error": text, "code": CUresult}``."""
    library = load()
    try:
        call(library, "cuInit", 0)
        return {"devices": read_devices(library)}
    except DriverError as error:
        return {"error": str(error), "code": error.code}


if __name__ == "__main__":
    print(json.dumps(report()))
