"""Named faults that GEMM libraries of this kind have had (G01 ...), as checks for any device.

tests/host runs them on the CPU backend, tests/device on a GPU. Every call says fallback="error": it is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from portagemm import errors, launch, testing
from portagemm import plan as planner
from portagemm.ops import _dispatch
from portagemm.ops import matmul as matmul_module
from portagemm.ops.gemm import gemm
from portagemm.ops.linear import linear
from portagemm.ops.matmul import matmul
from portagemm.testing import COL, ROW, Case, Memory

OURS: dict[str, Any] = {"fallback": "error"}


def integers(*shape: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    """Random integers in [-2, 2]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(device=device, dtype=dtype)


def check(case: Case, device: str) -> None:
    """A case of the list's kind passes under its plan of choice and all others."""
    for result in testing.run_candidates(case, device, every=True):
        assert result.passed, f"{case.id} [{result.plan or 'chosen'}]: {result.error}"


@contextmanager
def nothing_launched() -> Iterator[None]:
    """Fails if a kernel is prepared inside."""
    patch = pytest.MonkeyPatch()
    patch.setattr(launch, "launcher", lambda *a, **k: pytest.fail("a kernel was prepared"))
    try:
        yield
    finally:
        patch.undo()


def g01_zero_extents(device: str) -> None:
    """K = 0 gives zeros (and the epilogue of zeros), M or N = 0 an empty tensor, neither launches."""
    with nothing_launched():
        out = torch.randn(10, 1, 43200, device=device)
        matmul(torch.ones(10, 1, 0, device=device), torch.ones(10, 0, 43200, device=device), out=out, **OURS)
        assert not out.any()
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            for m, n, k in ((0, 5, 3), (5, 0, 3), (5, 3, 0), (0, 0, 0)):
                a, b = (
                    torch.ones(m, k, dtype=dtype, device=device),
                    torch.ones(k, n, dtype=dtype, device=device),
                )
                result = matmul(a, b, **OURS)
                assert result.shape == (m, n) and result.dtype == dtype and result.device == a.device
                assert not result.any()
                bias = torch.arange(n, dtype=dtype, device=device)
                result = linear(a, b.t(), bias, **OURS)
                assert torch.equal(result, bias.expand(m, n))


def g02_k_tails(device: str) -> None:
    """The reported shapes; every K in 1..40 and 120..136 in all layouts is in the case list."""
    for m, n, k in ((128, 1024, 3), (1024, 128, 1), (128, 128, 133), (128, 128, 24)):
        check(Case("G02", m, n, k, "fp16", a=COL, b=COL), device)
    check(Case("G02", 128, 128, 24, "fp16", a=ROW, b=COL), device)


def g04_leading_strides(device: str) -> None:
    """512x512 views in 1024x1024 storage: A, B, out, all."""
    for padded in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)):
        a, b, out = (Memory(pad=512) if p else ROW for p in padded)
        check(Case("G04", 512, 512, 512, "bf16", a=a, b=b, out=out), device)
    storage = torch.randn(2, 1024, 1024, device=device).bfloat16()
    a, b = storage[0, :512, :512], storage[1, 256:768, 512:]
    for x, y in ((a, b), (a.t(), b), (a, b.t())):
        assert torch.equal(
            matmul(x, y, **OURS), matmul(x.contiguous(), y.contiguous(), **OURS)
        ) or torch.allclose(matmul(x, y, **OURS).float(), x.float() @ y.float(), rtol=2**-7, atol=1e-2)


def g05_aliases(device: str) -> None:
    """`out` over an input is refused before anything is written; one result never changes with the next."""
    c = torch.randn(50, 50, device=device)
    other = torch.randn(50, 50, device=device)
    before = c.clone()
    for a, b in ((c, c), (c, other), (other, c), (c.t(), other)):
        with pytest.raises(errors.LayoutError, match="out: given memory shared with operand"):
            matmul(a, b, out=c, **OURS)
    with pytest.raises(errors.LayoutError, match="operand a"):
        gemm(c, other, other, beta=1.0, out=c, **OURS)
    storage = torch.zeros(75, 50, device=device)
    with pytest.raises(errors.LayoutError, match="operand a"):
        matmul(storage[:50], other, out=storage[25:], **OURS)
    assert torch.equal(c, before) and not storage.any()
    first = matmul(c, other, **OURS)
    kept = first.clone()
    matmul(other, c, **OURS)
    assert torch.equal(first, kept)


