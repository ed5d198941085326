"""The frame: ordering and skipping of checks, time limits, faults; hosts, machine files, recording."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portagemm.doctor import check as check_module
from portagemm.doctor.check import (
    Check,
    Context,
    Remedy,
    Result,
    Status,
    all_checks,
    fail,
    info,
    passed,
    skip,
    warn,
)
from portagemm.doctor.host import Host
from portagemm.doctor.host_types import Command, Recorded, Stat, User
from portagemm.doctor.machine_file import MachineFile, MachineFileError, dump, expand, parse
from portagemm.doctor.record import Recorder
from portagemm.doctor.replay import open_machine, open_tree
from portagemm.doctor.runner import SelectionError, run_checks, select

pytestmark = pytest.mark.quick

DO = Remedy("Do this.")


def make(check_id: str, function: Callable[[Any], Result], **more: Any) -> Check:
    values: dict[str, Any] = {
        "title": "t",
        "reads": (),
        "severity": "degrades",
        "probe": "passive",
        "needs": (),
        "after": (),
        "timeout": 5.0,
        "explanation": "e",
    }
    return Check(id=check_id, function=function, **{**values, **more})


def run(*checks: Check, **more: Any) -> dict[str, Result]:
    known = {item.id: item for item in checks}
    outcomes = run_checks(Host("/nowhere", {}), select(checks=known, **more))
    return {outcome.check.id: outcome.result for outcome in outcomes}


def test_only_the_root_of_a_chain_fails() -> None:
    found = run(
        make("c.three", lambda ctx: fail("not reached", remedies=(DO,)), needs=("c.two",)),
        make("c.two", lambda ctx: fail("not reached", remedies=(DO,)), needs=("c.one",)),
        make("c.one", lambda ctx: fail("the root", remedies=(DO,))),
        make("c.other", lambda ctx: passed("fine"), after=("c.one",)),
    )
    assert [found[f"c.{name}"].status.name for name in ("one", "two", "three", "other")] == [
        "FAIL",
        "SKIP",
        "SKIP",
        "PASS",
    ]
    assert found["c.two"].data["because"] == found["c.three"].data["because"] == "c.one"


def test_what_does_not_apply_is_skipped_for_its_reason() -> None:
    found = run(
        make("c.one", lambda ctx: skip("not WSL")),
        make("c.two", lambda ctx: passed("not reached"), needs=("c.one",)),
    )
    assert found["c.two"].status is Status.SKIP
    assert found["c.two"].message == "not WSL"
    assert "because" not in found["c.two"].data


@pytest.mark.parametrize("good", [passed("x"), info("x"), warn("x", remedies=(DO,))])
def test_a_warning_does_not_stop_the_next(good: Result) -> None:
    found = run(make("c.one", lambda ctx: good), make("c.two", lambda ctx: passed("y"), needs=("c.one",)))
    assert found["c.two"].status is Status.PASS


def test_a_check_sees_the_data_of_earlier_ones() -> None:
    found = run(
        make("c.two", lambda ctx: passed(str(ctx.data("c.one", "n", 0))), after=("c.one",)),
        make("c.one", lambda ctx: passed("x", data={"n": 7})),
    )
    assert found["c.two"].message == "7"


def test_a_check_that_raises_or_returns_nothing_is_err() -> None:
    def broken(ctx: Context) -> Result:
        raise KeyError("gone")

    found = run(make("c.raises", broken), make("c.none", lambda ctx: None))  # type: ignore[arg-type, return-value]
    assert found["c.raises"].status is found["c.none"].status is Status.ERR
    assert "KeyError" in found["c.raises"].message
    assert "test_doctor_frame.py" in found["c.raises"].details[0]


def test_a_check_that_hangs_is_given_up_and_the_rest_runs() -> None:
    def hangs(ctx: Context) -> Result:
        time.sleep(20)
        return passed("late")

    start = time.monotonic()
    found = run(make("c.hangs", hangs, timeout=0.2), make("c.next", lambda ctx: passed("x")))
    assert time.monotonic() - start < 5
    assert found["c.hangs"].status is Status.ERR
    assert found["c.next"].status is Status.PASS


def test_a_cycle_is_a_fault_of_ours() -> None:
    checks = {
        "c.one": make("c.one", lambda ctx: passed("x"), needs=("c.two",)),
        "c.two": make("c.two", lambda ctx: passed("x"), needs=("c.one",)),
    }
    with pytest.raises(ValueError, match=r"c\.one -> c\.two -> c\.one"):
        select(checks=checks)


def test_selection() -> None:
    checks = {
        item.id: item
        for item in (
            make("wsl.one", lambda ctx: passed("x")),
            make("wsl.two", lambda ctx: passed("x"), needs=("wsl.one",)),
            make("amd.one", lambda ctx: passed("x"), probe="process"),
            make("amd.gpu", lambda ctx: passed("x"), probe="gpu"),
            make("cluster.x", lambda ctx: passed("x"), probe="compare"),
        )
    }

    def ids(**more: Any) -> list[str]:
        return [item.id for item in select(checks=checks, **more)]

    assert ids() == ["wsl.one", "wsl.two", "amd.one"]
    assert ids(classes=("passive",)) == ["wsl.one", "wsl.two"]
    assert ids(only=["wsl.two"]) == ["wsl.one", "wsl.two"]  # with what it needs
    assert ids(only=["wsl.two"], skip=["wsl.one"]) == ["wsl.two"]
    assert ids(only=["amd"]) == ["amd.one"]
    assert ids(only=["amd.gpu"]) == ["amd.gpu"]  # its full id brings its class along
    assert ids(only=["*.one"]) == ["wsl.one", "amd.one"]
    for wrong in ({"only": ["nope"]}, {"skip": ["nope"]}, {"skip": ["*"]}, {"only": ["amd.g*"]}):
        with pytest.raises(SelectionError):
            ids(**wrong)


def test_registration_checks_id_and_docstring() -> None:
    def documented(ctx: Context) -> Result:
        """Says why."""
        return passed("x")

    def bare(ctx: Context) -> Result:
        return passed("x")

    for wrong in ("nope.x", "wsl", "wsl."):
        with pytest.raises(ValueError, match="no such group"):
            check_module.check(wrong, "t", reads=(), severity="degrades")(documented)
    with pytest.raises(ValueError, match="docstring"):
        check_module.check("wsl.bare", "t", reads=(), severity="degrades")(bare)
    with pytest.raises(ValueError, match="twice"):
        check_module.check("wsl.version", "t", reads=(), severity="degrades")(documented)


def test_every_check_is_complete() -> None:
    checks = all_checks()
    for item in checks.values():
        assert item.title and not item.title.endswith("."), item.id
        assert item.reads, item.id
        assert len(item.explanation) > 60, f"{item.id}: the explanation says little"
        assert item.timeout > 0
        for other in (*item.needs, *item.after):
            assert other in checks, f"{item.id} depends on {other}, which does not exist"
    select()  # no cycle


# -- hosts -----------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/text").write_bytes(b"gr\xfc\xdfe\n")
    (tmp_path / "etc/number").write_text("0x10de\n")
    (tmp_path / "etc/absolute").symlink_to("/etc/text")
    (tmp_path / "etc/out").symlink_to("../../../../../../../../etc/passwd")
    (tmp_path / "etc/loop").symlink_to("loop")
    (tmp_path / "etc/.hidden").write_text("x")
    (tmp_path / "folder").symlink_to("etc")
    return tmp_path


def test_a_tree_stays_within_itself(tree: Path) -> None:
    host = Host(tree, {})
    assert host.text("/etc/absolute") == "gr��e\n"
    assert host.text("/folder/text") == host.text("/etc/text")
    assert host.realpath("/folder/absolute") == "/etc/text"
    assert host.text("/etc/out") == ""  # /etc/passwd of the tree, which has none
    assert host.text("/etc/loop") == "" and host.realpath("/etc/loop") == "/etc/loop"
    assert host.text("relative") == "" and not host.exists("etc")
    assert host.text("/../../etc/number") == "0x10de\n"
    assert host.number("/etc/number") == 0x10DE and host.number("/etc/text") is None
    assert host.text("/etc") == "" and host.is_dir("/etc")
    assert host.glob("/folder/*") == [
        "/folder/absolute",
        "/folder/loop",
        "/folder/number",
        "/folder/out",
        "/folder/text",
    ]
    assert host.glob("/e*/n?mbe[r]") == ["/etc/number"]
    assert host.glob("/nothing/*") == [] and host.listdir("/etc/text") == []
    assert host.readlink("/etc/absolute") == "/etc/text" and host.readlink("/etc/text") is None


def test_a_fifo_does_not_block(tree: Path) -> None:
    os.mkfifo(tree / "etc/fifo")
    host = Host(tree, {})
    assert host.text("/etc/fifo") == "" and host.data("/etc/fifo") is None


def test_who_may_open_a_recorded_node() -> None:
    nodes = {"/dev/a": {"kind": "char", "mode": 0o660, "uid": 0, "gid": 110}}

    def code(user: User, tmp: Path, **more: Any) -> int:
        both = {"/dev/a": {**nodes["/dev/a"], **more}}
        return Host(tmp, {}, recorded=Recorded(nodes=both, user=user)).open_errno("/dev/a", write=True)

    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "dev").mkdir()
        (folder / "dev/a").touch()
        assert code(User(1000, 1000, (1000,)), folder) == errno.EACCES
        assert code(User(1000, 1000, (110, 1000)), folder) == 0
        assert code(User(0, 0, (0,)), folder) == 0
        assert code(User(0, 0, (0,)), folder, open="EPERM") == errno.EPERM
        assert code(User(1000, 1000, (1000,)), folder, mode=0o666) == 0
        assert code(User(1000, 1000, (1000,)), folder, mode=0o664) == errno.EACCES
        assert (
            code(User(1000, 1000, (110,)), folder, uid=1000, mode=0o066) == errno.EACCES
        )  # the owner's bits count
        assert Host(folder, {}).open_errno("/dev/b") == errno.ENOENT


def test_mounts(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / /a\\040b rw,noexec - nfs4 s:/x ro,vers=4\n"
        "3 1 8:2 / /home rw - ext4 /dev/sdb rw\n4 1 0:8 / /home rw - tmpfs none rw\nbad line\n5 1 8:3 / /short - ext4\n"
    )
    host = Host(tmp_path, {})
    found = host.mount("/a b/c/d")
    assert found is not None and (found.kind, found.point) == ("nfs4", "/a b")
    assert found.options == {"rw", "noexec", "ro", "vers=4"}
    home = host.mount("/home/x")
    assert home is not None and home.kind == "tmpfs"  # the later mount hides the earlier
    root = host.mount("/homestead")
    assert root is not None and root.kind == "ext4"


def test_commands_never_raise(tmp_path: Path) -> None:
    script = tmp_path / "says"
    script.write_bytes(b"#!/bin/sh\nprintf 'caf\\351 %s\\n' \"$LC_ALL\"\necho oops >&2\nexit 3\n")
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 30 &\nsleep 30\n")
    (tmp_path / "plain").write_text("x")
    for path in (script, slow):
        path.chmod(0o755)
    host = Host(env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    done = host.run(["says"])
    assert (done.stdout, done.stderr, done.code, done.ok) == ("caf� C\n", "oops\n", 3, False)
    assert host.run(["nope"]).problem == "not-found"
    assert host.run([str(tmp_path / "plain")]).problem == "not-found"  # no executable
    start = time.monotonic()
    late = host.run(["slow"], timeout=0.3)
    assert late.problem == "timed-out" and time.monotonic() - start < 5
    assert late.say() == "timed out"
    assert Host(tmp_path, {"PATH": "/"}).run(["says"]).problem == "not-found"  # a tree runs nothing


def test_a_process_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that sleeps in a hung driver: even SIGKILL does not end it, and nobody waits for it."""
    kept: list[subprocess.Popen[bytes]] = []

    def never(self: subprocess.Popen[bytes], *_: Any, **__: Any) -> tuple[bytes, bytes]:
        kept.append(self)
        raise subprocess.TimeoutExpired(self.args, 1.0)

    monkeypatch.setattr(subprocess.Popen, "communicate", never)
    monkeypatch.setattr("portagemm.doctor.process.kill", lambda process: None)
    start = time.monotonic()
    try:
        done = Host(env={"PATH": "/usr/bin:/bin"}).run(["sleep", "20"], timeout=0.1)
        assert done.problem == "timed-out" and time.monotonic() - start < 5
    finally:
        os.kill(kept[0].pid, signal.SIGKILL)
        os.waitpid(kept[0].pid, 0)


