"""Each threshold at its edge, each condition by itself: small trees with one thing changed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portagemm.doctor import rocm_versions
from portagemm.doctor.check import Options, Result, all_checks
from portagemm.doctor.machine_file import MachineFile
from portagemm.doctor.replay import open_machine
from portagemm.doctor.runner import run_checks, select

from . import machine_files

Change = Callable[[MachineFile], None]


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., Result]:
    """Runs one check on a machine that was changed, and returns its result."""
    count = 0

    def run(name: str, check_id: str, change: Change | None = None, require_gpu: str = "") -> Result:
        nonlocal count
        count += 1
        machine = machine_files.machine(name)
        if change is not None:
            change(machine)
        host = open_machine(machine, tmp_path / str(count))
        wanted = {check_id, *all_checks()[check_id].after}
        outcomes = run_checks(host, select(only=sorted(wanted)), Options(require_gpu))
        return next(outcome.result for outcome in outcomes if outcome.check.id == check_id)

    return run


def value(path: str, text: str) -> Change:
    return lambda machine: machine.files.update({path: text.encode() + b"\n"})


def node(path: str, **attributes: Any) -> Change:
    return lambda machine: machine.nodes.update({path: {**machine.nodes.get(path, {}), **attributes}})


def fact(key: str, **values: Any) -> Change:
    return lambda machine: machine.machine.update({key: {**machine.machine.get(key, {}), **values}})


def variable(name: str, text: str) -> Change:
    return lambda machine: machine.env.update({name: text})


def both(*changes: Change) -> Change:
    def change(machine: MachineFile) -> None:
        for one in changes:
            one(machine)

    return change


def room(path: str, total: int, free: int, inodes: int = 0, free_inodes: int = 0) -> Change:
    space = {"total": total, "free": free, "inodes": inodes, "free_inodes": free_inodes}
    return node(path, kind="dir", mode=0o1777, uid=0, gid=0, space=space)


GIB = 1 << 30
RELEASE = "/proc/sys/kernel/osrelease"
KMD = "/sys/module/amdgpu/version"
ROCM = "/opt/rocm-6.4.1/.info/version"
CGROUP = "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope"


def limits(**values: tuple[int, int]) -> Change:
    return fact("limits", **{name: list(pair) for name, pair in values.items()})


def driver(name: str, *addresses: str) -> Change:
    """Bind PCI devices to another kernel driver."""

    def change(machine: MachineFile) -> None:
        for address in addresses:
            machine.links[f"/sys/bus/pci/devices/0000:{address}:00.0/driver"] = (
                f"../../../../bus/pci/drivers/{name}"
            )

    return change


MI300X = ("05", "26", "46", "65", "85", "a6", "c6", "e5")


def without_torch(machine: MachineFile) -> None:
    machine.remove("/home/alice/venv/lib/python3.11/site-packages/torch")


def rocm(version: str) -> Change:
    return both(without_torch, value(ROCM, version))


def gfx(number: int) -> Change:
    """The RX 9070 machine's GPU as another target."""
    path = "/sys/class/kfd/kfd/topology/nodes/1/properties"

    def change(machine: MachineFile) -> None:
        text = (
            machine.files[path].decode().replace("gfx_target_version 120001", f"gfx_target_version {number}")
        )
        machine.files[path] = text.encode()

    return change


def torch_rocm(version: str) -> Change:
    return value("/home/alice/venv/lib/python3.11/site-packages/torch/version.py", f"hip = '{version}.12345'")


