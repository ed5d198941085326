"""The contract of a run-time compiler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from portagemm.hal.program import ObjectCode
from portagemm.hal.target import Target


@dataclass(frozen=True)
class CompileOptions:
    """What the command line may vary.

    Attributes:
        include_dirs: searched in this order; the backend's own folder comes first, because the
            vendor is chosen by include path.
        defines: preprocessor names and values.
        debug: line information for sanitizers and profilers.
    """

    include_dirs: tuple[Path, ...]
    defines: tuple[tuple[str, str], ...] = ()
    debug: bool = False


class Compiler(Protocol):
    """Turns one self-contained source into one code object."""

    def unavailable_reason(self) -> str | None:
        """Why this compiler cannot be used here, or None when it can."""

    def identity(self) -> str:
        """Name and version, part of every cache key; never an install path."""

    def flags(self, target: Target, options: CompileOptions) -> tuple[str, ...]:
        """The flags that decide the result (no paths): part of the cache key."""

    def compile(self, source: str, symbol: str, target: Target, options: CompileOptions) -> ObjectCode:
        """Compile `source`, which defines ``extern "C"`` kernel `symbol`.

        Raises portagemm.hal.errors.CompileError with the compiler's log.
        """
