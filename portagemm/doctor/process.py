"""Runs one process under a time limit; nothing it does, not even refusing to die, is an exception."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping

from portagemm.doctor.host_types import Command


def run_process(
    argv: tuple[str, ...], env: Mapping[str, str], timeout: float, limit: int, program: str | None
) -> Command:
    """Run `program` as `argv` with the environment `env`, in a session of its own. program: None is not found.
    timeout: seconds. limit: characters of output that are kept."""
    start = time.monotonic()
    if program is None:
        return Command(argv, problem="not-found")
    try:
        with subprocess.Popen(
            argv,
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
                problem = ""
            except subprocess.TimeoutExpired:
                kill(process)
                try:
                    out, err = process.communicate(timeout=1.0)
                except subprocess.TimeoutExpired:  # in uninterruptible sleep: a hung driver. Leave it
                    out, err = b"", b""
                    for stream in (process.stdout, process.stderr):
                        if stream is not None:
                            stream.close()
                    process.returncode = -9  # else the context manager waits for it for ever
                problem = "timed-out"
    except FileNotFoundError:
        return Command(argv, problem="not-found")
    except (OSError, ValueError) as error:
        return Command(argv, stderr=str(error), problem="denied")
    seconds = round(time.monotonic() - start, 3)
    stdout, stderr = (stream.decode("utf-8", "replace")[:limit] for stream in (out, err))
    code = process.returncode
    if problem:
        return Command(argv, stdout, stderr, code, "timed-out", seconds)
    return Command(argv, stdout, stderr, code, "", seconds)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Its whole group: a shell script's children hold the pipes open."""
    import signal

    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except OSError:
        process.kill()
