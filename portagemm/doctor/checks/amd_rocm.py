"""ROCm's user space: which release, whether it supports these GPUs and this driver, and whether it starts."""

from __future__ import annotations

import re

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.facts import dotted, version_tuple, wsl
from portagemm.doctor.facts_amd import RocmInstall, rocm, rocm_installs, run_as, topology
from portagemm.doctor.host import Host
from portagemm.doctor.rocm_versions import (
    AS_OF,
    DRIVER_OF_MODULE,
    INTEGRATED_BUILT,
    KNOWN_FROM,
    OFFICIAL,
    RUNS_WITH_DRIVER,
    later_than_tables,
    official,
)
from portagemm.doctor.tables import compiled_targets
from portagemm.hal.amd import OVERRIDE, override


@check(
    "amd.rocm-root",
    "One ROCm release is in use",
    reads=(
        "/opt/rocm*",
        "ROCM_PATH",
        "HIP_PATH",
        ".info/version",
        "torch/lib",
        "_rocm_sdk_core",
        "LD_LIBRARY_PATH",
    ),
    severity="blocks-use",
)
def rocm_root(ctx: Context) -> Result:
    """libamdhip64 and libhsa-runtime64 of different releases in one process crash or find no GPU. That happens when
    LD_LIBRARY_PATH names one release and torch brings another, or a distribution's own runtime comes first.
    Several releases side by side below /opt are fine as long as only one is on the path."""
    host = ctx.host
    found = rocm_installs(host)
    if not found:
        return skip("no ROCm is installed")
    data = {
        "installs": [{"folder": item.folder, "kind": item.kind, "version": item.version} for item in found],
        "version": found[0].version,
    }
    evidence = [(item.folder, f"ROCm {item.version or 'of unknown release'} ({item.kind})") for item in found]
    first = {name: _first(host, name, found) for name in ("libamdhip64.so", "libhsa-runtime64.so")}
    releases = {name: item.release[:2] for name, item in first.items() if item is not None and item.release}
    if len(set(releases.values())) > 1:
        hip, hsa = first["libamdhip64.so"], first["libhsa-runtime64.so"]
        evidence.append(("LD_LIBRARY_PATH", host.env.get("LD_LIBRARY_PATH", "")))
        message = (
            f"libamdhip64 would come from {hip.folder if hip else '?'}, "
            f"libhsa-runtime64 from {hsa.folder if hsa else '?'}: different releases"
        )
        remedy = Remedy(
            "Leave one ROCm on LD_LIBRARY_PATH, or none if torch brings its own.", "unset LD_LIBRARY_PATH"
        )
        return fail(message, evidence=evidence, remedies=(remedy,), data=data)
    own = [item for item in found if item.kind in ("torch", "sdk") and item.release]
    path_release = _path_release(host, found)
    if own and path_release and path_release[:2] != own[0].release[:2]:
        message = (
            f"LD_LIBRARY_PATH puts ROCm {dotted(path_release)} before the {own[0].version} that torch brings"
        )
        remedy = Remedy("Take ROCm off LD_LIBRARY_PATH; torch's wheel needs none.", "unset LD_LIBRARY_PATH")
        evidence.append(("LD_LIBRARY_PATH", host.env.get("LD_LIBRARY_PATH", "")))
        return warn(message, evidence=evidence, remedies=(remedy,), data=data)
    rocm_path = host.env.get("ROCM_PATH", "")
    if rocm_path and not host.exists(rocm_path):
        remedy = Remedy("Point it at an installation, or unset it.", "unset ROCM_PATH")
        return warn(f"ROCM_PATH={rocm_path} does not exist", evidence=evidence, remedies=(remedy,), data=data)
    others = sorted({item.version for item in found[1:] if item.version and item.version != found[0].version})
    tail = f"; also here: {', '.join(others)}" if others else ""
    return passed(
        f"ROCm {found[0].version or 'of unknown release'} ({found[0].kind}){tail}",
        evidence=evidence,
        data=data,
    )


