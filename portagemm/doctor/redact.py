"""Takes names, ids and secrets out of reports and bundles. On by default; ``--no-redact`` leaves them in.

What is replaced keeps its form, so that a redacted machine replays like the original: the user is ``user``
with home ``/home/user``, the host is ``host``, a UUID becomes another UUID that begins with eight zeros and
is the same wherever the original was the same. Secrets become ``***``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from portagemm.doctor.host import Host
from portagemm.doctor.machine_file import MachineFile

SECRET_NAME = re.compile(r"SECRET|TOKEN|KEY|PASS|CREDENTIAL|AUTH|COOKIE|SIGNATURE", re.IGNORECASE)
#: Variables whose names look secret and whose values are not.
_NOT_SECRET = re.compile(r"KEYBOARD|BYPASS|PASSTHROUGH|MONKEY|AUTHORS?$", re.IGNORECASE)
#: Variables that hold addresses or names of hosts.
_ADDRESS_NAME = re.compile(
    r"(?:ADDR|ADDRESS|_HOST|HOSTNAME|NODELIST|NODEFILE|_IP|_IPS|CONNECTION|CLIENT)$", re.IGNORECASE
)
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
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2}\b")
#: Host and user names that tell nothing, or would be replaced where they mean something else.
_COMMON_NAMES = """
admin amd build centos cuda daemon data debian default docker fedora gpu home host jenkins linux localhost node
nobody nvidia podman portagemm python rocky rocm root runner server test torch ubuntu user work worker
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
        user = host.user.name or host.env.get("USER", "") or host.env.get("LOGNAME", "")
        self.user = user
        for name in {
            user,
            self._home.rpartition("/")[2] if self._home.startswith(("/home/", "/Users/")) else "",
        }:
            self._word(name, "user")
        node = host.uname.node
        for name in (node, node.partition(".")[0], host.env.get("HOSTNAME", "")):
            self._word(name, "host")
        self._secrets = sorted(
            {
                value
                for name, value in host.env.whole().items()
                if secret(name) and len(value) >= 8 and not value.startswith("/")
            },
            key=len,
            reverse=True,
        )

    def _word(self, name: str, alias: str) -> None:
        if len(name) >= 3 and name.lower() not in _COMMON:
            self._words.append(
                (re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", re.IGNORECASE), alias)
            )

    def text(self, text: str) -> str:
        """The text without anything private."""
        for value in self._secrets:
            text = text.replace(value, _HIDDEN)
        if self._home:
            text = re.sub(rf"{re.escape(self._home)}(?![A-Za-z0-9_.-])", "/home/user", text)
        for pattern, alias in self._words:
            text = pattern.sub(alias, text)
        text = _UUID.sub(lambda found: _uuid(found[0]), text)
        text = _SERIAL.sub(lambda found: f"{found[1]}0", text)
        text = _UNIQUE_ID.sub(lambda found: found[1] + _number(found[2]), text)
        text = _AMD_ID.sub(lambda found: f"GPU-{int(_number(str(int(found[1], 16)))):016x}", text)
        text = _PROCESS_NAME.sub(rf"\1{_HIDDEN}", text)
        text = _URL_LOGIN.sub(rf"\1{_HIDDEN}@", text)
        text = _MAC.sub("00:00:00:00:00:00", text)
        return _KNOWN_TOKEN.sub(_HIDDEN, text)

    def variable(self, name: str, value: str) -> str:
        """The value of a variable as it may be shown."""
        if secret(name):
            return _HIDDEN
        if _ADDRESS_NAME.search(name) and value:
            return f"redacted-{digest(value)}"
        return self.text(value)

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
            text = re.sub(r"( - \S+ )[^/\s:]+:", r"\1server:", text)
        return self.text(text).encode("utf-8", "surrogateescape")

    def _members(self, found: re.Match[str]) -> str:
        return found[1] + (self.user if self.user in found[2].split(",") else "")


def secret(name: str) -> bool:
    """Whether a variable of this name holds something that must not be shown."""
    return bool(SECRET_NAME.search(name)) and not _NOT_SECRET.search(name)


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
