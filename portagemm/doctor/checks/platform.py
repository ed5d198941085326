"""The operating system, its C library, Python, and what the machine runs on."""

from __future__ import annotations

import re

from portagemm.doctor.check import Context, Remedy, Result, Status, check, fail, info, passed, skip, warn
from portagemm.doctor.facts import NVIDIA, dotted, gpus, surroundings, version_tuple
from portagemm.doctor.facts_amd import amd_gpus, rocm_wanted, topology

#: Wheels of torch and of the compilers are manylinux_2_28 since 2025: glibc 2.28. Ours is pure Python.
GLIBC_FLOOR = (2, 28)
PYTHON_FLOOR = (3, 10)
#: The newest Python this release is tested with.
PYTHON_TESTED = (3, 13)
_MACHINES = ("x86_64", "aarch64", "amd64", "arm64")


@check(
    "platform.os",
    "The operating system is one GPUs are supported on",
    reads=("uname", "/etc/os-release"),
    severity="degrades",
)
def operating_system(ctx: Context) -> Result:
    """Names the system, its kernel and its processor. GPUs work on Linux (x86_64, aarch64); elsewhere the CPU
    backend is what is left."""
    uname = ctx.host.uname
    release = os_release(ctx.host.text("/etc/os-release") or ctx.host.text("/usr/lib/os-release"))
    name = release.get("PRETTY_NAME") or release.get("NAME") or uname.system or "unknown system"
    data = {
        "system": uname.system,
        "kernel": uname.release,
        "machine": uname.machine,
        "os": release.get("ID", ""),
        "os_version": release.get("VERSION_ID", ""),
    }
    text = f"{name}, kernel {uname.release}, {uname.machine}"
    if uname.machine.lower() not in _MACHINES:
        return warn(
            text,
            details=(f"no GPU library is published for {uname.machine or 'this processor'}",),
            remedies=(Remedy("Use an x86_64 or aarch64 machine for GPUs; here the CPU backend runs."),),
            data=data,
        )
    if uname.system != "Linux":
        return info(f"{text}: GPUs are used on Linux only, here the CPU backend runs", data=data)
    return info(text, data=data)


def os_release(text: str) -> dict[str, str]:
    """The fields of /etc/os-release, without quotes."""
    found = re.findall(r"""^([A-Z_]+)=["']?(.*?)["']?\s*$""", text, re.MULTILINE)
    return dict(found)


@check(
    "platform.glibc",
    "The C library can load the wheels",
    reads=("confstr(CS_GNU_LIBC_VERSION)",),
    severity="blocks-use",
)
def glibc(ctx: Context) -> Result:
    """Wheels of torch, NVRTC and HIP are built for glibc 2.28 and later (manylinux_2_28). On musl (Alpine) pip
    finds no such wheel at all."""
    if ctx.host.uname.system != "Linux":
        return skip(f"{ctx.host.uname.system or 'this system'} has no glibc")
    name, version = ctx.host.python.libc
    evidence = [("Python's C library", f"{name} {version}".strip())]
    if name == "musl":
        return warn(
            "musl: torch and the GPU compilers publish no wheels for it",
            evidence=evidence,
            remedies=(Remedy("Use an image based on glibc, such as python:3.12-slim in place of -alpine."),),
            data={"libc": name},
        )
    if name != "glibc":
        return skip("the C library's name is not known")
    data = {"libc": f"glibc {version}"}
    if version_tuple(version) < GLIBC_FLOOR:
        return fail(
            f"glibc {version} is older than {dotted(GLIBC_FLOOR)}, which the wheels need",
            evidence=evidence,
            remedies=(
                Remedy("Use a newer distribution or image (Debian 10, Ubuntu 20.04, RHEL 8 or later)."),
            ),
            data=data,
        )
    return passed(f"glibc {version}", evidence=evidence, data=data)


