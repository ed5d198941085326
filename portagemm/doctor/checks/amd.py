"""AMD's kernel driver and KFD: from the PCI bus to the list of GPUs ROCm sees."""

from __future__ import annotations

import errno
import re

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip
from portagemm.doctor.facts import AMD, container, gpus, wsl
from portagemm.doctor.facts_amd import (
    amd_gpus,
    group_name,
    groups,
    integrated,
    render_nodes,
    topology,
)
from portagemm.doctor.host import Host
from portagemm.doctor.kernel_log import kernel_log
from portagemm.doctor.secure_boot import secure_boot


@check(
    "amd.pci",
    "AMD GPUs are on the bus, with AMD's driver",
    reads=("/sys/bus/pci/devices/*/{vendor,device,class,driver}",),
    severity="blocks-use",
)
def pci(ctx: Context) -> Result:
    """Counts the AMD GPUs on the PCI bus and the kernel driver bound to each: amdgpu, none, or vfio-pci, which
    keeps it for a virtual machine. A processor's integrated graphics alone, on a machine without ROCm, is left
    out: an office laptop is no ROCm machine."""
    host = ctx.host
    if wsl(host):
        return skip("WSL has no PCI bus with GPUs: see wsl.dxg")
    found = amd_gpus(host)
    if not found:
        ignored = gpus(host, AMD)
        return skip("only integrated AMD graphics, and no ROCm" if ignored else "no AMD GPU")
    drivers = {device.address: device.driver for device in found}
    evidence = [
        (device.path, f"{device.vendor:04x}:{device.device:04x}, driver {device.driver or 'none'}")
        for device in found
    ]
    data = {"count": len(found), "drivers": drivers}
    loaded = host.exists("/sys/module/amdgpu")
    reserved = [address for address, driver in drivers.items() if driver == "vfio-pci"]
    unbound = [
        address for address, driver in drivers.items() if driver != "amdgpu" and address not in reserved
    ]
    if loaded and unbound:
        remedy = Remedy(
            "See in the kernel log why the driver let go of it.", "sudo dmesg | grep -i amdgpu", root=True
        )
        what = drivers[unbound[0]] or "no driver"
        message = f"{len(unbound)} of {len(found)} GPUs not bound to amdgpu: {unbound[0]} has {what}"
        return fail(message, evidence=evidence, remedies=(remedy,), data=data)
    if reserved and len(reserved) == len(found):
        remedy = Remedy(
            "Give the GPU back to amdgpu, if no virtual machine needs it.", root=True, reboot=True
        )
        message = f"bound to vfio-pci, for a virtual machine: {', '.join(reserved)}"
        return fail(message, evidence=evidence, remedies=(remedy,), data=data)
    tail = f"; {len(reserved)} reserved for virtual machines (vfio-pci)" if reserved else ""
    return info(f"{len(found)} AMD GPU(s){tail}", evidence=evidence, data=data)


@check(
    "amd.module",
    "The amdgpu kernel module is live",
    reads=(
        "/sys/module/amdgpu/initstate",
        "/sys/module/amdgpu/version",
        "/proc/cmdline",
        "efivars SecureBoot",
    ),
    severity="blocks-use",
    needs=("amd.pci",),
)
def module(ctx: Context) -> Result:
    """/sys/module/amdgpu with initstate "live" is a loaded module; without initstate the driver is built into the
    kernel. It has a version file only if it came from AMD's own packages (DKMS)."""
    host = ctx.host
    version = host.value("/sys/module/amdgpu/version")
    state = host.value("/sys/module/amdgpu/initstate")
    if host.exists("/sys/module/amdgpu") and state in ("live", ""):
        origin = f"{version} of AMD's packages" if version else "the kernel's own"
        return passed(f"amdgpu is loaded, {origin}", data={"version": version, "built_in": not state})
    evidence = [("/sys/module/amdgpu", state or "does not exist")]
    command_line = host.text("/proc/cmdline")
    evidence += [("/proc/cmdline", word) for word in ("nomodeset", "amdgpu") if word in command_line]
    blocked = [
        path
        for path in host.glob("/etc/modprobe.d/*.conf")
        if re.search(r"^\s*(?:blacklist|install)\s+amdgpu\b", host.text(path), re.MULTILINE)
    ]
    remedies = []
    if container(host):
        remedies.append(Remedy("Load the driver on the node.", "sudo modprobe amdgpu", root=True, host=True))
    elif blocked or "blacklist=amdgpu" in command_line.replace(" ", ""):
        evidence += [(path, "blacklist amdgpu") for path in blocked]
        where = blocked[0] if blocked else "the kernel's command line"
        remedies.append(Remedy(f"Remove the blacklisting of amdgpu from {where}.", root=True, reboot=True))
    else:
        remedies.append(
            Remedy("Load it; if that fails, the kernel log says why.", "sudo modprobe amdgpu", root=True)
        )
    if secure_boot(host):
        evidence.append(("Secure Boot", "on"))
        remedies.append(
            Remedy(
                "Secure Boot is on: a DKMS module must be signed with an enrolled key.",
                "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der",
                root=True,
                reboot=True,
            )
        )
    return fail("an AMD GPU is there, amdgpu is not loaded", evidence=evidence, remedies=remedies)


