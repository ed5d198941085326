"""Containers: what reached this one of the node's GPUs, and what did not."""

from __future__ import annotations

import errno
import re

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.facts import NVIDIA, container, dotted, gpus, surroundings, version_tuple, wsl
from portagemm.doctor.facts_amd import amd_gpus, group_name, render_nodes
from portagemm.doctor.host import Host
from portagemm.doctor.nvidia_facts import module_version

LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/.singularity.d/libs",
    "/usr/lib/wsl/lib",
)
#: The group id that ids without a mapping show as in a user namespace.
OVERFLOW_GID = 65534

_GIVE_NVIDIA = {
    "docker": Remedy("Docker: start the container with the GPUs.", "docker run --gpus all ...", host=True),
    "podman": Remedy(
        "Podman: start it with the GPUs, by CDI.",
        "podman run --device nvidia.com/gpu=all --security-opt=label=disable ...",
        host=True,
    ),
    "kubernetes": Remedy(
        "Kubernetes: request them in the pod's resources.", "limits: {nvidia.com/gpu: 1}", host=True
    ),
}
_GIVE_AMD = {
    "docker": Remedy(
        "Docker: start the container with the devices.",
        "docker run --device /dev/kfd --device /dev/dri --group-add video --group-add render ...",
        host=True,
    ),
    "podman": Remedy(
        "Podman: start it with the devices, and keep the caller's groups.",
        "podman run --device /dev/kfd --device /dev/dri --group-add keep-groups ...",
        host=True,
    ),
    "kubernetes": Remedy(
        "Kubernetes: request them in the pod's resources.", "limits: {amd.com/gpu: 1}", host=True
    ),
}


def _give(host: Host, ways: dict[str, Remedy]) -> tuple[Remedy, ...]:
    """The way of this container's kind; all of them where the kind is another."""
    own = ways.get(container(host))
    return (own,) if own is not None else tuple(ways.values())


def nvidia_nodes(host: Host) -> list[str]:
    """/dev/nvidia0 and so on, /dev/dxg on WSL2."""
    if wsl(host) == 2:
        return host.glob("/dev/dxg")
    return [path for path in host.glob("/dev/nvidia[0-9]*") if path[len("/dev/nvidia") :].isdigit()]


def _on_node(host: Host) -> str:
    """What the container must be told on the node; outside containers nothing."""
    return container(host)


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
    "container.nvidia-visible",
    "The container was given the node's NVIDIA GPUs",
    reads=("NVIDIA_VISIBLE_DEVICES", "/dev/nvidia[0-9]*", "/dev/dxg", "/sys/bus/pci/devices"),
    severity="blocks-use",
    needs=("container.kind",),
)
def nvidia_visible(ctx: Context) -> Result:
    """The container runtime adds GPUs when NVIDIA_VISIBLE_DEVICES says so (all, indices, UUIDs, MIG ids; void,
    empty or unset is none), or by CDI, which needs no variable. sysfs shows the node's GPUs inside a container
    too, so a GPU on the bus without a device node is a GPU that was not passed on."""
    host = ctx.host
    nodes = nvidia_nodes(host)
    on_bus = gpus(host, NVIDIA)
    asked = host.env.get("NVIDIA_VISIBLE_DEVICES")
    evidence = [("NVIDIA_VISIBLE_DEVICES", "not set" if asked is None else repr(asked))]
    data = {"nodes": len(nodes), "on_bus": len(on_bus), "asked": asked}
    if nodes:
        if not asked or asked == "void":
            return info(f"{len(nodes)} by CDI or --device", evidence=evidence, data=data)
        return passed(f"{len(nodes)} by NVIDIA_VISIBLE_DEVICES={asked}", evidence=evidence, data=data)
    if wsl(host) == 2:
        return skip("see wsl.dxg")
    if not on_bus:
        return skip("no NVIDIA GPU on this node")
    evidence += [(device.path, "a GPU on the bus") for device in on_bus[:8]]
    if asked and asked not in ("void", "none"):
        toolkit = Remedy(
            "Install the NVIDIA Container Toolkit on the node, and start the container through it.",
            "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
            root=True,
            host=True,
        )
        message = (
            f"NVIDIA_VISIBLE_DEVICES={asked}, but no GPU arrived: the container runs without NVIDIA's runtime"
        )
        return fail(message, evidence=evidence, remedies=(*_give(host, _GIVE_NVIDIA), toolkit), data=data)
    message = f"the node has {len(on_bus)} NVIDIA GPU(s), the container was given none"
    return fail(message, evidence=evidence, remedies=_give(host, _GIVE_NVIDIA), data=data)


