"""Which CUDA devices there are, found without initialising CUDA in a process that has not done so itself.

The driver answers only after cuInit, and a child forked after cuInit cannot use CUDA any more. So where this
process already uses CUDA the driver is asked here; elsewhere a short-lived child process asks it. Order,
masking and numbering (CUDA_VISIBLE_DEVICES with indices, UUIDs or MIG names, CUDA_DEVICE_ORDER) are then the
driver's own, not a second implementation of its rules, which is what NVML would need.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portagemm.backends.cuda import libcuda
from portagemm.hal.device import Device

#: Seconds a child may take: cuInit takes several on a large machine without the persistence daemon.
TIMEOUT_S = 60.0

#: Environment variables that decide what the driver shows.
_MASKS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Probe:
    """The outcome: devices, or the reason why there are none."""

    devices: tuple[Device, ...] = ()
    reason: str | None = None


_lock = threading.Lock()
_known: dict[tuple[object, ...], Probe] = {}


def probe() -> Probe:
    """The devices or the reason, remembered for as long as the environment's masks stay the same."""
    try:
        library = libcuda.load()
    except OSError as error:
        return Probe(reason=f"no NVIDIA driver: the library cannot be loaded ({error})")
    key = (libcuda.is_initialised(library), *(os.environ.get(name) for name in _MASKS))
    with _lock:
        if key not in _known:
            _known[key] = _ask(library, initialised=bool(key[0]))
        return _known[key]


def reset() -> None:
    """Forget what was found (tests; also after a card was added or masked)."""
    with _lock:
        _known.clear()


def _ask(library: Any, *, initialised: bool) -> Probe:
    try:
        version = libcuda.driver_version(library)
    except libcuda.DriverError as error:
        return Probe(reason=f"the NVIDIA driver does not answer ({error})")
    if version < libcuda.MINIMUM_VERSION:
        return Probe(
            reason=f"the NVIDIA driver supports CUDA {version_text(version)}; "
            "12.0 (driver R525) or newer is needed: update the driver"
        )
    answer: dict[str, Any] = {}
    if initialised:
        try:
            answer = {"devices": libcuda.read_devices(library)}
        except libcuda.DriverError as error:
            if error.code != libcuda.NOT_INITIALIZED:  # else: initialised before a fork; a child still can
                answer = {"error": str(error), "code": error.code}
    if not answer:
        answer = _ask_child()
    if "error" in answer or not answer["devices"]:
        return Probe(reason=_no_devices(answer))
    driver = driver_text(version)
    return Probe(tuple(_device(index, row, driver) for index, row in enumerate(answer["devices"])))


def _ask_child() -> dict[str, Any]:
    """Run libcuda.py by itself. Never raises: a failure is an answer with "error"."""
    python = sys.executable
    if not python or "python" not in Path(python).name.lower():  # embedded: the executable is another program
        python = getattr(sys, "_base_executable", "") or python
    if not python:
        return {"error": "no Python interpreter found to ask the driver with; call torch.cuda.init() first"}
    command = [python, "-I", "-S", str(Path(libcuda.__file__))]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"the driver did not answer within {TIMEOUT_S:.0f} s (cuInit hangs)"}
    except OSError as error:
        return {"error": f"no child process could ask the driver ({error}); call torch.cuda.init() first"}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        return {"error": f"the child process that asks the driver exited with {done.returncode}: {last}"}
    return answer


def _no_devices(answer: dict[str, Any]) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hint = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
    if "error" in answer and answer.get("code") != libcuda.NO_DEVICE:
        return f"the NVIDIA driver cannot be used: {answer['error']}{hint}"
    return f"the NVIDIA driver sees no device{hint}"


def _device(index: int, row: dict[str, Any], driver: str) -> Device:
    notes = []
    if " MIG " in f" {row['name']} ":
        notes.append("MIG instance")
    if row["ecc"]:
        notes.append("ECC on")
    if row["integrated"]:
        notes.append("integrated: shares the host's memory")
    if row["compute_mode"] == 2:
        notes.append("compute mode PROHIBITED: no context can be created")
    elif row["compute_mode"] == 3:
        notes.append("compute mode EXCLUSIVE_PROCESS: one process at a time")
    return Device(
        backend="cuda",
        index=index,
        name=row["name"],
        arch=f"sm_{row['major']}{row['minor']}",
        compute_units=row["compute_units"],
        l2_bytes=row["l2_bytes"],
        memory_bytes=row["memory_bytes"],
        shared_bytes_per_block=row["shared_bytes_per_block"],
        threads_per_block=row["threads_per_block"],
        memory_bandwidth=row["memory_bandwidth"],
        driver_version=driver,
        notes=tuple(notes),
    )


def version_text(version: int) -> str:
    """13000 -> ``13.0``."""
    return f"{version // 1000}.{version % 1000 // 10}"


def driver_text(version: int) -> str:
    """``580.159.04 (CUDA 13.0)``; the kernel module's part only where Linux shows it."""
    cuda = f"CUDA {version_text(version)}"
    try:
        module = Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return cuda
    return f"{module} ({cuda})"
