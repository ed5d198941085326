"""AMD GPUs as the kernel driver lists them under /sys: readable without ROCm, opens no context.

KFD (the compute part of amdgpu) shows one folder a node under ``/sys/class/kfd/kfd/topology/nodes``. CPUs are
nodes too (no SIMDs); an APU is one node that is both. ROCm's runtime enumerates the nodes in this order, so
does this module, then applies the same two layers of masks. An MI250X is two nodes: each die is a device. So
is each partition of an MI300X that is cut into several; its compute units are then that partition's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from portagemm.hal.amd import Visible, address_of, arch_of, override, properties, visible
from portagemm.hal.device import Device

from . import pci

#: Where the kernel shows its compute topology; tests give another folder.
TOPOLOGY = Path("/sys/class/kfd/kfd/topology")

_KFD_DEVICE = Path("/dev/kfd")
_RENDER_NODES = Path("/dev/dri")

# Bit of `capability`, and type of an io_link (kernel: kfd_topology.h, kfd_crat.h).
_SRAM_ECC = 0x04000000
_XGMI = 11

#: PCI device ids of packages with two dies: MI250X, MI250 (libdrm's amdgpu.ids).
_TWO_DIES = frozenset({0x7408, 0x740C})

#: Targets with a feature of that name (LLVM, "User Guide for AMDGPU Backend", processors).
_HAS_SRAMECC = frozenset({"gfx906", "gfx908", "gfx90a", "gfx942", "gfx950"})
_HAS_XNACK = _HAS_SRAMECC | {
    "gfx900",
    "gfx902",
    "gfx904",
    "gfx909",
    "gfx90c",
    "gfx1010",
    "gfx1011",
    "gfx1012",
}


@dataclass(frozen=True)
class Node:
    """One GPU node of the topology.

    Attributes:
        number: folder name. name: the kernel's chip name (``aldebaran``), "" in newer kernels.
        gfx_target_version: decimal major * 10000 + minor * 100 + stepping (90010 is gfx90a).
        compute_units, lds_bytes, wave_size, l2_bytes, memory_bytes: of this node.
        memory_bandwidth: bytes per second from the bank's width and clock (0: unknown).
        integrated: the node is an APU's graphics part.
        unique_id: what a ``GPU-...`` mask names, 0 if the chip has none.
        device_id: the chip's PCI device id. address: PCI address ("" unknown).
        sram_ecc: error correction of its on-chip memories is on (the feature sramecc).
        links: XGMI neighbours: node number -> MB/s of all links to it.
        render_minor: number of its ``/dev/dri/renderD*``, 0 if unknown.
    """

    number: int
    name: str
    gfx_target_version: int
    compute_units: int
    lds_bytes: int
    wave_size: int
    l2_bytes: int
    memory_bytes: int
    memory_bandwidth: float
    integrated: bool
    unique_id: int
    device_id: int
    address: str
    sram_ecc: bool
    links: Mapping[int, int]
    render_minor: int

    @property
    def arch(self) -> str:
        """The target as the compiler spells it."""
        return arch_of(self.gfx_target_version)


def _properties(path: Path) -> dict[str, int]:
    """The ``key value`` lines of a properties file; empty when it may not be read.

    NOTE: KFD answers EPERM for nodes outside the process's device cgroup: such a node does not exist for us.
    """
    try:
        return properties(path.read_text())
    except OSError:
        return {}


def _children(folder: Path) -> list[Path]:
    try:
        return sorted((p for p in folder.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    except OSError:
        return []


def _node(folder: Path) -> Node | None:
    facts = _properties(folder / "properties")
    simds = facts.get("simd_count", 0)
    version = facts.get("gfx_target_version", 0)
    if simds <= 0 or version <= 0:
        return None
    caches = [_properties(p / "properties") for p in _children(folder / "caches")]
    banks = [_properties(p / "properties") for p in _children(folder / "mem_banks")]
    local = [b for b in banks if b.get("heap_type") in (1, 2)]  # frame buffer, visible to the host or not
    try:
        name = (folder / "name").read_text().strip()
    except OSError:
        name = ""
    return Node(
        number=int(folder.name),
        name=name,
        gfx_target_version=version,
        compute_units=simds // max(1, facts.get("simd_per_cu", 1)),
        lds_bytes=facts.get("lds_size_in_kb", 0) * 1024,
        wave_size=facts.get("wave_front_size", 0),
        l2_bytes=max((c.get("size", 0) for c in caches if c.get("level") == 2), default=0) * 1024,
        memory_bytes=sum(b.get("size_in_bytes", 0) for b in local),
        # width in bits, clock in MHz, two transfers a clock
        memory_bandwidth=max(
            (b.get("width", 0) / 8 * b.get("mem_clk_max", 0) * 2e6 for b in local), default=0.0
        ),
        integrated=facts.get("cpu_cores_count", 0) > 0,
        unique_id=facts.get("unique_id", 0),
        device_id=facts.get("device_id", 0),
        address=address_of(facts),
        sram_ecc=bool(facts.get("capability", 0) & _SRAM_ECC),
        links=_links(folder),
        render_minor=facts.get("drm_render_minor", 0),
    )


def _links(folder: Path) -> dict[int, int]:
    """XGMI links of a node. NOTE: direct ones are io_links, others of the hive p2p_links: only the first count."""
    found: dict[int, int] = {}
    for link in _children(folder / "io_links"):
        facts = _properties(link / "properties")
        if facts.get("type") == _XGMI and "node_to" in facts:
            found[facts["node_to"]] = facts.get("max_bandwidth", 0)
    return found


def nodes(topology: Path | None = None) -> tuple[Node, ...]:
    """All GPU nodes this process may see, in the driver's order. Never raises."""
    found = (_node(folder) for folder in _children((topology or TOPOLOGY) / "nodes"))
    return tuple(n for n in found if n is not None)


