"""Named faults on the CPU backend, and those that planning alone can show."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from portagemm import launch
from portagemm import plan as planner
from portagemm.hal import profile
from portagemm.hal.device import Device
from portagemm.hal.dtypes import BF16
from portagemm.ops import _dispatch
from portagemm.ops.matmul import matmul
from portagemm.problem import GemmProblem, Operand

from .. import faults  # noqa: TID252

pytestmark = pytest.mark.usefixtures("cpu")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 60 << 20, 141 << 30, 227 << 10, 1024)
SMALL = Device("cuda", 0, "small", "sm_89", 128, 72 << 20, 24 << 30, 101376, 1024)


def problem(m: int, n: int, k: int) -> GemmProblem:
    return GemmProblem(m, n, k, Operand(BF16, (k, 1)), Operand(BF16, (k, 1)), Operand(BF16, (n, 1)))


@pytest.mark.quick
def test_g01_zero_extents() -> None:
    faults.g01_zero_extents("cpu")


def test_g02_k_tails() -> None:
    faults.g02_k_tails("cpu")


def test_g04_leading_strides() -> None:
    faults.g04_leading_strides("cpu")


@pytest.mark.quick
def test_g05_out_aliases() -> None:
    faults.g05_aliases("cpu")


def test_g06_stride_zero() -> None:
    faults.g06_stride_zero("cpu")


def test_g07_alignment() -> None:
    faults.g07_alignment("cpu")


def test_g08_batch_offsets_past_2_31() -> None:
    pytest.skip("needs 5 GB and a GPU: tests/device/test_faults.py")


def test_g10_beta_zero() -> None:
    faults.g10_beta_zero("cpu")


def test_g15_subnormals() -> None:
    faults.g15_subnormals("cpu")


def test_g33_streams() -> None:
    pytest.skip("the CPU has no streams: tests/device/test_faults.py")


def test_g34_first_call_in_a_capture() -> None:
    pytest.skip("the CPU has no graphs: tests/device/test_faults.py")


@pytest.mark.quick
def test_g37_refused_launches() -> None:
    faults.g37_refused_launches("cpu")


@pytest.mark.quick
@pytest.mark.parametrize("name", ["h100", "a100", "rtx4090"])
def test_g37_plans_respect_the_device(name: str) -> None:
    """A device with 101376 bytes of shared memory gets no plan that needs more; the rest is rejected aloud."""
    p = problem(4096, 4096, 4096)
    arch = profile.get(name)
    plans = planner.candidates(p, arch, SMALL)
    assert plans and all(c.shared_bytes <= 101376 for c in plans)
    larger = [c for c in planner.candidates(p, arch, H200) if c.shared_bytes > 101376]
    reasons = [why for _, why in planner.rejections(p, arch, SMALL)]
    assert sum("the device has 101376" in why for why in reasons) >= len(larger)


def test_g11_slices_of_k() -> None:
    faults.g11_slices("cpu", ((546, 1216, 2560), (33, 40, 520)))


def test_g16_partial_sums() -> None:
    assert faults.g16_partial_sums("cpu", 256) >= 1


def test_g18_rows() -> None:
    faults.g18_rows("cpu", 256)


def test_g35_replays() -> None:
    pytest.skip("the CPU has no graphs: tests/device/test_faults.py")


def test_g36_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared calls are bounded: many shapes and threads leave no more than a bound's worth behind."""
    bound = 32
    monkeypatch.setattr(launch, "BOUND", bound)
    monkeypatch.setattr(_dispatch, "calls", _dispatch.Calls(bound))
    w = torch.ones(8, 16)
    for m in range(1, 6 * bound):
        matmul(torch.ones(m, 16), w.t(), fallback="error")
    assert len(_dispatch.calls) <= bound and len(launch._prepared) <= bound
    before = threading.active_count()
    for _ in range(200):
        thread = threading.Thread(target=lambda: matmul(torch.ones(4, 16), w.t(), fallback="error"))
        thread.start()
        thread.join()
    assert threading.active_count() <= before
    _dispatch.clear()
    assert not len(_dispatch.calls) and not launch._prepared


@pytest.mark.quick
@pytest.mark.parametrize("name", ["h100", "a100", "rtx4090", "mi250x", "cpu"])
@pytest.mark.parametrize("column_major_out", [False, True])
def test_g39_kernels_do_not_depend_on_m(name: str, column_major_out: bool) -> None:
    arch = profile.get(name)
    device = {
        "mi250x": Device("rocm", 0, "MI250X", "gfx90a", 104, 8 << 20, 64 << 30, 65536, 1024),
        "cpu": Device("cpu", 0, "cpu", "native", 2, shared_bytes_per_block=1 << 26, threads_per_block=1),
    }.get(name, H200)
    kernels = set()
    for m in range(1, 4097, 37):
        p = problem(m, 4096, 4096)
        if column_major_out:
            p = GemmProblem(4096, m, 4096, p.b, p.a, Operand(BF16, (-(-m // 8) * 8, 1)), swapped=True)
        kernels.add(planner.plan(p, arch, device).kernel)
    assert len(kernels) <= 16


def test_g39_builds_are_bounded_for_real() -> None:
    first, second = faults.g39_builds("cpu")
    assert 0 < first <= 4 and second == 0


FORK = """
import os, sys
import torch
import portagemm
devices = portagemm.devices()
assert devices and devices[-1].backend == "cpu", devices
x = torch.ones(64, 64)
if sys.argv[1] == "used":
    assert float(portagemm.matmul(x, x, fallback="error")[0, 0]) == 64
child = os.fork()
if child == 0:
    ok = float(portagemm.matmul(x, x, fallback="error")[3, 5]) == 64
    os._exit(0 if ok else 1)
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert not torch.cuda.is_initialized()
print("fine")
"""


@pytest.mark.parametrize("state", ["queried", "used"])
def test_g40_fork(state: str, root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, state],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=root,
        check=False,
    )
    assert done.stdout.strip() == "fine", done.stderr


@pytest.mark.quick
def test_g40_import_brings_nothing_heavy(root: Path) -> None:
    code = "import sys, portagemm; print([m for m in ('torch', 'cuda', 'hip', 'yaml', 'rich') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=root, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_g45_epilogues() -> None:
    faults.g45_epilogues("cpu")
