"""The CPU backend's kernels, compiled for all tests here at once, two at a time."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from portagemm import launch, testing
from portagemm.hal import profile, registry
from portagemm.hal.device import Device
from portagemm.kernel_config import kernel_source


@pytest.fixture(scope="session")
def cpu() -> Device:
    """The CPU as a hal device; skips where no kernel can be compiled for it."""
    device = launch.device_of(torch.device("cpu"))
    if launch.usable_compiler("cpu") is None:
        reasons = [c.unavailable_reason() for c in registry.get("cpu").compilers()]
        pytest.skip(f"no C++ compiler: {reasons}")
    return device


def compile_all(device: Device, quick: bool) -> int:
    """Compile every kernel the case list needs. Failures show in the case that needs the kernel."""
    selection = profile.for_device(device)

    def build(kernel: object) -> None:
        try:
            launch.code_of(kernel_source(kernel, selection.profile, selection.target))  # type: ignore[arg-type]
        except Exception:
            pass

    kernels = testing.kernels(device, quick)
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        list(pool.map(build, kernels))
    return len(kernels)
