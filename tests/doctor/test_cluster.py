"""Comparing ranks: the one that differs is found by exactly one check, whatever the order; and how reports meet."""

from __future__ import annotations

import copy
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portagemm.doctor.check import Status, all_checks
from portagemm.doctor.cluster import (
    ClusterError,
    _over_store,
    first_node,
    gather_and_compare,
    job_name,
    rendezvous,
)
from portagemm.doctor.compare import compare, compare_files, problem
from portagemm.doctor.host import Host
from portagemm.doctor.ranks import Ranks
from portagemm.doctor.replay import open_machine
from portagemm.doctor.runner import run_checks, select

from . import machine_files

Report = dict[str, Any]
WORLD = 4


def report(rank: int, name: str = "h100x8") -> Report:
    """The report of one rank of a job on two hosts with two ranks each."""
    facts = next(o.result.data for o in machine_files.examine(name) if o.check.id == "cluster.facts")
    data = json.loads(json.dumps(facts))
    uuid = f"GPU-0000000{rank}-0000-0000-0000-000000000000"
    data.update(
        device=uuid,
        portagemm={
            "sources": "aa",
            "kernels": "bb",
            "tuning": {"tuned-nvidia-h100.json": "cc"},
            "variables": {},
        },
        hca={"mlx5_0/1": "InfiniBand 400 Gb/sec (4X NDR) ACTIVE"},
        env={"CUDA_MODULE_LOADING": "dd", "TORCH_LOGS_FORMATTED": "ee"},
        nccl={
            "packages": {"nvidia-nccl-cu12": "2.27.3"},
            "plugins": ["libnccl-net.so"],
            "env": {"NCCL_IB_HCA": "ff"},
        },
    )
    return {
        "schema": "portagemm-doctor",
        "schema_version": 1,
        "tool_version": "0.1.0",
        "created": "2026-11-29T12:00:00.000+00:00",
        "subject": "machine",
        "machine": {
            "host": f"host-{rank // 2}", "rank": rank, "local_rank": rank % 2, "world_size": WORLD,
            "portagemm": "0.1.0",
        },
        "checks": [{"id": "cluster.facts", "status": "INFO", "data": data}],
    }  # fmt: skip


def reports() -> list[Report]:
    """All ranks of the job, in order."""
    return [report(rank) for rank in range(WORLD)]


def facts(one: Report) -> dict[str, Any]:
    """What cluster.facts holds in a report."""
    data: dict[str, Any] = one["checks"][0]["data"]
    return data


def fired(ranks: Ranks) -> dict[str, str]:
    """Ids that are not PASS or SKIP, with status and message."""
    outcomes = compare(ranks).outcomes
    return {
        o.check.id: f"{o.result.status.name} {o.result.message}"
        for o in outcomes
        if o.result.status not in (Status.PASS, Status.SKIP)
    }


def _set(*path: str, value: Any) -> Callable[[Report], None]:
    def change(one: Report) -> None:
        target: Any = facts(one)
        for step in path[:-1]:
            target = target[int(step)] if isinstance(target, list) else target[step]
        last = path[-1]
        if value is None:
            del target[int(last) if isinstance(target, list) else last]
        else:
            target[int(last) if isinstance(target, list) else last] = value

    return change


def _machine(key: str, value: Any) -> Callable[[Report], None]:
    return lambda one: one["machine"].update({key: value})


