"""AMD devices from the kernel's topology, on fake trees of several machines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from portagemm.backends.rocm import backend, kfd, pci
from portagemm.cli.devices import command
from portagemm.hal.board import board_for
from portagemm.hal.errors import ProfileError
from portagemm.hal.profile import for_device

pytestmark = pytest.mark.quick

SRAM_ECC = 0x04000000

GCD = {  # one die of an MI250X
    "cpu_cores_count": 0,
    "capability": SRAM_ECC,
    "device_id": 0x7408,
    "location_id": 0x8300,
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
    "capability": 0,
    "device_id": 0x164E,
    "cpu_cores_count": 8,
    "simd_count": 4,
    "simd_per_cu": 2,
    "gfx_target_version": 100306,
    "unique_id": 0,
}
NAVI = {
    **GCD,
    "capability": 0,
    "device_id": 0x744C,
    "simd_count": 192,
    "simd_per_cu": 2,
    "wave_front_size": 32,
    "gfx_target_version": 110000,
    "unique_id": 7,
}

Links = tuple[tuple[int, int, int], ...]

HBM = {"heap_type": 1, "size_in_bytes": 68702699520, "width": 4096, "mem_clk_max": 1600}
L2 = {"level": 2, "size": 8192}


@pytest.fixture(autouse=True)
def _no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's own /sys or product names."""
    monkeypatch.setattr(pci, "DEVICES", tmp_path / "pci")
    monkeypatch.setattr(pci, "PRODUCTS", tmp_path / "amdgpu.ids")


def _write(folder: Path, facts: dict[str, int]) -> None:
    folder.mkdir(parents=True)
    (folder / "properties").write_text("".join(f"{k} {v}\n" for k, v in facts.items()))


def tree(root: Path, *nodes: dict[str, int], links: Links = ()) -> Path:
    """A topology with these nodes; GPUs get one memory bank and a second-level cache. links: from, to, MB/s."""
    for number, facts in enumerate(nodes):
        folder = root / "nodes" / str(number)
        _write(folder, facts)
        (folder / "name").write_text("aldebaran\n" if facts.get("simd_count") else "\n")
        if facts.get("simd_count"):
            _write(folder / "mem_banks" / "0", HBM)
            _write(folder / "caches" / "0", {"level": 1, "size": 16})
            _write(folder / "caches" / "1", L2)
        for count, (_, to, rate) in enumerate(link for link in links if link[0] == number):
            _write(folder / "io_links" / str(count), {"type": 11, "node_to": to, "max_bandwidth": rate})
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
    assert "integrated (APU), beside rocm:1" in igpu.notes
    assert not any("integrated" in note for note in card.notes)


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
        ({"ROCR_VISIBLE_DEVICES": "1, 0"}, [2, 1]),
        ({"ROCR_VISIBLE_DEVICES": "1,1,0"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "1,1,0"}, [2, 1]),
        ({"HIP_VISIBLE_DEVICES": "1, 0"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "01"}, []),
        ({"GPU_DEVICE_ORDINAL": "1"}, [1, 2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-77,0"}, []),
    ],
)
def test_visible_devices(tmp_path: Path, environ: dict[str, str], expected: list[int]) -> None:
    """Both masks, in ROCm's way: HIP counts what the runtime left, a list ends at its first unknown entry."""
    root = tree(tmp_path, *({**GCD, "unique_id": i} for i in (1, 2, 3)))
    assert [n.unique_id for n in kfd.seen(kfd.nodes(root), environ).items] == expected
    assert [d.index for d in kfd.devices(root, environ)] == list(range(len(expected)))


def test_masks_are_shown(tmp_path: Path) -> None:
    """Each variable with its effect, and what is hidden: two masks with absolute ordinals leave nothing."""
    root = tree(tmp_path, CPU, *({**GCD, "unique_id": i} for i in (1, 2, 3, 4)))
    assert kfd.notes(root, {}) == ()
    shown = kfd.notes(
        root, {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "0"}
    )
    assert shown == (
        "ROCR_VISIBLE_DEVICES=2,3 leaves 2 of 4 GPUs",
        "HIP_VISIBLE_DEVICES=2,3 leaves 0 of 2 GPUs (it counts what ROCR_VISIBLE_DEVICES leaves)",
        "set one of ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES, not both: the second counts what the first has left",
        "CUDA_VISIBLE_DEVICES is not read where HIP_VISIBLE_DEVICES is set",
        "hidden: KFD node 1 (gfx90a), KFD node 2 (gfx90a), KFD node 3 (gfx90a), KFD node 4 (gfx90a)",
    )
    assert "OpenCL reads it" in kfd.notes(root, {"GPU_DEVICE_ORDINAL": "0"})[0]
    assert kfd.notes(tmp_path / "none", {"CUDA_VISIBLE_DEVICES": "0"}) == (), "an NVIDIA machine's"


