"""Named faults on a GPU."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from portagemm import launch, testing
from portagemm.ops import _dispatch
from portagemm.ops.matmul import matmul
from portagemm.testing import COL, Case, Memory

from .. import faults  # noqa: TID252


def python(code: str, *arguments: str, root: Path, cache: Path | None = None) -> str:
    """Run code in a process of its own; what it printed. Fails with its stderr."""
    environment = dict(os.environ)
    if cache is not None:
        environment["PORTAGEMM_CACHE_DIR"] = str(cache)
        environment.pop("PORTAGEMM_KERNEL_PATH", None)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=root,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_g01_zero_extents(gpu: str) -> None:
    faults.g01_zero_extents(gpu)


def test_g02_k_tails(gpu: str) -> None:
    faults.g02_k_tails(gpu)


def test_g04_leading_strides(gpu: str) -> None:
    faults.g04_leading_strides(gpu)


def test_g05_out_aliases(gpu: str) -> None:
    faults.g05_aliases(gpu)


def test_g06_stride_zero(gpu: str) -> None:
    faults.g06_stride_zero(gpu)


def test_g07_alignment(gpu: str) -> None:
    faults.g07_alignment(gpu)


@pytest.mark.slow
def test_g07_a_huge_column_major_operand(gpu: str) -> None:
    if torch.cuda.mem_get_info(gpu)[0] < 8 << 30:
        pytest.skip("needs 8 GB of free device memory")
    rows, k = 50257, 32768
    storage = torch.randint(-1, 2, (k, 50304), device=gpu, dtype=torch.int8).bfloat16()
    a = storage.t()[:rows]
    assert a.stride() == (1, 50304)
    b = torch.zeros(k, 16, device=gpu, dtype=torch.bfloat16)
    b[::4096] = 1
    out = matmul(a, b, fallback="error")
    expected = a[:, ::4096].float().sum(1, keepdim=True).expand(rows, 16)
    assert torch.equal(out.float(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [8704, 8193, 8209])
def test_g08_batch_offsets_past_2_31(gpu: str, batches: int) -> None:
    """bmm with K = 1, 512 x 512: the result's offsets pass 2^31 elements."""
    if torch.cuda.mem_get_info(gpu)[0] < 12 << 30:
        pytest.skip("needs 12 GB of free device memory")
    below = torch.full((1 << 20,), testing.SENTINEL, dtype=torch.bfloat16, device=gpu)
    out = torch.full((batches, 512, 512), float("nan"), dtype=torch.bfloat16, device=gpu)
    above = torch.full((1 << 20,), testing.SENTINEL, dtype=torch.bfloat16, device=gpu)
    a = torch.randint(-2, 3, (batches, 512, 1), device=gpu).bfloat16()
    b = torch.randint(-2, 3, (batches, 1, 512), device=gpu).bfloat16()
    matmul(a, b, out=out, fallback="error")
    for first in range(0, batches, 1024):
        part = slice(first, min(first + 1024, batches))
        assert torch.equal(out[part], a[part] * b[part]), f"batches from {first}"
    assert bool((below == testing.SENTINEL).all()) and bool((above == testing.SENTINEL).all())
    del out, a, b
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.slow
def test_g08_row_offsets_past_2_31(gpu: str) -> None:
    """One matrix whose rows and columns reach past 2^31 elements, as A, B and out."""
    if torch.cuda.mem_get_info(gpu)[0] < 16 << 30:
        pytest.skip("needs 16 GB of free device memory")
    stride = 1 << 20
    storage = torch.zeros(2176 * stride, dtype=torch.bfloat16, device=gpu)
    wide = storage.as_strided((2176, 64), (stride, 1))
    wide.copy_(faults.integers(2176, 64, dtype=torch.bfloat16, device=gpu))
    w = faults.integers(72, 64, dtype=torch.bfloat16, device=gpu, seed=1)
    expected = (wide.float() @ w.float().t()).bfloat16()
    assert torch.equal(matmul(wide, w.t(), fallback="error"), expected)
    assert torch.equal(matmul(w, wide.t(), fallback="error"), expected.t())
    out = storage.as_strided((2176, 72), (stride, 1), 128)
    matmul(wide, w.t(), out=out, fallback="error")
    assert torch.equal(out, expected)
    del storage, wide, out
    gc.collect()
    torch.cuda.empty_cache()


def test_g10_beta_zero(gpu: str) -> None:
    faults.g10_beta_zero(gpu)


def test_g11_slices_of_k(gpu: str) -> None:
    """Poisoned workspaces, and 100 replays of each call with the bytes of the first."""
    for made, prepared in faults.g11_slices(gpu, ((546, 9728, 2560), (33, 40, 520))):
        a, b = made.a.view, made.b.view
        out = torch.empty(a.shape[0], b.shape[1], dtype=torch.bfloat16, device=gpu)
        call = (a.data_ptr(), b.data_ptr(), 0, out.data_ptr(), 0)
        prepared(*call)
        first = out.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            prepared(*call)
        for _ in range(100):
            out.fill_(float("nan"))
            graph.replay()
            assert torch.equal(testing.bits(out), testing.bits(first))


