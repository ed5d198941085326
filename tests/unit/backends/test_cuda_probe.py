"""Which CUDA devices there are, or why none, and that asking leaves this process free to fork (fault G40)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from portagemm.backends.cuda import libcuda, probe
from portagemm.backends.cuda.backend import CudaBackend
from portagemm.hal.errors import BackendUnavailableError

pytestmark = pytest.mark.quick


def test_facts_of_a_device(fake_cuda):
    (device,) = CudaBackend().devices()
    assert (device.backend, device.index, device.torch_device) == ("cuda", 0, "cuda:0")
    assert (device.name, device.arch, device.compute_units) == ("Fake GPU 0", "sm_90", 132)
    assert (device.l2_bytes, device.memory_bytes) == (62914560, 141 << 30)
    assert (device.shared_bytes_per_block, device.threads_per_block) == (232448, 1024)
    assert device.memory_bandwidth == pytest.approx(4.917e12, rel=1e-3)
    assert device.driver_version.endswith("CUDA 13.0") or "(CUDA 13.0)" in device.driver_version
    assert "ECC on" in device.notes
    assert CudaBackend().unavailable_reason() is None


def test_asking_does_not_initialise_this_process(fake_cuda):
    assert len(probe.probe().devices) == 1
    assert fake_cuda.counter("inits") == 0
    assert not libcuda.is_initialised(libcuda.load())


def test_an_initialised_process_is_asked_itself(fake_cuda, monkeypatch):
    libcuda.call(libcuda.load(), "cuInit", 0)
    monkeypatch.setattr(probe, "_ask_child", lambda: pytest.fail("a child was started"))
    assert probe.probe().devices[0].name == "Fake GPU 0"
    assert fake_cuda.counter("retained") == 0  # no context


def test_the_answer_is_remembered(fake_cuda, monkeypatch):
    first = probe.probe()
    monkeypatch.setattr(probe, "_ask_child", lambda: pytest.fail("asked again"))
    assert probe.probe() is first


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("1", ["Fake GPU 1"]),
        ("2,0", ["Fake GPU 2", "Fake GPU 0"]),
        ("GPU-2abc,GPU-1", ["Fake GPU 2", "Fake GPU 1"]),
        ("0,7,1", ["Fake GPU 0"]),
    ],
)
def test_visible_devices_in_the_drivers_order(fake_cuda, monkeypatch, mask, names):
    monkeypatch.setenv("FAKE_DEVICES", "3")
    assert len(probe.probe().devices) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)  # the remembered answer does not hold for another mask
    devices = probe.probe().devices
    assert [device.name for device in devices] == names
    assert [device.index for device in devices] == list(range(len(names)))


def test_mig_is_noted(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_MIG", "1")
    assert "MIG instance" in probe.probe().devices[0].notes


def test_no_driver(no_cuda):
    backend = CudaBackend()
    assert "no NVIDIA driver" in backend.unavailable_reason()
    assert "libcuda-that-is-not-there" in backend.unavailable_reason()
    assert backend.devices() == ()
    with pytest.raises(BackendUnavailableError, match="no NVIDIA driver"):
        backend.driver()


def test_no_device(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_DEVICES", "0")
    assert probe.probe().reason == "the NVIDIA driver sees no device"


def test_everything_masked(fake_cuda, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert probe.probe().reason == "the NVIDIA driver sees no device (CUDA_VISIBLE_DEVICES='-1')"


def test_driver_too_old(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_VERSION", "11040")
    reason = probe.probe().reason
    assert "11.4" in reason
    assert "12.0" in reason


def test_the_drivers_own_words(fake_cuda, monkeypatch):
    monkeypatch.setenv("FAKE_INIT_ERROR", "803")
    reason = probe.probe().reason
    assert "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): words of the driver" in reason
    assert "cuInit" in reason


def test_a_child_that_hangs(fake_cuda, monkeypatch):
    def hang(*args, **kwargs):
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", hang)
    assert "did not answer" in probe.probe().reason


def test_a_child_that_dies(fake_cuda, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false-python")
    assert "child process" in probe.probe().reason


def test_a_library_without_the_functions(fake_cuda):
    with pytest.raises(libcuda.DriverError, match=r"12\.0"):
        libcuda.call(libcuda.load(), "cuSomethingNewer")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_after_asking_can_use_cuda(fake_cuda):
    assert CudaBackend().unavailable_reason() is None
    child = os.fork()
    if child == 0:
        os._exit(0 if fake_cuda.library.cuInit(0) == 0 and probe.probe().devices else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_constants_are_the_headers():
    """Numbers and layouts written by hand here against those NVIDIA generates from its headers."""
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    attributes = driver.CUdevice_attribute
    for name in (
        "MAX_THREADS_PER_BLOCK", "MAX_GRID_DIM_X", "MULTIPROCESSOR_COUNT", "INTEGRATED", "COMPUTE_MODE",
        "ECC_ENABLED", "MEMORY_CLOCK_RATE", "GLOBAL_MEMORY_BUS_WIDTH", "L2_CACHE_SIZE",
        "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
        "CLUSTER_LAUNCH",
    ):  # fmt: skip
        assert getattr(libcuda, name) == getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}").value, name
    functions = driver.CUfunction_attribute
    for name in (
        "MAX_THREADS_PER_BLOCK", "SHARED_SIZE_BYTES", "MAX_DYNAMIC_SHARED_SIZE_BYTES",
        "NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
    ):  # fmt: skip
        assert getattr(libcuda, f"FUNC_{name}") == getattr(functions, f"CU_FUNC_ATTRIBUTE_{name}").value, name
    results = driver.CUresult
    assert results.CUDA_ERROR_NOT_INITIALIZED.value == libcuda.NOT_INITIALIZED
    assert results.CUDA_ERROR_NO_DEVICE.value == libcuda.NO_DEVICE
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    assert relaxed.value == libcuda.CAPTURE_MODE_RELAXED
    cluster = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    assert cluster.value == libcuda.LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
