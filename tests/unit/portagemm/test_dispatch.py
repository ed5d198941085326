"""Operations against torch on a stand-in for kernels: every layout, every epilogue, every check and route."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import portagemm
from portagemm import errors
from portagemm.ops import _check, _dispatch, _vendor

pytestmark = pytest.mark.quick


def random_view(generator: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A view of `shape` with permuted, padded, stepped or expanded storage at a random offset."""
    order = list(range(len(shape)))
    if generator.random() < 0.6:
        generator.shuffle(order)
    stored, steps = [], []
    for i in order:
        step = generator.choice((1, 1, 1, 2))
        stored.append(shape[i] * step + generator.choice((0, 0, 3)))
        steps.append(step)
    offset = generator.choice((0, 1, 5, 8))
    size = offset
    total = 1
    for e in stored:
        total *= e
    flat = torch.randint(-2, 3, (size + total,)).to(dtype)
    x = flat[offset:].view(stored)[
        tuple(slice(0, shape[i] * s, s) for i, s in zip(order, steps, strict=True))
    ]
    x = x.permute([order.index(i) for i in range(len(shape))])
    assert tuple(x.shape) == shape
    for i, e in enumerate(shape):
        if e > 1 and generator.random() < 0.08:
            x = x.narrow(i, 0, 1).expand(shape)
    return x


@pytest.mark.parametrize("seed", range(120))
def test_any_layout(reference: Any, seed: int) -> None:
    g = random.Random(seed)
    torch.manual_seed(seed)
    dtype = g.choice((torch.float32, torch.bfloat16, torch.float16))
    m, n, k = (g.choice((1, 1, 2, 3, 8, 17)) for _ in range(3))
    batch = tuple(g.choice((1, 2, 3)) for _ in range(g.choice((0, 0, 1, 2, 3))))
    thin = lambda: tuple(e if g.random() < 0.7 else 1 for e in batch)[g.choice((0, 0, len(batch))) :]  # noqa: E731
    a, b = random_view(g, (*thin(), m, k), dtype), random_view(g, (*thin(), k, n), dtype)
    expected = torch.matmul(a.double(), b.double())
    shape = tuple(expected.shape)
    c = bias = None
    alpha, beta = 1.0, 0.0
    if g.random() < 0.5:
        c, alpha, beta = (
            random_view(g, shape[-g.choice((1, 2)) :], g.choice((dtype, torch.float32))),
            0.5,
            2.0,
        )
        expected = 0.5 * expected + 2 * c.double()
    if g.random() < 0.5:
        bias = random_view(g, g.choice(((n,), (m, 1), (1, n), (m, n))), g.choice((dtype, torch.float32)))
        expected = expected + bias.double()
    out = None
    out_dtype = g.choice((dtype, torch.float32))
    if g.random() < 0.5:
        out = random_view(random.Random(seed), shape, out_dtype)
        if _check.overlaps_itself(out):
            out = None
    result = portagemm.gemm(
        a,
        b,
        c,
        alpha=alpha,
        beta=beta,
        bias=bias,
        activation="relu",
        out=out,
        out_dtype=out_dtype,
        fallback="error",
    )
    assert result.dtype == out_dtype and (out is None or result is out)
    torch.testing.assert_close(result, expected.relu().to(out_dtype), rtol=0, atol=0)
    vendor = portagemm.gemm(
        a, b, c, alpha=alpha, beta=beta, bias=bias, activation="relu", out_dtype=out_dtype, fallback="vendor"
    )
    torch.testing.assert_close(vendor, result, rtol=0, atol=0)


@pytest.mark.parametrize(
    "sa,sb", [((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 2, 3), (3,)), ((3,), (5, 3, 2))]
)
def test_vectors(reference: Any, sa: tuple[int, ...], sb: tuple[int, ...]) -> None:
    a, b = torch.randn(sa), torch.randn(sb)
    expected = torch.matmul(a, b)
    torch.testing.assert_close(portagemm.matmul(a, b, fallback="error"), expected)
    out = torch.empty_like(expected)
    assert portagemm.matmul(a, b, out=out, fallback="error") is out
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_linear(reference: Any, shape: tuple[int, ...], activation: str | None) -> None:
    x, w, bias = torch.randn(shape), torch.randn(5, 4), torch.randn(5)
    expected = _vendor.activate(torch.nn.functional.linear(x, w, bias), activation or "none")
    for _ in range(2):
        torch.testing.assert_close(portagemm.linear(x, w, bias, activation, fallback="error"), expected)
    torch.testing.assert_close(portagemm.linear(x, w, bias, activation, fallback="vendor"), expected)


