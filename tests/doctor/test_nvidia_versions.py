"""The tables of drivers and toolkits, and every threshold on both of its sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from portagemm.doctor.check import Result, Status, all_checks
from portagemm.doctor.checks import libs, tool
from portagemm.doctor.facts import version_tuple
from portagemm.doctor.host_types import Child, Command
from portagemm.doctor.machine_file import MachineFile
from portagemm.doctor.nvidia_versions import (
    FAMILY_MINIMUM,
    FIRST_TOOLKIT,
    OLDEST_CAPABILITY,
    PACKAGED_DRIVER,
    cuda_of_driver,
    family_of_driver,
    target_runs_on,
)
from portagemm.doctor.replay import open_machine
from portagemm.doctor.runner import run_checks, select

from . import machine_files

SITE = "/home/alice/venv/lib/python3.11/site-packages"


def examine(machine: MachineFile, folder: Path, *ids: str) -> dict[str, Result]:
    """Results of some checks on a machine."""
    host = open_machine(machine, folder)
    return {outcome.check.id: outcome.result for outcome in run_checks(host, select(only=ids))}


def with_driver(machine: MachineFile, version: str, cuda: int) -> None:
    """Give the H100 machine another driver."""
    machine.files["/proc/driver/nvidia/version"] = (
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  x\n".encode()
    )
    machine.files["/sys/module/nvidia/version"] = f"{version}\n".encode()
    for probe in machine.probes:
        if probe["key"] == "libcuda":
            probe["value"]["driver"] = cuda


def with_nvrtc(machine: MachineFile, version: str, archs: list[int] | None = None) -> None:
    """Give it another NVRTC."""
    major, minor = (int(part) for part in version.split(".")[:2])
    for probe in machine.probes:
        if probe["key"].startswith("nvrtc "):
            probe["value"].update(
                {"version": [major, minor], "libraries": [], "archs": archs or [75, 80, 90, 100, 120]}
            )
    machine.remove(f"{SITE}/nvidia_cuda_nvrtc_cu12-12.8.93.dist-info")
    machine.files[f"{SITE}/nvidia_cuda_nvrtc_cu12-{version}.dist-info/METADATA"] = b""


def with_device(machine: MachineFile, major: int, minor: int) -> None:
    """Give it another GPU."""
    for probe in machine.probes:
        if probe["key"] == "libcuda":
            probe["value"]["devices"][0].update(
                {"major": major, "minor": minor, "name": f"GPU {major}.{minor}"}
            )


@pytest.mark.quick
@pytest.mark.parametrize(
    ("driver", "cuda", "status"),
    [
        ("525.60.12", 12000, Status.PASS),  # libcuda says 12: it decides
        ("525.60.13", 12000, Status.PASS),
        ("520.61.05", 11080, Status.FAIL),
        ("580.65.06", 13000, Status.PASS),
        ("570.26", 12080, Status.PASS),
        ("570.25", 12080, Status.INFO),  # below the packaged driver of 12.8
        ("999.1", 19000, Status.PASS),  # newer than the table
    ],
)
def test_driver_min(driver: str, cuda: int, status: Status, tmp_path: Path) -> None:
    machine = machine_files.machine("h100")
    with_driver(machine, driver, cuda)
    expected = Status.INFO if driver.startswith("525") else status  # below 570.26, which came with 12.8
    assert examine(machine, tmp_path, "nvidia.driver-min")["nvidia.driver-min"].status is expected


@pytest.mark.quick
@pytest.mark.parametrize(("driver", "status"), [("525.60.12", Status.FAIL), ("525.60.13", Status.INFO)])
def test_driver_min_by_the_module_alone(driver: str, status: Status, tmp_path: Path) -> None:
    """Where libcuda is not asked (passive run), the module's version decides, to the last number."""
    machine = machine_files.machine("h100")
    with_driver(machine, driver, 12000)
    machine.probes = [probe for probe in machine.probes if probe["key"] != "libcuda"]
    assert examine(machine, tmp_path, "nvidia.driver-min")["nvidia.driver-min"].status is status


