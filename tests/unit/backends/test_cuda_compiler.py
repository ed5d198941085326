"""NVRTC, nvcc and the assemblers: real compiles of a small kernel, and what is said where one is missing."""

from __future__ import annotations

import builtins
import re
import sys

import pytest

from portagemm.backends.cuda import compiler as compiler_module
from portagemm.backends.cuda.compiler import NvccCompiler, NvrtcCompiler
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.errors import CompileError
from portagemm.hal.target import Target

SOURCE = """
#include <scale.hpp>
template <class T> concept sized = sizeof(T) > 0;
static_assert(sized<float>);
extern "C" __global__ void small(float* p, int n) {
  extern __shared__ float s[];
  int i = threadIdx.x;
  s[i] = p[i];
  __syncthreads();
  p[i] = s[n - i] * SCALE * factor;
}
"""


def options(tmp_path, debug=False):
    (tmp_path / "scale.hpp").write_text("#pragma once\nconstexpr float factor = 2.f;\n")
    return CompileOptions((tmp_path,), (("SCALE", "3.f"),), debug)


def need(compiler):
    reason = compiler.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    return compiler


@pytest.fixture(scope="module")
def nvrtc():
    return need(NvrtcCompiler())


def elf_arch(code: bytes) -> int:
    """The SM number in the flags of a cubin's ELF header: bits 0 to 7, since CUDA 13 bits 8 to 15."""
    flags = int.from_bytes(code[48:52], "little")
    return flags & 0xFF if code[8] < 8 else flags >> 8 & 0xFF


@pytest.mark.quick
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"])
def test_exact_arch(nvrtc, tmp_path, arch):
    target = Target("cuda", arch, 32)
    code = nvrtc.compile(SOURCE, "small", target, options(tmp_path))
    assert code.code[:4] == b"\x7fELF"
    assert elf_arch(code.code) == int("".join(filter(str.isdigit, arch)))
    assert (code.symbol, code.target, code.compiler) == ("small", target, nvrtc.identity())
    assert "registers" in code.log
    assert "0 bytes spill stores" in code.log


@pytest.mark.quick
@pytest.mark.parametrize("arch", ["sm_80", "sm_89"])
def test_a_forced_profile_is_assembled_for_the_card(nvrtc, tmp_path, arch):
    target = Target("cuda", arch, 32, "sm_90")
    code = nvrtc.compile(SOURCE, "small", target, options(tmp_path))
    assert code.code[:4] == b"\x7fELF"
    assert elf_arch(code.code) == 90
    assert "registers" in code.log
    name, version = code.compiler.removeprefix(f"{nvrtc.identity()}, ").split()
    assert name in ("nvjitlink", "ptxas")
    assert version[0].isdigit()
    assert f"--assembler={name} {version}" in nvrtc.flags(target, options(tmp_path))


def test_assembled_by_ptxas_without_nvjitlink(nvrtc, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler_module, "_nvjitlink", lambda: None)
    if compiler_module._find_tool("ptxas") is None:
        pytest.skip("no ptxas")
    target = Target("cuda", "sm_80", 32, "sm_90")
    code = nvrtc.compile(SOURCE, "small", target, options(tmp_path, debug=True))
    assert elf_arch(code.code) == 90
    assert "registers" in code.log
    assembler = code.compiler.removeprefix(f"{nvrtc.identity()}, ")
    assert re.fullmatch(r"ptxas \d+\.\d+\.\d+", assembler)
    assert f"--assembler={assembler}" in nvrtc.flags(target, options(tmp_path))


@pytest.mark.quick
def test_the_assembler_named_is_the_one_used(nvrtc, tmp_path, monkeypatch):
    """nvJitLink is there, but does not know the arch: ptxas's version is in the key and in the code."""

    class Old:
        nvJitLinkError = ValueError

        def version(self):
            return 12, 0

        def create(self, count, options):
            raise ValueError("ERROR_UNRECOGNIZED_ARCH")

    ptxas = tmp_path / "ptxas"
    ptxas.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "Cuda compilation tools, release 12.9, V12.9.86"; exit; }\n'
        'while [ "$1" != -o ]; do shift; done; printf "small\\0" >"$2"\n'
    )
    ptxas.chmod(0o755)
    monkeypatch.setattr(compiler_module, "_nvjitlink", lambda: Old())
    monkeypatch.setattr(compiler_module, "_find_tool", lambda name: str(ptxas))
    target = Target("cuda", "sm_80", 32, "sm_90")
    assert "--assembler=ptxas 12.9.86" in nvrtc.flags(target, options(tmp_path))
    code = nvrtc.compile(SOURCE, "small", target, options(tmp_path))
    assert code.compiler == f"{nvrtc.identity()}, ptxas 12.9.86"


