"""KernelConfig: all that is compiled into a GEMM kernel, and the text that instantiates it.

Shared sources name parts (atom, stage, copy, schedule, store); this module knows how each part is spelled in
device code and how much shared memory it takes. Extents, strides and addresses are run-time arguments, so one
kernel serves every shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from portagemm.hal import registry
from portagemm.hal.dtypes import BY_NAME
from portagemm.hal.profile import ArchProfile, TileConfig
from portagemm.hal.source import KernelSource, arch_config, shared_include_dir
from portagemm.hal.target import Target
from portagemm.reduce_kernel import ReduceConfig, epilogue_words, reduce_text


@dataclass(frozen=True)
class OperandConfig:
    """How A or B comes from memory to the matrix unit.

    Attributes:
        dtype: element type in memory. major: "k", "mn" or "strided", as it lies in memory.
        order: "k" or "mn", as it lies in a stage.
        copy: name of the copy (see COPIES). width: bytes of one access; 0 for copies that choose themselves.
        slices: blocks of a cluster that load a part each and multicast it.
    """

    dtype: str
    major: str
    order: str
    copy: str
    width: int = 0
    slices: int = 1


@dataclass(frozen=True)
class KernelConfig:
    """What is compiled in. Equal configs are one kernel.

    Attributes:
        schedule: name of the main loop. tile: block, waves, stages, cluster and atom.
        a, b: the operands. d: dtype of the output. d_vector: elements of D written together.
        store: "staged", "tensor", "split" or "direct". columns: width of a staged strip, in elements.
        along: "n" or "m": how D's elements of a vector follow each other.
        c, bias: dtypes, or None where the epilogue reads none. activation: one of problem.ACTIVATIONS.
        flat: one matrix, K in one piece and a block a tile: nothing has to be divided to find a block's tile.
        delay: nanoseconds that waits and arrivals pause at random, for tests (portagemm/delays.py); 0: never.
    """

    schedule: str
    tile: TileConfig
    a: OperandConfig
    b: OperandConfig
    d: str
    d_vector: int
    store: str
    columns: int = 0
    along: str = "n"
    c: str | None = None
    bias: str | None = None
    activation: str = "none"
    flat: bool = False
    delay: int = 0

    def symbol(self, arch: str) -> str:
        """The kernel's extern "C" name: says arch, dtypes, layout, schedule, tile and epilogue."""
        t = self.tile
        parts = [
            "pg",
            arch,
            self.a.dtype if self.a.dtype == self.d else f"{self.a.dtype}_{self.d}",
            f"a{self.a.major}{self.a.width or ''}",
            f"b{self.b.major}{self.b.width or ''}",
            self.schedule,
            t.atom,
            "x".join(map(str, t.block)),
            f"w{t.waves[0]}x{t.waves[1]}",
            f"s{t.stages}",
            f"c{t.cluster}",
            f"{self.store}{self.d_vector}",
        ]
        if t.split > 1:
            parts.append(f"split{t.split}")
        if t.resident > 1:
            parts.append(f"r{t.resident}")
        if SCHEDULES[self.schedule].loading_waves:
            parts.append(f"l{t.loaders}")
        if self.along != "n":
            parts.append("along_m")
        if self.flat:
            parts.append("flat")
        if self.activation != "none":
            parts.append(self.activation)
        if self.c is not None:
            parts.append(f"c{self.c}")
        if self.bias is not None:
            parts.append(f"bias{self.bias}")
        if self.delay:
            parts.append(f"delay{self.delay}")
        return "_".join(parts)


# --- the parts by name ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtomPart:
    """A matrix atom in device code. `cpp` is formatted with arch, element, wave_n, block_k, a_order, b_order.

    Attributes:
        header: where it is, formatted with arch. m, n: its extents given the wave size and the wave tile's n.
        orders: orders a stage may have for it. element: dtype of a stage, None for the operand's own.
        lanes: lanes that run it together, None for a wave. stage: how a stage of A and B is spelled.
        stage_pad: elements that a stage is longer than its operand's tile, at every step of K.
        strip_pad: floats that a row of a staged store's strip is longer than its columns (`staged_store::pitch`).
        one_tile: a block computes one tile and ends, so that there are as many blocks as tiles.
    """

    header: str
    cpp: str
    m: Callable[[int, int], int]
    n: Callable[[int, int], int]
    orders: tuple[str, ...] = ("k",)
    element: str | None = None
    lanes: int | None = None
    stage_a: str = "pg::swizzled_stage<{element}, {mn}, {k}, pg::major::{order}>"
    stage_b: str = "pg::swizzled_stage<{element}, {mn}, {k}, pg::major::{order}>"
    stage_pad: int = 0
    strip_pad: int = 8
    one_tile: bool = False


