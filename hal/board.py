"""Boards: what differs between cards of one arch. Boards serve planning only, never kernel source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from portagemm.hal.device import Device

if TYPE_CHECKING:
    from portagemm.hal.profile import ArchProfile


@dataclass(frozen=True)
class Board:
    """A product, or the device at hand.

    Attributes:
        name: the product's name.
        compute_units: SMs, CUs (of one GCD), or threads of a CPU.
        l2_bytes: last-level cache in bytes (0: unknown).
        memory_bandwidth: theoretical bytes per second (0: unknown).
        peak_flops: dtype name -> dense floating-point operations per second with FP32 accumulation.
        match: shell patterns of driver names, compared without regard to case.
        source: where the figures come from.
    """

    name: str
    compute_units: int
    l2_bytes: int
    memory_bandwidth: float
    peak_flops: Mapping[str, float] = field(default_factory=dict)
    match: tuple[str, ...] = ()
    source: str = ""

    def matches(self, device_name: str) -> bool:
        """Whether the driver's `device_name` is this product."""
        return any(fnmatchcase(device_name.lower(), pattern.lower()) for pattern in self.match)


def board_for(device: Device, profile: ArchProfile) -> Board:
    """The board of a device: facts the driver gives first, the rest from the profile's list.

    The first entry of the list whose pattern fits the device's name serves, else the first entry. Rates
    the driver does not know are taken in proportion to the compute units, so that a MIG slice or a cut
    card of the same arch gets its share.
    """
    listed = next((board for board in profile.boards if board.matches(device.name)), None)
    reference = listed or (profile.boards[0] if profile.boards else None)
    if reference is None:
        return Board(device.name, device.compute_units, device.l2_bytes, device.memory_bandwidth)
    units = device.compute_units or reference.compute_units
    share = units / reference.compute_units
    return Board(
        name=listed.name if listed else device.name,
        compute_units=units,
        l2_bytes=device.l2_bytes or round(reference.l2_bytes * min(share, 1.0)),
        memory_bandwidth=device.memory_bandwidth or reference.memory_bandwidth * min(share, 1.0),
        peak_flops={dtype: rate * share for dtype, rate in reference.peak_flops.items()},
        match=reference.match,
        source=reference.source if listed else f"scaled from {reference.name}",
    )
