"""torch.compile does not trace into this package: a call is a graph break, its caller is compiled round it.

torch.compiler.disable would do that too, but imports torch._dynamo (seconds) when this package is imported.
So the functions are marked as it marks them, and the rest happens only when a tracer is at work.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

_eval_frame: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def _no_tracer() -> None:
    return None


#: Returns None unless torch.compile watches this thread's Python frames.
tracer: Callable[[], object] = getattr(_eval_frame, "get_eval_frame_callback", _no_tracer)


def opaque(function: Function) -> Function:
    """Mark a function as one torch.compile neither inlines nor compiles by itself."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = "portagemm has no torch.library operators yet"  # type: ignore[attr-defined]
    skip = getattr(_eval_frame, "skip_code", None)
    if skip is not None:
        skip(function.__code__)
    return function


@functools.cache
def untraced(function: Function) -> Function:
    """The function with tracing off for all it calls."""
    disable: Callable[[Function], Function] = torch.compiler.disable
    result: Function = disable(function)
    return result