def _first(host: Host, name: str, installs: tuple[RocmInstall, ...]) -> RocmInstall | None:
    """Where the loader would find a library: LD_LIBRARY_PATH, then in the order of the installations."""
    by_folder = {item.folder: item for item in installs}
    for folder in host.env.get("LD_LIBRARY_PATH", "").split(":"):
        if folder.startswith("/") and host.glob(f"{folder.rstrip('/')}/{name}*"):
            return by_folder.get(host.realpath(folder.rstrip("/")))
    return next((item for item in installs if host.glob(f"{item.folder}/{name}*")), None)


def _path_release(host: Host, installs: tuple[RocmInstall, ...]) -> tuple[int, ...]:
    by_folder = {item.folder: item for item in installs}
    for folder in host.env.get("LD_LIBRARY_PATH", "").split(":"):
        item = by_folder.get(host.realpath(folder.rstrip("/"))) if folder.startswith("/") else None
        if item is not None:
            return item.release
    return ()


@check(
    "amd.gfx-supported",
    "ROCm supports these GPUs",
    reads=("/sys/class/kfd/kfd/topology/nodes/*/properties", "ROCm's version", "the compatibility table"),
    severity="blocks-use",
    needs=("amd.topology", "amd.rocm-root"),
    after=("amd.visible-mask",),
)
def gfx_supported(ctx: Context) -> Result:
    """Compares each GPU's target (gfx...) with what AMD lists for the installed release. Not listed often works,
    but libraries may lack code for it ("invalid device function"); older than the target's first release
    does not. A release newer than the table is told, not judged. Integrated GPUs beside a separate one are
    amd.igpu's business. The details say which targets portagemm has a kernel profile for."""
    host = ctx.host
    install = rocm(host)
    visible = ctx.data("amd.visible-mask", "visible")
    nodes = [node for node in topology(host).gpus if visible is None or node.number in visible]
    separate = [node for node in nodes if not node.integrated] or nodes
    targets = sorted({node.gfx for node in separate})
    if not targets or install is None:
        return skip("no GPU is visible to ROCm")
    release = install.release
    data = {"targets": targets, "rocm": install.version}
    ours = compiled_targets("rocm")
    details = [
        f"{gfx}: portagemm has a kernel profile"
        if gfx in ours
        else f"{gfx}: no kernel profile yet; calls go to the vendor's library"
        for gfx in targets
    ]
    if not release:
        return info("ROCm's release is not known", details=details, data=data)
    shown = dotted(release)
    if later_than_tables(release):
        return info(
            f"{', '.join(targets)} with ROCm {shown}, newer than the table of {AS_OF}",
            details=details,
            data=data,
        )
    early = [gfx for gfx in targets if release < _needed(gfx)]
    if early:
        needed = dotted(_needed(early[0]))
        remedy = Remedy(f"Install ROCm {needed} or later (and a torch wheel built with it).")
        message = f"{early[0]} needs ROCm {needed}, installed is {shown}"
        return fail(message, details=details, remedies=(remedy,), data=data)
    unlisted = [gfx for gfx in targets if not official(gfx, release) and gfx not in INTEGRATED_BUILT]
    if unlisted:
        remedy = Remedy(
            "Use a wheel or build made for this target (TheRock builds more of them), or a listed GPU.",
        )
        message = f"AMD does not list {', '.join(unlisted)} for ROCm {shown}"
        return warn(message, details=details, remedies=(remedy,), data=data)
    return passed(f"{', '.join(targets)} with ROCm {shown}", details=details, data=data)


def _needed(gfx: str) -> tuple[int, ...]:
    """First release that can run a target at all."""
    known = KNOWN_FROM.get(gfx)
    if known is not None:
        return known
    return OFFICIAL[gfx].first if gfx in OFFICIAL else ()


