"""The kernel cache's folder, and the folders of other run-time compilers that share its troubles."""

from __future__ import annotations

import errno

from portagemm.doctor.check import Context, Remedy, Result, check, fail, passed, skip, warn
from portagemm.doctor.facts import fact, wsl
from portagemm.doctor.host import Host
from portagemm.hal.environment import NETWORK_FILE_SYSTEMS

VARIABLE = "PORTAGEMM_CACHE_DIR"
#: Room asked for: bytes, and the share of inodes.
SPACE_WANTED = 1 << 30
INODES_WANTED = 0.01

#: Folders of other compilers on the way to a kernel: variable, default below the home.
_RELATED = (
    ("TRITON_CACHE_DIR", ".triton"),
    ("TORCHINDUCTOR_CACHE_DIR", ""),
    ("TORCH_EXTENSIONS_DIR", ".cache/torch_extensions"),
)
_USE_LOCAL = Remedy("Put the cache on a local disk.", f"export {VARIABLE}=/var/tmp/$USER-portagemm")


@fact
def home(host: Host) -> str:
    """HOME, or where it is unset the home of the user's entry; "/" in a container with an arbitrary user id."""
    found = host.env.get("HOME") or host.user.home
    return (found.rstrip("/") or "/") if found.startswith("/") else ""


def below_home(host: Host, name: str) -> str:
    """A path below the home."""
    return f"{home(host).rstrip('/')}/{name}"


@fact
def temporary(host: Host) -> str:
    """The folder of temporary files."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        if host.env.get(name, "").startswith("/"):
            return host.env[name].rstrip("/") or "/"
    return "/tmp"


@fact
def cache_folder(host: Host) -> str:
    """Where portagemm.hal.cache keeps kernels: PORTAGEMM_CACHE_DIR, else the user's cache folder, else ""."""
    chosen = host.env.get(VARIABLE, "")
    if chosen.startswith("~/") and home(host):
        chosen = below_home(host, chosen[2:])
    if chosen.startswith("/"):
        return chosen.rstrip("/") or "/"
    base = host.env.get("XDG_CACHE_HOME", "")
    if base.startswith("/"):
        return f"{base.rstrip('/')}/portagemm"
    return below_home(host, ".cache/portagemm") if home(host) else ""


def fallback(host: Host) -> str:
    """The private folder that is used when the other cannot be."""
    return f"{temporary(host).rstrip('/')}/portagemm-{host.user.uid}"


def related(host: Host) -> list[tuple[str, str]]:
    """(what, folder) of other compilers' caches that exist or were chosen."""
    found = []
    for name, default in _RELATED:
        chosen = host.env.get(name, "")
        folder = (
            chosen if chosen.startswith("/") else below_home(host, default) if default and home(host) else ""
        )
        if folder and (chosen or host.exists(folder)):
            found.append((name if chosen else folder, folder.rstrip("/")))
    return found


@check(
    "cache.writable",
    "Kernels can be stored",
    reads=(VARIABLE, "XDG_CACHE_HOME", "HOME", "a file made, locked and renamed in the folder"),
    severity="degrades",
)
def writable(ctx: Context) -> Result:
    """Compiled kernels are kept in PORTAGEMM_CACHE_DIR, else in the user's cache folder. Where that cannot be written
    (a container's arbitrary user id has HOME unset or /, a read-only file system), a private folder below
    the temporary one is used, and where that fails every process compiles again. A file is made, locked,
    renamed and removed there to find out."""
    host = ctx.host
    folder = cache_folder(host)
    chosen = bool(host.env.get(VARIABLE))
    set_it = Remedy("Name a folder that can be written.", f"export {VARIABLE}=/var/tmp/$USER-portagemm")
    evidence = [
        (VARIABLE, host.env.get(VARIABLE, "") or "not set"),
        ("HOME", host.env.get("HOME", "") or "not set"),
    ]
    spare = fallback(host)
    trial = host.try_folder(folder) if folder else None
    if trial is not None and not trial.errno:
        place = "" if trial.folder == folder else " (to be made)"
        data = {"folder": folder, "writable": True}
        return passed(f"{folder}{place}", evidence=evidence, data=data)
    if trial is None:
        why = "HOME is not set, so there is no cache folder"
    else:
        name = errno.errorcode.get(trial.errno, str(trial.errno))
        why = f"cannot {trial.step} files in {trial.folder} ({name})"
        if home(host) == "/" and not chosen:
            why = f"HOME is /, and {why}"
        evidence.append((trial.folder, name))
    other = host.try_folder(spare)
    data = {"folder": folder, "writable": False, "fallback": "" if other.errno else spare}
    if other.errno or chosen:
        tail = "every process compiles its kernels anew"
        return fail(f"{why}; {tail}", evidence=evidence, remedies=(set_it,), data=data)
    return warn(f"{why}; {spare} is used instead", evidence=evidence, remedies=(set_it,), data=data)