def test_repeats_do_not_plan_again(reference: Any) -> None:
    for i in range(5):
        a, b = torch.randn(3, 4), torch.randn(4, 5)
        torch.testing.assert_close(portagemm.matmul(a, b, fallback="error"), a @ b)
        out = torch.empty(3, 5)
        portagemm.matmul(a, b, out=out, fallback="error")
        torch.testing.assert_close(out, a @ b)
        c = torch.randn(3, 5)
        torch.testing.assert_close(
            portagemm.gemm(a, b, c, alpha=i, beta=i + 1, out=c.clone(), fallback="error"),
            i * (a @ b) + (i + 1) * c,
        ) if i else None
    assert reference.planned == 3


def test_an_unread_c_is_no_new_call(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.full((3, 5), torch.nan)
    out = torch.empty(3, 5)
    for _ in range(2):
        torch.testing.assert_close(portagemm.gemm(a, b, c, beta=0), a @ b)
        torch.testing.assert_close(portagemm.gemm(a, b, c, out=c), a @ b)
        c.fill_(torch.nan)
        portagemm.gemm(a, b, c, out=out)
        torch.testing.assert_close(out, a @ b)
    assert reference.planned == 2
    for wrong in (torch.randn(3, 4), torch.randn(3, 5, dtype=torch.float64)):
        with pytest.raises((errors.ShapeError, errors.DTypeError), match=r"^c: "):
            portagemm.gemm(a, b, wrong, beta=0)
    with pytest.raises(errors.LayoutError, match="memory shared with operand c"):
        both = torch.empty(6, 5)
        portagemm.gemm(a, b, both[1:4], out=both[:3])
    monkeypatch.setattr(_dispatch, "_first", None)  # the hot path takes all of these
    portagemm.gemm(a, b, c, beta=0)
    portagemm.gemm(a, b, c, out=c)
    portagemm.gemm(a, b, c, out=out)


def test_calls_are_bounded() -> None:
    table: Any = _dispatch.Calls(bound=8)
    for i in range(100):
        table.add((i,), i)
        assert len(table) <= 8
        assert table.find((0,)) is not None or i >= 8
    assert table.find((99,)) == 99


def test_first_calls_from_many_threads(reference: Any) -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    results: list[Tensor] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        results.append(portagemm.matmul(a, b, fallback="error"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 8 and all(torch.equal(r, results[0]) for r in results)


def test_zero_extents(reference: Any) -> None:
    for m, n, k in itertools.product((0, 2), repeat=3):
        if m and n and k:
            continue
        a, b = torch.randn(m, k), torch.randn(k, n)
        out = torch.full((m, n), float("nan"))
        for result in (
            portagemm.matmul(a, b, fallback="error"),
            portagemm.matmul(a, b, out=out, fallback="error"),
        ):
            assert result.shape == (m, n) and not result.any()
        bias, c = torch.randn(n), torch.randn(m, n)
        result = portagemm.gemm(a, b, c, beta=2.0, bias=bias, activation="relu", fallback="error")
        torch.testing.assert_close(result, (2 * c + bias).relu())
    assert not reference.problems


def test_batch_of_zero(reference: Any) -> None:
    assert portagemm.matmul(torch.ones(0, 2, 3), torch.ones(3, 4), fallback="error").shape == (0, 2, 4)


def test_alpha_zero_reads_no_operand_and_beta_zero_no_c(reference: Any) -> None:
    nan = torch.full((4, 4), float("nan"))
    one = torch.ones(4, 4)
    assert portagemm.gemm(nan, one, alpha=0.0, fallback="error").eq(0).all()
    assert portagemm.gemm(nan, one, one, alpha=0.0, beta=3.0, fallback="error").eq(3).all()
    assert portagemm.gemm(one, one, nan, beta=0.0, fallback="error").eq(4).all()
    assert reference.problems[-1].c is None


def test_negative_views_are_resolved(reference: Any) -> None:
    z = torch.randn(4, 4, dtype=torch.complex64).conj().imag
    assert z.is_neg()
    one = torch.eye(4)
    assert torch.equal(portagemm.matmul(z, one, fallback="error"), z.clone())
    assert torch.equal(portagemm.gemm(one, one, z, beta=1.0, fallback="error"), one + z)


def test_parameters_are_accepted_without_gradients(reference: Any) -> None:
    w = torch.nn.Parameter(torch.randn(5, 4))
    x = torch.randn(3, 4)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            result = portagemm.linear(x, w, fallback="error")
        torch.testing.assert_close(result, x @ w.detach().t())
        assert not result.requires_grad
    with pytest.raises(errors.AutogradError, match="w: given requires_grad"):
        portagemm.linear(x, w, fallback="error")


def test_writing_out_is_seen_by_autograd(reference: Any) -> None:
    out = torch.randn(3, 3)
    saved = (out * torch.ones(3, 3, requires_grad=True)).sum()
    for _ in range(2):
        version = out._version
        portagemm.matmul(torch.ones(3, 3), torch.ones(3, 3), out=out, fallback="error")
        assert out._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()


def test_autocast_casts_as_torch_does(reference: Any) -> None:
    a, b, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            assert (
                portagemm.matmul(a, b, fallback="error").dtype == torch.matmul(a, b).dtype == torch.bfloat16
            )
            assert portagemm.linear(a, b.t(), bias, fallback="error").dtype == torch.bfloat16
        out = torch.empty(3, 5)
        assert portagemm.matmul(a, b, out=out, fallback="error").dtype == torch.float32
        assert portagemm.matmul(a, b, fallback="vendor").dtype == torch.bfloat16
    assert portagemm.matmul(a, b, fallback="error").dtype == torch.float32


def test_fp32_follows_torchs_precision(reference: Any) -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    before = torch.get_float32_matmul_precision()
    try:
        for precision, ours in (
            ("highest", "ieee"),
            ("high", "tf32"),
            ("medium", "tf32"),
            ("highest", "ieee"),
        ):
            torch.set_float32_matmul_precision(precision)
            portagemm.matmul(a, b, fallback="error")
            assert reference.problems[-1].precision == ours
            portagemm.matmul(a.half(), b.half(), fallback="error")
            assert reference.problems[-1].precision == "ieee"
    finally:
        torch.set_float32_matmul_precision(before)


def test_compiled_functions_break_the_graph_and_are_right(reference: Any) -> None:
    traced: list[bool] = []

    def f(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        x = portagemm.matmul(a + 1, b, fallback="error") * 2
        return portagemm.linear(x, b.t().contiguous().t() @ b.t(), bias, fallback="error") + 1

    a, b, bias = torch.randn(3, 5), torch.randn(5, 4), torch.randn(5)
    b = torch.randn(5, 5)
    expected = torch.nn.functional.linear(2 * ((a + 1) @ b), b @ b.t(), bias) + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="eager")
        for _ in range(3):
            torch.testing.assert_close(compiled(a, b, bias), expected)
            reference.watch = lambda: traced.append(torch.compiler.is_compiling())
        assert traced and not any(traced), "nothing of ours is traced"
        torch._dynamo.reset()
        with pytest.raises(Exception, match="portagemm has no torch"):
            torch.compile(f, backend="eager", fullgraph=True)(a, b, bias)
        torch._dynamo.reset()


# --- routes ----------------------------------------------------------------------------------------------


def test_auto_goes_to_torch_and_says_so(reference: Any, caplog: pytest.LogCaptureFixture) -> None:
    reference.refuse = errors.UnsupportedError("matmul", "no kernel for this test", "others")
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with caplog.at_level(logging.INFO, "portagemm"):
        for _ in range(3):
            torch.testing.assert_close(portagemm.matmul(a, b), a @ b)
    assert reference.planned == 1, "the decision is kept"
    assert [r.levelname for r in caplog.records] == ["WARNING"] and "no kernel for this test" in caplog.text
    explanation = portagemm.explain(portagemm.matmul, a, b)
    assert explanation.route == "vendor" and "no kernel for this test" in str(explanation)
    with pytest.raises(errors.UnsupportedError, match="no kernel for this test"):
        portagemm.matmul(a, b, fallback="error")


@pytest.mark.parametrize(
    "error",
    [
        errors.NoCompilerError("gcc: not found"),
        errors.BackendUnavailableError("cpu", "none"),
        errors.CompileError("k", "t", "c", "log"),
    ],
)
def test_what_else_goes_to_torch_under_auto(reference: Any, error: Exception) -> None:
    reference.refuse = error
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    torch.testing.assert_close(portagemm.matmul(a, b), a @ b)
    with pytest.raises(type(error)):
        portagemm.matmul(a, b, fallback="error")


def test_a_refused_launch_is_never_hidden(reference: Any) -> None:
    reference.refuse = errors.LaunchError("kernel x needs 147456 bytes, the device allows 101376")
    with pytest.raises(errors.LaunchError, match="147456"):
        portagemm.matmul(torch.ones(2, 2), torch.ones(2, 2))


def test_an_unknown_device_prefers_torch_unless_told(reference: Any) -> None:
    reference.prefer_vendor = True
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    assert portagemm.explain("matmul", a, b).route == "vendor"
    assert portagemm.explain("matmul", a, b, fallback="error").route == "own"


def test_explain_runs_nothing(reference: Any) -> None:
    a, b, out = torch.randn(3, 4), torch.randn(4, 5), torch.zeros(3, 5)
    explanation = portagemm.explain(portagemm.matmul, a, b, out=out)
    assert explanation.route == "own" and not reference.problems and not out.any()
    assert (
        explanation.problem is not None and explanation.plan is not None and explanation.profile is not None
    )
    text = str(explanation)
    assert "stand-in" in text and "3x5x4" in text and "chosen by the test" in text and "no compiler" in text
    assert "not another: too large" in text
    assert portagemm.explain("gemm", a, b, alpha=0.0).route == "trivial"
    assert portagemm.explain("linear", a, b.t(), fallback="vendor").route == "vendor"
    with pytest.raises(errors.OptionError, match="matmul, gemm, linear"):
        portagemm.explain("conv", a, b)


# --- bad input: one clear error each -----------------------------------------------------------------------

F = torch.randn


class Wrapped(Tensor):
    pass


def bad_inputs() -> dict[str, tuple[type[Exception], str, Any]]:
    mm, gemm, linear = portagemm.matmul, portagemm.gemm, portagemm.linear
    a, b = F(3, 4), F(4, 5)
    wide = torch.zeros(3, 10)
    return {
        "list": (errors.OperandError, r"a: given a list; allowed: a torch.Tensor", lambda: mm([1], b)),
        "none": (errors.OperandError, r"b: given a NoneType", lambda: mm(a, None)),
        "int": (errors.DTypeError, r"a: given torch.int64; allowed: torch.float16", lambda: mm(a.long(), b)),
        "fp64": (errors.DTypeError, r"b: given torch.float64", lambda: mm(a, b.double())),
        "complex": (errors.DTypeError, r"a: given torch.complex64", lambda: mm(a + 0j, b)),
        "conj": (errors.DTypeError, r"a: given torch.complex64", lambda: mm((a + 0j).conj(), b)),
        "bool": (errors.DTypeError, r"a: given torch.bool", lambda: mm(a > 0, b)),
        "mixed": (
            errors.DTypeError,
            r"b: given torch.float16; allowed: torch.float32",
            lambda: mm(a, b.half()),
        ),
        "out dtype": (errors.DTypeError, r"out: given torch.float16", lambda: mm(a, b, out=F(3, 5).half())),
        "out_dtype": (
            errors.DTypeError,
            r"out_dtype: given torch.float16",
            lambda: mm(a, b, out_dtype=torch.half),
        ),
        "out_dtype kind": (errors.OptionError, r"out_dtype: given 'x'", lambda: mm(a, b, out_dtype="x")),
        "out and out_dtype": (
            errors.DTypeError,
            r"as out_dtype says",
            lambda: mm(a.half(), b.half(), out=F(3, 5), out_dtype=torch.half),
        ),
        "k": (errors.ShapeError, r"b: given shape \(5, 4\); .* 4 \(a has shape", lambda: mm(a, b.t())),
        "scalar": (errors.ShapeError, r"a: given a tensor of 0 dim", lambda: mm(torch.ones(()), b)),
        "batch": (errors.ShapeError, r"b: given batch shape \(3,\)", lambda: mm(F(2, 3, 4), F(3, 4, 5))),
        "out shape": (errors.ShapeError, r"out: given shape \(5, 3\)", lambda: mm(a, b, out=F(5, 3))),
        "vector gemm": (errors.ShapeError, r"a: given shape \(4,\)", lambda: gemm(F(4), b)),
        "w": (errors.ShapeError, r"w: given shape \(4, 5\); allowed: \(N, 4\)", lambda: linear(a, b)),
        "w rank": (errors.ShapeError, r"w: given shape \(4,\)", lambda: linear(a, F(4))),
        "bias": (errors.ShapeError, r"bias: given shape \(4,\); .*5", lambda: linear(a, b.t(), F(4))),
        "bias rank": (errors.ShapeError, r"bias: given shape \(3, 5\)", lambda: linear(a, b.t(), F(3, 5))),
        "bias dtype": (
            errors.DTypeError,
            r"bias: given torch.float64",
            lambda: linear(a, b.t(), F(5).double()),
        ),
        "c shape": (errors.ShapeError, r"c: given shape \(4, 5\)", lambda: gemm(a, b, F(4, 5), beta=1)),
        "no c": (errors.OperandError, r"c: given None; .* beta is 2", lambda: gemm(a, b, beta=2)),
        "alpha": (errors.OperandError, r"alpha: given 'x'", lambda: gemm(a, b, alpha="x")),
        "alpha tensor": (
            errors.OperandError,
            r"alpha: given tensor",
            lambda: gemm(a, b, alpha=torch.ones(1)),
        ),
        "activation": (
            errors.OptionError,
            r"activation: given 'tanh'; .*'gelu_tanh'",
            lambda: linear(a, b.t(), None, "tanh"),
        ),
        "fallback": (errors.OptionError, r"fallback: given 'never'", lambda: mm(a, b, fallback="never")),
        "deterministic": (errors.OptionError, r"deterministic: given 1", lambda: mm(a, b, deterministic=1)),
        "constant": (errors.OptionError, r"constant_b: given 1", lambda: mm(a, b, constant_b=1)),
        "invariant vendor": (
            errors.UnsupportedError,
            r"batch_invariant",
            lambda: mm(a, b, batch_invariant=True, fallback="vendor"),
        ),
        "meta": (
            errors.DeviceError,
            r"a: given device meta; allowed: cpu, cuda",
            lambda: mm(a.to("meta"), b),
        ),
        "meta out": (errors.DeviceError, r"out: given device meta", lambda: mm(a, b, out=F(3, 5).to("meta"))),
        "sparse": (errors.LayoutError, r"a: given layout torch.sparse_coo", lambda: mm(a.to_sparse(), b)),
        "csr": (errors.LayoutError, r"a: given layout torch.sparse_csr", lambda: mm(a.to_sparse_csr(), b)),
        "mkldnn": (errors.LayoutError, r"a: given layout torch._mkldnn", lambda: mm(a.to_mkldnn(), b)),
        "quantized": (
            errors.DTypeError,
            r"a: given torch.qint8",
            lambda: mm(torch.quantize_per_tensor(a, 0.1, 0, torch.qint8), b),
        ),
        "subclass": (
            errors.OperandError,
            r"a: given the tensor subclass Wrapped",
            lambda: mm(a.as_subclass(Wrapped), b),
        ),
        "grad a": (
            errors.AutogradError,
            r"a: given requires_grad",
            lambda: mm(F(3, 4, requires_grad=True), b),
        ),
        "grad out": (errors.AutogradError, r"out: given", lambda: mm(a, b, out=F(3, 5, requires_grad=True))),
        "grad c": (
            errors.AutogradError,
            r"c: given",
            lambda: gemm(a, b, F(3, 5, requires_grad=True), beta=1),
        ),
        "vmap": (errors.OperandError, r"torch.func", lambda: torch.vmap(lambda x: mm(x, b))(F(2, 3, 4))),
        "func.grad": (
            errors.OperandError,
            r"torch.func",
            lambda: torch.func.grad(lambda x: mm(x, b).sum())(a),
        ),
        "out is a": (errors.LayoutError, r"out: .*operand a", lambda: (s := F(4, 4), mm(s, F(4, 4), out=s))),
        "out is b": (errors.LayoutError, r"out: .*operand b", lambda: (s := F(4, 4), mm(F(4, 4), s, out=s))),
        "out half over a": (
            errors.LayoutError,
            r"operand a",
            lambda: (s := F(6, 4), mm(s[:4], F(4, 4), out=s[2:])),
        ),
        "out over bias": (
            errors.LayoutError,
            r"operand bias",
            lambda: (s := F(3, 5), linear(a, b.t(), s[1], out=s)),
        ),
        "out over c": (
            errors.LayoutError,
            r"operand c",
            lambda: (s := F(4, 5), gemm(a, b, s[1:], beta=1, out=s[:3])),
        ),
        "c transposed over out": (
            errors.LayoutError,
            r"operand c",
            lambda: (s := F(4, 4), gemm(F(4, 4), F(4, 4), s.t(), beta=1, out=s)),
        ),
        "out expanded": (
            errors.LayoutError,
            r"out: given strides",
            lambda: mm(a, b, out=torch.ones(1).expand(3, 5)),
        ),
        "out window": (
            errors.LayoutError,
            r"out: given strides \(2, 1\)",
            lambda: mm(a, b, out=wide.flatten().as_strided((3, 5), (2, 1))),
        ),
    }


@pytest.mark.parametrize("name", sorted(bad_inputs()))
def test_bad_input(reference: Any, name: str) -> None:
    error, message, call = bad_inputs()[name]
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(error, match=f"(?s){message}"):
                call()
    assert not reference.problems, "nothing may run"


def test_out_may_lie_between_its_inputs(reference: Any) -> None:
    """Views of one buffer that share no element are no overlap."""
    a, b = F(4, 4), F(4, 4)
    buffer = torch.zeros(4, 12)
    buffer[:, 4:8] = a
    for _ in range(2):
        result = portagemm.matmul(buffer[:, 4:8], b, out=buffer[:, :4], fallback="error")
        torch.testing.assert_close(result, a @ b)
        torch.testing.assert_close(
            portagemm.matmul(buffer[:, 4:8], b, out=buffer[:, 8:], fallback="error"), a @ b
        )
    woven = torch.zeros(4, 8)
    woven[:, 1::2] = a
    torch.testing.assert_close(
        portagemm.matmul(woven[:, 1::2], b, out=woven[:, ::2], fallback="error"), a @ b
    )
    batched = torch.zeros(2, 4, 8)
    batched[..., :4] = a
    torch.testing.assert_close(
        portagemm.matmul(batched[..., :4], b, out=batched[..., 4:], fallback="error"), (a @ b).expand(2, 4, 4)
    )


def test_c_may_be_out_itself(reference: Any) -> None:
    a, b, c = F(3, 4), F(4, 5), F(3, 5)
    for _ in range(2):
        expected = 2 * (a @ b) + 3 * c
        assert portagemm.gemm(a, b, c, alpha=2.0, beta=3.0, out=c, fallback="error") is c
        torch.testing.assert_close(c, expected)
        c.copy_(F(3, 5))


@pytest.mark.parametrize("seed", range(40))
def test_overlap_is_decided_like_by_enumeration(seed: int) -> None:
    g = random.Random(seed)
    flat = torch.zeros(400)
    pair = []
    for _ in range(2):
        shape = (g.randint(1, 5), g.randint(1, 5))
        strides = (g.randint(0, 20), g.randint(0, 9))
        pair.append(flat.as_strided(shape, strides, g.randint(0, 200)))
    addresses = [
        [
            t.data_ptr() // 4 + i * t.stride(0) + j * t.stride(1)
            for i in range(t.shape[0])
            for j in range(t.shape[1])
        ]
        for t in pair
    ]
    assert _check.overlap(*pair) == bool(set(addresses[0]) & set(addresses[1]))
    for t, a in zip(pair, addresses, strict=True):
        assert _check.overlaps_itself(t) == (len(set(a)) != len(a))