@check(
    "amd.override",
    "No other target is forced",
    reads=("HSA_OVERRIDE_GFX_VERSION", "HSA_OVERRIDE_GFX_VERSION_<N>"),
    severity="degrades",
    needs=("amd.topology",),
    after=("amd.rocm-root",),
)
def forced_target(ctx: Context) -> Result:
    """HSA_OVERRIDE_GFX_VERSION makes ROCm take every GPU for another target. It helps some unsupported GPUs; on a
    supported one it runs the wrong code, and with different GPUs in one machine it is wrong for one of
    them (HSA_OVERRIDE_GFX_VERSION_<N>, N a node of KFD's topology, is for one GPU)."""
    host = ctx.host
    values = host.env.starting(OVERRIDE)
    if not values:
        return passed(f"{OVERRIDE} is not set")
    install = rocm(host)
    nodes = topology(host).gpus
    targets = sorted({node.gfx for node in nodes})
    forced = [(node, asked) for node in nodes if (asked := override(node.number, host.env)) is not None]
    evidence = [(name, value) for name, value in values.items()]
    evidence += [(f"node {node.number}", f"{node.gfx}, run as {run_as(host, node)}") for node, _ in forced]
    data = {"targets": targets, "forced": sorted({run_as(host, node) for node, _ in forced})}
    remedy = Remedy("Unset it.", f"unset {' '.join(values)}")
    nonsense = [asked for _, asked in forced if asked.version is None]
    if nonsense:
        message = f"{nonsense[0].variable}={nonsense[0].value} is no version such as 10.3.0"
        return fail(message, evidence=evidence, remedies=(remedy,), data=data)
    changed = [(node, asked) for node, asked in forced if run_as(host, node) != node.gfx]
    if not changed:
        text = "names the GPUs' own targets" if forced else "names no GPU of this machine"
        return info(f"{', '.join(values)} {text}", evidence=evidence, data=data)
    release = install.release if install else ()
    wrong = [node for node, _ in changed if release and official(node.gfx, release)]
    if wrong:
        message = f"{wrong[0].gfx}, which ROCm supports, is run as {run_as(host, wrong[0])}"
        return fail(message, evidence=evidence, remedies=(remedy,), data=data)
    if len(targets) > 1 and all(asked.variable == OVERRIDE for _, asked in forced):
        message = f"different GPUs ({', '.join(targets)}) are all run as {run_as(host, nodes[0])}"
        return fail(message, evidence=evidence, remedies=(remedy,), data=data)
    node = changed[0][0]
    message = f"{node.gfx} is run as {run_as(host, node)}, which is not supported"
    return warn(message, evidence=evidence, remedies=(remedy,), data=data)


@check(
    "amd.kmd-userspace",
    "ROCm and the kernel driver fit together",
    reads=("/sys/module/amdgpu/version", "ROCm's version"),
    severity="degrades",
    needs=("amd.module", "amd.rocm-root"),
)
def kmd_userspace(ctx: Context) -> Result:
    """AMD tests a driver with the ROCm releases of a year around it (two releases, before 6.4). The kernel's own
    amdgpu has no version: nothing is compared then. Driver releases are 6.0 to 6.4, then 30.10 and on."""
    host = ctx.host
    text = host.value("/sys/module/amdgpu/version")
    install = rocm(host)
    if not text:
        return skip("the kernel's own amdgpu, which has no release")
    if install is None or not install.release:
        return skip("ROCm's release is not known")
    number = version_tuple(text)
    driver = DRIVER_OF_MODULE.get((number[0], number[1]) if len(number) > 1 else (0, 0), "")
    data = {"module": text, "driver": driver, "rocm": install.version}
    evidence = [("/sys/module/amdgpu/version", text), (install.folder, f"ROCm {install.version}")]
    if not driver or later_than_tables(install.release):
        return info(
            f"amdgpu {text} with ROCm {install.version}: not in the table of {AS_OF}",
            evidence=evidence,
            data=data,
        )
    low, high = RUNS_WITH_DRIVER[driver]
    if low <= install.release[:2] <= high:
        return passed(f"driver {driver} with ROCm {install.version}", evidence=evidence, data=data)
    remedy = Remedy(
        f"Install ROCm {dotted(low)} to {dotted(high)}, or the amdgpu-dkms of ROCm {install.version}.",
        root=True,
        reboot=True,
    )
    message = (
        f"driver {driver} is tested with ROCm {dotted(low)} to {dotted(high)}, installed is {install.version}"
    )
    return warn(message, evidence=evidence, remedies=(remedy,), data=data)


