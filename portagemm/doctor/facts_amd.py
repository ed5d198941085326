"""AMD facts that several checks need: KFD's topology, ROCm installations, who may open the nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from portagemm.doctor.facts import AMD, PciDevice, fact, gpus, version_tuple
from portagemm.doctor.host import Host
from portagemm.doctor.rocm_versions import INTEGRATED, INTEGRATED_IDS
from portagemm.hal.amd import Override, address_of, arch_of, override, properties

TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"
_ROCM_LIBRARY = "libhsa-runtime64.so*"


@dataclass(frozen=True)
class KfdNode:
    """A GPU node of KFD's topology.

    number: of its folder. gfx: "gfx942". address: of its PCI device. render: number of /dev/dri/renderD*, -1
    none. unique_id: 0 if the chip has none. integrated: part of a processor.
    """

    number: int
    gfx: str
    address: str
    render: int
    unique_id: int
    integrated: bool


@dataclass(frozen=True)
class Topology:
    """What KFD shows. gpus: readable GPU nodes in its order. hidden: nodes that may not be read, which is what
    nodes outside the process's device cgroup are. nodes: all of them, processors too."""

    gpus: tuple[KfdNode, ...]
    hidden: int
    nodes: int


@fact
def topology(host: Host) -> Topology:
    """KFD's topology; empty without the driver."""
    found: list[KfdNode] = []
    hidden = count = 0
    paths = host.glob(f"{TOPOLOGY}/*/properties")
    for path in sorted(paths, key=lambda path: int(re.sub(r"\D", "", path.split("/")[-2]) or 0)):
        count += 1
        values = properties(host.text(path))
        if not values:
            hidden += 1
            continue
        if values.get("simd_count", 0) <= 0 or values.get("gfx_target_version", 0) <= 0:
            continue
        gfx = arch_of(values["gfx_target_version"])
        found.append(
            KfdNode(
                int(path.split("/")[-2]),
                gfx,
                address_of(values),
                values.get("drm_render_minor", -1),
                values.get("unique_id", 0),
                gfx in INTEGRATED or values.get("cpu_cores_count", 0) > 0,
            )
        )
    return Topology(tuple(found), hidden, count)


def run_as(host: Host, node: KfdNode) -> str:
    """The target a GPU is run as: its own, unless HSA_OVERRIDE_GFX_VERSION (or ..._<node>) forces another."""
    asked = override(node.number, host.env)
    return forced_gfx(asked) or node.gfx if asked else node.gfx


def forced_gfx(asked: Override) -> str:
    """gfx1030 of an override with "10.3.0"; "" of nonsense."""
    if asked.version is None:
        return ""
    major, minor, stepping = asked.version
    return arch_of(major * 10000 + minor * 100 + stepping)


@fact
def amd_gpus(host: Host) -> tuple[PciDevice, ...]:
    """AMD's GPUs on the PCI bus that compute could run on: integrated ones count only if there is another AMD
    GPU, or ROCm, or KFD says that ROCm is built for it. An office laptop is no ROCm machine."""
    found = gpus(host, AMD)
    if all(integrated(host, device) for device in found) and not rocm_wanted(host):
        return ()
    return found


def integrated(host: Host, device: PciDevice) -> bool:
    """Whether a PCI device is the graphics part of a processor."""
    nodes = [node for node in topology(host).gpus if node.address == device.address]
    return device.device in INTEGRATED_IDS or any(node.integrated for node in nodes)


@fact
def rocm_wanted(host: Host) -> bool:
    """Whether anything here is meant for AMD GPUs: ROCm, a HIP build of torch, a variable of ROCm's."""
    if rocm_installs(host):
        return True
    return any(
        name in host.env
        for name in ("HSA_OVERRIDE_GFX_VERSION", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    )


@dataclass(frozen=True)
class RocmInstall:
    """A place ROCm's libraries are. kind: "system" (below /opt, or ROCM_PATH), "sdk" (the _rocm_sdk wheels),
    "torch" (bundled with torch), "distribution" (the Linux distribution's own). version: "" unknown."""

    folder: str
    kind: str
    version: str

    @property
    def release(self) -> tuple[int, ...]:
        """(6, 4, 3)."""
        return version_tuple(self.version)


@fact
def rocm_installs(host: Host) -> tuple[RocmInstall, ...]:
    """Installations of ROCm's runtime, the one a process finds first in front; links resolved, each once."""
    found: dict[str, RocmInstall] = {}

    def add(library_folder: str, kind: str, folder: str) -> None:
        if host.glob(f"{library_folder}/{_ROCM_LIBRARY}") or host.glob(f"{library_folder}/libamdhip64.so*"):
            place = host.realpath(library_folder)
            found.setdefault(place, RocmInstall(place, kind, _version(host, folder, kind)))

    for site in host.python.path:
        add(f"{site}/torch/lib", "torch", f"{site}/torch")
        for folder in host.glob(f"{site}/_rocm_sdk_core*"):
            add(f"{folder}/lib", "sdk", folder)
    for name in ("ROCM_PATH", "ROCM_HOME", "HIP_PATH"):
        if host.env.get(name, "").startswith("/"):
            add(f"{host.env[name].rstrip('/')}/lib", "system", host.env[name].rstrip("/"))
    for folder in ("/opt/rocm", *host.glob("/opt/rocm-*")):
        for library_folder in (f"{folder}/lib", f"{folder}/lib64"):
            add(library_folder, "system", host.realpath(folder))
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"):
        add(folder, "distribution", folder)
    return tuple(found.values())


def _version(host: Host, folder: str, kind: str) -> str:
    if kind == "torch":
        text = host.text(f"{folder}/version.py")
        match = re.search(r"hip[^=\n]*=\s*['\"](\d+\.\d+)", text)  # what follows is a build number
        return match[1] if match else ""
    if kind == "distribution":
        names = host.glob(f"{folder}/libamdhip64.so.*.*.*")
        numbers = version_tuple(names[-1].rpartition(".so.")[2]) if names else ()
        return ".".join(map(str, numbers[:2]))
    for name in (".info/version", ".info/version-rocm", ".info/version-hip-libraries"):
        text = host.value(f"{folder}/{name}")
        if text:
            return text.partition("-")[0]
    match = re.search(r"rocm-(\d+(?:\.\d+)+)", folder)
    return match[1] if match else ""


def rocm(host: Host) -> RocmInstall | None:
    """The installation torch, or else HIP, would use; None without one."""
    found = rocm_installs(host)
    return found[0] if found else None


def render_nodes(host: Host) -> list[str]:
    """Render nodes of AMD GPUs: those KFD names, else all there are."""
    named = [f"/dev/dri/renderD{node.render}" for node in topology(host).gpus if node.render >= 0]
    return [path for path in named if host.exists(path)] or host.glob("/dev/dri/renderD*")


def group_name(host: Host, gid: int) -> str:
    """The group's name in /etc/group, "" if it has none there."""
    for name, number, _ in groups(host):
        if number == gid:
            return name
    return ""


@fact
def groups(host: Host) -> tuple[tuple[str, int, tuple[str, ...]], ...]:
    """(name, gid, members) of /etc/group."""
    found = []
    for line in host.text("/etc/group").splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and fields[2].isdigit():
            members = tuple(name for name in fields[3].split(",") if name)
            found.append((fields[0], int(fields[2]), members))
    return tuple(found)
