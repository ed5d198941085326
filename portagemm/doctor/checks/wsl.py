"""Windows Subsystem for Linux: the GPU is paravirtual, its libraries come from the Windows driver."""

from __future__ import annotations

import errno
import re

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.facts import container, dotted, surroundings, version_tuple, wsl
from portagemm.doctor.facts_amd import rocm, rocm_installs
from portagemm.doctor.host import Host

#: CUDA on WSL user guide: kernel needed, and recommended.
KERNEL_NEEDED = (4, 19, 121)
KERNEL_RECOMMENDED = (5, 10, 16, 3)
#: From this ROCm on, librocdxg is found without HSA_ENABLE_DXG_DETECTION.
DETECTS_DXG = (7, 13)

WSL_LIBRARIES = "/usr/lib/wsl/lib"
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")

_SHUTDOWN = Remedy("Restart WSL so that the change takes effect.", "wsl --shutdown", windows=True)
_UPDATE = Remedy("Update WSL and its kernel.", "wsl --update\nwsl --shutdown", windows=True)


@check(
    "wsl.version",
    "WSL is version 2",
    reads=("/proc/sys/kernel/osrelease", "/proc/version", "/dev/dxg"),
    severity="blocks-use",
)
def version(ctx: Context) -> Result:
    """WSL1 translates system calls and has no GPU; WSL2 is a virtual machine that has. A custom WSL2 kernel may
    lack the usual name: /dev/dxg and /usr/lib/wsl/lib tell then.

    WSL1 is a failure where a GPU is asked for (by --require-gpu, or by a GPU build of torch being
    installed), else a warning."""
    found = surroundings(ctx.host)
    number = found.wsl
    if not number:
        return skip("not WSL")
    evidence = [(fact, why) for fact, why in found.evidence.items() if fact.startswith("WSL")]
    data = {"wsl": number, "distribution": ctx.host.env.get("WSL_DISTRO_NAME", "")}
    if number == 2:
        return info("WSL2", evidence=evidence, data=data)
    name = ctx.host.env.get("WSL_DISTRO_NAME", "DISTRIBUTION")
    remedy = Remedy("Convert the distribution to WSL2.", f"wsl --set-version {name} 2", windows=True)
    text = "WSL1 has no GPU access"
    if ctx.options.require_gpu or _gpu_torch(ctx.host):
        return fail(text, evidence=evidence, remedies=(remedy,), data=data)
    return warn(text, evidence=evidence, remedies=(remedy,), data=data)


def _gpu_torch(host: Host) -> bool:
    for site in host.python.path:
        text = host.text(f"{site}/torch/version.py")
        if re.search(r"(?:cuda|hip)[^=\n]*=\s*['\"]\d", text):
            return True
    return False


@check(
    "wsl.kernel",
    "The WSL2 kernel is new enough",
    reads=("/proc/sys/kernel/osrelease",),
    severity="blocks-use",
    needs=("wsl.version",),
)
def kernel(ctx: Context) -> Result:
    """CUDA on WSL2 needs kernel 4.19.121 and recommends 5.10.16.3 or later. A custom kernel is judged by its
    number too."""
    if wsl(ctx.host) != 2:
        return skip("not WSL2")
    text = ctx.host.value("/proc/sys/kernel/osrelease") or ctx.host.uname.release
    number = version_tuple(text)
    if not number:
        return skip("the kernel's version cannot be read")
    evidence = [("/proc/sys/kernel/osrelease", text)]
    data = {"kernel": text}
    if number < KERNEL_NEEDED:
        message = f"kernel {dotted(number)} is older than {dotted(KERNEL_NEEDED)}: no GPU"
        return fail(message, evidence=evidence, remedies=(_UPDATE,), data=data)
    if number < KERNEL_RECOMMENDED:
        message = f"kernel {dotted(number)} is older than {dotted(KERNEL_RECOMMENDED)}, which is recommended"
        return warn(message, evidence=evidence, remedies=(_UPDATE,), data=data)
    return passed(f"kernel {dotted(number)}", evidence=evidence, data=data)


