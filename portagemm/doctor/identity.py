"""Who a report is of: host, rank and version, as far as reports of several machines are told apart by it."""

from __future__ import annotations

from typing import Any

from portagemm.doctor.facts import surroundings
from portagemm.doctor.host import Host
from portagemm.doctor.redact import host_alias

#: Variables that launchers set, the most specific first: torchrun, Open MPI, MPICH and Slurm.
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_LOCAL_RANK = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")


def identity(host: Host) -> dict[str, Any]:
    """host (an alias), rank, local_rank, world_size (None outside a launcher), system, kernel, machine,
    surroundings, python, portagemm."""
    import portagemm

    uname = host.uname
    return {
        "host": host_alias(uname.node),
        "rank": launched(host, _RANK),
        "local_rank": launched(host, _LOCAL_RANK),
        "world_size": launched(host, _WORLD),
        "system": uname.system,
        "kernel": uname.release,
        "machine": uname.machine,
        "surroundings": surroundings(host).kind,
        "python": host.python.version,
        "portagemm": portagemm.__version__,
    }


def rank(host: Host) -> int | None:
    """This process's rank under torchrun, MPI or Slurm; None outside a launcher."""
    return launched(host, _RANK)


def local_rank(host: Host) -> int | None:
    """Its rank on this host."""
    return launched(host, _LOCAL_RANK)


def world_size(host: Host) -> int | None:
    """How many processes there are."""
    return launched(host, _WORLD)


def launched(host: Host, names: tuple[str, ...]) -> int | None:
    """The first of the variables that holds a number."""
    for name in names:
        try:
            return int(host.env.get(name, ""))
        except ValueError:
            continue
    return None