def _fixed(value: int) -> Callable[[int, int], int]:
    return lambda wave_size, wave_n: value


_FMA_LANES_N = 8

_AMD_ATOMS = {
    "mfma_32x32x8": 32,
    "mfma_16x16x16": 16,
    "mfma_32x32x8_flush": 32,
    "mfma_16x16x16_flush": 16,
    "mfma_32x32x16": 32,
    "mfma_16x16x32": 16,
    "mfma_32x32x2_f32": 32,
    "mfma_16x16x4_f32": 16,
    "wmma_16x16x16": 16,
}


def _amd_atom(name: str, extent: int) -> AtomPart:
    element = "" if name.endswith("_f32") else "<{element}>"
    return AtomPart(
        "portagemm/arch/{arch}.hpp",
        f"pg::arch::{{arch}}::{name}{element}",
        m=_fixed(extent),
        n=_fixed(extent),
    )


ATOMS: dict[str, AtomPart] = {
    "fma": AtomPart(
        "portagemm/atom/fma.hpp",
        "pg::fma_atom<pg::arch_config::wave_size>",
        m=lambda wave_size, _: 4 * (wave_size // min(wave_size, _FMA_LANES_N)),
        n=lambda wave_size, _: 4 * min(wave_size, _FMA_LANES_N),
        element="fp32",
    ),
    "fma_outer": AtomPart(
        "portagemm/atom/fma_outer.hpp",
        "pg::fma_outer<pg::arch_config::wave_size>",
        m=lambda wave_size, _: 4 * (wave_size // _FMA_LANES_N),
        n=_fixed(4 * _FMA_LANES_N),
        orders=("mn",),
        element="fp32",
        stage_a="pg::padded_stage<{element}, {mn}, {k}>",
        stage_b="pg::padded_stage<{element}, {mn}, {k}>",
        stage_pad=4,
        strip_pad=4,
        one_tile=True,
    ),
    "mma_16816": AtomPart(
        "portagemm/arch/sm80.hpp",
        "pg::arch::mma_16816<{element}>",
        m=_fixed(16),
        n=_fixed(16),
        orders=("k", "mn"),
    ),
    "mma_1688_tf32": AtomPart(
        "portagemm/arch/sm80.hpp", "pg::arch::mma_1688_tf32", m=_fixed(16), n=_fixed(8)
    ),
    "wgmma": AtomPart(
        "portagemm/arch/sm90.hpp",
        "pg::arch::wgmma_atom<{element}, {wave_n}, pg::major::{a_order}, pg::major::{b_order}>",
        m=_fixed(64),
        n=lambda _, wave_n: wave_n,
        orders=("k", "mn"),
        lanes=128,
    ),
    # AMD: one header an arch, so that a name is that arch's instruction.
    **{name: _amd_atom(name, extent) for name, extent in _AMD_ATOMS.items()},
    # Extents depend on the host's vector width; the block tile is a multiple of all of them.
    "host_panel": AtomPart(
        "portagemm/arch/host.hpp",
        "pg::arch::host_atom<{block_k}>",
        m=_fixed(12),
        n=_fixed(32),
        orders=("k", "mn"),
        element="fp32",
        stage_a="pg::arch::row_stage<{mn}, {k}, pg::major::{order}>",
        stage_b="pg::arch::panel_stage<{mn}, {k}, atom::n>",
    ),
}


@dataclass(frozen=True)
class StreamedPart:
    """How an atom's fragments come straight from memory (kernels/skinny.hpp), by the atom's name.

    Attributes:
        header, cpp: as an AtomPart's. k: elements of a chunk.
    """

    header: str
    cpp: str
    k: int


STREAMED: dict[str, StreamedPart] = {
    "mma_16816": StreamedPart(
        "portagemm/arch/sm80_streamed.hpp", "pg::arch::mma_16816_streamed<{element}>", k=32
    ),
}


@dataclass(frozen=True)
class CopyPart:
    """A copy in device code, formatted with element, stage, major, width, threads, operand, slices.

    Attributes:
        widths: accesses it has, in bytes, widest first; empty for copies that choose themselves.
        converts: whether a stage may hold another dtype than memory.
    """

    header: str
    cpp: str
    widths: tuple[int, ...] = ()
    converts: bool = False


_ANY_WIDTH = (16, 8, 4, 2)
COPIES: dict[str, CopyPart] = {
    "register": CopyPart(
        "portagemm/copy.hpp",
        "pg::register_copy<{element}, {stage}, pg::major::{major}, {width}, {threads}>",
        _ANY_WIDTH,
        converts=True,
    ),
    "async": CopyPart(
        "portagemm/arch/sm80.hpp",
        "pg::arch::async_copy<{element}, {stage}, pg::major::{major}, {width}, {threads}>",
        (16, 8, 4),
    ),
    # By words of 16 bytes that are shifted; `width` is what the operand would allow without.
    "realign": CopyPart(
        "portagemm/realign.hpp",
        "pg::realign_copy<{element}, {stage}, pg::major::{major}, {width}, {threads}>",
        (8, 4, 2),
    ),
    "vgpr": CopyPart(
        "portagemm/copy/vgpr_copy.hpp",
        "pg::arch::vgpr_copy<{element}, {stage}, pg::major::{major}, {width}, {threads}>",
        _ANY_WIDTH,
        converts=True,
    ),
    "tensor": CopyPart(
        "portagemm/arch/sm90.hpp",
        "pg::arch::tensor_copy<{element}, {stage}, pg::arch::operand_name::{operand}, {slices}>",
    ),
    # Straight into registers, chunk by chunk: what kernels/gemv.hpp does without a stage.
    "load": CopyPart("kernels/gemv.hpp", "", _ANY_WIDTH, converts=True),
    "pack": CopyPart(
        "portagemm/arch/host.hpp",
        "pg::arch::pack_copy<{element}, {stage}, pg::major::{major}>",
        converts=True,
    ),
}


@dataclass(frozen=True)
class SchedulePart:
    """A main loop in device code, formatted with stages, threads, consumers, cluster, split, resident, min_blocks,
    compute_threads, loaders.

    Attributes:
        copies: copies it can drive, best first.
        loader: whether threads besides those that compute load: a wave, or a warpgroup where registers move.
        loading_waves: whether waves besides those that compute load: as many as the tile's `loaders`.
        barrier_bytes: shared memory of its barriers, a stage, and once more.
        persistent: one block a compute unit walks all tiles (otherwise one block a tile).
        lends_stages: whether the store uses the stages' memory instead of its own.
        rows: it takes no more rows than a tile has, and streams B (kernels/gemv.hpp, kernels/skinny.hpp).
        family: schedules of one family sum in one order and differ in the tiles they are for: the planner weighs
            their tiles against each other, not just the first schedule's.
    """

    header: str
    cpp: str
    copies: tuple[str, ...]
    loader: bool = False
    loading_waves: bool = False
    barrier_bytes: int = 0
    persistent: bool = False
    lends_stages: bool = False
    family: str = ""
    rows: bool = False


SCHEDULES: dict[str, SchedulePart] = {
    # No main loop but a body of its own: a tile's `stages` are the chunks that a lane has on their way at a time.
    "gemv": SchedulePart("kernels/gemv.hpp", "", ("load",), rows=True),
    # The same with a matrix atom. A tile's waves share K and lie along N; `stages` are the chunks on their way.
    "skinny": SchedulePart("kernels/skinny.hpp", "", ("load",), rows=True),
    "single_buffer": SchedulePart(
        "portagemm/schedule/single_buffer.hpp", "pg::single_buffer<{threads}>", ("register", "pack")
    ),
    "multistage": SchedulePart(
        "portagemm/schedule/multistage.hpp",
        "pg::multistage<{stages}, {threads}, {min_blocks}>",
        ("async", "register"),
    ),
    "split_multistage": SchedulePart(
        "portagemm/schedule/split_multistage.hpp",
        "pg::split_multistage<{stages}, {compute_threads}, {loaders}, {resident}>",
        ("async", "register"),
        loading_waves=True,
        barrier_bytes=16,
        persistent=True,
    ),
    # Operands on no 16-byte boundary, next to others or not.
    "realigned_multistage": SchedulePart(
        "portagemm/schedule/realigned_multistage.hpp",
        "pg::realigned_multistage<{stages}, {threads}, {min_blocks}>",
        ("realign", "async"),
    ),
    "pingpong": SchedulePart(
        "portagemm/schedule/pingpong.hpp",
        "pg::pingpong<{threads}>",
        ("vgpr",),
        lends_stages=True,
        family="two_stages",
    ),
    "interleave": SchedulePart(
        "portagemm/schedule/interleave.hpp",
        "pg::interleave<{threads}>",
        ("vgpr",),
        lends_stages=True,
        family="two_stages",
    ),
    "warp_specialized": SchedulePart(
        "portagemm/schedule/warp_specialized.hpp",
        "pg::warp_specialized<{stages}, {consumers}, {cluster}, {split}, {resident}>",
        ("tensor",),
        loader=True,
        barrier_bytes=16,
        persistent=True,
    ),
}


# --- sizes ---------------------------------------------------------------------------------------------


def compute_threads(tile: TileConfig, wave_size: int) -> int:
    """Threads of a block that compute."""
    return tile.waves[0] * tile.waves[1] * (ATOMS[tile.atom].lanes or wave_size)


def block_threads(config: KernelConfig, wave_size: int) -> int:
    """Threads of a block."""
    tile, threads = config.tile, compute_threads(config.tile, wave_size)
    if SCHEDULES[config.schedule].loader:
        group = ATOMS[tile.atom].lanes or wave_size
        threads += group if tile.resident == 1 and threads > group else wave_size
    return threads + (tile.loaders * wave_size if SCHEDULES[config.schedule].loading_waves else 0)


def load_threads(config: KernelConfig, wave_size: int) -> int:
    """Threads that share a copy: all of a block, or the waves that do nothing else."""
    if SCHEDULES[config.schedule].loading_waves:
        return config.tile.loaders * wave_size
    return block_threads(config, wave_size)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


#: Alignment of a stage: the swizzle's period (layout.hpp).
_STAGE_ALIGN = 1024


def shared_bytes(config: KernelConfig, wave_size: int) -> int:
    """Shared memory of a block, in bytes: stages, store strips, barriers. The kernel asserts that it fits."""
    tile, part = config.tile, ATOMS[config.tile.atom]
    block_m, block_n, block_k = tile.block
    element = BY_NAME[part.element or config.a.dtype].bytes
    pad, align = part.stage_pad, _STAGE_ALIGN if not part.stage_pad else 128
    stages = sum(_round_up((mn + pad) * block_k * element, align) for mn in (block_m, block_n)) * tile.stages
    waves = tile.waves[0] * tile.waves[1]
    wave_n = block_n // tile.waves[1]
    if config.schedule == "gemv":  # gemv_tile::shared
        outputs = block_m * block_n
        parts = max(1, min(wave_size, waves * wave_size // outputs))
        return _round_up(outputs * (wave_size + 1 + parts) * 4, 16)
    if config.schedule == "skinny":  # skinny_tile::shared
        return _round_up(tile.waves[0] * block_m * (block_n + 4) * 4, 16)
    if config.store == "staged":
        strips = waves * part.m(wave_size, wave_n) * (config.columns + part.strip_pad) * 4
    elif config.store == "tensor":
        strips = _round_up(waves * 2 * 64 * config.columns * BY_NAME[config.d].bytes, _STAGE_ALIGN)
    elif config.store == "split":
        strips = block_m * (block_n if block_n % 16 == 8 else block_n + 8) * 4
    else:
        strips = 1
    schedule = SCHEDULES[config.schedule]
    barriers = max(1, schedule.barrier_bytes * (tile.stages + 1))
    data = max(stages, strips) if schedule.lends_stages else stages + _round_up(strips, 16)
    return _round_up(data + _round_up(barriers, 16), _STAGE_ALIGN)


#: Ways from accumulators to D, formatted with element, vector, columns, split, along.
STORES: dict[str, str] = {
    "direct": "pg::direct_store<{element}, {vector}>",
    "staged": "pg::staged_store<{element}, {vector}, tile, {columns}, pg::along::{along}>",
    "tensor": "pg::arch::tensor_store<{element}, tile, {columns}>",
    "split": "pg::arch::split_store<{element}, {vector}, tile, {split}, pg::along::{along}>",
}

#: Threads a compute unit should hold: the compiler keeps registers low enough for that many.
_RESIDENT_THREADS = 256


# --- text ----------------------------------------------------------------------------------------------

_TEMPLATE = """\
{arch_config}
{includes}
#include <kernels/gemm.hpp>

namespace {{
struct config {{
    using atom = {atom};
    using tile = pg::block_tile<atom, {block_m}, {block_n}, {block_k}, {waves_m}, {waves_n}>;
    using schedule = {schedule};
    using stage_a = {stage_a};
    using stage_b = {stage_b};
    using copy_a = {copy_a};
    using copy_b = {copy_b};
    using copy_args = {copy_args};
    using accumulator = {accumulator};
    using epilogue = pg::epilogue<pg::activation::{activation}, {has_c}, {has_bias}, {c}, {bias}>;
    using store = {store};
}};
static_assert(sizeof(pg::gemm_shared<config>) <= {shared_bytes}, "the planner counts shared memory wrongly");
static_assert(config::schedule::threads == {threads} && {threads} <= pg::arch_config::threads_per_block);
}}  // namespace

PG_ENTRY({symbol}, pg::gemm_args<config>, {threads}, config::schedule::min_blocks, pg::gemm<config>)
"""


_STREAMING_TEMPLATE = """\
{arch_config}
{includes}

namespace {{
struct config {{
    using element = {element};
    using element_d = {d};
    using tile = {tile};
    static constexpr int width_a = {width_a}, width_b = {width_b};
    static constexpr pg::major major_a = pg::major::{major_a};
{more}    using epilogue = pg::epilogue<pg::activation::{activation}, {has_c}, {has_bias}, {c}, {bias}>;
}};
static_assert(sizeof(config::tile::shared) <= {shared_bytes}, "the planner counts shared memory wrongly");
static_assert(config::tile::threads == {threads} && {threads} <= pg::arch_config::threads_per_block);
{asserts}}}  // namespace

PG_ENTRY({symbol}, pg::gemv_args, {threads}, {min_blocks}, pg::{body}<config>)
"""


def _streaming_text(config: KernelConfig, profile: ArchProfile) -> str:
    """The source of a kernel that streams B, with a body of its own."""
    tile, threads = config.tile, block_threads(config, profile.wave_size)
    block_m, block_n, block_k = tile.block
    includes, more, asserts = ["#include <kernels/gemv.hpp>"], "", ""
    if config.schedule == "gemv":
        cpp = f"pg::gemv_tile<{block_m}, {block_n}, {block_k}, {tile.waves[1]}, {tile.stages}>"
        min_blocks = max(1, _RESIDENT_THREADS // threads)
    else:
        part = STREAMED[tile.atom]
        includes = [f"#include <{part.header}>", "#include <kernels/skinny.hpp>"]
        atom = part.cpp.format(element=_cpp(config.a.dtype))
        cpp = (
            f"pg::skinny_tile<{atom}, {block_m}, {block_n}, {tile.waves[0]}, {tile.waves[1]}, {tile.stages}>"
        )
        more = f"    static constexpr bool flat = {'true' if config.flat else 'false'};\n"
        asserts = f"static_assert(config::tile::k == {block_k});\n"
        # Rows and columns of a strided A each have an address: with one block less, ptxas spills none of them.
        min_blocks = max(1, tile.resident - (config.a.major == "strided"))
    return _STREAMING_TEMPLATE.format(
        arch_config=arch_config(profile),
        includes="\n".join(includes),
        element=_cpp(config.a.dtype),
        d=_cpp(config.d),
        tile=cpp,
        width_a=config.a.width,
        width_b=config.b.width,
        major_a=config.a.major,
        more=more,
        asserts=asserts,
        shared_bytes=shared_bytes(config, profile.wave_size),
        threads=threads,
        min_blocks=min_blocks,
        symbol=config.symbol(profile.arch),
        body=config.schedule,
        **epilogue_words(config.activation, config.c, config.bias),
    )


def _cpp(dtype: str) -> str:
    return BY_NAME[dtype].cpp


def _accumulator(tile: TileConfig) -> str:
    """Narrow wgmma tiles finish a step long after it could start the next: they sum in two or four turns."""
    wave_n = tile.block[1] // tile.waves[1]
    ways = 1
    if tile.atom == "wgmma" and tile.block[0] == 64 * tile.waves[0]:
        ways = 4 if wave_n <= 16 else 2 if wave_n <= 64 else 1
    return "pg::plain_accumulator<tile>" if ways == 1 else f"pg::interleaved_accumulator<tile, {ways}>"


def kernel_text(config: KernelConfig, profile: ArchProfile) -> str:
    """The source of one kernel: generated facts, the headers of its parts, and one instantiation."""
    if SCHEDULES[config.schedule].rows:
        return _streaming_text(config, profile)
    tile, part, schedule = config.tile, ATOMS[config.tile.atom], SCHEDULES[config.schedule]
    block_m, block_n, block_k = tile.block
    waves_m, waves_n = tile.waves
    threads = block_threads(config, profile.wave_size)
    stage_element = _cpp(part.element or config.a.dtype)

    def stage(spelling: str, mn: int, operand: OperandConfig) -> str:
        return spelling.format(element=stage_element, mn=mn, k=block_k, order=operand.order)

    def copy(operand: OperandConfig, name: str) -> str:
        return COPIES[operand.copy].cpp.format(
            element=_cpp(operand.dtype),
            stage=f"stage_{name}",
            major=operand.major,
            width=operand.width,
            threads=load_threads(config, profile.wave_size),
            operand=name,
            slices=operand.slices,
        )

    store = STORES[config.store].format(
        element=_cpp(config.d),
        vector=config.d_vector,
        columns=config.columns,
        split=tile.split,
        along=config.along,
    )
    headers = [
        schedule.header,
        part.header.format(arch=profile.arch),
        COPIES[config.a.copy].header,
        COPIES[config.b.copy].header,
    ]
    tensor = config.a.copy == "tensor"
    return _TEMPLATE.format(
        arch_config=arch_config(profile),
        includes="\n".join(f"#include <{h}>" for h in dict.fromkeys(headers)),
        atom=part.cpp.format(
            arch=profile.arch,
            element=_cpp(config.a.dtype),
            wave_n=block_n // waves_n,
            block_k=block_k,
            a_order=config.a.order,
            b_order=config.b.order,
        ),
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        waves_m=waves_m,
        waves_n=waves_n,
        schedule=schedule.cpp.format(
            stages=tile.stages,
            threads=threads,
            consumers=waves_m * waves_n,
            cluster=tile.cluster,
            split=tile.split,
            resident=tile.resident,
            min_blocks=max(1, _RESIDENT_THREADS // threads, tile.resident),
            compute_threads=compute_threads(tile, profile.wave_size),
            loaders=tile.loaders,
        ),
        stage_a=stage(part.stage_a, block_m, config.a),
        stage_b=stage(part.stage_b, block_n, config.b),
        copy_a=copy(config.a, "a"),
        copy_b=copy(config.b, "b"),
        copy_args="pg::arch::tensor_copy_args" if tensor else "pg::no_copy_args",
        accumulator=_accumulator(tile),
        store=store,
        shared_bytes=shared_bytes(config, profile.wave_size),
        threads=threads,
        symbol=config.symbol(profile.arch),
        **epilogue_words(config.activation, config.c, config.bias),
    )


def kernel_source(config: KernelConfig | ReduceConfig, profile: ArchProfile, target: Target) -> KernelSource:
    """A kernel's source with its header folders: the backend's first, since they choose the vendor."""
    if isinstance(config, ReduceConfig):
        text, delay = reduce_text(config, profile), 0
    else:
        text, delay = kernel_text(config, profile), config.delay
    return KernelSource(
        symbol=config.symbol(profile.arch),
        text=text,
        target=target,
        include_dirs=(
            *registry.get(profile.backend).include_dirs(),
            shared_include_dir(),
            Path(__file__).resolve().parent,
        ),
        defines=(("PORTAGEMM_DELAY", str(delay)),) if delay else (),
    )
