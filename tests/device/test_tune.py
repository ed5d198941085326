"""The measured search on a GPU: it ends, with right numbers, under both timings."""

from __future__ import annotations

import pytest
import torch

from portagemm import launch
from portagemm.bench.search import Search
from portagemm.bench.suites import TIMINGS, BenchCase
from portagemm.bench.timing import DeviceTimer, Effort


@pytest.mark.parametrize("shape", [(8, 4096, 2048), (300, 520, 1024)])
def test_search(gpu: str, shape: tuple[int, int, int]) -> None:
    device = launch.device_of(torch.device(gpu))
    search = Search(device, DeviceTimer(gpu, device.l2_bytes), Effort(0.05, 5, 10), chain_bytes=1 << 27)
    found = search(BenchCase("matmul", "bf16", "NT", *shape, timings=TIMINGS))
    assert not found.failed
    assert found.tried > 2 and 0 < found.us <= found.heuristic_us
