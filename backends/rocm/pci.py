"""What amdgpu shows of a GPU under its PCI address: product name, and how it is cut into partitions."""

from __future__ import annotations

from pathlib import Path

from portagemm.hal.amd import Partitioning, partitioning_of

#: Where the kernel lists PCI devices, and libdrm's list of product names; tests give others.
DEVICES = Path("/sys/bus/pci/devices")
PRODUCTS = Path("/usr/share/libdrm/amdgpu.ids")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def partitioning(address: str, devices: Path | None = None) -> Partitioning:
    """The modes of the GPU at ``0000:83:00.0``. Never raises."""
    folder = (devices or DEVICES) / address
    return partitioning_of(lambda name: _text(folder / name))


def product(address: str, devices: Path | None = None, products: Path | None = None) -> str:
    """The product's name: libdrm's for its device id and revision, as HIP has it, else the board's own, else ""."""
    folder = (devices or DEVICES) / address
    device, revision = _hex(_text(folder / "device")), _hex(_text(folder / "revision"))
    if device is not None and revision is not None:
        for line in _text(products or PRODUCTS).splitlines():
            parts = [part.strip() for part in line.split(",", 2)]
            if len(parts) == 3 and (_hex(parts[0]), _hex(parts[1])) == (device, revision):
                return parts[2]
    return _text(folder / "product_name")


def _hex(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None
