"""Clusters, on one rank: what it would be compared by, and what the scheduler and the bridges let it do."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.facts import AMD, NVIDIA, distributions, dotted, gpus
from portagemm.doctor.facts_amd import rocm_installs, topology
from portagemm.doctor.host import Host
from portagemm.doctor.identity import local_rank, rank, world_size
from portagemm.doctor.nvidia_facts import (
    LIBCUDA_TIMEOUT_S,
    capability,
    cuda_devices,
    expected,
    module_version,
)
from portagemm.doctor.torch_facts import nvrtc_version, torch_build

#: Variables that must agree between ranks, beside those of the communication library.
_ENV_PREFIXES = (
    "CUDA_",
    "HSA_",
    "HIP_",
    "ROCR_",
    "PYTORCH_",
    "TORCH_",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)
#: ... and those that differ by rank on purpose.
_ENV_BY_RANK = re.compile(
    r".*(?:VISIBLE_DEVICES|_RANK|LOCAL_|_DIR|_PATH|_HOME|_ROOT|_CACHE|_PORT|_ADDR|_FILE|RUN_ID|ERROR_FILE|_LOGS?)$|TORCHELASTIC_.*"
)
_COMM_PREFIXES = ("NCCL_", "RCCL_", "FI_", "UCX_")
_COMM_BY_RANK = re.compile(r".*(?:_FILE|_ID|_DIR|_COMM_ID|HOSTID)$")
#: Packages that must be of one version on all ranks.
_LIBRARIES = (
    "cuda-bindings", "hip-python", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13", "nvidia-nvjitlink",
    "nvidia-nvjitlink-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "triton", "pytorch-triton-rocm", "numpy",
)  # fmt: skip


def digest(text: str) -> str:
    """Twelve hexadecimal digits that stand for a value in a comparison."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:12]


@check(
    "cluster.facts",
    "What this machine would be compared by",
    reads=(
        "the launcher's variables (RANK, LOCAL_RANK, OMPI_*, SLURM_*)",
        "GPUs, drivers, packages, /proc/cpuinfo, /sys/class/infiniband",
        "names of NCCL_*, CUDA_*, HSA_*, TORCH_* ... variables, their values as digests",
        "digests of the installed portagemm and its tuning tables, in a child",
    ),
    severity="cosmetic",
    probe="process",
    after=("nvidia.cuinit", "amd.topology", "torch.flavour"),
    timeout=LIBCUDA_TIMEOUT_S + 30,
)
def facts(ctx: Context) -> Result:
    """Collects what `--compare` and `--cluster` compare between ranks. Values of variables appear as digests: equal or
    not is all that is told of them."""
    host = ctx.host
    installed = host.child("installation", timeout=20.0)
    build = torch_build(host)
    data: dict[str, Any] = {
        "gpus": _gpus(host),
        "drivers": _drivers(host),
        "runtime": {
            name: value
            for name, value in {
                "torch": build.version if build else "",
                "nvrtc": dotted(nvrtc_version(host)),
                "rocm": next((item.version for item in rocm_installs(host) if item.version), ""),
                "python": dotted(host.python.release),
            }.items()
            if value
        },
        "libraries": {
            name: distributions(host)[name].version for name in _LIBRARIES if name in distributions(host)
        },
        "portagemm": installed.value if isinstance(installed.value, dict) else {},
        "nccl": _communication(host),
        "env": {
            name: digest(value)
            for name, value in host.env.starting(*_ENV_PREFIXES).items()
            if not _ENV_BY_RANK.fullmatch(name)
        },
        "hca": _adapters(host),
        "cpu": _processor(host),
        "device": _own_device(host),
    }
    position = rank(host)
    count = world_size(host)
    who = f"rank {position} of {count}" if position is not None else "outside a launcher"
    return info(f"{who}; {len(data['gpus'])} GPUs, {len(data['hca'])} InfiniBand adapters", data=data)


