"""ROCm's version rules: which release runs which gfx, and with which kernel driver. Known as of `AS_OF`.

Sources: AMD's compatibility matrix and "user and AMD GPU driver support matrix", by release. A release or a
target newer than the tables is never called wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

AS_OF = "2026-08"
#: The newest release the tables know; anything later is told, not judged.
NEWEST = (7, 2)


@dataclass(frozen=True)
class Support:
    """Official support of a target. first: first release. last: last one, None while it goes on."""

    first: tuple[int, ...]
    last: tuple[int, ...] | None = None


#: Targets AMD lists on Linux. gfx906 is deprecated since 6.0 and was dropped from the matrix in 6.4.
OFFICIAL: dict[str, Support] = {
    "gfx900": Support((2, 0), (5, 7)),
    "gfx906": Support((2, 0), (6, 3)),
    "gfx908": Support((4, 0)),
    "gfx90a": Support((5, 0)),
    "gfx940": Support((5, 5), (6, 4)),
    "gfx941": Support((5, 5), (6, 4)),
    "gfx942": Support((6, 0)),
    "gfx950": Support((7, 0)),
    "gfx1030": Support((5, 0)),
    "gfx1100": Support((5, 7)),
    "gfx1101": Support((6, 4, 2)),
    "gfx1200": Support((6, 4, 1)),
    "gfx1201": Support((6, 4, 1)),
}

#: Targets whose code objects a release cannot make or load at all before this one, official or not.
KNOWN_FROM: dict[str, tuple[int, ...]] = {
    "gfx942": (5, 7),
    "gfx950": (6, 4),
    "gfx1150": (6, 2),
    "gfx1151": (6, 2),
    "gfx1152": (6, 4),
    "gfx1200": (6, 3),
    "gfx1201": (6, 3),
}

#: Targets of processors' graphics (APUs).
INTEGRATED = frozenset(
    {"gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037", "gfx1103"}
    | {"gfx1150", "gfx1151", "gfx1152", "gfx1153"}
)
#: Of those, the ones AMD builds ROCm for (Ryzen AI).
INTEGRATED_BUILT = frozenset({"gfx1150", "gfx1151", "gfx1152"})

#: PCI device ids of APUs' graphics, for machines whose kernel shows no target.
INTEGRATED_IDS = frozenset(
    {0x15D8, 0x15DD, 0x1636, 0x1638, 0x164C, 0x164D, 0x163F, 0x164E, 0x1681, 0x15BF, 0x15C8}
    | {0x1900, 0x1901, 0x1506, 0x13C0, 0x150E, 0x1586, 0x1114, 0x13C1}
)

#: Version of the amdgpu kernel module (its first two numbers) -> release of the driver.
DRIVER_OF_MODULE: dict[tuple[int, int], str] = {
    (6, 3): "6.0",
    (6, 7): "6.1",
    (6, 8): "6.2",
    (6, 10): "6.3",
    (6, 12): "6.4",
    (6, 14): "30.10",
    (6, 16): "30.20",
}
#: Release of the driver -> oldest and newest ROCm it runs. Before 6.4 two releases either way, since then a year.
RUNS_WITH_DRIVER: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "6.0": ((5, 6), (6, 2)),
    "6.1": ((5, 7), (6, 4)),
    "6.2": ((6, 0), (7, 0)),
    "6.3": ((6, 1), (7, 0)),
    "6.4": ((6, 1), (7, 2)),
    "30.10": ((6, 2), (7, 2)),
    "30.20": ((6, 3), (7, 2)),
}


def later_than_tables(release: tuple[int, ...]) -> bool:
    """Whether a ROCm release is newer than what the tables know. 7.13 and 10.0 are: numbering went on there."""
    return release[:2] > NEWEST


def official(gfx: str, release: tuple[int, ...]) -> bool:
    """Whether AMD lists the target for the release."""
    support = OFFICIAL.get(gfx)
    if support is None or release < support.first[: len(release)]:  # "6.4" may be 6.4.3
        return False
    return support.last is None or release[: len(support.last)] <= support.last