def test_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from portagemm.doctor import host as module

    monkeypatch.setattr(module, "_PROBES", tmp_path)
    (tmp_path / "good.py").write_text(
        "import json, sys\nprint('noise')\nprint(json.dumps({'args': sys.argv[1:]}))\n"
    )
    (tmp_path / "crash.py").write_text(
        "import os, signal\nprint('{}', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    (tmp_path / "hang.py").write_text("import time\nprint('{\"stage\": 1}', flush=True)\ntime.sleep(30)\n")
    (tmp_path / "text.py").write_text("print('no json')\n")
    host = Host()
    good = host.child("good", "a", "b c")
    assert good.ok and good.value == {"args": ["a", "b c"]}
    crash = host.child("crash")
    assert crash.crashed == "SIGSEGV" and not crash.ok and crash.value == {}
    hang = host.child("hang", timeout=1.0)
    assert hang.timed_out and not hang.ok
    text = host.child("text")
    assert not text.ok and text.value is None
    assert host.child("missing").command.code != 0
    assert not Host(tmp_path, {}).child("good").recorded  # a tree runs no children


# -- machine files and recordings ------------------------------------------------------------------------


def test_a_machine_file_survives_writing_and_reading() -> None:
    machine = MachineFile(
        files={
            "/a/empty": b"",
            "/a/value": b"12\n",
            "/a/text": b"one\n--- two\n\\three\n\n",
            "/a/open": b"no newline at the end",
            "/a/binary": b"\x00\xff\r\n",
            "/a/{b,c}": b"braces\n",
            "/a/spaces": b" x \n",
        },
        links={"/l": "/a/value"},
        folders={"/empty"},
        nodes={
            "/dev/x": {
                "kind": "char",
                "mode": 0o660,
                "uid": 0,
                "gid": 44,
                "open": "EPERM",
                "device": [195, 0],
            }
        },
        env={"A": "b=c", "B": ""},
        machine={"user": {"uid": 5}},
        commands=[{"argv": ["a", "b c"], "stdout": "x\ny\n", "stderr": "z\n", "code": 9, "seconds": 0.5}],
        probes=[{"key": "p 1", "value": {"k": ["v"]}, "problem": "timed-out", "code": -9}],
        notes={"story": "text\n"},
    )
    machine.nodes["/shm"] = {
        "kind": "dir",
        "mode": 0o1777,
        "space": {"total": 1, "free": 0, "inodes": 3, "free_inodes": 2},
    }
    assert parse(dump(machine)) == machine


@pytest.mark.parametrize(
    "text",
    [
        "",
        "something else",
        "portagemm-machine 1\n--- nodes\n/dev/x char\n",
        "portagemm-machine 1\n--- nodes\n/dev/x char 666 0 0 what=1\n",
        "portagemm-machine 1\n--- machine\nuser = {\n",
        "portagemm-machine 1\n--- probe x\nnot json\n",
        "portagemm-machine 1\n--- include other\n",
        "portagemm-machine 1\n--- exit code=x\n",
    ],
)
def test_a_damaged_machine_file_is_told(text: str) -> None:
    with pytest.raises(MachineFileError):
        parse(text)


@pytest.mark.parametrize("path", ["relative", "/a/../../etc/x", "/a\0b"])
def test_a_machine_file_cannot_leave_its_folder(path: str, tmp_path: Path) -> None:
    with pytest.raises(MachineFileError, match="bad path"):
        open_machine(MachineFile(files={path: b"x"}), tmp_path)


def test_a_machine_file_writes_through_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    machine = MachineFile(links={"/etc": str(outside)}, files={"/etc/x": b"x"})
    open_machine(machine, tmp_path / "in")
    assert list(outside.iterdir()) == []


def test_braces() -> None:
    assert expand("/d{0..2}/{a,b}") == ["/d0/a", "/d0/b", "/d1/a", "/d1/b", "/d2/a", "/d2/b"]
    assert expand("/plain{}") == ["/plain{}"]


def test_a_folder_without_recordings_is_the_machine_itself(tree: Path) -> None:
    host = open_tree(tree)
    assert host.value("/etc/number") == "0x10de" and dict(host.env) == {}
    with pytest.raises(NotADirectoryError):
        open_tree(tree / "nothing")


def test_damaged_recordings_are_told(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    for name, text in (("machine.json", "{"), ("commands.json", '[{"stdout": ""}]'), ("machine.json", "[1]")):
        (tmp_path / name).write_text(text)
        with pytest.raises(MachineFileError):
            open_tree(tmp_path)


def test_a_recorded_root_folder_replays(tmp_path: Path) -> None:
    """Without a home the root folder itself is tried."""
    recorder = Recorder()
    recorder.write("/", errno.EACCES)
    recorder.machine.files["/etc/x"] = b""
    host = open_machine(parse(dump(recorder.finish(Host()))), tmp_path)
    assert host.try_folder("/no/such").errno == errno.EACCES and host.exists("/etc/x")


def test_a_recording_keeps_what_concerns_gpus_alone() -> None:
    recorder = Recorder()
    recorder.file("/proc/4321/comm", b"nv-fabricmanage\n")
    recorder.file("/proc/4322/comm", b"secret-project\n")
    recorder.stat("/proc/4322", Stat("dir", 0o555, 0, 0))
    recorder.stat("/proc/4322/comm", Stat("file", 0o444, 0, 0))
    recorder.file("/var/log/kern.log", b"usb 1-2: SerialNumber: 4711\nNVRM: Xid (PCI:0000:41:00): 79\n")
    recorder.file("/etc/ld.so.cache", b"\0\1/usr/lib/libcuda.so.1\0/usr/lib/libsecret.so\0")
    recorder.file("/usr/lib/libx.so", b"\x7fELF secret GLIBC_2.34 GLIBCXX_3.4.30\0")
    recorder.file("/var/lib/dpkg/status", b"Package: secret\nStatus: x\n\nPackage: cuda-drivers\nStatus: y\n")
    recorder.command(Command(("dmesg",), "eth0: 00:11:22\nkfd kfd: skipped device 1002:67df\n"))
    text = dump(recorder.machine)
    for kept in ("nv-fabricmanage", "Xid", "libcuda.so.1", "GLIBC_2.34", "cuda-drivers", "skipped device"):
        assert kept in text
    for left_out in ("secret", "4711", "eth0", "4322"):
        assert left_out not in text


@pytest.mark.skipif(sys.platform != "linux", reason="records Linux's files")
def test_a_recording_of_this_machine_replays_it(tmp_path: Path) -> None:
    recorder = Recorder()
    live = Host(recorder=recorder)
    wanted = select(classes=("passive",))
    first = {o.check.id: (o.result.status, o.result.message) for o in run_checks(live, wanted)}
    replayed = open_machine(parse(dump(recorder.finish(live))), tmp_path)
    second = {o.check.id: (o.result.status, o.result.message) for o in run_checks(replayed, wanted)}
    assert first == second
