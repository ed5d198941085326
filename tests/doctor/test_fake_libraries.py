"""Children that load a driver's or compiler's library: right, refusing, crashing, hanging, incomplete, a stub.

The libraries are tiny shared objects, built here from C; the children load them for real.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from portagemm.doctor import nvidia_facts
from portagemm.doctor.check import Result, Status
from portagemm.doctor.checks import tool
from portagemm.doctor.cuda_codes import CUDA_CODES
from portagemm.doctor.replay import open_machine
from portagemm.doctor.runner import run_checks, select

from . import machine_files

HERE = Path(__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the fake libraries with")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the fake libraries: right ones, and those that lack a function in missing/."""
    folder = tmp_path_factory.mktemp("fakes")
    for name, source in (("libcuda.so.1", "fake_libcuda.c"), ("libnvrtc.so.12", "fake_nvrtc.c")):
        for place, flags in (("right", ()), ("missing", ("-DMISSING",)), ("stubs", ())):
            (folder / place).mkdir(exist_ok=True)
            target = folder / place / name
            assert COMPILER is not None
            subprocess.run(
                [COMPILER, "-shared", "-fPIC", "-O1", *flags, str(HERE / source), "-o", str(target)],
                check=True,
            )
    (folder / "broken").mkdir()
    (folder / "broken" / "libcuda.so.1").write_bytes(b"no shared object")
    (folder / "broken" / "libnvrtc.so.12").write_bytes(b"no shared object")
    return folder


def examine(
    folder: Path, tmp_path: Path, *ids: str, classes: tuple[str, ...] = ("passive", "process"), **env: str
) -> dict[str, Result]:
    """Results on the H100 machine whose children load what lies in `folder`."""
    machine = machine_files.machine("h100")
    machine.env.update({"LD_LIBRARY_PATH": str(folder), **env})
    host = open_machine(machine, tmp_path / "machine", live_children=True)
    return {o.check.id: o.result for o in run_checks(host, select(only=ids, classes=classes))}


def test_right_library(built: Path, tmp_path: Path) -> None:
    found = examine(built / "right", tmp_path, "nvidia.cuinit", "nvidia.driver-min")
    assert found["nvidia.libcuda-load"].status is Status.PASS
    assert found["nvidia.libcuda-load"].data["path"] == str(built / "right" / "libcuda.so.1")
    assert found["nvidia.cuinit"].status is Status.PASS
    assert found["nvidia.cuinit"].data["cuda"] == "12.8"
    assert [d["capability"] for d in found["nvidia.cuinit"].data["devices"]] == ["9.0", "9.0"]
    assert found["nvidia.cuinit"].data["devices"][1]["uuid"] == "GPU-a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1"


@pytest.mark.parametrize("code", sorted(set(CUDA_CODES) - {34}))
def test_every_error_code_is_translated(code: int, built: Path, tmp_path: Path) -> None:
    result = examine(built / "right", tmp_path, "nvidia.cuinit", FAKE_INIT=str(code))["nvidia.cuinit"]
    assert result.status is Status.FAIL
    assert CUDA_CODES[code].name in result.message and result.remedies
    assert result.data["code"] == code


def test_unknown_error_code(built: Path, tmp_path: Path) -> None:
    result = examine(built / "right", tmp_path, "nvidia.cuinit", FAKE_INIT="4242")["nvidia.cuinit"]
    assert result.status is Status.FAIL and "4242" in result.message


def test_stub_by_its_code_and_by_its_place(built: Path, tmp_path: Path) -> None:
    by_code = examine(built / "right", tmp_path / "a", "nvidia.libcuda-load", FAKE_INIT="34")[
        "nvidia.libcuda-load"
    ]
    by_place = examine(built / "stubs", tmp_path / "b", "nvidia.libcuda-load")["nvidia.libcuda-load"]
    for result in (by_code, by_place):
        assert result.status is Status.FAIL and "stub" in result.message


def test_count_that_fails_and_no_device(built: Path, tmp_path: Path) -> None:
    failed = examine(built / "right", tmp_path / "a", "nvidia.cuinit", FAKE_COUNT="999")["nvidia.cuinit"]
    assert failed.status is Status.FAIL and failed.message.startswith("cuDeviceGetCount answers 999")
    none = examine(built / "right", tmp_path / "b", "nvidia.cuinit", FAKE="none")["nvidia.cuinit"]
    assert none.status is Status.FAIL and none.data["code"] == 100
    masked = examine(built / "right", tmp_path / "c", "nvidia.cuinit", FAKE="none", CUDA_VISIBLE_DEVICES="-1")
    assert masked["nvidia.cuinit"].status is Status.WARN


