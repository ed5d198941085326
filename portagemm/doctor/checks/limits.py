"""Limits of the process and of its container: shared memory, locked memory, files, processes, cgroups."""

from __future__ import annotations

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.facts import container, wsl
from portagemm.doctor.facts_amd import amd_gpus, topology
from portagemm.doctor.host import Host

#: /dev/shm: below the first NCCL and data loaders run short, the second is Docker's default.
SHM_WANTED = 1 << 30
SHM_DEFAULT = 64 << 20
FILES_WANTED = 4096
PROCESSES_WANTED = 4096
#: Least memory a process with a GPU is given a warning below: pinned buffers and a model's weights on the way.
MEMORY_WANTED = 8 << 30


def usable_gpus(host: Host) -> int:
    """GPUs whose device nodes this process has, of either vendor."""
    if wsl(host) == 2:
        return 1 if host.exists("/dev/dxg") else 0
    nvidia = [path for path in host.glob("/dev/nvidia[0-9]*") if path[len("/dev/nvidia") :].isdigit()]
    amd = topology(host).gpus if host.exists("/dev/kfd") and amd_gpus(host) else ()
    return len(nvidia) + len(amd)


@check(
    "limits.shm",
    "/dev/shm is large enough",
    reads=("statvfs of /dev/shm",),
    severity="degrades",
)
def shm(ctx: Context) -> Result:
    """NCCL, RCCL and data loaders pass data between processes through /dev/shm. Docker's default of 64 MiB ends in
    "No space left on device" or a bus error as soon as two GPUs talk. Warns below 1 GiB; fails at 64 MiB or
    less with more than one GPU."""
    host = ctx.host
    found = host.space("/dev/shm") if host.exists("/dev/shm") else None
    if found is None:
        return skip("no /dev/shm, or its size is not known")
    count = usable_gpus(host)
    data = {"bytes": found.total, "gpus": count}
    evidence = [("/dev/shm", f"{found.total} bytes")]
    size = f"{found.total >> 20} MiB"
    if found.total >= SHM_WANTED:
        return passed(f"{found.total / (1 << 30):.1f} GiB", data=data)
    if container(host) == "kubernetes":
        remedy = Remedy(
            "Mount memory there in the pod.",
            "emptyDir: {medium: Memory, sizeLimit: 8Gi} at /dev/shm",
            host=True,
        )
    elif container(host):
        remedy = Remedy(
            "Start the container with more.", "docker run --shm-size=8g ...   (or --ipc=host)", host=True
        )
    else:
        remedy = Remedy("Make it larger.", "sudo mount -o remount,size=8G /dev/shm", root=True)
    if count > 1 and found.total <= SHM_DEFAULT:
        return fail(f"{size} for {count} GPUs", evidence=evidence, remedies=(remedy,), data=data)
    return warn(f"only {size}", evidence=evidence, remedies=(remedy,), data=data)


@check(
    "limits.memlock",
    "Memory for InfiniBand can be locked",
    reads=("RLIMIT_MEMLOCK", "/sys/class/infiniband"),
    severity="degrades",
)
def memlock(ctx: Context) -> Result:
    """RDMA registers memory, which locks it: with a finite limit ibv_reg_mr fails ("Cannot allocate memory"). Only
    asked for where there is an InfiniBand or RoCE device."""
    host = ctx.host
    devices = host.listdir("/sys/class/infiniband")
    found = host.limit("memlock")
    if not devices:
        return skip("no InfiniBand device")
    if found is None:
        return skip("the limit is not known")
    data = {"memlock": list(found), "devices": devices}
    if found[0] == -1:
        return passed("unlimited", data=data)
    evidence = [("RLIMIT_MEMLOCK", f"{found[0]} bytes"), ("/sys/class/infiniband", ", ".join(devices))]
    if container(host):
        command = "docker run --ulimit memlock=-1 --cap-add IPC_LOCK ..."
        remedy = Remedy("Start the container without the limit.", command, host=True)
    else:
        command = "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-memlock.conf"
        remedy = Remedy(
            "Lift it for logins (Slurm: PropagateResourceLimits=NONE).", command, root=True, relogin=True
        )
    return warn(f"{found[0] >> 10} KiB may be locked", evidence=evidence, remedies=(remedy,), data=data)