#: A field of one report changed -> the check that fires, and how.
MUTATIONS: dict[str, tuple[Callable[[Report], None], str, str]] = {
    "another model": (_set("gpus", "3", "name", value="NVIDIA H200"), "cluster.gpu", "FAIL"),
    "another architecture": (_set("gpus", "0", "arch", value="sm_80"), "cluster.gpu", "FAIL"),
    "less memory": (_set("gpus", "7", "memory_gib", value=40), "cluster.gpu", "FAIL"),
    "a GPU fewer": (_set("gpus", "0", value=None), "cluster.gpu", "FAIL"),
    "no GPU": (_set("gpus", value=[]), "cluster.gpu", "FAIL"),
    "driver, minor": (_set("drivers", "nvidia", value="580.82.07"), "cluster.driver", "WARN"),
    "driver, major": (_set("drivers", "nvidia", value="570.26"), "cluster.driver", "FAIL"),
    "no driver": (_set("drivers", "nvidia", value=None), "cluster.driver", "FAIL"),
    "torch, minor": (_set("runtime", "torch", value="2.7.1+cu128"), "cluster.runtime", "WARN"),
    "torch, build": (_set("runtime", "torch", value="2.8.0+cu126"), "cluster.runtime", "WARN"),
    "NVRTC, major": (_set("runtime", "nvrtc", value="13.0.48"), "cluster.runtime", "FAIL"),
    "python": (_set("runtime", "python", value="3.12"), "cluster.runtime", "WARN"),
    "ROCm here": (_set("runtime", "rocm", value="6.4.1"), "cluster.runtime", "FAIL"),
    "bindings, minor": (_set("libraries", "cuda-bindings", value="12.8.0"), "cluster.lib", "WARN"),
    "bindings, major": (_set("libraries", "cuda-bindings", value="13.0.1"), "cluster.lib", "FAIL"),
    "no triton": (_set("libraries", "triton", value=None), "cluster.lib", "FAIL"),
    "version": (_machine("portagemm", "0.2.0"), "cluster.portagemm", "FAIL"),
    "sources": (_set("portagemm", "sources", value="zz"), "cluster.portagemm", "FAIL"),
    "kernels": (_set("portagemm", "kernels", value="zz"), "cluster.portagemm", "FAIL"),
    "tuning table": (_set("portagemm", "tuning", "tuned-nvidia-h100.json", value="zz"), "cluster.portagemm", "FAIL"),
    "no tuning table": (_set("portagemm", "tuning", value={}), "cluster.portagemm", "FAIL"),
    "profile forced": (_set("portagemm", "variables", "PORTAGEMM_PROFILE", value="a100"), "cluster.portagemm", "FAIL"),
    "NCCL": (_set("nccl", "packages", "nvidia-nccl-cu12", value="2.21.5"), "cluster.nccl", "FAIL"),
    "plugin": (_set("nccl", "plugins", value=[]), "cluster.nccl", "FAIL"),
    "NCCL variable": (_set("nccl", "env", "NCCL_IB_HCA", value="zz"), "cluster.nccl", "FAIL"),
    "NCCL variable more": (_set("nccl", "env", "NCCL_ALGO", value="zz"), "cluster.nccl", "FAIL"),
    "variable": (_set("env", "CUDA_MODULE_LOADING", value="zz"), "cluster.env", "WARN"),
    "variable missing": (_set("env", "TORCH_LOGS_FORMATTED", value=None), "cluster.env", "WARN"),
    "link down": (_set("hca", "mlx5_0/1", value="InfiniBand 400 Gb/sec (4X NDR) DOWN"), "cluster.hca", "WARN"),
    "no adapter": (_set("hca", value={}), "cluster.hca", "WARN"),
    "processor": (_set("cpu", "vendor", value="AuthenticAMD"), "cluster.cpu", "WARN"),
    "processor model": (_set("cpu", "model", value="another"), "cluster.cpu", "WARN"),
    "same GPU": (
        _set("device", value="GPU-00000000-0000-0000-0000-000000000000"), "cluster.duplicate-gpu", "FAIL",
    ),
    "clock": (lambda one: one.update(created="2026-11-29T12:01:01.000+00:00"), "cluster.clock", "INFO"),
}  # fmt: skip


