"""A kernel as basic blocks of bound instructions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import ds, matrix, salu, valu, valu_packed, valu_special, vmem
from .binding import SCC, TARGETS, Binder, Bound, Run, Target
from .elf import CodeObject
from .faults import NotModelled
from .parse import EXEC, VCC, Instruction, instructions
from .waves import Convoy, bits

#: Instructions without an effect here: timing, priorities, prefetches.
IGNORED = {
    "s_nop",
    "s_setprio",
    "s_sleep",
    "s_delay_alu",
    "s_clause",
    "s_inst_prefetch",
    "s_set_inst_prefetch_distance",
    "s_sendmsg",
    "s_code_end",
    "s_icache_inv",
    "s_wait_idle",
    "s_waitcnt_depctr",
}
CONDITIONS = {
    "s_cbranch_scc0": "scc",
    "s_cbranch_scc1": "scc",
    "s_cbranch_vccz": "vcc",
    "s_cbranch_vccnz": "vcc",
    "s_cbranch_execz": "exec",
    "s_cbranch_execnz": "exec",
}
_COUNTER = re.compile(r"(vmcnt|lgkmcnt|expcnt|vscnt)\((\d+)\)")


@dataclass
class Block:
    """Instructions that run one after another, and what comes then.

    ops: (closure, registers touched, bound, instruction). end: "next", "jump", "branch", "barrier" or "stop";
    target: index of the block a jump or a taken branch goes to.
    """

    first: int
    ops: list[tuple[Run, int, Bound, Instruction]] = field(default_factory=list)
    end: str = "next"
    target: int = -1
    condition: str = ""
    wanted: bool = True  # a branch is taken if its condition has this value
    last: Instruction | None = None
    needs: int = 0  # registers that decide the branch


def _waits(i: Instruction, target: Target) -> Run:
    """s_waitcnt and its relatives (CDNA2 ISA, 4.4; RDNA3 ISA, 5.6)."""
    if i.name.startswith("s_waitcnt_"):
        counter = {"vscnt": "vs", "vmcnt": "vm", "lgkmcnt": "lgkm"}.get(i.name.removeprefix("s_waitcnt_"))
        if counter is None or i.operands[0] != "null":
            raise NotModelled(str(i))
        allowed = int(i.operands[1], 0)
        return lambda c: c.wait(**{counter: allowed})
    found = {name: int(value) for name, value in _COUNTER.findall(i.text)}
    rest = _COUNTER.sub("", i.text.removeprefix("s_waitcnt")).replace("&", "").strip()
    if rest or not found:
        raise NotModelled(str(i))
    vm, lgkm = found.get("vmcnt"), found.get("lgkmcnt")
    return lambda c: c.wait(vm, lgkm)


def bind(i: Instruction, target: Target) -> Bound:
    """Any instruction but those that end a block. Raises NotModelled."""
    name = i.name
    if name in IGNORED:
        return Bound(lambda c: None, 0, 0, "other")
    if name.startswith("s_waitcnt"):
        return Bound(_waits(i, target), 0, 0, "wait")
    if name.startswith(("v_mfma", "v_wmma")):
        return matrix.bind(i, target)
    if name in valu_special.TABLE and i.pair is None:
        return valu_special.bind(i, target)
    if name in valu_packed.TABLE and i.pair is None:
        return valu_packed.bind(i, target)
    if name.startswith("v_"):
        return valu.bind(i, target)
    if name.startswith("ds_") and ds.knows(name):
        return ds.bind(i, target)
    if vmem.knows(name):
        return vmem.bind(i, target)
    if name in salu.TABLE or name in salu.SPECIAL:
        return salu.bind(i, target)
    raise NotModelled(f"unknown instruction {i}")


def known() -> set[str]:
    """Every mnemonic the executor knows, by its name without encoding."""
    names = set(IGNORED) | set(CONDITIONS) | set(salu.TABLE) | set(salu.SPECIAL)
    names |= set(valu.TABLE) | set(valu_special.TABLE) | set(valu_packed.TABLE)
    names |= {"v_fmac_f32", "v_fmac_f16", "v_fmaak_f32", "v_fmamk_f32", "v_mac_f32", "v_cndmask_b32"}
    names |= set(ds.ACCESSES) | set(ds.SPECIAL) | set(vmem.SPECIAL) | set(matrix.WMMAS)
    names |= {n for group in matrix.MFMAS.values() for n in group}
    return names | {"s_waitcnt", "s_waitcnt_vscnt", "s_barrier", "s_branch", "s_endpgm"}


class Program:
    """A kernel, bound once for its target. Raises NotModelled at once for what the executor does not know."""

    def __init__(self, code: CodeObject, listing: list[Instruction] | None = None) -> None:
        self.code = code
        if code.arch not in TARGETS:
            raise NotModelled(f"target {code.arch}")
        self.target = TARGETS[code.arch]
        if code.wave != self.target.lanes:
            raise NotModelled(f"waves of {code.wave} lanes on {code.arch}")
        d = code.descriptor
        if d.denorm32 != 3 or d.denorm16 != 3 or d.round_modes:
            raise NotModelled(f"float mode {d.rsrc1 >> 12 & 255:#x}: subnormals kept, nearest even expected")
        listing = listing if listing is not None else instructions(code.disassembly)
        self.listing = _reachable(listing, d.entry)
        self.blocks = self._blocks()
        self.granule = ds.narrowest({i.name for i in self.listing})

    def _blocks(self) -> list[Block]:
        leaders = {self.listing[0].address}
        for i in self.listing:
            if _is_branch(i.name):
                leaders |= {_target(i), i.end}
            elif i.name in ("s_barrier", "s_endpgm"):
                leaders.add(i.end)
        starts = sorted(a for a in leaders if any(i.address == a for i in self.listing))
        index = {address: k for k, address in enumerate(starts)}
        blocks = [Block(a) for a in starts]
        current = blocks[0]
        for i in self.listing:
            if i.address in index:
                current = blocks[index[i.address]]
            name = i.name
            if name == "s_branch":
                current.end, current.target, current.last = "jump", index[_target(i)], i
            elif name in CONDITIONS:
                current.end, current.target, current.last = "branch", index[_target(i)], i
                current.condition = CONDITIONS[name]
                # "z" and "0" are taken when nothing is set
                current.wanted = name.endswith(("scc1", "nz"))
                words = self.target.lanes // 32
                current.needs = {
                    "scc": SCC,
                    "vcc": bits("s", VCC, words),
                    "exec": bits("s", EXEC, words),
                }[current.condition]
            elif name == "s_barrier":
                current.end, current.last = "barrier", i
            elif name in ("s_endpgm", "s_endpgm_saved"):
                current.end, current.last = "stop", i
            else:
                bound = bind(i, self.target)
                current.ops.append((bound.run, bound.reads | bound.writes, bound, i))
        return blocks

    def successors(self, k: int) -> list[int]:
        """Blocks that may follow a block."""
        b = self.blocks[k]
        following = {"jump": [b.target], "branch": [b.target, k + 1], "stop": []}.get(b.end, [k + 1])
        return [s for s in following if s < len(self.blocks)]

    def loops(self) -> list[frozenset[int]]:
        """Natural loops: for each edge to a dominator, the blocks that reach its source past it."""
        count = len(self.blocks)
        before: list[set[int]] = [set() for _ in range(count)]
        for k in range(count):
            for s in self.successors(k):
                before[s].add(k)
        first = next(k for k, b in enumerate(self.blocks) if b.first == self.code.descriptor.entry)
        everything = (1 << count) - 1
        dominators = [everything] * count
        dominators[first] = 1 << first
        changed = True
        while changed:
            changed = False
            for k in range(count):
                if k == first:
                    continue
                common = everything
                for p in before[k]:
                    common &= dominators[p]
                common |= 1 << k
                if common != dominators[k]:
                    dominators[k], changed = common, True
        found: dict[int, set[int]] = {}
        for k in range(count):
            for head in self.successors(k):
                if dominators[k] >> head & 1:
                    body, todo = found.setdefault(head, {head}), [k]
                    while todo:
                        at = todo.pop()
                        if at not in body:
                            body.add(at)
                            todo.extend(before[at])
        return [frozenset(body) for body in found.values()]


def _is_branch(name: str) -> bool:
    return name == "s_branch" or name in CONDITIONS


def _target(i: Instruction) -> int:
    """Address of a branch's target: simm16 words after the next instruction."""
    offset = i.words[0] & 0xFFFF
    return i.end + 4 * (offset - 0x10000 if offset & 0x8000 else offset)


def _reachable(listing: Iterable[Instruction], entry: int) -> list[Instruction]:
    """Instructions from the entry on that control can reach: padding after the kernel is none of it."""
    by_address = {i.address: i for i in listing}
    seen: set[int] = set()
    todo = [entry]
    while todo:
        at = todo.pop()
        while at not in seen:
            i = by_address.get(at)
            if i is None:
                raise NotModelled(f"control reaches {at:#x}, where there is no instruction")
            seen.add(at)
            if _is_branch(i.name):
                todo.append(_target(i))
            if i.name in ("s_branch", "s_endpgm"):
                break
            at = i.end
    return [by_address[a] for a in sorted(seen)]


__all__ = ["Binder", "Block", "Convoy", "Program", "bind", "known"]