#: What hipInit and hipGetDeviceCount may answer: name, what it means, what to do.
_HIP_CODES = {
    3: ("hipErrorNotInitialized", "the runtime could not start"),
    35: ("hipErrorInsufficientDriver", "the kernel driver is too old for this runtime"),
    98: ("hipErrorInvalidDeviceFunction", "there is no code for this GPU"),
    100: ("hipErrorNoDevice", "the runtime sees no GPU"),
    101: ("hipErrorInvalidDevice", "a GPU index is out of range"),
    200: ("hipErrorInvalidImage", "a code object does not fit the GPU"),
    209: ("hipErrorNoBinaryForGpu", "there is no code object for this GPU"),
    999: ("hipErrorUnknown", "an unknown error"),
}


@check(
    "amd.hip-init",
    "HIP starts and finds the GPUs",
    reads=("hipInit and hipGetDeviceCount of libamdhip64.so in a child process",),
    severity="blocks-use",
    probe="process",
    needs=("amd.rocm-root",),
    after=(
        "amd.kfd-access",
        "amd.topology",
        "amd.visible-mask",
        "container.kfd",
        "container.render-gid",
        "wsl.rocdxg",
    ),
)
def hip_init(ctx: Context) -> Result:
    """Loads the HIP runtime in a child process, starts it and counts GPUs. A crash, a hang and a missing symbol are
    told apart. It is not tried where an earlier check already says why it cannot work, and where there is no
    AMD GPU at all."""
    host = ctx.host
    on_wsl = wsl(host) == 2
    for earlier in (
        "amd.module",
        "amd.kfd-node",
        "amd.group-session",
        "amd.kfd-access",
        "amd.topology",
        "amd.visible-mask",
    ):
        result = ctx.result(earlier)
        if result is not None and result.status.name == "FAIL":
            return skip(f"cannot work: see {earlier}", data={"because": earlier})
    for earlier in ("container.kfd", "container.render-gid", "wsl.rocdxg", "wsl.dxg", "wsl.libs"):
        result = ctx.result(earlier)
        if result is not None and result.status.name == "FAIL":
            return skip(f"cannot work: see {earlier}", data={"because": earlier})
    if not on_wsl and not topology(host).gpus:
        return skip("KFD lists no GPU")
    install = next(
        (item for item in rocm_installs(host) if host.glob(f"{item.folder}/libamdhip64.so*")), None
    )
    if install is None:
        return skip("no libamdhip64.so")
    library = host.glob(f"{install.folder}/libamdhip64.so*")[0]
    done = host.child("hip_init", library, timeout=15.0)
    if not done.recorded:
        return skip("was not tried on this machine")
    evidence = [(library, done.command.say())]
    restart = Remedy("See what the driver says.", "sudo dmesg | tail -50", root=True)
    if done.timed_out:
        remedy = Remedy(
            "Reset the GPU or reboot; the driver hangs.",
            "sudo rocm-smi --gpureset -d 0",
            root=True,
            reboot=True,
        )
        return fail("starting HIP hangs", evidence=evidence, remedies=(remedy,))
    if done.crashed:
        last = done.command.stderr.strip().splitlines()[-1:]
        return fail(
            f"starting HIP crashes: {done.crashed}", details=last, evidence=evidence, remedies=(restart,)
        )
    if not isinstance(done.value, dict):
        return fail(f"starting HIP fails: {done.command.say()}", evidence=evidence, remedies=(restart,))
    if done.value.get("error"):
        text = str(done.value["error"])
        remedy = Remedy("Install ROCm's runtime again: a library is missing or of another release.")
        return fail(
            f"libamdhip64 cannot be loaded: {text}",
            evidence=evidence,
            remedies=(remedy,),
            data={"error": text},
        )
    return _hip_result(ctx, done.value, library)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _hip_result(ctx: Context, value: dict[str, object], library: str) -> Result:
    code, count = _whole(value.get("code")), _whole(value.get("count"))
    data = {"code": code, "count": count, "version": value.get("version"), "library": library}
    expected = ctx.data("amd.visible-mask", "visible")
    if code:
        name, meaning = _HIP_CODES.get(code, ("", "an error"))
        remedies = (
            Remedy(
                "See the driver's and the runtime's own words.",
                "AMD_LOG_LEVEL=3 rocminfo; sudo dmesg | grep -i kfd",
                root=True,
            ),
        )
        return fail(
            f"HIP answers {code} {name}: {meaning}".replace("  ", " "),
            evidence=[(library, str(code))],
            remedies=remedies,
            data=data,
        )
    if count == 0:
        remedy = Remedy("Look at the masks and the permissions above.", "rocminfo")
        return fail(
            "HIP starts and finds no GPU", evidence=[(library, "0 GPUs")], remedies=(remedy,), data=data
        )
    if expected is not None and count < len(expected):
        return info(
            f"HIP finds {count} GPU(s), KFD shows {len(expected)}",
            evidence=[(library, f"{count} GPUs")],
            data=data,
        )
    return passed(
        f"HIP finds {count} GPU(s)", evidence=[(library, f"version {value.get('version')}")], data=data
    )