@pytest.mark.quick
def test_equal_ranks_pass() -> None:
    outcomes = compare(Ranks(tuple(reports()), WORLD)).outcomes
    assert {o.check.id: o.result.status for o in outcomes} == {
        name: Status.PASS for name, item in all_checks().items() if item.probe == "compare"
    }


@pytest.mark.quick
@pytest.mark.parametrize("name", MUTATIONS)
def test_one_field_fires_one_check_whatever_the_order(name: str) -> None:
    change, check_id, status = MUTATIONS[name]
    ranks = reports()
    change(ranks[1])
    first = fired(Ranks(tuple(ranks), WORLD))
    assert set(first) == {check_id}, first
    assert first[check_id].startswith(status)
    if check_id not in ("cluster.clock", "cluster.duplicate-gpu"):
        assert "rank 1" in first[check_id]
    for order in itertools.islice(itertools.permutations(ranks), 1, 24, 5):
        assert fired(Ranks(order, WORLD)) == first


@pytest.mark.quick
def test_order_of_gpus_and_of_fields_does_not_matter() -> None:
    ranks = reports()
    for number, one in enumerate(ranks):
        mixed = random.Random(number)
        mixed.shuffle(facts(one)["gpus"])
        for key in ("libraries", "env"):
            items = list(facts(one)[key].items())
            mixed.shuffle(items)
            facts(one)[key] = dict(items)
    assert fired(Ranks(tuple(ranks), WORLD)) == {}


@pytest.mark.quick
def test_failure_of_a_machine_is_told_with_its_rank() -> None:
    ranks = reports()
    ranks[2]["checks"].append({"id": "nvidia.fabric", "status": "FAIL", "data": {}})
    ranks[1]["checks"].append({"id": "nvidia.ecc", "status": "WARN", "data": {}})
    found = fired(Ranks(tuple(ranks), WORLD))
    assert found == {"cluster.machines": "FAIL nvidia.fabric fails on rank 2 (host-1)"}


@pytest.mark.quick
def test_clock_edge() -> None:
    ranks = reports()
    ranks[3]["created"] = "2026-11-29T12:01:00.000+00:00"
    assert fired(Ranks(tuple(ranks), WORLD)) == {}


@pytest.mark.quick
def test_two_ranks_are_compared_too() -> None:
    ranks = reports()[:2]
    for one in ranks:
        one["machine"]["world_size"] = 2
    assert fired(Ranks(tuple(ranks), 2)) == {}
    ranks[1]["created"] = "2026-11-29T12:02:00.000+00:00"
    facts(ranks[1])["runtime"]["torch"] = "2.7.1+cu128"
    found = fired(Ranks(tuple(ranks), 2))
    assert set(found) == {"cluster.clock", "cluster.runtime"}
    assert found["cluster.runtime"] == (
        "WARN torch: 2.7.1+cu128 on rank 1 (host-0), 2.8.0+cu128 on rank 0 (host-0)"
    )


@pytest.mark.quick
def test_same_gpu_on_another_host_is_another_gpu() -> None:
    ranks = reports()
    facts(ranks[2])["device"] = facts(ranks[0])["device"]
    assert fired(Ranks(tuple(ranks), WORLD)) == {}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("gone", "words"), [((2,), "no report of rank 2 (of 4)"), ((0, 3), "no report of rank 0, 3 (of 4)")]
)
def test_missing_rank(gone: tuple[int, ...], words: str) -> None:
    ranks = [one for one in reports() if one["machine"]["rank"] not in gone]
    assert fired(Ranks(tuple(ranks))) == {"cluster.missing-rank": f"FAIL {words}"}


@pytest.mark.quick
def test_rank_twice_and_reports_without_ranks() -> None:
    ranks = reports()
    ranks[3]["machine"]["rank"] = 2
    found = fired(Ranks(tuple(ranks), WORLD))
    assert "rank 3" in found["cluster.missing-rank"]
    alone = reports()
    for one in alone:
        one["machine"].update(rank=None, world_size=None)
    assert fired(Ranks(tuple(alone))) == {}
    assert set(fired(Ranks(tuple(alone), 5))) == {"cluster.missing-rank"}


