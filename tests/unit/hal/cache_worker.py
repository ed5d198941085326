"""Run by test_cache_processes.py: processes that share one cache folder. Prints one JSON document.

cache_worker.py race FOLDER PROCESSES ROUNDS     all start each round together; damage before some rounds
cache_worker.py one FOLDER SECONDS TIMEOUT       one process whose compile takes SECONDS
cache_worker.py locked-out FOLDER MODE           as a user who cannot write (or has no room) to FOLDER
"""

from __future__ import annotations

# Some are imported for the cache's sake before privileges are dropped: another user may not be able to
# read the interpreter's files.
import atexit  # noqa: F401
import json
import os
import shutil  # noqa: F401
import sys
import tempfile  # noqa: F401
import time
import warnings
from pathlib import Path

import filelock  # noqa: F401
import platformdirs  # noqa: F401

from portagemm.hal.cache import KernelCache
from portagemm.hal.cache_key import cache_key
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource
from portagemm.hal.target import Target

TARGET = Target("cuda", "sm_90a", 32)


def spec(text: str) -> KernelSource:
    return KernelSource("kernel", text, TARGET, ())


def code(text: str) -> bytes:
    return (text * 5000).encode()


def entry(folder: Path, text: str) -> Path:
    return folder / "v1" / "cuda-sm_90a" / f"{cache_key(spec(text), 'fake')}.kernel"


def build(folder: Path, text: str, seconds: float, timeout: float = 60.0) -> tuple[str, bool]:
    """(origin, whether the code is right). Each compile leaves a line in the log."""

    def compile() -> ObjectCode:
        log = os.open(folder.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(log, f"{text}\n".encode())
        os.close(log)
        time.sleep(seconds)
        return ObjectCode(code(text), TARGET, "kernel", "fake")

    result = KernelCache(folder, lock_timeout=timeout).get_or_build(spec(text), compile, "fake")
    return result.origin, result.code.code == code(text)


DAMAGES = (b"", b"{", os.urandom(2000))


def race(folder: Path, processes: int, rounds: int) -> dict[str, object]:
    import multiprocessing

    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes)
    queue = context.SimpleQueue()

    def run(me: int) -> None:
        origins: list[str] = []
        wrong = 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number in range(rounds):
                if me == 0 and number % 5 == 4:  # every fifth kernel has a damaged entry in place
                    path = entry(folder, f"k{number}")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(DAMAGES[number // 5 % 3])
                barrier.wait(60)
                origin, right = build(folder, f"k{number}", 0.005)
                origins.append(origin)
                wrong += not right
        queue.put((origins, wrong, [str(w.message) for w in caught]))

    children = [context.Process(target=run, args=(i,)) for i in range(processes)]
    for child in children:
        child.start()
    results = [queue.get() for _ in children]
    for child in children:
        child.join()
    return {
        "exit": [child.exitcode for child in children],
        "compiled": [origins.count("compiled") for origins, _, _ in results],
        "wrong": sum(wrong for _, wrong, _ in results),
        "warnings": [text for _, _, texts in results for text in texts],
    }


def locked_out(folder: Path, mode: str) -> dict[str, object]:
    if mode == "read-only" and os.getuid() == 0:
        os.setuid(65534)
    if mode == "full":
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache = KernelCache(folder)
        origins = []
        for text in ("old", "new", "new"):
            made = ObjectCode(code(text), TARGET, "kernel", "fake")
            result = cache.get_or_build(spec(text), lambda made=made: made, "fake")  # type: ignore[misc]
            assert result.code.code == code(text)
            origins.append(result.origin)
    return {
        "origins": origins,
        "warnings": [str(w.message) for w in caught],
        "writable": cache.info().writable,
    }


if __name__ == "__main__":
    command, folder, *rest = sys.argv[1:]
    if command == "race":
        report = race(Path(folder), int(rest[0]), int(rest[1]))
    elif command == "one":
        started = time.monotonic()
        origin, right = build(Path(folder), "slow", float(rest[0]), float(rest[1]))
        report = {"origin": origin, "right": right, "seconds": time.monotonic() - started}
    else:
        report = locked_out(Path(folder), rest[0])
    print(json.dumps(report))
