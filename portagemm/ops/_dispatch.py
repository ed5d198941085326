"""From checked arguments to a launch: the hot path every repeated call takes, and the slow one behind it.

Hot path (`execute`): build a key of what the plan depends on, find the `Call` made earlier, allocate the
output, launch. Slow path (`_first`): check all, plan and compile or choose the vendor's library, remember.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from portagemm import launch
from portagemm.hal.errors import (
    BackendUnavailableError,
    CompileError,
    LayoutError,
    NoCompilerError,
    OperandError,
    ShapeError,
    UnsupportedError,
)
from portagemm.problem import GemmProblem, View, as_matrices, build, result_shape

from . import _check, _compile_break, _surroundings, _vendor

if TYPE_CHECKING:
    from portagemm.plan import GemmPlan

log = logging.getLogger("portagemm")


class Options(NamedTuple):
    """The keywords of a call that decide its route or kernel. Hashable: part of the hot path's key."""

    out_dtype: torch.dtype | None
    fallback: str
    deterministic: bool
    batch_invariant: bool
    activation: str | None
    constant_b: bool = False
    zero_alpha: bool = False
    zero_beta: bool = True


@dataclass(frozen=True)
class Operation:
    """What tells one operation from another here.

    Attributes:
        name: as users call it. names: of operands a, b, c, bias, as errors say them.
        transpose_b: b is (n, k), as linear's weight is. bias_rank: most dimensions a bias may have.
        matrices: operands have at least two dimensions.
    """

    name: str
    names: tuple[str, str, str, str]
    transpose_b: bool = False
    bias_rank: int = 8
    matrices: bool = False


@dataclass(frozen=True)
class Request:
    """One call, checked: tensors, result shape and dtype, scalars. `b` is as the caller gave it.

    `c` is None too where beta is 0: then `unread_c` is what the caller gave.
    """

    operation: Operation
    a: Tensor
    b: Tensor
    c: Tensor | None
    bias: Tensor | None
    out: Tensor | None
    alpha: float
    beta: float
    options: Options
    shape: tuple[int, ...]
    dtype: torch.dtype
    unread_c: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """In the order of a kernel's pointers, and of a call's key: a, b, c (read or not), out, bias."""
        return self.a, self.b, self.unread_c if self.c is None else self.c, self.out, self.bias

    @property
    def b_kn(self) -> Tensor:
        """b as torch.matmul takes it."""
        return self.b.mT if self.operation.transpose_b else self.b


@dataclass(frozen=True)
class Decision:
    """Which way a request goes, and why.

    Attributes:
        route: "own" (our kernel), "vendor" (torch's library), "trivial" (an extent or alpha is 0).
        reasons: every step that led here, in order.
        problem, plan, selection: known on the way to "own".
        prepared: the loaded kernel, unless the decision was only to be explained.
    """

    route: str
    reasons: tuple[str, ...]
    problem: GemmProblem | None = None
    plan: GemmPlan | None = None
    selection: Any = None
    prepared: launch.PreparedGemm | None = None


class Call:
    """A decided call: all that a repetition needs."""

    __slots__ = (
        "c_may_be_out",
        "device",
        "dtype",
        "index",
        "route",
        "run",
        "shape",
        "spans",
        "stream",
        "swapped",
    )

    def __init__(self, request: Request, decision: Decision) -> None:
        self.route = decision.route
        self.shape = request.shape
        self.dtype = request.dtype
        self.device = request.a.device
        self.index = request.a.device.index or 0
        self.run: Callable[[Sequence[int], Sequence[float], int], None] | None = None
        self.swapped = False
        self.stream: Callable[[int], int] = _no_stream
        if decision.prepared is not None:
            self.run = decision.prepared.launch
            self.swapped = decision.prepared.problem.swapped
            self.stream = decision.prepared.driver.current_stream
        # In the order of the pointers; of use only where the caller gave `out`.
        _, _, c, out, _ = request.tensors
        self.spans = tuple(0 if x is None else _check.span(x) for x in request.tensors)
        self.c_may_be_out = c is not None and out is not None and _check.same_layout(out, c)

    def clashes(self, pointers: Sequence[int]) -> bool:
        """Whether the address ranges of `out` and an input meet (then the slow path looks closer)."""
        first = pointers[3]
        last = first + self.spans[3]
        for i in (0, 1, 2, 4):
            span = self.spans[i]
            if span and pointers[i] < last and first < pointers[i] + span:
                if i == 2 and self.c_may_be_out and pointers[2] == first:
                    continue
                return True
        return False


