"""Suites: named lists of GEMM cases."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date

#: Timings of a case. "alone": one call, cache flushed. "chain": calls over rotating weights in one graph.
TIMINGS: tuple[str, ...] = ("alone", "chain")

#: (M, N, K) of the large-model projections that `dense16` times.
DENSE_SHAPES: tuple[tuple[int, int, int], ...] = (
    (128, 12288, 4096),
    (128, 4096, 7168),
    (128, 2112, 7168),
    (4096, 12288, 4096),
    (4096, 2112, 7168),
    (4096, 24576, 1536),
    (4096, 7168, 16384),
    (4096, 4096, 7168),
    (4096, 7168, 2048),
    (4096, 32768, 512),
    (8192, 8192, 8192),
    (4096, 129280, 7168),
)
#: (N, K) of the weights that `decode16` streams, and the rows it has them multiplied with.
DECODE_WEIGHTS: tuple[tuple[int, int], ...] = (
    (6144, 2048),
    (12288, 2048),
    (12288, 4096),
    (4096, 7168),
    (7168, 2048),
    (24576, 1536),
    (8192, 8192),
    (28672, 8192),
)
DECODE_ROWS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
#: Weights that `decode16` has in fp16 too.
_DECODE_FP16 = ((12288, 4096), (8192, 8192))
#: Shapes whose other layouts `layouts16` times.
LAYOUT_SHAPES: tuple[tuple[int, int, int], ...] = (
    (4096, 12288, 4096),
    (4096, 4096, 7168),
    (4096, 7168, 2048),
    (8192, 8192, 8192),
)
#: Shapes without waves half filled, so that `mma_sync16` compares main loops.
MMA_SYNC_SHAPES: tuple[tuple[int, int, int], ...] = (
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (4096, 4224, 4096),
    (8192, 8192, 4096),
    (8192, 8192, 8192),
)
RANDOM_COUNT = 100

#: Most operations (2 M N K batch) of a random case by dtype, so that a run stays short on a large GPU.
_RANDOM_FLOP = {"bf16": 2e12, "fp16": 2e12, "fp32": 1e11}


@dataclass(frozen=True)
class BenchCase:
    """One GEMM to time.

    Attributes:
        op: the public operation that is called.
        dtype: hal dtype name of the operands and the output.
        layout: two letters for A (m, k) and B (k, n): N is row-major as it stands, T is the transposed
            view of row-major storage. NT is what a torch linear layer does.
        m, n, k, batch: extents; batch 1 means plain matrices.
        timings: which of TIMINGS to take.
    """

    op: str
    dtype: str
    layout: str
    m: int
    n: int
    k: int
    batch: int = 1
    timings: tuple[str, ...] = ("alone",)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K)."""
        return self.m, self.n, self.k

    @property
    def flop(self) -> float:
        """Operations of one call, a multiply-add counted as two."""
        return 2.0 * self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        times = f"{self.batch}x" if self.batch > 1 else ""
        return f"{self.dtype} {self.layout} {times}[{self.m}, {self.n}, {self.k}]"


def dense16(seed: int) -> list[BenchCase]:
    """The large-model shapes with M >= 128, NT, in bf16 and fp16. `seed` is not used."""
    return [
        BenchCase("matmul", dtype, "NT", m, n, k, timings=TIMINGS)
        for dtype in ("bf16", "fp16")
        for m, n, k in DENSE_SHAPES
    ]


def decode16(seed: int) -> list[BenchCase]:
    """Few rows on large weights, NT: bf16, and fp16 for two of the weights. `seed` is not used."""
    bf16 = [("bf16", n, k) for n, k in DECODE_WEIGHTS]
    return [
        BenchCase("matmul", dtype, "NT", m, n, k, timings=TIMINGS)
        for dtype, n, k in (*bf16, *(("fp16", n, k) for n, k in _DECODE_FP16))
        for m in DECODE_ROWS
    ]


