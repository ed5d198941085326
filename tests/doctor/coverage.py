"""Which of the reported failures the doctor finds, and how. ``python -m tests.doctor.coverage`` writes the page."""

from __future__ import annotations

from pathlib import Path

from portagemm.doctor import match

from . import machine_files
from .failure_reports import REPORTS
from .message_cases import EXCERPTS
from .test_cluster import MUTATIONS
from .test_smoke import CHANGES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "doctor-coverage.md"

#: Failures between ranks: the fixture is a set of reports in which one field of one rank is changed.
BETWEEN_RANKS = {44: ("NCCL", "another model", "plugin", "driver, major"), 45: ("same GPU",)}

#: Failures that only running something shows: the fixture is what the children of --smoke find.
BY_SMOKE = {20: ("pinned edge", "no pinned"), 43: ("peer copy wrong",), 52: ("slow",), 57: ("wrong product",)}


def by_check() -> dict[int, list[tuple[str, str]]]:
    """Report -> (check that finds it, fixture), as the fixtures' own `reports` sections and BETWEEN_RANKS say."""
    found: dict[int, list[tuple[str, str]]] = {}
    for name in machine_files.NAMES:
        for number, check_id in machine_files.reports(name):
            found.setdefault(number, []).append((check_id, name))
    for number, changes in BETWEEN_RANKS.items():
        for change in changes:
            found.setdefault(number, []).append((MUTATIONS[change][1], f"ranks: {change}"))
    for number, changes in BY_SMOKE.items():
        for change in changes:
            found.setdefault(number, []).append((CHANGES[change][3].split()[1], f"smoke: {change}"))
    return found


def by_message() -> dict[int, list[str]]:
    """Report -> messages that its excerpts are recognised as."""
    found: dict[int, list[str]] = {}
    for excerpt in EXCERPTS:
        ids = [item.message.id for item in match.find(excerpt.text)]
        if excerpt.message in ids[:3] and excerpt.message not in found.setdefault(excerpt.report, []):
            found[excerpt.report].append(excerpt.message)
    return found


def page() -> str:
    """The text of the page."""
    checks, messages = by_check(), by_message()
    either = {*checks, *(number for number, ids in messages.items() if ids)}
    lines = [
        "# What the doctor finds of what was reported",
        "",
        f"{len(REPORTS)} failures that users of GPU software reported, and how `portagemm doctor` finds each.",
        f"{len(checks)} are found by a check on a fixture built from the report (a machine in `tests/doctor/machines`,",
        f"a set of ranks, a smoke test); {len(either)} by a check or, from their text alone, by `--match-error`.",
        "Tests run every fixture and every text; this page is written by `python -m tests.doctor.coverage`.",
        "",
        "| # | what was seen | check (fixture) | known message |",
        "| --- | --- | --- | --- |",
    ]
    for number, symptom in REPORTS.items():
        shown = "; ".join(
            f"`{check_id}` ({fixture})" for check_id, fixture in dict.fromkeys(sorted(checks.get(number, ())))
        )
        known = ", ".join(f"`{name}`" for name in messages.get(number, ()))
        lines.append(f"| {number} | {symptom} | {shown} | {known} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
