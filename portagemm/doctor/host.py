"""`Host`: the only door to the machine. Checks read files, variables, commands and children through it alone.

A host is the live machine, a folder that holds another machine's files (`root`), or a replay: such a folder
with a `Recorded` beside it. Paths are always absolute and those of the machine looked at ("/proc/version"),
never of the folder they are stored in. Symbolic links are followed inside the root. Nothing here raises: what
cannot be read is "" or None or empty, and `open_errno` says why.

Parts can be mixed, which tests use: `Host(tree, env={...}, recorded=Recorded(...), live_children=True)` reads
a tree but runs child probes for real, with `env` as their environment.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import stat as stat_module
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from portagemm.doctor import live
from portagemm.doctor.host_types import (
    Child,
    Command,
    Kind,
    Mount,
    Python,
    Recorded,
    Space,
    Stat,
    Trial,
    Uname,
    User,
)
from portagemm.doctor.process import run_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from portagemm.doctor.record import Recorder

_T = TypeVar("_T")

_PROBES = Path(__file__).resolve().parent / "probes"
_KINDS: dict[int, Kind] = {
    stat_module.S_IFREG: "file",
    stat_module.S_IFDIR: "dir",
    stat_module.S_IFCHR: "char",
    stat_module.S_IFBLK: "block",
    stat_module.S_IFIFO: "fifo",
    stat_module.S_IFSOCK: "socket",
    stat_module.S_IFLNK: "link",
}
_MAX_LINKS = 40


class Env(Mapping[str, str]):
    """The environment, read only. A recorder notes the names that were looked up."""

    def __init__(self, values: Mapping[str, str], recorder: Recorder | None = None) -> None:
        self._values = values
        self._recorder = recorder

    def __getitem__(self, name: str) -> str:
        value = self._values[name]
        if self._recorder is not None:
            self._recorder.env(name, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def whole(self) -> dict[str, str]:
        """All of it, for a child; not recorded."""
        return dict(self._values)

    def starting(self, *prefixes: str) -> dict[str, str]:
        """Variables whose names start with one of `prefixes`, sorted by name."""
        return {name: self[name] for name in sorted(self._values) if name.startswith(prefixes)}


class Host:
    """One machine.

    Args:
        root: where its files are.
        env: its environment; by default the process's own if the host is live, else empty.
        recorded: what stands in for users, commands and children. None: the live process's.
        live_children: run child probes for real although `recorded` is given.
        recorder: notes everything read, for a bundle.

    Attributes:
        root, env, recorded, recorder: as given. live: whether files are those of the running system.
        memo: results of `facts`, by function name.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = "/",
        env: Mapping[str, str] | None = None,
        *,
        recorded: Recorded | None = None,
        live_children: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        self.root = Path(root)
        self.live = self.root == Path("/") and recorded is None
        if env is None:
            env = os.environ if self.live else {}
        self.env = Env(env, recorder)
        self.recorded = recorded if recorded is not None or self.live else Recorded()
        self.recorder = recorder
        self._live_children = self.recorded is None or live_children
        self.memo: dict[str, Any] = {}
        self._resolved: dict[tuple[str, bool], str | None] = {}

    # -- files -------------------------------------------------------------------------------------------

    def text(self, path: str, limit: int = 1 << 20) -> str:
        """The file's text, undecodable bytes replaced; "" if it cannot be read or is no regular file."""
        data = self.data(path, limit)
        return "" if data is None else data.decode("utf-8", "replace")

    def value(self, path: str) -> str:
        """The text of a file of one value (sysfs), without white space around it; "" if unreadable."""
        return self.text(path, 1 << 16).strip("\0 \t\r\n")

    def number(self, path: str) -> int | None:
        """The number a file holds (decimal, or hexadecimal with 0x); None if it holds none."""
        try:
            return int(self.value(path), 0)
        except ValueError:
            return None

    def data(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """At most `limit` bytes from the start of a regular file; None if it cannot be read."""
        if self._node(path).get("open"):
            return None
        real = self._real(path)
        if real is None:
            return None
        try:
            # A device or pipe may block or act when opened: look before, and check what was opened.
            if not stat_module.S_ISREG(os.stat(real).st_mode):  # noqa: PTH116 (paths here may be undecodable)
                return None
            descriptor = os.open(
                real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
            )
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(limit)
        except (OSError, ValueError) as error:
            if self.recorder is not None and isinstance(error, PermissionError):
                self.recorder.unreadable(self._stored(path))
            return None
        if self.recorder is not None:
            self.recorder.file(self._stored(path), data)
            self._note_links(path)
        return data

    def exists(self, path: str) -> bool:
        """Whether there is such a path, links followed."""
        return self.stat(path) is not None

    def is_dir(self, path: str) -> bool:
        """Whether it is a folder, links followed."""
        found = self.stat(path)
        return found is not None and found.kind == "dir"

    def stat(self, path: str, *, follow: bool = True) -> Stat | None:
        """Kind, mode, owner, group, size and device number; None if there is no such path."""
        real = self._real(path, follow_last=follow)
        if real is None:
            return None
        try:
            found = os.stat(real) if follow else os.lstat(real)  # noqa: PTH116
        except (OSError, ValueError):
            return None
        if self.recorded is None:
            kind = _KINDS.get(stat_module.S_IFMT(found.st_mode), "unknown")
            device = (0, 0)
            if kind in ("char", "block"):
                device = (os.major(found.st_rdev), os.minor(found.st_rdev))
            mode = stat_module.S_IMODE(found.st_mode)
            result = Stat(kind, mode, found.st_uid, found.st_gid, found.st_size, device)
        else:
            result = self._recorded_stat(path, found)
        if self.recorder is not None:
            self.recorder.stat(self._stored(path) if follow else self._stored_link(path), result)
            self._note_links(path)
        return result

    def listdir(self, path: str) -> list[str]:
        """Sorted names in a folder; empty if it cannot be listed."""
        names = self._names(path)
        if self.recorder is not None:
            self.stat(path)
            for name in names:
                self.stat(f"{path.rstrip('/')}/{name}")
        return names

    def _names(self, path: str) -> list[str]:
        """`listdir` that is not recorded: of a pattern only the matches are."""
        real = self._real(path)
        if real is None:
            return []
        try:
            return sorted(os.listdir(real))  # noqa: PTH208
        except (OSError, ValueError):
            return []

    def glob(self, pattern: str) -> list[str]:
        """Sorted paths that match; `*`, `?` and `[...]` within a component, links followed, no `**`."""
        found = [""]
        for part in pattern.strip("/").split("/"):
            if any(char in part for char in "*?["):
                found = [
                    f"{base}/{name}"
                    for base in found
                    for name in self._names(base or "/")
                    if fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
                ]
            else:
                found = [f"{base}/{part}" for base in found]
        return sorted(path for path in found if self.exists(path) or self.readlink(path) is not None)

    def readlink(self, path: str) -> str | None:
        """The target of a symbolic link as written; None if it is none."""
        real = self._real(path, follow_last=False)
        if real is None:
            return None
        try:
            target = os.readlink(real)  # noqa: PTH115
        except (OSError, ValueError):
            return None
        if self.recorder is not None:
            self.recorder.link(self._stored_link(path), target)
            self._note_links(path)
        return target

    def realpath(self, path: str) -> str:
        """The path with all links resolved, inside the root; `path` itself where that fails."""
        if self.recorder is not None:
            self.stat(path)
        return self._resolved_path(path)

    def _resolved_path(self, path: str) -> str:
        if self.root == Path("/"):
            return os.path.realpath(path)
        return self._inside(path, True) or path

    def open_errno(self, path: str, *, write: bool = False) -> int:
        """0 if the path can be opened for reading (and writing), else the errno: ENOENT, EACCES, EPERM ...

        This opens device nodes for real. EPERM on a node whose permission bits allow it is the device cgroup.
        """
        if self.recorded is None:
            flags = os.O_RDWR if write else os.O_RDONLY
            for extra in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY"):
                flags |= getattr(os, extra, 0)
            try:
                os.close(os.open(path, flags))
                code = 0
            except OSError as error:
                code = error.errno or errno.EIO
            except ValueError:
                code = errno.EINVAL
        else:
            found = self.stat(path)
            if found is None:
                return errno.ENOENT
            named = self._node(path).get("open", "")
            allowed = found.allows(self.user, write=write)
            code = _errno(named) if named else 0 if allowed else errno.EACCES
        if self.recorder is not None:
            self.stat(path)
            self.recorder.opened(self._stored(path), code)
        return code

    def space(self, path: str) -> Space | None:
        """Room on the file system a path lies on; None if unknown."""
        if self.recorded is None:
            try:
                found = os.statvfs(self._real(path) or path)
            except (OSError, AttributeError, ValueError):
                return None
            block = found.f_frsize
            room = Space(found.f_blocks * block, found.f_bavail * block, found.f_files, found.f_favail)
        else:
            values = self._nearest(path, "space")
            if values is None:
                return None
            room = Space(**values)
        if self.recorder is not None:
            self.recorder.space(self._stored(path), room)
        return room

    def mount(self, path: str) -> Mount | None:
        """The mount a path (which need not exist) lies on, from /proc/self/mountinfo; None if unknown."""
        name = os.path.normpath(self.realpath(path))
        best: Mount | None = None
        for line in self.text("/proc/self/mountinfo").splitlines():
            left, separator, right = line.partition(" - ")
            fields, source = left.split(), right.split()
            if not separator or len(fields) < 6 or len(source) < 2:
                continue
            point = _unescape(fields[4])
            inside = name == point or name.startswith(point.rstrip("/") + "/")
            if inside and (
                best is None or len(point) >= len(best.point)
            ):  # a later mount hides an earlier one
                options = fields[5].split(",") + (source[2].split(",") if len(source) > 2 else [])
                best = Mount(point, source[0], source[1], frozenset(options))
        return best

    def try_folder(self, path: str) -> Trial:
        """Make, lock, rename and remove a small file in a folder; in its nearest existing parent if it is not
        there yet, where only permission is asked for. Replays answer from the recording."""
        folder = path
        while folder not in ("/", "") and not self.exists(folder):
            folder = os.path.dirname(folder)  # noqa: PTH120
        if not self.is_dir(folder):
            trial = Trial(folder, errno.ENOTDIR, "open")
        elif self.recorded is not None:
            named = self._nearest(folder, "write")
            found = self.stat(folder)
            if named:
                trial = Trial(folder, _errno(named), "create")
            elif found is not None and not found.allows(self.user, write=True):
                trial = Trial(folder, errno.EACCES, "create")
            else:
                trial = Trial(folder)
        elif folder != path:
            allowed = os.access(folder, os.W_OK | os.X_OK)
            read_only = hasattr(os, "statvfs") and os.statvfs(folder).f_flag & getattr(os, "ST_RDONLY", 1)
            trial = Trial(folder, 0 if allowed else errno.EROFS if read_only else errno.EACCES, "create")
        else:
            trial = live.try_folder(folder)
        if self.recorder is not None:
            self.recorder.write(self._stored(folder), trial.errno)
        return trial

    def which(self, name: str) -> str | None:
        """The executable `name` on PATH, or itself if it is an absolute path to one; None if there is none."""
        if name.startswith("/"):
            places = [name]
        else:
            places = [
                f"{folder}/{name}" for folder in self.env.get("PATH", "").split(":") if folder.startswith("/")
            ]
        for place in places:
            found = self.stat(place)
            if found is not None and found.kind == "file" and found.mode & 0o111:
                return place
        return None

    # -- the process -------------------------------------------------------------------------------------

    @property
    def user(self) -> User:
        """Who runs this."""
        return self._once("user", live.user if self.recorded is None else lambda: self._machine().user)

    @property
    def uname(self) -> Uname:
        """System, kernel release, machine, host name."""
        return self._once("uname", live.uname if self.recorded is None else lambda: self._machine().uname)

    @property
    def python(self) -> Python:
        """The interpreter that runs (or ran) the doctor."""

        def recorded() -> Python:
            python = self._machine().python
            return python or replace(live.python(), path=(), executable="", prefix="", base_prefix="")

        return self._once("python", live.python if self.recorded is None else recorded)

    def limit(self, name: str) -> tuple[int, int] | None:
        """(soft, hard) of a resource limit: memlock, nofile, nproc, stack, core, as; -1 is unlimited."""
        if self.recorded is not None:
            return self.recorded.limits.get(name)
        try:
            import resource

            soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        except (ImportError, AttributeError, OSError, ValueError):
            return None
        unlimited = resource.RLIM_INFINITY
        values = (-1 if soft == unlimited else soft, -1 if hard == unlimited else hard)
        if self.recorder is not None:
            self.recorder.limit(name, values)
        return values

    def run(self, argv: Sequence[str], *, timeout: float = 5.0, limit: int = 1 << 20) -> Command:
        """Run a command (never through a shell) with the host's environment and LC_ALL=C.

        A replay answers with what was recorded for the same argv, "not-found" if nothing was. Output beyond
        `limit` characters is cut.
        """
        asked = tuple(argv)
        if self.recorded is not None:
            return self.recorded.commands.get(asked, Command(asked, problem="not-found"))
        done = run_process(asked, {**self.env.whole(), "LC_ALL": "C"}, timeout, limit, self.which(asked[0]))
        if self.recorder is not None:
            self.recorder.command(done)
        return done

    def child(
        self,
        name: str,
        *args: str,
        timeout: float = 10.0,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Run ``probes/<name>.py args...`` with this interpreter and return the JSON value on its last line.

        For what may hang or crash: loading a driver's library, importing torch. `env`: variables added. A
        replay answers with what was recorded for the same name and args.
        """
        key = " ".join((name, *args))
        if not self._live_children:
            missing = Child(None, Command((name, *args), problem="not-found"), recorded=False)
            return self._machine().probes.get(key, missing)
        script = str(_PROBES / f"{name}.py")
        argv = (sys.executable, script, *args)
        # The children import from the standard library, and torch: our own folder is no place to find modules.
        whole = {
            **self.env.whole(),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONIOENCODING": "utf-8",
            **(env or {}),
        }
        done = run_process(argv, whole, timeout, 1 << 20, sys.executable or None)
        value = None
        for line in reversed(done.stdout.splitlines()):
            if line.strip():
                try:
                    value = json.loads(line)
                except ValueError:
                    value = None
                break
        result = Child(value, replace(done, argv=(name, *args)))
        if self.recorder is not None:
            self.recorder.probe(key, result)
        return result

    # -- inside ------------------------------------------------------------------------------------------

    def _machine(self) -> Recorded:
        return self.recorded or Recorded()

    def _once(self, name: str, make: Callable[[], _T]) -> _T:
        key = f"host.{name}"
        if key not in self.memo:
            self.memo[key] = make()
        value: _T = self.memo[key]
        return value

    def _node(self, path: str) -> Mapping[str, Any]:
        if self.recorded is None or not self.recorded.nodes:
            return {}
        node = self.recorded.nodes.get(path)
        return node if node is not None else self.recorded.nodes.get(self.realpath(path), {})

    def _nearest(self, path: str, key: str) -> Any:
        """`key` of the node of the path or of its nearest parent that has it."""
        place = os.path.normpath(self.realpath(path))
        nodes = self._machine().nodes
        while True:
            found = nodes.get(place, {}).get(key)
            if found is not None or place in ("/", ""):
                return found
            place = os.path.dirname(place)  # noqa: PTH120

    def _recorded_stat(self, path: str, found: os.stat_result) -> Stat:
        """A stored file's own mode and owner mean nothing: root's and readable, unless the recording says."""
        node = self._node(path)
        kind: Kind = node.get("kind") or _KINDS.get(stat_module.S_IFMT(found.st_mode), "unknown")
        executable = 0o111 if found.st_mode & 0o100 else 0
        mode = node.get("mode", 0o755 if kind == "dir" else 0o644 | executable)
        device = tuple(node.get("device", (0, 0)))
        size = node.get("size", found.st_size)
        return Stat(kind, mode, node.get("uid", 0), node.get("gid", 0), size, (device[0], device[1]))

    def _real(self, path: str, *, follow_last: bool = True) -> str | None:
        """Where the path is stored; None if a link loops or the path is not absolute."""
        if not path.startswith("/"):
            return None
        if self.root == Path("/"):
            return path
        inside = self._inside(path, follow_last)
        return None if inside is None else f"{self.root}{inside}"

    def _inside(self, path: str, follow_last: bool) -> str | None:
        """`_resolve` of a tree, which does not change while it is looked at."""
        key = (path, follow_last)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(path, follow_last=follow_last)
        return self._resolved[key]

    def _resolve(self, path: str, *, follow_last: bool) -> str | None:
        """The path inside the root without links; None if they loop."""
        prefix = "" if self.root == Path("/") else str(self.root)
        waiting = [part for part in path.split("/") if part and part != "."][::-1]
        done: list[str] = []
        links = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                done = done[:-1]
                continue
            here = "/".join([prefix, *done, part])
            if (waiting or follow_last) and os.path.islink(here):  # noqa: PTH114
                links += 1
                if links > _MAX_LINKS:
                    return None
                target = os.readlink(here)  # noqa: PTH115
                if self.recorder is not None:
                    self.recorder.link("/".join(["", *done, part]), target)
                if target.startswith("/"):
                    done = []
                waiting += [step for step in target.split("/") if step and step != "."][::-1]
            else:
                done.append(part)
        return "/" + "/".join(done)

    def _stored(self, path: str) -> str:
        """Where a recording keeps a path: resolved, but /proc/self stays, whose number changes."""
        return path if path.startswith("/proc/self/") else self._resolved_path(path)

    def _stored_link(self, path: str) -> str:
        """`_stored` of a path that is itself not followed: its folder resolved, for nothing is kept below a link."""
        folder, _, name = path.rstrip("/").rpartition("/")
        return f"{self._stored(folder or '/').rstrip('/')}/{name}"

    def _note_links(self, path: str) -> None:
        """Record the links on the way to a path, so that it resolves in a replay."""
        if path.startswith("/proc/self/"):
            return
        try:
            self._resolve(path, follow_last=True)
        except OSError:
            pass


def _unescape(text: str) -> str:
    """Spaces and the like are octal in mountinfo."""
    import re

    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _errno(name: str) -> int:
    code: int = getattr(errno, str(name), errno.EIO)
    return code
