"""``--cluster``: every rank of a launcher examines its machine; one rank gets all reports and compares them.

Reports travel over torch.distributed with gloo, which needs no GPU; where torch is missing or broken, or the
launcher gives no rendezvous, through files in a shared folder.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from portagemm.doctor.compare import compare, problem, read_reports
from portagemm.doctor.host import Host
from portagemm.doctor.identity import rank, world_size
from portagemm.doctor.ranks import MOST_RANKS, Ranks
from portagemm.doctor.report import Report

MOST_SECONDS = 86400.0


class ClusterError(OSError):
    """The ranks cannot be brought together; the message says what is missing."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.strerror = text


def gather_and_compare(
    document: Mapping[str, Any], host: Host, *, folder: str | None, timeout: float, strict: bool
) -> Report | None:
    """Send this rank's report to rank 0; there, return the comparison; elsewhere None.

    Args:
        document: this rank's report, redacted.
        folder: exchange by files in this folder, which all ranks share; None: over gloo.
        timeout: seconds rank 0 waits for the others. Ranks that do not come are reported as missing.

    Raises ClusterError outside a launcher.
    """
    position, world = rank(host), world_size(host)
    if position is None or world is None:
        raise ClusterError(
            "--cluster runs on every rank of a launcher: torchrun --nnodes N ... -m portagemm.doctor --cluster,"
            " or mpirun or srun in front of it; without one, use --json on each machine and --compare"
        )
    if not 1 <= world <= MOST_RANKS:
        raise ClusterError(f"the launcher's world size is {world}; it must be 1 to {MOST_RANKS}")
    if not 0 <= position < world:
        raise ClusterError(f"the launcher says rank {position} of {world}; ranks are 0 to {world - 1}")
    if not 0 <= timeout <= MOST_SECONDS:  # not a number is neither
        raise ClusterError(f"--cluster-timeout {timeout:g} is not within 0 to {MOST_SECONDS:g} seconds")
    if world == 1:
        return compare(Ranks((document,), 1), strict=strict)
    reports: list[Mapping[str, Any]] | None
    unreadable: dict[str, str] = {}
    if folder is None:
        reports, reason = _over_gloo(document, host, position, world, timeout)
        if reason:
            raise ClusterError(f"{reason}; name a folder that all ranks share: --cluster-dir FOLDER")
    else:
        reports, unreadable = _over_files(document, Path(folder), job_name(host), position, world, timeout)
    if position != 0:
        return None
    return compare(Ranks(tuple(reports or ()), world, unreadable), strict=strict)


def _over_gloo(
    document: Mapping[str, Any], host: Host, position: int, world: int, timeout: float
) -> tuple[list[Mapping[str, Any]] | None, str]:
    """(all reports on rank 0, why it did not work)."""
    meeting = rendezvous(host)
    if meeting is None:
        return None, "the launcher set no MASTER_ADDR and MASTER_PORT"
    address, port = meeting
    broken = next(
        (entry for entry in document.get("checks", ()) if entry.get("id") == "torch.import"), {"status": ""}
    )
    if broken["status"] == "FAIL":  # it may crash or hang: not here
        return None, f"torch cannot be imported ({broken.get('message', '')})"
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    except Exception as error:  # a broken torch is one of the things this is for
        return None, f"torch cannot be imported ({type(error).__name__}: {error})"
    try:
        store = TCPStore(
            address,
            port,
            world,
            # torchrun's agent already serves a store there
            is_master=position == 0 and host.env.get("TORCHELASTIC_USE_AGENT_STORE", "") != "True",
            timeout=datetime.timedelta(seconds=timeout),
            wait_for_workers=False,
        )
        return _over_store(store, document, position, world, timeout), ""
    except Exception as error:
        return (
            None,
            f"the ranks did not meet at {address}:{port} ({type(error).__name__}: {str(error).splitlines()[0]})",
        )


def rendezvous(host: Host) -> tuple[str, int] | None:
    """Where the ranks meet: what MASTER_ADDR and MASTER_PORT say (torchrun sets them); under Slurm the first node of
    the step; under MPI on one host that host. The port follows from the job's name. None where nothing is known."""
    port = 20000 + int(hashlib.sha256(job_name(host).encode()).hexdigest(), 16) % 12000
    with contextlib.suppress(ValueError):
        port = int(host.env.get("MASTER_PORT", ""))
    if host.env.get("MASTER_ADDR"):
        return host.env["MASTER_ADDR"], port
    first = first_node(host.env.get("SLURM_STEP_NODELIST") or host.env.get("SLURM_JOB_NODELIST") or "")
    if first:
        return first, port
    local = next((host.env[name] for name in _LOCAL_SIZES if host.env.get(name)), "")
    return ("127.0.0.1", port) if local and local == str(world_size(host)) else None


