"""Where this process runs: bare metal, container, WSL, virtual machine; MIG; on which file systems.

Standard library only. Every probe reads below an injectable root and takes the environment as a mapping, so
that tests run it on fixture trees; a probe that cannot read says nothing rather than fail.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: File systems on which locks, renames or executable mappings behave differently from a local disk.
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "fhgfs", "ceph", "glusterfs", "afs"}
    | {"9p", "v9fs", "drvfs", "virtiofs", "wekafs", "panfs", "pvfs2", "orangefs", "ocfs2", "gfs2"}
)


#: What a GPU cannot do under WSL2 (CUDA on WSL user guide, "Known Limitations"): no faults, but often taken for some.
WSL2_LIMITS = (
    "pinned memory: large allocations may fail although memory is free; pageable copies are the way out",
    "managed memory: no concurrent access of CPU and GPU",
    "NVML: no utilisation, processes or settings (ECC, compute mode, persistence)",
    "containers: --gpus all only; profilers need Windows 11 or 10 19044 and driver R525",
)


@dataclass(frozen=True)
class FileSystem:
    """The file system a path lies on. kind: as the kernel names it ("" unknown)."""

    path: str
    kind: str

    @property
    def network(self) -> bool:
        """Whether other hosts may use it at the same time."""
        return self.kind in NETWORK_FILE_SYSTEMS or self.kind.startswith("fuse.")


@dataclass(frozen=True)
class Environment:
    """What the probes found.

    Attributes:
        system, kernel, machine: as `uname` gives them.
        wsl: 0, 1 or 2. container: docker, podman, kubernetes, lxc, apptainer, systemd-nspawn, unknown, or
            "" outside any. hypervisor: name of the virtual machine's, "" on bare metal.
        mig: descriptions of MIG slices in use or visible. vgpu: vGPU profiles ("NVIDIA A16-4Q") the driver
            serves: parts of a GPU, licensed, without some of its abilities (peer access, IPC).
        home, cache: file systems (None: no path).
        evidence: fact -> what showed it.
    """

    system: str
    kernel: str
    machine: str
    wsl: int
    container: str
    hypervisor: str
    mig: tuple[str, ...]
    vgpu: tuple[str, ...]
    home: FileSystem | None
    cache: FileSystem | None
    evidence: Mapping[str, str]

    @property
    def kind(self) -> str:
        """One phrase: ``bare metal``, ``docker container on WSL2``, ``virtual machine (kvm)`` ..."""
        host = (
            f"WSL{self.wsl}"
            if self.wsl
            else f"virtual machine ({self.hypervisor})"
            if self.hypervisor
            else "bare metal"
        )
        return f"{self.container} container on {host}" if self.container else host

    @property
    def limits(self) -> tuple[str, ...]:
        """What a GPU cannot do here, one sentence each."""
        return WSL2_LIMITS if self.wsl == 2 else ()

    def describe(self) -> list[str]:
        """Lines for people, each fact with its evidence."""
        lines = [f"{self.system} {self.kernel} on {self.machine}: {self.kind}"]
        lines += [f"{fact}: {why}" for fact, why in self.evidence.items()]
        lines += [f"MIG: {text}" for text in self.mig]
        lines += [f"vGPU: {text}" for text in self.vgpu]
        lines += [f"limit: {text}" for text in self.limits]
        for name, fs in (("home", self.home), ("kernel cache", self.cache)):
            if fs is not None and fs.kind:
                note = " (network)" if fs.network else ""
                lines.append(f"{name}: {fs.path} on {fs.kind}{note}")
        return lines


class Host:
    """Reads of one machine, real or a fixture tree. Nothing here raises."""

    def __init__(self, root: str | os.PathLike[str] = "/", env: Mapping[str, str] | None = None) -> None:
        self.root = Path(root)
        self.env: Mapping[str, str] = os.environ if env is None else env

    def path(self, name: str) -> Path:
        """`name`, an absolute path, below the root."""
        return self.root / name.lstrip("/")

    def text(self, name: str, limit: int = 1 << 20) -> str:
        """The file's text, "" if it cannot be read."""
        try:
            with self.path(name).open("rb") as file:
                return file.read(limit).decode("utf-8", "replace")
        except (OSError, ValueError):
            return ""

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        try:
            return self.path(name).exists()
        except (OSError, ValueError):
            return False

    def glob(self, pattern: str) -> list[Path]:
        """Sorted paths that match the pattern."""
        try:
            return sorted(self.root.glob(pattern.lstrip("/")))
        except (OSError, ValueError):
            return []