@pytest.mark.parametrize(
    ("mode", "check_id", "words"),
    [
        ("crash-load", "nvidia.libcuda-load", "crashes (SIGSEGV)"),
        ("crash-init", "nvidia.cuinit", "cuInit crashes with SIGSEGV"),
        ("crash-count", "nvidia.cuinit", "listing the devices crashes with SIGABRT"),
        ("exit-init", "nvidia.cuinit", "exit status 7"),
    ],
)
def test_crash(mode: str, check_id: str, words: str, built: Path, tmp_path: Path) -> None:
    result = examine(built / "right", tmp_path, check_id, FAKE=mode)[check_id]
    assert result.status is Status.FAIL and words in result.message, result


@pytest.mark.parametrize(
    ("mode", "check_id", "words"),
    [("hang-load", "nvidia.libcuda-load", "hangs"), ("hang-init", "nvidia.cuinit", "cuInit does not return")],
)
def test_hang(
    mode: str, check_id: str, words: str, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_facts, "LIBCUDA_TIMEOUT_S", 3.0)
    result = examine(built / "right", tmp_path, check_id, FAKE=mode)[check_id]
    assert result.status is Status.FAIL and words in result.message, result


def test_missing_function_and_no_library(built: Path, tmp_path: Path) -> None:
    lacking = examine(built / "missing", tmp_path / "a", "nvidia.cuinit")
    assert lacking["nvidia.libcuda-load"].status is Status.FAIL
    assert "lacks cuInit" in lacking["nvidia.libcuda-load"].message
    assert lacking["nvidia.cuinit"].status is Status.SKIP
    broken = examine(built / "broken", tmp_path / "b", "nvidia.libcuda-load")["nvidia.libcuda-load"]
    assert broken.status is Status.FAIL and broken.details


def test_a_context_on_every_device(built: Path, tmp_path: Path) -> None:
    def run(name: str, **env: str) -> Result:
        return examine(
            built / "right", tmp_path / name, "nvidia.context", classes=("passive", "process", "gpu"), **env
        )["nvidia.context"]

    assert run("a").status is Status.PASS
    busy = run("b", FAKE_CONTEXT="46")
    assert busy.status is Status.FAIL and busy.message.startswith(
        "device 1: 46 (CUDA_ERROR_DEVICE_UNAVAILABLE)"
    )
    crash = run("c", FAKE="crash-context")
    assert crash.status is Status.FAIL and "SIGSEGV" in crash.message


def test_hmm_is_the_root_of_cuinit_3(built: Path, tmp_path: Path) -> None:
    found = examine(built / "right", tmp_path, "nvidia.cuinit", "nvidia.hmm", FAKE_INIT="3")
    assert found["nvidia.hmm"].status is Status.FAIL  # HMM is not switched off on this machine
    assert (
        found["nvidia.cuinit"].status is Status.SKIP
        and found["nvidia.cuinit"].data["because"] == "nvidia.hmm"
    )


@pytest.mark.parametrize(
    ("place", "mode", "status", "words"),
    [
        ("right", "", Status.PASS, "NVRTC 12.8"),
        ("right", "old", Status.FAIL, "no C++20"),
        ("right", "error", Status.FAIL, "cannot compile"),
        ("right", "no-builtins", Status.FAIL, "failed to open libnvrtc-builtins"),
        ("right", "crash", Status.FAIL, "crashes with SIGSEGV while compiling"),
        ("right", "hang", Status.FAIL, "does not return while compiling"),
        ("missing", "", Status.FAIL, "lacks nvrtcVersion"),
        ("broken", "", Status.FAIL, "not found"),
    ],
)
def test_nvrtc(
    place: str,
    mode: str,
    status: Status,
    words: str,
    built: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool, "_NVRTC_TIMEOUT_S", 4.0 if mode == "hang" else 30.0)
    result = examine(built / place, tmp_path, "tool.nvrtc", FAKE=mode)["tool.nvrtc"]
    assert result.status is status and words in result.message, result