@pytest.mark.quick
@pytest.mark.parametrize(
    ("nvrtc", "cuda", "status"),
    [
        ("12.8.93", 12080, Status.PASS),
        ("12.8.93", 12090, Status.PASS),
        ("12.8.93", 12070, Status.WARN),
        ("12.8.93", 13000, Status.PASS),
        ("12.8.93", 11080, Status.FAIL),
        ("13.0.48", 12090, Status.FAIL),
        ("13.0.48", 13000, Status.PASS),
        ("13.1.80", 13000, Status.WARN),
        ("14.0.10", 13000, Status.INFO),  # nobody here knows CUDA 14
        ("13.0.48", 14000, Status.INFO),
    ],
)
def test_compiler_against_driver(nvrtc: str, cuda: int, status: Status, tmp_path: Path) -> None:
    machine = machine_files.machine("h100")
    with_driver(machine, "580.65.06", cuda)
    with_nvrtc(machine, nvrtc)
    assert examine(machine, tmp_path, "tool.ptx-vs-driver")["tool.ptx-vs-driver"].status is status


@pytest.mark.quick
@pytest.mark.parametrize(
    ("capability", "nvrtc", "archs", "status"),
    [
        ((7, 5), "13.0.48", [75, 80, 90], Status.PASS),
        ((7, 0), "13.0.48", [75, 80, 90], Status.FAIL),
        ((7, 0), "12.8.93", [50, 70, 75, 80, 90], Status.PASS),
        ((12, 0), "12.6.85", [80, 90], Status.FAIL),
        ((12, 0), "12.8.93", [80, 90, 100, 120], Status.PASS),
        ((12, 1), "12.8.93", [80, 90, 100, 120], Status.FAIL),
        ((15, 0), "12.8.93", [80, 90, 100, 120], Status.INFO),  # nobody here knows 15.0
    ],
)
def test_compiler_against_device(
    capability: tuple[int, int], nvrtc: str, archs: list[int], status: Status, tmp_path: Path
) -> None:
    machine = machine_files.machine("h100")
    with_nvrtc(machine, nvrtc, archs)
    with_device(machine, *capability)
    assert examine(machine, tmp_path, "tool.arch")["tool.arch"].status is status


@pytest.mark.quick
@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("compute_80", (9, 0), True),
        ("compute_80", (8, 0), True),
        ("compute_90", (8, 9), False),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (10, 0), False),
        ("compute_90a", (10, 0), False),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 0), True),
        ("sm_100f", (10, 3), True),
        ("sm_103f", (10, 0), False),
        ("sm_100f", (12, 0), False),
        ("compute_100f", (12, 0), False),
        ("sm_120", (12, 1), True),
        ("gfx942", (9, 0), False),
        ("", (9, 0), False),
    ],
)
def test_where_code_runs(target: str, capability: tuple[int, int], runs: bool) -> None:
    assert target_runs_on(target, capability) is runs


#: Restated from the release notes of the toolkits: what the table must say, whatever becomes of the table.
PUBLISHED = """
13.2 595.45.04, 13.1 590.44.01, 13.0 580.65.06, 12.9 575.51.03, 12.8 570.26, 12.6 560.28.03, 12.5 555.42.02,
12.4 550.54.14, 12.3 545.23.06, 12.2 535.54.03, 12.1 530.30.02, 12.0 525.60.13, 11.8 520.61.05
"""


@pytest.mark.quick
def test_tables_are_as_published() -> None:
    pairs = (item.split() for item in PUBLISHED.replace("\n", " ").split(",") if item.strip())
    packaged = {version_tuple(cuda): version_tuple(driver) for cuda, driver in pairs}
    assert packaged == PACKAGED_DRIVER
    assert FAMILY_MINIMUM == {13: (580,), 12: (525, 60, 13), 11: (450, 80, 2)}
    assert OLDEST_CAPABILITY[13] == (7, 5) and OLDEST_CAPABILITY[12] == (5, 0)
    first = {
        (8, 9): (11, 8),
        (9, 0): (11, 8),
        (10, 0): (12, 8),
        (10, 3): (12, 9),
        (12, 0): (12, 8),
        (12, 1): (12, 9),
    }
    assert {capability: FIRST_TOOLKIT[capability] for capability in first} == first