@check(
    "amd.kfd-node",
    "The driver offers compute (KFD)",
    reads=("/dev/kfd", "/sys/class/kfd"),
    severity="blocks-use",
    needs=("amd.module",),
)
def kfd_node(ctx: Context) -> Result:
    """/dev/kfd is amdgpu's compute interface. A loaded driver without it is a kernel built without HSA_AMD. In a
    container container.kfd looks at this."""
    host = ctx.host
    if host.exists("/dev/kfd"):
        return passed("/dev/kfd")
    if container(host):
        return skip("in a container: see container.kfd")
    evidence = [
        ("/dev/kfd", "does not exist"),
        ("/sys/class/kfd", "exists" if host.exists("/sys/class/kfd") else "does not exist"),
    ]
    if host.exists("/sys/class/kfd"):
        remedy = Remedy(
            "The driver has it and the node is missing: let udev make it.", "sudo udevadm trigger", root=True
        )
        return fail("/sys/class/kfd is there, /dev/kfd is not", evidence=evidence, remedies=(remedy,))
    remedy = Remedy(
        "Use a kernel built with CONFIG_HSA_AMD, or AMD's amdgpu-dkms package.", root=True, reboot=True
    )
    return fail("amdgpu is loaded without compute: no /dev/kfd", evidence=evidence, remedies=(remedy,))


def _denied(host: Host) -> list[tuple[str, int]]:
    """(path, errno) of the nodes that cannot be opened."""
    codes = [(path, host.open_errno(path, write=True)) for path in ("/dev/kfd", *render_nodes(host))]
    return [(path, code) for path, code in codes if code]


@check(
    "amd.group-session",
    "This session has the groups the user is in",
    reads=("/etc/group", "groups of the process", "stat of /dev/kfd and /dev/dri/renderD*"),
    severity="blocks-use",
    needs=("amd.kfd-node",),
)
def group_session(ctx: Context) -> Result:
    """`usermod -aG` changes /etc/group, but a session keeps the groups it began with. If /etc/group lists the
    user in the group that owns a node and the process lacks it, the session is older than the membership."""
    host = ctx.host
    if container(host):
        return skip("in a container: see container.render-gid")
    members = {gid: names for _, gid, names in groups(host)}
    stale = []
    for path, code in _denied(host):
        found = host.stat(path)
        if code == errno.EACCES and found is not None and host.user.name in members.get(found.gid, ()):
            stale.append((path, found.gid))
    if not stale:
        return passed("no membership is waiting for a new login")
    name = group_name(host, stale[0][1])
    evidence = [(path, f"group {gid} ({name})") for path, gid in stale]
    evidence.append(("groups of the process", " ".join(map(str, host.user.groups))))
    remedies = (
        Remedy(
            "Log out and in again (a screen or tmux server, or an IDE's, must be restarted too).",
            relogin=True,
        ),
        Remedy("Or get a shell with the group.", f"newgrp {name}"),
    )
    message = f"this session began before the user was added to {name}"
    return fail(message, evidence=evidence, remedies=remedies, data={"group": name})


