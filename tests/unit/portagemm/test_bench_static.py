"""The report without a GPU: what it reads out of machine code, and the command on a machine that has clang."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from portagemm import prebuild
from portagemm.bench import static
from portagemm.cli import run
from portagemm.hal import registry
from portagemm.hal.errors import UnsupportedError

#: Two loops: one waits and counts, one multiplies; a branch to a place further on is none.
LISTING = """
0000000000001000 <kernel>:
\ts_load_dwordx2 s[0:1], s[4:5], 0x0                         // 000000001000: C0060002 00000000
\tv_add_u32_e32 v1, v1, v2                                   // 000000001008: 68020501
\ts_cbranch_scc1 65534                                       // 00000000100C: BF85FFFE <kernel+0x8>
\tglobal_load_dwordx4 v[2:5], v1, s[0:1]                     // 000000001010: DC5C8000 02000001
\tds_read_b128 v[6:9], v1 offset:64                          // 000000001018: D9FE0040 06000001
\tds_read2_b32 v[6:7], v1 offset1:1                          // 000000001020: D86E0100 06000001
\tds_write_b128 v1, v[2:5]                                   // 000000001028: D9BE0000 00000201
\tv_pk_min_u16 v3, v3, v4                                    // 000000001030: D38D4003 18020903
\ts_barrier                                                  // 000000001038: BF8A0000
\tv_mfma_f32_16x16x16f16 a[0:3], v[6:7], v[8:9], a[0:3]      // 00000000103C: D3CD8000 04021106
\tv_mfma_f32_16x16x16f16 a[0:3], v[6:7], v[8:9], a[0:3]      // 000000001044: D3CD8000 04021106
\tv_mfma_f32_16x16x16f16 a[0:3], v[6:7], v[8:9], a[0:3]      // 00000000104C: D3CD8000 04021106
\ts_cbranch_vccnz 65516                                      // 000000001054: BF87FFEC <kernel+0x10>
\ts_branch 1                                                 // 000000001058: BF820001 <kernel+0x5c>
\ts_endpgm                                                   // 00000000105C: BF810000
"""


@pytest.mark.quick
def test_main_loop_is_found_and_counted() -> None:
    code = static.instructions(LISTING)
    assert [i.name for i in code][:2] == ["s_load_dwordx2", "v_add_u32_e32"] and len(code) == 15
    loop = static.main_loop(code)
    assert loop == static.Loop(3, 1, 16 + 8, 16, 1, 10)
    assert loop is not None and loop.matrix_share == 0.75


@pytest.mark.quick
def test_no_loop_without_matrix_instructions() -> None:
    assert static.main_loop(static.instructions(LISTING.replace("v_mfma", "v_fma"))) is None
    assert static.main_loop([]) is None


@pytest.mark.quick
def test_remarks() -> None:
    log = "remark: k.hip:1:1:     VGPRs: 12 [-Rpass]\nremark: x     AGPRs: 3\nremark: x     VGPRs Spill: 2\n"
    log += "remark: x     Occupancy [waves/SIMD]: 4\nremark: x     ScratchSize [bytes/lane]: 8\n"
    found = static.remarks(log)
    assert (found["vgpr"], found["agpr"], found["vgpr_spills"], found["scratch"]) == (12, 3, 2, 8)
    assert (found["occupancy"], found["sgpr_spills"]) == (4, 0)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["mi250x", "mi300x", "mi355x", "rx7900xtx"])
def test_layouts_have_no_conflicts(name: str) -> None:
    """Every tile of every AMD profile reads its fragments in as few passes as can be."""
    profile = prebuild.find_profile(name)
    device = prebuild.described_device(profile)
    wanted = prebuild.Wanted(dtypes=("float16", "float32"), layouts=("nt",), epilogues=("none",))
    from portagemm.plan import candidates

    kernels = {
        c.kernel for problem in prebuild.problems(wanted) for c in candidates(problem, profile, device)
    }
    fragments = [k for k in kernels if k.tile.atom != "fma"]
    assert fragments
    assert {static.read_conflicts(k, profile.wave_size) for k in fragments} == {0}


@pytest.mark.quick
def test_conflicts_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the swizzle the same reads meet in the banks."""
    monkeypatch.setattr(static, "stage_offset", lambda mn, k, rows, depth, size: (mn * depth + k) * size)
    profile = prebuild.find_profile("mi250x")
    (problem,) = prebuild.problems(
        prebuild.Wanted(
            dtypes=("float16",), layouts=("nt",), epilogues=("none",), shapes=((4096, 4096, 4096),)
        )
    )
    from portagemm.plan import plan

    chosen = plan(problem, profile, prebuild.described_device(profile), use_tables=False)
    assert static.read_conflicts(chosen.kernel, 64) > 0


@pytest.mark.quick
def test_refuses_other_vendors() -> None:
    with pytest.raises(UnsupportedError, match="h100 is not AMD's"):
        static.report(prebuild.find_profile("h100"))


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The table and its JSON for the fp16 plans of gfx942, from machine code made here."""
    compiler = next(c for c in registry.get("rocm").compilers() if c.name == "clang")
    reason = compiler.unavailable_reason()
    if reason or not shutil.which("llvm-objdump"):
        pytest.skip(reason or "llvm-objdump is not installed")
    path = tmp_path / "static.json"
    options = ["--static", "--arch", "gfx942", "--dtype", "float16", "--shape", "512x512x512"]
    assert run(["bench", *options, "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "estimate" in out and "gfx942, MI300X, 512x512x512" in out
    data = json.loads(path.read_text())
    assert data["note"].startswith("estimate") and data["board"] == "MI300X"
    first = data["rows"][0]
    assert first["schedule"] in ("pingpong", "interleave")
    assert first["loop"]["matrix"] > 0 and 0 < first["matrix_share"] <= 1
    for row in data["rows"]:
        assert row["vgpr"] > 0 and row["spills"] == 0 and row["occupancy"] >= 1
        assert row["roofline_us"] > 0 and row["bound_by"] == "memory"  # 512^3 is small for 5.3 TB/s


@pytest.mark.quick
def test_command_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (["--static"], "--static needs --arch"),
        (["--arch", "gfx90a"], "Missing option '--suite'"),
        (["--suite", "dense16", "--arch", "gfx90a"], "want --static"),
        (["--static", "--arch", "gfx90a", "--shape", "1x0x1"], "nothing to compile"),
    ):
        assert run(["bench", *arguments]) == 2
        assert text in capsys.readouterr().err
