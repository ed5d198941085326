"""Registers of all waves in flight, and convoys: neighbouring waves that stand at the same instruction.

One numpy operation serves all lanes of a convoy. A convoy's registers are views into those of all waves, so
splitting and joining copies nothing. Registers by bit, for what is read, written, undefined or in flight:
VGPR i is bit i, AGPR i bit 256 + i, scalar register i bit 512 + i, SCC bit 640.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .faults import MissingWait
from .parse import EXEC

SCC_BIT = 640
AGPR = 256  # number of the first AGPR among the vector registers, and its bit
SGPR_BIT = 512
#: What never written registers hold: a NaN in every floating-point format, and an address of nothing.
JUNK = 0x7FB57FB5


def bits(kind: str, first: int, count: int) -> int:
    """The bits of consecutive registers."""
    base = {"v": 0, "a": AGPR, "s": SGPR_BIT}[kind]
    return ((1 << count) - 1) << (base + first)


def names(mask: int) -> str:
    """Registers of a mask, for messages."""
    found = []
    for bit in range(SCC_BIT + 1):
        if mask >> bit & 1:
            if bit == SCC_BIT:
                found.append("scc")
            else:
                kind = "v" if bit < AGPR else "a" if bit < SGPR_BIT else "s"
                found.append(f"{kind}{bit - (bit // 256) * 256 if bit < SGPR_BIT else bit - SGPR_BIT}")
    return ", ".join(found)


class Transfer(NamedTuple):
    """A memory access in flight. kind: its class, within which completion is in order ("smem" and "flat": never).

    registers: bits of the registers it will write. lds: granules it reads or writes, to be told when done.
    """

    kind: str
    registers: int
    lds: Any = None


UNORDERED = ("smem", "flat")


def retire(queue: list[Transfer], allowed: int) -> tuple[list[Transfer], list[Transfer]]:
    """(still in flight, done) when a wait has let at most `allowed` of a counter's accesses remain.

    Accesses of one class complete in order, of different classes in any order, and scalar loads in any order
    among themselves (CDNA2 ISA, 4.4; RDNA3 ISA, 5.6). So an access is known to be done if as many later ones
    of its own class remain as may; one without an order only if none may.
    """
    if allowed == 0:
        return [], queue
    later: dict[str, int] = {}
    remaining: list[Transfer] = []
    done: list[Transfer] = []
    for transfer in reversed(queue):
        count = later.get(transfer.kind, 0)
        later[transfer.kind] = count + 1
        finished = transfer.kind not in UNORDERED and count >= allowed
        (done if finished else remaining).append(transfer)
    return remaining[::-1], done[::-1]


class State:
    """All waves of the work-groups in flight.

    v (512, waves, lanes): VGPRs, then AGPRs. s (waves, 128): scalar registers, VCC and EXEC among them.
    """

    def __init__(self, waves: int, lanes: int, vgprs: int, agprs: int) -> None:
        self.waves, self.lanes = waves, lanes
        self.v = np.full((AGPR + agprs if agprs else vgprs, waves, lanes), JUNK, np.uint32)
        self.s = np.full((waves, 128), JUNK, np.uint32)
        self.mask = np.ones((waves, lanes), bool)
        self.scc = np.zeros(waves, bool)
        self.epoch = np.zeros(waves, np.int64)  # barriers passed


@dataclass
class Queues:
    """Accesses in flight by counter."""

    vm: list[Transfer]
    lgkm: list[Transfer]
    vs: list[Transfer]

    def copy(self) -> Queues:
        return Queues(list(self.vm), list(self.lgkm), list(self.vs))


class Convoy:
    """Waves low to high - 1 at one instruction, with one history of accesses in flight."""

    def __init__(self, machine: Any, state: State, low: int, high: int, block: int, undefined: int) -> None:
        self.machine, self.state = machine, state
        self.block = block  # index of the basic block it is about to execute
        self.undefined = undefined
        self.queues = Queues([], [], [])
        self.bad = undefined  # registers that need a look before use: undefined or in flight
        self.barrier = -1  # address of the barrier it waits at
        self.age = 0
        self._view(low, high)

    def _view(self, low: int, high: int) -> None:
        s = self.state
        self.low, self.high, self.n = low, high, high - low
        self.v = s.v[:, low:high]
        self.f = self.v.view(np.float32)
        self.i = self.v.view(np.int32)
        self.s = s.s[low:high]
        self.s64 = self.s.view(np.uint64)
        self.sf = self.s.view(np.float32)
        self.si = self.s.view(np.int32)
        self.mask = s.mask[low:high]
        self.scc = s.scc[low:high]
        self.full = bool(self.mask.all())
        self.epoch = s.epoch[low:high]

    def exec_changed(self) -> None:
        """EXEC was written: renew the mask of lanes."""
        width = self.state.lanes // 8
        raw = np.ascontiguousarray(self.s[:, EXEC : EXEC + 2]).view(np.uint8)[:, :width]
        self.mask[:] = np.unpackbits(raw, axis=1, bitorder="little").view(bool)
        self.full = bool(self.mask.all())

    def lane_mask(self, register: int) -> np.ndarray[Any, Any]:
        """A lane mask held in scalar registers, as booleans (waves, lanes)."""
        width = self.state.lanes // 8
        raw = np.ascontiguousarray(self.s[:, register : register + width // 4]).view(np.uint8)
        return np.unpackbits(raw, axis=1, bitorder="little").view(bool)

    def put_lane_mask(self, register: int, mask: np.ndarray[Any, Any]) -> None:
        """Booleans (waves, lanes) into scalar registers."""
        if mask.shape != self.mask.shape:
            mask = np.broadcast_to(mask, self.mask.shape)
        raw = np.packbits(mask, axis=1, bitorder="little").view(np.uint32)
        self.s[:, register : register + raw.shape[1]] = raw
        if register == EXEC:
            self.exec_changed()

    # --- splitting and joining ---

    def split(self, taken: np.ndarray[Any, Any]) -> list[tuple[Convoy, bool]]:
        """Runs of neighbouring waves with the same decision; the first of them is this convoy itself."""
        edges = [0, *(int(i) + 1 for i in np.flatnonzero(taken[1:] != taken[:-1])), self.n]
        decisions = [bool(taken[start]) for start in edges[:-1]]
        low = self.low
        found: list[tuple[Convoy, bool]] = []
        for start, end, decision in zip(edges[1:-1], edges[2:], decisions[1:], strict=True):
            part = Convoy(self.machine, self.state, low + start, low + end, self.block, self.undefined)
            part.queues, part.bad = self.queues.copy(), self.bad
            found.append((part, decision))
        self._view(low, low + edges[1])
        return [(self, decisions[0]), *found]

    def joins(self, other: Convoy) -> bool:
        """Whether the next waves (`other`) stand where these do, with the same accesses in flight."""
        return (
            self.high == other.low
            and self.block == other.block
            and self.undefined == other.undefined
            and self.barrier == other.barrier
            and all(
                len(mine) == len(theirs)
                and all(
                    a is b or (a.lds is None and b.lds is None and a == b)
                    for a, b in zip(mine, theirs, strict=True)
                )
                for mine, theirs in (
                    (self.queues.vm, other.queues.vm),
                    (self.queues.lgkm, other.queues.lgkm),
                    (self.queues.vs, other.queues.vs),
                )
            )
        )

    def join(self, other: Convoy) -> None:
        self._view(self.low, other.high)

    # --- accesses in flight ---

    def issue(self, counter: str, transfer: Transfer) -> None:
        """An access begins, counted by "vm", "lgkm" or "vs"."""
        getattr(self.queues, counter).append(transfer)
        self.bad |= transfer.registers
        self.undefined &= ~transfer.registers

    def wait(self, vm: int | None = None, lgkm: int | None = None, vs: int | None = None) -> None:
        """Wait until a counter is at most that. A flat access is done when both its counters say so."""
        q = self.queues
        for counter, allowed in (("vm", vm), ("lgkm", lgkm), ("vs", vs)):
            if allowed is None:
                continue
            remaining, done = retire(getattr(q, counter), allowed)
            setattr(q, counter, remaining)
            for transfer in done:
                if transfer.lds is not None:
                    self.machine.lds.retired(self, transfer.lds)
        flight = 0
        for queue in (q.vm, q.lgkm):
            for transfer in queue:
                flight |= transfer.registers
        self.bad = self.undefined | flight

    def in_flight(self) -> int:
        flight = 0
        for queue in (self.queues.vm, self.queues.lgkm):
            for transfer in queue:
                flight |= transfer.registers
        return flight

    def overwrite_allowed(self, kind: str, registers: int) -> bool:
        """Whether a new load of a class may write registers that loads in flight write too: same class, in order."""
        if kind in UNORDERED:
            return False
        return all(
            t.kind == kind or not t.registers & registers
            for q in (self.queues.vm, self.queues.lgkm)
            for t in q
        )

    def missing_wait(self, registers: int, use: str) -> MissingWait:
        flight = registers & self.in_flight()
        return MissingWait(f"{names(flight)} {use} while a load into it is in flight")
