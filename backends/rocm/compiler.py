"""Two compilers for one source: hiprtc on a ROCm machine, clang with the AMDGPU target anywhere.

Both make a bare code object (an ELF for one target), which is what hipModuleLoadData takes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from portagemm.hal.compiler import CompileOptions
from portagemm.hal.errors import CompileError
from portagemm.hal.program import ObjectCode
from portagemm.hal.target import Target

from . import hip as binding

#: Names tried on PATH, in this order: AMD's own compiler, then LLVM releases newest first.
CLANG_NAMES: tuple[str, ...] = (
    "amdclang++",
    "clang++-22",
    "clang++-21",
    "clang++-20",
    "clang++-19",
    "clang++",
)

#: Folder of ROCm's compiler where PATH does not name it.
ROCM_LLVM = Path("/opt/rocm/llvm/bin")

#: Oldest clang whose AMDGPU backend was tried with these sources (C++20 concepts, gfx90a, code object 5).
OLDEST_CLANG = 16

# -O3 makes HIP's contraction of a*b+c into one fma explicit. Code object 5 is what ROCm 5.7 and later load.
_COMMON_FLAGS: tuple[str, ...] = ("-std=c++20", "-O3", "-mcode-object-version=5", "-ffp-contract=fast")


def _foreign_target(symbol: str, target: Target, compiler: str) -> CompileError | None:
    """The error for a target that these compilers cannot serve, or None.

    AMD has no portable assembly: a code object made for one target is never reassembled for another.
    """
    if target.backend == "rocm" and target.code_arch == target.arch:
        return None
    return CompileError(
        symbol, target, compiler, "AMD code runs on the target it was compiled for, and only there"
    )


class HiprtcCompiler:
    """ROCm's run-time compiler through hip-python."""

    name = "hiprtc"

    def unavailable_reason(self) -> str | None:
        """Why hiprtc cannot be used here, or None. Opens the library, but no device."""
        try:
            binding.rtc()
        except RuntimeError as error:
            return str(error)
        return None

    def identity(self) -> str:
        """``hiprtc 7.0 (libamd_comgr.so.3.0.70000 ...)``: the files' full versions, since comgr compiles.

        Raises RuntimeError with unavailable_reason().
        """
        return _hiprtc_identity()

    def flags(self, target: Target, options: CompileOptions) -> tuple[str, ...]:
        """The flags that decide the result, without include paths."""
        debug = ("-gline-tables-only",) if options.debug else ()
        return (f"--offload-arch={target.code_arch}", *_COMMON_FLAGS, *debug, *_define_flags(options))

    def compile(self, source: str, symbol: str, target: Target, options: CompileOptions) -> ObjectCode:
        """Compile in memory. Raises CompileError with hiprtc's log."""
        refused = _foreign_target(symbol, target, self.name)
        if refused:
            raise refused
        try:
            rtc = binding.rtc()
        except RuntimeError as error:
            raise CompileError(symbol, target, self.name, str(error)) from error
        arguments = [*self.flags(target, options), *(f"-I{d}" for d in options.include_dirs)]
        program = binding.check(
            "hiprtcCreateProgram",
            rtc.hiprtcCreateProgram(source.encode(), f"{symbol}.hip".encode(), 0, None, None),
        )
        try:
            encoded = [a.encode() for a in arguments]
            (status, *_) = rtc.hiprtcCompileProgram(program, len(encoded), encoded)
            log = _hiprtc_text(rtc, program)
            if int(status) != 0:
                raise CompileError(
                    symbol, target, self.identity(), log or str(getattr(status, "name", status))
                )
            size = binding.check("hiprtcGetCodeSize", rtc.hiprtcGetCodeSize(program))
            code = bytearray(size)
            binding.check("hiprtcGetCode", rtc.hiprtcGetCode(program, code))
        except binding.HipError as error:
            raise CompileError(symbol, target, self.identity(), str(error)) from error
        finally:
            rtc.hiprtcDestroyProgram(program.createRef())
        return ObjectCode(bytes(code), target, symbol, self.identity(), log)


def _hiprtc_text(rtc: object, program: object) -> str:
    """The program's log without its terminating zero; "" when there is none."""
    size = binding.check("hiprtcGetProgramLogSize", rtc.hiprtcGetProgramLogSize(program))  # type: ignore[attr-defined]
    if size <= 1:
        return ""
    log = bytearray(size)
    binding.check("hiprtcGetProgramLog", rtc.hiprtcGetProgramLog(program, log))  # type: ignore[attr-defined]
    return bytes(log).split(b"\0", 1)[0].decode(errors="replace")


@cache
def _hiprtc_identity() -> str:
    rtc = binding.rtc()
    major, minor = binding.check("hiprtcVersion", rtc.hiprtcVersion())
    # Names of the files the links lead to carry release and build. comgr may load later: look beside hiprtc.
    files = {p.resolve() for p in binding.loaded_libraries("libhiprtc.so")}
    files |= {p.resolve() for f in list(files) for p in f.parent.glob("libamd_comgr.so*")}
    names = " ".join(sorted({p.name for p in files}))
    return f"hiprtc {major}.{minor}" + (f" ({names})" if names else "")


def _define_flags(options: CompileOptions) -> tuple[str, ...]:
    return tuple(f"-D{name}={value}" for name, value in options.defines)


