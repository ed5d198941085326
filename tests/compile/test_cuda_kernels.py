"""Every CUDA kernel that a plan can choose compiles, without spills or warnings, to the instructions it is for.

What is compiled into a kernel are tile, dtypes, layouts, access widths and epilogue, so a universe of kernels is
made from described problems of each combination. Of it, a set is compiled in which every two properties meet
(each tile with each layout and width, each dtype with each store ...); PORTAGEMM_ALL_KERNELS=1 compiles them all.
"""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import statistics
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import pytest

from portagemm import delays, plan, prebuild
from portagemm.backends.cuda.compiler import NvrtcCompiler
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.dtypes import BF16, BY_NAME, FP16, FP32, DType
from portagemm.hal.errors import CompileError
from portagemm.hal.profile import ArchProfile, all_profiles
from portagemm.hal.program import ObjectCode
from portagemm.hal.target import Target
from portagemm.kernel_config import KernelConfig
from portagemm.problem import GemmProblem, View, build
from portagemm.reduce_kernel import ReduceConfig

#: Target, and the profile whose kernels are compiled for it. sm_86 has sm_80's instructions.
PROFILES = {"sm_80": "a100", "sm_86": "a100", "sm_89": "rtx4090", "sm_90a": "h100"}
#: Parts that a target's set is split into, so that processes can share it.
PARTS = 12
ALL = bool(os.environ.get("PORTAGEMM_ALL_KERNELS"))

pytestmark = pytest.mark.timeout(3600 if ALL else 1800)  # a part is a minute's work of an idle machine


# --- which kernels --------------------------------------------------------------------------------------


def _strided(dtype: DType, precision: str, both: bool) -> GemmProblem:
    """Operands contiguous in neither dimension; A alone, or both and the output too."""
    n = 4096

    def view(step: int) -> View:
        return View(dtype, (n, n), (step * n, step), 16)

    return build(view(2), view(2 if both else 1), view(2 if both else 1), precision=precision)


def _mixed(dtype: DType, precision: str, aligned: str) -> GemmProblem:
    """One operand allows 16-byte accesses, the other only its own size; A and B differ in order too."""
    n = 4096
    wide, narrow = View(dtype, (n, n), (n, 1), 16), View(dtype, (n, n), (1, n + 1), dtype.bytes)
    a, b = (wide, narrow) if aligned == "a" else (narrow, wide)
    return build(a, b, View(FP32, (n, n), (n, 1), 16), precision=precision)


def _problems() -> Iterator[GemmProblem]:
    dtypes = ("float16", "bfloat16", "float32", "tf32")
    yield from prebuild.problems(
        prebuild.Wanted(dtypes, ("same", "float32"), alignments=(16, 8, 4, 2), epilogues=("none",))
    )
    epilogues = ("c", "bias", "relu", "bias+gelu", "c+bias+gelu_tanh", "bias+silu")
    yield from prebuild.problems(
        prebuild.Wanted(dtypes, ("same", "float32"), ("nt",), (16, 2), epilogues=epilogues)
    )
    for dtype, precision in ((FP16, "ieee"), (BF16, "ieee"), (FP32, "ieee"), (FP32, "tf32")):
        for both in (False, True):
            yield _strided(dtype, precision, both)
        for aligned in ("a", "b"):
            yield _mixed(dtype, precision, aligned)


@lru_cache
def universe(profile_name: str) -> tuple[KernelConfig, ...]:
    """Every kernel of a profile for the problems above, each once, in a fixed order."""
    profile = all_profiles()[profile_name]
    device = prebuild.described_device(profile)
    found: dict[KernelConfig, None] = {}
    for problem in _problems():
        for candidate in plan.candidates(problem, profile, device):
            found[candidate.kernel] = None
    return tuple(found)


def _properties(k: KernelConfig) -> tuple[tuple[str, object], ...]:
    return (
        ("tile", (k.schedule, k.tile)),
        ("dtype", k.a.dtype),
        ("a", (k.a.major, k.a.order, k.a.width, k.a.slices)),
        ("b", (k.b.major, k.b.order, k.b.width, k.b.slices)),
        ("d", (k.d, k.store, k.d_vector)),
        ("epilogue", (k.c is not None, k.bias is not None, k.activation)),
    )


