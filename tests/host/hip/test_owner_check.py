"""benchmarks/rocm_check.py, which owners of AMD GPUs run: without hardware, and what leaves their machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...fake_rocm import build  # noqa: TID252
from .conftest import Folder

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))  # benchmarks/ is no part of the package

from benchmarks import rocm_check  # noqa: E402


def check(out: Path, steps: str, env: dict[str, str], *more: str) -> tuple[int, str, dict[str, object]]:
    """Exit code, what it printed, the file by step: name -> step."""
    line = [sys.executable, "-m", "benchmarks.rocm_check", "--quick", "--device", "cpu", "--out", str(out)]
    done = subprocess.run(
        [*line, "--steps", steps, *more], env=env, cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(out.read_text())
    return done.returncode, done.stdout, {step["name"]: step for step in document["steps"]}


def test_dry_run(rocm: Folder, clang: str, tmp_path: Path) -> None:
    """The whole way of the check on the machine without hardware: facts, devices, numbers, cases; one file."""
    env = build.environment(rocm(), tmp_path / "calls", FAKE_ROCM=str(build.HERE), FAKE_HIPRTC_CLANG=clang)
    env |= {"PYTHONPATH": str(build.HERE / "site"), "PORTAGEMM_TUNING": "off", "PORTAGEMM_TOKEN": "hush-hush"}
    code, printed, steps = check(
        tmp_path / "file.json", "machine,devices,numbers,correctness", env, "--first", "3"
    )
    assert code == 0, printed + (tmp_path / "file.json").read_text()
    assert "Please send" in printed
    machine = steps["machine"]["figures"]  # type: ignore[index]
    assert [d["gcnArchName"] for d in machine["hip"]] == ["gfx90a:sramecc+:xnack-"] * 2
    assert any(path.endswith("libamdhip64.so") for path in machine["hip"][0]["libraries"])
    devices = steps["devices"]["figures"]  # type: ignore[index]
    assert {d["profile"] for d in devices["devices"] if d["backend"] == "rocm"} == {"mi250x"}
    assert "rocm:1 AMD Instinct MI250X (mi250x)" in printed
    numbers = steps["numbers"]["figures"]  # type: ignore[index]
    assert numbers["fp16 subnormals, 64 x 2^-15"]["ours"] == 64 * 2.0**-15
    cases = steps["correctness"]["figures"]  # type: ignore[index]
    assert cases["failed"] == 0 and cases["cases"] == 3 and cases["compiled_here"] > 0
    assert "hush-hush" not in (tmp_path / "file.json").read_text()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert any(line.startswith("launch pg_gfx90a") for line in calls)


def test_without_amd(tmp_path: Path) -> None:
    """On a machine without HIP the file says so: a failed step with its reason, and the other steps."""
    env = build.environment(tmp_path / "nothing", tmp_path / "calls")
    code, printed, steps = check(tmp_path / "file.json", "machine,devices", env)
    assert code == 1
    assert "FAILED machine" in printed and "failed: machine" in printed
    assert "hip-python found no libamdhip64.so" in steps["machine"]["summary"]  # type: ignore[index]
    assert steps["devices"]["ok"]  # type: ignore[index]


def _plan(folder: Path) -> rocm_check.Plan:
    return rocm_check.Plan("cpu", True, folder, 0, 1, 10)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import time; print('waiting', flush=True); time.sleep(60)", "stopped after 0.5 s: waiting"),
        ("import os; os.kill(os.getpid(), 11)", "ended by signal 11"),
        ("raise SystemExit('no such thing')", "exit 1: no such thing"),
    ],
    ids=["hangs", "crashes", "fails"],
)
def test_a_step_that_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    monkeypatch.setitem(rocm_check.COMMANDS, "odd", (lambda plan, result: ["-c", code], 0.5))
    step = rocm_check.run_step("odd", _plan(tmp_path))
    assert not step.ok and words in step.summary


@pytest.mark.quick
def test_redaction() -> None:
    """Names, homes, addresses, ids and secrets go, wherever they stand; versions and PCI addresses stay."""
    redact = rocm_check.Redaction("gpu-node-17.lab.example.org", "jdoe", {"HOME": "/data/jdoe"})
    private = {
        "host": "on gpu-node-17.lab.example.org, alias gpu-node-17",
        "paths": ["/data/jdoe/venv/lib", "/home/somebody/x.py", "/Users/else/x", "user jdoe"],
        "/data/jdoe/key": "as a key",
        "ids": "unique_id 11400714819323198485, GPU-deadbeefdeadbeef, 12345678-1234-1234-1234-123456789abc",
        "serial": "serial_number: PCB4711AB",
        "net": "aa:bb:cc:dd:ee:ff at 192.168.1.20 and 10.11.12.13",
        "secret": "HF_TOKEN=hf_abcdefgh PASSWORD: 'swordfish' https://me:pw@example.org/x",
    }
    text = json.dumps(redact(private))
    for word in (
        *("gpu-node-17", "lab.example", "jdoe", "somebody", "else/", "11400714819323198485", "deadbeef"),
        *("123456789abc", "PCB4711AB", "aa:bb", "192.168", "10.11", "hf_abcdefgh", "swordfish", "me:pw"),
    ):
        assert word not in text, word
    kept = ["hip-python 10.0.0.0.1.2", "0000:83:00.0", "gfx90a:sramecc+:xnack-", "ROCm 6.4.1-83", "node 3"]
    assert redact(kept) == kept
    assert rocm_check.Redaction("amd", "jo", {})(["amd has jo's card"]) == ["amd has <user>'s card"]


@pytest.mark.quick
def test_every_command_exists() -> None:
    """Names of scripts and tests in the steps are those of the checkout."""
    for name, (line, _) in rocm_check.COMMANDS.items():
        words = [*line(_plan(Path("work")), Path("result.json"))]
        named = [w for w in words if w.endswith(".py") or w.startswith("tests/")]
        assert named or "portagemm.cli" in words, name
        assert all((ROOT / w).exists() for w in named), name


@pytest.mark.quick
def test_the_shell_script_explains_itself() -> None:
    text = (ROOT / "amd_check.sh").read_text()
    assert os.access(ROOT / "amd_check.sh", os.X_OK)
    assert "benchmarks.rocm_check" in text and "setup_venv" in text and "pip install" not in text