EDGES: list[tuple[str, str, str, Change, str]] = [
    # machine, check, what, change, status
    ("wsl2", "wsl.kernel", "needed-below", value(RELEASE, "4.19.120-microsoft-standard"), "FAIL"),
    ("wsl2", "wsl.kernel", "needed", value(RELEASE, "4.19.121-microsoft-standard"), "WARN"),
    ("wsl2", "wsl.kernel", "recommended-below", value(RELEASE, "5.10.16.2-microsoft-standard-WSL2"), "WARN"),
    ("wsl2", "wsl.kernel", "recommended", value(RELEASE, "5.10.16.3-microsoft-standard-WSL2"), "PASS"),
    ("wsl2", "wsl.kernel", "custom-name", value(RELEASE, "6.6.36-custom"), "PASS"),
    ("wsl2", "wsl.dxg", "not-permitted", node("/dev/dxg", mode=0o600), "FAIL"),
    ("wsl2", "wsl.dxg", "broken", node("/dev/dxg", open="EIO"), "FAIL"),
    (
        "wsl2",
        "wsl.ldconfig",
        "by-path",
        both(value("/etc/ld.so.cache", "-"), variable("LD_LIBRARY_PATH", "/usr/lib/wsl/lib/")),
        "PASS",
    ),
    ("wsl2", "wsl.ldconfig", "nowhere", value("/etc/ld.so.cache", "-"), "WARN"),
    (
        "wsl2-radeon-no-variable",
        "wsl.rocdxg",
        "classic",
        value("/opt/rocm-6.4.3/.info/version", "7.12.9"),
        "WARN",
    ),
    (
        "wsl2-radeon-no-variable",
        "wsl.rocdxg",
        "detects",
        value("/opt/rocm-6.4.3/.info/version", "7.13.0"),
        "PASS",
    ),
    (
        "wsl2-radeon-no-variable",
        "wsl.rocdxg",
        "detects-exactly",
        value("/opt/rocm-6.4.3/.info/version", "7.13"),
        "PASS",
    ),
    ("wsl2-radeon-no-variable", "wsl.rocdxg", "zero", variable("HSA_ENABLE_DXG_DETECTION", "0"), "WARN"),
    (
        "h100",
        "nvidia.vgpu",
        "by-its-name",
        value("/proc/driver/nvidia/gpus/0000:41:00.0/information", "Model: NVIDIA A16-4Q"),
        "INFO",
    ),
    ("cpu-laptop", "platform.glibc", "below", fact("python", libc=["glibc", "2.27"]), "FAIL"),
    ("cpu-laptop", "platform.glibc", "floor", fact("python", libc=["glibc", "2.28"]), "PASS"),
    ("cpu-laptop", "platform.python", "below", fact("python", version="3.9.19"), "FAIL"),
    ("cpu-laptop", "platform.python", "floor", fact("python", version="3.10.0"), "PASS"),
    ("cpu-laptop", "platform.python", "newest", fact("python", version="3.13.9"), "PASS"),
    ("cpu-laptop", "platform.python", "newer", fact("python", version="3.14.0"), "INFO"),
    ("cpu-laptop", "platform.python", "32-bit", fact("python", pointer_bits=32), "FAIL"),
    ("cpu-laptop", "platform.python", "pypy", fact("python", implementation="pypy"), "FAIL"),
    ("cpu-laptop", "platform.python", "no-lock", fact("python", free_threaded=True), "INFO"),
    ("h100x8", "limits.shm", "default", room("/dev/shm", 64 << 20, 64 << 20), "FAIL"),
    ("h100x8", "limits.shm", "above-default", room("/dev/shm", (64 << 20) + 1, 64 << 20), "WARN"),
    ("h100x8", "limits.shm", "below-wanted", room("/dev/shm", GIB - 1, GIB - 1), "WARN"),
    ("h100x8", "limits.shm", "wanted", room("/dev/shm", GIB, 0), "PASS"),
    ("h100", "limits.shm", "one-gpu", room("/dev/shm", 64 << 20, 0), "WARN"),
    ("cpu-laptop", "cache.space", "below", room("/home", 9 * GIB, GIB - 1), "WARN"),
    ("cpu-laptop", "cache.space", "wanted", room("/home", 9 * GIB, GIB), "PASS"),
    ("cpu-laptop", "cache.space", "inodes-below", room("/home", 9 * GIB, 2 * GIB, 1000, 9), "WARN"),
    ("cpu-laptop", "cache.space", "inodes", room("/home", 9 * GIB, 2 * GIB, 1000, 10), "PASS"),
    ("cpu-laptop", "cache.space", "no-inodes", room("/home", 9 * GIB, 2 * GIB, 0, 0), "PASS"),
    ("h100x8", "limits.nofile", "below", limits(nofile=(4095, 4095)), "WARN"),
    ("h100x8", "limits.nofile", "wanted", limits(nofile=(4096, 4096)), "PASS"),
    ("h100x8", "limits.nofile", "unlimited", limits(nofile=(-1, -1)), "PASS"),
    (
        "h100x8",
        "limits.nofile",
        "two-gpus",
        both(
            limits(nofile=(1024, 1024)),
            lambda machine: [machine.remove(f"/dev/nvidia{n}") for n in range(2, 8)],
        ),
        "WARN",
    ),
    ("h100", "limits.nofile", "one-gpu", limits(nofile=(1024, 1024)), "SKIP"),
    ("cpu-laptop", "limits.nproc", "below", limits(nproc=(4095, 9999)), "WARN"),
    ("cpu-laptop", "limits.nproc", "wanted", limits(nproc=(4096, 4096)), "PASS"),
    ("h100-infiniband", "limits.memlock", "finite", limits(memlock=(1 << 40, -1)), "WARN"),
    ("h100x8", "limits.cgroup", "memory-below", value(f"{CGROUP}/memory.max", str(8 * GIB - 1)), "WARN"),
    ("h100x8", "limits.cgroup", "memory", value(f"{CGROUP}/memory.max", str(8 * GIB)), "INFO"),
    ("h100x8", "limits.cgroup", "unlimited", value(f"{CGROUP}/memory.max", "max"), "PASS"),
    ("h100x8", "limits.cgroup", "cpu-below", value(f"{CGROUP}/cpu.max", "799999 100000"), "WARN"),
    ("h100x8", "limits.cgroup", "cpu", value(f"{CGROUP}/cpu.max", "800000 100000"), "INFO"),
    ("h100x8", "limits.cgroup", "cpu-unlimited", value(f"{CGROUP}/cpu.max", "max 100000"), "PASS"),
    ("cpu-laptop", "limits.cgroup", "pids-below", value(f"{CGROUP}/pids.max", "511"), "WARN"),
    ("cpu-laptop", "limits.cgroup", "pids", value(f"{CGROUP}/pids.max", "512"), "INFO"),
    (
        "cpu-laptop",
        "limits.cgroup",
        "v1",
        value("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
        "PASS",
    ),
    (
        "h100",
        "limits.cgroup",
        "v1-memory",
        value("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000"),
        "WARN",
    ),
    (
        "docker-compat-by-toolkit",
        "container.compat-libcuda",
        "older",
        value("/proc/driver/nvidia/version", "NVRM version: Kernel Module  590.44.02  x"),
        "FAIL",
    ),
    (
        "docker-compat-by-toolkit",
        "container.compat-libcuda",
        "equal",
        value("/proc/driver/nvidia/version", "NVRM version: Kernel Module  590.44.01  x"),
        "PASS",
    ),
    ("docker-ok", "container.nvidia-caps", "all", variable("NVIDIA_DRIVER_CAPABILITIES", "all"), "PASS"),
    ("docker-ok", "container.nvidia-caps", "empty", variable("NVIDIA_DRIVER_CAPABILITIES", ""), "PASS"),
    (
        "docker-ok",
        "container.nvidia-caps",
        "there-anyway",
        variable("NVIDIA_DRIVER_CAPABILITIES", "utility"),
        "INFO",
    ),
    ("docker-ok", "container.nvidia-visible", "by-cdi", variable("NVIDIA_VISIBLE_DEVICES", "void"), "INFO"),
    (
        "docker-no-gpus",
        "container.nvidia-visible",
        "asked",
        variable("NVIDIA_VISIBLE_DEVICES", "all"),
        "FAIL",
    ),
    ("h100", "container.device-open", "group", both(node("/dev/nvidia0", mode=0o660, gid=44)), "FAIL"),
    ("h100", "container.device-open", "io", both(node("/dev/nvidia0", open="EIO")), "FAIL"),
    (
        "cpu-laptop",
        "cache.owner",
        "group-writable",
        node("/home/alice/.cache/portagemm", kind="dir", mode=0o770, uid=1000, gid=100),
        "WARN",
    ),
    (
        "cpu-laptop",
        "cache.owner",
        "group-readable",
        node("/home/alice/.cache/portagemm", kind="dir", mode=0o755, uid=1000, gid=1000),
        "PASS",
    ),
    (
        "cpu-laptop",
        "cache.owner",
        "of-root",
        node("/home/alice/.cache/portagemm", kind="dir", mode=0o755, uid=0, gid=0),
        "FAIL",
    ),
    (
        "cpu-laptop",
        "cache.writable",
        "chosen",
        both(variable("PORTAGEMM_CACHE_DIR", "/opt/c"), node("/opt", kind="dir", mode=0o755)),
        "FAIL",
    ),
    ("cpu-laptop", "cache.writable", "full", node("/home/alice/.cache", write="ENOSPC"), "WARN"),
    ("mi300x8", "amd.kmd-userspace", "oldest-below", both(value(KMD, "6.12.12"), rocm("6.0.2")), "WARN"),
    ("mi300x8", "amd.kmd-userspace", "oldest", both(value(KMD, "6.12.12"), rocm("6.1.0")), "PASS"),
    ("mi300x8", "amd.kmd-userspace", "newest", both(value(KMD, "6.12.12"), rocm("7.2.3")), "PASS"),
    ("mi300x8", "amd.kmd-userspace", "beyond-table", both(value(KMD, "6.12.12"), rocm("7.13.0")), "INFO"),
    ("mi300x8", "amd.kmd-userspace", "too-new", both(value(KMD, "6.8.5"), rocm("7.1.0")), "WARN"),
    ("mi300x8", "amd.kmd-userspace", "unknown-driver", both(value(KMD, "6.20.1"), rocm("7.1.0")), "INFO"),
    ("rx9070", "amd.gfx-supported", "too-early", torch_rocm("6.2"), "FAIL"),
    ("rx9070", "amd.gfx-supported", "unlisted", torch_rocm("6.3"), "WARN"),
    ("rx9070", "amd.gfx-supported", "listed", torch_rocm("6.4"), "PASS"),
    ("rx9070", "amd.gfx-supported", "beyond-table", torch_rocm("7.13"), "INFO"),
    ("rx9070", "amd.gfx-supported", "newest-in-table", torch_rocm("7.2"), "PASS"),
    ("rx9070", "amd.gfx-supported", "gfx906-dropped", both(gfx(90006), torch_rocm("6.4")), "WARN"),
    ("rx9070", "amd.gfx-supported", "gfx906-last", both(gfx(90006), torch_rocm("6.3")), "PASS"),
    ("rx9070", "amd.gfx-supported", "gfx950-unlisted", both(gfx(90500), torch_rocm("6.4")), "WARN"),
    ("rx9070", "amd.gfx-supported", "gfx950-first", both(gfx(90500), torch_rocm("7.0")), "PASS"),
    ("rx9070", "amd.gfx-supported", "gfx1151-built", both(gfx(110501), torch_rocm("7.1")), "PASS"),
    ("rx9070", "amd.override", "own-target", variable("HSA_OVERRIDE_GFX_VERSION", "12.0.1"), "INFO"),
    ("rx9070", "amd.override", "other-target", variable("HSA_OVERRIDE_GFX_VERSION", "11.0.0"), "FAIL"),
    ("rx9070", "amd.override", "one-gpu", variable("HSA_OVERRIDE_GFX_VERSION_1", "11.0.0"), "FAIL"),
    ("rx9070", "amd.override", "no-gpu", variable("HSA_OVERRIDE_GFX_VERSION_0", "11.0.0"), "INFO"),
    ("rx9070", "amd.override", "nonsense", variable("HSA_OVERRIDE_GFX_VERSION", "gfx1030"), "FAIL"),
    (
        "rx9070-igpu",
        "amd.override",
        "mixed-box",
        both(variable("HSA_OVERRIDE_GFX_VERSION", "10.3.0"), torch_rocm("6.2")),
        "FAIL",
    ),
    ("mi300x8", "amd.visible-mask", "one", variable("ROCR_VISIBLE_DEVICES", "7"), "PASS"),
    ("mi300x8", "amd.visible-mask", "out-of-range", variable("ROCR_VISIBLE_DEVICES", "8"), "FAIL"),
    ("mi300x8", "amd.visible-mask", "empty-inner", variable("ROCR_VISIBLE_DEVICES", ""), "FAIL"),
    ("mi300x8", "amd.visible-mask", "empty-outer", variable("HIP_VISIBLE_DEVICES", ""), "PASS"),
    ("mi300x8", "amd.visible-mask", "cuda-name", variable("CUDA_VISIBLE_DEVICES", "0,1"), "PASS"),
    (
        "mi300x8",
        "amd.visible-mask",
        "hip-before-cuda",
        both(variable("CUDA_VISIBLE_DEVICES", "9"), variable("HIP_VISIBLE_DEVICES", "0")),
        "PASS",
    ),
    ("mi300x8", "amd.host-tuning", "iommu-off", value("/proc/cmdline", "quiet iommu=off"), "PASS"),
    ("mi300x8", "amd.host-tuning", "numa", value("/proc/sys/kernel/numa_balancing", "1"), "WARN"),
    (
        "mi300x8-untuned-host",
        "amd.host-tuning",
        "iommu-not-on",
        both(
            value("/proc/sys/kernel/numa_balancing", "0"),
            lambda machine: machine.remove("/sys/kernel/iommu_groups"),
        ),
        "PASS",
    ),
    (
        "mi300x8-untuned-host",
        "amd.host-tuning",
        "iommu-passes-by-default",
        both(
            value("/proc/sys/kernel/numa_balancing", "0"),
            value("/sys/bus/pci/devices/0000:05:00.0/iommu_group/type", "identity"),
        ),
        "PASS",
    ),
    (
        "mi300x8",
        "amd.host-tuning",
        "iommu-translates",
        value("/sys/bus/pci/devices/0000:05:00.0/iommu_group/type", "DMA-FQ"),
        "WARN",
    ),
    ("mi300x8", "amd.host-tuning", "iommu-on", value("/proc/cmdline", "quiet"), "WARN"),
    ("mi300x8", "amd.visible-mask", "hidden-on-purpose", variable("HIP_VISIBLE_DEVICES", "-1"), "WARN"),
    (
        "hybrid-nvidia-amd",
        "amd.visible-mask",
        "meant-for-nvidia",
        variable("CUDA_VISIBLE_DEVICES", "3"),
        "INFO",
    ),
    ("hybrid-nvidia-amd", "amd.visible-mask", "meant-for-amd", variable("HIP_VISIBLE_DEVICES", "3"), "FAIL"),
    (
        "cpu-laptop",
        "cache.owner",
        "private-group",
        node("/home/alice/.triton", kind="dir", mode=0o775, uid=1000, gid=1000),
        "PASS",
    ),
    (
        "cpu-laptop",
        "cache.owner",
        "shared-group",
        node("/home/alice/.triton", kind="dir", mode=0o775, uid=1000, gid=100),
        "WARN",
    ),
    (
        "cpu-laptop",
        "cache.owner",
        "sticky",
        node("/home/alice/.triton", kind="dir", mode=0o1777, uid=1000, gid=100),
        "PASS",
    ),
    ("mi300x8", "amd.pci", "one-for-a-virtual-machine", driver("vfio-pci", "05"), "INFO"),
    ("mi300x8", "amd.pci", "all-for-virtual-machines", driver("vfio-pci", *MI300X), "FAIL"),
    ("mi300x8", "amd.pci", "old-driver", driver("radeon", "05"), "FAIL"),
    (
        "mi300x8-untuned-host",
        "amd.host-tuning",
        "two-gpus",
        lambda machine: [
            machine.remove(f"/sys/bus/pci/devices/0000:{address}:00.0") for address in MI300X[2:]
        ],
        "WARN",
    ),
    (
        "apptainer-old-image",
        "container.apptainer",
        "glibc-just-new-enough",
        fact("python", libc=["glibc", "2.34"]),
        "PASS",
    ),
    ("rx9070", "amd.host-tuning", "one-gpu", value("/proc/cmdline", "quiet"), "SKIP"),
    (
        "mi300x8",
        "amd.module",
        "built-in",
        lambda machine: machine.remove("/sys/module/amdgpu/initstate"),
        "PASS",
    ),
    ("mi300x8", "amd.module", "coming", value("/sys/module/amdgpu/initstate", "coming"), "FAIL"),
    ("mi300x8", "amd.kfd-access", "io-error", node("/dev/kfd", open="EIO"), "FAIL"),
    ("mi300x8", "amd.kfd-access", "render-only", node("/dev/dri/renderD130", gid=44), "FAIL"),
    (
        "mi300x8",
        "amd.rocm-root",
        "other-release-on-the-path",
        both(
            variable("LD_LIBRARY_PATH", "/opt/rocm-6.2.0/lib"),
            value("/opt/rocm-6.2.0/.info/version", "6.2.0-66"),
            value("/opt/rocm-6.2.0/lib/libamdhip64.so.6", ""),
            value("/opt/rocm-6.2.0/lib/libhsa-runtime64.so.1", ""),
        ),
        "WARN",
    ),
    (
        "mi300x8",
        "amd.rocm-root",
        "same-release-on-the-path",
        variable("LD_LIBRARY_PATH", "/opt/rocm/lib"),
        "PASS",
    ),
    (
        "mi300x8",
        "amd.blas-files",
        "hipblaslt-alone",
        lambda machine: machine.remove(
            "/home/alice/venv/lib/python3.11/site-packages/torch/lib/hipblaslt/library/TensileLibrary_lazy_gfx942.dat"
        ),
        "INFO",
    ),
    ("mi300x8", "amd.blas-files", "wrong-folder", variable("ROCBLAS_TENSILE_LIBPATH", "/opt/none"), "WARN"),
    ("rx9070-old-rocm", "amd.rocm-root", "gone", variable("ROCM_PATH", "/opt/rocm-9"), "WARN"),
]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "check_id", "what", "change", "status"), EDGES, ids=[f"{edge[1]}-{edge[2]}" for edge in EDGES]
)
def test_edge(
    check: Callable[..., Result], name: str, check_id: str, what: str, change: Change, status: str
) -> None:
    result = check(name, check_id, change)
    assert result.status.name == status, result


