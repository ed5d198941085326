"""How results are judged, and the one list of cases that every backend must pass.

`cases` is data: shapes, layouts and epilogues. `run_case` runs one on any device, under the plan of choice or
a given one; `run_candidates` runs it under every plan there is. Tests, the device script and whoever ports a
backend use the same list.

Criteria (ref is the FP64 result of the operands as stored, h = 2^-8 for bf16, 2^-11 for fp16, 0 for fp32):

- exact: small integers whose true result fits the output's dtype; compared bitwise. Finds wrong indices.
- t16: ``|out - ref| <= 1.5 h |ref| + 2^-17 |alpha| ||a_i|| ||b_j||`` (2^-9 for TF32), a few fp32 roundings of
  C and bias, and 1e-5 where there is a transcendental activation.
- poison, always: inputs lie in NaN, outputs are NaN before the call and lie between guard bands that must not
  change; inputs must not change; a second run must give the same bytes.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from portagemm import launch
from portagemm.hal.dtypes import BY_NAME
from portagemm.ops import _dispatch, gemm, linear, matmul

if TYPE_CHECKING:
    from portagemm.hal.device import Device
    from portagemm.kernel_config import KernelConfig
    from portagemm.plan import GemmPlan
    from portagemm.problem import GemmProblem
    from portagemm.reduce_kernel import ReduceConfig

#: Elements of guard before and after every operand.
GUARD = 64
#: What guard bands of outputs hold: a value no case computes.
SENTINEL = -12288.0


# --- cases -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """How an operand lies in memory.

    Attributes:
        order: "row" (last dimension contiguous), "col" (second to last contiguous).
        offset: elements from a 16-byte-aligned address. pad: extra elements a line of the fastest dimension.
        step: elements between neighbours of the fastest dimension.
        expand: letters of dimensions with stride 0: "r" rows, "c" columns, "b" all batch dimensions.
        interleave: the rows of all batches alternate, as in a (rows, batch, columns) tensor.
    """

    order: str = "row"
    offset: int = 0
    pad: int = 0
    step: int = 1
    expand: str = ""
    interleave: bool = False

    def __str__(self) -> str:
        text = {"row": "r", "col": "c"}[self.order]
        for letter, value in (("o", self.offset), ("p", self.pad), ("s", self.step if self.step != 1 else 0)):
            text += f"{letter}{value}" if value else ""
        return text + (f"x{self.expand}" if self.expand else "") + ("i" if self.interleave else "")


ROW, COL = Memory("row"), Memory("col")


@dataclass(frozen=True)
class Case:
    """One call and how to judge it.

    Attributes:
        group: what it is there for. m, n, k, batch_a, batch_b: shapes (batches broadcast).
        dtype, out_dtype: names of portagemm.hal.dtypes. a, b: operands, b as (k, n). out: None lets the
            operation allocate.
        c, c_dtype, alpha, beta: C of gemm; c None: none. bias: "" or "row" (N,), "col" (M, 1), "full" (M, N).
        bias_dtype, activation: the epilogue. precision: "ieee" or "tf32".
        criterion: "exact" or "t16". quick: in the short list too.
    """

    group: str
    m: int
    n: int
    k: int
    dtype: str = "bf16"
    out_dtype: str = ""
    a: Memory = ROW
    b: Memory = ROW
    out: Memory | None = ROW
    batch_a: tuple[int, ...] = ()
    batch_b: tuple[int, ...] = ()
    c: Memory | None = None
    c_dtype: str = ""
    alpha: float = 1.0
    beta: float = 0.0
    bias: str = ""
    bias_dtype: str = ""
    activation: str = "none"
    precision: str = "ieee"
    criterion: str = "exact"
    quick: bool = False

    @property
    def id(self) -> str:
        """A name that holds all that sets the case apart."""
        shape = f"{self.m}x{self.n}x{self.k}"
        batches = ["".join(f"{e}." for e in b)[:-1] for b in (self.batch_a, self.batch_b)]
        batch = "_".join(["", *batches]) if any(batches) else ""
        dtypes = self.dtype + (f"_{self.out_dtype}" if self.result_dtype != self.dtype else "")
        dtypes += "_tf32" if self.precision == "tf32" else ""
        memory = f"{self.a}_{self.b}_{'new' if self.out is None else self.out}"
        extra = f"_alpha{self.alpha:g}" if self.alpha != 1 else ""
        extra += f"_beta{self.beta:g}C{self.c}{self.c_dtype}" if self.c is not None else ""
        extra += f"_bias{self.bias}{self.bias_dtype}" if self.bias else ""
        extra += f"_{self.activation}" if self.activation != "none" else ""
        return f"{self.group}-{shape}{batch}-{dtypes}-{memory}{extra}"

    @property
    def result_dtype(self) -> str:
        """The output's dtype name."""
        return self.out_dtype or self.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's shape."""
        return (*torch.broadcast_shapes(self.batch_a, self.batch_b), self.m, self.n)