def covering(kernels: Iterable[KernelConfig]) -> list[KernelConfig]:
    """A few of the kernels in which every two properties that meet in one of all meet as well."""
    pairs = {k: set(combinations(_properties(k), 2)) for k in kernels}
    missing = set().union(*pairs.values())
    chosen: list[KernelConfig] = []
    for least in (15, 12, 9, 6, 4, 3, 2, 1):  # those that bring most come first
        for kernel, own in pairs.items():
            if len(own & missing) >= least:
                chosen.append(kernel)
                missing -= own
    return chosen


@lru_cache
def chosen(arch: str) -> tuple[KernelConfig, ...]:
    """What is compiled for a target. sm_86 and sm_89 have sm_80's instructions, and get every other kernel."""
    kernels = universe(PROFILES[arch])
    if ALL:
        return kernels
    return tuple(covering(kernels))[:: 2 if arch in ("sm_86", "sm_89") else 1]


@lru_cache
def read_as_machine_code(arch: str) -> frozenset[KernelConfig]:
    """Of these, the ones that are disassembled too: each tile with each order of operands and each store."""
    found: dict[object, KernelConfig] = {}
    for k in chosen(arch):
        if (
            k.schedule == "warp_specialized"
            or k.tile.atom == "fma_outer"
            or (k.tile.atom.startswith("mma") and k.a.width == k.b.width == 16)
        ):
            found.setdefault((k.tile, k.a.major, k.b.major, k.store, k.a.dtype == k.d), k)
    return frozenset(found.values())


# --- compiling ------------------------------------------------------------------------------------------


