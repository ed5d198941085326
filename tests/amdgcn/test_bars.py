"""What the main loops are held to, measured while they run: share of matrix instructions, LDS bank conflicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import report

from portagemm import testing

Install = Callable[..., Any]

#: Large enough for the planner to take its largest tile, deep enough for the loop to run. Small integers: of fp16
#: values from a normal distribution some are subnormal, and their steps take the exact way.
CASE = testing.Case("loop", 256, 256, 512, "fp16", b=testing.COL)


def _reports(backend: Any, case: testing.Case) -> list[report.Report]:
    plans = [
        p
        for p in testing.plans(case, backend.device, every=True)
        if p.kernel.tile.atom != "fma" and p.slices == 1
    ]
    return [report.measure(case, p, backend) for p in plans]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_default_plan_of_mi250x(dtype: str, install: Install) -> None:
    """At least half of the loop's vector and matrix issue slots are matrix instructions; no LDS conflicts."""
    backend = install("mi250x")
    case = testing.variants(CASE, dtype=dtype)
    # The planner's choice for large products: its first tile of the first schedule.
    first = next(
        p for p in testing.plans(case, backend.device, every=True) if p.kernel.schedule == "pingpong"
    )
    measured = report.measure(case, first, backend)
    assert measured.loop["mfma"] > 1000, "the fast loop did not run"
    assert measured.matrix_share >= 0.5, report.text(measured)
    assert measured.conflict_free, report.text(measured)


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["mi250x", "mi300x"])
def test_no_loop_has_lds_conflicts(profile: str, install: Install) -> None:
    """Of any tile with the matrix unit, operands contiguous along K."""
    case = testing.variants(CASE, m=128, n=128, k=256)
    for measured in _reports(install(profile), case):
        assert sum(measured.passes.values()) > 0
        assert measured.conflict_free, report.text(measured)


@pytest.mark.slow
def test_a_layout_without_swizzle_has_conflicts(install: Install) -> None:
    """The count can fail: reads and writes moved to one row of chunks meet in banks."""
    import edits

    # The swizzle's exclusive or is the last step of every LDS address; an or in its place leaves rows unswizzled.
    backend = install("mi250x", edit=edits.renamed("v_xor_b32", "v_or_b32"))
    case = testing.variants(CASE, m=128, n=128, k=256)
    plan = next(
        p for p in testing.plans(case, backend.device, every=True) if p.kernel.schedule == "interleave"
    )
    backend.machine.conflicts = {}
    from card import run

    run(backend, case, plan)
    assert sum(extra for _, extra in backend.machine.conflicts.values()) > 0