@check(
    "cache.fs",
    "The cache is on a local file system",
    reads=("/proc/self/mountinfo",),
    severity="degrades",
    after=("cache.writable",),
)
def file_system(ctx: Context) -> Result:
    """On NFS, Lustre, GPFS and the like, many ranks that start together see half-renamed or vanished files ("Stale
    file handle"), and every lookup crosses the network. portagemm's own cache keeps its locks local and
    treats a vanished file as a miss; Triton's and torch's do not. In WSL a folder below /mnt/c is such a file
    system too."""
    host = ctx.host
    slow = []
    for what, folder in [("portagemm", cache_folder(host)), *related(host)]:
        found = host.mount(folder) if folder else None
        if found is not None and (found.kind in NETWORK_FILE_SYSTEMS or found.kind.startswith("fuse.")):
            slow.append((what, folder, found.kind))
    if not slow:
        found = host.mount(cache_folder(host)) if cache_folder(host) else None
        if found is None:
            return skip("the cache's file system is not known")
        return passed(f"{cache_folder(host)} is on {found.kind}", data={"kind": found.kind})
    evidence = [(folder, kind) for _, folder, kind in slow]
    data = {"kinds": sorted({kind for _, _, kind in slow})}
    remedies = []
    if any(what == "portagemm" for what, _, _ in slow):
        remedies.append(_USE_LOCAL)
    if any(what != "portagemm" for what, _, _ in slow):
        text = "Put the caches of Triton and torch on a local disk too."
        remedies.append(Remedy(text, "export TRITON_CACHE_DIR=/var/tmp/$USER-triton"))
    kind = slow[0][2]
    where = (
        "a Windows drive"
        if wsl(host) and kind in ("9p", "drvfs", "v9fs")
        else f"the network file system {kind}"
    )
    return warn(f"{slow[0][1]} is on {where}", evidence=evidence, remedies=remedies, data=data)


@check(
    "cache.noexec",
    "Libraries built at run time can be loaded",
    reads=("/proc/self/mountinfo", "TMPDIR"),
    severity="degrades",
)
def noexec(ctx: Context) -> Result:
    """torch's extensions, Inductor and Triton build shared libraries in their caches and in the temporary folder; on a
    file system mounted noexec loading them fails ("failed to map segment from shared object"). portagemm's own
    CPU kernels are loaded from memory and do not mind."""
    host = ctx.host
    bad = []
    for what, folder in [("TMPDIR", temporary(host)), *related(host)]:
        found = host.mount(folder)
        if found is not None and "noexec" in found.options:
            bad.append((what, folder, found.point))
    if not bad:
        return passed("no noexec mount in the way")
    evidence = [(point, "noexec") for _, _, point in bad]
    what = bad[0][0] if bad[0][0].isupper() else "TRITON_CACHE_DIR"
    remedy = Remedy(
        "Use a folder from which code can be loaded.", f"export {what}=$HOME/.cache/tmp && mkdir -p ${what}"
    )
    return warn(f"{bad[0][1]} is mounted noexec", evidence=evidence, remedies=(remedy,))


@check(
    "cache.owner",
    "Nobody else can change the cached kernels",
    reads=("owner and mode of the cache folders",),
    severity="blocks-use",
)
def owner(ctx: Context) -> Result:
    """What is in the cache is run. A folder of another user cannot be written (and should not be trusted); one that
    others may write lets them run code as you. A group that is the user's alone, as most distributions make one,
    may write."""
    host = ctx.host
    if host.user.uid < 0:
        return skip("no owners on this system")
    checked, wrong, loose = 0, [], []
    candidates = [cache_folder(host), fallback(host), *(folder for _, folder in related(host))]
    shared = f"{temporary(host).rstrip('/')}/triton"
    for folder in dict.fromkeys([*candidates, shared]):
        found = host.stat(folder) if folder else None
        if found is None or found.kind != "dir":
            continue
        checked += 1
        if found.uid != host.user.uid and host.user.uid != 0:
            wrong.append((folder, found))
        elif not found.mode & 0o1000 and (
            found.mode & 0o002 or (found.mode & 0o020 and not _private(host, found.gid))
        ):
            loose.append((folder, found))
    evidence = [(folder, f"owner {found.uid}, mode {found.mode:04o}") for folder, found in wrong + loose]
    if wrong:
        folder = wrong[0][0]
        variable = VARIABLE if "portagemm" in folder else "TRITON_CACHE_DIR"
        remedies = (
            Remedy(
                "Use a folder of your own.",
                f"export {variable}=$HOME/.cache/own-{variable.split('_')[0].lower()}",
            ),
            Remedy("Or make it yours.", f"sudo chown -R $USER {folder}", root=True),
        )
        return fail(f"{folder} belongs to user {wrong[0][1].uid}", evidence=evidence, remedies=remedies)
    if loose:
        folder, found = loose[0]
        remedy = Remedy("Close it to others.", f"chmod go-w {folder}")
        return warn(
            f"others may write {folder} (mode {found.mode:04o})", evidence=evidence, remedies=(remedy,)
        )
    return passed(f"{checked} folder(s) are the user's alone" if checked else "no cache folder yet")


def _private(host: Host, gid: int) -> bool:
    """Whether a group is the user's alone: distributions give each user one of the same number."""
    return gid == host.user.gid == host.user.uid


@check(
    "cache.space",
    "There is room for kernels",
    reads=("statvfs of the cache folder",),
    severity="degrades",
    needs=("cache.writable",),
)
def space(ctx: Context) -> Result:
    """Warns below 1 GiB, the cache's default bound, or below 1 % of the inodes."""
    host = ctx.host
    folder = cache_folder(host)
    trial = folder
    while trial not in ("", "/") and not host.exists(trial):
        trial = trial.rpartition("/")[0]
    found = host.space(trial or "/") if folder else None
    if found is None:
        return skip("the room is not known")
    data = {"free": found.free, "free_inodes": found.free_inodes}
    evidence = [(folder, f"{found.free} bytes and {found.free_inodes} inodes free")]
    remedies = (Remedy("Remove kernels not used any more.", "portagemm cache clear"), _USE_LOCAL)
    if found.free < SPACE_WANTED:
        return warn(
            f"{found.free >> 20} MiB free at {folder}", evidence=evidence, remedies=remedies, data=data
        )
    if found.inodes and found.free_inodes < found.inodes * INODES_WANTED:
        text = f"{found.free_inodes} of {found.inodes} inodes free at {folder}"
        return warn(text, evidence=evidence, remedies=remedies, data=data)
    return passed(f"{found.free / (1 << 30):.1f} GiB free", data=data)
