"""The doctor and what strangers hand it: bundles, reports and logs that are wrong, endless or made to harm."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from portagemm.doctor.host import Host
from portagemm.doctor.machine_file import MachineFileError, dump, expand, load, load_bundle, parse
from portagemm.doctor.main import main
from portagemm.doctor.record import Recorder
from portagemm.doctor.replay import open_machine, unpack
from portagemm.doctor.runner import run_checks, select

from . import machine_files

pytestmark = pytest.mark.quick


def bundle(body: str) -> str:
    """A machine file of these sections."""
    return f"portagemm-machine 1\n{body}\n"


# -- a bundle stays in its folder ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "--- links\n/a -> {outside}\n/a/b/c -> /etc/passwd",
        "--- links\n/a/b/c -> /etc/passwd\n/a/b -> {outside}\n/a/b/d/e -> x\n/x -> {outside}\n/x/y -> z",
        "--- links\n/x -> {outside}\n/x/y -> z",
        "--- links\n/x -> .\n/x/y -> {outside}\n/x/y/z -> t",
    ],
)
def test_nothing_is_made_through_a_link(body: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    try:
        unpack(parse(bundle(body.format(outside=outside))), tmp_path / "m")
    except MachineFileError as error:
        assert "lies below a link" in str(error)
    assert list(outside.iterdir()) == []


def test_a_link_that_would_hold_another_is_refused(tmp_path: Path) -> None:
    machine = parse(bundle("--- links\n/x/y -> z"))
    (tmp_path / "m/root").mkdir(parents=True)
    (tmp_path / "m/root/x").symlink_to(tmp_path)
    with pytest.raises(MachineFileError, match="below a link"):
        unpack(machine, tmp_path / "m")
    assert not os.path.lexists(tmp_path / "y")


def test_links_below_links_are_recorded_where_they_lie(tmp_path: Path) -> None:
    """As in /sys/class, where a device is a link, and its driver is a link below it."""
    tree = tmp_path / "tree"
    (tree / "devices/card0").mkdir(parents=True)
    (tree / "drivers/amdgpu").mkdir(parents=True)
    (tree / "class").mkdir()
    (tree / "class/card0").symlink_to("../devices/card0")
    (tree / "devices/card0/driver").symlink_to("../../drivers/amdgpu")
    recorder = Recorder()
    host = Host(tree, {}, recorder=recorder)
    assert host.readlink("/class/card0/driver") == "../../drivers/amdgpu"
    assert recorder.machine.links == {
        "/class/card0": "../devices/card0",
        "/devices/card0/driver": "../../drivers/amdgpu",
    }
    again = open_machine(parse(dump(recorder.finish(host))), tmp_path / "again")
    assert again.readlink("/class/card0/driver") == "../../drivers/amdgpu"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("--- empty\n/a{0..30000000}", "more than"),
        ("--- empty\n/{0..999}{0..999}{0..999}", "more than"),
        (
            "--- values\n/{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b} = 1",
            "more",
        ),
        ("--- nodes\n" + "/x{0..9999} file 644 0 0\n" * 20, "more than"),
        ("--- empty\n/{" + "," * 100_000, "a pattern of"),
        ("--- include /etc/hostname", "may not include"),
        ("--- include bundle.txt", "may not include"),
    ],
)
def test_a_bundle_that_would_grow_without_end(
    body: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bundle.txt").write_text(bundle(body))
    start = time.monotonic()
    assert main(["--from-bundle", str(tmp_path / "bundle.txt"), "-q"]) == 2
    error = capsys.readouterr().err
    assert why in error and "bundle.txt" in error and error.count("\n") == 1
    assert time.monotonic() - start < 5


def test_a_file_that_includes_itself(tmp_path: Path) -> None:
    (tmp_path / "self.machine").write_text(bundle("--- include self.machine"))
    with pytest.raises(MachineFileError, match="include itself"):
        load(tmp_path / "self.machine")


def test_a_bundle_is_a_regular_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (str(tmp_path / "pipe"), "/dev/zero"):
        assert main(["--from-bundle", name]) == 2
        assert "no regular file" in capsys.readouterr().err


def test_braces_expand_as_a_shell_does() -> None:
    assert expand("/d{0..2}") == ["/d0", "/d1", "/d2"]
    assert expand("/{a,b}/{1..2}") == ["/a/1", "/a/2", "/b/1", "/b/2"]
    assert expand("/x{a{1,2},b}") == ["/xa1", "/xb", "/xa2", "/xb"]  # inner braces first
    assert expand("/{}") == ["/{}"]


# -- bytes that are no text ------------------------------------------------------------------------------


def test_bytes_that_are_no_text_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value = os.fsdecode(b"/caf\xe9/lib")
    monkeypatch.setenv("LD_LIBRARY_PATH", value)
    path = tmp_path / "bundle.txt"
    first = main(["--save-bundle", str(path), "--passive", "-q"])
    assert load_bundle(path).env["LD_LIBRARY_PATH"] == value
    assert path.stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    assert main(["--from-bundle", str(path), "--passive", "-q"]) == first
    assert capsys.readouterr().err == ""


def test_a_bundle_over_another_file_is_private_too(tmp_path: Path) -> None:
    path = tmp_path / "bundle.txt"
    path.write_text("older and longer than what comes now" * 10_000)
    path.chmod(0o644)
    main(["--save-bundle", str(path), "--passive", "-q", "--only", "platform.os"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("portagemm-machine 1\n") and "older" not in path.read_text()


# -- texts that a terminal would obey --------------------------------------------------------------------

ESCAPES = """\
--- env
CUDA_VISIBLE_DEVICES=\x1b]0;pwn\x07\x1b[2Jx
HIP_VISIBLE_DEVICES=\x9b31m
LD_LIBRARY_PATH=/a\x1b[5mx\x08\x7f
--- machine
uname = {"release":"6\\u001b[31m\\r\\u202e","node":"a\\u001b"}
python = {"version":"3.11\\u001b[4m","executable":"/\\u001b[5mpy\\u009b"}
--- empty
/dev/nvidia0
/dev/nvidiactl
/dev/nvidia-uvm\x1b[2J
--- file /proc/driver/nvidia/version
NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.\x1b[31m54\x85 Thu
"""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.mark.parametrize("form", ["--verbose", "--markdown", "--json", "--no-redact"])
def test_no_control_characters_of_a_machine(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.txt").write_text(bundle(ESCAPES), "utf-8")
    main(["--from-bundle", str(tmp_path / "b.txt"), form, *(["-v"] if form == "--no-redact" else [])])
    out = capsys.readouterr().out
    if form == "--json":
        assert "\\u001b" in out and json.loads(out)["machine"]["kernel"].endswith("\u202e")
        out = out.replace("\u202e", "")
    assert not OBEYED.search(out), OBEYED.findall(out)
    assert "nvidia" in out


def test_no_control_characters_in_complaints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.txt").write_text(bundle("--- nodes\n/x file 644 0 0 \x1b[31mkey=1"), "utf-8")
    assert main(["--from-bundle", str(tmp_path / "b.txt")]) == 2
    assert not OBEYED.search(capsys.readouterr().err)
    assert main(["--match-error", "\x9b31mCUDA error: unspecified \x9b2Jlaunch failure"]) in (0, 1)
    assert not OBEYED.search(capsys.readouterr().out)


# -- values of another kind ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("--- machine\nuser = 3", "user"),
        ('--- machine\nuser = {"uid": "x"}', "uid of user"),
        ('--- machine\nuname = {"node": null}', "node of uname"),
        ('--- machine\nuname = {"release": 5}', "release of uname"),
        ('--- machine\npython = {"version": 7, "path": 3}', "of python"),
        ('--- machine\npython = {"libc": ["glibc"]}', "IndexError"),
        ('--- machine\nlimits = {"a": 1}', "TypeError"),
        ("--- machine\nuser = " + "[" * 100_000, "recursion"),
        ('--- machine\nuser = {"uid": ' + "1" * 5000 + "}", "integer"),
        ("--- nodes\n/dev/nvidia0 char 666 0 0 device=1", "device of /dev/nvidia0"),
        ("--- nodes\n/dev/nvidia0 char 666 0 0 total=1", "space of /dev/nvidia0"),
        ("--- nodes\n/dev/nvidia0 char 6x6 0 0", "6x6"),
        ("--- nodes\n/dev/nvidia0 char 666 0 " + "1" * 5000, "integer"),
        ("--- probe nvrtc\n" + "[" * 100_000, "recursion"),
        ("--- command nvidia-smi\nx\n--- exit code=zz", "zz"),
        ("--- file /\nx", ""),
        ("--- file /a\nx\n--- file /a/b\nx", ""),
        ("--- file /a/../../b\nx", "bad path"),
    ],
)
def test_a_wrong_value_is_one_clear_line(
    body: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.txt").write_text(bundle(body))
    assert main(["--from-bundle", str(tmp_path / "b.txt"), "-q"]) == 2
    error = capsys.readouterr().err
    assert why.lower() in error.lower() and error.count("\n") == 1 and len(error) < 600
    assert "please report" not in error


def test_numbers_without_end_in_files(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("7" * 5000)
    assert Host(tmp_path, {}).number("/x") is None


@pytest.mark.skipif(not hasattr(sys, "get_int_max_str_digits"), reason="int() of this Python has no limit")
def test_numbers_without_end_are_no_fault_of_ours(tmp_path: Path) -> None:
    machine = machine_files.machine("h100")
    machine.machine["python"]["version"] = "7" * 5000 + ".1"
    outcomes = run_checks(open_machine(machine, tmp_path), select(only=["platform.python"]))
    (result,) = [outcome.result for outcome in outcomes if outcome.check.id == "platform.python"]
    assert result.status.name == "ERR" and "thousands of digits" in result.message
    assert "report" not in str(result.details)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--explain", ""],
        ["--root", ""],
        ["--from-bundle", ""],
        ["--save-bundle", ""],
        ["-o", ""],
        ["--only", ""],
        ["--only", ","],
        ["--skip", ""],
        ["--cluster", "--cluster-dir", ""],
        ["--compare", ""],
        ["--compare", "a", "--expect-ranks", "-1"],
    ],
)
def test_empty_values_are_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "please report" not in said.err
