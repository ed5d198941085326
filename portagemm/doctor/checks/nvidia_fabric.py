"""NVIDIA: NVSwitch fabric, NVL72 (IMEX), and GPUs that are cut into parts (MIG, vGPU) or shared (MPS)."""

from __future__ import annotations

import re

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.checks.nvidia import blocked
from portagemm.doctor.facts import container, surroundings, wsl
from portagemm.doctor.host import Host
from portagemm.doctor.nvidia_facts import SMI_TIMEOUT_S, Smi, expected, module_version, nvswitches, smi

_SMI = ("nvidia-smi -q -x",)
_ROOTS = ("nvidia.pci", "nvidia.module", "nvidia.userspace-match")


def asked(ctx: Context) -> Smi | Result:
    """nvidia-smi's answer, or a SKIP with why there is none."""
    if not expected(ctx.host):
        return skip("no NVIDIA GPU here")
    if (because := blocked(ctx, *_ROOTS)) is not None:
        return because
    answer = smi(ctx.host)
    return skip(answer.problem) if answer.problem else answer


def process_runs(host: Host, name: str) -> bool:
    """Whether a process of this name runs (the kernel keeps 15 characters of it)."""
    return any(host.value(path) == name[:15] for path in host.glob("/proc/[0-9]*/comm"))


@check(
    "nvidia.fabric",
    "The NVSwitch fabric is ready",
    reads=(
        "/dev/nvidia-nvswitch*",
        "/sys/bus/pci/devices/*/class",
        *_SMI,
        "nv-fabricmanager --version",
        "/proc/*/comm",
    ),
    severity="blocks-use",
    probe="process",
    after=_ROOTS,
    timeout=SMI_TIMEOUT_S + 15,
)
def fabric(ctx: Context) -> Result:
    """On machines with NVSwitch (A100, H100, H200, B200 in eights) the Fabric Manager must run and be of exactly the
    driver's version; else CUDA answers 802 on every GPU. Without NVSwitch it has nothing to do, and says so by
    NV_WARN_NOTHING_TO_DO.

    From H100 on nvidia-smi shows the fabric's state a GPU; in a container that is the only witness.
    """
    host = ctx.host
    if wsl(host) or not expected(host):
        return skip("no NVIDIA GPU on this bus")
    if (because := blocked(ctx, *_ROOTS)) is not None:
        return because
    answer = smi(host)
    states = {gpu.name: gpu.text("fabric/state") for gpu in answer.gpus}
    statuses = {gpu.name: gpu.text("fabric/status") for gpu in answer.gpus}
    known = {name: state for name, state in states.items() if state}
    switches = nvswitches(host)
    if not switches and not known:
        if host.glob("/etc/systemd/system/*.wants/nvidia-fabricmanager.service"):
            return info(
                "no NVSwitch here: the Fabric Manager that is enabled has nothing to do, which is no error",
                remedies=(
                    Remedy("Switch it off.", "sudo systemctl disable --now nvidia-fabricmanager", root=True),
                ),
            )
        return skip("no NVSwitch")
    evidence = [("NVSwitch", len(switches)), *known.items()]
    data = {"switches": len(switches), "states": sorted(set(known.values()))}
    unready = {
        name: state
        for name, state in known.items()
        if state != "Completed" or statuses[name] not in ("", "Success")
    }
    inside = bool(container(host))
    running = process_runs(host, "nv-fabricmanager")
    start = Remedy(
        "Start it now and at every boot.",
        "sudo systemctl enable --now nvidia-fabricmanager",
        root=True,
        host=inside,
    )
    version = module_version(host)
    if known and not unready:
        return passed("every GPU has joined the fabric", evidence=evidence, data=data)
    if inside and not known:
        return skip("the Fabric Manager runs outside this container, and nvidia-smi does not show the fabric")
    done = host.run(("nv-fabricmanager", "--version"), timeout=5.0)
    manager = re.search(r"\d+\.\d+(?:\.\d+)?", done.stdout + done.stderr) if not done.problem else None
    if manager:
        evidence.append(("nv-fabricmanager --version", manager[0]))
    install = Remedy(
        f"Install the Fabric Manager of exactly version {version}.",
        f"sudo apt-get install nvidia-fabricmanager-{version.partition('.')[0]}={version}-1"
        if version
        else "",
        root=True,
        host=inside,
    )
    if manager and version and manager[0] != version:
        return fail(
            f"the Fabric Manager is {manager[0]}, the driver {version}: they must be equal",
            evidence=evidence,
            remedies=(install, start),
            data=data,
        )
    if not inside and not running:
        what = "is not running" if manager else "is not installed"
        return fail(
            f"there is NVSwitch, but the Fabric Manager {what}: CUDA fails with 802",
            evidence=evidence,
            remedies=(start,) if manager else (install, start),
            data=data,
        )
    if unready:
        name, state = next(iter(unready.items()))
        said = f"{state}, {statuses[name]}" if statuses[name] else state
        return fail(
            f"{len(unready)} of {len(known)} GPUs have not joined the fabric ({name}: {said})",
            evidence=evidence,
            remedies=(
                Remedy(
                    "Read its log and restart it.",
                    "sudo journalctl -u nvidia-fabricmanager -n 50",
                    root=True,
                    host=inside,
                ),
            ),
            data=data,
        )
    return passed(
        f"the Fabric Manager runs{f' ({manager[0]})' if manager else ''}", evidence=evidence, data=data
    )


