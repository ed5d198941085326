"""AMD devices from the kernel's topology, on fake trees of several machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from portagemm.backends.rocm import backend, kfd

pytestmark = pytest.mark.quick

GCD = {  # one die of an MI250X
    "cpu_cores_count": 0,
    "simd_count": 440,
    "simd_per_cu": 4,
    "wave_front_size": 64,
    "lds_size_in_kb": 64,
    "gfx_target_version": 90010,
    "vendor_id": 4098,
    "drm_render_minor": 128,
    "unique_id": 0xAB12CD34,
}
CPU = {"cpu_cores_count": 64, "simd_count": 0, "gfx_target_version": 0}
IGPU = {
    **GCD,
    "cpu_cores_count": 8,
    "simd_count": 4,
    "simd_per_cu": 2,
    "gfx_target_version": 100306,
    "unique_id": 0,
}
NAVI = {
    **GCD,
    "simd_count": 192,
    "simd_per_cu": 2,
    "wave_front_size": 32,
    "gfx_target_version": 110000,
    "unique_id": 7,
}

HBM = {"heap_type": 1, "size_in_bytes": 68702699520, "width": 4096, "mem_clk_max": 1600}
L2 = {"level": 2, "size": 8192}


def _write(folder: Path, facts: dict[str, int]) -> None:
    folder.mkdir(parents=True)
    (folder / "properties").write_text("".join(f"{k} {v}\n" for k, v in facts.items()))


def tree(root: Path, *nodes: dict[str, int]) -> Path:
    """A topology with these nodes; GPUs get one memory bank and a second-level cache."""
    for number, facts in enumerate(nodes):
        folder = root / "nodes" / str(number)
        _write(folder, facts)
        (folder / "name").write_text("aldebaran\n" if facts.get("simd_count") else "\n")
        if facts.get("simd_count"):
            _write(folder / "mem_banks" / "0", HBM)
            _write(folder / "caches" / "0", {"level": 1, "size": 16})
            _write(folder / "caches" / "1", L2)
    return root


@pytest.mark.parametrize(
    ("version", "arch"),
    [
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (110000, "gfx1100"),
        (110501, "gfx1151"),
        (90006, "gfx906"),
    ],
)
def test_arch_of(version: int, arch: str) -> None:
    assert kfd.arch_of(version) == arch


def test_mi250x_is_two_devices(tmp_path: Path) -> None:
    first, second = kfd.devices(tree(tmp_path, CPU, GCD, {**GCD, "unique_id": 99}), {})
    assert (first.index, second.index) == (0, 1)
    assert first.arch == "gfx90a"
    assert first.compute_units == 110
    assert first.shared_bytes_per_block == 64 * 1024
    assert first.l2_bytes == 8 * 2**20
    assert first.memory_bytes == 68702699520
    assert first.memory_bandwidth == pytest.approx(1.6384e12)
    assert first.name == "aldebaran"
    assert first.torch_device == "cuda:0"


def test_no_amd_gpu(tmp_path: Path) -> None:
    assert kfd.devices(tree(tmp_path, CPU), {}) == ()
    assert kfd.devices(tmp_path / "nothing", {}) == ()


def test_integrated_keeps_the_drivers_order(tmp_path: Path) -> None:
    """An APU before the card stays device 0, as the runtime numbers it, and says what it is."""
    igpu, card = kfd.devices(tree(tmp_path, IGPU, NAVI), {})
    assert (igpu.arch, card.arch) == ("gfx1036", "gfx1100")
    assert igpu.compute_units == 2
    assert "integrated (APU)" in igpu.notes
    assert "integrated (APU)" not in card.notes


def test_node_order_is_numeric(tmp_path: Path) -> None:
    nodes = [CPU] + [{**GCD, "unique_id": i} for i in range(1, 12)]
    assert [n.unique_id for n in kfd.nodes(tree(tmp_path, *nodes))] == list(range(1, 12))


def test_unreadable_node_is_not_ours(tmp_path: Path) -> None:
    """KFD refuses to show nodes outside the container's device cgroup."""
    root = tree(tmp_path, CPU, GCD, NAVI)
    (root / "nodes" / "1" / "properties").unlink()
    assert [d.arch for d in kfd.devices(root, {})] == ["gfx1100"]


def test_broken_lines_are_skipped(tmp_path: Path) -> None:
    root = tree(tmp_path, GCD)
    path = root / "nodes" / "0" / "properties"
    path.write_text(path.read_text() + "name\nodd line here\nmax_engine_clk_fcompute x\n")
    assert len(kfd.devices(root, {})) == 1


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [1, 2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, [3, 1]),
        ({"ROCR_VISIBLE_DEVICES": "2,0", "HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "0,9,1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": ""}, [1, 2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000003"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "GPU-2,0"}, [2, 1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-77,0"}, []),
    ],
)
def test_visible_devices(tmp_path: Path, environ: dict[str, str], expected: list[int]) -> None:
    """Both masks, in ROCm's way: HIP counts what the runtime left, a list ends at its first unknown entry."""
    root = tree(tmp_path, *({**GCD, "unique_id": i} for i in (1, 2, 3)))
    assert [n.unique_id for n in kfd.visible(kfd.nodes(root), environ)] == expected
    assert [d.index for d in kfd.devices(root, environ)] == list(range(len(expected)))


def test_override_is_shown(tmp_path: Path) -> None:
    (device,) = kfd.devices(
        tree(tmp_path, {**GCD, "gfx_target_version": 90012}), {"HSA_OVERRIDE_GFX_VERSION": "9.0.10"}
    )
    assert device.arch == "gfx90a"
    assert "HSA_OVERRIDE_GFX_VERSION: gfx90c reported as gfx90a" in device.notes
    assert kfd.overridden_arch({"HSA_OVERRIDE_GFX_VERSION": "nonsense"}) is None


def test_access_reasons(tmp_path: Path) -> None:
    root, file = tree(tmp_path / "topology", GCD), tmp_path / "kfd"
    assert "amdgpu is not loaded" in str(kfd.access_reason(tmp_path / "none", file))
    assert "pass it (and /dev/dri) into the container" in str(kfd.access_reason(root, file))
    file.write_text("")
    assert kfd.access_reason(root, file) is None


def test_access_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, file = tree(tmp_path / "topology", GCD), tmp_path / "kfd"
    file.write_text("")
    monkeypatch.setattr(kfd.os, "access", lambda *_: False)
    assert "groups render and video" in str(kfd.access_reason(root, file))


def test_backend_without_amd_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel that lists only CPUs: a reason, no devices, no exception."""
    file = tmp_path / "kfd"
    file.write_text("")
    monkeypatch.setattr(kfd, "TOPOLOGY", tree(tmp_path / "topology", CPU))
    monkeypatch.setattr(kfd, "_KFD_DEVICE", file)
    assert backend.BACKEND.unavailable_reason() == "the kernel's topology (/sys/class/kfd) lists no AMD GPU"
    assert list(backend.BACKEND.devices()) == []
