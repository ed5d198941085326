"""What stands round a call and would see an allocation, but not the kernel that fills it.

Tracers (torch.jit.trace, make_fx) and FakeTensorMode would record a result that nothing computes: there a call goes
to torch's operations, or is an error where ours are demanded. Transforms (torch.func.grad) replace the result by a
tensor without memory, forward-mode AD would lose the tangent: errors, never a wrong number. torch.compile is not here:
`_compile_break` leaves its graph instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad

from portagemm.hal.errors import UnsupportedError

_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_jit: Callable[[], object] = torch._C._get_tracing_state
_transform: Callable[[], object] = torch._C._functorch.peek_interpreter_stack

#: torch's own dispatch modes that record or fake operations, and how users know them.
_RECORDERS = {
    "FAKE": "torch's FakeTensorMode",
    "PROXY": "torch.fx's make_fx",
    "FUNCTIONAL": "torch's functionalization",
}


def watched() -> int | bool:
    """True (or not 0) if anything at all stands round the call, harmless or not. On the hot path."""
    return _modes() or forward_ad._current_level >= 0 or _jit() is not None or _transform() is not None


def recorder() -> str | None:
    """The tracer that records or fakes what is called here, as users know it."""
    where = None
    if _jit() is not None:
        where = "torch.jit.trace"
    elif _modes():
        for key, name in _RECORDERS.items():
            if torch._C._get_dispatch_mode(getattr(torch._C._TorchDispatchModeKey, key)) is not None:
                where = name
    return where


def unseen(where: str) -> str:
    """Why our kernels cannot be used inside a recorder."""
    return f"it is called inside {where}, which cannot see our kernels"


def check(operation: str, where: str | None) -> None:
    """Raise UnsupportedError where there is a recorder."""
    if where is not None:
        raise UnsupportedError(operation, unseen(where), OUTSIDE)


@contextmanager
def unrecorded() -> Iterator[None]:
    """torch.jit.trace records even that a shape is read; not so in this block."""
    state = _jit()
    if state is None:
        yield
        return
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def fake(x: Tensor) -> bool:
    """Whether `x` is a recorder's own tensor, in the place of a plain one."""
    return type(x).__module__ in ("torch._subclasses.fake_tensor", "torch._subclasses.functional_tensor")


OUTSIDE = "a call outside of it, or torch.matmul there"


def address(operation: str, result: Tensor) -> int:
    """The address of a result just allocated. Raises UnsupportedError where a transform or mode withholds it."""
    try:
        found = result.data_ptr()
    except RuntimeError:
        found = 0
    if not found:
        raise UnsupportedError(
            operation,
            "it is called inside a torch.func transform or a dispatch mode, which makes its result one without memory",
            OUTSIDE,
        )
    return found


def has_tangent(x: Tensor) -> bool:
    """Whether forward-mode AD carries a tangent with `x`."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None