def missing(what: str) -> None:
    """Skips; where all tools must be there (CI), fails."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}; CI needs it")
    pytest.skip(what)


@pytest.fixture(scope="session")
def nvrtc() -> NvrtcCompiler:
    """NVRTC; skips without it."""
    compiler = NvrtcCompiler()
    reason = compiler.unavailable_reason()
    if reason is not None:
        missing(reason)
    return compiler


@pytest.fixture(scope="session")
def nvdisasm() -> str:
    """NVIDIA's disassembler: PATH, CUDA_HOME, or Triton's wheel; skips without it."""
    folders = [
        None,
        *(str(Path(os.environ[v], "bin")) for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)),
    ]
    spec = importlib.util.find_spec("triton")
    folders += (
        [str(Path(p, "backends/nvidia/bin")) for p in (spec.submodule_search_locations or ())] if spec else []
    )
    for folder in folders:
        found = shutil.which("nvdisasm", path=folder)
        if found:
            return found
    missing("no nvdisasm: pip install triton")
    raise AssertionError


def compiled(
    compiler: NvrtcCompiler, kernel: KernelConfig, profile: ArchProfile, target: Target
) -> ObjectCode:
    source = plan.kernel_source(kernel, profile, target)
    options = CompileOptions(source.include_dirs, source.defines)
    return compiler.compile(source.text, source.symbol, target, options)


def faults(log: str) -> list[str]:
    """What ptxas says that no kernel may have: stack, spills, performance warnings."""
    found = [
        line.strip()
        for line in log.splitlines()
        if re.search(r"warning|Potential Performance Loss", line, re.I)
    ]
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if not frames:
        found.append("ptxas reported nothing")
    found += [f"bytes of stack, spilled, filled: {', '.join(f)}" for f in frames if f != ("0", "0", "0")]
    return found


# --- what is said about a compilation -------------------------------------------------------------------


@lru_cache
def representatives(arch: str) -> tuple[KernelConfig, ...]:
    """The kernel of each schedule and atom that bf16 or fp32 operands (NT) get for a large product.

    They are aligned but for the schedule that is for others. Outer products have MN-major stages alone: elements of
    these operands come one by one.
    """
    found: dict[tuple[str, str], KernelConfig] = {}
    for kernel in universe(PROFILES[arch]):
        single = kernel.tile.atom == "fma_outer"
        widths = (2,) if kernel.schedule == "realigned_multistage" else (4,) if single else (0, 16)
        plain = (
            kernel.a.width in widths
            and kernel.a.major == kernel.b.major == "k"
            and kernel.activation == "none"
        )
        if plain and kernel.a.dtype in ("bf16", "fp32") and kernel.a.width == kernel.b.width:
            found.setdefault((kernel.schedule, kernel.tile.atom), kernel)
    return tuple(found.values())


@pytest.mark.quick
def test_faults_are_seen() -> None:
    """The log reader knows a spill, a stack frame and a warning, and a log that says nothing."""
    line = "    {} bytes stack frame, {} bytes spill stores, {} bytes spill loads\n"
    assert faults(line.format(0, 0, 0)) == []
    assert faults(line.format(8, 0, 0)) and faults(line.format(0, 4, 0)) and faults(line.format(0, 0, 4))
    assert faults(line.format(0, 0, 0) + "ptxas info : (C7510) Potential Performance Loss: wgmma serialized")
    assert faults("")


@pytest.mark.quick
def test_a_spill_is_seen(nvrtc: NvrtcCompiler) -> None:
    """A kernel that keeps 400 sums alive spills, and this suite would say so."""
    text = """
    extern "C" __global__ void spill(const float* p, float* q, int n) {
        float s[400];
    #pragma unroll
        for (int i = 0; i < 400; i++) s[i] = p[i];
        for (int k = 0; k < n; k++) {
    #pragma unroll
            for (int i = 0; i < 400; i++) s[i] = s[i] * p[k] + s[(i * 7 + 1) % 400];
        }
    #pragma unroll
        for (int i = 0; i < 400; i++) q[i] = s[i];
    }
    """
    log = nvrtc.compile(text, "spill", Target("cuda", "sm_80", 32), CompileOptions(())).log
    assert any("spilled" in fault for fault in faults(log))


#: Seconds of one compiler thread that a kernel may take.
COMPILE_SECONDS = 1.5


@pytest.mark.quick
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_compile_time(nvrtc: NvrtcCompiler, arch: str) -> None:
    """A kernel compiles in 1.5 s. CPU time of the better of two runs: other work on the machine does not count."""
    profile, target = all_profiles()[PROFILES[arch]], Target("cuda", arch, 32)
    nvrtc.identity()
    seconds = {}
    for kernel in representatives(arch):
        runs = []
        for _ in range(2):
            before = resource.getrusage(resource.RUSAGE_SELF)
            compiled(nvrtc, kernel, profile, target)
            after = resource.getrusage(resource.RUSAGE_SELF)
            runs.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        seconds[kernel.symbol(arch)] = min(runs)
    for symbol, value in seconds.items():
        print(f"{value:5.2f} s  {symbol}")
    assert statistics.median(seconds.values()) <= COMPILE_SECONDS, seconds
    assert max(seconds.values()) <= 2 * COMPILE_SECONDS, seconds


# --- machine code ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly. `target`: index of the instruction it may jump to. `falls`: goes on to the next."""

    text: str
    target: int | None
    falls: bool

    @property
    def name(self) -> str:
        """The mnemonic, without predicate."""
        return re.sub(r"^@!?U?P\w+\s+", "", self.text).split()[0].rstrip(";")


