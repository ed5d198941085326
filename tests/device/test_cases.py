"""The case list of all backends on a GPU: by the planner's choice and under its other plans.

A device run under several profiles sets PORTAGEMM_PROFILE and, so that nothing is compiled there,
PORTAGEMM_KERNEL_PATH; benchmarks/device_check.py does both.
"""

from __future__ import annotations

import pytest

from portagemm import testing

GROUPS = sorted({case.group for case in testing.cases("cuda")})


def run(group: str, device: str, quick: bool) -> None:
    results = [
        r for c in testing.cases("cuda", quick) if c.group == group for r in testing.run_candidates(c, device)
    ]
    summary = testing.summary(results)
    assert summary["failed"] == 0, "\n".join(
        f"{f['case']} [{f['plan'] or 'chosen'}]: {f['error']}" for f in summary["failures"][:20]
    )


@pytest.mark.quick
@pytest.mark.parametrize(
    "group", [g for g in GROUPS if any(c.group == g for c in testing.cases("cuda", True))]
)
def test_short_list(gpu: str, group: str) -> None:
    run(group, gpu, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_whole_list(gpu: str, group: str) -> None:
    run(group, gpu, quick=False)
