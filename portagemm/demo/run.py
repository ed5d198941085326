"""What the demo measures: the model, or one QKV projection, on portagemm and on torch in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import portagemm
from portagemm.demo import minilm

if TYPE_CHECKING:
    import torch

#: Largest difference of two unit vectors' components that rounding explains, by dtype.
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def own_linear(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None
) -> torch.Tensor:
    """The layer on portagemm, bias and activation in the kernel."""
    return portagemm.linear(x, w, bias, activation=activation)


def torch_linear(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None
) -> torch.Tensor:
    """The same layer on torch."""
    from torch.nn.functional import gelu, linear

    y = linear(x, w, bias)
    return gelu(y) if activation == "gelu" else y


@dataclass(frozen=True)
class Timing:
    """Medians in milliseconds, and the first call's time, compilation included."""

    own_ms: float
    torch_ms: float
    first_ms: float


@dataclass(frozen=True)
class Embedded:
    """Result of `embed`.

    Attributes:
        vectors: unit vectors (sentences, hidden), fp32, on the CPU. tokens: of the batch, padding included.
        difference: largest absolute difference to torch in the same dtype.
        own_error, torch_error: largest absolute difference of each to torch in fp32 on the CPU.
        layers: linear layers of a pass.
        linears: name, x, w, bias and activation of each different layer shape, for `explain`.
    """

    vectors: torch.Tensor
    tokens: int
    difference: float
    own_error: float
    torch_error: float
    layers: int
    timing: Timing
    linears: list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor, str | None]]


def _in_turns(
    own: Callable[[], object], other: Callable[[], object], device: str, repeats: int
) -> tuple[float, float]:
    """Median milliseconds of two functions, called in turns so that a change of clocks meets both."""
    import torch

    def once(function: Callable[[], object]) -> float:
        if device != "cpu":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        function()
        if device != "cpu":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) * 1e3

    for function in (own, other):
        function()
    pairs = [(once(own), once(other)) for _ in range(repeats)]
    return median(a for a, _ in pairs), median(b for _, b in pairs)


def _first(function: Callable[[], torch.Tensor], device: str) -> tuple[torch.Tensor, float]:
    """The result of the first call, and its milliseconds."""
    import torch

    start = time.perf_counter()
    result = function()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return result, (time.perf_counter() - start) * 1e3


def embed(folder: Path, sentences: Sequence[str], device: str, dtype: torch.dtype, repeats: int) -> Embedded:
    """Embed `sentences` with the model in `folder`, on portagemm and on torch. Raises minilm.ModelError."""
    import torch

    with torch.inference_mode():
        model = minilm.MiniLM(folder, device, dtype)
        ids, mask = minilm.tokenize(folder, sentences, device)
        own, first_ms = _first(lambda: model.embed(ids, mask, own_linear), device)
        other = model.embed(ids, mask, torch_linear)
        reference = minilm.MiniLM(folder, "cpu", torch.float32).embed(ids.cpu(), mask.cpu(), torch_linear)

        seen: dict[
            tuple[torch.Size, str | None], tuple[str, torch.Tensor, torch.Tensor, torch.Tensor, str | None]
        ] = {}
        names = {id(tensor): name for name, tensor in model.weights.items()}

        def record(
            x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None
        ) -> torch.Tensor:
            if bias is not None:
                name = names[id(w)].removeprefix("encoder.layer.0.").removesuffix(".weight")
                seen.setdefault((w.shape, activation), (name, x, w, bias, activation))
            return torch_linear(x, w, bias, activation)

        model.embed(ids, mask, record)
        own_ms, torch_ms = _in_turns(
            lambda: model.embed(ids, mask, own_linear),
            lambda: model.embed(ids, mask, torch_linear),
            device,
            repeats,
        )
    return Embedded(
        vectors=own.cpu(),
        tokens=ids.numel(),
        difference=float((own - other).abs().max()),
        own_error=float((own.cpu() - reference).abs().max()),
        torch_error=float((other.cpu() - reference).abs().max()),
        layers=len(model.linears()),
        timing=Timing(own_ms, torch_ms, first_ms),
        linears=list(seen.values()),
    )


@dataclass(frozen=True)
class Projected:
    """Result of `project`: operands, largest difference to torch, and what rounding explains of it."""

    x: torch.Tensor
    w: torch.Tensor
    difference: float
    allowed: float
    timing: Timing


def project(device: str, dtype: torch.dtype, repeats: int) -> Projected:
    """The QKV projection of one token: [1, 4096] x [4096, 12288], on portagemm and on torch."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        x = torch.randn(1, 4096, generator=generator).to(device, dtype)
        w = (torch.randn(12288, 4096, generator=generator) / 64).to(device, dtype)
        own, first_ms = _first(lambda: portagemm.linear(x, w), device)
        other = torch_linear(x, w)
        # Each of the two rounds once to the dtype and sums 4096 products in fp32 in an order of its own.
        h = torch.finfo(dtype).eps / 2
        norms = x.float().norm() * w.float().norm(dim=1).max()
        allowed = float(2 * (1.5 * h * other.float().abs().max() + 2.0**-17 * norms))
        own_ms, torch_ms = _in_turns(
            lambda: portagemm.linear(x, w), lambda: torch_linear(x, w), device, repeats
        )
    difference = float((own.float() - other.float()).abs().max())
    return Projected(x, w, difference, allowed, Timing(own_ms, torch_ms, first_ms))