@pytest.mark.quick
def test_a_remedy_never_names_a_fixed_index(check: Callable[..., Result]) -> None:
    """The mask is what this machine enumerates: by id, or by the separate GPU's own place."""
    result = check("rx9070-igpu", "amd.igpu")
    assert result.remedies[0].command == "export ROCR_VISIBLE_DEVICES=GPU-123456789abcdef0"

    def no_id(machine: MachineFile) -> None:
        path = "/sys/class/kfd/kfd/topology/nodes/{}/properties"
        one, two = machine.files[path.format(1)], machine.files[path.format(2)]
        machine.files[path.format(1)] = two  # the integrated GPU comes first, and no chip has an id
        machine.files[path.format(2)] = one.replace(b"unique_id 1311768467463790320", b"unique_id 0")

    assert check("rx9070-igpu", "amd.igpu", no_id).remedies[0].command == "export ROCR_VISIBLE_DEVICES=1"


@pytest.mark.quick
def test_groups_are_named_by_the_nodes(check: Callable[..., Result]) -> None:
    result = check("mi300x8-no-group", "amd.kfd-access")
    assert result.remedies[0].command == "sudo usermod -aG render $USER"
    assert result.remedies[0].root and result.remedies[0].relogin
    other = check("docker-amd-other-gid", "container.render-gid")
    assert "--group-add 110" in other.remedies[0].command
    rootless = check("podman-rootless-amd", "container.render-gid")
    assert "keep-groups" in rootless.remedies[0].command
    pod = check(
        "docker-amd-other-gid", "container.render-gid", variable("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    )
    assert "supplementalGroups: [110]" in pod.remedies[0].command


@pytest.mark.quick
def test_the_way_of_this_container_is_given(check: Callable[..., Result]) -> None:
    asked = {
        "docker": None,
        "podman": lambda machine: machine.files.update({"/run/.containerenv": b""}),
        "kubernetes": variable("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    }
    for kind, change in asked.items():
        for name, check_id in (
            ("docker-no-gpus", "container.nvidia-visible"),
            ("docker-amd-no-devices", "container.kfd"),
        ):
            remedies = check(name, check_id, change).remedies
            assert [item.text.partition(":")[0].lower() for item in remedies] == [kind]


def commands(result: Result) -> str:
    return "\n".join(item.command for item in result.remedies)


@pytest.mark.quick
def test_why_there_is_no_dxg(check: Callable[..., Result]) -> None:
    assert "wsl.conf" in check("wsl2-gpu-disabled", "wsl.dxg").message
    assert "safe mode" in check("wsl2-safe-mode", "wsl.dxg").message
    other = value("/etc/wsl.conf", "[boot]\nenabled=false\n[gpu]\n# enabled=false\nappendLibPath=false\n")
    plain = check("wsl2-gpu-disabled", "wsl.dxg", other)
    assert "wsl.conf" not in plain.message and "wsl --update" in commands(plain)
    container = check("wsl2-gpu-disabled", "wsl.dxg", both(other, value("/.dockerenv", "")))
    assert "docker run --gpus all" in commands(container)
    denied = check("wsl2", "wsl.dxg", node("/dev/dxg", mode=0o600))
    assert "chmod 666" in commands(denied)
    assert "wsl --update" in commands(check("wsl2", "wsl.dxg", node("/dev/dxg", open="EIO")))


@pytest.mark.quick
def test_what_raises_a_limit(check: Callable[..., Result]) -> None:
    assert commands(check("h100x8", "limits.nofile", limits(nofile=(1024, 4096)))) == "ulimit -n 4096"
    assert commands(check("h100x8", "limits.nofile", limits(nofile=(1024, -1)))) == "ulimit -n 4096"
    assert "limits.d" in commands(check("h100x8", "limits.nofile", limits(nofile=(1024, 4095))))
    assert "--ulimit" in commands(check("docker-shm-two-gpus", "limits.nofile", limits(nofile=(1024, 4095))))
    assert "--shm-size" in commands(check("docker-shm-two-gpus", "limits.shm"))
    pod = variable("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert "emptyDir" in commands(check("docker-shm-two-gpus", "limits.shm", pod))
    assert "remount" in commands(check("h100x8", "limits.shm", room("/dev/shm", 64 << 20, 0)))


@pytest.mark.quick
def test_which_cache_is_meant(check: Callable[..., Result]) -> None:
    ours = commands(check("cache-on-nfs", "cache.fs"))
    assert "PORTAGEMM_CACHE_DIR" in ours and "TRITON_CACHE_DIR" in ours
    alone = check("cache-on-nfs", "cache.fs", variable("PORTAGEMM_CACHE_DIR", "/var/cache/x"))
    assert "PORTAGEMM_CACHE_DIR" not in commands(alone) and "TRITON_CACHE_DIR" in commands(alone)
    assert "TRITON_CACHE_DIR" in commands(check("cache-of-others", "cache.owner"))
    foreign = node("/home/alice/.cache/portagemm", kind="dir", mode=0o755, uid=0, gid=0)
    assert "PORTAGEMM_CACHE_DIR" in commands(check("cpu-laptop", "cache.owner", foreign))
    assert "HOME is /" in check("k8s-read-only", "cache.writable").message
    assert (
        "HOME"
        not in check("cpu-laptop", "cache.writable", node("/home/alice/.cache", write="ENOSPC")).message
    )
    windows = check("wsl2-cache-on-windows-drive", "cache.fs").message
    assert windows.endswith("is on a Windows drive")
    assert check("cache-on-nfs", "cache.fs").message.endswith("the network file system nfs4")


@pytest.mark.quick
def test_where_python_lives(check: Callable[..., Result]) -> None:
    assert check("cpu-laptop", "platform.python").message.endswith("in a virtual environment")
    conda = both(variable("CONDA_PREFIX", "/home/alice/venv"))
    assert check("cpu-laptop", "platform.python", conda).message.endswith("in a conda environment")
    system = fact("python", prefix="/usr")
    assert check("cpu-laptop", "platform.python", system).message.endswith("in no virtual environment")
    assert check("cpu-laptop", "platform.glibc", fact("uname", system="Darwin")).status.name == "SKIP"
    assert "on Linux only" in check("cpu-laptop", "platform.os", fact("uname", system="Darwin")).message


@pytest.mark.quick
def test_why_the_amd_driver_does_not_serve(check: Callable[..., Result]) -> None:
    signed = check("mi300x8-no-driver", "amd.module")
    assert "mokutil" in commands(signed) and "modprobe amdgpu" in commands(signed)
    unsigned = lambda machine: machine.remove("/sys/firmware")  # noqa: E731
    assert "mokutil" not in commands(check("mi300x8-no-driver", "amd.module", unsigned))
    listed = value("/etc/modprobe.d/blacklist.conf", "blacklist amdgpu")
    assert "blacklist.conf" in check("mi300x8-no-driver", "amd.module", listed).remedies[0].text
    by_kernel = value("/proc/cmdline", "quiet modprobe.blacklist=amdgpu")
    assert "command line" in check("mi300x8-no-driver", "amd.module", by_kernel).remedies[0].text
    comment = value("/etc/modprobe.d/blacklist.conf", "# blacklist amdgpu")
    assert "modprobe amdgpu" in commands(check("mi300x8-no-driver", "amd.module", comment))
    assert "atomics" in check("rx580-no-atomics", "amd.topology").message
    silent = check("rx580-no-atomics", "amd.topology", lambda machine: machine.commands.clear())
    assert "atomics" not in silent.message and "dmesg" in commands(silent)
    denied = check("mi300x8", "amd.kfd-access", node("/dev/kfd", open="EPERM"))
    assert "cgroup" in denied.message and "--gres" in commands(denied)
    assert "dmesg" in commands(check("mi300x8", "amd.kfd-access", node("/dev/kfd", open="EIO")))
    seen = check("mi300x8", "amd.topology", value("/sys/class/kfd/kfd/topology/nodes/9/properties", ""))
    assert seen.status.name == "PASS" and "1 hidden by the device cgroup" in seen.message


@pytest.mark.quick
def test_wsl1_matters_where_a_gpu_is_wanted(check: Callable[..., Result]) -> None:
    assert check("wsl1-cpu", "wsl.version").status.name == "WARN"
    assert check("wsl1-cpu", "wsl.version", require_gpu="any").status.name == "FAIL"


@pytest.mark.quick
def test_the_rocm_tables_agree_with_each_other() -> None:
    for target, support in rocm_versions.OFFICIAL.items():
        first = rocm_versions.KNOWN_FROM.get(target)
        assert first is None or first <= support.first, target
        assert support.last is None or support.first < support.last
        assert rocm_versions.official(target, support.first)
    for low, high in rocm_versions.RUNS_WITH_DRIVER.values():
        assert low < high <= rocm_versions.NEWEST
    assert set(rocm_versions.DRIVER_OF_MODULE.values()) == set(rocm_versions.RUNS_WITH_DRIVER)
    assert set(rocm_versions.INTEGRATED_BUILT) <= set(rocm_versions.INTEGRATED)
    assert not set(rocm_versions.INTEGRATED) & set(rocm_versions.OFFICIAL)
    assert rocm_versions.later_than_tables((7, 13)) and rocm_versions.later_than_tables((10, 0))
    assert not rocm_versions.later_than_tables((7, 2, 9))


# -- amd.hip-init against libraries that behave, err, crash, hang and lack symbols ------------------------

_SOURCE = """
#include <stdlib.h>
#include <unistd.h>
static int number(const char* name, int otherwise) { const char* v = getenv(name); return v ? atoi(v) : otherwise; }
int hipInit(unsigned flags) {
  (void)flags;
  if (getenv("FAKE_CRASH")) { volatile int* nowhere = 0; *nowhere = 1; }
  if (getenv("FAKE_HANG")) sleep(600);
  return number("FAKE_CODE", 0);
}
#ifndef NO_COUNT
int hipGetDeviceCount(int* count) { *count = number("FAKE_COUNT", 8); return number("FAKE_COUNT_CODE", 0); }
#endif
int hipRuntimeGetVersion(int* version) { *version = 60443482; return 0; }
"""


@pytest.fixture(scope="module")
def fake_hip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler for the fake libraries")
    folder = tmp_path_factory.mktemp("fake_hip")
    (folder / "fake.c").write_text(_SOURCE)
    for name, flags in (("right", []), ("missing", ["-DNO_COUNT"])):
        subprocess.run(
            [
                compiler,
                "-shared",
                "-fPIC",
                "-O0",
                *flags,
                "-o",
                str(folder / f"{name}.so"),
                str(folder / "fake.c"),
            ],
            check=True,
        )
    (folder / "empty.so").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("library", "env", "status", "says"),
    [
        ("right.so", {}, "PASS", "8 GPU"),
        ("right.so", {"FAKE_COUNT": "7"}, "INFO", "finds 7 GPU(s), KFD shows 8"),
        ("right.so", {"FAKE_COUNT": "0"}, "FAIL", "finds no GPU"),
        ("right.so", {"FAKE_CODE": "100"}, "FAIL", "hipErrorNoDevice"),
        ("right.so", {"FAKE_COUNT_CODE": "209"}, "FAIL", "hipErrorNoBinaryForGpu"),
        ("right.so", {"FAKE_CODE": "4711"}, "FAIL", "4711"),
        ("right.so", {"FAKE_CRASH": "1"}, "FAIL", "SIGSEGV"),
        ("right.so", {"FAKE_HANG": "1"}, "FAIL", "hangs"),
        ("missing.so", {}, "FAIL", "hipGetDeviceCount"),
        ("empty.so", {}, "FAIL", "cannot be loaded"),
    ],
)
def test_hip_init_on_fake_libraries(
    library: str,
    env: dict[str, str],
    status: str,
    says: str,
    fake_hip: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check's own child loads a real library, which stands where the machine's would be found."""
    from portagemm.doctor.host import Host

    machine = machine_files.machine("mi300x8")
    host = open_machine(machine, tmp_path, live_children=True)
    real = Host.child

    def child(self: Host, name: str, *args: str, timeout: float = 10.0, env: Any = None) -> Any:
        assert name == "hip_init" and args[0].endswith("/torch/lib/libamdhip64.so")
        return real(
            self, name, str(fake_hip / library), timeout=2.0 if "FAKE_HANG" in fake else 30.0, env=fake
        )

    fake = dict(env)
    monkeypatch.setattr(Host, "child", child)
    wanted = ["amd.hip-init", "amd.topology", "amd.visible-mask", "amd.kfd-access"]
    outcomes = run_checks(host, select(only=wanted))
    result = next(outcome.result for outcome in outcomes if outcome.check.id == "amd.hip-init")
    assert result.status.name == status, result
    assert says in result.message
