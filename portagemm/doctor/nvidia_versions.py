"""Which NVIDIA driver serves which CUDA, as published up to `KNOWN_AS_OF`. A newer version is no fault.

Sources: docs.nvidia.com/deploy/cuda-compatibility (minimum by family) and the release notes of each toolkit
(packaged driver, PTX ISA, architectures), the PTX ISA manual (targets).
"""

from __future__ import annotations

import re

KNOWN_AS_OF = "2026-08"

#: CUDA major -> oldest Linux driver on which programs of the family run, as far as they use no newer feature.
FAMILY_MINIMUM: dict[int, tuple[int, ...]] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
NEWEST_FAMILY = max(FAMILY_MINIMUM)

#: CUDA version -> Linux driver packaged with its first release: the oldest that reads its PTX.
PACKAGED_DRIVER: dict[tuple[int, int], tuple[int, ...]] = {
    (11, 8): (520, 61, 5),
    (12, 0): (525, 60, 13),
    (12, 1): (530, 30, 2),
    (12, 2): (535, 54, 3),
    (12, 3): (545, 23, 6),
    (12, 4): (550, 54, 14),
    (12, 5): (555, 42, 2),
    (12, 6): (560, 28, 3),
    (12, 8): (570, 26),
    (12, 9): (575, 51, 3),
    (13, 0): (580, 65, 6),
    (13, 1): (590, 44, 1),
    (13, 2): (595, 45, 4),
}
NEWEST_TOOLKIT = max(PACKAGED_DRIVER)

#: CUDA major -> oldest compute capability its compiler and libraries serve.
OLDEST_CAPABILITY: dict[int, tuple[int, int]] = {11: (3, 5), 12: (5, 0), 13: (7, 5)}

#: Compute capability -> first CUDA that compiles for it exactly. 11.0 was called 10.1 before CUDA 13.
FIRST_TOOLKIT: dict[tuple[int, int], tuple[int, int]] = {
    (8, 0): (11, 0),
    (8, 6): (11, 1),
    (8, 7): (11, 4),
    (8, 9): (11, 8),
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (10, 3): (12, 9),
    (11, 0): (13, 0),
    (12, 0): (12, 8),
    (12, 1): (12, 9),
}
NEWEST_CAPABILITY = max(FIRST_TOOLKIT)

#: Code for these targets uses features of exactly one compute capability ("a"), or of one family ("f").
_TARGET = re.compile(r"(?:sm|compute)_(\d+)(\d)([af]?)")


def family_of_driver(driver: tuple[int, ...]) -> int:
    """The newest CUDA family a Linux driver serves; 0 if older than all known. A newer driver serves the newest."""
    return max((family for family, least in FAMILY_MINIMUM.items() if driver >= least), default=0)


def cuda_of_driver(driver: tuple[int, ...]) -> tuple[int, int] | None:
    """The newest CUDA version whose PTX a Linux driver reads; None for drivers older or newer than the table."""
    if driver[:1] > max(PACKAGED_DRIVER.values())[:1]:
        return None
    return max((cuda for cuda, packaged in PACKAGED_DRIVER.items() if driver >= packaged), default=None)


def target_runs_on(target: str, capability: tuple[int, int]) -> bool:
    """Whether code for ``sm_90``, ``sm_90a``, ``sm_100f`` or ``compute_80`` runs on a device.

    Machine code (sm) runs on the same major and an equal or newer minor capability; PTX (compute) on any newer
    one. ``a`` runs on exactly its own, ``f`` (and PTX of it) on its own major from its own minor on.
    """
    found = _TARGET.fullmatch(target)
    if not found:
        return False
    major, minor, kind = int(found[1]), int(found[2]), found[3]
    if kind == "a":
        return (major, minor) == capability
    if kind == "f" or target.startswith("sm"):
        return major == capability[0] and minor <= capability[1]
    return (major, minor) <= capability
