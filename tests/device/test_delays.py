"""Role-split kernels give the same bytes a thousand times, whoever is late (portagemm/delays.py)."""

from __future__ import annotations

import pytest
import torch

from portagemm import delays, launch

#: Parts that the cases are split into, so that one that fails does not hide the others.
PARTS = 4


def run(gpu: str, chosen: slice, repeats: int) -> None:
    device = launch.device_of(torch.device(gpu))
    profile = launch.selection_of(device).profile
    found = list(delays.cases(profile, device))
    if not found:
        pytest.skip(f"profile {profile.name} has no role-split schedule")
    outcomes = [delays.run(case, torch.device(gpu), repeats) for case in found[chosen]]
    different = [f"{o.case.name}: {o.different} of {o.repeats} runs" for o in outcomes if o.different]
    assert not different, "\n".join(different)


@pytest.mark.quick
def test_first_cases(gpu: str) -> None:
    run(gpu, slice(2), 1000)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_all_cases(gpu: str, part: int) -> None:
    run(gpu, slice(part, None, PARTS), 1000)
