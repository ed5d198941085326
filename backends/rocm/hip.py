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
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_INSTALL = "pip install 'portagemm[rocm]'"
_environ_lock = threading.Lock()


class HipError(RuntimeError):
    """A HIP or HIPRTC call returned an error. `name` is the enumerator (``hipErrorNoDevice``)."""

    def __init__(self, call: str, error: Any) -> None:
        self.call, self.name = call, str(getattr(error, "name", error))
        super().__init__(f"{call} returned {self.name}")


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


@contextlib.contextmanager
def _torch_first() -> Iterator[None]:
    """Let hip-python open the HIP library that torch brings along.

    NOTE: two copies of the HIP runtime in a process know nothing of each other's streams and allocations, so
    a stream handle of torch's would be garbage to the other. hip-python looks under $ROCM_PATH/lib first.
    """
    root = torch_root()
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


def explain(error: BaseException, library: str) -> str:
    """hip-python's own failure in words that say what to do."""
    text = str(error)
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

        with _torch_first():
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

        with _torch_first():
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
