"""Arch profiles: the facts of an instruction set, read from YAML, and which profile a device gets.

A profile is data (portagemm/arch_profiles/README.md explains every key). `load` reads and checks one file,
`all_profiles` knows the built-in ones and the user's (PORTAGEMM_PROFILES), and `for_device` selects one,
honouring PORTAGEMM_PROFILE. Nothing here looks at the machine: devices come from a backend.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from .board import Board
from .device import Device
from .errors import ProfileError
from .notices import warn_once
from .target import Target

#: Folders or files with the user's profiles, separated like PATH.
PROFILES_VARIABLE = "PORTAGEMM_PROFILES"
#: Name of the profile to use instead of the matching one; a comma-separated list names one a backend.
FORCE_VARIABLE = "PORTAGEMM_PROFILE"


@dataclass(frozen=True)
class Atom:
    """One matrix instruction (or the fused multiply-add that stands in for one).

    Attributes:
        name: its name in tiles and device code (``mma_16816``).
        shape: (m, n, k) of one instruction. n_max: largest n, where n is any multiple of shape's (wgmma).
        lanes: lanes that execute it together.
        a: dtypes of A and B. accumulate: dtype of the accumulator.
        instruction: as the assembler spells it. source: where the facts come from.
    """

    name: str
    shape: tuple[int, int, int]
    lanes: int
    a: tuple[str, ...]
    accumulate: str
    instruction: str
    source: str
    n_max: int = 0


@dataclass(frozen=True)
class Copy:
    """One way of moving data between memories.

    Attributes:
        name: its name in device code. asynchronous: whether it completes behind the program's back.
        bytes: sizes of one access. alignment: of the address, in bytes (0: that of the access).
        multicast: whether it can write to all blocks of a cluster.
        instruction: as the assembler spells it. source: where the facts come from.
    """

    name: str
    asynchronous: bool
    bytes: tuple[int, ...]
    instruction: str
    source: str
    alignment: int = 0
    multicast: bool = False


@dataclass(frozen=True)
class Limits:
    """What a launch may ask for. Sizes in bytes; 0 means that there is no such limit, or none is known.

    Attributes:
        threads_per_block, registers_per_thread, shared_bytes_per_block: most of each.
        grid: most blocks of a launch. grid_threads: most threads of a launch.
        registers_per_unit, shared_bytes_per_unit, threads_per_unit, blocks_per_unit: what one SM or CU
            holds; they bound how many blocks are resident.
        cluster: most blocks of a cluster (1: no clusters).
    """

    threads_per_block: int
    registers_per_thread: int
    shared_bytes_per_block: int
    grid: int
    grid_threads: int = 0
    registers_per_unit: int = 0
    shared_bytes_per_unit: int = 0
    threads_per_unit: int = 0
    blocks_per_unit: int = 0
    cluster: int = 1


@dataclass(frozen=True)
class TileConfig:
    """One tile candidate of a schedule.

    Attributes:
        atom: name of the matrix atom.
        block: (m, n, k) of a block's tile, k of one stage.
        waves: computing waves along m and n (warpgroups for a warpgroup-wide atom).
        stages: buffers in shared memory. cluster: blocks along m that share B.
    """

    atom: str
    block: tuple[int, int, int]
    waves: tuple[int, int]
    stages: int
    cluster: int = 1


@dataclass(frozen=True)
class Decompression:
    """How a narrow operand becomes one the matrix unit takes: target dtypes, route, source."""

    to: tuple[str, ...]
    route: str
    source: str


@dataclass(frozen=True)
class Quirk:
    """A behaviour that code must mind: a stable id, what happens, and where that is written."""

    id: str
    text: str
    source: str


@dataclass(frozen=True, eq=False)
class ArchProfile:
    """The facts of one arch. Compared by identity: a changed copy is another profile.

    Attributes:
        name: what PORTAGEMM_PROFILE takes. vendor: nvidia, amd, host. backend: cuda, rocm, cpu.
        arch: target as the compiler spells it. wave_size: lanes of a wave.
        matches: shell patterns of `Device.arch` this profile is made for.
        limits: what a launch may ask for, before the device's own limits (`limits_for`).
        scopes: synchronisation scopes. atoms, copies: by name.
        schedules: in order of preference. tiles: schedule -> candidates in order of preference.
        native: dtypes the matrix unit takes. emulated: dtype -> how it is computed.
        decompression: dtype -> route. quirks: behaviours to mind. boards: products of this arch.
        source: where the group of facts comes from. path: the file ("" if made in a program).
    """

    name: str
    vendor: str
    backend: str
    arch: str
    wave_size: int
    matches: tuple[str, ...]
    limits: Limits
    scopes: tuple[str, ...]
    atoms: Mapping[str, Atom]
    copies: Mapping[str, Copy]
    schedules: tuple[str, ...]
    tiles: Mapping[str, tuple[TileConfig, ...]]
    native: tuple[str, ...]
    emulated: Mapping[str, str]
    decompression: Mapping[str, Decompression]
    quirks: tuple[Quirk, ...]
    boards: tuple[Board, ...]
    source: str
    path: str = ""

    def __repr__(self) -> str:
        return f"ArchProfile({self.name!r}, {self.backend}:{self.arch}, {self.path or 'in memory'})"

    @property
    def forward_compatible(self) -> bool:
        """Whether newer devices of the backend can run its code (plain PTX; no ``a`` or ``f`` suffix)."""
        return self.backend == "cuda" and self.arch[-1:].isdigit()

    def made_for(self, device: Device) -> bool:
        """Whether the device is one the profile describes."""
        return device.backend == self.backend and any(fnmatchcase(device.arch, p) for p in self.matches)

    def has_quirk(self, quirk: str) -> bool:
        """Whether the quirk with this id is listed."""
        return any(q.id == quirk for q in self.quirks)

    def limits_for(self, device: Device) -> Limits:
        """The limits in force on a device: the smaller of the profile's and its own."""
        threads, shared = device.threads_per_block, device.shared_bytes_per_block
        return replace(
            self.limits,
            threads_per_block=min(self.limits.threads_per_block, threads or self.limits.threads_per_block),
            shared_bytes_per_block=min(
                self.limits.shared_bytes_per_block, shared or self.limits.shared_bytes_per_block
            ),
        )

    def target(self, device: Device | None = None) -> Target:
        """What to compile for: the profile's own arch, assembled for `device` where that is another."""
        assembled = None
        if device is not None and not self.made_for(device) and device.arch != self.arch:
            assembled = device.arch
        return Target(self.backend, self.arch, self.wave_size, assembled)


