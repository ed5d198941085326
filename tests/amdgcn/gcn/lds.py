"""LDS of the work-groups in flight: data, who wrote and read what when, and bank conflicts.

Bytes are tracked in granules as wide as the kernel's narrowest access. A stamp is epoch * 64 + wave, where a
wave's epoch counts the barriers it has passed. Two accesses of different waves with stamps of one epoch have
no barrier between them. An access still in flight when its wave enters a barrier is not over: its stamp is
LATE until the wait that retires it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .faults import LdsOutOfRange, LdsRace, Misaligned, UnwrittenLds
from .waves import Convoy

Array = np.ndarray[Any, Any]
LATE = 1 << 40
SEVERAL = 63  # in place of a wave: more than one

#: Lanes served together by one pass over the banks, by bytes a lane and direction. Source: ROCm documentation,
#: Composable Kernel, "Understanding AMD GPU LDS and Bank Conflicts" (b128); CDNA3 ISA, 11.1 for 32 banks of
#: 4 bytes. Where neither says more, neighbouring lanes are taken, as many as fill the 128 bytes of a pass.
_READ_B128 = [
    [*range(a, a + 4), *range(b, b + 4)]
    for a, b in ((0, 20), (4, 16), (8, 28), (12, 24), (32, 52), (36, 48), (40, 60), (44, 56))
]
BANKS = 32


def phases(size: int, write: bool, lanes: int) -> list[list[int]]:
    """The lanes of each pass of an access of `size` bytes a lane."""
    if size == 16 and not write and lanes == 64:
        return _READ_B128
    together = max(1, min(lanes, 128 // max(size, 4)))
    return [list(range(i, i + together)) for i in range(0, lanes, together)]


def conflicts(addresses: Array, size: int, write: bool, active: Array) -> int:
    """Passes beyond the minimum of one wave's access: byte addresses and activity of its lanes.

    In a pass a bank delivers one word; lanes that read the same word share it.
    """
    extra = 0
    for group in phases(size, write, len(addresses)):
        lanes = [x for x in group if active[x]]
        if not lanes:
            continue
        words = (addresses[lanes].astype(np.int64)[:, None] + np.arange(0, max(size, 4), 4)) // 4
        distinct = np.unique(words)
        extra += int(np.bincount(distinct % BANKS).max()) - 1
    return extra


class Touched(NamedTuple):
    """Granules of an access in flight: indices (waves, lanes, granules), first wave, activity, direction."""

    granules: Array
    low: int
    mask: Array
    write: bool


class Lds:
    """The LDS of `groups` work-groups, each of `size` bytes."""

    def __init__(self, groups: int, size: int, waves: int, granule: int) -> None:
        self.size, self.waves, self.granule = size, waves, granule
        self.stride = -(-max(size, 16) // 16) * 16
        self.data = np.full(groups * self.stride // 4, 0x7FB57FB5, np.uint32)
        count = groups * self.stride // granule
        self.written = np.full(count, -1, np.int64)
        self.read = np.full(count, -1, np.int64)
        self._any_late = False

    def _offsets(self, c: Convoy, addresses: Array, size: int, aligned: int) -> Array:
        """Byte offsets into all groups' memory, checked. addresses (waves, lanes)."""
        a = addresses.astype(np.int64)
        used = a if c.full else np.where(c.mask, a, 0)
        if used.max(initial=0) + size > self.size:
            beyond = np.argwhere(c.mask & (a + size > self.size))[0]
            raise LdsOutOfRange(
                f"{size} bytes at {int(a[tuple(beyond)])} of {self.size}, lane {beyond[1]} of wave "
                f"{(c.low + int(beyond[0])) % self.waves}"
            )
        if (used % aligned).any():
            raise Misaligned(f"LDS address not a multiple of {aligned}")
        group = (np.arange(c.low, c.high) // self.waves * self.stride)[:, None]
        return used + group

    def _stamps(self, c: Convoy) -> tuple[Array, Array]:
        """(first stamp of the epoch, own stamp), each (waves, 1, 1)."""
        start = (c.epoch * 64)[:, None, None]
        return start, start + (np.arange(c.low, c.high) % self.waves)[:, None, None]

    def _granules(self, offsets: Array, size: int) -> Array:
        step = max(1, size // self.granule)
        first = offsets // self.granule
        return first[:, :, None] + np.arange(step) if step > 1 else first[:, :, None]

    def load(self, c: Convoy, addresses: Array, size: int, aligned: int) -> tuple[Array, Touched]:
        """Read: ((words, waves, lanes) of uint32, what was touched). Raises the faults of this file."""
        offsets = self._offsets(c, addresses, size, aligned)
        g = self._granules(offsets, size)
        start, mine = self._stamps(c)
        w = self.written[g]
        if not c.full:
            w = np.where(c.mask[:, :, None], w, 0)
        if w.min(initial=0) < 0:
            at = np.argwhere(w < 0)[0]
            raise UnwrittenLds(
                f"{size} bytes at {int(addresses[at[0], at[1]])} read by lane {at[1]} of wave "
                f"{(c.low + int(at[0])) % self.waves}"
            )
        if (w.max(axis=(1, 2), initial=0) >= c.epoch * 64).any():
            self._check(c, (w >= start) & (w != mine), w, addresses, "read", "written")
        self._note(self.read, g, start, mine, c)
        if size < 4:
            view = self.data.view(np.uint8 if size == 1 else np.uint16)
            values = view[offsets // size][None].astype(np.uint32)
        elif aligned < 4:  # pragma: no cover - gfx9 reads of 4 bytes and more are aligned to 4
            raise Misaligned("LDS access of less than 4-byte alignment")
        else:
            first = offsets // 4
            values = self.data[first + np.arange(size // 4)[:, None, None]]
        return values, Touched(g, c.low, np.array(c.mask), False)

    def store(self, c: Convoy, addresses: Array, size: int, aligned: int, values: Array) -> Touched:
        """Write (words, waves, lanes). Raises the faults of this file."""
        offsets = self._offsets(c, addresses, size, aligned)
        g = self._granules(offsets, size)
        start, mine = self._stamps(c)
        active = c.mask[:, :, None]
        w, r = self.written[g], self.read[g]
        self._check(c, (w >= start) & (w != mine) & active, w, addresses, "written", "written")
        self._check(c, (r >= start) & (r != mine) & active, r, addresses, "written", "read")
        stamp = np.broadcast_to(mine, g.shape)
        where = np.broadcast_to(active, g.shape)
        self.written[g[where]] = stamp[where]
        clash = (self.written[g] != stamp) & active
        self._check(c, clash, self.written[g], addresses, "written", "written")
        m = c.mask
        if size < 4:
            view = self.data.view(np.uint8 if size == 1 else np.uint16)
            view[(offsets // size)[m]] = values[0][m].astype(view.dtype)
        else:
            first = (offsets // 4)[m]
            for k in range(size // 4):
                self.data[first + k] = values[k][m]
        return Touched(g, c.low, np.array(m), True)

    def _note(self, stamps: Array, g: Array, start: Array, mine: Array, c: Convoy) -> None:
        """Stamp a read; granules that several waves read in one epoch belong to SEVERAL."""
        old = stamps[g]
        new = np.where((old >= start) & (old != mine), start + SEVERAL, mine)
        if c.full:
            stamps[g] = new
        else:
            where = np.broadcast_to(c.mask[:, :, None], g.shape)
            stamps[g[where]] = new[where]
        if c.n > 1:
            differs = stamps[g] != new
            if not c.full:
                differs &= c.mask[:, :, None]
            if differs.any():
                stamps[g[differs]] = np.broadcast_to(start + SEVERAL, g.shape)[differs]

    def _check(
        self, c: Convoy, clash: Array, stamps: Array, addresses: Array, what: str, before: str
    ) -> None:
        if not clash.any():
            return
        at = np.argwhere(clash)[0]
        stamp = int(stamps[tuple(at)])
        other = "several waves" if stamp % 64 == SEVERAL else f"wave {stamp % 64}"
        late = ", an access still in flight at the barrier" if stamp >= LATE else ""
        raise LdsRace(
            f"LDS {int(addresses[at[0], at[1]])} {what} by lane {at[1]} of wave "
            f"{(c.low + int(at[0])) % self.waves} and {before} by {other} without a barrier between{late}"
        )

    # --- accesses in flight over a barrier ---

    def late(self, c: Convoy, t: Touched) -> None:
        """The convoy enters a barrier with this access in flight."""
        self._any_late = True
        self._restamp(c, t, LATE + (np.arange(c.low, c.high) % self.waves)[:, None, None])

    def retired(self, c: Convoy, t: Touched) -> None:
        """A wait has shown the access to be over."""
        if not self._any_late:
            return
        self._restamp(c, t, (c.epoch * 64 + np.arange(c.low, c.high) % self.waves)[:, None, None], True)

    def _restamp(self, c: Convoy, t: Touched, stamp: Array, only_late: bool = False) -> None:
        rows = slice(c.low - t.low, c.high - t.low)
        g = t.granules[rows]
        stamps = self.written if t.write else self.read
        where = np.broadcast_to(t.mask[rows][:, :, None], g.shape)
        if only_late:
            where = where & (stamps[g] >= LATE)
        if where.any():
            stamps[g[where]] = np.broadcast_to(stamp, g.shape)[where]
