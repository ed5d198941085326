"""The report: figures, schema, file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from portagemm.bench.report import Report, Row, geometric_mean, gpu_folder, row_text, summary, summary_text
from portagemm.bench.suites import BenchCase, suite

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[3]


def timed(case: BenchCase, us: float, torch_us: float, timing: str = "alone") -> Row:
    row = Row.of(case, timing)
    row.set_time(us, case, 2)
    row.peers_us = {"torch": torch_us}
    row.route, row.profile, row.kernel, row.plan = "own", "h100", "kernel", "plan"
    row.max_rel_err = 1.23456789e-3
    return row


def report(rows: list[Row]) -> Report:
    return Report(
        suite="dense16",
        gpu="NVIDIA H200",
        driver="580.1",
        versions={"torch": "2.11"},
        commit="abc",
        sources_digest="0" * 64,
        date="2026-11-29T10:00:00+00:00",
        ceilings={"copy_tbps": 4.3, "read_tbps": None, "mma_tflops": {"bf16": 700.0}},
        rows=rows,
    )


def schema() -> dict[str, Any]:
    loaded = json.loads((ROOT / "benchmarks" / "schema.json").read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) is None


def test_rates() -> None:
    row = timed(BenchCase("matmul", "bf16", "NT", 1000, 1000, 1000), us=10.0, torch_us=8.0)
    assert row.tflops == pytest.approx(200.0)
    assert row.gbps == pytest.approx(600.0)
    assert row.ratio() == pytest.approx(0.8)


def test_summary_groups_by_timing_and_by_large_m_and_leaves_failures_out() -> None:
    small, large = (BenchCase("matmul", "bf16", "NT", m, 64, 64) for m in (128, 4096))
    failed = timed(large, 1.0, 100.0)
    failed.error = "wrong result"
    rows = [timed(small, 1.0, 4.0), timed(large, 1.0, 1.0), timed(large, 2.0, 1.0, "chain"), failed]
    groups = {name: (count, mean, lowest) for name, count, mean, lowest in summary(rows)}
    assert groups["all, alone"] == (2, pytest.approx(2.0), 1.0)
    assert groups["M >= 4096, alone"] == (1, pytest.approx(1.0), 1.0)
    assert groups["all, chain"] == (1, pytest.approx(0.5), 0.5)
    text = summary_text(report(rows))
    assert text.endswith("4 rows, 1 failed") and "M >= 4096, chain: geometric mean 0.500" in text
    assert "ERROR wrong result" in row_text(failed) and "ratio 4.000" in row_text(rows[0])


def test_document_fits_the_schema(tmp_path: Path) -> None:
    cases = suite("dense16")
    rows = [timed(case, 100.0, 90.0, timing) for case in cases for timing in case.timings]
    empty = Row.of(cases[0], "alone")
    empty.error = "RuntimeError: out of memory"
    infinite = timed(cases[0], 1.0, 1.0)
    infinite.max_rel_err = math.inf
    path = tmp_path / "nvidia-h200" / "dense16.json"
    report([*rows, empty, infinite]).write(path)
    document = json.loads(path.read_text())
    jsonschema.validate(document, schema())
    assert document["rows"][0]["max_rel_err"] == 0.0012346
    assert document["rows"][-1]["max_rel_err"] is None
    assert list(path.parent.iterdir()) == [path]


def test_committed_results_fit_the_schema() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("*/*.json"):
        document = json.loads(path.read_text())
        if "rows" in document:
            jsonschema.validate(document, schema())


def test_gpu_folder() -> None:
    assert gpu_folder("NVIDIA H200") == "nvidia-h200"
    assert gpu_folder("AMD Instinct MI250X / MI250") == "amd-instinct-mi250x-mi250"
