"""The kernels of profile mi250x on an emulated gfx90a: the common case list, subnormals, and mutants.

Here the backend's sources run with 64 lanes a wave and four waves a block, each launch with another order of
lanes: indexing, tails, swizzles, the two-stage loop and its barriers, the store, and both ways of the matrix
atom. What compilers make of the sources is tests/compile/test_gfx90a.py's business.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gfx90a
import pytest
import torch

from portagemm import launch, testing
from portagemm.hal import registry
from portagemm.hal.errors import LaunchError, PortaGemmError
from portagemm.hal.profile import get
from portagemm.plan import GemmPlan, kernel_source

ROOT = Path(__file__).resolve().parents[3]

#: Cases with something to launch, but for those that take minutes at emulated speed.
CASES = [
    c
    for c in testing.cases("rocm")
    if c.k and 0 not in c.shape and c.group not in ("large", "size") and math.prod(c.shape[:-2]) < 1000
]
QUICK = [c for c in CASES if c.quick]
#: A twelfth of the others, all of them on demand: emulation and its compiles take their time, and tests/amdgcn runs
#: the list on what compilers make of the sources.
REST = [c for c in CASES if not c.quick and c.m * c.n * c.k <= 1 << 22]
if not os.environ.get("PORTAGEMM_EMULATE_ALL"):
    REST = [c for c in REST if zlib.crc32(c.id.encode()) % 12 == 0]

_real_get: Callable[..., object] = registry.get


class _Devices:
    """launch._device with the emulated card in the CPU's place."""

    def __call__(self, kind: str, index: int) -> object:
        return gfx90a.DEVICE

    def cache_clear(self) -> None:
        """Nothing is kept."""


def _install(monkeypatch: pytest.MonkeyPatch, backend: gfx90a.Backend) -> None:
    reason = backend.unavailable_reason()
    if reason:
        pytest.skip(reason)
    monkeypatch.setattr(registry, "get", lambda name: backend if name == "rocm" else _real_get(name))
    monkeypatch.setattr(launch, "_device", _Devices())
    monkeypatch.setattr(launch, "workspace", lambda device, size: torch.empty(size, dtype=torch.uint8))


