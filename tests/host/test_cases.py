"""The case list of all backends on the CPU backend: by the planner's choice and under its other plans."""

from __future__ import annotations

import pytest
import torch

import portagemm
from portagemm import testing
from portagemm.hal.device import Device

from .conftest import compile_all

GROUPS = sorted({case.group for case in testing.cases("cpu")})


def run(group: str, quick: bool) -> None:
    results = [
        r for c in testing.cases("cpu", quick) if c.group == group for r in testing.run_candidates(c, "cpu")
    ]
    summary = testing.summary(results)
    assert summary["failed"] == 0, "\n".join(
        f"{f['case']} [{f['plan'] or 'chosen'}]: {f['error']}" for f in summary["failures"][:20]
    )
    assert summary["runs"] >= summary["cases"] > 0


@pytest.fixture(scope="session")
def compiled(cpu: Device) -> None:
    compile_all(cpu, quick=False)


@pytest.fixture(scope="session")
def compiled_quick(cpu: Device) -> None:
    compile_all(cpu, quick=True)


@pytest.mark.quick
@pytest.mark.parametrize(
    "group", [g for g in GROUPS if any(c.group == g for c in testing.cases("cpu", True))]
)
def test_short_list(compiled_quick: None, group: str) -> None:
    run(group, quick=True)


@pytest.mark.parametrize("group", GROUPS)
def test_whole_list(compiled: None, group: str) -> None:
    run(group, quick=False)


@pytest.mark.quick
def test_the_list_covers_what_it_must() -> None:
    every = testing.cases("cuda")
    assert len({c.id for c in every}) == len(every) > 700
    k_tails = {(c.k, str(c.a)[0] + str(c.b)[0]) for c in every if c.group == "k_tail"}
    assert {(k, o) for k in (*range(1, 41), *range(120, 137)) for o in ("rr", "rc", "cr", "cc")} <= k_tails
    assert {c.a.offset for c in every if c.group == "align"} == set(range(16))
    assert {c.dtype for c in every} == {"fp16", "bf16", "fp32"}
    assert {c.activation for c in every} == {"none", "relu", "gelu", "gelu_tanh", "silu"}
    assert any(c.shape[0] > 65535 for c in every if len(c.shape) > 2)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 4096), (64, 64, 50000), (1, 300, 50000), (3, 5, 70000)])
@pytest.mark.parametrize("transposed", [False, True])
def test_rounding_errors_of_one_sign_do_not_add_up(m: int, n: int, k: int, transposed: bool) -> None:
    """All products alike: in one long fp32 sum their errors have one sign, and leave T16 from K = 1024 on."""
    a = torch.full((m, k), 0.1)
    b = torch.full((n, k), 0.3).T if transposed else torch.full((k, n), 0.3)
    bound = 2.0**-17 * a.double().norm(dim=1)[:, None] * b.double().norm(dim=0)[None, :]
    difference = (portagemm.matmul(a, b, fallback="error").double() - a.double() @ b.double()).abs()
    assert bool((difference <= bound).all()), float((difference / bound).max())
