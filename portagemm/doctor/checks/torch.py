"""PyTorch: what it is built for, whether it imports, whether it holds code for the GPUs."""

from __future__ import annotations

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.checks.nvidia import blocked
from portagemm.doctor.facts import dotted, wsl
from portagemm.doctor.facts_amd import amd_gpus, rocm_wanted, run_as, topology
from portagemm.doctor.nvidia_facts import LIBCUDA_TIMEOUT_S, capability, cuda_devices, expected
from portagemm.doctor.nvidia_versions import target_runs_on
from portagemm.doctor.torch_facts import TORCH_TIMEOUT_S, WHEELS, torch_build, torch_import


@check(
    "torch.flavour",
    "torch is built for the GPUs of this machine",
    reads=("torch-*.dist-info", "torch/version.py"),
    severity="blocks-use",
)
def flavour(ctx: Context) -> Result:
    """pip installs the CPU build, the CUDA build or the ROCm build of torch by the index it is given, and none of them
    works on another's GPU. Read from the files, without importing torch."""
    host = ctx.host
    build = torch_build(host)
    if build is None:
        return fail(
            "torch is not installed for this interpreter",
            evidence=[("sys.executable", host.python.executable)],
            remedies=(Remedy("Install it.", "pip install torch"),),
        )
    nvidia = expected(host) and not _foreign(ctx, "nvidia.pci")
    amd = bool(amd_gpus(host)) or (wsl(host) == 2 and rocm_wanted(host))
    data = {"version": build.version, "kind": build.kind, "toolkit": dotted(build.toolkit)}
    evidence = [(f"{build.folder}/torch", build.version)]
    wanted = {"cuda": nvidia, "rocm": amd}
    names = {"cuda": "CUDA", "rocm": "ROCm", "cpu": "the CPU", "xpu": "Intel GPUs", "": "something unknown"}
    if not nvidia and not amd:
        return passed(f"torch {build.version}, built for {names[build.kind]}", evidence=evidence, data=data)
    if wanted.get(build.kind):
        other = [name for name, there in wanted.items() if there and name != build.kind]
        if other:
            return info(
                f"torch {build.version} is built for {names[build.kind]}; the other vendor's GPU is not used by it",
                evidence=evidence,
                data=data,
            )
        return passed(
            f"torch {build.version}, built for {names[build.kind]} {data['toolkit']}",
            evidence=evidence,
            data=data,
        )
    if not build.kind:
        return skip(f"torch {build.version} does not say what it is built for", evidence=evidence, data=data)
    remedies = []
    if nvidia:
        remedies.append(
            Remedy(
                "Install the CUDA build.", f"pip install --force-reinstall torch --index-url {WHEELS}/cu128"
            )
        )
    if amd:
        remedies.append(
            Remedy(
                "Install the ROCm build.",
                f"pip install --force-reinstall torch --index-url {WHEELS}/rocm6.4",
            )
        )
    there = " and ".join(vendor for vendor, found in (("an NVIDIA", nvidia), ("an AMD", amd)) if found)
    return fail(
        f"torch {build.version} is built for {names[build.kind]}; this machine has {there} GPU",
        evidence=evidence,
        remedies=remedies,
        data=data,
    )


def _foreign(ctx: Context, check_id: str) -> bool:
    """Whether all GPUs of the vendor are bound to another driver (passed through)."""
    count = ctx.data(check_id, "count", 0)
    return bool(count) and ctx.data(check_id, "foreign", 0) == count and not wsl(ctx.host)


