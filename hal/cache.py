"""The kernel cache: memory, then kernel packs, then disk, then one compile.

`get_or_build` compiles a key once, whatever number of threads and processes ask for it at the same time.
Nothing that goes wrong with a folder or an entry stops a call: the kernel is compiled, and one warning
(portagemm.hal.notices) says what happened. Only the compiler's own errors reach the caller.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from portagemm.hal.cache_folder import DIRECTORY_VARIABLE, CacheFolder, default_folder, private_folder
from portagemm.hal.cache_key import cache_key, pack_key
from portagemm.hal.errors import CacheError
from portagemm.hal.notices import warn_once
from portagemm.hal.pack import MANIFEST, PATH_VARIABLE, Pack, read_pack
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource

#: Most bytes of the folder (suffixes K, M, G; 0: no bound).
LIMIT_VARIABLE = "PORTAGEMM_CACHE_LIMIT"
#: Most seconds to wait for another process's compile.
TIMEOUT_VARIABLE = "PORTAGEMM_CACHE_TIMEOUT"

DEFAULT_LIMIT = 1 << 30
DEFAULT_MEMORY = 64 << 20
DEFAULT_TIMEOUT = 60.0


@dataclass(frozen=True)
class CacheResult:
    """A kernel and where it came from: "memory", "pack", "disk" or "compiled"; seconds it took."""

    code: ObjectCode
    origin: str
    seconds: float


@dataclass(frozen=True)
class CacheInfo:
    """State of a cache.

    Attributes:
        directory: the folder in use (None: memory only). writable: whether new kernels are stored there.
        reason: why this folder.
        entries, bytes: what it holds. targets: backend-arch -> entries.
        limit_bytes: bound of the folder (0: none).
        memory_entries, memory_bytes, memory_limit_bytes: what this process holds.
        packs: (folder, number of kernels, fault or "").
    """

    directory: Path | None
    writable: bool
    reason: str
    entries: int
    bytes: int
    targets: Mapping[str, int]
    limit_bytes: int
    memory_entries: int
    memory_bytes: int
    memory_limit_bytes: int
    packs: tuple[tuple[Path, int, str], ...]


class KernelCache:
    """Compiled kernels by key. Thread-safe, and safe to use in a forked child."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        packs: Sequence[str | os.PathLike[str]] | None = None,
        memory_bytes: int = DEFAULT_MEMORY,
        limit_bytes: int | None = None,
        lock_timeout: float | None = None,
    ) -> None:
        """Set up; touches no file before the first use.

        Args:
            directory: folder of the entries; PORTAGEMM_CACHE_DIR or the user's cache folder by default.
            packs: kernel packs; those of PORTAGEMM_KERNEL_PATH by default.
            memory_bytes: most bytes of code kept in memory; the newest kernel is always kept.
            limit_bytes: most bytes of the folder; PORTAGEMM_CACHE_LIMIT or 1 GiB by default.
            lock_timeout: seconds; PORTAGEMM_CACHE_TIMEOUT or 60 by default.

        Raises CacheError if one of the variables has a value that cannot be read.
        """
        self._directory = None if directory is None else Path(directory).expanduser().absolute()
        if packs is None:
            packs = [p for p in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if p]
        self._pack_paths = [Path(p).expanduser() for p in packs]
        self._memory_bytes = memory_bytes
        self._limit_bytes = (
            _bytes_variable(LIMIT_VARIABLE, DEFAULT_LIMIT) if limit_bytes is None else limit_bytes
        )
        self._timeout = (
            _seconds_variable(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT) if lock_timeout is None else lock_timeout
        )
        self._memory: OrderedDict[str, ObjectCode] = OrderedDict()
        self._held = 0
        self._folder: CacheFolder | None = None
        self._folder_reason = ""
        self._packs: dict[Path, tuple[tuple[int, int], Pack | None, str]] = {}
        self._renew_locks()
        _caches.add(self)

    def get_or_build(
        self,
        spec: KernelSource,
        compile: Callable[[], ObjectCode],
        compiler_identity: str,
        flags: Sequence[str] = (),
    ) -> CacheResult:
        """The kernel of `spec`, compiled by `compile` if it is nowhere else.

        Args:
            spec: source, headers, target.
            compile: called at most once, by this thread.
            compiler_identity, flags: what `compile` uses; part of the key.

        Raises what `compile` raises; other callers that wait for the same key then try themselves.
        """
        started = time.perf_counter()
        key = cache_key(spec, compiler_identity, flags)
        code, origin = self._recall(key), "memory"
        if code is None:
            with self._building(key):
                code, origin = self._find(key, spec)
                if code is None:
                    code, origin = self._build(key, spec, compile)
        return CacheResult(code, origin, time.perf_counter() - started)

    def lookup(
        self, spec: KernelSource, compiler_identity: str, flags: Sequence[str] = ()
    ) -> CacheResult | None:
        """The kernel of `spec` if memory, a pack or the disk has it; compiles nothing."""
        started = time.perf_counter()
        code, origin = self._find(cache_key(spec, compiler_identity, flags), spec)
        return None if code is None else CacheResult(code, origin, time.perf_counter() - started)

    def info(self) -> CacheInfo:
        """What the cache holds, and where."""
        folder = self._open()
        entries = folder.entries() if folder else []
        packs = []
        for path in self._pack_paths:
            pack, fault = self._pack(path)
            packs.append((path, len(pack.kernels) if pack else 0, fault))
        with self._mutex:
            held, count = self._held, len(self._memory)
        return CacheInfo(
            directory=folder.root if folder else None,
            writable=folder is not None and folder.writable and _writable(folder.root),
            reason=self._folder_reason,
            entries=len(entries),
            bytes=sum(size for _, size, _ in entries),
            targets=dict(sorted(Counter(path.parent.name for path, _, _ in entries).items())),
            limit_bytes=self._limit_bytes,
            memory_entries=count,
            memory_bytes=held,
            memory_limit_bytes=self._memory_bytes,
            packs=tuple(packs),
        )

    def clear(self) -> tuple[int, int]:
        """Forget everything in memory and remove every entry on disk; packs stay.

        Returns (entries, bytes) removed from disk.
        """
        with self._mutex:
            self._memory.clear()
            self._held = 0
        folder = self._open()
        return folder.clear() if folder else (0, 0)

    # --- memory

    def _recall(self, key: str) -> ObjectCode | None:
        with self._mutex:
            code = self._memory.get(key)
            if code is not None:
                self._memory.move_to_end(key)
            return code

    def _remember(self, key: str, code: ObjectCode) -> None:
        with self._mutex:
            old = self._memory.pop(key, None)
            self._held += len(code.code) - (len(old.code) if old else 0)
            self._memory[key] = code
            while self._held > self._memory_bytes and len(self._memory) > 1:
                _, dropped = self._memory.popitem(last=False)
                self._held -= len(dropped.code)

    # --- one build a key and process

    @contextmanager
    def _building(self, key: str) -> Iterator[None]:
        with self._mutex:
            lock, waiting = self._builds.get(key, (threading.Lock(), 0))
            self._builds[key] = (lock, waiting + 1)
        try:
            with lock:
                yield
        finally:
            with self._mutex:
                lock, waiting = self._builds[key]
                if waiting == 1:
                    del self._builds[key]
                else:
                    self._builds[key] = (lock, waiting - 1)

    def _renew_locks(self) -> None:
        """Fresh locks: at the start, and in a forked child, where their holders do not exist."""
        self._mutex = threading.RLock()
        self._builds: dict[str, tuple[threading.Lock, int]] = {}

    # --- where a kernel may be

    def _find(self, key: str, spec: KernelSource) -> tuple[ObjectCode | None, str]:
        code = self._recall(key)
        if code is not None:
            return code, "memory"
        code, origin = self._from_packs(spec), "pack"
        if code is None:
            folder = self._open()
            code, origin = (folder.read(key, spec).code if folder else None), "disk"
        if code is not None:
            self._remember(key, code)
        return code, origin

    def _build(
        self, key: str, spec: KernelSource, compile: Callable[[], ObjectCode]
    ) -> tuple[ObjectCode, str]:
        folder = self._open()
        if folder is None:
            code = compile()
            self._remember(key, code)
            return code, "compiled"

        with folder.lock(key, self._timeout, lambda: folder.read(key, spec).code is not None):
            # Somebody may have stored it meanwhile; damage is judged here, so that one process speaks of it.
            found = folder.read(key, spec)
            if found.code is not None:
                self._remember(key, found.code)
                return found.code, "disk"
            if found.damage:
                warn_once(f"kernel cache entry {folder.path(key, spec)}: {found.damage}; it is rebuilt")
                folder.discard(key, spec)
            code = compile()
            self._remember(key, code)
            folder.write(key, spec, code)
            return code, "compiled"

    def _from_packs(self, spec: KernelSource) -> ObjectCode | None:
        if not self._pack_paths:
            return None
        key = pack_key(spec)
        for path in self._pack_paths:
            pack, _ = self._pack(path)
            if pack is None:
                continue
            try:
                code = pack.get(key)
            except CacheError as error:
                warn_once(f"{error}; it is not used")
                continue
            if code is not None:
                return code
        return None

    def _pack(self, path: Path) -> tuple[Pack | None, str]:
        """A pack, read again when its manifest changed; a pack that cannot be read gives one warning."""
        try:
            status = (path / MANIFEST).stat()
            stamp = (status.st_mtime_ns, status.st_size)
        except OSError:
            stamp = (0, 0)
        with self._mutex:
            known = self._packs.get(path)
        if known is None or known[0] != stamp:
            try:
                known = (stamp, read_pack(path), "")
            except CacheError as error:
                warn_once(f"{PATH_VARIABLE}: {error}; it is not used")
                known = (stamp, None, str(error))
            with self._mutex:
                self._packs[path] = known
        return known[1], known[2]

    def _open(self) -> CacheFolder | None:
        """The folder, chosen at first use; None: memory only."""
        with self._mutex:
            if self._folder is None and not self._folder_reason:
                self._choose()
            return self._folder

    def _choose(self) -> None:
        if self._directory is not None:
            root, self._folder_reason = self._directory, "given by the program"
        else:
            folder, chosen = default_folder()
            if folder is not None:
                root = folder
                self._folder_reason = DIRECTORY_VARIABLE if chosen else "the user's cache folder"
            else:
                private = private_folder()
                if private is None:
                    self._folder_reason = "no folder can be written: memory only"
                    warn_once(
                        "kernel cache: neither the user's cache folder nor a temporary one can be written: "
                        f"kernels live in this process's memory only. Set {DIRECTORY_VARIABLE} to a folder "
                        "that can be written"
                    )
                    return
                root = private / "cache"
                self._folder_reason = "a temporary folder: the user's cache folder cannot be written"
                warn_once(
                    f"kernel cache: the user's cache folder cannot be written; using the temporary folder "
                    f"{root}. Set {DIRECTORY_VARIABLE} to a folder that lasts"
                )
        self._folder = CacheFolder(root, self._limit_bytes)


