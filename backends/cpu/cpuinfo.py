"""What the CPU is: name, caches, features, and how many cores this process may use."""

from __future__ import annotations

import math
import os
import platform
import re
from functools import cache
from pathlib import Path

from portagemm.hal import environment


@cache
def _first_processor() -> dict[str, str]:
    return environment.first_processor()


def name() -> str:
    """The product name, or the machine's type where the system tells no name."""
    entry = _first_processor()
    known = entry.get("model name") or entry.get("Model")
    return known or platform.processor() or platform.machine() or "CPU"


def features_digest() -> str:
    """8 hex digits that differ between CPUs for which a compiler generates different "native" code."""
    return environment.cpu_identity().rpartition("-")[2][:8]


def usable_cores() -> int:
    """Cores this process may use: the smaller of affinity mask and container quota; at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    quota = _cgroup_cores()
    return max(1, min(cores, math.ceil(quota)) if quota else cores)


def _cgroup_cores() -> float | None:
    """CPU quota of this process's control group in cores; None without one."""
    try:  # version 2
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:  # version 1
        folder = Path("/sys/fs/cgroup/cpu")
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return quota / int((folder / "cpu.cfs_period_us").read_text()) if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


@cache
def last_level_cache_bytes() -> int:
    """Size of the last-level cache the first core sees, in bytes; 0 if unknown."""
    best = (0, 0)
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level = int((folder / "level").read_text())
            size = _bytes((folder / "size").read_text())
        except (OSError, ValueError):
            continue
        best = max(best, (level, size))
    return best[1] or _bytes(_first_processor().get("cache size", ""))


def _bytes(text: str) -> int:
    """``32768K`` or ``512 KB`` -> bytes; 0 if it is neither."""
    found = re.match(r"(\d+)\s*([KMG]?)", text.strip())
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0


def memory_bytes() -> int:
    """Physical memory in bytes; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0
