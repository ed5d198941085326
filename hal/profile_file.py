"""Reading one profile file: YAML, schema, references between keys; every fault names file, key and value."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from portagemm.hal.board import Board
from portagemm.hal.errors import ProfileError
from portagemm.hal.profile_types import ArchProfile, Atom, Copy, Decompression, Limits, Quirk, TileConfig


def builtin_folder() -> Path:
    """Where the package's own profiles and the schema lie."""
    import portagemm.arch_profiles

    return Path(portagemm.arch_profiles.__path__[0])


@cache
def builtin_names() -> tuple[str, ...]:
    """Names of the package's own profiles."""
    return tuple(sorted(file.stem for file in builtin_folder().glob("*.yaml")))


def glance(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Backend and device patterns of a built-in profile, without parsing the file.

    Selecting a profile needs just these of the files it does not take, and parsing them all is a tenth of a
    second on a slow machine. None: not written in the plain form this looks for; read the file.
    """
    text = (builtin_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    backend = re.search(r"^backend: (\w+)$", text, re.MULTILINE)
    matches = re.search(r"^matches: \[([\w, ]+)\]$", text, re.MULTILINE)
    if backend is None or matches is None:
        return None
    return backend[1], tuple(pattern.strip() for pattern in matches[1].split(","))


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
    refusal: Any = yaml.constructor.ConstructorError

    class Loader(base):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[Any] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, Hashable):
                    raise refusal(None, None, "a key must be text", key_node.start_mark)
                if key in seen:
                    raise refusal(None, None, f"key {key!r} is given twice", key_node.start_mark)
                seen.add(key)
            return base.construct_mapping(self, node, deep)

    return Loader


def _extended(file: Path, data: dict[str, Any]) -> dict[str, Any]:
    """`data` laid over the built-in profile it extends: mappings merge, everything else is replaced."""
    base_name = data["extends"]
    base_file = builtin_folder() / f"{base_name}.yaml"
    known = builtin_names()
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
    schema: dict[str, Any] = json.loads((builtin_folder() / "schema.json").read_text(encoding="utf-8"))
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
    rules: dict[str, Callable[[], str]] = {
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
    }
    allowed = rules[rule]() if rule in rules else str(error.message)
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
            where = f"profile {file}: key tiles.{schedule}[{i}]"
            _check_tile(where, profile, schedule, tile)
            if schedule == "gemv":
                _check_gemv(where, profile, tile)
    return profile


#: Schedules that stream B, whose blocks work alone.
_STREAMING = ("gemv", "skinny")


def _check_tile(where: str, profile: ArchProfile, schedule: str, tile: TileConfig) -> None:
    """Whole atoms a wave, and no more threads and blocks than work together."""
    atom = profile.atoms.get(tile.atom)
    if atom is None:
        raise ProfileError(f"{where}.atom: given {tile.atom!r}; allowed: {', '.join(profile.atoms)}")
    m, n, k = atom.shape
    waves_m, waves_n = tile.waves
    units, why = (m * waves_m, n * waves_n, k), f"atom {atom.name}, waves {list(tile.waves)}"
    if schedule == "skinny":  # kernels/skinny.hpp: the atom's operands are exchanged, the first waves share K
        units, why = (n, m * waves_n, k), f"atom {atom.name} exchanged, {waves_n} waves along N"
    for axis, extent, unit in zip("mnk", tile.block, units, strict=True):
        if extent % unit:
            raise ProfileError(
                f"{where}.block: given {axis} = {extent}; allowed: multiples of {unit} ({why})"
            )
    lanes = max(atom.lanes, profile.wave_size) * waves_m * waves_n
    if lanes > profile.limits.threads_per_block:
        raise ProfileError(
            f"{where}.waves: given {list(tile.waves)} ({lanes} threads); "
            f"allowed: at most {profile.limits.threads_per_block} threads"
        )
    if schedule in _STREAMING and (tile.cluster > 1 or tile.split > 1):
        raise ProfileError(
            f"{where}.cluster: given {tile.cluster} (times split, {tile.split}); allowed: 1 with {schedule}"
        )
    if tile.cluster * tile.split > max(profile.limits.cluster, 1):
        raise ProfileError(
            f"{where}.cluster: given {tile.cluster} (times split, {tile.split}); "
            f"allowed: at most {profile.limits.cluster} on {profile.arch}"
        )


def _check_gemv(where: str, profile: ArchProfile, tile: TileConfig) -> None:
    """What kernels/gemv.hpp asks of a tile: waves along N alone, and that lanes share the sums evenly."""
    rows, columns, chunk = tile.block
    if tile.waves[0] != 1:
        raise ProfileError(f"{where}.waves: given {list(tile.waves)}; allowed with gemv: [1, n], all along N")
    if chunk not in (1, 2, 4, 8, 16):
        raise ProfileError(
            f"{where}.block: given k = {chunk}; allowed with gemv: 1, 2, 4, 8 or 16 elements a lane"
        )
    threads = tile.waves[1] * profile.wave_size
    parts = max(1, min(profile.wave_size, threads // (rows * columns)))
    if profile.wave_size % parts:
        raise ProfileError(
            f"{where}.block: given {rows} x {columns} outputs for {threads} threads; allowed with gemv: as many "
            f"outputs as threads or more, or a power of two of them"
        )


def _tupled(data: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


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
        atoms={name: Atom(name, **_tupled(atom)) for name, atom in data["atoms"].items()},
        copies={name: Copy(name, **_tupled(copy)) for name, copy in data["copies"].items()},
        schedules=tuple(data["schedules"]),
        tiles={
            schedule: tuple(
                TileConfig(
                    tile["atom"],
                    tuple(tile["block"]),
                    tuple(tile["waves"]),
                    tile["stages"],
                    tile.get("cluster", 1),
                    tile.get("split", 1),
                    tile.get("resident", 1),
                    tile.get("swap", False),
                    tile.get("loaders", 1),
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
