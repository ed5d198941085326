"""The common case list executed on emulated cards: the code that clang makes of the kernels, instruction by
instruction, with races, waits, barriers and addresses watched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import card
import choice
import pytest

from portagemm import testing

PROFILES = tuple(card.DEVICES)
#: A few cases a card for the short run: tails, layouts, an epilogue; they share kernels.
QUICK = (
    testing.Case("quick", 72, 80, 136, "fp16", b=testing.COL),
    testing.Case("quick", 128, 128, 128, "fp16", b=testing.COL, criterion="t16"),
    testing.Case("quick", 33, 40, 24, "bf16", a=testing.COL, c=testing.ROW, alpha=-1.0, beta=1.0),
)
Install = Callable[..., Any]


def _run(backend: Any, case: testing.Case, plans: Any) -> None:
    for plan in plans:
        result = card.run(backend, case, plan)
        assert result.passed, f"{plan.explain()}: {result.error} ({result.violation})"


SHORT = [("mi250x", c) for c in QUICK] + [("mi300x", QUICK[0]), ("rx7900xtx", QUICK[0])]
_built: set[str] = set()


@pytest.mark.quick
@pytest.mark.parametrize(("profile", "case"), SHORT, ids=[f"{p}-{c.id}" for p, c in SHORT])
def test_quick(case: testing.Case, profile: str, install: Install) -> None:
    """The plan of choice on each card."""
    backend = install(profile)
    if f"quick {profile}" not in _built:
        _built.add(f"quick {profile}")
        plans = [testing.plans(c, backend.device)[0] for p, c in SHORT if p == profile]
        card.build(choice.kernels_of(plans), profile)
    _run(backend, case, testing.plans(case, backend.device)[:1])


def _build(profile: str) -> None:
    """All kernels of a card's cases, compiled beside the first ones."""
    if profile not in _built:
        _built.add(profile)
        plans = [p for found in choice.plan_list(profile).values() for p in found]
        card.build(choice.kernels_of(plans), profile)


LIST = [(profile, case) for profile in PROFILES for case in choice.cases(profile)]


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "case"), LIST, ids=[f"{p}-{c.id}" for p, c in LIST])
def test_case(profile: str, case: testing.Case, install: Install) -> None:
    """Exact or within T16, from NaN-filled outputs, with nothing written elsewhere."""
    backend = install(profile)
    _build(profile)
    _run(backend, case, choice.plan_list(profile)[case])


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_every_tile_runs(profile: str, install: Install) -> None:
    """Each tile of the profile is executed by some case, exchanged ones with the operands exchanged."""
    from portagemm.hal.profile import get

    executed = {
        (p.kernel.schedule, p.kernel.tile.atom, tuple(p.kernel.tile.block), p.swap)
        for plans in choice.plan_list(profile).values()
        for p in plans
    }
    for schedule, tiles in get(profile).tiles.items():
        for tile in tiles:
            assert (schedule, tile.atom, tuple(tile.block), tile.swap) in executed, f"{schedule} {tile}"


#: Eight steps of 64 and a tail: every main loop goes round, with whole steps ahead of it and without.
DEEP = testing.Case("deep", 128, 128, 520, "fp16", b=testing.COL)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_main_loops_go_round(profile: str, install: Install) -> None:
    """Each tile with the matrix unit over a deep K; one of each main loop with waves one at a time, too."""
    backend = install(profile)
    found = testing.plans(DEEP, backend.device, every=True)
    plans = [p for p in found if p.kernel.tile.atom != "fma" and p.slices == 1]
    assert plans
    card.build(choice.kernels_of(plans), profile)
    _run(backend, DEEP, plans)
    firsts = {p.kernel.schedule: p for p in reversed(plans)}
    _run(install(profile, apart=True), DEEP, firsts.values())


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_waves_one_at_a_time(profile: str, install: Install) -> None:
    """Waves in random order, each as far as its next barrier: another interleaving, the same results."""
    backend = install(profile, apart=True)
    for case in (QUICK[0], QUICK[2]):
        _run(backend, case, testing.plans(case, backend.device)[:1])