@dataclass(frozen=True)
class Selection:
    """Which profile a device gets, and why.

    Attributes:
        profile, target: what to plan with and to compile for.
        reason: one sentence. warnings: what the user should know (already given as warnings).
        prefer_vendor: under ``fallback="auto"`` the vendor's library goes first: the device is unknown.
        forced: PORTAGEMM_PROFILE decided.
    """

    profile: ArchProfile
    target: Target
    reason: str
    warnings: tuple[str, ...] = ()
    prefer_vendor: bool = False
    forced: bool = False


# --- reading -----------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str], *, validate: bool = True) -> ArchProfile:
    """Read one profile file.

    Args:
        path: a YAML file.
        validate: check against schema.json; the built-in files are checked by the tests instead, since
            importing a validator costs more than reading them.

    Raises ProfileError naming file, key, value and what is allowed.
    """
    file = Path(path)
    data = _read(file)
    if "extends" in data:
        data = _extended(file, data)
    if validate:
        _validate(file, data)
    return _build(file, data)


def _read(file: Path) -> dict[str, Any]:
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"profile {file}: cannot be read: {error}") from error
    try:
        data = yaml.load(text, _loader())
    except yaml.YAMLError as error:
        raise ProfileError(f"profile {file}: not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise ProfileError(
            f"profile {file}: key (top level): given {type(data).__name__}; allowed: a mapping of keys"
        )
    return data


