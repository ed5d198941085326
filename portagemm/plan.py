"""GemmProblem + ArchProfile -> GemmPlan: which kernel, how it is launched, and why. One algorithm for all archs.

`candidates` lists every kernel that computes a problem on a device; `plan` takes the one an analytic model
expects to be fastest. What is measured lives in docs/performance.md.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from portagemm import tuning
from portagemm.cost import estimate
from portagemm.hal.board import Board, board_for
from portagemm.hal.device import Device
from portagemm.hal.dtypes import BY_NAME
from portagemm.hal.errors import UnsupportedError
from portagemm.hal.profile import ArchProfile, TileConfig
from portagemm.hal.program import ArgumentBlock, LaunchConfig, TensorMap
from portagemm.kernel_config import (
    ATOMS,
    COPIES,
    SCHEDULES,
    STREAMED,
    KernelConfig,
    OperandConfig,
    block_threads,
    compute_threads,
    kernel_source,
    shared_bytes,
)
from portagemm.problem import MAX_BATCH_DIMS, GemmProblem, Operand, access_bytes, major_of
from portagemm.reduce_kernel import PITCH, ReduceConfig
from portagemm.reduce_kernel import threads as reduce_threads

__all__ = ["GemmPlan", "Step", "candidates", "kernel_source", "plan", "rejections", "steps"]


@dataclass(frozen=True)
class GemmPlan:
    """A kernel and its launch for one problem.

    Attributes:
        kernel: what is compiled in.
        grid, block: blocks, and threads of a block. shared_bytes: dynamic shared memory of a block.
        tiles_m, tiles_n: tiles of one batch (along m of a whole cluster). tiles: of all batches and slices.
        raster: rows of tiles that are walked together.
        programmatic: whether it may start before the kernel ahead has ended (it waits by itself for what it needs).
        slices: parts of K whose sums go to a workspace in fp32; `reduce`, a second kernel, adds them up.
        cost: the model's estimate in microseconds. limit: what the model says it is spent on (cost.py).
        reasons: why this plan, for `explain`.
    """

    kernel: KernelConfig
    grid: int
    block: int
    shared_bytes: int
    tiles_m: int
    tiles_n: int
    tiles: int
    raster: int
    cost: float
    limit: str
    programmatic: bool = False
    slices: int = 1
    reduce: ReduceConfig | None = None
    reasons: tuple[str, ...] = field(default=(), compare=False)

    @property
    def kernels(self) -> tuple[KernelConfig | ReduceConfig, ...]:
        """All kernels the plan runs, in order."""
        return (self.kernel,) if self.reduce is None else (self.kernel, self.reduce)

    @property
    def swap(self) -> bool:
        """Whether the kernel computes the exchanged problem."""
        return self.kernel.tile.swap

    @property
    def cluster(self) -> int:
        """Blocks of a cluster (1: none)."""
        return self.kernel.tile.cluster * self.kernel.tile.split

    def explain(self) -> str:
        """One line: schedule, atom, tile, copies, store and grid."""
        k, t = self.kernel, self.kernel.tile
        copies = f"A {k.a.copy}{k.a.width or ''} ({k.a.major}), B {k.b.copy}{k.b.width or ''} ({k.b.major})"
        return (
            f"{k.schedule}, {t.atom}, tile {'x'.join(map(str, t.block))}, waves {t.waves[0]}x{t.waves[1]}, "
            f"{t.stages} stages, cluster {t.cluster}{f', K split by {t.split}' if t.split > 1 else ''}"
            f"{', operands swapped' if t.swap else ''}"
            f"{f', K in {self.slices} slices summed by a second kernel' if self.slices > 1 else ''}, "
            f"{copies}, {k.store} store, grid {self.grid} x {self.block}, "
            f"{self.tiles} tiles, raster {self.raster}"
        )


# --- what an operand allows ----------------------------------------------------------------------------


def _tensor_obstacle(name: str, operand: Operand, contiguous: int, batch: tuple[int, ...]) -> str | None:
    """Why the tensor copy engine cannot address an operand (PTX ISA and cuTensorMapEncodeTiled), or None."""
    size = operand.dtype.bytes
    if size != 2:
        return f"{name} is {operand.dtype}; wgmma operands and tensor stores are 16-bit"
    if operand.strides[contiguous] != 1:
        return f"{name} is not contiguous in either dimension"
    if operand.alignment < 16:
        return f"the address of {name} is aligned to {operand.alignment} bytes; tensor copies need 16"
    outer = operand.strides[1 - contiguous] * size
    if outer <= 0 or outer % 16 or outer >= 1 << 40:
        return f"{name} has rows {outer} bytes apart; tensor copies need a positive multiple of 16 below 2^40"
    if len(batch) > 1:
        return f"{len(batch)} batch dimensions that cannot be merged; a descriptor has one"
    for stride in operand.batch_strides:
        if stride * size % 16 or stride < 0 or stride * size >= 1 << 40:
            return f"{name} has batches {stride * size} bytes apart; tensor copies need a multiple of 16"
    return None


def exchanged(problem: GemmProblem) -> GemmProblem:
    """The same numbers as D^T = B A^T: A and B change places, and so do rows and columns of C, D and the bias."""

    def turned(o: Operand) -> Operand:
        return replace(o, strides=(o.strides[1], o.strides[0]))

    return replace(
        problem,
        m=problem.n,
        n=problem.m,
        a=problem.b,
        b=problem.a,
        d=turned(problem.d),
        c=turned(problem.c) if problem.c else None,
        bias=turned(problem.bias) if problem.bias else None,
        swapped=not problem.swapped,
    )


# --- candidates ----------------------------------------------------------------------------------------


class _Rejected(Exception):
    """A tile cannot compute the problem; the text says why."""


def _operand(
    name: str, operand: Operand, tile: TileConfig, schedule: str, mn: int, problem: GemmProblem, cluster: int
) -> OperandConfig:
    part = ATOMS[tile.atom]
    dtype = operand.dtype.name
    converts = part.element is not None and part.element != dtype
    major = major_of(operand)
    for copy in SCHEDULES[schedule].copies:
        if (copy == "pack") != (tile.atom == "host_panel"):
            continue
        order = major if major in part.orders else part.orders[0]
        if tile.atom == "host_panel" and name == "b":
            order = "mn"
        if copy == "tensor":
            obstacle = _tensor_obstacle(name.upper(), operand, 1 if major == "k" else 0, problem.batch)
            if obstacle:
                raise _Rejected(obstacle)
            if order == "mn" and mn % 64:
                raise _Rejected(f"an MN-major operand needs tiles in steps of 64, this one has {mn}")
            whole = mn // 64 % cluster == 0 if order == "mn" else mn % (8 * cluster) == 0
            slices = cluster if name == "b" and whole else 1
            return OperandConfig(dtype, major, order, copy, slices=slices)
        if converts and not COPIES[copy].converts:
            continue
        if copy == "realign" and not _realigns(operand, major, order):
            continue
        widths = COPIES[copy].widths
        if not widths:
            return OperandConfig(dtype, major, order, copy)
        size = operand.dtype.bytes
        width = size if major == "strided" else access_bytes(operand, 1 if major == "k" else 0)
        if copy == "load" and major != "k":
            width = size  # chunks run along K
        if copy == "async" and order != major:
            width = min(width, size)  # each element to its own place
        usable = next((w for w in widths if w <= width), None)
        if usable is None or usable < size:
            continue
        return OperandConfig(dtype, major, order, copy, usable)
    raise _Rejected(f"no copy of {schedule} takes {name.upper()} ({dtype}, {major})")


#: Bytes of an access below which tiles are faster than fragments straight from memory.
_STREAMED = 4
#: Operands on boundaries of so many bytes are not shifted: asynchronous copies of 4 bytes were 1.3 to 1.7 times as fast
#: (docs/performance.md).
_UNSHIFTED = 4


def _realigns(operand: Operand, major: str, order: str) -> bool:
    """Whether 16-byte words of an operand have to be shifted, and can be (hal/include/portagemm/realign.hpp)."""
    return (
        operand.dtype.bytes == 2
        and order == major
        and access_bytes(operand, 1 if major == "k" else 0) < _UNSHIFTED
        and min(operand.strides) >= 0
    )


#: Registers that sums and words on their way may fill: what is left of 255 is fragments, addresses and counters.
_HELD_REGISTERS = 168


def _held(tile: TileConfig, a: bool, b: bool, wave_size: int) -> int:
    """Registers of a thread for sums, and for words of realigned operands: two of 16 bytes for each that is stored.

    `a`, `b`: which operands are realigned. A plan for whatever rows must have room for rows that are.
    """
    block_m, block_n, block_k = tile.block
    threads = compute_threads(tile, wave_size)
    words = [8 * (mn * block_k // 8 // threads) for mn, has in ((block_m, a), (block_n, b)) if has]
    return block_m * block_n // threads + sum(words)


def _strip_columns(tile: TileConfig, wave_size: int) -> int:
    """Columns of a staged strip."""
    wave_n = tile.block[1] // tile.waves[1]
    atom_n = ATOMS[tile.atom].n(wave_size, wave_n)
    for columns in (32, 16, 8):
        if wave_n % columns == 0 and (columns % atom_n == 0 or atom_n % columns == 0):
            return columns
    raise _Rejected(f"no strip width divides a wave's {wave_n} columns")


def _tensor_columns(tile: TileConfig) -> int:
    """16-bit columns of a tensor store's strip: few strips, and rows that are swizzled (128, 64 or 32 bytes) or an odd
    number of 16-byte chunks long, so that stmatrix meets no bank twice (arch/sm90.hpp)."""
    wave_n = tile.block[1] // tile.waves[1]
    if wave_n % 64 == 0:
        return 64
    fitting: list[int] = [columns for columns in (*range(8, 105, 16), 32, 16) if wave_n % columns == 0]
    return max(fitting)


def _kernel(problem: GemmProblem, profile: ArchProfile, schedule: str, tile: TileConfig) -> KernelConfig:
    atom = profile.atoms[tile.atom]
    dtype = problem.a.dtype.name
    if problem.b.dtype.name != dtype:
        raise _Rejected(f"A is {dtype}, B is {problem.b.dtype}: operands have one dtype")
    takes = "tf32" if dtype == "fp32" and problem.precision == "tf32" and "tf32" in atom.a else dtype
    if takes not in atom.a:
        wanted = "tf32" if dtype == "fp32" and problem.precision == "tf32" else dtype
        raise _Rejected(f"{tile.atom} takes {', '.join(atom.a)}, not {wanted}")
    block_m, block_n, _ = tile.block
    if schedule == "skinny" and (tile.atom not in STREAMED or tile.block[2] != STREAMED[tile.atom].k):
        raise _Rejected(f"{tile.atom} has no fragments of {tile.block[2]} elements straight from memory")
    if SCHEDULES[schedule].rows:
        if problem.m > block_m:
            raise _Rejected(f"takes up to {block_m} rows, there are {problem.m}")
        if major_of(problem.b) != "k":
            along = "N" if major_of(problem.b) == "mn" else "nothing"
            raise _Rejected(f"reads B along K, and B is contiguous along {along}")
        if schedule == "skinny" and access_bytes(problem.b, 1) < _STREAMED:
            raise _Rejected(f"reads B {_STREAMED} bytes at a time or more, and it lies on no such boundary")
    a = _operand("a", problem.a, tile, schedule, block_m, problem, tile.cluster)
    b = _operand("b", problem.b, tile, schedule, block_n, problem, tile.cluster)
    if "realign" in SCHEDULES[schedule].copies:
        # A plan for whatever rows depends on K, not on how far apart this A's rows lie.
        uneven = problem.batch_invariant and problem.k * problem.a.dtype.bytes % _UNSHIFTED
        if "realign" not in (a.copy, b.copy) and not uneven:
            raise _Rejected(
                f"shifts words into place, and both operands lie on boundaries of {_UNSHIFTED} bytes"
            )
        shifts_a = a.copy == "realign" or problem.batch_invariant
        held = _held(tile, shifts_a, b.copy == "realign", profile.wave_size)
        if held > _HELD_REGISTERS:
            raise _Rejected(f"needs {held} registers a thread for sums and words on their way")
    if a.copy == "tensor" and not (problem.m and problem.n and problem.k):
        raise _Rejected("a descriptor cannot have an extent of 0")
    d = problem.d
    along = "m" if d.strides[1] != 1 and d.strides[0] == 1 else "n"
    contiguous = 0 if along == "m" else 1
    vector = access_bytes(d, contiguous) // d.dtype.bytes if d.strides[contiguous] == 1 else 1
    columns = 0
    if SCHEDULES[schedule].rows:
        store, along, vector = "direct", "n", 1
    elif tile.atom == "host_panel":
        store, along, vector = "direct", "n", vector if along == "n" else 1
    elif tile.split > 1:
        store = "split"
        vector = min(vector, block_m // tile.split if along == "m" else block_n)
    elif (
        a.copy == "tensor"
        and problem.c is None
        and tile.waves[1] == 1
        # A tensor store writes whole 16 bytes, also where D ends within them.
        and problem.n * d.dtype.bytes % 16 == 0
        and _tensor_obstacle("D", d, 1, problem.batch) is None
    ):
        store, columns = "tensor", _tensor_columns(tile)
    else:
        store, columns = "staged", _strip_columns(tile, profile.wave_size)
        vector = min(vector, columns) if along == "n" else vector
    return KernelConfig(
        schedule=schedule,
        tile=tile,
        a=a,
        b=b,
        d=d.dtype.name,
        d_vector=vector if store != "tensor" else 0,
        store=store,
        columns=columns,
        along=along,
        c=problem.c.dtype.name if problem.c else None,
        bias=problem.bias.dtype.name if problem.bias else None,
        activation=problem.activation,
        flat=schedule == "skinny" and not problem.batch and min(problem.m, problem.n) > 0,
    )


def _launchable(
    problem: GemmProblem,
    profile: ArchProfile,
    device: Device,
    board: Board,
    kernel: KernelConfig,
    slices: int = 1,
) -> GemmPlan:
    tile, schedule = kernel.tile, SCHEDULES[kernel.schedule]
    limits = profile.limits_for(device)
    threads = block_threads(kernel, profile.wave_size)
    if threads > limits.threads_per_block:
        raise _Rejected(f"needs {threads} threads a block, the device has {limits.threads_per_block}")
    shared = shared_bytes(kernel, profile.wave_size)
    if shared > limits.shared_bytes_per_block:
        raise _Rejected(
            f"needs {shared} bytes of shared memory a block, the device has {limits.shared_bytes_per_block}"
        )
    if tile.cluster * tile.split > limits.cluster:
        raise _Rejected(f"needs clusters of {tile.cluster * tile.split}, the device has {limits.cluster}")
    block_m, block_n, block_k = tile.block
    tiles_m = -(-problem.m // (block_m * tile.cluster))
    tiles_n = -(-problem.n // block_n)
    batches = 1
    for extent in problem.batch:
        batches *= extent
    tiles = tiles_m * tiles_n * batches * slices
    if tiles >= 1 << 32:
        raise _Rejected(f"{tiles_m} x {tiles_n} tiles of {batches * slices} batches do not fit 32 bits")
    units = max(1, device.compute_units // tile.cluster)
    one_wave = (schedule.persistent and tile.split == 1 and tile.resident == 1) or device.backend == "cpu"
    grid = tiles
    if one_wave and tiles:
        # The fewest units that need no more rounds: idle units leave power to the busy ones.
        grid = -(-tiles // -(-tiles // units))
    blocks = tile.cluster * tile.split
    if tile.split > 1 and tiles > limits.grid // blocks:
        raise _Rejected(f"{tiles} tiles whose K is split need a grid beyond {limits.grid}")
    grid = max(blocks, min(grid * blocks, limits.grid // blocks * blocks))
    if limits.grid_threads:
        grid = min(grid, max(1, limits.grid_threads // threads))
    if ATOMS[tile.atom].one_tile and grid < tiles:
        raise _Rejected(f"a block computes one tile, and a grid has {grid} blocks for {tiles}")
    stream = 0
    if schedule.rows:
        stream = block_k * tile.stages * (tile.waves[0] if kernel.schedule == "skinny" else profile.wave_size)
    expected = estimate(problem, tile, tiles, one_wave, board, slices, stream)
    return GemmPlan(
        kernel=kernel,
        grid=grid,
        block=threads,
        shared_bytes=shared,
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        tiles=tiles,
        raster=min(_raster(tile), max(1, tiles_m)),
        cost=expected.seconds * 1e6,
        limit=expected.limit,
        # Kernels of archs with clusters know how to wait (vendor.hpp, wait_for_prior_kernel).
        programmatic="cluster" in profile.scopes and (kernel.a.copy == "tensor" or schedule.rows),
        slices=slices,
    )


# --- K in slices ---------------------------------------------------------------------------------------

#: Elements of K that a slice should have: fewer are over before the block has begun.
_SLICE_DEPTH = 256


def _slice_k(k: int, block_k: int, slices: int) -> int:
    """Elements of K in a slice, in whole steps of the main loop: the last slice has what is left."""
    return -(-k // slices // block_k) * block_k if slices > 1 else k


def _summed(problem: GemmProblem) -> GemmProblem:
    """The problem of one slice: sums in fp32 into a workspace, rows next to each other, and no epilogue."""
    row = -(-problem.n // PITCH) * PITCH
    steps, inner = [], problem.m * row
    for extent in reversed(problem.batch):
        steps.append(inner)
        inner *= extent
    d = Operand(BY_NAME["fp32"], (row, 1), tuple(reversed(steps)))
    return replace(problem, d=d, c=None, bias=None, activation="none")


def _slice_elements(problem: GemmProblem) -> int:
    """Elements of the workspace for one slice."""
    count = problem.m * -(-problem.n // PITCH) * PITCH
    for extent in problem.batch:
        count *= extent
    return count


def workspace_bytes(problem: GemmProblem, chosen: GemmPlan) -> int:
    """Bytes a plan needs for the sums of its slices, 0 where there are none. Contents need not be anything."""
    return chosen.slices * _slice_elements(problem) * 4 if chosen.slices > 1 else 0


def _sliced(
    problem: GemmProblem,
    profile: ArchProfile,
    device: Device,
    board: Board,
    schedule: str,
    tile: TileConfig,
    slices: int,
) -> GemmPlan:
    if tile.swap or tile.split > 1 or tile.cluster > 1:
        raise _Rejected("K is cut into slices for tiles of one block only, in the operands' own order")
    block_k = tile.block[2]
    slices = -(-problem.k // max(1, _slice_k(problem.k, block_k, slices)))
    if slices < 2:
        raise _Rejected(f"K = {problem.k} cannot be cut into slices of steps of {block_k}")
    if _slice_elements(problem) >= 1 << 32:
        raise _Rejected(f"{_slice_elements(problem)} sums of a slice do not fit 32 bits")
    part = _summed(problem)
    kernel = replace(_kernel(part, profile, schedule, tile), flat=False)
    plan = _launchable(part, profile, device, board, kernel, slices)
    d, vector = problem.d, 1
    if d.strides[1] == 1:
        vector = min(PITCH, access_bytes(d, 1) // d.dtype.bytes)
    second = ReduceConfig(
        d=d.dtype.name,
        d_vector=vector,
        c=problem.c.dtype.name if problem.c else None,
        bias=problem.bias.dtype.name if problem.bias else None,
        activation=problem.activation,
    )
    return replace(plan, reduce=second)


def sliced(problem: GemmProblem, profile: ArchProfile, device: Device, of: GemmPlan, slices: int) -> GemmPlan:
    """The plan `of` with K cut into about `slices` parts. Raises UnsupportedError where its tile cannot."""
    try:
        board = board_for(device, profile)
        return _sliced(problem, profile, device, board, of.kernel.schedule, of.kernel.tile, slices)
    except _Rejected as reason:
        raise UnsupportedError("gemm", f"K in {slices} slices: {reason}", "another plan") from None


def _worth_slicing(problem: GemmProblem, device: Device, whole: GemmPlan) -> int:
    """Slices that fill the device where tiles do not; fewer than 2 where that is not so."""
    units = device.compute_units * whole.kernel.tile.resident
    return min(units // max(whole.tiles, 1), problem.k // _SLICE_DEPTH)


#: Rows of the output walked together: an L2's worth of A stays while B passes (measured: docs/performance.md).
_RASTER_ROWS = 2048


def _raster(tile: TileConfig) -> int:
    return max(1, _RASTER_ROWS // (tile.block[0] * tile.cluster))


def _tiles(profile: ArchProfile) -> Iterator[tuple[str, TileConfig]]:
    for schedule in profile.schedules:
        for tile in profile.tiles.get(schedule, ()):
            yield schedule, tile


def _considered(
    problem: GemmProblem, profile: ArchProfile, device: Device
) -> tuple[list[GemmPlan], list[tuple[str, str]]]:
    plans: list[GemmPlan] = []
    rejected: list[tuple[str, str]] = []
    board = board_for(device, profile)
    for schedule, tile in _tiles(profile):
        try:
            faced = exchanged(problem) if tile.swap else problem
            if tile.swap and not SCHEDULES[schedule].rows and faced.n > tile.block[1]:
                raise _Rejected(f"swaps operands for up to {tile.block[1]} rows, there are {faced.n}")
            kernel = _kernel(faced, profile, schedule, tile)
            whole = _launchable(faced, profile, device, board, kernel)
            plans.append(whole)
            slices = _worth_slicing(problem, device, whole)
            if slices > 1 and not problem.batch_invariant:
                with contextlib.suppress(_Rejected):
                    plans.append(_sliced(problem, profile, device, board, schedule, tile, slices))
        except _Rejected as reason:
            turned = " of the exchanged problem" if tile.swap else ""
            name = f"{schedule} {tile.atom} {'x'.join(map(str, tile.block))}{turned}"
            rejected.append((name, str(reason)))
    return plans, rejected


def candidates(problem: GemmProblem, profile: ArchProfile, device: Device) -> list[GemmPlan]:
    """Every plan that computes the problem on the device, in the profile's order. Empty where none does."""
    return _considered(problem, profile, device)[0]


