"""hip-python, loaded at first use: which library it opens, and what a failure means.

hip-python imports on every machine and opens its library at the first call, so a probe ends in one of four
ways: no library, a library without a symbol, no device, or success. Each gets words of its own here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

_INSTALL = "pip install 'portagemm[rocm]'"
_environ_lock = threading.Lock()


#: Where distributions and AMD's installer put ROCm.
ROCM = Path("/opt/rocm")

_FAILED_BEFORE = "a kernel before this one failed: this process cannot use the device any more"

#: What an error of HIP's means here, for those whose name does not say it.
MEANINGS: Mapping[str, str] = {
    "hipErrorInvalidValue": "HIP refused an argument; it reports a launch beyond the device's limits so",
    "hipErrorOutOfMemory": "the device's memory is full",
    "hipErrorNotInitialized": "HIP is not initialised in this process; after a fork of one that used HIP: use spawn",
    "hipErrorInsufficientDriver": "the amdgpu driver is older than this ROCm supports",
    "hipErrorNoDevice": "HIP sees no GPU: ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, /dev/kfd and /dev/dri decide",
    "hipErrorInvalidDevice": "HIP knows no device of that index: the variables of visible devices decide",
    "hipErrorInvalidImage": "not a code object this ROCm loads: damaged, or ROCm is older than 6.0",
    "hipErrorNoBinaryForGpu": "the code object is for another target, or other features (xnack, sramecc)",
    "hipErrorSharedObjectInitFailed": "the code object could not be loaded onto the device",
    "hipErrorInvalidHandle": "a stream or module of another device, or one that no longer exists",
    "hipErrorInvalidResourceHandle": "a stream or module of another device, or one that no longer exists",
    "hipErrorNotFound": "the code object has no kernel of that name",
    "hipErrorLaunchOutOfResources": "a block needs more registers or LDS than a compute unit has",
    "hipErrorIllegalAddress": _FAILED_BEFORE,
    "hipErrorLaunchFailure": _FAILED_BEFORE,
    "hipErrorLaunchTimeOut": _FAILED_BEFORE,
    "hipErrorStreamCaptureUnsupported": "not allowed while a graph is captured: call once before the capture",
}


class HipError(RuntimeError):
    """A HIP or HIPRTC call returned an error. `name` is the enumerator (``hipErrorNoDevice``)."""

    def __init__(self, call: str, error: Any) -> None:
        self.call, self.name = call, str(getattr(error, "name", error))
        meaning = MEANINGS.get(self.name)
        super().__init__(f"{call} returned {self.name}" + (f" ({meaning})" if meaning else ""))


def package_reason() -> str | None:
    """Why hip-python cannot be imported, or None. Imports nothing."""
    if importlib.util.find_spec("hip") is None:
        return f"hip-python is not installed ({_INSTALL})"
    return None


def torch_root() -> Path | None:
    """Folder of an imported ROCm build of torch that brings its own HIP libraries, else None."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(getattr(torch, "version", None), "hip", None) is None:
        return None
    root = Path(torch.__file__ or "").parent
    return root if (root / "lib" / "libamdhip64.so").exists() else None


def library_root() -> Path | None:
    """The folder whose lib/ hip-python shall be led to; None: where it looks by itself.

    NOTE: two copies of the HIP runtime in a process know nothing of each other's streams and allocations, so
    a stream handle of torch's would be garbage to the other: torch's own copy goes first. ROCm's usual folder
    is given where no variable names one, because the loader's path often lacks it.
    """
    root = torch_root()
    if root is not None:
        return root
    if os.environ.get("ROCM_PATH") or os.environ.get("ROCM_HOME"):
        return None
    return ROCM if (ROCM / "lib" / "libamdhip64.so").exists() else None


@contextlib.contextmanager
def _led_to_library() -> Iterator[None]:
    """ROCM_PATH set to `library_root` for the block: hip-python 10 looks under its lib/ first."""
    root = library_root()
    if root is None:
        yield
        return
    with _environ_lock:
        before = os.environ.get("ROCM_PATH")
        os.environ["ROCM_PATH"] = str(root)
        try:
            yield
        finally:
            if before is None:
                os.environ.pop("ROCM_PATH", None)
            else:
                os.environ["ROCM_PATH"] = before


