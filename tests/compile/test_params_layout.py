"""The host's argument block is the kernel's argument, byte for byte, and the planner counts shared memory as it is.

A problem whose every extent and stride is another number is planned and packed; C++ compiled against the device
headers reads the bytes as the kernel would and names each field.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from portagemm import plan, prebuild
from portagemm.hal.dtypes import BF16, FP32, DType
from portagemm.hal.profile import ArchProfile, all_profiles
from portagemm.kernel_config import KernelConfig, kernel_text, shared_bytes
from portagemm.problem import GemmProblem, Operand

pytestmark = pytest.mark.quick

OPERANDS = ("a", "b", "c", "d", "bias")


def sources_of(kernels: Sequence[KernelConfig], profile: ArchProfile) -> str:
    """The kernels' texts in one: config number i is k<i>::config."""
    parts, includes = [], dict[str, None]()
    for i, kernel in enumerate(kernels):
        text = kernel_text(kernel, profile)
        head, body = text.split("\nnamespace {\n")
        includes.update(dict.fromkeys(line for line in head.splitlines() if line.startswith("#include")))
        config, _ = body.rsplit("\nPG_ENTRY(", 1)
        parts.append(f"namespace k{i} {{\n{config}")
    facts = kernel_text(kernels[0], profile).split("#include", 1)[0]
    return "\n".join([facts, *includes, *parts])


def problem_of(dtype: DType, batch: tuple[int, ...], order: str, epilogue: bool) -> GemmProblem:
    """Every stride and extent differs from all others, and the operands suit a tensor copy."""
    numbers = iter(range(8, 10_000, 8))

    def operand(contiguous: int, element: DType) -> Operand:
        strides = (65536 + next(numbers), 1) if contiguous else (1, 65536 + next(numbers))
        return Operand(element, strides, tuple(1 << 20 | next(numbers) for _ in batch))

    along = 1 if order == "k" else 0
    return GemmProblem(
        m=4096 + next(numbers),
        n=4096 + next(numbers),
        k=4096 + next(numbers),
        a=operand(along, dtype),
        b=operand(along, dtype),
        d=operand(1, dtype),
        batch=batch,
        c=operand(1, dtype) if epilogue else None,
        bias=Operand(dtype, (0, 1), tuple(next(numbers) for _ in batch)) if epilogue else None,
    )


_READ = """
%s
using args = gemm_args<k0::config>;
alignas(64) static const u8 bytes_of_host[] = {%s};
static_assert(sizeof bytes_of_host == sizeof(args));

static std::vector<i64> strides(const operand& o) {
    return {o.row, o.col, o.batch[0], o.batch[1], o.batch[2], o.batch[3]};
}
void check() {
    const args& block = *reinterpret_cast<const args*>(bytes_of_host);
    const gemm_params& p = block.params;
    entry("a", strides(p.a));
    entry("b", strides(p.b));
    entry("c", strides(p.c));
    entry("d", strides(p.d));
    entry("bias", strides(p.bias));
    entry("extents", std::vector<i64>{p.m, p.n, p.k, p.raster, p.tiles, p.tiles_m, p.tiles_n});
    entry("batch", std::vector<i64>(p.batch, p.batch + 4));
    entry("slices", std::vector<i64>{p.slices, p.slice_k, p.slice_d});
    entry("scalars", std::vector<f32>{p.alpha, p.beta});
    entry("pointers", std::vector<i64>{offsetof(args, params.a.ptr), offsetof(args, params.b.ptr),
                                       offsetof(args, params.c.ptr), offsetof(args, params.d.ptr),
                                       offsetof(args, params.bias.ptr)});
    entry("scalar_offsets", std::vector<i64>{offsetof(args, params.alpha), offsetof(args, params.beta)});
    %s
}
"""

