"""A two-layer perceptron on whatever this machine has: bias and activation run inside the kernels.

python examples/mlp.py
"""

from __future__ import annotations

import torch

import portagemm as pg


def mlp(x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor]) -> torch.Tensor:
    """x (..., 512) -> (..., 256): a wide layer with GELU, and one back."""
    wide = pg.linear(x, weights[0], biases[0], activation="gelu")
    return pg.linear(wide, weights[1], biases[1])


def main() -> None:
    """Run it once, compare with torch, and say how the first layer was done."""
    gpu = torch.cuda.is_available()
    options = {"device": "cuda" if gpu else "cpu", "dtype": torch.float16 if gpu else torch.float32}
    x = torch.randn(8, 32, 512, **options)
    weights = [torch.randn(2048, 512, **options) / 16, torch.randn(256, 2048, **options) / 32]
    biases = [torch.randn(2048, **options), torch.randn(256, **options)]

    y = mlp(x, weights, biases)

    inner = torch.nn.functional.gelu(torch.nn.functional.linear(x, weights[0], biases[0]))
    reference = torch.nn.functional.linear(inner, weights[1], biases[1])
    print(f"{tuple(x.shape)} -> {tuple(y.shape)}, differs from torch by {(y - reference).abs().max():.1e}")
    print(pg.explain("linear", x, weights[0], biases[0], activation="gelu"))


if __name__ == "__main__":
    main()
