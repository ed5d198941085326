"""One check on a golden machine that was changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from portagemm.doctor.check import Options, Result, all_checks
from portagemm.doctor.replay import open_machine
from portagemm.doctor.runner import run_checks, select

from . import machine_files
from .changes import Change


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., Result]:
    """Runs one check on a machine that was changed, and returns its result."""
    count = 0

    def run(name: str, check_id: str, change: Change | None = None, require_gpu: str = "") -> Result:
        nonlocal count
        count += 1
        machine = machine_files.machine(name)
        if change is not None:
            change(machine)
        host = open_machine(machine, tmp_path / str(count))
        wanted = {check_id, *all_checks()[check_id].after}
        outcomes = run_checks(host, select(only=sorted(wanted)), Options(require_gpu))
        return next(outcome.result for outcome in outcomes if outcome.check.id == check_id)

    return run
