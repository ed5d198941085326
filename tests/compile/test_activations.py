"""The epilogue's activations, run on the host, against the exact functions and against torch at the extremes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.quick


def gelu(x: float) -> float:
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


def gelu_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


EXACT: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}
TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}
#: Points of the comparison: STEPS to the unit, from -12 to 12, all exact in fp32.
STEPS = 256
SPECIAL = ("__builtin_inff()", "-__builtin_inff()", '__builtin_nanf("")', "0.0f", "-0.0f")
LARGE = (
    "88.0f",
    "-88.0f",
    "104.0f",
    "-104.0f",
    "1e4f",
    "-1e4f",
    "1e19f",
    "-1e19f",
    "3e38f",
    "-3e38f",
    "1e-30f",
    "-1e-30f",
)

_TEXT = """
template <activation Act>
void values(const char* name, const char* special_name) {
    std::vector<f32> y, special;
    for (i32 i = -12 * %(steps)d; i <= 12 * %(steps)d; i++) y.push_back(activate<Act>(f32(i) / %(steps)d));
    for (f32 x : {%(special)s}) special.push_back(activate<Act>(x));
    entry(name, y);
    entry(special_name, special);
}
void check() {
    vendor::exp2_error = %(error)s;
    values<activation::none>("none", "none special");
    values<activation::relu>("relu", "relu special");
    values<activation::gelu>("gelu", "gelu special");
    values<activation::gelu_tanh>("gelu_tanh", "gelu_tanh special");
    values<activation::silu>("silu", "silu special");
}
"""


@pytest.mark.parametrize("error", [0, 2, -2], ids=["exact", "two_ulp_more", "two_ulp_less"])
def test_activations(host_check: Any, error: int) -> None:
    """With an exp2 as exact as fp32 is, and as bad as a GPU's may be.

    Over [-12, 12] within 1e-6 of the exact function (beyond 4, where fp32 itself is that coarse, in proportion).
    Infinities, NaN, zeros and huge values give what torch gives, the sign of zero aside.
    """
    text = _TEXT % {"steps": STEPS, "special": ", ".join(SPECIAL + LARGE), "error": error}
    values = host_check.run(["portagemm/epilogue.hpp"], text)
    points = [i / STEPS for i in range(-12 * STEPS, 12 * STEPS + 1)]
    assert values["none"] == points
    for name, function in EXACT.items():
        errors = [
            abs(y - function(x)) / max(1.0, abs(x) / 4) for x, y in zip(points, values[name], strict=True)
        ]
        print(f"{name}: {max(errors):.2e}")
        assert max(errors) <= 1e-6, name

    x = torch.tensor([eval_c(constant) for constant in SPECIAL + LARGE])
    for name, of_torch in TORCH.items():
        got = torch.tensor(values[f"{name} special"])
        assert torch.allclose(got, of_torch(x), rtol=2e-6, atol=1e-30, equal_nan=True), (
            name,
            got,
            of_torch(x),
        )


def eval_c(text: str) -> float:
    """A C float constant."""
    named = {"__builtin_inff()": math.inf, "-__builtin_inff()": -math.inf, '__builtin_nanf("")': math.nan}
    return named[text] if text in named else float(text.rstrip("f"))
