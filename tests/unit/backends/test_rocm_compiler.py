"""Finding and driving the AMD compilers: every refusal has a reason, every error the log."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from portagemm.backends.rocm import compiler as module
from portagemm.backends.rocm import hip
from portagemm.backends.rocm.compiler import ClangCompiler, HiprtcCompiler
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.errors import CompileError
from portagemm.hal.target import Target

pytestmark = pytest.mark.quick

GFX90A = Target("rocm", "gfx90a", 64)
SOURCE = 'extern "C" __attribute__((global)) void k(float* p) { p[__builtin_amdgcn_workitem_id_x()] = N; }\n'
NOTHING = CompileOptions((), (("N", "1.0f"),))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORTAGEMM_CLANG", raising=False)
    for cached in (module._search, module._refusal, module._clang_version):
        cached.cache_clear()


def program(folder: Path, name: str, script: str) -> Path:
    """An executable shell script."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def clang_like(
    folder: Path, name: str, version: str = "clang version 19.1.7", targets: str = "amdgcn - AMD"
) -> Path:
    """A program that answers as clang would, with a linker beside it."""
    linker = program(folder, "lld", "")
    return program(
        folder,
        name,
        f"""case "$1" in
--version) echo "{version}"; echo "InstalledDir: {folder}" ;;
--print-targets) echo "  Registered Targets:"; echo "    {targets}" ;;
-print-prog-name=lld) echo "{linker}" ;;
esac""",
    )


@pytest.fixture(params=["clang++-19", "clang++-22"])
def clang(request: pytest.FixtureRequest) -> ClangCompiler:
    found = ClangCompiler(request.param)
    reason = found.unavailable_reason()
    if reason:
        pytest.skip(reason)
    return found


# --- search --------------------------------------------------------------------------------------------------


def test_order_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD's compiler first, then the newest release; ROCm's folder also where PATH does not name it."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(module, "ROCM_LLVM", tmp_path / "rocm")
    old = clang_like(tmp_path / "bin", "clang++-19")
    assert ClangCompiler().path() == str(old)
    new = clang_like(tmp_path / "bin", "clang++-22")
    module._search.cache_clear()
    assert ClangCompiler().path() == str(new)
    amd = clang_like(tmp_path / "rocm", "amdclang++")
    module._search.cache_clear()
    assert ClangCompiler().path() == str(amd)


def test_none_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "ROCM_LLVM", tmp_path)
    reason = ClangCompiler().unavailable_reason()
    assert reason is not None
    assert "none of amdclang++, clang++-22" in reason and "PORTAGEMM_CLANG" in reason
    with pytest.raises(CompileError, match="none of amdclang"):
        ClangCompiler().compile(SOURCE, "k", GFX90A, NOTHING)


@pytest.mark.parametrize(
    ("version", "targets", "words"),
    [
        ("g++ (Debian) 12.2.0", "amdgcn - AMD", "is not clang or does not run"),
        ("clang version 14.0.6", "amdgcn - AMD", "clang 14 is older than"),
        ("clang version 19.1.7", "x86-64 - 64-bit X86", "was built without the AMDGPU target"),
    ],
)
def test_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, targets: str, words: str
) -> None:
    """A compiler that cannot serve is named with its reason, and the next one is taken."""
    bad = clang_like(tmp_path / "bin", "amdclang++", version, targets)
    monkeypatch.setenv("PATH", str(bad.parent))
    monkeypatch.setattr(module, "ROCM_LLVM", tmp_path)
    assert f"amdclang++: {words}" in str(ClangCompiler().unavailable_reason())
    good = clang_like(tmp_path / "bin", "clang++")
    module._search.cache_clear()
    assert ClangCompiler().path() == str(good)


def test_without_linker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = clang_like(tmp_path / "bin", "clang++-19")
    path.write_text(path.read_text().replace(str(tmp_path / "bin" / "lld"), "lld"))
    (tmp_path / "bin" / "lld").unlink()
    monkeypatch.setenv("PATH", f"{path.parent}")
    monkeypatch.setattr(module, "ROCM_LLVM", tmp_path)
    assert "finds no lld, which links code objects (install lld-19)" in str(
        ClangCompiler().unavailable_reason()
    )