def g06_stride_zero(device: str) -> None:
    """Expanded inputs, strides of extent-1 dimensions that mean nothing, and an expanded out."""
    a = integers(1, 2, dtype=torch.float32, device=device)
    b = integers(2, 1, dtype=torch.float32, device=device).expand(2, 2)
    assert torch.equal(matmul(a, b, **OURS), (a.cpu() @ b.cpu()).to(device))
    x, w = (integers(8, 8, dtype=torch.float32, device=device, seed=s) for s in (1, 2))
    bias = torch.full((), 3.0, device=device).expand(8)
    assert torch.equal(linear(x, w, bias, **OURS).cpu(), x.cpu() @ w.cpu().t() + 3)
    for base in (torch.ones(2, 1, device=device).t(), torch.ones(1, 2, device=device)):
        t = base.as_strided((1, 2), (1, 1))
        assert t.stride() == (1, 1)
        assert torch.equal(matmul(t, torch.ones(2, 1, device=device), **OURS).cpu(), torch.full((1, 1), 2.0))
        assert torch.equal(matmul(torch.ones(3, 1, device=device), t, **OURS).cpu(), torch.ones(3, 2))
    strange = torch.ones(64, device=device).as_strided((1, 4), (977, 1))
    assert torch.equal(
        matmul(strange, torch.ones(4, 4, device=device), **OURS).cpu(), torch.full((1, 4), 4.0)
    )
    with pytest.raises(errors.LayoutError, match="out: given strides"):
        matmul(x, w, out=torch.empty(1, device=device).expand(8, 8), **OURS)


def g07_alignment(device: str) -> None:
    """Addresses aligned to one element, for one, two and all operands; strides that are no multiple of a vector."""
    one = Memory(offset=1)
    for a, b, out in ((one, ROW, ROW), (ROW, one, ROW), (ROW, ROW, one), (one, one, ROW), (one, one, one)):
        check(Case("G07", 128, 136, 128, "bf16", a=a, b=b, out=out, criterion="t16"), device)
    check(Case("G07", 1024, 1953, 2048, "bf16", a=COL, b=Memory(pad=7920 - 1953), criterion="t16"), device)


