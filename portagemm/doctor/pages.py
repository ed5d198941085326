"""The documentation pages of the checks, one a group, made from the checks themselves."""

from __future__ import annotations

import textwrap

from portagemm.doctor.check import GROUPS, Check, all_checks

_ABOUT = "<!-- Generated from the checks by .ci/generate_doctor.py; do not edit. -->"
_PROBES = {
    "passive": "reads files and variables only",
    "process": "runs a command or a child process",
    "gpu": "creates a context on the GPU (`--gpu`)",
    "smoke": "runs kernels (`--smoke`)",
    "compare": "compares the reports of several ranks (`--compare`, `--cluster`)",
}
_SEVERITIES = {
    "blocks-use": "a failure blocks use",
    "degrades": "a finding degrades use",
    "cosmetic": "for information",
}


def pages() -> dict[str, str]:
    """File name -> text of every page, the index included."""
    checks = all_checks()
    by_group = {group: [item for item in checks.values() if item.group == group] for group in GROUPS}
    found = {f"{group}.md": _page(group, items) for group, items in by_group.items() if items}
    found["README.md"] = _index({group: items for group, items in by_group.items() if items})
    return found


def _index(by_group: dict[str, list[Check]]) -> str:
    lines = [
        _ABOUT,
        "# The doctor's checks",
        "",
        "`portagemm doctor` runs these; `portagemm doctor --explain ID` prints an entry.",
    ]
    for group, items in by_group.items():
        lines += [
            "",
            f"## [{GROUPS[group]}]({group}.md)",
            "",
            "| check | what holds when it passes |",
            "| --- | --- |",
        ]
        lines += [f"| [`{item.id}`]({group}.md#{_anchor(item.id)}) | {item.title} |" for item in items]
    return "\n".join(lines) + "\n"


def _page(group: str, items: list[Check]) -> str:
    lines = [_ABOUT, f"# {GROUPS[group]}"]
    for item in items:
        lines += ["", f"## {item.id}", "", f"**{item.title}.**"]
        for paragraph in item.explanation.split("\n\n"):
            lines += [
                "",
                *textwrap.wrap(
                    " ".join(paragraph.split()), 110, break_long_words=False, break_on_hyphens=False
                ),
            ]
        lines += ["", f"- Reads: {', '.join(f'`{name}`' for name in item.reads)}"]
        lines.append(f"- Severity: {_SEVERITIES[item.severity]}. Probe: {_PROBES[item.probe]}.")
        if item.needs:
            links = ", ".join(
                f"[`{other}`]({other.partition('.')[0]}.md#{_anchor(other)})" for other in item.needs
            )
            lines.append(f"- Skipped unless these pass: {links}")
    return "\n".join(lines) + "\n"


def _anchor(check_id: str) -> str:
    """The anchor GitHub gives a heading: without dots."""
    return check_id.replace(".", "")
