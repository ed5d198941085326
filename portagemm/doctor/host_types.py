"""What a `Host` returns: plain values that can be recorded and replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["file", "dir", "char", "block", "fifo", "socket", "link", "unknown"]


@dataclass(frozen=True)
class Stat:
    """Status of a path. mode: permission bits with suid, sgid and sticky. size: bytes. device: (major, minor)
    of a char or block node."""

    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int = 0
    device: tuple[int, int] = (0, 0)

    def allows(self, user: User, *, write: bool) -> bool:
        """Whether the permission bits let `user` read (and, if asked, write). Root passes; ACLs are not seen."""
        if user.uid == 0:
            return True
        shift = 6 if user.uid == self.uid else 3 if self.gid in user.groups else 0
        wanted = 0o6 if write else 0o4
        return (self.mode >> shift) & wanted == wanted


@dataclass(frozen=True)
class Space:
    """Size and room of a file system; bytes and inodes (0 inodes in all: it does not count them)."""

    total: int
    free: int
    inodes: int = 0
    free_inodes: int = 0


@dataclass(frozen=True)
class Mount:
    """The mount a path lies on. kind: the kernel's name of the file system. options: of mount and superblock."""

    point: str
    kind: str
    source: str
    options: frozenset[str]


@dataclass(frozen=True)
class User:
    """Who runs the process. name: "" if the id has none. groups: all gids in force, the primary one included.
    home: of the user's entry in the system, "" if it has none."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str = ""
    home: str = ""


@dataclass(frozen=True)
class Uname:
    """As `os.uname` gives it."""

    system: str
    release: str
    machine: str
    node: str


@dataclass(frozen=True)
class Python:
    """The running interpreter.

    Attributes:
        version: such as "3.11.2". implementation: "cpython". executable, prefix, base_prefix: as in `sys`.
        path: `sys.path`, absolute folders only. libc: ("glibc", "2.36"), ("musl", "1.2") or ("", "").
        pointer_bits: 32 or 64. free_threaded: built without the global lock.
        start_method: of multiprocessing, "" if not chosen yet.
    """

    version: str
    implementation: str
    executable: str
    prefix: str
    base_prefix: str
    path: tuple[str, ...]
    libc: tuple[str, str] = ("", "")
    pointer_bits: int = 64
    free_threaded: bool = False
    start_method: str = ""

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor)."""
        major, minor = [*self.version.split("."), "0", "0"][:2]
        return int(major), int(minor)


@dataclass(frozen=True)
class Command:
    """A finished command.

    Attributes:
        argv: as asked for. stdout, stderr: decoded with replacement. code: exit status (-N: signal N).
        problem: "" it ran; "not-found"; "denied" (no permission or not executable); "timed-out".
        seconds: wall time.
    """

    argv: tuple[str, ...]
    stdout: str = ""
    stderr: str = ""
    code: int = 0
    problem: Literal["", "not-found", "denied", "timed-out"] = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """It ran and exited with 0."""
        return not self.problem and self.code == 0

    def say(self) -> str:
        """How it ended, in words, for messages."""
        if self.problem:
            words = {"not-found": "not found", "denied": "not permitted", "timed-out": "timed out"}
            return words[self.problem]
        if self.code < 0:
            return f"killed by {signal_name(-self.code)}"
        return f"exit status {self.code}"


@dataclass(frozen=True)
class Child:
    """A finished child probe (see `Host.child`).

    Attributes:
        value: the JSON value it printed last, None if none.
        command: how the process ended, with its stderr.
        recorded: False only in a replay that does not hold this probe: the check should skip.
    """

    value: Any
    command: Command
    recorded: bool = True

    @property
    def ok(self) -> bool:
        """It ended well and printed a value."""
        return self.command.ok and self.value is not None

    @property
    def crashed(self) -> str:
        """The signal that killed it ("SIGSEGV"), "" if none."""
        code = self.command.code
        return signal_name(-code) if code < 0 and not self.command.problem else ""

    @property
    def timed_out(self) -> bool:
        """It did not end within its time limit and was killed."""
        return self.command.problem == "timed-out"


@dataclass(frozen=True)
class Trial:
    """Whether files can be made, renamed and locked in a folder. errno: 0 yes, else why not (`errno` names).

    step: what failed. folder: where it was tried; the nearest existing parent if the folder does not exist.
    """

    folder: str
    errno: int = 0
    step: str = ""


@dataclass(frozen=True)
class Recorded:
    """A machine that was recorded: all of a host but its files. See docs/doctor-fixtures.md for the format.

    Attributes:
        nodes: path -> what a plain file cannot hold: kind, mode, uid, gid, device, size, open (errno name),
            write (errno name of making files in it), space (total, free, inodes, free_inodes).
        commands: argv -> outcome. probes: "name arg arg" -> outcome. limits: name -> (soft, hard), -1 none.
    """

    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    user: User = User(1000, 1000, (1000,), "user")
    uname: Uname = Uname("Linux", "", "x86_64", "host")
    python: Python | None = None
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    commands: Mapping[tuple[str, ...], Command] = field(default_factory=dict)
    probes: Mapping[str, Child] = field(default_factory=dict)


def signal_name(number: int) -> str:
    """SIGSEGV for 11."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