@check(
    "amd.kfd-access",
    "AMD's device nodes can be opened",
    reads=("open of /dev/kfd and /dev/dri/renderD*", "/etc/group"),
    severity="blocks-use",
    needs=("amd.kfd-node", "amd.group-session"),
)
def kfd_access(ctx: Context) -> Result:
    """ROCm opens /dev/kfd and each render node for reading and writing. Only the group that owns the node counts,
    usually render; on older distributions video. Denied, rocminfo fails with
    HSA_STATUS_ERROR_OUT_OF_RESOURCES and torch sees no GPU."""
    host = ctx.host
    if container(host):
        return skip("in a container: see container.render-gid")
    denied = _denied(host)
    if not denied:
        return passed(f"/dev/kfd and {len(render_nodes(host))} render node(s)")
    evidence = [(path, errno.errorcode.get(code, str(code))) for path, code in denied]
    data = {"errors": {path: errno.errorcode.get(code, str(code)) for path, code in denied}}
    path, code = next(((p, c) for p, c in denied if c == errno.EACCES), denied[0])
    found = host.stat(path)
    if code == errno.EACCES and found is not None:
        group = group_name(host, found.gid) or str(found.gid)
        evidence.append((path, f"mode {found.mode:04o}, group {group}"))
        names = sorted({group_name(host, s.gid) or str(s.gid) for p, _ in denied if (s := host.stat(p))})
        command = f"sudo usermod -aG {','.join(names)} $USER"
        remedy = Remedy(f"Join the group that owns it, {group}.", command, root=True, relogin=True)
        return fail(
            f"{path} may not be opened: it belongs to group {group}",
            evidence=evidence,
            remedies=(remedy,),
            data=data,
        )
    if code == errno.EPERM:
        remedy = Remedy(
            "Ask the scheduler for the GPU; it denies devices that were not requested.",
            "srun --gres=gpu:1 ...",
        )
        return fail(f"the device cgroup denies {path}", evidence=evidence, remedies=(remedy,), data=data)
    remedy = Remedy("See the kernel log.", "sudo dmesg | grep -i -e kfd -e amdgpu", root=True)
    name = errno.errorcode.get(code, str(code))
    return fail(f"{path} cannot be opened: {name}", evidence=evidence, remedies=(remedy,), data=data)


@check(
    "amd.topology",
    "KFD accepted every AMD GPU",
    reads=("/sys/class/kfd/kfd/topology/nodes/*/properties", "/sys/bus/pci/devices", "the kernel log"),
    severity="blocks-use",
    probe="process",
    needs=("amd.kfd-node",),
    after=("amd.kfd-access",),
)
def kfd_topology(ctx: Context) -> Result:
    """A GPU on the bus that KFD's topology lacks was refused by the driver: the slot or processor has no PCIe
    atomics ("PCI rejects atomics"), or the chip is not supported. The kernel log says which. Nodes that may
    not be read are GPUs outside the process's device cgroup, not missing ones. A GPU in several partitions
    has several nodes; an MI250X is two GPUs on the bus already."""
    host = ctx.host
    found = topology(host)
    bound = [device for device in amd_gpus(host) if device.driver == "amdgpu"]
    seen = {node.address for node in found.gpus}
    missing = [device for device in bound if device.address not in seen]
    gfx = [node.gfx for node in found.gpus]
    data = {"gpus": len(found.gpus), "hidden": found.hidden, "gfx": gfx, "on_bus": len(bound)}
    lost = [device for device in missing if not integrated(host, device)]
    if len(lost) <= found.hidden:
        tail = f"; {found.hidden} hidden by the device cgroup" if found.hidden else ""
        small = [device for device in missing if integrated(host, device)]
        tail += (
            f"; integrated {small[0].address} is not used for compute" if small and not found.hidden else ""
        )
        listed = ", ".join(f"{gfx.count(name)} x {name}" for name in sorted(set(gfx))) or "none"
        return passed(f"GPU nodes: {listed}{tail}", data=data)
    log = [line for line in kernel_log(host).splitlines() if "kfd" in line.lower()]
    reason = next(
        (line for line in log if re.search(r"skipped device|rejects atomics|not supported|fail", line, re.I)),
        "",
    )
    evidence = [(device.path, "not in KFD's topology") for device in lost]
    if reason:
        evidence.append(("kernel log", reason.strip()))
    if "atomics" in reason:
        remedies = (
            Remedy(
                "Put the GPU into a slot wired to the processor (not the chipset, no riser or x1 adapter)."
            ),
            Remedy("The platform may lack PCIe atomics: Haswell or Zen and later have them."),
        )
        message = f"KFD refused {lost[0]}: its PCIe slot has no atomics"
    else:
        remedies = (
            Remedy("Read what the driver says of it.", "sudo dmesg | grep -i kfd", root=True),
            Remedy(
                "Look the GPU up in AMD's list of supported ones; a newer kernel or amdgpu-dkms may know it."
            ),
        )
        message = f"KFD lists {len(found.gpus)} GPU(s), {len(bound)} are on the bus; missing: {lost[0]}"
    return fail(message, evidence=evidence, remedies=remedies, data=data)