@pytest.mark.quick
@pytest.mark.parametrize(
    ("driver", "status"), [("580.1", Status.PASS), ("579.99", Status.FAIL), ("449.1", Status.FAIL)]
)
def test_cuda_13_needs_driver_580(driver: str, status: Status, tmp_path: Path) -> None:
    machine = machine_files.machine("gtx1080-cuda13")
    with_driver(machine, driver, 0)
    machine.probes = [probe for probe in machine.probes if probe["key"] != "libcuda"]
    found = examine(machine, tmp_path, "nvidia.driver-min")["nvidia.driver-min"].status
    assert found is (Status.INFO if status is Status.PASS else status)  # below the packaged 580.65.06


@pytest.mark.quick
def test_tables_are_in_order() -> None:
    drivers = [PACKAGED_DRIVER[cuda] for cuda in sorted(PACKAGED_DRIVER)]
    assert drivers == sorted(drivers)
    for (major, _), driver in PACKAGED_DRIVER.items():
        assert driver >= FAMILY_MINIMUM[major]
    assert set(OLDEST_CAPABILITY) == set(FAMILY_MINIMUM)
    for capability, cuda in FIRST_TOOLKIT.items():
        assert OLDEST_CAPABILITY[cuda[0]] <= capability


@pytest.mark.quick
@pytest.mark.parametrize("family", FAMILY_MINIMUM)
def test_family_of_a_driver_at_its_edge(family: int) -> None:
    least = FAMILY_MINIMUM[family]
    below = (*least[:-1], least[-1] - 1, 999)
    assert family_of_driver(least) == family
    assert family_of_driver(below) == max((f for f in FAMILY_MINIMUM if f < family), default=0)


@pytest.mark.quick
@pytest.mark.parametrize("cuda", PACKAGED_DRIVER)
def test_cuda_of_a_driver_at_its_edge(cuda: tuple[int, int]) -> None:
    driver = PACKAGED_DRIVER[cuda]
    older = sorted(known for known in PACKAGED_DRIVER if known < cuda)
    assert cuda_of_driver(driver) == cuda
    assert cuda_of_driver((*driver[:-1], driver[-1] - 1, 999)) == (older[-1] if older else None)
    assert cuda_of_driver((700, 1)) is None  # newer than the table: not known


@pytest.mark.quick
@pytest.mark.parametrize(
    ("release", "affected"),
    [
        ((12, 7), False),
        ((12, 8), True),
        ((13, 2), True),
        ((13, 2, 85), True),
        ((13, 2, 86), False),
        ((13, 3), False),
    ],
)
def test_reconvergence_fault(release: tuple[int, ...], affected: bool) -> None:
    assert tool.affected_by_reconvergence(release) is affected


@pytest.mark.quick
@pytest.mark.parametrize(("nvrtc", "status"), [("12.8.93", Status.INFO), ("12.6.85", Status.PASS)])
def test_known_miscompile(nvrtc: str, status: Status, tmp_path: Path) -> None:
    machine = machine_files.machine("h100")
    with_nvrtc(machine, nvrtc)
    assert examine(machine, tmp_path, "tool.known-miscompile")["tool.known-miscompile"].status is status


