"""Loads NVRTC (arguments: paths or names to try), asks version and architectures, compiles an empty kernel.

A line of JSON after every stage, as in libcuda.py: "load", "ask", "compile", "done". `via` says how it was
found: "cuda-bindings", as the backend finds it, else the path.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

_SOURCE = b'extern "C" __global__ void trial() {}'


def _say(facts: dict[str, Any], **more: Any) -> None:
    facts.update(more)
    print(json.dumps(facts), flush=True)


def _mapped() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return sorted({line.split(maxsplit=5)[-1] for line in lines if "/libnvrtc" in line})


def _load(names: list[str]) -> tuple[ctypes.CDLL | None, str, list[str]]:
    failures = []
    for name in names:
        # NVRTC looks its builtins up by name alone: they must be there before it, where no linker path has them.
        for builtins in sorted(Path(name).parent.glob("libnvrtc-builtins.so*")) if "/" in name else ():
            try:
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                failures.append(str(error))
        try:
            return ctypes.CDLL(name), name, failures
        except OSError as error:
            failures.append(str(error))
    return None, "", failures


def main(names: list[str]) -> None:
    """Print the stages."""
    facts: dict[str, Any] = {}
    _say(facts, stage="load", names=names)
    library, via, failures = _load(names)
    if library is None:
        _say(facts, error="; ".join(failures) or "no library to try")
        return
    missing = [
        name
        for name in ("nvrtcVersion", "nvrtcCreateProgram", "nvrtcCompileProgram")
        if not hasattr(library, name)
    ]
    _say(facts, stage="ask", via=via, missing=missing)
    if missing:
        return
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    facts["code"] = int(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    facts["version"] = [major.value, minor.value]
    archs: list[int] = []
    if hasattr(library, "nvrtcGetSupportedArchs") and not library.nvrtcGetNumSupportedArchs(
        ctypes.byref(count)
    ):
        values = (ctypes.c_int * max(count.value, 1))()
        if not library.nvrtcGetSupportedArchs(values):
            archs = list(values)[: count.value]
    _say(facts, stage="compile", archs=archs, libraries=_mapped())
    program = ctypes.c_void_p()
    code = library.nvrtcCreateProgram(ctypes.byref(program), _SOURCE, b"trial.cu", 0, None, None)
    if not code:
        code = library.nvrtcCompileProgram(program, 0, None)
    facts["compile_code"] = int(code)
    if code:
        facts["log"] = _log(library, program)
    _say(facts, stage="done", libraries=_mapped())


def _log(library: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    if not hasattr(library, "nvrtcGetProgramLogSize") or library.nvrtcGetProgramLogSize(
        program, ctypes.byref(size)
    ):
        return ""
    text = ctypes.create_string_buffer(max(size.value, 1))
    library.nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace")[:500]


if __name__ == "__main__":
    main(sys.argv[1:])