@check(
    "torch.import",
    "torch can be imported",
    reads=("a child that imports torch",),
    severity="blocks-use",
    probe="process",
    after=("torch.flavour", "libs.duplicates", "libs.glibcxx", "platform.glibc"),
    timeout=TORCH_TIMEOUT_S + 10,
)
def import_torch(ctx: Context) -> Result:
    """Imports torch in a child with a time limit. A failure is looked up among the known messages. With --verbose:
    which copy of each GPU library was loaded. Two copies of one, such as the wheel's and the system's
    libamdhip64, end in crashes."""
    host = ctx.host
    if torch_build(host) is None:
        return skip("torch is not installed")
    if (because := blocked(ctx, "libs.duplicates", "libs.glibcxx", "platform.glibc")) is not None:
        return because
    child = torch_import(host)
    if not child.recorded:
        return skip("not recorded for this machine")
    facts = child.value if isinstance(child.value, dict) else {}
    if child.ok and facts.get("stage") == "done":
        data = {key: facts.get(key) for key in ("version", "cuda", "hip", "nccl")}
        loaded = {name: paths for name, paths in facts.get("libraries", {}).items() if paths}
        evidence = [(name, ", ".join(paths)) for name, paths in loaded.items()]
        twice = [name for name, paths in loaded.items() if len(paths) > 1]
        if twice:
            return warn(
                f"torch's process holds {twice[0]} twice: two runtimes in one process end in crashes",
                details=loaded[twice[0]],
                evidence=evidence,
                remedies=(
                    Remedy(
                        "Take the folder of the copy that is not torch's out of LD_LIBRARY_PATH.",
                        "unset LD_LIBRARY_PATH",
                    ),
                ),
                data=data,
            )
        return passed(
            f"torch {facts.get('version')} in {child.command.seconds:.1f} s", evidence=evidence, data=data
        )
    how = (
        f"crashes with {child.crashed}"
        if child.crashed
        else f"does not end within {TORCH_TIMEOUT_S:.0f} s"
        if child.timed_out
        else "fails"
    )
    stderr = child.command.stderr.strip()
    last = stderr.splitlines()[-1:] if stderr else []
    from portagemm.doctor import match

    known = match.find(stderr)
    details = [*last, *(f"known message {item.message.id}: {item.message.means}" for item in known[:2])]
    remedies = [remedy for item in known[:2] for remedy in item.message.remedies]
    return fail(
        f"importing torch {how}",
        details=details,
        remedies=remedies or [Remedy("Install torch again.", "pip install --force-reinstall torch")],
        data={"messages": [item.message.id for item in known]},
    )


@check(
    "torch.arch",
    "torch holds code for the GPUs",
    reads=(
        "torch's architecture list from a child",
        "compute capabilities from a child",
        "gfx names of KFD's topology",
    ),
    severity="blocks-use",
    probe="process",
    needs=("torch.import",),
    after=("nvidia.cuinit", "torch.flavour", "amd.gfx-supported"),
    timeout=TORCH_TIMEOUT_S + LIBCUDA_TIMEOUT_S,
)
def arch(ctx: Context) -> Result:
    """is_available() asks only whether a driver answers. Whether a kernel can run depends on the architectures
    that the build holds code for: machine code runs on the same major compute capability and an equal or newer
    minor one, PTX on any newer one. Without either, every operation fails with "no kernel image is available"."""
    host = ctx.host
    if (because := blocked(ctx, "torch.flavour")) is not None:
        return because
    facts = torch_import(host).value
    archs = [str(name) for name in facts.get("archs", ())] if isinstance(facts, dict) else []
    if not archs:
        return skip("torch names no architecture: a CPU build")
    evidence = [("torch", " ".join(archs))]
    if any(name.startswith("gfx") for name in archs):
        return _amd(ctx, archs, evidence)
    devices = cuda_devices(host)
    if not devices:
        return skip("no device of NVIDIA's to compare with")
    lacking = []
    for device in devices:
        own = capability(device)
        if not any(target_runs_on(name, own) for name in archs):
            lacking.append((str(device["name"]), own))
    evidence += [(str(device["name"]), dotted(capability(device))) for device in devices[:8]]
    data = {"archs": archs, "lacking": [dotted(own) for _, own in lacking]}
    if not lacking:
        return passed(
            f"{len(devices)} device{'s' if len(devices) > 1 else ''} covered", evidence=evidence, data=data
        )
    name, own = lacking[0]
    index = "cu126" if own < (7, 5) else "cu128" if own >= (10, 0) else "cu126"
    return fail(
        f"torch has no code for {name} (compute capability {dotted(own)}); it has {' '.join(archs)}",
        evidence=evidence,
        remedies=(
            Remedy(
                "Install a build that has it.",
                f"pip install --force-reinstall torch --index-url {WHEELS}/{index}",
            ),
        ),
        data=data,
    )


def _amd(ctx: Context, archs: list[str], evidence: list[tuple[str, str]]) -> Result:
    found = sorted({run_as(ctx.host, node) for node in topology(ctx.host).gpus})
    if not found:
        return skip("no device of AMD's to compare with")
    if (because := blocked(ctx, "amd.gfx-supported")) is not None:
        return because
    bare = {name.partition(":")[0] for name in archs}  # gfx90a:xnack- names features
    lacking = [name for name in found if name not in bare]
    evidence = [*evidence, ("GPUs", " ".join(found))]
    data = {"archs": archs, "lacking": lacking}
    if not lacking:
        return passed(f"{' '.join(found)} covered", evidence=evidence, data=data)
    if len(lacking) < len(found):
        return info(
            f"torch has no code for {lacking[0]}, which may be the integrated GPU",
            evidence=evidence,
            data=data,
        )
    return fail(
        f"torch has no code for {' '.join(lacking)}; it has {' '.join(sorted(bare))}",
        evidence=evidence,
        remedies=(
            Remedy(
                "Install a build that has it.",
                f"pip install --force-reinstall torch --index-url {WHEELS}/rocm6.4",
            ),
        ),
        data=data,
    )