@check(
    "amd.blas-files",
    "The vendor's libraries have files for these GPUs",
    reads=("rocblas/library/*", "hipblaslt/library/*"),
    severity="degrades",
    needs=("amd.topology", "amd.rocm-root", "amd.gfx-supported"),
    after=("amd.visible-mask",),
)
def blas_files(ctx: Context) -> Result:
    """rocBLAS reads kernels for a target from its library folder ("Cannot read TensileLibrary.dat ... for GPU
    arch") and hipBLASLt has a smaller list of targets. Where they lack a target, calls that portagemm sends
    to the vendor's library fail or are slow."""
    host = ctx.host
    install = rocm(host)
    visible = ctx.data("amd.visible-mask", "visible")
    nodes = [node for node in topology(host).gpus if visible is None or node.number in visible]
    separate = [node for node in nodes if not node.integrated] or nodes
    targets = sorted({run_as(host, node) for node in separate})
    folders = (
        {name: f"{install.folder}/{name}/library" for name in ("rocblas", "hipblaslt")} if install else {}
    )
    folders = {name: folder for name, folder in folders.items() if host.is_dir(folder)}
    if not targets or "rocblas" not in folders:
        return skip("rocBLAS is not installed" if targets else "no GPU is visible to ROCm")
    has = {
        name: {match for path in host.glob(f"{folder}/*gfx*") for match in re.findall(r"gfx[0-9a-f]+", path)}
        for name, folder in folders.items()
    }
    tensile = host.env.get("ROCBLAS_TENSILE_LIBPATH", "")
    evidence = [(folder, ", ".join(sorted(has[name])) or "no files") for name, folder in folders.items()]
    data = {name: sorted(found) for name, found in has.items()}
    if tensile and not host.glob(f"{tensile}/*gfx*"):
        remedy = Remedy("Unset it.", "unset ROCBLAS_TENSILE_LIBPATH")
        return warn(
            f"ROCBLAS_TENSILE_LIBPATH={tensile} holds no kernels",
            evidence=evidence,
            remedies=(remedy,),
            data=data,
        )
    lacking = [gfx for gfx in targets if gfx not in has["rocblas"]]
    if lacking:
        remedy = Remedy("Use a ROCm or torch build made for this GPU.")
        message = f"rocBLAS has no kernels for {', '.join(lacking)}"
        return warn(message, evidence=evidence, remedies=(remedy,), data=data)
    without = [gfx for gfx in targets if "hipblaslt" in has and gfx not in has["hipblaslt"]]
    if without:
        return info(
            f"hipBLASLt has none for {', '.join(without)}: torch uses rocBLAS there",
            evidence=evidence,
            data=data,
        )
    return passed(f"kernels for {', '.join(targets)}", evidence=evidence, data=data)
