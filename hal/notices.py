"""How the package tells its user about something that works, but not as it should.

There is one channel: `warnings.warn` with PortaGemmWarning. A program that prefers its log calls
``logging.captureWarnings(True)``; a test suite that wants strictness turns the category into an error.
"""

from __future__ import annotations

import threading
import warnings

_lock = threading.Lock()
_given: set[str] = set()


class PortaGemmWarning(UserWarning):
    """A fallback was taken: an inherited profile, a rebuilt cache entry, a temporary cache folder."""


def warn_once(message: str, key: str | None = None) -> bool:
    """Warn with `message`, once a process for each `key` (the message itself by default).

    Returns whether this call gave the warning.
    """
    key = message if key is None else key
    with _lock:
        if key in _given:
            return False
        _given.add(key)
    warnings.warn(message, PortaGemmWarning, stacklevel=3)
    return True


def reset() -> None:
    """Forget what was said, so that tests see each warning again."""
    with _lock:
        _given.clear()
