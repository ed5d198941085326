"""Boards: the device's own facts first, then the list, scaled by compute units."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from portagemm.hal.board import board_for
from portagemm.hal.device import Device
from portagemm.hal.profile import get

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("profile", "device_name", "board"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h100", "NVIDIA H100 PCIe", "H100 PCIe"),
        ("h100", "NVIDIA H200", "H200"),
        ("h100", "NVIDIA H20", "H20"),
        ("h100", "NVIDIA H800", "H800"),
        ("h100", "NVIDIA GH200 480GB", "GH200"),
        ("rtx4090", "NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "NVIDIA L40S", "L40S"),
        ("rtx4090", "NVIDIA L4", "L4"),
        ("a100", "NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("a100", "NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("a100", "NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("a100", "NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("mi250x", "AMD Instinct MI250X", "MI250X (one GCD)"),
        ("mi250x", "AMD Instinct MI250X/MI250", "MI250X (one GCD)"),
        ("mi250x", "AMD Instinct MI250", "MI250 (one GCD)"),
        ("mi250x", "AMD Instinct MI210", "MI210"),
    ],
)
def test_driver_names(device: Callable[..., Device], profile: str, device_name: str, board: str) -> None:
    p = get(profile)
    assert board_for(device(p.matches[0], name=device_name), p).name == board


def test_live_facts_win(device: Callable[..., Device]) -> None:
    card = device("sm_90", name="NVIDIA H200", compute_units=132, l2_bytes=1, memory_bandwidth=2.0)
    board = board_for(card, get("h100"))
    assert (board.compute_units, board.l2_bytes, board.memory_bandwidth) == (132, 1, 2.0)
    assert board.peak_flops["bf16"] == pytest.approx(9.89e14)


def test_mig_slice_gets_its_share(device: Callable[..., Device]) -> None:
    card = device("sm_90", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", compute_units=16)
    board = board_for(card, get("h100"))
    assert board.name == "H100 SXM"
    assert board.peak_flops["bf16"] == pytest.approx(9.89e14 * 16 / 132)
    assert board.memory_bandwidth == pytest.approx(3.35e12 * 16 / 132)


def test_unlisted_card_is_scaled_from_the_first(device: Callable[..., Device]) -> None:
    board = board_for(device("sm_90", name="NVIDIA H999", compute_units=264), get("h100"))
    assert board.name == "NVIDIA H999" and board.source == "scaled from H100 SXM"
    assert board.peak_flops["bf16"] == pytest.approx(2 * 9.89e14)
    assert board.memory_bandwidth == pytest.approx(3.35e12)


def test_profile_without_boards(device: Callable[..., Device]) -> None:
    board = board_for(device("sm_90", compute_units=7), replace(get("h100"), boards=()))
    assert (board.compute_units, dict(board.peak_flops)) == (7, {})
