"""explain: every decision between a call and its kernel, with the reason, without running it. And devices().

(Not explain.py: a module of that name would hide the function portagemm.explain once imported.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portagemm.hal.device import Device
    from portagemm.hal.profile import ArchProfile
    from portagemm.plan import GemmPlan
    from portagemm.problem import GemmProblem


@dataclass(frozen=True)
class Explanation:
    """What a call would do. ``print`` it.

    Attributes:
        operation: its name.
        route: "own" (a kernel of this package), "vendor" (torch's library) or "trivial" (an extent is 0,
            or alpha is).
        reasons: the steps that led there, in order, rejected candidates included.
        problem: the canonical problem, None where none was built.
        plan: the plan of our kernel, None on the other routes. profile: the arch profile that decided.
    """

    operation: str
    route: str
    reasons: tuple[str, ...]
    problem: GemmProblem | None
    plan: GemmPlan | None
    profile: ArchProfile | None

    def __str__(self) -> str:
        route = {"own": "portagemm's kernel", "vendor": "torch's library", "trivial": "no kernel"}[self.route]
        lines = [f"{self.operation} -> {route}"]
        for reason in self.reasons:
            first, *rest = str(reason).splitlines() or [""]
            lines.append(f"  - {first}")
            lines.extend(f"      {line}" for line in rest)
        return "\n".join(lines)


def explain(operation: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What ``operation(*args, **kwargs)`` would do and why. Nothing is compiled, launched or written.

    Args:
        operation: portagemm.matmul, gemm or linear, or the name of one.
        args, kwargs: the call's own.

    Raises what the call itself would raise; OptionError for an unknown operation.
    """
    import importlib

    from portagemm.hal.errors import OptionError
    from portagemm.ops import _dispatch

    names = ("matmul", "gemm", "linear")
    name = operation if isinstance(operation, str) else getattr(operation, "__name__", "")
    module = importlib.import_module(f"portagemm.ops.{name}") if name in names else None
    # By identity: torch.matmul has the same name, and what it would do is not ours to say.
    if module is None or not (isinstance(operation, str) or operation is getattr(module, name)):
        raise OptionError("operation", repr(operation), f"{', '.join(names)} of portagemm")
    request = module.request(*args, **kwargs)
    decision = _dispatch.decide(request, prepare=False)
    selection = decision.selection
    return Explanation(
        operation=name,
        route=decision.route,
        reasons=decision.reasons,
        problem=decision.problem,
        plan=decision.plan,
        profile=None if selection is None else selection.profile,
    )


def devices() -> Sequence[Device]:
    """All devices of all usable backends, the CPU last. Opens no context: a fork afterwards stays safe."""
    from portagemm.hal import registry

    return tuple(d for name in registry.NAMES for d in registry.get(name).devices())
