"""What a result was measured on: versions, driver, commit, clock."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

#: Packages whose version matters to a result, where installed.
_PACKAGES = ("torch", "triton", "deep_gemm", "humming", "cuda-bindings", "nvidia-cuda-nvrtc", "hip-python")


def versions() -> dict[str, str]:
    """Versions of Python, of the vendor libraries torch was built for, and of the packages compared."""
    import portagemm

    found = {"python": platform.python_version(), "portagemm": str(getattr(portagemm, "__version__", "0"))}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    for name in ("cuda", "hip"):
        if version := getattr(torch.version, name, None):
            found[name] = str(version)
    return found


def commit() -> str:
    """The commit of this checkout, "+" after it when files differ from it; PORTAGEMM_COMMIT overrides.

    "unknown" for an installed package.
    """
    if given := os.environ.get("PORTAGEMM_COMMIT"):
        return given
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return "unknown"
    head = _output("git", "-C", str(here), "rev-parse", "HEAD")
    if not head:
        return "unknown"
    changed = _output("git", "-C", str(here), "status", "--porcelain", "--untracked-files=no")
    return head + ("+" if changed else "")


def driver_version(device: str) -> str:
    """The GPU driver's version; the platform's release on the CPU."""
    if device == "cpu":
        return platform.release()
    if torch.version.hip:
        module = Path("/sys/module/amdgpu/version")
        return module.read_text().strip() if module.is_file() else "unknown"
    first = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return first.splitlines()[0].strip() if first else "unknown"


class ClockReader:
    """Reads the device's core clock while it works; `take` returns the median since the last `take`."""

    def __init__(self, device: str) -> None:
        self._read = _clock_function(device)
        self._seen: list[int] = []

    def __call__(self) -> None:
        if self._read is None:
            return
        try:
            self._seen.append(self._read())
        except Exception:  # a driver that refuses to tell is no reason to stop a run
            self._read = None

    def take(self) -> int | None:
        """MHz, or None where it cannot be read."""
        seen, self._seen = self._seen, []
        return int(median(seen)) if seen else None


def _clock_function(device: str) -> Callable[[], int] | None:
    if device == "cpu":
        return None
    try:  # through NVML or its AMD counterpart: a millisecond
        torch.cuda.clock_rate(device)
        return lambda: int(torch.cuda.clock_rate(device))
    except Exception:  # the Python package is not installed, no such library, no permission
        pass
    if shutil.which("nvidia-smi") is None:
        return None
    query = ("nvidia-smi", f"--id={torch.device(device).index or 0}", "--query-gpu=clocks.sm")
    return lambda: int(_output(*query, "--format=csv,noheader,nounits"))


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