@pytest.mark.quick
def test_the_driver_that_assembles_is_named(nvrtc, fake_cuda, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler_module, "_nvjitlink", lambda: None)
    monkeypatch.setattr(compiler_module, "_find_tool", lambda name: None)
    monkeypatch.setenv("FAKE_VERSION", "12080")
    target = Target("cuda", "sm_80", 32, "sm_90")
    (flag,) = [f for f in nvrtc.flags(target, options(tmp_path)) if f.startswith("--assembler=driver ")]
    assert "CUDA 12.8" in flag
    compiler = nvrtc.compile(SOURCE, "small", target, options(tmp_path)).compiler
    assert compiler == f"{nvrtc.identity()}, {flag.removeprefix('--assembler=')}"


@pytest.mark.quick
def test_left_to_the_driver_without_any_assembler(nvrtc, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler_module, "_nvjitlink", lambda: None)
    monkeypatch.setattr(compiler_module, "_find_tool", lambda name: None)
    code = nvrtc.compile(SOURCE, "small", Target("cuda", "sm_80", 32, "sm_90"), options(tmp_path))
    assert b".target sm_80" in code.code
    assert code.code.endswith(b"\0")  # as the driver wants PTX
    assert "neither nvJitLink nor ptxas" in code.log


def test_an_arch_no_assembler_knows(nvrtc, tmp_path):
    code = nvrtc.compile(SOURCE, "small", Target("cuda", "sm_80", 32, "sm_299"), options(tmp_path))
    assert b".target sm_80" in code.code
    assert "sm_299" in code.log


@pytest.mark.quick
def test_arch_specific_code_is_not_assembled_for_another(nvrtc, tmp_path):
    with pytest.raises(CompileError, match="code for sm_90a runs on that arch alone"):
        nvrtc.compile(SOURCE, "small", Target("cuda", "sm_90a", 32, "sm_100"), options(tmp_path))


@pytest.mark.quick
def test_errors_have_the_compilers_log(nvrtc, tmp_path):
    with pytest.raises(CompileError) as caught:
        nvrtc.compile(
            SOURCE.replace("threadIdx", "no_such_name"),
            "small",
            Target("cuda", "sm_90a", 32),
            options(tmp_path),
        )
    assert caught.value.kernel == "small"
    assert 'identifier "no_such_name" is undefined' in caught.value.log
    assert "cuda:sm_90a" in str(caught.value)
    assert nvrtc.identity() in str(caught.value)


@pytest.mark.quick
def test_an_unknown_arch(nvrtc, tmp_path):
    with pytest.raises(CompileError, match="--gpu-architecture"):
        nvrtc.compile(SOURCE, "small", Target("cuda", "sm_299", 32), options(tmp_path))


@pytest.mark.quick
def test_a_missing_kernel(nvrtc, tmp_path):
    with pytest.raises(CompileError, match='defines no extern "C" kernel large'):
        nvrtc.compile(SOURCE, "large", Target("cuda", "sm_90a", 32), options(tmp_path))


@pytest.mark.quick
def test_a_spill_is_in_the_log(nvrtc, tmp_path):
    source = """
    extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* p) {
      float v[64];
      #pragma unroll
      for (int i = 0; i < 64; ++i) v[i] = p[i * 1024 + threadIdx.x];
      __syncthreads();
      #pragma unroll
      for (int i = 0; i < 64; ++i) p[threadIdx.x * 64 + i] = v[63 - i] * v[i] + v[(i * 7) % 64];
    }"""
    code = nvrtc.compile(source, "spills", Target("cuda", "sm_90a", 32), CompileOptions(()))
    assert "bytes spill stores" in code.log
    assert " 0 bytes spill stores" not in code.log


