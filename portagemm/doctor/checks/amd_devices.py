"""AMD GPUs as programs see them: masks, the integrated one, partitions; and how the node is set up."""

from __future__ import annotations

import functools

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.facts import NVIDIA, container, gpus, surroundings
from portagemm.doctor.facts_amd import (
    KfdNode,
    amd_gpus,
    integrated,
    topology,
)
from portagemm.doctor.host import Host
from portagemm.hal.amd import INNER, OUTER, Partitioning, partitioning_of, visible

_NUMA_BALANCING = "/proc/sys/kernel/numa_balancing"


@check(
    "amd.igpu",
    "The integrated GPU is out of the way",
    reads=("/sys/class/kfd/kfd/topology/nodes/*/properties", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    severity="degrades",
    needs=("amd.topology",),
    after=("amd.visible-mask",),
)
def igpu(ctx: Context) -> Result:
    """With a graphics card beside a processor's graphics, ROCm lists both, and libraries without code for the
    integrated one crash or pick it. The mask is printed by what this machine enumerates, never by a fixed
    index, which could hide the card instead."""
    host = ctx.host
    found = topology(host).gpus
    small = [node for node in found if node.integrated]
    large = [node for node in found if not node.integrated]
    if not small or not large:
        return skip("not an integrated GPU beside a separate one")
    shown = ctx.data("amd.visible-mask", "visible")
    data = {"integrated": [node.gfx for node in small], "separate": [node.gfx for node in large]}
    if shown is not None and not {node.number for node in small} & set(shown):
        return passed(f"{small[0].gfx} is masked out", data=data)
    names = [_mask_name(node, found) for node in large]
    remedies = (
        Remedy("Show ROCm the separate GPU alone.", f"export ROCR_VISIBLE_DEVICES={','.join(names)}"),
        Remedy("Or switch the integrated graphics off in the BIOS.", reboot=True),
    )
    evidence = [(f"node {node.number}", f"{node.gfx} at {node.address}") for node in found]
    message = f"ROCm lists the integrated {small[0].gfx} beside {large[0].gfx}"
    return warn(message, evidence=evidence, remedies=remedies, data=data)


def _mask_name(node: KfdNode, nodes: tuple[KfdNode, ...]) -> str:
    """What a mask calls a node: its id, or its place in the order of enumeration where it has none."""
    return f"GPU-{node.unique_id:016x}" if node.unique_id else str(nodes.index(node))


@check(
    "amd.visible-mask",
    "The masks leave GPUs to use",
    reads=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    severity="blocks-use",
    needs=("amd.topology",),
)
def visible_mask(ctx: Context) -> Result:
    """Masks apply in two layers. ROCR_VISIBLE_DEVICES picks from all GPUs; HIP_VISIBLE_DEVICES, or
    CUDA_VISIBLE_DEVICES where that is unset, then picks from what is left and counts from zero again. Both
    with absolute indices leave nothing: GPU 3 of one is not there any more."""
    host = ctx.host
    nodes = topology(host).gpus
    found = visible(nodes, lambda node: node.unique_id, host.env)
    # HIP takes an empty mask for none at all; ROCr does not.
    outer = next((name for name in OUTER if host.env.get(name)), "")
    names = [name for name in (INNER, outer) if name and name in host.env]
    data = {"visible": [node.number for node in found.items], "all": len(nodes), "set": names}
    evidence = [(name, host.env[name]) for name in names]
    if not names or not nodes:
        return passed("no mask is set", data=data)
    drop = Remedy(
        "Set one of them only." if len(names) > 1 else "Unset it, or name a GPU that is there.",
        f"unset {names[0]}",
    )
    if not found.items:
        text = " and ".join(f"{name}={host.env[name]!r}" for name in names)
        leaves = "leave" if len(names) > 1 else "leaves"
        message = f"{text} {leaves} none of {len(nodes)} AMD GPUs"
        if names == [OUTER[1]] and gpus(host, NVIDIA):
            return info(f"{message}; NVIDIA's are meant, perhaps", evidence=evidence, data=data)
        if len(names) == 1 and host.env[names[0]].strip() == "-1":  # how GPUs are hidden on purpose
            return warn(message, evidence=evidence, remedies=(drop,), data=data)
        return fail(message, details=found.notes, evidence=evidence, remedies=(drop,), data=data)
    if len(names) > 1:
        message = f"{' and '.join(names)} are both set: {len(found.items)} of {len(nodes)} GPUs are left"
        return warn(message, details=found.notes, evidence=evidence, remedies=(drop,), data=data)
    text = f"{names[0]} leaves {len(found.items)} of {len(nodes)} GPUs"
    return passed(text, details=found.notes[1:], evidence=evidence, data=data)


def _value_of(host: Host, folder: str, name: str) -> str:
    return host.value(f"{folder}/{name}")


@check(
    "amd.partition",
    "How the GPUs are partitioned",
    reads=("current_compute_partition, current_memory_partition in sysfs",),
    severity="cosmetic",
    needs=("amd.pci",),
)
def partition(ctx: Context) -> Result:
    """MI300 and later can be split: SPX is the whole GPU, DPX, QPX and CPX are halves, quarters and single dies;
    NPS says how memory is interleaved. A partition is a device with fewer compute units, and has its own
    tuning table."""
    host = ctx.host
    modes: dict[str, Partitioning] = {}
    for device in amd_gpus(host):
        read = functools.partial(_value_of, host, device.path)
        modes[device.address] = partitioning_of(read)
    modes = {address: mode for address, mode in modes.items() if mode.compute}
    if not modes:
        return skip("these GPUs cannot be partitioned")
    kinds = sorted({str(mode) for mode in modes.values()})
    evidence = list(modes.items())
    details = ("the GPUs differ in their partitions",) if len(kinds) > 1 else ()
    return info(", ".join(kinds), details=details, evidence=evidence, data={"modes": kinds})


def _translated(host: Host, command_line: str) -> bool:
    """Whether an IOMMU translates the GPUs' addresses. A group's type says so: identity is passed through."""
    kinds = {host.value(f"{device.path}/iommu_group/type") for device in amd_gpus(host)} - {""}
    if kinds:
        return any(kind.startswith("DMA") for kind in kinds)
    asked = "iommu=pt" in command_line or "iommu=off" in command_line
    return bool(host.listdir("/sys/kernel/iommu_groups")) and not asked


@check(
    "amd.host-tuning",
    "The node is set up for several GPUs",
    reads=("type of the GPUs' IOMMU groups in sysfs", "/proc/cmdline", _NUMA_BALANCING),
    severity="degrades",
    needs=("amd.pci",),
)
def host_tuning(ctx: Context) -> Result:
    """AMD recommends iommu=pt for peer-to-peer transfers between GPUs (RCCL warns without it, and may hang), and
    NUMA balancing off, which otherwise stalls GPUs while it moves pages. Only asked for where there is more
    than one GPU, and the first not in virtual machines or where no IOMMU is on."""
    host = ctx.host
    count = len([device for device in amd_gpus(host) if not integrated(host, device)])
    if count < 2:
        return skip("not several GPUs")
    command_line = host.text("/proc/cmdline")
    problems, remedies, evidence = [], [], []
    outside = bool(container(host))
    if not surroundings(host).hypervisor and _translated(host, command_line):
        problems.append("the IOMMU translates the GPUs' addresses (no iommu=pt)")
        evidence.append(("/proc/cmdline", command_line.strip()))
        command = 'sudo grubby --update-kernel=ALL --args="iommu=pt"'
        remedies.append(
            Remedy(
                "Add iommu=pt to the kernel's command line.", command, root=True, reboot=True, host=outside
            )
        )
    if host.value(_NUMA_BALANCING) not in ("", "0"):
        problems.append("NUMA balancing is on")
        evidence.append((_NUMA_BALANCING, host.value(_NUMA_BALANCING)))
        remedies.append(
            Remedy(
                "Switch NUMA balancing off.", "sudo sysctl kernel.numa_balancing=0", root=True, host=outside
            )
        )
    if problems:
        return warn(" and ".join(problems), evidence=evidence, remedies=remedies, data={"gpus": count})
    return passed("iommu and NUMA balancing are as recommended", data={"gpus": count})
