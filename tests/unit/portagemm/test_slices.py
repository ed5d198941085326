"""Plans for few rows and for few tiles with a deep K: when they come up, and how their two launches are called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from portagemm import launch, prebuild
from portagemm import plan as planner
from portagemm.hal.device import Device
from portagemm.hal.dtypes import BF16
from portagemm.hal.errors import UnsupportedError
from portagemm.hal.profile import ArchProfile, all_profiles, get
from portagemm.problem import MAX_EXTENT, GemmProblem, Operand

pytestmark = pytest.mark.quick


def described(name: str) -> tuple[ArchProfile, Device]:
    profile = get(name)
    return profile, prebuild.described_device(profile)


def product(m: int, n: int, k: int, **more: Any) -> GemmProblem:
    """NT, contiguous, bf16."""
    return GemmProblem(m, n, k, Operand(BF16, (k, 1)), Operand(BF16, (k, 1)), Operand(BF16, (n, 1)), **more)


@pytest.mark.parametrize("name", ["a100", "rtx4090", "mi250x", "mi300x", "rx7900xtx"])
def test_few_tiles_and_a_deep_k(name: str) -> None:
    profile, device = described(name)
    deep = planner.plan(product(64, 64, 16384), profile, device)
    assert deep.slices > 1 and deep.reduce is not None and deep.tiles <= device.compute_units
    assert deep.kernel.d == "fp32" and deep.reduce.d == "bf16"
    assert f"K in {deep.slices} slices" in deep.explain() and f"slices{deep.slices}" in planner.name_of(deep)
    assert planner.plan(product(64, 64, 256), profile, device).slices == 1, "nothing to cut"
    assert planner.plan(product(8192, 8192, 16384), profile, device).slices == 1, "tiles enough"


def test_clusters_go_before_slices_until_somebody_has_timed_both() -> None:
    profile, device = described("h100")
    problem = product(64, 64, 16384)
    assert any(
        p.slices > 1 and p.kernel.a.copy == "tensor" for p in planner.candidates(problem, profile, device)
    )
    assert planner.plan(problem, profile, device, use_tables=False).slices == 1
    odd = GemmProblem(
        64, 64, 16383, *(Operand(BF16, (16383, 1), (), 2) for _ in "ab"), Operand(BF16, (64, 1))
    )
    assert planner.plan(odd, profile, device, use_tables=False).slices > 1, "no descriptor takes these rows"


def test_a_batch_invariant_plan_is_never_sliced() -> None:
    profile, device = described("a100")
    found = planner.candidates(product(64, 64, 16384, batch_invariant=True), profile, device)
    assert found and all(p.slices == 1 for p in found)


@pytest.mark.parametrize("name", ["a100", "rtx4090", "mi250x", "cpu"])
@pytest.mark.parametrize(("m", "n"), [(1, 4096), (4, 4096), (4096, 1), (4096, 3)])
def test_few_rows_have_a_body_of_their_own(name: str, m: int, n: int) -> None:
    profile, device = described(name)
    chosen = planner.plan(product(m, n, 4096), profile, device)
    body = "skinny" if name in ("a100", "rtx4090") else "gemv"
    assert chosen.kernel.schedule == body and chosen.swap == (m > n)
    assert planner.plan(product(17, 4096, 4096), profile, device).kernel.schedule not in ("gemv", "skinny")


@pytest.mark.parametrize(("m", "n"), [(0, 64), (4, 0)])
def test_a_block_with_no_tile_reads_nothing(m: int, n: int) -> None:
    """A grid has one block at least: where D is empty it must ask for its tile, not take it for granted."""
    found = planner.candidates(product(m, n, 256), *described("a100"))
    assert any(p.kernel.schedule == "skinny" for p in found) and not any(p.kernel.flat for p in found)


@pytest.mark.parametrize("name", [p.name for p in all_profiles().values()])
def test_positions_past_the_end_of_k_fit_32_bits(name: str) -> None:
    """Where kernels that stream B stop counting, for the largest K there is."""
    profile = get(name)
    past = [
        (tile.waves[0] - 1) * tile.stages * tile.block[2]  # a group of K for each wave but one
        if schedule == "skinny"
        else (profile.wave_size - 1) * tile.block[2]
        for schedule in ("skinny", "gemv")
        for tile in profile.tiles.get(schedule, ())
    ]
    assert past and MAX_EXTENT + max(past) < 2**31


def test_what_cannot_be_sliced_says_so() -> None:
    profile, device = described("a100")
    whole = planner.plan(product(128, 128, 64), profile, device)
    with pytest.raises(UnsupportedError, match="K = 64 cannot be cut into slices of steps of 64"):
        planner.sliced(product(128, 128, 64), profile, device, whole, 4)
    nothing = product(128, 128, 0)
    whole = planner.candidates(nothing, profile, device)[0]
    with pytest.raises(UnsupportedError, match="K = 0 cannot be cut"):
        planner.sliced(nothing, profile, device, whole, 4)


def test_two_launches_with_sums_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scalars go to the second kernel, sums from the first to the second; memory is for the stream of the call."""
    calls: list[tuple[str, tuple[int, ...], tuple[float, ...], int]] = []
    streams: list[int] = []
    sums = torch.empty(64, dtype=torch.uint8)
    monkeypatch.setattr(launch, "workspace", lambda device, size: sums[:size])
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: handle)

    class Context:
        def __init__(self, stream: int) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            streams.append(self.stream)

        def __exit__(self, *error: object) -> None:
            streams.append(-self.stream)

    monkeypatch.setattr(torch.cuda, "stream", Context)

    def step(name: str) -> Any:
        return lambda pointers, scalars, stream: calls.append((name, tuple(pointers), tuple(scalars), stream))

    device = Device("cuda", 0, "a card", "sm_80", 108)
    driver: Any = SimpleNamespace(current_stream=lambda index: 7)
    both = launch.SlicedLaunch(step("slices"), step("reduce"), device, driver, 64)
    at = sums.data_ptr()
    for stream in (7, 8):
        both((1, 2, 3, 4, 5), (0.5, 2.0), stream)
    assert calls == [
        row
        for stream in (7, 8)
        for row in (
            ("slices", (1, 2, 0, at, 0), (1.0, 0.0), stream),
            ("reduce", (at, 0, 3, 4, 5), (0.5, 2.0), stream),
        )
    ]
    assert streams == [8, -8], "the current stream needs no switch"