@check(
    "container.nvidia-caps",
    "The container was given CUDA, not only nvidia-smi",
    reads=("NVIDIA_DRIVER_CAPABILITIES", "libcuda.so.1"),
    severity="blocks-use",
    needs=("container.nvidia-visible",),
)
def nvidia_caps(ctx: Context) -> Result:
    """NVIDIA_DRIVER_CAPABILITIES picks which of the driver's libraries are mounted. If it is set it must contain
    compute (or all); utility alone gives nvidia-smi but no libcuda.so.1, so a working nvidia-smi proves
    nothing."""
    host = ctx.host
    asked = host.env.get("NVIDIA_DRIVER_CAPABILITIES", "")
    words = {word.strip() for word in asked.split(",") if word.strip()}
    found = [path for folder in LIBRARY_FOLDERS for path in host.glob(f"{folder}/libcuda.so.1")]
    evidence = [
        ("NVIDIA_DRIVER_CAPABILITIES", asked or "not set"),
        ("libcuda.so.1", found[0] if found else "not found"),
    ]
    data = {"capabilities": sorted(words), "libcuda": found}
    if not words or words & {"compute", "all"}:
        return passed(asked or "the default, utility and compute", evidence=evidence, data=data)
    if found:
        return info(f"{asked} has no compute, yet libcuda.so.1 is there", evidence=evidence, data=data)
    remedy = Remedy(
        "Ask for compute too.",
        "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
        host=True,
    )
    message = f"NVIDIA_DRIVER_CAPABILITIES={asked} has no compute: libcuda.so.1 is not mounted"
    return fail(message, evidence=evidence, remedies=(remedy,), data=data)


@check(
    "container.compat-libcuda",
    "A forward-compatibility libcuda is used only where it works",
    reads=(
        "LD_LIBRARY_PATH",
        "/etc/ld.so.conf.d/*compat*",
        "/usr/local/cuda*/compat",
        "/proc/driver/nvidia/version",
    ),
    severity="blocks-use",
)
def compat_libcuda(ctx: Context) -> Result:
    """CUDA images carry a newer libcuda in /usr/local/cuda/compat. It works only on data-centre GPUs (else error
    804) and only if it is newer than the kernel module (else 803). The container toolkit puts it on the path
    when it helps; LD_LIBRARY_PATH set by hand puts it there always, and breaks when the node's driver is
    upgraded."""
    host = ctx.host
    by_hand = [
        folder.rstrip("/")
        for folder in host.env.get("LD_LIBRARY_PATH", "").split(":")
        if "compat" in folder and host.glob(f"{folder.rstrip('/')}/libcuda.so*")
    ]
    by_toolkit = [
        line.strip()
        for path in host.glob("/etc/ld.so.conf.d/*compat*.conf")
        for line in host.text(path).splitlines()
        if line.strip().startswith("/") and host.glob(f"{line.strip()}/libcuda.so*")
    ]
    if not by_hand and not by_toolkit:
        return skip("no forward-compatibility libcuda is on the path")
    folder = (by_hand or by_toolkit)[0]
    compat = _library_version(host, folder)
    module = module_version(host)
    evidence = [
        (folder, f"libcuda {compat or 'of unknown version'}"),
        ("/proc/driver/nvidia/version", module or "none"),
    ]
    if by_hand:
        evidence.append(("LD_LIBRARY_PATH", host.env.get("LD_LIBRARY_PATH", "")))
    data = {"folder": folder, "compat": compat, "module": module, "by_hand": bool(by_hand)}
    drop = Remedy(f"Take {folder} off LD_LIBRARY_PATH; the container toolkit adds it where it helps.")
    if not by_hand:
        drop = Remedy(
            f"Remove the file of /etc/ld.so.conf.d that names {folder}.", "sudo ldconfig", root=True
        )
    upgrade = Remedy(
        "Or upgrade the node's driver to the CUDA version of the image.", root=True, reboot=True, host=True
    )
    if not module:
        return skip("no NVIDIA kernel module to compare with", evidence=evidence, data=data)
    if compat and version_tuple(compat) < version_tuple(module):
        message = f"libcuda {compat} in {folder} is older than the kernel module {module} (error 803)"
        return fail(message, evidence=evidence, remedies=(drop,), data=data)
    models = gpu_models(host)
    consumer = [model for model in models if re.search(r"GeForce|TITAN|GTX", model, re.IGNORECASE)]
    if consumer:
        message = f"forward compatibility does not work on {consumer[0]} (error 804)"
        return fail(message, evidence=evidence, remedies=(drop, upgrade), data=data)
    if by_hand:
        message = f"LD_LIBRARY_PATH always prefers libcuda {compat} in {folder} to the driver's {module}"
        return warn(message, evidence=evidence, remedies=(drop,), data=data)
    return passed(
        f"libcuda {compat} over driver {module}, by the container toolkit", evidence=evidence, data=data
    )


