"""Marks everything here `amdgcn`, makes the executor importable, and puts an emulated card in HIP's place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The marker of this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.amdgcn)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """install(profile, **options) -> a card.Backend in place of the rocm one; CPU tensors lie on its card."""
    import card

    from portagemm import launch
    from portagemm.hal import registry

    reason = card.unavailable_reason()
    if reason:
        pytest.skip(reason)
    guards: list[Any] = []
    real_get = registry.get

    def put(profile: str, backend: Any = None, **options: Any) -> Any:
        if backend is None:
            backend = card.Backend(card.DEVICES[profile], **options) if options else card.shared(profile)
        monkeypatch.setattr(registry, "get", lambda name: backend if name == "rocm" else real_get(name))
        monkeypatch.setattr(launch, "_device", card.Always(backend.device))
        card.forget_launches()
        guards.append(card.tensors(backend.machine))
        guards[-1].__enter__()
        return backend

    yield put
    for guard in reversed(guards):
        guard.__exit__()
    card.forget_launches()


def pytest_sessionfinish() -> None:
    """Compiles that nobody waits for any more do not hold up the end."""
    if "card" in sys.modules:
        sys.modules["card"].stop()
