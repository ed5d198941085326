"""The system's C++ compiler: what it makes, and what is said where none is usable."""

from __future__ import annotations

import re
import shutil
import stat

import pytest

from portagemm.backends.cpu import compiler as compiler_module
from portagemm.backends.cpu import cpuinfo
from portagemm.backends.cpu.backend import CpuBackend
from portagemm.backends.cpu.compiler import CxxCompiler
from portagemm.hal import environment
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.errors import CompileError
from portagemm.hal.target import Target

pytestmark = pytest.mark.quick

TARGET = Target("cpu", "native", 1)
SOURCE = 'extern "C" void kernel(const void*, long long, long long, void*) {}\n'


def need_compiler() -> CxxCompiler:
    compiler = CxxCompiler()
    reason = compiler.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    return compiler


def test_compiles(tmp_path):
    compiler = need_compiler()
    (tmp_path / "part.hpp").write_text("constexpr int part = VALUE;\n")
    source = "#include <part.hpp>\nstatic_assert(part == 3);\n" + SOURCE
    code = compiler.compile(source, "kernel", TARGET, CompileOptions((tmp_path,), (("VALUE", "3"),)))
    assert code.compiler == compiler.identity()
    assert code.compiler.endswith(f" cpu-{cpuinfo.features_digest()}")
    assert cpuinfo.features_digest() in environment.cpu_identity(), "what the cache's key holds, shortened"
    assert b"kernel" in code.code


def test_no_flag_that_changes_arithmetic():
    flags = need_compiler().flags(TARGET, CompileOptions(()))
    assert "-std=c++20" in flags
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations"} & set(flags)


def test_errors_have_the_compilers_messages():
    compiler = need_compiler()
    with pytest.raises(CompileError) as caught:
        compiler.compile(SOURCE + "int x = no_such_name;\n", "kernel", TARGET, CompileOptions(()))
    assert "no_such_name" in caught.value.log
    assert caught.value.kernel == "kernel"


def test_a_missing_kernel():
    with pytest.raises(CompileError, match='defines no extern "C" kernel absent'):
        need_compiler().compile(SOURCE, "absent", TARGET, CompileOptions(()))


def test_no_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    compiler = CxxCompiler()
    reason = compiler.unavailable_reason()
    for name in ("g++ not found", "clang++ not found", "c++ not found", "set CXX"):
        assert name in reason
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler is available"):
        compiler.identity()
    assert CpuBackend().unavailable_reason() is None  # packed kernels still run


def test_cxx_is_the_only_choice_when_set(monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/compiler -pipe")
    reason = CxxCompiler().unavailable_reason()
    assert "/no/such/compiler not found" in reason
    assert "g++ not found" not in reason


@pytest.mark.parametrize(
    ("cxx", "reason"),
    [("g++ -O1 '", "No closing quotation"), ("/bin/true", "writes nothing|--version fails|not found")],
)
def test_cxx_that_is_no_compiler(monkeypatch, cxx, reason):
    """Said as a reason, under which torch's library can take over; no traceback out of shlex or open()."""
    monkeypatch.setenv("CXX", cxx)
    said = CxxCompiler().unavailable_reason()
    assert said is not None and re.search(reason, said) and said.endswith("correct or unset CXX")


def test_cxx_with_arguments(monkeypatch):
    found = shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setenv("CXX", f"{found} -pipe")
    compiler = CxxCompiler()
    assert compiler.unavailable_reason() is None
    assert found not in compiler.identity()  # never an install path
    assert compiler.compile(SOURCE, "kernel", TARGET, CompileOptions(())).code


def test_arguments_in_cxx_are_part_of_the_key(monkeypatch):
    plain = need_compiler()
    name = shutil.which("g++") or shutil.which("clang++")
    monkeypatch.setenv("CXX", f"{name} -ffast-math -DEXTRA=1")
    compiler = CxxCompiler()
    flags = compiler.flags(TARGET, CompileOptions(()))
    assert flags[:2] == ("-ffast-math", "-DEXTRA=1")
    source = SOURCE + "static_assert(EXTRA == 1);\n#ifndef __FAST_MATH__\n#error no\n#endif\n"
    assert compiler.compile(source, "kernel", TARGET, CompileOptions(())).code
    monkeypatch.delenv("CXX")
    assert "-ffast-math" not in plain.flags(TARGET, CompileOptions(()))


def test_a_compiler_without_cxx20(monkeypatch, tmp_path):
    old = tmp_path / "old-c++"
    old.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "old 4.8"; exit 0; }\n'
        "echo \"unrecognized option '-std=c++20'\" >&2; exit 1\n"
    )
    old.chmod(old.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(old))
    reason = CxxCompiler().unavailable_reason()
    assert "cannot build a C++20 shared library (unrecognized option '-std=c++20')" in reason


def test_optional_flags_are_left_out_where_unknown(monkeypatch, tmp_path):
    found = shutil.which("g++")
    if found is None:
        pytest.skip("no g++")
    picky = tmp_path / "picky-c++"
    picky.write_text(
        '#!/bin/sh\nfor flag; do case "$flag" in -march=*|-fno-gnu-unique) exit 1;; esac; done\n'
        f'exec {found} "$@"\n'
    )
    picky.chmod(picky.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(picky))
    compiler = CxxCompiler()
    assert compiler.unavailable_reason() is None
    flags = compiler.flags(TARGET, CompileOptions(()))
    assert "-march=native" not in flags
    assert "-fno-gnu-unique" not in flags
    assert "-Wl,-Bsymbolic" in flags


def test_a_compiler_that_hangs(monkeypatch, tmp_path):
    monkeypatch.setenv("PORTAGEMM_CACHE_DIR", str(tmp_path))  # nothing is remembered of it

    def hang(command, **kwargs):
        raise compiler_module.subprocess.TimeoutExpired(command, 1)

    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiler_module.subprocess, "run", hang)
    assert CxxCompiler().unavailable_reason() is not None


def test_the_device():
    (device,) = CpuBackend().devices()
    assert (device.backend, device.index, device.arch) == ("cpu", 0, "native")
    assert device.torch_device == "cpu"
    assert device.name
    assert device.compute_units >= 1


@pytest.mark.parametrize(
    ("text", "size"), [("32768K", 32 << 20), ("512 KB", 512 << 10), ("8M", 8 << 20), ("", 0), ("odd", 0)]
)
def test_cache_sizes(text, size):
    assert cpuinfo._bytes(text) == size


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (2.0, 2), (1.5, 2), (0.1, 1), (64.0, 8)])
def test_usable_cores(monkeypatch, quota, cores):
    monkeypatch.setattr(cpuinfo.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(cpuinfo, "_cgroup_cores", lambda: quota)
    assert cpuinfo.usable_cores() == cores
