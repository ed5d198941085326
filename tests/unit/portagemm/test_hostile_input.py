"""What a call must survive: tensors without memory, tracers and transforms, scalars and options of any type."""

from __future__ import annotations

import logging
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import portagemm
from portagemm import errors
from portagemm.ops import _check

pytestmark = pytest.mark.quick

A, B, C = torch.ones(3, 4), torch.ones(4, 5), torch.ones(3, 5)


def freed(*shape: int, left: int = 0) -> Tensor:
    x = torch.ones(shape)
    x.untyped_storage().resize_(left)
    return x


def without_memory() -> dict[str, tuple[str, Callable[[], object]]]:
    mm, gemm = portagemm.matmul, portagemm.gemm
    return {
        "freed a": ("a: ", lambda: mm(freed(3, 4), B)),
        "freed b": ("b: ", lambda: mm(A, freed(4, 5))),
        "freed c": ("c: ", lambda: gemm(A, B, freed(3, 5), beta=1.0)),
        "freed bias": ("bias: ", lambda: gemm(A, B, bias=freed(5))),
        "freed out": ("out: ", lambda: mm(A, B, out=freed(3, 5))),
        "zero tensor": ("a: ", lambda: mm(torch._efficientzerotensor((3, 4)), B)),
    }


@pytest.mark.parametrize("name", sorted(without_memory()))
def test_a_tensor_without_memory(reference: Any, name: str) -> None:
    operand, call = without_memory()[name]
    portagemm.matmul(A, B)  # the same calls with memory are known: the hot path must not take these for them
    portagemm.matmul(A, B, out=torch.empty(3, 5))
    portagemm.gemm(A, B, C, beta=1.0)
    portagemm.gemm(A, B, bias=torch.ones(5))
    with pytest.raises(errors.LayoutError, match=f"^{operand}.*without memory"):
        call()


def test_a_storage_cut_short(reference: Any) -> None:
    with pytest.raises(errors.LayoutError, match=r"a: .*without memory"):
        portagemm.matmul(freed(3, 4, left=8), B)