def seen(items: Sequence[Node], environ: Mapping[str, str] | None = None) -> Visible[Node]:
    """What the masks of the environment leave of the nodes, in HIP's order."""
    return visible(items, lambda node: node.unique_id, os.environ if environ is None else environ)


def features(node: Node, environ: Mapping[str, str]) -> str:
    """``sramecc+:xnack-``, as the runtime has it behind the target's name; "" for a target without features.

    xnack is a choice of the process (HSA_XNACK) and off by default.
    """
    parts = []
    if node.arch in _HAS_SRAMECC:
        parts.append("sramecc" + ("+" if node.sram_ecc else "-"))
    if node.arch in _HAS_XNACK:
        parts.append("xnack" + ("+" if environ.get("HSA_XNACK") == "1" else "-"))
    return ":".join(parts)


def other_die(node: Node, items: Sequence[Node]) -> Node | None:
    """The second die of the package `node` is one of, or None.

    The dies of an MI250X have more XGMI links to each other than to any other package: each must be the one
    best linked neighbour of the other.
    """
    best = _best_linked(node, items)
    return best if best is not None and _best_linked(best, items) is node else None


def _best_linked(node: Node, items: Sequence[Node]) -> Node | None:
    rates = [
        (node.links[n.number], n)
        for n in items
        if n is not node and n.number in node.links and {n.device_id, node.device_id} <= _TWO_DIES
    ]
    most = max((rate for rate, _ in rates), default=0)
    found = [n for rate, n in rates if rate == most]
    return found[0] if len(found) == 1 else None


def _driver_version() -> str:
    try:
        return Path("/sys/module/amdgpu/version").read_text().strip()
    except OSError:
        return ""


def devices(topology: Path | None = None, environ: Mapping[str, str] | None = None) -> tuple[Device, ...]:
    """The visible nodes as Devices, numbered as HIP numbers them. Never raises."""
    env = os.environ if environ is None else environ
    everything = nodes(topology)
    shown = seen(everything, env).items
    found = []
    for index, node in enumerate(shown):
        asked = override(node.number, env)
        arch = arch_of(_decimal(asked.version)) if asked and asked.version else node.arch
        found.append(
            Device(
                backend="rocm",
                index=index,
                name=pci.product(node.address) or node.name or f"AMD {node.arch}",
                arch=arch,
                compute_units=node.compute_units,
                l2_bytes=node.l2_bytes,
                memory_bytes=node.memory_bytes,
                shared_bytes_per_block=node.lds_bytes or 64 * 1024,
                threads_per_block=1024,
                memory_bandwidth=node.memory_bandwidth,
                driver_version=_driver_version(),
                notes=_notes(node, shown, everything, env),
            )
        )
    return tuple(found)


def _decimal(version: tuple[int, int, int]) -> int:
    major, minor, stepping = version
    return major * 10000 + minor * 100 + stepping


