"""Kernels on the CPU: blocks over threads, scratch, errors, forks."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import threading

import pytest

from portagemm.backends.cpu import driver as driver_module
from portagemm.backends.cpu.compiler import CxxCompiler
from portagemm.backends.cpu.driver import CpuDriver
from portagemm.hal.compiler import CompileOptions
from portagemm.hal.errors import LaunchError
from portagemm.hal.program import ArgumentBlock, LaunchConfig, ObjectCode, TensorMap
from portagemm.hal.target import Target

pytestmark = pytest.mark.quick

#: out[block] = block + alpha * in[0], computed through the scratch; a template's static must not be shared.
SOURCE = """
typedef long long i64;
struct args { double* in; i64 fixed; float alpha; float beta; i64* out; };
template <int> inline int& state() { static int value = START; return value; }
extern "C" void kernel(const void* p, i64 block, i64 grid, void* shared) {
  const args& a = *static_cast<const args*>(p);
  double* scratch = static_cast<double*>(shared);
  scratch[31] = a.in[0] * a.alpha + a.beta;
  bool aligned = reinterpret_cast<unsigned long>(shared) % 64 == 0;
  a.out[block] = aligned && a.fixed == 77 ? block + static_cast<i64>(scratch[31]) + state<0>() * grid : -1;
}
"""
TEMPLATE = bytes(8) + (77).to_bytes(8, "little") + bytes(16)
BLOCK = ArgumentBlock(TEMPLATE, (0, 24), (16, 20))


def build(start: int = 0, symbol: str = "kernel") -> ObjectCode:
    compiler = CxxCompiler()
    reason = compiler.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    source = SOURCE.replace("kernel", symbol)
    options = CompileOptions((), (("START", str(start)),))
    return compiler.compile(source, symbol, Target("cpu", "native", 1), options)


@pytest.fixture(scope="module")
def code() -> ObjectCode:
    return build()


@pytest.fixture
def four_threads(monkeypatch):
    monkeypatch.setattr(driver_module, "threads", lambda: 4)


def run(launch, grid, value=5.0, alpha=2.0, beta=3.0):
    source, out = (ctypes.c_double * 1)(value), (ctypes.c_int64 * grid)(*([-7] * grid))
    launch((ctypes.addressof(source), ctypes.addressof(out)), (alpha, beta), 0)
    return list(out)


@pytest.mark.parametrize("grid", [1, 2, 3, 4, 5, 100])
def test_every_block_once(code, four_threads, grid):
    launch = CpuDriver().prepare(code, LaunchConfig(grid, 1, 1, 256), BLOCK, 0)
    assert run(launch, grid) == [block + 13 for block in range(grid)]
    assert run(launch, grid, value=1.0, alpha=-1.0, beta=0.0) == [block - 1 for block in range(grid)]


def test_one_thread_starts_none(code, monkeypatch):
    monkeypatch.setattr(driver_module, "threads", lambda: 1)
    monkeypatch.setattr(driver_module._workers, "submit", lambda *args: pytest.fail("a thread was asked for"))
    launch = CpuDriver().prepare(code, LaunchConfig(7, 1, 1, 256), BLOCK, 0)
    assert run(launch, 7) == [block + 13 for block in range(7)]


def test_threads_are_torchs():
    import torch

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert driver_module.threads() == 3
    finally:
        torch.set_num_threads(before)


def test_kernels_do_not_share_statics(four_threads):
    """Two libraries with the same symbols and templates but other values, loaded one after the other."""
    driver = CpuDriver()
    config = LaunchConfig(2, 1, 1, 256)
    first, second = (driver.prepare(build(start), config, BLOCK, 0) for start in (10, 1000))
    assert run(first, 2) == [33, 34]
    assert run(second, 2) == [2013, 2014]
    assert run(first, 2) == [33, 34]


def test_loaded_without_memory_files(code, four_threads, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    launch = CpuDriver().prepare(code, LaunchConfig(2, 1, 1, 256), BLOCK, 0)
    assert run(launch, 2) == [13, 14]


def test_many_callers(code, four_threads):
    launch = CpuDriver().prepare(code, LaunchConfig(5, 1, 1, 256), BLOCK, 0)
    wrong: list[object] = []

    def work(k: int) -> None:
        for i in range(100):
            got = run(launch, 5, value=float(k * 1000 + i), alpha=1.0, beta=0.0)
            if got != [block + k * 1000 + i for block in range(5)]:
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_exception_in_a_worker_is_raised_after_all_are_done(four_threads):
    running = threading.Event()
    done: list[int] = []

    def kernel(address, block, grid, shared):
        if block == 1:
            running.set()
            raise MemoryError("block 1")
        if block == 2:
            running.wait(10)
        done.append(block)

    launch = driver_module.CpuLaunch(kernel, "kernel", LaunchConfig(4, 1), ArgumentBlock(b"", (), ()))
    with pytest.raises(MemoryError, match="block 1"):
        launch((), (), 0)
    assert sorted(done) == [0, 2, 3]


def test_an_exception_here_waits_for_the_workers(four_threads):
    done: list[int] = []

    def kernel(address, block, grid, shared):
        if block == 0:
            raise KeyboardInterrupt
        threading.Event().wait(0.05)
        done.append(block)

    launch = driver_module.CpuLaunch(kernel, "kernel", LaunchConfig(4, 1), ArgumentBlock(b"", (), ()))
    with pytest.raises(KeyboardInterrupt):
        launch((), (), 0)
    assert sorted(done) == [1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_after_use(code, four_threads):
    launch = CpuDriver().prepare(code, LaunchConfig(4, 1, 1, 256), BLOCK, 0)
    expected = run(launch, 4)
    child = os.fork()
    if child == 0:
        os._exit(0 if run(launch, 4) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(launch, 4) == expected


def test_code_of_another_cpu_is_refused(code):
    other = dataclasses.replace(code, compiler="g++ 12.2.0 cpu-00000000")
    with pytest.raises(LaunchError, match="compiled for another CPU"):
        CpuDriver().prepare(other, LaunchConfig(1, 1, 1, 256), BLOCK, 0)


def test_not_a_library():
    junk = ObjectCode(b"junk", Target("cpu", "native", 1), "kernel", "test")
    with pytest.raises(LaunchError, match="kernel kernel on cpu cannot be loaded"):
        CpuDriver().prepare(junk, LaunchConfig(1, 1), BLOCK, 0)


def test_a_missing_symbol(code):
    with pytest.raises(LaunchError, match="other on cpu cannot be loaded"):
        CpuDriver().prepare(dataclasses.replace(code, symbol="other"), LaunchConfig(1, 1), BLOCK, 0)


MAP = TensorMap(0, 0, 2, "bf16", (8, 8), (16,), (8, 8))


@pytest.mark.parametrize(
    ("config", "block", "device"),
    [
        (LaunchConfig(1, 32), BLOCK, 0),
        (LaunchConfig(1, 1, 2), BLOCK, 0),
        (LaunchConfig(0, 1), BLOCK, 0),
        (LaunchConfig(1, 1), BLOCK, 1),
        (LaunchConfig(1, 1), ArgumentBlock(bytes(256), (0,), (), (MAP,)), 0),
        (LaunchConfig(1, 1), ArgumentBlock(bytes(8), (4,), ()), 0),
        (LaunchConfig(1, 1), ArgumentBlock(bytes(8), (), (6,)), 0),
    ],
)
def test_what_is_not_a_cpu_launch(code, config, block, device):
    with pytest.raises(LaunchError):
        CpuDriver().prepare(code, config, block, device)


def test_a_wrong_number_of_values(code):
    launch = CpuDriver().prepare(code, LaunchConfig(1, 1, 1, 256), BLOCK, 0)
    with pytest.raises(LaunchError, match="pointers: needed 2, given 1"):
        launch((1,), (1.0, 0.0), 0)