@pytest.mark.quick
def test_some_reports_of_no_rank() -> None:
    """Reports of a job and of machines outside it: nothing can be said of who is missing."""
    ranks = reports()
    ranks[1]["machine"]["rank"] = None
    status = {o.check.id: o.result.status for o in compare(Ranks(tuple(ranks), WORLD)).outcomes}
    assert status.pop("cluster.missing-rank") is Status.SKIP
    assert set(status.values()) == {Status.PASS}


@pytest.mark.quick
def test_no_reports_and_reports_without_facts() -> None:
    assert fired(Ranks((), 3)) == {"cluster.missing-rank": "FAIL no report of rank 0, 1, 2 (of 3)"}
    ranks = reports()
    for one in ranks:
        one["checks"] = []
    assert fired(Ranks(tuple(ranks), WORLD)) == {}


@pytest.mark.quick
def test_files_that_are_no_reports(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    for number, one in enumerate(reports()):
        (good / f"{number}.json").write_text(json.dumps(one))
    assert compare_files([str(good)]).exit_code == 0
    (tmp_path / "cut.json").write_text(json.dumps(reports()[0])[:200])
    (tmp_path / "other.json").write_text("[1, 2]")
    (tmp_path / "newer.json").write_text(json.dumps({**reports()[0], "schema_version": 99}))
    (tmp_path / "cluster.json").write_text(json.dumps({**reports()[0], "subject": "cluster"}))
    for name, why in (
        ("cut", "not JSON"),
        ("other", "no report"),
        ("newer", "schema version 99"),
        ("cluster", "itself"),
        ("gone", "No such file"),
    ):
        result = compare_files([str(good), str(tmp_path / f"{name}.json")])
        missing = next(o.result for o in result.outcomes if o.check.id == "cluster.missing-rank")
        assert missing.status is Status.FAIL
        assert "more" not in missing.message
        assert any(why in item.value for item in missing.evidence), (name, missing)
        assert result.exit_code == 1


def _nested(levels: int) -> str:
    return json.dumps({**reports()[0], "more": 0})[:-2] + "[" * levels + "]" * levels + "}"


@pytest.mark.quick
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_nested(100), "nested too deeply"),
        (_nested(100_000), "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ({"world_size": "many"}, "its world_size is 'many'"),
        ({"world_size": [1]}, "its world_size is '[1]'"),
        ({"world_size": 2_000_000_000}, "its world_size is '2000000000'"),
        ({"rank": True}, "its rank is 'True'"),
        ({"rank": -1}, "its rank is '-1'"),
        ({"host": 3}, "host is no text"),
    ],
)
def test_one_wrong_report_is_named(text: str | dict[str, Any], why: str, tmp_path: Path) -> None:
    for number, one in enumerate(reports()[1:]):
        (tmp_path / f"{number}.json").write_text(json.dumps(one))
    if isinstance(text, dict):
        one = reports()[0]
        one["machine"] = {**one["machine"], **text}
        text = json.dumps(one)
    (tmp_path / "bad.json").write_text(text)
    result = compare_files([str(tmp_path)])
    missing = next(o.result for o in result.outcomes if o.check.id == "cluster.missing-rank")
    assert missing.status is Status.FAIL and "bad.json" in missing.message and why in missing.message
    assert not result.of(Status.ERR)


@pytest.mark.quick
def test_checks_that_are_none(tmp_path: Path) -> None:
    data: list[Any] = [[1], {"gpus": 3}, {"gpus": [3]}, {"env": "x"}, {"device": 3}]
    for checks in ([3], [{"id": 3}], *([{"id": "cluster.facts", "data": value}] for value in data)):
        (tmp_path / "bad.json").write_text(json.dumps({**reports()[0], "checks": checks}))
        result = compare_files([str(tmp_path)])
        assert "wrong:" in str(result.of(Status.FAIL)) and not result.of(Status.ERR)


