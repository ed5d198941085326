"""Each threshold at its edge, each condition by itself: golden machines with one thing changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from portagemm.doctor import rocm_versions
from portagemm.doctor.check import Result

from .changes import (
    CGROUP,
    GIB,
    KMD,
    MI300X,
    RELEASE,
    Change,
    both,
    driver,
    fact,
    gfx,
    limits,
    node,
    rocm,
    room,
    torch_rocm,
    value,
    variable,
)

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
