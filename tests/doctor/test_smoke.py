"""--smoke: what the children find becomes the right status; and the CPU's products for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from portagemm.doctor.check import Result, Status
from portagemm.doctor.host import Host
from portagemm.doctor.machine_file import MachineFile
from portagemm.doctor.replay import open_machine
from portagemm.doctor.runner import run_checks, select

from . import machine_files

PLAN = {
    "profile": "h100",
    "plan": "warp_specialized, wgmma",
    "route": "own",
    "error": "",
    "violation": 0.5,
    "seconds": 1.0,
}


def probe(key: str, value: Any, **ending: Any) -> dict[str, Any]:
    """A recorded child."""
    return {"key": f"smoke {key}", "value": value, **ending}


def products(where: str, **changes: Any) -> dict[str, Any]:
    """What a healthy device says, with the bf16 product changed."""
    results = [{"dtype": dtype, **PLAN} for dtype in ("fp16", "bf16", "fp32")]
    results[1].update(changes)
    return {"stage": "done", "device": where, "results": results}


def healthy() -> MachineFile:
    """Two H100 on which everything is right."""
    machine = machine_files.machine("h100")
    machine.probes += [
        probe("devices", {"cuda": "12.8", "hip": None, "names": ["NVIDIA H100", "NVIDIA H100"]}),
        probe("alloc", {"stage": "done", "results": ["", ""]}),
        probe("pinned", {"stage": "done", "size": 256 << 20, "errors": []}),
        probe("p2p", {"stage": "done", "count": 2, "pairs": 2, "direct": 2, "wrong": []}),
        *(probe(f"gemm {where}", products(where)) for where in ("cpu", "cuda:0", "cuda:1")),
    ]
    return machine


def examine(machine: MachineFile, folder: Path) -> dict[str, Result]:
    """Results of the smoke checks."""
    host = open_machine(machine, folder)
    checks = select(only=["smoke"], classes=("passive", "process", "gpu", "smoke"))
    return {o.check.id: o.result for o in run_checks(host, checks) if o.check.group == "smoke"}


@pytest.mark.quick
def test_healthy(tmp_path: Path) -> None:
    found = examine(healthy(), tmp_path)
    statuses = {name: result.status for name, result in found.items()}
    every = ("smoke.alloc", "smoke.pinned", "smoke.p2p", "smoke.gemm")
    assert statuses == dict.fromkeys(every, Status.PASS)
    assert found["smoke.gemm"].message == "9 products right on 3 devices"
    assert any("profile h100, warp_specialized, wgmma" in line for line in found["smoke.gemm"].details)


#: What a child says -> the check that fires, and what it says. The rest of the machine is healthy.
CHANGES: dict[str, tuple[str, Any, dict[str, Any], str, str]] = {
    "memory differs": ("alloc", {"stage": "done", "results": ["", "what was written is not what is read"]}, {},
                       "FAIL smoke.alloc", "cuda:1"),
    "memory crashes": ("alloc", {"stage": "cuda:1", "results": [""]}, {"code": -11},
                       "FAIL smoke.alloc", "SIGSEGV (cuda:1)"),
    "pinned edge": ("pinned", {"stage": "done", "size": 255 << 20, "errors": ["out of memory"]}, {},
                    "WARN smoke.pinned", "255 MiB"),
    "no pinned": ("pinned", {"stage": "done", "size": 0, "errors": ["out of memory"]}, {},
                  "WARN smoke.pinned", "none"),
    "peer copy wrong": ("p2p", {"stage": "done", "count": 2, "pairs": 2, "direct": 2, "wrong": [[0, 1, "5 wrong"]]},
                        {}, "FAIL smoke.p2p", "cuda:0 to cuda:1: 5 wrong"),
    "peer copy hangs": ("p2p", {"stage": "cuda:0 -> cuda:1"}, {"problem": "timed-out", "code": -9},
                        "FAIL smoke.p2p", "does not end (cuda:0 -> cuda:1)"),
    "wrong product": ("gemm cuda:1", products("cuda:1", error="3 of 16899 elements beyond T16"), {},
                      "FAIL smoke.gemm", "cuda:1 bf16: 3 of 16899"),
    "product crashes": ("gemm cuda:0", {"stage": "bf16", "device": "cuda:0", "results": []}, {"code": -6},
                        "FAIL smoke.gemm", "cuda:0: crashes with SIGABRT (bf16)"),
    "product hangs": ("gemm cpu", {"stage": "fp16", "device": "cpu", "results": []},
                      {"problem": "timed-out", "code": -9}, "FAIL smoke.gemm", "cpu: does not end (fp16)"),
    "torch's library": ("gemm cuda:0", products("cuda:0", route="vendor", reason="no profile"), {},
                        "WARN smoke.gemm", "1 products"),
    "slow": ("gemm cuda:1", {**products("cuda:1"), "speed": {"flops": 49e12, "peak": 989e12}}, {},
             "WARN smoke.gemm", "cuda:1 reaches 5.0% of its peak"),
    "not slow": ("gemm cuda:1", {**products("cuda:1"), "speed": {"flops": 50e12, "peak": 989e12}}, {},
                 "PASS smoke.gemm", "9 products"),
    "no peak known": ("gemm cuda:1", {**products("cuda:1"), "speed": {"flops": 1e9, "peak": 0.0}}, {},
                      "PASS smoke.gemm", "9 products"),
    "no CPU compiler": ("gemm cpu", products("cpu", route="vendor", reason="no compiler"), {},
                        "PASS smoke.gemm", "8 products"),
}  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("name", CHANGES)
def test_one_fault_fires_one_check(name: str, tmp_path: Path) -> None:
    key, value, ending, outcome, words = CHANGES[name]
    status, check_id = outcome.split()
    machine = healthy()
    machine.probes = [item for item in machine.probes if item["key"] != f"smoke {key}"]
    machine.probes.append(probe(key, value, **ending))
    found = examine(machine, tmp_path)
    assert found[check_id].status.name == status and words in found[check_id].message, found[check_id]
    assert all(result.status is Status.PASS for other, result in found.items() if other != check_id)


@pytest.mark.quick
def test_nothing_runs_where_torch_does_not_import(tmp_path: Path) -> None:
    machine = healthy()
    for item in machine.probes:
        if item["key"] == "torch_import":
            item.update(value={"stage": "import"}, code=1)
    assert {result.status for result in examine(machine, tmp_path).values()} == {Status.SKIP}


@pytest.mark.quick
def test_machine_without_gpu(tmp_path: Path) -> None:
    machine = machine_files.machine("cpu-laptop")
    machine.probes += [
        probe("devices", {"cuda": None, "hip": None, "names": []}),
        probe("gemm cpu", products("cpu")),
    ]
    found = examine(machine, tmp_path)
    assert found["smoke.gemm"].status is Status.PASS
    assert {found[name].status for name in ("smoke.alloc", "smoke.pinned", "smoke.p2p")} == {Status.SKIP}


@pytest.mark.usefixtures("private_cache")
def test_products_of_this_machine() -> None:
    """The CPU's kernels are compiled and run for real, in the child, against FP64."""
    checks = [item for item in select(only=["smoke.gemm"], classes=("smoke",)) if item.id == "smoke.gemm"]
    (outcome,) = run_checks(Host(), checks)
    assert outcome.result.status in (Status.PASS, Status.INFO), outcome.result
    if outcome.result.status is Status.INFO:
        pytest.skip("no C++ compiler: torch's library serves the CPU")
    assert outcome.result.data["right"] >= 3 and any("profile cpu" in line for line in outcome.result.details)


@pytest.mark.usefixtures("private_cache")
def test_speed_is_measured() -> None:
    """The figure that a GPU's child takes, on the CPU: a rate and the board's peak, by the same way."""
    pytest.importorskip("torch", reason="torch is not installed")
    from portagemm.doctor.probes import smoke

    found = smoke.speed("cpu", size=64, repeats=2)
    assert found["flops"] > 1e6 and found["peak"] >= 0