@pytest.mark.quick
def test_a_report_given_twice(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(reports()[0]))
    result = compare_files([str(tmp_path / "a.json"), f"{tmp_path}/./a.json"])
    missing = next(o.result for o in result.outcomes if o.check.id == "cluster.missing-rank")
    assert missing.status is Status.FAIL and "given twice" in missing.message


@pytest.mark.quick
def test_no_verdict_over_what_could_not_be_compared() -> None:
    ranks = reports()
    facts(ranks[0])["gpus"] = 3
    result = compare(Ranks(tuple(ranks), WORLD))
    assert result.of(Status.ERR) and not result.of(Status.FAIL)
    assert "fit together" not in result.verdict and "cluster.gpu could not be" in result.verdict
    assert result.exit_code == 1


@pytest.mark.quick
def test_warnings_fail_only_when_strict(tmp_path: Path) -> None:
    ranks = reports()
    facts(ranks[0])["cpu"]["model"] = "another"
    for number, one in enumerate(ranks):
        (tmp_path / f"{number}.json").write_text(json.dumps(one))
    assert compare_files([str(tmp_path)]).exit_code == 0
    assert compare_files([str(tmp_path)], strict=True).exit_code == 1


@pytest.mark.quick
def test_real_reports_are_comparable() -> None:
    from portagemm.doctor.identity import identity
    from portagemm.doctor.report import Report as Outcome

    outcomes = machine_files.examine("h100x8")
    host = Host("/nonexistent", {"RANK": "0", "WORLD_SIZE": "1"})
    document = json.loads(json.dumps(Outcome(outcomes, identity(host)).document()))
    assert problem(document) == ""
    assert compare(Ranks((document,), 1)).exit_code == 0


# --- gathering -------------------------------------------------------------------------------------------


def _env(rank: int, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD), **more}


@pytest.mark.quick
def test_outside_a_launcher() -> None:
    with pytest.raises(ClusterError, match="torchrun"):
        gather_and_compare(report(0), Host("/nonexistent", {}), folder=None, timeout=1, strict=False)


@pytest.mark.quick
def test_without_a_rendezvous_a_folder_is_asked_for() -> None:
    with pytest.raises(ClusterError, match="--cluster-dir"):
        gather_and_compare(report(0), Host("/nonexistent", _env(0)), folder=None, timeout=1, strict=False)


@pytest.mark.quick
def test_broken_torch_is_not_imported_here() -> None:
    """It would take this process with it: the folder is asked for at once."""
    document = report(0)
    document["checks"].append(
        {"id": "torch.import", "status": "FAIL", "message": "crashes with SIGSEGV", "data": {}}
    )
    host = Host("/nonexistent", _env(0, MASTER_ADDR="192.0.2.1", MASTER_PORT="9"))
    with pytest.raises(ClusterError, match=r"crashes with SIGSEGV.*--cluster-dir"):
        gather_and_compare(document, host, folder=None, timeout=1, strict=False)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("rank", "world", "words"),
    [
        ("0", "2000000000", "world size is 2000000000"),
        ("0", "0", "world size is 0"),
        ("0", "-2", "world size is -2"),
        ("7", "4", "rank 7 of 4"),
        ("-1", "4", "rank -1 of 4"),
    ],
)
def test_what_no_launcher_says(rank: str, world: str, words: str, tmp_path: Path) -> None:
    host = Host("/nonexistent", {"RANK": rank, "WORLD_SIZE": world})
    with pytest.raises(ClusterError, match=words):
        gather_and_compare(report(0), host, folder=str(tmp_path), timeout=0.3, strict=False)
    with pytest.raises(ClusterError, match="timeout"):
        gather_and_compare(
            report(0), Host("/nonexistent", _env(0)), folder=str(tmp_path), timeout=float("nan"), strict=False
        )


