"""Runs a program: work-groups a few at a time, their waves in convoys, barriers counted."""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np

from .binding import Bound
from .faults import Endless, Fault, MissedBarrier, NotModelled, UninitialisedRegister
from .lds import Lds
from .memory import Memory
from .parse import EXEC, Instruction
from .program import Block, Program
from .waves import SCC_BIT, Convoy, State, bits, names

#: Work-groups in flight together: one numpy operation then serves all their lanes.
GROUPS_TOGETHER = 8


class Machine:
    """One emulated device.

    Attributes:
        memory: what kernels may access. limit: wave-instructions a launch may take.
        apart: waves run one at a time, in random order, and never join: slower, another interleaving.
        staggered_barriers: waves of a group may wait at different s_barrier instructions, as on the hardware.
        conflicts: where set to a dict, LDS passes of each instruction: address -> (minimum, extra).
        counts: times each block ran, by waves, of the last launch. executed: wave-instructions of all launches.
    """

    def __init__(self, seed: int = 0, apart: bool = False) -> None:
        self.memory = Memory()
        self.random = Random(seed)
        self.apart = apart
        self.staggered_barriers = False
        self.limit = 1 << 22
        self.executed = 0
        self.conflicts: dict[int, tuple[int, int]] | None = None
        self.counts: list[int] = []
        self.image_address = 0
        self.lds: Lds

    # --- launching ---

    def launch(self, program: Program, grid: int, block: int, dynamic_lds: int, arguments: bytes) -> None:
        """Run a one-dimensional grid. Raises a Fault that says where."""
        code = program.code
        image = np.frombuffer(code.image, np.uint8).copy()
        self.image_address = image.ctypes.data
        kernarg = self._kernarg(program, grid, block, dynamic_lds, arguments)
        self.counts = [0] * len(program.blocks)
        self._left = self.limit
        lds = code.descriptor.lds + dynamic_lds
        if lds > program.target.lds_bytes:
            raise NotModelled(f"{lds} bytes of LDS")
        order = list(range(grid))
        self.random.shuffle(order)
        self.memory.register(self.image_address, image.size, "code object", writable=False)
        self.memory.register(kernarg.ctypes.data, code.descriptor.kernarg, "kernel arguments", writable=False)
        try:
            with np.errstate(all="ignore"):
                for start in range(0, grid, GROUPS_TOGETHER):
                    groups = order[start : start + GROUPS_TOGETHER]
                    self._run_groups(program, groups, block, lds, kernarg.ctypes.data)
        finally:
            self.memory.withdraw(self.image_address)
            self.memory.withdraw(kernarg.ctypes.data)

    def _kernarg(self, p: Program, grid: int, block: int, dynamic_lds: int, arguments: bytes) -> np.ndarray:
        """The kernarg segment with the hidden arguments of code object 5 (LLVM, AMDGPU usage)."""
        size = p.code.descriptor.kernarg
        segment = np.zeros(size + 8, np.uint8)
        explicit = p.code.explicit_bytes
        if len(arguments) < explicit - 7 or len(arguments) > size:
            raise NotModelled(f"{len(arguments)} bytes of arguments, the kernel has {explicit}")
        segment[: len(arguments)] = np.frombuffer(bytes(arguments), np.uint8)
        values = {
            "hidden_block_count_x": grid,
            "hidden_block_count_y": 1,
            "hidden_block_count_z": 1,
            "hidden_group_size_x": block,
            "hidden_group_size_y": 1,
            "hidden_group_size_z": 1,
            "hidden_grid_dims": 1,
            "hidden_dynamic_lds_size": dynamic_lds,
        }
        for a in p.code.arguments:
            if a[".value_kind"] in values:
                raw = struct.pack("<Q", values[a[".value_kind"]])[: a[".size"]]
                segment[a[".offset"] : a[".offset"] + a[".size"]] = np.frombuffer(raw, np.uint8)
        return segment

    def _run_groups(self, p: Program, groups: Sequence[int], block: int, lds: int, kernarg: int) -> None:
        lanes = p.target.lanes
        waves = -(-block // lanes)
        vgprs, agprs = p.code.descriptor.registers(p.target.arch)
        state = State(waves * len(groups), lanes, vgprs, agprs)
        self.lds = Lds(len(groups), lds, waves, p.granule)
        self._waves, self._groups = waves, groups
        defined = self._initialise(p, state, groups, block, kernarg)
        total = bits("v", 0, vgprs) | bits("a", 0, agprs) | bits("s", 0, 128) | 1 << SCC_BIT
        first = next(k for k, b in enumerate(p.blocks) if b.first == p.code.descriptor.entry)
        whole = Convoy(self, state, 0, state.waves, first, total & ~defined)
        self._schedule(p, [whole] if not self.apart else self._singles(whole))

    def _singles(self, c: Convoy) -> list[Convoy]:
        alternating = np.arange(c.n) % 2 == 0
        return [part for part, _ in c.split(alternating)]

    def _initialise(self, p: Program, state: State, groups: Sequence[int], block: int, kernarg: int) -> int:
        """Registers as the dispatcher leaves them; returns the bits of the defined ones."""
        d, lanes = p.code.descriptor, p.target.lanes
        wave = np.arange(state.waves) % self._waves
        thread = wave[:, None] * lanes + np.arange(lanes)
        state.v[0] = thread
        state.mask[:] = thread < block
        raw = np.packbits(state.mask, axis=1, bitorder="little").view(np.uint32)
        state.s[:, EXEC : EXEC + raw.shape[1]] = raw
        defined = bits("v", 0, 1) | bits("s", EXEC, 2)
        at = 0
        sizes = ((0, 4), (1, 2), (2, 2), (3, 2), (4, 2), (5, 2), (6, 1))
        for bit, count in sizes:
            if d.properties >> bit & 1:
                if bit == 3:
                    state.s[:, at] = kernarg & 0xFFFFFFFF
                    state.s[:, at + 1] = kernarg >> 32
                    defined |= bits("s", at, 2)
                at += count
        if d.preload & 127:
            count, offset = d.preload & 127, d.preload >> 7
            words = (ctypes.c_uint32 * count).from_address(kernarg + 4 * offset)
            for k, word in enumerate(words):
                state.s[:, at + k] = word
            defined |= bits("s", at, count)
        at = d.user_sgprs
        group = np.repeat(np.array(groups), self._waves)
        for axis, wanted in enumerate(d.workgroup_ids):
            if wanted:
                state.s[:, at] = group if axis == 0 else 0
                defined |= bits("s", at, 1)
                at += 1
        return defined

    # --- scheduling ---

    def _schedule(self, p: Program, ready: list[Convoy]) -> None:
        """Convoys at the lowest address first, so that ways that part meet again; barriers when all wait."""
        waiting: list[Convoy] = []
        ended = 0
        while ready or waiting:
            if not ready:
                self._release(p, waiting, ended)
                ready, waiting = waiting, []
            c = self._pick(ready)
            block = p.blocks[c.block]
            self._run_block(c, block)
            if block.end == "next":
                c.block += 1
            elif block.end == "jump":
                c.block = block.target
            elif block.end == "branch":
                taken = self._decide(c, block)
                for part, decision in [(c, bool(taken[0]))] if _uniform(taken) else c.split(taken):
                    part.block = block.target if decision else part.block + 1
                    if part is not c:
                        ready.append(part)
            elif block.end == "barrier":
                c.barrier = block.last.address if block.last else 0
                for queue in (c.queues.lgkm, c.queues.vm):
                    for transfer in queue:
                        if transfer.lds is not None:
                            self.lds.late(c, transfer.lds)
                ready.remove(c)
                waiting.append(c)
            else:
                ready.remove(c)
                ended += c.n
                self._ended = ended

    def _pick(self, ready: list[Convoy]) -> Convoy:
        if len(ready) == 1:
            return ready[0]
        if self.apart:
            return self.random.choice(ready)
        ready.sort(key=lambda c: (c.block, c.low))
        first = ready[0]
        while len(ready) > 1 and ready[1].block == first.block and first.joins(ready[1]):
            first.join(ready.pop(1))
        same = [c for c in ready if c.block == first.block]
        return first if len(same) == 1 else self.random.choice(same)

    def _release(self, p: Program, waiting: list[Convoy], ended: int) -> None:
        """All waves that have not ended wait: open their barriers. Raises MissedBarrier."""
        places: dict[tuple[int, int], set[int]] = {}
        arrived: Counter[int] = Counter()
        for c in waiting:
            for wave in range(c.low, c.high):
                group, local = divmod(wave, self._waves)
                # Halves of a work-group that stagger their barriers wait at two places, each half at one.
                half = local * 2 // self._waves if self.staggered_barriers else 0
                places.setdefault((group, half), set()).add(c.barrier)
                arrived[group] += 1
        for group, count in arrived.items():
            where = ", ".join(sorted(f"{a:#x}" for (g, _), at in places.items() if g == group for a in at))
            if count != self._waves:
                raise MissedBarrier(
                    f"{count} of {self._waves} waves of work-group {self._groups[group]} wait at {where}, "
                    "the others have ended"
                )
            if any(len(at) > 1 for (g, _), at in places.items() if g == group):
                raise MissedBarrier(f"waves of work-group {self._groups[group]} wait at {where}")
        waiting.sort(key=lambda c: c.low)
        for c in waiting:
            c.epoch += 1
            c.barrier = -1
            c.block += 1

    def _decide(self, c: Convoy, block: Block) -> np.ndarray:
        """For each wave whether the branch is taken."""
        if c.bad & block.needs:
            assert block.last is not None
            self._look(c, Bound(lambda c: None, block.needs, 0, "branch", block.needs), block.last)
        if block.condition == "scc":
            value = c.scc
        elif block.condition == "exec":
            value = c.mask.any(axis=1)
        else:
            value = c.s64[:, 53] != 0 if c.state.lanes == 64 else c.s[:, 106] != 0
        return value == block.wanted

    # --- executing ---

    def _run_block(self, c: Convoy, block: Block) -> None:
        count = c.n * (len(block.ops) + (block.end != "next"))
        self.counts[c.block] += c.n
        self.executed += count
        self._left -= count
        op: tuple[object, int, Bound, Instruction] | None = None
        try:
            if self._left < 0:
                raise Endless(f"more than {self.limit} wave-instructions")
            for op in block.ops:
                if c.bad & op[1]:
                    self._look(c, op[2], op[3])
                op[0](c)  # type: ignore[operator]
        except Fault as fault:
            if not fault.where and op is not None:
                fault.where = self._where(c, op[3])
            raise

    def _where(self, c: Convoy, i: Instruction) -> str:
        groups = sorted({self._groups[w // self._waves] for w in range(c.low, c.high)})
        waves = f"waves {c.low % self._waves} to {(c.high - 1) % self._waves}"
        return f"{i}; work-groups {groups}, {waves}"

    def _look(self, c: Convoy, bound: Bound, i: Instruction) -> None:
        """An instruction touches registers that are undefined or in flight. Raises the fault, if it is one."""
        flight = c.in_flight()
        if bound.reads & flight:
            raise c.missing_wait(bound.reads, "read") from None
        if bound.writes & flight and not (
            bound.loads and c.overwrite_allowed(bound.loads, bound.writes & flight)
        ):
            raise c.missing_wait(bound.writes, "overwritten")
        undefined = bound.reads & c.undefined
        if bound.kind in ("vmem", "lds") and not c.mask.any():
            return  # without an active lane nothing is addressed or stored
        if undefined & bound.observes:
            fault = UninitialisedRegister(f"{names(undefined & bound.observes)} was never written")
            fault.where = self._where(c, i)
            raise fault
        for written, read in bound.parts or ((bound.writes, bound.reads),):
            if read & undefined:
                c.undefined |= written
            else:
                c.undefined &= ~written
        c.bad = c.undefined | flight


def _uniform(taken: np.ndarray) -> bool:
    return bool(taken.all()) or not bool(taken.any())


__all__ = ["Machine"]
