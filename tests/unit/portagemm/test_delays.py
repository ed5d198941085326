"""Cases for random delays: every role-split tile has one, and only their kernels differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from portagemm import delays, plan
from portagemm.hal.device import Device
from portagemm.hal.profile import all_profiles

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 60 << 20, 141 << 30, 227 << 10, 1024)


@pytest.mark.parametrize("name", ["h100", "a100", "rtx4090"])
def test_every_role_split_tile_has_a_case(name: str) -> None:
    profile = all_profiles()[name]
    found = list(delays.cases(profile, H200))
    wanted = {(s, tile) for s in profile.schedules if delays.is_role_split(s) for tile in profile.tiles[s]}
    assert {(c.plan.kernel.schedule, c.plan.kernel.tile) for c in found} == wanted
    assert len({c.name for c in found}) == len(found)


@pytest.mark.parametrize("name", ["h100", "a100"])
def test_rings_are_walked_more_than_once(name: str) -> None:
    """More steps of K than stages; where blocks stay, more tiles than they are."""
    for case in delays.cases(all_profiles()[name], H200):
        tile = case.plan.kernel.tile
        assert case.problem.k > tile.split * tile.block[2] * tile.stages
        if tile.split == 1 and not tile.swap:
            assert case.plan.tiles * tile.cluster > 2 * case.plan.grid


def test_a_delay_is_another_kernel_of_the_same_plan() -> None:
    profile = all_profiles()["h100"]
    case = next(delays.cases(profile, H200))
    slow = delays.delayed(case.plan, 300)
    assert replace(slow, kernel=case.plan.kernel) == case.plan
    target = profile.target(H200)
    plain, paused = (plan.kernel_source(p.kernel, profile, target) for p in (case.plan, slow))
    assert not plain.defines and paused.defines == (("PORTAGEMM_DELAY", "300"),)
    assert plain.symbol != paused.symbol


def test_whole_block_schedules_have_no_roles_to_delay() -> None:
    assert not any(delays.is_role_split(s) for s in ("multistage", "single_buffer", "pingpong"))
