"""The public operations on the CPU backend as a user meets them: first call, warm cache, pack, no compiler."""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import portagemm
from portagemm import errors, launch
from portagemm.hal import pack
from portagemm.ops import _dispatch, matmul

pytestmark = pytest.mark.usefixtures("cpu")

X, W = torch.arange(12.0).reshape(3, 4), torch.arange(20.0).reshape(4, 5)


@pytest.fixture
def fresh(private_cache: Path) -> Iterator[Path]:
    """Nothing prepared, nothing in memory, an empty cache folder."""
    _dispatch.clear()
    yield private_cache
    _dispatch.clear()


@pytest.fixture
def no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a C++ compiler."""
    monkeypatch.setenv("CXX", "/nowhere/c++")


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_our_kernel_runs(dtype: torch.dtype) -> None:
    a, b = X.to(dtype), W.to(dtype)
    assert portagemm.explain(portagemm.matmul, a, b).route == "own"
    result = portagemm.matmul(a, b, fallback="error")
    assert torch.equal(result.float(), (X @ W).to(dtype).float())


def test_explain_tells_where_the_code_comes_from(fresh: Path) -> None:
    text = str(portagemm.explain("matmul", X, W))
    assert "to be compiled by" in text and "plan: single_buffer" in text
    assert not fresh.exists() or not list(fresh.rglob("*.*")), "nothing is compiled"
    portagemm.matmul(X, W, fallback="error")
    assert "from memory" in str(portagemm.explain("matmul", X, W))
    launch.clear()
    assert "from disk" in str(portagemm.explain("matmul", X, W))


def test_first_calls_from_many_threads_compile_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = launch.usable_compiler("cpu")
    assert compiler is not None
    compiled: list[str] = []
    real = compiler.compile

    def counted(source: str, symbol: str, *rest: object) -> object:
        compiled.append(symbol)
        return real(source, symbol, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler, "compile", counted)
    results: list[Tensor] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        results.append(portagemm.matmul(X, W, fallback="error"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(compiled) == 1 and len(results) == 8 and all(torch.equal(r, X @ W) for r in results)


SECOND_PROCESS = """
import json, torch, portagemm
from portagemm import launch
from portagemm.ops import _dispatch, matmul
x = torch.ones(3, 4)
request = matmul.request(x, torch.ones(4, 5), fallback="error")
prepared = launch.launcher(_dispatch.problem_of(request), launch.device_of(x.device))
assert float(portagemm.matmul(x, torch.ones(4, 5), fallback="error")[2, 4]) == 4
print(json.dumps([prepared.origin, prepared.seconds]))
"""


def run(code: str, root: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=root,
        env={**os.environ, **variables},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_second_process_compiles_nothing(tmp_path: Path, root: Path) -> None:
    origins = [json.loads(run(SECOND_PROCESS, root, PORTAGEMM_CACHE_DIR=str(tmp_path)))[0] for _ in range(2)]
    assert origins == ["compiled", "disk"]


@pytest.mark.quick
def test_no_compiler_is_one_clear_error(no_compiler: None) -> None:
    for _ in range(2):
        with pytest.raises(errors.NoCompilerError) as raised:
            portagemm.matmul(X, W, fallback="error")
        message = str(raised.value)
        assert "neither cached nor in a pack (PORTAGEMM_KERNEL_PATH)" in message
        assert "C++ compiler: /nowhere/c++ not found" in message


@pytest.mark.quick
def test_no_compiler_goes_to_torch_and_says_so(no_compiler: None, caplog: pytest.LogCaptureFixture) -> None:
    _dispatch.said.clear()
    with caplog.at_level(logging.INFO, "portagemm"):
        for _ in range(2):
            assert torch.equal(portagemm.matmul(X, W), X @ W)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "torch's own matrix multiplication" in caplog.text and "/nowhere/c++ not found" in caplog.text
    assert "/nowhere/c++ not found" in str(portagemm.explain("matmul", X, W))
    assert portagemm.explain("matmul", X, W).route == "vendor"


def test_a_pack_needs_no_compiler(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = launch.device_of(X.device)
    problem = _dispatch.problem_of(matmul.request(X, W, fallback="error"))
    sources = launch.sources_of(launch.planned(problem, device), device)
    pack.write_pack(tmp_path / "pack", [(source, launch.code_of(source).code) for source in sources])
    monkeypatch.setenv("PORTAGEMM_KERNEL_PATH", str(tmp_path / "pack"))
    monkeypatch.setenv("PORTAGEMM_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("CXX", "/nowhere/c++")
    _dispatch.clear()
    assert launch.launcher(problem, device).origin == "pack"
    launch.clear()
    assert "from pack" in str(portagemm.explain("matmul", X, W))
    assert torch.equal(portagemm.matmul(X, W, fallback="error"), X @ W)
    with pytest.raises(errors.NoCompilerError):
        portagemm.matmul(X.half(), W.half(), fallback="error")


def test_a_compile_error_is_loud_and_auto_survives_it(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = launch.usable_compiler("cpu")

    def broken(source: str, symbol: str, target: object, options: object) -> object:
        raise errors.CompileError(symbol, target, "g++", "internal compiler error")

    monkeypatch.setattr(compiler, "compile", broken)
    with pytest.raises(errors.CompileError, match="internal compiler error"):
        portagemm.matmul(X, W, fallback="error")
    _dispatch.said.clear()
    assert torch.equal(portagemm.matmul(X, W), X @ W)
    assert "internal compiler error" in caplog.text


def test_an_unknown_profile_is_one_clear_error(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given, message in (("nonsense", "allowed"), ("h100", "cpu")):
        monkeypatch.setenv("PORTAGEMM_PROFILE", given)
        _dispatch.clear()
        with pytest.raises(errors.ProfileError, match=message):
            portagemm.matmul(X, W)


def test_five_batch_dimensions_that_do_not_merge() -> None:
    a = torch.ones(4, 4, 4, 4, 4, 3, 4)[::2, ::2, ::2, ::2, ::2]
    b = torch.ones(2, 2, 2, 2, 2, 4, 5)
    with pytest.raises(errors.UnsupportedError, match=r"keeps 5 dimensions .* allowed: at most 4"):
        portagemm.matmul(a, b, fallback="error")
    assert torch.equal(portagemm.matmul(a, b), torch.matmul(a, b))


@pytest.mark.quick
def test_devices_end_with_the_cpu() -> None:
    devices = portagemm.devices()
    assert devices[-1].backend == "cpu" and devices[-1].torch_device == "cpu"


@pytest.mark.quick
def test_public_names() -> None:
    for name in portagemm.__all__:
        assert getattr(portagemm, name) is not None
    assert set(portagemm.__all__) <= set(dir(portagemm))
    importlib.import_module("portagemm.explanation")
    assert callable(portagemm.explain)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = portagemm.nonsense
