"""Each test starts without the package's variables and memory, and with a temporary folder of its own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from portagemm.hal import notices, profile
from portagemm.hal.device import Device
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource
from portagemm.hal.target import Target


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "system").mkdir()  # the temporary folder, for this process and those it starts
    monkeypatch.setenv("TMPDIR", str(tmp_path / "system"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "system"))
    for name in list(os.environ):
        if name.startswith("PORTAGEMM_"):
            monkeypatch.delenv(name)
    notices.reset()
    profile.reset()
    yield
    profile.reset()


@pytest.fixture
def caught() -> Iterator[list[str]]:
    """The texts of the package's warnings given during the test."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        original = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: object, **more: object) -> None:
            if issubclass(category, notices.PortaGemmWarning):
                texts.append(str(message))
            else:
                original(message, category, *rest, **more)  # type: ignore[arg-type]

        warnings.showwarning = show
        yield texts
        del records[:]


@pytest.fixture
def device() -> Callable[..., Device]:
    """Makes devices: device("sm_90") is an H200-like card of that arch."""

    def make(arch: str, name: str = "a card", backend: str = "", **facts: object) -> Device:
        if not backend:
            backend = "cuda" if arch.startswith("sm_") else "rocm" if arch.startswith("gfx") else "cpu"
        defaults = {"compute_units": 100, "shared_bytes_per_block": 232448}
        return Device(backend, 0, name, arch, **{**defaults, **facts})  # type: ignore[arg-type]

    return make


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., KernelSource]:
    """Makes kernel sources with one header folder of the test's own."""
    include = tmp_path / "include"
    (include / "portagemm").mkdir(parents=True)
    (include / "portagemm" / "core.hpp").write_text("#pragma once\nusing i32 = int;\n")
    (include / "portagemm" / "gemm.hpp").write_text('#pragma once\n#include "core.hpp"\n')

    def make(text: str = "", symbol: str = "kernel", target: Target | None = None) -> KernelSource:
        return KernelSource(
            symbol,
            f"#include <portagemm/gemm.hpp>\n{text}",
            target or Target("cuda", "sm_90a", 32),
            (include,),
        )

    return make


@pytest.fixture
def code() -> Callable[..., ObjectCode]:
    """Makes code objects for a source."""

    def make(spec: KernelSource, data: bytes = b"\x7fELF code", log: str = "") -> ObjectCode:
        return ObjectCode(data, spec.target, spec.symbol, "fake 1.0", log)

    return make
