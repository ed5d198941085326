"""Faults planted in kernels are found: in the compiled program by editing it, in the sources by compiling them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import card
import edits
import pytest

from portagemm import testing

Install = Callable[..., Any]

#: Whole tiles and a few steps of K, and tails in every dimension, under the plan of choice; a loop that goes round many
#: times, under the first plan with each main loop.
WHOLE = testing.Case("mutant", 128, 128, 200, "fp16", b=testing.COL)
TAILS = testing.Case("mutant", 72, 80, 100, "bf16", b=testing.COL)
DEEP = testing.Case("mutant", 128, 128, 328, "fp16", b=testing.COL)


def _errors(backend: Any) -> list[str]:
    """What is wrong with the cases."""
    found, changed = [], False
    backend.machine.limit = 1_000_000  # many times what they need: some faults never end
    for case in (WHOLE, TAILS, DEEP):
        plans = [
            p
            for p in testing.plans(case, backend.device, every=True)
            if p.kernel.tile.atom != "fma" and p.slices == 1
        ]
        firsts = {p.kernel.schedule: p for p in reversed(plans)}
        for plan in firsts.values() if case is DEEP else plans[:1]:
            result = card.run(backend, case, plan)
            if "nothing to change" in result.error:
                continue
            changed = True
            found += [] if result.passed else [result.error]
    assert changed, "no kernel had anything to change"
    return found


#: What a planted fault may show as: wrong numbers, or a fault by name.
CAUGHT = (
    "elements",
    "MissingWait",
    "LdsRace",
    "UnwrittenLds",
    "OutOfRange",
    "Uninitialised",
    "MissedBarrier",
    "wave-instructions",
)
#: name -> (edit, what must be found: one of these; "": any of them).
EDITS: dict[str, tuple[edits.Edit, str]] = {
    "no wait for global loads": (edits.without_counter("vmcnt"), "MissingWait"),
    "no wait for LDS and scalar loads": (edits.without_counter("lgkmcnt"), "MissingWait"),
    "one load too many in flight": (edits.relaxed("vmcnt", 1), "MissingWait"),
    "one LDS read too many in flight": (edits.relaxed("lgkmcnt", 1), "MissingWait"),
    "no barriers": (edits.drop("s_barrier"), "LdsRace"),
    "barrier before the writes": (edits.barrier_before_writes, "LdsRace"),
    "stage never written": (edits.drop("ds_write_b128"), "UnwrittenLds"),
    "reads one chunk on": (edits.moved("ds_read_b128", 16), ""),
    "reads beyond the LDS": (edits.moved("ds_read_b128", 0x10000), "LdsOutOfRange"),
    "writes another stage": (edits.moved("ds_write_b128", 0x2000), ""),
    "loads beyond the operand": (edits.moved("global_load_dwordx4", 2048), "OutOfRange"),
    "loads the neighbour": (edits.moved("global_load_dwordx4", 16), ""),
    "operands exchanged": (
        edits.operands("v_mfma", lambda o: (o[0], o[2], o[1], o[3])),
        "elements",
    ),
    "sums begin anew": (edits.operands("v_mfma", lambda o: (o[0], o[1], o[2], "0")), "elements"),
    "constants never set": (edits.drop("v_mov_b32"), "UninitialisedRegister"),
    "arguments never loaded": (edits.drop("s_load_dword"), "UninitialisedRegister"),
    "all lanes store": (edits.renamed("s_and_saveexec_b64", "s_or_saveexec_b64"), ""),
    "comparisons off by one": (edits.renamed("v_cmp_gt_i32", "v_cmp_ge_i32"), ""),
}
#: Changes that must not matter.
HARMLESS: dict[str, edits.Edit] = {
    "waits for everything": edits.strictest(),
    "commutative operands exchanged": edits.operands("v_add3_u32", lambda o: (o[0], o[2], o[1], o[3])),
    "no priorities, no pauses": edits.each(
        lambda i: edits.nothing(i) if i.name in ("s_setprio", "s_nop", "s_sleep") else None
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_edited_programs_are_caught(name: str, install: Install) -> None:
    """Each fault gives an error of the right kind or wrong numbers in one of two cases."""
    edit, kind = EDITS[name]
    errors = _errors(install("mi250x", edit=edit))
    assert errors, "not caught"
    assert any(kind in e and any(name in e for name in CAUGHT) for e in errors), errors


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_edits_pass(name: str, install: Install) -> None:
    assert _errors(install("mi250x", edit=HARMLESS[name])) == []


@pytest.mark.slow
def test_unchanged_programs_pass(install: Install) -> None:
    assert _errors(install("mi250x")) == []
