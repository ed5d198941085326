"""The bars of the suites: which rows count, and what is said of them."""

from __future__ import annotations

import pytest

from portagemm.bench.bars import BARS, bar_lines
from portagemm.bench.report import Row
from portagemm.bench.suites import SUITES, BenchCase

pytestmark = pytest.mark.quick


def row(m: int, timing: str, us: float, torch_us: float) -> Row:
    made = Row.of(BenchCase("matmul", "bf16", "NT", m, 64, 64), timing)
    made.us, made.peers_us, made.read_us, made.best_us, made.tflops = (
        us,
        {"torch": torch_us},
        us / 1.05,
        us,
        1.0,
    )
    made.host_us, made.peers_host_us = 6.0, {"torch": 3.0}
    return made


def test_bars_are_of_suites() -> None:
    assert {bar.suite for bar in BARS} <= set(SUITES)
    assert len({str(bar) for bar in BARS}) == len(BARS)


def test_only_rows_of_the_timing_and_of_so_many_rows_count() -> None:
    rows = [
        row(1, "chain", 10.0, 12.0),
        row(16, "chain", 10.0, 13.0),
        row(32, "chain", 10.0, 9.0),
        row(1, "alone", 10.0, 9.9),
        row(64, "alone", 10.0, 1.0),
    ]
    failed = row(2, "chain", 10.0, 1.0)
    failed.error = "wrong result"
    assert bar_lines("decode16", [*rows, failed]) == [
        "bar decode16, chain, M <= 16: geometric mean speed relative to torch: 1.249 (>= 1.15: met)",
        "bar decode16, chain, M <= 16: lowest speed relative to torch: 1.200 (>= 0.97: met)",
        "bar decode16, chain, M 17 to 64: lowest speed relative to torch: 0.900 (>= 0.95: MISSED)",
        "bar decode16, alone, M <= 16: lowest speed relative to torch: 0.990 (>= 0.98: met)",
        "bar decode16, alone, M <= 16: highest time relative to the read-only probe: 1.050 (<= 1.08: met)",
        "bar decode16: highest host cost relative to torch: 2.000 (<= 1.5: MISSED)",
    ]


def test_a_figure_without_a_bar_and_a_suite_without_rows() -> None:
    assert bar_lines("mma_sync16", [row(8, "alone", 1.0, 1.0)]) == [
        "bar mma_sync16, alone: highest TFLOP/s: 1.000"
    ]
    assert bar_lines("random", []) == [] and bar_lines("host", [row(8, "alone", 1.0, 1.0)]) == []