def test_g15_subnormals(gpu: str) -> None:
    faults.g15_subnormals(gpu)


def test_g16_partial_sums(gpu: str) -> None:
    assert faults.g16_partial_sums(gpu, 4096) > 2


def test_g18_rows(gpu: str) -> None:
    faults.g18_rows(gpu, 2048)


#: Plans whose K is split: over the blocks of a cluster where there are such, and in slices with a workspace.
SPLIT = ((64, 256, 16384), (64, 256, 16383))


@pytest.mark.parametrize("shape", SPLIT)
def test_g35_replays(gpu: str, shape: tuple[int, int, int]) -> None:
    """1000 replays give the eager bytes; a second graph of the stream outlives the first."""
    m, n, k = shape
    x, w = (torch.randn(rows, k, device=gpu, dtype=torch.bfloat16) for rows in (m, n))
    eager = matmul(x, w.t(), fallback="error")
    torch.cuda.synchronize(gpu)
    outs, graphs = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs.append(matmul(x, w.t(), fallback="error"))
        graphs.append(graph)
    for number in range(1000):
        outs[0].fill_(float("nan"))
        graphs[0].replay()
        if number % 100 == 0:
            torch.cuda.synchronize(gpu)
            assert torch.equal(outs[0], eager), number
    torch.cuda.synchronize(gpu)
    assert torch.equal(outs[0], eager)
    del graph
    graphs.pop(0)
    gc.collect()
    outs[1].fill_(float("nan"))
    graphs[0].replay()
    torch.cuda.synchronize(gpu)
    assert torch.equal(outs[1], eager)


def test_g36_memory(gpu: str) -> None:
    """Captures on new streams, threads that end, and many M leave the device's memory as it was."""
    m, n, k = SPLIT[1]
    x, w = (torch.randn(rows, k, device=gpu, dtype=torch.bfloat16) for rows in (m, n))
    many = torch.randn(5000, 64, device=gpu, dtype=torch.bfloat16)
    small = torch.randn(64, 64, device=gpu, dtype=torch.bfloat16)

    def settled() -> int:
        torch.cuda.synchronize(gpu)
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(gpu)

    matmul(x, w.t(), fallback="error")
    before = settled()
    for _ in range(200):
        stream, graph = torch.cuda.Stream(gpu), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream(gpu))
        with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
            out = matmul(x, w.t(), fallback="error")
        graph.replay()
        del graph, out
    for _ in range(1000):
        thread = threading.Thread(target=lambda: matmul(x, w.t(), fallback="error"))
        thread.start()
        thread.join()
    for rows in range(1, 5001, 5):
        matmul(many[:rows], small, fallback="error")
    assert settled() - before <= 64 << 20
    _dispatch.clear()
    assert settled() <= before


def test_g33_the_callers_stream(gpu: str) -> None:
    """On a side stream behind a sleep the kernel sees what was filled there, and inputs may be dropped."""
    w = torch.eye(512, device=gpu, dtype=torch.bfloat16)
    matmul(w, w, fallback="error")
    side = torch.cuda.Stream(gpu)
    torch.cuda.synchronize(gpu)
    for i in range(100):
        x = torch.zeros(512, 512, device=gpu, dtype=torch.bfloat16)
        torch.cuda.synchronize(gpu)
        with torch.cuda.stream(side):
            if i % 10 == 0:
                torch.cuda._sleep(20_000_000)
            x.fill_(i % 100 + 1)
            y = matmul(x, w, fallback="error")
            del x
            # what the allocator hands out next on this stream may be the memory of x
            torch.full((512, 512), -1.0, device=gpu, dtype=torch.bfloat16)
        side.synchronize()
        assert bool((y == i % 100 + 1).all()), i


FIRST_IN_CAPTURE = """
import sys
import torch
import portagemm
from portagemm import errors
x = torch.randn(128, 96, device="cuda", dtype=torch.bfloat16)
w = torch.randn(80, 96, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
outcome = "works"
with torch.cuda.graph(graph, capture_error_mode=sys.argv[1]):
    y = torch.zeros(128, 80, device="cuda", dtype=torch.bfloat16)
    try:
        portagemm.linear(x, w, out=y, fallback="error")
    except errors.PortaGemmError as e:
        outcome = "refused: " + str(e)
for _ in range(3):
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    if outcome == "works":
        expected = x.float() @ w.float().t()
        assert torch.allclose(y.float(), expected, rtol=2**-7, atol=1e-2)
assert portagemm.matmul(x, w.t(), fallback="error").shape == (128, 80)
torch.cuda.synchronize()
print(outcome)
"""


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_g34_first_call_in_a_capture(gpu: str, mode: str, tmp_path: Path, root: Path) -> None:
    """Cold, then from the disk cache: it works, or one error says so and the process goes on."""
    cache = tmp_path / "cache"
    outcomes = [python(FIRST_IN_CAPTURE, mode, root=root, cache=cache) for _ in range(2)]
    assert all(o == "works" or "warm up" in o.lower() for o in outcomes), outcomes
    assert outcomes[1] == "works", "the disk cache is warm"


