"""Whether the firmware enforces Secure Boot, under which an unsigned kernel module is refused."""

from __future__ import annotations

from portagemm.doctor.facts import fact
from portagemm.doctor.host import Host

_VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@fact
def secure_boot(host: Host) -> bool:
    """True if it is known to be on. The variable is four bytes of attributes, then the value."""
    data = host.data(_VARIABLE, 16)
    return data is not None and len(data) >= 5 and data[4] == 1