def disassemble(nvdisasm: str, code: bytes, folder: Path) -> list[Instruction]:
    """The kernel's instructions, jumps resolved."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(code)
    done = subprocess.run(
        [nvdisasm, "-c", str(cubin)], capture_output=True, text=True, timeout=300, check=True
    )
    texts: list[str] = []
    labels: dict[str, int] = {}
    for line in done.stdout.splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            labels[label[1]] = len(texts)
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            texts.append(found[1].strip())
    instructions = []
    for text in texts:
        jump = re.search(r"`\((\.L_\w+)\)", text)
        # CALL.REL.NOINC is a jump: nobody returns.
        branch = jump and re.search(r"\bBRA\b|\bBRA\.|CALL\.REL\.NOINC", text)
        conditional = text.startswith("@") or ".U.ANY" in text
        ends = re.search(r"\b(BRA|CALL\.REL\.NOINC|EXIT|RET)\b", text) is not None and not conditional
        instructions.append(Instruction(text, labels[jump[1]] if jump and branch else None, not ends))
    return instructions


def _reach(starts: Iterable[int], edges: list[list[int]], without: int) -> set[int]:
    """All that `starts` reach by `edges`, not going through `without`."""
    found = set(starts) - {without}
    todo = list(found)
    while todo:
        for i in edges[todo.pop()]:
            if i != without and i not in found:
                found.add(i)
                todo.append(i)
    return found


def innermost_loop(code: list[Instruction], *names: str) -> list[Instruction]:
    """The smallest loop that holds an instruction of each name, blocks placed elsewhere (waits) included.

    A loop is a jump back to a head that every way to the jump passes, and all that reaches the jump from there.
    """
    after: list[list[int]] = [[] for _ in code]
    before: list[list[int]] = [[] for _ in code]
    for i, instruction in enumerate(code):
        nexts = [instruction.target] if instruction.target is not None else []
        nexts += [i + 1] if instruction.falls and i + 1 < len(code) else []
        for j in nexts:
            after[i].append(j)
            before[j].append(i)
    best: set[int] | None = None
    for end, instruction in enumerate(code):
        head = instruction.target
        if head is None or head > end or end in _reach([0], after, head):
            continue
        loop = _reach([end], before, head) | {head}
        held = {code[i].name for i in loop}
        if all(any(n.startswith(name) for n in held) for name in names) and (
            best is None or len(loop) < len(best)
        ):
            best = loop
    assert best is not None, f"no loop holds {names}"
    return [code[i] for i in sorted(best)]


def having(code: list[Instruction], *starts: str) -> list[str]:
    """Texts of the instructions whose names begin so."""
    return [i.text for i in code if i.name.startswith(starts)]


#: Fences and error barriers that stall a whole SM or worse, and local memory.
STALLS = ("MEMBAR", "ERRBAR", "CGAERRBAR", "CCTL")
LOCAL = ("LDL", "STL")


#: The matrix instruction of an atom.
UNITS = {
    "mma_16816": "HMMA.16816.F32",
    "mma_1688_tf32": "HMMA.1688.F32.TF32",
    "fma": "FFMA",
    "fma_outer": "FFMA",
}


def check_warp_specialized(kernel: KernelConfig, code: list[Instruction]) -> None:
    for name in ("HGMMA", "UTMALDG"):
        assert having(code, name), f"no {name}"
    # Registers move from the loader to the consumers where one block has an SM to itself.
    moves = kernel.tile.resident == 1 and kernel.tile.waves[0] > 1
    assert bool(having(code, "USETMAXREG")) == moves, "registers move, or should"
    assert bool(having(code, "UTMASTG")) == (kernel.store == "tensor")
    assert any("MULTICAST" in text for text in having(code, "UTMALDG")) == (
        kernel.a.slices > 1 or kernel.b.slices > 1
    )
    n = kernel.tile.block[1] // kernel.tile.waves[1]
    assert all(f".64x{n}x16.F32" in text for text in having(code, "HGMMA"))
    computing = innermost_loop(code, "HGMMA")
    loading = innermost_loop(code, "UTMALDG", "SYNCS.PHASECHK")
    for loop in (computing, loading):
        assert not having(loop, *STALLS), "a fence in a main loop"
        assert not having(loop, "BAR"), "a block barrier in a main loop"
    # One stage: block k / 16 products, the wait for it, and its release.
    assert len(having(computing, "HGMMA")) % (kernel.tile.block[2] // 16) == 0
    assert having(computing, "SYNCS.PHASECHK") and having(computing, "SYNCS.ARRIVE")
    assert not having(computing, "LDS", "STS", "LDG", "STG"), "operands are read by descriptor"


def check_multistage(kernel: KernelConfig, code: list[Instruction]) -> None:
    unit = UNITS[kernel.tile.atom]
    asynchronous = kernel.a.copy == kernel.b.copy == "async"
    wanted = [
        unit,
        *(["LDGSTS"] if asynchronous else []),
        *(["LDSM"] if kernel.tile.atom == "mma_16816" else []),
    ]
    loop = innermost_loop(code, *wanted)
    assert not having(loop, *STALLS), "a fence in the main loop"
    assert len(having(loop, "BAR.SYNC")) * len(having(code, unit)) <= len(having(loop, unit)) * 4
    if asynchronous and kernel.tile.atom != "fma":
        assert not having(loop, "STS"), "asynchronous copies need no registers"
        # Neighbouring columns are written together: test_layouts counts their bank conflicts as such.
        together = "STS.128" if kernel.tile.atom == "fma_outer" else "STS.64"
        assert {name for name in (i.name for i in code) if name.startswith("STS")} == {together}
    if asynchronous and kernel.tile.atom == "fma_outer":
        check_outer_products(kernel, loop)
    if kernel.a.dtype == "bf16" and kernel.tile.atom == "mma_16816":
        assert all(".BF16" in text for text in having(code, "HMMA"))


def check_outer_products(kernel: KernelConfig, loop: list[Instruction]) -> None:
    """Whole chunks are read, by addresses that cost no instruction, and multiply-adds are what is issued."""
    tile = kernel.tile
    rows, columns = (tile.block[i] // tile.waves[i] for i in (0, 1))
    products = rows * columns // 32 * tile.block[2]
    reads = (rows // 16 + columns // 32) * tile.block[2]
    assert len(having(loop, "FFMA")) == products and len(having(loop, "LDS.128")) == reads
    # Of the rest, half or more is the way round where a stage ends within the operand: it is taken once.
    if products >= 1024:
        share = products / len(loop)
        assert share > 0.75, f"{share:.0%} of the main loop's instructions multiply"


def check_realigned_multistage(kernel: KernelConfig, code: list[Instruction]) -> None:
    loop = innermost_loop(code, "HMMA.16816.F32", "LDSM", "LDG", "STS.128")
    assert not having(loop, *STALLS), "a fence in the main loop"
    # The body of steps that need no check has no jump: two loads and a store for each chunk of 16 bytes.
    bodies: list[list[Instruction]] = [[]]
    for instruction in loop:
        bodies[-1].append(instruction)
        if instruction.target is not None or not instruction.falls:
            bodies.append([])
    block_m, block_n, block_k = kernel.tile.block
    threads = kernel.tile.waves[0] * kernel.tile.waves[1] * 32
    chunks = sum(
        mn * block_k // 8 // threads
        for mn, o in ((block_m, kernel.a), (block_n, kernel.b))
        if o.copy == "realign"
    )
    products = block_m * block_n * block_k // (16 * 8 * 16) // (threads // 32)
    whole = [body for body in bodies if len(having(body, "HMMA")) == products and having(body, "STS.128")]
    assert len(whole) == 1, "no step without a jump"
    assert len(having(whole[0], "STS")) == chunks and len(having(whole[0], "LDG.")) == 2 * chunks
    assert all(".128" in text for text in having(whole[0], "STS", "LDG."))
    assert not having(whole[0], "LD."), "memory of a kind that the compiler does not know"


def check_split_multistage(kernel: KernelConfig, code: list[Instruction]) -> None:
    unit = UNITS[kernel.tile.atom]
    assert len(having(code, "BAR.SYNC")) == 1, "the block meets once, when its barriers are made"
    loops = [innermost_loop(code, unit, *(["LDSM"] if kernel.tile.atom == "mma_16816" else []))]
    if kernel.a.copy == kernel.b.copy == "async":
        loops.append(innermost_loop(code, "LDGSTS", "ARRIVES.LDGSTSBAR"))
    for loop in loops:
        assert not having(loop, "BAR"), "a block barrier in a main loop"
        # Before sm_90 an arrival is an atomic behind a fence among the block's own waves.
        fences = [text for text in having(loop, *STALLS) if "MEMBAR.ALL.CTA" not in text]
        assert not fences, "a fence in a main loop"


def check_single_buffer(kernel: KernelConfig, code: list[Instruction]) -> None:
    loop = innermost_loop(code, "FFMA", "LDS", "BAR.SYNC")
    assert not having(loop, *STALLS), "a fence in the main loop"


def check_gemv(kernel: KernelConfig, code: list[Instruction]) -> None:
    wide = [text for text in having(code, "LDG") if ".128" in text]
    _, columns, chunk = kernel.tile.block
    loads = columns // kernel.tile.waves[1] * kernel.tile.stages * chunk * BY_NAME[kernel.b.dtype].bytes // 16
    if kernel.b.width == 16:  # all chunks on their way together, then a loop with one at a time
        assert len(wide) >= loads, f"{len(wide)} loads of 16 bytes where {loads} are on their way together"
        if chunk * BY_NAME[kernel.b.dtype].bytes == 16:
            check_wait_in(code, innermost_loop(code, "FFMA", "LDG.E.NA.LTC128B.128"))
    assert having(code, "FFMA"), "no FFMA"


def check_skinny(kernel: KernelConfig, code: list[Instruction]) -> None:
    """All of a group's B is asked for before the kernel ahead is waited for, and nothing is staged."""
    tile = kernel.tile
    loop = innermost_loop(code, "HMMA", *(["LDG.E.NA.LTC128B.128"] if kernel.b.width == 16 else []))
    assert not having(loop, "LDS", "STS", "BAR"), "the main loop has no use for shared memory"
    if kernel.b.width != 16:
        return
    texts = [i.text for i in loop]
    loads = [number for number, text in enumerate(texts) if ".NA.LTC128B.128" in text]
    assert len(loads) == tile.block[1] // tile.waves[1] // 8 * tile.stages
    check_wait_in(code, loop)