@check(
    "wsl.dxg",
    "The paravirtual GPU device is there",
    reads=("/dev/dxg", "/etc/wsl.conf [gpu]", "WSL2_SAFE_MODE"),
    severity="blocks-use",
    needs=("wsl.version",),
)
def dxg(ctx: Context) -> Result:
    """Every GPU access in WSL2 goes through /dev/dxg. It is missing when the GPU is switched off for WSL, in safe
    mode, with a Windows driver older than WSL support, or in a container that was not given it."""
    host = ctx.host
    if wsl(host) != 2:
        return skip("not WSL2")
    code = host.open_errno("/dev/dxg", write=True)
    if not code:
        return passed("/dev/dxg can be opened")
    if code in (errno.EACCES, errno.EPERM):
        found = host.stat("/dev/dxg")
        mode = f"{found.mode:04o}" if found else "?"
        remedies = (
            (Remedy("Give the container the device.", "docker run --gpus all ...", host=True),)
            if container(host)
            else (
                Remedy(
                    "Let everybody open it, as WSL does by default.", "sudo chmod 666 /dev/dxg", root=True
                ),
            )
        )
        return fail(f"/dev/dxg may not be opened (mode {mode})", remedies=remedies, data={"errno": code})
    if host.exists("/dev/dxg"):
        name = errno.errorcode.get(code, str(code))
        return fail(f"/dev/dxg cannot be opened: {name}", remedies=(_UPDATE,), data={"errno": code})
    return _dxg_missing(host)


def _dxg_missing(host: Host) -> Result:
    why: list[str] = []
    remedies: list[Remedy] = []
    evidence = [("/dev/dxg", "does not exist")]
    if container(host):
        remedies.append(Remedy("Start the container with the GPU.", "docker run --gpus all ...", host=True))
    if host.env.get("WSL2_SAFE_MODE", "") not in ("", "0"):
        why.append("WSL runs in safe mode")
        evidence.append(("WSL2_SAFE_MODE", host.env["WSL2_SAFE_MODE"]))
        remedies.append(Remedy("Remove safeMode=true from %UserProfile%\\.wslconfig.", windows=True))
    if setting(host, "gpu", "enabled") == "false":
        why.append("/etc/wsl.conf switches the GPU off")
        evidence.append(("/etc/wsl.conf [gpu] enabled", "false"))
        remedies.append(Remedy("Remove enabled=false from [gpu] in /etc/wsl.conf.", root=True))
    if not why and not remedies:
        remedies += [
            Remedy("Install the vendor's current Windows driver (NVIDIA: R495 or later).", windows=True),
            Remedy("Look for gpuSupport=false, which may be set in %UserProfile%\\.wslconfig.", windows=True),
            _UPDATE,
        ]
    elif why:
        remedies.append(_SHUTDOWN)
    text = "/dev/dxg is missing: " + (" and ".join(why) if why else "WSL has no GPU")
    return fail(text, evidence=evidence, remedies=remedies)


def setting(host: Host, section: str, key: str) -> str:
    """A value of /etc/wsl.conf in lower case, "" if it is not set."""
    here = ""
    for line in host.text("/etc/wsl.conf").splitlines():
        text = line.split("#")[0].strip()
        if text.startswith("["):
            here = text.strip("[]").strip().lower()
        elif "=" in text and here == section:
            name, _, value = text.partition("=")
            if name.strip().lower() == key.lower():
                return value.strip().strip('"').lower()
    return ""


@check(
    "wsl.libs",
    "The Windows driver's libraries are mounted",
    reads=("/usr/lib/wsl/lib/libdxcore.so", "/usr/lib/wsl/lib/libcuda.so.1"),
    severity="blocks-use",
    needs=("wsl.dxg",),
)
def libraries(ctx: Context) -> Result:
    """Windows mounts its driver's Linux libraries at /usr/lib/wsl/lib. libdxcore.so is there with any GPU,
    libcuda.so.1 with NVIDIA's driver alone. Note that libcuda.so (without .1) may be missing there."""
    host = ctx.host
    folders = (WSL_LIBRARIES, *(LIBRARY_FOLDERS if container(host) else ()))
    core = next((f"{f}/libdxcore.so" for f in folders if host.exists(f"{f}/libdxcore.so")), "")
    cuda = next((f"{f}/libcuda.so.1" for f in folders if host.exists(f"{f}/libcuda.so.1")), "")
    data = {"libdxcore": core, "libcuda": cuda}
    if not core:
        where = "were not given to the container" if container(host) else "are missing"
        remedy = (
            Remedy("Start the container with the GPU.", "docker run --gpus all ...", host=True)
            if container(host)
            else Remedy(
                "Install the vendor's current Windows driver, then restart WSL.",
                "wsl --shutdown",
                windows=True,
            )
        )
        evidence = [(f"{WSL_LIBRARIES}/libdxcore.so", "does not exist")]
        return fail(
            f"the Windows driver's libraries {where}", evidence=evidence, remedies=(remedy,), data=data
        )
    if not cuda:
        return info("libdxcore.so, but no libcuda.so.1: the Windows driver is not NVIDIA's", data=data)
    return passed(f"libdxcore.so and libcuda.so.1 in {cuda.rpartition('/')[0]}", data=data)


