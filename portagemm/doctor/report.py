"""The outcome of a run as one value: counts, verdict, exit code, and the JSON document.

The document's schema is report_schema.json in this folder; `SCHEMA_VERSION` rises when a field changes its
meaning or goes away, not when one is added.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portagemm.doctor.check import GROUPS, Result, Status
from portagemm.doctor.runner import Outcome

SCHEMA = "portagemm-doctor"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Report:
    """Outcomes of one machine, or of the comparison of several.

    Attributes:
        outcomes: in the order of the report. machine: see `identity`. strict: warnings fail too.
        require_gpu: as `Options.require_gpu`. subject: "machine" or "cluster".
    """

    outcomes: Sequence[Outcome]
    machine: Mapping[str, Any]
    strict: bool = False
    require_gpu: str = ""
    subject: str = "machine"

    def of(self, *statuses: Status) -> list[Outcome]:
        """The outcomes of these statuses, in the order of the report."""
        return [outcome for outcome in self.outcomes if outcome.result.status in statuses]

    @property
    def counts(self) -> dict[str, int]:
        """Status name -> how many."""
        found = Counter(outcome.result.status.name for outcome in self.outcomes)
        return {status.name: found.get(status.name, 0) for status in Status}

    @property
    def exit_code(self) -> int:
        """1 if a check failed or could not be carried out, or warned and that is not accepted; else 0."""
        bad = [Status.FAIL, Status.ERR, *([Status.WARN] if self.strict else [])]
        return 1 if self.of(*bad) else 0

    @property
    def verdict(self) -> str:
        """The closing sentence."""
        blocking = [o for o in self.of(Status.FAIL) if o.check.severity == "blocks-use"]
        broken, failed, warned = self.of(Status.ERR), self.of(Status.FAIL), self.of(Status.WARN)
        if self.subject == "cluster":
            if failed:
                return f"The ranks do not fit together: {_count(len(failed), 'problem')} to fix."
            if broken:
                ids = ", ".join(outcome.check.id for outcome in broken)
                return f"No verdict: {ids} could not be carried out."
            return "The ranks fit together" + (f", with {_count(len(warned), 'warning')}." if warned else ".")
        gpu = _data(self.outcomes, "platform.gpu", "kinds") or []
        names = {"nvidia": "NVIDIA", "amd": "AMD"}
        kinds = " and ".join(names.get(kind, kind) for kind in gpu)
        if blocking:
            what = f"{kinds} GPUs cannot all be used" if kinds else "portagemm cannot be used as asked"
            problems = _count(len(blocking), "problem")
            return f"Not ready: {what}. {problems} to fix first; start with {blocking[0].check.id}."
        if broken:
            ids = ", ".join(outcome.check.id for outcome in broken)
            return (
                f"No verdict on everything: {ids} could not be carried out. Nothing else stands in the way."
            )
        rest = [text for text in (_some(failed, "problem"), _some(warned, "warning")) if text]
        tail = f", with {' and '.join(rest)}." if rest else "."
        if _data(self.outcomes, "platform.gpu", "kinds") is None:
            return "Nothing found that stands in the way of what was checked" + tail
        return (f"Ready for {kinds} GPUs" if kinds else "No GPU here: ready for the CPU") + tail

    def document(self) -> dict[str, Any]:
        """The JSON document, not redacted."""
        import portagemm

        now = datetime.datetime.now(datetime.timezone.utc)
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "tool_version": portagemm.__version__,
            "created": now.isoformat(timespec="milliseconds"),
            "subject": self.subject,
            "redacted": False,
            "machine": dict(self.machine),
            "options": {"strict": self.strict, "require_gpu": self.require_gpu},
            "summary": {
                "counts": self.counts,
                "verdict": self.verdict,
                "exit_code": self.exit_code,
                "failed": [outcome.check.id for outcome in self.of(Status.FAIL)],
                "warned": [outcome.check.id for outcome in self.of(Status.WARN)],
                "broken": [outcome.check.id for outcome in self.of(Status.ERR)],
            },
            "checks": [_entry(outcome) for outcome in self.outcomes],
        }


def _entry(outcome: Outcome) -> dict[str, Any]:
    check, result = outcome.check, outcome.result
    return {
        "id": check.id,
        "group": check.group,
        "title": check.title,
        "status": result.status.name,
        "severity": check.severity,
        "probe": check.probe,
        "needs": list(check.needs),
        "message": result.message,
        "details": list(result.details),
        "evidence": [{"path": item.path, "value": item.value} for item in result.evidence],
        "remedies": [
            {
                "text": item.text,
                "command": item.command,
                "root": item.root,
                "reboot": item.reboot,
                "relogin": item.relogin,
                "windows": item.windows,
                "host": item.host,
            }
            for item in result.remedies
        ],
        "data": _plain(result.data),
        "seconds": result.seconds,
    }


def _plain(value: Any) -> Any:
    """Tuples as lists and so on: what JSON gives back when it is read."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [_plain(item) for item in items]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _data(outcomes: Sequence[Outcome], check_id: str, key: str) -> Any:
    found: Result | None = next((o.result for o in outcomes if o.check.id == check_id), None)
    return None if found is None else found.data.get(key)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _some(outcomes: Sequence[Outcome], noun: str) -> str:
    return _count(len(outcomes), noun) if outcomes else ""


def group_title(group: str) -> str:
    """The heading of a group."""
    return GROUPS.get(group, group)
