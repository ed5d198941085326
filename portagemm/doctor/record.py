"""Notes everything a `Host` reads, for ``--save-bundle``. Redaction happens when the bundle is written."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from portagemm.doctor.host_types import Child, Command, Space, Stat
from portagemm.doctor.machine_file import MachineFile

if TYPE_CHECKING:
    from portagemm.doctor.host import Host

#: Of larger files only the start is kept. The kernel log and maps are what could be long.
_FILE_LIMIT = 256 << 10
#: What is kept of a library: the versions of symbols it names.
_SYMBOLS = re.compile(rb"\b(?:GLIBC|GLIBCXX|CXXABI|NVRTC|libcuda)_\d+(?:\.\d+)*")
#: Which lines of the kernel's log are kept, and which processes' names.
_LOG_LINES = re.compile(
    r"nvrm|nvidia|nvlink|nouveau|\bxid\b|amdgpu|\bkfd\b|\bdrm\b|iommu|devmem|free_mem_region|secure ?boot|lockdown"
    r"|\bdxg",
    re.IGNORECASE,
)
_LOGS = ("/var/log/dmesg", "/var/log/kern.log", "/var/log/messages")
_PROCESS = re.compile(r"/proc/(?!1(?:/|$))\d+(?:/|$)")  # but PID 1, which tells containers
_PROCESS_NAMES = (b"nv", b"amd", b"rocm")
#: What is kept of the loader's cache: paths of libraries that GPUs have to do with.
_CACHED = re.compile(
    rb"/[\w./+-]*lib(?:cuda|cudart|cublas|nvidia|nvrtc|nvJitLink|nccl|dxcore|d3d12|amdhip|hip|hsa|roc|rccl|drm_amdgpu"
    rb"|stdc\+\+)[\w.+-]*|/usr/lib/wsl/lib/[\w.+-]*"
)


class Recorder:
    """Collects reads into a `MachineFile`; `finish` adds the user, the system and the interpreter."""

    def __init__(self) -> None:
        self.machine = MachineFile()

    def file(self, path: str, data: bytes) -> None:
        """A file was read."""
        if _PROCESS.match(path) and not (path.endswith("/comm") and data.startswith(_PROCESS_NAMES)):
            return  # what else runs is nobody's business
        if path in _LOGS:
            data = _relevant(data.decode("utf-8", "replace")).encode()
        if data.startswith(b"\x7fELF"):
            data = b"\n".join(sorted(set(_SYMBOLS.findall(data)))) + b"\n"
        elif path == "/etc/ld.so.cache":
            data = b"\n".join(sorted(set(_CACHED.findall(data)))) + b"\n"
        elif path == "/var/lib/dpkg/status":
            data = _drivers_of(data)
        self.machine.files[path] = data[:_FILE_LIMIT]

    def unreadable(self, path: str) -> None:
        """A file that exists was denied."""
        self._node(path).setdefault("open", "EACCES")

    def link(self, path: str, target: str) -> None:
        """A link was read or followed."""
        self.machine.links[path] = target

    def stat(self, path: str, found: Stat) -> None:
        """A path was looked at. What a plain file or folder says by itself is left out."""
        if found.kind == "link" or _PROCESS.match(path):
            return
        node = self._node(path)
        if found.kind not in ("file", "dir"):
            node["kind"] = found.kind
            node["device"] = list(found.device)
        elif found.kind == "dir":
            self.machine.folders.add(path)
        # root's, readable and not to be run, is what a file without an entry is
        plain = found.mode == 0o755 if found.kind == "dir" else found.mode & 0o4 and not found.mode & 0o7111
        if not plain or found.uid or found.gid:
            node.update(mode=found.mode, uid=found.uid, gid=found.gid)
        if found.kind == "file":
            self.machine.files.setdefault(path, b"")
            if found.size and not path.startswith(("/proc/", "/sys/")):
                node["size"] = found.size

    def opened(self, path: str, code: int) -> None:
        """A path was opened to see whether it can be; code 0 is yes."""
        if code and code != errno.ENOENT:
            self._node(path)["open"] = errno.errorcode.get(code, "EIO")

    def write(self, folder: str, code: int) -> None:
        """It was tried to make a file in a folder; code 0 is yes."""
        self.machine.folders.add(folder)
        if code:
            self._node(folder)["write"] = errno.errorcode.get(code, "EIO")

    def space(self, path: str, room: Space) -> None:
        """The room of a file system was asked for."""
        self._node(path)["space"] = {
            "total": room.total,
            "free": room.free,
            "inodes": room.inodes,
            "free_inodes": room.free_inodes,
        }

    def env(self, name: str, value: str) -> None:
        """A variable was looked up."""
        self.machine.env[name] = value

    def limit(self, name: str, values: tuple[int, int]) -> None:
        """A resource limit was asked for."""
        self.machine.machine.setdefault("limits", {})[name] = list(values)

    def command(self, done: Command) -> None:
        """A command ran."""
        if done.problem == "not-found":
            return
        stdout = _relevant(done.stdout) if done.argv[0] == "dmesg" else done.stdout
        entry = {"argv": list(done.argv), "stdout": stdout, **_ending(done)}
        self.machine.commands = [old for old in self.machine.commands if old["argv"] != entry["argv"]]
        self.machine.commands.append(entry)

    def probe(self, key: str, done: Child) -> None:
        """A child probe ran."""
        entry = {"key": key, "value": done.value, **_ending(done.command)}
        self.machine.probes = [old for old in self.machine.probes if old["key"] != key]
        self.machine.probes.append(entry)

    def finish(self, host: Host) -> MachineFile:
        """The machine file of everything noted so far."""
        user, uname, python = host.user, host.uname, host.python
        self.machine.machine.update(
            user={
                "uid": user.uid,
                "gid": user.gid,
                "groups": list(user.groups),
                "name": user.name,
                "home": user.home,
            },
            uname={
                "system": uname.system,
                "release": uname.release,
                "machine": uname.machine,
                "node": uname.node,
            },
            python={
                "version": python.version,
                "implementation": python.implementation,
                "executable": python.executable,
                "prefix": python.prefix,
                "base_prefix": python.base_prefix,
                "path": list(python.path),
                "libc": list(python.libc),
                "pointer_bits": python.pointer_bits,
                "free_threaded": python.free_threaded,
                "start_method": python.start_method,
            },
        )
        machine = self.machine
        machine.nodes = {path: node for path, node in machine.nodes.items() if node}
        for path in [path for path in machine.folders if path in machine.files]:
            machine.folders.discard(path)
        return machine

    def _node(self, path: str) -> dict[str, Any]:
        return self.machine.nodes.setdefault(path, {})


def _relevant(log: str) -> str:
    """The lines of a kernel log that concern GPUs."""
    return "".join(line + "\n" for line in log.splitlines() if _LOG_LINES.search(line))


def _drivers_of(data: bytes) -> bytes:
    """The entries of a package list that concern GPUs; what else is installed is nobody's business."""
    wanted = re.compile(rb"Package: [^\n]*(?:nvidia|cuda|rocm|hsa|hip|amdgpu)")
    return b"\n\n".join(block for block in data.split(b"\n\n") if wanted.match(block)) + b"\n"


def _ending(done: Command) -> Mapping[str, Any]:
    values = {"stderr": done.stderr, "code": done.code, "problem": done.problem, "seconds": done.seconds}
    return {key: value for key, value in values.items() if value}