#: How many ranks of an MPI job are on this host: Open MPI, MPICH and Intel MPI, MVAPICH.
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE")


def first_node(nodelist: str) -> str:
    """The first host of a Slurm list: "gpu07" of "gpu[07-12,20],other"; "" of an empty one."""
    first = re.split(r",(?![^\[]*\])", nodelist)[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first)


def _over_store(
    store: Any, document: Mapping[str, Any], position: int, world: int, timeout: float
) -> list[Mapping[str, Any]] | None:
    """Through the key-value store that gloo itself meets by: unlike a collective, it lets a rank be missing."""
    base = "portagemm-doctor"
    store.set(f"{base}/{position}", json.dumps(document))
    deadline = time.monotonic() + timeout
    if position != 0:
        # The store lives in rank 0 where the launcher serves none: stay until it has read.
        with contextlib.suppress(Exception):
            while not store.check([f"{base}/done"]) and time.monotonic() < deadline + timeout:
                time.sleep(0.05)
        return None
    reports: list[Mapping[str, Any]] = []
    waited = set(range(world))
    while waited:
        # asked, not waited for: a wait that times out breaks the connection for those that come after
        came = 0
        for other in sorted(waited):
            if time.monotonic() > deadline:
                break
            if not store.check([f"{base}/{other}"]):
                continue
            came += 1
            waited.remove(other)
            received = json.loads(store.get(f"{base}/{other}"))
            if not problem(received):
                reports.append(received)
        if time.monotonic() > deadline:
            break
        if not came:
            time.sleep(0.05)
    store.set(f"{base}/done", "1")
    time.sleep(0.5)  # the others read it before this process, and the store with it, ends
    return reports


def job_name(host: Host) -> str:
    """What tells this job's files from another's in a shared folder."""
    for name in (
        "TORCHELASTIC_RUN_ID",
        "SLURM_JOB_ID",
        "PMIX_NAMESPACE",
        "OMPI_MCA_ess_base_jobid",
        "PBS_JOBID",
        "LSB_JOBID",
    ):
        value = host.env.get(name, "")
        if value and value != "none":
            step = host.env.get("SLURM_STEP_ID", "") if name == "SLURM_JOB_ID" else ""
            return "".join(char if char.isalnum() else "-" for char in f"{value}{'-' + step if step else ''}")
    return "job"


def _over_files(
    document: Mapping[str, Any], folder: Path, job: str, position: int, world: int, timeout: float
) -> tuple[list[Mapping[str, Any]] | None, dict[str, str]]:
    """Every rank writes a file; rank 0 reads those of this job until all are there or time is up."""
    place = folder / f"portagemm-doctor-{job}"
    place.mkdir(parents=True, exist_ok=True)
    aside = place / f".rank-{position}.{os.getpid()}.tmp"
    aside.write_text(json.dumps(document), "utf-8")
    aside.replace(place / f"rank-{position}.json")
    if position != 0:
        return None, {}
    started = document.get("created", "")
    deadline = time.monotonic() + timeout
    while True:
        reports, unreadable = read_reports(_ranks_files(place, world))
        fresh = [
            report for report in reports if _not_before(str(report.get("created", "")), str(started), timeout)
        ]
        if (len(fresh) == world and not unreadable) or time.monotonic() > deadline:
            return fresh, unreadable
        time.sleep(0.2)


def _ranks_files(place: Path, world: int) -> list[str]:
    """The files of ranks that are there, by rank. The folder is listed, which also makes NFS look again: to ask for
    each rank's file would take long in a large world."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(place):  # noqa: PTH208 (also undecodable names)
            match = re.fullmatch(r"rank-(0|[1-9]\d{0,6})\.json", name)
            if match and int(match[1]) < world and (place / name).is_file():
                found.append((int(match[1]), str(place / name)))
    return [path for _, path in sorted(found)]


def _not_before(created: str, started: str, slack: float) -> bool:
    """Whether a report is not one that an earlier job of the same name left: it is at most `slack` + 600 s older
    than rank 0's own (clocks differ, and ranks start one after the other)."""
    try:
        age = datetime.datetime.fromisoformat(started) - datetime.datetime.fromisoformat(created)
    except (ValueError, TypeError):
        return True
    return age.total_seconds() < slack + 600