class Calls:
    """A bounded map from key to Call, without a lock on a hit: two generations, the older one dropped whole.

    A lookup is one dict read, atomic in CPython. An entry not used for a generation is forgotten.
    """

    def __init__(self, bound: int = 4096) -> None:
        self.bound = bound
        self.young: dict[tuple[object, ...], Call] = {}
        self._old: dict[tuple[object, ...], Call] = {}
        self._lock = threading.Lock()

    def find(self, key: tuple[object, ...]) -> Call | None:
        """The call of either generation; an old one is made young again."""
        call = self.young.get(key)
        if call is None:
            call = self._old.get(key)
            if call is not None:
                self.add(key, call)
        return call

    def add(self, key: tuple[object, ...], call: Call) -> None:
        """Remember a call; drop the older generation when the young one is full."""
        with self._lock:
            if len(self.young) >= self.bound // 2:
                self._old, self.young = self.young, {}
            self.young[key] = call

    def renew_lock(self) -> None:
        """In a forked child: the lock's holder does not exist there."""
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self.young, self._old = {}, {}

    def __len__(self) -> int:
        return len(self.young) + len(self._old)


def _no_stream(index: int) -> int:
    return 0


calls = Calls()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=calls.renew_lock)


def clear() -> None:
    """Forget every prepared call (profiles, packs or the cache changed)."""
    calls.clear()
    launch.clear()


# ---------------------------------------------------------------------------------------------- hot path
# Every line here is paid on every call: no formatting, no dataclass, no allocation but the output.

_plain_types = _check.PLAIN_TYPES
_any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
_grad_enabled = torch.is_grad_enabled
_empty = torch.empty
_fp32 = torch.float32


def execute(
    operation: Operation,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    alpha: float,
    beta: float,
    options: tuple[object, ...],
) -> Tensor:
    """Run the operation: at once if this call was seen before, else after checks, planning and compiling.

    `options` are the fields of Options. Two branches do the same thing; the first is the common call
    (nothing but a and b) written out.
    """
    if _tracer() is not None:  # inside a function under torch.compile, after its graph break
        return _compile_break.untraced(execute)(  # type: ignore[no-any-return]
            operation, a, b, c, bias, out, alpha, beta, options
        )
    if c is None and bias is None and out is None:
        if (
            type(a) in _plain_types
            and type(b) in _plain_types
            and not _any_autocast()
            and not _watched()
            and not (_grad_enabled() and (a.requires_grad or b.requires_grad))
            and not (a.is_neg() or b.is_neg())
        ):
            try:
                pa, pb, dtype = a.data_ptr(), b.data_ptr(), a.dtype
                call = calls.young.get(
                    (
                        operation.name,
                        options,
                        fp32_precision() if dtype is _fp32 else None,
                        (dtype, a.shape, a.stride(), pa & 15 if pa else None, a.device),
                        (b.dtype, b.shape, b.stride(), pb & 15 if pb else None, b.device),
                    )
                )
            except (RuntimeError, TypeError):  # no memory (sparse, functorch), an option that is a list: the
                call = None  # slow path says which
            if call is not None and call.run is not None:
                result = _empty(call.shape, dtype=call.dtype, device=call.device)
                pd = result.data_ptr()
                if pd:  # else a function mode took the allocation
                    if call.swapped:
                        pa, pb = pb, pa
                    call.run((pa, pb, 0, pd, 0), (alpha, beta), call.stream(call.index))
                    return result
    elif not _any_autocast() and not _watched():
        tensors = (a, b, c, out, bias)
        grad = _grad_enabled()
        for x in tensors:
            if x is not None and (type(x) not in _plain_types or x.is_neg() or (grad and x.requires_grad)):
                break
        else:
            try:
                call = calls.young.get(_key(operation, tensors, options))
            except (RuntimeError, TypeError):
                call = None
            if call is not None and call.run is not None:
                pointers = [0 if x is None else x.data_ptr() for x in tensors]
                if out is None:
                    result = _empty(call.shape, dtype=call.dtype, device=call.device)
                    pointers[3] = result.data_ptr()
                    if not pointers[3]:
                        return _first(operation, a, b, c, bias, out, alpha, beta, options)
                else:
                    result = out
                    if call.clashes(pointers):
                        return _first(operation, a, b, c, bias, out, alpha, beta, options)
                    _touch(out)
                if call.swapped:
                    pointers[0], pointers[1] = pointers[1], pointers[0]
                call.run(pointers, (alpha, beta), call.stream(call.index))
                return result
    return _first(operation, a, b, c, bias, out, alpha, beta, options)