def loaded_libraries(stem: str, maps: Path = Path("/proc/self/maps")) -> tuple[Path, ...]:
    """Files of this process's mappings whose name begins with `stem` (``libamdhip64.so``)."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return ()
    paths = {line.split(None, 5)[5] for line in lines if f"/{stem}" in line}
    return tuple(sorted(Path(p) for p in paths if Path(p).name.startswith(stem)))


def check(call: str, result: Any) -> Any:
    """Unpack hip-python's ``(error, out...)``. Raises HipError unless the error is 0.

    Returns nothing, the one output, or the tuple of outputs.
    """
    error, *out = result if isinstance(result, tuple) else (result,)
    if int(error) != 0:
        raise HipError(call, error)
    return None if not out else out[0] if len(out) == 1 else tuple(out)


def opens_by_name() -> bool:
    """Whether the installed hip-python is one before release 10, which leaves the search to the loader.

    Those are a package with a compiled module ``hip.hip``; later ones take it from ``rocm.bindings``.
    """
    return package_reason() is None and importlib.util.find_spec("hip.hip") is not None


def take_last_error(hip: Any) -> None:
    """Clear the calling thread's last error.

    NOTE: HIP keeps the error of a failed call until someone asks for it. torch asks after its own launches, so
    an error already raised here would come up again there, under another kernel's name.
    """
    with contextlib.suppress(RuntimeError):  # a runtime without the call
        hip.hipGetLastError()


def explain(error: BaseException, library: str) -> str:
    """hip-python's own failure in words that say what to do."""
    text = str(error)
    if "failed to dlopen" in text and opens_by_name():
        return (
            f"hip-python found no {library}: before release 10 it searches as the loader does, so add the lib folder "
            f"of ROCm to LD_LIBRARY_PATH, or install hip-python 10 or newer"
        )
    if "failed to dlopen" in text:
        return (
            f"hip-python found no {library}: install ROCm, or set ROCM_PATH to its folder "
            f"(a runtime-only install has just {library}.N: link {library} to it)"
        )
    if "failed to dlsym" in text:
        match = re.search(r"dlsym '(?:b')?(\w+)", text)
        symbol = match[1] if match else text
        return (
            f"{library} has no {symbol}: hip-python is newer than this ROCm, install the release that matches"
        )
    if isinstance(error, HipError) and error.name == "hipErrorNoDevice":
        return (
            "the HIP runtime works, but finds no device (HIP_VISIBLE_DEVICES, /dev/kfd and /dev/dri decide)"
        )
    return f"{type(error).__name__}: {text}"


@cache
def runtime() -> Any:
    """hip-python's ``hip`` module with its library open. Opens no device.

    Raises RuntimeError in words: not installed, no library, missing symbol, or two HIP runtimes.
    """
    missing = package_reason()
    if missing:
        raise RuntimeError(missing)
    try:
        from hip import hip

        with _led_to_library():
            check("hipRuntimeGetVersion", hip.hipRuntimeGetVersion())
    except Exception as error:
        raise RuntimeError(explain(error, "libamdhip64.so")) from error
    copies = loaded_libraries("libamdhip64.so")
    if len(copies) > 1:
        raise RuntimeError(
            "two HIP runtimes are loaded (" + ", ".join(map(str, copies)) + "): set ROCM_PATH so that both "
            "torch and hip-python use one"
        )
    return hip


@cache
def rtc() -> Any:
    """hip-python's ``hiprtc`` module with its library open. Raises RuntimeError in words."""
    missing = package_reason()
    if missing:
        raise RuntimeError(missing)
    try:
        from hip import hiprtc

        with _led_to_library():
            check("hiprtcVersion", hiprtc.hiprtcVersion())
    except Exception as error:
        raise RuntimeError(explain(error, "libhiprtc.so")) from error
    return hiprtc


def device_properties(hip: Any, index: int) -> Any:
    """hipGetDeviceProperties under both signatures: (prop, device) up to 7.x, (device) from 10.0 on."""
    try:
        return check("hipGetDeviceProperties", hip.hipGetDeviceProperties(index))
    except TypeError:
        properties = hip.hipDeviceProp_t()
        check("hipGetDeviceProperties", hip.hipGetDeviceProperties(properties, index))
        return properties


def arch_and_features(gcn_arch_name: Any) -> tuple[str, str]:
    """("gfx90a", "sramecc+:xnack-") of the runtime's ``gfx90a:sramecc+:xnack-``."""
    text = gcn_arch_name.decode() if isinstance(gcn_arch_name, bytes) else str(gcn_arch_name)
    arch, _, features = text.strip("\x00 ").partition(":")
    return arch, features