def test_a_nested_tensor(reference: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([A, A])
    with pytest.raises(errors.LayoutError, match=r"a: given a nested tensor"):
        portagemm.matmul(nested, B)


Step = Callable[[Tensor], Tensor]


def traced(step: Step) -> Step:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is deprecated
        warnings.simplefilter("error", torch.jit.TracerWarning)
        return torch.jit.trace(step, (A,))  # type: ignore[no-any-return, no-untyped-call]


def made_fx(step: Step, mode: str = "real") -> Step:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(step, tracing_mode=mode, _allow_non_fake_inputs=True)(A)


def made_fx_of_fakes(step: Step) -> Step:
    return made_fx(step, "fake")


def made_fx_of_symbols(step: Step) -> Step:
    return made_fx(step, "symbolic")


def faked(step: Step) -> Step:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        shape = step(A).shape
    assert shape == step(A).shape
    return step


def transformed(step: Step) -> None:
    torch.func.grad(lambda x: x.sum() * step(A).sum())(A)


def functionalized(step: Step) -> None:
    torch.func.functionalize(step)(A)


RECORDERS = [traced, made_fx, made_fx_of_fakes, made_fx_of_symbols, faked]


def demanding(x: Tensor) -> Tensor:
    return portagemm.matmul(x, B, fallback="error")


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("call", [*RECORDERS, transformed])
def test_nothing_records_a_result_that_nothing_computes(
    reference: Any, call: Callable[[Step], object], warm: bool
) -> None:
    """A tracer sees the allocation of the result, not the kernel: what it replays would be uninitialised."""
    if warm:
        demanding(A)
    with pytest.raises(errors.UnsupportedError, match="matmul: it is called inside"):
        call(demanding)


@pytest.mark.parametrize("warm", [False, True])
def test_functionalized(reference: Any, warm: bool) -> None:
    if warm:
        demanding(A)
    with pytest.raises(errors.OperandError, match=r"a: .*torch\.func transform"):
        functionalized(demanding)


def into(x: Tensor) -> Tensor:
    out = torch.empty(3, 5)
    assert portagemm.matmul(x, B, out=out) is out
    return out


STEPS: dict[str, Step] = {
    "matmul": lambda x: portagemm.matmul(x, B),
    "out": into,
    "vector": lambda x: portagemm.matmul(x, B[:, 0]),
    "linear": lambda x: portagemm.linear(x, B.t(), torch.ones(5), "gelu"),
    "gemm": lambda x: portagemm.gemm(x, B, C, alpha=2.0, beta=3.0, bias=torch.ones(3, 1)),
    "alpha 0": lambda x: portagemm.gemm(x * torch.inf, B, C, alpha=0, beta=3.0),
    "beta 0": lambda x: portagemm.gemm(x, B, C * torch.nan, alpha=0.5),
    "fp32": lambda x: portagemm.matmul(x.bfloat16(), B.bfloat16(), out_dtype=torch.float32),
    "batch": lambda x: portagemm.matmul(x.expand(2, 3, 4), B, fallback="vendor"),
}


@pytest.mark.parametrize("name", list(STEPS))
@pytest.mark.parametrize("call", RECORDERS)
def test_a_recorder_gets_torchs_operations(
    reference: Any, call: Callable[[Step], Step], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    step = STEPS[name]
    step(A)  # so that the hot path knows it
    caplog.set_level(logging.INFO, "portagemm")
    replay = call(step)
    if name != "batch":
        assert "goes to torch's own matrix multiplication: it is called inside" in caplog.text
    for x in (A, torch.randn(3, 4)):
        torch.testing.assert_close(replay(x), step(x))


def test_a_trace_serves_other_shapes(reference: Any) -> None:
    assert torch.equal(traced(STEPS["linear"])(torch.ones(7, 4)), STEPS["linear"](torch.ones(7, 4)))


def test_a_recorder_hides_no_error(reference: Any) -> None:
    with pytest.raises(errors.ShapeError, match=r"^b: "):
        traced(lambda x: portagemm.matmul(x, C))
    with pytest.raises(errors.AutogradError, match=r"^b: "):
        traced(lambda x: portagemm.matmul(x, torch.nn.Parameter(B)))
    with pytest.raises(errors.UnsupportedError, match="inside torch"):
        traced(lambda x: portagemm.matmul(x, B, batch_invariant=True))
    assert not torch.jit.is_tracing()


def test_autocast_is_recorded(reference: Any) -> None:
    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return portagemm.matmul(x, B)

    assert traced(step)(A).dtype == torch.bfloat16


def test_a_harmless_mode_changes_nothing(reference: Any) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert torch.equal(portagemm.matmul(A, B), A @ B)
    assert torch.equal(torch.vmap(lambda x: x * portagemm.matmul(A, B)[0, 0])(A), A * 4)


@pytest.mark.parametrize("warm", [False, True])
def test_no_tangent_is_lost(reference: Any, warm: bool) -> None:
    if warm:
        portagemm.matmul(A, B)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(A, A)
        with pytest.raises(errors.AutogradError, match="a: given a forward-mode dual tensor"):
            portagemm.matmul(dual, B)
        with pytest.raises(errors.AutogradError, match="c: given a forward-mode"):
            portagemm.gemm(A, B, forward_ad.make_dual(C, C), beta=1.0)
        assert torch.equal(portagemm.matmul(A, B), A @ B)


@pytest.mark.parametrize(
    "value",
    [torch.ones(1), [1], "2", 2j, True, 10**400, 1e300, -1e39, {}],
    ids=lambda v: type(v).__name__ + (f" {v:.0e}" if isinstance(v, float) else ""),
)
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_scalars_that_are_none(reference: Any, name: str, value: Any) -> None:
    """The same error for the first call and for one whose like was seen before."""
    for _ in range(2):
        with pytest.raises(errors.OperandError, match=f"^{name}: given .*; allowed: "):
            portagemm.gemm(A, B, C, **{name: value})
        with pytest.raises(errors.OperandError, match=f"^{name}: given .*; allowed: "):
            portagemm.explain("gemm", A, B, C, **{name: value})
        portagemm.gemm(A, B, C, **{name: 3.0})


def test_scalars_that_are_some() -> None:
    assert _check.scalar("alpha", 2) == 2.0
    assert type(_check.scalar("alpha", 2)) is float
    assert _check.scalar("alpha", math.inf) == math.inf
    assert math.isnan(_check.scalar("alpha", math.nan))
    assert _check.scalar("alpha", 1e-300) == 1e-300


@pytest.mark.parametrize(
    "option", ["fallback", "deterministic", "batch_invariant", "constant_b", "out_dtype"]
)
@pytest.mark.parametrize("value", [[], {}, [True]], ids=repr)
def test_options_that_cannot_be_keys(reference: Any, option: str, value: Any) -> None:
    for arguments in ({}, {"out": torch.empty(3, 5)}):
        with pytest.raises(errors.OptionError, match=f"^{option}: given"):
            portagemm.matmul(A, B, **arguments, **{option: value})
    with pytest.raises(errors.OptionError, match=r"^activation: given"):
        portagemm.linear(A, B.t(), None, value)


def test_overlap_is_found_whatever_the_default_device(reference: Any) -> None:
    x = torch.randn(400)
    with torch.device("meta"):
        with pytest.raises(errors.LayoutError, match="out: given memory shared with operand a"):
            portagemm.matmul(
                x.as_strided((4, 6), (13, 2)), x[100:130].view(6, 5), out=x.as_strided((4, 5), (11, 2), 1)
            )
        with pytest.raises(errors.LayoutError, match="out: given strides"):
            portagemm.matmul(A, B, out=x.as_strided((3, 5), (2, 1)))


@pytest.mark.parametrize(
    "operation", [torch.matmul, len, None, [], "Matmul"], ids=["torch", "len", "None", "list", "case"]
)
def test_explain_speaks_of_our_operations_only(operation: Any) -> None:
    with pytest.raises(errors.OptionError, match=r"operation: given .*; allowed: matmul, gemm, linear"):
        portagemm.explain(operation, A, B)


@pytest.mark.parametrize(
    "error",
    [
        errors.ShapeError("a", "shape (3,)", "(4,)", "Hint."),
        errors.UnsupportedError("matmul", "why", "what"),
        errors.UnknownBackendError("x", ["cpu"]),
        errors.BackendUnavailableError("cuda", "why"),
        errors.CompileError("gemm", "cuda:sm_90a", "nvrtc", "log"),
        errors.NoCompilerError("none"),
        errors.ProfileError("none"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_errors_survive_the_way_out_of_a_worker_process(error: errors.PortaGemmError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__