_caches: weakref.WeakSet[KernelCache] = weakref.WeakSet()


def _after_fork() -> None:
    global _defaults_lock
    _defaults_lock = threading.Lock()
    for cache in list(_caches):
        cache._renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_defaults: dict[tuple[str, ...], KernelCache] = {}
_defaults_lock = threading.Lock()


def default_cache() -> KernelCache:
    """The cache of this process. One for each value of the variables that steer it.

    Raises CacheError if one of them has a value that cannot be read.
    """
    names = (DIRECTORY_VARIABLE, PATH_VARIABLE, LIMIT_VARIABLE, TIMEOUT_VARIABLE)
    key = tuple(os.environ.get(name, "") for name in names)
    cache = _defaults.get(key)
    if cache is None:
        with _defaults_lock:
            cache = _defaults.setdefault(key, KernelCache())
    return cache


def forget_default_caches() -> None:
    """The next default_cache() starts anew: memory empty, folder and packs looked at again. Disks stay."""
    with _defaults_lock:
        _defaults.clear()


def _writable(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, can be written."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def _bytes_variable(name: str, default: int) -> int:
    given = os.environ.get(name, "").strip()
    if not given:
        return default
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:i?B)?", given, re.IGNORECASE)
    if not match:
        raise CacheError(f"{name}: given {given!r}; allowed: bytes, with K, M, G or T for powers of 1024")
    return int(match[1]) << (10 * " KMGT".index(match[2].upper() or " "))


def _seconds_variable(name: str, default: float) -> float:
    given = os.environ.get(name, "").strip()
    try:
        value = float(given) if given else default
        if not 0 <= value < 1e9:
            raise ValueError
    except ValueError:
        raise CacheError(f"{name}: given {given!r}; allowed: seconds, 0 or more") from None
    return value
