"""Machine files: a whole machine, as far as the doctor reads it, in one readable text file.

Bundles (`--save-bundle`) and test fixtures are such files. They open with ``portagemm-machine 1``; a line
that starts with ``--- `` opens a section. docs/doctor-fixtures.md describes each section.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAGIC = "portagemm-machine 1"

_SPACE_KEYS = ("total", "free", "inodes", "free_inodes")
_SHORT = 200
#: Bytes of a bundle; the largest that was seen has about one MiB.
_LARGEST = 64 << 20
#: Paths that one pattern may stand for, and all of a file together.
_MOST_PATHS = 100_000
_DEEPEST = 8
#: Characters of a pattern with braces.
_LONGEST = 4096


class MachineFileError(ValueError):
    """A machine file that cannot be understood; the message names the line."""


@dataclass
class MachineFile:
    """What a machine file holds.

    Attributes:
        files: path -> content. links: path -> target. folders: empty folders.
        nodes: path -> attributes, as in `Recorded.nodes`. env: the environment.
        machine: user, uname, python, limits as JSON mappings.
        commands: JSON mappings with argv, stdout, stderr, code, problem, seconds. probes: the same with key
            (name and args) and value instead of argv.
        notes: sections that are none of the doctor's business (expect, reports, story), as text.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    machine: dict[str, dict[str, Any]] = field(default_factory=dict)
    commands: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    _expanded: int = field(default=0, compare=False, repr=False)

    def expand(self, pattern: str) -> list[str]:
        """`expand`, for a file that may hold so many paths in all. Raises MachineFileError beyond."""
        found = expand(pattern)
        self._expanded += len(found)
        if self._expanded > _MOST_PATHS:
            raise MachineFileError(f"more than {_MOST_PATHS} paths in all")
        return found

    def remove(self, path: str) -> None:
        """Forget a path and everything below it."""
        for table in (self.files, self.links, self.nodes):
            for name in [name for name in table if name == path or name.startswith(path + "/")]:
                del table[name]
        self.folders = {name for name in self.folders if name != path and not name.startswith(path + "/")}


def parse(text: str, include: Callable[[str], str] | None = None) -> MachineFile:
    """Read a machine file. include: name -> text of a file named by ``--- include``, None to refuse them.

    Raises MachineFileError.
    """
    machine = MachineFile()
    _parse_into(machine, text, include)
    return machine


def load(path: Path) -> MachineFile:
    """Read a machine file from disk; includes are looked up beside it. Raises OSError, MachineFileError."""

    def include(name: str) -> str:
        return (path.parent / name).read_text("utf-8")

    return parse(path.read_text("utf-8"), include)


def load_bundle(path: Path) -> MachineFile:
    """Read a bundle from disk: from anybody, so it may not include files. Bytes that are no UTF-8 are those of
    variables and paths, as `os.fsdecode` keeps them. Raises OSError, MachineFileError."""
    if not path.is_dir() and not path.is_file():  # a pipe would be waited for, a device read for ever
        path.stat()
        raise MachineFileError("no regular file")
    if path.is_file() and path.stat().st_size > _LARGEST:
        raise MachineFileError(f"larger than {_LARGEST >> 20} MiB")
    return parse(path.read_text("utf-8", "surrogateescape"))


def _parse_into(
    machine: MachineFile, text: str, include: Callable[[str], str] | None, depth: int = 0
) -> None:
    last: dict[str, Any] = {}
    for number, head, lines in _sections(text):
        word, _, rest = head.partition(" ")
        rest = rest.strip()
        try:
            if word == "include":
                if include is None:
                    raise MachineFileError("a bundle may not include other files")
                if depth >= _DEEPEST:
                    raise MachineFileError(f"{rest} is included {depth} deep; does it include itself?")
                notes = dict(machine.notes)  # what is said about another machine is not said about this one
                _parse_into(machine, include(rest), include, depth + 1)
                machine.notes = notes
            elif word in ("command", "probe"):
                last = _outcome(machine, word, rest, lines)
            elif word == "stderr":
                last["stderr"] = _joined(lines)
            elif word == "exit":
                for key, value in (item.split("=", 1) for item in rest.split()):
                    last[key] = (
                        value if key == "problem" else float(value) if key == "seconds" else int(value)
                    )
            else:
                _section(machine, word, rest, lines)
        except MachineFileError as error:
            raise MachineFileError(
                str(error) if ", section " in str(error) else f"line {number}: {error}"
            ) from None
        except (ValueError, KeyError, IndexError, OSError, TypeError, RecursionError) as error:
            raise MachineFileError(f"line {number}, section {word!r}: {error}") from None