LAYOUTS: dict[str, tuple[Memory, Memory]] = {
    "NN": (ROW, ROW),
    "NT": (ROW, COL),
    "TN": (COL, ROW),
    "TT": (COL, COL),
}
K_TAILS = (*range(1, 41), *range(120, 137))
EXTENTS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 97, 127, 128, 129, 191, 193, 255, 257, 300)


def _zero() -> Iterator[Case]:
    for m, n, k in ((0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)):
        for batch in ((), (3,)):
            yield Case("zero", m, n, k, batch_a=batch, batch_b=batch, quick=True)
        yield Case("zero", m, n, k, c=ROW, beta=2.0, bias="row", activation="relu", quick=True)
    yield Case("zero", 5, 7, 3, batch_a=(0,), quick=True)


def _lines(name: str, m: int, n: int, k: int, unit: int = 8) -> tuple[Memory, Memory]:
    """A layout by name, lines padded to whole vectors: so the fast copies meet the tails."""
    a, b = LAYOUTS[name]
    return (
        replace(a, pad=-(k if a.order == "row" else m) % unit),
        replace(b, pad=-(n if b.order == "row" else k) % unit),
    )


def _k_tails() -> Iterator[Case]:
    for i, k in enumerate(K_TAILS):
        for name, (a, b) in LAYOUTS.items():
            yield Case("k_tail", 128, 136, k, "fp16", a=a, b=b, quick=i % 9 == 0 and name == "NT")
        a, b = _lines("NT", 136, 128, k)
        yield Case("k_tail", 136, 128, k, "fp16", a=a, b=b, quick=i % 9 == 1)
    for k in (1, 2, 7, 8, 9, 15, 17, 31, 33, 127, 129):
        a, b = _lines("NT", 72, 80, k)
        yield Case("k_tail", 72, 80, k, "bf16", a=a, b=b)
        a, b = _lines("NT", 72, 80, k, 4)
        yield Case("k_tail", 72, 80, k, "fp32", a=a, b=b)
    yield Case("k_tail", 128, 1024, 3, "fp16", a=COL, b=COL)
    yield Case("k_tail", 1024, 128, 1, "fp16", a=COL, b=COL)
    yield Case("k_tail", 128, 128, 133, "fp16", a=COL, b=COL)
    yield Case("k_tail", 128, 128, 24, "fp16", a=ROW, b=COL, quick=True)


def _extents() -> Iterator[Case]:
    dtypes = {"NT": "bf16", "NN": "fp16", "TN": "fp32", "TT": "bf16"}
    for i, m in enumerate(EXTENTS):
        for j, n in enumerate((EXTENTS[-1 - i], 1, 8, 136, 256)):
            name = ("NT", "NN", "TN", "TT")[(i + j) % 4]
            a, b = _lines(name, m, n, 64)
            out = Memory(pad=-n % 8)
            yield Case("extent", m, n, 64, dtypes[name], a=a, b=b, out=out, quick=i % 4 == j and name == "NT")
    for i, n in enumerate(EXTENTS):
        name = "NN" if i % 2 else "NT"
        a, b = LAYOUTS[name]
        yield Case("extent", 136, n, 40, dtypes[name], a=a, b=b, quick=n in (16, 257))
    for m, n, k in (
        (1, 1, 1),
        (1, 1, 4096),
        (1, 4096, 1),
        (4096, 1, 1),
        (1, 300, 300),
        (300, 1, 300),
        (2, 2, 2),
    ):
        yield Case("extent", m, n, k, b=COL, quick=m * n * k < 1000)
    yield Case("extent", 1, 1, 1, "fp32", a=COL, b=COL)


