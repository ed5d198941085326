"""A stand-in for plan, compiler and driver: runs a GemmProblem from raw addresses with torch on the CPU.

So that the checks, the canonical form and the routing are tested apart from any kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from portagemm import launch
from portagemm.hal.device import Device
from portagemm.ops import _dispatch, _vendor
from portagemm.problem import GemmProblem, Operand


def tensor_at(address: int, operand: Operand, rows: int, cols: int, batch: tuple[int, ...]) -> torch.Tensor:
    """The operand's memory as a tensor (batch, rows, cols): what a kernel would address, and nothing else."""
    shape = (*batch, rows, cols)
    strides = (*operand.batch_strides, *operand.strides)
    reach = sum((e - 1) * s for e, s in zip(shape, strides, strict=True)) + 1
    raw = (ctypes.c_char * (reach * operand.dtype.bytes)).from_address(address)
    flat = torch.frombuffer(raw, dtype=getattr(torch, operand.dtype.torch_name))
    return flat.as_strided(shape, strides)


def run(p: GemmProblem, pointers: Sequence[int], scalars: Sequence[float]) -> None:
    """The problem's definition, word for word."""
    a = tensor_at(pointers[0], p.a, p.m, p.k, p.batch).double()
    b = tensor_at(pointers[1], p.b, p.n, p.k, p.batch).double()
    result = scalars[0] * (a @ b.mT)
    if p.c is not None:
        result = result + scalars[1] * tensor_at(pointers[2], p.c, p.m, p.n, p.batch).double()
    if p.bias is not None:
        result = result + tensor_at(pointers[4], p.bias, p.m, p.n, p.batch).double()
    tensor_at(pointers[3], p.d, p.m, p.n, p.batch).copy_(_vendor.activate(result, p.activation))


@dataclass
class Reference:
    """What was launched, and what planning should raise instead of succeeding."""

    problems: list[GemmProblem] = field(default_factory=list)
    planned: int = 0
    refuse: Exception | None = None
    prefer_vendor: bool = False
    watch: Callable[[], None] = lambda: None


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reference]:
    """Operations run on the stand-in instead of on kernels."""
    state = Reference()
    device = Device("cpu", 0, "stand-in", "native", 1)
    driver: Any = SimpleNamespace(current_stream=lambda index: 0)

    def selection_of(device: Device) -> Any:
        profile = SimpleNamespace(name="stand-in")
        return SimpleNamespace(
            profile=profile, reason="a test", warnings=(), prefer_vendor=state.prefer_vendor, target="t"
        )

    def planned(problem: GemmProblem, device: Device) -> Any:
        state.planned += 1
        if state.refuse is not None:
            raise state.refuse
        return SimpleNamespace(reasons=("chosen by the test",), explain=lambda: "the test's plan")

    def launcher(problem: GemmProblem, device: Device, plan: Any = None) -> launch.PreparedGemm:
        plan = planned(problem, device)

        def go(pointers: Sequence[int], scalars: Sequence[float], stream: int) -> None:
            state.problems.append(problem)
            state.watch()
            run(problem, pointers, scalars)

        return launch.PreparedGemm(problem, plan, selection_of(device), device, go, driver, "memory", 0.0)

    _dispatch.clear()
    monkeypatch.setattr(launch, "device_of", lambda d: device)
    monkeypatch.setattr(launch, "selection_of", selection_of)
    monkeypatch.setattr(launch, "planned", planned)
    monkeypatch.setattr(launch, "launcher", launcher)
    monkeypatch.setattr(launch, "rejected", lambda *a: ["not another: too large"])
    monkeypatch.setattr(launch, "compile_outlook", lambda *a: "no compiler in this test")
    yield state
    _dispatch.clear()
