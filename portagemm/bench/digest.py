"""The digest of a backend's kernel sources: says whether a committed result was made from what is here now."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from portagemm.hal import registry
from portagemm.hal.profile_file import builtin_folder
from portagemm.hal.source import shared_include_dir


def _roots(backend: str) -> tuple[tuple[str, Path, str], ...]:
    """(name in the repository, folder, file suffix) of all that a backend's kernels are made from."""
    return (
        ("arch_profiles", builtin_folder(), ".yaml"),
        (f"backends/{backend}/include", registry.get(backend).include_dirs()[0], ".hpp"),
        ("hal/include", shared_include_dir(), ".hpp"),
        ("portagemm/kernels", Path(__file__).resolve().parents[1] / "kernels", ".hpp"),
    )


def source_files(backend: str) -> dict[str, Path]:
    """Kernel sources and profiles of a backend: path in the repository (POSIX) -> the file, sorted by path."""
    found: dict[str, Path] = {}
    for name, folder, suffix in _roots(backend):
        for path in folder.rglob(f"*{suffix}"):
            if suffix == ".yaml" and not _is_of(backend, path):
                continue
            found[f"{name}/{path.relative_to(folder).as_posix()}"] = path
    return dict(sorted(found.items()))


def _is_of(backend: str, profile: Path) -> bool:
    return re.search(rf"^backend: {backend}\b", profile.read_text(encoding="utf-8"), re.MULTILINE) is not None


def sources_digest(backend: str) -> str:
    """sha256 (hex) over path and content of every file of `source_files`. Imports no torch."""
    digest = hashlib.sha256()
    for name, path in source_files(backend).items():
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