def _dtypes() -> Iterator[Case]:
    for dtype in ("fp16", "bf16", "fp32"):
        for i, (name, (a, b)) in enumerate(LAYOUTS.items()):
            for precision in ("ieee", "tf32") if dtype == "fp32" else ("ieee",):
                common: dict[str, Any] = {"criterion": "t16", "precision": precision}
                yield Case("dtype", 128, 256, 192, dtype, "", a, b, **common, quick=name == "NT")
                padded_a, padded_b = _lines(name, 130, 136, 200)
                yield Case("dtype", 130, 136, 200, dtype, "", padded_a, padded_b, **common)
                yield Case("dtype", 200, 72, 1000, dtype, "", a, b, None, **common)
                if i == 1:
                    yield Case("dtype", 129, 131, 133, dtype, "", a, b, **common)
                    if dtype != "fp32":
                        yield Case(
                            "dtype", 128, 256, 192, dtype, "fp32", a, b, **common, quick=dtype == "bf16"
                        )
                        yield Case("dtype", 129, 131, 136, dtype, "fp32", a, b, **common)


def _alignments() -> Iterator[Case]:
    for dtype, offsets in (("bf16", range(16)), ("fp32", (1, 2))):
        for o in offsets:
            moved, moved_t = Memory(offset=o), Memory("col", offset=o)
            yield Case("align", 64, 72, 80, dtype, a=moved, b=COL, quick=o == 1)
            yield Case("align", 64, 72, 80, dtype, a=ROW, b=moved_t)
            yield Case("align", 64, 72, 80, dtype, a=ROW, b=COL, out=moved, quick=o == 4)
            yield Case("align", 64, 72, 80, dtype, a=moved, b=moved_t, out=moved)
            if o < 5:
                yield Case("align", 64, 72, 80, dtype, a=moved_t, b=moved, out=moved_t)
    # strides that allow less than the address does
    for pad in (1, 2, 4, 8):
        yield Case("align", 64, 72, 80, a=Memory(pad=pad), b=Memory("col", pad=pad), out=Memory(pad=pad))
    yield Case("align", 102, 195, 204, a=COL, b=Memory(pad=12), criterion="t16")


def _strides() -> Iterator[Case]:
    wide = Memory(pad=512)
    for a, b, out in (
        (wide, COL, ROW),
        (ROW, Memory("col", pad=512), ROW),
        (ROW, COL, wide),
        (wide, wide, wide),
    ):
        yield Case("stride", 128, 136, 128, a=a, b=b, out=out, quick=b != wide)
    for out in (
        COL,
        Memory("col", pad=8),
        Memory("col", offset=3, pad=5),
        Memory(step=2),
        Memory("col", step=3),
    ):
        yield Case("stride", 65, 130, 72, a=ROW, b=COL, out=out, quick=out == COL)
        yield Case("stride", 64, 128, 64, a=ROW, b=ROW, out=out)
    yield Case("stride", 65, 132, 72, "fp32", a=ROW, b=COL, out=COL)
    for a, b in (
        (Memory(step=2), ROW),
        (COL, Memory(step=2)),
        (Memory("col", step=3), Memory("col", step=2)),
    ):
        yield Case("stride", 65, 72, 64, a=a, b=b)
    yield Case("stride", 65, 72, 64, "fp32", a=Memory(step=2), b=Memory(step=2))
    for x in ("r", "c", "rc"):
        yield Case("expand", 33, 40, 48, a=Memory(expand=x), b=COL, quick=x == "r")
        yield Case("expand", 64, 72, 80, a=ROW, b=Memory(expand=x))
        yield Case("expand", 64, 72, 80, "fp32", a=Memory("col", expand=x), b=Memory("col", expand=x))
    yield Case("expand", 1, 2, 2, b=Memory(expand="r"))
    yield Case("expand", 2, 2, 1, a=COL, b=COL)


def _batches() -> Iterator[Case]:
    pairs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((3,), (3,)),
        ((3,), ()),
        ((), (3,)),
        ((1,), (3,)),
        ((2, 3), (3,)),
        ((2, 1), (1, 3)),
        ((2, 1, 3), (4, 1)),
        ((2, 1, 3, 1), (1, 4, 1, 2)),
        ((7, 1, 1), (1, 1)),
    )
    for i, (ba, bb) in enumerate(pairs):
        shapes: dict[str, Any] = {"batch_a": ba, "batch_b": bb}
        yield Case("batch", 33, 40, 24, **shapes, b=COL, quick=True)
        yield Case("batch", 64, 72, 80, "fp16", **shapes, b=COL)
        yield Case("batch", 65, 40, 24, "fp32", **shapes, b=COL)
        yield Case("batch", 1, 40, 24, **shapes, b=COL)
        yield Case("batch", 40, 1, 24, **shapes, b=COL)
        yield Case("batch", 65, 40, 24, **shapes, a=Memory(expand="b"), b=Memory("col", expand="b"))
        if i % 3 == 0:
            yield Case("batch", 5, 6, 7, **shapes, a=COL, b=Memory(pad=3), out=Memory("col", pad=1))
    for out in (ROW, Memory(interleave=True), COL):
        x = Memory(interleave=True)
        yield Case("batch", 33, 40, 24, a=x, b=COL, batch_a=(3,), batch_b=(3,), out=out, quick=out == x)
        yield Case("batch", 33, 40, 24, a=x, b=x, batch_a=(2, 3), batch_b=(2, 3), out=out)
    yield Case("batch", 2, 8, 8, b=COL, batch_a=(70000,), batch_b=(70000,))
    yield Case("batch", 3, 2, 1, batch_a=(66000,), batch_b=(66000,), out=COL)