@cache
def _loader() -> Any:
    """A safe YAML loader that refuses a key written twice; YAML would silently keep the last."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[Any] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} is given twice", key_node.start_mark
                    )
                seen.add(key)
            return super().construct_mapping(node, deep)

    return Loader


def _extended(file: Path, data: dict[str, Any]) -> dict[str, Any]:
    """`data` laid over the built-in profile it extends: mappings merge, everything else is replaced."""
    base_name = data["extends"]
    base_file = _builtin_folder() / f"{base_name}.yaml"
    known = _builtin_names()
    if base_name not in known:
        raise ProfileError(
            f"profile {file}: key extends: given {base_name!r}; allowed (built-in): {', '.join(known)}"
        )
    merged: dict[str, Any] = _merge(_read(base_file), {k: v for k, v in data.items() if k != "extends"})
    return merged


def _merge(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{k: _merge(base[k], v) if k in base else v for k, v in over.items()}}
    return over


@cache
def _schema() -> dict[str, Any]:
    import json

    schema: dict[str, Any] = json.loads((_builtin_folder() / "schema.json").read_text(encoding="utf-8"))
    return schema


def _validate(file: Path, data: dict[str, Any]) -> None:
    import jsonschema

    errors = list(jsonschema.Draft202012Validator(_schema()).iter_errors(data))
    if errors:
        lines = sorted(_explain(error) for error in errors)
        more = f"\n  and {len(lines) - 8} more" if len(lines) > 8 else ""
        raise ProfileError(f"profile {file}: " + "\n  ".join(lines[:8]) + more)


def _explain(error: Any) -> str:
    """One schema violation as key, given, allowed."""
    key = _key(error.absolute_path)
    rule, bound, given = error.validator, error.validator_value, error.instance
    if rule == "required":
        missing = [name for name in bound if name not in given]
        return f"key {key}: lacks {', '.join(missing)}; allowed: all of {', '.join(bound)}"
    if rule == "additionalProperties" and isinstance(bound, bool):
        known = list(error.schema.get("properties", {}))
        extra = [str(name) for name in given if name not in known]
        return f"key {key}: given {', '.join(extra)}; allowed: {', '.join(known)}"
    allowed = {
        "enum": lambda: "one of " + ", ".join(map(str, bound)),
        "const": lambda: repr(bound),
        "type": lambda: f"a value of type {bound}",
        "minimum": lambda: f"at least {bound}",
        "maximum": lambda: f"at most {bound}",
        "exclusiveMinimum": lambda: f"more than {bound}",
        "pattern": lambda: f"text that matches {bound}",
        "minItems": lambda: f"at least {bound} items",
        "maxItems": lambda: f"at most {bound} items",
        "minLength": lambda: f"text of at least {bound} characters",
        "minProperties": lambda: f"at least {bound} keys",
        "uniqueItems": lambda: "each item once",
    }.get(rule, lambda: str(error.message))()
    text = f"key {key}: given {given!r}; allowed: {allowed}"
    if rule == "type" and isinstance(given, str) and re.fullmatch(r"[0-9.]+[eE][0-9]+", given):
        text += f" (YAML reads {given} as text: write it with a point and a sign, like 1.0e+12)"
    return text


def _key(path: Iterable[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(top level)"


def _build(file: Path, data: dict[str, Any]) -> ArchProfile:
    """The dataclass from validated data, and what a schema cannot say: references between keys."""
    try:
        profile = _construct(file, data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _validate(file, data)  # names the key, if the file was not validated before
        raise ProfileError(f"profile {file}: cannot be used: {error!r}") from error
    for schedule in profile.schedules:
        if schedule not in profile.tiles:
            raise ProfileError(
                f"profile {file}: key tiles: given {', '.join(profile.tiles) or 'nothing'}; "
                f"allowed: candidates for every schedule, and {schedule} has none"
            )
    for schedule, tiles in profile.tiles.items():
        if schedule not in profile.schedules:
            raise ProfileError(
                f"profile {file}: key tiles.{schedule}: not in schedules; "
                f"allowed: {', '.join(profile.schedules)}"
            )
        for i, tile in enumerate(tiles):
            _check_tile(f"profile {file}: key tiles.{schedule}[{i}]", profile, tile)
    return profile


def _check_tile(where: str, profile: ArchProfile, tile: TileConfig) -> None:
    atom = profile.atoms.get(tile.atom)
    if atom is None:
        raise ProfileError(f"{where}.atom: given {tile.atom!r}; allowed: {', '.join(profile.atoms)}")
    for axis, extent, unit in zip(
        "mnk",
        tile.block,
        (atom.shape[0] * tile.waves[0], atom.shape[1] * tile.waves[1], atom.shape[2]),
        strict=True,
    ):
        if extent % unit:
            raise ProfileError(
                f"{where}.block: given {axis} = {extent}; allowed: multiples of {unit} "
                f"(atom {atom.name}, waves {list(tile.waves)})"
            )
    lanes = max(atom.lanes, profile.wave_size) * tile.waves[0] * tile.waves[1]
    if lanes > profile.limits.threads_per_block:
        raise ProfileError(
            f"{where}.waves: given {list(tile.waves)} ({lanes} threads); "
            f"allowed: at most {profile.limits.threads_per_block} threads"
        )
    if tile.cluster > max(profile.limits.cluster, 1):
        raise ProfileError(
            f"{where}.cluster: given {tile.cluster}; "
            f"allowed: at most {profile.limits.cluster} on {profile.arch}"
        )


def _construct(file: Path, data: dict[str, Any]) -> ArchProfile:
    return ArchProfile(
        name=data["name"],
        vendor=data["vendor"],
        backend=data["backend"],
        arch=data["arch"],
        wave_size=data["wave_size"],
        matches=tuple(data["matches"]),
        limits=Limits(**{k: v for k, v in data["limits"].items() if k != "source"}),
        scopes=tuple(data["scopes"]),
        atoms={
            name: Atom(name, **{k: tuple(v) if isinstance(v, list) else v for k, v in atom.items()})
            for name, atom in data["atoms"].items()
        },
        copies={
            name: Copy(name, **{k: tuple(v) if isinstance(v, list) else v for k, v in copy.items()})
            for name, copy in data["copies"].items()
        },
        schedules=tuple(data["schedules"]),
        tiles={
            schedule: tuple(
                TileConfig(
                    tile["atom"],
                    tuple(tile["block"]),
                    tuple(tile["waves"]),
                    tile["stages"],
                    tile.get("cluster", 1),
                )
                for tile in tiles
            )
            for schedule, tiles in data["tiles"].items()
        },
        native=tuple(data["dtypes"]["native"]),
        emulated=dict(data["dtypes"]["emulated"]),
        decompression={
            dtype: Decompression(tuple(d["to"]), d["route"], d["source"])
            for dtype, d in data.get("decompression", {}).items()
        },
        quirks=tuple(Quirk(**quirk) for quirk in data.get("quirks", ())),
        boards=tuple(Board(**{**board, "match": tuple(board["match"])}) for board in data["boards"]),
        source=data["source"],
        path=str(file),
    )


# --- which profiles there are --------------------------------------------------------------------------

_lock = threading.RLock()


def _builtin_folder() -> Path:
    import portagemm.arch_profiles

    return Path(portagemm.arch_profiles.__path__[0])


@cache
def _builtin_names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in _builtin_folder().glob("*.yaml")))


@cache
def _builtin() -> dict[str, ArchProfile]:
    return {name: load(_builtin_folder() / f"{name}.yaml", validate=False) for name in _builtin_names()}


def builtin() -> dict[str, ArchProfile]:
    """The profiles that come with the package, by name. Raises ProfileError if one is damaged."""
    with _lock:
        return dict(_builtin())


def all_profiles() -> dict[str, ArchProfile]:
    """Built-in profiles and those of PORTAGEMM_PROFILES, by name, the user's first.

    The variable lists files or folders (all ``*.yaml`` and ``*.yml`` in them). A profile of the user's
    replaces the built-in one of the same name, and goes before others that match the same device; of two
    of the user's, the one listed first wins.

    Raises ProfileError for a path that does not exist or a file that is not a profile.
    """
    with _lock:
        return dict(_all(os.environ.get(PROFILES_VARIABLE, "")))


@cache
def _all(paths: str) -> dict[str, ArchProfile]:
    found: dict[str, ArchProfile] = {}
    for entry in filter(None, paths.split(os.pathsep)):
        for file in _files(Path(entry).expanduser()):
            profile = load(file)
            found.setdefault(profile.name, profile)
    for name, profile in _builtin().items():
        found.setdefault(name, profile)
    return found


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        return sorted(f for f in path.iterdir() if f.suffix in (".yaml", ".yml"))
    raise ProfileError(
        f"{PROFILES_VARIABLE}: given {path}; "
        f"allowed: existing YAML files or folders, separated by {os.pathsep!r}"
    )


def get(name: str) -> ArchProfile:
    """The profile called `name`. Raises ProfileError listing the names there are."""
    profiles = all_profiles()
    if name not in profiles:
        raise ProfileError(f"profile: given {name!r}; allowed: {', '.join(sorted(profiles))}")
    return profiles[name]


def reset() -> None:
    """Forget everything read and selected, so that changed files and variables are seen."""
    with _lock:
        for cached in (_builtin, _builtin_names, _all, _select, _schema):
            cached.cache_clear()


# --- which profile a device gets -----------------------------------------------------------------------


def for_device(device: Device) -> Selection:
    """The profile for a device.

    PORTAGEMM_PROFILE decides if set. Otherwise the first profile made for the device's arch, the user's
    before the built-in ones. An NVIDIA device that no profile is made for inherits the newest older profile
    whose code is forward compatible, with a warning that names both.

    Raises ProfileError when no profile fits, or the forced one cannot run on the device.
    """
    with _lock:
        return _select(device, os.environ.get(FORCE_VARIABLE, ""), os.environ.get(PROFILES_VARIABLE, ""))


@cache
def _select(device: Device, forced: str, paths: str) -> Selection:
    profiles = _all(paths)
    selection = _forced(device, forced, profiles) if forced.strip() else _matching(device, profiles)
    for text in selection.warnings:
        warn_once(text)
    return selection


def _forced(device: Device, forced: str, profiles: Mapping[str, ArchProfile]) -> Selection:
    names = [name for name in (part.strip() for part in forced.split(",")) if name]
    for name in names:
        if name not in profiles:
            raise ProfileError(f"{FORCE_VARIABLE}: given {name!r}; allowed: {', '.join(sorted(profiles))}")
    fitting = [profiles[name] for name in names if profiles[name].backend == device.backend]
    runnable = sorted(name for name, profile in profiles.items() if _obstacle(profile, device) is None)
    allowed = f"allowed on {_describe(device)}: {', '.join(runnable) or 'none'}"
    if not fitting:
        given = profiles[names[0]]
        raise ProfileError(
            f"{FORCE_VARIABLE}: given {given.name} (backend {given.backend}, {given.arch}), "
            f"which cannot run on a {device.backend} device; {allowed}"
        )
    profile = fitting[0]
    obstacle = _obstacle(profile, device)
    if obstacle is not None:
        raise ProfileError(f"{FORCE_VARIABLE}: given {profile.name} ({profile.arch}): {obstacle}; {allowed}")
    target = profile.target(device)
    via = f", assembled for {target.assembled_for}" if target.assembled_for else ""
    return Selection(
        profile, target, f"{FORCE_VARIABLE}={forced} forces {profile.name} ({profile.arch}{via})", forced=True
    )


def _obstacle(profile: ArchProfile, device: Device) -> str | None:
    """Why the profile's code cannot run on the device, or None."""
    if profile.backend != device.backend:
        return f"its backend is {profile.backend}, the device's {device.backend}"
    if profile.made_for(device):
        return None
    if profile.backend != "cuda":
        return f"its code runs on {', '.join(profile.matches)} only, the device is {device.arch}"
    ours, theirs = _version(profile.arch), _version(device.arch)
    if not profile.forward_compatible:
        return f"arch-specific code runs on {', '.join(profile.matches)} only, the device is {device.arch}"
    if ours is None or theirs is None:
        return f"the device's arch {device.arch!r} is not of the form sm_NN"
    if theirs < ours:
        return f"its code runs on {profile.arch} and newer, the device is {device.arch}"
    return None