_BACKEND = gfx90a.Backend()


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors lie on the emulated card for this test."""
    _install(monkeypatch, _BACKEND)
    yield


#: Tiles that are not emulated but where all is asked for: one more of a kind, and the ones that take longest. All of
#: them are executed as code objects in tests/amdgcn.
SPARED = {("pingpong", (256, 128, 32)), ("interleave", (128, 128, 32)), ("interleave", (32, 64, 64))}


def _emulated_plans(case: testing.Case, every: bool = False) -> list[GemmPlan]:
    """The case's plans with a main loop of the CDNA headers, and the FMA's."""
    if os.environ.get("PORTAGEMM_EMULATE_ALL"):
        return list(testing.plans(case, gfx90a.DEVICE, every))

    def taken(plans: Sequence[GemmPlan]) -> list[GemmPlan]:
        names = ((p, (p.kernel.schedule, p.kernel.tile.block)) for p in plans)
        return [p for p, name in names if name[0] != "gemv" and name not in SPARED]

    every_plan = taken(testing.plans(case, gfx90a.DEVICE, True))
    return every_plan if every else taken(testing.plans(case, gfx90a.DEVICE)) or every_plan[:1]


def _compile(cases: list[testing.Case], every: bool = False) -> None:
    """All kernels the cases need, a few at a time. A failure shows in the case that needs the kernel."""
    kernels = {kernel for case in cases for plan in _emulated_plans(case, every) for kernel in plan.kernels}
    profile = get("mi250x")

    def build(kernel: object) -> None:
        try:
            launch.code_of(kernel_source(kernel, profile, profile.target(gfx90a.DEVICE)))  # type: ignore[arg-type]
        except PortaGemmError:
            pass

    # Workers of one run begin at both ends of the list: each kernel is compiled once, by whoever comes first.
    backwards = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"
    with ThreadPoolExecutor(gfx90a.workers()) as pool:
        list(pool.map(build, sorted(kernels, key=repr, reverse=backwards)))


def _run(case: testing.Case) -> None:
    for plan in _emulated_plans(case):
        result = testing.run_case(case, "cpu", plan)
        assert result.passed, f"{plan.explain()}: {result.error} ({result.violation})"


# --- the common case list --------------------------------------------------------------------------------


_compiled: set[str] = set()


def _once(name: str, cases: list[testing.Case]) -> None:
    if name not in _compiled:
        _compile(cases)
        _compiled.add(name)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("case", QUICK, ids=lambda c: c.id)
def test_case(case: testing.Case) -> None:
    """The short list, each case under the plan of choice and others."""
    _once("quick", QUICK)
    _run(case)


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("group", sorted({c.group for c in REST}))
def test_all_cases(group: str) -> None:
    """The whole list, group by group, but for what takes minutes at emulated speed."""
    cases = [c for c in REST if c.group == group]
    _once(group, cases)
    for case in cases:
        _run(case)


# --- subnormals (MI200 takes them for zero; G15) ----------------------------------------------------------


def _plans(m: int, n: int, k: int, dtype: str, out: str = "") -> list[GemmPlan]:
    case = testing.Case("subnormal", m, n, k, dtype, out, b=testing.COL)
    return [p for p in _emulated_plans(case, every=True) if p.kernel.tile.atom != "fma"]


def _multiply(
    a: torch.Tensor, b: torch.Tensor, plan: GemmPlan, out: torch.dtype | None = None
) -> torch.Tensor:
    """a (m, k) times b (n, k) transposed, under a plan made for that output dtype."""
    dtypes = {torch.half: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
    (m, k), n, out = a.shape, b.shape[0], out or a.dtype
    case = testing.Case("subnormal", m, n, k, dtypes[a.dtype], dtypes[out], b=testing.COL)
    result = torch.full((m, n), float("nan"), dtype=out)
    prepared = launch.launcher(testing.problem(case), gfx90a.DEVICE, plan)
    prepared(a.data_ptr(), b.data_ptr(), 0, result.data_ptr(), 0)
    return result


@pytest.mark.usefixtures("emulated")
def test_half_the_smallest_normal_fp16() -> None:
    """Ones times 2^-15, 64 of them: exactly 64 * 2^-15, where MFMA alone would give 0."""
    ones, tiny = torch.ones(64, 64, dtype=torch.half), torch.full((64, 64), 2.0**-15, dtype=torch.half)
    plans = _plans(64, 64, 64, "fp16")
    assert {p.kernel.tile.atom for p in plans} == {"mfma_32x32x8", "mfma_16x16x16"}
    for plan in plans:
        for a, b in ((ones, tiny), (tiny, ones)):
            assert torch.equal(_multiply(a, b, plan), torch.full((64, 64), 64 * 2.0**-15).half())


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("name", "normal", "subnormal", "scale"),
    [("fp16", 1.0, 2.0**-16, 1.0), ("bf16", 2.0**-117, 2.0**-128, 2.0**120)],
)
def test_subnormals_among_others(name: str, normal: float, subnormal: float, scale: float) -> None:
    """Few subnormals anywhere: exact results, their own products and their neighbours' (fp32 holds them all)."""
    dtype = testing.torch_dtype(name)
    torch.manual_seed(3)
    for density in (0.002, 0.1):
        a = torch.randint(-1, 2, (64, 64)).double() * normal
        few = torch.rand(64, 64) < density
        a[few] = (torch.randint(1, 4, (64, 64)).double() * subnormal)[few]
        b = torch.randint(-2, 3, (64, 64)).double() * scale
        for left, right in ((a, b), (b, a)):
            for plan in _plans(64, 64, 64, name, "fp32"):
                result = _multiply(left.to(dtype), right.to(dtype), plan, torch.float32)
                assert torch.equal(result.double(), left @ right.T), plan.explain()