def _epilogues() -> Iterator[Case]:
    bf16: dict[str, Any] = {"dtype": "bf16", "b": COL}
    gemm_c: dict[str, Any] = {"c": ROW, "alpha": 2.0, "beta": -1.0}
    for other in ("", "fp32"):
        for out in ("", "fp32"):
            yield Case(
                "epilogue", 65, 72, 64, **bf16, out_dtype=out, **gemm_c, c_dtype=other, quick=not other
            )
            yield Case(
                "epilogue", 64, 72, 48, **bf16, out_dtype=out, bias="row", bias_dtype=other, quick=not other
            )
    for dtype in ("fp16", "fp32"):
        yield Case("epilogue", 65, 72, 64, dtype, b=COL, **gemm_c)
        yield Case("epilogue", 64, 72, 48, dtype, b=COL, bias="row")
        yield Case("epilogue", 65, 72, 64, dtype, b=COL, bias="row", activation="gelu", criterion="t16")
    for act in ("relu", "gelu", "gelu_tanh", "silu"):
        t16: dict[str, Any] = {"activation": act, "criterion": "t16"}
        yield Case("epilogue", 65, 72, 64, **bf16, **t16, bias="row", quick=act == "gelu")
        yield Case("epilogue", 130, 136, 64, **bf16, **t16, bias="row", out_dtype="fp32")
        yield Case("epilogue", 64, 136, 64, **bf16, **t16)
    beta: dict[str, Any] = {**bf16, "alpha": -1.0, "beta": 1.0}
    for c in (Memory(expand="r"), Memory(expand="c"), Memory(pad=3, offset=1), Memory(step=2), COL):
        yield Case("epilogue", 33, 40, 24, **beta, c=c)
        yield Case("epilogue", 129, 136, 64, **beta, c=c)
    for bias in ("col", "full"):
        yield Case("epilogue", 64, 72, 48, **bf16, bias=bias)
    yield from (
        Case("epilogue", 129, 136, 64, **beta, c=ROW, bias="col", activation="relu"),
        Case("epilogue", 33, 40, 24, **beta, c=ROW, batch_a=(2, 3), batch_b=(3,)),
        Case("epilogue", 64, 72, 48, **beta, c=ROW, bias="row", out=COL, activation="relu"),
        Case("epilogue", 64, 72, 48, **beta, c=ROW, bias="row", activation="relu", quick=True),
        Case("epilogue", 1, 72, 48, **beta, c=ROW, bias="row"),
        Case("epilogue", 72, 1, 48, **beta, c=ROW, bias="row"),
        Case("epilogue", 64, 72, 48, **bf16, alpha=-0.5, out=None),
    )


def _sizes() -> Iterator[Case]:
    for dtype in ("bf16", "fp16", "fp32"):
        yield Case("size", 512, 512, 512, dtype, b=COL, criterion="t16", quick=dtype == "bf16")
        yield Case("size", 384, 640, 768, dtype, criterion="t16")
        yield Case("size", 16, 2048, 1024, dtype, b=COL, criterion="t16", out=None)
        yield Case("size", 1000, 24, 1024, dtype, b=COL, criterion="t16")
    yield Case("size", 300, 1000, 2048, a=COL, b=COL, criterion="t16", out=None)


