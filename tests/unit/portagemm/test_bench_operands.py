"""Operands of a case, the check of its result, and the problem it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from portagemm.bench import operands
from portagemm.bench.suites import BenchCase, suite

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("batch", [1, 3])
def test_layouts_are_views(layout: str, batch: int) -> None:
    case = BenchCase("matmul", "fp32", layout, 5, 7, 9, batch)
    made = operands.make(case, "cpu")
    lead = () if batch == 1 else (batch,)
    assert made.a.shape == (*lead, 5, 9) and made.b.shape == (*lead, 9, 7) and made.out.shape == (*lead, 5, 7)
    assert made.a.stride()[-2:] == ((9, 1) if layout[0] == "N" else (1, 5))
    assert made.b.stride()[-2:] == ((7, 1) if layout[1] == "N" else (1, 9))
    assert made.out.isnan().all()


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("batch", [1, 2])
def test_accuracy_accepts_torch_and_finds_faults(dtype: str, batch: int) -> None:
    case = BenchCase("matmul", dtype, "NT", 65, 33, 130, batch)
    made = operands.make(case, "cpu")
    assert operands.accuracy(case, made).t16 == float("inf")  # nothing was written
    made.out.copy_(torch.matmul(made.a.double(), made.b.double()))
    good = operands.accuracy(case, made)
    assert good.t16 <= 1.0 and good.max_rel_err < 2.0**-8
    made.out[..., 3, 4] += 1.0
    assert operands.accuracy(case, made).t16 > 1.0
    made.out[..., 3, 4] = float("nan")
    assert operands.accuracy(case, made).t16 == float("inf")


def test_accuracy_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BenchCase("matmul", "bf16", "NN", 40, 50, 30)
    made = operands.make(case, "cpu")
    made.out.copy_(made.a @ made.b)
    whole = operands.accuracy(case, made)
    monkeypatch.setattr(operands, "_BLOCK", 100)
    blocks = operands.accuracy(case, made)
    assert blocks.t16 == pytest.approx(whole.t16) and blocks.max_rel_err == pytest.approx(whole.max_rel_err)


def test_problem_is_that_of_the_call() -> None:
    """A pack is built from `problem`, a run plans from tensors: both must be the same kernel."""
    from portagemm.ops import _dispatch
    from portagemm.ops.matmul import request

    for case in suite("random", 7)[:40]:
        small = BenchCase(
            "matmul", case.dtype, case.layout, case.m % 97 + 1, case.n % 61 + 1, case.k % 53 + 1, case.batch
        )
        made = operands.make(small, "cpu")
        assert _dispatch.problem_of(request(made.a, made.b, out=made.out)) == operands.problem(small)


def test_weights_are_kept_for_neighbours_and_bounded() -> None:
    weights = operands.Weights()
    case = BenchCase("matmul", "fp32", "NT", 1, 8, 16)
    made = weights(case, "cpu", 8 * 16 * 4 * 3, 100)
    assert len(made) == 3 and made[0].shape == (16, 8) and not torch.equal(made[0], made[1])
    assert weights(replace(case, m=7), "cpu", 8 * 16 * 4 * 3, 100) is made
    assert len(weights(case, "cpu", 1 << 20, 5)) == 5
    assert len(weights(case, "cpu", 1, 5)) == 2