def _sections(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """(line number, header, lines) of each section, escapes undone."""
    lines = text.split("\n")
    if not lines or lines[0].strip() != MAGIC:
        raise MachineFileError(f"the first line is not {MAGIC!r}")
    head, start, body = "", 0, list[str]()
    for number, line in enumerate(lines[1:], 2):
        if line.startswith("--- "):
            if head:
                yield start, head, body
            head, start, body = line[4:].strip(), number, []
        else:
            body.append(line[1:] if line.startswith("\\") else line)
    if head:
        if body and not body[-1]:
            body.pop()  # the file's own last newline
        yield start, head, body


def _outcome(machine: MachineFile, word: str, rest: str, lines: list[str]) -> dict[str, Any]:
    if word == "command":
        argv = shlex.split(rest)
        machine.commands = [item for item in machine.commands if item["argv"] != argv]
        entry: dict[str, Any] = {"argv": argv, "stdout": _joined(lines)}
        machine.commands.append(entry)
        return entry
    machine.probes = [item for item in machine.probes if item["key"] != rest]
    entry = {"key": rest, "value": json.loads("\n".join(lines)) if "".join(lines).strip() else None}
    machine.probes.append(entry)
    return entry


def _section(machine: MachineFile, word: str, rest: str, lines: list[str]) -> None:
    listed = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if word == "file":
        machine.files[rest] = _joined(lines).encode("utf-8", "surrogateescape")
    elif word == "file-without-newline":
        machine.files[rest] = "\n".join(lines).encode("utf-8", "surrogateescape")
    elif word == "file-base64":
        machine.files[rest] = base64.b64decode("".join(lines))
    elif word == "values":
        for line in listed:
            path, separator, value = line.partition(" = ")
            if not separator:
                path, separator, value = line.rstrip(" =").strip(), "=", ""
            for name in machine.expand(path):
                machine.files[name] = (value + "\n").encode("utf-8", "surrogateescape")
    elif word == "empty":
        for line in listed:
            for name in machine.expand(line):
                if name.endswith("/"):
                    machine.folders.add(name.rstrip("/") or "/")
                else:
                    machine.files[name] = b""
    elif word == "links":
        for line in listed:
            path, _, target = line.partition(" -> ")
            paths = machine.expand(path)
            for name, to in zip(paths, _repeated(machine.expand(target), len(paths)), strict=True):
                machine.links[name] = to
    elif word == "nodes":
        for line in listed:
            path, attributes = _node(line)
            for name in machine.expand(path):
                machine.nodes[name] = {**machine.nodes.get(name, {}), **attributes}
    elif word == "env":
        for line in listed:
            name, _, value = line.partition("=")
            machine.env[name] = value
    elif word == "unset":
        for line in listed:
            machine.env.pop(line, None)
    elif word == "remove":
        for line in listed:
            for name in machine.expand(line):
                machine.remove(name)
    elif word == "machine":
        for line in listed:
            key, _, value = line.partition(" = ")
            given = json.loads(value)
            if not isinstance(given, dict):
                raise MachineFileError(f"{key} is {str(given)[:40]!r}, no object")
            machine.machine[key] = {**machine.machine.get(key, {}), **given}
    else:
        machine.notes[head_word(word, rest)] = _joined(lines)


def head_word(word: str, rest: str) -> str:
    """The key of a note: its header."""
    return f"{word} {rest}".strip()


def _joined(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def _repeated(values: list[str], count: int) -> list[str]:
    return values * count if len(values) == 1 else values


def _node(line: str) -> tuple[str, dict[str, Any]]:
    """``PATH KIND MODE UID GID [key=value ...]``; a dash leaves a field out."""
    path, kind, mode, uid, gid, *more = shlex.split(line)
    values: dict[str, Any] = {}
    if kind != "-":
        values["kind"] = kind
    if mode != "-":
        values["mode"] = int(mode, 8)
    if uid != "-":
        values["uid"] = int(uid)
    if gid != "-":
        values["gid"] = int(gid)
    space: dict[str, int] = {}
    for item in more:
        key, _, value = item.partition("=")
        if key in _SPACE_KEYS:
            space[key] = int(value)
        elif key == "device":
            values["device"] = [int(part) for part in value.split(":")]
        elif key == "size":
            values["size"] = int(value)
        elif key in ("open", "write"):
            values[key] = value
        else:
            raise MachineFileError(f"unknown attribute {key!r} of {path}")
    if space:
        values["space"] = space
    return path, values


def expand(pattern: str) -> list[str]:
    """``/dev/nvidia{0..3}`` and ``{a,b}`` as a shell expands them. Raises MachineFileError beyond 100000 paths."""
    if len(pattern) > _LONGEST and "{" in pattern:
        raise MachineFileError(f"a pattern of {len(pattern)} characters")
    waiting, done = [pattern], list[str]()
    while waiting:
        current = waiting.pop()
        found = re.search(r"\{([^{}]*(?:,|\.\.)[^{}]*)\}", current)
        if not found:
            done.append(current)
            continue
        span = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", found[1])
        numbers = range(int(span[1]), int(span[2]) + 1) if span else range(0)
        count = len(numbers) if span else found[1].count(",") + 1
        if len(waiting) + len(done) + count > _MOST_PATHS:
            raise MachineFileError(f"{pattern[:60]!r} stands for more than {_MOST_PATHS} paths")
        parts = map(str, numbers) if span else found[1].split(",")
        head, tail = current[: found.start()], current[found.end() :]
        waiting += [f"{head}{part.strip()}{tail}" for part in parts][::-1]
    return done


def dump(machine: MachineFile) -> str:
    """The text of a machine file; `parse` gives the same machine again."""
    out = [MAGIC]
    for name, text in machine.notes.items():
        out += [f"--- {name}", *_escaped(text)]
    if machine.machine:
        out += ["--- machine", *(f"{key} = {json.dumps(value)}" for key, value in machine.machine.items())]
    if machine.env:
        out += [
            "--- env",
            *(f"{key}={value}" for key, value in sorted(machine.env.items()) if "\n" not in value),
        ]
    plain = {path: data for path, data in machine.files.items() if not re.search(r"[{}]|^\s|\s$", path)}
    one_line = {path: _one_line(data) for path, data in plain.items()}
    values = [f"{path} = {value}" for path, value in sorted(one_line.items()) if value]
    empty = sorted(path for path, data in plain.items() if not data)
    folders = sorted(machine.folders - {"/"})
    if values:
        out += ["--- values", *values]
    if empty or folders:
        out += ["--- empty", *empty, *(f"{folder}/" for folder in folders)]
    if machine.links:
        out += ["--- links", *(f"{path} -> {target}" for path, target in sorted(machine.links.items()))]
    if machine.nodes:
        out += ["--- nodes", *(_node_line(path, node) for path, node in sorted(machine.nodes.items()))]
    for path, data in sorted(machine.files.items()):
        if path in plain and (one_line[path] or not data):
            continue
        try:
            text = data.decode()
        except UnicodeDecodeError:
            out += [f"--- file-base64 {path}", base64.b64encode(data).decode()]
            continue
        if "\r" in text or "\0" in text:
            out += [f"--- file-base64 {path}", base64.b64encode(data).decode()]
        elif text.endswith("\n"):
            out += [f"--- file {path}", *_escaped(text)]
        else:
            out += [f"--- file-without-newline {path}", *_escaped(text + "\n")]
    for item in machine.commands:
        out += [f"--- command {shlex.join(item['argv'])}", *_escaped(item.get("stdout", "")), *_ending(item)]
    for item in machine.probes:
        out += [
            f"--- probe {item['key']}",
            *_escaped(json.dumps(item.get("value"), indent=1)),
            *_ending(item),
        ]
    return "\n".join(out) + "\n"


def _escaped(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [f"\\{line}" if line.startswith(("--- ", "\\")) else line for line in lines]


def _one_line(data: bytes) -> str:
    """The value of a short file of one line, "" if it is none."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ""
    line = text[:-1]
    if not text.endswith("\n") or len(line) > _SHORT or line != line.strip() or not line.isprintable():
        return ""
    return line


def _node_line(path: str, node: dict[str, Any]) -> str:
    mode = f"{node['mode']:o}" if "mode" in node else "-"
    fields = [
        shlex.quote(path),
        node.get("kind", "-"),
        mode,
        str(node.get("uid", "-")),
        str(node.get("gid", "-")),
    ]
    fields += [f"{key}={node[key]}" for key in ("open", "write", "size") if key in node]
    if "device" in node:
        fields.append("device={}:{}".format(*node["device"]))
    fields += [f"{key}={value}" for key, value in node.get("space", {}).items()]
    return " ".join(fields)


def _ending(item: dict[str, Any]) -> list[str]:
    lines = []
    if item.get("stderr"):
        lines += ["--- stderr", *_escaped(item["stderr"])]
    ending = [f"{key}={item[key]}" for key in ("code", "problem", "seconds") if item.get(key)]
    if ending:
        lines.append(f"--- exit {' '.join(ending)}")
    return lines
