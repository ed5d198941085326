"""NVIDIA: modes, memory errors, Xid events, the PCIe link and the clocks."""

from __future__ import annotations

import re

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.checks.nvidia import blocked
from portagemm.doctor.checks.nvidia_fabric import asked
from portagemm.doctor.facts import NVIDIA, container, gpus, surroundings, wsl
from portagemm.doctor.kernel_log import kernel_log
from portagemm.doctor.nvidia_facts import SMI_TIMEOUT_S, SmiGpu, cuda_devices, expected, smi

_SMI = ("nvidia-smi -q -x",)
_ROOTS = ("nvidia.pci", "nvidia.module", "nvidia.userspace-match")
_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}


@check(
    "nvidia.compute-mode",
    "Several processes may use a GPU",
    reads=(*_SMI, "cuDeviceGetAttribute in a child"),
    severity="blocks-use",
    probe="process",
    after=(*_ROOTS, "nvidia.libcuda-load"),
    timeout=SMI_TIMEOUT_S + 30,
)
def compute_mode(ctx: Context) -> Result:
    """In compute mode Prohibited no context can be made, in Exclusive_Process one process alone has the GPU: the
    second gets error 46, all CUDA-capable devices are busy or unavailable."""
    host = ctx.host
    if not expected(host):
        return skip("no NVIDIA GPU here")
    if (because := blocked(ctx, *_ROOTS)) is not None:
        return because
    modes = {gpu.name: gpu.text("compute_mode").replace(" ", "_") for gpu in smi(host).gpus}
    modes = {name: mode for name, mode in modes.items() if mode}
    if not modes:
        modes = {
            f"device {index}": _MODES.get(device.get("compute_mode", 0), "")
            for index, device in enumerate(cuda_devices(host))
        }
    if not modes:
        return skip("neither nvidia-smi nor libcuda said")
    prohibited = [name for name, mode in modes.items() if mode == "Prohibited"]
    exclusive = [name for name, mode in modes.items() if mode.startswith("Exclusive")]
    remedy = Remedy("Allow sharing.", "sudo nvidia-smi -c 0", root=True, host=bool(container(host)))
    data = {"modes": sorted(set(modes.values()))}
    if prohibited:
        return fail(
            f"compute mode Prohibited on {_names(prohibited)}: no program can use it",
            evidence=list(modes.items()),
            remedies=(remedy,),
            data=data,
        )
    if exclusive:
        return warn(
            f"compute mode Exclusive_Process on {_names(exclusive)}: a second process gets error 46",
            evidence=list(modes.items()),
            remedies=(remedy,),
            data=data,
        )
    return passed("Default on every GPU", data=data)


def _names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


@check(
    "nvidia.persistence",
    "The driver stays loaded between programs",
    reads=_SMI,
    severity="cosmetic",
    probe="process",
    after=_ROOTS,
    timeout=SMI_TIMEOUT_S + 10,
)
def persistence(ctx: Context) -> Result:
    """Without persistence mode, a machine without a display takes its GPUs down when the last program ends; the next
    one waits seconds for each GPU to come up again. In containers, WSL and with a display it is not our matter."""
    if wsl(ctx.host):
        return skip("WSL has no persistence mode")
    if container(ctx.host):
        return skip("set on the host, not in the container")
    answer = asked(ctx)
    if isinstance(answer, Result):
        return answer
    modes = {gpu.name: gpu.text("persistence_mode") for gpu in answer.gpus}
    off = [name for name, mode in modes.items() if mode == "Disabled"]
    # display_mode says Enabled on boards without any output: it tells nothing
    shown = [
        gpu.name
        for gpu in answer.gpus
        if gpu.text("display_active") == "Enabled" or gpu.text("display_attached") == "Yes"
    ]
    if off and not shown:
        return warn(
            f"off on {_names(off)}: the first use after a pause takes seconds",
            evidence=list(modes.items()),
            remedies=(
                Remedy(
                    "Keep the driver loaded.", "sudo systemctl enable --now nvidia-persistenced", root=True
                ),
            ),
        )
    if off:
        return info("off, but a display keeps the driver loaded", evidence=list(modes.items()))
    return passed("on", evidence=list(modes.items()))


