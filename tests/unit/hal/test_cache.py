"""The kernel cache in one process: origins, damage, bounds, folders that fail, threads."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from portagemm.hal import cache_folder, environment
from portagemm.hal.cache import KernelCache, default_cache
from portagemm.hal.errors import CacheError, CompileError
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource

pytestmark = pytest.mark.quick

Source = Callable[..., KernelSource]
Code = Callable[..., ObjectCode]

COMPILER = "fake 1.0"


class Builder:
    """A compile function that counts its calls."""

    def __init__(self, code: ObjectCode) -> None:
        self.code, self.calls = code, 0

    def __call__(self) -> ObjectCode:
        self.calls += 1
        return self.code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def entry(folder: Path) -> Path:
    (path,) = folder.glob("v*/*/*.kernel")
    return path


def never() -> ObjectCode:
    raise AssertionError("compiled, though it is cached")


def test_compiled_then_memory_then_disk(source: Source, code: Code, folder: Path, caught: list[str]) -> None:
    spec = source()
    build = Builder(code(spec, log="a remark"))
    cache = KernelCache(folder)
    first = cache.get_or_build(spec, build, COMPILER)
    assert (first.origin, cache.get_or_build(spec, never, COMPILER).origin) == ("compiled", "memory")
    other = KernelCache(folder).get_or_build(spec, never, COMPILER)
    assert other.origin == "disk" and other.code == first.code == build.code
    assert other.code.log == "a remark" and other.seconds >= 0
    assert build.calls == 1 and not caught


def test_other_source_compiler_flags_are_other_entries(source: Source, code: Code, folder: Path) -> None:
    cache, spec = KernelCache(folder), source()
    build = Builder(code(spec))
    cache.get_or_build(spec, build, COMPILER)
    cache.get_or_build(spec, build, "fake 2.0")
    cache.get_or_build(spec, build, COMPILER, ("-g",))
    cache.get_or_build(replace(spec, text="int y;"), build, COMPILER)
    assert build.calls == 4 and cache.info().entries == 4


def test_lookup_compiles_nothing(source: Source, code: Code, folder: Path) -> None:
    cache, spec = KernelCache(folder), source()
    assert cache.lookup(spec, COMPILER) is None
    cache.get_or_build(spec, Builder(code(spec)), COMPILER)
    found = KernelCache(folder).lookup(spec, COMPILER)
    assert found is not None and found.origin == "disk"


def test_constructing_touches_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "default_folder", never)
    KernelCache()
    KernelCache(folder)
    assert not folder.exists()


def test_empty_kernel_and_large_kernel(source: Source, code: Code, folder: Path) -> None:
    for data in (b"", b"\n{}\n", os.urandom(3 << 20)):
        spec = source(str(len(data)))
        KernelCache(folder).get_or_build(spec, Builder(code(spec, data)), COMPILER)
        assert KernelCache(folder).get_or_build(spec, never, COMPILER).code.code == data


# --- damaged entries


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"", "empty"),
        (lambda data: data[: len(data) // 3], "header is unreadable"),
        (lambda data: data[:-2], "holds 9 bytes of 11"),
        (lambda data: data + b"x", "holds 12 bytes of 11"),
        (flip, "digest is wrong"),
        (lambda data: os.urandom(4096), "header is unreadable"),
        (lambda data: b"\n" * 100, "header is unreadable"),
        (lambda data: b"[]\n", "header is unreadable"),
        (lambda data: b"{}\n", "header is unreadable"),
        (lambda data: data.replace(b'"schema":1', b'"schema":0'), "no kernel of this version"),
        (lambda data: data.replace(b'"key":"', b'"key":"0'), "entry of another kernel"),
        (lambda data: bytes(1 << 20), "header is unreadable"),
    ],
)
def test_damaged_entry_is_rebuilt_with_one_warning(
    source: Source, code: Code, folder: Path, caught: list[str], damage: Callable[[bytes], bytes], reason: str
) -> None:
    spec = source()
    build = Builder(code(spec, b"twelve byte"))
    KernelCache(folder).get_or_build(spec, build, COMPILER)
    path = entry(folder)
    path.write_bytes(damage(path.read_bytes()))

    assert KernelCache(folder).lookup(spec, COMPILER) is None
    result = KernelCache(folder).get_or_build(spec, build, COMPILER)
    assert (result.origin, result.code, build.calls) == ("compiled", build.code, 2)
    assert len(caught) == 1 and reason in caught[0] and str(path) in caught[0]
    assert KernelCache(folder).get_or_build(spec, never, COMPILER).origin == "disk"
    assert len(caught) == 1


def test_entry_that_is_a_folder(source: Source, code: Code, folder: Path, caught: list[str]) -> None:
    spec = source()
    KernelCache(folder).get_or_build(spec, Builder(code(spec)), COMPILER)
    path = entry(folder)
    path.unlink()
    path.mkdir()
    cache = KernelCache(folder)
    assert cache.get_or_build(spec, Builder(code(spec)), COMPILER).origin == "compiled"
    assert cache.get_or_build(spec, never, COMPILER).origin == "memory"
    assert caught


def test_removed_while_in_use(source: Source, code: Code, folder: Path) -> None:
    cache, spec = KernelCache(folder), source()
    cache.get_or_build(spec, Builder(code(spec)), COMPILER)
    entry(folder).unlink()
    assert cache.get_or_build(spec, never, COMPILER).origin == "memory"
    assert KernelCache(folder).get_or_build(spec, Builder(code(spec)), COMPILER).origin == "compiled"


# --- folders that fail


def fail_with(number: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_full_disk_leaves_memory_and_no_rubbish(
    source: Source, code: Code, folder: Path, caught: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(cache_folder.os, "fsync", fail_with(number))
    cache = KernelCache(folder)
    for text in "abc":
        spec = source(text)
        assert cache.get_or_build(spec, Builder(code(spec)), COMPILER).origin == "compiled"
        assert cache.get_or_build(spec, never, COMPILER).origin == "memory"
    assert len(caught) == 1 and os.strerror(number) in caught[0] and str(folder) in caught[0]
    assert not list(folder.glob("v*/*/*")) and not list(folder.glob("v*/*/.*"))
    assert not cache.info().writable


def test_entry_appears_only_when_it_is_whole_and_synchronised(
    source: Source, code: Code, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process that dies at the last moment leaves is no entry."""
    seen: list[list[Path]] = []
    monkeypatch.setattr(cache_folder.os, "fsync", lambda _: seen.append(list(folder.glob("v*/*/*.kernel"))))
    spec = source()
    KernelCache(folder).get_or_build(spec, Builder(code(spec)), COMPILER)
    assert seen == [[]] and entry(folder).stat().st_size > len(code(spec).code)


