"""The kernel's log, where it may be read."""

from __future__ import annotations

from portagemm.doctor.facts import fact
from portagemm.doctor.host import Host

_FILES = ("/var/log/dmesg", "/var/log/kern.log", "/var/log/messages")


@fact
def kernel_log(host: Host) -> str:
    """What `dmesg` prints, else the files distributions keep it in; "" if none may be read. Runs a command: for
    checks of class "process" and above."""
    done = host.run(["dmesg"], timeout=3.0, limit=4 << 20)
    if done.ok and done.stdout.strip():
        return done.stdout
    return "\n".join(text for path in _FILES if (text := host.text(path, 4 << 20)))