def test_variable_names_one_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that was asked for is never silently replaced by another."""
    clang_like(tmp_path / "bin", "clang++")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PORTAGEMM_CLANG", "/nowhere/clang++")
    assert ClangCompiler().unavailable_reason() == "PORTAGEMM_CLANG=/nowhere/clang++: no such program"
    own = clang_like(tmp_path / "own", "my-clang")
    monkeypatch.setenv("PORTAGEMM_CLANG", str(own))
    assert ClangCompiler().path() == str(own)


def test_a_named_clang_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way round a hiprtc that does not work."""
    assert [c.name for c in module.compilers()] == ["hiprtc", "clang"]
    monkeypatch.setenv("PORTAGEMM_CLANG", "/opt/rocm/llvm/bin/amdclang++")
    assert [c.name for c in module.compilers()] == ["clang", "hiprtc"]


def test_identity_has_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = clang_like(tmp_path / "bin", "clang++-19", "AMD clang version 18.0.0 (roc-6.2.0 24292 abc)")
    monkeypatch.setenv("PATH", str(path.parent))
    monkeypatch.setattr(module, "ROCM_LLVM", tmp_path)
    assert ClangCompiler().identity() == "AMD clang version 18.0.0 (roc-6.2.0 24292 abc)"


# --- compilation ---------------------------------------------------------------------------------------------


def test_flags_have_no_paths() -> None:
    options = CompileOptions((Path("/some/where"),), (("N", "4"),), debug=True)
    for compiler in (ClangCompiler(), HiprtcCompiler()):
        flags = compiler.flags(GFX90A, options)
        assert not any("/" in flag for flag in flags)
        assert {"--offload-arch=gfx90a", "-std=c++20", "-DN=4", "-gline-tables-only"} <= set(flags)


def test_compiles_to_a_bare_object(clang: ClangCompiler) -> None:
    code = clang.compile(SOURCE, "k", GFX90A, NOTHING)
    assert code.code[:4] == b"\x7fELF"
    assert code.code[18:20] == bytes([224, 0])  # EM_AMDGPU
    assert (code.target, code.symbol, code.compiler) == (GFX90A, "k", clang.identity())
    assert "VGPRs:" in code.log


def test_same_source_same_bytes(clang: ClangCompiler) -> None:
    first, second = (clang.compile(SOURCE, "k", GFX90A, NOTHING).code for _ in range(2))
    assert first == second


def test_include_order(clang: ClangCompiler, tmp_path: Path) -> None:
    """The first folder wins: the vendor is chosen by include path."""
    for name, value in (("one", "1"), ("two", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "which.hpp").write_text(f"#define WHICH {value}\n")
    text = (
        '#include <which.hpp>\nstatic_assert(WHICH == 2);\nextern "C" __attribute__((global)) void k() {}\n'
    )
    clang.compile(text, "k", GFX90A, CompileOptions((tmp_path / "two", tmp_path / "one")))


def test_error_has_the_log(clang: ClangCompiler) -> None:
    with pytest.raises(
        CompileError, match=r"kernel k for rocm:gfx90a did not compile with .*clang version"
    ) as caught:
        clang.compile("no such type;\n", "k", GFX90A, NOTHING)
    assert "kernel.hip:1:1: error:" in caught.value.log


def test_unknown_target(clang: ClangCompiler) -> None:
    with pytest.raises(CompileError, match="gfx000"):
        clang.compile(SOURCE, "k", Target("rocm", "gfx000", 64), NOTHING)


def test_no_code_for_another_device() -> None:
    """There is no portable assembly: a profile is never assembled for another arch."""
    for compiler in (ClangCompiler(), HiprtcCompiler()):
        with pytest.raises(CompileError, match="runs on the target it was compiled for"):
            compiler.compile(SOURCE, "k", Target("rocm", "gfx90a", 64, "gfx942"), NOTHING)


def test_compiler_that_crashes(tmp_path: Path) -> None:
    path = clang_like(tmp_path, "clang++")
    path.write_text(path.read_text().replace("esac", "*) echo dying >&2; kill -9 $$ ;;\nesac"))
    with pytest.raises(CompileError, match="dying"):
        ClangCompiler(str(path)).compile(SOURCE, "k", GFX90A, NOTHING)


# --- hip-python ----------------------------------------------------------------------------------------------


def test_without_hip_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip.importlib.util, "find_spec", lambda name: None)
    hip.rtc.cache_clear()
    assert (
        HiprtcCompiler().unavailable_reason() == "hip-python is not installed (pip install 'portagemm[rocm]')"
    )


