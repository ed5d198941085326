"""Hosts of machines that are elsewhere: a folder of files with recordings beside it, or a machine file.

A folder holds ``root/`` (the files) and, each of them optional, ``nodes.json``, ``machine.json``,
``commands.json`` and ``probes.json``. A folder without ``root/`` is taken as the files themselves, such as a
mounted image: no command, no variable and no child is known of it then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from portagemm.doctor.host import Host
from portagemm.doctor.host_types import Child, Command, Python, Recorded, Uname, User
from portagemm.doctor.machine_file import MachineFile, MachineFileError

SIDECARS = ("nodes.json", "machine.json", "commands.json", "probes.json")


def open_tree(folder: str | os.PathLike[str], **more: Any) -> Host:
    """The host of a folder. more: further arguments of `Host`. Raises OSError, MachineFileError."""
    base = Path(folder)
    if not base.is_dir():
        raise NotADirectoryError(f"{base} is no folder")
    if not (base / "root").is_dir() or not any((base / name).exists() for name in SIDECARS):
        return Host(base, {}, recorded=Recorded(), **more)
    try:
        machine = _read(base / "machine.json", {})
        _typed("machine", machine, {"user": dict, "uname": dict, "python": dict, "limits": dict, "env": dict})
        _typed("env", machine.get("env", {}), dict.fromkeys(machine.get("env", {}), str))
        recorded = Recorded(
            nodes=_nodes(_read(base / "nodes.json", {})),
            user=_user(machine.get("user", {})),
            uname=_uname(machine.get("uname", {})),
            python=_python(machine.get("python", {})),
            limits={name: (int(pair[0]), int(pair[1])) for name, pair in machine.get("limits", {}).items()},
            commands={tuple(item["argv"]): _command(item) for item in _read(base / "commands.json", [])},
            probes={item["key"]: _child(item) for item in _read(base / "probes.json", [])},
        )
    except MachineFileError as error:
        raise MachineFileError(f"{base}: {error}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise MachineFileError(f"{base}: {type(error).__name__}: {error}") from None
    return Host(base / "root", machine.get("env", {}), recorded=recorded, **more)


def unpack(machine: MachineFile, folder: Path) -> None:
    """Write a machine file as the folder that `open_tree` reads. Paths that would leave it are refused.

    Raises OSError, MachineFileError.
    """
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    for path, data in machine.files.items():
        place = _place(root, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    for path in machine.folders:
        _place(root, path).mkdir(parents=True, exist_ok=True)
    for path, node in machine.nodes.items():
        place = _place(root, path)
        if path in machine.links or place.exists():
            pass
        elif node.get("kind") == "dir":
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    for path in machine.links:  # all folders before the first link: nothing is ever made through one
        _place(root, path).parent.mkdir(parents=True, exist_ok=True)
    for path, target in machine.links.items():
        place = _place(root, path)
        if any(parent.is_symlink() for parent in place.parents if root in parent.parents):
            raise MachineFileError(f"bad path {path!r}: it lies below a link")
        if not os.path.lexists(place):
            place.symlink_to(target)
    write = {
        "nodes.json": machine.nodes,
        "machine.json": {**machine.machine, "env": machine.env},
        "commands.json": machine.commands,
        "probes.json": machine.probes,
    }
    for name, value in write.items():
        (folder / name).write_text(json.dumps(value, indent=1), "utf-8")


def open_machine(machine: MachineFile, folder: Path, **more: Any) -> Host:
    """Unpack a machine file into an empty folder and open it."""
    unpack(machine, folder)
    return open_tree(folder, **more)


def _place(root: Path, path: str) -> Path:
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or "\0" in path:
        raise MachineFileError(f"bad path {path!r}")
    place = root.joinpath(*[part for part in parts if part])
    if not place.is_relative_to(root):  # a drive letter on Windows
        raise MachineFileError(f"bad path {path!r}")
    return place


def _read(path: Path, default: Any) -> Any:
    return json.loads(path.read_text("utf-8")) if path.exists() else default


def _typed(what: str, values: object, types: Mapping[str, type]) -> None:
    """Raises MachineFileError where a value is not of the type that its name has."""
    if not isinstance(values, dict):
        raise MachineFileError(f"{what} is no object")
    for name, kind in types.items():
        if name in values and not (
            isinstance(values[name], kind) and (kind is bool or not isinstance(values[name], bool))
        ):
            raise MachineFileError(
                f"{name} of {what} is {str(values[name])[:40]!r}, not of type {kind.__name__}"
            )


_NODE = {
    "kind": str,
    "mode": int,
    "uid": int,
    "gid": int,
    "size": int,
    "device": list,
    "open": str,
    "write": str,
}
_SPACE = ("total", "free", "inodes", "free_inodes")


def _nodes(values: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    _typed("nodes", values, dict.fromkeys(values, dict))
    for path, node in values.items():
        _typed(path, node, _NODE)
        device, space = node.get("device", [0, 0]), node.get("space", dict.fromkeys(_SPACE, 0))
        if len(device) != 2 or not all(isinstance(number, int) for number in device):
            raise MachineFileError(f"device of {path} is {str(device)[:40]}, not two numbers")
        if not isinstance(space, dict) or not {"total", "free"} <= set(space) <= set(_SPACE):
            raise MachineFileError(f"space of {path} does not hold total and free")
        _typed(path, space, dict.fromkeys(_SPACE, int))
    return values


def _user(values: Mapping[str, Any]) -> User:
    _typed("user", values, {"uid": int, "gid": int, "groups": list, "name": str, "home": str})
    uid = values.get("uid", 1000)
    gid = values.get("gid", uid)
    groups = tuple(sorted({gid, *values.get("groups", ())}))
    return User(uid, gid, groups, values.get("name", "user" if uid else "root"), values.get("home", ""))


def _uname(values: Mapping[str, Any]) -> Uname:
    _typed("uname", values, dict.fromkeys(("system", "release", "machine", "node"), str))
    return Uname(
        values.get("system", "Linux"),
        values.get("release", ""),
        values.get("machine", "x86_64"),
        values.get("node", "host"),
    )


def _python(values: Mapping[str, Any]) -> Python:
    texts = ("version", "implementation", "executable", "prefix", "base_prefix", "start_method")
    _typed("python", values, {**dict.fromkeys(texts, str), "path": list, "libc": list})
    _typed("python", values, {"pointer_bits": int, "free_threaded": bool})
    libc = tuple(values.get("libc", ("glibc", "2.35")))
    return Python(
        version=values.get("version", "3.11.2"),
        implementation=values.get("implementation", "cpython"),
        executable=values.get("executable", "/usr/bin/python3"),
        prefix=values.get("prefix", "/usr"),
        base_prefix=values.get("base_prefix", values.get("prefix", "/usr")),
        path=tuple(values.get("path", ("/usr/lib/python3/dist-packages",))),
        libc=(libc[0], libc[1]),
        pointer_bits=values.get("pointer_bits", 64),
        free_threaded=values.get("free_threaded", False),
        start_method=values.get("start_method", ""),
    )


def _command(item: Mapping[str, Any]) -> Command:
    return Command(
        tuple(item["argv"]),
        item.get("stdout", ""),
        item.get("stderr", ""),
        item.get("code", 0),
        item.get("problem", ""),
        item.get("seconds", 0.0),
    )


def _child(item: Mapping[str, Any]) -> Child:
    return Child(item.get("value"), _command({**item, "argv": item["key"].split(" "), "stdout": ""}))