_compile_break.opaque(execute)
_tracer = _compile_break.tracer
_watched = _surroundings.watched
fp32_precision = _check.fp32_precision


def _key(
    operation: Operation, tensors: tuple[Tensor | None, ...], options: tuple[object, ...]
) -> tuple[object, ...]:
    """All a Call depends on; tensors in the order a, b, c, out, bias. Low address bits mean alignment.

    No call that launches is kept under a null address, so that one sends the hot path to the checks.
    """
    a = tensors[0]
    parts: list[object] = [
        operation.name,
        options,
        fp32_precision() if a is not None and a.dtype is _fp32 else None,
    ]
    last = 5 if any(x is not None for x in tensors[2:]) else 2
    for x in tensors[:last]:
        if x is None:
            parts.append(None)
        else:
            address = x.data_ptr()
            parts.append((x.dtype, x.shape, x.stride(), address & 15 if address else None, x.device))
    return tuple(parts)


def _touch(out: Tensor) -> None:
    """Tell autograd that `out` was written, as an in-place torch operation would."""
    if not out.is_inference():
        _increment_version(out)


_increment_version: Callable[[Tensor], None] = torch.autograd.graph.increment_version

# --------------------------------------------------------------------------------------------- slow path


def _first(
    operation: Operation,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    alpha: float,
    beta: float,
    options: tuple[object, ...],
) -> Tensor:
    """A call the hot path cannot take: check it, decide it (once), run it."""
    recorder = _surroundings.recorder()
    if recorder is not None:
        return _recorded(recorder, operation, a, b, c, bias, out, alpha, beta, options)
    request = check(operation, a, b, c, bias, out, alpha, beta, options)
    tensors = request.tensors
    at = Options._fields.index("constant_b")
    if options[at] != request.options.constant_b:
        options = (*options[:at], request.options.constant_b, *options[at + 1 :])
    key = _key(operation, tensors, options)
    call = calls.find(key)
    if call is None:
        decision = decide(request)
        if decision.route == "vendor" and request.options.fallback == "auto":
            _say(operation.name, decision.reasons[-1])
        call = Call(request, decision)
        calls.add(key, call)
    result = request.out
    if result is None:
        result = torch.empty(request.shape, dtype=request.dtype, device=request.a.device)
    if call.run is not None:
        pointers = [0 if x is None else x.data_ptr() for x in tensors]
        pointers[3] = _surroundings.address(operation.name, result)
        if call.swapped:
            pointers[0], pointers[1] = pointers[1], pointers[0]
        if request.out is not None:
            _touch(result)
        call.run(pointers, (alpha, beta), call.stream(call.index))
    elif call.route == "trivial":
        _trivial(request, result)
    else:
        activation = request.options.activation or "none"
        _vendor.gemm(request.a, request.b_kn, request.c, request.bias, result, alpha, beta, activation)
    return result


def _recorded(
    recorder: str,
    operation: Operation,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    alpha: float,
    beta: float,
    options: tuple[object, ...],
) -> Tensor:
    """A call inside a tracer, which sees torch's operations only: it gets these, unless ours are demanded."""
    with _surroundings.unrecorded():
        chosen = Options(*options)  # type: ignore[arg-type]
        _check.options(operation.name, *chosen[:6])
        if chosen.fallback == "error" or chosen.batch_invariant:  # torch's library does not promise it
            _surroundings.check(operation.name, recorder)
        request = check(operation, a, b, c, bias, out, alpha, beta, options, recorded=True)
        cast = None if out is not None else _check.autocast_dtype(a)
    if chosen.fallback == "auto":
        _say(operation.name, _surroundings.unseen(recorder))
    if beta == 0:
        c = None
    if cast is not None:  # again, now seen
        a, b = a.to(cast), b.to(cast)
        c, bias = (None if x is None else x.to(cast) for x in (c, bias))
    result = _vendor.recorded(
        a,
        b.mT if operation.transpose_b else b,
        c,
        bias,
        request.dtype,
        alpha,
        beta,
        chosen.activation or "none",
    )
    if out is None:
        return result
    with torch.no_grad():
        return out.copy_(result)


