"""Kernels whose waits and arrivals pause at random: who is late must not change a byte.

In a kernel of a role-split schedule, some waves load and others compute, and only barriers order them. A
missing or misplaced one shows seldom, since all run at the same pace. `delayed` makes a plan's kernel pause at
random in each role (`random_delay` in backends/cuda/include/portagemm/arch/mbarrier.hpp), `cases` lists a
small problem for each tile of each such schedule, and `run` repeats one and counts results that differ from
the undelayed kernel's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from portagemm import plan as planner
from portagemm.hal.dtypes import BF16, FP32, DType
from portagemm.kernel_config import ATOMS, SCHEDULES
from portagemm.problem import GemmProblem, Operand, View, build

if TYPE_CHECKING:
    import torch

    from portagemm.hal.device import Device
    from portagemm.hal.profile import ArchProfile, Selection, TileConfig
    from portagemm.hal.source import KernelSource
    from portagemm.plan import GemmPlan

#: Most nanoseconds of a pause (the hardware may take twice as long). A stage of K takes some 500.
NANOSECONDS = 1000


def is_role_split(schedule: str) -> bool:
    """Whether some waves of a schedule only load."""
    return SCHEDULES[schedule].loader or SCHEDULES[schedule].loading_waves


def delayed(plan: GemmPlan, nanoseconds: int = NANOSECONDS) -> GemmPlan:
    """The plan with a kernel that pauses, up to `nanoseconds` at a time."""
    return replace(plan, kernel=replace(plan.kernel, delay=nanoseconds))


# --- what is run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A problem and the (undelayed) plan to run it under."""

    name: str
    problem: GemmProblem
    plan: GemmPlan


def _problem(tile: TileConfig, layout: str) -> GemmProblem:
    """Several tiles along both dimensions, more steps of K than stages, tails everywhere.

    Layouts: A and B by BLAS's letters; "mixed" is nt with rows of A that allow no asynchronous copy.
    """
    block_m, block_n, block_k = tile.block
    dtype: DType = BF16 if ATOMS[tile.atom].element is None and "tf32" not in tile.atom else FP32
    m, n = 2 * block_m * tile.cluster + 24, 2 * block_n + 24
    if tile.swap:
        m, n = block_n - 1, 2 * block_m + 24
    k = tile.split * block_k * (2 * tile.stages + 1) + 8

    def view(rows: int, cols: int, transposed: bool, pad: int = 0) -> View:
        strides = (1, rows) if transposed else (cols + pad, 1)
        return View(dtype, (rows, cols), strides, dtype.bytes if pad else 16)

    return build(
        view(m, k, layout[0] == "t", 1 if layout == "mixed" else 0),
        view(k, n, layout == "mixed" or layout[1] == "t"),
        view(m, n, False),
        precision="tf32" if "tf32" in tile.atom else "ieee",
    )


def cases(profile: ArchProfile, device: Device) -> Iterator[Case]:
    """Every tile of every role-split schedule; the first of a schedule and atom in all layouts.

    Where K is not split, two clusters of blocks walk all tiles: rings of stages run on from tile to tile.
    """
    seen: set[tuple[str, str]] = set()
    for schedule in filter(is_role_split, profile.schedules):
        for tile in profile.tiles[schedule]:
            first = (schedule, tile.atom) not in seen
            seen.add((schedule, tile.atom))
            for layout in ("nt", "nn", "tn", "tt", "mixed") if first else ("nt",):
                problem = _problem(tile, layout)
                for plan in planner.candidates(problem, profile, device):
                    if (plan.kernel.schedule, plan.kernel.tile) == (schedule, tile):
                        if tile.split == 1 and not tile.swap:
                            plan = replace(plan, grid=2 * tile.cluster)
                        yield Case(f"{schedule} {layout} {plan.kernel.symbol(profile.arch)}", problem, plan)


def sources(device: Device, selection: Selection) -> Iterator[KernelSource]:
    """The kernels of all cases, plain and delayed: what a pack needs for them."""
    for case in cases(selection.profile, device):
        for plan in (case.plan, delayed(case.plan)):
            yield planner.kernel_source(plan.kernel, selection.profile, selection.target)


# --- running -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How a case went: of `repeats` delayed runs, `different` gave other bytes than the undelayed kernel."""

    case: Case
    repeats: int
    different: int
    seconds: float


def _buffer(o: Operand, rows: int, cols: int, device: torch.device) -> torch.Tensor:
    """Random memory that holds an operand. Problems here have no batch."""
    import torch

    size = 1 + (rows - 1) * o.strides[0] + (cols - 1) * o.strides[1]
    return torch.randn(size, device=device).to({2: torch.bfloat16, 4: torch.float32}[o.dtype.bytes])


def run(case: Case, device: torch.device, repeats: int = 1000, nanoseconds: int = NANOSECONDS) -> Outcome:
    """Run a case `repeats` times with delays and compare every byte with the undelayed kernel's.

    Raises what `launch.launcher` raises where a kernel cannot be built.
    """
    import torch

    from portagemm import launch

    started = time.perf_counter()
    p, where = case.problem, launch.device_of(device)
    a, b = _buffer(p.a, p.m, p.k, device), _buffer(p.b, p.n, p.k, device)
    d = _buffer(p.d, p.m, p.n, device)
    bits = d.view({2: torch.int16, 4: torch.int32}[d.element_size()])
    # PreparedGemm takes the caller's A and B, and these are the problem's.
    left, right = (b, a) if p.swapped else (a, b)

    def once(prepared: launch.PreparedGemm) -> None:
        d.fill_(float("nan"))
        prepared(left.data_ptr(), right.data_ptr(), 0, d.data_ptr(), 0)

    once(launch.launcher(p, where, case.plan))
    expected = bits.clone()
    different = torch.zeros((), dtype=torch.int64, device=device)
    prepared = launch.launcher(p, where, delayed(case.plan, nanoseconds))
    for _ in range(repeats):
        once(prepared)
        different += (bits != expected).any()
    return Outcome(case, repeats, int(different), time.perf_counter() - started)
