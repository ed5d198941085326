"""Facts about tools that take long to ask, remembered in the cache's folder until the tool's file changes.

Asking a compiler for its exact version costs a process or a trial compile; a start with a warm cache should cost
neither. A fact is a small text under a name and a stamp: path, size and time of the file it is about.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from portagemm.hal.cache_folder import default_folder


def stamp_of(path: str | os.PathLike[str]) -> str | None:
    """What identifies a file's content for a memo, None if there is no such file."""
    try:
        real = Path(path).resolve()
        facts = real.stat()
    except (OSError, RuntimeError):
        return None
    return f"{real}|{facts.st_size}|{facts.st_mtime_ns}"


def remembered(name: str, stamp: str | None, ask: Callable[[], str]) -> str:
    """The answer of `ask` for this name and stamp: from the memo, else asked now and remembered.

    Never raises for the memo's sake: without a stamp, or a folder that can be used, `ask` is asked.
    """
    folder = default_folder()[0] if stamp else None
    if folder is None or stamp is None:
        return ask()
    file = folder / "memo" / f"{name}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["stamp"] == stamp and isinstance(document["answer"], str):
            return str(document["answer"])
    answer = ask()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(f".{os.getpid()}.tmp")
        aside.write_text(json.dumps({"stamp": stamp, "answer": answer}), encoding="utf-8")
        aside.replace(file)
    return answer