@pytest.mark.usefixtures("emulated")
def test_the_emulated_unit_flushes() -> None:
    """Without the exact way the same product is 0: the test above shows something."""
    backend = gfx90a.Backend(
        _mutant("arch/gfx90a.hpp", "return any_lane(found_subnormal<element>(least));", "return false;")
    )
    with pytest.MonkeyPatch.context() as patch:
        _install(patch, backend)
        launch.clear()
        ones, tiny = torch.ones(64, 64, dtype=torch.half), torch.full((64, 64), 2.0**-15, dtype=torch.half)
        assert not bool(_multiply(ones, tiny, _plans(64, 64, 64, "fp16")[0]).any())
    launch.clear()


# --- mutants ----------------------------------------------------------------------------------------------

_folder: Path | None = None


@pytest.fixture(autouse=True)
def _mutant_folder(tmp_path: Path) -> None:
    global _folder
    _folder = tmp_path


def _mutant(header: str, before: str, after: str) -> Path:
    """A folder with one header of the backend changed in one place (or in all places that read the same)."""
    assert _folder is not None
    text = (ROOT / "backends/rocm/include/portagemm" / header).read_text()
    assert before in text, f"{header} no longer has: {before}"
    path = _folder / "portagemm" / header
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace(before, after))
    return _folder


MUTANTS = {
    "no publish": ("schedule/pingpong.hpp", "publish<scope::block>(tile.stage_a(1 - S), *this);", ""),
    "no publish, interleaved": (
        "schedule/interleave.hpp",
        "publish<scope::block>(tile.stage_a(1 - S), *this);",
        "",
    ),
    "no publish, any step": (
        "schedule/two_stages.hpp",
        "publish<scope::block>(tile.stage_a(1 - s), *this);",
        "",
    ),
    "no barrier after the products": (
        "schedule/pingpong.hpp",
        "vendor::priority<0>();\n            barrier<scope::block>(*this);",
        "vendor::priority<0>();",
    ),
    "the early waves do not wait": ("schedule/pingpong.hpp", "if (!late) barrier<scope::block>(*this);", ""),
    "wrong stage computed": (
        "schedule/pingpong.hpp",
        "tile.read(f[kk], S, kk)",
        "tile.read(f[kk], 1 - S, kk)",
    ),
    "wrong stage, any step": ("schedule/two_stages.hpp", "tile.read(f, s, kk)", "tile.read(f, 1 - s, kk)"),
    "one stage": ("schedule/two_stages.hpp", "commit(tile, 1 - s)", "commit(tile, s)"),
    "a step too few": ("schedule/two_stages.hpp", "kt + 2 < k_tiles", "kt + 3 < k_tiles"),
    "no barrier after a tile": (
        "schedule/two_stages.hpp",
        "barrier<scope::block>(*this);  // the store",
        "// the store",
    ),
    "rows of C": ("arch/mfma.hpp", "r / 4 * rows + 4 * (lane / n) + r % 4", "r + 4 * (lane / n)"),
    "k of A": ("arch/mfma.hpp", "lane / m * a_size + i};", "(lane / m ^ 1) * a_size + i};"),
    "half the chain": ("arch/mfma.hpp", "i < Chain; i++", "i < Chain / 2; i++"),
    "tail of k": ("copy/vgpr_copy.hpp", "r.value[i] = chunk{};", ";"),
    "columns beyond K": (
        "copy/vgpr_copy.hpp",
        "if (o.col >= r.left_k) r.place[i] -=",
        "if (false) r.place[i] -=",
    ),
    "rows beyond the operand": (
        "copy/vgpr_copy.hpp",
        "o.row < left_mn ? o.row : along_mn ? 0 : left_mn - 1",
        "o.row",
    ),
    "cut chunks": ("copy/vgpr_copy.hpp", "if (r.direct) {", "if (false) {"),
    "the cursor stays": ("copy/vgpr_copy.hpp", "c.at += c.step;", ""),
}
#: Cases that together meet every path of the copies and the loop, and several tiles of K.
WITNESSES = [
    testing.Case("mutant", 72, 80, 136, "fp16", b=testing.COL),
    testing.Case("mutant", 130, 136, 100, "fp16", a=testing.Memory(pad=4), b=testing.Memory("col", pad=4)),
    testing.Case("mutant", 72, 80, 136, "bf16", a=testing.COL, b=testing.ROW),
    testing.Case("mutant", 40, 72, 392, "fp16", b=testing.COL),  # two whole steps of 64 with two behind them
]


