"""NVIDIA: the device on the bus, the kernel module, the driver's libraries beside it, the device nodes."""

from __future__ import annotations

from portagemm.doctor.check import Context, Remedy, Result, Status, check, fail, info, passed, skip, warn
from portagemm.doctor.facts import NVIDIA, container, gpus, wsl
from portagemm.doctor.nvidia_facts import driver_libraries, module_version
from portagemm.doctor.secure_boot import secure_boot

REBOOT = Remedy("Reboot, so that the module of the installed driver is loaded.", "sudo reboot", reboot=True)
_UVM = Remedy("Create the device nodes of nvidia_uvm.", "sudo nvidia-modprobe -u -c=0", root=True)


def blocked(ctx: Context, *ids: str) -> Result | None:
    """A SKIP if one of the checks (named in `after`) failed: then that is the root, and this would follow from it."""
    for check_id in ids:
        result = ctx.result(check_id)
        if result is None:
            continue
        if result.status in (Status.FAIL, Status.ERR):
            return skip(f"needs {check_id}, which did not pass", data={"because": check_id})
        if result.status is Status.SKIP and "because" in result.data:
            because = result.data["because"]
            return skip(f"needs {because}, which did not pass", data={"because": because})
    return None


@check(
    "nvidia.pci",
    "NVIDIA GPUs on the PCI bus are bound to NVIDIA's driver",
    reads=("/sys/bus/pci/devices/*/{vendor,class,driver}",),
    severity="blocks-use",
)
def pci(ctx: Context) -> Result:
    """Counts display controllers and accelerators of vendor 0x10de and looks at the kernel driver each is bound to.

    nouveau, the kernel's own driver, keeps NVIDIA's away from the GPU. vfio-pci is what passes a GPU through to
    a virtual machine: such a GPU is not for this system. In WSL2 the GPU is not on this bus at all.
    """
    if wsl(ctx.host):
        return skip("in WSL the GPU is reached through /dev/dxg, not the PCI bus")
    found = gpus(ctx.host, NVIDIA)
    if not found:
        return skip("no NVIDIA GPU on the PCI bus")
    evidence = [(f"{device.path}/driver", device.driver or "not bound") for device in found]
    data = {"count": len(found), "addresses": [device.address for device in found]}
    nouveau = [device for device in found if device.driver in ("nouveau", "nova_core", "nova")]
    if nouveau:
        return fail(
            f"the kernel driver {nouveau[0].driver} holds {_of(len(nouveau), len(found))}: NVIDIA's cannot",
            evidence=evidence,
            remedies=(
                Remedy(
                    "Keep nouveau from loading.",
                    "echo -e 'blacklist nouveau\\noptions nouveau modeset=0' | sudo tee"
                    " /etc/modprobe.d/blacklist-nouveau.conf",
                    root=True,
                ),
                Remedy(
                    "Rebuild the initial RAM disk (Fedora, RHEL: sudo dracut --force).",
                    "sudo update-initramfs -u",
                    root=True,
                    reboot=True,
                ),
            ),
            data=data,
        )
    foreign = [device for device in found if device.driver != "nvidia"]
    if any(device.driver for device in foreign):
        names = ", ".join(sorted({device.driver for device in foreign if device.driver}))
        return warn(
            f"{_of(len(foreign), len(found))} bound to {names}, so not usable here",
            evidence=evidence,
            remedies=(
                Remedy("If they are not meant for a virtual machine, unbind them and bind nvidia instead."),
            ),
            data={**data, "foreign": len(foreign)},
        )
    if foreign and len(foreign) < len(found):
        return warn(
            f"{_of(len(foreign), len(found))} bound to no driver",
            evidence=evidence,
            remedies=(Remedy("Read why the driver refused it.", "sudo dmesg | grep -i nvrm", root=True),),
            data={**data, "foreign": len(foreign)},
        )
    return info(f"{len(found)} NVIDIA GPU{'s' if len(found) > 1 else ''}", evidence=evidence, data=data)


def _of(some: int, all_: int) -> str:
    return f"{some} of {all_} NVIDIA GPUs" if all_ > 1 else "the NVIDIA GPU"


@check(
    "nvidia.module",
    "NVIDIA's kernel module is loaded",
    reads=(
        "/proc/driver/nvidia/version",
        "/sys/module/nvidia/version",
        "/sys/firmware/efi/efivars/SecureBoot-*",
    ),
    severity="blocks-use",
    needs=("nvidia.pci",),
)
def module(ctx: Context) -> Result:
    """With an NVIDIA GPU on the bus, its kernel module must be loaded; in a container it is the host's.

    The commonest causes of a missing module are no driver, a kernel update without the matching module (DKMS),
    and Secure Boot, which refuses a module that is signed by no known key.
    """
    host = ctx.host
    version = module_version(host)
    if version:
        is_open = "Open Kernel Module" in host.text("/proc/driver/nvidia/version")
        kind = "open kernel module" if is_open else "kernel module"
        return passed(
            f"{kind} {version}",
            evidence=[("/proc/driver/nvidia/version", version)],
            data={"driver": version, "open": is_open},
        )
    count = ctx.data("nvidia.pci", "count", 0)
    if count and ctx.data("nvidia.pci", "foreign", 0) == count:
        return skip("all GPUs are bound to another driver")
    if host.exists("/sys/module/nvidia"):
        return passed("kernel module loaded; it does not say its version", data={"driver": ""})
    secure = secure_boot(host)
    outside = bool(container(host))
    remedies = [
        Remedy(
            "Install NVIDIA's driver for this kernel.",
            "sudo ubuntu-drivers install",
            root=True,
            reboot=True,
            host=outside,
        ),
        Remedy(
            "If it is installed, load it and read why it fails.",
            "sudo modprobe nvidia; sudo dmesg | tail",
            root=True,
            host=outside,
        ),
    ]
    details: tuple[str, ...] = ()
    if secure:
        details = ("Secure Boot is on: a module that is not signed by an enrolled key is refused",)
        remedies.insert(
            0,
            Remedy(
                "Enrol the key that signed the module (then confirm at the next boot), or install signed packages.",
                "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der",
                root=True,
                reboot=True,
                host=outside,
            ),
        )
    return fail(
        "an NVIDIA GPU is there, but its kernel module is not loaded"
        + (" (Secure Boot is on)" if secure else ""),
        details=details,
        evidence=[
            ("/sys/module/nvidia", "missing"),
            ("Secure Boot", "on" if secure else "not known to be on"),
        ],
        remedies=remedies,
        data={"secure_boot": secure},
    )


