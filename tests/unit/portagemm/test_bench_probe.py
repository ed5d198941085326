"""The read-only probe: its grid, and that its kernels run and read everything."""

from __future__ import annotations

import pytest

from portagemm.bench.probe import CPU_KERNELS, GPU_KERNELS, ReadKernel, ReadProbe, kernels
from portagemm.bench.timing import make_timer
from portagemm.hal import registry


@pytest.mark.quick
def test_grid_covers_the_data_or_is_persistent() -> None:
    assert ReadKernel(256, 8).grid(2048 * 10 + 1, 132) == 11
    assert ReadKernel(256, 8).grid(1, 132) == 1
    assert ReadKernel(256, 8, 4).grid(2048 * 10_000, 132) == 528
    assert ReadKernel(256, 8, 4).grid(2048, 132) == 1
    assert kernels("cpu") == CPU_KERNELS and kernels("cuda") == GPU_KERNELS == kernels("rocm")


def test_probe_runs_on_the_cpu_backend() -> None:
    backend = registry.get("cpu")
    if all(compiler.unavailable_reason() for compiler in backend.compilers()):
        pytest.skip("no C++ compiler here")
    device = backend.devices()[0]
    probe = ReadProbe(device, make_timer("cpu"))
    small, large = probe.alone(1 << 20), probe.alone(1 << 26)
    assert 0 < small < large
    assert probe.chain(1 << 20, 3) > 0
    assert probe.alone(100) > 0  # less than one piece of any kernel