@pytest.mark.quick
def test_flags_and_identity(nvrtc):
    target = Target("cuda", "sm_90a", 32)
    flags = nvrtc.flags(target, CompileOptions(()))
    assert "--std=c++20" in flags
    assert "--gpu-architecture=sm_90a" in flags
    assert not any("fast" in flag for flag in flags)
    debug = nvrtc.flags(target, CompileOptions((), (("A", "1"),), True))
    assert set(debug) - set(flags) == {"--generate-line-info", "-DA=1"}
    forced = nvrtc.flags(Target("cuda", "sm_80", 32, "sm_90"), CompileOptions(()))
    assert "--gpu-architecture=compute_80" in forced
    assert any(flag.startswith("--assembler=") for flag in forced)
    name, version = nvrtc.identity().split()
    assert name == "nvrtc"
    assert [part.isdigit() for part in version.split(".")] == [True, True, True]


def test_nvcc(tmp_path):
    nvcc = need(NvccCompiler())
    target = Target("cuda", "sm_80", 32, "sm_90")
    code = nvcc.compile(SOURCE, "small", target, options(tmp_path))
    assert elf_arch(code.code) == 90
    assert "registers" in code.log
    assert code.compiler.startswith("nvcc ")
    with pytest.raises(CompileError, match="no_such_name"):
        nvcc.compile(SOURCE.replace("threadIdx", "no_such_name"), "small", target, options(tmp_path))


@pytest.mark.quick
def test_nvcc_takes_no_flags_from_its_variables(monkeypatch, tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        '#!/bin/sh\n[ -z "$NVCC_PREPEND_FLAGS$NVCC_APPEND_FLAGS" ] || { echo flags unseen; exit 1; }\n'
        '[ "$1" = --version ] && { echo "Cuda compilation tools, release 12.9, V12.9.86"; exit; }\n'
        'while [ "$1" != -o ]; do shift; done; printf "small\\0" >"$2"\n'
    )
    nvcc.chmod(0o755)
    monkeypatch.setattr(compiler_module, "_find_tool", lambda name: str(nvcc))
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-use_fast_math")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DX")
    compiler = NvccCompiler()
    assert compiler.identity() == "nvcc 12.9.86"
    assert compiler.compile(SOURCE, "small", Target("cuda", "sm_90a", 32), options(tmp_path)).code


@pytest.mark.quick
def test_nvcc_missing(monkeypatch):
    monkeypatch.setattr(compiler_module, "_find_tool", lambda name: None)
    nvcc = NvccCompiler()
    assert "no nvcc" in nvcc.unavailable_reason()
    with pytest.raises(RuntimeError, match="no nvcc"):
        nvcc.identity()


@pytest.mark.quick
def test_cuda_python_missing(no_cuda, monkeypatch):
    def refuse(name, *args, **kwargs):
        if name.startswith("cuda"):
            raise ModuleNotFoundError("No module named 'cuda'")
        return real(name, *args, **kwargs)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    nvrtc = NvrtcCompiler()
    reason = nvrtc.unavailable_reason()
    assert "cuda-python is not installed" in reason
    assert "portagemm[cuda13]" in reason
    assert "portagemm[cuda12]" in reason
    with pytest.raises(RuntimeError, match="cuda-python is not installed"):
        nvrtc.identity()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("version", "extra"), [("12080", "cuda12"), ("13000", "cuda13"), ("14000", "cuda13")]
)
def test_the_extra_fits_the_driver(fake_cuda, monkeypatch, version, extra):
    monkeypatch.setenv("FAKE_VERSION", version)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert f"pip install 'portagemm[{extra}]'" in NvrtcCompiler().unavailable_reason()


@pytest.mark.quick
def test_the_library_missing(no_cuda, monkeypatch):
    bindings = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")

    def fail():
        raise RuntimeError("Failure finding libnvrtc.so: not found\nlong list")

    monkeypatch.setattr(bindings, "nvrtcVersion", fail)
    reason = NvrtcCompiler().unavailable_reason()
    assert "Failure finding libnvrtc.so: not found" in reason
    assert "long list" not in reason
