"""Two faults that GEMM libraries have had on AMD: slices of K on memory that holds anything, and MI200's subnormals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import card
import pytest
import torch

from portagemm import launch, testing
from portagemm.errors import UnsupportedError
from portagemm.hal.profile import get
from portagemm.plan import GemmPlan, sliced

Install = Callable[..., Any]


# --- K in slices -----------------------------------------------------------------------------------------


def _in_slices(case: testing.Case, backend: Any, slices: int) -> GemmPlan:
    """The first plan of a case that can be cut, cut."""
    device = backend.device
    described, profile = testing.problem(case), get(_profile(backend))
    for plan in testing.plans(case, device, every=True):
        if plan.kernel.tile.atom == "fma":
            continue
        try:
            return sliced(described, profile, device, plan, slices)
        except UnsupportedError:
            continue
    raise AssertionError(f"no plan of {case.id} can be cut into {slices} slices")


def _profile(backend: Any) -> str:
    return next(name for name, device in card.DEVICES.items() if device == backend.device)


@pytest.mark.slow
@pytest.mark.parametrize("slices", [2, 4])
@pytest.mark.parametrize("profile", ["mi250x", "mi300x", "rx7900xtx"])
def test_slices_of_k_on_poisoned_memory(profile: str, slices: int, install: Install) -> None:
    """The workspace begins as NaN, beta is 0 and C is not read; T16, and every repetition the same bytes."""
    backend = install(profile)
    case = testing.Case("slices", 72, 80, 256, "bf16", a=testing.COL, b=testing.COL, criterion="t16")
    plan = _in_slices(case, backend, slices)
    assert plan.slices == slices
    for _ in range(2):  # each runs twice and compares the bytes
        result = card.run(backend, case, plan)
        assert result.passed, result.error


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["mi250x", "rx7900xtx"])
def test_slices_with_tails_and_epilogue(profile: str, install: Install) -> None:
    """Exact, K no multiple of the slices' steps, C and bias added once."""
    backend = install(profile)
    case = testing.Case(
        "slices",
        65,
        72,
        200,
        "fp16",
        b=testing.COL,
        c=testing.ROW,
        alpha=2.0,
        beta=-1.0,
        bias="row",
        activation="relu",
    )
    result = card.run(backend, case, _in_slices(case, backend, 3))
    assert result.passed, result.error


# --- subnormals ------------------------------------------------------------------------------------------


def _multiply(
    backend: Any, a: torch.Tensor, b: torch.Tensor, plan: GemmPlan, out: torch.dtype
) -> torch.Tensor:
    """a (m, k) times b (n, k) transposed under a plan."""
    dtypes = {torch.half: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
    (m, k), n = a.shape, b.shape[0]
    case = testing.Case("subnormal", m, n, k, dtypes[a.dtype], dtypes[out], b=testing.COL)
    result = torch.full((m, n), float("nan"), dtype=out)
    memory = backend.machine.memory
    memory.forget()
    for x, writable in ((a, False), (b, False), (result, True)):
        memory.register(*card.extent(x), "tensor", writable=writable)
    launch.launcher(testing.problem(case), backend.device, plan)(
        a.data_ptr(), b.data_ptr(), 0, result.data_ptr(), 0
    )
    return result


def _plans(backend: Any, dtype: str, out: str = "") -> list[GemmPlan]:
    case = testing.Case("subnormal", 64, 64, 64, dtype, out, b=testing.COL)
    return [p for p in testing.plans(case, backend.device, every=True) if p.kernel.tile.atom != "fma"]


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["mi250x", "mi300x"])
def test_half_the_smallest_normal_fp16(profile: str, install: Install) -> None:
    """Ones times 2^-15, 64 of them, under every plan: exactly 64 * 2^-15, where MI200's MFMA alone gives 0."""
    backend = install(profile)
    ones, tiny = torch.ones(64, 64, dtype=torch.half), torch.full((64, 64), 2.0**-15, dtype=torch.half)
    for plan in _plans(backend, "fp16"):
        for a, b in ((ones, tiny), (tiny, ones)):
            result = _multiply(backend, a, b, plan, torch.half)
            assert torch.equal(result, torch.full((64, 64), 64 * 2.0**-15).half()), plan.explain()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "normal", "subnormal", "scale"),
    [("fp16", 1.0, 2.0**-16, 1.0), ("bf16", 2.0**-117, 2.0**-128, 2.0**120)],
)
def test_subnormals_among_others(
    name: str, normal: float, subnormal: float, scale: float, install: Install
) -> None:
    """Few subnormals anywhere: exact results, their own products and their neighbours' (fp32 holds them all)."""
    backend = install("mi250x")
    dtype = testing.torch_dtype(name)
    torch.manual_seed(3)
    a = torch.randint(-1, 2, (64, 64)).double() * normal
    few = torch.rand(64, 64) < 0.01
    a[few] = (torch.randint(1, 4, (64, 64)).double() * subnormal)[few]
    b = torch.randint(-2, 3, (64, 64)).double() * scale
    for left, right in ((a, b), (b, a)):
        for plan in _plans(backend, name, "fp32")[:3]:
            result = _multiply(backend, left.to(dtype), right.to(dtype), plan, torch.float32)
            assert torch.equal(result.double(), left @ right.T), plan.explain()
