"""Builds the ROCm folder without hardware that hip-python opens in tests, and the environment to run with it.

hip-python opens its library once a process, so a test runs a child process with a library made for it: complete,
without a symbol, without devices, or none at all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

#: Variables that would lead a child to this machine's own ROCm, or hide its devices.
FOREIGN = ("FAKE_HIP", "ROCM", "HIP_", "ROCR_", "HSA_", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE", "PORTAGEMM_")

_OFFSETS = """
import json, struct
from hip import hip
size = hip.hipDeviceProp_t().c_sizeof() if hasattr(hip.hipDeviceProp_t(), "c_sizeof") else 1472
found = {}
for field in FIELDS:
    for offset in range(0, size - 8, 4):
        memory = bytearray(size)
        struct.pack_into("<I", memory, offset, 0x61626364)
        value = getattr(hip.hipDeviceProp_t.fromObj(memory), field)
        if value in (0x61626364, b"dcba", "dcba"):
            found["FAKE_HIP_OFFSET_" + field] = str(offset)
            break
print(json.dumps(found))
"""

FIELDS = (
    "gcnArchName",
    "maxThreadsPerBlock",
    "multiProcessorCount",
    "sharedMemPerBlock",
    "l2CacheSize",
    "memoryClockRate",
    "memoryBusWidth",
    "totalGlobalMem",
)


@cache
def offsets() -> dict[str, str]:
    """Where hipDeviceProp_t has its fields, found by writing into one with the installed hip-python."""
    script = f"FIELDS = {FIELDS!r}\n{_OFFSETS}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if "No module named 'hip'" in done.stderr:
        pytest.skip("hip-python is not installed")
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    assert len(found) == len(FIELDS), found
    return found


def rocm(root: Path, *flags: str) -> Path:
    """Compile lib/libamdhip64.so and lib/libhiprtc.so below `root`; `flags` choose a variant."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler for the HIP library without hardware")
    (root / "lib").mkdir(parents=True)
    for source, name in (("runtime.c", "libamdhip64.so"), ("rtc.c", "libhiprtc.so")):
        command = [compiler, "-O1", "-shared", "-fPIC", "-Wall", "-Werror", *flags]
        subprocess.run(
            [*command, "-o", str(root / "lib" / name), str(HERE / source), "-lpthread"], check=True
        )
    return root


def environment(root: Path, log: Path, **more: str) -> dict[str, str]:
    """A child's environment: the ROCm folder, the log of calls, nothing of this machine's own."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    return {**clean, **offsets(), "ROCM_PATH": str(root), "FAKE_HIP_LOG": str(log), **more}