def test_override_is_shown(tmp_path: Path) -> None:
    (device,) = kfd.devices(
        tree(tmp_path, {**GCD, "gfx_target_version": 90012}), {"HSA_OVERRIDE_GFX_VERSION": "9.0.10"}
    )
    assert device.arch == "gfx90a"
    assert (
        "HSA_OVERRIDE_GFX_VERSION=9.0.10 makes ROCm report gfx90a, though it is gfx90c: unsupported by AMD"
        in device.notes
    )


def test_override_of_one_node(tmp_path: Path) -> None:
    """The variable with a node's number goes before the one for all."""
    root = tree(tmp_path, CPU, {**NAVI, "gfx_target_version": 100302}, NAVI)
    environ = {"HSA_OVERRIDE_GFX_VERSION_1": "10.3.0", "HSA_OVERRIDE_GFX_VERSION": "11.0.0"}
    first, second = kfd.devices(root, environ)
    assert (first.arch, second.arch) == ("gfx1030", "gfx1100")
    assert any(note.startswith("HSA_OVERRIDE_GFX_VERSION_1=10.3.0") for note in first.notes)
    assert "HSA_OVERRIDE_GFX_VERSION=11.0.0 makes ROCm report gfx1100, as it is" in second.notes


@pytest.mark.parametrize("value", ["nonsense", "9.0", "9.0.a", "64.0.0", "9.0.10.1", ""])
def test_override_that_is_none(tmp_path: Path, value: str) -> None:
    """ROCm's thunk stops at such a value and finds no GPU at all: shown, and no arch is made of it."""
    (device,) = kfd.devices(tree(tmp_path, GCD), {"HSA_OVERRIDE_GFX_VERSION": value})
    assert device.arch == "gfx90a"
    assert f"HSA_OVERRIDE_GFX_VERSION={value} is not major.minor.stepping: ROCm stops at it" in device.notes


@pytest.mark.parametrize(
    ("node", "environ", "expected"),
    [
        (GCD, {}, "sramecc+:xnack-"),
        ({**GCD, "capability": 0}, {}, "sramecc-:xnack-"),
        (GCD, {"HSA_XNACK": "1"}, "sramecc+:xnack+"),
        ({**GCD, "gfx_target_version": 90012, "capability": 0}, {}, "xnack-"),
        (NAVI, {"HSA_XNACK": "1"}, None),
    ],
)
def test_features(
    tmp_path: Path, node: dict[str, int], environ: dict[str, str], expected: str | None
) -> None:
    """As the runtime writes them behind the target's name."""
    (device,) = kfd.devices(tree(tmp_path, node), environ)
    assert [note for note in device.notes if "xnack" in note] == ([expected] if expected else [])


def _gcds(count: int) -> list[dict[str, int]]:
    return [{**GCD, "unique_id": 100 + i, "location_id": (0x80 + i) << 8} for i in range(count)]


def test_dies_of_a_package(tmp_path: Path) -> None:
    """Four packages in one hive: the partner is the neighbour with most links, not the neighbour in number."""
    # node 1..8; packages (1,2) (3,4) (5,8) (6,7): 4 links within, 1 or 2 between
    packages = [(1, 2), (3, 4), (5, 8), (6, 7)]
    links = []
    for a, b in packages:
        links += [(a, b, 200000), (b, a, 200000)]
    for a, b, rate in ((1, 3, 50000), (2, 4, 100000), (4, 5, 50000), (3, 6, 100000), (7, 1, 50000)):
        links += [(a, b, rate), (b, a, rate)]
    found = kfd.devices(tree(tmp_path, CPU, *_gcds(8), links=tuple(links)), {})
    partners = [
        note.rpartition("rocm:")[2] for d in found for note in d.notes if note.startswith("one of a package")
    ]
    assert partners == ["1", "0", "3", "2", "7", "6", "5", "4"]


def test_dies_hidden_or_unlinked(tmp_path: Path) -> None:
    root = tree(tmp_path / "a", CPU, *_gcds(2), links=((1, 2, 200000), (2, 1, 200000)))
    (device,) = kfd.devices(root, {"ROCR_VISIBLE_DEVICES": "1"})
    assert "one of a package's two dies, the other is KFD node 1, hidden" in device.notes
    (first, _) = kfd.devices(tree(tmp_path / "b", CPU, *_gcds(2)), {})
    assert "one of a package's two dies" in first.notes
    single = {**GCD, "device_id": 0x740F}  # MI210: one die, though bridged to a neighbour
    root = tree(tmp_path / "c", CPU, single, single, links=((1, 2, 150000), (2, 1, 150000)))
    assert not any("dies" in note for d in kfd.devices(root, {}) for note in d.notes)


