"""Tables of measured plans: what `portagemm tune` found to be fastest, and how the planner looks it up.

A table is one JSON file a device (name, arch, compute units). Tables are looked at in this order: those that
PORTAGEMM_TUNING names, the user's own, the one that comes with the package. An entry only says which of the
planner's candidates to take and in which order to walk its tiles, so a wrong table costs time, never numbers.
An entry measured with other kernel sources is ignored, and the log says so once a table.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from portagemm.hal import registry
from portagemm.hal.device import Device
from portagemm.hal.notices import warn_once
from portagemm.hal.profile import TileConfig
from portagemm.hal.profile_file import builtin_folder
from portagemm.hal.source import shared_include_dir
from portagemm.problem import GemmProblem, Operand, access_bytes, major_of

log = logging.getLogger("portagemm")

#: "off": no table is used. Otherwise more tables, files or folders, separated like PATH; they go first.
VARIABLE = "PORTAGEMM_TUNING"
#: Raised when the meaning of a key or an entry changes.
SCHEMA = 1
#: An entry serves fewer rows than it was measured for, down to this part of them.
_NEAREST = 0.5
_LOCK_SECONDS = 30.0


@dataclass(frozen=True)
class Measured:
    """A plan and its time. tile: `tile_name`. raster: rows of tiles walked together. us: microseconds."""

    tile: str
    raster: int
    us: float


@dataclass(frozen=True)
class Entry:
    """What was measured for one problem.

    Attributes:
        best, runner_up: the fastest plan, and the fastest of another tile (None: there was one tile).
        heuristic: the plan the model chose when this was measured.
        sources: `sources_digest` of the kernels. date: when, ISO 8601.
    """

    best: Measured
    runner_up: Measured | None
    heuristic: Measured | None
    sources: str
    date: str = ""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Entry:
        """An entry from JSON. Raises KeyError, TypeError or ValueError when it is none."""

        def measured(value: Any) -> Measured | None:
            return None if value is None else Measured(str(value[0]), int(value[1]), float(value[2]))

        best = measured(document["best"])
        if best is None or best.raster < 1:
            raise ValueError("an entry without a plan")
        runner_up, heuristic = (measured(document.get(name)) for name in ("runner_up", "heuristic"))
        return cls(best, runner_up, heuristic, str(document["sources"]), str(document.get("date", "")))

    def document(self) -> dict[str, Any]:
        """The entry as JSON."""
        found = asdict(self)
        for name in ("best", "runner_up", "heuristic"):
            m: Measured | None = getattr(self, name)
            found[name] = None if m is None else [m.tile, m.raster, float(f"{m.us:.5g}")]
        return found


@dataclass(frozen=True)
class Found:
    """An entry for a problem: measured for `m` rows, in the table at `path`."""

    entry: Entry
    m: int
    path: Path


# --- names -----------------------------------------------------------------------------------------------


def tile_name(schedule: str, tile: TileConfig) -> str:
    """A tile of a schedule in one word that holds every field: what fields do not say is their default."""
    parts = [schedule]
    for f in fields(tile):
        value = getattr(tile, f.name)
        if f.name == "atom":
            parts.append(value)
        elif value != f.default:
            text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            parts.append(f.name if value is True else f"{f.name}={text}")
    return "/".join(parts)


def key_of(problem: GemmProblem, profile: str) -> tuple[str, int]:
    """(all but m that the speed of a plan depends on, m). The epilogue is left out, and so is constant_b."""

    def operand(name: str, o: Operand) -> str:
        major = major_of(o)
        width = "" if major == "strided" else access_bytes(o, 1 if major == "k" else 0)
        repeated = "*" if problem.batch and not any(o.batch_strides) else ""
        order = major.replace("mn", "m").replace("k", "n") if name == "D" else major
        return f"{name}:{o.dtype}:{order}{width}{repeated}"

    precision = f" {problem.precision}" if problem.a.dtype.name == "fp32" else ""
    batch = "".join(f"{extent}x" for extent in problem.batch)
    operands = " ".join(
        operand(name, o) for name, o in zip("ABD", (problem.a, problem.b, problem.d), strict=True)
    )
    return f"{profile} {operands}{precision} {batch}[{problem.n},{problem.k}]", problem.m


def slug(name: str) -> str:
    """A name as a file or folder name: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@cache
def sources_digest(backend: str) -> str:
    """16 hexadecimal digits over all kernel code of a backend; comments and white space do not count."""
    digest = hashlib.sha256()
    folders = (*registry.get(backend).include_dirs(), shared_include_dir(), Path(__file__).parent / "kernels")
    for folder in folders:
        for path in sorted(folder.rglob("*.hpp")):
            code = " ".join(_COMMENT.sub(" ", path.read_text(encoding="utf-8")).split())
            digest.update(f"{path.relative_to(folder).as_posix()}\0{code}\0".encode())
    return digest.hexdigest()[:16]


# --- files -----------------------------------------------------------------------------------------------


def file_name(device: Device) -> str:
    """The name of a device's table in a folder of tables."""
    return f"tuned-{slug(device.name)}.json"


def builtin_path(device: Device) -> Path:
    """Where the package keeps a device's table, whether or not it has one."""
    return builtin_folder() / file_name(device)


