"""What several checks need to know of torch and the CUDA wheels: from metadata, and from a child that imports."""

from __future__ import annotations

import re
from dataclasses import dataclass

from portagemm.doctor.facts import distributions, fact, version_tuple
from portagemm.doctor.host import Host
from portagemm.doctor.host_types import Child

WHEELS = "https://download.pytorch.org/whl"
#: Importing torch takes seconds from a cold network disk.
TORCH_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch, by its files alone.

    Attributes:
        version: such as "2.8.0+cu128". kind: "cuda", "rocm", "xpu", "cpu" or "" (cannot be told).
        toolkit: (12, 8) of CUDA or (6, 4) of ROCm, () if none. folder: its site-packages.
    """

    version: str
    kind: str
    toolkit: tuple[int, ...]
    folder: str


@fact
def torch_build(host: Host) -> TorchBuild | None:
    """torch as its metadata and torch/version.py tell it; None if it is not installed. Nothing is imported."""
    found = distributions(host).get("torch")
    if found is None:
        return None
    text = host.text(f"{found.folder}/torch/version.py")
    fields = dict(re.findall(r"""^(\w+)\s*(?::[^=\n]+)?=\s*['"]([^'"\n]*)['"]""", text, re.MULTILINE))
    version = fields.get("__version__", found.version)
    if fields.get("cuda"):
        return TorchBuild(version, "cuda", version_tuple(fields["cuda"])[:2], found.folder)
    if fields.get("hip"):
        tag = re.search(r"\+rocm(\d+\.\d+)", version)
        return TorchBuild(version, "rocm", version_tuple(tag[1] if tag else fields["hip"])[:2], found.folder)
    tag = re.search(r"\+(cpu|cu(\d+)(\d)|rocm(\d+)\.(\d+)|xpu)", version)
    if tag and tag[2]:
        return TorchBuild(version, "cuda", (int(tag[2]), int(tag[3])), found.folder)
    if tag and tag[4]:
        return TorchBuild(version, "rocm", (int(tag[4]), int(tag[5])), found.folder)
    if (tag and tag[1] == "xpu") or fields.get("xpu"):
        return TorchBuild(version, "xpu", (), found.folder)
    # no field names a toolkit: a CPU build says "cuda = None", if its version.py can be read at all
    return TorchBuild(version, "cpu" if text or tag else "", (), found.folder)


@fact
def torch_import(host: Host) -> Child:
    """The child that imports torch. See probes/torch_import.py."""
    return host.child("torch_import", timeout=TORCH_TIMEOUT_S)


@fact
def nvrtc_version(host: Host) -> tuple[int, ...]:
    """Version of the NVRTC wheel that the installed cuda-bindings load, (12, 8, 93); () if there is none."""
    packages = distributions(host)
    bindings = packages.get("cuda-bindings") or packages.get("cuda-python")
    major = version_tuple(bindings.version)[0] if bindings else 0
    for name in (
        "nvidia-cuda-nvrtc",
        f"nvidia-cuda-nvrtc-cu{major}",
        "nvidia-cuda-nvrtc-cu13",
        "nvidia-cuda-nvrtc-cu12",
    ):
        package = packages.get(name)
        if package and (not major or version_tuple(package.version)[0] == major):
            return version_tuple(package.version)
    return ()


@fact
def cuda_wanted(host: Host) -> dict[str, tuple[int, ...]]:
    """What is installed for a CUDA version: "torch 2.8.0+cu128" -> (12, 8)."""
    wanted: dict[str, tuple[int, ...]] = {}
    build = torch_build(host)
    if build is not None and build.kind == "cuda" and build.toolkit:
        wanted[f"torch {build.version}"] = build.toolkit
    return wanted