class ClangCompiler:
    """clang++ as an offline compiler: needs no ROCm, no HIP header and no device library.

    Attributes:
        executable: path or name of the compiler; None searches PORTAGEMM_CLANG, PATH and ROCm's folder.
    """

    name = "clang"

    def __init__(self, executable: str | None = None) -> None:
        self.executable = executable

    def unavailable_reason(self) -> str | None:
        """Why no clang can be used here: one clause for each one found and refused. None when one can."""
        return self._found()[1]

    def path(self) -> str:
        """The compiler's path. Raises RuntimeError with unavailable_reason()."""
        path, reason = self._found()
        if path is None:
            raise RuntimeError(reason)
        return path

    def identity(self) -> str:
        """``Debian clang version 19.1.7 (3)``: the first line of --version, which names no path.

        Raises RuntimeError with unavailable_reason().
        """
        return _clang_version(self.path())

    def flags(self, target: Target, options: CompileOptions) -> tuple[str, ...]:
        """The flags that decide the result, without include paths."""
        return (
            "-x",
            "hip",
            f"--offload-arch={target.code_arch}",
            "--cuda-device-only",
            "--no-gpu-bundle-output",  # a bare ELF, not an offload bundle
            "-fuse-cuid=none",  # no symbol named after a hash of the working directory
            "-nogpuinc",
            "-nogpulib",
            *_COMMON_FLAGS,
            "-Rpass-analysis=kernel-resource-usage",  # registers, scratch, spills, occupancy: kept in the log
            "-fno-caret-diagnostics",
            *(("-gline-tables-only",) if options.debug else ()),
            *_define_flags(options),
        )

    def compile(self, source: str, symbol: str, target: Target, options: CompileOptions) -> ObjectCode:
        """Compile in a temporary folder. Raises CompileError with clang's output."""
        refused = _foreign_target(symbol, target, self.name)
        if refused:
            raise refused
        try:
            path, identity = self.path(), self.identity()
        except RuntimeError as error:
            raise CompileError(symbol, target, self.name, str(error)) from error
        with tempfile.TemporaryDirectory(prefix="portagemm-") as folder:
            # Relative names and this working directory: no path of this machine gets into the code object.
            (Path(folder) / "kernel.hip").write_text(source)
            include = [f"-I{d.resolve()}" for d in options.include_dirs]
            command = [path, *self.flags(target, options), *include, "kernel.hip", "-o", "kernel.co"]
            try:
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
            except OSError as error:
                raise CompileError(symbol, target, identity, f"{path}: {error}") from error
            result = Path(folder) / "kernel.co"
            if done.returncode != 0 or not result.exists():
                raise CompileError(symbol, target, identity, done.stderr or f"exit status {done.returncode}")
            return ObjectCode(result.read_bytes(), target, symbol, identity, done.stderr)

    def _found(self) -> tuple[str | None, str | None]:
        wanted = self.executable or os.environ.get("PORTAGEMM_CLANG")
        return _search(wanted, os.environ.get("PATH", ""))


@cache
def _search(wanted: str | None, path: str) -> tuple[str | None, str | None]:
    """(compiler, None) or (None, why not). `wanted` set: that one or none, never another instead."""
    if wanted:
        found = shutil.which(wanted, path=path)
        if found is None:
            return None, f"PORTAGEMM_CLANG={wanted}: no such program"
        reason = _refusal(found)
        return (None, f"PORTAGEMM_CLANG={wanted}: {reason}") if reason else (found, None)
    refused = []
    for name in CLANG_NAMES:
        found = shutil.which(name, path=path) or shutil.which(name, path=str(ROCM_LLVM))
        if found is None:
            continue
        reason = _refusal(found)
        if reason is None:
            return found, None
        refused.append(f"{name}: {reason}")
    listed = (
        "; ".join(refused) if refused else f"none of {', '.join(CLANG_NAMES)} is on PATH or in {ROCM_LLVM}"
    )
    return None, f"{listed} (install clang-19 and lld-19, or name one by PORTAGEMM_CLANG)"


def _run(path: str, *arguments: str) -> str:
    """Standard output of the compiler, "" if it does not run."""
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=60, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


@cache
def _clang_version(path: str) -> str:
    return _run(path, "--version").split("\n", 1)[0].strip()


@cache
def _refusal(path: str) -> str | None:
    """Why the compiler at `path` cannot make AMD code objects, or None."""
    version = _clang_version(path)
    match = re.search(r"clang version (\d+)", version)
    if match is None:
        return "is not clang or does not run"
    if int(match[1]) < OLDEST_CLANG:
        return f"clang {match[1]} is older than {OLDEST_CLANG}"
    if not re.search(r"^\s*amdgcn\b", _run(path, "--print-targets"), re.MULTILINE):
        return "was built without the AMDGPU target"
    linker = _run(path, "-print-prog-name=lld").strip()
    if not Path(linker).is_absolute() and shutil.which(linker) is None:
        return f"finds no lld, which links code objects (install lld-{match[1]})"
    return None


def compilers() -> Sequence[HiprtcCompiler | ClangCompiler]:
    """In order of preference: the machine's own ROCm, then clang; a clang that PORTAGEMM_CLANG names goes first."""
    if os.environ.get("PORTAGEMM_CLANG"):
        return (ClangCompiler(), HiprtcCompiler())
    return (HiprtcCompiler(), ClangCompiler())
