"""The canonical form: same result whatever the strides, and no stride that hinders vector access."""

from __future__ import annotations

import pytest
import torch

from portagemm.errors import ShapeError, UnsupportedError
from portagemm.hal.dtypes import FP32
from portagemm.problem import (
    MAX_BATCH_DIMS,
    GemmProblem,
    View,
    alignment_of,
    as_matrices,
    build,
    result_shape,
)

pytestmark = pytest.mark.quick


def view(x: torch.Tensor) -> View:
    return View(FP32, tuple(x.shape), x.stride(), x.data_ptr())


def problem(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor | None = None) -> GemmProblem:
    d = torch.empty(a.shape[:-1] + b.shape[-1:]) if d is None else d
    return build(view(a), view(b), view(d))


def test_the_four_layouts() -> None:
    m, n, k = 3, 5, 7
    for a in (torch.ones(m, k), torch.ones(k, m).t()):
        for b in (torch.ones(k, n), torch.ones(n, k).t()):
            p = problem(a, b)
            assert (p.m, p.n, p.k, p.batch, p.swapped) == (m, n, k, (), False)
            assert p.a.strides == a.stride() and p.b.strides == b.t().stride() and p.d.strides == (n, 1)


def test_column_major_out_swaps_operands() -> None:
    a, b = torch.ones(3, 7), torch.ones(7, 5)
    p = build(view(a), view(b), view(torch.empty(5, 3).t()), view(torch.empty(3, 5)), view(torch.empty(5)))
    assert p.swapped and (p.m, p.n) == (5, 3)
    assert p.a.strides == (1, 5) and p.b.strides == (7, 1) and p.d.strides == (3, 1)
    assert p.c is not None and p.c.strides == (1, 5)
    assert p.bias is not None and p.bias.strides == (1, 0)


def test_shared_weight_folds_the_batch_into_rows() -> None:
    p = problem(torch.ones(4, 6, 7), torch.ones(7, 5), torch.empty(4, 6, 5))
    assert (p.m, p.batch) == (24, ())
    p = problem(torch.ones(4, 1, 7), torch.ones(7, 5), torch.empty(4, 1, 5))
    assert (p.m, p.batch, p.a.strides) == (4, (), (7, 1))
    padded = torch.ones(4, 8, 7)[:, :6]
    p = problem(padded, torch.ones(7, 5), torch.empty(4, 6, 5))
    assert (p.m, p.batch, p.a.batch_strides, p.b.batch_strides) == (6, (4,), (56,), (0,))


def test_adjacent_batches_merge() -> None:
    a, b = torch.ones(2, 3, 1, 4, 6, 7), torch.ones(2, 3, 1, 4, 7, 5)
    p = problem(a, b, torch.empty(2, 3, 1, 4, 6, 5))
    assert p.batch == (24,) and p.a.batch_strides == (42,) and p.b.batch_strides == (35,)
    p = problem(a, b[:, :1], torch.empty(2, 3, 1, 4, 6, 5))
    assert p.batch == (2, 3, 4) and p.b.batch_strides == (420, 0, 35)


def test_too_many_batch_dimensions() -> None:
    shape = (2,) * (MAX_BATCH_DIMS + 1)
    a = torch.ones(*(e * 2 for e in shape), 3, 4)[tuple(slice(0, e) for e in shape)]
    with pytest.raises(UnsupportedError, match="at most 4"):
        problem(a, torch.ones(*shape, 4, 3), torch.empty(*shape, 3, 3))


@pytest.mark.parametrize("strides", [(1, 1), (7, 1), (0, 1), (1, 12345)])
def test_the_stride_of_an_extent_of_one_is_never_kept(strides: tuple[int, int]) -> None:
    row = torch.ones(20000).as_strided((1, 9) if strides[1] == 1 else (9, 1), strides)
    p = problem(row, torch.ones(row.shape[1], 5), torch.empty(row.shape[0], 5))
    if row.shape[0] == 1:
        assert p.a.strides == (16, 1)
    else:
        assert p.a.strides == (1, 16)


def test_one_row_looks_like_many() -> None:
    """A sweep over M must not change what a kernel is compiled for."""
    for m in (1, 2, 17):
        p = build(
            view(torch.ones(m, 32)),
            view(torch.ones(8, 32).t()),
            view(torch.empty(m, 8)),
            None,
            view(torch.ones(8)),
        )
        assert p.a.strides[1] == p.b.strides[1] == p.d.strides[1] == 1 and not p.swapped
        assert p.a.strides[0] % 8 == 0 and p.bias is not None and p.bias.strides == (0, 1)


def test_alignment() -> None:
    assert [alignment_of(x) for x in (0, 16, 32, 8, 24, 4, 2, 1, 3)] == [16, 16, 16, 8, 8, 4, 2, 1, 1]


def test_result_shapes_are_torchs() -> None:
    for a, b in [((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 1, 2, 3), (4, 3, 7)), ((3,), (2, 3, 4))]:
        assert result_shape(a, b) == tuple(torch.matmul(torch.ones(a), torch.ones(b)).shape)
    for a, b in [((), (3,)), ((2, 3), (4, 5)), ((2, 3), (2,)), ((2, 2, 3), (3, 3, 4))]:
        with pytest.raises(ShapeError):
            result_shape(a, b)


def test_vectors_become_matrices() -> None:
    a, b = as_matrices(view(torch.ones(3)), view(torch.ones(3)))
    assert a.shape == (1, 3) and b.shape == (3, 1)
