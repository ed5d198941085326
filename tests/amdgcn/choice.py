"""Which cases run under which plans: all of the list up to 128, on as few kernels as show everything.

Kernels take longer to compile than to execute. So every case runs under the plan of choice, and every other tile
under cases that share kernels: each has at most `KERNELS_A_TILE`. PORTAGEMM_EMULATE_ALL=1 runs everything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache

import card

from portagemm import launch, testing
from portagemm.kernel_config import KernelConfig
from portagemm.plan import GemmPlan

#: Most kernels of each tile that is not the planner's choice, by profile.
KERNELS_A_TILE = {"mi250x": 4, "mi300x": 2, "rx7900xtx": 2}
#: A case of how many runs on the second and third card.
EVERY = {"mi250x": 1, "mi300x": 4, "rx7900xtx": 4}
#: Sizes up to this. The list's tails lie around 128.
LARGEST = 136


def everything() -> bool:
    """Whether the whole list was asked for."""
    return bool(os.environ.get("PORTAGEMM_EMULATE_ALL"))


def small(case: testing.Case) -> bool:
    """Whether a case is of a size that is executed."""
    return (
        bool(case.k)
        and 0 not in case.shape
        and max(case.m, case.n, case.k) <= LARGEST
        and math.prod(case.shape[:-2]) < 50
    )


def cases(profile: str) -> list[testing.Case]:
    """The common list's cases for a card."""
    found = [c for c in testing.cases("rocm") if small(c)]
    if everything():
        return found
    # K tails come by the hundred: those of one layout share kernels but not what is new in them.
    tails = [c for c in found if c.group == "k_tail"]
    found = [c for c in found if c.group != "k_tail"] + tails[::6]
    return found[:: EVERY[profile]]


@cache
def _plans(case: testing.Case, profile: str) -> tuple[GemmPlan, ...]:
    return tuple(testing.plans(case, card.DEVICES[profile], every=True))


@cache
def plan_list(profile: str) -> dict[testing.Case, Sequence[GemmPlan]]:
    """Every case's plans."""
    from unittest.mock import patch

    chosen: dict[testing.Case, list[GemmPlan]] = {}
    used: dict[tuple[str, str, object], set[KernelConfig]] = {}
    with patch.object(launch, "_device", card.Always(card.DEVICES[profile])):
        for case in cases(profile):
            first, *others = _plans(case, profile)
            chosen[case] = [first]
            for plan in others:
                k = plan.kernel
                tile = (k.schedule, k.tile.atom, k.tile.block, plan.slices > 1)
                kernels = used.setdefault(tile, set())  # type: ignore[arg-type]
                if everything() or k in kernels or len(kernels) < KERNELS_A_TILE[profile]:
                    kernels.add(k)
                    chosen[case].append(plan)
    if not everything():
        # Of cases that share a tile's kernel three are enough; the plan of choice always runs.
        runs: dict[KernelConfig, int] = {}
        for case, plans in chosen.items():
            kept = plans[:1]
            for plan in plans[1:]:
                runs[plan.kernel] = runs.get(plan.kernel, 0) + 1
                if runs[plan.kernel] <= 3:
                    kept.append(plan)
            chosen[case] = kept
    return dict(chosen)


def kernels_of(plans: Sequence[GemmPlan]) -> list[KernelConfig]:
    """All kernels of some plans, each once, in their order."""
    return list(dict.fromkeys(k for plan in plans for k in plan.kernels))