def _slices() -> Iterator[Case]:
    """Few tiles and a deep K: plans that cut K into slices come up, among them."""
    t16: dict[str, Any] = {"criterion": "t16"}
    for dtype in ("fp16", "bf16", "fp32"):
        yield Case("slices", 33, 40, 2100, dtype, b=COL, **t16, quick=dtype == "bf16")
        yield Case("slices", 24, 72, 1100, dtype, out_dtype="fp32", **t16)
    bf16: dict[str, Any] = {"dtype": "bf16", "b": COL, **t16}
    yield Case("slices", 20, 24, 1600, **bf16, alpha=2.0, beta=-1.0, c=ROW, bias="row", activation="relu")
    yield Case("slices", 20, 26, 1600, **bf16, bias="row", activation="gelu", out_dtype="fp32")
    yield Case("slices", 9, 17, 1030, **bf16, out=COL)
    yield Case("slices", 9, 16, 1030, **bf16, out=Memory(step=2))
    yield Case("slices", 16, 24, 1100, **bf16, batch_a=(2, 3), batch_b=(3,))
    yield Case("slices", 8, 8, 2048, "bf16", a=COL, b=ROW, out=Memory(offset=4), **t16)


def _large() -> Iterator[Case]:
    for dtype in ("bf16", "fp16", "fp32"):
        yield Case("large", 4096, 4096, 512, dtype, b=COL, criterion="t16")
        yield Case("large", 1024, 2112, 7168, dtype, b=COL, criterion="t16")
    yield Case("large", 2000, 3000, 4096, criterion="t16")
    yield Case("large", 256, 264, 512, b=COL, batch_a=(64,), batch_b=(64,), criterion="t16")
    yield Case("large", 4097, 4104, 130, a=Memory("col", pad=7), b=ROW)


#: Groups that only a GPU is asked to run.
DEVICE_ONLY = frozenset({"large"})
#: Groups whose cases run under every plan there is. Cases of the others each run under the plan of choice and
#: one more, a different one from case to case: every tile meets every feature, and kernels stay countable.
EVERY_PLAN = frozenset({"k_tail", "batch", "slices", "large"})


@lru_cache(maxsize=8)
def cases(backend: str = "cpu", quick: bool = False) -> tuple[Case, ...]:
    """The case list for a backend: all of it, or the short list."""
    parts = (
        _zero,
        _k_tails,
        _extents,
        _dtypes,
        _alignments,
        _strides,
        _batches,
        _epilogues,
        _sizes,
        _slices,
        _large,
    )
    found = {case.id: case for part in parts for case in part()}
    return tuple(
        c
        for c in found.values()
        if (c.quick or not quick) and not (backend == "cpu" and c.group in DEVICE_ONLY)
    )


# --- operands --------------------------------------------------------------------------------------------


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of a hal dtype name."""
    dtype: torch.dtype = getattr(torch, BY_NAME[name].torch_name)
    return dtype


@dataclass
class Placed:
    """A view inside guarded storage. `before` holds the storage's bits when it was made."""

    view: Tensor
    storage: Tensor
    before: Tensor

    def unchanged(self) -> bool:
        """Whether nothing wrote into the storage, the view included."""
        return torch.equal(bits(self.storage), self.before)

    def guards_unchanged(self) -> bool:
        """Whether nothing wrote outside the view."""
        now, then = bits(self.storage).clone(), self.before.clone()
        for x in (now, then):
            x.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset()).zero_()
        return torch.equal(now, then)


def bits(x: Tensor) -> Tensor:
    """The bytes of a tensor as integers, so that NaN equals itself."""
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32)


def place(
    values: Tensor | None, shape: Sequence[int], dtype: torch.dtype, memory: Memory, device: Any
) -> Placed:
    """`values` laid out as `memory` says, NaN all round; None: an output (NaN between sentinels)."""
    *batch, rows, cols = shape
    extents = {"r": rows, "c": cols, **{f"b{i}": e for i, e in enumerate(batch)}}
    inner = ["r", "c"] if memory.order == "row" else ["c", "r"]
    outer = [f"b{i}" for i in range(len(batch))]
    order = [inner[0], *outer, inner[1]] if memory.interleave else [*outer, *inner]
    strides: dict[str, int] = {}
    total = 1
    for position, name in enumerate(reversed(order)):
        if name in memory.expand or (name[0] == "b" and "b" in memory.expand):
            strides[name] = 0
            continue
        strides[name] = total * (memory.step if position == 0 else 1)
        total *= max(extents[name], 1) * (memory.step if position == 0 else 1)
        total += memory.pad if position == 0 else 0
    fill = float("nan") if values is not None else SENTINEL
    storage = torch.full((GUARD + memory.offset + total + GUARD,), fill, dtype=dtype, device=device)
    step = [strides[name] for name in (*outer, "r", "c")]
    view = storage.as_strided(tuple(shape), step, GUARD + memory.offset)
    if values is None:
        view.fill_(float("nan"))
    else:
        target, source = view, values.to(device=device, dtype=dtype).expand(shape)
        for i, s in enumerate(step):
            if s == 0 and shape[i] > 1:
                target, source = target.narrow(i, 0, 1), source.narrow(i, 0, 1)
        target.copy_(source)
    return Placed(view, storage, bits(storage).clone())