def _gpus(host: Host) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": device["name"],
            "arch": "sm_{}{}".format(*capability(device)),
            "memory_gib": round(device.get("memory_bytes", 0) / (1 << 30)),
        }
        for device in (cuda_devices(host) if expected(host) else ())
    ]
    partitions = {
        path.split("/")[5]: host.value(path)
        for path in host.glob("/sys/bus/pci/devices/*/current_compute_partition")
    }
    ids = {device.address: f"1002:{device.device:04x}" for device in gpus(host, AMD)}
    for node in topology(host).gpus:
        found.append(
            {
                "name": ids.get(node.address, ""),
                "arch": node.gfx,
                "partition": partitions.get(node.address, ""),
            }
        )
    if not found:
        found = [
            {"name": f"{d.vendor:04x}:{d.device:04x}"} for vendor in (NVIDIA, AMD) for d in gpus(host, vendor)
        ]
    return found


def _drivers(host: Host) -> dict[str, str]:
    found = {"nvidia": module_version(host) if expected(host) else ""}
    if gpus(host, AMD):
        found["amdgpu"] = host.value("/sys/module/amdgpu/version") or f"of kernel {host.uname.release}"
    return {name: version for name, version in found.items() if version}


def _communication(host: Host) -> dict[str, Any]:
    packages = {
        name: item.version
        for name, item in distributions(host).items()
        if re.match(r"nvidia-nccl|rccl|deep-ep", name)
    }
    folders = [
        folder for folder in re.split("[:;]", host.env.get("LD_LIBRARY_PATH", "")) if folder.startswith("/")
    ]
    plugins = {
        path.rpartition("/")[2]
        for folder in (*folders, "/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu")
        for path in host.glob(f"{folder}/libnccl-*.so") + host.glob(f"{folder}/librccl-net*.so")
    }
    env = {
        name: digest(value)
        for name, value in host.env.starting(*_COMM_PREFIXES).items()
        if not _COMM_BY_RANK.fullmatch(name)
    }
    return {"packages": packages, "plugins": sorted(plugins), "env": env}


def _adapters(host: Host) -> dict[str, str]:
    """InfiniBand and RoCE ports: "mlx5_0/1" -> "InfiniBand 400 Gb/sec (4X NDR) ACTIVE"."""
    found = {}
    for path in host.glob("/sys/class/infiniband/*/ports/*/state"):
        base = path.rpartition("/")[0]
        name = f"{base.split('/')[4]}/{base.rpartition('/')[2]}"
        state = host.value(path).partition(":")[2].strip() or host.value(path)
        found[name] = f"{host.value(f'{base}/link_layer')} {host.value(f'{base}/rate')} {state}".strip()
    return found


def _processor(host: Host) -> dict[str, str]:
    text = host.text("/proc/cpuinfo", 1 << 16)
    fields: dict[str, str] = dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", text, re.MULTILINE))
    vendor = fields.get("vendor_id") or fields.get("CPU implementer") or ""
    model = fields.get("model name") or fields.get("CPU part") or ""
    return {"vendor": vendor, "model": model} if vendor or model else {}


def _own_device(host: Host) -> str:
    """Digest of the UUID of the GPU that this rank uses if it takes that of its local rank; "" if that cannot be
    told."""
    position = local_rank(host)
    if position is None:
        return ""
    uuids = [str(device.get("uuid", "")) for device in cuda_devices(host)] if expected(host) else []
    if not uuids:
        uuids = [f"{node.unique_id:#x}" if node.unique_id else "" for node in topology(host).gpus]
        mask = (
            host.env.get("ROCR_VISIBLE_DEVICES")
            or host.env.get("HIP_VISIBLE_DEVICES")
            or host.env.get("CUDA_VISIBLE_DEVICES")
        )
        if mask and re.fullmatch(r"[\d, ]+", mask):
            uuids = [uuids[int(part)] for part in mask.split(",") if part.strip() and int(part) < len(uuids)]
    if len(uuids) == 1:
        position = 0  # each rank is shown its own
    own = uuids[position] if position < len(uuids) else ""
    return digest(own) if own else ""


