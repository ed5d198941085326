"""``--compare``: what differs between the reports of several machines or ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portagemm.doctor.check import Result, Status, all_checks
from portagemm.doctor.ranks import MOST_RANKS, Ranks
from portagemm.doctor.report import SCHEMA, SCHEMA_VERSION, Report
from portagemm.doctor.runner import Outcome

#: Levels of a report; its own schema has about eight.
_DEEPEST = 64


def problem(document: object) -> str:
    """Why a JSON value is no report of one machine that can be compared; "" if it is."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return "no report of portagemm doctor --json"
    if document.get("schema_version") != SCHEMA_VERSION:
        return f"of schema version {document.get('schema_version')}, not {SCHEMA_VERSION}"
    if document.get("subject") != "machine":
        return "itself a comparison"
    if not isinstance(document.get("machine"), dict) or not isinstance(document.get("checks"), list):
        return "incomplete"
    return _wrong_field(document) or ("nested too deeply" if _deeper(document, _DEEPEST) else "")


def _wrong_field(document: Mapping[str, Any]) -> str:
    """Which field holds what no report does; "" if none. Checks of reports rely on these alone."""
    machine = document["machine"]
    for name, least in (("rank", 0), ("local_rank", 0), ("world_size", 1)):
        value = machine.get(name)
        if value is not None and (type(value) is not int or not least <= value <= MOST_RANKS):
            return f"wrong: its {name} is {str(value)[:40]!r}"
    if not isinstance(machine.get("host", ""), str):
        return "wrong: its host is no text"
    for entry in document["checks"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            return "wrong: one of its checks has no id"
        if not isinstance(entry.get("data", {}), dict):
            return f"wrong: the data of {entry['id'][:60]} is no object"
        if entry["id"] == "cluster.facts":
            for name, value in entry.get("data", {}).items():
                gpus = name == "gpus" and isinstance(value, list) and all(isinstance(v, dict) for v in value)
                if (
                    not gpus
                    and value is not None
                    and not isinstance(value, str if name == "device" else dict)
                ):
                    return f"wrong: {name[:60]} of cluster.facts is {str(value)[:40]!r}"
    return ""


def _deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(item, levels - 1) for item in items)


def read_reports(files: Sequence[str]) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """(reports, file -> why it cannot be used). A folder stands for its *.json. Never raises."""
    reports: list[Mapping[str, Any]] = []
    unreadable: dict[str, str] = {}
    seen: set[str] = set()
    for name in files:
        path = Path(name)
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
            real = os.path.realpath(file)
            if real in seen:
                unreadable[str(file)] = "given twice"
                continue
            seen.add(real)
            try:
                if file.exists() and not file.is_file():  # a pipe would be waited for
                    unreadable[str(file)] = "no regular file"
                    continue
                document = json.loads(file.read_text("utf-8"))
            except OSError as error:
                unreadable[str(file)] = error.strerror or str(error)
                continue
            except RecursionError:
                unreadable[str(file)] = "nested too deeply"
                continue
            except ValueError:
                unreadable[str(file)] = "not JSON, or cut off"
                continue
            reason = problem(document)
            if reason:
                unreadable[str(file)] = reason
            else:
                reports.append(document)
    return reports, unreadable


def compare(ranks: Ranks, *, strict: bool = False) -> Report:
    """Run the checks that compare over the reports of several ranks."""
    outcomes = []
    for item in all_checks().values():
        if item.probe != "compare":
            continue
        try:
            result = item.function(ranks)
        except Exception as error:  # a report of another version, or edited by hand
            result = Result(Status.ERR, f"this check itself failed: {type(error).__name__}: {error}")
        outcomes.append(Outcome(item, result))
    hosts = sorted({str(report["machine"].get("host", "")) for report in ranks.reports})
    machine = {"reports": len(ranks.reports), "hosts": hosts, "world_size": ranks.world}
    return Report(outcomes, machine, strict=strict, subject="cluster")


def compare_files(files: Sequence[str], *, expected: int | None = None, strict: bool = False) -> Report:
    """The comparison of report files (or of folders of them)."""
    reports, unreadable = read_reports(files)
    return compare(Ranks(tuple(reports), expected, unreadable), strict=strict)
