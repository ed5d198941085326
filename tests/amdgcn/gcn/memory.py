"""Global memory: the registered ranges of host memory, and nothing else.

A kernel's addresses are addresses of this process. What no range covers is never touched: it is a fault.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

from .faults import OutOfRange

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Range:
    """Bytes low to high - 1 may be accessed. words: the enclosing aligned words, starting at address `base`."""

    low: int
    high: int
    writable: bool
    name: str
    base: int
    words: Array

    @property
    def halves(self) -> Array:
        return self.words.view(np.uint16)

    @property
    def bytes(self) -> Array:
        return self.words.view(np.uint8)


class Memory:
    """Ranges by address."""

    def __init__(self) -> None:
        self._ranges: dict[int, Range] = {}
        self._starts: list[int] = []
        self._last: Range | None = None

    def register(self, address: int, size: int, name: str, writable: bool = True) -> None:
        """Allow accesses to `size` bytes. A range at the same address is replaced."""
        if size <= 0:
            return
        base = address & ~7
        count = (address + size - base + 7) // 8 * 2
        words = np.frombuffer((ctypes.c_uint32 * count).from_address(base), np.uint32)
        words.flags.writeable = True
        self._ranges[address] = Range(address, address + size, writable, name, base, words)
        self._starts = sorted(self._ranges)
        self._last = None

    def withdraw(self, address: int) -> None:
        """Forget the range that begins there."""
        self._ranges.pop(address, None)
        self._starts = sorted(self._ranges)
        self._last = None

    def forget(self) -> None:
        """Forget all ranges."""
        self._ranges.clear()
        self._starts.clear()
        self._last = None

    def _find(self, low: int, high: int, write: bool) -> Range | None:
        last = self._last
        if last is not None and last.low <= low and high <= last.high and (last.writable or not write):
            return last
        # Ranges may nest (a view inside a registered storage): look back from the nearest start.
        at = bisect_right(self._starts, low)
        for start in reversed(self._starts[:at]):
            r = self._ranges[start]
            if r.low <= low and high <= r.high and (r.writable or not write):
                self._last = r
                return r
        return None

    def _fault(self, addresses: Array, size: int, write: bool) -> OutOfRange:
        for a in addresses.ravel().tolist():
            if self._find(a, a + size, write) is None:
                break
        near = [r for r in self._ranges.values() if r.low - 4096 <= a < r.high + 4096]
        text = "; ".join(
            f"{r.name}{'' if r.writable else ' (read-only)'} is {r.low:#x} to {r.high:#x}, "
            f"so {a - r.low} from its start"
            for r in near
        )
        return OutOfRange(
            f"{'store' if write else 'load'} of {size} bytes at {a:#x}: {text or 'no range near'}"
        )

    def load(self, addresses: Array, size: int) -> Array:
        """`size` bytes (1, 2, or a multiple of 4) at each address (1-D): (words, addresses) of uint32.

        Raises OutOfRange.
        """
        count = max(1, size // 4)
        if addresses.size == 0:
            return np.zeros((count, 0), np.uint32)
        low, high = int(addresses.min()), int(addresses.max()) + size
        r = self._find(low, high, False)
        if r is None:
            return self._scattered(addresses, size)
        at = (addresses - np.uint64(r.base)).astype(np.int64)
        if size == 1:
            return r.bytes[at][None].astype(np.uint32)
        if size == 2:
            if (at & 1).any():
                return (r.bytes[at].astype(np.uint32) | r.bytes[at + 1].astype(np.uint32) << np.uint32(8))[
                    None
                ]
            return r.halves[at >> 1][None].astype(np.uint32)
        if (at & 3).any():  # ROCm runs with unaligned access allowed
            raw = r.bytes[at[:, None] + np.arange(size)]
            return np.ascontiguousarray(raw).view(np.uint32).T
        first = at >> 2
        if count == 1:
            return r.words[first][None]
        return r.words[first + np.arange(count)[:, None]]

    def _scattered(self, addresses: Array, size: int) -> Array:
        """Lanes of one instruction in several ranges."""
        result = np.zeros((max(1, size // 4), addresses.size), np.uint32)
        left = np.ones(addresses.size, bool)
        while left.any():
            a = int(addresses[left][0])
            r = self._find(a, a + size, False)
            if r is None:
                raise self._fault(addresses[left], size, False)
            mine = left & (addresses >= np.uint64(r.low)) & (addresses + np.uint64(size) <= np.uint64(r.high))
            result[:, mine] = self.load(addresses[mine], size)
            left &= ~mine
        return result

    def store(self, addresses: Array, size: int, values: Array) -> None:
        """Write (words, addresses) of uint32. Raises OutOfRange."""
        if addresses.size == 0:
            return
        low, high = int(addresses.min()), int(addresses.max()) + size
        r = self._find(low, high, True)
        if r is None:
            left = np.ones(addresses.size, bool)
            while left.any():
                a = int(addresses[left][0])
                r = self._find(a, a + size, True)
                if r is None:
                    raise self._fault(addresses[left], size, True)
                mine = (
                    left
                    & (addresses >= np.uint64(r.low))
                    & (addresses + np.uint64(size) <= np.uint64(r.high))
                )
                self.store(addresses[mine], size, values[:, mine])
                left &= ~mine
            return
        at = (addresses - np.uint64(r.base)).astype(np.int64)
        if size == 1:
            r.bytes[at] = values[0].astype(np.uint8)
        elif size == 2 and not (at & 1).any():
            r.halves[at >> 1] = values[0].astype(np.uint16)
        elif size == 2:
            r.bytes[at] = values[0].astype(np.uint8)
            r.bytes[at + 1] = (values[0] >> np.uint32(8)).astype(np.uint8)
        elif (at & 3).any():
            raw = np.ascontiguousarray(values.T).view(np.uint8)
            r.bytes[at[:, None] + np.arange(size)] = raw
        else:
            first = at >> 2
            for k in range(size // 4):
                r.words[first + k] = values[k]
