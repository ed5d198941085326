"""The system's C++ compiler as a run-time compiler. A code object is a shared library's bytes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from portagemm.backends.cpu import cpuinfo
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.errors import CompileError
from portagemm.hal.memo import remembered, stamp_of
from portagemm.hal.program import ObjectCode
from portagemm.hal.target import Target

#: Tried in this order when CXX is not set.
CANDIDATES: tuple[str, ...] = ("g++", "clang++", "c++")

#: Seconds one run of the compiler may take.
TIMEOUT_S = 120.0

#: IEEE arithmetic: no fast-math. Contraction into FMA is what GPUs do too; errno is never read.
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-shared",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility-inlines-hidden",
)

#: Flags that not every compiler has; the first of a group that works is taken.
_OPTIONAL = (
    ("-march=native", "-mcpu=native"),
    # NOTE: without it g++ marks statics of templates unique in the whole process, so that two kernels of
    # different configuration would share them although each library is loaded privately.
    ("-fno-gnu-unique",),
    ("-Wl,-Bsymbolic",),
)

#: Refused by compilers without C++20; also shows that linking a shared library works.
_CHECK = 'template <class T> concept sized = sizeof(T) > 0;\nextern "C" int check() { return sized<int>; }\n'


@dataclass(frozen=True)
class _Tool:
    """A compiler that works.

    Attributes:
        command: the first word of CXX, or the candidate's name. words: the other words of CXX.
        version: its own version line. flags: the optional ones that it takes.
    """

    command: str
    words: tuple[str, ...]
    version: str
    flags: tuple[str, ...]


class CxxCompiler:
    """$CXX if set, else g++, clang++ or c++; C++20 is needed."""

    name = "C++ compiler"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tools: dict[str | None, _Tool | str] = {}  # by $CXX: the tool, or why there is none

    def unavailable_reason(self) -> str | None:
        """Which compilers were tried and what each lacked; None if one works."""
        found = self._tool()
        return found if isinstance(found, str) else None

    def identity(self) -> str:
        """``g++ (Debian 12.2.0-14) 12.2.0 cpu-1f2e3d4c``: the last word stands for this CPU's features.

        Raises RuntimeError with unavailable_reason().
        """
        return f"{self._require().version} cpu-{cpuinfo.features_digest()}"

    def flags(self, target: Target, options: CompileOptions) -> tuple[str, ...]:
        """The flags that decide the result; what CXX says after the compiler's name is among them."""
        tool = self._require()
        flags = (*tool.words, *_FLAGS, *tool.flags)
        flags += tuple(f"-D{name}={value}" for name, value in options.defines)
        return (*flags, "-g") if options.debug else flags

    def compile(self, source: str, symbol: str, target: Target, options: CompileOptions) -> ObjectCode:
        """Compile to a shared library. Raises CompileError with the compiler's messages."""
        tool, identity = self._require(), self.identity()
        with tempfile.TemporaryDirectory(prefix="portagemm-") as folder:
            text, out = Path(folder, f"{symbol}.cpp"), Path(folder, f"{symbol}.so")
            text.write_text(source)
            includes = [f"-I{path}" for path in options.include_dirs]
            command = [tool.command, *self.flags(target, options), *includes, str(text), "-o", str(out)]
            status, log = _run(command)
            if status:
                raise CompileError(symbol, target, identity, log or f"exit status {status}")
            if not out.is_file():
                raise CompileError(symbol, target, identity, f"it reports success and wrote nothing. {log}")
            code = out.read_bytes()
        if symbol.encode() + b"\0" not in code:  # names in a symbol table end so
            raise CompileError(symbol, target, identity, f'the source defines no extern "C" kernel {symbol}')
        return ObjectCode(code=code, target=target, symbol=symbol, compiler=identity, log=log)

    def _require(self) -> _Tool:
        found = self._tool()
        if isinstance(found, str):
            raise RuntimeError(f"no C++ compiler is available: {found}")
        return found

    def _tool(self) -> _Tool | str:
        chosen = os.environ.get("CXX") or None
        with self._lock:
            if chosen not in self._tools:
                try:
                    self._tools[chosen] = _find(shlex.split(chosen) if chosen else None)
                except ValueError as error:  # a quote that is not closed
                    self._tools[chosen] = f"CXX: given {chosen!r} ({error}): correct or unset CXX"
            return self._tools[chosen]


def _find(chosen: list[str] | None) -> _Tool | str:
    commands = [chosen] if chosen else [[name] for name in CANDIDATES]
    reasons = []
    for command in commands:
        found = _try(command) if command else "CXX is blank"
        if isinstance(found, _Tool):
            return found
        reasons.append(found)
    hint = "correct or unset CXX" if chosen else "install g++ 11 or clang++ 16 or newer, or set CXX"
    return f"{'; '.join(reasons)}: {hint}"


def _try(command: list[str]) -> _Tool | str:
    """The tool, or what is wrong with it. What a compiler's own file answered once is remembered."""
    path = shutil.which(command[0])
    if path is None:
        return f"{command[0]} not found"
    found: list[_Tool | str] = []

    def ask() -> str:
        found.append(_ask(command))
        tool = found[0]
        return json.dumps([tool.version, *tool.flags]) if isinstance(tool, _Tool) else ""

    answer = remembered("cxx", _stamp(path, command), ask)
    if found:
        return found[0]
    try:
        version, *flags = json.loads(answer)
    except ValueError:  # it did not work then; it may now
        return _ask(command)
    return _Tool(command[0], tuple(command[1:]), str(version), tuple(map(str, flags)))


def _stamp(path: str, command: list[str]) -> str | None:
    """What the answers depend on. None for wrappers, whose file says nothing of the compiler behind them."""
    if not re.search(r"(g\+\+|clang)[-.0-9]*$", Path(path).resolve().name):
        return None
    with Path(path).open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return None
    stamp = stamp_of(path)
    return stamp and "|".join((stamp, *command, cpuinfo.features_digest(), *_FLAGS))


def _ask(command: list[str]) -> _Tool | str:
    status, text = _run([*command, "--version"])
    if status or not text.strip():
        return f"{command[0]} --version fails"
    optional: tuple[str, ...] = ()
    with tempfile.TemporaryDirectory(prefix="portagemm-") as folder:
        source, out = Path(folder, "check.cpp"), Path(folder, "check.so")
        source.write_text(_CHECK)

        def works(*flags: str) -> str | None:
            status, log = _run([*command, *_FLAGS, *flags, "-Werror", str(source), "-o", str(out)])
            if status == 0 and not out.is_file():
                return "it reports success and writes nothing"
            return (log.strip() or f"exit status {status}").splitlines()[0] if status else None

        everything = tuple(group[0] for group in _OPTIONAL)
        if works(*everything) is None:
            optional = everything
        else:
            trouble = works()
            if trouble is not None:
                return f"{command[0]} cannot build a C++20 shared library ({trouble})"
            for group in _OPTIONAL:
                optional += tuple([flag for flag in group if works(flag) is None][:1])
    return _Tool(command[0], tuple(command[1:]), text.strip().splitlines()[0].strip(), optional)


def _run(command: list[str]) -> tuple[int, str]:
    """(exit status, output). A program that does not start or end has status 127."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL, env=environment, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout + done.stderr