@check(
    "wsl.linux-driver-inside",
    "No Linux display driver is installed inside WSL",
    reads=("libcuda.so.*, libnvidia-ml.so.* outside /usr/lib/wsl", "/var/lib/dpkg/status"),
    severity="blocks-use",
    needs=("wsl.version",),
)
def linux_driver(ctx: Context) -> Result:
    """A Linux driver's libcuda and libnvidia-ml hide those of the Windows driver, and none of them works here.
    They come with the packages nvidia-driver-*, cuda-drivers and the meta-packages cuda and cuda-12-x; the
    toolkit alone is cuda-toolkit-12-x."""
    host = ctx.host
    if wsl(host) != 2:
        return skip("not WSL2")
    libraries = [
        path
        for folder in LIBRARY_FOLDERS
        for name in ("libcuda.so.*", "libnvidia-ml.so.*")
        for path in host.glob(f"{folder}/{name}")
        if re.search(r"\.so\.\d{3}\.\d+", host.realpath(path)) and "/stubs/" not in path
    ]
    packages = _installed_drivers(host)
    if not libraries and not packages:
        return passed("none found")
    evidence = [(path, "library of a Linux driver") for path in libraries]
    evidence += [("/var/lib/dpkg/status", name) for name in packages]
    if packages:
        command = f"sudo apt-get purge {' '.join(packages)}\nsudo ldconfig"
        remedy = Remedy(
            "Remove the driver packages; the Windows driver is the driver here.", command, root=True
        )
    else:
        command = f"sudo rm {' '.join(sorted(set(libraries)))}\nsudo ldconfig"
        remedy = Remedy(
            "Remove the Linux driver's libraries (or use an image without them).", command, root=True
        )
    what = ", ".join(packages) or ", ".join(sorted({path.rpartition("/")[2] for path in libraries}))
    return fail(f"a Linux NVIDIA driver is installed: {what}", evidence=evidence, remedies=(remedy,))


def _installed_drivers(host: Host) -> list[str]:
    pattern = r"(?:nvidia-driver-\S+|cuda-drivers\S*|libnvidia-compute-\S+|nvidia-utils-\d\S*)"
    found = []
    for block in host.text("/var/lib/dpkg/status", 16 << 20).split("\n\n"):
        name = re.match(rf"Package: ({pattern})$", block, re.MULTILINE)
        if name and re.search(r"^Status: install ok installed$", block, re.MULTILINE):
            found.append(name[1])
    return found


@check(
    "wsl.ldconfig",
    "The loader finds the Windows driver's libraries",
    reads=(
        "/etc/ld.so.cache",
        "/etc/ld.so.conf.d/ld.wsl.conf",
        "/etc/wsl.conf [automount] ldconfig",
        "LD_LIBRARY_PATH",
    ),
    severity="degrades",
    needs=("wsl.libs",),
)
def ldconfig(ctx: Context) -> Result:
    """At start WSL writes /etc/ld.so.conf.d/ld.wsl.conf and runs ldconfig, unless /etc/wsl.conf says
    [automount] ldconfig=false. Without it programs find libcuda.so.1 only through LD_LIBRARY_PATH."""
    host = ctx.host
    if container(host):
        return skip("in a container the container's runtime sees to it")
    cached = f"{WSL_LIBRARIES}/".encode() in (host.data("/etc/ld.so.cache", 8 << 20) or b"")
    on_path = WSL_LIBRARIES in [p.rstrip("/") for p in host.env.get("LD_LIBRARY_PATH", "").split(":")]
    configured = host.exists("/etc/ld.so.conf.d/ld.wsl.conf")
    data = {"cached": cached, "configured": configured, "on_path": on_path}
    if cached or on_path:
        return passed("by the loader's cache" if cached else "by LD_LIBRARY_PATH", data=data)
    off = setting(host, "automount", "ldconfig") == "false"
    evidence = [("/etc/ld.so.cache", f"no {WSL_LIBRARIES}")]
    if off:
        evidence.append(("/etc/wsl.conf [automount] ldconfig", "false"))
    command = "sudo ldconfig"
    if not configured:
        command = f"echo {WSL_LIBRARIES} | sudo tee /etc/ld.so.conf.d/ld.wsl.conf\nsudo ldconfig"
    remedies = (Remedy("Bring the folder into the loader's cache.", command, root=True),)
    return warn(
        f"{WSL_LIBRARIES} is not in the loader's cache", evidence=evidence, remedies=remedies, data=data
    )


