"""Where compiled code is kept: one cache in a process, the one its variables name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from portagemm import launch
from portagemm.hal.cache import default_cache
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource
from portagemm.hal.target import Target

pytestmark = pytest.mark.quick

SOURCE = KernelSource("kernel", "text", Target("cpu", "native", 1), ())


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """A compiler that notes what it compiled; the cache folder is tmp_path / "first"."""
    symbols: list[str] = []

    def compile_it(text: str, symbol: str, target: Target, options: CompileOptions) -> ObjectCode:
        symbols.append(symbol)
        return ObjectCode(b"code", target, symbol, "fake 1", "")

    fake: Any = SimpleNamespace(compile=compile_it, identity=lambda: "fake 1", flags=lambda *a: ("-O9",))
    monkeypatch.setattr(launch, "usable_compiler", lambda backend: fake)
    monkeypatch.setenv("PORTAGEMM_CACHE_DIR", str(tmp_path / "first"))
    launch.clear()
    yield symbols
    launch.clear()


def test_kernels_are_in_the_process_wide_cache(compiled: list[str]) -> None:
    assert launch.code_of(SOURCE).origin == "compiled"
    assert default_cache().info().memory_entries == 1
    default_cache().clear()
    assert launch.at_hand(SOURCE) is None, "cleared is cleared"
    assert launch.code_of(SOURCE).origin == "compiled"
    assert compiled == ["kernel", "kernel"]


def test_another_cache_folder_is_seen(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launch.code_of(SOURCE)
    monkeypatch.setenv("PORTAGEMM_CACHE_DIR", str(tmp_path / "second"))
    assert launch.at_hand(SOURCE) is None
    assert launch.code_of(SOURCE).origin == "compiled"
    monkeypatch.setenv("PORTAGEMM_CACHE_DIR", str(tmp_path / "first"))
    assert launch.code_of(SOURCE).origin == "memory"


def test_clear_forgets_what_is_in_memory(compiled: list[str]) -> None:
    launch.code_of(SOURCE)
    launch.clear()
    assert launch.code_of(SOURCE).origin == "disk"