MI300X = {**GCD, "gfx_target_version": 90402, "device_id": 0x74A1, "simd_count": 1216, "location_id": 0x8300}


def _modes(root: Path, address: str, compute: str, memory: str) -> None:
    folder = root / "pci" / address
    folder.mkdir(parents=True)
    (folder / "current_compute_partition").write_text(compute + "\n")
    (folder / "current_memory_partition").write_text(memory + "\n")


def test_whole_gpu(tmp_path: Path) -> None:
    _modes(tmp_path, "0000:83:00.0", "SPX", "NPS1")
    (device,) = kfd.devices(tree(tmp_path / "t", CPU, MI300X), {})
    assert device.compute_units == 304
    assert "compute partition mode SPX, memory mode NPS1" in device.notes


@pytest.mark.parametrize("high_bits", [True, False], ids=["number in bits 31:28", "number in the function"])
def test_partitions_are_devices(tmp_path: Path, high_bits: bool) -> None:
    """CPX: eight devices of 38 units each, beside a whole GPU, under both ways kernels number them."""
    _modes(tmp_path, "0000:83:00.0", "CPX", "NPS4")
    _modes(tmp_path, "0000:93:00.0", "SPX", "NPS1")
    parts = [
        {**MI300X, "simd_count": 152, "location_id": 0x8300 | (i << 28 if high_bits else i)} for i in range(8)
    ]
    found = kfd.devices(tree(tmp_path / "t", CPU, *parts, {**MI300X, "location_id": 0x9300}), {})
    assert [d.compute_units for d in found] == [38] * 8 + [304]
    assert [n for n in found[2].notes if "partition" in n] == [
        "partition 3 of 8 (compute mode CPX, memory mode NPS4)"
    ]
    assert "compute partition mode SPX, memory mode NPS1" in found[8].notes


def test_product_names(tmp_path: Path) -> None:
    """libdrm's name by device and revision, else the board's own, else the kernel's."""
    both = {"product_name": "AMD INSTINCT MI250 (MCM) OAM", "device": "0x7408", "revision": "0x01"}
    places = {0x8300: both, 0x9300: {**both, "revision": "0x77"}, 0xA300: {}}
    for place, files in places.items():
        folder = tmp_path / "pci" / f"0000:{place >> 8:02x}:00.0"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
    (tmp_path / "amdgpu.ids").write_text(
        "# comment\n1.0.0\n7408,\t00,\tanother\n7408,\t01,\tAMD Instinct MI250X\n"
    )
    root = tree(tmp_path / "t", CPU, *({**GCD, "location_id": place} for place in places))
    found = kfd.devices(root, {})
    assert [d.name for d in found] == ["AMD Instinct MI250X", "AMD INSTINCT MI250 (MCM) OAM", "aldebaran"]
    board = board_for(found[0], for_device(found[0]).profile)
    assert (board.name, board.compute_units) == ("MI250X (one GCD)", 110)


@pytest.mark.parametrize(
    ("version", "profile"), [(90010, "mi250x"), (90402, "mi300x"), (90500, "mi355x"), (110000, "rx7900xtx")]
)
def test_profile_of_a_device(tmp_path: Path, version: int, profile: str) -> None:
    (device,) = kfd.devices(tree(tmp_path, {**GCD, "gfx_target_version": version}), {})
    selection = for_device(device)
    assert selection.profile.name == profile
    assert selection.target.arch == kfd.arch_of(version)


def test_unknown_target_is_refused(tmp_path: Path) -> None:
    """An AMD GPU without a profile is refused with what is known, a forced profile for another target too."""
    (device,) = kfd.devices(tree(tmp_path, {**GCD, "gfx_target_version": 90006}), {})
    with pytest.raises(ProfileError, match=r"gfx906\): no arch profile fits.*mi250x \(gfx90a\)"):
        for_device(device)


def test_forced_profile_of_another_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card, other = kfd.devices(tree(tmp_path, GCD, MI300X), {})
    monkeypatch.setenv("PORTAGEMM_PROFILE", "mi250x")
    assert "PORTAGEMM_PROFILE=mi250x forces mi250x" in for_device(card).reason
    with pytest.raises(ProfileError, match="its code runs on gfx90a only, the device is gfx942"):
        for_device(other)


def test_devices_command_shows_a_forced_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kfd, "TOPOLOGY", tree(tmp_path / "t", CPU, GCD, NAVI))
    monkeypatch.setattr(kfd, "_KFD_DEVICE", tmp_path / "kfd")
    monkeypatch.setenv("PORTAGEMM_PROFILE", "rx7900xtx")
    output = CliRunner().invoke(command, []).output
    assert "profile rx7900xtx: PORTAGEMM_PROFILE=rx7900xtx forces rx7900xtx (gfx1100)" in output
    assert "no profile: PORTAGEMM_PROFILE: given rx7900xtx (gfx1100): its code runs on gfx1100 only" in output
    assert "allowed on aldebaran (rocm:0, gfx90a): mi250x" in output