@check(
    "wsl.limits",
    "What WSL2 cannot do",
    reads=("wsl.version",),
    severity="cosmetic",
    needs=("wsl.version",),
)
def limits(ctx: Context) -> Result:
    """Not faults, but worth knowing before looking for one: pinned memory is limited (allocations of more than
    about half a GiB may fail although memory is free, and [wsl2] memory in .wslconfig is half of the
    machine's by default), managed memory cannot be used by CPU and GPU at the same time, NVML has no
    utilisation, process list or settings, only `--gpus all` works in containers, kernels start slower and
    long ones can meet Windows' time limit. NCCL must be 2.12 or later."""
    if wsl(ctx.host) != 2:
        return skip("not WSL2")
    return info(
        "pinned and managed memory, NVML and profiling are limited",
        details=surroundings(ctx.host).limits,
        data={"wsl": 2},
    )


@check(
    "wsl.rocdxg",
    "ROCm reaches the GPU through librocdxg",
    reads=("librocdxg.so", "libhsa-runtime64.so.1", "HSA_ENABLE_DXG_DETECTION", "/opt/rocm/.info/version"),
    severity="blocks-use",
    needs=("wsl.libs",),
)
def rocdxg(ctx: Context) -> Result:
    """On WSL2 there is never a /dev/kfd. ROCm talks to /dev/dxg through librocdxg.so, which must lie beside
    libhsa-runtime64 and be of the same release (else "undefined symbol: hsaKmtOpenKFD"); before 7.13 it is
    used only with HSA_ENABLE_DXG_DETECTION=1. A distribution's own libhsa-runtime64-1 or libhsakmt1 may hide
    ROCm's."""
    host = ctx.host
    if ctx.data("wsl.libs", "libcuda") and not rocm_installs(host):
        return skip("the Windows driver is NVIDIA's")
    install = rocm(host)
    if install is None:
        return skip("no ROCm is installed")
    data: dict[str, object] = {"rocm": install.version, "folder": install.folder}
    beside = host.glob(f"{install.folder}/librocdxg.so*")
    elsewhere = [p for i in rocm_installs(host)[1:] for p in host.glob(f"{i.folder}/librocdxg.so*")]
    elsewhere += [path for folder in LIBRARY_FOLDERS for path in host.glob(f"{folder}/librocdxg.so*")]
    remedy = Remedy(
        f"Install the librocdxg of ROCm {install.version or 'this release'} beside its libhsa-runtime64."
    )
    if not beside:
        if elsewhere:
            message = (
                f"librocdxg is in {elsewhere[0].rpartition('/')[0]}, libhsa-runtime64 in {install.folder}"
            )
            evidence = [(path, "found") for path in elsewhere]
            return fail(message, evidence=evidence, remedies=(remedy,), data=data)
        return fail(f"no librocdxg.so in {install.folder}", remedies=(remedy,), data=data)
    stray = [path for folder in LIBRARY_FOLDERS for path in host.glob(f"{folder}/libhsakmt.so.1*")]
    stray += [path for folder in LIBRARY_FOLDERS for path in host.glob(f"{folder}/libhsa-runtime64.so.1*")]
    stray = [path for path in stray if host.realpath(path).rpartition("/")[0] != install.folder]
    if stray and install.kind == "system":
        purge = Remedy(
            "Remove the distribution's ROCm runtime, which hides AMD's.",
            "sudo apt-get remove libhsa-runtime64-1 libhsakmt1",
            root=True,
        )
        evidence = [(path, "of another release") for path in stray]
        return fail("two ROCm runtimes are mixed", evidence=evidence, remedies=(purge,), data=data)
    if install.release and install.release < DETECTS_DXG and host.env.get("HSA_ENABLE_DXG_DETECTION") != "1":
        variable = Remedy("Switch the detection on.", "export HSA_ENABLE_DXG_DETECTION=1")
        message = f"ROCm {install.version} looks for the GPU only with HSA_ENABLE_DXG_DETECTION=1"
        return warn(message, remedies=(variable,), data=data)
    return passed(f"librocdxg beside ROCm {install.version}".rstrip(), data=data)
