"""What can be said of AMD kernels without a GPU: registers, occupancy, the main loop's instructions, a roofline.

`portagemm bench --static` compiles every plan of a profile for a shape and reads the code object. Nothing here is
a measurement: counts are of the machine code, the bound is what the board's data sheet allows.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from portagemm import plan as planner
from portagemm import prebuild
from portagemm.hal import registry
from portagemm.hal.board import board_for
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.dtypes import BY_NAME
from portagemm.hal.errors import CompileError, ProfileError, UnsupportedError
from portagemm.hal.profile import ArchProfile
from portagemm.kernel_config import ATOMS, KernelConfig
from portagemm.plan import GemmPlan

ESTIMATE = "estimate: counted in machine code and from data sheets, measured on no GPU"

# --- machine code ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    """One line of llvm-objdump: byte offset in the kernel, mnemonic, and a branch's target where it has one."""

    offset: int
    name: str
    target: int | None = None

    @property
    def matrix(self) -> bool:
        return self.name.startswith(("v_mfma", "v_wmma", "v_smfmac"))

    @property
    def valu(self) -> bool:
        """A vector instruction other than a matrix one. v_nop and the like count: they take a slot."""
        return self.name.startswith("v_") and not self.matrix


_LINE = re.compile(r"^\s+([a-z]\w+)\s.*?// ([0-9A-F]+): .*?(?:<[^>+]+(?:\+0x([0-9a-f]+))?>)?$", re.MULTILINE)


def instructions(disassembly: str) -> list[Instruction]:
    """The kernel's instructions from the text of ``llvm-objdump -d``."""
    found: list[Instruction] = []
    first = 0
    for match in _LINE.finditer(disassembly):
        name, address = match[1], int(match[2], 16)
        first = first if found else address
        branch = name.startswith(("s_branch", "s_cbranch"))
        found.append(Instruction(address - first, name, int(match[3] or "0", 16) if branch else None))
    return found


@dataclass(frozen=True)
class Loop:
    """One turn of a kernel's main loop, in instructions of one wave.

    Attributes:
        matrix: MFMA or WMMA. valu: other vector instructions. lds_read_bytes, lds_write_bytes: of a lane.
        barriers: s_barrier. instructions: all.
    """

    matrix: int
    valu: int
    lds_read_bytes: int
    lds_write_bytes: int
    barriers: int
    instructions: int

    @property
    def matrix_share(self) -> float:
        """Matrix instructions as a share of the loop's VALU and matrix issue slots."""
        return self.matrix / (self.matrix + self.valu)


def _lds_bytes(names: Counter[str], kinds: tuple[str, ...]) -> int:
    widths = {
        "b8": 1,
        "u8": 1,
        "i8": 1,
        "b16": 2,
        "u16": 2,
        "i16": 2,
        "b32": 4,
        "b64": 8,
        "b96": 12,
        "b128": 16,
    }
    total = 0
    for name, count in names.items():
        match = re.fullmatch(rf"ds_(?:{'|'.join(kinds)})(2)?(?:st64)?_(\w+?)(?:_d16(?:_hi)?)?", name)
        if match:
            total += count * widths.get(match[2], 4) * (2 if match[1] else 1)
    return total


def main_loop(code: Sequence[Instruction]) -> Loop | None:
    """The loop of K: of those that multiply, load and meet at barriers, the one with most matrix instructions a slot.

    None where the kernel has no matrix instruction in a loop. Loops are spans between a backward branch and
    its target; rare paths that the compiler put elsewhere are not in them.
    """
    index = {instruction.offset: i for i, instruction in enumerate(code)}
    best: Loop | None = None
    for end, instruction in enumerate(code):
        if instruction.target is None or index.get(instruction.target, end + 1) > end:
            continue
        span = code[index[instruction.target] : end + 1]
        names = Counter(i.name for i in span)
        loop = Loop(
            sum(i.matrix for i in span),
            sum(i.valu for i in span),
            _lds_bytes(names, ("read", "load")),
            _lds_bytes(names, ("write", "store")),
            names["s_barrier"],
            len(span),
        )
        loads = any(name.startswith("global_load") for name in names)
        if not (loop.matrix and loop.barriers and loads):
            continue
        if best is None or loop.matrix_share > best.matrix_share:
            best = loop
    return best


# --- the stage's layout ----------------------------------------------------------------------------------