@check(
    "nvidia.ecc",
    "The GPUs' memory is sound",
    reads=_SMI,
    severity="degrades",
    probe="process",
    after=_ROOTS,
    timeout=SMI_TIMEOUT_S + 10,
)
def ecc(ctx: Context) -> Result:
    """A row remapping that failed, or an SRAM error threshold that is exceeded, means that the board must be replaced.
    A remapping that is pending, uncorrectable errors since the last load of the driver, or a recovery that the driver
    asks for, need a reset of the GPU before its results can be trusted."""
    answer = asked(ctx)
    if isinstance(answer, Result):
        return answer
    failed = [gpu.name for gpu in answer.gpus if gpu.text("remapped_rows/remapped_row_failure") == "Yes"]
    pending = [
        gpu.name
        for gpu in answer.gpus
        if gpu.text("remapped_rows/remapped_row_pending") == "Yes"
        or gpu.text("retired_pages/pending_retirement", "retired_pages/pending_blacklist") == "Yes"
    ]
    worn = [
        gpu.name for gpu in answer.gpus if gpu.text("ecc_errors/aggregate/sram_threshold_exceeded") == "Yes"
    ]
    asked_for = {
        gpu.name: action
        for gpu in answer.gpus
        if (action := _recovery(gpu)) and gpu.name not in (*failed, *worn, *pending)
    }
    errors = {gpu.name: _uncorrectable(gpu) for gpu in answer.gpus}
    hit = [name for name, count in errors.items() if count]
    evidence = [
        (name, f"{count} uncorrectable errors since the driver was loaded")
        for name, count in errors.items()
        if count
    ]
    reset = Remedy("Stop all programs on it and reset it.", "sudo nvidia-smi --gpu-reset -i N", root=True)
    if failed or worn:
        what = (
            f"row remapping failed on {_names(failed)}"
            if failed
            else f"too many SRAM errors on {_names(worn)}"
        )
        return fail(
            f"{what}: the board is defective",
            evidence=evidence,
            remedies=(
                Remedy(
                    "Drain the node, run the diagnosis, have the board replaced.",
                    "dcgmi diag -r 3",
                    root=True,
                ),
            ),
        )
    if pending or hit:
        what = (
            f"a memory repair is pending on {_names(pending)}"
            if pending
            else f"uncorrectable errors on {_names(hit)}"
        )
        return warn(f"{what}: reset needed", evidence=evidence, remedies=(reset,))
    if asked_for:
        return warn(
            f"the driver asks for a recovery of {_names(list(asked_for))}: {next(iter(asked_for.values()))}",
            evidence=list(asked_for.items()),
            remedies=(reset,),
        )
    return passed("no uncorrectable error, no repair pending")


def _recovery(gpu: SmiGpu) -> str:
    """What the driver asks for: "reset", "drain and reset", or the newer drivers' word; "" nothing."""
    if gpu.text("gpu_reset_status/reset_required") == "Yes":
        return "reset"
    if gpu.text("gpu_reset_status/drain_and_reset_recommended") == "Yes":
        return "drain and reset"
    action = gpu.text("gpu_recovery_action")
    return "" if action in ("", "None") else action


def _uncorrectable(gpu: SmiGpu) -> int:
    volatile = gpu.element.find("ecc_errors/volatile")
    total = 0
    for item in volatile.iter() if volatile is not None else ():
        if "uncorrectable" in item.tag and item.text and item.text.strip().isdigit():
            total += int(item.text)
    return total


#: Xid -> what it is. Source: docs.nvidia.com/deploy/xid-errors.
_HARDWARE = {
    46: "the GPU stopped processing",
    48: "uncorrectable memory error (double bit)",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "page retirement or row remapping",
    64: "page retirement or row remapping failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of corrected memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch time-out",
    110: "security fault",
    119: "GSP firmware time-out",
    120: "GSP firmware error",
    140: "unrecovered memory error",
    143: "GPU initialisation failure",
    154: "GPU needs a recovery action",
}
_APPLICATION = {
    13: "illegal instruction or access in a kernel",
    31: "memory page fault in a kernel",
    32: "invalid push buffer",
}