def _matching(device: Device, profiles: Mapping[str, ArchProfile]) -> Selection:
    for profile in profiles.values():
        if profile.made_for(device):
            origin = (
                ""
                if profile.name in _builtin() and _builtin()[profile.name] is profile
                else f" ({profile.path})"
            )
            return Selection(
                profile,
                profile.target(device),
                f"{profile.name}{origin} is made for {device.arch}, the arch of {_describe(device)}",
            )
    if device.backend == "cuda":
        older = [
            profile
            for profile in profiles.values()
            if profile.forward_compatible and _obstacle(profile, device) is None
        ]
        if older:
            profile = max(older, key=lambda p: _version(p.arch) or 0)
            text = (
                f"no arch profile is made for {_describe(device)}; it inherits {profile.name} "
                f"({profile.arch}, an older arch whose code is forward compatible) with its own limits"
            )
            return Selection(profile, profile.target(device), text, (text,), prefer_vendor=True)
    known = [f"{p.name} ({', '.join(p.matches)})" for p in profiles.values() if p.backend == device.backend]
    raise ProfileError(
        f"device {_describe(device)}: no arch profile fits; "
        f"allowed with backend {device.backend}: {', '.join(known) or 'none'}. "
        f"Add one by file with {PROFILES_VARIABLE}"
    )


def _version(arch: str) -> int | None:
    """The compute capability of ``sm_90a`` as 90, or None."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return int(match.group(1)) if match else None


def _describe(device: Device) -> str:
    return f"{device.name} ({device.backend}:{device.index}, {device.arch})"
