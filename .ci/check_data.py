"""Lint step: every committed YAML, TOML and JSON file parses; no merge markers; no large files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = None

LARGEST = 1_000_000


def problem(path: Path) -> str | None:
    """What is wrong with the file, or None."""
    data = path.read_bytes()
    if len(data) > LARGEST:
        return f"{len(data)} bytes; allowed: {LARGEST}"
    if b"\n<<<<<<< " in data or b"\n>>>>>>> " in data:
        return "merge markers"
    try:
        if path.suffix in (".yaml", ".yml"):
            yaml.safe_load(data)
        elif path.suffix == ".json":
            json.loads(data)
        elif path.suffix == ".toml" and tomllib is not None:
            tomllib.loads(data.decode())
    except ValueError as error:
        return str(error)
    except yaml.YAMLError as error:
        return str(error)
    return None


def main() -> int:
    """Check all files git knows; 1 if any is bad."""
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout
    bad = 0
    for name in filter(None, listed.split("\0")):
        path = Path(name)
        if path.is_symlink() or not path.is_file():
            continue
        if (what := problem(path)) is not None:
            print(f"{name}: {what}")
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
