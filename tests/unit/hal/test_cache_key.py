"""Keys: everything that decides the code is in them, and nothing of where things lie."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from portagemm.hal import cache_key as keys
from portagemm.hal.source import KernelSource
from portagemm.hal.target import Target

pytestmark = pytest.mark.quick

Source = Callable[..., KernelSource]


def key(spec: KernelSource, compiler: str = "nvrtc 13.0", flags: tuple[str, ...] = ("-O3",)) -> str:
    return keys.cache_key(spec, compiler, flags)


def test_same_inputs_same_key(source: Source) -> None:
    spec = source("int x;")
    assert key(spec) == key(replace(spec)) and len(key(spec)) == 64


@pytest.mark.parametrize(
    "change",
    [
        lambda s: replace(s, text=s.text + "\n"),
        lambda s: replace(s, symbol="other"),
        lambda s: replace(s, defines=(("A", "1"),)),
        lambda s: replace(s, target=Target("cuda", "sm_80", 32)),
        lambda s: replace(s, target=Target("cuda", "sm_90a", 32, "sm_90")),
        lambda s: replace(s, target=Target("rocm", "sm_90a", 32)),
        lambda s: replace(s, target=Target("cuda", "sm_90a", 64)),
    ],
)
def test_each_fact_of_the_source_changes_both_keys(
    source: Source, change: Callable[[KernelSource], KernelSource]
) -> None:
    spec = source("int x;")
    assert key(change(spec)) != key(spec)
    assert keys.pack_key(change(spec)) != keys.pack_key(spec)


def test_compiler_and_flags_are_in_the_cache_key_only(source: Source) -> None:
    spec = source("int x;")
    variants = {key(spec), key(spec, "nvrtc 13.1"), key(spec, flags=("-O2",)), key(spec, flags=("-O3", "-g"))}
    assert len(variants) == 4
    assert keys.pack_key(spec) not in variants


def test_header_content_counts_at_every_depth(source: Source) -> None:
    spec = source()
    before, pack = key(spec), keys.pack_key(spec)
    deep = spec.include_dirs[0] / "portagemm" / "core.hpp"  # reached through gemm.hpp only
    deep.write_text(deep.read_text() + "// changed\n")
    assert key(spec) != before and keys.pack_key(spec) != pack


def test_same_size_change_at_another_time_is_seen(source: Source) -> None:
    spec = source()
    before = key(spec)
    header = spec.include_dirs[0] / "portagemm" / "core.hpp"
    header.write_text(header.read_text().replace("int;", "int ;")[:-1])
    os.utime(header, ns=(1, 1))
    assert key(spec) != before


def test_unrelated_files_do_not_count(source: Source) -> None:
    spec = source()
    before = key(spec)
    (spec.include_dirs[0] / "portagemm" / "other.hpp").write_text("int y;")
    assert key(spec) == before


def test_install_path_does_not_count(source: Source, tmp_path: Path) -> None:
    spec = source()
    shutil.copytree(spec.include_dirs[0], tmp_path / "elsewhere")
    moved = replace(spec, include_dirs=(tmp_path / "elsewhere",))
    assert key(moved) == key(spec) and keys.pack_key(moved) == keys.pack_key(spec)


def test_first_include_folder_wins_like_in_a_compiler(source: Source, tmp_path: Path) -> None:
    spec = source()
    vendor = tmp_path / "vendor" / "portagemm"
    vendor.mkdir(parents=True)
    (vendor / "gemm.hpp").write_text("#pragma once\n// this vendor's\n")
    before, after = (
        replace(spec, include_dirs=(*spec.include_dirs, tmp_path / "vendor")),
        replace(spec, include_dirs=(tmp_path / "vendor", *spec.include_dirs)),
    )
    assert key(before) == key(spec) != key(after)


def test_quoted_include_looks_beside_its_includer_first(source: Source, tmp_path: Path) -> None:
    spec = source()
    (spec.include_dirs[0] / "core.hpp").write_text("// not meant\n")
    assert (
        dict(keys.headers(spec))["core.hpp"]
        == keys.hashlib.sha256((spec.include_dirs[0] / "portagemm" / "core.hpp").read_bytes()).hexdigest()
    )


def test_cycles_system_headers_and_odd_spellings(source: Source) -> None:
    spec = source('#include <cstdint>\n  #  include\t"portagemm/gemm.hpp"\n// #include <portagemm/no.hpp>\n')
    folder = spec.include_dirs[0] / "portagemm"
    (folder / "core.hpp").write_text("#include <portagemm/gemm.hpp>\n")
    found = keys.headers(spec)
    assert ("cstdint", "") in found
    assert "portagemm/no.hpp" not in dict(found)
    assert [name for name, _ in found].count("core.hpp") == 1


def test_native_code_carries_the_cpu(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    native = source("", target=Target("cpu", "native", 1))
    before, pack = key(native), keys.pack_key(native)
    monkeypatch.setattr(keys, "cpu_identity", lambda: "another CPU")
    assert key(native) != before and keys.pack_key(native) != pack


def test_lists_are_not_run_together(source: Source) -> None:
    spec = source()
    assert key(spec, "a", ("b", "c")) != key(spec, "a", ("bc",)) != key(spec, "ab", ("c",))
    one = replace(spec, defines=(("A", "B=C"),))
    assert key(one) != key(replace(spec, defines=(("A", "B"), ("C", ""))))
