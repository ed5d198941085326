"""A run on the terminal: progress while it goes, a table at its end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .report import Report, Row
from .run import Runner
from .suites import BenchCase


def run_with_progress(runner: Runner, label: str, cases: Sequence[BenchCase]) -> Report:
    """Run the cases, show where the run is, print the table."""
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=sum(len(case.timings) for case in cases))

        def seen(row: Row) -> None:
            progress.update(task, advance=1, description=f"{label} {row.dtype} [{row.m}, {row.n}, {row.k}]")

        report = runner.run(label, cases, seen)
    console.print(_table(report))
    for row in report.failed:
        console.print(
            f"FAILED {row.dtype} {row.layout} [{row.m}, {row.n}, {row.k}]: {row.error}",
            style="red",
            markup=False,
        )
    return report


def _table(report: Report) -> Table:
    """A line a row; plans are in the JSON file, they are too wide for here."""
    table = Table(title=f"{report.suite} on {report.gpu}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("M, N, K")
    for name in ("us", "TFLOP/s", "read us", "torch us", "ratio", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        batch = f"{row.batch} x " if row.batch > 1 else ""
        table.add_row(
            f"{row.dtype} {row.layout} {batch}{row.m}, {row.n}, {row.k} {row.timing}",
            _figure(row.us, ".1f"),
            _figure(row.tflops, ".4g"),
            _figure(row.read_us, ".1f"),
            _figure(row.peers_us.get("torch"), ".1f"),
            _figure(row.ratio(), ".3f"),
            _figure(row.max_rel_err, ".0e") if row.error is None else "FAILED",
            style="red" if row.error is not None else None,
        )
    return table


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
