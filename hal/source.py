"""What is compiled: one self-contained source, its target and where its headers are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from portagemm.hal.profile_types import ArchProfile
from portagemm.hal.target import Target


@dataclass(frozen=True)
class KernelSource:
    """A kernel's source before compilation.

    Attributes:
        symbol: the kernel's extern "C" name.
        text: the source; begins with the generated arch_config.
        target: what it is compiled for.
        include_dirs: header folders, searched in this order.
        defines: preprocessor names and values.
    """

    symbol: str
    text: str
    target: Target
    include_dirs: tuple[Path, ...]
    defines: tuple[tuple[str, str], ...] = ()


def shared_include_dir() -> Path:
    """The folder of the vendor-free headers."""
    return Path(__file__).resolve().parent / "include"


def arch_config(profile: ArchProfile) -> str:
    """The profile's facts as constants for device code: the only place where device code learns them."""
    limits = profile.limits
    return "\n".join(
        (
            f"// arch_config.hpp, generated from the arch profile {profile.name}",
            "namespace pg::arch_config {",
            f"inline constexpr int wave_size = {profile.wave_size};",
            f"inline constexpr int threads_per_block = {limits.threads_per_block};",
            f"inline constexpr int shared_bytes_per_block = {limits.shared_bytes_per_block};",
            "}  // namespace pg::arch_config",
        )
    )