class _Old:
    """hip-python up to 7.x: the properties are an argument."""

    class hipDeviceProp_t:
        gcnArchName = b""

    @staticmethod
    def hipGetDeviceProperties(prop, device):
        prop.gcnArchName = b"gfx90a:sramecc+:xnack-\0"
        return (0,)


class _New:
    """hip-python 10: the properties are returned."""

    @staticmethod
    def hipGetDeviceProperties(device):
        prop = _Old.hipDeviceProp_t()
        prop.gcnArchName = "gfx1100"
        return 0, prop


def test_both_signatures_of_device_properties() -> None:
    old, new = (hip.device_properties(api, 0).gcnArchName for api in (_Old, _New))
    assert hip.arch_and_features(old) == ("gfx90a", "sramecc+:xnack-")
    assert hip.arch_and_features(new) == ("gfx1100", "")


def test_torchs_library_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ROCm build of torch brings its own HIP; hip-python is led to that one and the environment restored."""

    class Torch:
        __file__ = str(tmp_path / "torch" / "__init__.py")

        class version:
            hip = "6.4"

    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libamdhip64.so").write_text("")
    monkeypatch.setitem(hip.sys.modules, "torch", Torch)
    for before in ("/opt/rocm", None):
        if before is None:
            monkeypatch.delenv("ROCM_PATH", raising=False)
        else:
            monkeypatch.setenv("ROCM_PATH", before)
        with hip._led_to_library():
            assert hip.os.environ["ROCM_PATH"] == str(tmp_path / "torch")
        assert hip.os.environ.get("ROCM_PATH") == before


def test_rocms_usual_folder_where_nothing_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/opt/rocm serves although neither ROCM_PATH nor the loader's configuration names it."""
    monkeypatch.setitem(hip.sys.modules, "torch", None)
    monkeypatch.setattr(hip, "ROCM", tmp_path)
    for name in ("ROCM_PATH", "ROCM_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert hip.library_root() is None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so").write_text("")
    assert hip.library_root() == tmp_path
    monkeypatch.setenv("ROCM_HOME", "/elsewhere")
    assert hip.library_root() is None


def test_old_bindings_get_their_own_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before release 10 hip-python never looks at ROCM_PATH: that advice would lead nowhere."""
    error = RuntimeError("failed to dlopen 'b'libamdhip64.so'': no such file")
    assert "set ROCM_PATH" in hip.explain(error, "libamdhip64.so")
    monkeypatch.setattr(hip, "opens_by_name", lambda: True)
    assert "LD_LIBRARY_PATH" in hip.explain(error, "libamdhip64.so")
    assert "ROCM_PATH" not in hip.explain(error, "libamdhip64.so")


def test_two_runtimes_are_found(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    line = "7f00-7f01 r-xp 00000000 08:01 42                     {}\n"
    maps.write_text(
        line.format("/opt/rocm/lib/libamdhip64.so.6.4")
        + line.format("/venv/torch/lib/libamdhip64.so")
        + line.format("/venv/torch/lib/libamdhip64.so")
        + line.format("/usr/lib/libc.so.6")
    )
    assert hip.loaded_libraries("libamdhip64.so", maps) == (
        Path("/opt/rocm/lib/libamdhip64.so.6.4"),
        Path("/venv/torch/lib/libamdhip64.so"),
    )


def test_the_machines_own_compiler_if_any() -> None:
    """Where one of the names is on PATH, it is found, or refused with a reason; nothing raises."""
    if any(shutil.which(name) for name in module.CLANG_NAMES):
        assert ClangCompiler().unavailable_reason() is None or "++" in str(
            ClangCompiler().unavailable_reason()
        )
