"""From a GemmProblem to something that runs: plan -> source -> code (cache, pack or compiler) -> launch.

`launcher` is the one way there, for operations, tests and benchmarks alike. It keeps what it made.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from portagemm.hal import profile as profiles
from portagemm.hal import registry
from portagemm.hal.cache import CacheResult, default_cache, forget_default_caches
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.errors import BackendUnavailableError, DeviceError, LaunchError, NoCompilerError

if TYPE_CHECKING:
    import torch

    from portagemm.hal.compiler import Compiler
    from portagemm.hal.device import Device
    from portagemm.hal.profile import Selection
    from portagemm.hal.program import Driver, Launch, ObjectCode
    from portagemm.hal.source import KernelSource
    from portagemm.plan import GemmPlan
    from portagemm.problem import GemmProblem

#: Prepared launches kept; a problem not used for longest goes first.
BOUND = 1024


@dataclass(frozen=True)
class PreparedGemm:
    """A kernel loaded on one device for one problem.

    Attributes:
        problem, plan, selection: what was prepared, how it was planned, which profile decided.
        launch: the driver's launch; takes the *problem's* pointers (a, b, c, d, bias), scalars, stream.
        driver: its current_stream(device.index) is the stream to launch on.
        origin: where the code came from: "memory", "pack", "disk" or "compiled". seconds: what that took.
    """

    problem: GemmProblem
    plan: GemmPlan
    selection: Selection
    device: Device
    launch: Launch
    driver: Driver
    origin: str
    seconds: float

    def __call__(
        self,
        a_ptr: int,
        b_ptr: int,
        c_ptr: int,
        d_ptr: int,
        bias_ptr: int,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: int | None = None,
    ) -> None:
        """Enqueue on `stream` (None: torch's current stream of the device).

        `a_ptr` and `b_ptr` are the caller's operands: where the problem is swapped they are exchanged here.
        Raises LaunchError.
        """
        if stream is None:
            stream = self.driver.current_stream(self.device.index)
        if self.problem.swapped:
            a_ptr, b_ptr = b_ptr, a_ptr
        self.launch((a_ptr, b_ptr, c_ptr, d_ptr, bias_ptr), (alpha, beta), stream)


# --- devices and profiles ------------------------------------------------------------------------------


def device_of(device: torch.device) -> Device:
    """The hal device of a tensor's device.

    Raises BackendUnavailableError when the backend that owns it cannot run here, DeviceError when no
    backend owns it.
    """
    index = device.index
    if index is None and device.type == "cuda":
        import torch

        index = torch.cuda.current_device()
    return _device(device.type, index or 0)


@functools.cache
def _device(kind: str, index: int) -> Device:
    if kind == "cpu":
        name = "cpu"
    elif kind == "cuda":
        import torch

        name = "rocm" if torch.version.hip else "cuda"
    else:
        raise DeviceError("device", kind, "cpu, cuda (NVIDIA or AMD)")
    backend = registry.get(name)
    reason = backend.unavailable_reason()
    if reason is not None:
        raise BackendUnavailableError(name, reason)
    for device in backend.devices():
        if device.index == index:
            return device
    raise BackendUnavailableError(
        name, f"torch has a device {kind}:{index}, the driver reports none of that index"
    )


def selection_of(device: Device) -> Selection:
    """The profile in force for a device, its target and the reason. Raises ProfileError."""
    return profiles.for_device(device)


def planned(problem: GemmProblem, device: Device) -> GemmPlan:
    """The plan `launcher` would take, without compiling. Raises UnsupportedError."""
    from portagemm import plan as planner

    return planner.plan(problem, selection_of(device).profile, device)


def rejected(problem: GemmProblem, device: Device) -> list[str]:
    """One line for each tile of the profile that cannot compute the problem, with the reason."""
    from portagemm import plan as planner

    return [
        f"not {name}: {why}"
        for name, why in planner.rejections(problem, selection_of(device).profile, device)
    ]


# --- compiling -----------------------------------------------------------------------------------------


def source_of(plan: GemmPlan, device: Device) -> KernelSource:
    """The source of a plan's kernel for a device."""
    from portagemm import plan as planner

    selection = selection_of(device)
    return planner.kernel_source(plan.kernel, selection.profile, selection.target)


def code_of(source: KernelSource) -> CacheResult:
    """Compiled code for a source: from memory, a pack, the disk cache or the first usable compiler.

    Raises NoCompilerError listing every compiler's reason, CompileError with the compiler's log.
    """
    compiler = usable_compiler(source.target.backend)
    options = CompileOptions(source.include_dirs, source.defines)

    def compile_it() -> ObjectCode:
        if compiler is None:
            raise _nowhere(source)
        return compiler.compile(source.text, source.symbol, source.target, options)

    if compiler is None:
        return default_cache().get_or_build(source, compile_it, "none")
    flags = compiler.flags(source.target, options)
    return default_cache().get_or_build(source, compile_it, compiler.identity(), flags)


def at_hand(source: KernelSource) -> CacheResult | None:
    """Compiled code for a source if memory, a pack or the disk cache has it. Compiles nothing."""
    compiler = usable_compiler(source.target.backend)
    if compiler is None:
        return default_cache().lookup(source, "none")
    flags = compiler.flags(source.target, CompileOptions(source.include_dirs, source.defines))
    return default_cache().lookup(source, compiler.identity(), flags)


def usable_compiler(backend: str) -> Compiler | None:
    """The first of a backend's compilers that can be used here."""
    return next((c for c in registry.get(backend).compilers() if c.unavailable_reason() is None), None)


def _nowhere(source: KernelSource) -> NoCompilerError:
    """The error that says why nothing can compile here, compiler by compiler."""
    compilers = registry.get(source.target.backend).compilers()
    obstacles = "; ".join(f"{_name(c)}: {c.unavailable_reason()}" for c in compilers) or "there is none"
    return NoCompilerError(
        f"kernel {source.symbol} for {source.target} is neither cached nor in a pack (PORTAGEMM_KERNEL_PATH), "
        f"and no compiler can be used: {obstacles}"
    )


def _name(compiler: Compiler) -> str:
    return str(getattr(compiler, "name", type(compiler).__name__))


def compile_outlook(device: Device, plan: GemmPlan) -> str:
    """One sentence for explain: where this kernel's code would come from. Compiles nothing.

    Raises NoCompilerError where it can come from nowhere.
    """
    source = source_of(plan, device)
    found = at_hand(source)
    if found is not None:
        return f"kernel {source.symbol}: from {found.origin}, made by {found.code.compiler}"
    compiler = usable_compiler(device.backend)
    if compiler is None:
        raise _nowhere(source)
    return f"kernel {source.symbol}: to be compiled by {compiler.identity()}"


# --- launchers -----------------------------------------------------------------------------------------

_lock = threading.Lock()
_prepared: OrderedDict[tuple[object, ...], PreparedGemm] = OrderedDict()


def launcher(problem: GemmProblem, device: Device, plan: GemmPlan | None = None) -> PreparedGemm:
    """A launch prepared for `problem` on `device`, planned here unless `plan` is given. Thread-safe, bounded.

    Raises UnsupportedError (no kernel fits), ProfileError, NoCompilerError, CompileError, LaunchError.
    """
    from portagemm import plan as planner

    selection = selection_of(device)
    key = (problem, device, selection.profile.name, str(selection.target), plan)
    with _lock:
        found = _prepared.get(key)
        if found is not None:
            _prepared.move_to_end(key)
            return found
    # Outside the lock: other problems need not wait for a compile, and the cache compiles each kernel once.
    chosen = plan if plan is not None else planner.plan(problem, selection.profile, device)
    result = code_of(planner.kernel_source(chosen.kernel, selection.profile, selection.target))
    driver = registry.get(device.backend).driver()
    try:
        launch = driver.prepare(
            result.code, planner.launch_config(chosen), planner.arguments(problem, chosen), device.index
        )
    except LaunchError as e:
        batch = "".join(f"{extent}x" for extent in problem.batch)
        raise LaunchError(f"{e}, for {batch}{problem.m}x{problem.n}x{problem.k}") from e
    made = PreparedGemm(problem, chosen, selection, device, launch, driver, result.origin, result.seconds)
    with _lock:
        _prepared[key] = made
        while len(_prepared) > BOUND:
            _prepared.popitem(last=False)
    return made


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # a lock's holder does not exist in a forked child
    os.register_at_fork(after_in_child=_renew_lock)


def clear() -> None:
    """Forget every prepared launch, so that changed profiles, packs and cache folders are seen."""
    with _lock:
        _prepared.clear()
    forget_default_caches()
    _device.cache_clear()
