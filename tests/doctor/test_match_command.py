"""`--match-error` on the command line: text, file and standard input; for people and as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from portagemm.doctor import match
from portagemm.doctor.main import main

pytestmark = pytest.mark.quick


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and what was printed."""
    code = main(list(arguments))
    return code, capsys.readouterr().out


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run("--match-error", "Error 803: system has unsupp...", capsys=capsys)
    assert code == 0
    assert "driver-mismatch-803 (likely), line 1: Error 803" in out
    assert "reboot" in out and "needs root" in out and "nvidia.userspace-match" in out and "https://" in out


def test_nothing_known(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run("--match-error", "all is well", capsys=capsys)
    assert code == 1 and "No message" in out and "no file" not in out
    code, out = run("--match-error", "logs/of/no.log", capsys=capsys)
    assert code == 1 and "There is no file logs/of/no.log" in out


def test_file_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    log.write_text("epoch 1\n[rank0]: HIP error: invalid device\n[rank0]:  function\n")
    code, out = run("--match-error", str(log), "--json", capsys=capsys)
    document = json.loads(out)
    (found,) = document["matches"]
    assert code == 0 and document["schema_version"] == 1
    assert found["id"] == "hip-invalid-device-function" and found["line"] == 2
    assert found["remedies"][0]["command"] == "unset HSA_OVERRIDE_GFX_VERSION"
    assert set(found) >= {"vendor", "confidence", "excerpt", "means", "checks", "sources"}


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"kfd kfd: amdgpu: PCI rejects atomics\n"), "utf-8")
    monkeypatch.setattr("sys.stdin", stream)
    code, out = run("--match-error", "-", capsys=capsys)
    assert code == 0 and out.startswith("kfd-no-atomics")


def test_every_message_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the entry holds: its means, each remedy and command, its checks and sources."""
    for message in match.MESSAGES:
        if not message.phrases:
            continue
        code, out = run("--match-error", message.phrases[0], capsys=capsys)
        flat = " ".join(out.split())
        assert code == 0 and message.means.split(":")[0].split(",")[0][:60] in flat, message.id
        for remedy in message.remedies:
            assert remedy.command in out, message.id
        assert all(source in out for source in message.sources)