def user_path(device: Device) -> Path:
    """Where `portagemm tune` keeps the user's table of a device: the platform's folder for a program's data."""
    import platformdirs

    return Path(platformdirs.user_data_dir("portagemm")) / file_name(device)


def _device_facts(device: Device) -> dict[str, Any]:
    return {"name": device.name, "arch": device.arch, "compute_units": device.compute_units}


def read(path: Path, device: Device) -> dict[str, dict[int, Entry]]:
    """The entries of a table as key -> m -> entry; none where there is no file.

    Raises ValueError for a file that is no table of this schema and device, OSError if it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        document = json.loads(text)
        if document["schema"] != SCHEMA:
            raise ValueError(f"it has schema {document['schema']}, this version reads {SCHEMA}")
        if document["device"] != _device_facts(device):
            raise ValueError(f"it is of {document['device']}, not of {_device_facts(device)}")
        found: dict[str, dict[int, Entry]] = {}
        for key, by_rows in document["entries"].items():
            found[key] = {int(m): Entry.of(entry) for m, entry in by_rows.items()}
        return found
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"it is no tuning table ({type(error).__name__}: {error})") from None


def store(path: Path, device: Device, key: tuple[str, int], entry: Entry) -> None:
    """Put one entry into a table, at once and whole: a reader sees the file before or after, never between.

    A file that is no table of this device is moved aside. Raises OSError.
    """
    import filelock

    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{path}.lock", timeout=_LOCK_SECONDS):
        try:
            entries = read(path, device)
        except ValueError as error:
            aside = path.with_suffix(".json.old")
            path.replace(aside)
            warn_once(f"tuning table {path}: {error}; it is now {aside.name}")
            entries = {}
        entries.setdefault(key[0], {})[key[1]] = entry
        write(path, device, entries)


def write(path: Path, device: Device, entries: Mapping[str, Mapping[int, Entry]]) -> None:
    """Write a whole table, a line an entry, sorted. Raises OSError."""
    lines = [f' "schema": {SCHEMA},', f' "device": {json.dumps(_device_facts(device))},', ' "entries": {']
    keys = sorted(entries)
    for key in keys:
        lines.append(f"  {json.dumps(key)}: {{")
        rows = sorted(entries[key].items())
        lines += [
            f'   "{m}": {json.dumps(entry.document())}{"," if m != rows[-1][0] else ""}' for m, entry in rows
        ]
        lines.append("  }" if key == keys[-1] else "  },")
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_text("\n".join(["{", *lines, " }", "}", ""]), encoding="utf-8")
        aside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


# --- looking up ------------------------------------------------------------------------------------------

_lock = threading.Lock()
_tables: dict[tuple[Device, str], tuple[tuple[Path, dict[str, dict[int, Entry]]], ...]] = {}


def off() -> bool:
    """Whether PORTAGEMM_TUNING leaves all tables out."""
    return os.environ.get(VARIABLE, "").strip().lower() == "off"


def tables(device: Device) -> tuple[tuple[Path, dict[str, dict[int, Entry]]], ...]:
    """(path, fresh entries) of every table of a device, in the order in which they are asked."""
    if off():
        return ()
    variable = os.environ.get(VARIABLE, "").strip()
    with _lock:
        known = _tables.get((device, variable))
        if known is None:
            known = tuple(_load(device, variable))
            _tables[device, variable] = known
        return known


def _load(device: Device, variable: str) -> Iterator[tuple[Path, dict[str, dict[int, Entry]]]]:
    paths = []
    for given in filter(None, variable.split(os.pathsep)):
        path = Path(given).expanduser()
        paths.append(path / file_name(device) if path.is_dir() else path)
    with contextlib.suppress(RuntimeError):  # no home
        paths.append(user_path(device))
    paths.append(builtin_path(device))
    for path in dict.fromkeys(paths):
        try:
            entries = read(path, device)
        except (OSError, ValueError) as error:
            warn_once(f"tuning table {path} is ignored: {error}")
            continue
        if not entries:
            continue
        digest = sources_digest(device.backend)
        fresh = {
            key: kept
            for key, by_rows in entries.items()
            if (kept := {m: e for m, e in by_rows.items() if e.sources == digest})
        }
        stale = sum(map(len, entries.values())) - sum(map(len, fresh.values()))
        if stale:
            log.info("tuning table %s: %d entries are of other kernel sources and are ignored", path, stale)
        yield path, fresh


def find(problem: GemmProblem, profile: str, device: Device) -> Iterator[Found]:
    """Entries that may serve a problem, best first: of the very shape, then of the next larger m.

    A larger m serves only if the plan covers both with as many tiles, which the planner checks.
    """
    known = tables(device)
    if not known:
        return
    key, m = key_of(problem, profile)
    for path, entries in known:
        if m in entries.get(key, {}):
            yield Found(entries[key][m], m, path)
    for path, entries in known:
        larger = sorted(rows for rows in entries.get(key, {}) if m < rows and rows * _NEAREST <= m)
        if larger:
            yield Found(entries[key][larger[0]], larger[0], path)


def reset() -> None:
    """Forget what was read, so that changed tables and sources are seen."""
    with _lock:
        _tables.clear()
    sources_digest.cache_clear()