def check(
    operation: Operation,
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    bias: Tensor | None,
    out: Tensor | None,
    alpha: float,
    beta: float,
    options: tuple[object, ...],
    recorded: bool = False,
) -> Request:
    """Everything an operation demands of its arguments. Raises the errors of portagemm.errors.

    Where the call is only `recorded`, by torch's operations, nothing is asked of the tensors' memory.
    """
    chosen = Options(*options)  # type: ignore[arg-type]
    _check.options(operation.name, *chosen[:6])
    if not recorded:
        _surroundings.check(operation.name, _surroundings.recorder())
    na, nb, nc, nbias = operation.names
    given_b = b
    a, b = _check.tensor(na, a, recorded), _check.tensor(nb, b, recorded)
    c = None if c is None else _check.tensor(nc, c, recorded)
    bias = None if bias is None else _check.tensor(nbias, bias, recorded)
    if out is not None:
        given, out = out, _check.tensor("out", out, recorded)
        if out is not given:
            raise LayoutError("out", "a negative view", "memory that holds the values themselves")
    else:
        # torch casts under autocast only where it allocates the result itself; so do we
        cast = _check.autocast_dtype(a)
        if cast is not None:
            a, b = a.to(cast), b.to(cast)
            c = None if c is None else c.to(cast)
            bias = None if bias is None else bias.to(cast)
    if b is not given_b:  # a copy made just now, by a kernel in flight
        chosen = chosen._replace(constant_b=False)
    for name, x, or_fp32 in ((nb, b, False), (nc, c, True), (nbias, bias, True), ("out", out, True)):
        if x is not None:
            _check.same_device(name, x, a, na)
            _check.same_dtype(name, x, a, na, or_fp32)
    shape = _shape(operation, a, b)
    if c is not None:
        _check.broadcastable(nc, c, shape)
    elif beta != 0:
        raise OperandError(nc, "None", f"a tensor, as beta is {beta:g}")
    if bias is not None:
        if bias.dim() > operation.bias_rank:
            raise ShapeError(nbias, f"shape {tuple(bias.shape)}", f"({shape[-1]},), one value a column")
        _check.broadcastable(nbias, bias, shape)
        if operation.bias_rank == 1 and bias.shape != shape[-1:]:
            raise ShapeError(nbias, f"shape {tuple(bias.shape)}", f"({shape[-1]},), one value a column")
    dtype = _check.result_dtype(a, out, chosen.out_dtype)
    if out is not None:
        _check.output(out, shape, ((na, a), (nb, b), (nc, c), (nbias, bias)), recorded)
    unread = None
    if beta == 0:
        c, unread = None, c  # BLAS: not read, so NaN in it does not matter
    return Request(operation, a, b, c, bias, out, alpha, beta, chosen, shape, dtype, unread)


def _shape(operation: Operation, a: Tensor, b: Tensor) -> tuple[int, ...]:
    na, nb = operation.names[:2]
    sa, sb = tuple(a.shape), tuple(b.shape)
    if operation.matrices:
        for name, s in ((na, sa), (nb, sb)):
            if len(s) < 2:
                raise ShapeError(name, f"shape {s}", "at least 2 dimensions", "matmul takes vectors.")
    if operation.transpose_b:
        if len(sb) != 2:
            raise ShapeError(nb, f"shape {sb}", "(N, K): two dimensions, as torch.nn.Linear keeps its weight")
        if not sa:
            raise ShapeError(na, "a tensor of 0 dimensions", "at least 1 dimension")
        if sa[-1] != sb[1]:
            raise ShapeError(
                nb, f"shape {sb}", f"(N, {sa[-1]}): the last dimension of {na}, which has shape {sa}"
            )
        return (*sa[:-1], sb[0])
    return result_shape(sa, sb, operation.names[:2])


