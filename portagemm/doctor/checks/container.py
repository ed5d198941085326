"""Containers: which one this is, and what its start settled: CDI, Apptainer's flags, the seccomp filter."""

from __future__ import annotations

import re

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.facts import NVIDIA, container, dotted, gpus, surroundings, version_tuple
from portagemm.doctor.facts_amd import amd_gpus
from portagemm.doctor.host import Host
from portagemm.doctor.nvidia_facts import module_version


def way_of(host: Host, ways: dict[str, Remedy]) -> tuple[Remedy, ...]:
    """The way of this container's kind; all of them where the kind is another."""
    own = ways.get(container(host))
    return (own,) if own is not None else tuple(ways.values())


@check(
    "container.kind",
    "Which container this is",
    reads=(
        "/.dockerenv",
        "/run/.containerenv",
        "/.singularity.d",
        "/proc/1/cgroup",
        "/proc/1/environ",
        "/run/systemd/container",
        "KUBERNETES_SERVICE_HOST",
    ),
    severity="cosmetic",
)
def kind(ctx: Context) -> Result:
    """The outermost marks count: Kubernetes before Docker before a bare cgroup path. All marks are listed, for
    containers nest."""
    found = surroundings(ctx.host)
    if not found.container:
        return skip("not in a container")
    marks = _all_marks(ctx.host)
    evidence = [(fact, why) for fact, why in found.evidence.items() if fact.endswith("container")]
    data = {"container": found.container, "marks": marks}
    more = [mark for mark in marks if mark != found.container]
    tail = f" (also marks of {', '.join(more)})" if more else ""
    name = found.container if found.container != "unknown" else "a container of unknown kind"
    return info(f"{name} on {'WSL2' if found.wsl == 2 else 'Linux'}{tail}", evidence=evidence, data=data)


def _all_marks(host: Host) -> list[str]:
    marks = {
        "kubernetes": "KUBERNETES_SERVICE_HOST" in host.env or host.exists("/var/run/secrets/kubernetes.io"),
        "apptainer": host.exists("/.singularity.d"),
        "podman": host.exists("/run/.containerenv"),
        "docker": host.exists("/.dockerenv"),
    }
    return [name for name, on in marks.items() if on]


@check(
    "container.cdi",
    "The CDI specification is of the loaded driver",
    reads=("/etc/cdi", "/var/run/cdi", "/proc/driver/nvidia/version"),
    severity="degrades",
)
def cdi(ctx: Context) -> Result:
    """A CDI file names the driver's libraries with their version. After a driver upgrade it must be generated
    again (nvidia-cdi-refresh does it since container toolkit 1.18, but not when MIG is reconfigured), or
    containers do not start."""
    host = ctx.host
    files = [path for folder in ("/etc/cdi", "/var/run/cdi") for path in host.glob(f"{folder}/*nvidia*")]
    if not files:
        return skip("no CDI specification for NVIDIA GPUs here")
    module = module_version(host)
    named = {
        match
        for path in files
        for match in re.findall(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)", host.text(path, 4 << 20))
    }
    data = {"files": files, "named": sorted(named), "module": module}
    evidence = [(path, ", ".join(sorted(named)) or "no version") for path in files]
    if module and named and module not in named:
        remedy = Remedy(
            "Generate it again.", "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", root=True
        )
        message = f"it names driver {', '.join(sorted(named))}, the loaded one is {module}"
        return warn(message, evidence=evidence, remedies=(remedy,), data=data)
    return info(
        f"{len(files)} file(s), of driver {', '.join(sorted(named)) or 'unknown'}",
        evidence=evidence,
        data=data,
    )


@check(
    "container.apptainer",
    "Apptainer bound the host's GPU libraries, and the image can load them",
    reads=("/.singularity.d/libs", "libcuda.so.1", "confstr(CS_GNU_LIBC_VERSION)"),
    severity="blocks-use",
    needs=("container.kind",),
)
def apptainer(ctx: Context) -> Result:
    """With --nv (--rocm) Apptainer binds the host's libraries to /.singularity.d/libs. They need a glibc as new as
    the one they were built for: an image older than the host may not be able to load them."""
    host = ctx.host
    if container(host) != "apptainer" and not host.exists("/.singularity.d"):
        return skip("not Apptainer")
    nvidia, amd = gpus(host, NVIDIA), amd_gpus(host)
    if not nvidia and not amd:
        return skip("no GPU on this node")
    libraries = host.listdir("/.singularity.d/libs")
    flag = "--nv" if nvidia else "--rocm"
    wanted = "libcuda.so.1" if nvidia else "libhsa-runtime64.so"
    data = {"libraries": len(libraries), "flag": flag}
    if not any(name.startswith(wanted) for name in libraries) and not (
        amd and not nvidia and host.exists("/opt/rocm")
    ):
        remedy = Remedy("Start it with the GPU.", f"apptainer exec {flag} IMAGE ...", host=True)
        return warn(
            f"{wanted} is not in /.singularity.d/libs: started without {flag}", remedies=(remedy,), data=data
        )
    glibc = version_tuple(host.python.libc[1]) if host.python.libc[0] == "glibc" else ()
    for name in libraries:
        if not name.startswith(("libcuda.so", "libhsa-runtime64.so", "libnvidia-ml.so")):
            continue
        needed = max(symbol_versions(host, f"/.singularity.d/libs/{name}", "GLIBC"), default=())
        if glibc and needed > glibc:
            message = f"the host's {name} needs glibc {dotted(needed)}, the image has {dotted(glibc)}"
            remedy = Remedy("Use an image at least as new as the host's distribution.", host=True)
            return fail(message, evidence=[(name, f"GLIBC_{dotted(needed)}")], remedies=(remedy,), data=data)
    return passed(f"{len(libraries)} libraries of the host are bound", data=data)


def symbol_versions(host: Host, path: str, name: str) -> list[tuple[int, ...]]:
    """The symbol versions (GLIBC_2.34, GLIBCXX_3.4.30) a library's file names."""
    data = host.data(path, 64 << 20) or b""
    found = re.findall(rb"\b" + name.encode() + rb"_(\d+(?:\.\d+)+)", data)
    return sorted({version_tuple(text.decode()) for text in found})


@check(
    "container.seccomp",
    "System calls of debuggers and profilers are allowed",
    reads=("/proc/self/status Seccomp", "PATH"),
    severity="cosmetic",
    needs=("container.kind",),
)
def seccomp(ctx: Context) -> Result:
    """Docker's seccomp filter denies ptrace-like calls. Kernels run without them; ROCm's debugger and profiler, and
    some of its memory sharing, do not: AMD recommends --security-opt seccomp=unconfined."""
    host = ctx.host
    text = host.text("/proc/self/status")
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    mode = fields.get("Seccomp", "").strip()
    if mode not in ("1", "2"):
        return skip("no seccomp filter")
    data = {"seccomp": int(mode), "no_new_privileges": fields.get("NoNewPrivs", "").strip() == "1"}
    tools = [tool for tool in ("rocgdb", "rocprofv3", "rocprof") if host.which(tool)]
    if amd_gpus(host) and tools:
        remedy = Remedy(
            "Start the container without the filter.",
            "docker run --security-opt seccomp=unconfined ...",
            host=True,
        )
        return warn(f"the seccomp filter may stop {', '.join(tools)}", remedies=(remedy,), data=data)
    return info("a seccomp filter is on; debuggers and profilers may be denied", data=data)
