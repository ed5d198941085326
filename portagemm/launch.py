"""From a GemmProblem to something that runs: plan -> source -> code (cache, pack or compiler) -> launch.

`launcher` is the one way there, for operations, tests and benchmarks alike. It keeps what it made.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
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
    """The kernels of a plan, loaded on one device for one problem.

    Attributes:
        problem, plan, selection: what was prepared, how it was planned, which profile decided.
        launch: the driver's launch, or two of them; takes the *problem's* pointers (a, b, c, d, bias), scalars,
            stream.
        driver: its current_stream(device.index) is the stream to launch on.
        origin: where the (first) kernel's code came from: "memory", "pack", "disk" or "compiled".
        seconds: what getting all code took.
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


@dataclass(frozen=True)
class SlicedLaunch:
    """Two launches with fp32 sums in between: slices of K, then the kernel that adds them up.

    The workspace comes from torch's allocator at each call, for the stream of the call: it may be handed out again
    as soon as the call has returned, because whatever gets it next is enqueued behind.
    """

    slices: Launch
    reduce: Launch
    device: Device
    driver: Driver
    workspace_bytes: int

    def __call__(self, pointers: Sequence[int], scalars: Sequence[float], stream: int) -> None:
        """See portagemm.hal.program.Launch. Raises torch.OutOfMemoryError where there is no workspace."""
        a, b, c, d, bias = pointers
        with self._on(stream):
            sums = workspace(self.device, self.workspace_bytes)
        self.slices((a, b, 0, sums.data_ptr(), 0), (1.0, 0.0), stream)
        self.reduce((sums.data_ptr(), 0, c, d, bias), scalars, stream)

    def _on(self, stream: int) -> AbstractContextManager[object]:
        """Makes a stream the one that torch allocates for, if it is another."""
        if stream == self.driver.current_stream(self.device.index):
            return nullcontext()
        import torch

        return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=self.device.index))


def workspace(device: Device, size: int) -> torch.Tensor:
    """`size` bytes on the device, whatever they hold, from torch's allocator."""
    import torch

    where = "cpu" if device.backend == "cpu" else f"cuda:{device.index}"
    return torch.empty(size, dtype=torch.uint8, device=where)


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
    """One line for the tiles of the profile that cannot compute the problem for the same reason."""
    from portagemm import plan as planner

    by_reason: dict[str, list[str]] = {}
    for name, why in planner.rejections(problem, selection_of(device).profile, device):
        by_reason.setdefault(why, []).append(name)
    return [f"not {', '.join(names)}: {why}" for why, names in by_reason.items()]


# --- compiling -----------------------------------------------------------------------------------------


def sources_of(plan: GemmPlan, device: Device) -> list[KernelSource]:
    """The sources of a plan's kernels for a device, in the order they run."""
    from portagemm import plan as planner

    selection = selection_of(device)
    return [planner.kernel_source(k, selection.profile, selection.target) for k in plan.kernels]


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
    """One sentence a kernel for explain: where its code would come from. Compiles nothing.

    Raises NoCompilerError where it can come from nowhere.
    """
    outlooks = []
    for source in sources_of(plan, device):
        found = at_hand(source)
        if found is not None:
            outlooks.append(f"kernel {source.symbol}: from {found.origin}, made by {found.code.compiler}")
            continue
        compiler = usable_compiler(device.backend)
        if compiler is None:
            raise _nowhere(source)
        outlooks.append(f"kernel {source.symbol}: to be compiled by {compiler.identity()}")
    return "; ".join(outlooks)


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
    driver = registry.get(device.backend).driver()
    launches, results = [], []
    for step in planner.steps(problem, chosen, selection.profile, device):
        results.append(code_of(planner.kernel_source(step.kernel, selection.profile, selection.target)))
        try:
            launches.append(driver.prepare(results[-1].code, step.config, step.arguments, device.index))
        except LaunchError as e:
            batch = "".join(f"{extent}x" for extent in problem.batch)
            raise LaunchError(f"{e}, for {batch}{problem.m}x{problem.n}x{problem.k}") from e
    launch = launches[0]
    if len(launches) == 2:
        launch = SlicedLaunch(
            launches[0], launches[1], device, driver, planner.workspace_bytes(problem, chosen)
        )
    seconds = sum(result.seconds for result in results)
    made = PreparedGemm(problem, chosen, selection, device, launch, driver, results[0].origin, seconds)
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
