"""Runs small things on the devices for real. A line of JSON after every step; the last one holds all.

Arguments: ``devices``; ``alloc``; ``pinned``; ``p2p``; or ``gemm DEVICE`` (cpu, cuda:0 ...).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

_MIB = 1 << 20
#: Odd extents: every tile has tails, and no row is aligned.
_SHAPE = (129, 131, 133)


def _say(facts: dict[str, Any], **more: Any) -> None:
    facts.update(more)
    print(json.dumps(facts), flush=True)


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text.splitlines()[0]}"[:400]


def _count() -> int:
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def devices() -> None:
    """Which devices torch shows."""
    import torch

    names = [torch.cuda.get_device_name(index) for index in range(_count())]
    _say({}, cuda=torch.version.cuda, hip=getattr(torch.version, "hip", None), names=names)


def alloc() -> None:
    """A small block on each GPU: filled there, copied back, compared."""
    import torch

    facts: dict[str, Any] = {"stage": "start", "results": []}
    for index in range(_count()):
        _say(facts, stage=f"cuda:{index}")
        try:
            made = torch.arange(1 << 18, dtype=torch.int32, device=f"cuda:{index}") * 3
            right = bool((made.cpu() == torch.arange(1 << 18, dtype=torch.int32) * 3).all())
            error = "" if right else "what was written is not what is read"
        except RuntimeError as problem:
            error = _first_line(problem)
        facts["results"].append(error)
        _say(facts)
    _say(facts, stage="done")


def pinned() -> None:
    """The largest pinned block of 256 MiB, halved until one is given."""
    import torch

    facts: dict[str, Any] = {"stage": "start", "errors": []}
    size = 256 * _MIB
    while size >= _MIB:
        _say(facts, stage="allocate", size=size)
        try:
            block = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            block[::4096] = 1
            _say(facts, stage="done")
            return
        except RuntimeError as problem:
            facts["errors"].append(_first_line(problem))
            size //= 2
    _say(facts, stage="done", size=0)


def p2p() -> None:
    """A block copied from each GPU to each other, and compared there."""
    import torch

    facts: dict[str, Any] = {"stage": "start", "count": _count(), "wrong": [], "direct": 0, "pairs": 0}
    for a in range(facts["count"]):
        source = (torch.arange(1 << 22, dtype=torch.int32, device=f"cuda:{a}") * 7) ^ a
        for b in range(facts["count"]):
            if a == b:
                continue
            _say(facts, stage=f"cuda:{a} -> cuda:{b}")
            try:
                facts["direct"] += int(torch.cuda.can_device_access_peer(b, a))
                arrived = source.to(f"cuda:{b}").cpu()
                expected = (torch.arange(1 << 22, dtype=torch.int32) * 7) ^ a
                bad = int((arrived != expected).sum())
                if bad:
                    facts["wrong"].append([a, b, f"{bad} of {expected.numel()} values wrong"])
            except RuntimeError as problem:
                facts["wrong"].append([a, b, _first_line(problem)])
            facts["pairs"] += 1
    _say(facts, stage="done")


def _dtypes() -> list[str]:
    """Names of the dtypes that the operations take, as this release says itself."""
    from portagemm.ops._check import DTYPES

    return [dtype.name for dtype in DTYPES.values()]


def gemm(where: str) -> None:
    """One product of each dtype by portagemm's own kernel against FP64 on the CPU, within T16; and its speed."""
    import portagemm
    from portagemm import testing
    from portagemm.hal.errors import DTypeError, PortaGemmError

    m, n, k = _SHAPE
    facts: dict[str, Any] = {"stage": "start", "device": where, "results": []}
    _say(facts)
    for dtype in _dtypes():
        case = testing.Case("smoke", m, n, k, dtype, b=testing.COL, criterion="t16")
        _say(facts, stage=dtype)
        entry: dict[str, Any] = {
            "dtype": dtype,
            "profile": "",
            "plan": "",
            "route": "",
            "error": "",
            "violation": 0.0,
        }
        started = time.monotonic()
        try:
            made = testing.operands(case, where, reference=False)
            said = portagemm.explain("matmul", made.a.view, made.b.view)
            entry["route"] = said.route
            entry["profile"] = said.profile.name if said.profile is not None else ""
            entry["plan"] = said.plan.explain() if said.plan is not None else ""
            if said.route == "own":
                result = testing.run_case(case, where)
                entry["error"], entry["violation"] = result.error, result.violation
            else:
                entry["reason"] = str(said.reasons[-1]) if said.reasons else ""
        except DTypeError as problem:  # taken by other operations alone
            entry["reason"] = _first_line(problem)
        except (PortaGemmError, RuntimeError, OSError) as problem:
            entry["error"] = _first_line(problem)
        entry["seconds"] = round(time.monotonic() - started, 3)
        facts["results"].append(entry)
        _say(facts)
    if where != "cpu":
        _say(facts, stage="speed")
        try:
            facts["speed"] = speed(where)
        except Exception as problem:  # a figure that cannot be had is no failure
            facts["speed_error"] = _first_line(problem)
    _say(facts, stage="done")


def speed(where: str, size: int = 2048, repeats: int = 20) -> dict[str, float]:
    """{"flops", "peak"} of bf16 products of size^3, timed on the host over `repeats` calls, per second; peak: the
    board's, 0 if it is not known."""
    import torch

    import portagemm
    from portagemm.hal.board import board_for

    a, b = (torch.randn(size, size, device=where).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    said = portagemm.explain("matmul", a, b, out=out)

    def wait() -> None:
        if where != "cpu":
            torch.cuda.synchronize(where)

    for _ in range(3):
        portagemm.matmul(a, b, out=out)
    wait()
    started = time.perf_counter()
    for _ in range(repeats):
        portagemm.matmul(a, b, out=out)
    wait()
    seconds = (time.perf_counter() - started) / repeats
    index = int(where.partition(":")[2] or 0)
    device = next(
        d for d in portagemm.devices() if (d.backend == "cpu") == (where == "cpu") and d.index == index
    )
    peak = board_for(device, said.profile).peak_flops.get("bf16", 0.0) if said.profile is not None else 0.0
    return {"flops": 2.0 * size**3 / seconds, "peak": peak}


def main(arguments: list[str]) -> None:
    """Run one of them."""
    # What lies beside this script is no place to find modules; a checkout that is not installed is one.
    here = Path(__file__).resolve()
    sys.path[:] = [*(folder for folder in sys.path if folder != str(here.parent)), str(here.parents[3])]
    if arguments[0] == "gemm":
        gemm(arguments[1])
    else:
        {"devices": devices, "alloc": alloc, "pinned": pinned, "p2p": p2p}[arguments[0]]()


if __name__ == "__main__":
    main(sys.argv[1:])
