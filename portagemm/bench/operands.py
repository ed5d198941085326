"""Tensors of a case, and the check of its result against FP64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from portagemm.hal.dtypes import BY_NAME
from portagemm.problem import GemmProblem, View, build

from .suites import BenchCase

#: Elements of one FP64 block of the reference.
_BLOCK = 1 << 26


@dataclass(frozen=True)
class Operands:
    """A (m, k), B (k, n) and the output (m, n), each with a leading batch dimension when batch > 1."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor


@dataclass(frozen=True)
class Accuracy:
    """max_rel_err: largest |out - ref| over the largest |ref|. t16: largest |out - ref| / T16 bound."""

    max_rel_err: float
    t16: float


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a hal dtype name."""
    dtype = getattr(torch, BY_NAME[name].torch_name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def make_b(case: BenchCase, device: str, seed: int = 1) -> torch.Tensor:
    """Normal random B of (k, n), laid out as the case says."""
    return _matrix(case, case.k, case.n, case.layout[1], device, seed)


class Weights:
    """Several B of one case, kept until another kind is asked for: neighbours in a suite share them."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._made: list[torch.Tensor] = []

    def __call__(self, case: BenchCase, device: str, total_bytes: int, most: int) -> list[torch.Tensor]:
        """As many as have `total_bytes` together, at least 2 and at most `most`."""
        one = case.batch * case.k * case.n * BY_NAME[case.dtype].bytes
        count = min(max(-(-total_bytes // one), 2), most)
        key = (case.dtype, case.layout[1], case.k, case.n, case.batch, device, count)
        if key != self._key:
            self._key, self._made = (), []  # gives the old ones back first
            self._made = [make_b(case, device, seed) for seed in range(count)]
            self._key = key
        return self._made


def make(case: BenchCase, device: str, seed: int = 0) -> Operands:
    """Normal random operands and an output full of NaN. On device "meta" nothing is allocated."""
    out = torch.full(_shape(case, case.m, case.n), float("nan"), dtype=torch_dtype(case.dtype), device=device)
    a = _matrix(case, case.m, case.k, case.layout[0], device, seed)
    return Operands(a, make_b(case, device, seed + 1), out)


def problem(case: BenchCase, out_dtype: str | None = None) -> GemmProblem:
    """The problem of the case's call, from its extents alone: no tensor is made.

    fp32 is IEEE, torch's default precision.
    """
    a, b, out = (
        View(BY_NAME[dtype], tuple(t.shape), t.stride())
        for dtype, t in (
            (case.dtype, _matrix(case, case.m, case.k, case.layout[0], "meta", 0)),
            (case.dtype, _matrix(case, case.k, case.n, case.layout[1], "meta", 0)),
            (out_dtype or case.dtype, torch.empty(_shape(case, case.m, case.n), device="meta")),
        )
    )
    return build(a, b, out)


def accuracy(case: BenchCase, operands: Operands) -> Accuracy:
    """Compare `operands.out` with A B in FP64, block by block on the operands' own device.

    The T16 bound of an element is 1.5 h |ref| + 2^-17 ||a_i|| ||b_j||, h the half unit in the last place of
    the output's dtype. An output that is not finite counts as infinitely wrong.
    """
    half_ulp = BY_NAME[case.dtype].half_ulp
    error = largest = ratio = 0.0
    for a, b, out in _blocks(case, operands):
        reference = a @ b
        bound = (
            torch.outer(a.norm(dim=1), b.norm(dim=0))
            .mul_(2.0**-17)
            .add_(reference.abs(), alpha=1.5 * half_ulp)
        )
        difference = (out - reference).abs_().nan_to_num_(nan=float("inf"))
        error = max(error, float(difference.max()))
        largest = max(largest, float(reference.abs().max()))
        ratio = max(ratio, float((difference / bound.clamp_min_(2.0**-149)).max()))
    return Accuracy(error / max(largest, 2.0**-149), ratio)


def _shape(case: BenchCase, rows: int, columns: int) -> tuple[int, ...]:
    return (rows, columns) if case.batch == 1 else (case.batch, rows, columns)


def _matrix(case: BenchCase, rows: int, columns: int, order: str, device: str, seed: int) -> torch.Tensor:
    """A (rows, columns) view: N of row-major storage, T of storage with rows and columns exchanged."""
    stored = _shape(case, *((rows, columns) if order == "N" else (columns, rows)))
    generator = None
    if device != "meta":
        generator = torch.Generator(device=device).manual_seed(seed)
    tensor = torch.empty(stored, dtype=torch_dtype(case.dtype), device=device).normal_(generator=generator)
    return tensor if order == "N" else tensor.mT


def _blocks(case: BenchCase, operands: Operands) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """FP64 blocks of (A, B, out) that cover the output."""
    columns = max(_BLOCK // max(case.k, case.m, 1), 1)
    for index in range(case.batch):
        a, b, out = (t if case.batch == 1 else t[index] for t in (operands.a, operands.b, operands.out))
        wide = a.double()
        for start in range(0, case.n, columns):
            stop = min(start + columns, case.n)
            yield wide, b[:, start:stop].double(), out[:, start:stop].double()
