"""GemmProblem: one batched GEMM as the planner and the kernels see it. No tensors, no pointers.

The kernels compute, for every batch index and every (m, n),

    D[m, n] = act(alpha * sum_k A[m, k] * B[n, k] + beta * C[m, n] + bias[m, n])

with A addressed as (m, k), B as (n, k) and C, D, bias as (m, n), each by two strides and up to four
batch strides, all in elements. A stride of 0 repeats an operand. So NN, NT, TN, TT, broadcast batches,
row or column bias and expanded views are all the same problem with other strides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from portagemm.hal.dtypes import DType
from portagemm.hal.errors import ShapeError, UnsupportedError

#: Batch dimensions a kernel can address once adjacent ones are merged.
MAX_BATCH_DIMS = 4

#: Largest extent of one dimension: kernels count tiles and rows in 32 bits (addresses in 64), up to one step of a
#: block's main loop past the end.
MAX_EXTENT = 2**31 - 1 - 2048

#: Names of the activations, as `linear` takes them. "gelu" is the erf form, "gelu_tanh" the tanh one.
ACTIVATIONS: tuple[str, ...] = ("none", "relu", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True)
class Operand:
    """One matrix operand.

    Attributes:
        dtype: element type in memory.
        strides: elements between neighbours along (m, k) for A, (n, k) for B, (m, n) for C, D, bias.
            The stride of an extent-1 dimension is never read; canonical problems set it so that it
            does not hinder vector access.
        batch_strides: elements, one for each entry of GemmProblem.batch (0: broadcast).
        alignment: largest power of two up to 16 that divides the operand's address, in bytes.
    """

    dtype: DType
    strides: tuple[int, int]
    batch_strides: tuple[int, ...] = ()
    alignment: int = 16


def major_of(operand: Operand) -> str:
    """Which dimension is contiguous: "k", "mn" or, where neither is, "strided"."""
    if operand.strides[1] == 1:
        return "k"
    return "mn" if operand.strides[0] == 1 else "strided"


def access_bytes(operand: Operand, contiguous: int, limit: int = 16) -> int:
    """Widest aligned access along dimension `contiguous`: address and all other strides are multiples of it."""
    size = operand.dtype.bytes
    others = (operand.strides[1 - contiguous], *operand.batch_strides)
    width = min(operand.alignment, limit)
    while width > size and any(stride * size % width for stride in others):
        width //= 2
    return max(width, size)


@dataclass(frozen=True)
class GemmProblem:
    """Shapes, layouts and epilogue of one GEMM.

    Attributes:
        m, n, k: extents. batch: merged batch extents, at most MAX_BATCH_DIMS.
        a, b, d: operands; c, bias: operands of the epilogue, or None.
        activation: one of ACTIVATIONS.
        precision: for fp32 operands "ieee" (FP32 FMA) or "tf32"; "ieee" for 16-bit operands.
        swapped: A and B were exchanged so that D is addressed row by row (a column-major `out`).
        constant_b: the caller says that no kernel in flight writes B, so that it may be read early.
        batch_invariant: the plan must not depend on m, nor on where rows of A lie.
    """

    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    d: Operand
    batch: tuple[int, ...] = ()
    c: Operand | None = None
    bias: Operand | None = None
    activation: str = "none"
    precision: str = "ieee"
    swapped: bool = field(default=False)
    constant_b: bool = False
    batch_invariant: bool = False


@dataclass(frozen=True)
class View:
    """A tensor as this module sees it: where it lies, not what it holds. Shapes and strides are torch's.

    Attributes:
        dtype: element type. shape, strides: in elements. address: of the first element, in bytes.
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int = 0

    def transposed(self) -> View:
        """The view with its last two dimensions exchanged."""
        return replace(
            self,
            shape=(*self.shape[:-2], self.shape[-1], self.shape[-2]),
            strides=(*self.strides[:-2], self.strides[-1], self.strides[-2]),
        )


def alignment_of(address: int) -> int:
    """The largest power of two up to 16 that divides `address`, in bytes."""
    return min(address & -address, 16) or 16


def as_matrices(a: View, b: View) -> tuple[View, View]:
    """torch.matmul's rule for 1-D operands: `a` becomes one row, `b` one column. Others pass unchanged."""
    if len(a.shape) == 1:
        a = replace(a, shape=(1, a.shape[0]), strides=(0, a.strides[0]))
    if len(b.shape) == 1:
        b = replace(b, shape=(b.shape[0], 1), strides=(b.strides[0], 0))
    return a, b