def _verdicts() -> list[str]:
    """What is wrong with the witnesses under the plans of the two main loops."""
    found = []
    for case in WITNESSES:
        for plan in _emulated_plans(case, every=True):
            if plan.kernel.schedule in ("pingpong", "interleave"):
                # One block for all tiles too, so that one tile's end meets the next one's beginning.
                for variant in (plan, replace(plan, grid=1)):
                    result = testing.run_case(case, "cpu", variant)
                    found += [] if result.passed else [result.error]
                _fenced(case, plan)
    return found


def _fence(x: torch.Tensor) -> torch.Tensor:
    """A copy that ends where a page without access begins: a read beyond it ends the process."""
    page, size = mmap.PAGESIZE, x.numel() * x.element_size()
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + pages * page), page, 0) == 0
    raw = (ctypes.c_char * size).from_address(start + pages * page - size)
    copy = torch.frombuffer(raw, dtype=x.dtype).view(x.shape)
    copy.copy_(x)
    _kept.append(memory)
    return copy


_kept: list[mmap.mmap] = []


def _fenced(case: testing.Case, plan: GemmPlan) -> None:
    """Run on operands that end at a fence, packed as the case's order has them."""
    dtype = testing.torch_dtype(case.dtype)
    a = _fence(torch.ones((case.m, case.k) if case.a.order == "row" else (case.k, case.m), dtype=dtype))
    b = _fence(torch.ones((case.k, case.n) if case.b.order == "row" else (case.n, case.k), dtype=dtype))
    out = torch.empty(case.m, case.n, dtype=dtype)
    plain = replace(case, a=replace(case.a, pad=0), b=replace(case.b, pad=0))
    # The plan's kernel must be one for these strides: take the one with the same tile.
    plans = testing.plans(plain, gfx90a.DEVICE, every=True)
    same = next(p for p in plans if p.kernel.tile == plan.kernel.tile)
    launch.launcher(testing.problem(plain), gfx90a.DEVICE, same)(
        a.data_ptr(), b.data_ptr(), 0, out.data_ptr(), 0
    )
    assert bool((out == case.k).all())


def _caught() -> bool:
    """Whether the witnesses fail, in a child: a mutant that reads beyond its operands may crash."""
    _compile(WITNESSES, every=True)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # OpenMP's threads do not survive the fork
        try:
            wrong = [text for text in _verdicts() if "CompileError" not in text]
        except (AssertionError, LaunchError):
            wrong = ["wrong beside the fence"]
        os._exit(1 if wrong else 0)
    _, status = os.waitpid(child, 0)
    return status != 0


#: Every other one by default, as with the cases.
PLANTED = list(MUTANTS) if os.environ.get("PORTAGEMM_EMULATE_ALL") else list(MUTANTS)[::2]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault, planted in the sources, gives wrong numbers or an error of the emulator in a few small cases."""
    _install(monkeypatch, gfx90a.Backend(_mutant(*MUTANTS[name])))
    launch.clear()
    assert _caught()
    launch.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
def test_unchanged_sources_pass_the_witnesses() -> None:
    _compile(WITNESSES, every=True)
    assert _verdicts() == []


@pytest.mark.usefixtures("emulated")
def test_lanes_that_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A barrier that some lanes skip is found, not waited for."""
    publish = "publish<scope::block>(tile.stage_a(1 - s), *this);"
    changed = _mutant("schedule/two_stages.hpp", publish, f"if (this->thread != 5) {publish}")
    _install(monkeypatch, gfx90a.Backend(changed))
    launch.clear()
    plan = testing.plans(WITNESSES[0], gfx90a.DEVICE)[0]
    a, b = torch.ones(72, 136, dtype=torch.half), torch.ones(80, 136, dtype=torch.half)
    with pytest.raises(LaunchError, match="lanes wait for each other at different places"):
        _multiply(a, b, plan)
    launch.clear()
