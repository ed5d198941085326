"""The host timer, host cost and the registry of peers."""

from __future__ import annotations

import time

import pytest
import torch

from portagemm.bench import peers
from portagemm.bench.suites import BenchCase
from portagemm.bench.timing import Effort, HostTimer, host_cost, make_timer

pytestmark = pytest.mark.quick


def test_medians_tell_a_slow_call_from_a_fast_one() -> None:
    timer = make_timer("cpu")
    assert isinstance(timer, HostTimer)
    times = timer.alone({"slow": lambda: time.sleep(0.004), "fast": lambda: None}, Effort(0.02, 3, 5))
    assert times["slow"] > 3500 > 500 > times["fast"]
    chain = timer.chain({"slow": [lambda: time.sleep(0.002)] * 3}, Effort(0.02, 3, 3))
    assert 1500 < chain["slow"] < 20_000


def test_effort_bounds_the_rounds() -> None:
    effort = Effort(seconds=1.0, least=5, most=50)
    assert (effort.rounds(10.0), effort.rounds(0.1), effort.rounds(1e-6)) == (5, 10, 50)


def test_host_cost_numbers_every_call() -> None:
    seen: list[int] = []
    costs = host_cost({"own": seen.append}, make_timer("cpu"), count=200)
    assert set(seen[10:]) == set(range(200)) and costs["own"] > 0


def test_torch_is_always_a_peer_and_the_others_say_why_not() -> None:
    usable, reasons = peers.available(("torch", "deep_gemm", "humming"), "cpu")
    assert [peer.name for peer in usable] == ["torch"]
    assert set(reasons) == {"deep_gemm", "humming"} and all(reasons.values())
    with pytest.raises(ValueError, match="allowed: torch"):
        peers.available(("cublas",), "cpu")


@pytest.mark.parametrize("batch", [1, 2])
def test_torch_peer_multiplies(batch: int) -> None:
    lead = () if batch == 1 else (batch,)
    a, b, out = torch.ones(*lead, 3, 4), torch.ones(*lead, 4, 5), torch.empty(*lead, 3, 5)
    peers.PEERS["torch"].prepare(a, b, out)()
    assert (out == 4).all()
    assert peers.PEERS["deep_gemm"].refuses(BenchCase("matmul", "fp16", "NT", 1, 1, 1))
