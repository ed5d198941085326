"""amd.hip-init against libraries that behave, err, crash, hang and lack symbols."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from portagemm.doctor.replay import open_machine
from portagemm.doctor.runner import run_checks, select

from . import machine_files

_SOURCE = """
#include <stdlib.h>
#include <unistd.h>
static int number(const char* name, int otherwise) { const char* v = getenv(name); return v ? atoi(v) : otherwise; }
int hipInit(unsigned flags) {
  (void)flags;
  if (getenv("FAKE_CRASH")) { volatile int* nowhere = 0; *nowhere = 1; }
  if (getenv("FAKE_HANG")) sleep(600);
  return number("FAKE_CODE", 0);
}
#ifndef NO_COUNT
int hipGetDeviceCount(int* count) { *count = number("FAKE_COUNT", 8); return number("FAKE_COUNT_CODE", 0); }
#endif
int hipRuntimeGetVersion(int* version) { *version = 60443482; return 0; }
"""


@pytest.fixture(scope="module")
def fake_hip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler for the fake libraries")
    folder = tmp_path_factory.mktemp("fake_hip")
    (folder / "fake.c").write_text(_SOURCE)
    for name, flags in (("right", []), ("missing", ["-DNO_COUNT"])):
        subprocess.run(
            [
                compiler,
                "-shared",
                "-fPIC",
                "-O0",
                *flags,
                "-o",
                str(folder / f"{name}.so"),
                str(folder / "fake.c"),
            ],
            check=True,
        )
    (folder / "empty.so").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("library", "env", "status", "says"),
    [
        ("right.so", {}, "PASS", "8 GPU"),
        ("right.so", {"FAKE_COUNT": "7"}, "INFO", "finds 7 GPU(s), KFD shows 8"),
        ("right.so", {"FAKE_COUNT": "0"}, "FAIL", "finds no GPU"),
        ("right.so", {"FAKE_CODE": "100"}, "FAIL", "hipErrorNoDevice"),
        ("right.so", {"FAKE_COUNT_CODE": "209"}, "FAIL", "hipErrorNoBinaryForGpu"),
        ("right.so", {"FAKE_CODE": "4711"}, "FAIL", "4711"),
        ("right.so", {"FAKE_CRASH": "1"}, "FAIL", "SIGSEGV"),
        ("right.so", {"FAKE_HANG": "1"}, "FAIL", "hangs"),
        ("missing.so", {}, "FAIL", "hipGetDeviceCount"),
        ("empty.so", {}, "FAIL", "cannot be loaded"),
    ],
)
def test_hip_init_on_fake_libraries(
    library: str,
    env: dict[str, str],
    status: str,
    says: str,
    fake_hip: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check's own child loads a real library, which stands where the machine's would be found."""
    from portagemm.doctor.host import Host

    machine = machine_files.machine("mi300x8")
    host = open_machine(machine, tmp_path, live_children=True)
    real = Host.child

    def child(self: Host, name: str, *args: str, timeout: float = 10.0, env: Any = None) -> Any:
        assert name == "hip_init" and args[0].endswith("/torch/lib/libamdhip64.so")
        return real(
            self, name, str(fake_hip / library), timeout=2.0 if "FAKE_HANG" in fake else 30.0, env=fake
        )

    fake = dict(env)
    monkeypatch.setattr(Host, "child", child)
    wanted = ["amd.hip-init", "amd.topology", "amd.visible-mask", "amd.kfd-access"]
    outcomes = run_checks(host, select(only=wanted))
    result = next(outcome.result for outcome in outcomes if outcome.check.id == "amd.hip-init")
    assert result.status.name == status, result
    assert says in result.message
