"""NVIDIA: loading libcuda, initialising it, and whether the driver is new enough."""

from __future__ import annotations

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.checks.nvidia import blocked
from portagemm.doctor.cuda_codes import CUDA_CODES, describe
from portagemm.doctor.facts import container, dotted, surroundings, version_tuple, wsl
from portagemm.doctor.kernel_log import kernel_log
from portagemm.doctor.nvidia_facts import (
    LIBCUDA_TIMEOUT_S,
    capability,
    cuda_of_driver,
    expected,
    libcuda,
    module_version,
)
from portagemm.doctor.nvidia_versions import (
    FAMILY_MINIMUM,
    KNOWN_AS_OF,
    NEWEST_FAMILY,
    PACKAGED_DRIVER,
    family_of_driver,
)
from portagemm.doctor.torch_facts import WHEELS, cuda_wanted

#: What explains a libcuda that does not load; each is the root where it failed.
_LOAD_ROOTS = (
    "nvidia.pci",
    "nvidia.module",
    "wsl.version",
    "wsl.dxg",
    "wsl.libs",
    "wsl.linux-driver-inside",
    "container.nvidia-visible",
    "container.nvidia-caps",
    "container.apptainer",
    "libs.stubs",
)
#: What explains a libcuda that does not initialise.
_INIT_ROOTS = (
    "nvidia.userspace-match",
    "nvidia.devnodes",
    "nvidia.fabric",
    "nvidia.hmm",
    "container.compat-libcuda",
    "container.device-open",
    "cluster.slurm",
)


@check(
    "nvidia.libcuda-load",
    "libcuda.so.1 loads",
    reads=("a child that loads libcuda.so.1", "/proc/self/maps of the child"),
    severity="blocks-use",
    probe="process",
    after=_LOAD_ROOTS,
    timeout=LIBCUDA_TIMEOUT_S + 10,
)
def libcuda_load(ctx: Context) -> Result:
    """Loads libcuda.so.1 in a child, as every CUDA program does, and asks which file it was. The name libcuda.so
    without .1 belongs to development packages; WSL2 may lack it.

    The toolkit's stub of the same name loads too, and then answers 34 to everything.
    """
    host = ctx.host
    if not expected(host):
        return skip("no NVIDIA GPU here")
    if (because := blocked(ctx, *_LOAD_ROOTS)) is not None:
        return because
    child = libcuda(host)
    if not child.recorded:
        return skip("not recorded for this machine")
    facts = child.value if isinstance(child.value, dict) else {}
    path = facts.get("path", "")
    if "path" not in facts:
        error = facts.get("error", "")
        how = "hangs" if child.timed_out else f"crashes ({child.crashed})" if child.crashed else ""
        text = f"loading libcuda.so.1 {how}" if how else "libcuda.so.1 does not load"
        return fail(
            text,
            details=tuple(filter(None, (error or child.command.stderr.strip()[-300:],))),
            evidence=[("child", child.command.say())],
            remedies=_load_remedies(ctx),
        )
    if facts.get("missing"):
        return fail(
            f"{path or 'libcuda.so.1'} is no CUDA driver: it lacks {', '.join(facts['missing'])}",
            remedies=_load_remedies(ctx),
            data={"path": path},
        )
    if "/stubs/" in path or facts.get("code") == 34:
        return fail(
            f"the libcuda that loads is the toolkit's stub: {path or 'error 34'}",
            remedies=(Remedy("Take the folder that ends in /stubs out of the library path."),),
            data={"path": path},
        )
    return passed(path or "loads", data={"path": path})


def _load_remedies(ctx: Context) -> tuple[Remedy, ...]:
    if container(ctx.host):
        return (
            Remedy(
                "Give the container the driver's compute library.",
                "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
                host=True,
            ),
        )
    if wsl(ctx.host):
        return (
            Remedy("Rebuild the loader's cache.", "sudo ldconfig", root=True),
            Remedy("Or name the folder.", "export LD_LIBRARY_PATH=/usr/lib/wsl/lib:$LD_LIBRARY_PATH"),
        )
    return (
        Remedy(
            "Install the driver's libraries (libcuda.so.1 comes with the driver, not the toolkit).",
            "sudo ubuntu-drivers install",
            root=True,
        ),
        Remedy("If it is installed, rebuild the loader's cache.", "sudo ldconfig", root=True),
    )