def check_wait_in(code: list[Instruction], loop: list[Instruction]) -> None:
    """In a loop that streams B: the wait for the kernel ahead stands behind all loads of B, and before those of A."""
    texts = [i.text for i in loop]
    waits = [number for number, text in enumerate(texts) if "ACQBULK" in text]
    assert bool(waits) == bool(having(code, "PREEXIT")), "lets the next kernel start, but never waits"
    for number, text in enumerate(texts):
        if waits and "LDG" in text:
            early = ".NA." in text
            assert early == (number < waits[0]), "a load on the wrong side of the wait for the kernel ahead"


CHECKS = {
    "gemv": check_gemv,
    "skinny": check_skinny,
    "warp_specialized": check_warp_specialized,
    "multistage": check_multistage,
    "realigned_multistage": check_realigned_multistage,
    "split_multistage": check_split_multistage,
    "single_buffer": check_single_buffer,
}


def check(
    compiler: NvrtcCompiler,
    kernels: Iterable[KernelConfig],
    target: Target,
    nvdisasm: str | None = None,
    folder: Path | None = None,
) -> None:
    """Compiles all, reads the code where there is a disassembler, and fails with the list of what is wrong."""
    profile, failures = all_profiles()[PROFILES[target.arch]], []
    for kernel in kernels:
        try:
            made = compiled(compiler, kernel, profile, target)
            assert not (found := faults(made.log)), found
            if nvdisasm and folder:
                code = disassemble(nvdisasm, made.code, folder)
                assert len(code) > 100, "the disassembly is empty"
                assert not having(code, *LOCAL), "local memory"
                CHECKS[kernel.schedule](kernel, code)
        except (AssertionError, CompileError) as error:
            failures.append(f"{kernel.symbol(target.arch)}: {str(error)[:2000]}")
    assert not failures, f"{len(failures)} kernels:\n" + "\n".join(failures)


