"""Backends by name, imported at first use. An unavailable backend says why; it never raises at import."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from portagemm.hal.compiler import Compiler
from portagemm.hal.device import Device
from portagemm.hal.errors import UnknownBackendError
from portagemm.hal.program import Driver

#: In order of preference where a tensor's device does not decide. The CPU is always there.
NAMES: tuple[str, ...] = ("cuda", "rocm", "cpu")


class Backend(Protocol):
    """The manifest a backend's ``backend.py`` exports as ``BACKEND``."""

    name: str

    def unavailable_reason(self) -> str | None:
        """Why no kernel can run on this backend here (no library, no driver, no device); None if it can."""

    def devices(self) -> Sequence[Device]:
        """The devices, in torch's order. Opens no context (a fork afterwards stays safe). Never raises."""

    def include_dirs(self) -> tuple[Path, ...]:
        """The backend's header folders, to be searched before the shared ones."""

    def compilers(self) -> Sequence[Compiler]:
        """Its compilers in order of preference, usable or not."""

    def driver(self) -> Driver:
        """The loader and launcher. Raises BackendUnavailableError with unavailable_reason()."""


@cache
def get(name: str) -> Backend:
    """The backend called `name`. Raises UnknownBackendError, which lists the names there are."""
    if name not in NAMES:
        raise UnknownBackendError(name, NAMES)
    module = importlib.import_module(f"portagemm.backends.{name}.backend")
    return cast(Backend, module.BACKEND)