def decide(request: Request, prepare: bool = True) -> Decision:
    """The route of a checked request. With `prepare` its kernel is compiled and loaded, else only planned.

    Raises what forbids the route under ``fallback="error"``.
    """
    fallback = request.options.fallback
    k = request.a.shape[-1]
    if math.prod(request.shape) == 0:
        return Decision(
            "trivial", (f"the result has shape {request.shape}: nothing to compute, nothing is launched",)
        )
    if k == 0 or request.options.zero_alpha:
        why = "K is 0" if k == 0 else "alpha is 0, so A and B are not read"
        return Decision(
            "trivial", (f"{why}: the result is the epilogue of 0, by torch's elementwise operations",)
        )
    if fallback == "vendor":
        return Decision("vendor", ('fallback="vendor" asks for torch\'s library',))

    reasons: list[str] = []
    problem = None
    try:
        device = launch.device_of(request.a.device)
        reasons.append(
            f"device {device.torch_device}: {device.name} ({device.arch}), backend {device.backend}"
        )
        problem = problem_of(request)
        reasons.append(_describe(problem))
        selection = launch.selection_of(device)
        reasons.append(f"profile {selection.profile.name}: {selection.reason}")
        reasons.extend(selection.warnings)
        if fallback == "auto" and selection.prefer_vendor and not request.options.batch_invariant:
            reasons.append(
                f"profile {selection.profile.name} was not made for this device: torch's library is safer"
                ' (fallback="error" forces our kernel)'
            )
            return Decision("vendor", tuple(reasons), problem, None, selection)
        if prepare:
            prepared = launch.launcher(problem, device)
            plan = prepared.plan
        else:
            prepared, plan = None, launch.planned(problem, device)
        reasons.extend(plan.reasons)
        if prepared is None:
            reasons.extend(r for r in launch.rejected(problem, device) if r not in reasons)
            reasons.append(f"plan: {plan.explain()}")
            reasons.append(launch.compile_outlook(device, plan))
        return Decision("own", tuple(reasons), problem, plan, selection, prepared)
    except (UnsupportedError, BackendUnavailableError, NoCompilerError, CompileError) as e:
        if fallback == "error" or request.options.batch_invariant:  # torch's library does not promise it
            raise
        reasons.append(f"{type(e).__name__}: {e}")
        return Decision("vendor", tuple(reasons), problem)


def problem_of(request: Request) -> GemmProblem:
    """The canonical problem of a checked request. Raises UnsupportedError where kernels cannot address it."""
    a, b = _check.view(request.a), _check.view(request.b)
    if request.operation.transpose_b:
        b = b.transposed()
    vector_a, vector_b = len(a.shape) == 1, len(b.shape) == 1
    a, b = as_matrices(a, b)
    if request.out is not None:
        d = _check.view(request.out)
    else:
        strides = torch.empty(request.shape, device="meta").stride()
        d = View(_check.DTYPES[request.dtype], request.shape, strides)  # the allocator aligns to 16 and more
    if vector_b:
        d = replace(d, shape=(*d.shape, 1), strides=(*d.strides, 0))
    if vector_a:
        at = len(d.shape) - 1
        d = replace(d, shape=(*d.shape[:at], 1, *d.shape[at:]), strides=(*d.strides[:at], 0, *d.strides[at:]))
    return build(
        a,
        b,
        d,
        None if request.c is None else _check.view(request.c),
        None if request.bias is None else _check.view(request.bias),
        activation=request.options.activation or "none",
        precision=fp32_precision() if request.a.dtype == _fp32 else "ieee",
        constant_b=request.options.constant_b,
        batch_invariant=request.options.batch_invariant,
    )


def _describe(p: GemmProblem) -> str:
    """One line for explain and the log."""
    batch = "x".join(map(str, p.batch)) + " x " if p.batch else ""
    swapped = "; A and B exchanged, because out is column-major" if p.swapped else ""
    epilogue = [f"C {p.c.dtype}"] if p.c else []
    epilogue += [f"bias {p.bias.dtype}"] if p.bias else []
    epilogue += [p.activation] if p.activation != "none" else []
    promises = "; batch invariant" if p.batch_invariant else ""
    promises += "; b is constant" if p.constant_b else ""
    after = f", epilogue {' + '.join(epilogue)}" if epilogue else ""
    precision = f" ({p.precision})" if p.a.dtype.name == "fp32" else ""
    return (
        f"problem {batch}{p.m}x{p.n}x{p.k} {p.a.dtype}{precision} -> {p.d.dtype}, strides A {p.a.strides} "
        f"B {p.b.strides} D {p.d.strides}, alignment {p.a.alignment}/{p.b.alignment}/{p.d.alignment} bytes"
        f"{after}{swapped}{promises}"
    )


def _trivial(request: Request, result: Tensor) -> None:
    """Nothing to multiply: the epilogue of zero. (Every activation maps 0 to 0.)"""
    if result.numel() == 0:
        return
    with torch.no_grad():
        if request.c is None and request.bias is None:
            result.zero_()
            return
        zero = torch.zeros((), dtype=torch.float32, device=result.device)
        activation = request.options.activation or "none"
        result.copy_(_vendor.epilogue(zero, request.c, request.bias, request.beta, activation))


said: set[str] = set()


def _say(operation: str, reason: str) -> None:
    """Log that a call goes to torch: loudly the first time a reason turns up, quietly after that."""
    first = reason not in said and len(said) < 1000
    said.add(reason)
    log.log(
        logging.WARNING if first else logging.INFO,
        "%s goes to torch's own matrix multiplication: %s",
        operation,
        reason,
    )
