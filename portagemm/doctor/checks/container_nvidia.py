"""Containers: what reached this one of the node's NVIDIA GPUs, and what did not."""

from __future__ import annotations

import errno
import re

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.checks.container import way_of
from portagemm.doctor.facts import NVIDIA, container, gpus, version_tuple, wsl
from portagemm.doctor.facts_amd import group_name
from portagemm.doctor.host import Host
from portagemm.doctor.nvidia_facts import LIBRARY_FOLDERS, module_version

_FOLDERS = (*LIBRARY_FOLDERS, "/usr/lib/wsl/lib")

_GIVE = {
    "docker": Remedy("Docker: start the container with the GPUs.", "docker run --gpus all ...", host=True),
    "podman": Remedy(
        "Podman: start it with the GPUs, by CDI.",
        "podman run --device nvidia.com/gpu=all --security-opt=label=disable ...",
        host=True,
    ),
    "kubernetes": Remedy(
        "Kubernetes: request them in the pod's resources.", "limits: {nvidia.com/gpu: 1}", host=True
    ),
}


def nvidia_nodes(host: Host) -> list[str]:
    """/dev/nvidia0 and so on, /dev/dxg on WSL2."""
    if wsl(host) == 2:
        return host.glob("/dev/dxg")
    return [path for path in host.glob("/dev/nvidia[0-9]*") if path[len("/dev/nvidia") :].isdigit()]


@check(
    "container.nvidia-visible",
    "The container was given the node's NVIDIA GPUs",
    reads=("NVIDIA_VISIBLE_DEVICES", "/dev/nvidia[0-9]*", "/dev/dxg", "/sys/bus/pci/devices"),
    severity="blocks-use",
    needs=("container.kind",),
)
def nvidia_visible(ctx: Context) -> Result:
    """The container runtime adds GPUs when NVIDIA_VISIBLE_DEVICES says so (all, indices, UUIDs, MIG ids; void,
    empty or unset is none), or by CDI, which needs no variable. sysfs shows the node's GPUs inside a container
    too, so a GPU on the bus without a device node is a GPU that was not passed on."""
    host = ctx.host
    nodes = nvidia_nodes(host)
    on_bus = gpus(host, NVIDIA)
    asked = host.env.get("NVIDIA_VISIBLE_DEVICES")
    evidence = [("NVIDIA_VISIBLE_DEVICES", "not set" if asked is None else repr(asked))]
    data = {"nodes": len(nodes), "on_bus": len(on_bus), "asked": asked}
    if nodes:
        if not asked or asked == "void":
            return info(f"{len(nodes)} by CDI or --device", evidence=evidence, data=data)
        return passed(f"{len(nodes)} by NVIDIA_VISIBLE_DEVICES={asked}", evidence=evidence, data=data)
    if wsl(host) == 2:
        return skip("see wsl.dxg")
    if not on_bus:
        return skip("no NVIDIA GPU on this node")
    evidence += [(device.path, "a GPU on the bus") for device in on_bus[:8]]
    if asked and asked not in ("void", "none"):
        toolkit = Remedy(
            "Install the NVIDIA Container Toolkit on the node, and start the container through it.",
            "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
            root=True,
            host=True,
        )
        message = (
            f"NVIDIA_VISIBLE_DEVICES={asked}, but no GPU arrived: the container runs without NVIDIA's runtime"
        )
        return fail(message, evidence=evidence, remedies=(*way_of(host, _GIVE), toolkit), data=data)
    message = f"the node has {len(on_bus)} NVIDIA GPU(s), the container was given none"
    return fail(message, evidence=evidence, remedies=way_of(host, _GIVE), data=data)