def layouts16(seed: int) -> list[BenchCase]:
    """The layouts that dense16 leaves out, bf16. `seed` is not used."""
    return [
        BenchCase("matmul", "bf16", layout, m, n, k)
        for layout in ("NN", "TN", "TT")
        for m, n, k in LAYOUT_SHAPES
    ]


def mma_sync16(seed: int) -> list[BenchCase]:
    """Large shapes for the schedules on mma.sync, under a forced profile a100 or rtx4090. `seed` is not used."""
    return [
        BenchCase("matmul", dtype, "NT", m, n, k) for dtype in ("bf16", "fp16") for m, n, k in MMA_SYNC_SHAPES
    ]


def host(seed: int) -> list[BenchCase]:
    """Shapes a CPU does in milliseconds, fp32. `seed` is not used."""
    shapes = ((1024, 1024, 1024), (256, 1024, 1024), (1, 4096, 4096), (512, 511, 513))
    return [BenchCase("matmul", "fp32", "NT", m, n, k) for m, n, k in shapes]


def random_shapes(seed: int) -> list[BenchCase]:
    """RANDOM_COUNT cases outside all other suites, M, N, K log-uniform, half of them odd or ragged."""
    known = {case.shape for name, make in SUITES.items() if name != "random" for case in make(seed)}
    source = random.Random(seed)
    cases: list[BenchCase] = []
    while len(cases) < RANDOM_COUNT:
        dtype = source.choice(("bf16", "bf16", "fp16", "fp16", "fp32"))
        layout = source.choice(("NN", "NT", "TN", "TT"))
        m, n, k = (_extent(source, low, high) for low, high in ((1, 16384), (8, 32768), (8, 16384)))
        batch = source.randint(2, 16) if source.random() < 0.15 else 1
        case = BenchCase("matmul", dtype, layout, m, n, k, batch)
        if case.flop <= _RANDOM_FLOP[dtype] and case.shape not in known:
            cases.append(case)
    return cases


def _extent(source: random.Random, low: int, high: int) -> int:
    """A log-uniform extent; half of the draws are rounded to a multiple of 64 (or 8 when small)."""
    value = int(math.exp(source.uniform(math.log(low), math.log(high + 1))))
    if source.random() < 0.5:
        step = 64 if value >= 256 else 8
        value = max(value // step, 1) * step
    return min(max(value, low), high)


SUITES: dict[str, Callable[[int], list[BenchCase]]] = {
    "decode16": decode16,
    "dense16": dense16,
    "host": host,
    "layouts16": layouts16,
    "mma_sync16": mma_sync16,
    "random": random_shapes,
}


def default_seed() -> int:
    """Today as YYYYMMDD."""
    return int(date.today().strftime("%Y%m%d"))


def suite(name: str, seed: int | None = None) -> list[BenchCase]:
    """The cases of a suite.

    Raises ValueError with the names there are.
    """
    if name not in SUITES:
        raise ValueError(f"suite: given {name!r}; allowed: {', '.join(sorted(SUITES))}")
    return SUITES[name](default_seed() if seed is None else seed)


def part(cases: Sequence[BenchCase], rows: str | None, limit: int | None) -> list[BenchCase]:
    """Every n-th case from the k-th on for `rows` "k/n" (1-based), then the first `limit` of them.

    Raises ValueError when `rows` is not of that form.
    """
    chosen = list(cases)
    if rows is not None:
        first, _, count = rows.partition("/")
        if not (first.isdigit() and count.isdigit() and 1 <= int(first) <= int(count)):
            raise ValueError(f"rows: given {rows!r}; allowed: K/N with 1 <= K <= N")
        chosen = chosen[int(first) - 1 :: int(count)]
    return chosen if limit is None else chosen[:limit]


def with_timings(cases: Sequence[BenchCase], timings: Sequence[str]) -> list[BenchCase]:
    """The cases restricted to these timings; a case keeps "alone" when nothing else is left of it."""
    return [replace(c, timings=tuple(t for t in c.timings if t in timings) or ("alone",)) for c in cases]
