"""`portagemm tune` for real: it searches on the CPU backend, keeps its answers, goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import portagemm
from portagemm import launch, tuning
from portagemm import plan as planner
from portagemm.bench.search import Search, sources
from portagemm.bench.suites import BenchCase
from portagemm.bench.timing import Effort, HostTimer
from portagemm.cli import run
from portagemm.ops import _dispatch

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("cpu")]

SHAPE = ("--shape", "40,64,96", "--dtype", "fp32")
LINE = ("tune", "--device", "cpu", "--plain", "--seconds", "0.01", "--jobs", "1")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "table.json"
    monkeypatch.setenv(tuning.VARIABLE, str(path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    tuning.reset()
    _dispatch.clear()
    yield path
    tuning.reset()
    _dispatch.clear()


def entries(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())["entries"]
    assert isinstance(found, dict)
    return found


def test_tunes_skips_what_is_known_and_explain_shows_both(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run((*LINE, *SHAPE, "--table", str(table))) == 0
    first = capsys.readouterr().out
    assert "1 cases, 0 already" in first and "x the model's choice, of 2 plans" in first
    ((key, by_rows),) = entries(table).items()
    assert key.startswith("cpu A:fp32:k16 B:fp32:k16 D:fp32:n16 ieee [64,96]") and list(by_rows) == ["40"]

    before = table.read_text()
    assert run((*LINE, *SHAPE, "--table", str(table))) == 0
    assert "1 already" in capsys.readouterr().out and table.read_text() == before
    assert run((*LINE, *SHAPE, "--table", str(table), "--again")) == 0
    assert "x the model's choice" in capsys.readouterr().out

    x, w = torch.randn(40, 96), torch.randn(64, 96)
    text = str(portagemm.explain("linear", x, w))
    assert "cheapest of 2 by the model" in text and "us expected, limit: " in text
    assert "tuned: single_buffer/host_panel/" in text and "measured for m = 40" in text
    torch.testing.assert_close(portagemm.linear(x, w, fallback="error"), x @ w.T)


def test_a_case_that_fails_does_not_stop_the_others(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found before and after it is kept, and the exit code says that something failed."""
    real = Search.__call__

    def search(self: Search, case: BenchCase, *args: Any, **kwargs: Any) -> Any:
        if case.m == 41:
            raise RuntimeError("out of memory")
        return real(self, case, *args, **kwargs)

    monkeypatch.setattr(Search, "__call__", search)
    shapes = [word for m in (40, 41, 42) for word in ("--shape", f"{m},64,96")]
    assert run((*LINE, *shapes, "--dtype", "fp32", "--table", str(table))) == 1
    assert "[41, 64, 96]: RuntimeError: out of memory" in capsys.readouterr().out
    assert [list(by_rows) for by_rows in entries(table).values()] == [["40", "42"]]


def test_the_table_decides_what_runs(table: Path) -> None:
    """Whichever tile the entry names is the one that is launched."""
    device = launch.device_of(torch.device("cpu"))
    x, w = torch.randn(40, 96), torch.randn(64, 96)
    problem = portagemm.explain("linear", x, w).problem
    assert problem is not None
    profile = launch.selection_of(device).profile
    for plan in planner.candidates(problem, profile, device):
        measured = tuning.Measured(planner.name_of(plan), 1, 1.0)
        entry = tuning.Entry(measured, None, None, tuning.sources_digest("cpu"))
        tuning.store(table, device, tuning.key_of(problem, "cpu"), entry)
        tuning.reset()
        _dispatch.clear()
        assert portagemm.explain("linear", x, w).plan == replace(plan, raster=1)
        torch.testing.assert_close(portagemm.linear(x, w, fallback="error"), x @ w.T)


def test_a_kernel_with_wrong_numbers_never_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    device = launch.device_of(torch.device("cpu"))
    real = launch.launcher

    def launcher(problem: Any, device: Any, plan: Any = None) -> Any:
        prepared = real(problem, device, plan)
        if plan.kernel.tile.block[0] == 96:
            return lambda *pointers: None
        return prepared

    monkeypatch.setattr(launch, "launcher", launcher)
    found = Search(device, HostTimer(), Effort(0.01, 2, 3))(BenchCase("matmul", "fp32", "NT", 40, 64, 96))
    assert found.plan.kernel.tile.block[0] == 24
    ((plan, why),) = found.failed
    assert "96x128" in plan and why.startswith("wrong numbers: nan")


def test_both_timings_count(table: Path) -> None:
    device = launch.device_of(torch.device("cpu"))
    case = BenchCase("matmul", "bf16", "NN", 8, 64, 64, timings=("alone", "chain"))
    found = Search(device, HostTimer(), Effort(0.01, 2, 3), chain_bytes=1 << 14)(case)
    assert found.us > 0 and found.heuristic_us >= found.us and not found.failed
    assert len(sources([case, case], device)) == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--shape", "1,2"), "shape: given '1,2'; allowed: M,N,K"),
        (("--shape", "1,2,0"), "allowed: M,N,K"),
        (("--shape", "1,2,3", "--dtype", "int3"), "dtype: given 'int3'"),
        (("--shape", "1,2,3", "--layout", "XY"), "layout: given 'XY'"),
        (("--suite", "nope"), "suite: given 'nope'"),
        (("--device", "tpu", "--suite", "host"), "device: given 'tpu'"),
    ],
)
def test_wrong_usage(
    table: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run(("tune", "--device", "cpu", *arguments)) == 2
    assert message in capsys.readouterr().err
