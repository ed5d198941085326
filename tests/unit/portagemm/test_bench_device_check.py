"""The device check's own machinery: command lines, time limits, a step that fails. No device is used."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[3]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load("device_check")
    monkeypatch.setattr(module, "sanitizer", lambda tool: ["compute-sanitizer", "--tool", tool])
    return module


def context(check: ModuleType, out: Path, seconds: float = 60.0) -> object:
    return check.Context("cuda:0", out, None, 7, time.monotonic() + seconds)


def test_every_default_step_has_a_command_and_a_limit(check: ModuleType, tmp_path: Path) -> None:
    names = check.DEFAULT_STEPS.replace("+", ",").split(",")
    assert {f"correctness:{p}" for p in ("h100", "a100", "rtx4090")} <= set(names)
    for name in names:
        line, profile, _ = check.command(name, context(check, tmp_path), tmp_path / "r.json", 100.0)
        scripts = [part for part in line if part.endswith(".py")]
        assert all(Path(script).is_file() for script in scripts)
        assert check.LIMITS[name.partition(":")[0]] > 0
        assert profile == (name.partition(":")[2] if name.startswith(("correctness", "memcheck")) else None)
    line, profile, _ = check.command("bench:random@a100", context(check, tmp_path), tmp_path / "r", 100.0)
    assert profile == "a100" and line[line.index("--seed") + 1] == "7" and "75" in line
    with pytest.raises(ValueError, match="allowed"):
        check.command("nope", context(check, tmp_path), tmp_path / "r", 1.0)


@pytest.mark.parametrize(
    ("code", "ok", "text"),
    [
        ("print('fine')", True, "fine"),
        ("raise SystemExit('broken')", False, "exit code 1: broken"),
        ("import time; print('working', flush=True); time.sleep(60)", False, "stopped after"),
    ],
)
def test_a_step_never_raises(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, ok: bool, text: str
) -> None:
    monkeypatch.setattr(check, "command", lambda *_: ([sys.executable, "-c", code], None, {}))
    step = check.run_step("host", context(check, tmp_path, seconds=6.0))
    assert step.ok is ok and text in step.summary
    assert "===== host" in (tmp_path / "log.txt").read_text()


def test_a_step_that_cannot_start_or_has_no_time_says_so(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "command", lambda *_: (["/nonexistent/tool"], None, {}))
    assert "could not start" in check.run_step("host", context(check, tmp_path)).summary
    assert check.run_step("host", context(check, tmp_path, seconds=1.0)).summary == "not run: no time left"


def test_pack_archives_are_unpacked(check: ModuleType, tmp_path: Path) -> None:
    import tarfile

    folder = tmp_path / "pack"
    folder.mkdir()
    (folder / "build.json").write_text(json.dumps({"seed": 3}))
    with tarfile.open(tmp_path / "pack.tar.xz", "w:xz") as tar:
        tar.add(folder / "build.json", arcname="build.json")
    assert check.unpack(None) is None and check.unpack(folder) == folder
    assert json.loads((check.unpack(tmp_path / "pack.tar.xz") / "build.json").read_text()) == {"seed": 3}


def test_pack_covers_the_suites_and_the_quick_cases() -> None:
    """What a device run needs is what build_pack lists: both plan from the same problems."""
    from portagemm import plan as planner
    from portagemm.bench import operands, suites

    build_pack = load("build_pack")
    device = build_pack.h200()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PORTAGEMM_PROFILE", "")
        selection = build_pack.select(device, "h100")
        sources = {s.symbol for s in build_pack.bench_sources(device, selection, 7)}
        for case in (*suites.suite("dense16", 7), *suites.suite("random", 7)):
            plan = planner.plan(operands.problem(case), selection.profile, device)
            assert plan.kernel.symbol("sm_90a") in sources
        assert any(symbol.startswith("pg_read_") for symbol in sources)
        known: dict[str, object] = {}
        assert build_pack.unique(build_pack.bench_sources(device, selection, 7), known) == len(known) > 0