@check(
    "nvidia.hmm",
    "nvidia-uvm can reserve its address space",
    reads=(
        "cuInit in a child",
        "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm",
        "/proc/cmdline",
        "kernel log",
    ),
    severity="blocks-use",
    probe="process",
    after=("nvidia.libcuda-load",),
    timeout=LIBCUDA_TIMEOUT_S + 15,
)
def hmm(ctx: Context) -> Result:
    """Where cuInit answers 3 although the rest is in order, nvidia-uvm's heterogeneous memory management (HMM) often
    could not reserve address space, because KASLR placed the kernel where it needs it. The kernel log then has
    devmem_alloc_pagemap with error -34.
    """
    host = ctx.host
    facts = libcuda(host).value if expected(host) else None
    if not isinstance(facts, dict) or "path" not in facts:
        return skip("libcuda was not asked")
    disabled = host.value("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    if facts.get("code") != 3 or facts.get("call") != "cuInit":
        return passed("CUDA initialises, or fails for another reason")
    lines = [
        line
        for line in kernel_log(host).splitlines()
        if "devmem_alloc_pagemap" in line or "free_mem_region" in line
    ]
    if disabled in ("Y", "1") or (not lines and "nokaslr" in host.text("/proc/cmdline").split()):
        return passed("HMM is off already")
    if not lines and not disabled:
        return passed("nothing points to HMM")
    return fail(
        "cuInit answers 3: "
        + ("nvidia-uvm could not set up HMM" if lines else "probably nvidia-uvm's HMM with KASLR"),
        details=tuple(lines[:2]),
        evidence=[("uvm_disable_hmm", disabled or "not set")],
        remedies=(
            Remedy(
                "Switch HMM off.",
                "echo 'options nvidia_uvm uvm_disable_hmm=1' | sudo tee /etc/modprobe.d/nvidia-uvm.conf",
                root=True,
                reboot=True,
            ),
            Remedy("Or boot with nokaslr on the kernel's command line.", root=True, reboot=True),
        ),
    )


@check(
    "nvidia.cuinit",
    "CUDA initialises and shows its devices",
    reads=("cuInit, cuDriverGetVersion, cuDeviceGetCount in a child", "CUDA_VISIBLE_DEVICES"),
    severity="blocks-use",
    probe="process",
    needs=("nvidia.libcuda-load",),
    after=_INIT_ROOTS,
    timeout=LIBCUDA_TIMEOUT_S + 10,
)
def cuinit(ctx: Context) -> Result:
    """Initialises CUDA in a child and lists the devices; no context is made. That nvidia-smi works does not show
    that this does: it goes another way.

    The driver's error number is translated. A hang or crash of the driver is a failure with the stage it came to.
    """
    host = ctx.host
    if (because := blocked(ctx, *_INIT_ROOTS)) is not None:
        return because
    child = libcuda(host)
    facts = child.value if isinstance(child.value, dict) else {}
    stage = {"init": "cuInit", "devices": "listing the devices"}.get(facts.get("stage", ""), "the driver")
    mask = host.env.get("CUDA_VISIBLE_DEVICES")
    evidence = [("libcuda", facts.get("path", ""))]
    if mask is not None:
        evidence.append(("CUDA_VISIBLE_DEVICES", mask))
    if facts.get("code"):
        return _refused(ctx, facts, mask, evidence)
    if "devices" not in facts:
        how = (
            "does not return"
            if child.timed_out
            else f"crashes with {child.crashed}"
            if child.crashed
            else child.command.say()
        )
        return fail(
            f"{stage} {how}",
            details=tuple(filter(None, (child.command.stderr.strip()[-300:],))),
            evidence=evidence,
            remedies=(
                Remedy(
                    "Read the kernel log for Xid or NVRM lines.",
                    "sudo dmesg | grep -iE 'nvrm|xid'",
                    root=True,
                ),
                Remedy("Reboot if the driver hangs.", "sudo reboot", root=True, reboot=True),
            ),
        )
    devices = [
        {
            "name": row["name"],
            "capability": "{}.{}".format(*capability(row)),
            "memory": row.get("memory_bytes", 0),
            "uuid": row.get("uuid", ""),
            "compute_mode": row.get("compute_mode", 0),
        }
        for row in facts["devices"]
    ]
    cuda = cuda_of_driver(host)
    data = {"devices": devices, "cuda": dotted(cuda) if cuda else "", "driver": module_version(host)}
    if not devices:
        return _refused(ctx, {**facts, "code": 100}, mask, evidence)
    names = sorted({device["name"] for device in devices})
    count = f"{len(devices)} device{'s' if len(devices) > 1 else ''}"
    text = f"{count} ({', '.join(names)}), driver for CUDA {data['cuda']}"
    return passed(text, evidence=evidence, data=data)


def _refused(
    ctx: Context, facts: dict[str, object], mask: str | None, evidence: list[tuple[str, str]]
) -> Result:
    code = int(str(facts["code"]))
    known = CUDA_CODES.get(code)
    call = facts.get("call", "cuInit")
    data = {"code": code, "name": known.name if known else ""}
    if code == 100 and mask is not None:
        return warn(
            f"CUDA_VISIBLE_DEVICES={mask!r} hides every NVIDIA GPU",
            evidence=evidence,
            remedies=(Remedy("If that is not meant, take it away.", "unset CUDA_VISIBLE_DEVICES"),),
            data=data,
        )
    outside = bool(container(ctx.host))
    remedy = (
        Remedy(f"{known.advice[0].upper()}{known.advice[1:]}.", host=outside)
        if known
        else Remedy("Look the number up in cuda.h.")
    )
    return fail(f"{call} answers {describe(code)}", evidence=evidence, remedies=(remedy,), data=data)


@check(
    "nvidia.context",
    "A context can be made on every device",
    reads=("cuDevicePrimaryCtxRetain on each device, in a child",),
    severity="blocks-use",
    probe="gpu",
    needs=("nvidia.cuinit",),
    after=("nvidia.compute-mode",),
    timeout=120.0,
)
def context(ctx: Context) -> Result:
    """Makes a context on each device and gives it back: some hundred megabytes of device memory for a moment.
    Finds devices that are busy, prohibited, unlicensed or damaged."""
    if (because := blocked(ctx, "nvidia.compute-mode")) is not None:
        return because
    child = ctx.host.child("libcuda", "context", timeout=100.0)
    if not child.recorded:
        return skip("not recorded for this machine")
    codes = child.value.get("contexts", []) if isinstance(child.value, dict) else []
    bad = [(index, code) for index, code in enumerate(codes) if code]
    remedies = tuple(
        Remedy(f"{CUDA_CODES[code].advice[0].upper()}{CUDA_CODES[code].advice[1:]}.")
        for code in dict.fromkeys(code for _, code in bad)
        if code in CUDA_CODES
    ) or (Remedy("Read the kernel log.", "sudo dmesg | grep -iE 'nvrm|xid'", root=True),)
    if bad:
        return fail(
            "; ".join(f"device {index}: {describe(code)}" for index, code in bad),
            remedies=remedies,
            data={"codes": codes},
        )
    if not child.ok or not codes:
        return fail(f"making a context: {child.command.say()}", remedies=remedies, data={"codes": codes})
    return passed(f"on {len(codes)} device{'s' if len(codes) > 1 else ''}", data={"codes": codes})


@check(
    "nvidia.driver-min",
    "The driver is new enough for the installed CUDA",
    reads=(
        "/proc/driver/nvidia/version",
        "cuDriverGetVersion in a child",
        "metadata of torch and of the CUDA wheels",
    ),
    severity="blocks-use",
    probe="process",
    after=("nvidia.module", "nvidia.libcuda-load"),
    timeout=LIBCUDA_TIMEOUT_S + 10,
)
def driver_min(ctx: Context) -> Result:
    """Programs built for CUDA 13 need driver 580, for CUDA 12 driver 525, for CUDA 11 driver 450. The number that
    nvidia-smi shows as "CUDA Version" is the newest the driver supports, not what is installed.

    Within a family an older driver runs newer programs, but not their PTX: that is tool.ptx-vs-driver.
    """
    host = ctx.host
    if not expected(host):
        return skip("no NVIDIA GPU here")
    if (because := blocked(ctx, "nvidia.pci", "nvidia.module")) is not None:
        return because
    driver, asked = version_tuple(module_version(host)), cuda_of_driver(host)
    family = asked[0] if asked else family_of_driver(driver) if driver else 0
    if not family and not driver:
        return skip("the driver's version is not known")
    shown = module_version(host) or f"for CUDA {dotted(asked or ())}"
    wanted = cuda_wanted(host)
    evidence = [("driver", shown), *((who, dotted(cuda)) for who, cuda in wanted.items())]
    data = {"driver": module_version(host), "family": family}
    if not wanted:
        return info(
            f"driver {shown}; no CUDA build is installed to compare it with", evidence=evidence, data=data
        )
    who, newest = max(wanted.items(), key=lambda item: item[1])
    if newest[0] > NEWEST_FAMILY:
        return info(
            f"{who} is of CUDA {dotted(newest)}, newer than what is known here ({KNOWN_AS_OF})",
            evidence=evidence,
            data=data,
        )
    # A forward-compatibility libcuda answers for a newer family than the module's.
    if newest[0] > family:
        least = dotted(FAMILY_MINIMUM[newest[0]])
        return fail(
            f"driver {shown} is too old for {who}, which is of CUDA {dotted(newest)} and needs {least}",
            evidence=evidence,
            remedies=(
                Remedy(
                    f"Install driver {least} or newer.",
                    root=True,
                    reboot=True,
                    windows=wsl(host) == 2,
                    host=bool(container(host)),
                ),
                Remedy(
                    "Or install torch for an older CUDA.",
                    f"pip install torch --index-url {WHEELS}/cu{'126' if family >= 12 else '118'}",
                ),
            ),
            data=data,
        )
    packaged = PACKAGED_DRIVER.get((newest[0], newest[1] if len(newest) > 1 else 0))
    if driver and packaged and driver < packaged and surroundings(host).wsl == 0:
        return info(
            f"driver {shown} serves CUDA {newest[0]}, though {who} came out with {dotted(packaged)}",
            details=("features of the newer driver are missing",),
            evidence=evidence,
            data=data,
        )
    return passed(f"driver {shown} serves CUDA {dotted(newest)}", evidence=evidence, data=data)