def test_g34_captured_calls_replay_and_do_not_allocate_outside(gpu: str) -> None:
    a, b = (torch.randn(256, 256, device=gpu, dtype=torch.bfloat16) for _ in range(2))
    eager = matmul(a, b, fallback="error")
    torch.cuda.synchronize(gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x = a
        for _ in range(10):
            y = matmul(a, b, fallback="error")
            x = matmul(y, b, fallback="error")
    before = torch.cuda.memory_allocated(gpu)
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize(gpu)
    assert torch.equal(y, eager) and x.shape == (256, 256)
    assert torch.cuda.memory_allocated(gpu) == before


def test_g37_refused_launches(gpu: str) -> None:
    faults.g37_refused_launches(gpu)


def test_g37_code_for_another_arch(gpu: str) -> None:
    """Code the device cannot run is refused by name, and the next call works."""
    from dataclasses import replace

    from portagemm import errors
    from portagemm import plan as planner

    x = torch.ones(64, 64, device=gpu, dtype=torch.bfloat16)
    device = launch.device_of(x.device)
    problem = testing.problem(Case("G37", 64, 64, 64))
    chosen = launch.planned(problem, device)
    result = launch.code_of(launch.sources_of(chosen, device)[0])
    broken = replace(result.code, code=b"\x7fELF" + b"\0" * 60)
    prepared = launch.launcher(problem, device)
    with pytest.raises(errors.LaunchError, match="pg_"):
        prepared.driver.prepare(
            broken, planner.launch_config(chosen), planner.arguments(problem, chosen), device.index
        )
    assert bool((matmul(x, x, fallback="error") == 64).all())


def test_g39_builds_are_bounded(gpu: str) -> None:
    first, second = faults.g39_builds(gpu)
    assert 0 < first <= 16 and second == 0


FORK = """
import os, sys
import portagemm
devices = portagemm.devices()
assert any(d.backend in ("cuda", "rocm") for d in devices), devices
import torch
assert not torch.cuda.is_initialized()
if sys.argv[1] == "used":
    x = torch.ones(64, 64, device="cuda")
    assert float(portagemm.matmul(x, x, fallback="error")[0, 0]) == 64
child = os.fork()
if child == 0:
    try:
        x = torch.ones(64, 64, device="cuda")
        ok = float(portagemm.matmul(x, x, fallback="error")[0, 0]) == 64
        print("child works", flush=True)
    except RuntimeError as e:
        print("child refused:", str(e)[:200], flush=True)
    os._exit(0)
status = os.waitpid(child, 0)[1]
assert status == 0, status
if sys.argv[1] == "used":
    assert float(portagemm.matmul(x, x, fallback="error")[0, 0]) == 64
"""

SPAWN = """
import multiprocessing
import torch
import portagemm

def work(queue):
    x = torch.ones(64, 64, device="cuda")
    queue.put(float(portagemm.matmul(x, x, fallback="error")[0, 0]))

if __name__ == "__main__":
    x = torch.ones(64, 64, device="cuda")
    portagemm.matmul(x, x, fallback="error")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get(timeout=200))
    process.join()
"""


def test_g40_fork_after_a_query_works(gpu: str, root: Path) -> None:
    assert python(FORK, "queried", root=root) == "child works"


def test_g40_fork_after_use_gives_the_usual_error(gpu: str, root: Path) -> None:
    assert python(FORK, "used", root=root).startswith("child refused: Cannot re-initialize CUDA")


def test_g40_spawn_works(gpu: str, root: Path, tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(SPAWN)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert done.stdout.strip() == "64.0", done.stderr


def test_g45_epilogues(gpu: str) -> None:
    faults.g45_epilogues(gpu)


def test_a_device_that_is_not_current(gpu: str) -> None:
    """Tensors on the second GPU while the first is current."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    from portagemm import errors

    a, b = (torch.randn(256, 192, dtype=torch.bfloat16) for _ in range(2))
    first = matmul(a.cuda(0), b.cuda(0).t(), fallback="error")
    with torch.cuda.device(0):
        second = matmul(a.cuda(1), b.cuda(1).t(), fallback="error")
        assert torch.cuda.current_device() == 0
    assert second.device.index == 1 and torch.equal(first.cpu(), second.cpu())
    with pytest.raises(errors.DeviceError, match="b: given device cuda:1"):
        matmul(a.cuda(0), b.cuda(1).t(), fallback="error")


def test_two_runs_of_every_layout_are_equal(gpu: str) -> None:
    """Deterministic: 50 repeats byte-equal, by the hot path."""
    _dispatch.clear()
    case = Case("det", 300, 264, 1000, "bf16", a=Memory(pad=8), b=COL, criterion="t16")
    made = testing.operands(case, gpu)
    first = matmul(made.a.view, made.b.view, fallback="error")
    for _ in range(50):
        assert torch.equal(matmul(made.a.view, made.b.view, fallback="error"), first)
