"""Code objects: ELF segments, kernel descriptor and metadata (LLVM, "User Guide for AMDGPU Backend")."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .faults import NotModelled

RELEASES = ("19", "22", "21", "20", "")


def tool(name: str) -> str:
    """An LLVM tool of any release that is installed. Raises RuntimeError."""
    for release in RELEASES:
        found = shutil.which(f"{name}-{release}" if release else name)
        if found:
            return found
    raise RuntimeError(f"{name} is not installed (llvm-19)")


def unavailable_reason() -> str | None:
    """Why nothing can be executed here, or None."""
    try:
        tool("llvm-objdump"), tool("llvm-readelf")
    except RuntimeError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Descriptor:
    """The 64-byte kernel descriptor, section "Kernel Descriptor"."""

    lds: int
    scratch: int
    kernarg: int
    entry: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int
    preload: int

    @property
    def user_sgprs(self) -> int:
        return self.rsrc2 >> 1 & 31

    @property
    def workgroup_ids(self) -> tuple[bool, bool, bool]:
        return bool(self.rsrc2 >> 7 & 1), bool(self.rsrc2 >> 8 & 1), bool(self.rsrc2 >> 9 & 1)

    @property
    def denorm32(self) -> int:
        return self.rsrc1 >> 16 & 3

    @property
    def denorm16(self) -> int:
        return self.rsrc1 >> 18 & 3

    @property
    def round_modes(self) -> int:
        return self.rsrc1 >> 12 & 15

    def registers(self, arch: str) -> tuple[int, int]:
        """(architectural VGPRs, AGPRs) allocated to a wave."""
        granules = self.rsrc1 & 63
        if arch.startswith("gfx9"):
            total, first_agpr = (granules + 1) * 8, ((self.rsrc3 & 63) + 1) * 4
            return min(first_agpr, total), max(0, total - first_agpr)
        return min(256, (granules + 1) * 8), 0


@dataclass(frozen=True)
class CodeObject:
    """One kernel of a code object."""

    symbol: str
    arch: str
    wave: int
    descriptor: Descriptor
    arguments: tuple[dict[str, Any], ...]
    metadata: dict[str, Any]
    image: bytes
    disassembly: str

    @property
    def explicit_bytes(self) -> int:
        """Size of the arguments that the caller passes."""
        return max(
            (a[".offset"] + a[".size"] for a in self.arguments if not a[".value_kind"].startswith("hidden_")),
            default=0,
        )


def _symbols(code: bytes) -> dict[str, tuple[int, int]]:
    """Name -> (address, size) from .symtab and .dynsym."""
    (offset,) = struct.unpack_from("<Q", code, 0x28)
    entry_size, count = struct.unpack_from("<HH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, offset + i * entry_size) for i in range(count)]
    found = {}
    for kind, link, start, size in ((s[1], s[6], s[4], s[5]) for s in sections):
        if kind not in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM
            continue
        strings = sections[link][4]
        for at in range(start, start + size, 24):
            name, _, _, _, value, length = struct.unpack_from("<IBBHQQ", code, at)
            end = code.index(b"\0", strings + name)
            found[code[strings + name : end].decode()] = (value, length)
    return found


def _image(code: bytes) -> bytes:
    """The loaded segments, from address 0."""
    (offset,) = struct.unpack_from("<Q", code, 0x20)
    entry_size, count = struct.unpack_from("<HH", code, 0x36)
    image = bytearray()
    for i in range(count):
        kind, _, start, address, _, in_file, in_memory, _ = struct.unpack_from(
            "<IIQQQQQQ", code, offset + i * entry_size
        )
        if kind != 1:  # PT_LOAD
            continue
        image.extend(bytes(max(0, address + in_memory - len(image))))
        image[address : address + in_file] = code[start : start + in_file]
    return bytes(image)


def load(code: bytes, symbol: str) -> CodeObject:
    """Read a code object and disassemble one kernel of it. Raises RuntimeError, NotModelled."""
    if code[:4] != b"\x7fELF":
        raise RuntimeError("not an ELF file")
    symbols = _symbols(code)
    if f"{symbol}.kd" not in symbols:
        raise RuntimeError(f"no kernel {symbol} among {sorted(symbols)}")
    image = _image(code)
    at = symbols[f"{symbol}.kd"][0]
    lds, scratch, kernarg = struct.unpack_from("<III", image, at)
    (entry,) = struct.unpack_from("<q", image, at + 16)
    rsrc3, rsrc1, rsrc2 = struct.unpack_from("<III", image, at + 44)
    properties, preload = struct.unpack_from("<HH", image, at + 56)
    descriptor = Descriptor(lds, scratch, kernarg, at + entry, rsrc1, rsrc2, rsrc3, properties, preload)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.co"
        path.write_bytes(code)
        run = [tool("llvm-readelf"), "-n", str(path)]
        notes = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        run = [tool("llvm-objdump"), "-d", f"--disassemble-symbols={symbol}", str(path)]
        disassembly = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    body = notes[notes.index("---") : notes.index("\n...", notes.index("---"))]
    metadata = yaml.safe_load(body)
    kernel = next(k for k in metadata["amdhsa.kernels"] if k[".name"] == symbol)
    arch = metadata["amdhsa.target"].split("--")[1].split(":")[0]
    if scratch:
        raise NotModelled(f"{symbol} uses {scratch} bytes of scratch memory")
    return CodeObject(
        symbol,
        arch,
        int(kernel[".wavefront_size"]),
        descriptor,
        tuple(kernel.get(".args", ())),
        kernel,
        image,
        disassembly,
    )