def result_shape(
    a: tuple[int, ...], b: tuple[int, ...], names: tuple[str, str] = ("a", "b")
) -> tuple[int, ...]:
    """The shape of torch.matmul(a, b). Raises ShapeError naming the operand that does not fit."""
    for name, shape in zip(names, (a, b), strict=True):
        if not shape:
            raise ShapeError(name, "a tensor of 0 dimensions", "at least 1 dimension")
    k, rows_of_b = a[-1], b[0] if len(b) == 1 else b[-2]
    if k != rows_of_b:
        which = "its only dimension" if len(b) == 1 else "its second-to-last dimension"
        raise ShapeError(
            names[1], f"shape {b}", f"{which} equal to the last of {names[0]}, {k} ({names[0]} has shape {a})"
        )
    try:
        batch = broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        allowed = f"one that broadcasts with {a[:-2]} of {names[0]}"
        raise ShapeError(names[1], f"batch shape {b[:-2]}", allowed) from None
    return batch + a[-2:-1] + (b[-1:] if len(b) > 1 else ())


def broadcast_shapes(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape of two broadcast shapes. Raises ValueError when there is none."""
    rank = max(len(x), len(y))
    x, y = (1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y
    for p, q in zip(x, y, strict=True):
        if p != q and p != 1 and q != 1:
            raise ValueError(f"{x} and {y} do not broadcast")
    return tuple(q if p == 1 else p for p, q in zip(x, y, strict=True))


def build(
    a: View,
    b: View,
    d: View,
    c: View | None = None,
    bias: View | None = None,
    *,
    activation: str = "none",
    precision: str = "ieee",
    constant_b: bool = False,
    batch_invariant: bool = False,
) -> GemmProblem:
    """The canonical problem of D = act(alpha * A @ B + beta * C + bias).

    `a` is (..., m, k), `b` (..., k, n), `d` (..., m, n); `c` and `bias` broadcast to d. Nothing is copied:
    what torch calls a transpose, a slice or an expand becomes strides. A batch-invariant problem never has A
    and B exchanged; in one that has, the caller's `b` is not B, so `constant_b` says nothing there.

    Raises UnsupportedError where no kernel can address the operands (the vendor's library can).
    """
    m, n, k = d.shape[-2], d.shape[-1], a.shape[-1]
    extents = d.shape[:-2]
    b = b.transposed()
    views = [a, b, d, c, bias]
    matrix = [
        None if v is None else list(v.strides[-2:]) if i < 3 else list(_broadcast_strides(v, d.shape)[-2:])
        for i, v in enumerate(views)
    ]
    batch = [None if v is None else list(_broadcast_strides(v, (*extents, 1, 1))[:-2]) for v in views]
    extents, batch = _merge_batch(extents, batch)
    m, n, extents = _fold_batch(m, n, extents, matrix, batch)
    if len(extents) > MAX_BATCH_DIMS:
        raise UnsupportedError(
            "matmul",
            f"the batch shape {d.shape[:-2]} keeps {len(extents)} dimensions that cannot be merged",
            f"at most {MAX_BATCH_DIMS}",
        )
    for name, extent in (("m", m), ("n", n), ("k", k), *(("batch", e) for e in extents)):
        if extent > MAX_EXTENT:
            raise UnsupportedError("matmul", f"{name} is {extent}", f"extents up to {MAX_EXTENT}")

    ma, mb, md, mc, mbias = matrix
    assert ma is not None and mb is not None and md is not None
    _canonical(ma, m, k, batch_invariant)
    _canonical(mb, n, k)
    _canonical(md, m, n, batch_invariant)
    for strides in (mc, mbias):
        if strides is not None:
            _canonical_epilogue(strides, m, n)
    swapped = md[1] != 1 and md[0] == 1 and not batch_invariant
    if swapped:
        m, n = n, m
        views[0], views[1] = views[1], views[0]
        matrix[0], matrix[1] = matrix[1], matrix[0]
        batch[0], batch[1] = batch[1], batch[0]
        for strides in (md, mc, mbias):
            if strides is not None:
                strides.reverse()

    def operand(i: int) -> Operand | None:
        view, strides, steps = views[i], matrix[i], batch[i]
        if view is None or strides is None or steps is None:
            return None
        return Operand(view.dtype, (strides[0], strides[1]), tuple(steps), alignment_of(view.address))

    first, second, result = operand(0), operand(1), operand(2)
    assert first is not None and second is not None and result is not None
    return GemmProblem(
        m=m,
        n=n,
        k=k,
        a=first,
        b=second,
        d=result,
        batch=extents,
        c=operand(3),
        bias=operand(4),
        activation=activation,
        precision=precision,
        swapped=swapped,
        constant_b=constant_b and not swapped,
        batch_invariant=batch_invariant,
    )


def _broadcast_strides(view: View, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The view's strides seen through `shape`: 0 where it has no such dimension or one of extent 1."""
    missing = len(shape) - len(view.shape)
    own = tuple(0 if e == 1 else s for e, s in zip(view.shape, view.strides, strict=True))
    return (0,) * missing + own


def _merge_batch(
    extents: tuple[int, ...], batch: list[list[int] | None]
) -> tuple[tuple[int, ...], list[list[int] | None]]:
    """Drop extent-1 batch dimensions and merge neighbours that every operand walks with one stride."""
    present = [s for s in batch if s is not None]
    merged: list[int] = []
    kept: list[list[int]] = [[] for _ in present]
    for i, extent in enumerate(extents):
        if extent == 1:
            continue
        if merged and all(k[-1] == s[i] * extent for k, s in zip(kept, present, strict=True)):
            merged[-1] *= extent
            for k, s in zip(kept, present, strict=True):
                k[-1] = s[i]
            continue
        merged.append(extent)
        for k, s in zip(kept, present, strict=True):
            k.append(s[i])
    steps = iter(kept)
    return tuple(merged), [None if s is None else next(steps) for s in batch]


def _fold_batch(
    m: int, n: int, extents: tuple[int, ...], matrix: list[list[int] | None], batch: list[list[int] | None]
) -> tuple[int, int, tuple[int, ...]]:
    """Turn the innermost batch dimension into rows (or columns) where one operand does not depend on it.

    A (b, s, k) activation times one (k, n) weight is a GEMM of b * s rows, not b small ones.
    """
    while extents:
        extent = extents[-1]
        if extent * m <= MAX_EXTENT and _folds(m, 0, _step(batch[1]), matrix, batch, rows=(0, 2, 3, 4)):
            m = _fold(m, 0, extent, matrix, batch, rows=(0, 2, 3, 4))
        elif extent * n <= MAX_EXTENT and _folds(n, 1, _step(batch[0]), matrix, batch, rows=(1, 2, 3, 4)):
            n = _fold(n, 1, extent, matrix, batch, rows=(1, 2, 3, 4))
        else:
            break
        extents = extents[:-1]
    return m, n, extents


def _step(steps: list[int] | None) -> int:
    assert steps is not None
    return steps[-1]


def _axis(i: int, axis: int) -> int:
    """Where operand `i` keeps the stride along m (axis 0) or n (axis 1): B is (n, k), the rest (m, n)."""
    return 0 if i < 2 else axis


def _folds(
    extent: int,
    axis: int,
    other: int,
    matrix: list[list[int] | None],
    batch: list[list[int] | None],
    rows: tuple[int, ...],
) -> bool:
    if other != 0:
        return False
    for i in rows:
        strides, steps = matrix[i], batch[i]
        if strides is None or steps is None:
            continue
        if extent != 1 and steps[-1] != extent * strides[_axis(i, axis)]:
            return False
    return True


def _fold(
    extent: int,
    axis: int,
    folded: int,
    matrix: list[list[int] | None],
    batch: list[list[int] | None],
    rows: tuple[int, ...],
) -> int:
    for i, steps in enumerate(batch):
        strides = matrix[i]
        if strides is None or steps is None:
            continue
        step = steps.pop()
        if i in rows and extent == 1:
            strides[_axis(i, axis)] = step
    return extent * folded


def _canonical(strides: list[int], rows: int, cols: int, plain: bool = False) -> None:
    """Give a dimension of extent 1 the stride that helps most: it is never used to address anything.

    `plain`: the stride of a contiguous matrix instead, so that one row looks like one of many.
    """
    if plain:
        strides[1] = 1 if cols == 1 else strides[1]
        strides[0] = cols if rows == 1 else strides[0]
        return
    if cols == 1:
        strides[1] = _padded(rows) if strides[0] == 1 and rows > 1 else 1
    if rows == 1:
        strides[0] = _padded(cols)


def _canonical_epilogue(strides: list[int], m: int, n: int) -> None:
    """C and bias: a row of one problem and of many must look alike, so an extent of 1 repeats."""
    if n == 1:
        strides[1] = 1 if strides[0] == 0 or m == 1 else 0
    if m == 1:
        strides[0] = 0


def _padded(extent: int) -> int:
    """A leading dimension that keeps every row as aligned as the first, for all element sizes."""
    return -(-extent // 16) * 16
