"""Loads NVIDIA's driver library as the backend does, initialises it and lists the devices. Opens no context.

A line of JSON after every stage, so that after a crash or a hang the last one says how far it came:
stage "load" (about to load), "init" (loaded, about to initialise), "devices", "done". With the argument
``context``, a context is made on every device and released again.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

_BACKEND = Path(__file__).resolve().parents[2] / "backends" / "cuda" / "libcuda.py"


def _driver() -> Any:
    """The backend's module, by its path: it uses the standard library alone."""
    spec = importlib.util.spec_from_file_location("portagemm_libcuda", _BACKEND)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {_BACKEND}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _mapped(stem: str) -> str:
    """Path of the loaded library whose name starts with `stem`; "" where the system does not say."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    paths = [line.split(maxsplit=5)[-1] for line in lines if f"/{stem}" in line]
    return paths[0] if paths else ""


def _uuid(library: ctypes.CDLL, index: int) -> str:
    """The UUID of a device without its kind; "" where the driver does not tell."""
    device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    for function in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"):
        if hasattr(library, function):
            if library.cuDeviceGet(ctypes.byref(device), index):
                return ""
            if getattr(library, function)(raw, device):
                return ""
            text = bytes(raw).hex()
            return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return ""


def _say(facts: dict[str, Any], **more: Any) -> None:
    facts.update(more)
    print(json.dumps(facts), flush=True)


def main(context: bool) -> None:
    """Print the stages."""
    driver = _driver()
    facts: dict[str, Any] = {}
    _say(facts, stage="load", names=list(driver.LIBRARY_NAMES))
    try:
        library = driver.load()
    except OSError as error:
        _say(facts, error=str(error))
        return
    missing = [
        name for name in ("cuInit", "cuDriverGetVersion", "cuDeviceGetCount") if not hasattr(library, name)
    ]
    _say(facts, stage="init", path=_mapped("libcuda.so"), missing=missing)
    if missing:
        return
    try:
        facts["driver"] = driver.driver_version(library)
    except driver.DriverError as error:
        _say(facts, call=error.call, code=error.code)
        return
    _say(facts)
    try:
        driver.call(library, "cuInit", 0)
        _say(facts, stage="devices")
        devices = driver.read_devices(library)
    except driver.DriverError as error:
        _say(facts, call=error.call, code=error.code)
        return
    for index, device in enumerate(devices):
        kind = "MIG" if " MIG " in f" {device['name']} " else "GPU"
        device["uuid"] = f"{kind}-{uuid}" if (uuid := _uuid(library, index)) else ""
    _say(facts, devices=devices)
    if context:
        _say(facts, stage="context", contexts=[])
        for index in range(len(devices)):
            _say(facts, contexts=[*facts["contexts"], _context(library, index)])
    _say(facts, stage="done")


def _context(library: ctypes.CDLL, index: int) -> int:
    """The driver's answer to making a context on a device: 0, or its error number."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    code = int(library.cuDeviceGet(ctypes.byref(device), index))
    if not code:
        code = int(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        if not code and hasattr(library, "cuDevicePrimaryCtxRelease_v2"):
            library.cuDevicePrimaryCtxRelease_v2(device)
    return code


if __name__ == "__main__":
    main("context" in sys.argv[1:])