@check(
    "nvidia.userspace-match",
    "The driver's libraries are of the module's version",
    reads=("/proc/driver/nvidia/version", "libcuda.so.X.Y and libnvidia-ml.so.X.Y in the library folders"),
    severity="blocks-use",
    needs=("nvidia.module",),
)
def userspace_match(ctx: Context) -> Result:
    """libcuda and libnvidia-ml must be of exactly the loaded module's version. After a driver update without a
    reboot they are not: CUDA answers 803, nvidia-smi "Driver/library version mismatch".

    A libcuda in a compat folder is judged by container.compat-libcuda.
    """
    host = ctx.host
    version = module_version(host)
    if not version:
        return skip("the module does not say its version")
    found = driver_libraries(host)
    if not found:
        return skip("no driver library with a version in its name in the usual folders")
    evidence = [("kernel module", version), *((library.path, library.version) for library in found)]
    used = []
    for stem in ("libcuda.so", "libnvidia-ml.so"):
        of_stem = [library for library in found if library.stem == stem]
        linked = {host.realpath(f"{library.path.rpartition('/')[0]}/{stem}.1") for library in of_stem}
        # what the loader takes is where a link .so.1 leads; without links, every file counts
        used += [library for library in of_stem if library.path in linked] or of_stem
    wrong = [library for library in used if library.version != version]
    data = {"driver": version, "libraries": sorted({library.version for library in used})}
    if not wrong:
        return passed(f"all of version {version}", evidence=evidence, data=data)
    others = ", ".join(sorted({library.version for library in wrong}))
    inside = bool(container(host))
    remedies = (
        (
            Remedy("Restart the container, so that it is given the host's present libraries.", host=True),
            Remedy("Remove driver packages (libnvidia-*, nvidia-driver-*) from the image.", host=True),
        )
        if inside
        else (
            REBOOT,
            Remedy(
                "Or stop all GPU processes and load the new module.",
                "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia",
                root=True,
            ),
        )
    )
    return fail(
        f"the module is {version}, the libraries are {others}: CUDA fails with 803",
        evidence=evidence,
        remedies=remedies,
        data=data,
    )


@check(
    "nvidia.devnodes",
    "NVIDIA's device nodes are there",
    reads=("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/proc/driver/nvidia/gpus"),
    severity="blocks-use",
    needs=("nvidia.module",),
    after=("container.nvidia-visible", "cluster.slurm"),
)
def devnodes(ctx: Context) -> Result:
    """CUDA opens /dev/nvidiactl, /dev/nvidia-uvm and one /dev/nvidiaN a GPU. Without nvidia-uvm it answers 999 or
    304. Outside containers nvidia-modprobe (setuid root) makes missing nodes at first use.

    A container may be given fewer GPUs than the host has.
    """
    host = ctx.host
    if (because := blocked(ctx, "container.nvidia-visible", "cluster.slurm")) is not None:
        return because
    numbered = host.glob("/dev/nvidia[0-9]*")
    known = len(host.listdir("/proc/driver/nvidia/gpus")) or ctx.data("nvidia.pci", "count", 0)
    missing = [path for path in ("/dev/nvidiactl", "/dev/nvidia-uvm") if not host.exists(path)]
    evidence = [("/dev/nvidia[0-9]*", len(numbered)), ("GPUs the module knows", known)]
    evidence += [(path, "missing") for path in missing]
    data = {"nodes": len(numbered), "gpus": known}
    inside = bool(container(host))
    short = not numbered or (
        len(numbered) < known and not inside and not ctx.data("nvidia.pci", "foreign", 0)
    )
    if not missing and not short:
        return passed(
            f"{len(numbered)} of {known} GPUs have a node" if inside else f"{len(numbered)} GPU nodes",
            evidence=evidence,
            data=data,
        )
    helper = host.which("nvidia-modprobe") or host.which("/usr/bin/nvidia-modprobe")
    found = host.stat(helper) if helper else None
    if not inside and found is not None and found.mode & 0o4000:
        return info(
            "not all nodes are there yet; nvidia-modprobe makes them at first use",
            evidence=evidence,
            data=data,
        )
    what = " and ".join(missing) if missing else f"nodes for {known - len(numbered)} of {known} GPUs"
    remedies = (
        (Remedy("Start the container with the GPUs.", "docker run --gpus all ...", host=True), _UVM)
        if inside
        else (
            _UVM,
            Remedy("Make them at every boot.", "sudo systemctl enable nvidia-persistenced", root=True),
        )
    )
    return fail(
        f"{what} missing: CUDA fails with 999 or 304", evidence=evidence, remedies=remedies, data=data
    )
