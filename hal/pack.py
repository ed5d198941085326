"""Kernel packs: compiled kernels in a folder, for machines without a compiler.

A pack is ``manifest.json`` and one file for each kernel:

    {"schema": 1, "portagemm": "0.1.0", "kernels": {PACK KEY: {"file", "symbol", "sha256", "bytes",
     "target": {"backend", "arch", "wave_size", "assembled_for"}, "compiler"}}}

A pack key covers source, headers and target, so a pack serves the version of the package that wrote it.
PORTAGEMM_KERNEL_PATH lists the packs to use, separated like PATH.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portagemm.hal.cache_key import SCHEMA, pack_key
from portagemm.hal.errors import CacheError
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource
from portagemm.hal.target import Target

#: Folders of kernel packs, separated like PATH.
PATH_VARIABLE = "PORTAGEMM_KERNEL_PATH"

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Pack:
    """A kernel pack, read by `read_pack`. kernels: pack key -> the manifest's entry."""

    path: Path
    kernels: Mapping[str, Mapping[str, Any]]

    def get(self, key: str) -> ObjectCode | None:
        """The kernel of a pack key, None if the pack has none. Raises CacheError if its file is damaged."""
        entry = self.kernels.get(key)
        if entry is None:
            return None
        file = self.path / str(entry["file"])
        try:
            code = file.read_bytes()
        except OSError as error:
            raise CacheError(
                f"kernel pack {self.path}: {file.name} cannot be read: {error.strerror}"
            ) from error
        if len(code) != entry["bytes"] or hashlib.sha256(code).hexdigest() != entry["sha256"]:
            raise CacheError(
                f"kernel pack {self.path}: {file.name} is damaged: given {len(code)} bytes, "
                f"allowed: the {entry['bytes']} bytes with the manifest's digest"
            )
        return ObjectCode(code, Target(**entry["target"]), entry["symbol"], entry["compiler"])


def read_pack(path: str | os.PathLike[str]) -> Pack:
    """Read a pack's manifest. Raises CacheError naming the folder and what is wrong with it."""
    folder = Path(path).expanduser()
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CacheError(
            f"kernel pack {folder}: {MANIFEST} cannot be read: {error.strerror}; "
            f"allowed: a folder written by `portagemm compile --out`"
        ) from error
    except ValueError as error:
        raise CacheError(f"kernel pack {folder}: {MANIFEST} is not valid JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        given = manifest.get("schema") if isinstance(manifest, dict) else type(manifest).__name__
        raise CacheError(f"kernel pack {folder}: schema: given {given!r}; allowed: {SCHEMA}")
    kernels = manifest.get("kernels")
    if not isinstance(kernels, dict):
        raise CacheError(f"kernel pack {folder}: kernels: given {kernels!r}; allowed: a mapping")
    for key, entry in kernels.items():
        _check(folder, key, entry)
    return Pack(folder, kernels)


def _check(folder: Path, key: str, entry: Any) -> None:
    """Raise CacheError unless the entry is complete and its file lies in the pack."""
    try:
        Target(**entry["target"])
        name = entry["file"]
        whole = all(isinstance(entry[k], str) for k in ("symbol", "sha256", "compiler"))
        if whole and isinstance(entry["bytes"], int) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            return
    except (KeyError, TypeError):
        pass
    raise CacheError(
        f"kernel pack {folder}: kernels.{key}: given {entry!r}; allowed: file (a name in the folder), "
        "symbol, sha256, bytes, target (backend, arch, wave_size, assembled_for), compiler"
    )


def write_pack(path: str | os.PathLike[str], kernels: Iterable[tuple[KernelSource, ObjectCode]]) -> Pack:
    """Write kernels into a pack, adding to what is there. One writer at a time.

    Raises CacheError if the folder cannot be written, or holds a manifest that is not one.
    """
    folder = Path(path).expanduser()
    entries: dict[str, Mapping[str, Any]] = {}
    if (folder / MANIFEST).exists():
        entries |= read_pack(folder).kernels
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for spec, code in kernels:
            key = pack_key(spec)
            name = f"{re.sub(r'[^A-Za-z0-9_]', '_', spec.symbol)[:100]}-{key[:12]}.bin"
            _replace(folder / name, code.code)
            target = spec.target
            entries[key] = {
                "file": name,
                "symbol": spec.symbol,
                "sha256": hashlib.sha256(code.code).hexdigest(),
                "bytes": len(code.code),
                "target": {
                    "backend": target.backend,
                    "arch": target.arch,
                    "wave_size": target.wave_size,
                    "assembled_for": target.assembled_for,
                },
                "compiler": code.compiler,
            }
        manifest = {"schema": SCHEMA, "portagemm": _version(), "kernels": dict(sorted(entries.items()))}
        _replace(folder / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
    except OSError as error:
        raise CacheError(f"kernel pack {folder}: cannot be written: {error}") from error
    return Pack(folder, entries)


def _replace(file: Path, data: bytes) -> None:
    aside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        aside.write_bytes(data)
        aside.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("portagemm")
    except metadata.PackageNotFoundError:
        return "unknown"
