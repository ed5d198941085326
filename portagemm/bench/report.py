"""The result of a run: rows, the JSON document, summary figures and the printed table."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .suites import BenchCase

SCHEMA = 1

#: Shapes of at least so many rows count as large in the summary.
LARGE_M = 4096


@dataclass
class Row:
    """One case under one timing. Times are microseconds, None where not measured.

    best_us and best_plan are the fastest plan's, where all were searched in the same run.
    """

    op: str
    dtype: str
    scaling: str | None
    layout: str
    m: int
    n: int
    k: int
    batch: int
    timing: str
    profile: str | None = None
    route: str | None = None
    kernel: str | None = None
    plan: str | None = None
    us: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    read_us: float | None = None
    host_us: float | None = None
    peers_us: dict[str, float] = field(default_factory=dict)
    peers_host_us: dict[str, float] = field(default_factory=dict)
    sm_clock_mhz: int | None = None
    max_rel_err: float | None = None
    best_us: float | None = None
    best_plan: str | None = None
    error: str | None = None

    @classmethod
    def of(cls, case: BenchCase, timing: str) -> Row:
        """An empty row of a case."""
        return cls(case.op, case.dtype, None, case.layout, case.m, case.n, case.k, case.batch, timing)

    def ratio(self, peer: str = "torch") -> float | None:
        """How many times as fast as the peer, None without both times."""
        other = self.peers_us.get(peer)
        return other / self.us if other and self.us and self.error is None else None

    def set_time(self, us: float, case: BenchCase, element_bytes: int) -> None:
        """Store the time and the rates that follow: each operand read once, the output written once."""
        moved = element_bytes * case.batch * (case.m * case.k + case.k * case.n + case.m * case.n)
        self.us, self.tflops, self.gbps = us, case.flop / us / 1e6, moved / us / 1e3


@dataclass
class Report:
    """A whole run."""

    suite: str
    gpu: str
    driver: str
    versions: dict[str, str]
    commit: str
    sources_digest: str
    date: str
    ceilings: dict[str, Any]
    rows: list[Row]

    @property
    def failed(self) -> list[Row]:
        """Rows with an error."""
        return [row for row in self.rows if row.error is not None]

    def document(self) -> dict[str, Any]:
        """What goes into the JSON file, figures rounded to five digits."""
        return {"schema": SCHEMA, **_rounded(asdict(self))}

    def write(self, path: Path) -> None:
        """Write the JSON file, its folder included; a reader never sees half of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(path.name + ".part")
        aside.write_text(json.dumps(self.document(), indent=1) + "\n")
        aside.replace(path)


def gpu_folder(name: str) -> str:
    """The folder of a device's results: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean, None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def summary(rows: Sequence[Row], peer: str = "torch") -> list[tuple[str, int, float, float]]:
    """(group, rows, geometric mean, lowest) of the ratio to a peer: all, large M, and each by timing."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        ratio = row.ratio(peer)
        if ratio is not None:
            for name in ("all", f"M >= {LARGE_M}") if row.m >= LARGE_M else ("all",):
                groups.setdefault(f"{name}, {row.timing}", []).append(ratio)
    return [
        (name, len(values), geometric_mean(values) or 0.0, min(values))
        for name, values in sorted(groups.items())
    ]


def row_text(row: Row) -> str:
    """A row as a line of plain text."""
    case = f"{row.dtype} {row.layout} {row.batch}x[{row.m},{row.n},{row.k}] {row.timing}"
    if row.error is not None:
        return f"{case:44} ERROR {row.error.partition(chr(10))[0][:150]}"
    return (
        f"{case:44} {row.us or 0:9.1f} us {row.tflops or 0:7.4g} TF"
        f"  torch {row.peers_us.get('torch', 0):9.1f} us  ratio {row.ratio() or 0:5.3f}"
        f"  read {row.read_us or 0:7.1f} us  err {row.max_rel_err or 0:.0e}"
        f"{f'  best {row.best_us:9.1f} us' if row.best_us else ''}"
        f"  {(row.plan or '').partition(', waves')[0]}"
    )


def summary_text(report: Report) -> str:
    """Where it ran, the ceilings, the ratios to torch, the host cost and the failures, a line each."""
    ceilings = ", ".join(f"{name} {value}" for name, value in _rounded(report.ceilings).items())
    lines = [
        f"{report.suite} on {report.gpu}, driver {report.driver}, sources {report.sources_digest[:12]}",
        f"ceilings: {ceilings}",
    ]
    for name, count, mean, lowest in summary(report.rows):
        lines.append(f"ratio to torch, {name}: geometric mean {mean:.3f}, lowest {lowest:.3f}, {count} rows")
    from .bars import bar_lines

    lines += bar_lines(report.suite, report.rows)
    costs = {row.dtype: (row.host_us, row.peers_host_us.get("torch")) for row in report.rows if row.host_us}
    for dtype, (ours, torch_us) in costs.items():
        lines.append(f"host cost {dtype}: {ours:.2f} us a call, torch {torch_us or 0:.2f} us")
    lines.append(f"{len(report.rows)} rows, {len(report.failed)} failed")
    return "\n".join(lines)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