@pytest.mark.quick
@pytest.mark.parametrize(("patch", "status"), [(28, Status.FAIL), (29, Status.PASS)])
def test_glibcxx_floor(patch: int, status: Status, tmp_path: Path) -> None:
    assert libs.GLIBCXX_FLOOR == (3, 4, 29)
    machine = machine_files.machine("h100")
    folder = "/usr/lib/x86_64-linux-gnu"
    machine.files[f"{folder}/libstdc++.so.6.0.{patch}"] = b""
    machine.links[f"{folder}/libstdc++.so.6"] = f"libstdc++.so.6.0.{patch}"
    assert examine(machine, tmp_path, "libs.glibcxx")["libs.glibcxx"].status is status


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("libnvJitLink.so.12.7.105", Status.FAIL),  # older minor
        ("libnvJitLink.so.12.8.93", Status.PASS),  # the same release
        ("libnvJitLink.so.12", Status.WARN),  # which one is not known
        ("libnvJitLink.so.12.9.1", Status.WARN),
        ("libnvJitLink.so.13.0.39", Status.PASS),  # another soname
        ("libother.so.1", Status.PASS),
    ],
)
def test_what_comes_before_the_wheel(name: str, status: Status, tmp_path: Path) -> None:
    machine = machine_files.machine("h100")
    machine.files[f"{SITE}/nvidia_nvjitlink_cu12-12.8.93.dist-info/METADATA"] = b""
    machine.files[f"/opt/lib/{name}"] = b""
    soname = f"{name.rpartition('.so')[0]}.so.{name.split('.so.')[1].split('.')[0]}"
    if soname != name:
        machine.links[f"/opt/lib/{soname}"] = name
    machine.env["LD_LIBRARY_PATH"] = "/opt/lib"
    assert examine(machine, tmp_path, "libs.duplicates")["libs.duplicates"].status is status


@pytest.mark.quick
@pytest.mark.parametrize(("conda", "words"), [(True, "conda install"), (False, "LD_LIBRARY_PATH")])
def test_advice_on_an_old_libstdcxx(conda: bool, words: str, tmp_path: Path) -> None:
    machine = machine_files.machine("conda-old-libstdcxx")
    if not conda:
        del machine.env["CONDA_PREFIX"]
        machine.env["LD_LIBRARY_PATH"] = "/home/alice/conda/envs/ml/lib"
    (remedy,) = examine(machine, tmp_path, "libs.glibcxx")["libs.glibcxx"].remedies
    assert words in remedy.text + remedy.command


@pytest.mark.quick
def test_two_copies_of_unknown_releases(tmp_path: Path) -> None:
    """No package says the wheel's release, and neither file's name does."""
    machine = machine_files.machine("h100")
    machine.files["/opt/lib/libnvJitLink.so.12"] = b""
    machine.env["LD_LIBRARY_PATH"] = "/opt/lib"
    assert examine(machine, tmp_path, "libs.duplicates")["libs.duplicates"].status is Status.WARN


@pytest.mark.quick
@pytest.mark.parametrize(
    ("file", "status"),
    [
        ("libamdhip64.so.6.4.60401", Status.PASS),  # the release torch was built with
        ("libamdhip64.so.6.4.60499", Status.PASS),
        ("libamdhip64.so.6.3.60304", Status.FAIL),
        ("libamdhip64.so.7.0.70000", Status.FAIL),
        ("libhsa-runtime64.so.1.14.60300", Status.FAIL),
        ("libamdhip64.so.6", Status.WARN),
    ],
)
def test_what_comes_before_torchs_hip(file: str, status: Status, tmp_path: Path) -> None:
    machine = machine_files.machine("mi300x8")
    for name in ("libamdhip64.so", "libhsa-runtime64.so"):
        machine.files[f"{SITE}/torch/lib/{name}"] = b""
    machine.files[f"/sw/rocm/lib/{file}"] = b""
    machine.env["LD_LIBRARY_PATH"] = "/sw/rocm/lib"
    assert examine(machine, tmp_path, "libs.duplicates")["libs.duplicates"].status is status


@pytest.mark.quick
@pytest.mark.parametrize(
    ("width", "widest", "status"),
    [
        ("16", "16", Status.INFO),
        ("15", "16", Status.WARN),
        ("8", "8", Status.INFO),
        ("63", "255", Status.SKIP),
        ("32", "32", Status.INFO),
        ("33", "33", Status.SKIP),
        ("0", "16", Status.SKIP),
    ],
)
def test_link_width(width: str, widest: str, status: Status, tmp_path: Path) -> None:
    machine = machine_files.machine("h100")
    base = "/sys/bus/pci/devices/0000:41:00.0"
    machine.files[f"{base}/current_link_width"] = f"{width}\n".encode()
    machine.files[f"{base}/max_link_width"] = f"{widest}\n".encode()
    assert examine(machine, tmp_path, "nvidia.pcie")["nvidia.pcie"].status is status


