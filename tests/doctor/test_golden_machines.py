"""Whole machines, healthy and broken: the doctor finds exactly what is wrong, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from portagemm.doctor.check import Options, Status, all_checks
from portagemm.doctor.runner import run_checks, select

from . import machine_files

HEALTHY = (
    "cpu-laptop",
    "cpu-laptop-amd",
    "h100",
    "h100x8",
    "docker-ok",
    "mi300x8",
    "rx9070",
    "wsl2",
    "wsl2-radeon",
)


@pytest.mark.quick
@pytest.mark.parametrize("name", machine_files.NAMES)
def test_exactly_what_is_wrong(name: str) -> None:
    outcomes = machine_files.examine(name)
    said = {f"{o.result.status.name} {o.check.id}": o.result.message for o in outcomes}
    found, expected = machine_files.findings(outcomes), machine_files.expected(name)
    assert found == expected, {item: said.get(item, "") for item in found ^ expected}
    for outcome in outcomes:
        if outcome.result.status in (Status.WARN, Status.FAIL):
            assert outcome.result.remedies, f"{outcome.check.id} gives no advice"


@pytest.mark.parametrize("name", [name for name in machine_files.NAMES if machine_files.reports(name)])
def test_reports_are_found_by_the_check_that_is_named(name: str) -> None:
    listed = machine_files.reports(name)
    found = {item.split()[1] for item in machine_files.findings(machine_files.examine(name))}
    assert {check_id for _, check_id in listed} <= found


def test_healthy_machines_are_among_them() -> None:
    for name in HEALTHY:
        assert not machine_files.expected(name)


def test_enough_machines() -> None:
    assert len(machine_files.NAMES) >= 25


@pytest.mark.parametrize(
    ("name", "required", "fails"),
    [
        ("cpu-laptop", "", False),
        ("cpu-laptop", "any", True),
        ("cpu-laptop", "nvidia", True),
        ("h100", "any", False),
        ("h100", "nvidia", False),
        ("h100", "amd", True),
        ("mi300x8", "amd", False),
        ("mi300x8", "nvidia", True),
        ("wsl2", "nvidia", False),
        ("wsl2-radeon", "amd", False),
        ("hybrid-nvidia-amd", "nvidia", False),
        ("h100x8-no-fabric-manager", "nvidia", True),  # there, and does not start
        ("mi300x8-stale-session", "any", True),
        ("cpu-laptop-amd", "amd", True),  # integrated graphics alone is no GPU to compute on
    ],
)
def test_a_required_gpu(name: str, required: str, fails: bool, tmp_path: Path) -> None:
    outcomes = run_checks(machine_files.host(name, tmp_path), select(), Options(require_gpu=required))
    result = next(o.result for o in outcomes if o.check.id == "platform.gpu")
    assert (result.status is Status.FAIL) == fails, result


#: Checks that only inform: nothing they find is wrong.
_INFORMS = {
    "amd.partition",
    "cluster.facts",
    "container.kind",
    "platform.virt",
    "tool.cc",
    "tool.known-miscompile",
    "wsl.limits",
}
#: Fires only with an option (test_a_required_gpu).
_BY_OPTION = {"platform.gpu"}


def test_every_check_fires_on_one_machine_and_passes_on_another() -> None:
    fired: set[str] = set()
    passed: set[str] = set()
    for name in machine_files.NAMES:
        for outcome in machine_files.examine(name):
            if outcome.result.status.name in machine_files.FINDINGS:
                fired.add(outcome.check.id)
            elif outcome.result.status in (Status.PASS, Status.INFO):
                passed.add(outcome.check.id)
    # checks that need a GPU, kernels or several machines have tests of their own
    ours = {check_id for check_id, item in all_checks().items() if item.probe in ("passive", "process")}
    assert ours - fired == _INFORMS | _BY_OPTION
    assert ours - passed == set()
