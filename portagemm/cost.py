"""What a plan should take, from the board's rates: an analytic estimate that needs no tuning.

It ranks the tiles of one schedule and says what limits a problem; it does not predict times to the microsecond.
The constants were fitted to measurements on one NVIDIA H200 (docs/performance.md) and are ratios where they can be,
so that they carry over to other boards.
"""

from __future__ import annotations

from dataclasses import dataclass

from portagemm.hal.board import Board
from portagemm.hal.profile import TileConfig
from portagemm.kernel_config import ATOMS
from portagemm.problem import GemmProblem

#: Share of the theoretical memory bandwidth that a kernel which only reads reaches.
_MEMORY_EFFICIENCY = 0.9
#: Share of the peak rate that a sustained main loop reaches (power lowers the clock).
_MATRIX_EFFICIENCY = 0.75
#: Bandwidth from the last-level cache into the units, as a multiple of the memory's.
_FEED_RATIO = 4.0
#: Seconds that 64 of K take a block however small its tile: matrix instructions in a row, and barriers.
_STEP = 0.12e-6
#: Seconds from asking for a stage to having it, while the memory is busy: a block has all its stages on their way.
_LATENCY = 1.2e-6
#: What kernels that stream B lose where blocks fill the device unevenly, and where steps do not fill K, as parts of
#: reading it.
_UNEVEN, _RAGGED = 0.4, 0.25
#: Part of the feed's time that the matrix unit does not hide.
_FEED_EXPOSED = 0.58
#: Part of the shorter of computing and reading that shows.
_EXPOSED = 0.2
#: Seconds: launch and first bytes; a round of blocks that start anew; handing partial sums round, a block.
_LAUNCH, _ROUND, _HANDOVER = 3e-6, 1.5e-6, 1e-6
#: Seconds: the launch of the kernel that adds up slices of K, right behind the first one.
_SECOND = 2.5e-6


@dataclass(frozen=True)
class Estimate:
    """Seconds of a plan, and what they are spent on most: "memory", "matrix unit", "feed" or "launch"."""

    seconds: float
    limit: str


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


#: Lanes of a wave, and its passes over shared memory's banks: two for a read of 16 bytes a lane, three for an element
#: that comes in; four waves share the banks.
_LANES = 32
_READ_PASSES, _COPY_PASSES, _SHARING = 2, 3, 4


def _outer_products(tile: TileConfig) -> float:
    """Time of a step of outer products from shared memory, as a multiple of its multiply-adds' alone.

    Small tiles read more for each product: instructions that are issued, and passes over the banks.
    """
    atom = ATOMS[tile.atom]
    wave_m, wave_n = tile.block[0] // tile.waves[0], tile.block[1] // tile.waves[1]
    products = wave_m * wave_n / _LANES
    reads = wave_m / atom.m(_LANES, wave_n) + wave_n / atom.n(_LANES, wave_n)
    copies = (tile.block[0] + tile.block[1]) / (_LANES * tile.waves[0] * tile.waves[1])
    issued = products + reads + 3 * copies  # a copy's address and comparison
    passes = _SHARING * (_READ_PASSES * reads + _COPY_PASSES * copies)
    return max(issued, passes) / products


def estimate(
    problem: GemmProblem,
    tile: TileConfig,
    tiles: int,
    persistent: bool,
    board: Board,
    slices: int = 1,
    stream: int = 0,
) -> Estimate:
    """The time of `tiles` tiles (of all batches and slices; along m of a whole cluster) of a problem on a board.

    `stream`: elements of K that a block which streams B (gemv, skinny) has on their way; 0 for all others.
    """
    block_m, block_n, block_k = tile.block
    size = problem.a.dtype.bytes
    units = max(1, board.compute_units)
    blocks = max(1, tiles * tile.cluster * tile.split)
    rounds = _ceil(blocks, units * tile.resident)
    # The blocks of a cluster go to one unit where it takes them all, also while others have none.
    side_by_side = tile.resident if tile.split > 1 else min(tile.resident, _ceil(blocks, units))
    depth = _ceil(_ceil(problem.k, block_k), tile.split * slices) * block_k  # of K, for one block

    rate_key = "tf32" if problem.precision == "tf32" else problem.a.dtype.name
    peak = board.peak_flops.get(rate_key) or max(board.peak_flops.values(), default=1e12)
    memory_rate = (board.memory_bandwidth or 1e11) * _MEMORY_EFFICIENCY

    matrix = depth * block_m * block_n * 2 / (peak / units * _MATRIX_EFFICIENCY)
    matrix *= _outer_products(tile) if tile.atom == "fma_outer" else 1.0
    feed_bytes = depth * (block_m + block_n) * size
    feed_rate = memory_rate * _FEED_RATIO / units
    feed = feed_bytes / feed_rate
    unit = side_by_side * max(matrix + _FEED_EXPOSED * feed, feed)
    one_block = max(unit, depth / 64 * max(_STEP, _LATENCY * 64 / (tile.stages * block_k)))
    overhead = 0.0 if persistent and tile.split == 1 else _ROUND * (1 if tile.resident > 1 else 2)
    overhead += _HANDOVER * tile.split * (1 if tile.resident > 1 else 2) if tile.split > 1 else 0.0
    compute = rounds * (one_block + overhead)

    batches = 1
    for extent in problem.batch:
        batches *= extent
    traffic = batches * (problem.m * problem.k + problem.n * problem.k) * size
    results = batches * problem.m * problem.n * problem.d.dtype.bytes
    traffic += results * (2 if problem.c else 1)
    if stream and not persistent:
        # What is on its way bounds the rate; blocks that do not fill the units evenly leave some idle.
        slots = units * tile.resident
        rate = min(memory_rate, min(blocks, slots) * block_n * stream * size / _LATENCY)
        lost = _UNEVEN * (1 - blocks / (rounds * slots)) + _RAGGED * (
            _ceil(depth, stream) * stream / max(depth, 1) - 1
        )
        memory = traffic / rate * (1 + lost)
        compute = blocks * block_m * depth * size / (memory_rate * _FEED_RATIO)  # A comes from the cache
    else:
        # Few blocks do not keep the memory busy.
        memory = traffic / memory_rate / min(1.0, blocks / units) ** 0.5

    # The shorter of the two hides behind the longer, but not wholly.
    seconds = _LAUNCH + max(compute, memory) + _EXPOSED * min(compute, memory)
    if slices > 1:  # the second kernel: its launch, and the sums written and read again
        seconds += _SECOND + 2 * slices * results / (memory_rate * _FEED_RATIO)
    shares = {
        "launch": _LAUNCH + rounds * overhead,
        "memory": memory,
        "matrix unit": rounds * side_by_side * matrix,
        "feed": rounds * feed,
    }
    return Estimate(seconds, max(shares, key=lambda name: shares[name]))
