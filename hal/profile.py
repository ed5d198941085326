"""Which arch profiles there are, and which one a device gets.

A profile is data (arch_profiles/README.md explains every key). `load` reads and checks one file,
`all_profiles` knows the built-in ones and the user's (PORTAGEMM_PROFILES), and `for_device` selects one,
honouring PORTAGEMM_PROFILE. Nothing here looks at the machine: devices come from a backend.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from portagemm.hal.device import Device
from portagemm.hal.errors import ProfileError
from portagemm.hal.notices import warn_once
from portagemm.hal.profile_file import builtin_folder, builtin_names, glance, load
from portagemm.hal.profile_types import (
    ArchProfile,
    Atom,
    Copy,
    Decompression,
    Limits,
    Quirk,
    TileConfig,
)
from portagemm.hal.target import Target

__all__ = [
    "FORCE_VARIABLE",
    "PROFILES_VARIABLE",
    "ArchProfile",
    "Atom",
    "Copy",
    "Decompression",
    "Limits",
    "Quirk",
    "Selection",
    "TileConfig",
    "all_profiles",
    "builtin",
    "for_device",
    "get",
    "load",
    "reset",
]

#: Folders or files with the user's profiles, separated like PATH.
PROFILES_VARIABLE = "PORTAGEMM_PROFILES"
#: Name of the profile to use instead of the matching one; a comma-separated list names one a backend.
FORCE_VARIABLE = "PORTAGEMM_PROFILE"


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


# --- which profiles there are --------------------------------------------------------------------------

_lock = threading.RLock()


class _Catalogue(Mapping[str, ArchProfile]):
    """Profiles by name, the user's first. A built-in file is read when its profile is asked for."""

    def __init__(self, user: Mapping[str, ArchProfile]) -> None:
        self._user = user

    def __getitem__(self, name: str) -> ArchProfile:
        return self._user[name] if name in self._user else _builtin(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._user
        yield from (name for name in builtin_names() if name not in self._user)

    def __len__(self) -> int:
        return len({*self._user, *builtin_names()})

    def __contains__(self, name: object) -> bool:
        return name in self._user or name in builtin_names()

    def made_for(self, device: Device) -> ArchProfile | None:
        """The first profile that describes the device."""
        for name in self:
            seen = None if name in self._user else glance(name)
            if seen and (seen[0] != device.backend or device.arch not in seen[1]):
                continue
            if self[name].made_for(device):
                return self[name]
        return None


@cache
def _builtin(name: str) -> ArchProfile:
    return load(builtin_folder() / f"{name}.yaml", validate=False)


def builtin() -> dict[str, ArchProfile]:
    """The profiles that come with the package, by name. Raises ProfileError if one is damaged."""
    with _lock:
        return {name: _builtin(name) for name in builtin_names()}


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
def _all(paths: str) -> _Catalogue:
    user: dict[str, ArchProfile] = {}
    for entry in filter(None, paths.split(os.pathsep)):
        for file in _files(Path(entry).expanduser()):
            profile = load(file)
            user.setdefault(profile.name, profile)
    return _Catalogue(user)


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
    with _lock:
        profiles = _all(os.environ.get(PROFILES_VARIABLE, ""))
        if name not in profiles:
            raise ProfileError(f"profile: given {name!r}; allowed: {', '.join(sorted(profiles))}")
        return profiles[name]


def reset() -> None:
    """Forget everything read and selected, so that changed files and variables are seen."""
    with _lock:
        for cached in (_builtin, builtin_names, _all, _select):
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


def _forced(device: Device, forced: str, profiles: _Catalogue) -> Selection:
    names = [name for name in (part.strip() for part in forced.split(",")) if name]
    if not names:
        raise ProfileError(f"{FORCE_VARIABLE}: given {forced!r}; allowed: {', '.join(sorted(profiles))}")
    for name in names:
        if name not in profiles:
            raise ProfileError(f"{FORCE_VARIABLE}: given {name!r}; allowed: {', '.join(sorted(profiles))}")
    fitting = [profiles[name] for name in names if profiles[name].backend == device.backend]
    profile = (fitting or [profiles[names[0]]])[0]
    reason = obstacle(profile, device)
    if reason is not None:
        runnable = sorted(p.name for p in profiles.values() if obstacle(p, device) is None)
        raise ProfileError(
            f"{FORCE_VARIABLE}: given {profile.name} ({profile.arch}): {reason}; "
            f"allowed on {_describe(device)}: {', '.join(runnable) or 'none'}"
        )
    target = profile.target(device)
    via = f", assembled for {target.assembled_for}" if target.assembled_for else ""
    return Selection(
        profile, target, f"{FORCE_VARIABLE}={forced} forces {profile.name} ({profile.arch}{via})", forced=True
    )


def obstacle(profile: ArchProfile, device: Device) -> str | None:
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


def _matching(device: Device, profiles: _Catalogue) -> Selection:
    profile = profiles.made_for(device)
    if profile is not None:
        own = profile.name in builtin_names() and profile is _builtin(profile.name)
        return Selection(
            profile,
            profile.target(device),
            f"{profile.name}{'' if own else f' ({profile.path})'} is made for {device.arch}, "
            f"the arch of {_describe(device)}",
        )
    if device.backend == "cuda":
        older = [
            profile
            for profile in profiles.values()
            if profile.forward_compatible and obstacle(profile, device) is None
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
