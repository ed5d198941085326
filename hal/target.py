"""What code is compiled for: a backend, an arch as its compiler spells it, and the wave size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A compile target.

    Attributes:
        backend: name of the backend that compiles and launches: ``cuda``, ``rocm`` or ``cpu``.
        arch: the instruction set the sources are written for, as the compiler spells it
            (``sm_90a``, ``gfx90a``; ``native`` on the CPU).
        wave_size: lanes of a wave (32, 64; 1 on the CPU).
        assembled_for: the exact arch of the code object, where it differs from `arch`: a forced
            profile's PTX (``sm_80``) assembled for the card at hand (``sm_90``). None: `arch` itself.
    """

    backend: str
    arch: str
    wave_size: int
    assembled_for: str | None = None

    @property
    def code_arch(self) -> str:
        """The arch the code object runs on."""
        return self.assembled_for or self.arch

    def __str__(self) -> str:
        via = f"->{self.assembled_for}" if self.assembled_for else ""
        return f"{self.backend}:{self.arch}{via}"
