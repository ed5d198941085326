"""What the checks say and advise: the reason, and the way that fits this machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from portagemm.doctor.check import Result
from portagemm.doctor.machine_file import MachineFile

from .changes import both, fact, limits, node, room, value, variable


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
