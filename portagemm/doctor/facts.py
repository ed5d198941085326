"""Facts that several checks need, each computed once a host: `@fact` functions of a `Host`.

Write a fact for what two checks read; a check that alone reads something reads it itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from portagemm.doctor.host import Host
from portagemm.hal import environment
from portagemm.hal.environment import Environment

_T = TypeVar("_T")

NVIDIA, AMD, MICROSOFT = 0x10DE, 0x1002, 0x1414


def fact(function: Callable[[Host], _T]) -> Callable[[Host], _T]:
    """Make a function of a host remember its value on the host."""
    key = f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(function)
    def remembered(host: Host) -> _T:
        if key not in host.memo:
            host.memo[key] = function(host)
        value: _T = host.memo[key]
        return value

    return remembered


class _HalView(environment.Host):
    """What `hal.environment` reads, through our door: its detection is the only one."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.root, host.env)
        self._host = host

    def text(self, name: str, limit: int = 1 << 20) -> str:
        return self._host.text(name, limit)

    def exists(self, name: str) -> bool:
        return self._host.exists(name)

    def glob(self, pattern: str) -> list[Path]:
        return [self.path(path) for path in self._host.glob(pattern)]


def hal_host(host: Host) -> environment.Host:
    """The host as `hal.environment` and other detection in hal take it."""
    return _HalView(host)


@fact
def surroundings(host: Host) -> Environment:
    """WSL, container, hypervisor, MIG: `hal.environment.probe` of this host."""
    return environment.probe(host=_HalView(host))


def wsl(host: Host) -> int:
    """0, 1 or 2."""
    return surroundings(host).wsl


def container(host: Host) -> str:
    """docker, podman, kubernetes, lxc, apptainer, systemd-nspawn, unknown; "" outside any."""
    return surroundings(host).container


@dataclass(frozen=True)
class PciDevice:
    """A device of /sys/bus/pci/devices. address: "0000:01:00.0". vendor, device, kind (the class): numbers.

    driver: name of the kernel driver bound to it, "" none. numa: node, -1 none.
    """

    address: str
    vendor: int
    device: int
    kind: int
    driver: str
    numa: int = -1

    @property
    def path(self) -> str:
        """Its folder in sysfs."""
        return f"/sys/bus/pci/devices/{self.address}"

    @property
    def display(self) -> bool:
        """A GPU: VGA (0x0300), 3D (0x0302) or other display (0x0380) controller; 0x1200, processing
        accelerator, is what some Instinct parts report."""
        return self.kind >> 8 in (0x0300, 0x0302, 0x0380) or (self.vendor == AMD and self.kind >> 8 == 0x1200)

    def __str__(self) -> str:
        return f"{self.address} ({self.vendor:04x}:{self.device:04x})"


@fact
def pci_devices(host: Host) -> tuple[PciDevice, ...]:
    """NVIDIA's, AMD's and Microsoft's (WSL, Hyper-V) PCI devices, sorted by address."""
    found = []
    for path in host.glob("/sys/bus/pci/devices/*/vendor"):
        vendor = host.number(path)
        if vendor not in (NVIDIA, AMD, MICROSOFT):
            continue
        base = path.rpartition("/")[0]
        link = host.readlink(f"{base}/driver")
        numa = host.number(f"{base}/numa_node")
        found.append(
            PciDevice(
                base.rpartition("/")[2],
                vendor,
                host.number(f"{base}/device") or 0,
                host.number(f"{base}/class") or 0,
                link.rstrip("/").rpartition("/")[2] if link else "",
                -1 if numa is None else numa,
            )
        )
    return tuple(found)


def gpus(host: Host, vendor: int) -> tuple[PciDevice, ...]:
    """The vendor's GPUs on the PCI bus. In a container too: sysfs is the node's. None in WSL."""
    return tuple(device for device in pci_devices(host) if device.vendor == vendor and device.display)


def version_tuple(text: str) -> tuple[int, ...]:
    """The first dotted number in a text: (580, 65, 6) of "NVRM version: 580.65.06"; () if there is none."""
    found = re.search(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def dotted(version: tuple[int, ...]) -> str:
    """ "6.4.3" of (6, 4, 3). Do not use for NVIDIA's driver, which pads: show its own text."""
    return ".".join(map(str, version))


@dataclass(frozen=True)
class Distribution:
    """An installed Python package, from its metadata alone. name: normalised. folder: its site-packages."""

    name: str
    version: str
    folder: str


@fact
def distributions(host: Host) -> dict[str, Distribution]:
    """Installed Python packages by normalised name; of two the one first on sys.path. Nothing is imported."""
    found: dict[str, Distribution] = {}
    for folder in host.python.path:
        for path in host.glob(f"{folder}/*.dist-info"):
            name, _, version = path.rpartition("/")[2][: -len(".dist-info")].rpartition("-")
            name = re.sub(r"[-_.]+", "-", name).lower()
            found.setdefault(name, Distribution(name, version, folder))
    return found