@dataclass
class Operands:
    """A case made real on a device, with the result it must give and how far from it is allowed."""

    case: Case
    a: Placed
    b: Placed
    c: Placed | None
    bias: Placed | None
    reference: Tensor = field(default_factory=lambda: torch.empty(0))
    tolerance: Tensor | None = None

    def inputs(self) -> list[Placed]:
        """All that must not change."""
        return [x for x in (self.a, self.b, self.c, self.bias) if x is not None]


#: Products above this many multiplications are checked in FP64 on the GPU itself.
ON_DEVICE_ABOVE = 1 << 28


def operands(case: Case, device: Any, reference: bool = True) -> Operands:
    """Make a case's operands; with `reference` also its result."""
    exact = case.criterion == "exact"
    seed = zlib.crc32(case.id.encode())
    density = 1.0
    while True:
        generator = torch.Generator().manual_seed(seed)

        def values(
            shape: Sequence[int], generator: torch.Generator = generator, density: float = density
        ) -> Tensor:
            if not exact:
                return torch.randn(tuple(shape), generator=generator)
            x = torch.randint(-2, 3, tuple(shape), generator=generator).float()
            if density < 1:
                x *= torch.rand(tuple(shape), generator=generator) < density
            return x

        dtype = torch_dtype(case.dtype)

        def put(shape: Sequence[int], memory: Memory, dtype: torch.dtype, values: Any = values) -> Placed:
            return place(values(shape), shape, dtype, memory, device)

        made = Operands(
            case,
            put((*case.batch_a, case.m, case.k), case.a, dtype),
            put((*case.batch_b, case.k, case.n), case.b, dtype),
            None if case.c is None else put(case.shape, case.c, torch_dtype(case.c_dtype or case.dtype)),
            None,
        )
        if case.bias:
            shape = {"row": (1, case.n), "col": (case.m, 1), "full": (case.m, case.n)}[case.bias]
            made.bias = put(shape, ROW, torch_dtype(case.bias_dtype or case.dtype))
            if case.bias == "row":
                made.bias.view = made.bias.view[0]
        if not reference:
            return made
        made.reference, made.tolerance = _referee(made)
        out = torch_dtype(case.result_dtype)
        if not exact or torch.equal(made.reference.to(out).double(), made.reference):
            return made
        density /= 4  # the true result must fit the output's dtype
        if density < 1e-3:
            raise AssertionError(f"{case.id}: no exact data found")


def _referee(x: Operands) -> tuple[Tensor, Tensor | None]:
    """The result in FP64, and per element how far a right result may be from it (None: must be equal)."""
    case = x.case
    where = x.a.view.device if case.m * case.n * case.k > ON_DEVICE_ABOVE else torch.device("cpu")
    a, b = x.a.view.to(where).double(), x.b.view.to(where).double()
    result = case.alpha * _chunked(a, b) if case.k else torch.zeros(case.shape, dtype=torch.float64)
    terms = torch.zeros((), dtype=torch.float64, device=where)
    if x.c is not None and case.beta:
        c = case.beta * x.c.view.to(where).double()
        result, terms = result + c, terms + c.abs()
    if x.bias is not None:
        bias = x.bias.view.to(where).double()
        result, terms = result + bias, terms + bias.abs()
    functional = torch.nn.functional
    activations: dict[str, Callable[[Tensor], Tensor]] = {
        "none": lambda t: t,
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda t: functional.gelu(t, approximate="tanh"),
        "silu": functional.silu,
    }
    result = activations[case.activation](result)
    if case.criterion == "exact":
        return result.cpu(), None
    half_ulp = BY_NAME[case.result_dtype].half_ulp
    norms = a.square().sum(-1).sqrt()[..., :, None] * b.square().sum(-2).sqrt()[..., None, :]
    accumulation = 2.0**-9 if case.precision == "tf32" else 2.0**-17
    tolerance = 1.5 * half_ulp * result.abs() + accumulation * abs(case.alpha) * norms + 2.0**-22 * terms
    if case.activation in ("gelu", "gelu_tanh", "silu"):
        tolerance = 1.13 * tolerance + 1e-5  # their steepest slope is 1.13
    return result.cpu(), tolerance.cpu()