#: Lanes of a wave of 64 that one pass of ds_read_b128 serves (ROCm documentation, Composable Kernel,
#: "Understanding AMD GPU LDS and Bank Conflicts"); neighbours otherwise.
_READ_PASSES_64 = tuple(
    (*range(a, a + 4), *range(b, b + 4))
    for a, b in ((0, 20), (4, 16), (8, 28), (12, 24), (32, 52), (36, 48), (40, 60), (44, 56))
)
_BANKS = 32


def stage_offset(mn: int, k: int, rows: int, depth: int, size: int) -> int:
    """Byte offset of an element in a K-major swizzled stage (hal/include/portagemm/layout.hpp)."""
    panel = min(depth * size, 128)
    column = k * size
    offset = column // panel * rows * panel + mn * panel + column % panel
    return offset ^ (offset >> 3 & 0x70)


def read_conflicts(kernel: KernelConfig, wave_size: int) -> int:
    """Passes beyond the minimum of one fragment read of A, the worst over the steps of a stage's K.

    Counted on the layout by the lanes' maps: 16 bytes a lane, 32 banks.
    """
    part, size = ATOMS[kernel.tile.atom], BY_NAME[ATOMS[kernel.tile.atom].element or kernel.a.dtype].bytes
    rows, _, depth = kernel.tile.block
    extent = part.m(wave_size, 0)
    lane_k = 16 // size
    chunks = 2 if kernel.tile.atom.startswith("wmma") else 1
    groups = wave_size // extent if chunks == 1 else 1
    passes = (
        _READ_PASSES_64 if wave_size == 64 else tuple(tuple(range(i, i + 8)) for i in range(0, wave_size, 8))
    )
    worst = 0
    for k in range(0, depth, groups * lane_k * chunks):
        for chunk in range(chunks):
            at = [
                stage_offset(
                    lane % extent, k + (lane // extent % groups) * lane_k + chunk * lane_k, rows, depth, size
                )
                for lane in range(wave_size)
            ]
            extra = 0
            for lanes in passes:
                words = {at[lane] // 4 + w for lane in lanes for w in range(4)}
                extra += (
                    max(Counter(word % _BANKS for word in words).values())
                    - 4 * len({at[x] for x in lanes}) // 32
                )
            worst = max(worst, extra)
    return worst


# --- a plan ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One plan, as its machine code has it. Bytes and registers are of a lane, block or flop as their names say.

    Attributes:
        vgpr, agpr, sgpr: registers of a lane (of a wave). scratch_bytes: private memory; spills: registers spilled.
        lds_bytes: of a block. occupancy: waves a SIMD holds by registers and LDS; limit: which of the two.
        loop: one turn of the main loop, None for kernels without matrix instructions.
        global_bytes_per_flop: operands of a tile over its work. lds_bytes_per_flop: fragment reads over work.
        lds_conflicts: LDS passes of a fragment read beyond the minimum, None for kernels without fragments.
        roofline_tflops, roofline_us: what the board allows the shape; bound_by: "matrix unit" or "memory".
    """

    kernel: str
    dtype: str
    schedule: str
    atom: str
    tile: str
    compiler: str
    vgpr: int
    agpr: int
    sgpr: int
    scratch_bytes: int
    spills: int
    lds_bytes: int
    occupancy: int
    limit: str
    loop: Loop | None
    matrix_share: float | None
    global_bytes_per_flop: float
    lds_bytes_per_flop: float | None
    lds_conflicts: int | None
    roofline_us: float
    roofline_tflops: float
    bound_by: str


_REMARKS = {
    "vgpr": "VGPRs",
    "agpr": "AGPRs",
    "sgpr": "(?:TotalSGPRs|SGPRs)",
    "scratch": r"ScratchSize \[bytes/lane\]",
    "occupancy": r"Occupancy \[waves/SIMD\]",
    "sgpr_spills": "SGPRs Spill",
    "vgpr_spills": "VGPRs Spill",
}


def remarks(log: str) -> dict[str, int]:
    """Clang's kernel-resource-usage remarks as numbers; what it does not say is 0."""
    found = {name: re.search(rf"\s{label}: (\d+)", log) for name, label in _REMARKS.items()}
    return {name: int(match[1]) if match else 0 for name, match in found.items()}


#: Multiply-adds of one instruction, as its name has them.
_SHAPE = re.compile(r"_(\d+)x(\d+)x(\d+)")


def _lds_occupancy(profile: ArchProfile, lds_bytes: int, threads: int) -> int:
    """Waves a SIMD holds by LDS alone. A CU has four SIMDs; RDNA's pair of CUs too, with twice the LDS."""
    unit = profile.limits.shared_bytes_per_unit or profile.limits.shared_bytes_per_block
    unit *= 2 if profile.wave_size == 32 else 1
    return unit // lds_bytes * (threads // profile.wave_size) // 4


def row(
    chosen: GemmPlan,
    profile: ArchProfile,
    log: str,
    disassembly: str,
    compiler: str,
    shape: tuple[int, int, int],
) -> Row:
    """What one compiled plan looks like."""
    kernel, size = chosen.kernel, BY_NAME[chosen.kernel.a.dtype].bytes
    used, listing = remarks(log), instructions(disassembly)
    loop = main_loop(listing)
    by_lds = _lds_occupancy(profile, max(1, chosen.shared_bytes), chosen.block)
    occupancy = min(used["occupancy"], by_lds)
    block_m, block_n, _ = kernel.tile.block
    lds_per_flop = None
    if loop is not None:
        names = Counter(_SHAPE.search(i.name) and i.name for i in listing if i.matrix)
        names.pop(None, None)
        fast = max((n for n in names if n), key=lambda n: _flops(n))
        lds_per_flop = loop.lds_read_bytes * profile.wave_size / (loop.matrix * _flops(fast))
    board = board_for(prebuild.described_device(profile), profile)
    m, n, k = shape
    flops, traffic = 2 * m * n * k, (m * k + n * k) * size + m * n * BY_NAME[kernel.d].bytes
    peak = board.peak_flops.get(kernel.a.dtype, 0.0)
    if not (peak and board.memory_bandwidth):
        raise ProfileError(
            f"profile {profile.name}: board {board.name!r} lacks the peak rate of {kernel.a.dtype} or the memory "
            f"bandwidth; allowed: both, since the bound is made of them"
        )
    seconds = {"matrix unit": flops / peak, "memory": traffic / board.memory_bandwidth}
    bound = max(seconds, key=lambda name: seconds[name])
    return Row(
        kernel=kernel.symbol(profile.arch),
        dtype=kernel.a.dtype,
        schedule=kernel.schedule,
        atom=kernel.tile.atom,
        tile="x".join(map(str, kernel.tile.block)),
        compiler=compiler,
        vgpr=used["vgpr"],
        agpr=used["agpr"],
        sgpr=used["sgpr"],
        scratch_bytes=used["scratch"],
        spills=used["sgpr_spills"] + used["vgpr_spills"],
        lds_bytes=chosen.shared_bytes,
        occupancy=occupancy,
        limit="registers" if used["occupancy"] <= by_lds else "LDS",
        loop=loop,
        matrix_share=round(loop.matrix_share, 4) if loop else None,
        global_bytes_per_flop=(block_m + block_n) * size / (2 * block_m * block_n),
        lds_bytes_per_flop=lds_per_flop,
        lds_conflicts=read_conflicts(kernel, profile.wave_size) if loop else None,
        roofline_us=seconds[bound] * 1e6,
        roofline_tflops=flops / seconds[bound] / 1e12,
        bound_by=bound,
    )


def _flops(name: str) -> int:
    match = _SHAPE.search(name)
    assert match is not None
    m, n, k = (int(group) for group in match.groups())
    return 2 * m * n * k


# --- a report --------------------------------------------------------------------------------------------


def _disassembler(identity: str) -> str:
    """llvm-objdump of the compiler's release, else any. Raises UnsupportedError where there is none."""
    release = re.search(r"version (\d+)", identity)
    names = [f"llvm-objdump-{release[1]}"] if release else []
    for name in (*names, "llvm-objdump", "/opt/rocm/llvm/bin/llvm-objdump"):
        path = shutil.which(name)
        if path:
            return path
    raise UnsupportedError("bench --static", "no llvm-objdump was found", "the one of clang's release")


def report(
    profile: ArchProfile,
    dtypes: Sequence[str] = ("float16", "bfloat16", "float32"),
    layout: str = "nt",
    shape: tuple[int, int, int] = (4096, 4096, 4096),
    done: Callable[[Row], None] = lambda _: None,
) -> list[Row]:
    """Every plan of a profile for a shape, compiled and read; the plan of choice of a dtype comes first.

    Args:
        dtypes: torch's names. layout: as prebuild.LAYOUTS. done: is told each row as it is there.

    Raises UnsupportedError for profiles that are not AMD's and where clang or llvm-objdump is missing, CompileError.
    """
    if profile.backend != "rocm":
        raise UnsupportedError("bench --static", f"profile {profile.name} is not AMD's", "one of an AMD arch")
    compiler = next(c for c in registry.get("rocm").compilers() if getattr(c, "name", "") == "clang")
    reason = compiler.unavailable_reason()
    if reason:
        raise UnsupportedError("bench --static", reason, "clang with lld")
    identity = compiler.identity()
    objdump = _disassembler(identity)
    rows = []
    device = prebuild.described_device(profile)
    for chosen in _plans(profile, dtypes, layout, shape):
        source = planner.kernel_source(chosen.kernel, profile, profile.target(device))
        options = CompileOptions(source.include_dirs, source.defines)
        code = compiler.compile(source.text, source.symbol, source.target, options)
        with tempfile.TemporaryDirectory(prefix="portagemm-") as folder:
            path = Path(folder) / "kernel.co"
            path.write_bytes(code.code)
            listing = subprocess.run([objdump, "-d", str(path)], capture_output=True, text=True, check=False)
        if listing.returncode != 0:
            raise CompileError(source.symbol, source.target, identity, listing.stderr)
        rows.append(row(chosen, profile, code.log, listing.stdout, identity, shape))
        done(rows[-1])
    return rows


def _plans(
    profile: ArchProfile, dtypes: Sequence[str], layout: str, shape: tuple[int, int, int]
) -> Iterator[GemmPlan]:
    device = prebuild.described_device(profile)
    for dtype in dtypes:
        wanted = prebuild.Wanted(dtypes=(dtype,), layouts=(layout,), epilogues=("none",), shapes=(shape,))
        (problem,) = prebuild.problems(wanted)
        seen = set()
        for chosen in (
            planner.plan(problem, profile, device, use_tables=False),
            *planner.candidates(problem, profile, device),
        ):
            if chosen.kernel not in seen:
                seen.add(chosen.kernel)
                yield chosen


def to_json(rows: Sequence[Row], profile: ArchProfile, shape: tuple[int, int, int]) -> str:
    """The report as JSON, with what it is in words."""
    board = board_for(prebuild.described_device(profile), profile)
    return json.dumps(
        {
            "schema": 1,
            "note": ESTIMATE,
            "arch": profile.arch,
            "profile": profile.name,
            "board": board.name,
            "shape": list(shape),
            "rows": [asdict(r) for r in rows],
        },
        indent=1,
    )


_HEAD = (
    f"{'dtype':5} {'schedule':13} {'atom':17} {'tile':11} {'vgpr':>4} {'agpr':>4} {'spill':>5} {'LDS':>6} {'waves':>5} "
    f"{'by':9} {'matrix':>6} {'B/flop':>7} {'LDS B/f':>7} {'confl':>5} {'us >=':>8} {'TFLOPS <=':>9} {'bound by':11}"
)


def head(profile: ArchProfile, shape: tuple[int, int, int]) -> str:
    """What is shown, and the table's first line."""
    board = board_for(prebuild.described_device(profile), profile)
    return f"{profile.arch}, {board.name}, {'x'.join(map(str, shape))}; {ESTIMATE}\n{_HEAD}"


def line(r: Row) -> str:
    """A row of the table. matrix: share of the loop's VALU and matrix instructions; waves: a SIMD holds."""

    def or_dash(value: float | int | None, spec: str) -> str:
        return "-" if value is None else format(value, spec)

    return (
        f"{r.dtype:5} {r.schedule:13} {r.atom:17} {r.tile:11} {r.vgpr:4} {r.agpr:4} {r.spills:5} {r.lds_bytes:6} "
        f"{r.occupancy:5} {r.limit:9} {or_dash(r.matrix_share, '.0%'):>6} {r.global_bytes_per_flop:7.4f} "
        f"{or_dash(r.lds_bytes_per_flop, '.4f'):>7} {or_dash(r.lds_conflicts, 'd'):>5} {r.roofline_us:8.1f} "
        f"{r.roofline_tflops:9.1f} {r.bound_by:11}"
    )
