"""Run-time compilers for NVIDIA: NVRTC through cuda-python, and nvcc where NVRTC is missing.

Both emit machine code (a cubin) for one exact arch. A forced profile (`Target.assembled_for`) is compiled to
PTX of its own arch and assembled for the card's at once, so that no PTX reaches a driver that may be older
than the compiler. Only an arch the assemblers do not know yet leaves as PTX, for the driver to assemble.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

from portagemm.backends.cuda import libcuda
from portagemm.backends.cuda.probe import driver_text
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.errors import CompileError
from portagemm.hal.memo import remembered, stamp_of
from portagemm.hal.program import ObjectCode
from portagemm.hal.target import Target

#: Seconds one run of an external compiler may take.
TIMEOUT_S = 120.0

#: What nvcc would add to its command line unseen, and to the code of one kernel, but not to its key.
_NVCC_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")

#: Compiled and assembled once for each target, to learn which assembler takes it.
_TRIAL = 'extern "C" __global__ void trial() {}'

_RELEASE = re.compile(rb"release [\d.]+, V(\d+\.\d+\.\d+)")

_MINIMAL_SINCE = (12, 4)  # NVRTC's -minimal: leaves out declarations our sources never use


def _language_flags(target: Target, options: CompileOptions) -> tuple[str, ...]:
    """Flags both compilers take. IEEE arithmetic: no fast-math, contraction into FMA only."""
    flags: tuple[str, ...] = ("--std=c++20", "--relocatable-device-code=false", "--fmad=true")
    flags += tuple(f"-D{name}={value}" for name, value in options.defines)
    return (*flags, "--generate-line-info") if options.debug else flags


def _virtual(target: Target, symbol: str, compiler: str) -> str:
    """``sm_80`` -> ``compute_80``, for code that is assembled for another arch."""
    if not target.arch[-1].isdigit():
        raise CompileError(
            symbol, target, compiler, f"code for {target.arch} runs on that arch alone; PTX of it cannot be "
            f"assembled for {target.code_arch}"
        )  # fmt: skip
    return target.arch.replace("sm_", "compute_")


class NvrtcCompiler:
    """NVRTC, found by cuda-python: its wheel, a CUDA toolkit or the linker's paths. Needs no GPU."""

    name = "nvrtc"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nvrtc: Any = None
        self._version = (0, 0)
        self._identity = ""
        self._reason: str | None = None
        self._trials: dict[tuple[str, str, str], tuple[str, str]] = {}

    def unavailable_reason(self) -> str | None:
        """Which part is missing and how to install it; None if NVRTC compiles here."""
        with self._lock:
            if self._nvrtc is None and self._reason is None:
                self._reason = self._load()
            return self._reason

    def identity(self) -> str:
        """``nvrtc 13.0.88``. Raises RuntimeError with unavailable_reason()."""
        self._require()
        with self._lock:
            if not self._identity:
                self._identity = remembered("nvrtc", _loaded_stamp(), self._ask_identity)
            return self._identity

    def _ask_identity(self) -> str:
        # nvrtcVersion has no patch level, but the header of any PTX does.
        ptx, _ = self._run("", "identity", ["--gpu-architecture=compute_80"], "PTX", "PTX", "nvrtc")
        return f"nvrtc {_release(ptx) or '.'.join(map(str, self._version))}"

    def flags(self, target: Target, options: CompileOptions) -> tuple[str, ...]:
        """The flags that decide the result; a forced profile names its assembler too."""
        self._require()
        # Lambdas of the shared code carry no vendor's annotation: here everything is device code.
        flags = (*_language_flags(target, options), "--device-as-default-execution-space")
        if self._version >= _MINIMAL_SINCE:
            flags += ("-minimal",)
        if target.code_arch == target.arch:
            return (*flags, f"--gpu-architecture={target.arch}", "--ptxas-options=-v")
        virtual = _virtual(target, "", "nvrtc")
        return (*flags, f"--gpu-architecture={virtual}", f"--assembler={self._assembler(target)[0]}")

    def compile(self, source: str, symbol: str, target: Target, options: CompileOptions) -> ObjectCode:
        """Compile to a cubin for target.code_arch; `log` has ptxas's registers, spills and warnings.

        Raises CompileError with the log.
        """
        identity = self.identity()
        exact = target.code_arch == target.arch
        if not exact:
            _virtual(target, symbol, identity)
        flags = [flag for flag in self.flags(target, options) if not flag.startswith("--assembler=")]
        flags += [f"--include-path={folder}" for folder in options.include_dirs]
        code, log = self._run(source, symbol, flags, "CUBIN" if exact else "PTX", target, identity)
        if not exact:
            name, run, note = self._assembler(target)
            identity = f"{identity}, {name}"
            if run is None:
                log += f"left as PTX, which the driver assembles when it loads: {note}\n"
            else:
                code, assembler_log = run(code, symbol, target, options.debug, identity)
                log += assembler_log
        return _object(code, target, symbol, identity, log)

    def _assembler(self, target: Target) -> tuple[str, _Assemble | None, str]:
        """(name and version, what assembles, "") of the first assembler that takes this target's PTX.

        If neither knows the arch, or none is installed: (the driver's, None, why).
        """
        notes = []
        for tool in _assemblers():
            key = (tool.name, target.arch, target.code_arch)
            if key not in self._trials:
                self._trials[key] = self._try(tool, target)
            release, trouble = self._trials[key]
            if not trouble:
                return f"{tool.name.split()[0]} {release}" if release else tool.name, tool.run, ""
            notes.append(trouble)
        return _driver_identity(), None, "; ".join(notes) or "neither nvJitLink nor ptxas is installed"

    def _try(self, tool: _Assembler, target: Target) -> tuple[str, str]:
        """(the assembler's release, if its cubin says it, what is wrong) after a kernel that does nothing."""
        flags = [f"--gpu-architecture={_virtual(target, 'trial', 'nvrtc')}"]
        ptx, _ = self._run(_TRIAL, "trial", flags, "PTX", target, "nvrtc")
        try:
            return _release(tool.run(ptx, "trial", target, False, tool.name)[0]), ""
        except CompileError as error:
            return "", f"{tool.name}, {target.code_arch}: {error.log.strip()}"

    def _run(
        self, source: str, symbol: str, flags: list[str], result: str, target: object, identity: str
    ) -> tuple[bytes, str]:
        """One NVRTC program: (`result`, log), `result` being CUBIN or PTX."""
        nvrtc = self._nvrtc
        options = [flag.encode() for flag in flags]
        status, program = nvrtc.nvrtcCreateProgram(source.encode(), f"{symbol}.cu".encode(), 0, None, None)
        _nvrtc_check(status, symbol, target, identity, "")
        try:
            (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
            log = _nvrtc_bytes(nvrtc, "ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            _nvrtc_check(status, symbol, target, identity, log)
            return _nvrtc_bytes(nvrtc, result, program), log
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _require(self) -> None:
        reason = self.unavailable_reason()
        if reason is not None:
            raise RuntimeError(f"NVRTC is not available: {reason}")

    def _load(self) -> str | None:
        try:
            from cuda.bindings import nvrtc
        except ImportError as error:
            return f"cuda-python is not installed ({error}): {_install_hint()}"
        try:
            status, major, minor = nvrtc.nvrtcVersion()
        except RuntimeError as error:  # cuda-python's DynamicLibNotFoundError is one
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            return f"the NVRTC library was not found ({first}): {_install_hint()}"
        if int(status):
            return f"nvrtcVersion failed: {status}"
        if major < 12:
            return f"NVRTC {major}.{minor} has no C++20; 12.0 or newer is needed: {_install_hint()}"
        self._version = (major, minor)
        self._nvrtc = nvrtc
        return None


def _loaded_stamp() -> str | None:
    """What identifies the NVRTC library this process has loaded; None where the system does not say."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[-1] for line in lines if "/libnvrtc.so" in line}
    return stamp_of(paths.pop()) if len(paths) == 1 else None


class NvccCompiler:
    """nvcc of an installed CUDA toolkit: PATH, then CUDA_HOME, CUDA_PATH, /usr/local/cuda."""

    name = "nvcc"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version: str | None = None
        self._reason: str | None = None

    def unavailable_reason(self) -> str | None:
        """Why nvcc cannot be used here; None if it can."""
        with self._lock:
            if self._version is None and self._reason is None:
                self._reason = self._find()
            return self._reason

    def identity(self) -> str:
        """``nvcc 13.0.88``. Raises RuntimeError with unavailable_reason()."""
        reason = self.unavailable_reason()
        if reason is not None:
            raise RuntimeError(f"nvcc is not available: {reason}")
        return f"nvcc {self._version}"

    def flags(self, target: Target, options: CompileOptions) -> tuple[str, ...]:
        """The flags that decide the result."""
        virtual = target.arch.replace("sm_", "compute_")
        if target.code_arch != target.arch:
            virtual = _virtual(target, "", "nvcc")
        arch = (f"--gpu-architecture={virtual}", f"--gpu-code={target.code_arch}")
        return (*_language_flags(target, options), *arch, "--ptxas-options=-v", "--cubin")

    def compile(self, source: str, symbol: str, target: Target, options: CompileOptions) -> ObjectCode:
        """Compile to a cubin for target.code_arch. Raises CompileError with the log."""
        identity = self.identity()
        if target.code_arch != target.arch:
            _virtual(target, symbol, identity)
        tool = _find_tool("nvcc")
        assert tool is not None
        with tempfile.TemporaryDirectory(prefix="portagemm-") as folder:
            text, out = Path(folder, f"{symbol}.cu"), Path(folder, f"{symbol}.cubin")
            text.write_text(source)
            includes = [f"-I{path}" for path in options.include_dirs]
            command = [tool, *self.flags(target, options), *includes, "-o", str(out), str(text)]
            log = _tool(command, symbol, target, identity)
            return _object(out.read_bytes(), target, symbol, identity, log)

    def _find(self) -> str | None:
        tool = _find_tool("nvcc")
        if tool is None:
            return "no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda"
        try:
            done = subprocess.run(
                [tool, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                env=_environment(),
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"nvcc does not run: {error}"
        found = re.search(r"V(\d+)\.(\d+\.\d+)", done.stdout)
        if found is None:
            return f"nvcc --version says no version: {(done.stdout + done.stderr).strip()[:200]!r}"
        if int(found[1]) < 12:
            return f"nvcc {found[1]}.{found[2]} has no C++20; 12.0 or newer is needed"
        self._version = f"{found[1]}.{found[2]}"
        return None


#: (PTX, symbol, target, debug, identity) -> (cubin for target.code_arch, log). Raises CompileError.
_Assemble = Callable[[bytes, str, Target, bool, str], "tuple[bytes, str]"]


@dataclass(frozen=True)
class _Assembler:
    """One that is installed: its name and version, and what assembles."""

    name: str
    run: _Assemble


def _assemblers() -> Iterator[_Assembler]:
    """The installed ones, nvJitLink first."""
    nvjitlink = _nvjitlink()
    if nvjitlink is not None:
        version = ".".join(map(str, nvjitlink.version()))
        yield _Assembler(f"nvjitlink {version}", functools.partial(_assemble_by_nvjitlink, nvjitlink))
    ptxas = _find_tool("ptxas")
    if ptxas is not None:
        yield _Assembler(f"ptxas {_ptxas_version(ptxas)}", functools.partial(_assemble_by_ptxas, ptxas))


def _assemble_by_ptxas(
    ptxas: str, ptx: bytes, symbol: str, target: Target, debug: bool, identity: str
) -> tuple[bytes, str]:
    with tempfile.TemporaryDirectory(prefix="portagemm-") as folder:
        text, out = Path(folder, f"{symbol}.ptx"), Path(folder, f"{symbol}.cubin")
        text.write_bytes(ptx.rstrip(b"\0"))
        command = [ptxas, "-v", f"-arch={target.code_arch}", "-o", str(out), str(text)]
        log = _tool([*command, "-lineinfo"] if debug else command, symbol, target, identity)
        return out.read_bytes(), log


def _assemble_by_nvjitlink(
    nvjitlink: Any, ptx: bytes, symbol: str, target: Target, debug: bool, identity: str
) -> tuple[bytes, str]:
    options = [f"-arch={target.code_arch}", "-Xptxas=-v", *(["-lineinfo"] if debug else [])]
    try:
        handle = nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as error:
        raise CompileError(symbol, target, identity, str(error)) from error

    def log(kind: str) -> str:
        size = getattr(nvjitlink, f"get_{kind}_log_size")(handle)
        if size <= 1:
            return ""
        text = bytearray(size)
        getattr(nvjitlink, f"get_{kind}_log")(handle, text)
        return bytes(text).rstrip(b"\0").decode(errors="replace")

    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, ptx, len(ptx), f"{symbol}.ptx")
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        return bytes(cubin), log("info")
    except nvjitlink.nvJitLinkError as error:
        raise CompileError(symbol, target, identity, f"{log('info')}{log('error')}{error}") from error
    finally:
        nvjitlink.destroy(handle)


def _nvjitlink() -> Any:
    """cuda.bindings.nvjitlink with its library loaded, or None."""
    try:
        from cuda.bindings import nvjitlink

        nvjitlink.version()
    except (ImportError, RuntimeError, OSError):
        return None
    return nvjitlink


@functools.cache
def _ptxas_version(ptxas: str) -> str:
    """``13.0.88``; "unknown" of one that does not say it."""
    try:
        said = _tool([ptxas, "--version"], "", Target("cuda", "any", 32), "ptxas")
    except CompileError:
        return "unknown"
    return _release(said.encode()) or "unknown"


def _driver_identity() -> str:
    """``driver 580.159.04 (CUDA 13.0)``, which assembles PTX when it loads it; "driver" where there is none."""
    try:
        return f"driver {driver_text(libcuda.driver_version(libcuda.load()))}"
    except (OSError, libcuda.DriverError):
        return "driver"


def _release(text: bytes) -> str:
    """The release that PTX, a cubin (since CUDA 13) or a tool's own text says made it, or ""."""
    found = _RELEASE.search(text)
    return found[1].decode() if found else ""


def _nvrtc_bytes(nvrtc: Any, what: str, program: Any) -> bytes:
    """The program's log, PTX or CUBIN."""
    _, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    text = bytes(size)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)  # the binding writes into the object
    return text


def _nvrtc_check(status: Any, symbol: str, target: object, identity: str, log: str) -> None:
    if int(status):
        raise CompileError(symbol, target, identity, log or str(status))


def _object(code: bytes, target: Target, symbol: str, identity: str, log: str) -> ObjectCode:
    name = symbol.encode()
    if name + b"\0" not in code and b".entry " + name not in code:  # symbol table; PTX
        reason = f'the source defines no extern "C" kernel {symbol}'
        raise CompileError(symbol, target, identity, f"{reason}\n{log}")
    return ObjectCode(code=code, target=target, symbol=symbol, compiler=identity, log=log)


def _tool(command: list[str], symbol: str, target: Target, identity: str) -> str:
    """Run an external tool; its output. Raises CompileError."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False,
            env=_environment(),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(symbol, target, identity, str(error)) from error
    log = done.stdout + done.stderr
    if done.returncode:
        raise CompileError(symbol, target, identity, log or f"exit status {done.returncode}")
    return log


def _environment() -> dict[str, str]:
    """Ours without what would change an external compiler's code behind the key's back."""
    return {name: value for name, value in os.environ.items() if name not in _NVCC_VARIABLES}


def _find_tool(name: str) -> str | None:
    """A program of the CUDA toolkit: PATH, a toolkit's folder, NVIDIA's or Triton's wheel."""
    for folder in _tool_folders():
        found = shutil.which(name, path=folder)
        if found is not None:
            return found
    return None


def _tool_folders() -> Iterator[str | None]:
    yield None  # PATH
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield str(Path(os.environ[variable], "bin"))
    yield "/usr/local/cuda/bin"
    wheels = (("nvidia", "cu*/bin"), ("nvidia", "cuda_nvcc/bin"), ("triton", "backends/nvidia/bin"))
    for package, below in wheels:
        try:
            spec = util.find_spec(package)
        except (ImportError, ValueError):
            continue
        for root in (spec.submodule_search_locations or ()) if spec else ():
            yield from map(str, sorted(Path(root).glob(below), reverse=True))


def _install_hint() -> str:
    """The extra that fits the driver's CUDA major version; without a driver, both."""
    try:
        major = libcuda.driver_version(libcuda.load()) // 1000
    except (OSError, libcuda.DriverError):
        return "pip install 'portagemm[cuda13]' (driver R580 or newer) or 'portagemm[cuda12]'"
    return f"pip install 'portagemm[cuda{min(max(major, 12), 13)}]'"