def _notes(
    node: Node, shown: Sequence[Node], everything: Sequence[Node], environ: Mapping[str, str]
) -> tuple[str, ...]:
    """What `portagemm devices` shows of a node beside its figures."""
    where = f"KFD node {node.number}"
    notes = [f"{where}, PCI {node.address}" if node.address else where, features(node, environ)]
    notes += [_partition_note(node, everything), _die_note(node, shown, everything)]
    if node.integrated:
        cards = [f"rocm:{i}" for i, n in enumerate(shown) if not n.integrated]
        notes.append("integrated (APU)" + (f", beside {' '.join(cards)}" if cards else ""))
    asked = override(node.number, environ)
    if asked is not None and asked.version is None:
        notes.append(f"{asked.variable}={asked.value} is not major.minor.stepping: ROCm stops at it")
    elif asked is not None and asked.version is not None:
        arch = arch_of(_decimal(asked.version))
        same = "as it is" if arch == node.arch else f"though it is {node.arch}: unsupported by AMD"
        notes.append(f"{asked.variable}={asked.value} makes ROCm report {arch}, {same}")
    return tuple(note for note in notes if note)


def _partition_note(node: Node, everything: Sequence[Node]) -> str:
    # Partitions of a GPU differ at most in the function: kernels have put their number there, or in high bits.
    slot = node.address.rpartition(".")[0]
    if not slot:
        return ""
    siblings = [n for n in everything if n.address.rpartition(".")[0] == slot and n.arch == node.arch]
    modes = pci.partitioning(node.address if len(siblings) == 1 else f"{slot}.0")
    if not modes.compute:
        return ""
    memory = f", memory mode {modes.memory}" if modes.memory else ""
    if modes.compute == "SPX":
        return f"compute partition mode SPX{memory}"
    return f"partition {siblings.index(node) + 1} of {len(siblings)} (compute mode {modes.compute}{memory})"


def _die_note(node: Node, shown: Sequence[Node], everything: Sequence[Node]) -> str:
    if node.device_id not in _TWO_DIES:
        return ""
    other = other_die(node, everything)
    if other is None:
        return "one of a package's two dies"
    where = f"rocm:{shown.index(other)}" if other in shown else f"KFD node {other.number}, hidden"
    return f"one of a package's two dies, the other is {where}"


def notes(topology: Path | None = None, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What the environment does to the list of devices, and which it hides. Never raises.

    Nothing where there is no AMD GPU: CUDA_VISIBLE_DEVICES is then another vendor's.
    """
    everything = nodes(topology)
    if not everything:
        return ()
    found = seen(everything, environ)
    hidden = ", ".join(f"KFD node {n.number} ({n.arch})" for n in found.hidden)
    return (*found.notes, f"hidden: {hidden}") if hidden else found.notes


def access_reason(
    topology: Path | None = None, device_file: Path | None = None, render_nodes: Path | None = None
) -> str | None:
    """Why the kernel's compute interface cannot be used by this process, or None.

    The runtime opens /dev/kfd and the render node of every GPU it is to use.
    """
    device_file, render_nodes = device_file or _KFD_DEVICE, render_nodes or _RENDER_NODES
    if not (topology or TOPOLOGY).is_dir():
        return "the kernel shows no AMD compute device (/sys/class/kfd is missing: amdgpu is not loaded)"
    reason = _closed(device_file, f"pass it (and {render_nodes}) into the container")
    if reason is not None:
        return reason
    files = [render_nodes / f"renderD{n.render_minor}" for n in nodes(topology) if n.render_minor]
    closed = [_closed(file, f"pass {render_nodes} into the container") for file in files]
    return closed[0] if closed and None not in closed else None


def _closed(file: Path, missing: str) -> str | None:
    """Why a device file cannot be opened, and what to do about it; None if it can."""
    if not file.exists():
        return f"{file} is missing: {missing}"
    if os.access(file, os.R_OK | os.W_OK):
        return None
    import grp  # not there on Windows, where this is never reached

    group = file.stat().st_gid
    try:
        name, members = grp.getgrgid(group).gr_name, grp.getgrgid(group).gr_mem
    except KeyError:  # the host's group has no name in this container
        return f"{file} may not be opened: its group has no name here: run the container with --group-add {group}"
    if _user() in members and group not in os.getgroups():
        return f"{file} may not be opened: this session is older than the user's membership in {name}: log in again"
    return (
        f"{file} may not be opened: add the user to the group {name} that owns it "
        f"(sudo usermod -aG {name} $USER, then log in again; a container: --group-add {group})"
    )


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