def g10_beta_zero(device: str) -> None:
    """beta = 0 reads no C; alpha = 0 reads neither A nor B (BLAS's rule, documented in gemm)."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        zero = torch.zeros(8, 8, dtype=dtype, device=device)
        one = torch.ones(8, 8, dtype=dtype, device=device)
        for bad in (float("nan"), float("inf")):
            c = torch.full((8, 8), bad, dtype=dtype, device=device)
            assert torch.equal(gemm(zero, zero, c, beta=0.0, **OURS), zero)
            assert torch.equal(gemm(one, one, c, beta=0.0, alpha=0.125, **OURS), one)
            assert torch.equal(gemm(c, one, alpha=0.0, **OURS), zero)
            assert torch.equal(gemm(one, c, one, alpha=0.0, beta=1.0, **OURS), one)
        assert gemm(c, one, one, beta=1.0, **OURS).isnan().any() or not c.isnan().any()


def g11_slices(device: str, shapes: tuple[tuple[int, int, int], ...]) -> list[Any]:
    """Sums of slices of K go through memory that held NaN: K in 2, 4 and 8 slices, any shape; the prepared calls."""
    calls = []
    patch = pytest.MonkeyPatch()
    real = launch.workspace

    def poisoned(where: Any, size: int) -> Tensor:
        return real(where, size // 4 * 4).view(torch.float32).fill_(float("nan")).view(torch.uint8)

    patch.setattr(launch, "workspace", poisoned)
    try:
        for m, n, k in shapes:
            case = Case("G11", m, n, k, "bf16", a=COL, criterion="t16")
            made, hal_device = testing.operands(case, device), launch.device_of(torch.device(device))
            profile = launch.selection_of(hal_device).profile
            whole = next(
                p
                for p in testing.plans(case, hal_device, every=True)
                if p.slices == 1 and not p.swap and p.cluster == 1
            )
            for slices in (2, 4, 8):
                plan = planner.sliced(testing.problem(case), profile, hal_device, whole, slices)
                assert plan.slices > 1
                result = testing.run_case(case, device, plan, made)
                assert result.passed, f"{case.id} [{plan.explain()}]: {result.error}"
                calls.append((made, launch.launcher(testing.problem(case), hal_device, plan)))
    finally:
        patch.undo()
    return calls


def g15_subnormals(device: str) -> None:
    """fp16 subnormals are not flushed: 64 products of 1 and 2^-15 make 2^-9."""
    x = torch.ones(64, 64, dtype=torch.float16, device=device)
    w = torch.full((64, 64), 2.0**-15, dtype=torch.float16, device=device)
    assert torch.equal(linear(x, w, **OURS), torch.full_like(x, 64 * 2.0**-15))
    tiny = torch.full((64, 64), 2.0**-24, dtype=torch.float16, device=device)
    assert torch.equal(linear(x[:, :1], tiny[:, :1], **OURS), torch.full_like(x, 2.0**-24))


def g16_partial_sums(device: str, n: int) -> int:
    """Partial sums of a split K are fp32 whatever D is: T16, and 2e-3 in Frobenius' norm; how many plans split K."""
    m, k = 64, 14336
    generator = torch.Generator().manual_seed(16)
    x, w = (torch.rand(rows, k, generator=generator).mul(2).sub(1).bfloat16().to(device) for rows in (m, n))
    reference = x.double() @ w.double().t()
    bound = 1.5 * 2.0**-8 * reference.abs() + 2.0**-17 * torch.outer(
        x.double().norm(dim=1), w.double().norm(dim=1)
    )
    problem = _dispatch.problem_of(matmul_module.request(x, w.t(), **OURS))
    hal_device = launch.device_of(x.device)
    profile = launch.selection_of(hal_device).profile
    plans = planner.candidates(problem, profile, hal_device)
    whole = next(p for p in plans if p.slices == 1 and not p.swap and p.cluster == 1)
    split = [p for p in plans if p.slices > 1 or p.kernel.tile.split > 1]
    for plan in (
        launch.planned(problem, hal_device),
        planner.sliced(problem, profile, hal_device, whole, 6),
        *split,
    ):
        out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device=device)
        launch.launcher(problem, hal_device, plan)(x.data_ptr(), w.data_ptr(), 0, out.data_ptr(), 0)
        difference = out.double() - reference
        assert bool((difference.abs() <= bound).all()), plan.explain()
        assert float(difference.norm() / reference.norm()) <= 2.0e-3, plan.explain()
    return 1 + len(split)