def test_devices_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`portagemm devices` shows all of it, a reason for every GPU that cannot be used."""
    _modes(tmp_path, "0000:93:00.0", "SPX", "NPS1")
    root = tree(
        tmp_path / "t",
        CPU,
        {**IGPU, "location_id": 0x0300},
        *_gcds(2),
        {**MI300X, "location_id": 0x9300},
        links=((2, 3, 200000), (3, 2, 200000)),
    )
    monkeypatch.setattr(kfd, "TOPOLOGY", root)
    for name, value in {
        "ROCR_VISIBLE_DEVICES": "3,2,1,0",
        "HIP_VISIBLE_DEVICES": "0,1,3",
        "HSA_OVERRIDE_GFX_VERSION_4": "9.4.2",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(kfd, "_KFD_DEVICE", tmp_path / "kfd")
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 0, done.output
    for text in (
        "cuda:0: aldebaran",
        "rocm:gfx942, 304 units",
        "KFD node 4, PCI 0000:93:00.0",
        "compute partition mode SPX, memory mode NPS1",
        "HSA_OVERRIDE_GFX_VERSION_4=9.4.2 makes ROCm report gfx942, as it is",
        "profile mi300x: mi300x is made for gfx942",
        "one of a package's two dies, the other is KFD node 2, hidden",
        "integrated (APU), beside rocm:0 rocm:1",
        "no profile: device aldebaran (rocm:2, gfx1036): no arch profile fits",
        "ROCR_VISIBLE_DEVICES=3,2,1,0 leaves 4 of 4 GPUs",
        "HIP_VISIBLE_DEVICES=0,1,3 leaves 3 of 4 GPUs (it counts what ROCR_VISIBLE_DEVICES leaves)",
        "hidden: KFD node 2 (gfx90a)",
    ):
        assert text in done.output, done.output


def test_access_reasons(tmp_path: Path) -> None:
    root, file, dri = tree(tmp_path / "topology", CPU, GCD), tmp_path / "kfd", tmp_path / "dri"
    assert "amdgpu is not loaded" in str(kfd.access_reason(tmp_path / "none", file, dri))
    assert f"pass it (and {dri}) into the container" in str(kfd.access_reason(root, file, dri))
    file.write_text("")
    assert f"{dri}/renderD128 is missing: pass {dri} into" in str(kfd.access_reason(root, file, dri))
    dri.mkdir()
    (dri / "renderD128").write_text("")
    assert kfd.access_reason(root, file, dri) is None


def test_one_render_node_is_enough(tmp_path: Path) -> None:
    """A container that is given one GPU of several has the render node of that one only."""
    root = tree(tmp_path / "topology", GCD, {**GCD, "drm_render_minor": 129})
    (tmp_path / "kfd").write_text("")
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri" / "renderD129").write_text("")
    assert kfd.access_reason(root, tmp_path / "kfd", tmp_path / "dri") is None


@pytest.mark.parametrize(
    ("members", "groups", "words"),
    [
        (["somebody"], [7], "add the user to the group render that owns it (sudo usermod -aG render"),
        (["me"], [7], "this session is older than the user's membership in render: log in again"),
        (None, [7], "has no name here: run the container with --group-add"),
    ],
)
def test_access_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: list[str] | None, groups: list[int], words: str
) -> None:
    """The group is the file's own, and what helps depends on who is in it already."""

    def getgrgid(number: int) -> object:
        if members is None:
            raise KeyError(number)
        return SimpleNamespace(gr_name="render", gr_mem=members)

    root, file = tree(tmp_path / "topology", GCD), tmp_path / "kfd"
    file.write_text("")
    monkeypatch.setattr(kfd.os, "access", lambda *_: False)
    monkeypatch.setattr(kfd.os, "getgroups", lambda: groups)
    monkeypatch.setattr("grp.getgrgid", getgrgid)
    monkeypatch.setattr(kfd, "_user", lambda: "me")
    assert words in str(kfd.access_reason(root, file, tmp_path / "dri"))


def test_backend_without_amd_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel that lists only CPUs: a reason, no devices, no exception."""
    file = tmp_path / "kfd"
    file.write_text("")
    monkeypatch.setattr(kfd, "TOPOLOGY", tree(tmp_path / "topology", CPU))
    monkeypatch.setattr(kfd, "_KFD_DEVICE", file)
    assert backend.BACKEND.unavailable_reason() == "the kernel's topology (/sys/class/kfd) lists no AMD GPU"
    assert list(backend.BACKEND.devices()) == []