def _chunked(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in FP64, in strips of rows that keep the temporaries small."""
    if a.dim() > 2 or b.dim() > 2 or a.shape[-2] <= 4096:
        return torch.matmul(a, b)
    return torch.cat([a[i : i + 4096] @ b for i in range(0, a.shape[0], 4096)])


# --- running ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CaseResult:
    """How a case went.

    Attributes:
        case, plan: what ran ("" for the plan of choice). passed: no error.
        violation: largest |out - ref| over its tolerance (t16: at most 1), or wrong elements (exact: 0).
        error: what is wrong, or "". kernel: the kernel's name where known. seconds: of the whole case.
    """

    case: Case
    plan: str
    passed: bool
    violation: float
    error: str
    kernel: str = ""
    seconds: float = 0.0


def run_case(
    case: Case, device: Any = "cpu", plan: GemmPlan | None = None, made: Operands | None = None
) -> CaseResult:
    """Run a case through the public operation, or under a given plan. Errors become results.

    Args:
        device: a torch device. plan: None for the planner's choice. made: operands made for this device.
    """
    started = time.perf_counter()
    name = "" if plan is None else plan.explain()
    try:
        made = made if made is not None else operands(case, device)
        violation, error = _run(case, made, torch.device(device), plan)
    except Exception as e:  # a case list goes on
        violation, error = float("inf"), f"{type(e).__name__}: {e}"
    return CaseResult(case, name, not error, violation, error, seconds=time.perf_counter() - started)


def run_candidates(case: Case, device: Any = "cpu", every: bool = False) -> list[CaseResult]:
    """Run a case as a user would, then under the other plans of `plans`."""
    try:
        made = operands(case, device)
        others = plans(case, launch.device_of(torch.device(device)), every)[1:]
    except Exception as e:
        return [CaseResult(case, "", False, float("inf"), f"{type(e).__name__}: {e}")]
    return [run_case(case, device, plan, made) for plan in (None, *others)]


def plans(case: Case, device: Device, every: bool = False) -> Sequence[GemmPlan]:
    """The plans a case is to run under on a device (which need not be there), the plan of choice first.

    `every`: all candidates, whatever the case's group.
    """
    if case.k == 0 or 0 in case.shape:
        return ()
    from portagemm import plan as planner

    described, profile = problem(case), launch.selection_of(device).profile
    chosen = planner.plan(described, profile, device)
    taken = planner.name_of(chosen)
    others = [p for p in planner.candidates(described, profile, device) if planner.name_of(p) != taken]
    if others and not every and case.group not in EVERY_PLAN:
        others = [others[zlib.crc32(case.id.encode()) % len(others)]]
    return (chosen, *others)


def kernels(
    device: Device, quick: bool = False, every: bool = False
) -> Sequence[KernelConfig | ReduceConfig]:
    """Every kernel the case list needs on a device, each once: what a pack for a device run holds."""
    found: dict[KernelConfig | ReduceConfig, None] = {}
    for case in cases(device.backend, quick):
        for plan in plans(case, device, every):
            found |= dict.fromkeys(plan.kernels)
    return tuple(found)


def problem(case: Case) -> GemmProblem:
    """The canonical problem of a case, without running it."""
    with _precision(case):
        made = operands(case, "cpu", reference=False)
        out = _output(case, torch.device("cpu"))
        return _dispatch.problem_of(_request(made, None if case.out is None else out.view))


class _precision:
    """torch's fp32 matmul precision as the case wants it, put back afterwards."""

    def __init__(self, case: Case) -> None:
        self.wanted = "high" if case.precision == "tf32" else "highest"

    def __enter__(self) -> None:
        self.before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.wanted)

    def __exit__(self, *exc: object) -> None:
        torch.set_float32_matmul_precision(self.before)


def _output(case: Case, device: torch.device) -> Placed:
    return place(None, case.shape, torch_dtype(case.result_dtype), case.out or ROW, device)


def _arguments(made: Operands, out: Tensor | None) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The operation's module and arguments: the plainest of the three that can express the case."""
    case = made.case
    keywords: dict[str, Any] = {"fallback": "error", "out": out}
    if out is None:
        keywords["out_dtype"] = torch_dtype(case.result_dtype)
    a, b = made.a.view, made.b.view
    plain = made.c is None and case.alpha == 1
    if plain and not case.bias and case.activation == "none":
        return matmul, (a, b), keywords
    bias = None if made.bias is None else made.bias.view
    if plain and not case.batch_b and case.bias in ("", "row"):
        return linear, (a, b.mT, bias, case.activation), keywords
    c = None if made.c is None else made.c.view
    keywords |= {"alpha": case.alpha, "beta": case.beta, "bias": bias, "activation": case.activation}
    return gemm, (a, b, c), keywords