def probe(
    root: str | os.PathLike[str] = "/",
    env: Mapping[str, str] | None = None,
    *,
    home: str | None = None,
    cache_dir: str | None = None,
    driver_notes: Iterable[str] = (),
    host: Host | None = None,
) -> Environment:
    """Look at the machine (or at a fixture tree below `root`). Never raises.

    Args:
        root, env: the machine; the real one by default. host: the same as a `Host`, in their place.
        home, cache_dir: paths whose file system is wanted; HOME and none by default.
        driver_notes: `Device.notes` of the backends; those that say MIG are taken over.
    """
    host = Host(root, env) if host is None else host
    evidence: dict[str, str] = {}
    wsl = _wsl(host, evidence)
    container = _container(host, evidence)
    hypervisor = _hypervisor(host, evidence, wsl)
    home = host.env.get("HOME") if home is None else home
    uname = platform.uname()
    return Environment(
        system=uname.system,
        kernel=host.text("/proc/sys/kernel/osrelease").strip() or uname.release,
        machine=uname.machine,
        wsl=wsl,
        container=container,
        hypervisor=hypervisor,
        mig=_mig(host, driver_notes),
        vgpu=_vgpu(host),
        home=FileSystem(home, file_system(home, host)) if home else None,
        cache=FileSystem(cache_dir, file_system(cache_dir, host)) if cache_dir else None,
        evidence=evidence,
    )


def _wsl(host: Host, evidence: dict[str, str]) -> int:
    """WSL1 names Microsoft in its kernel string, WSL2 microsoft-standard-WSL2 (or has a custom kernel)."""
    kernel = host.text("/proc/sys/kernel/osrelease") or host.text("/proc/version")
    if "wsl2" in kernel.lower() or "microsoft-standard" in kernel:
        evidence["WSL2"] = f"kernel {kernel.strip()}"
        return 2
    if host.exists("/dev/dxg") and host.exists("/usr/lib/wsl/lib"):
        evidence["WSL2"] = "/dev/dxg and /usr/lib/wsl/lib"
        return 2
    if "Microsoft" in kernel:
        evidence["WSL1"] = f"kernel {kernel.strip()} (no GPU access)"
        return 1
    return 0