@check(
    "nvidia.xid",
    "The kernel log holds no fault of the hardware",
    reads=("dmesg", "/var/log/kern.log"),
    severity="degrades",
    probe="process",
)
def xid(ctx: Context) -> Result:
    """NVIDIA's driver reports faults as Xid numbers in the kernel log. 48, 63, 64, 74, 79, 94, 95, 109, 119 and the
    like are the hardware's, its link's or its firmware's; 13 and 31 are a program's; 43 and 45 follow from others.

    Reading the log may need root; without it nothing is said."""
    host = ctx.host
    if not expected(host) or wsl(host):
        return skip("no NVIDIA GPU on this bus")
    log = kernel_log(host)
    if not log:
        return skip("the kernel log cannot be read")
    found: dict[int, str] = {}
    for line in log.splitlines():
        match = re.search(r"NVRM: Xid \(?[^)]*\)?:? (\d+)\b", line)
        if match:
            found[int(match[1])] = line.strip()
    hardware = {number: line for number, line in found.items() if number in _HARDWARE}
    evidence = [(f"Xid {number}", line[:200]) for number, line in found.items()]
    data = {"xids": sorted(found)}
    if hardware:
        words = ", ".join(f"{number} ({_HARDWARE[number]})" for number in sorted(hardware))
        remedies = [
            Remedy("Drain the node and reset the GPU.", "sudo nvidia-smi --gpu-reset -i N", root=True),
            Remedy(
                "If it returns, run the diagnosis and have the board replaced.", "dcgmi diag -r 3", root=True
            ),
        ]
        if 79 in hardware:
            remedies.insert(
                0,
                Remedy(
                    "Switch the machine off and on: a warm reboot may not bring the GPU back.",
                    root=True,
                    reboot=True,
                ),
            )
        return warn(f"Xid {words}", evidence=evidence, remedies=remedies, data=data)
    if found:
        words = ", ".join(
            f"{number}{f' ({_APPLICATION[number]})' if number in _APPLICATION else ''}"
            for number in sorted(found)
        )
        return info(f"Xid {words}: of programs, not of the hardware", evidence=evidence, data=data)
    return passed("no Xid")


@check(
    "nvidia.pcie",
    "The PCIe link has its full width",
    reads=("/sys/bus/pci/devices/*/{current,max}_link_{width,speed}",),
    severity="degrades",
    needs=("nvidia.pci",),
)
def pcie(ctx: Context) -> Result:
    """A link narrower than card and slot allow halves the bandwidth to the host: a riser, a slot wired for less,
    bifurcation, or dirt. A low *speed* is normal while the GPU idles, so it is only mentioned. In virtual machines
    the link is often made up."""
    host = ctx.host
    narrow, slow, evidence = [], [], []
    for device in gpus(host, NVIDIA):
        width, widest = (
            host.number(f"{device.path}/current_link_width"),
            host.number(f"{device.path}/max_link_width"),
        )
        speed, fastest = (
            host.value(f"{device.path}/current_link_speed"),
            host.value(f"{device.path}/max_link_speed"),
        )
        if not width or not widest or width > 32 or widest > 32:  # 63 or 255: the link is down or not known
            continue
        evidence.append((device.path, f"x{width} of x{widest}, {speed} of {fastest}"))
        if width < widest:
            narrow.append(device.address)
        if _rate(speed) < _rate(fastest):
            slow.append(device.address)
    if not evidence:
        return skip("the links' state is not shown")
    if narrow and not surroundings(host).hypervisor:
        return warn(
            f"{len(narrow)} of {len(evidence)} links are narrower than they could be ({', '.join(narrow[:3])})",
            evidence=evidence,
            remedies=(
                Remedy(
                    "Reseat the card, try another slot or riser, and look at bifurcation in the firmware's setup."
                ),
                Remedy("See which end limits it.", "sudo lspci -vv | grep -E 'LnkCap|LnkSta'", root=True),
            ),
            data={"narrow": len(narrow)},
        )
    if slow or narrow:
        return info(
            "full width; lower speed, as is normal at idle" if not narrow else "a virtual machine's link",
            evidence=evidence,
        )
    return passed("full width and speed", evidence=evidence)


def _rate(text: str) -> float:
    found = re.match(r"\d+(?:\.\d+)?", text)
    return float(found[0]) if found else 0.0


@check(
    "nvidia.throttle",
    "The clocks are not held back",
    reads=_SMI,
    severity="degrades",
    probe="process",
    after=_ROOTS,
    timeout=SMI_TIMEOUT_S + 10,
)
def throttle(ctx: Context) -> Result:
    """A hardware or thermal slowdown that is active now points to cooling or power supply. A software power cap under
    load is normal: the board works at its power limit."""
    answer = asked(ctx)
    if isinstance(answer, Result):
        return answer
    hard = {
        gpu.name: reasons
        for gpu in answer.gpus
        if (
            reasons := gpu.active(
                "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"
            )
        )
    }
    capped = [gpu.name for gpu in answer.gpus if gpu.active("sw_power_cap")]
    evidence = [(name, ", ".join(reasons)) for name, reasons in hard.items()]
    if hard:
        return warn(
            f"{next(iter(hard.values()))[0]} is active on {_names(list(hard))}",
            evidence=evidence,
            remedies=(
                Remedy("Look at temperature and power.", "nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE"),
                Remedy("Check fans, dust, air flow and power cables."),
            ),
        )
    if capped:
        return info(f"at the power limit: {_names(capped)}")
    return passed("no slowdown is active")
