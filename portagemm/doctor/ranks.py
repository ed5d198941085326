"""The reports of several machines or ranks, as the cluster checks take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Ranks of one job; beyond, a variable is wrong.
MOST_RANKS = 1_000_000


@dataclass(frozen=True)
class Ranks:
    """Reports of one comparison.

    Attributes:
        reports: documents of `--json`, in any order.
        expected: how many there should be, None if nobody said.
        unreadable: file (or rank) -> why its report cannot be used.
    """

    reports: tuple[Mapping[str, Any], ...]
    expected: int | None = None
    unreadable: Mapping[str, str] | None = None

    @property
    def ordered(self) -> list[tuple[str, Mapping[str, Any]]]:
        """(label, report), sorted by rank, then host, then content, so that the order given does not matter."""
        keyed = sorted(
            self.reports,
            key=lambda report: (_rank_key(report), report["machine"].get("host", ""), str(report)),
        )
        labels: dict[str, int] = {}
        found = []
        for report in keyed:
            name = label(report)
            labels[name] = labels.get(name, 0) + 1
            found.append((name if labels[name] == 1 else f"{name} #{labels[name]}", report))
        return found

    def groups(self, value: Callable[[Mapping[str, Any]], Any]) -> list[tuple[Any, list[str]]]:
        """The values that occur, each with the ranks that have it; the commonest first, ties by rank."""
        found: list[tuple[Any, list[str]]] = []
        for name, report in self.ordered:
            own = value(report)
            for known, names in found:
                if known == own:
                    names.append(name)
                    break
            else:
                found.append((own, [name]))
        return sorted(found, key=lambda item: -len(item[1]))  # stable

    @property
    def world(self) -> int:
        """How many ranks there should be."""
        said = [report["machine"].get("world_size") for report in self.reports]
        return max(
            [
                self.expected or 0,
                len(self.reports) if self.expected is None else 0,
                *(size for size in said if size),
            ],
            default=0,
        )


def _rank_key(report: Mapping[str, Any]) -> int:
    rank = report["machine"].get("rank")
    return rank if isinstance(rank, int) else 1 << 30


def label(report: Mapping[str, Any]) -> str:
    """``rank 3 (host-ab12cd34)``."""
    machine = report["machine"]
    host = machine.get("host", "unknown host")
    return host if machine.get("rank") is None else f"rank {machine['rank']} ({host})"


def names(ranks: Sequence[str]) -> str:
    """A few of them, and how many more."""
    return ", ".join(ranks[:4]) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")


def data(report: Mapping[str, Any], check_id: str) -> Mapping[str, Any]:
    """The data of a check in a report; empty if it did not run."""
    for entry in report.get("checks", ()):
        if entry.get("id") == check_id:
            found = entry.get("data")
            return found if isinstance(found, dict) else {}
    return {}


def fact(report: Mapping[str, Any], key: str) -> Any:
    """A value of cluster.facts in a report; None if it was not collected."""
    return data(report, "cluster.facts").get(key)