@check(
    "container.nvidia-caps",
    "The container was given CUDA, not only nvidia-smi",
    reads=("NVIDIA_DRIVER_CAPABILITIES", "libcuda.so.1"),
    severity="blocks-use",
    needs=("container.nvidia-visible",),
)
def nvidia_caps(ctx: Context) -> Result:
    """NVIDIA_DRIVER_CAPABILITIES picks which of the driver's libraries are mounted. If it is set it must contain
    compute (or all); utility alone gives nvidia-smi but no libcuda.so.1, so a working nvidia-smi proves
    nothing."""
    host = ctx.host
    asked = host.env.get("NVIDIA_DRIVER_CAPABILITIES", "")
    words = {word.strip() for word in asked.split(",") if word.strip()}
    found = [path for folder in _FOLDERS for path in host.glob(f"{folder}/libcuda.so.1")]
    evidence = [
        ("NVIDIA_DRIVER_CAPABILITIES", asked or "not set"),
        ("libcuda.so.1", found[0] if found else "not found"),
    ]
    data = {"capabilities": sorted(words), "libcuda": found}
    if not words or words & {"compute", "all"}:
        return passed(asked or "the default, utility and compute", evidence=evidence, data=data)
    if found:
        return info(f"{asked} has no compute, yet libcuda.so.1 is there", evidence=evidence, data=data)
    remedy = Remedy(
        "Ask for compute too.",
        "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
        host=True,
    )
    message = f"NVIDIA_DRIVER_CAPABILITIES={asked} has no compute: libcuda.so.1 is not mounted"
    return fail(message, evidence=evidence, remedies=(remedy,), data=data)


@check(
    "container.compat-libcuda",
    "A forward-compatibility libcuda is used only where it works",
    reads=(
        "LD_LIBRARY_PATH",
        "/etc/ld.so.conf.d/*compat*",
        "/usr/local/cuda*/compat",
        "/proc/driver/nvidia/version",
    ),
    severity="blocks-use",
)
def compat_libcuda(ctx: Context) -> Result:
    """CUDA images carry a newer libcuda in /usr/local/cuda/compat. It works only on data-centre GPUs (else error
    804) and only if it is newer than the kernel module (else 803). The container toolkit puts it on the path
    when it helps; LD_LIBRARY_PATH set by hand puts it there always, and breaks when the node's driver is
    upgraded."""
    host = ctx.host
    by_hand = [
        folder.rstrip("/")
        for folder in host.env.get("LD_LIBRARY_PATH", "").split(":")
        if "compat" in folder and host.glob(f"{folder.rstrip('/')}/libcuda.so*")
    ]
    by_toolkit = [
        line.strip()
        for path in host.glob("/etc/ld.so.conf.d/*compat*.conf")
        for line in host.text(path).splitlines()
        if line.strip().startswith("/") and host.glob(f"{line.strip()}/libcuda.so*")
    ]
    if not by_hand and not by_toolkit:
        return skip("no forward-compatibility libcuda is on the path")
    folder = (by_hand or by_toolkit)[0]
    compat = _library_version(host, folder)
    module = module_version(host)
    evidence = [
        (folder, f"libcuda {compat or 'of unknown version'}"),
        ("/proc/driver/nvidia/version", module or "none"),
    ]
    if by_hand:
        evidence.append(("LD_LIBRARY_PATH", host.env.get("LD_LIBRARY_PATH", "")))
    data = {"folder": folder, "compat": compat, "module": module, "by_hand": bool(by_hand)}
    drop = Remedy(f"Take {folder} off LD_LIBRARY_PATH; the container toolkit adds it where it helps.")
    if not by_hand:
        drop = Remedy(
            f"Remove the file of /etc/ld.so.conf.d that names {folder}.", "sudo ldconfig", root=True
        )
    upgrade = Remedy(
        "Or upgrade the node's driver to the CUDA version of the image.", root=True, reboot=True, host=True
    )
    if not module:
        return skip("no NVIDIA kernel module to compare with", evidence=evidence, data=data)
    if compat and version_tuple(compat) < version_tuple(module):
        message = f"libcuda {compat} in {folder} is older than the kernel module {module} (error 803)"
        return fail(message, evidence=evidence, remedies=(drop,), data=data)
    models = gpu_models(host)
    consumer = [model for model in models if re.search(r"GeForce|TITAN|GTX", model, re.IGNORECASE)]
    if consumer:
        message = f"forward compatibility does not work on {consumer[0]} (error 804)"
        return fail(message, evidence=evidence, remedies=(drop, upgrade), data=data)
    if by_hand:
        message = f"LD_LIBRARY_PATH always prefers libcuda {compat} in {folder} to the driver's {module}"
        return warn(message, evidence=evidence, remedies=(drop,), data=data)
    return passed(
        f"libcuda {compat} over driver {module}, by the container toolkit", evidence=evidence, data=data
    )


