"""batch_invariant=True on real kernels: a row's bytes depend on neither M nor its position."""

from __future__ import annotations

import pytest
import torch

import portagemm

pytestmark = [pytest.mark.quick, pytest.mark.usefixtures("cpu")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n, k", [(72, 300), (33, 31), (1, 513)])
def test_bytes_of_a_row(dtype: torch.dtype, n: int, k: int) -> None:
    x, w, bias = torch.randn(64, k, dtype=dtype), torch.randn(n, k, dtype=dtype), torch.randn(n)

    def call(rows: torch.Tensor) -> torch.Tensor:
        return portagemm.linear(rows, w, bias, "gelu", batch_invariant=True, fallback="error")

    whole = call(x)
    torch.testing.assert_close(
        whole.double(), torch.nn.functional.gelu(x.double() @ w.double().T + bias), rtol=1.6e-2, atol=1e-3
    )
    for m in range(1, 65):
        assert torch.equal(call(x[:m]), whole[:m]), m
        assert torch.equal(call(x[64 - m :]), whole[64 - m :]), m
    assert torch.equal(call(x.view(4, 16, k)), whole.view(4, 16, n))
    assert torch.equal(call(x.view(4, 16, k)[:, 3:9]), whole.view(4, 16, n)[:, 3:9])
    assert torch.equal(call(x[5]), whole[5])
    assert torch.equal(call(x.flip(0)), whole.flip(0))
    out = torch.empty(n, 64, dtype=dtype).T
    assert torch.equal(
        portagemm.linear(x, w, bias, "gelu", out=out, batch_invariant=True, fallback="error"), whole
    )
