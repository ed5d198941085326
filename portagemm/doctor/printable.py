"""Texts of machines as they may be printed: without what a terminal would take for a command."""

from __future__ import annotations

import re
from typing import Any

#: C0 (but tab and newline), DEL and C1; what turns the direction of writing; line breaks beyond ASCII.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_BREAK = re.compile(r"[\t\n]+")
#: In JSON all below space are escaped already.
_RAW_IN_JSON = re.compile("[\x7f-\x9f]")


def printable(text: str, lines: bool = False) -> str:
    """The text without control characters. lines: tabs and newlines are meant; else each is a space."""
    text = _CONTROL.sub("", text)
    return text if lines else _BREAK.sub(" ", text)


def printable_document(value: Any, key: str = "") -> Any:
    """A JSON value whose texts are printable. Commands may have several lines."""
    if isinstance(value, str):
        return printable(value, lines=key in ("command", "value"))
    if isinstance(value, dict):
        return {printable(str(name)): printable_document(item, str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_document(item, key) for item in value]
    return value


def printable_json(text: str) -> str:
    """JSON that a terminal may be shown: the same values, with DEL and C1 escaped."""
    return _RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