def test_interrupted_write_leaves_nothing(
    source: Source, code: Code, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache_folder.os, "fsync", interrupt)
    spec = source()
    cache = KernelCache(folder)
    with pytest.raises(KeyboardInterrupt):
        cache.get_or_build(spec, Builder(code(spec)), COMPILER)
    assert [p for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"] == []
    monkeypatch.undo()
    assert KernelCache(folder).get_or_build(spec, Builder(code(spec)), COMPILER).origin == "compiled"


def test_file_system_that_cannot_synchronise_is_fine(
    source: Source, code: Code, folder: Path, caught: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_folder.os, "fsync", fail_with(errno.EINVAL))
    spec = source()
    KernelCache(folder).get_or_build(spec, Builder(code(spec)), COMPILER)
    assert KernelCache(folder).get_or_build(spec, never, COMPILER).origin == "disk" and not caught


def test_folder_that_is_a_file(source: Source, code: Code, folder: Path, caught: list[str]) -> None:
    folder.write_text("not a folder")
    cache, spec = KernelCache(folder), source()
    assert cache.get_or_build(spec, Builder(code(spec)), COMPILER).origin == "compiled"
    assert cache.get_or_build(spec, never, COMPILER).origin == "memory"
    assert len(caught) == 1 and "memory only" in caught[0]
    assert cache.clear() == (0, 0) and folder.read_text() == "not a folder"


@pytest.mark.parametrize("home", ["is a file", "is missing"])
def test_unusable_home_gives_a_private_temporary_folder(
    source: Source, code: Code, tmp_path: Path, caught: list[str], monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if home == "is a file":
        (tmp_path / "home").write_text("")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
    else:  # a container's user without an entry in /etc/passwd
        monkeypatch.setenv("HOME", "")
        monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: f"~/.cache/{name}")
    spec = source()
    cache = KernelCache()
    assert cache.get_or_build(spec, Builder(code(spec)), COMPILER).origin == "compiled"
    folder = cache.info().directory
    assert folder is not None and folder.is_relative_to(tmp_path / "tmp")
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert len(caught) == 1 and str(folder) in caught[0] and "PORTAGEMM_CACHE_DIR" in caught[0]
    assert KernelCache().get_or_build(spec, never, COMPILER).origin == "disk"  # the next process's


def test_temporary_folder_of_another_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    name = f"portagemm-{os.getuid()}"
    (tmp_path / name).mkdir()
    (tmp_path / name).chmod(0o777)  # open to everybody
    open_folder = cache_folder.private_folder()
    assert open_folder is not None and open_folder.name != name
    (tmp_path / name).rmdir()
    (tmp_path / "trap").mkdir(mode=0o700)
    (tmp_path / name).symlink_to(tmp_path / "trap")
    linked = cache_folder.private_folder()
    assert linked is not None and linked.resolve() != tmp_path / "trap"


def test_no_folder_at_all_is_memory_only(
    source: Source, code: Code, caught: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portagemm.hal.cache.default_folder", lambda: (None, False))
    monkeypatch.setattr("portagemm.hal.cache.private_folder", lambda: None)
    cache, spec = KernelCache(), source()
    assert cache.get_or_build(spec, Builder(code(spec)), COMPILER).origin == "compiled"
    assert cache.get_or_build(spec, never, COMPILER).origin == "memory"
    assert len(caught) == 1 and "memory only" in cache.info().reason
    assert cache.info().directory is None and cache.clear() == (0, 0)


def test_network_folder_locks_on_this_host(
    source: Source, code: Code, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(environment, "file_system", lambda *_: "nfs4")
    spec = source()
    KernelCache(folder).get_or_build(spec, Builder(code(spec)), COMPILER)
    assert not (folder / "locks").exists()
    assert list((tmp_path / "tmp").glob("portagemm-*/locks/*/*.lock"))
    assert KernelCache(folder).get_or_build(spec, never, COMPILER).origin == "disk"


def test_without_locks_it_still_works(
    source: Source, code: Code, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filelock.FileLock.acquire", fail_with(errno.ENOLCK))
    spec = source()
    assert KernelCache(folder).get_or_build(spec, Builder(code(spec)), COMPILER).origin == "compiled"
    assert KernelCache(folder).get_or_build(spec, never, COMPILER).origin == "disk"


# --- errors of the compiler


def test_compile_errors_reach_the_caller_and_are_not_kept(source: Source, code: Code, folder: Path) -> None:
    cache, spec = KernelCache(folder), source()

    def fail() -> ObjectCode:
        raise CompileError("kernel", spec.target, COMPILER, "line 1: no")

    for _ in range(2):
        with pytest.raises(CompileError, match="line 1: no"):
            cache.get_or_build(spec, fail, COMPILER)
    assert cache.get_or_build(spec, Builder(code(spec)), COMPILER).origin == "compiled"


# --- bounds


def test_memory_is_bounded_and_keeps_the_last_used(source: Source, code: Code, folder: Path) -> None:
    cache = KernelCache(folder, memory_bytes=3000)
    specs = [source(str(i)) for i in range(4)]
    for spec in specs[:3]:
        cache.get_or_build(spec, Builder(code(spec, bytes(1000))), COMPILER)
    cache.get_or_build(specs[0], never, COMPILER)
    cache.get_or_build(specs[3], Builder(code(specs[3], bytes(1000))), COMPILER)
    info = cache.info()
    assert (info.memory_entries, info.memory_bytes) == (3, 3000)
    origins = [cache.get_or_build(spec, never, COMPILER).origin for spec in (specs[0], specs[3], specs[1])]
    assert origins == ["memory", "memory", "disk"]
    huge = source("huge")
    cache.get_or_build(huge, Builder(code(huge, bytes(5000))), COMPILER)
    assert cache.get_or_build(huge, never, COMPILER).origin == "memory"
    assert cache.info().memory_entries == 1


def test_disk_is_bounded_and_drops_what_was_used_longest_ago(
    source: Source, code: Code, folder: Path
) -> None:
    cache = KernelCache(folder, limit_bytes=10_000)
    for i in range(5):
        spec = source(str(i))
        cache.get_or_build(spec, Builder(code(spec, bytes(1000))), COMPILER)
        old = time.time() - 10_000 + 100 * i
        os.utime(max(folder.glob("v*/*/*.kernel"), key=lambda p: p.stat().st_mtime), (old, old))
    KernelCache(folder).get_or_build(source("0"), never, COMPILER)  # a use makes it young again
    big = source("big")
    cache.get_or_build(big, Builder(code(big, bytes(6000))), COMPILER)
    info = cache.info()
    assert info.bytes <= 10_000
    fresh = KernelCache(folder)
    assert fresh.lookup(source("0"), COMPILER) and fresh.lookup(big, COMPILER)
    assert fresh.lookup(source("1"), COMPILER) is None


def test_young_entries_are_never_evicted(source: Source, code: Code, folder: Path) -> None:
    cache = KernelCache(folder, limit_bytes=10)
    for i in range(3):
        spec = source(str(i))
        cache.get_or_build(spec, Builder(code(spec, bytes(1000))), COMPILER)
    assert cache.info().entries == 3


def test_what_dead_writers_left_is_removed(source: Source, code: Code, folder: Path) -> None:
    spec = source()
    KernelCache(folder).get_or_build(spec, Builder(code(spec)), COMPILER)
    stale, fresh = entry(folder).with_name(".dead.tmp"), entry(folder).with_name(".alive.tmp")
    for path in (stale, fresh):
        path.write_text("half")
    os.utime(stale, (1, 1))
    other = source("other")
    KernelCache(folder).get_or_build(other, Builder(code(other)), COMPILER)
    assert not stale.exists() and fresh.exists()


# --- info and clear


def test_info_and_clear(source: Source, code: Code, folder: Path) -> None:
    cache = KernelCache(folder, limit_bytes=123)
    before = cache.info()
    assert (before.directory, before.entries, before.writable) == (folder, 0, True)
    spec = source()
    cache.get_or_build(spec, Builder(code(spec)), COMPILER)
    info = cache.info()
    assert (info.entries, dict(info.targets), info.limit_bytes) == (1, {"cuda-sm_90a": 1}, 123)
    assert info.bytes == entry(folder).stat().st_size and info.memory_entries == 1
    mine = folder / "notes.txt"
    mine.write_text("not the cache's")
    size = info.bytes
    assert cache.clear() == (1, size)
    assert mine.exists() and cache.info().entries == cache.info().memory_entries == 0
    assert cache.get_or_build(spec, Builder(code(spec)), COMPILER).origin == "compiled"


def test_default_cache_follows_the_variables(
    source: Source, code: Code, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTAGEMM_CACHE_DIR", str(folder))
    cache = default_cache()
    assert cache is default_cache() and cache.info().directory == folder
    monkeypatch.setenv("PORTAGEMM_CACHE_LIMIT", "2M")
    assert default_cache() is not cache and default_cache().info().limit_bytes == 2 << 20


@pytest.mark.parametrize(
    ("given", "bytes_"), [("5", 5), ("1k", 1024), ("3 MB", 3 << 20), ("2GiB", 2 << 30), ("0", 0)]
)
def test_limit_variable(monkeypatch: pytest.MonkeyPatch, folder: Path, given: str, bytes_: int) -> None:
    monkeypatch.setenv("PORTAGEMM_CACHE_LIMIT", given)
    assert KernelCache(folder).info().limit_bytes == bytes_


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("PORTAGEMM_CACHE_LIMIT", "lots"),
        ("PORTAGEMM_CACHE_TIMEOUT", "-1"),
        ("PORTAGEMM_CACHE_TIMEOUT", "nan"),
    ],
)
def test_bad_variables(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, given: str) -> None:
    monkeypatch.setenv(name, given)
    with pytest.raises(CacheError, match=f"{name}: given '{given}'; allowed: "):
        KernelCache(folder)


# --- threads


def test_threads_compile_once(source: Source, code: Code, folder: Path) -> None:
    cache, spec = KernelCache(folder), source()
    calls: list[int] = []
    barrier = threading.Barrier(16)
    origins: list[str] = []

    def compile() -> ObjectCode:
        calls.append(1)
        time.sleep(0.05)
        return code(spec)

    def run() -> None:
        barrier.wait()
        origins.append(cache.get_or_build(spec, compile, COMPILER).origin)

    threads = [threading.Thread(target=run) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and origins.count("compiled") == 1 and origins.count("memory") == 15
    assert not cache._builds


def test_different_keys_compile_side_by_side(source: Source, code: Code, folder: Path) -> None:
    cache = KernelCache(folder)
    barrier = threading.Barrier(2, timeout=20)  # broken unless both compile at the same time
    failures: list[BaseException] = []

    def run(text: str) -> None:
        spec = source(text)

        def compile() -> ObjectCode:
            barrier.wait()
            return code(spec)

        try:
            cache.get_or_build(spec, compile, COMPILER)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(text,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_waiting_thread_tries_itself_after_a_failed_compile(source: Source, code: Code, folder: Path) -> None:
    cache, spec = KernelCache(folder), source()
    started, release = threading.Event(), threading.Event()
    results: list[str] = []

    def fail() -> ObjectCode:
        started.set()
        release.wait(20)
        raise CompileError("kernel", spec.target, COMPILER, "no")

    def first() -> None:
        with pytest.raises(CompileError):
            cache.get_or_build(spec, fail, COMPILER)

    def second() -> None:
        started.wait(20)
        release.set()
        results.append(cache.get_or_build(spec, Builder(code(spec)), COMPILER).origin)

    threads = [threading.Thread(target=f) for f in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["compiled"]
