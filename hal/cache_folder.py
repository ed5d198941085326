"""The folder of the kernel cache: where it is, and how an entry is read, written, bounded and locked.

An entry is one file: a line of JSON (what it is, its size and digest), then the code. It is written aside,
synchronised and renamed, so a reader sees all of it or nothing; the digest is checked at every read. Locks
are released by the kernel when their holder dies. On a network file system locks lie in a folder of this
host: one compile a key on each host, and no dependence on the file system's own locks.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portagemm.hal import environment
from portagemm.hal.cache_key import SCHEMA
from portagemm.hal.notices import warn_once
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource

#: Folder of the cache; default: the user's cache folder.
DIRECTORY_VARIABLE = "PORTAGEMM_CACHE_DIR"

_SUFFIX = ".kernel"
_MAGIC = "portagemm-kernel"
_HEADER_BYTES = 1 << 16
_LOG_CHARACTERS = 8192
_YOUNG_SECONDS = 60.0  # entries of running start-ups are never evicted
_STALE_SECONDS = 3600.0  # a file written aside this long ago has lost its writer
_TOUCH_SECONDS = 3600.0  # how often a use is noted in the file's time


@dataclass(frozen=True)
class Found:
    """What reading an entry gave: code, or why not (`damage` is "" when there is none)."""

    code: ObjectCode | None
    damage: str = ""


def default_folder() -> tuple[Path | None, bool]:
    """(folder, whether the user chose it). None: no usable folder in the user's home.

    PORTAGEMM_CACHE_DIR decides; otherwise the platform's cache folder, if it can be made and written to.
    """
    chosen = os.environ.get(DIRECTORY_VARIABLE, "")
    if chosen:
        with contextlib.suppress(RuntimeError):  # no home to expand "~" to
            return Path(chosen).expanduser().absolute(), True
        return Path(chosen).absolute(), True
    import platformdirs

    try:
        folder = Path(platformdirs.user_cache_dir("portagemm"))
        if not folder.is_absolute():  # no home at all: "~" stays as it is
            return None, False
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            return None, False
    except (OSError, RuntimeError):
        return None, False
    return folder, False


def private_folder() -> Path | None:
    """A folder only this user can enter below the system's temporary folder, None if there is none.

    The same for all processes of a user, unless another user took its name.
    """
    import tempfile

    user = os.getuid() if hasattr(os, "getuid") else 0
    try:
        folder = Path(tempfile.gettempdir()) / f"portagemm-{user}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        ours = folder.is_dir() and not folder.is_symlink() and status.st_uid == user
        if ours and status.st_mode & 0o077 == 0 and os.access(folder, os.W_OK | os.X_OK):
            return folder
        return _own_folder()
    except OSError:
        return None


_own: list[Path] = []


def _own_folder() -> Path:
    """A folder of this process alone, removed at its end."""
    if not _own or not _own[0].is_dir():
        import atexit
        import shutil
        import tempfile

        _own[:] = [Path(tempfile.mkdtemp(prefix="portagemm-"))]
        owner = os.getpid()

        def remove(folder: Path = _own[0]) -> None:
            if os.getpid() == owner:
                shutil.rmtree(folder, ignore_errors=True)

        atexit.register(remove)
    return _own[0]


class CacheFolder:
    """Entries in one folder. Its methods raise no OSError: what fails is a miss, or not stored."""

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self.root = root
        self.limit_bytes = limit_bytes
        self.writable = True
        self._lock_folder: Path | None = None

    def path(self, key: str, spec: KernelSource) -> Path:
        """Where the entry of `key` is: a folder an arch, so that people can find their way."""
        target = spec.target
        arch = target.code_arch if target.code_arch == target.arch else f"{target.arch}-on-{target.code_arch}"
        return self.root / f"v{SCHEMA}" / f"{target.backend}-{arch}" / f"{key}{_SUFFIX}"

    def read(self, key: str, spec: KernelSource) -> Found:
        """The entry of `key`, checked."""
        path = self.path(key, spec)
        try:
            with path.open("rb") as file:
                data = file.read()
                age = time.time() - os.fstat(file.fileno()).st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return Found(None)
        except OSError as error:
            if error.errno == errno.ESTALE:  # replaced on another host while being read
                return Found(None)
            return Found(None, f"cannot be read: {error.strerror}")
        found = _parse(data, key, spec)
        if found.code is not None and age > _TOUCH_SECONDS and self.writable:
            with contextlib.suppress(OSError):
                os.utime(path)
        return found

    def write(self, key: str, spec: KernelSource, code: ObjectCode) -> bool:
        """Store an entry. On failure warn once and let this process live from memory."""
        if not self.writable:
            return False
        path = self.path(key, spec)
        aside = path.with_name(f".{key[:16]}-{os.getpid()}-{time.monotonic_ns()}.tmp")
        try:
            self._make(path.parent)
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_header(key, code))
                file.write(code.code)
                file.flush()
                _synchronise(file.fileno())
            aside.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            self._give_up(error)
            return False
        except BaseException:  # interrupted: leave nothing behind
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
        self.evict()
        return True

    def discard(self, key: str, spec: KernelSource) -> None:
        """Remove an entry, if it can be."""
        with contextlib.suppress(OSError):
            self.path(key, spec).unlink()

    def evict(self) -> int:
        """Remove the entries used longest ago until the folder is below four fifths of its bound, and what
        dead writers left. Returns the number of entries removed."""
        now = time.time()
        entries = self.entries()
        for file in self._files(".tmp"):
            with contextlib.suppress(OSError):
                if now - file.stat().st_mtime > _STALE_SECONDS:
                    file.unlink()
        total = sum(size for _, size, _ in entries)
        if not self.limit_bytes or total <= self.limit_bytes:
            return 0
        removed = 0
        for path, size, used in sorted(entries, key=lambda entry: entry[2]):
            if total <= self.limit_bytes * 4 // 5 or now - used < _YOUNG_SECONDS:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size
                removed += 1
        return removed

    def entries(self) -> list[tuple[Path, int, float]]:
        """(path, bytes, time of last use) of every entry."""
        found = []
        for file in self._files(_SUFFIX):
            with contextlib.suppress(OSError):
                status = file.stat()
                found.append((file, status.st_size, status.st_mtime))
        return found

    def clear(self) -> tuple[int, int]:
        """Remove every entry, of older versions too. Returns (entries, bytes) removed."""
        count = total = 0
        for path, size, _ in self.entries():
            with contextlib.suppress(OSError):
                path.unlink()
                count, total = count + 1, total + size
        for suffix in (".tmp", ".lock"):
            for file in self._files(suffix):
                with contextlib.suppress(OSError):
                    file.unlink()
        return count, total

    @contextlib.contextmanager
    def lock(self, key: str, timeout: float, done: Callable[[], bool]) -> Iterator[bool]:
        """Hold the lock of `key` among the processes of this host.

        Waits at most `timeout` seconds, less if `done()` says that somebody stored the entry. Yields whether
        the lock is held; without it the caller may work all the same, since an entry replaces another whole.
        """
        import filelock

        lock = None
        folder = self._locks()
        if folder is not None:
            candidate = filelock.FileLock(str(folder / f"{key}.lock"))
            if _acquire(candidate, timeout, done):
                lock = candidate
        try:
            yield lock is not None
        finally:
            if lock is not None:
                with contextlib.suppress(OSError):
                    lock.release()

    def _locks(self) -> Path | None:
        """The folder of locks: in the cache on a local disk, else on this host."""
        if self._lock_folder is None:
            here = self.root / "locks"
            if self.writable and not environment.FileSystem("", environment.file_system(self.root)).network:
                with contextlib.suppress(OSError):
                    self._make(here)
                    if os.access(here, os.W_OK):
                        self._lock_folder = here
                        return here
            private = private_folder()
            if private is None:
                return None
            name = hashlib.sha256(os.fsencode(self.root.resolve())).hexdigest()[:16]
            with contextlib.suppress(OSError):
                (private / "locks" / name).mkdir(mode=0o700, parents=True, exist_ok=True)
                self._lock_folder = private / "locks" / name
        return self._lock_folder

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)

    def _files(self, suffix: str) -> list[Path]:
        """Our files, in the folders we make, whatever the version."""
        try:
            folders = [*self.root.glob("v[0-9]*/*/"), self.root / "locks"]
            return [file for folder in folders for file in folder.iterdir() if file.name.endswith(suffix)]
        except OSError:
            return []

    def _give_up(self, error: OSError) -> None:
        self.writable = False
        warn_once(
            f"kernel cache {self.root} cannot be written ({error.strerror or error}): kernels compiled from "
            f"now on live in this process's memory only. Set {DIRECTORY_VARIABLE} to a folder with room",
            key=f"unwritable {self.root}",
        )


def _acquire(lock: Any, timeout: float, done: Callable[[], bool]) -> bool:
    import filelock

    end = time.monotonic() + timeout
    pause = 0.01
    while True:
        try:
            lock.acquire(timeout=0)
            return True
        except filelock.Timeout:
            if time.monotonic() >= end or done():
                return False
        except (OSError, NotImplementedError):  # no locks on this file system
            return False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.2)


def _synchronise(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # "cannot", not "failed"
            raise


def _header(key: str, code: ObjectCode) -> bytes:
    header = {
        "format": _MAGIC,
        "schema": SCHEMA,
        "key": key,
        "sha256": hashlib.sha256(code.code).hexdigest(),
        "bytes": len(code.code),
        "symbol": code.symbol,
        "target": str(code.target),
        "compiler": code.compiler,
        "log": code.log[:_LOG_CHARACTERS],
    }
    return json.dumps(header, separators=(",", ":")).encode() + b"\n"


def _parse(data: bytes, key: str, spec: KernelSource) -> Found:
    if not data:
        return Found(None, "it is empty")
    end = data.find(b"\n", 0, _HEADER_BYTES)
    try:
        header = json.loads(data[: end if end >= 0 else 0])
        if header["format"] != _MAGIC or header["schema"] != SCHEMA:
            return Found(None, "it is no kernel of this version")
        if header["key"] != key:
            return Found(None, "it is the entry of another kernel")
        code = data[end + 1 :]
        if len(code) != header["bytes"]:
            return Found(None, f"it holds {len(code)} bytes of {header['bytes']}")
        if hashlib.sha256(code).hexdigest() != header["sha256"]:
            return Found(None, "its digest is wrong")
        return Found(ObjectCode(code, spec.target, spec.symbol, str(header["compiler"]), str(header["log"])))
    except (ValueError, KeyError, TypeError):
        return Found(None, "its header is unreadable")
