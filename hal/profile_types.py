"""The facts of an instruction set as dataclasses: what an arch profile holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from portagemm.hal.board import Board
from portagemm.hal.device import Device
from portagemm.hal.target import Target


@dataclass(frozen=True)
class Atom:
    """One matrix instruction (or the fused multiply-add that stands in for one).

    Attributes:
        name: its name in tiles and device code (``mma_16816``).
        shape: (m, n, k) of one instruction. n_max: largest n, where n is any multiple of shape's (wgmma).
        lanes: lanes that execute it together.
        a: dtypes of A and B. accumulate: dtype of the accumulator.
        instruction: as the assembler spells it. source: where the facts come from.
    """

    name: str
    shape: tuple[int, int, int]
    lanes: int
    a: tuple[str, ...]
    accumulate: str
    instruction: str
    source: str
    n_max: int = 0


@dataclass(frozen=True)
class Copy:
    """One way of moving data between memories.

    Attributes:
        name: its name in device code. asynchronous: whether it completes behind the program's back.
        bytes: sizes of one access. alignment: of the address, in bytes (0: that of the access).
        multicast: whether it can write to all blocks of a cluster.
        instruction: as the assembler spells it. source: where the facts come from.
    """

    name: str
    asynchronous: bool
    bytes: tuple[int, ...]
    instruction: str
    source: str
    alignment: int = 0
    multicast: bool = False


@dataclass(frozen=True)
class Limits:
    """What a launch may ask for. Sizes in bytes; 0 means that there is no such limit, or none is known.

    Attributes:
        threads_per_block, registers_per_thread, shared_bytes_per_block: most of each.
        grid: most blocks of a launch. grid_threads: most threads of a launch.
        registers_per_unit, shared_bytes_per_unit, threads_per_unit, blocks_per_unit: what one SM or CU
            holds; they bound how many blocks are resident.
        cluster: most blocks of a cluster (1: no clusters).
    """

    threads_per_block: int
    registers_per_thread: int
    shared_bytes_per_block: int
    grid: int
    grid_threads: int = 0
    registers_per_unit: int = 0
    shared_bytes_per_unit: int = 0
    threads_per_unit: int = 0
    blocks_per_unit: int = 0
    cluster: int = 1


@dataclass(frozen=True)
class TileConfig:
    """One tile candidate of a schedule.

    Attributes:
        atom: name of the matrix atom.
        block: (m, n, k) of a block's tile, k of one stage.
        waves: computing waves along m and n (warpgroups for a warpgroup-wide atom).
        stages: buffers in shared memory. cluster: blocks along m that share B.
        split: blocks of a cluster that share one tile's K. resident: blocks a unit should hold at once.
        swap: the tile is of the exchanged problem, D^T = B A^T: for few rows of A.
        loaders: waves that only load, where the schedule has such.
    """

    atom: str
    block: tuple[int, int, int]
    waves: tuple[int, int]
    stages: int
    cluster: int = 1
    split: int = 1
    resident: int = 1
    swap: bool = False
    loaders: int = 1


@dataclass(frozen=True)
class Decompression:
    """How a narrow operand becomes one the matrix unit takes: target dtypes, route, source."""

    to: tuple[str, ...]
    route: str
    source: str


@dataclass(frozen=True)
class Quirk:
    """A behaviour that code must mind: a stable id, what happens, and where that is written."""

    id: str
    text: str
    source: str


@dataclass(frozen=True, eq=False)
class ArchProfile:
    """The facts of one arch. Compared by identity: a changed copy is another profile.

    Attributes:
        name: what PORTAGEMM_PROFILE takes. vendor: nvidia, amd, host. backend: cuda, rocm, cpu.
        arch: target as the compiler spells it. wave_size: lanes of a wave.
        matches: shell patterns of `Device.arch` this profile is made for.
        limits: what a launch may ask for, before the device's own limits (`limits_for`).
        scopes: synchronisation scopes. atoms, copies: by name.
        schedules: in order of preference. tiles: schedule -> candidates in order of preference.
        native: dtypes the matrix unit takes. emulated: dtype -> how it is computed.
        decompression: dtype -> route. quirks: behaviours to mind. boards: products of this arch.
        source: where the group of facts comes from. path: the file ("" if made in a program).
    """

    name: str
    vendor: str
    backend: str
    arch: str
    wave_size: int
    matches: tuple[str, ...]
    limits: Limits
    scopes: tuple[str, ...]
    atoms: Mapping[str, Atom]
    copies: Mapping[str, Copy]
    schedules: tuple[str, ...]
    tiles: Mapping[str, tuple[TileConfig, ...]]
    native: tuple[str, ...]
    emulated: Mapping[str, str]
    decompression: Mapping[str, Decompression]
    quirks: tuple[Quirk, ...]
    boards: tuple[Board, ...]
    source: str
    path: str = ""

    def __repr__(self) -> str:
        return f"ArchProfile({self.name!r}, {self.backend}:{self.arch}, {self.path or 'in memory'})"

    @property
    def forward_compatible(self) -> bool:
        """Whether newer devices of the backend can run its code (plain PTX; no ``a`` or ``f`` suffix)."""
        return self.backend == "cuda" and self.arch[-1:].isdigit()

    def made_for(self, device: Device) -> bool:
        """Whether the device is one the profile describes."""
        return device.backend == self.backend and any(fnmatchcase(device.arch, p) for p in self.matches)

    def has_quirk(self, quirk: str) -> bool:
        """Whether the quirk with this id is listed."""
        return any(q.id == quirk for q in self.quirks)

    def limits_for(self, device: Device) -> Limits:
        """The limits in force on a device: the smaller of the profile's and its own."""
        threads, shared = device.threads_per_block, device.shared_bytes_per_block
        return replace(
            self.limits,
            threads_per_block=min(self.limits.threads_per_block, threads or self.limits.threads_per_block),
            shared_bytes_per_block=min(
                self.limits.shared_bytes_per_block, shared or self.limits.shared_bytes_per_block
            ),
        )

    def target(self, device: Device | None = None) -> Target:
        """What to compile for: the profile's own arch, assembled for `device` where that is another."""
        assembled = None
        if device is not None and not self.made_for(device) and device.arch != self.arch:
            assembled = device.arch
        return Target(self.backend, self.arch, self.wave_size, assembled)
