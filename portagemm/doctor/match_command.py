"""``--match-error``: prints what is known of the messages in a text."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from portagemm.doctor.match import Match, find, read, read_stream
from portagemm.doctor.printable import printable


def run(text_or_file: str, *, as_json: bool, write: Callable[[str], object]) -> int:
    """Explain the messages in a text, in the file it names, or for ``-`` in what is read from standard input.

    Returns 0 if a message is known, 1 if none is.
    """
    if text_or_file == "-":
        text = read_stream(sys.stdin)
    else:
        text = read(text_or_file)
    found = find(text)
    if as_json:
        write(
            json.dumps({"schema_version": 1, "matches": [_plain(match) for match in found]}, indent=2) + "\n"
        )
    elif found:
        write("\n".join(_paragraph(match) for match in found))
    else:
        if (
            re.fullmatch(r"[\w.~+-]*/[\w./~+-]+|[\w-]+\.(?:log|txt|out|err)", text_or_file)
            and text == text_or_file
        ):
            write(f"There is no file {printable(text_or_file)} that can be read; it was taken as a text.\n")
        write(
            "No message in this text is known. Run `portagemm doctor` on the machine it comes from; it looks at"
            " causes, not at texts.\n"
        )
    return 0 if found else 1


def _plain(match: Match) -> dict[str, Any]:
    message = match.message
    return {
        "id": message.id,
        "vendor": message.vendor,
        "confidence": match.confidence,
        "line": match.line,
        "excerpt": match.excerpt,
        "means": message.means,
        "remedies": [
            {"text": item.text, "command": item.command, "marks": list(item.marks)}
            for item in message.remedies
        ],
        "checks": list(message.checks),
        "sources": list(message.sources),
    }


def _paragraph(match: Match) -> str:
    message = match.message
    lines = [f"{message.id} ({match.confidence}), line {match.line}: {printable(match.excerpt)}", ""]
    lines += textwrap.wrap(message.means, 96, initial_indent="  ", subsequent_indent="  ")
    for item in message.remedies:
        marks = f" ({'; '.join(item.marks)})" if item.marks else ""
        lines += textwrap.wrap(f"{item.text}{marks}", 94, initial_indent="  - ", subsequent_indent="    ")
        lines += [f"      {item.command}"] if item.command else []
    if message.checks:
        lines.append(f"  checks: portagemm doctor --only {','.join(message.checks)}")
    lines.append(f"  see: {' '.join(message.sources)}")
    return "\n".join(lines) + "\n"
