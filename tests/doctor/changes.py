"""Changes of golden machines: one thing is other than it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portagemm.doctor.machine_file import MachineFile

Change = Callable[[MachineFile], None]


def value(path: str, text: str) -> Change:
    return lambda machine: machine.files.update({path: text.encode() + b"\n"})


def node(path: str, **attributes: Any) -> Change:
    return lambda machine: machine.nodes.update({path: {**machine.nodes.get(path, {}), **attributes}})


def fact(key: str, **values: Any) -> Change:
    return lambda machine: machine.machine.update({key: {**machine.machine.get(key, {}), **values}})


def variable(name: str, text: str) -> Change:
    return lambda machine: machine.env.update({name: text})


def both(*changes: Change) -> Change:
    def change(machine: MachineFile) -> None:
        for one in changes:
            one(machine)

    return change


def room(path: str, total: int, free: int, inodes: int = 0, free_inodes: int = 0) -> Change:
    space = {"total": total, "free": free, "inodes": inodes, "free_inodes": free_inodes}
    return node(path, kind="dir", mode=0o1777, uid=0, gid=0, space=space)


GIB = 1 << 30
RELEASE = "/proc/sys/kernel/osrelease"
KMD = "/sys/module/amdgpu/version"
ROCM = "/opt/rocm-6.4.1/.info/version"
CGROUP = "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope"


def limits(**values: tuple[int, int]) -> Change:
    return fact("limits", **{name: list(pair) for name, pair in values.items()})


def driver(name: str, *addresses: str) -> Change:
    """Bind PCI devices to another kernel driver."""

    def change(machine: MachineFile) -> None:
        for address in addresses:
            machine.links[f"/sys/bus/pci/devices/0000:{address}:00.0/driver"] = (
                f"../../../../bus/pci/drivers/{name}"
            )

    return change


MI300X = ("05", "26", "46", "65", "85", "a6", "c6", "e5")


def without_torch(machine: MachineFile) -> None:
    machine.remove("/home/alice/venv/lib/python3.11/site-packages/torch")


def rocm(version: str) -> Change:
    return both(without_torch, value(ROCM, version))


def gfx(number: int) -> Change:
    """The RX 9070 machine's GPU as another target."""
    path = "/sys/class/kfd/kfd/topology/nodes/1/properties"

    def change(machine: MachineFile) -> None:
        text = (
            machine.files[path].decode().replace("gfx_target_version 120001", f"gfx_target_version {number}")
        )
        machine.files[path] = text.encode()

    return change


def torch_rocm(version: str) -> Change:
    return value("/home/alice/venv/lib/python3.11/site-packages/torch/version.py", f"hip = '{version}.12345'")
