"""What several checks need to know of NVIDIA's driver: versions, the child that asks libcuda, nvidia-smi."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from portagemm.doctor.facts import NVIDIA, fact, gpus, version_tuple, wsl
from portagemm.doctor.host import Host
from portagemm.doctor.host_types import Child, Command

#: Where distributions, containers, WSL and Apptainer keep the driver's libraries.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/usr/lib64/nvidia",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/opengl-driver/lib",
    "/.singularity.d/libs",
)
#: nvidia-smi asks every GPU for everything: seconds each where the persistence daemon does not run.
SMI_TIMEOUT_S = 20.0
#: cuInit takes several seconds on a large machine without the persistence daemon.
LIBCUDA_TIMEOUT_S = 25.0


@fact
def module_version(host: Host) -> str:
    """Version of the loaded kernel module as it writes it, such as "580.65.06"; "" if it is not loaded."""
    text = host.text("/proc/driver/nvidia/version")
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text + " ", re.MULTILINE)
    return found[1] if found else host.value("/sys/module/nvidia/version")


@dataclass(frozen=True)
class DriverLibrary:
    """A library file of the driver with the driver's version in its name.

    stem: "libcuda.so" or "libnvidia-ml.so". path: where it is. version: such as "580.65.06".
    """

    stem: str
    path: str
    version: str


@fact
def driver_libraries(host: Host) -> tuple[DriverLibrary, ...]:
    """libcuda and libnvidia-ml files by version, in the usual folders; one entry a file, compat folders left out."""
    found: dict[str, DriverLibrary] = {}
    for folder in LIBRARY_FOLDERS:
        for stem in ("libcuda.so", "libnvidia-ml.so"):
            for path in host.glob(f"{folder}/{stem}.*"):
                real = host.realpath(path)
                version = re.fullmatch(rf"{re.escape(stem)}\.(\d+\.\d+(?:\.\d+)?)", real.rpartition("/")[2])
                if version and "/compat" not in real:
                    found.setdefault(real, DriverLibrary(stem, real, version[1]))
    return tuple(found.values())


@fact
def libcuda(host: Host) -> Child:
    """The child that loads libcuda, initialises it and lists the devices. See probes/libcuda.py."""
    return host.child("libcuda", timeout=LIBCUDA_TIMEOUT_S)


def cuda_devices(host: Host) -> list[Mapping[str, Any]]:
    """The devices libcuda shows; empty if it did not come so far."""
    value = libcuda(host).value
    return list(value.get("devices", ())) if isinstance(value, dict) else []


def capability(device: Mapping[str, Any]) -> tuple[int, int]:
    """(9, 0) of a device of `cuda_devices`."""
    return int(device.get("major", 0)), int(device.get("minor", 0))


def cuda_of_driver(host: Host) -> tuple[int, int] | None:
    """The newest CUDA version the driver supports, (13, 0); None if libcuda did not say."""
    value = libcuda(host).value
    number = value.get("driver") if isinstance(value, dict) else None
    return (number // 1000, number % 1000 // 10) if isinstance(number, int) else None


@dataclass(frozen=True)
class SmiGpu:
    """One GPU in the words of ``nvidia-smi -q -x``: an XML element, asked by path."""

    index: int
    element: ElementTree.Element = field(repr=False)

    def text(self, *paths: str) -> str:
        """The first of `paths` that exists and says something; "" for N/A, [Not Supported], ERR! and the like."""
        for path in paths:
            value = (self.element.findtext(path) or "").strip()
            if value and not re.fullmatch(
                r"\[?(?:N/A|Not Supported|Not Applicable|Unknown Error|ERR!|GPU is lost)\]?", value, re.I
            ):
                return value
        return ""

    def number(self, *paths: str) -> int | None:
        """The first number of `text`."""
        found = re.search(r"-?\d+", self.text(*paths))
        return int(found[0]) if found else None

    def active(self, *names: str) -> list[str]:
        """Which of the clock event (formerly throttle) reasons are active, without their prefix."""
        return [
            name
            for name in names
            if self.text(
                f"clocks_event_reasons/clocks_event_reason_{name}",
                f"clocks_throttle_reasons/clocks_throttle_reason_{name}",
            )
            == "Active"
        ]

    @property
    def name(self) -> str:
        """``GPU 0 (NVIDIA H100 80GB HBM3)``."""
        product = self.text("product_name")
        return f"GPU {self.index}" + (f" ({product})" if product else "")


@dataclass(frozen=True)
class Smi:
    """What ``nvidia-smi -q -x`` said. problem: "" or why there is no answer. gpus: in its order."""

    command: Command
    problem: str
    gpus: tuple[SmiGpu, ...] = ()
    driver: str = ""
    cuda: str = ""


@fact
def smi(host: Host) -> Smi:
    """nvidia-smi's whole report. It works through NVML alone: that it runs does not show that CUDA does."""
    program = "nvidia-smi"
    if host.which(program) is None and host.exists("/usr/lib/wsl/lib/nvidia-smi"):  # not on root's PATH
        program = "/usr/lib/wsl/lib/nvidia-smi"
    done = host.run((program, "-q", "-x"), timeout=SMI_TIMEOUT_S, limit=8 << 20)
    if done.problem or done.code:
        said = (done.stdout + done.stderr).strip().splitlines()
        return Smi(done, f"nvidia-smi: {done.say()}" + (f": {said[0][:200]}" if said else ""))
    try:
        tree = ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", done.stdout))
    except ElementTree.ParseError:
        return Smi(done, "nvidia-smi's report cannot be read (cut off, or of another form)")
    found = tuple(SmiGpu(index, element) for index, element in enumerate(tree.iter("gpu")))
    return Smi(
        done,
        "" if found else "nvidia-smi lists no GPU",
        found,
        (tree.findtext("driver_version") or "").strip(),
        (tree.findtext("cuda_version") or "").strip(),
    )


@fact
def expected(host: Host) -> bool:
    """Whether this machine has an NVIDIA GPU in it, or anything that only such a machine has."""
    return bool(
        gpus(host, NVIDIA)
        or module_version(host)
        or host.exists("/dev/nvidiactl")
        or (wsl(host) == 2 and host.exists("/usr/lib/wsl/lib/libcuda.so.1"))
    )


def module_tuple(host: Host) -> tuple[int, ...]:
    """`module_version` as numbers."""
    return version_tuple(module_version(host))


def nvswitches(host: Host) -> list[str]:
    """NVSwitch devices: nodes, else bridges of NVIDIA's (PCI class 0x0680)."""
    nodes = [path for path in host.glob("/dev/nvidia-nvswitch[0-9]*") if re.search(r"nvswitch\d+$", path)]
    return nodes or list(_switch_bridges(host))


def _switch_bridges(host: Host) -> Iterator[str]:
    from portagemm.doctor.facts import pci_devices

    for device in pci_devices(host):
        if device.vendor == NVIDIA and device.kind >> 8 == 0x0680:
            yield device.address