def _request(made: Operands, out: Tensor | None) -> _dispatch.Request:
    module, args, keywords = _arguments(made, out)
    request: _dispatch.Request = module.request(*args, **keywords)
    return request


def _run(case: Case, made: Operands, device: torch.device, plan: GemmPlan | None) -> tuple[float, str]:
    prepared: launch.PreparedGemm | None = None
    results: list[Tensor] = []
    with torch.no_grad(), _precision(case):
        for _ in range(2):
            out = _output(case, device)
            if plan is None:
                module, args, keywords = _arguments(made, None if case.out is None else out.view)
                operation = getattr(module, module.__name__.rpartition(".")[2])
                if case.out is None:  # let the allocator hand out memory that holds NaN
                    torch.full(case.shape, float("nan"), dtype=out.view.dtype, device=device)
                result = operation(*args, **keywords)
            else:
                if prepared is None:
                    request = _request(made, out.view)
                    prepared = launch.launcher(_dispatch.problem_of(request), launch.device_of(device), plan)
                prepared(
                    made.a.view.data_ptr(),
                    made.b.view.data_ptr(),
                    0 if made.c is None else made.c.view.data_ptr(),
                    out.view.data_ptr(),
                    0 if made.bias is None else made.bias.view.data_ptr(),
                    case.alpha,
                    case.beta,
                )
                result = out.view
            if device.type != "cpu":
                torch.cuda.synchronize(device)
            if tuple(result.shape) != case.shape or result.dtype != torch_dtype(case.result_dtype):
                return float("inf"), f"result is {tuple(result.shape)} {result.dtype}"
            if not out.guards_unchanged():
                return float("inf"), "wrote outside the output"
            results.append(result)
    for x in made.inputs():
        if not x.unchanged():
            return float("inf"), "an input was written"
    first = results[0].cpu()
    violation, error = judge(first, made.reference, made.tolerance)
    if not error and not torch.equal(bits(first.contiguous()), bits(results[1].cpu().contiguous())):
        return violation, "two runs gave different bytes"
    return violation, error


def judge(out: Tensor, reference: Tensor, tolerance: Tensor | None) -> tuple[float, str]:
    """(violation, error) of a result: see CaseResult. No tolerance: every element must be the reference's."""
    if out.numel() == 0:
        return 0.0, ""
    if tolerance is None:
        wrong = out.double() != reference
        count = int(wrong.sum())
        return float(
            count
        ), f"{count} of {out.numel()} elements wrong{_first(out, reference, wrong)}" if count else ""
    difference = (out.double() - reference).abs()
    ratio = torch.where(difference == 0, 0.0, difference / tolerance)
    wrong = ~(ratio <= 1)  # NaN is wrong
    worst = float("nan") if bool(ratio.isnan().any()) else float(ratio.max())
    if not bool(wrong.any()):
        return worst, ""
    count = int(wrong.sum())
    return (
        worst,
        f"{count} of {out.numel()} elements beyond T16, worst by {worst:.3g}{_first(out, reference, wrong)}",
    )


def _first(out: Tensor, reference: Tensor, wrong: Tensor) -> str:
    at = tuple(wrong.nonzero()[0].tolist())
    return f"; first at {at}: {float(out[at])} where {float(reference[at])} is right"


def summary(results: Iterable[CaseResult]) -> dict[str, Any]:
    """Counts, worst values and all failures, ready for JSON."""
    results = list(results)
    t16 = [r.violation for r in results if r.passed and r.case.criterion == "t16"]
    failed = [r for r in results if not r.passed]
    return {
        "cases": len({r.case.id for r in results}),
        "runs": len(results),
        "passed": len(results) - len(failed),
        "failed": len(failed),
        "by_group": dict(sorted(Counter(r.case.group for r in results).items())),
        "worst_t16": max(t16, default=0.0),
        "seconds": round(sum(r.seconds for r in results), 3),
        "failures": [{"case": r.case.id, "plan": r.plan, "error": r.error} for r in failed[:200]],
    }


def variants(case: Case, **changes: Any) -> Case:
    """A case like another."""
    return replace(case, **changes)
