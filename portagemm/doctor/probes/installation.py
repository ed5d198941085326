"""Digests of the installed portagemm, of the tuning tables it would use, and of what decides its cache keys.

Prints {"sources", "kernels", "tuning": {file name: digest}, "variables": {name: value}}. Imports nothing of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]
#: Variables that change which kernel is chosen or built.
_VARIABLES = ("PORTAGEMM_PROFILE", "PORTAGEMM_PROFILES", "PORTAGEMM_TUNING", "PORTAGEMM_KERNEL_PATH")


def digest(paths: Iterable[Path], base: Path) -> str:
    """16 hexadecimal digits over names and contents."""
    result = hashlib.sha256()
    for path in sorted(paths):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        result.update(f"{path.relative_to(base).as_posix()}\0".encode() + hashlib.sha256(data).digest())
    return result.hexdigest()[:16]


def package_files() -> list[Path]:
    """The package's files that decide what it does; links to its own folders followed once."""
    found = []
    for folder, names, files in os.walk(_PACKAGE, followlinks=True):
        names[:] = sorted(name for name in names if name != "__pycache__")
        found += [Path(folder, name) for name in files if name.endswith((".py", ".hpp", ".yaml", ".json"))]
    return found


def tuning_tables() -> list[Path]:
    """The user's tables and those that PORTAGEMM_TUNING names."""
    chosen = os.environ.get("PORTAGEMM_TUNING", "")
    if chosen == "off":
        return []
    base = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")  # noqa: PTH111 (no home: no error)
    places = [Path(part) for part in chosen.split(os.pathsep) if part] + [Path(base, "portagemm")]
    found = []
    for place in places:
        found += sorted(place.glob("tuned-*.json")) if place.is_dir() else [place] if place.is_file() else []
    return found


def main() -> None:
    """Print the digests."""
    files = package_files()
    facts = {
        "sources": digest(files, _PACKAGE),
        "kernels": digest([path for path in files if path.suffix == ".hpp"], _PACKAGE),
        "tuning": {path.name: digest([path], path.parent) for path in tuning_tables()},
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
