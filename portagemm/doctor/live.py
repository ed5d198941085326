"""What the running process knows of itself: its user, system and interpreter, and whether it may write."""

from __future__ import annotations

import errno
import os
import sys
import time

from portagemm.doctor.host_types import Python, Trial, Uname, User


def try_folder(folder: str) -> Trial:
    """Make, lock, rename and remove a small file in a folder that exists."""
    name = f"{folder}/.portagemm-doctor-{os.getpid()}-{time.monotonic_ns()}"
    step = "create"
    try:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, b"x")
            step = "lock"
            try:
                import fcntl

                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:
                pass
            step = "rename"
            os.rename(name, f"{name}.b")  # noqa: PTH104
            name = f"{name}.b"
        finally:
            os.close(descriptor)
            os.unlink(name)  # noqa: PTH108
    except OSError as error:
        return Trial(folder, error.errno or errno.EIO, step)
    return Trial(folder)


def user() -> User:
    """Who runs this; uid -1 where the system has no users."""
    if not hasattr(os, "getuid"):
        return User(-1, -1, (), "")
    name = home = ""
    try:
        import pwd

        entry = pwd.getpwuid(os.getuid())
        name, home = entry.pw_name, entry.pw_dir
    except (ImportError, KeyError, OSError):
        pass
    try:
        groups = set(os.getgroups())
    except OSError:
        groups = set()
    return User(os.getuid(), os.getgid(), tuple(sorted(groups | {os.getgid()})), name, home)


def uname() -> Uname:
    """System, kernel, machine, host name."""
    import platform

    try:
        found = platform.uname()
    except OSError:
        return Uname(sys.platform, "", "", "")
    return Uname(found.system, found.release, found.machine, found.node)


def python() -> Python:
    """This interpreter."""
    import platform
    import sysconfig

    libc = ("", "")
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""  # "glibc 2.36"
        name, _, version = text.partition(" ")
        libc = (name, version)
    except (AttributeError, ValueError, OSError):
        pass
    if libc == ("", "") and "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or ""):
        libc = ("musl", "")
    method = ""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        method = multiprocessing.get_start_method(allow_none=True) or ""
    return Python(
        version=platform.python_version(),
        implementation=sys.implementation.name,
        executable=sys.executable or "",
        prefix=sys.prefix,
        base_prefix=sys.base_prefix,
        path=tuple(entry for entry in sys.path if entry.startswith("/")),
        libc=libc,
        pointer_bits=64 if sys.maxsize > 2**32 else 32,
        free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        start_method=method,
    )