_READ_TENSOR = """
    entry("maps", std::vector<i64>{offsetof(args, copies.a), offsetof(args, copies.b), offsetof(args, copies.d)});
    entry("batched", std::vector<i64>{block.copies.a_batched, block.copies.b_batched});
"""


def read_back(
    host_check: Any, problem: GemmProblem, chosen: plan.GemmPlan, profile: ArchProfile
) -> dict[str, list[Any]]:
    """The fields as the kernel finds them."""
    block = plan.arguments(problem, chosen)
    text = _READ % (
        sources_of([chosen.kernel], profile),
        ", ".join(map(str, block.template)),
        _READ_TENSOR if chosen.kernel.a.copy == "tensor" else "",
    )
    found: dict[str, list[Any]] = host_check.run([], text)
    return found


def plans_of(problem: GemmProblem, profile: ArchProfile, schedule: str) -> plan.GemmPlan:
    device = prebuild.described_device(profile)
    return next(p for p in plan.candidates(problem, profile, device) if p.kernel.schedule == schedule)


#: A descriptor has one batch dimension, other copies address four.
BATCHES = [
    *(("a100", "multistage", batch) for batch in ((), (5,), (5, 3), (7, 5, 3, 2))),
    *(("h100", "warp_specialized", batch) for batch in ((), (5,))),
]


