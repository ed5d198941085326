"""A CUDA driver that needs no GPU, for the tests of the CUDA backend."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from portagemm.backends.cuda import libcuda, probe

SOURCE = Path(__file__).parent / "fake_libcuda.c"


class FakeCuda:
    """The fake driver loaded in this process, and what it recorded. Set it up by environment variables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.fake_counter.argtypes = (ctypes.c_char_p,)
        self.library.fake_launch.argtypes = (ctypes.c_char_p,)
        self.library.fake_launch.restype = ctypes.c_uint64
        self.library.fake_arguments.restype = ctypes.c_void_p

    def counter(self, name: str) -> int:
        """loads, inits, encodes, replaces, retained, attribute_sets, dynamic_shared, launches, depth ..."""
        return int(self.library.fake_counter(name.encode()))

    def launch(self, name: str) -> int:
        """A field of the last launch: grid, block, shared, stream, attributes, cluster, context ..."""
        return int(self.library.fake_launch(name.encode()))

    def arguments(self, size: int) -> bytes:
        """The argument block of the last launch."""
        return ctypes.string_at(self.library.fake_arguments(), size)


@pytest.fixture(scope="session")
def fake_cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake driver, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler for the fake CUDA driver")
    out = tmp_path_factory.mktemp("fake_cuda") / "libcuda.so.1"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(out), str(SOURCE)], check=True)
    return out


def _forget() -> None:
    libcuda.load.cache_clear()
    probe.reset()


@pytest.fixture
def fake_cuda(fake_cuda_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """The driver of this test alone (a copy: a library loads once a path); child processes find it too."""
    folder = tmp_path / "driver"
    folder.mkdir()
    copy = folder / "libcuda.so.1"
    shutil.copy(fake_cuda_library, copy)
    for name in [name for name in os.environ if name.startswith("FAKE_")]:
        monkeypatch.delenv(name)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(libcuda, "LIBRARY_NAMES", (str(copy),))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    _forget()
    yield FakeCuda(copy)
    _forget()


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without an NVIDIA driver."""
    monkeypatch.setattr(libcuda, "LIBRARY_NAMES", ("libcuda-that-is-not-there.so.1",))
    _forget()
    yield
    _forget()