def g18_rows(device: str, edge: int) -> None:
    """One row in batches of other sizes and at other places: within T16; batch invariant: the same bytes."""
    x, w = (torch.randn(rows, edge, dtype=torch.bfloat16, device=device) for rows in (1024, edge))
    anchor = x[0].clone()
    reference = anchor.double() @ w.double().t()
    bound = 1.5 * 2.0**-8 * reference.abs() + 2.0**-17 * anchor.double().norm() * w.double().norm(dim=1)
    alone = linear(anchor[None], w, batch_invariant=True, **OURS)[0]
    for rows in (1, 2, 17, 33, 128, 257, 1024):
        for place in {0, rows // 2, rows - 1}:
            batch = x[:rows].clone()
            batch[place] = anchor
            row = linear(batch, w, **OURS)[place]
            assert bool(((row.double() - reference).abs() <= bound).all()), (rows, place)
            assert torch.equal(linear(batch, w, batch_invariant=True, **OURS)[place], alone), (rows, place)


def g37_refused_launches(device: str) -> None:
    """A launch the device cannot make raises at the call, says why, and leaves the device usable."""
    a, b = (integers(64, 64, dtype=torch.bfloat16, device=device, seed=s) for s in (1, 2))
    request = matmul_module.request(a, b, **OURS)
    problem, hal_device = _dispatch.problem_of(request), launch.device_of(a.device)
    good = launch.planned(problem, hal_device)
    changes: list[dict[str, int]] = [{"block": 4096}]
    if device != "cpu":
        changes += [{"shared_bytes": 300_000}, {"grid": 1 << 31}]
    for change in changes:
        with pytest.raises(errors.LaunchError) as raised:
            prepared = launch.launcher(problem, hal_device, replace(good, **change))
            out = torch.empty(64, 64, dtype=torch.bfloat16, device=device)
            prepared(a.data_ptr(), b.data_ptr(), 0, out.data_ptr(), 0)
        message = str(raised.value)
        assert "pg_" in message and str(next(iter(change.values()))) in message, message
    expected = (a.cpu().double() @ b.cpu().double()).bfloat16()
    assert torch.equal(matmul(a, b, **OURS).cpu(), expected)


def g39_builds(device: str) -> tuple[int, int]:
    """Kernels built for M = 1..4096 step 37 in a first sweep and a second one, both run for real."""
    kernels: list[set[str]] = []
    w = torch.ones(64, 64, dtype=torch.bfloat16, device=device)
    origins: list[str] = []
    patch = pytest.MonkeyPatch()
    real = launch.code_of

    def counted(source: Any) -> Any:
        result = real(source)
        origins.append(source.symbol)
        return result

    patch.setattr(launch, "code_of", counted)
    try:
        _dispatch.clear()
        for _ in range(2):
            origins.clear()
            for m in range(1, 4097, 37):
                result = linear(torch.ones(m, 64, dtype=torch.bfloat16, device=device), w, **OURS)
                assert result.shape == (m, 64) and bool((result == 64).all())
            kernels.append(set(origins))
    finally:
        patch.undo()
    return len(kernels[0]), len(kernels[1])


def g45_epilogues(device: str) -> None:
    """The GELU asked for on every route, bias before the one rounding, every dtype pair, K = 20."""
    x = torch.linspace(-8, 8, 4096, device=device).reshape(64, 64)
    eye = torch.eye(64, device=device)
    for name, approximate in (("gelu", "none"), ("gelu_tanh", "tanh")):
        for fallback in ("error", "vendor"):
            result = linear(x, eye, None, name, fallback=fallback)
            expected = torch.nn.functional.gelu(x.cpu().double(), approximate=approximate)
            assert float((result.cpu().double() - expected).abs().max()) <= 1e-5
        for dtype in (torch.float16, torch.bfloat16):
            low = linear(x.to(dtype), eye.to(dtype), None, name, out_dtype=torch.float32, **OURS)
            expected = torch.nn.functional.gelu(x.to(dtype).cpu().double(), approximate=approximate)
            assert float((low.cpu().double() - expected).abs().max()) <= 1e-5
    for dtype in (torch.float16, torch.bfloat16):
        for bias_dtype in (dtype, torch.float32):
            for out_dtype in (dtype, torch.float32):
                case = Case(
                    "G45",
                    32,
                    40,
                    20,
                    "fp16" if dtype == torch.float16 else "bf16",
                    "" if out_dtype == dtype else "fp32",
                    b=COL,
                    bias="row",
                    bias_dtype="" if bias_dtype == dtype else "fp32",
                )
                check(case, device)
    for k in (20, 24):
        check(Case("G45", 64, 64, k, "bf16", b=COL), device)
    # 257 has no bf16: rounded before the bias it would be 256, and 255 after
    row = torch.ones(1, 257, dtype=torch.bfloat16, device=device)
    for fallback in ("error", "vendor"):
        result = linear(row, row, torch.full((1,), -1.0, device=device), fallback=fallback)
        assert float(result) == 256.0
