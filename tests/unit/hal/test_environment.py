"""Environment probes on fixture trees: each kind of machine is recognised, and no probe can fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from portagemm.hal import environment
from portagemm.hal.environment import Host, file_system, probe

pytestmark = pytest.mark.quick

KVM = {"sys/class/dmi/id/sys_vendor": "QEMU\n", "sys/class/dmi/id/product_name": "Standard PC (Q35)\n"}
WSL2 = {"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "env", "kind"),
    [
        ({}, {}, "bare metal"),
        ({"sys/class/dmi/id/sys_vendor": "Supermicro\n"}, {}, "bare metal"),
        ({"sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n"}, {}, "bare metal"),  # a Surface
        (
            {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "p4d.metal\n"},
            {},
            "bare metal",
        ),
        (KVM, {}, "virtual machine (kvm)"),
        (
            {
                "sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n",
                "sys/class/dmi/id/product_name": "Virtual Machine\n",
            },
            {},
            "virtual machine (hyper-v)",
        ),
        (
            {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n", "sys/class/dmi/id/product_name": "p5.48xlarge\n"},
            {},
            "virtual machine (nitro (Amazon EC2))",
        ),
        ({"sys/class/dmi/id/sys_vendor": "VMware, Inc.\n"}, {}, "virtual machine (vmware)"),
        ({"sys/hypervisor/type": "xen\n"}, {}, "virtual machine (xen)"),
        ({"sys/hypervisor/type": "xen\n", "proc/xen/capabilities": "control_d\n"}, {}, "bare metal"),
        ({"proc/cpuinfo": "flags\t\t: fpu sse hypervisor avx\n"}, {}, "virtual machine (unknown hypervisor)"),
        ({".dockerenv": ""}, {}, "docker container on bare metal"),
        ({".dockerenv": "", **KVM}, {}, "docker container on virtual machine (kvm)"),
        ({"run/.containerenv": ""}, {}, "podman container on bare metal"),
        ({}, {"container": "podman"}, "podman container on bare metal"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes container on bare metal"),
        ({"var/run/secrets/kubernetes.io/x": ""}, {}, "kubernetes container on bare metal"),
        ({"proc/1/cgroup": "4:cpu:/kubepods/burstable/pod1\n"}, {}, "kubernetes container on bare metal"),
        ({"proc/1/cgroup": "4:cpu:/docker/0123abc\n"}, {}, "docker container on bare metal"),
        ({"proc/1/cgroup": "0::/system.slice/docker-0123.scope\n"}, {}, "docker container on bare metal"),
        ({"proc/1/cgroup": "0::/system.slice/docker.service\n"}, {}, "bare metal"),
        ({"proc/1/environ": "PATH=/bin\0container=lxc\0"}, {}, "lxc container on bare metal"),
        ({"run/systemd/container": "lxc-libvirt\n"}, {}, "lxc container on bare metal"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn container on bare metal"),
        ({"run/systemd/container": "rkt\n"}, {}, "unknown container on bare metal"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer container on bare metal"),
        ({}, {"SINGULARITY_CONTAINER": "/x.sif"}, "apptainer container on bare metal"),
        ({".singularity.d/libs/x": ""}, {}, "apptainer container on bare metal"),
        (
            {"proc/self/mountinfo": "1 0 0:1 / / rw - overlay overlay rw\n"},
            {},
            "unknown container on bare metal",
        ),
        (WSL2, {}, "WSL2"),
        ({**WSL2, ".dockerenv": ""}, {}, "docker container on WSL2"),
        ({**WSL2, "run/systemd/container": "wsl\n"}, {}, "WSL2"),
        ({"dev/dxg": "", "usr/lib/wsl/lib/libcuda.so.1": ""}, {}, "WSL2"),  # a custom kernel
        ({"dev/dxg": ""}, {}, "bare metal"),
        ({"proc/sys/kernel/osrelease": "4.4.0-19041-Microsoft\n"}, {}, "WSL1"),
        ({"proc/version": "Linux version 4.4.0-19041-Microsoft\n"}, {}, "WSL1"),
    ],
)
def test_kind(tmp_path: Path, files: dict[str, str], env: dict[str, str], kind: str) -> None:
    found = probe(tree(tmp_path, files), env)
    assert found.kind == kind
    if kind != "bare metal":
        assert found.evidence
    assert kind in found.describe()[0]


@pytest.mark.parametrize(
    ("files", "env", "notes", "found"),
    [
        ({}, {}, (), ()),
        ({}, {"CUDA_VISIBLE_DEVICES": "0,1"}, (), ()),
        ({}, {"CUDA_VISIBLE_DEVICES": "MIG-12ab"}, (), ("CUDA_VISIBLE_DEVICES names MIG-12ab",)),
        ({}, {}, ("MIG 1g.10gb", "ECC on"), ("MIG 1g.10gb",)),
        (
            {"proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access": "DeviceFileMinor: 9\n"},
            {},
            (),
            ("gpu0/mig/gi1/ci0 under /proc/driver/nvidia/capabilities",),
        ),
        ({"proc/driver/nvidia/capabilities/mig/config": "x"}, {}, (), ()),
    ],
)
def test_mig(
    tmp_path: Path, files: dict[str, str], env: dict[str, str], notes: tuple[str, ...], found: tuple[str, ...]
) -> None:
    assert probe(tree(tmp_path, files), env, driver_notes=notes).mig == found


MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:50 / /home rw - nfs4 server:/home rw
31 22 0:51 / /scratch\\040space rw - lustre x rw
32 22 0:52 / /data rw - ext4 /dev/sdb rw
33 22 0:53 / /data rw - fuse.sshfs y rw
34 22 0:54 / /mnt/c rw - 9p drvfs rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/", "ext4", False),
        ("/homely/x", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/me/.cache/portagemm", "nfs4", True),
        ("/home/../tmp", "ext4", False),
        ("/scratch space/x", "lustre", True),
        ("/data/x", "fuse.sshfs", True),
        ("/mnt/c/Users", "9p", True),
    ],
)
def test_file_system(tmp_path: Path, path: str, kind: str, network: bool) -> None:
    host = Host(tree(tmp_path, {"proc/self/mountinfo": MOUNTS}), {})
    assert file_system(path, host) == kind
    assert environment.FileSystem(path, kind).network is network


def test_vgpu_and_the_limits_of_wsl2(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/driver/nvidia/gpus/0000:02:00.0/information": "Model: \t\t NVIDIA A16-4Q\nIRQ: 40\n",
            "proc/driver/nvidia/gpus/0000:02:01.0/information": "Model: \t\t GRID P40-24Q\n",
            "proc/driver/nvidia/gpus/0000:03:00.0/information": "Model: \t\t NVIDIA A100-SXM4-80GB\n",
        },
    )
    found = probe(root, {})
    assert found.vgpu == ("NVIDIA A16-4Q", "GRID P40-24Q")
    assert "vGPU: NVIDIA A16-4Q" in found.describe()
    assert found.limits == ()
    wsl = probe(tree(tmp_path, WSL2), {})
    assert len(wsl.limits) == 4
    assert any(line.startswith("limit: pinned memory") for line in wsl.describe())


def test_home_and_cache_are_described(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/self/mountinfo": MOUNTS})
    found = probe(root, {"HOME": "/home/me"}, cache_dir="/data/cache")
    assert found.home is not None and found.home.network
    assert "home: /home/me on nfs4 (network)" in found.describe()
    assert "kernel cache: /data/cache on fuse.sshfs (network)" in found.describe()
    assert probe(root, {}).home is None


def test_reads_stay_below_the_root(tmp_path: Path) -> None:
    """The probes open nothing outside the fixture: seen by the audit hook on open and listdir."""
    import sys

    opened: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if (
            watching
            and event in ("open", "os.listdir", "os.scandir")
            and isinstance(arguments[0], str | Path)
        ):
            opened.append(os.fspath(arguments[0]))

    sys.addaudithook(hook)
    probe(tree(tmp_path, {".dockerenv": ""}), {}, cache_dir="/x")
    watching = False
    assert opened and all(path.startswith(str(tmp_path)) for path in opened)


def test_no_probe_fails_on_nonsense(tmp_path: Path) -> None:
    for name in ("proc/version", "proc/1/environ", "sys/class/dmi/id/sys_vendor", "proc/cpuinfo"):
        (tmp_path / name).mkdir(parents=True)  # folders where files belong
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_bytes(b"\xff\xfe - \x00 -\n 1 2 3 4 5 - \n")
    assert probe(tmp_path, {"HOME": "\0bad"}).kind == "bare metal"
    assert probe(tmp_path / "missing", {}).kind == "bare metal"


def test_this_machine() -> None:
    found = probe()
    assert found.system and found.kind


def test_cpu_identity_depends_on_features_only(tmp_path: Path) -> None:
    def identity(name: str, text: str) -> str:
        return environment.cpu_identity_of(Host(tree(tmp_path / name, {"proc/cpuinfo": text}), {}))

    base = identity("a", "processor : 0\nmodel name : X\ncpu MHz : 1\nflags : fpu avx2\n")
    assert identity("b", "processor : 7\nmodel name : Y\ncpu MHz : 2\nflags : avx2 fpu\n") == base
    assert identity("c", "flags : fpu avx2 avx512f\n") != base
    assert identity("d", "Features : fp asimd\n") != base
    assert identity("e", "processor : 0\nmodel : 85\nflags : fpu avx2\n") != base, (
        "compilers tune for the model"
    )
    assert identity("f", "flags : fpu avx2\n\nprocessor : 1\nflags : fpu\n") == base, "the first core's"
    assert environment.cpu_identity() == environment.cpu_identity()
