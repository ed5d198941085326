"""What is compiled: one self-contained source, its target and where its headers are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
