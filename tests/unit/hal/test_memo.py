"""hal/memo.py: asked once a file, asked again when the file changes, never in the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from portagemm.hal import memo
from portagemm.hal.cache_folder import DIRECTORY_VARIABLE

pytestmark = pytest.mark.quick


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def asker(answers: list[str]) -> tuple[list[str], Callable[[], str]]:
    asked: list[str] = []

    def ask() -> str:
        asked.append(answers[len(asked)])
        return asked[-1]

    return asked, ask


def test_asked_once_until_the_file_changes(folder: Path, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("1")
    asked, ask = asker(["first", "second"])
    assert memo.remembered("t", memo.stamp_of(tool), ask) == "first"
    assert memo.remembered("t", memo.stamp_of(tool), ask) == "first"
    assert asked == ["first"]
    tool.write_text("22")
    os.utime(tool, ns=(1, 1))
    assert memo.remembered("t", memo.stamp_of(tool), ask) == "second"


def test_damage_and_strangers_are_asked_again(folder: Path, tmp_path: Path) -> None:
    asked, ask = asker(["a", "b", "c"])
    stamp = memo.stamp_of(tmp_path)
    memo.remembered("t", stamp, ask)
    (file,) = (folder / "memo").iterdir()
    for text in ("", '{"stamp": "another", "answer": "x"}'):
        file.write_text(text)
        assert memo.remembered("t", stamp, ask) == asked[-1]
    assert asked == ["a", "b", "c"]


def test_no_stamp_or_no_folder_only_asks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memo.stamp_of(tmp_path / "missing") is None
    _, ask = asker(["a", "b"])
    assert memo.remembered("t", None, ask) == "a"
    monkeypatch.setenv(DIRECTORY_VARIABLE, os.devnull + "/x")
    assert memo.remembered("t", "stamp", ask) == "b"
