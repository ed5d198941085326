"""Takes names, ids and secrets out of reports and bundles. On by default; ``--no-redact`` leaves them in.

What is replaced keeps its form, so that a redacted machine replays like the original: the user is ``user``
with home ``/home/user``, the host is ``host``, a UUID becomes another UUID that begins with eight zeros and
is the same wherever the original was the same. Secrets become ``***``, addresses of the network those that
RFC 5737 and RFC 3849 keep for documents. A version of four numbers looks like an IPv4 address, and is kept: an
address is one by its place, with a port or a prefix length, after "addr=", or in a variable.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from portagemm.doctor.host import Host
from portagemm.doctor.machine_file import MachineFile

SECRET_NAME = re.compile(r"SECRET|TOKEN|KEY|PASS|CREDENTIAL|AUTH|COOKIE|SIGNATURE|_PAT$", re.IGNORECASE)
#: Variables whose names look secret and whose values are not.
_NOT_SECRET = re.compile(r"KEYBOARD|BYPASS|PASSTHROUGH|MONKEY|AUTHORS?$", re.IGNORECASE)
#: Variables that hold addresses or names of hosts.
_ADDRESS_NAME = re.compile(
    r"(?:ADDRS?|ADDRESS(?:ES)?|(?:^|_)HOSTS?|HOSTNAMES?|HOSTFILE|HOSTLIST|NODELIST|NODENAME|NODEFILE|_NODES_NAMES"
    r"|_IPS?|CONNECTION|CLIENT|COMM_ID|_UR[IL]\d*|_SERVER|PMI_PORT|SERVER_URI\w*|_ENDPOINTS?)$",
    re.IGNORECASE,
)
#: Indexes of packages are no part of the machine: their addresses stay, their logins do not.
_PUBLIC_URL = re.compile(r"INDEX_URL|^PIP_|^UV_|^CONDA_", re.IGNORECASE)
#: Variables that hold a user's name.
_USER_NAME = re.compile(r"(?:^|_)(?:USER|USERNAME|LOGNAME)$")
#: Variables that hold versions, which look like addresses.
_VERSION_NAME = re.compile(r"VERS?(?:ION)?S?(?:_|$)|^NV_|^NVIDIA_|PACKAGE", re.IGNORECASE)
_HIDDEN = "***"
_UUID = re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b")
_SERIAL = re.compile(
    r"(serial(?:[ _]?(?:number|no))?[\"']?\s*[:=,>]\s*[\"']?)(?!N/A|\[N/A)([\w-]{4,})", re.IGNORECASE
)
_UNIQUE_ID = re.compile(r"(unique_id[\"']?\s*[: =]\s*[\"']?)(0x[0-9a-fA-F]+|\d+)")
#: In nvidia-smi's report: who else uses the GPUs.
_PROCESS_NAME = re.compile(r"(<process_name>)[^<]*")
#: How a mask names an AMD GPU: by the unique_id of KFD, in hexadecimal.
_AMD_ID = re.compile(r"\bGPU-([0-9a-fA-F]{16})\b")
_URL_LOGIN = re.compile(r"(\w+://)[^/\s@:]+(?::[^/\s@]*)?@")
_KNOWN_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{20,}"
    r"|xox[abp]-[\w-]{10,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IP4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
#: Where only an address can stand: with a port or a prefix length, after what announces one, or in ranges that
#: no version reaches. Loopback and "any" tell nothing.
_PLACED_IP4 = re.compile(
    rf"(?<![\w./-])(?!127\.|0\.0\.0\.0\b)(?:{_IP4}(?=:\d{{1,5}}\b(?![.:\d])|:/|/\d{{1,2}}(?![\w./-])|@\w)"
    rf"|(?:1(?:2[89]|[3-9]\d)|2[0-4]\d|25[0-4])(?:\.{_OCTET}){{3}}(?![\w.-]))"
    rf"|(?:(?<=://)|(?<=@)|(?<=addr=)|(?<=ip=)|(?<=host=)|(?<=server=)|(?<=nfsroot=))(?!127\.){_IP4}(?![\w.])"
)
#: An address that is a value, or one of several.
_BARE_IP4 = re.compile(rf"(?<![\w./-])(?!127\.|0\.0\.0\.0\b){_IP4}(?![\w.-])")
#: Global, unique local, link local and multicast IPv6: nothing else in a report begins with such four digits and
#: has "::", or eight groups.
_IP6 = re.compile(
    r"(?<![\w:.])(?:[23][0-9a-f]{3}|f[cd][0-9a-f]{2}|fe[89ab][0-9a-f]|ff[0-9a-f]{2})"
    r"(?:(?::[0-9a-f]{1,4}){7}|(?=[0-9a-f:]*::)(?::[0-9a-f]{0,4}){2,7})(?![\w:])",
    re.IGNORECASE,
)
_SOME_IP4, _SOME_IP6 = "192.0.2.1", "2001:db8::1"
#: A home, of whomever.
_ANY_HOME = re.compile(r"([/\\](?:home|Users)[/\\]+)([^/\\\s:;,\"'<>()*?$\[\]{}|]+)")
_ALIAS = re.compile(r"user(?:-[0-9a-f]{4})?")
#: A GPU named by the beginning of its UUID.
_SHORT_UUID = re.compile(
    r"\b(GPU|MIG)-([0-9a-fA-F]{4,8}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){0,2}-[0-9a-fA-F]{0,4}"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{0,11})(?![0-9a-zA-Z-])"
)
#: What follows a host's name as its domain; the end of a file's name is none.
_DOMAIN = (
    r"(?:(?:\.[A-Za-z][A-Za-z0-9-]*)+(?<!\.so)(?<!\.json)(?<!\.ya?ml)(?<!\.log)(?<!\.py)(?<!\.txt)(?<!\.conf)"
    r"(?<!\.sock)(?<!\.cache)(?<!\.d)(?<!\.pid)(?<!\.xml)(?<!\.lock)(?<!\.service))?"
).replace(r"(?<!\.ya?ml)", r"(?<!\.yaml)(?<!\.yml)")
#: Options of a mount that say nothing of who or where.
_MOUNT_OPTIONS = frozenset(
    [
        "vers",
        "proto",
        "rsize",
        "wsize",
        "sec",
        "local_lock",
        "mode",
        "size",
        "cache",
        "fscache",
        "timeo",
        "retrans",
    ]
)
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2}\b")
#: Host and user names that tell nothing, or would be replaced where they mean something else.
_COMMON_NAMES = """
admin amd build centos cuda daemon data debian default docker fedora gpu home host jenkins linux localhost node
nobody nvidia podman portagemm public python rocky shared rocm root runner server test torch ubuntu user work worker
"""
_COMMON = frozenset(_COMMON_NAMES.split())


def digest(text: str, length: int = 8) -> str:
    """Hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:length]


