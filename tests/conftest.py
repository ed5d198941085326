"""What all tests share: a run in which nothing ran fails, and fixtures for devices and compilers.

A test that needs something this machine lacks skips with the reason (`-rs` is on). Markers: pyproject.toml.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# One test process must not take all cores while others run beside it.
os.environ.setdefault("OMP_NUM_THREADS", "2")
# What was tuned on this machine must not decide what is tested.
os.environ.setdefault("PORTAGEMM_TUNING", "off")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that collected tests and executed none is a failure: it has shown nothing."""
    if hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or exitstatus != pytest.ExitCode.OK:
        return
    ran = sum(
        len(reporter.stats.get(outcome, ()))
        for outcome in ("passed", "failed", "error", "xfailed", "xpassed")
    )
    if ran == 0:
        reporter.write_line("every test was skipped: this run has shown nothing", red=True)
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything under tests/device carries the marker `device`; no name changes from run to run."""
    for item in items:
        if item.path.is_relative_to(ROOT / "tests" / "device"):
            item.add_marker(pytest.mark.device)
        if " at 0x" in item.nodeid:  # two processes would collect different tests
            raise pytest.UsageError(f"{item.nodeid}: an address in a test's name; give ids=")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty kernel cache folder of the test's own."""
    folder = tmp_path / "kernel-cache"
    monkeypatch.setenv("PORTAGEMM_CACHE_DIR", str(folder))
    yield folder


@pytest.fixture(scope="session")
def gpu() -> str:
    """Torch's name of the first GPU; skips without one."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return "cuda:0"


@pytest.fixture(scope="session")
def host_compiler() -> str:
    """The system's C++20 compiler; skips without one."""
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        if name and shutil.which(name):
            return name
    pytest.skip("no C++ compiler: neither $CXX, g++ nor clang++")


@pytest.fixture(scope="session", params=["19", "22"])
def hip_clang(request: pytest.FixtureRequest) -> str:
    """A clang that makes AMD code objects, oldest and newest supported; skips where it is missing."""
    name = f"clang-{request.param}"
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name
