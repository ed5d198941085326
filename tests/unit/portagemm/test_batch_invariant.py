"""batch_invariant and constant_b: one kernel for all M, the same bytes of a row, and when promises lapse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import portagemm
from portagemm import errors, prebuild
from portagemm import plan as planner
from portagemm.hal import profile as profiles
from portagemm.hal.dtypes import BY_NAME
from portagemm.problem import GemmProblem, View, build

pytestmark = pytest.mark.quick


def problem(m: int, n: int, k: int, dtype: str = "bf16", address: int = 0, **facts: Any) -> GemmProblem:
    """linear's problem of contiguous operands; `address` is that of A."""
    d = BY_NAME[dtype]
    a = View(d, (m, k), (k, 1), address)
    return build(a, View(d, (k, n), (1, k)), View(d, (m, n), (n, 1)), batch_invariant=True, **facts)


@pytest.mark.parametrize("profile", ["h100", "a100", "rtx4090", "mi250x", "cpu"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("n, k", [(2112, 7168), (256, 1), (1, 64), (100, 100), (33, 31)])
def test_one_kernel_for_all_rows(profile: str, dtype: str, n: int, k: int) -> None:
    facts = profiles.builtin()[profile]
    device = prebuild.described_device(facts)
    rows = (*range(1, 130), *range(130, 1025, 61), 1024)
    kernels = {planner.plan(problem(m, n, k, dtype), facts, device).kernel for m in rows}
    assert len(kernels) == 1
    (kernel,) = kernels
    assert kernel.tile.split == 1 and not kernel.tile.swap


def test_position_of_a_row_does_not_choose_the_kernel() -> None:
    """A row of a contiguous A of 100 bf16 columns starts on any multiple of 8 bytes."""
    facts = profiles.builtin()["h100"]
    device = prebuild.described_device(facts)
    plans = {planner.plan(problem(1, 64, 100, address=200 * i), facts, device).kernel for i in range(8)}
    assert len(plans) == 1


@pytest.mark.parametrize("n, k", [(512, 1024), (100, 100)])
def test_rows_in_batches_take_the_same_kernel(n: int, k: int) -> None:
    """A slice of (batch, rows, K) that cannot be folded into rows; one of two batch dimensions is refused."""
    facts = profiles.builtin()["h100"]
    device = prebuild.described_device(facts)
    d = BY_NAME["bf16"]
    b = View(d, (k, n), (1, k))
    expected = planner.plan(problem(64, n, k), facts, device).kernel.tile
    for rows in (1, 5, 87):
        sliced = build(
            View(d, (8, rows, k), (128 * k, k, 1)),
            b,
            View(d, (8, rows, n), (rows * n, n, 1)),
            batch_invariant=True,
        )
        assert sliced.batch == ((8,) if rows > 1 else ()), "one row of each folds"
        assert planner.plan(sliced, facts, device).kernel.tile == expected
    twice = build(
        View(d, (4, 8, 5, k), (9000 * k, 128 * k, k, 1)),
        b,
        View(d, (4, 8, 5, n), (40 * n, 5 * n, n, 1)),
        batch_invariant=True,
    )
    assert len(twice.batch) == 2
    if k % 8:  # mma.sync takes any number
        assert planner.plan(twice, facts, device).kernel.tile == expected
    else:
        with pytest.raises(errors.UnsupportedError, match="at most one batch dimension"):
            planner.plan(twice, facts, device)


def test_refuses_what_it_cannot_promise() -> None:
    facts = profiles.builtin()["h100"]
    device = prebuild.described_device(facts)
    d = BY_NAME["bf16"]
    b, out = View(d, (64, 128), (1, 64)), View(d, (8, 128), (128, 1))
    column_major = build(View(d, (8, 64), (1, 8)), b, out, batch_invariant=True)
    with pytest.raises(errors.UnsupportedError, match="rows of A that are not contiguous"):
        planner.plan(column_major, facts, device)
    with pytest.raises(errors.UnsupportedError, match="16-byte boundaries"):
        planner.plan(problem(8, 128, 64, address=2), facts, device)


def test_a_column_major_output_does_not_exchange_operands() -> None:
    d = BY_NAME["bf16"]
    found = build(
        View(d, (8, 64), (64, 1)), View(d, (64, 32), (1, 64)), View(d, (8, 32), (1, 8)), batch_invariant=True
    )
    assert not found.swapped and (found.m, found.n) == (8, 32)


def test_constant_b_lapses_where_operands_are_exchanged() -> None:
    d = BY_NAME["bf16"]
    a, b = View(d, (8, 64), (64, 1)), View(d, (64, 32), (1, 64))
    assert build(a, b, View(d, (8, 32), (32, 1)), constant_b=True).constant_b
    assert not build(a, b, View(d, (8, 32), (1, 8)), constant_b=True).constant_b


def test_constant_b_lapses_for_a_copy_made_by_the_call(reference: Any) -> None:
    """Under autocast b is cast by a kernel in flight, even where a call without a cast was seen before."""
    a, b = torch.randn(4, 8), torch.randn(8, 16)
    with torch.no_grad():
        portagemm.matmul(a.bfloat16(), b.bfloat16(), constant_b=True, fallback="error")
        assert reference.problems[-1].constant_b
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                portagemm.matmul(a, b, constant_b=True, fallback="error")
            assert not reference.problems[-1].constant_b
        portagemm.matmul(a.bfloat16(), b.bfloat16(), constant_b=True, fallback="error")
        assert reference.problems[-1].constant_b
        negative = torch.complex(b, -b).conj().imag
        assert negative.is_neg()
        portagemm.matmul(a, negative, constant_b=True, fallback="error")
        assert not reference.problems[-1].constant_b


def test_promises_are_part_of_the_key(reference: Any) -> None:
    a, b = torch.randn(4, 8), torch.randn(8, 16)
    for invariant in (False, True):
        for constant in (False, True):
            options = {"batch_invariant": invariant, "constant_b": constant}
            portagemm.matmul(a, b, fallback="error", **options)
            portagemm.gemm(a, b, fallback="error", **options)
            portagemm.linear(a, b.t(), fallback="error", **options)
            for seen in reference.problems[-3:]:
                assert (seen.batch_invariant, seen.constant_b) == (invariant, constant)


def test_never_torchs_library(reference: Any) -> None:
    a, b = torch.randn(4, 8), torch.randn(8, 16)
    reference.refuse = errors.UnsupportedError("gemm", "no", "")
    with pytest.raises(errors.UnsupportedError):
        portagemm.matmul(a, b, batch_invariant=True)
    reference.refuse, reference.prefer_vendor = None, True
    portagemm.matmul(a, b, batch_invariant=True)
    assert len(reference.problems) == 1