# --- the tests ------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_representatives_compile_for_sm_86(nvrtc: NvrtcCompiler) -> None:
    check(nvrtc, representatives("sm_86"), Target("cuda", "sm_86", 32))


@pytest.mark.quick
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_representatives(nvrtc: NvrtcCompiler, nvdisasm: str, arch: str, tmp_path: Path) -> None:
    check(nvrtc, representatives(arch), Target("cuda", arch, 32), nvdisasm, tmp_path)


@pytest.mark.parametrize("arch", PROFILES)
def test_second_kernels(nvrtc: NvrtcCompiler, arch: str) -> None:
    """Those that add up slices of K: each output dtype, width and kind of epilogue."""
    profile, target = all_profiles()[PROFILES[arch]], Target("cuda", arch, 32)
    kernels = [ReduceConfig(d, vector) for d in ("fp16", "bf16", "fp32") for vector in (1, 4)]
    kernels += [
        ReduceConfig("bf16", 8, "bf16", "fp32", "gelu"),
        ReduceConfig("fp32", 2, None, "fp16", "silu"),
    ]
    for kernel in kernels:
        source = plan.kernel_source(kernel, profile, target)
        made = nvrtc.compile(source.text, source.symbol, target, CompileOptions(source.include_dirs))
        assert not faults(made.log), kernel


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("arch", PROFILES)
def test_compiles_without_spills(nvrtc: NvrtcCompiler, arch: str, part: int) -> None:
    kernels = [k for k in chosen(arch) if k not in read_as_machine_code(arch)]
    check(nvrtc, kernels[part::PARTS], Target("cuda", arch, 32))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_holds_its_instructions(
    nvrtc: NvrtcCompiler, nvdisasm: str, arch: str, part: int, tmp_path: Path
) -> None:
    """HGMMA fed by TMA without a fence; HMMA fed by LDGSTS and LDSM: each tile, layout and store."""
    kernels = sorted(read_as_machine_code(arch), key=lambda k: k.symbol(arch))
    assert len(kernels) >= 4
    check(nvrtc, kernels[part::PARTS], Target("cuda", arch, 32), nvdisasm, tmp_path)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_forced_profile_is_assembled_for_hopper(nvrtc: NvrtcCompiler, arch: str) -> None:
    """The a100 and rtx4090 profiles on an H200: PTX of their own arch, assembled for sm_90."""
    check(nvrtc, representatives(arch), Target("cuda", arch, 32, assembled_for="sm_90"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_delays_are_compiled_in_where_asked_for(
    nvrtc: NvrtcCompiler, nvdisasm: str, arch: str, tmp_path: Path
) -> None:
    """Both roles of a role-split kernel pause at waits and arrivals, without spills; other builds never do."""
    profile, target = all_profiles()[PROFILES[arch]], Target("cuda", arch, 32)
    kernels = [k for k in representatives(arch) if delays.is_role_split(k.schedule)]
    assert kernels
    for kernel in kernels:
        for delay, least, most in ((0, 0, 0), (delays.NANOSECONDS, 6, 1000)):
            made = compiled(nvrtc, replace(kernel, delay=delay), profile, target)
            assert not (found := faults(made.log)), found
            pauses = having(disassemble(nvdisasm, made.code, tmp_path), "NANOSLEEP")
            assert least <= len(pauses) <= most, f"{kernel.symbol(arch)}: {len(pauses)} pauses"


def test_a_fence_in_the_main_loop_is_seen(nvrtc: NvrtcCompiler, nvdisasm: str, tmp_path: Path) -> None:
    """With the arrival's scope widened, ptxas puts a MEMBAR into every step of K, and the check finds it."""
    profile, target = all_profiles()["h100"], Target("cuda", "sm_90a", 32)
    kernel = next(k for k in representatives("sm_90a") if k.tile.cluster > 1)
    source = plan.kernel_source(kernel, profile, target)
    header = next(d for d in source.include_dirs if d.match("cuda/include")) / "portagemm/arch/sm90.hpp"
    text = header.read_text()
    arrive = "mbarrier.arrive.shared::cluster.b64"
    assert text.count(arrive) == 1
    wider = tmp_path / "portagemm/arch/sm90.hpp"
    wider.parent.mkdir(parents=True)
    wider.write_text(text.replace(arrive, "mbarrier.arrive.release.cluster.shared::cluster.b64"))
    options = CompileOptions((tmp_path, *source.include_dirs))
    made = nvrtc.compile(source.text, source.symbol, target, options)
    with pytest.raises(AssertionError, match="a fence in a main loop"):
        check_warp_specialized(kernel, disassemble(nvdisasm, made.code, tmp_path))


def test_a_load_of_a_ahead_of_the_wait_is_seen(nvrtc: NvrtcCompiler, nvdisasm: str, tmp_path: Path) -> None:
    """With A read before the kernel ahead is waited for, results still come out right on an idle stream."""
    profile, target = all_profiles()["h100"], Target("cuda", "sm_90a", 32)
    kernel = next(k for k in representatives("sm_90a") if k.schedule == "skinny")
    source = plan.kernel_source(kernel, profile, target)
    header = next(
        d / "kernels/skinny.hpp" for d in source.include_dirs if (d / "kernels/skinny.hpp").exists()
    )
    text = header.read_text()
    wait, read = "ahead.wait();\n", "mine.template read_a<tile::unroll, true>(a, k, 0, lane);\n"
    assert text.count(read) == 1
    before, after = text.split(read)
    early = tmp_path / "kernels/skinny.hpp"
    early.parent.mkdir()
    at = before.rindex(wait)
    early.write_text(before[:at] + read + wait + before[at + len(wait) :] + after)
    options = CompileOptions((tmp_path, *source.include_dirs), source.defines)
    made = nvrtc.compile(source.text, source.symbol, target, options)
    with pytest.raises(AssertionError, match="wrong side of the wait"):
        check_skinny(kernel, disassemble(nvdisasm, made.code, tmp_path))