@pytest.mark.quick
def test_fabric_manager_without_nvswitch_is_no_error(tmp_path: Path) -> None:
    machine = machine_files.machine("h100")
    link = "/etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service"
    machine.links[link] = "/lib/systemd/system/nvidia-fabricmanager.service"
    result = examine(machine, tmp_path, "nvidia.fabric")["nvidia.fabric"]
    assert result.status is Status.INFO and "no error" in result.message


@pytest.mark.quick
@pytest.mark.parametrize(
    ("speed", "status"), [("32.0 GT/s PCIe", Status.PASS), ("16.0 GT/s PCIe", Status.INFO), ("", Status.INFO)]
)
def test_link_speed_is_for_information(speed: str, status: Status, tmp_path: Path) -> None:
    machine = machine_files.machine("h100")
    machine.files["/sys/bus/pci/devices/0000:41:00.0/current_link_speed"] = f"{speed}\n".encode()
    assert examine(machine, tmp_path, "nvidia.pcie")["nvidia.pcie"].status is status


@pytest.mark.quick
def test_a_gpu_off_the_bus_needs_power(tmp_path: Path) -> None:
    (first, *_) = examine(machine_files.machine("xid-79"), tmp_path, "nvidia.xid")["nvidia.xid"].remedies
    assert "off and on" in first.text and first.reboot


@pytest.mark.quick
@pytest.mark.parametrize("chosen", ["", "fork", "spawn", "forkserver"])
def test_start_method(chosen: str, tmp_path: Path) -> None:
    machine = machine_files.machine("h100")
    machine.machine["python"]["start_method"] = chosen
    result = examine(machine, tmp_path, "proc.fork")["proc.fork"]
    assert result.status is (Status.WARN if chosen == "fork" else Status.PASS)


@pytest.mark.quick
def test_import_failure_is_looked_up(tmp_path: Path) -> None:
    machine = machine_files.machine("h100")
    for probe in machine.probes:
        if probe["key"] == "torch_import":
            probe.update(value={"stage": "import"}, code=1)
            probe["stderr"] = (
                "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkCreate_12_9, version x\n"
            )
    result = examine(machine, tmp_path, "torch.import", "torch.arch")["torch.import"]
    assert result.status is Status.FAIL and result.data["messages"] == ["nvjitlink-symbol"]
    assert any("LD_LIBRARY_PATH" in remedy.text for remedy in result.remedies)


@pytest.mark.quick
def test_no_compiler_for_the_cpu_is_told(tmp_path: Path) -> None:
    result = examine(machine_files.machine("slim-image-triton"), tmp_path, "tool.cc")["tool.cc"]
    assert result.status is Status.INFO and "torch" in result.message


#: Checks that only inform, need an option, or have tests of their own.
_ELSEWHERE = {"tool.cc", "tool.known-miscompile", "cluster.facts", "nvidia.context"}


def test_every_check_of_these_groups_fires_on_one_machine_and_passes_on_another() -> None:
    fired, passed = set(), set()
    for name in machine_files.NAMES:
        for outcome in machine_files.examine(name):
            if outcome.result.status.name in machine_files.FINDINGS:
                fired.add(outcome.check.id)
            elif outcome.result.status in (Status.PASS, Status.INFO):
                passed.add(outcome.check.id)
    groups = ("nvidia", "tool", "torch", "libs", "proc", "cluster")
    ours = {
        name
        for name, item in all_checks().items()
        if item.group in groups and item.probe in ("passive", "process")
    }
    assert ours - fired - _ELSEWHERE == set()
    assert ours - passed == set()


def test_a_child_that_says_nonsense_is_no_crash_of_the_check(tmp_path: Path) -> None:
    """Values of another form than the probes give, as an old bundle might hold."""
    for value in (None, [], "text", 7, {}, {"stage": "done"}, {"devices": []}):
        machine = machine_files.machine("h100")
        for probe in machine.probes:
            probe["value"] = value
        host = open_machine(machine, tmp_path / str(hash(str(value))))
        broken = [o for o in run_checks(host, select()) if o.result.status is Status.ERR]
        assert not broken, [(o.check.id, o.result.message, o.result.details) for o in broken]
    assert Child(None, Command(("x",))).ok is False
