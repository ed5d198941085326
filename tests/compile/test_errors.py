"""What an arch or a contract does not allow does not compile, and the message says what is wrong.

Each text is compiled as a kernel by NVRTC; those that any vendor's compiler must refuse, by the host's as well.
Every fault has a twin without it that compiles, so that it is the fault that fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from portagemm import plan, prebuild
from portagemm.backends.cuda.backend import CudaBackend
from portagemm.backends.cuda.compiler import NvrtcCompiler
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.errors import CompileError
from portagemm.hal.profile import all_profiles
from portagemm.hal.source import shared_include_dir
from portagemm.hal.target import Target

pytestmark = pytest.mark.quick

SM80, SM90 = "portagemm/arch/sm80.hpp", "portagemm/arch/sm90.hpp"
TILE = "portagemm/tile.hpp"
DTYPES = "portagemm/dtypes.hpp"

ROLE = "struct role { static constexpr bool whole_block = %s; };\n"
STAGE = "using stage = swizzled_stage<fp16, 64, 64, major::k>;\n"
IN_A_ROLE = "a block barrier inside a role branch deadlocks"


@dataclass(frozen=True)
class Fault:
    """A text that must not compile.

    Attributes:
        header: what it includes. before: declarations. body: statements; `wrong` and `right` complete it.
        message: what the compiler must say. arch: whose compiler is asked.
    """

    header: str
    before: str
    body: str
    wrong: str
    right: str
    message: str
    arch: str = "sm_90a"


FAULTS = {
    "wgmma_width": Fault(
        SM90,
        "",
        "f32 d[%s / 2]; arch::wgmma_instruction<%s>::issue<bf16, 0, 0>(d, 0, 0);",
        "20",
        "32",
        "wgmma has N =",
    ),
    "wgmma_dtype": Fault(
        SM90, "", "(void)arch::wgmma<%s, 64>::k;", "f32", "bf16", "wgmma.m64nNk16 takes fp16 or bf16"
    ),
    "async_copy_width": Fault(
        SM80,
        STAGE,
        "(void)arch::async_copy<fp16, stage, major::k, %s, 128>::chunks;",
        "2",
        "4",
        "cp.async moves 4, 8 or 16 bytes",
        "sm_80",
    ),
    "async_copy_converts": Fault(
        SM80,
        STAGE,
        "(void)arch::async_copy<%s, stage, major::k, 16, 128>::chunks;",
        "f32",
        "fp16",
        "an asynchronous copy cannot convert",
        "sm_80",
    ),
    "mma_of_fp32": Fault(
        SM80,
        "",
        "(void)arch::mma_16816<%s>::m;",
        "f32",
        "bf16",
        "mma.m16n8k16 takes fp16 or bf16",
        "sm_80",
    ),
    "block_barrier_in_a_role": Fault(
        TILE, ROLE, "barrier<scope::block>(role{});", "false", "true", IN_A_ROLE
    ),
    "cluster_barrier_in_a_role": Fault(
        TILE, ROLE, "barrier<scope::cluster>(role{});", "false", "true", IN_A_ROLE
    ),
    "widened_barrier_in_a_role": Fault(
        TILE,
        ROLE % "false",
        "barrier<scope::%s>(role{});",
        "pair",
        "wave",
        "this backend widens the scope to the block, which a role branch may not do",
    ),
    "publish_to_fewer": Fault(
        TILE,
        ROLE % "true" + STAGE,
        "static shared_tile<stage, scope::%s>* tile; publish<scope::wave>(*tile, role{});",
        "block",
        "wave",
        "publish<Scope> is narrower than the tile's readers",
    ),
    "waves_that_do_not_cover": Fault(
        SM80,
        "",
        "(void)block_tile<arch::mma_16816<fp16>, 128, 64, 32, %s, 1>::m;",
        "3",
        "2",
        "waves must cover the block",
        "sm_80",
    ),
    "stage_too_shallow": Fault(
        SM80,
        "",
        "(void)block_tile<arch::mma_16816<fp16>, 128, 64, %s, 2, 1>::m;",
        "24",
        "32",
        "atoms must cover the stage's depth",
        "sm_80",
    ),
    "strided_stage": Fault(
        TILE,
        "",
        "(void)swizzled_stage<fp16, 64, 64, major::%s>::size;",
        "strided",
        "mn",
        "a stage is contiguous in K or in MN",
    ),
    "multicast_slices": Fault(
        SM90,
        "using stage = swizzled_stage<bf16, 176, 64, major::k>;",
        "(void)arch::tensor_copy<bf16, stage, arch::operand_name::b, %s>::boxes;",
        "4",
        "2",
        "a multicast slice is whole swizzle periods",
    ),
}


Text = tuple[str, str]  # declarations, statements


def texts(fault: Fault) -> tuple[Text, Text]:
    """The text with the fault, and without."""

    def fill(value: str) -> Text:
        return fault.before.replace("%s", value), fault.body.replace("%s", value)

    return fill(fault.wrong), fill(fault.right)


def nvrtc_error(compiler: NvrtcCompiler, fault: Fault, declarations: str, statements: str) -> str:
    """What NVRTC says; "" if it compiles."""
    source = f"""
    #include <{fault.header}>
    #include <{TILE}>
    #include <{DTYPES}>
    namespace {{
    using namespace pg;
    {declarations}
    }}
    extern "C" __global__ void kernel() {{ {statements} }}
    """
    options = CompileOptions((*CudaBackend().include_dirs(), shared_include_dir()))
    try:
        compiler.compile(source, "kernel", Target("cuda", fault.arch, 32), options)
    except CompileError as error:
        return error.log
    return ""


@pytest.fixture(scope="module")
def nvrtc() -> NvrtcCompiler:
    """NVRTC; skips without it."""
    compiler = NvrtcCompiler()
    reason = compiler.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    return compiler


@pytest.mark.parametrize("name", FAULTS)
def test_nvrtc_refuses(nvrtc: NvrtcCompiler, name: str) -> None:
    fault = FAULTS[name]
    wrong, right = texts(fault)
    assert fault.message in nvrtc_error(nvrtc, fault, *wrong)
    assert nvrtc_error(nvrtc, fault, *right) == ""


@pytest.mark.parametrize(
    "name", ["block_barrier_in_a_role", "publish_to_fewer", "stage_too_shallow", "strided_stage"]
)
def test_the_host_refuses(host_check: Any, name: str) -> None:
    fault = FAULTS[name]
    (wrong, bad), (right, good) = texts(fault)
    assert fault.message in host_check.error(
        [fault.header, TILE, DTYPES], f"{wrong} void check() {{ {bad} }}"
    )
    host_check.compiles([fault.header, TILE, DTYPES], f"{right} void check() {{ {good} }}")


OLDER = [
    ("h100", "warp_specialized", "sm_80", "warp_specialized needs setmaxnreg and tensor copies: sm_90a"),
    ("h100", "warp_specialized", "sm_80", "wgmma.mma_async exists on sm_90a alone"),
    ("h100", "warp_specialized", "sm_90", "wgmma.mma_async exists on sm_90a alone"),
    ("a100", "multistage", "sm_75", "cp.async need sm_80 or newer"),
]


@pytest.mark.parametrize(("profile", "schedule", "arch", "message"), OLDER)
def test_kernels_of_a_newer_arch(
    nvrtc: NvrtcCompiler, profile: str, schedule: str, arch: str, message: str
) -> None:
    """A whole kernel, compiled for an arch that lacks its instructions: the part that needs them says so."""
    known = all_profiles()[profile]
    problem = next(prebuild.problems(prebuild.Wanted(("bfloat16",), layouts=("nt",), epilogues=("none",))))
    candidates = plan.candidates(problem, known, prebuild.described_device(known))
    kernel = next(c.kernel for c in candidates if c.kernel.schedule == schedule)
    source = plan.kernel_source(kernel, known, Target("cuda", arch, 32))
    with pytest.raises(CompileError) as raised:
        nvrtc.compile(source.text, source.symbol, source.target, CompileOptions(source.include_dirs))
    assert message in raised.value.log
    assert "ptxas" not in raised.value.log, "refused before any assembler"
