"""What a plan's kernel does while it runs: instruction mix in and outside its main loop, LDS bank conflicts.

`python tests/amdgcn/report.py [PROFILE] [DTYPE] [M N K]` prints it for every plan of a problem.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent))

import card
from gcn.program import Program

from portagemm import launch, testing
from portagemm.hal import registry
from portagemm.plan import GemmPlan


@dataclass(frozen=True)
class Report:
    """Of one launch. Counts are instructions of a wave, summed over all waves.

    Attributes:
        plan: its explain() text. kernel: symbol. arch: target.
        loop, outside: dynamic instructions by class: salu, valu, mfma, vmem, smem, lds, wait, branch, barrier, other.
        passes, extra: of the main loop's LDS accesses by mnemonic: least passes over the banks, and those beyond.
        all_passes, all_extra: of the whole kernel. steps: times a wave passed through the loop, on average.
    """

    plan: str
    kernel: str
    arch: str
    loop: dict[str, int]
    outside: dict[str, int]
    passes: dict[str, int] = field(default_factory=dict)
    extra: dict[str, int] = field(default_factory=dict)
    all_passes: int = 0
    all_extra: int = 0
    steps: float = 0.0
    valu: dict[str, int] = field(default_factory=dict)

    @property
    def matrix_share(self) -> float:
        """Matrix instructions as a share of the loop's VALU and matrix issue slots."""
        matrix, vector = self.loop.get("mfma", 0), self.loop.get("valu", 0)
        return matrix / (matrix + vector) if matrix else 0.0

    @property
    def conflict_free(self) -> bool:
        """No pass beyond the least in the main loop."""
        return not any(self.extra.values())


def main_loop(program: Program, counts: list[int]) -> list[int]:
    """Blocks of the innermost loop that executed most matrix instructions (vector ones where there are none)."""

    def weight(kind: str, blocks: Iterable[int]) -> int:
        return sum(counts[k] * sum(op[2].kind == kind for op in program.blocks[k].ops) for k in blocks)

    loops = [body for body in program.loops() if max(counts[k] for k in body) > 0]
    if not loops:
        return []
    kind = "mfma" if any(weight("mfma", body) for body in loops) else "valu"
    most = max(weight(kind, body) for body in loops)
    # The smallest that still has most of the work: the loop over K, not the one over tiles around it.
    return sorted(min((body for body in loops if 2 * weight(kind, body) >= most), key=len))


def _mix(program: Program, counts: list[int], blocks: list[int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for k in blocks:
        for op in program.blocks[k].ops:
            found[op[2].kind] += counts[k]
        end = {"jump": "branch", "branch": "branch", "barrier": "barrier"}.get(program.blocks[k].end)
        if end:
            found[end] += counts[k]
    return dict(found)


def measure(case: testing.Case, plan: GemmPlan, backend: card.Backend) -> Report:
    """Execute a case under a plan and count. Raises RuntimeError where it fails.

    The last of its launches is counted: of a plan with slices that is the kernel that adds them up.
    """
    machine = backend.machine
    machine.conflicts = {}
    try:
        result = card.run(backend, case, plan)
        table = machine.conflicts
    finally:
        machine.conflicts = None
    program = backend.driver().last
    if not result.passed or program is None:
        raise RuntimeError(f"{plan.explain()}: {result.error}")
    counts = machine.counts
    loop = main_loop(program, counts)
    inside = set(loop)
    mnemonics = {i.address: (k, i.name) for k, b in enumerate(program.blocks) for *_, i in b.ops}
    passes: Counter[str] = Counter()
    extra: Counter[str] = Counter()
    for address, (least, beyond) in table.items():
        block, name = mnemonics.get(address, (-1, ""))
        if block in inside:
            passes[name] += least
            extra[name] += beyond
    valu: Counter[str] = Counter()
    for k in loop:
        for op in program.blocks[k].ops:
            if op[2].kind == "valu":
                valu[op[3].name] += counts[k]
    return Report(
        plan.explain(),
        program.code.symbol,
        program.code.arch,
        _mix(program, counts, loop),
        _mix(program, counts, [k for k in range(len(counts)) if k not in inside]),
        dict(passes),
        dict(extra),
        sum(p for p, _ in table.values()),
        sum(e for _, e in table.values()),
        max((counts[k] for k in loop), default=0) / max(1, max(counts[:1])),
        dict(valu),
    )


def of_plan(profile: str, case: testing.Case, plan: GemmPlan) -> Report:
    """The report of one plan on an emulated card, from outside a test."""
    backend = card.shared(profile)
    real_get = registry.get
    with (
        patch.object(registry, "get", lambda name: backend if name == "rocm" else real_get(name)),
        patch.object(launch, "_device", card.Always(backend.device)),
        card.tensors(backend.machine),
    ):
        card.forget_launches()
        try:
            return measure(case, plan, backend)
        finally:
            card.forget_launches()


def plans(profile: str, case: testing.Case) -> list[GemmPlan]:
    """The plans of a case on a card, the planner's choice first."""
    with patch.object(launch, "_device", card.Always(card.DEVICES[profile])):
        return list(testing.plans(case, card.DEVICES[profile], every=True))


def text(r: Report) -> str:
    """A report for reading."""
    mix = ", ".join(f"{n} {c}" for n, c in sorted(r.loop.items(), key=lambda x: -x[1]))
    vector = ", ".join(f"{n} {c}" for n, c in sorted(r.valu.items(), key=lambda x: -x[1])[:8])
    lds = ", ".join(f"{n} {p} + {r.extra[n]}" for n, p in sorted(r.passes.items()))
    return (
        f"{r.plan}\n  loop ({r.steps:.1f} rounds a wave): {mix}\n  matrix {r.matrix_share:.1%} of VALU + matrix"
        f"; VALU: {vector or 'none'}\n  LDS passes in the loop, least + extra: {lds or 'none'}; whole kernel "
        f"{r.all_passes} + {r.all_extra}"
    )


def main(arguments: list[str]) -> None:
    """The command line."""
    profile = arguments[0] if arguments else "mi250x"
    dtype = arguments[1] if len(arguments) > 1 else "fp16"
    m, n, k = (int(x) for x in arguments[2:5]) if len(arguments) > 4 else (256, 256, 512)
    # Small integers: of normal values in fp16 some are subnormal, and their steps take the exact way.
    case = testing.Case("report", m, n, k, dtype, b=testing.COL)
    for plan in plans(profile, case):
        if plan.kernel.tile.atom != "fma" and plan.slices == 1:
            try:
                print(text(of_plan(profile, case, plan)), flush=True)
            except Exception as error:
                print(f"{plan.explain()}\n  {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