@check(
    "nvidia.imex",
    "Memory export between the nodes of an NVLink domain works",
    reads=("/dev/nvidia-caps-imex-channels", *_SMI, "/proc/*/comm"),
    severity="degrades",
    probe="process",
    after=(*_ROOTS, "nvidia.fabric"),
    timeout=SMI_TIMEOUT_S + 10,
)
def imex(ctx: Context) -> Result:
    """In racks whose NVLink spans nodes (GB200 NVL72) the IMEX daemon must run on every node, and a process needs a
    channel under /dev/nvidia-caps-imex-channels. Elsewhere there is nothing to check."""
    answer = asked(ctx)
    if isinstance(answer, Result):
        return answer
    clusters = {gpu.text("fabric/cluster_uuid", "fabric/clusterUuid") for gpu in answer.gpus}
    if not any(re.search(r"[1-9a-fA-F]", text) for text in clusters):
        return skip("NVLink does not span nodes here")
    channels = ctx.host.glob("/dev/nvidia-caps-imex-channels/channel*")
    evidence = [("channels", len(channels))]
    inside = bool(container(ctx.host))
    if not channels:
        return warn(
            "the NVLink domain spans nodes, but there is no IMEX channel",
            evidence=evidence,
            remedies=(
                Remedy(
                    "Start the daemon on every node.",
                    "sudo systemctl enable --now nvidia-imex",
                    root=True,
                    host=inside,
                ),
                Remedy(
                    "Make a channel.",
                    "sudo modprobe nvidia NVreg_CreateImexChannel0=1",
                    root=True,
                    host=inside,
                ),
            ),
        )
    if not inside and not process_runs(ctx.host, "nvidia-imex"):
        return warn(
            "the IMEX daemon does not run",
            evidence=evidence,
            remedies=(
                Remedy("Start it on every node.", "sudo systemctl enable --now nvidia-imex", root=True),
            ),
        )
    return passed(f"{len(channels)} channels", evidence=evidence)


