"""Kernels built ahead of time, for an arch that need not be present: what `portagemm compile` packs.

What is compiled into a kernel are dtypes, layouts, access widths, tile and epilogue, not extents. So a
handful of described problems stands for all calls with these properties.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from portagemm import launch, plan
from portagemm.hal import registry
from portagemm.hal.device import Device
from portagemm.hal.dtypes import BY_TORCH_NAME, FP32, DType
from portagemm.hal.errors import OptionError, PortaGemmError, ProfileError, UnsupportedError
from portagemm.hal.profile import ArchProfile, all_profiles, obstacle
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource
from portagemm.hal.target import Target
from portagemm.problem import ACTIVATIONS, GemmProblem, View, build

#: Layouts of A (m, k) and B (k, n) by BLAS's letters: last (n) or first (t) dimension contiguous.
LAYOUTS = ("nn", "nt", "tn", "tt")


#: Many rows, few, one: what stands for all shapes, since some tiles are for few rows only.
SHAPES: tuple[tuple[int, int, int], ...] = ((4096, 4096, 4096), (16, 4096, 4096), (1, 4096, 4096))


@dataclass(frozen=True)
class Wanted:
    """The properties to build for; every combination is built.

    Attributes:
        dtypes: torch's names, and "tf32" for float32 at reduced precision. out: "same", "float32".
        layouts: of LAYOUTS. alignments: bytes, of addresses and rows.
        epilogues: "none", or parts joined by "+": "c" (beta * C), "bias", an activation.
        shapes: (m, n, k). every_tile: all that fit, not just the one the plan takes for a shape.
    """

    dtypes: Sequence[str] = ("float16", "bfloat16")
    out: Sequence[str] = ("same",)
    layouts: Sequence[str] = LAYOUTS
    alignments: Sequence[int] = (16,)
    epilogues: Sequence[str] = ("none", "bias")
    shapes: Sequence[tuple[int, int, int]] = SHAPES
    every_tile: bool = True


def find_profile(name: str) -> ArchProfile:
    """The profile of a name (h100) or, if only one has it, of an arch (sm_90a). Raises ProfileError."""
    profiles = all_profiles()
    if name in profiles:
        return profiles[name]
    of_arch = [p for p in profiles.values() if p.arch == name]
    if len(of_arch) == 1:
        return of_arch[0]
    known = ", ".join(f"{p.name} ({p.arch})" for p in profiles.values())
    raise ProfileError(f"arch: given {name!r}; allowed: {known}")


def described_device(profile: ArchProfile, arch: str | None = None, board: str | None = None) -> Device:
    """A device as planning needs it, made from the profile.

    Args:
        arch: the arch of the device that will run the kernels, where it is not the profile's own.
        board: name of one of the profile's boards; the first by default.

    Raises ProfileError for a board that is not listed, and for an arch on which the profile's code cannot run.
    """
    if profile.backend == "cpu":  # compiled for the very machine
        return registry.get("cpu").devices()[0]
    chosen = next((b for b in profile.boards if board in (None, b.name)), None)
    if chosen is None and (board is not None or not profile.boards):
        names = ", ".join(b.name for b in profile.boards) or "none"
        raise ProfileError(f"board: given {board!r}; allowed with profile {profile.name}: {names}")
    assert chosen is not None
    device = Device(
        backend=profile.backend,
        index=0,
        name=chosen.name,
        arch=arch or profile.matches[0],
        compute_units=chosen.compute_units,
        l2_bytes=chosen.l2_bytes,
        shared_bytes_per_block=profile.limits.shared_bytes_per_block,
        threads_per_block=profile.limits.threads_per_block,
        memory_bandwidth=chosen.memory_bandwidth,
    )
    reason = obstacle(profile, device)
    if reason is not None:
        raise ProfileError(f"device arch: given {arch} with profile {profile.name}: {reason}")
    return device


def problems(wanted: Wanted) -> Iterator[GemmProblem]:
    """One problem for each combination. Raises OptionError for a name that does not exist."""
    for dtype, out, layout, alignment, epilogue, shape in itertools.product(
        wanted.dtypes, wanted.out, wanted.layouts, wanted.alignments, wanted.epilogues, wanted.shapes
    ):
        yield _problem(dtype, out, layout, alignment, epilogue, shape)


def _problem(
    dtype: str, out: str, layout: str, alignment: int, epilogue: str, shape: tuple[int, int, int]
) -> GemmProblem:
    m, n, k = shape
    operand = BY_TORCH_NAME.get("float32" if dtype == "tf32" else dtype)
    if operand is None:
        raise OptionError("dtype", dtype, f"{', '.join(BY_TORCH_NAME)}, tf32")
    if out not in ("same", "float32"):
        raise OptionError("out", out, "same, float32")
    if layout not in LAYOUTS:
        raise OptionError("layout", layout, ", ".join(LAYOUTS))
    if alignment not in (16, 8, 4, 2):
        raise OptionError("alignment", alignment, "16, 8, 4, 2")
    result = FP32 if out == "float32" else operand
    parts = set(epilogue.split("+")) - {"none"}
    activations = parts & set(ACTIVATIONS)
    if parts - {"c", "bias"} - activations or len(activations) > 1:
        raise OptionError(
            "epilogue", epilogue, f"none, or joined by +: c, bias, one of {', '.join(ACTIVATIONS[1:])}"
        )

    def view(dtype: DType, rows: int, cols: int, transposed: bool = False) -> View:
        # An address of `alignment` limits the access width to it.
        pad = 0 if alignment == 16 else alignment // dtype.bytes
        strides = (1, rows + pad) if transposed else (cols + pad, 1)
        return View(dtype, (rows, cols), strides, max(alignment, dtype.bytes))

    return build(
        view(operand, m, k, layout[0] == "t"),
        view(operand, k, n, layout[1] == "t"),
        view(result, m, n),
        c=view(result, m, n) if "c" in parts else None,
        bias=View(operand, (n,), (1,), alignment) if "bias" in parts else None,
        activation=next(iter(activations), "none"),
        precision="tf32" if dtype == "tf32" else "ieee",
    )


def sources(wanted: Wanted, profile: ArchProfile, device: Device) -> list[KernelSource]:
    """The kernels for all of `wanted`, each once, in a stable order.

    Raises UnsupportedError where no kernel of the profile takes one of the problems.
    """
    target: Target = profile.target(device)
    found: dict[str, KernelSource] = {}
    for problem in problems(wanted):
        if wanted.every_tile:
            plans = plan.candidates(problem, profile, device)
            if not plans:
                plan.plan(problem, profile, device)  # raises, with the reasons
        else:
            plans = [plan.plan(problem, profile, device)]
        for chosen in plans:
            for kernel in chosen.kernels:
                source = plan.kernel_source(kernel, profile, target)
                found.setdefault(source.symbol, source)
    if not found:
        raise UnsupportedError("compile", "nothing was asked for", "at least one dtype, layout and shape")
    return list(found.values())


@dataclass(frozen=True)
class Built:
    """A kernel that was built, or the error that its compiler gave.

    origin: "memory", "disk", "pack" or "compiled"; seconds: what it took.
    """

    source: KernelSource
    code: ObjectCode | None
    origin: str
    seconds: float
    error: str = ""


def _build(source: KernelSource) -> Built:
    """Runs in a process of its own: compilers differ in whether they run beside each other in one."""
    try:
        result = launch.code_of(source)
    except PortaGemmError as error:
        return Built(source, None, "", 0.0, str(error))
    return Built(source, result.code, result.origin, result.seconds)


def compile_all(kernels: Iterable[KernelSource], jobs: int) -> Iterator[Built]:
    """Build kernels with `jobs` processes, each result as it is there."""
    if jobs == 1:
        yield from map(_build, kernels)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_build, source) for source in kernels]):
            yield future.result()
