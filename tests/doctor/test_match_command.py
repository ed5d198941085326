"""`--match-error` on the command line: text, file and standard input; for people and as JSON."""

from __future__ import annotations

import io
import json
import time
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


@pytest.mark.parametrize(
    "piece",
    ["libcuda.so.1", "\x1b]", "cudaMalloc(", "cuda error ", ".", "[", "no kernel image is avail", "1: "],
)
def test_one_very_long_line(piece: str) -> None:
    """It is looked at as lines of 64 KiB, and takes no longer than so many lines would."""
    start = time.process_time()
    match.find(piece * (100_000 // len(piece)) + " CUDA error: unspecified launch fail")
    assert time.process_time() - start < 5


def test_the_end_of_a_long_line_is_seen() -> None:
    found = match.find("x " * 100_000 + "CUDA error: unspecified launch failure")
    assert found and found[0].line > 1


def test_endless_and_closed_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a long input its beginning and its end are kept, as of a file."""

    class Long(io.RawIOBase):
        left = 24

        def readable(self) -> bool:
            return True

        def readinto(self, place: memoryview) -> int:  # type: ignore[override]
            self.left -= 1
            place[:] = b"\n" * len(place)
            return len(place) if self.left > 0 else 0

    stream = io.TextIOWrapper(io.BufferedReader(Long(), 1 << 20), "utf-8")
    assert len(match.read_stream(stream)) == 8 << 20
    closed = io.TextIOWrapper(io.BytesIO(b""), "utf-8")
    closed.close()
    for nothing in (None, closed):
        monkeypatch.setattr("sys.stdin", nothing)
        assert run("--match-error", "-", capsys=capsys)[0] == 1