@check(
    "nvidia.mig",
    "MIG slices are named so that CUDA finds them",
    reads=(*_SMI, "/proc/driver/nvidia/capabilities", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    severity="blocks-use",
    probe="process",
    after=_ROOTS,
    timeout=SMI_TIMEOUT_S + 10,
)
def mig(ctx: Context) -> Result:
    """A GPU in MIG mode is cut into slices, which are named by UUID (MIG-...), never by number; a process sees one
    slice alone. A mask with numbers then shows nothing, or the first slice."""
    host = ctx.host
    if not expected(host):
        return skip("no NVIDIA GPU here")
    if (because := blocked(ctx, *_ROOTS)) is not None:
        return because
    seen = surroundings(host).mig
    answer = smi(host)
    on = [gpu for gpu in answer.gpus if gpu.text("mig_mode/current_mig") == "Enabled"]
    slices = sum(len(gpu.element.findall("mig_devices/mig_device")) for gpu in on)
    if not on and not seen:
        return skip(answer.problem or "MIG is off")
    mask = host.env.get("CUDA_VISIBLE_DEVICES")
    evidence = [(gpu.name, "MIG on") for gpu in on] + [("MIG", text) for text in seen[:4]]
    data = {"gpus": len(on), "slices": slices}
    if on and len(on) == len(answer.gpus) and not slices:
        return fail(
            "MIG is on, but there is no slice: CUDA finds no device",
            evidence=evidence,
            remedies=(
                Remedy("Make slices.", "sudo nvidia-smi mig -cgi 9,9 -C", root=True),
                Remedy("Or switch MIG off.", "sudo nvidia-smi -mig 0", root=True),
            ),
            data=data,
        )
    if on and mask and re.fullmatch(r"[\d, ]+", mask):
        return warn(
            f"MIG is on, and CUDA_VISIBLE_DEVICES={mask} names devices by number",
            evidence=[*evidence, ("CUDA_VISIBLE_DEVICES", mask)],
            remedies=(
                Remedy("List the slices.", "nvidia-smi -L"),
                Remedy("Name one of them in each process.", "export CUDA_VISIBLE_DEVICES=MIG-<UUID>"),
            ),
            data=data,
        )
    if mask and mask.count("MIG-") > 1:
        return warn(
            "CUDA_VISIBLE_DEVICES names several slices; a process sees the first alone",
            evidence=[*evidence, ("CUDA_VISIBLE_DEVICES", mask)],
            remedies=(Remedy("Start one process a slice, each with its own CUDA_VISIBLE_DEVICES."),),
            data=data,
        )
    text = f"MIG is on: {slices} slices; a process sees one of them" if on else "this process has a MIG slice"
    return info(text, evidence=evidence, data=data)


@check(
    "nvidia.vgpu",
    "A virtual GPU is licensed",
    reads=(*_SMI, "/proc/driver/nvidia/gpus/*/information"),
    severity="degrades",
    probe="process",
    after=_ROOTS,
    timeout=SMI_TIMEOUT_S + 10,
)
def vgpu(ctx: Context) -> Result:
    """A vGPU without a licence is slowed down, then refused (error 102). vGPU profiles may also lack virtual memory
    management, IPC and peer access, which answer 801."""
    answer = asked(ctx)
    if isinstance(answer, Result):
        return answer
    virtual = [
        gpu
        for gpu in answer.gpus
        if "VGPU" in gpu.text("gpu_virtualization_mode/virtualization_mode").upper()
    ]
    named = surroundings(ctx.host).vgpu
    if not virtual and named:  # nvidia-smi of some hypervisors says nothing of the mode
        text = f"{', '.join(named)}: a vGPU; VMM, IPC and peer access may be missing"
        return info(text, evidence=[("/proc/driver/nvidia/gpus", named[0])], data={"vgpu": len(named)})
    if not virtual:
        return skip("no vGPU")
    status = {
        gpu.name: gpu.text(
            "vgpu_software_licensed_product/license_status", "grid_licensed_product/license_status"
        )
        for gpu in virtual
    }
    bad = [name for name, text in status.items() if text.lower().startswith("unlicensed")]
    evidence = [(name, text or "no licence status") for name, text in status.items()]
    data = {"vgpu": len(virtual)}
    if bad:
        return warn(
            f"{len(bad)} of {len(virtual)} vGPUs have no licence",
            evidence=evidence,
            remedies=(
                Remedy(
                    "Install the client token and look at the service.",
                    "systemctl status nvidia-gridd",
                    root=True,
                ),
            ),
            data=data,
        )
    return info(
        f"{len(virtual)} vGPU{'s' if len(virtual) > 1 else ''}; VMM, IPC and peer access may be missing",
        evidence=evidence,
        data=data,
    )


@check(
    "nvidia.mps",
    "The MPS server can be reached",
    reads=("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps/control", "/proc/*/comm"),
    severity="blocks-use",
)
def mps(ctx: Context) -> Result:
    """If CUDA_MPS_PIPE_DIRECTORY is set, every CUDA program looks for the MPS daemon's pipe in that folder; one that is
    left behind by a daemon that died makes programs fail with 805 to 807."""
    host = ctx.host
    if not expected(host):
        return skip("no NVIDIA GPU here")
    folder = host.env.get("CUDA_MPS_PIPE_DIRECTORY", "")
    if not folder:
        if not host.exists("/tmp/nvidia-mps/control"):
            return skip("MPS is not in use")
        folder = "/tmp/nvidia-mps"
    running = process_runs(host, "nvidia-cuda-mps-control")
    evidence = [("pipe folder", folder), ("nvidia-cuda-mps-control", "runs" if running else "not seen")]
    if not host.exists(f"{folder}/control"):
        return warn(
            f"CUDA_MPS_PIPE_DIRECTORY={folder}, but no MPS daemon has its pipe there",
            evidence=evidence,
            remedies=(
                Remedy("Start the daemon.", "nvidia-cuda-mps-control -d"),
                Remedy("Or do without.", "unset CUDA_MPS_PIPE_DIRECTORY"),
            ),
        )
    if not running and not container(host) and host.listdir("/proc"):
        return warn(
            f"{folder} holds the pipe of an MPS daemon that does not run any more",
            evidence=evidence,
            remedies=(
                Remedy("Start it again.", "nvidia-cuda-mps-control -d"),
                Remedy("Or remove the folder.", f"rm -r {folder}"),
            ),
        )
    return info(f"MPS is in use ({folder})", evidence=evidence)