@pytest.mark.quick
def test_a_large_world_ends_in_time(tmp_path: Path) -> None:
    host = Host("/nonexistent", {"RANK": "0", "WORLD_SIZE": "1000000", "SLURM_JOB_ID": "77"})
    start = time.monotonic()
    result = gather_and_compare(report(0), host, folder=str(tmp_path), timeout=0.3, strict=False)
    assert result is not None and result.exit_code == 1
    assert time.monotonic() - start < 10


@pytest.mark.quick
def test_exchange_by_files(tmp_path: Path) -> None:
    """Rank 0 comes last here; a file of another job and one that a crashed job left do not count."""
    old = report(2)
    old["created"] = "2026-11-28T12:00:00.000+00:00"
    place = tmp_path / "portagemm-doctor-77-0"
    place.mkdir()
    (place / "rank-2.json").write_text(json.dumps(old))
    (tmp_path / "portagemm-doctor-78-0").mkdir()
    for rank in (3, 1, 0):
        host = Host("/nonexistent", _env(rank, SLURM_JOB_ID="77", SLURM_STEP_ID="0"))
        result = gather_and_compare(report(rank), host, folder=str(tmp_path), timeout=0.3, strict=False)
        assert (result is None) == (rank != 0)
    assert result is not None and result.exit_code == 1
    missing = next(o.result for o in result.outcomes if o.check.id == "cluster.missing-rank")
    assert missing.message == "no report of rank 2 (of 4)"
    host = Host("/nonexistent", _env(2, SLURM_JOB_ID="77", SLURM_STEP_ID="0"))
    assert gather_and_compare(report(2), host, folder=str(tmp_path), timeout=0.3, strict=False) is None
    host = Host("/nonexistent", _env(0, SLURM_JOB_ID="77", SLURM_STEP_ID="0"))
    whole = gather_and_compare(report(0), host, folder=str(tmp_path), timeout=5, strict=False)
    assert whole is not None and whole.exit_code == 0


@pytest.mark.quick
@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "5", "SLURM_STEP_ID": "1"}, "5-1"),
        ({"TORCHELASTIC_RUN_ID": "a/b c"}, "a-b-c"),
        ({"PMIX_NAMESPACE": "prte-host-1@1"}, "prte-host-1-1"),
        ({}, "job"),
    ],
)
def test_name_of_a_job(env: dict[str, str], name: str) -> None:
    assert job_name(Host("/nonexistent", env)) == name


@pytest.mark.quick
@pytest.mark.parametrize(
    "env",
    [
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
    ],
)
def test_launchers(env: dict[str, str]) -> None:
    one = copy.deepcopy(report(0))
    one["machine"]["world_size"] = 1
    result = gather_and_compare(one, Host("/nonexistent", env), folder=None, timeout=1, strict=False)
    assert result is not None and result.exit_code == 0


@pytest.mark.quick
@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("gpu[07-12,20],other", "gpu07"),
        ("node-3", "node-3"),
        ("a1,a2", "a1"),
        ("r[2]n[1-4]", "r2n1"),
        ("", ""),
    ],
)
def test_first_node(nodelist: str, first: str) -> None:
    assert first_node(nodelist) == first


