"""The text of `llvm-objdump -d`, as instructions: mnemonic, operands, modifiers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from .faults import NotModelled

_LINE = re.compile(r"^\s+([a-z]\S*)(?:\s+(.*?))?\s*// ([0-9A-Fa-f]+): ((?:[0-9A-Fa-f]{8}\s?)+)")
_ENCODINGS = ("_e64_dpp", "_e32", "_e64", "_sdwa", "_dpp", "_vgprcd", "_acccd", "_gfx90a", "_gfx940")


@dataclass(frozen=True)
class Instruction:
    """One line. `name` has no encoding suffix; modifiers without a value map to ""."""

    address: int
    size: int
    mnemonic: str
    name: str
    operands: tuple[str, ...]
    modifiers: dict[str, str] = field(default_factory=dict)
    words: tuple[int, ...] = ()
    text: str = ""
    pair: Instruction | None = None  # the other half of a dual instruction

    @property
    def end(self) -> int:
        return self.address + self.size

    def __str__(self) -> str:
        return f"{self.address:#x}: {self.text}"


class Register(NamedTuple):
    """kind: "v", "a" or "s" (by number; VCC, M0 and EXEC have theirs); count registers from `first`."""

    kind: str
    first: int
    count: int
    negative: bool = False
    absolute: bool = False
    signed: bool = False


class Constant(NamedTuple):
    """An inline constant or a literal: an integer, or a floating-point inline constant by its value."""

    integer: int
    real: float | None = None
    literal: bool = False
    negative: bool = False
    absolute: bool = False


# Scalar registers by their operand number. M0 and null exchange theirs on gfx11: kept here where gfx9 has M0.
VCC, M0, EXEC, NULL = 106, 124, 126, 125
_SPECIAL = {
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC + 1, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1),
    "m0": (M0, 1),
    "null": (NULL, 1),
    "flat_scratch": (102, 2),
    "flat_scratch_lo": (102, 1),
    "flat_scratch_hi": (103, 1),
    "xnack_mask": (104, 2),
}
_REALS = {"0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0", "0.15915494", "0.15915494309189532"}
_RANGE = re.compile(r"^(ttmp|[vas])\[(\d+):(\d+)\]$")
_SINGLE = re.compile(r"^(ttmp|[vas])(\d+)$")


def operand(text: str) -> Register | Constant:
    """A register or constant with its sign modifiers. Raises NotModelled."""
    negative = absolute = signed = False
    body = text
    if re.match(r"^-[\w|]", body) and not re.match(r"^-[\d]", body):
        negative, body = True, body[1:]
    if body.startswith("neg(") and body.endswith(")"):
        negative, body = True, body[4:-1]
    if body.startswith("sext(") and body.endswith(")"):
        signed, body = True, body[5:-1]
    if body.startswith("|") and body.endswith("|"):
        absolute, body = True, body[1:-1]
    if body in _SPECIAL:
        first, count = _SPECIAL[body]
        return Register("s", first, count, negative, absolute, signed)
    match = _RANGE.match(body)
    if match and match[1] != "ttmp":
        first, last = int(match[2]), int(match[3])
        return Register(match[1], first, last - first + 1, negative, absolute, signed)
    match = _SINGLE.match(body)
    if match and match[1] != "ttmp":
        return Register(match[1], int(match[2]), 1, negative, absolute, signed)
    if body in _REALS:
        return Constant(0, float(body), False, negative, absolute)
    if re.match(r"^-?\d+$", body):
        return Constant(int(body), None, False, negative, absolute)
    if re.match(r"^0x[0-9a-fA-F]+$", body):
        return Constant(int(body, 16), None, True, negative, absolute)
    raise NotModelled(f"operand {text!r}")


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "[(") - (c in "])")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return [p for p in parts if p]


def _instruction(address: int, size: int, words: tuple[int, ...], mnemonic: str, rest: str) -> Instruction:
    name = mnemonic
    for suffix in _ENCODINGS:
        if name.endswith(suffix):
            name = name[: -len(suffix)]
            break
    operands: list[str] = []
    modifiers: dict[str, str] = {}
    for part in _split(rest):
        first, *others = part.split() if not part.startswith("hwreg") else [part]
        is_modifier = bool(operands) and ":" in first and "[" not in first.split(":")[0]
        for piece in ([first] if is_modifier else []) + others:
            key, _, value = piece.partition(":")
            modifiers[key] = value
        if not is_modifier:
            operands.append(first)
    text = f"{mnemonic} {rest}".strip()
    return Instruction(address, size, mnemonic, name, tuple(operands), modifiers, words, text)


def instructions(text: str) -> list[Instruction]:
    """All instructions of a disassembly, in order of address."""
    found = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            if re.match(r"^\t[a-z_.]", line) and "//" in line:
                raise NotModelled(f"line of the disassembly: {line.strip()}")
            continue
        mnemonic, rest, address = match[1], match[2] or "", int(match[3], 16)
        words = tuple(int(w, 16) for w in match[4].split())
        size = 4 * len(words)
        if "::" in rest:
            left, right = (part.strip() for part in rest.split("::"))
            other, _, other_rest = right.partition(" ")
            second = _instruction(address, size, words, other, other_rest.strip())
            first = _instruction(address, size, words, mnemonic, left)
            text_ = f"{first.text} :: {second.text}"
            found.append(
                Instruction(
                    address,
                    size,
                    mnemonic,
                    first.name,
                    first.operands,
                    first.modifiers,
                    words,
                    text_,
                    second,
                )
            )
        else:
            found.append(_instruction(address, size, words, mnemonic, rest))
    return found