@check(
    "cluster.slurm",
    "Slurm gave this job its GPUs",
    reads=(
        "SLURM_JOB_ID",
        "SLURM_JOB_GPUS",
        "SLURM_STEP_GPUS",
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "open() of the device nodes",
    ),
    severity="blocks-use",
)
def slurm(ctx: Context) -> Result:
    """A job without --gres (or --gpus) sees the node's GPUs in /sys and /dev, but may open none where Slurm confines
    devices; Slurm then says NoDevFiles in CUDA_VISIBLE_DEVICES, or nothing."""
    host = ctx.host
    if not host.env.get("SLURM_JOB_ID"):
        return skip("not a Slurm job")
    nodes = [path for path in host.glob("/dev/nvidia[0-9]*") if path[len("/dev/nvidia") :].isdigit()]
    nodes += host.glob("/dev/dri/renderD*") if gpus(host, AMD) else []
    given = next(
        (
            host.env[name]
            for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", "GPU_DEVICE_ORDINAL")
            if host.env.get(name)
        ),
        "",
    )
    mask = host.env.get("CUDA_VISIBLE_DEVICES", "")
    if not nodes and not gpus(host, NVIDIA) and not gpus(host, AMD):
        return skip("no GPU on this node")
    codes = {path: host.open_errno(path, write=True) for path in nodes}
    openable = [path for path, code in codes.items() if code == 0]
    evidence = [
        ("SLURM_JOB_GPUS", given or "not set"),
        ("nodes that open", f"{len(openable)} of {len(nodes)}"),
    ]
    if mask:
        evidence.append(("CUDA_VISIBLE_DEVICES", mask))
    remedy = Remedy("Ask Slurm for GPUs.", "srun --gres=gpu:1 ...   (or --gpus-per-task=1)")
    if mask == "NoDevFiles" or not openable:
        return fail(
            "the job was given no GPU",
            evidence=evidence,
            remedies=(remedy,),
            data={"given": given, "openable": len(openable)},
        )
    if not given:
        return warn(
            "the job asked for no GPU, but this node does not confine devices: it shares them with other jobs",
            evidence=evidence,
            remedies=(remedy,),
            data={"given": given, "openable": len(openable)},
        )
    return passed(
        f"GPUs {given}; {len(openable)} can be opened",
        evidence=evidence,
        data={"given": given, "openable": len(openable)},
    )


@check(
    "cluster.acs",
    "PCI bridges let GPUs reach each other",
    reads=("lspci -vvv (root)",),
    severity="degrades",
    probe="process",
)
def acs(ctx: Context) -> Result:
    """Access Control Services on bridges send peer traffic through the processor: slow, or wrong data and hangs with
    NCCL on bare metal. SrcValid+ shows that it is on. Virtual machines need it on, and root alone sees it."""
    host = ctx.host
    if len(gpus(host, NVIDIA)) + len(gpus(host, AMD)) < 2:
        return skip("fewer than two GPUs on the bus")
    done = host.run(("lspci", "-vvv"), timeout=10.0, limit=8 << 20)
    if not done.ok:
        return skip(f"lspci: {done.say()}")
    blocks = re.split(r"\n(?=\S)", done.stdout)
    shown = [block for block in blocks if "ACSCtl:" in block]
    if not shown:
        return skip("lspci shows no ACS: it needs root to")
    on = [
        block.split(maxsplit=1)[0]
        for block in shown
        if "bridge" in block.splitlines()[0] and re.search(r"ACSCtl:\s*SrcValid\+", block)
    ]
    if not on:
        return passed(f"ACS is off on {len(shown)} devices that have it")
    from portagemm.doctor.facts import surroundings

    if surroundings(host).hypervisor:
        return info(f"ACS is on, as a virtual machine needs it ({len(on)} bridges)")
    return warn(
        f"ACS is on in {len(on)} bridges ({', '.join(on[:3])}): peer-to-peer goes through the processor",
        evidence=[("ACSCtl: SrcValid+", ", ".join(on[:16]))],
        remedies=(
            Remedy(
                "Switch ACS off in the firmware's setup, or by setpci at boot, on bare metal alone.",
                root=True,
                reboot=True,
            ),
            Remedy("Until then keep NCCL from peer-to-peer.", "export NCCL_P2P_DISABLE=1"),
        ),
        data={"bridges": len(on)},
    )