@pytest.mark.quick
def test_where_ranks_meet() -> None:
    def meet(**env: str) -> tuple[str, int] | None:
        return rendezvous(Host("/nonexistent", env))

    assert meet(MASTER_ADDR="h", MASTER_PORT="29500", SLURM_JOB_NODELIST="n1") == ("h", 29500)
    one, same, other = (
        meet(SLURM_JOB_NODELIST="n[1-2]", SLURM_JOB_ID=job, SLURM_STEP_ID=step)
        for job, step in (("7", "0"), ("7", "0"), ("7", "1"))
    )
    assert one is not None and one == same != other and one[0] == "n1" and 20000 <= one[1] < 32000
    local = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    assert (meet(**local) or ("",))[0] == "127.0.0.1"
    assert meet(**{**local, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) is None
    assert meet() is None


_RANK = """
import json, sys
from portagemm.doctor.cluster import gather_and_compare
from portagemm.doctor.host import Host
result = gather_and_compare(json.loads(sys.stdin.read()), Host(), folder=None, timeout=float(sys.argv[1]), strict=False)
print("none" if result is None else json.dumps([[o.check.id, o.result.status.name] for o in result.outcomes]))
"""


def _start(rank: int, port: int, timeout: float) -> subprocess.Popen[str]:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env = {**os.environ, **_env(rank), "WORLD_SIZE": "2", **address}
    document = report(rank)
    document["machine"]["world_size"] = 2
    process = subprocess.Popen(
        [sys.executable, "-c", _RANK, str(timeout)],
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(document))
    process.stdin.close()
    return process


def test_exchange_over_the_rendezvous_of_torch() -> None:
    """Real processes meet by torch's store; rank 0 compares, all end."""
    pytest.importorskip("torch.distributed", reason="torch is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [_start(rank, port, 120.0) for rank in range(2)]
    said = []
    for process in started:
        assert process.stdout is not None
        said.append(process.stdout.read().strip())
        assert process.wait(120) == 0
    assert said[1] == "none"
    assert {status for _, status in json.loads(said[0])} == {"PASS"}


class _Store:
    """torch's store as far as it is used, within this process."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


@pytest.mark.quick
def test_a_rank_that_does_not_come_does_not_hold_up_the_rest() -> None:
    """Rank 2 never reports and rank 1 reports nonsense: rank 0 waits as long as it was told, and has the others'."""
    store = _Store()
    store.set("portagemm-doctor/1", json.dumps({"schema": "other"}))
    store.set("portagemm-doctor/3", json.dumps(report(3)))
    started = time.monotonic()
    received = _over_store(store, report(0), 0, WORLD, 0.3)
    assert 0.3 <= time.monotonic() - started < 5
    assert [one["machine"]["rank"] for one in received or ()] == [0, 3]
    assert store.check(["portagemm-doctor/done"])
    assert _over_store(store, report(1), 1, WORLD, 0.3) is None  # rank 0 is done: at once


@pytest.mark.quick
def test_what_a_machine_is_compared_by(tmp_path: Path) -> None:
    """Variables that differ by rank on purpose stay out; values travel as digests; each setting is in one place."""
    machine = machine_files.machine("h100x8")
    machine.env.update(
        RANK="1", LOCAL_RANK="1", WORLD_SIZE="2", CUDA_VISIBLE_DEVICES="0,1,2,3", TORCH_EXTENSIONS_DIR="/tmp/a",
        NCCL_DEBUG="INFO", NCCL_DEBUG_FILE="/tmp/r1", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
        PORTAGEMM_PROFILE="a100", MY_TOKEN="secret",
    )  # fmt: skip
    outcomes = run_checks(open_machine(machine, tmp_path), select(only=["cluster.facts"]))
    found: dict[str, Any] = dict(outcomes[0].result.data)
    assert set(found["env"]) == {"PYTORCH_CUDA_ALLOC_CONF"}
    assert set(found["nccl"]["env"]) == {"NCCL_DEBUG"}
    assert "expandable" not in json.dumps(found) and "secret" not in json.dumps(found)
    assert found["device"] and "GPU-" not in found["device"]
    assert len(found["gpus"]) == 8 and found["gpus"][0]["arch"] == "sm_90"
    assert found["runtime"] == {"torch": "2.8.0+cu128", "nvrtc": "12.8.93", "python": "3.11"}
    assert found["drivers"] == {"nvidia": "580.65.06"} and found["cpu"]["vendor"] == "GenuineIntel"
