"""Print which committed results were made from other kernel sources than these. Exit code 0 in any case.

A result is a JSON file with a ``sources_digest``, under benchmarks/results or a ``results`` folder of tests.
A stale one is no failure: the device may be out of reach. The last line says loudly what it found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Result:
    """A committed result: its path in the repository, when and from what it was made ("" unknown)."""

    path: str
    date: str
    digest: str
    problem: str = ""


def result_files(root: Path) -> Iterator[Path]:
    """All JSON files that may be results, sorted."""
    found = {*root.glob("benchmarks/results/**/*.json"), *root.glob("tests/**/results/**/*.json")}
    yield from sorted(found)


def read(root: Path, path: Path) -> Result:
    """A result's head. An unreadable one is reported, not raised."""
    name = path.relative_to(root).as_posix()
    try:
        document = json.loads(path.read_text())
        return Result(name, str(document.get("date", "")), str(document["sources_digest"]))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return Result(name, "", "", f"{type(error).__name__}: {error}")


def stale(root: Path, digests: Collection[str]) -> tuple[list[Result], list[Result]]:
    """(fresh, stale) results under `root` for sources of these digests, one a backend."""
    results = [read(root, path) for path in result_files(root)]
    return [r for r in results if r.digest in digests], [r for r in results if r.digest not in digests]


def main() -> int:
    """Print a line a result, then the verdict."""
    sys.path.insert(0, str(ROOT))
    from portagemm.bench.digest import sources_digest
    from portagemm.hal import registry

    digests = {backend: sources_digest(backend) for backend in registry.NAMES}
    now = ", ".join(f"{backend} {digest[:12]}" for backend, digest in digests.items())
    fresh, old = stale(ROOT, digests.values())
    for result in fresh:
        print(f"fresh  {result.path}  {result.date}")
    for result in old:
        print(f"STALE  {result.path}  {result.date}  {result.problem or 'sources ' + result.digest[:12]}")
    if old:
        print(
            f"*** STALE RESULTS: {len(old)} of {len(fresh) + len(old)} are not of these sources ({now}) ***"
        )
    elif fresh:
        print(f"all {len(fresh)} results were made from these kernel sources ({now})")
    else:
        print(f"*** NO RESULTS committed for kernel sources {now} ***")
    return 0


if __name__ == "__main__":
    sys.exit(main())
