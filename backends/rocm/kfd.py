"""AMD GPUs as the kernel driver lists them under /sys: readable without ROCm, opens no context.

KFD (the compute part of amdgpu) shows one folder a node under ``/sys/class/kfd/kfd/topology/nodes``. CPUs are
nodes too (no SIMDs); an APU is one node that is both. ROCm's runtime enumerates the nodes in this order, so
does this module, then applies the same two layers of masks. An MI250X is two nodes: each die is a device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from portagemm.hal.device import Device

#: Where the kernel shows its compute topology; tests give another folder.
TOPOLOGY = Path("/sys/class/kfd/kfd/topology")

_KFD_DEVICE = Path("/dev/kfd")
_DRM = Path("/sys/class/drm")


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
        render_minor: number of its ``/dev/dri/renderD*``.
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
    render_minor: int

    @property
    def arch(self) -> str:
        """The target as the compiler spells it."""
        return arch_of(self.gfx_target_version)


def arch_of(gfx_target_version: int) -> str:
    """``gfx90a`` of 90010: major and minor in decimal, the stepping one hexadecimal digit."""
    major, rest = divmod(gfx_target_version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"


def _properties(path: Path) -> dict[str, int]:
    """The ``key value`` lines of a properties file; empty when it may not be read.

    NOTE: KFD answers EPERM for nodes outside the process's device cgroup: such a node does not exist for us.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].lstrip("-").isdigit()}


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
        render_minor=facts.get("drm_render_minor", -1),
    )


def nodes(topology: Path | None = None) -> tuple[Node, ...]:
    """All GPU nodes this process may see, in the driver's order. Never raises."""
    found = (_node(folder) for folder in _children((topology or TOPOLOGY) / "nodes"))
    return tuple(n for n in found if n is not None)


def _masked(items: Sequence[Node], mask: str | None) -> tuple[Node, ...]:
    """What a visible-devices variable leaves: ordinals or ``GPU-<unique id>``, in its order.

    As in ROCm, the list ends at the first entry that names no device; an empty value hides all.
    """
    if mask is None:
        return tuple(items)
    chosen: list[Node] = []
    for token in (t.strip() for t in mask.split(",")):
        if token.isdigit() and int(token) < len(items):
            node = items[int(token)]
        elif token.upper().startswith("GPU-"):
            matches = [
                n for n in items if n.unique_id and f"{n.unique_id:x}" == token[4:].lower().lstrip("0")
            ]
            if len(matches) != 1:
                break
            node = matches[0]
        else:
            break
        if node in chosen:
            break
        chosen.append(node)
    return tuple(chosen)


def visible(items: Sequence[Node], environ: Mapping[str, str] | None = None) -> tuple[Node, ...]:
    """Apply ROCR_VISIBLE_DEVICES (the runtime's), then HIP_VISIBLE_DEVICES or, failing that,
    CUDA_VISIBLE_DEVICES (HIP's): HIP's ordinals count what the runtime's mask has left.
    """
    env = os.environ if environ is None else environ
    # An empty HIP mask counts as not set: that is how HIP reads it.
    outer = env.get("HIP_VISIBLE_DEVICES") or env.get("CUDA_VISIBLE_DEVICES") or None
    return _masked(_masked(items, env.get("ROCR_VISIBLE_DEVICES")), outer)


def overridden_arch(environ: Mapping[str, str] | None = None) -> str | None:
    """The arch HSA_OVERRIDE_GFX_VERSION (``9.0.10``) makes the runtime report, or None."""
    env = os.environ if environ is None else environ
    parts = env.get("HSA_OVERRIDE_GFX_VERSION", "").split(".")
    if len(parts) != 3 or not all(p.isdigit() for p in parts):
        return None
    major, minor, stepping = (int(p) for p in parts)
    return arch_of(major * 10000 + minor * 100 + stepping)


def _product_name(node: Node) -> str:
    for file in ("product_name", "product_number"):
        try:
            text = (_DRM / f"renderD{node.render_minor}" / "device" / file).read_text().strip()
        except OSError:
            continue
        if text:
            return text
    return node.name or f"AMD {node.arch}"


def _driver_version() -> str:
    try:
        return Path("/sys/module/amdgpu/version").read_text().strip()
    except OSError:
        return ""


def devices(topology: Path | None = None, environ: Mapping[str, str] | None = None) -> tuple[Device, ...]:
    """The visible nodes as Devices, numbered as HIP numbers them. Never raises."""
    override = overridden_arch(environ)
    found = []
    for index, node in enumerate(visible(nodes(topology), environ)):
        notes = [f"KFD node {node.number}"]
        if node.integrated:
            notes.append("integrated (APU)")
        if override and override != node.arch:
            notes.append(f"HSA_OVERRIDE_GFX_VERSION: {node.arch} reported as {override}")
        found.append(
            Device(
                backend="rocm",
                index=index,
                name=_product_name(node),
                arch=override or node.arch,
                compute_units=node.compute_units,
                l2_bytes=node.l2_bytes,
                memory_bytes=node.memory_bytes,
                shared_bytes_per_block=node.lds_bytes or 64 * 1024,
                threads_per_block=1024,
                memory_bandwidth=node.memory_bandwidth,
                driver_version=_driver_version(),
                notes=tuple(notes),
            )
        )
    return tuple(found)


def access_reason(topology: Path | None = None, device_file: Path | None = None) -> str | None:
    """Why the kernel's compute interface cannot be used by this process, or None."""
    device_file = device_file or _KFD_DEVICE
    if not (topology or TOPOLOGY).is_dir():
        return "the kernel shows no AMD compute device (/sys/class/kfd is missing: amdgpu is not loaded)"
    if not device_file.exists():
        return f"{device_file} is missing: pass it (and /dev/dri) into the container"
    if not os.access(device_file, os.R_OK | os.W_OK):
        return f"{device_file} may not be opened: add the user to the groups render and video"
    return None
