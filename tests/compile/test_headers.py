"""Every header compiles alone, for each vendor that can include it: it pulls in all that it uses.

Shared headers (hal/include, portagemm/kernels) are compiled with the vendor folder of every backend; a
backend's own headers with their own vendor only, for an arch that has what they name.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parent.parent.parent
SHARED = sorted((ROOT / "hal/include").rglob("*.hpp")) + sorted((ROOT / "portagemm/kernels").rglob("*.hpp"))

#: Arch that has the instructions of a header under arch/ or schedule/. Others compile for the oldest arch.
NEEDS = {"sm90.hpp": "sm_90a", "warp_specialized.hpp": "sm_90a"}


def headers_of(backend: str) -> list[Path]:
    """The shared headers, and those of the backend."""
    return SHARED + sorted((ROOT / "backends" / backend / "include").rglob("*.hpp"))


def include_dirs(backend: str) -> list[Path]:
    """The search order of a kernel's compilation: the vendor's folder first."""
    return [ROOT / "backends" / backend / "include", ROOT / "hal/include", ROOT / "portagemm"]


def text_of(header: Path) -> str:
    """A source that holds nothing but the header."""
    for folder in (*include_dirs("cpu"), *include_dirs("cuda"), *include_dirs("rocm")):
        if header.is_relative_to(folder):
            return f"#include <{header.relative_to(folder)}>\n"
    raise AssertionError(header)


def label(header: Path) -> str:
    return str(header.relative_to(ROOT))


def compile_with(command: list[str], header: Path, backend: str) -> None:
    command += [f"-I{folder}" for folder in include_dirs(backend)]
    done = subprocess.run([*command, "-"], input=text_of(header), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("header", headers_of("cpu"), ids=label)
def test_host(header: Path, host_compiler: str) -> None:
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    compile_with([host_compiler, "-std=c++20", "-fsyntax-only", *warnings, "-x", "c++"], header, "cpu")


@pytest.mark.parametrize("header", headers_of("rocm"), ids=label)
def test_hip(header: Path, hip_clang: str) -> None:
    where = ["-x", "hip", "--offload-arch=gfx90a", "-nogpuinc", "-nogpulib", "--cuda-device-only"]
    compile_with([hip_clang, *where, "-std=c++20", "-fsyntax-only", "-Wall", "-Werror"], header, "rocm")


@pytest.mark.parametrize("header", headers_of("cuda"), ids=label)
def test_nvrtc(header: Path) -> None:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="no cuda-bindings", exc_type=ImportError)
    arch = NEEDS.get(header.name, "sm_80").replace("sm_", "compute_")
    options = ["--std=c++20", f"--gpu-architecture={arch}", *(f"-I{d}" for d in include_dirs("cuda"))]
    try:
        status, program = nvrtc.nvrtcCreateProgram(text_of(header).encode(), b"header.cu", 0, None, None)
    except RuntimeError as error:
        pytest.skip(f"NVRTC cannot be loaded: {error}")
    assert int(status) == 0
    encoded = [option.encode() for option in options]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    assert int(status) == 0, log.decode()