def _soft_limit(ctx: Context, name: str, wanted: int, what: str, option: str) -> Result:
    host = ctx.host
    found = host.limit(name)
    if found is None:
        return skip("the limit is not known")
    soft, hard = found
    data = {name: [soft, hard]}
    if soft == -1 or soft >= wanted:
        return passed("unlimited" if soft == -1 else str(soft), data=data)
    remedies = []
    if hard == -1 or hard >= wanted:
        remedies.append(Remedy("Raise it in the shell that starts the job.", f"ulimit -{option} {wanted}"))
    elif container(host):
        command = f"docker run --ulimit {name}=65536 ..."
        remedies.append(Remedy("Start the container with more.", command, host=True))
    else:
        command = f"echo '* - {name} 65536' | sudo tee /etc/security/limits.d/90-{name}.conf"
        remedies.append(Remedy("Raise it for logins.", command, root=True, relogin=True))
    return warn(
        f"only {soft} {what}", evidence=[(f"RLIMIT_{name.upper()}", str(soft))], remedies=remedies, data=data
    )


@check(
    "limits.nofile",
    "Enough files may be open",
    reads=("RLIMIT_NOFILE",),
    severity="degrades",
)
def nofile(ctx: Context) -> Result:
    """Sockets of NCCL, files of data loaders and shared tensors add up. Only asked for where there are several GPUs:
    1024, most systems' default, is enough for one. Warns below 4096."""
    if usable_gpus(ctx.host) < 2:
        return skip("not several GPUs")
    return _soft_limit(ctx, "nofile", FILES_WANTED, "files may be open", "n")


@check(
    "limits.nproc",
    "Enough processes and threads may run",
    reads=("RLIMIT_NPROC",),
    severity="degrades",
)
def nproc(ctx: Context) -> Result:
    """The limit counts threads of the user on the whole machine; compilers and data loaders of several ranks reach a
    low one ("Resource temporarily unavailable"). Warns below 4096."""
    return _soft_limit(ctx, "nproc", PROCESSES_WANTED, "processes and threads may run", "u")


@check(
    "limits.cgroup",
    "The container's or job's share of the machine is enough",
    reads=(
        "/sys/fs/cgroup/{memory.max,cpu.max,pids.max}",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/cpu/cpu.cfs_{quota,period}_us",
    ),
    severity="degrades",
)
def cgroup(ctx: Context) -> Result:
    """Limits set by a container or a scheduler: memory (a process above it is killed without a word), processors
    (below one a GPU, the processor cannot keep the GPUs fed) and processes. Warns below 8 GiB of memory with a
    GPU, below one processor a GPU, and below 512 processes."""
    host = ctx.host
    base = _own_cgroup(host)
    memory = _first_number(
        host,
        [f"{base}/memory.max", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"],
    )
    processors = _processors(host, base)
    pids = _first_number(
        host, [f"{base}/pids.max", "/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"]
    )
    if memory is not None and memory >= 1 << 60:  # how cgroup v1 says unlimited
        memory = None
    count = usable_gpus(host)
    data = {"memory": memory, "processors": processors, "pids": pids, "gpus": count}
    parts = []
    if memory is not None:
        parts.append(f"{memory / (1 << 30):.1f} GiB of memory")
    if processors is not None:
        parts.append(f"{processors:g} processors")
    if pids is not None:
        parts.append(f"{pids} processes")
    if not parts:
        return passed("no limits", data=data)
    problems = []
    if memory is not None and count and memory < MEMORY_WANTED:
        problems.append(f"{memory / (1 << 30):.1f} GiB of memory for {count} GPU(s)")
    if processors is not None and count and processors < count:
        problems.append(f"{processors:g} processors for {count} GPU(s)")
    if pids is not None and pids < 512:
        problems.append(f"{pids} processes")
    if problems:
        where = "the container" if container(host) else "the job"
        remedy = Remedy(
            f"Give {where} more.",
            "docker run --memory 64g --cpus 8 --pids-limit -1 ..." if container(host) else "",
            host=bool(container(host)),
        )
        return warn(f"limited to {', '.join(problems)}", remedies=(remedy,), data=data)
    return info(f"limited to {', '.join(parts)}", data=data)


def _own_cgroup(host: Host) -> str:
    """The folder of the process's own version 2 cgroup."""
    for line in host.text("/proc/self/cgroup").splitlines():
        if line.startswith("0::/") and ".." not in line:
            return f"/sys/fs/cgroup{line[3:].rstrip('/')}"
    return "/sys/fs/cgroup"


def _first_number(host: Host, paths: list[str]) -> int | None:
    for path in paths:
        text = host.value(path)
        if text:
            return int(text) if text.isdecimal() else None  # "max"
    return None


def _processors(host: Host, base: str) -> float | None:
    for path in (f"{base}/cpu.max", "/sys/fs/cgroup/cpu.max"):
        fields = host.value(path).split()
        if len(fields) == 2:
            return int(fields[0]) / int(fields[1]) if fields[0].isdecimal() and int(fields[1]) else None
    quota = host.number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = host.number("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None
