"""Scripts run as children (`Host.child`), each by its path: standard library only, one JSON value on stdout."""

from __future__ import annotations
