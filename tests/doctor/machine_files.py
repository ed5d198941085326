"""The golden machines: where they are, and how to open one."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from portagemm.doctor.host import Host
from portagemm.doctor.machine_file import MachineFile, load
from portagemm.doctor.replay import open_machine
from portagemm.doctor.runner import Outcome, run_checks, select

FOLDER = Path(__file__).parent / "machines"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.machine")))
#: Where small files cost least; None: the usual folder of temporary files.
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
#: Statuses that are findings.
FINDINGS = ("WARN", "FAIL", "ERR")


def machine(name: str) -> MachineFile:
    """The machine file of this name."""
    return load(FOLDER / f"{name}.machine")


def host(name: str, folder: Path) -> Host:
    """The machine, unpacked into an empty folder."""
    return open_machine(machine(name), folder)


@functools.cache
def examine(name: str) -> tuple[Outcome, ...]:
    """What the doctor says of it, with passive and process probes; found out once."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        return tuple(run_checks(host(name, Path(folder)), select()))


def findings(outcomes: Iterable[Outcome]) -> set[str]:
    """``FAIL wsl.dxg`` of everything that is not PASS, INFO or SKIP."""
    return {
        f"{outcome.result.status.name} {outcome.check.id}"
        for outcome in outcomes
        if outcome.result.status.name in FINDINGS
    }


def expected(name: str) -> set[str]:
    """What the file's `expect` section lists."""
    return set(machine(name).notes.get("expect", "").split("\n")) - {""}


def reports(name: str) -> list[tuple[int, str]]:
    """(number of a failure report, id of the check that finds it) of the file's `reports` section."""
    lines = machine(name).notes.get("reports", "").splitlines()
    return [(int(line.split()[0]), line.split()[1]) for line in lines if line.strip()]
