"""Kernel packs: found without a compiler, checked, never trusted beyond their digest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from portagemm.hal.cache import KernelCache
from portagemm.hal.cache_key import pack_key
from portagemm.hal.errors import CacheError, NoCompilerError
from portagemm.hal.pack import read_pack, write_pack
from portagemm.hal.program import ObjectCode
from portagemm.hal.source import KernelSource
from portagemm.hal.target import Target

pytestmark = pytest.mark.quick

Source = Callable[..., KernelSource]
Code = Callable[..., ObjectCode]


def no_compiler() -> ObjectCode:
    raise NoCompilerError("none here")


@pytest.fixture
def spec(source: Source) -> KernelSource:
    return source("int x;", symbol="gemm_kernel", target=Target("cuda", "sm_80", 32, "sm_90"))


@pytest.fixture
def pack(tmp_path: Path, spec: KernelSource, code: Code) -> Path:
    write_pack(tmp_path / "pack", [(spec, code(spec))])
    return tmp_path / "pack"


def edit(pack: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((pack / "manifest.json").read_text())
    change(manifest)
    (pack / "manifest.json").write_text(json.dumps(manifest))


def test_round_trip(pack: Path, spec: KernelSource, code: Code) -> None:
    assert read_pack(pack).get(pack_key(spec)) == code(spec)
    assert read_pack(pack).get("0" * 64) is None
    manifest = json.loads((pack / "manifest.json").read_text())
    (entry,) = manifest["kernels"].values()
    assert manifest["schema"] == 1 and entry["target"]["assembled_for"] == "sm_90"
    assert entry["file"].startswith("gemm_kernel-") and (pack / entry["file"]).is_file()
    assert sorted(p.name for p in pack.iterdir()) == sorted([entry["file"], "manifest.json"])


def test_writing_again_adds(pack: Path, source: Source, spec: KernelSource, code: Code) -> None:
    other = source("int y;")
    write_pack(pack, [(other, code(other, b"other"))])
    assert read_pack(pack).get(pack_key(spec)) == code(spec)
    assert read_pack(pack).get(pack_key(other)) == code(other, b"other")


def test_cache_finds_it_without_compiler(
    pack: Path, spec: KernelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTAGEMM_KERNEL_PATH", os.pathsep.join([str(pack)]))
    cache = KernelCache(tmp_path / "cache")
    result = cache.get_or_build(spec, no_compiler, "none")
    assert result.origin == "pack" and result.code.compiler == "fake 1.0"
    assert cache.get_or_build(spec, no_compiler, "none").origin == "memory"
    assert not (tmp_path / "cache").exists()
    assert cache.info().packs == ((pack, 1, ""),)


def test_cache_key_with_a_compiler_still_prefers_the_pack(
    pack: Path, spec: KernelSource, tmp_path: Path, code: Code
) -> None:
    cache = KernelCache(tmp_path / "cache", packs=[pack])
    assert cache.get_or_build(spec, lambda: code(spec), "nvrtc 99").origin == "pack"


def test_other_source_is_not_in_the_pack(pack: Path, spec: KernelSource, tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache", packs=[pack])
    with pytest.raises(NoCompilerError):
        cache.get_or_build(replace(spec, text="int z;"), no_compiler, "none")


def test_second_pack_serves_what_the_first_lacks(
    pack: Path, source: Source, spec: KernelSource, code: Code, tmp_path: Path
) -> None:
    other = source("int y;")
    write_pack(tmp_path / "first", [(other, code(other))])
    cache = KernelCache(tmp_path / "cache", packs=[tmp_path / "first", pack])
    assert cache.get_or_build(spec, no_compiler, "none").origin == "pack"


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"\x7fELF codE", None])
def test_damaged_kernel_is_skipped_with_one_warning(
    pack: Path, spec: KernelSource, code: Code, tmp_path: Path, caught: list[str], damage: bytes | None
) -> None:
    (file,) = pack.glob("*.bin")
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    with pytest.raises(CacheError, match=r"\.bin"):
        read_pack(pack).get(pack_key(spec))
    for _ in range(2):
        cache = KernelCache(tmp_path / "cache", packs=[pack])
        result = cache.get_or_build(spec, lambda: code(spec), "fake 1.0")
        assert result.origin in ("compiled", "disk")
    assert len(caught) == 1 and file.name in caught[0]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda m: m.update(schema=7), "schema: given 7; allowed: 1"),
        (lambda m: m.update(kernels=[]), "kernels: given []"),
        (lambda m: next(iter(m["kernels"].values())).update(file="../../etc/passwd"), "a name in the folder"),
        (lambda m: next(iter(m["kernels"].values())).update(file=".hidden"), "a name in the folder"),
        (lambda m: next(iter(m["kernels"].values())).pop("sha256"), "sha256"),
        (lambda m: next(iter(m["kernels"].values())).update(target={"arch": 1}), "wave_size"),
    ],
)
def test_broken_manifest(
    pack: Path,
    spec: KernelSource,
    code: Code,
    tmp_path: Path,
    caught: list[str],
    change: Callable[[dict[str, Any]], None],
    part: str,
) -> None:
    edit(pack, change)
    with pytest.raises(CacheError) as error:
        read_pack(pack)
    assert part in str(error.value) and str(pack) in str(error.value)
    cache = KernelCache(tmp_path / "cache", packs=[pack])
    assert cache.get_or_build(spec, lambda: code(spec), "fake 1.0").origin == "compiled"
    assert len(caught) == 1 and "PORTAGEMM_KERNEL_PATH" in caught[0]
    assert cache.info().packs[0][1] == 0 and part in cache.info().packs[0][2]


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CacheError):
        read_pack(tmp_path)


def test_missing_pack(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"manifest.json cannot be read.*portagemm compile"):
        read_pack(tmp_path / "nowhere")


def test_changed_manifest_is_read_again(
    pack: Path, spec: KernelSource, source: Source, code: Code, tmp_path: Path
) -> None:
    cache = KernelCache(tmp_path / "cache", packs=[pack])
    other = source("int y;")
    assert cache.lookup(other, "none") is None
    write_pack(pack, [(other, code(other))])
    found = cache.lookup(other, "none")
    assert found is not None and found.origin == "pack"


def test_folder_that_cannot_be_written(tmp_path: Path, spec: KernelSource, code: Code) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be written"):
        write_pack(tmp_path / "file" / "pack", [(spec, code(spec))])