def host_alias(node: str) -> str:
    """What a report calls a host: tells two apart, names neither."""
    return f"host-{digest(node)}"


class Redactor:
    """Knows what is private on one host."""

    def __init__(self, host: Host) -> None:
        self._words: list[tuple[re.Pattern[str], str]] = []
        home = (host.env.get("HOME", "") or host.user.home).rstrip("/")
        self._home = home if len(home) > 1 and home != "/root" else ""
        env = host.env.whole()
        user = host.user.name or env.get("USER", "") or env.get("LOGNAME", "")
        self.user = user
        self._uuids: set[str] = set()
        names = {user, self._home.rpartition("/")[2] if self._home.startswith(("/home/", "/Users/")) else ""}
        names |= {value for name, value in env.items() if _USER_NAME.search(name)}
        for name in sorted(names, key=len, reverse=True):
            self._word(name, "user")
        hosts = {host.uname.node, *(env.get(name, "") for name in ("HOSTNAME", "HOST", "SLURMD_NODENAME"))}
        for name in sorted(hosts, key=len, reverse=True):
            short, _, domain = name.partition(".")
            self._word(short, "host", _DOMAIN)
            if "." in domain and re.fullmatch(r"[A-Za-z][\w.-]{4,}", domain):  # and its neighbours
                pattern = rf"(?<![\w.-])(?:[\w-]+\.)*{re.escape(domain)}(?![\w-])"
                self._words.append((re.compile(pattern, re.IGNORECASE), "host"))
        self._secrets = sorted(
            {
                value
                for name, value in env.items()
                if secret(name) and len(value) >= 8 and not value.startswith("/")
            },
            key=len,
            reverse=True,
        )

    def _word(self, name: str, alias: str, more: str = "") -> None:
        if len(name) >= 3 and name.lower() not in _COMMON:
            pattern = rf"(?<![A-Za-z0-9]){re.escape(name)}{more}(?![A-Za-z0-9])"
            self._words.append((re.compile(pattern, re.IGNORECASE), alias))

    def text(self, text: str) -> str:
        """The text without anything private."""
        for value in self._secrets:
            text = text.replace(value, _HIDDEN)
        if self._home:
            text = re.sub(rf"{re.escape(self._home)}(?![A-Za-z0-9_.-])", "/home/user", text)
        for pattern, alias in self._words:
            text = pattern.sub(alias, text)
        text = _ANY_HOME.sub(_someones_home, text)
        text = _UUID.sub(lambda found: self._uuid(found[0]), text)
        text = _SHORT_UUID.sub(self._short_uuid, text)
        text = _SERIAL.sub(lambda found: f"{found[1]}0", text)
        text = _UNIQUE_ID.sub(lambda found: found[1] + _number(found[2]), text)
        text = _AMD_ID.sub(lambda found: f"GPU-{int(_number(str(int(found[1], 16)))):016x}", text)
        text = _PROCESS_NAME.sub(rf"\1{_HIDDEN}", text)
        text = _URL_LOGIN.sub(rf"\1{_HIDDEN}@", text)
        text = _MAC.sub("00:00:00:00:00:00", text)
        text = _PLACED_IP4.sub(_SOME_IP4, text)
        text = _IP6.sub(_SOME_IP6, text)
        return _KNOWN_TOKEN.sub(_HIDDEN, text)

    def variable(self, name: str, value: str) -> str:
        """The value of a variable as it may be shown."""
        if secret(name):
            return _HIDDEN
        if _ADDRESS_NAME.search(name) and value and not _PUBLIC_URL.search(name):
            # short: of eight digits an address could be found by trying them all
            return value if re.fullmatch(r"redacted-[0-9a-f]{4}", value) else f"redacted-{digest(value, 4)}"
        if _USER_NAME.search(name) and value and value.lower() not in _COMMON:
            return "user"
        text = self.text(value)
        return text if _VERSION_NAME.search(name) else _BARE_IP4.sub(_SOME_IP4, text)

    def _uuid(self, text: str) -> str:
        self._uuids.add(text.lower())
        return _uuid(text)

    def _short_uuid(self, found: re.Match[str]) -> str:
        """The beginning of a UUID that stands for one GPU becomes the whole alias of that one."""
        short = found[2].lower()
        if short.startswith("ffff") or not short.strip("0-"):
            return found[0]
        known = sorted(uuid for uuid in self._uuids if uuid.startswith(short))
        if len(known) == 1:
            return f"{found[1]}-{_uuid(known[0])}"
        return f"{found[1]}-{'00000000' if known else 'ffff' + digest(short, 4)}"

    def json(self, value: Any) -> Any:
        """A JSON value without anything private. Objects with path and value are evidence: a variable's name
        there decides on its value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            if set(value) == {"path", "value"} and isinstance(value["path"], str):
                path, shown = value["path"], str(value["value"])
                variable = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", path)
                return {
                    "path": self.text(path),
                    "value": self.variable(path, shown) if variable else self.text(shown),
                }
            return {
                self.text(str(key)): self.variable(str(key), item)
                if isinstance(item, str) and _env_like(str(key))
                else self.json(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        return value

    def machine(self, machine: MachineFile) -> MachineFile:
        """A recorded machine without anything private."""
        for value in (machine.commands, machine.probes):  # short UUIDs are told by the whole ones
            self.json(value)
        for path, data in machine.files.items():
            self._file(path, data)
        clean = MachineFile(notes={name: self.text(text) for name, text in machine.notes.items()})
        for path, data in machine.files.items():
            clean.files[self.text(path)] = self._file(path, data)
        clean.links = {self.text(path): self.text(target) for path, target in machine.links.items()}
        clean.folders = {self.text(path) for path in machine.folders}
        clean.nodes = {self.text(path): node for path, node in machine.nodes.items()}
        clean.env = {name: self.variable(name, value) for name, value in machine.env.items()}
        clean.machine = self.json(machine.machine)
        user = clean.machine.get("user")
        if user and user.get("uid") and self.user.lower() not in _COMMON:
            user["name"] = "user"
        if "uname" in clean.machine:
            clean.machine["uname"]["node"] = "host"
        clean.commands = self.json(machine.commands)
        clean.probes = self.json(machine.probes)
        return clean

    def _file(self, path: str, data: bytes) -> bytes:
        text = data.decode("utf-8", "surrogateescape")
        if path.startswith("/proc/") and path.endswith("/environ"):  # of PID 1: all its secrets
            text = "".join(entry + "\0" for entry in text.split("\0") if entry.startswith("container="))
        elif path == "/etc/group":  # which other accounts exist is nobody's business
            text = re.sub(r"(?m)^((?:[^:\n]*:){3})(.*)$", self._members, text)
        elif path.endswith(("/unique_id", "/serial_number", "/serial")):
            text = _number(text.strip()) + "\n" if text.strip() else text
        elif path.endswith("/mountinfo"):
            text = re.sub(r"(?m)( - \S+ )(\S+)(?: (\S+))?$", _mount, text)
        return self.text(text).encode("utf-8", "surrogateescape")

    def _members(self, found: re.Match[str]) -> str:
        return found[1] + (self.user if self.user in found[2].split(",") else "")


def secret(name: str) -> bool:
    """Whether a variable of this name holds something that must not be shown."""
    return bool(SECRET_NAME.search(name)) and not _NOT_SECRET.search(name)


def _mount(found: re.Match[str]) -> str:
    """The end of a line of mountinfo without who serves it to whom."""
    source, options = found[2], (found[3] or "").split(",")
    remote = source.startswith("//") or re.search(r"[:@]", re.sub(r"^[A-Za-z]:\\.*", "", source))
    if remote or found[1].split()[1].startswith(("nfs", "cifs", "smb", "ceph", "lustre", "fuse.sshfs")):
        source = "server:/export"
        options = [item for item in options if "=" not in item or item.split("=")[0] in _MOUNT_OPTIONS]
    return f"{found[1]}{source}" + (f" {','.join(options)}" if found[3] else "")


def _someones_home(found: re.Match[str]) -> str:
    name = found[2]
    if name.lower() in _COMMON or _ALIAS.fullmatch(name) or name.startswith((".", "linuxbrew")):
        return found[0]
    return f"{found[1]}user-{digest(name, 4)}"


def _env_like(name: str) -> bool:
    return re.fullmatch(r"[A-Z][A-Z0-9_]{2,}", name) is not None


def _uuid(text: str) -> str:
    if text.startswith("00000000-"):
        return text
    found = digest(text.lower(), 24)
    return f"00000000-{found[:4]}-{found[4:8]}-{found[8:12]}-{found[12:24]}"


def _number(text: str) -> str:
    """A number of the same notation and kind, that stands for this one."""
    if text.startswith("0x"):
        return f"0x{digest(text, 16)}"
    if text.isdecimal():
        return str(int(digest(text, 15), 16)) if int(text) else text
    return digest(text, 16)
