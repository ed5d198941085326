"""Libraries to compare with. A peer that cannot be used says why; it is never skipped in silence."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .suites import BenchCase
from .timing import Call

Prepare = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Call]


@dataclass(frozen=True)
class Peer:
    """A library that multiplies matrices.

    Attributes:
        name: as in results. module: what must be importable.
        refuses: why it cannot do a case, or None.
        prepare: binds (a, b, out) and returns the call to time.
        allocating: the call that allocates its own output, for host cost; None where there is none.
    """

    name: str
    module: str
    refuses: Callable[[BenchCase], str | None]
    prepare: Prepare
    allocating: Callable[[torch.Tensor, torch.Tensor], object] | None = None

    def unavailable_reason(self, device: str) -> str | None:
        """Why it cannot be used on that torch device at all, or None."""
        if self.name != "torch" and device == "cpu":
            return "has no CPU code"
        try:
            importlib.import_module(self.module)
        except Exception as error:  # a broken install may raise anything
            return f"cannot import {self.module}: {type(error).__name__}: {error}"
        return None


def _torch_prepare(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Call:
    multiply = torch.mm if a.dim() == 2 else torch.bmm
    return lambda: multiply(a, b, out=out)


def _torch_allocating(a: torch.Tensor, b: torch.Tensor) -> object:
    return torch.mm(a, b)


def _deep_gemm_prepare(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Call:
    module = importlib.import_module("deep_gemm")
    return lambda: module.bf16_gemm_nt(a, b.mT, out)


def _deep_gemm_refuses(case: BenchCase) -> str | None:
    if case.dtype != "bf16" or case.layout != "NT" or case.batch != 1:
        return "does bf16 NT without batch only"
    return None


def _no_dense(case: BenchCase) -> str | None:
    return "multiplies quantised weights only"


def _unused(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Call:
    raise NotImplementedError


PEERS: dict[str, Peer] = {
    "torch": Peer("torch", "torch", lambda case: None, _torch_prepare, _torch_allocating),
    "deep_gemm": Peer("deep_gemm", "deep_gemm", _deep_gemm_refuses, _deep_gemm_prepare),
    "humming": Peer("humming", "humming", _no_dense, _unused),
}


def available(names: Sequence[str], device: str) -> tuple[list[Peer], dict[str, str]]:
    """The usable peers among `names`, and for the others the reason.

    Raises ValueError for a name that does not exist.
    """
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise ValueError(f"peers: given {', '.join(unknown)}; allowed: {', '.join(PEERS)}")
    reasons = {name: reason for name in names if (reason := PEERS[name].unavailable_reason(device))}
    return [PEERS[name] for name in names if name not in reasons], reasons
