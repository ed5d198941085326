"""Keys of compiled kernels: everything that decides the bytes, nothing of where things are installed.

A cache key covers source text, every header it includes, defines, flags, compiler and target. A pack key is
the same without compiler and flags: a pack serves machines that have no compiler to ask. Code for "this CPU"
(arch ``native``) carries the CPU's features in both.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from portagemm.hal.environment import cpu_identity
from portagemm.hal.source import KernelSource

#: Raised when the meaning of a key or the form of an entry changes.
SCHEMA = 1

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(?:<([^>\n]+)>|"([^"\n]+)")', re.MULTILINE)


@dataclass(frozen=True)
class _Header:
    stamp: tuple[int, int]
    digest: str
    includes: tuple[tuple[str, bool], ...]


_headers: dict[str, _Header] = {}
_lock = threading.Lock()


def cache_key(spec: KernelSource, compiler_identity: str, flags: Sequence[str] = ()) -> str:
    """The key of a compiled kernel in the cache: 64 hexadecimal digits.

    Args:
        spec: source, headers and target.
        compiler_identity: `Compiler.identity()`: name and version.
        flags: `Compiler.flags()`: those that decide the result, without paths.
    """
    return _digest(["cache", *_facts(spec), compiler_identity, *flags])


def pack_key(spec: KernelSource) -> str:
    """The key of a compiled kernel in a pack: `cache_key` without compiler and flags."""
    return _digest(["pack", *_facts(spec)])


def _digest(facts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()


def _facts(spec: KernelSource) -> list[object]:
    target = spec.target
    return [
        SCHEMA,
        spec.symbol,
        [target.backend, target.arch, target.code_arch, target.wave_size],
        cpu_identity() if target.code_arch == "native" else "",
        hashlib.sha256(spec.text.encode()).hexdigest(),
        headers(spec),
        [list(define) for define in spec.defines],
    ]


def headers(spec: KernelSource) -> list[tuple[str, str]]:
    """Every include the source reaches, as (name as written, digest of the file found).

    Resolved like a compiler does: a quoted name next to the includer first, then the include folders in
    order. A name found nowhere (a system header) has the digest ""; the compiler's identity stands for it.
    Includes in branches that are not taken count too, which can only split keys. Include names must be
    literal: the package's headers use no macro includes.
    """
    found: list[tuple[str, str]] = []
    seen: set[str] = set()

    def visit(includes: Sequence[tuple[str, bool]], folder: str | None) -> None:
        for name, quoted in includes:
            path = _resolve(name, folder if quoted else None, spec.include_dirs)
            header = _read(path) if path else None
            found.append((name, header.digest if header else ""))
            if path and header and path not in seen:
                seen.add(path)
                visit(header.includes, os.path.dirname(path))  # noqa: PTH120 (called for every header of every key)

    visit(_includes(spec.text.encode()), None)
    return found


def _includes(text: bytes) -> tuple[tuple[str, bool], ...]:
    return tuple(
        ((match[1] or match[2]).decode("utf-8", "surrogateescape"), match[1] is None)
        for match in _INCLUDE.finditer(text)
    )


def _resolve(name: str, folder: str | None, include_dirs: Sequence[Path]) -> str | None:
    candidates = [folder] if folder else []
    candidates += [os.fspath(directory) for directory in include_dirs]
    for candidate in candidates:
        path = f"{candidate}/{name}"
        if os.path.isfile(path):  # noqa: PTH113 (a third of pathlib's time)
            return os.path.realpath(path)
    return None


def _read(path: str) -> _Header | None:
    """Digest and includes of a header, remembered until its time or size changes."""
    try:
        status = os.stat(path)  # noqa: PTH116
        stamp = (status.st_mtime_ns, status.st_size)
        known = _headers.get(path)
        if known is not None and known.stamp == stamp:
            return known
        text = Path(path).read_bytes()
    except OSError:
        return None
    header = _Header(stamp, hashlib.sha256(text).hexdigest(), _includes(text))
    with _lock:
        _headers[path] = header
    return header
