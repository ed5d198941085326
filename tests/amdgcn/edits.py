"""Faults planted in the program itself: a compiled kernel's instructions changed before they are executed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from gcn.parse import Instruction

Listing = list[Instruction]
Edit = Callable[[Listing], Listing]


def nothing(i: Instruction) -> Instruction:
    """A no-op in its place."""
    return replace(
        i, mnemonic="s_nop", name="s_nop", operands=("0",), modifiers={}, text="s_nop 0", pair=None
    )


def each(change: Callable[[Instruction], Instruction | None]) -> Edit:
    """Change all instructions for which `change` returns another. At least one must change."""

    def edit(listing: Listing) -> Listing:
        changed = [change(i) for i in listing]
        assert any(c is not None and c != i for c, i in zip(changed, listing, strict=True)), (
            "nothing to change"
        )
        return [c or i for c, i in zip(changed, listing, strict=True)]

    return edit


def at(address: int, change: Callable[[Instruction], Instruction]) -> Edit:
    """Change the one instruction at an address."""
    return lambda listing: [change(i) if i.address == address else i for i in listing]


def drop(*prefixes: str) -> Edit:
    """Without the instructions whose names begin so."""
    return each(lambda i: nothing(i) if i.name.startswith(prefixes) else None)


def with_modifier(i: Instruction, name: str, value: int) -> Instruction:
    return replace(i, modifiers={**i.modifiers, name: str(value)}, text=f"{i.text} [{name}:{value}]")


def moved(prefix: str, by: int) -> Edit:
    """Offsets of memory instructions moved by some bytes (of two-place ones: units)."""

    def change(i: Instruction) -> Instruction | None:
        if not i.name.startswith(prefix):
            return None
        name = "offset0" if "2" in i.name.split("_")[1] or "2addr" in i.name else "offset"
        return with_modifier(i, name, int(i.modifiers.get(name, "0"), 0) + by)

    return each(change)


def without_counter(counter: str) -> Edit:
    """Waits that no longer wait for a counter."""

    def change(i: Instruction) -> Instruction | None:
        if i.name == f"s_waitcnt_{counter}":
            return nothing(i)
        if i.name != "s_waitcnt" or counter not in i.text:
            return None
        text = re.sub(rf"{counter}\(\d+\)", "", i.text)
        return nothing(i) if "(" not in text else replace(i, text=text)

    return each(change)


def relaxed(counter: str, by: int) -> Edit:
    """Waits that let some more accesses remain in flight."""

    def change(i: Instruction) -> Instruction | None:
        if i.name != "s_waitcnt" or counter not in i.text:
            return None
        more = re.sub(rf"{counter}\((\d+)\)", lambda m: f"{counter}({int(m[1]) + by})", i.text)
        return replace(i, text=more)

    return each(change)


def strictest() -> Edit:
    """Every wait waits for everything: harmless."""

    def change(i: Instruction) -> Instruction | None:
        if i.name != "s_waitcnt":
            return None
        return replace(i, text="s_waitcnt vmcnt(0) lgkmcnt(0)")

    return each(change)


def operands(prefix: str, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Edit:
    """Other operands for the instructions whose names begin so."""
    return each(lambda i: replace(i, operands=change(i.operands)) if i.name.startswith(prefix) else None)


def renamed(old: str, new: str) -> Edit:
    """Another instruction of the same form."""
    return each(
        lambda i: replace(i, name=new, mnemonic=i.mnemonic.replace(old, new)) if i.name == old else None
    )


def barrier_before_writes(listing: Listing) -> Listing:
    """Each barrier that follows LDS writes exchanges places with the first of them: what a scheduler might do."""
    found = list(listing)
    done = 0
    for k, i in enumerate(found):
        if i.name != "s_barrier":
            continue
        first = None
        for back in range(k - 1, max(k - 40, 0), -1):
            name = found[back].name
            if name.startswith(("s_cbranch", "s_branch", "s_barrier")):
                break
            if name.startswith(("ds_write", "ds_store")):
                first = back
        if first is not None:
            names = ("mnemonic", "name", "operands", "modifiers", "text", "pair", "words")
            a, b = found[first], found[k]
            found[first] = replace(a, **{n: getattr(b, n) for n in names})
            found[k] = replace(b, **{n: getattr(a, n) for n in names})
            done += 1
    assert done, "nothing to change"
    return found
