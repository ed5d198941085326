"""Which operands are shifted into place (realign.hpp): the planner's side of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from portagemm import plan as planner
from portagemm import prebuild
from portagemm.hal.dtypes import BF16, FP16, FP32, DType
from portagemm.hal.profile import get
from portagemm.plan import GemmPlan
from portagemm.problem import GemmProblem, View, build

pytestmark = pytest.mark.quick

NVIDIA = ["a100", "h100", "rtx4090"]
SCHEDULE = "realigned_multistage"


def product(
    layout: str = "nt",
    extents: tuple[int, int, int] = (4096, 4095, 4093),
    addresses: tuple[int, int] = (256, 256),
    dtype: DType = BF16,
    step: int = 1,
    batch_invariant: bool = False,
) -> GemmProblem:
    """Contiguous operands ("t": as their transposes), or every `step`-th element of them."""
    m, n, k = extents

    def view(rows: int, cols: int, order: str, address: int) -> View:
        strides = (step, step * rows) if order == "t" else (step * cols, step)
        return View(dtype, (rows, cols), strides, address)

    a, b = view(m, k, layout[0], addresses[0]), view(k, n, layout[1], addresses[1])
    return build(a, b, View(dtype, (m, n), (n, 1), 256), batch_invariant=batch_invariant)


def candidates(problem: GemmProblem, profile: str) -> list[GemmPlan]:
    described = get(profile)
    return planner.candidates(problem, described, prebuild.described_device(described))


def chosen(problem: GemmProblem, profile: str) -> GemmPlan:
    described = get(profile)
    return planner.plan(problem, described, prebuild.described_device(described), use_tables=False)


@pytest.mark.parametrize("profile", NVIDIA)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_odd_lines_are_realigned(profile: str, dtype: DType) -> None:
    for layout in ("nn", "nt", "tn", "tt"):
        kernel = chosen(product(layout, (4095, 4093, 4091), dtype=dtype), profile).kernel
        assert kernel.schedule == SCHEDULE
        assert (kernel.a.copy, kernel.a.width, kernel.b.copy, kernel.b.width) == ("realign", 2) * 2
        assert (kernel.a.order, kernel.b.order) == (kernel.a.major, kernel.b.major)
    # The copies of before stay candidates.
    assert {p.kernel.schedule for p in candidates(product(), profile)} >= {SCHEDULE, "multistage"}


@pytest.mark.parametrize("profile", NVIDIA)
def test_one_operand_alone(profile: str) -> None:
    """The aligned one comes by asynchronous copies."""
    for layout, wanted in (("nn", ("realign", "async")), ("tt", ("async", "realign"))):
        kernel = chosen(product(layout, (4096, 4096, 4093)), profile).kernel
        assert (kernel.schedule, kernel.a.copy, kernel.b.copy) == (SCHEDULE, *wanted), layout
    offset = chosen(product(extents=(4096, 4096, 4096), addresses=(256, 266)), profile).kernel
    assert (offset.schedule, offset.a.copy, offset.b.copy, offset.b.width) == (
        SCHEDULE,
        "async",
        "realign",
        2,
    )
    for even in (264, 268):  # asynchronous copies take these, and are faster
        kernel = chosen(product(extents=(4096, 4096, 4096), addresses=(256, even)), profile).kernel
        assert (kernel.schedule, kernel.b.copy, kernel.b.width) == ("multistage", "async", even & -even & 12)


@pytest.mark.parametrize("profile", NVIDIA)
def test_what_needs_no_shift_or_allows_none(profile: str) -> None:
    for problem, reason in (
        (product(extents=(4096, 4096, 4096)), "both operands lie on boundaries of 4 bytes"),
        (product(step=2), "no copy of realigned_multistage takes A (bf16, strided)"),
        (product(dtype=FP32), "not fp32"),
    ):
        described = get(profile)
        rejected = planner.rejections(problem, described, prebuild.described_device(described))
        texts = [why for name, why in rejected if name.startswith(SCHEDULE)]
        assert texts and all(reason in why for why in texts), (reason, texts)
        assert all(p.kernel.schedule != SCHEDULE for p in candidates(problem, profile))


@pytest.mark.parametrize("profile", NVIDIA)
def test_tiles_whose_words_fill_the_registers_are_left_out(profile: str) -> None:
    def tiles(problem: GemmProblem) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
        found = [p.kernel for p in candidates(problem, profile) if p.kernel.schedule == SCHEDULE]
        return {(k.tile.block, k.tile.waves) for k in found}

    large = ((128, 128, 32), (2, 2))
    assert large in tiles(product("nn", (4096, 4096, 4093))), "one operand's words"
    assert large not in tiles(product("nt", (4096, 4096, 4093))), "both operands'"
    described = get(profile)
    rejected = planner.rejections(
        product("nt", (4096, 4096, 4093)), described, prebuild.described_device(described)
    )
    assert any("needs 192 registers a thread" in why for name, why in rejected if name.startswith(SCHEDULE))


@pytest.mark.parametrize("profile", NVIDIA)
def test_negative_strides_are_not_realigned(profile: str) -> None:
    """What lies between the first and the last element would be before the first."""
    problem = product()
    turned = replace(problem, a=replace(problem.a, strides=(-problem.a.strides[0], 1)))
    assert all(p.kernel.schedule != SCHEDULE for p in candidates(turned, profile))


@pytest.mark.parametrize("profile", NVIDIA)
@pytest.mark.parametrize("k", [4093, 4096])
def test_batch_invariant_plans_do_not_depend_on_where_rows_lie(profile: str, k: int) -> None:
    """A as rows of a longer line, on 16-byte boundaries or not: one plan, for B as it is."""
    found = set()
    for pitch, address in ((k, 256), (k + 3, 256), (4104, 256), (4104, 250)):
        a = View(BF16, (300, k), (pitch, 1), address)
        b = View(BF16, (k, 512), (1, 4104), 256)
        problem = build(a, b, View(BF16, (300, 512), (512, 1), 256), batch_invariant=True)
        if profile == "h100" and k == 4096 and (pitch % 8 or address % 16):
            continue  # its plan is one for descriptors, which cannot take this A: an error, as ever
        found.add(planner.name_of(chosen(problem, profile)))
    assert len(found) == 1
    assert (SCHEDULE in found.pop()) == (k == 4093)


@pytest.mark.parametrize("profile", NVIDIA)
def test_batch_invariant_plans_have_room_for_rows_that_are_shifted(profile: str) -> None:
    """B begins on no boundary: whether A's rows do must not matter."""
    found = set()
    for pitch in (4096, 4099):
        a, b = View(BF16, (4096, 4096), (pitch, 1), 256), View(BF16, (4096, 4096), (1, 4096), 258)
        d = View(BF16, (4096, 4096), (4096, 1), 256)
        problem = build(a, b, d, batch_invariant=True)
        found.add(planner.name_of(chosen(problem, profile)))
        kernels = [p.kernel for p in candidates(problem, profile) if p.kernel.schedule == SCHEDULE]
        assert kernels and all((k.tile.block, k.tile.waves) != ((128, 128, 32), (2, 2)) for k in kernels)
    assert len(found) == 1 and SCHEDULE in found.pop()