@pytest.mark.parametrize("batch", [(), (5, 3)], ids=str)
def test_slices_of_k(host_check: Any, batch: tuple[int, ...]) -> None:
    """The first step writes sums in rows of whole vectors, slice after slice; the second one reads just these."""
    arch = all_profiles()["a100"]
    device = prebuild.described_device(arch)
    problem = replace(problem_of(BF16, batch, "k", epilogue=True), k=1000)
    chosen = plan.sliced(problem, arch, device, plans_of(problem, arch, "multistage"), 3)
    first, second = plan.steps(problem, chosen, arch, device)
    assert first.kernel == chosen.kernel and second.kernel == chosen.reduce and chosen.kernel.c is None
    found = read_back(host_check, problem, chosen, arch)
    row, count = -(-problem.n // 8) * 8, math.prod(batch)
    inner = [problem.m * row * step for step in ((3, 1) if batch else ())]
    assert found["d"] == [row, 1, *(0,) * (4 - len(batch)), *inner]
    assert found["slices"] == [3, 384, count * problem.m * row], "steps of 64: 384 + 384 + 232"
    assert plan.workspace_bytes(problem, chosen) == 3 * count * problem.m * row * 4
    reduced = second.arguments.template
    assert struct.unpack_from("<2q4q", reduced, 8) == tuple(found["d"]), "its A is the first step's D"
    assert struct.unpack_from("<2iq", reduced, 336) == (3, problem.k, found["slices"][2])
    vectors = -(-problem.n // chosen.reduce.d_vector)
    assert struct.unpack_from("<q", reduced, 320) == (count * problem.m * vectors,)
    assert second.arguments.pointer_offsets == first.arguments.pointer_offsets == (0, 56, 112, 168, 224)


@pytest.mark.parametrize(("profile", "schedule", "batch"), BATCHES, ids=str)
def test_argument_block(host_check: Any, profile: str, schedule: str, batch: tuple[int, ...]) -> None:
    arch = all_profiles()[profile]
    problem = problem_of(BF16, batch, "k", epilogue=True)
    chosen = plans_of(problem, arch, schedule)
    found, block = read_back(host_check, problem, chosen, arch), plan.arguments(problem, chosen)
    pad = (0,) * (4 - len(batch))
    for name in OPERANDS:
        operand = getattr(problem, name)
        assert found[name] == [*operand.strides, *pad, *operand.batch_strides], name
    extents = [problem.m, problem.n, problem.k, chosen.raster, chosen.tiles, chosen.tiles_m, chosen.tiles_n]
    assert found["extents"] == extents
    assert found["batch"] == [*(1 for _ in pad), *batch]
    assert found["slices"] == [1, problem.k, 0]
    assert found["scalars"] == [1.0, 0.0]
    assert found["pointers"] == list(block.pointer_offsets)
    assert found["scalar_offsets"] == list(block.scalar_offsets)
    if schedule == "warp_specialized":
        assert found["maps"][: len(block.tensor_maps)] == [m.offset for m in block.tensor_maps]
        assert found["batched"] == [int(bool(batch))] * 2


def test_absent_operands_are_zero(host_check: Any) -> None:
    arch = all_profiles()["a100"]
    problem = problem_of(FP32, (), "mn", epilogue=False)
    found = read_back(host_check, problem, plans_of(problem, arch, "multistage"), arch)
    assert found["c"] == found["bias"] == [0] * 6


def test_broadcast_operands_have_no_batch(host_check: Any) -> None:
    """A descriptor of a repeated operand has one batch; the kernel multiplies its index by 0."""
    arch = all_profiles()["h100"]
    problem = problem_of(BF16, (5,), "k", epilogue=False)
    problem = replace(problem, b=replace(problem.b, batch_strides=(0,)))
    chosen = plans_of(problem, arch, "warp_specialized")
    assert read_back(host_check, problem, chosen, arch)["batched"] == [1, 0]
    first, second = plan.arguments(problem, chosen).tensor_maps[:2]
    assert (first.shape[2], second.shape[2]) == (5, 1)


# --- shared memory --------------------------------------------------------------------------------------


def kernels_of(profile: ArchProfile) -> list[KernelConfig]:
    """Every tile, with every store and dtype that changes what a block holds in shared memory."""
    device = prebuild.described_device(profile)
    dtypes = ("float16", "bfloat16", "float32", "tf32")
    found: dict[tuple[Any, ...], KernelConfig] = {}
    wanted = prebuild.Wanted(dtypes, ("same", "float32"), alignments=(16, 2), epilogues=("none", "c"))
    for problem in prebuild.problems(wanted):
        for candidate in plan.candidates(problem, profile, device):
            k = candidate.kernel
            found.setdefault((k.tile, k.schedule, k.store, k.columns, k.d, k.a.dtype), k)
    return list(found.values())


@pytest.mark.parametrize("name", ["a100", "h100", "rtx4090", "cpu"])
def test_shared_bytes(host_check: Any, name: str) -> None:
    """Enough for all a block holds, and less than 1 KB too much."""
    profile = all_profiles()[name]
    kernels = kernels_of(profile)
    assert len(kernels) >= (2 if name == "cpu" else 20)
    spellings = ("gemm_shared<k{}::config>", "k{}::config::tile::shared")
    sizes = ", ".join(
        f"sizeof({spellings[k.schedule in ('gemv', 'skinny')].format(i)})" for i, k in enumerate(kernels)
    )
    text = f'{sources_of(kernels, profile)}\nvoid check() {{ entry("sizes", std::vector<i64>{{{sizes}}}); }}'
    found = host_check.run([], text, f"-DPG_CHECK_WAVE_SIZE={profile.wave_size}")["sizes"]
    for kernel, size in zip(kernels, found, strict=True):
        counted = shared_bytes(kernel, profile.wave_size)
        assert size <= counted <= size + 1024, (
            f"{kernel.symbol(profile.arch)}: {size} bytes, counted {counted}"
        )


def test_a_wrong_count_does_not_compile(host_check: Any) -> None:
    """A kernel that needs more than was counted says so when it is compiled, not when it runs."""
    profile = all_profiles()["a100"]
    kernel = next(k for k in kernels_of(profile) if k.schedule == "multistage")
    text = sources_of([kernel], profile)
    counted = shared_bytes(kernel, profile.wave_size)
    wrong, changed = re.subn(rf"<= {counted},", f"<= {counted - 1024},", text)
    assert changed == 1
    host_check.compiles([], text)
    assert "the planner counts shared memory wrongly" in host_check.error([], wrong)