def rejections(problem: GemmProblem, profile: ArchProfile, device: Device) -> list[tuple[str, str]]:
    """(candidate, reason) for every tile of the profile that cannot compute the problem."""
    return _considered(problem, profile, device)[1]


def plan(problem: GemmProblem, profile: ArchProfile, device: Device, *, use_tables: bool = True) -> GemmPlan:
    """The plan a tuning table holds for the problem, else the one the model expects to be fastest.

    The model takes the first schedule that can compute the problem, and its cheapest tile. A problem that is
    to be batch invariant gets a plan that does not depend on its rows. `use_tables=False`: the model's choice.

    Raises UnsupportedError with every candidate's reason where no kernel computes the problem.
    """
    plans, rejected = _considered(problem, profile, device)
    if not plans:
        text = "; ".join(f"{name}: {reason}" for name, reason in rejected)
        raise UnsupportedError(
            "gemm", f"no kernel of profile {profile.name} takes it ({text})", "see explain()"
        )
    if problem.batch_invariant:
        return _invariant(problem, profile, device, plans)
    best, rivals = _cheapest(plans)
    first = best.kernel.schedule
    reasons = [
        f"schedule {first}: first of {profile.name}'s ({', '.join(profile.schedules)}) that takes the problem"
        + ("" if first == plans[0].kernel.schedule else f", with {plans[0].kernel.schedule} its family")
    ]
    reasons.append(
        f"tile {'x'.join(map(str, best.kernel.tile.block))}: cheapest of {rivals} by the model "
        f"({best.tiles} tiles on {device.compute_units} units, {best.cost:.1f} us expected, limit: {best.limit})"
    )
    if use_tables:
        for found in tuning.find(problem, profile.name, device):
            tuned = _as_measured(problem, plans, found)
            if tuned is not None:
                best = tuned
                reasons.append(_measured_reason(found, tuned))
                break
    return replace(best, reasons=tuple(reasons))


