"""batch_invariant=True on a GPU: the bytes of a row for M = 1 to 1024, wherever it lies."""

from __future__ import annotations

import pytest
import torch

import portagemm

#: (dtype, N, K): the fast copies, rows on 8-byte boundaries only, odd extents, one column, IEEE fp32.
CASES = [
    (torch.bfloat16, 512, 1024),
    (torch.float16, 264, 4096),
    (torch.bfloat16, 100, 100),
    (torch.bfloat16, 33, 31),
    (torch.float16, 1, 520),
    (torch.float32, 72, 300),
]


@pytest.mark.parametrize("dtype, n, k", CASES)
def test_bytes_of_a_row(gpu: str, dtype: torch.dtype, n: int, k: int) -> None:
    torch.manual_seed(n + k)
    x, w = torch.randn(1024, k, device=gpu, dtype=dtype), torch.randn(n, k, device=gpu, dtype=dtype)
    bias = torch.randn(n, device=gpu, dtype=dtype)

    def call(rows: torch.Tensor) -> torch.Tensor:
        return portagemm.linear(rows, w, bias, "gelu", batch_invariant=True, fallback="error")

    whole = call(x)
    step = 1 if (n, k) == (512, 1024) else 29
    different = [
        m
        for m in (*range(1, 66), *range(66, 1025, step))
        if not (torch.equal(call(x[:m]), whole[:m]) and torch.equal(call(x[1024 - m :]), whole[1024 - m :]))
    ]
    assert not different
    assert torch.equal(call(x.view(8, 128, k)), whole.view(8, 128, n))
    assert torch.equal(call(x.view(8, 128, k)[:, 3:90]), whole.view(8, 128, n)[:, 3:90])
    assert torch.equal(call(x[5]), whole[5])
    assert torch.equal(call(x.flip(0)), whole.flip(0))