@check(
    "platform.python",
    "Python is a supported one",
    reads=("sys.version", "sys.implementation", "sys.prefix", "CONDA_PREFIX", "VIRTUAL_ENV"),
    severity="blocks-use",
)
def python(ctx: Context) -> Result:
    """CPython 3.10 to 3.13, 64 bits, with its global lock. A newer one may work and is only mentioned."""
    found = ctx.host.python
    place = "a virtual environment" if found.prefix != found.base_prefix else "no virtual environment"
    conda = ctx.host.env.get("CONDA_PREFIX", "")
    if conda and found.prefix == conda:
        place = "a conda environment"
    data = {"python": found.version, "implementation": found.implementation, "prefix": found.prefix}
    evidence = [("sys.executable", found.executable)]
    wanted = Remedy(f"Use 64-bit CPython {dotted(PYTHON_FLOOR)} to {dotted(PYTHON_TESTED)}.")
    if found.release < PYTHON_FLOOR or found.implementation != "cpython" or found.pointer_bits != 64:
        return fail(
            f"{found.implementation} {found.version}, {found.pointer_bits} bits, is not supported",
            evidence=evidence,
            remedies=(wanted,),
            data=data,
        )
    text = f"CPython {found.version} in {place}"
    if found.free_threaded:
        return info(f"{text}; free-threaded builds are not tested", evidence=evidence, data=data)
    if found.release > PYTHON_TESTED:
        newest = dotted(PYTHON_TESTED)
        return info(f"{text}; newer than {newest}, the newest tested", evidence=evidence, data=data)
    return passed(text, evidence=evidence, data=data)


@check(
    "platform.virt",
    "What kind of machine this is",
    reads=("/sys/class/dmi/id/*", "/sys/hypervisor/type", "/proc/cpuinfo"),
    severity="cosmetic",
)
def virtual(ctx: Context) -> Result:
    """Bare metal or a virtual machine, and whose. In a virtual machine a GPU arrives by passthrough (the whole
    device), SR-IOV or a vGPU profile (a part of it, licensed), and PCIe link state and peer access may differ
    from the physical machine's."""
    found = surroundings(ctx.host)
    evidence = [(fact, why) for fact, why in found.evidence.items() if fact == "hypervisor"]
    data = {"hypervisor": found.hypervisor, "kind": found.kind}
    if not found.hypervisor:
        return info("bare metal, or a hypervisor that does not show", data=data)
    return info(f"virtual machine: {found.hypervisor}", evidence=evidence, data=data)


@check(
    "platform.gpu",
    "There is a GPU",
    reads=("/sys/bus/pci/devices", "/dev/nvidia*", "/dev/kfd", "/dev/dxg"),
    severity="blocks-use",
    after=("nvidia.cuinit", "amd.hip-init", "wsl.libs"),
)
def gpu(ctx: Context) -> Result:
    """Names the vendors whose GPUs are here. A machine without any is a legal place to run: the CPU backend does the
    work there. With --require-gpu (or --require-gpu=nvidia, =amd) it is a failure, and so is a GPU whose
    driver's first call did not succeed: use it in CI jobs that must not fall back to the CPU in silence."""
    host = ctx.host
    counts = {"nvidia": len(gpus(host, NVIDIA)), "amd": len(amd_gpus(host))}
    if not counts["nvidia"] and host.glob("/dev/nvidia[0-9]*"):
        counts["nvidia"] = len(host.glob("/dev/nvidia[0-9]*"))
    if not counts["amd"] and topology(host).gpus and rocm_wanted(host):
        counts["amd"] = len(topology(host).gpus)
    if surroundings(host).wsl == 2 and host.exists("/dev/dxg"):
        cuda = ctx.data("wsl.libs", "libcuda")
        if cuda is None:
            cuda = host.exists("/usr/lib/wsl/lib/libcuda.so.1")
        counts["nvidia" if cuda else "amd"] = 1 if cuda or rocm_wanted(host) else 0
    kinds = [kind for kind, count in counts.items() if count]
    data = {"kinds": kinds, "counts": counts}
    names = {"nvidia": "NVIDIA", "amd": "AMD"}
    text = ", ".join(f"{counts[kind]} x {names[kind]}" for kind in kinds) or "no GPU: the CPU backend runs"
    required = ctx.options.require_gpu
    wanted = [required] if required in names else list(names)
    if not required:
        return passed(text, data=data) if kinds else info(text, data=data)
    remedy = Remedy("Run on a machine with such a GPU, or without --require-gpu.")
    what = f"{names[required]} GPU" if required in names else "GPU"
    if not set(kinds) & set(wanted):
        return fail(f"no {what} here, and one is required", remedies=(remedy,), data=data)
    starts = {"nvidia": "nvidia.cuinit", "amd": "amd.hip-init"}
    works = [
        kind
        for kind in wanted
        if kind in kinds
        and (result := ctx.result(starts[kind])) is not None
        and result.status in (Status.PASS, Status.INFO, Status.WARN)
    ]
    ran = [kind for kind in wanted if kind in kinds and ctx.result(starts[kind]) is not None]
    if ran and not works:
        fix = Remedy(
            f"See {starts[ran[0]]} and what it depends on.", f"portagemm doctor -v --only {starts[ran[0]]}"
        )
        return fail(f"a {what} is required; there is one, but it does not start", remedies=(fix,), data=data)
    return passed(text, data=data)