def _cheapest(plans: list[GemmPlan]) -> tuple[GemmPlan, int]:
    """(the model's choice, of how many): among the plans with the first one's schedule (or family) and atom.

    Where blocks of a cluster can share the K of a tile, slices that a second kernel sums are left to tuning: nobody
    has timed the one against the other.
    """
    first = plans[0].kernel
    same = [
        p
        for p in plans
        if (_family(p.kernel), p.kernel.tile.atom) == (_family(first), first.tile.atom)
        and (p.slices == 1 or p.kernel.a.copy != "tensor")
    ]
    return min(same, key=lambda p: p.cost), len(same)


def _family(kernel: KernelConfig) -> str:
    return SCHEDULES[kernel.schedule].family or kernel.schedule


def name_of(chosen: GemmPlan) -> str:
    """The plan's schedule, tile and slices as tuning tables name them."""
    tile = tuning.tile_name(chosen.kernel.schedule, chosen.kernel.tile)
    return tile if chosen.slices == 1 else f"{tile} slices{chosen.slices}"


def _as_measured(problem: GemmProblem, plans: list[GemmPlan], found: tuning.Found) -> GemmPlan | None:
    """The candidate a table's entry names, if it is one and covers the problem with as many tiles as measured."""
    measured = found.entry.best
    chosen = next((p for p in plans if name_of(p) == measured.tile), None)
    if chosen is None:
        return None
    tile = chosen.kernel.tile
    rows = tile.block[1 if tile.swap else 0] * tile.cluster
    if -(-problem.m // rows) != -(-found.m // rows):
        return None
    return replace(chosen, raster=min(measured.raster, max(1, chosen.tiles_m)))


def _measured_reason(found: tuning.Found, chosen: GemmPlan) -> str:
    best, model, second = found.entry.best, found.entry.heuristic, found.entry.runner_up
    text = f"tuned: {best.tile}, raster {best.raster}: measured {best.us:.1f} us (limit: {chosen.limit})"
    if model is not None and (model.tile, model.raster) == (best.tile, best.raster):
        text += ", the model's choice too"
    elif model is not None:
        text += f", the model's choice {model.us:.1f} us ({model.tile}, raster {model.raster})"
    if second is not None:
        text += f", runner-up {second.us:.1f} us ({second.tile})"
    return f"{text}; {found.path}, measured for m = {found.m}"


# --- whatever the rows ---------------------------------------------------------------------------------

#: Rows for which the plan of a batch-invariant problem is made, however many there are.
_INVARIANT_ROWS = 256


def _invariant(problem: GemmProblem, profile: ArchProfile, device: Device, plans: list[GemmPlan]) -> GemmPlan:
    """The plan of a problem whose rows must not depend on how many there are, nor on where they lie.

    One schedule, atom and tile for all m, chosen from N, K, dtypes and B alone, as if A had a fixed number of
    contiguous rows; K is not split and operands are not exchanged. An element of D then is the same sum in the
    same order whatever row of a tile it is in. What only moves data (widths of accesses, stores) may differ.
    """
    if major_of(problem.a) != "k":
        raise UnsupportedError(
            "gemm", "batch_invariant=True and rows of A that are not contiguous", "A with stride 1 along K"
        )
    # Batches of A alone are rows that could not be folded into m; batches of B belong to the problem.
    batch = (1,) * len(problem.batch) if any(problem.b.batch_strides) else ()

    def rows_of(o: Operand, strides: tuple[int, int], alignment: int) -> Operand:
        return replace(o, strides=strides, batch_strides=(0,) * len(batch), alignment=alignment)

    natural = problem.k * problem.a.dtype.bytes
    typical = replace(
        problem,
        m=_INVARIANT_ROWS,
        a=rows_of(problem.a, (problem.k, 1), min(natural & -natural, 16)),
        b=replace(problem.b, batch_strides=problem.b.batch_strides[: len(batch)]),
        d=rows_of(problem.d, (-(-problem.n // 16) * 16, 1), 16),
        batch=batch,
    )

    def fixed(candidate: GemmPlan) -> bool:
        return candidate.kernel.tile.split == 1 and candidate.slices == 1 and not candidate.swap

    choices = [p for p in _considered(typical, profile, device)[0] if fixed(p)]
    if not choices:
        raise UnsupportedError("gemm", f"no batch-invariant kernel of profile {profile.name} takes it", "")
    best, rivals = _cheapest(choices)
    chosen = next((p for p in plans if name_of(p) == name_of(best)), None)
    if chosen is None:
        raise UnsupportedError(
            "gemm",
            f"batch_invariant=True takes {name_of(best)} for K = {problem.k}, which cannot take this A",
            "rows of A on 16-byte boundaries and at most one batch dimension, as a contiguous A has them",
        )
    reason = (
        f"batch invariant: {name_of(best)} whatever m, the cheapest of {rivals} for {_INVARIANT_ROWS} rows; "
        f"{chosen.cost:.1f} us expected, limit: {chosen.limit}"
    )
    return replace(chosen, reasons=(reason,))


# --- launch --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One kernel of a plan: what is compiled, how it is launched, and its argument.

    Pointers come as a, b, c, d, bias: those of the problem, but that the sums of slices are the first step's d and
    the second one's a.
    """

    kernel: KernelConfig | ReduceConfig
    config: LaunchConfig
    arguments: ArgumentBlock


def steps(problem: GemmProblem, chosen: GemmPlan, profile: ArchProfile, device: Device) -> tuple[Step, ...]:
    """The launches of a plan, in order."""
    first = Step(chosen.kernel, launch_config(chosen), arguments(problem, chosen))
    if chosen.reduce is None:
        return (first,)
    block = reduce_threads(profile.wave_size)
    vectors = _reduce_vectors(problem, chosen.reduce)
    limits = profile.limits_for(device)
    grid = max(1, min(-(-vectors // block), _REDUCE_BLOCKS * device.compute_units, limits.grid))
    return (
        first,
        Step(chosen.reduce, LaunchConfig(grid=grid, block=block), _reduce_arguments(problem, chosen)),
    )


def launch_config(chosen: GemmPlan) -> LaunchConfig:
    """Launch geometry of a plan's (first) kernel."""
    return LaunchConfig(
        grid=chosen.grid,
        block=chosen.block,
        cluster=chosen.cluster,
        shared_bytes=chosen.shared_bytes,
        programmatic=chosen.programmatic,
    )


#: Blocks of the second kernel for each compute unit, at most: more would only wait for each other.
_REDUCE_BLOCKS = 8


#: gemm_params (hal/include/portagemm/params.hpp): per operand address, two strides, four batch strides; then extents.
_OPERAND = struct.Struct("<Q2q4q")
_REST = struct.Struct("<4i4i2fq2i2iq")
_OPERANDS = 5
_POINTERS = tuple(i * _OPERAND.size for i in range(_OPERANDS))
_SCALARS = _OPERANDS * _OPERAND.size + 32
_PARAMS_BYTES = _OPERANDS * _OPERAND.size + _REST.size
#: gemm_args adds the copies' arguments, 8-byte aligned where they are empty, 64-byte where they are descriptors.
_EMPTY_COPIES_BYTES = 8
_MAPS_OFFSET, _MAP_BYTES = 384, 128
_TENSOR_ARGS_BYTES = 832
#: Bytes of a row that the copy engine can swizzle.
_SWIZZLES = (128, 64, 32)
#: Rows a warp stores at a time (tensor_store in backends/cuda/include/portagemm/arch/sm90.hpp).
_TENSOR_STORE_ROWS = 16


def arguments(problem: GemmProblem, chosen: GemmPlan) -> ArgumentBlock:
    """The kernel's argument: all of gemm_args but addresses, alpha and beta. Pointers come as a, b, c, d, bias."""
    if chosen.swap:
        problem = exchanged(problem)
    if chosen.slices > 1:
        slice_k, slice_d = (
            _slice_k(problem.k, chosen.kernel.tile.block[2], chosen.slices),
            _slice_elements(problem),
        )
        problem = _summed(problem)
    else:
        slice_k, slice_d = problem.k, 0
    block = _params(
        problem,
        chosen.raster,
        chosen.tiles,
        (chosen.tiles_m, chosen.tiles_n),
        (chosen.slices, slice_k, slice_d),
    )
    maps: tuple[TensorMap, ...] = ()
    if chosen.kernel.a.copy == "tensor":
        block += bytes(_TENSOR_ARGS_BYTES - len(block))
        maps, batched = _tensor_maps(problem, chosen.kernel)
        constant = (problem.constant_b and chosen.swap, problem.constant_b and not chosen.swap)
        struct.pack_into("<4i", block, _MAPS_OFFSET + 3 * _MAP_BYTES, *batched, *constant)
    elif SCHEDULES[chosen.kernel.schedule].rows:
        block += struct.pack("<2i", problem.constant_b and not chosen.swap, 0)
    else:
        block += bytes(_EMPTY_COPIES_BYTES)
    offsets = list(_POINTERS)
    if chosen.swap:
        offsets[0], offsets[1] = offsets[1], offsets[0]
        maps = tuple(replace(t, operand=1 - t.operand) if t.operand < 2 else t for t in maps)
    return ArgumentBlock(
        template=bytes(block),
        pointer_offsets=tuple(offsets),
        scalar_offsets=(_SCALARS, _SCALARS + 4),
        tensor_maps=maps,
    )


def _reduce_vectors(problem: GemmProblem, second: ReduceConfig) -> int:
    """Vectors of D that the second kernel writes, in all batches."""
    count = problem.m * -(-problem.n // second.d_vector)
    for extent in problem.batch:
        count *= extent
    return count


def _reduce_arguments(problem: GemmProblem, chosen: GemmPlan) -> ArgumentBlock:
    """The second kernel's argument (reduce_args): the sums of slices are its A."""
    assert chosen.reduce is not None
    sums = replace(problem, a=_summed(problem).d)
    vectors = _reduce_vectors(problem, chosen.reduce)
    block = _params(sums, 1, vectors, (1, 1), (chosen.slices, problem.k, _slice_elements(problem)))
    return ArgumentBlock(bytes(block), _POINTERS, (_SCALARS, _SCALARS + 4))


def _params(
    problem: GemmProblem, raster: int, tiles: int, grid: tuple[int, int], slices: tuple[int, int, int]
) -> bytearray:
    """gemm_params without addresses, alpha 1 and beta 0."""
    # Kernels decompose a batch index from the innermost extent on; unused extents stand in front.
    pad = MAX_BATCH_DIMS - len(problem.batch)

    def operand(o: Operand | None) -> bytes:
        if o is None:
            return _OPERAND.pack(0, 0, 0, 0, 0, 0, 0)
        steps = o.batch_strides or (0,) * len(problem.batch)
        return _OPERAND.pack(0, *o.strides, *(0,) * pad, *steps)

    block = bytearray()
    for o in (problem.a, problem.b, problem.c, problem.d, problem.bias):
        block += operand(o)
    batch = (*(1,) * pad, *problem.batch)
    block += _REST.pack(problem.m, problem.n, problem.k, raster, *batch, 1.0, 0.0, tiles, *grid, *slices)
    return block


def _tensor_maps(problem: GemmProblem, kernel: KernelConfig) -> tuple[tuple[TensorMap, ...], tuple[int, int]]:
    """Descriptors of A, B and, for a tensor store, D: (contiguous, other, batch), boxes as the kernel copies them."""
    block_m, block_n, block_k = kernel.tile.block
    count = problem.batch[0] if problem.batch else 1

    def make(
        index: int, slot: int, o: Operand, contiguous: int, extents: tuple[int, int], box: tuple[int, int]
    ) -> TensorMap:
        size = BY_NAME[o.dtype.name].bytes
        outer = o.strides[1 - contiguous] * size
        step = o.batch_strides[0] * size if o.batch_strides else 0
        return TensorMap(
            operand=index,
            offset=_MAPS_OFFSET + slot * _MAP_BYTES,
            element_bytes=size,
            dtype=o.dtype.name,
            shape=(*extents, count if step else 1),
            strides=(outer, step or outer),
            box=(*box, 1),
            swizzle_bytes=box[0] * size if box[0] * size in _SWIZZLES else 0,
        )

    def input_map(index: int, o: Operand, config: OperandConfig, mn: int, block_mn: int) -> TensorMap:
        panel = 128 // o.dtype.bytes
        if config.order == "k":
            return make(index, index, o, 1, (problem.k, mn), (panel, block_mn // config.slices))
        return make(index, index, o, 0, (mn, problem.k), (panel, block_k))

    maps = [
        input_map(0, problem.a, kernel.a, problem.m, block_m),
        input_map(1, problem.b, kernel.b, problem.n, block_n),
    ]
    if kernel.store == "tensor":
        # Pointers are in the order a, b, c, d, bias; the descriptor of D is the third.
        maps.append(make(3, 2, problem.d, 1, (problem.n, problem.m), (kernel.columns, _TENSOR_STORE_ROWS)))
    batched = tuple(int(bool(o.batch_strides and o.batch_strides[0])) for o in (problem.a, problem.b))
    return tuple(maps), (batched[0], batched[1])
