"""Committed files that a script writes are what it writes."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "backends/cuda/generate_wgmma.py"
HEADER = ROOT / "backends/cuda/include/portagemm/arch/wgmma.hpp"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """The script as a module: it is no part of the package."""
    spec = importlib.util.spec_from_file_location("generate_wgmma", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_wgmma_header_is_generated(generator: ModuleType) -> None:
    assert HEADER.read_text(encoding="utf-8") == generator.text(), f"run python {SCRIPT.relative_to(ROOT)}"


def test_the_script_writes_beside_itself(tmp_path: Path) -> None:
    """Run as a developer runs it, on a copy."""
    script = tmp_path / "cuda/generate_wgmma.py"
    target = tmp_path / "cuda/include/portagemm/arch/wgmma.hpp"
    target.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    subprocess.run([sys.executable, str(script)], check=True, timeout=60)
    assert target.read_bytes() == HEADER.read_bytes()


def test_operands_are_numbered_through() -> None:
    """Each width names its N / 2 accumulators in order, then two descriptors and what follows, each once."""
    entries = re.findall(r"^PG_WGMMA\((\d+), (.*)\)$", HEADER.read_text(encoding="utf-8"), re.M)
    widths = [int(n) for n, _ in entries]
    assert widths == sorted(set(widths)) and all(n % 8 == 0 and 8 <= n <= 256 for n in widths)
    assert set(widths) >= set(range(16, 257, 16))
    for n, rest in entries:
        count = int(n) // 2
        numbers = [int(x) for x in re.findall(r"%(\d+)", rest)]
        assert numbers == list(range(count + 5)), f"N = {n}"
        assert re.findall(r"PG_D4\((\d+)\)", rest) == [str(i) for i in range(0, count, 4)], f"N = {n}"