def _library_version(host: Host, folder: str) -> str:
    names = [host.realpath(path).rpartition("/")[2] for path in host.glob(f"{folder}/libcuda.so*")]
    versions = [
        match[1] for name in names if (match := re.match(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)$", name))
    ]
    return max(versions, key=version_tuple, default="")


def gpu_models(host: Host) -> list[str]:
    """Names of the NVIDIA GPUs, from /proc/driver/nvidia."""
    found = []
    for path in host.glob("/proc/driver/nvidia/gpus/*/information"):
        match = re.search(r"^Model:\s*(.+?)\s*$", host.text(path), re.MULTILINE)
        if match:
            found.append(match[1])
    return found


@check(
    "container.device-open",
    "NVIDIA's device nodes can be opened",
    reads=("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia[0-9]*"),
    severity="blocks-use",
)
def device_open(ctx: Context) -> Result:
    """A node that is there may still refuse. EPERM is the device cgroup: `systemctl daemon-reload` on the node
    takes the devices from running containers ("Failed to initialize NVML: Unknown Error"), and Slurm
    takes those that were not asked for. EACCES is the node's permission bits."""
    host = ctx.host
    if wsl(host):
        return skip("see wsl.dxg")
    devices = nvidia_nodes(host)
    if not devices:
        return skip("no NVIDIA device nodes")
    control = [path for path in ("/dev/nvidiactl", "/dev/nvidia-uvm") if host.exists(path)]
    codes = {path: host.open_errno(path, write=True) for path in [*control, *devices]}
    bad = {path: code for path, code in codes.items() if code}
    names = {path: errno.errorcode.get(code, str(code)) for path, code in bad.items()}
    evidence = list(names.items())
    data = {"errors": names, "openable": len(codes) - len(bad)}
    if not bad:
        return passed(f"{len(codes)} nodes can be opened", data=data)
    denied = {path for path, code in bad.items() if code == errno.EPERM}
    usable = [path for path in devices if path not in bad]
    if denied == set(bad) and usable and not denied & set(control):
        text = f"the device cgroup gives this process {len(usable)} of {len(devices)} GPUs"
        return info(text, evidence=evidence, data=data)
    if denied:
        if host.env.get("SLURM_JOB_ID") and not usable and not denied & set(control):
            return skip("Slurm gave this job no GPU: see cluster.slurm", evidence=evidence, data=data)
        where = "the container lost its devices" if _on_node(host) else "the device cgroup denies them"
        remedies = (
            Remedy("Restart the container.", host=True),
            Remedy(
                "To keep them next time: pass GPUs by CDI or --device, or use the cgroupfs driver.",
                "docker run --device nvidia.com/gpu=all ...",
                host=True,
            ),
        )
        return fail(
            f"{where}: opening gives EPERM (Operation not permitted)",
            evidence=evidence,
            remedies=remedies,
            data=data,
        )
    if any(code == errno.EACCES for code in bad.values()):
        path = next(path for path, code in bad.items() if code == errno.EACCES)
        found = host.stat(path)
        group = group_name(host, found.gid) if found else ""
        remedy = Remedy(
            f"Join the group that owns the nodes{f', {group}' if group else ''}.",
            f"sudo usermod -aG {group or 'GROUP'} $USER",
            root=True,
            relogin=True,
        )
        mode = f" (mode {found.mode:04o}, group {group or found.gid})" if found else ""
        return fail(f"{path} may not be opened{mode}", evidence=evidence, remedies=(remedy,), data=data)
    remedy = Remedy(
        "Reload the driver, or reboot; the kernel log says more.", "sudo dmesg | grep -i nvrm", root=True
    )
    first = next(iter(names.items()))
    return fail(f"{first[0]} cannot be opened: {first[1]}", evidence=evidence, remedies=(remedy,), data=data)


@check(
    "container.kfd",
    "The container was given AMD's device nodes",
    reads=("/dev/kfd", "/dev/dri/renderD*", "/sys/bus/pci/devices"),
    severity="blocks-use",
    needs=("container.kind",),
)
def kfd(ctx: Context) -> Result:
    """ROCm needs /dev/kfd and the render nodes. In a container sysfs shows the node's GPUs whether or not the
    nodes were passed on."""
    host = ctx.host
    if wsl(host):
        return skip("no /dev/kfd on WSL: see wsl.rocdxg")
    bound = [device for device in amd_gpus(host) if device.driver == "amdgpu"]
    if not bound:
        return skip("no AMD GPU with its driver on this node")
    render = host.glob("/dev/dri/renderD*")
    missing = [
        name
        for name, there in (("/dev/kfd", host.exists("/dev/kfd")), ("/dev/dri/renderD*", render))
        if not there
    ]
    evidence = [(name, "does not exist") for name in missing]
    if missing:
        message = f"the node has {len(bound)} AMD GPU(s), but the container has no {' and no '.join(missing)}"
        return fail(message, evidence=evidence, remedies=_give(host, _GIVE_AMD), data={"missing": missing})
    if host.open_errno("/dev/kfd", write=True) == errno.EPERM:
        evidence = [("/dev/kfd", "EPERM")]
        return fail(
            "the device cgroup denies /dev/kfd",
            evidence=evidence,
            remedies=_give(host, _GIVE_AMD),
            data={"missing": []},
        )
    return passed(f"/dev/kfd and {len(render)} render node(s)", data={"missing": []})


@check(
    "container.render-gid",
    "The process is in the group that owns AMD's device nodes",
    reads=("stat of /dev/kfd and /dev/dri/renderD*", "groups of the process", "/etc/group"),
    severity="blocks-use",
    needs=("container.kfd",),
)
def render_gid(ctx: Context) -> Result:
    """The nodes keep the group *number* of the host, where render may be 104, 109, 110 or another; a group of the
    same name in the image does not help. In a rootless container groups without a mapping show as 65534, and
    only keep-groups passes them on."""
    host = ctx.host
    blocked = []
    for path in ("/dev/kfd", *render_nodes(host)):
        found = host.stat(path)
        if found is not None and not found.allows(host.user, write=True):
            blocked.append((path, found))
    if not blocked:
        return passed("all nodes can be opened")
    gids = sorted({found.gid for _, found in blocked})
    evidence = [(path, f"group {found.gid}, mode {found.mode:04o}") for path, found in blocked]
    evidence.append(("groups of the process", " ".join(map(str, host.user.groups))))
    data = {"gids": gids, "groups": list(host.user.groups)}
    if OVERFLOW_GID in gids:
        remedies = (Remedy("Keep the caller's groups.", "podman run --group-add keep-groups ...", host=True),)
        message = "the nodes' group has no number in this rootless container"
    elif container(host) == "kubernetes":
        listed = ", ".join(map(str, gids))
        remedies = (
            Remedy(
                "Add the node's group to the pod.",
                f"securityContext: {{supplementalGroups: [{listed}]}}",
                host=True,
            ),
        )
        message = f"{blocked[0][0]} belongs to group {gids[0]}, which this process is not in"
    else:
        adds = " ".join(f"--group-add {gid}" for gid in gids)
        remedies = (Remedy("Add the host's group by its number.", f"docker run {adds} ...", host=True),)
        message = f"{blocked[0][0]} belongs to group {gids[0]}, which this process is not in"
    return fail(message, evidence=evidence, remedies=remedies, data=data)


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
