"""Fault G38: many processes, one cache folder: no failure, one compile a key, one warning a damaged entry."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portagemm.hal.cache import KernelCache
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource
from portagemm.hal.target import Target

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
]

WORKER = Path(__file__).with_name("cache_worker.py")


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str], timeout: float = 60) -> dict[str, Any]:
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0
    report: dict[str, Any] = json.loads(output)
    return report


def wait_for(path: Path, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def compiles(tmp_path: Path) -> Counter[str]:
    return Counter((tmp_path / "log").read_text().split())


def test_sixteen_processes_fifty_rounds(tmp_path: Path) -> None:
    report = finish(start("race", tmp_path / "cache", 16, 50), 120)
    assert report["exit"] == [0] * 16 and report["wrong"] == 0
    assert compiles(tmp_path) == {f"k{i}": 1 for i in range(50)}
    assert sum(report["compiled"]) == 50
    assert len(report["warnings"]) == 10  # one for each entry that was empty, cut or random
    assert all("it is rebuilt" in text for text in report["warnings"])
    assert not list(tmp_path.rglob("*.tmp"))


def test_killed_in_mid_compile_blocks_nobody(tmp_path: Path) -> None:
    victim = start("one", tmp_path / "cache", 300, 60)
    wait_for(tmp_path / "log")
    heir = start("one", tmp_path / "cache", 0, 60)
    time.sleep(0.3)
    victim.send_signal(signal.SIGKILL)
    victim.wait(10)
    report = finish(heir)
    assert report["origin"] == "compiled" and report["right"] and report["seconds"] < 20
    assert compiles(tmp_path) == {"slow": 2}


def test_stopped_holder_delays_by_the_timeout_only(tmp_path: Path) -> None:
    holder = start("one", tmp_path / "cache", 0.5, 60)
    wait_for(tmp_path / "log")
    holder.send_signal(signal.SIGSTOP)
    try:
        report = finish(start("one", tmp_path / "cache", 0, 0.5))
        assert report["origin"] == "compiled" and report["right"] and report["seconds"] < 20
    finally:
        holder.send_signal(signal.SIGCONT)
    assert finish(holder)["right"]
    assert finish(start("one", tmp_path / "cache", 0, 60))["origin"] == "disk"


def test_waiting_process_takes_what_the_other_made(tmp_path: Path) -> None:
    maker = start("one", tmp_path / "cache", 1, 60)
    wait_for(tmp_path / "log")
    report = finish(start("one", tmp_path / "cache", 1, 60))
    assert report["origin"] == "disk" and finish(maker)["origin"] == "compiled"
    assert compiles(tmp_path) == {"slow": 1}


@pytest.fixture
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that another user can reach, pytest's own being closed to others, and can use for TMPDIR."""
    base = Path(tempfile.mkdtemp(dir="/tmp"))
    (base / "cache").mkdir()
    (base / "tmp").mkdir()
    for folder, mode in ((base, 0o755), (base / "cache", 0o755), (base / "tmp", 0o1777)):
        folder.chmod(mode)
    monkeypatch.setenv("TMPDIR", str(base / "tmp"))
    yield base / "cache"
    for folder in [p for p in base.rglob("*") if p.is_dir()]:
        folder.chmod(0o755)
    shutil.rmtree(base)


@pytest.mark.parametrize("mode", ["read-only", "full"])
def test_read_only_and_full_folders(open_folder: Path, mode: str) -> None:
    target = Target("cuda", "sm_90a", 32)
    made = ObjectCode(b"old" * 5000, target, "kernel", "fake")
    KernelCache(open_folder).get_or_build(KernelSource("kernel", "old", target, ()), lambda: made, "fake")
    if mode == "read-only":
        for folder in [*(p for p in open_folder.rglob("*") if p.is_dir()), open_folder]:
            folder.chmod(0o555)
    report = finish(start("locked-out", open_folder, mode))
    assert report["origins"] == ["disk", "compiled", "memory"]
    assert len(report["warnings"]) == 1 and "memory only" in report["warnings"][0]
    assert not report["writable"]
    assert len(list(open_folder.glob("v1/*/*"))) == 1
