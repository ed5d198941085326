"""Fixtures of the compile tests: device headers of any vendor, run as plain C++ on the host.

Folder include/ holds a stand-in for vendor.hpp with which every arch's headers compile on the host, so that
maps, layouts and argument blocks are printed by the very code that kernels use, and compared with tables.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
#: Checked headers, the stand-in first.
INCLUDE_DIRS = (
    ROOT / "tests/compile/include",
    ROOT / "backends/cuda/include",
    ROOT / "backends/cpu/include",
    ROOT / "hal/include",
    ROOT / "portagemm",
)

STANDARD = ("-std=c++20", "-w")

_SOURCE = """\
#include <check.hpp>
{includes}
namespace pg {{}}
using namespace pg;
{text}
"""


@dataclass(frozen=True)
class HostCheck:
    """Compiles C++ against the device headers and runs it.

    Attributes:
        compiler: the C++20 compiler. folder: for what it writes. precompiled: folder of check.hpp as the
            compiler's own; an empty one where it knows no such thing.
    """

    compiler: str
    folder: Path
    precompiled: Path

    def _compile(self, headers: Iterable[str], text: str, *flags: str) -> subprocess.CompletedProcess[str]:
        source = self.folder / "check.cpp"
        includes = "\n".join(f"#include <{header}>" for header in headers)
        source.write_text(_SOURCE.format(includes=includes, text=text))
        command = [self.compiler, *STANDARD, *(f"-I{folder}" for folder in (self.precompiled, *INCLUDE_DIRS))]
        return subprocess.run(
            [*command, str(source), *flags], capture_output=True, text=True, timeout=300, check=False
        )

    def run(self, headers: Iterable[str], text: str, *flags: str) -> dict[str, Any]:
        """What `text`'s function check() prints by `entry(name, values)`, by name."""
        program = self.folder / "check"
        done = self._compile(headers, text, *flags, "-o", str(program))
        assert done.returncode == 0, done.stderr
        ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == 0, ran.stderr
        result: dict[str, Any] = json.loads(ran.stdout)
        return result

    def compiles(self, headers: Iterable[str], text: str, *flags: str) -> None:
        """Asserts that a text compiles."""
        done = self._compile(headers, text, *flags, "-S", "-o", "/dev/null")
        assert done.returncode == 0, done.stderr

    def error(self, headers: Iterable[str], text: str, *flags: str) -> str:
        """The compiler's messages for a text that must not compile."""
        done = self._compile(headers, text, *flags, "-S", "-o", "/dev/null")
        assert done.returncode != 0, "this compiles, and should not"
        return done.stderr


@pytest.fixture(scope="session")
def precompiled_check(host_compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """check.hpp with its system headers, parsed once by GCC: half of what a check takes to compile."""
    folder = tmp_path_factory.mktemp("precompiled")
    if "g++" in Path(host_compiler).name and "clang" not in Path(host_compiler).name:
        header = ROOT / "tests/compile/include/check.hpp"
        command = [
            host_compiler,
            *STANDARD,
            "-x",
            "c++-header",
            str(header),
            "-o",
            str(folder / "check.hpp.gch"),
        ]
        subprocess.run(command, check=False, capture_output=True, timeout=300)
    return folder


@pytest.fixture
def host_check(host_compiler: str, tmp_path: Path, precompiled_check: Path) -> HostCheck:
    """Runs C++ that includes any backend's headers on the host."""
    return HostCheck(host_compiler, tmp_path, precompiled_check)