def _container(host: Host, evidence: dict[str, str]) -> str:
    """The kind of container, from the marker that says most to the one that says least."""
    pid1 = dict(entry.split("=", 1) for entry in host.text("/proc/1/environ").split("\0") if "=" in entry)
    manager = (
        host.text("/run/systemd/container").strip()
        or pid1.get("container", "")
        or host.env.get("container", "")
    )
    cgroup = host.text("/proc/1/cgroup") + host.text("/proc/self/cgroup")
    marks: list[tuple[str, str, bool]] = [
        ("kubernetes", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_HOST" in host.env),
        ("kubernetes", "/var/run/secrets/kubernetes.io", host.exists("/var/run/secrets/kubernetes.io")),
        ("kubernetes", "/run/secrets/kubernetes.io", host.exists("/run/secrets/kubernetes.io")),
        ("apptainer", "APPTAINER_CONTAINER", "APPTAINER_CONTAINER" in host.env),
        ("apptainer", "SINGULARITY_CONTAINER", "SINGULARITY_CONTAINER" in host.env),
        ("apptainer", "/.singularity.d", host.exists("/.singularity.d")),
        ("podman", "/run/.containerenv", host.exists("/run/.containerenv")),
        ("docker", "/.dockerenv", host.exists("/.dockerenv")),
        ("podman", f"container={manager}", manager == "podman"),
        ("docker", f"container={manager}", manager == "docker"),
        ("lxc", f"container={manager}", manager.startswith("lxc")),
        ("systemd-nspawn", f"container={manager}", manager == "systemd-nspawn"),
        ("kubernetes", "cgroup path holds kubepods", "kubepods" in cgroup),
        ("podman", "cgroup path holds libpod", "libpod" in cgroup),
        ("docker", "cgroup path holds docker", re.search(r"[/-]docker[-/]", cgroup) is not None),
        ("lxc", "cgroup path holds lxc", "/lxc" in cgroup),
        ("unknown", f"container={manager}", bool(manager) and manager != "wsl"),
        (
            "unknown",
            "the root file system is an overlay",
            file_system("/", host) in ("overlay", "fuse-overlayfs"),
        ),
    ]
    for kind, mark, found in marks:
        if found:
            evidence[f"{kind} container"] = mark
            return kind
    return ""


#: What DMI's vendor and product say of a hypervisor; the first match counts.
_DMI = (
    ("kvm", r"\bKVM\b|QEMU|Red Hat|RHEV|oVirt|OpenStack|DigitalOcean|Hetzner|Scaleway"),
    ("kvm (Google Compute Engine)", r"Google"),
    ("nitro (Amazon EC2)", r"Amazon EC2"),
    ("vmware", r"VMware"),
    ("virtualbox", r"VirtualBox|innotek"),
    ("xen", r"Xen|HVM domU"),
    ("hyper-v", r"Microsoft Corporation.*Virtual Machine"),
    ("parallels", r"Parallels"),
    ("bhyve", r"BHYVE"),
    ("firecracker", r"Firecracker"),
)


def _hypervisor(host: Host, evidence: dict[str, str], wsl: int) -> str:
    if wsl:
        return "hyper-v" if wsl == 2 else ""
    dmi = " ".join(
        host.text(f"/sys/class/dmi/id/{name}").strip()
        for name in ("sys_vendor", "product_name", "bios_vendor")
    )
    if re.search(r"\.metal\b", dmi):  # Amazon's bare-metal instances
        return ""
    for kind, pattern in _DMI:
        if re.search(pattern, dmi, re.IGNORECASE):
            evidence["hypervisor"] = f"DMI: {dmi.strip()}"
            return kind
    kind = host.text("/sys/hypervisor/type").strip()
    if kind and "control_d" not in host.text("/proc/xen/capabilities"):
        evidence["hypervisor"] = f"/sys/hypervisor/type: {kind}"
        return kind
    if re.search(r"^flags\s*:.*\bhypervisor\b", host.text("/proc/cpuinfo", 1 << 16), re.MULTILINE):
        evidence["hypervisor"] = "CPU flag hypervisor"
        return "unknown hypervisor"
    return ""


def _mig(host: Host, driver_notes: Iterable[str]) -> tuple[str, ...]:
    """MIG slices: what the driver says, the visibility variables, the capability files that exist."""
    found = [note for note in driver_notes if "MIG" in note]
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        found += [
            f"{name} names {part.strip()}" for part in host.env.get(name, "").split(",") if "MIG-" in part
        ]
    root = host.path("/proc/driver/nvidia/capabilities")
    for access in host.glob("/proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access"):
        found.append(f"{access.parent.relative_to(root).as_posix()} under /proc/driver/nvidia/capabilities")
    return tuple(dict.fromkeys(found))


def _vgpu(host: Host) -> tuple[str, ...]:
    """Profiles by the models' names: size and edition stand behind a dash (A16-4Q, T4-8C, GRID P40-24Q)."""
    texts = [
        host.text(f"/{path.relative_to(host.root).as_posix()}")
        for path in host.glob("/proc/driver/nvidia/gpus/*/information")
    ]
    models = [match[1] for text in texts if (match := re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE))]
    return tuple(dict.fromkeys(model for model in models if re.search(r"-\d+[ABCQ]$", model)))


def file_system(path: str | os.PathLike[str], host: Host | None = None) -> str:
    """The kernel's name of the file system `path` lies on ("" if unknown). The path need not exist."""
    host = host or Host()
    name = os.path.normpath(os.path.join("/", os.fspath(path)))  # noqa: PTH118 (lexical: the tree may be a fixture)
    if host.root == Path("/"):
        name = os.path.realpath(name)
    best, kind = -1, ""
    for line in host.text("/proc/self/mountinfo").splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5 or not right.split():
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[4])
        inside = name == mount or name.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:  # the later of two mounts on one point hides the earlier
            best, kind = len(mount), right.split()[0]
    return kind


#: Lines of /proc/cpuinfo that decide what a compiler makes of "native", on x86, Arm, POWER and RISC-V.
_CPU_KEYS = (
    "vendor_id", "cpu family", "model", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",
    "cpu", "isa", "uarch",
)  # fmt: skip


def first_processor(host: Host | None = None) -> dict[str, str]:
    """The first entry of /proc/cpuinfo; empty where there is none."""
    entry: dict[str, str] = {}
    for line in (host or Host()).text("/proc/cpuinfo", 1 << 16).strip().split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        entry[key.strip()] = value.strip()
    return entry


@cache
def cpu_identity() -> str:
    """``x86_64-`` and 16 hex digits: differs between CPUs for which "native" code differs."""
    return cpu_identity_of(Host())


def cpu_identity_of(host: Host) -> str:
    """`cpu_identity` of any host."""
    entry = first_processor(host)
    facts = [" ".join(sorted(entry.get(key, "").split())) for key in _CPU_KEYS]
    if not any(facts):  # not Linux: the model's name is the next best thing
        facts = [platform.processor(), platform.platform()]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return f"{platform.machine()}-{digest}"
