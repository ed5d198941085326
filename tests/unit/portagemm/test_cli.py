"""The command line: what it prints, its exit codes, and that errors are one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from portagemm import cli

pytestmark = pytest.mark.quick


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    code = cli.run(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0 and out.startswith("portagemm ")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name in cli.COMMANDS:
        assert f"  {name} " in out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = run(capsys, name, "--help")
    assert code == 0 and out.startswith("Usage:")


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "multiply")
    assert code == 2 and "multiply" in err


def test_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "profiles", "--show", "h1000")
    assert (code, out) == (1, "")
    assert err.startswith("error: profile: given 'h1000'; allowed: a100")
    assert err.count("\n") == 1


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--debug", "profiles", "--show", "h1000")
    assert code == 1 and "Traceback" in err and "ProfileError" in err


def test_unexpected_error_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr(cli.group, "main", broken)
    code, _, err = run(capsys, "devices")
    assert code == 1
    assert err == "error: RuntimeError: first (portagemm --debug ... shows all of it)\n"


def test_interrupt_is_exit_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.group, "main", interrupted)
    assert run(capsys, "devices")[0] == 130


def test_closed_pipe_is_quiet() -> None:
    done = subprocess.run(
        f"{sys.executable} -m portagemm.cli profiles --show h100 | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("h100") and done.stderr == ""


def test_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "profiles")
    assert code == 0
    for name in ("a100", "h100", "rtx4090", "mi250x", "mi300x", "mi355x", "rx7900xtx", "cpu"):
        assert name in out
    assert "is made for native" in out  # why the CPU gets its profile


def test_profiles_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "profiles", "--json")
    listed = json.loads(out)
    assert code == 0 and {"a100", "cpu"} <= {p["name"] for p in listed["profiles"]}
    assert any(device["profile"] == "cpu" for device in listed["devices"])
    code, out, _ = run(capsys, "profiles", "--show", "h100", "--json")
    assert code == 0 and json.loads(out)["atoms"]["wgmma"]["lanes"] == 128


@pytest.mark.parametrize(
    "name", ["a100", "h100", "rtx4090", "mi250x", "mi300x", "mi355x", "rx7900xtx", "cpu"]
)
def test_profiles_show(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = run(capsys, "profiles", "--show", name)
    assert code == 0 and out.startswith(f"{name}: ") and "schedules" in out


def test_profiles_validate(capsys: pytest.CaptureFixture[str], root: Path, tmp_path: Path) -> None:
    good = root / "arch_profiles" / "a100.yaml"
    code, out, _ = run(capsys, "profiles", "--validate", str(good))
    assert code == 0 and "ok: profile a100" in out
    bad = tmp_path / "bad.yaml"
    bad.write_text(good.read_text().replace("wave_size: 32", "wave_size: many"))
    code, _, err = run(capsys, "profiles", "--validate", str(bad))
    assert code == 1 and "bad.yaml" in err and "wave_size" in err


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "devices")
    assert code == 0 and "profile cpu" in out
    for backend in ("cuda", "rocm", "cpu"):
        assert f"backend {backend}: " in out
    missing = any(line.startswith("backend ") and not line.endswith(": usable") for line in out.splitlines())
    assert ("portagemm doctor says" in out) == missing


def test_devices_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "devices", "--json")
    found = json.loads(out)
    assert code == 0 and found["environment"]["kind"]
    assert "cpu" in [device["torch_device"] for device in found["devices"]]
    assert found["backends"].keys() == {"cuda", "rocm", "cpu"}


def test_cache(capsys: pytest.CaptureFixture[str], private_cache: Path) -> None:
    code, out, _ = run(capsys, "cache", "info")
    assert code == 0 and str(private_cache) in out and "kernels  0" in out
    code, out, _ = run(capsys, "cache", "info", "--json")
    assert code == 0 and json.loads(out)["entries"] == 0
    code, out, _ = run(capsys, "cache", "clear")
    assert code == 0 and "removed 0 kernels" in out


def test_compile_lists_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "compile", "--arch", "h100", "--list", "--layout", "nt", "--dtype", "bfloat16")
    names = out.split()
    assert code == 0 and len(names) == len(set(names))
    assert any("warp_specialized" in name for name in names) and any("multistage" in name for name in names)


def test_compile_takes_an_arch_for_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    by_name = run(capsys, "compile", "--arch", "mi250x", "--list")
    assert by_name == run(capsys, "compile", "--arch", "gfx90a", "--list")


def test_compile_takes_several_archs(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--list", "--layout", "nt", "--dtype", "float16", "--epilogue", "none"]
    each = [run(capsys, "compile", "--arch", arch, *options)[1] for arch in ("gfx90a", "gfx942", "gfx1100")]
    code, out, _ = run(capsys, "compile", "--arch", "gfx90a,gfx942,gfx1100", *options)
    assert code == 0 and all(each) and out == "".join(each)


def test_compile_best_is_one_kernel_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--layout", "nt", "--dtype", "float16", "--epilogue", "none", "--shape", "2048x4096x4096"]
    code, out, _ = run(capsys, "compile", "--arch", "a100", "--list", "--best", *options)
    assert code == 0 and len(out.split()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--arch", "sm_99", "--list"], 1, "arch: given 'sm_99'; allowed: "),
        (["--arch", "h100", "--list", "--epilogue", "tanh"], 1, "epilogue: given tanh; allowed: "),
        (["--arch", "h100", "--list", "--board", "H1"], 1, "board: given 'H1'; allowed with profile h100: "),
        (["--arch", "h100", "--list", "--shape", "1x2"], 2, "given '1x2'; allowed: MxNxK"),
        (["--arch", "h100", "--list", "--shape", "0x0x0"], 2, "there is nothing to compile"),
        (["--arch", "h100", "--list", "--device-arch", "sm_80"], 1, "given sm_80 with profile h100: "),
        (["--arch", "a100", "--list", "--device-arch", "sm_75"], 1, "its code runs on sm_80 and newer"),
        (["--arch", "gfx90a,gfx942", "--list", "--board", "MI210"], 2, "go with one --arch"),
        (["--arch", "h100"], 2, "--out"),
    ],
)
def test_compile_refuses(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str
) -> None:
    got, out, err = run(capsys, "compile", *arguments)
    assert (got, out) == (code, "") and text in err


def test_demo_needs_two_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "demo", "only one")
    assert code == 2 and "two and more" in err


def test_demo_refuses_an_unknown_device(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "demo", "--device", "tpu")
    assert code == 2 and "--device: given tpu; allowed: " in err
