"""The digest of all kernel sources: says whether a committed result was made from what is here now."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

#: Package that holds the folder, the folder in it, the name it has in the repository, file suffix.
_ROOTS: tuple[tuple[str, str, str, str], ...] = (
    ("portagemm.arch_profiles", "", "arch_profiles", ".yaml"),
    ("portagemm.backends", "cpu/include", "backends/cpu/include", ".hpp"),
    ("portagemm.backends", "cuda/include", "backends/cuda/include", ".hpp"),
    ("portagemm.backends", "rocm/include", "backends/rocm/include", ".hpp"),
    ("portagemm.hal", "include", "hal/include", ".hpp"),
    ("portagemm", "kernels", "portagemm/kernels", ".hpp"),
)


def source_files() -> dict[str, Path]:
    """Every kernel source and profile: path in the repository (POSIX) -> the file, sorted by path."""
    found: dict[str, Path] = {}
    for package, folder, name, suffix in _ROOTS:
        root = Path(str(files(package))) / folder
        for path in root.rglob(f"*{suffix}") if root.is_dir() else ():
            found[f"{name}/{path.relative_to(root).as_posix()}"] = path
    return dict(sorted(found.items()))


def sources_digest() -> str:
    """sha256 (hex) over path and content of every file of `source_files`. Reads files only, imports no torch."""
    digest = hashlib.sha256()
    for name, path in source_files().items():
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
