"""What redaction takes out: names and addresses in the forms launchers, mounts and masks write them; and what it
leaves, since a version of four numbers is no address."""

from __future__ import annotations

from pathlib import Path

import pytest

from portagemm.doctor.host import Host
from portagemm.doctor.host_types import Recorded, Uname, User
from portagemm.doctor.machine_file import MachineFile, dump
from portagemm.doctor.redact import Redactor

pytestmark = pytest.mark.quick


def redactor(**env: str) -> Redactor:
    """Of root, by sudo, on a host known by its short name."""
    variables = {"HOME": "/root", "SUDO_USER": "zebediah", "HOSTNAME": "gandalf77.corp.example", **env}
    recorded = Recorded(
        user=User(0, 0, (0,), "root", "/root"), uname=Uname("Linux", "6.1", "x86_64", "gandalf77")
    )
    return Redactor(Host(Path("/nonexistent"), variables, recorded=recorded))


@pytest.mark.parametrize(
    "text",
    [
        "connect to 10.23.45.67:29500 failed",
        "inet 192.168.17.5/24",
        "peer 10.23.45.67@o2ib is down",
        "server=10.23.45.67",
        "nfsroot=10.23.45.67:/export",
        "tcp://10.23.45.67/x",
        "route by 172.31.4.5 (eth0)",
        "GID fe80:0000:0000:0000:506b:4b03:00c4:4d1e",
        "[fe80::1de]:22 or fe80::506b:4b03:c4:4d1e",
        "at 2a02:908:1:2::17 now",
    ],
)
def test_addresses_go(text: str) -> None:
    clean = redactor().text(text)
    for part in ("23.45", "168.17", "31.4", "506b", "908", "1de"):
        assert part not in clean, clean
    assert "192.0.2.1" in clean or "2001:db8::1" in clean, clean
    assert redactor().text(clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-cublas-cu12 12.4.5.8",
        "libcublas.so.12.4.5.8",
        "cuBLAS 12.4.5.8: too old; 10.2.1.243 works",
        "/usr/local/cuda/lib64/libnvrtc.so.11.2.152",
        "driver 31.0.15.5161, cuDNN 8.9.7.29-1",
        "/opt/tools/10.3.0.1/lib",
        "127.0.0.1:29500 and 0.0.0.0:80 and [::1]:22",
        "0000:c1:00.0 and 00000000:0A:00.0",
        "c10::add, c10d::ab, std::vector, fe::x, at 12:34:56",
        "2024-01-02 03:04:05,123",
        "/home/linuxbrew/.linuxbrew/bin/gcc /home/ubuntu/x",
    ],
)
def test_what_only_looks_like_an_address_stays(text: str) -> None:
    assert redactor().text(text) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_COMM_ID", "10.23.45.67:1234"),
        ("MASTER_ADDR", "10.23.45.67"),
        ("SLURMD_NODENAME", "bigbox12"),
        ("SLURM_JOB_USER", "hildegard"),
        ("SUDO_USER", "hildegard"),
        ("PMIX_SERVER_URI2", "pmix-server.17;tcp4://10.23.45.67:4711"),
        ("PMI_PORT", "bigbox12:4711"),
        ("LSB_HOSTS", "bigbox12 bigbox13"),
        ("MPI_REMOTE_HOSTS", "bigbox12"),
        ("OMPI_MCA_btl_tcp_if_include", "10.23.45.0/24"),
        ("OMPI_MCA_orte_hnp_uri", "123.0;tcp://10.23.45.67,172.17.0.1:33"),
        ("GLOO_SOCKET_IFNAME", "10.23.45.67"),
        ("UCX_NET_DEVICES", "fe80::dead:beef"),
        ("http_proxy", "http://u:pw12345@10.23.45.67:80"),
        ("SSH_CONNECTION", "10.23.45.70 22 10.23.45.71 22"),
        ("GITHUB_PAT", "patvalue1234567"),
        ("PORTAGEMM_CACHE", "/home/hildegard/cache"),
        ("LD_LIBRARY_PATH", "/mnt/c/Users/hildegard/lib"),
    ],
)
def test_variables(name: str, value: str) -> None:
    clean = redactor().variable(name, value)
    for private in ("10.23", "bigbox", "hildegard", "dead:beef", "pw12345", "patvalue"):
        assert private not in clean, clean
    assert redactor().variable(name, clean) == clean


