"""What stands round a call and would see an allocation, but not the kernel that fills it.

Tracers (torch.jit.trace, make_fx) would record a result that nothing computes; modes and transforms (FakeTensor,
torch.func.grad) replace it by a tensor without memory; forward-mode AD would lose the tangent. Each is an error,
never a wrong number. torch.compile is not here: `_compile_break` leaves its graph instead.
"""

from __future__ import annotations

from collections.abc import Callable

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


def watched() -> bool:
    """Whether anything at all stands round the call, harmless or not. On the hot path."""
    return bool(_modes() or forward_ad._current_level >= 0 or _jit() is not None or _transform() is not None)


def check(operation: str) -> None:
    """Raise UnsupportedError where a tracer records or fakes what is called."""
    where = None
    if _jit() is not None:
        where = "torch.jit.trace"
    elif _modes():
        for key, name in _RECORDERS.items():
            if torch._C._get_dispatch_mode(getattr(torch._C._TorchDispatchModeKey, key)) is not None:
                where = name
    if where is not None:
        raise UnsupportedError(
            operation, f"it is called inside {where}, which cannot see our kernels", OUTSIDE
        )


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
