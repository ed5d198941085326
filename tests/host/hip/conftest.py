"""A ROCm machine without hardware, and child processes that use it as a program would."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ...fake_rocm import build  # noqa: TID252

PRELUDE = """
import json, os, sys
sys.path.insert(0, os.environ["FAKE_ROCM"])
import torch
import portagemm as pg
from portagemm import errors, launch, testing
from portagemm.backends.rocm import hip as binding, kfd
from portagemm.ops import _dispatch
from machine import Launch, Machine
import model

torch.set_num_threads(1)
torch.manual_seed(0)

def error(call):
    try:
        call()
    except errors.PortaGemmError as e:
        return type(e).__name__ + ": " + str(e)
    return "no error"
"""

#: A child's script, variables of its environment, its ROCm folder -> (the JSON value it printed, the calls recorded).
Child = Callable[..., tuple[Any, list[str]]]

#: Flags of the C compiler -> a ROCm folder.
Folder = Callable[..., Path]


@pytest.fixture(scope="session")
def rocm(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """ROCm folders by the flags they were built with."""
    built: dict[tuple[str, ...], Path] = {}

    def folder(*flags: str) -> Path:
        if flags not in built:
            built[flags] = build.rocm(tmp_path_factory.mktemp("rocm"), *flags)
        return built[flags]

    return folder


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One kernel cache for all children: each kernel is compiled once."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session")
def clang() -> str:
    """The clang inside the stub of hiprtc: the one whose instructions tests/amdgcn knows goes first."""
    for name in ("clang++-19", "clang++-22"):
        if shutil.which(name):
            return name
    pytest.skip("no clang with the AMDGPU target for the stub of hiprtc: clang++-19 or clang++-22")


@pytest.fixture
def child(rocm: Folder, clang: str, kernel_cache: Path, tmp_path: Path) -> Child:
    """Runs a script after PRELUDE in a process of its own; it prints one JSON value."""
    log = tmp_path / "calls"

    def run(script: str, folder: Path | None = None, **environ: str) -> tuple[Any, list[str]]:
        log.write_text("")
        env = build.environment(
            folder or rocm(),
            log,
            **{
                "FAKE_ROCM": str(build.HERE),
                "FAKE_HIPRTC_CLANG": clang,
                "PORTAGEMM_CACHE_DIR": str(kernel_cache),
                "PORTAGEMM_TUNING": "off",
                **environ,
            },
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PRELUDE + script],
            env=env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), log.read_text().splitlines()

    return run
