"""The digest of all kernel sources: says whether a committed result was made from what is here now."""

from __future__ import annotations

import hashlib
from pathlib import Path

from portagemm.hal import registry
from portagemm.hal.profile_file import builtin_folder
from portagemm.hal.source import shared_include_dir


def _roots() -> tuple[tuple[str, Path, str], ...]:
    """(name in the repository, folder, file suffix) of all that a kernel is made from."""
    return (
        ("arch_profiles", builtin_folder(), ".yaml"),
        *(
            (f"backends/{name}/include", registry.get(name).include_dirs()[0], ".hpp")
            for name in sorted(registry.NAMES)
        ),
        ("hal/include", shared_include_dir(), ".hpp"),
        ("portagemm/kernels", Path(__file__).resolve().parents[1] / "kernels", ".hpp"),
    )


def source_files() -> dict[str, Path]:
    """Every kernel source and profile: path in the repository (POSIX) -> the file, sorted by path."""
    found: dict[str, Path] = {}
    for name, folder, suffix in _roots():
        for path in folder.rglob(f"*{suffix}"):
            found[f"{name}/{path.relative_to(folder).as_posix()}"] = path
    return dict(sorted(found.items()))


def sources_digest() -> str:
    """sha256 (hex) over path and content of every file of `source_files`. Imports no torch."""
    digest = hashlib.sha256()
    for name, path in source_files().items():
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