def _library_version(host: Host, folder: str) -> str:
    names = [host.realpath(path).rpartition("/")[2] for path in host.glob(f"{folder}/libcuda.so*")]
    versions = [
        match[1] for name in names if (match := re.match(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)$", name))
    ]
    return max(versions, key=version_tuple, default="")


def gpu_models(host: Host) -> list[str]:
    """Names of the NVIDIA GPUs, from /proc/driver/nvidia."""
    found = []
    for path in host.glob("/proc/driver/nvidia/gpus/*/information"):
        match = re.search(r"^Model:\s*(.+?)\s*$", host.text(path), re.MULTILINE)
        if match:
            found.append(match[1])
    return found


@check(
    "container.device-open",
    "NVIDIA's device nodes can be opened",
    reads=("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia[0-9]*"),
    severity="blocks-use",
)
def device_open(ctx: Context) -> Result:
    """A node that is there may still refuse. EPERM is the device cgroup: `systemctl daemon-reload` on the node
    takes the devices from running containers ("Failed to initialize NVML: Unknown Error"), and Slurm
    takes those that were not asked for. EACCES is the node's permission bits."""
    host = ctx.host
    if wsl(host):
        return skip("see wsl.dxg")
    devices = nvidia_nodes(host)
    if not devices:
        return skip("no NVIDIA device nodes")
    control = [path for path in ("/dev/nvidiactl", "/dev/nvidia-uvm") if host.exists(path)]
    codes = {path: host.open_errno(path, write=True) for path in [*control, *devices]}
    bad = {path: code for path, code in codes.items() if code}
    names = {path: errno.errorcode.get(code, str(code)) for path, code in bad.items()}
    evidence = list(names.items())
    data = {"errors": names, "openable": len(codes) - len(bad)}
    if not bad:
        return passed(f"{len(codes)} nodes can be opened", data=data)
    denied = {path for path, code in bad.items() if code == errno.EPERM}
    usable = [path for path in devices if path not in bad]
    if denied == set(bad) and usable and not denied & set(control):
        text = f"the device cgroup gives this process {len(usable)} of {len(devices)} GPUs"
        return info(text, evidence=evidence, data=data)
    if denied:
        if host.env.get("SLURM_JOB_ID") and not usable and not denied & set(control):
            return skip("Slurm gave this job no GPU: see cluster.slurm", evidence=evidence, data=data)
        where = "the container lost its devices" if container(host) else "the device cgroup denies them"
        remedies = (
            Remedy("Restart the container.", host=True),
            Remedy(
                "To keep them next time: pass GPUs by CDI or --device, or use the cgroupfs driver.",
                "docker run --device nvidia.com/gpu=all ...",
                host=True,
            ),
        )
        return fail(
            f"{where}: opening gives EPERM (Operation not permitted)",
            evidence=evidence,
            remedies=remedies,
            data=data,
        )
    if any(code == errno.EACCES for code in bad.values()):
        path = next(path for path, code in bad.items() if code == errno.EACCES)
        found = host.stat(path)
        group = group_name(host, found.gid) if found else ""
        remedy = Remedy(
            f"Join the group that owns the nodes{f', {group}' if group else ''}.",
            f"sudo usermod -aG {group or 'GROUP'} $USER",
            root=True,
            relogin=True,
        )
        mode = f" (mode {found.mode:04o}, group {group or found.gid})" if found else ""
        return fail(f"{path} may not be opened{mode}", evidence=evidence, remedies=(remedy,), data=data)
    remedy = Remedy(
        "Reload the driver, or reboot; the kernel log says more.", "sudo dmesg | grep -i nvrm", root=True
    )
    first = next(iter(names.items()))
    return fail(f"{first[0]} cannot be opened: {first[1]}", evidence=evidence, remedies=(remedy,), data=data)
