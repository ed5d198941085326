"""The report for people: grouped lines, how to fix what is wrong, a closing verdict. And as Markdown.

Both are made of the (redacted) JSON document, so that what is printed is what is in the file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portagemm.doctor.check import GROUPS
from portagemm.doctor.printable import printable_document

_MARKS = {"PASS": "✓", "INFO": "i", "WARN": "!", "FAIL": "✗", "SKIP": "–", "ERR": "?"}
_PLAIN_MARKS = {"PASS": "+", "INFO": "i", "WARN": "!", "FAIL": "x", "SKIP": "-", "ERR": "?"}
_COLOURS = {"PASS": "32", "INFO": "36", "WARN": "33", "FAIL": "31", "SKIP": "90", "ERR": "35"}
_CONDITIONS = (
    ("root", "needs root"),
    ("windows", "on the Windows side"),
    ("host", "outside the container"),
    ("relogin", "log in again afterwards"),
    ("reboot", "reboot afterwards"),
)


@dataclass(frozen=True)
class Style:
    """How to print. colour: ANSI colours. unicode: marks beyond ASCII. verbose: skipped checks, evidence and
    times too; quiet: only what is wrong. width: columns."""

    colour: bool = False
    unicode: bool = True
    verbose: bool = False
    quiet: bool = False
    width: int = 100

    def mark(self, status: str) -> str:
        """The sign of a status, coloured."""
        return self.paint((_MARKS if self.unicode else _PLAIN_MARKS)[status], _COLOURS[status])

    def paint(self, text: str, code: str) -> str:
        """The text in a colour, if colours are wanted."""
        return f"\033[{code}m{text}\033[0m" if self.colour else text


def human(document: Mapping[str, Any], style: Style) -> str:
    """The report as text. Control characters of the document are left out."""
    document = printable_document(document)
    lines = [] if style.quiet else [style.paint(_headline(document), "1")]
    for group, checks in _groups(document["checks"], style):
        lines += ["", style.paint(GROUPS[group], "1")]
        width = max(len(check["id"]) for check in checks)
        for check in checks:
            lines += _lines(check, style, width)
    wrong = _wrong(document)
    if wrong:
        lines += ["", style.paint("How to fix", "1")]
        for check in wrong:
            lines += _fixes(check, style)
    counts = document["summary"]["counts"]
    words = {
        "FAIL": "failed",
        "ERR": "not carried out",
        "WARN": "warned",
        "PASS": "passed",
        "INFO": "for information",
    }
    words["SKIP"] = "do not apply"
    total = ", ".join(f"{counts[name]} {word}" for name, word in words.items() if counts[name])
    lines += ["", total] if not style.quiet else [""] if lines else []
    colour = "31" if document["summary"]["exit_code"] else "33" if counts["WARN"] else "32"
    lines.append(style.paint(document["summary"]["verdict"], f"1;{colour}"))
    return "\n".join(lines) + "\n"


def _headline(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    if document["subject"] == "cluster":
        return f"portagemm doctor {document['tool_version']}: comparison"
    place = machine.get("surroundings", "")
    return (
        f"portagemm doctor {document['tool_version']} on {place}"
        if place
        else f"portagemm doctor {document['tool_version']}"
    )


def _groups(
    checks: Sequence[Mapping[str, Any]], style: Style
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for group in GROUPS:
        shown = [check for check in checks if check["group"] == group and _visible(check, style)]
        if shown:
            yield group, shown


def _visible(check: Mapping[str, Any], style: Style) -> bool:
    if style.quiet:
        return check["status"] in ("WARN", "FAIL", "ERR")
    return style.verbose or check["status"] != "SKIP" or "because" in check["data"]


def _wrong(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = [
        check for check in document["checks"] if check["status"] in ("FAIL", "WARN") and check["remedies"]
    ]
    return sorted(found, key=lambda check: check["status"])  # FAIL before WARN


def _lines(check: Mapping[str, Any], style: Style, width: int) -> list[str]:
    bright = check["status"] in ("FAIL", "WARN", "ERR")
    name = check["id"].ljust(width)
    head = f"  {style.mark(check['status'])} {name if bright else style.paint(name, '90')}  "
    indent = " " * (width + 6)
    wrapped = _wrap(check["message"], style.width - len(indent)) or [""]
    lines = [head + wrapped[0], *(indent + line for line in wrapped[1:])]
    details = check["details"] if bright or style.verbose or check["status"] == "INFO" else []
    for detail in details:
        lines += [indent + line for line in _wrap(detail, style.width - len(indent))]
    if style.verbose:
        for item in check["evidence"]:
            lines.append(indent + style.paint(f"{item['path']}: {_one_line(item['value'])}", "90"))
        if check["seconds"] >= 0.05:
            lines.append(indent + style.paint(f"took {check['seconds']:.2f} s", "90"))
    return lines


def _fixes(check: Mapping[str, Any], style: Style) -> list[str]:
    lines = [f"  {style.mark(check['status'])} {check['id']}: {check['message']}"]
    several = len(check["remedies"]) > 1
    for number, remedy in enumerate(check["remedies"], 1):
        conditions = [word for key, word in _CONDITIONS if remedy[key]]
        tail = f" [{', '.join(conditions)}]" if conditions else ""
        lead = f"    {number}. " if several else "    "
        wrapped = _wrap(remedy["text"] + tail, style.width - len(lead))
        lines += [lead + wrapped[0], *(" " * len(lead) + line for line in wrapped[1:])]
        for command in remedy["command"].splitlines():
            lines.append(" " * len(lead) + style.paint(f"$ {command}", "1"))
    return lines


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(40, width), break_long_words=False, break_on_hyphens=False)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:157] + "..."


def markdown(document: Mapping[str, Any]) -> str:
    """The report for an issue tracker: the verdict, what is wrong, and everything else folded away."""
    document = printable_document(document)
    machine, summary = document["machine"], document["summary"]
    lines = [f"**portagemm doctor {document['tool_version']}**: {summary['verdict']}", ""]
    facts = [
        f"{key}: {machine[key]}"
        for key in ("surroundings", "kernel", "machine", "python")
        if machine.get(key)
    ]
    if facts:
        lines += [" · ".join(_escape(fact) for fact in facts), ""]
    wrong = [check for check in document["checks"] if check["status"] in ("FAIL", "WARN", "ERR")]
    if wrong:
        lines += ["| | check | finding |", "| --- | --- | --- |"]
        for check in sorted(wrong, key=lambda check: ("FAIL", "ERR", "WARN").index(check["status"])):
            text = "<br>".join(_escape(part) for part in [check["message"], *check["details"]])
            lines.append(f"| {check['status']} | `{check['id']}` | {text} |")
        lines.append("")
        for check in wrong:
            for item in check["evidence"]:
                lines.append(f"- `{check['id']}` {_code(item['path'])}: {_code(_one_line(item['value']))}")
        lines.append("")
    lines += ["<details><summary>All checks</summary>", "", "| | check | finding |", "| --- | --- | --- |"]
    for check in document["checks"]:
        lines.append(f"| {check['status']} | `{check['id']}` | {_escape(check['message'])} |")
    lines += ["", "</details>", ""]
    return "\n".join(lines)


def _escape(text: str) -> str:
    for character in "\\|<>*_`":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


def _code(text: str) -> str:
    return "`" + text.replace("`", "'") + "`" if text else "(empty)"