def test_variables_that_stay() -> None:
    for name, value in {
        "CUDA_VERSION": "12.4.5.8",
        "NV_CUDNN_VERSION": "8.9.7.29-1",
        "NV_LIBNPP_PACKAGE": "libnpp-12-4=12.2.5.30-1",
        "NCCL_SOCKET_IFNAME": "eth0",
        "PIP_INDEX_URL": "https://pypi.org/simple",
        "LD_LIBRARY_PATH": "/opt/cuda/12.4.5.8/lib",
        "USER": "root",
        "HSA_OVERRIDE_GFX_VERSION": "10.3.0",
    }.items():
        assert redactor().variable(name, value) == value


def test_names_of_who_and_where() -> None:
    clean = redactor().text
    assert clean("gandalf77.corp.example gandalf77 gandalf78.corp.example") == "host host host"
    assert clean("/logs/gandalf77.json /logs/gandalf77.log") == "/logs/host.json /logs/host.log"
    assert clean("/srv/people/zebediah/x by zebediah") == "/srv/people/user/x by user"
    one, two = clean("/home/hildegard/a"), clean("/home/ottokar/a")
    assert one != two and "hildegard" not in one and clean(one) == one


UUID = "3f1c0f52-9a0e-4000-8000-00000000000{}"


def test_short_uuids_still_name_their_gpu() -> None:
    machine = MachineFile(
        env={"CUDA_VISIBLE_DEVICES": "GPU-3f1c0f5,GPU-7777777"},
        commands=[{"argv": ["nvidia-smi", "-L"], "stdout": f"GPU 0 (UUID: GPU-{UUID.format(1)})\n"}],
    )
    clean = redactor().machine(machine)
    first, second = clean.env["CUDA_VISIBLE_DEVICES"].split(",")
    assert first in clean.commands[0]["stdout"] and len(first) == len("GPU-") + 36
    assert second not in clean.commands[0]["stdout"] and "7777777" not in second
    machine.commands[0]["stdout"] += f"GPU 1 (UUID: GPU-{UUID.format(2)})\n"
    env = redactor().machine(machine).env
    assert env["CUDA_VISIBLE_DEVICES"].startswith("GPU-00000000,"), "of two as before"
    assert (
        redactor().text("GPU-accelerated GPU-0 GPU-12 GPU-based") == "GPU-accelerated GPU-0 GPU-12 GPU-based"
    )
    assert redactor().text(first) == first and redactor().text(second) == second


MOUNTS = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
27 22 0:48 / /home rw - nfs4 10.23.45.1:/export rw,vers=4.2,clientaddr=10.23.45.2,addr=10.23.45.1
28 22 0:49 / /a rw - nfs [fe80::1]:/secretshare rw,vers=3,mountaddr=fe80::1
29 22 0:50 / /b rw,noexec - cifs //filer/secretshare rw,username=hildegard,domain=CORP,addr=10.23.45.3
30 22 0:51 / /c rw - ceph 10.23.45.4:6789,10.23.45.5:6789:/vol rw,name=hildegard,mon_addr=10.23.45.4:6789
31 22 0:52 / /d rw - lustre 10.23.45.6@o2ib,10.23.45.7@tcp1:10.23.45.8@o2ib:/secretshare rw,flock
32 22 0:53 / /e rw - fuse.sshfs hildegard@filer:/secretshare rw,user_id=1000
33 22 0:54 / /f rw - ceph hildegard@01234567.vol=/ rw,secret=<hidden>,mon_addr=10.23.45.4
34 22 0:55 / /mnt/c rw - 9p C:\\134 rw,dirsync,aname=drvfs;path=C:\\134,cache=5
35 22 0:56 / /g ro - overlay overlay ro,lowerdir=/var/lib/docker/a:/var/lib/docker/b
36 22 0:57 / /h rw - tmpfs tmpfs
"""


def test_mounts() -> None:
    machine = MachineFile(files={"/proc/self/mountinfo": MOUNTS.encode()})
    clean = redactor().machine(machine).files["/proc/self/mountinfo"].decode()
    for private in ("10.23", "fe80", "filer", "hildegard", "secretshare", "CORP", "01234567"):
        assert private not in clean, private
    before, after = MOUNTS.splitlines(), clean.splitlines()
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        assert old.split(" - ")[0] == new.split(" - ")[0]
        assert old.split(" - ")[1].split()[0] == new.split(" - ")[1].split()[0]
    for number in (0, 8, 9, 10):
        assert before[number] == after[number]
    assert "vers=4.2" in clean and ",flock" in clean
    assert dump(machine)
