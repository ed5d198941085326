"""A kernel pack for several AMD archs, made on a machine without ROCm and found again without a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from portagemm import prebuild
from portagemm.cli import run
from portagemm.hal import registry
from portagemm.hal.cache_key import pack_key
from portagemm.hal.pack import read_pack

ARCHS = {"gfx90a": "mi250x", "gfx942": "mi300x", "gfx1100": "rx7900xtx"}
OPTIONS = [
    "--layout",
    "nt",
    "--dtype",
    "float16",
    "--epilogue",
    "none",
    "--best",
    "--shape",
    "4096x4096x4096",
]


def test_one_pack_for_three_archs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clang = next(c for c in registry.get("rocm").compilers() if getattr(c, "name", "") == "clang")
    reason = clang.unavailable_reason()
    if reason:
        pytest.skip(reason)
    monkeypatch.setenv("PORTAGEMM_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "pack"
    assert run(["compile", "--arch", ",".join(ARCHS), "--out", str(folder), "--jobs", "1", *OPTIONS]) == 0
    assert "rocm:gfx90a, rocm:gfx942, rocm:gfx1100" in capsys.readouterr().out
    pack = read_pack(folder)
    assert len(pack.kernels) == len(ARCHS)
    for arch, name in ARCHS.items():
        profile = prebuild.find_profile(name)
        wanted = prebuild.Wanted(
            dtypes=("float16",),
            layouts=("nt",),
            epilogues=("none",),
            shapes=((4096, 4096, 4096),),
            every_tile=False,
        )
        (source,) = prebuild.sources(wanted, profile, prebuild.described_device(profile))
        code = pack.get(pack_key(source))
        assert code is not None and code.target.arch == arch
        assert code.code.startswith(b"\x7fELF") and code.symbol.startswith(f"pg_{arch}_")
