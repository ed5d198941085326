"""Compilers: NVRTC and HIPRTC at run time, the system's C compiler, the CUDA toolkit beside torch."""

from __future__ import annotations

import re
from collections.abc import Iterable

from portagemm.doctor.check import Context, Remedy, Result, check, fail, info, passed, skip, warn
from portagemm.doctor.checks.nvidia import blocked
from portagemm.doctor.facts import distributions, dotted, fact, version_tuple
from portagemm.doctor.facts_amd import amd_gpus
from portagemm.doctor.host import Host
from portagemm.doctor.host_types import Child
from portagemm.doctor.nvidia_facts import (
    LIBCUDA_TIMEOUT_S,
    capability,
    cuda_devices,
    cuda_of_driver,
    expected,
    module_tuple,
)
from portagemm.doctor.nvidia_versions import (
    FIRST_TOOLKIT,
    KNOWN_AS_OF,
    NEWEST_CAPABILITY,
    NEWEST_FAMILY,
    NEWEST_TOOLKIT,
    OLDEST_CAPABILITY,
)
from portagemm.doctor.nvidia_versions import cuda_of_driver as cuda_by_table
from portagemm.doctor.torch_facts import nvrtc_version, torch_build

_TOOLKIT_FOLDERS = (
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
)
_NVRTC_TIMEOUT_S = 30.0


@fact
def nvrtc_files(host: Host) -> tuple[str, ...]:
    """NVRTC libraries in the order in which cuda-bindings looks: the wheels', then the toolkit's."""
    found: list[str] = []
    places = [
        f"{folder}/nvidia/{part}/lib"
        for folder in host.python.path
        for part in ("cu13", "cuda_nvrtc", "cuda_runtime")
    ]
    conda = host.env.get("CONDA_PREFIX", "")
    home = host.env.get("CUDA_HOME") or host.env.get("CUDA_PATH") or ""
    places += [f"{conda}/lib"] if conda else []
    places += [f"{home}/lib64"] if home else []
    for place in (*places, *_TOOLKIT_FOLDERS):
        found += [
            path for path in host.glob(f"{place}/libnvrtc.so.*") if re.search(r"/libnvrtc\.so\.\d+$", path)
        ]
    return tuple(dict.fromkeys(found))


@fact
def _wanted_major(host: Host) -> int:
    """CUDA major of the installed cuda-bindings, which load NVRTC of the same; 0 if there are none."""
    package = distributions(host).get("cuda-bindings") or distributions(host).get("cuda-python")
    return (version_tuple(package.version) or (0,))[0] if package else 0


def nvrtc_candidates(host: Host) -> list[str]:
    """What the child tries: files of the bindings' major first, then the linker's name."""
    major = _wanted_major(host)
    files = [path for path in nvrtc_files(host) if not major or path.endswith(f".so.{major}")]
    return [*files[:4], *([f"libnvrtc.so.{major}"] if major else ["libnvrtc.so.13", "libnvrtc.so.12"])]


@fact
def nvrtc_child(host: Host) -> Child:
    """The child that loads NVRTC and compiles an empty kernel. See probes/nvrtc.py."""
    return host.child("nvrtc", *nvrtc_candidates(host), timeout=_NVRTC_TIMEOUT_S)


def nvrtc_release(host: Host) -> tuple[int, ...]:
    """(13, 0) or finer: the wheel's version if it is of the loaded library, else what the library says; () unknown."""
    value = nvrtc_child(host).value
    said = tuple(value["version"]) if isinstance(value, dict) and value.get("version") else ()
    wheel = nvrtc_version(host)
    return wheel if wheel and wheel[:2] == said[:2] else said or wheel


def _extra(host: Host) -> str:
    """The extra that brings NVRTC for this driver."""
    cuda = cuda_of_driver(host)
    return f"pip install 'portagemm[cuda{13 if cuda and cuda[0] >= 13 else 12}]'"


@check(
    "tool.nvrtc",
    "NVRTC, the run-time compiler, works",
    reads=(
        "libnvrtc.so.* and libnvrtc-builtins.so.* in wheels, toolkit and library folders",
        "a child that compiles",
    ),
    severity="blocks-use",
    probe="process",
    after=("nvidia.libcuda-load",),
    timeout=_NVRTC_TIMEOUT_S + 30,
)
def nvrtc(ctx: Context) -> Result:
    """Loads NVRTC in a child, where cuda-python finds it, and compiles an empty kernel, which needs the builtins
    library of exactly its version beside it. Without NVRTC, nvcc compiles, slower."""
    host = ctx.host
    if not expected(host):
        return skip("no NVIDIA GPU here")
    child = nvrtc_child(host)
    if not child.recorded:
        return skip("not recorded for this machine")
    facts = child.value if isinstance(child.value, dict) else {}
    install = Remedy("Install the compiler for this driver.", _extra(host))
    again = Remedy(
        "Install it again, so that compiler and builtins are of one version.",
        f"{_extra(host)} --force-reinstall",
    )
    builtins = {
        match[1]
        for path in facts.get("libraries", ())
        if (match := re.search(r"libnvrtc-builtins\.so\.(\d+\.\d+)", path))
    }
    version = dotted(tuple(facts.get("version", ())))
    data = {"version": version, "path": facts.get("via", "")}
    if not facts.get("via"):
        how = (
            f"crashes ({child.crashed})" if child.crashed else "hangs" if child.timed_out else "is not found"
        )
        nvcc = host.which("nvcc") or host.which("/usr/local/cuda/bin/nvcc")
        if nvcc and how == "is not found":
            return info(f"NVRTC is not found; {nvcc} compiles instead", remedies=(install,), data=data)
        return fail(
            f"NVRTC {how}",
            details=(facts.get("error", "")[:300],) if facts.get("error") else (),
            remedies=(install,),
            data=data,
        )
    if facts.get("missing"):
        return fail(
            f"{facts['via']} is no NVRTC: it lacks {', '.join(facts['missing'])}",
            remedies=(again,),
            data=data,
        )
    if facts.get("stage") != "done":
        how = (
            f"crashes with {child.crashed}"
            if child.crashed
            else "does not return"
            if child.timed_out
            else child.command.say()
        )
        return fail(f"NVRTC {version} {how} while compiling", remedies=(again,), data=data)
    if facts.get("code") or facts.get("compile_code"):
        reason = facts.get("log") or f"error {facts.get('compile_code') or facts.get('code')}"
        return fail(
            f"NVRTC {version} cannot compile an empty kernel: {reason.splitlines()[0]}",
            remedies=(again,),
            data=data,
        )
    if builtins and builtins != {version}:
        return fail(
            f"NVRTC is {version}, its builtins are {', '.join(sorted(builtins))}",
            remedies=(again,),
            data=data,
        )
    if facts["version"][0] < 12:
        return fail(f"NVRTC {version} has no C++20; 12.0 or newer is needed", remedies=(install,), data=data)
    return passed(f"NVRTC {version} ({facts['via']})", data=data)


@check(
    "tool.ptx-vs-driver",
    "The compiler is not newer than the driver",
    reads=("NVRTC's version from a child", "cuDriverGetVersion from a child"),
    severity="degrades",
    probe="process",
    needs=("tool.nvrtc",),
    after=("nvidia.cuinit",),
    timeout=LIBCUDA_TIMEOUT_S + _NVRTC_TIMEOUT_S,
)
def ptx_vs_driver(ctx: Context) -> Result:
    """A driver reads PTX of its own CUDA version and older; newer PTX fails with 222. Machine code (cubin) of a newer
    compiler runs within the family. PortaGEMM makes cubins, so a newer compiler of the same family works here, but
    other libraries that leave PTX to the driver do not. A compiler of a newer family does not work.
    """
    host = ctx.host
    if (because := blocked(ctx, "nvidia.cuinit")) is not None:
        return because
    compiler = nvrtc_release(host)[:2]
    driver = cuda_of_driver(host) or cuda_by_table(module_tuple(host))  # the table knows no newer driver
    if len(compiler) < 2 or driver is None:
        return skip("compiler or driver did not say its version")
    evidence = [("NVRTC", dotted(compiler)), ("driver", f"CUDA {dotted(driver)}")]
    data = {"nvrtc": dotted(compiler), "driver_cuda": dotted(driver)}
    older = Remedy(
        "Take the compiler of the driver's version.",
        f"pip install 'nvidia-cuda-nvrtc{'-cu12' if driver[0] == 12 else ''}=={dotted(driver)}.*'",
    )
    update = Remedy(f"Or update the driver to one for CUDA {dotted(compiler)}.", root=True, reboot=True)
    if max(compiler[0], driver[0]) > NEWEST_FAMILY:
        return info(
            f"NVRTC {dotted(compiler)}, driver for CUDA {dotted(driver)}: newer than is known here ({KNOWN_AS_OF})",
            evidence=evidence,
            data=data,
        )
    if compiler[0] > driver[0]:
        return fail(
            f"NVRTC is of CUDA {dotted(compiler)}, the driver serves CUDA {driver[0]} alone",
            evidence=evidence,
            remedies=(
                Remedy(
                    "Take the compiler of the driver's family.", f"pip install 'portagemm[cuda{driver[0]}]'"
                ),
                update,
            ),
            data=data,
        )
    if compiler > driver:
        return warn(
            f"NVRTC is of CUDA {dotted(compiler)}, the driver reads PTX up to {dotted(driver)}: machine code only",
            evidence=evidence,
            remedies=(older, update),
            data=data,
        )
    return passed(f"NVRTC {dotted(compiler)}, driver for CUDA {dotted(driver)}", evidence=evidence, data=data)


@check(
    "tool.arch",
    "The compiler knows the GPUs",
    reads=("NVRTC's list of architectures from a child", "compute capabilities from a child"),
    severity="blocks-use",
    probe="process",
    needs=("tool.nvrtc", "nvidia.cuinit"),
    timeout=LIBCUDA_TIMEOUT_S + _NVRTC_TIMEOUT_S,
)
def arch(ctx: Context) -> Result:
    """CUDA 13 compiles for compute capability 7.5 (Turing) and newer alone: Maxwell, Pascal and Volta need CUDA 12. A
    GPU newer than the compiler can be reached only through PTX of an older architecture, without its new features."""
    host = ctx.host
    value = nvrtc_child(host).value
    listed = sorted(value.get("archs", ())) if isinstance(value, dict) else []
    release = nvrtc_release(host)[:2]
    found = sorted({capability(device) for device in cuda_devices(host)})
    if not found or len(release) < 2:
        return skip("devices or compiler are not known")
    evidence = [("compute capabilities", ", ".join(map(dotted, found))), ("NVRTC", dotted(release))]
    data = {"capabilities": [dotted(item) for item in found], "nvrtc": dotted(release)}
    known = set(listed)
    missing = [item for item in found if item[0] * 10 + item[1] not in known] if known else []
    old = [item for item in (missing or found) if item < OLDEST_CAPABILITY.get(release[0], (0, 0))]
    if old:
        return fail(
            f"CUDA {release[0]} does not compile for compute capability {dotted(old[0])}",
            evidence=evidence,
            remedies=(Remedy("Take the compiler of CUDA 12.", "pip install 'portagemm[cuda12]'"),),
            data=data,
        )
    late = [
        item
        for item in (missing or (found if not known else []))
        if FIRST_TOOLKIT.get(item, release) > release
    ]
    if late:
        first = dotted(FIRST_TOOLKIT[late[0]])
        return fail(
            f"NVRTC {dotted(release)} does not know compute capability {dotted(late[0])}; CUDA {first} is the first",
            evidence=evidence,
            remedies=(
                Remedy(
                    f"Take a compiler of CUDA {first} or newer.",
                    f"pip install 'portagemm[cuda{first.partition('.')[0]}]' --upgrade",
                ),
            ),
            data=data,
        )
    if missing:
        newer = max(missing) > NEWEST_CAPABILITY or release > NEWEST_TOOLKIT
        tail = f"; it is newer than what is known here ({KNOWN_AS_OF})" if newer else ""
        return info(
            f"NVRTC {dotted(release)} does not list compute capability {dotted(missing[0])}{tail}",
            evidence=evidence,
            data=data,
        )
    return passed(
        f"NVRTC {dotted(release)} compiles for {', '.join(map(dotted, found))}", evidence=evidence, data=data
    )


#: Releases whose compiler has a known fault that a matrix kernel can meet: from (first, before which it is mended).
#: Source: CUDA 13.2 Update 2 release notes.
RECONVERGENCE_FROM, RECONVERGENCE_BEFORE = (12, 8), (13, 2, 86)


@check(
    "tool.known-miscompile",
    "The compiler has no known fault that concerns matrix kernels",
    reads=("NVRTC's version from a child",),
    severity="degrades",
    probe="process",
    needs=("tool.nvrtc",),
    after=("nvidia.cuinit",),
    timeout=LIBCUDA_TIMEOUT_S + _NVRTC_TIMEOUT_S,
)
def known_miscompile(ctx: Context) -> Result:
    """Two faults of NVIDIA's compilers that release notes name: a wrong reconvergence of threads, from CUDA 12.8 on,
    mended in 13.2 Update 2; and on compute capability 9.0 a race where registers that hold A or B of a WGMMA are copied
    before a wait for an older group (open). PortaGEMM's kernels take WGMMA operands from shared memory, and every one
    is tested on the compiler that a release names, so this is for information.
    """
    release = nvrtc_release(ctx.host)
    if len(release) < 2:
        return skip("the compiler did not say its version")
    evidence = [("NVRTC", dotted(release))]
    if not affected_by_reconvergence(release):
        return passed(f"none known in {dotted(release)} (as of {KNOWN_AS_OF})", evidence=evidence)
    return info(
        f"NVRTC {dotted(release)} may reconverge threads wrongly; mended in CUDA 13.2 Update 2",
        evidence=evidence,
        remedies=(Remedy("If a kernel of your own gives wrong results, try the newest compiler."),),
    )


def affected_by_reconvergence(release: Iterable[int]) -> bool:
    """Whether a release, (13, 2, 70), has the reconvergence fault. Without its third number 13.2 counts as affected."""
    return RECONVERGENCE_FROM <= tuple(release) < RECONVERGENCE_BEFORE


_HIP_FOLDERS = ("/opt/rocm/lib", "/opt/rocm/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")


@check(
    "tool.hiprtc",
    "HIPRTC and its code generator are of one release",
    reads=("libhiprtc.so.* and libamd_comgr.so.* in ROCm's folders and torch's",),
    severity="blocks-use",
)
def hiprtc(ctx: Context) -> Result:
    """HIPRTC compiles through libamd_comgr; ROCm names both files with its release (.60403). Of two releases they
    crash or emit code that does not load."""
    host = ctx.host
    if not amd_gpus(host) and not host.exists("/dev/kfd"):
        return skip("no AMD GPU here")
    root = host.env.get("ROCM_PATH", "").rstrip("/")
    torch = [f"{folder}/torch/lib" for folder in host.python.path]
    places = [*([f"{root}/lib"] if root else []), *torch, *_HIP_FOLDERS]
    for place in places:
        releases = {stem: _release(host, place, stem) for stem in ("libhiprtc.so", "libamd_comgr.so")}
        if not releases["libhiprtc.so"]:
            continue
        evidence = [
            (f"{place}/{stem}", release or "no release in its name") for stem, release in releases.items()
        ]
        if not all(releases.values()):
            return info(f"HIPRTC in {place}", evidence=evidence, data={"folder": place})
        if len(set(releases.values())) > 1:
            return fail(
                f"{place} mixes releases: "
                + ", ".join(f"{stem} {_dots(text)}" for stem, text in releases.items()),
                evidence=evidence,
                remedies=(
                    Remedy(
                        "Install ROCm's packages again, all of one release.",
                        "sudo apt-get install --reinstall hip-runtime-amd comgr",
                        root=True,
                    ),
                ),
                data={"folder": place},
            )
        return passed(
            f"both of {_dots(releases['libhiprtc.so'])}, in {place}",
            evidence=evidence,
            data={"folder": place},
        )
    return skip("no HIPRTC in the usual folders")


def _release(host: Host, place: str, stem: str) -> str:
    """ROCm's release from a file's name, "60403" of libhiprtc.so.6.4.60403; "" if it has none."""
    names = (host.realpath(path).rpartition("/")[2] for path in host.glob(f"{place}/{stem}*"))
    found = [
        match[1]
        for name in names
        if (match := re.fullmatch(rf"{re.escape(stem)}\.\d+\.\d+\.(\d{{5,6}})", name))
    ]
    return max(found, default="")


def _dots(release: str) -> str:
    """ "6.4.3" of "60403"."""
    number = int(release)
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


@check(
    "tool.cc",
    "A C++ compiler is there for the CPU backend",
    reads=("CXX", "PATH: c++, g++, clang++"),
    severity="degrades",
)
def cc(ctx: Context) -> Result:
    """The CPU backend compiles its kernels with the system's C++ compiler; without one torch's matrix multiplication
    takes its place. GPUs need none."""
    host = ctx.host
    named = host.env.get("CXX", "").split()
    names = [*named[:1], "c++", "g++", "clang++"]
    found = next((path for name in names if (path := host.which(name))), None)
    if found:
        return passed(found, data={"path": found})
    return info(
        "no C++ compiler: on the CPU torch's own kernels are used",
        evidence=[("PATH", host.env.get("PATH", ""))],
        remedies=(Remedy("Install one.", "sudo apt-get install g++", root=True),),
    )


@check(
    "tool.python-h",
    "Python's headers are there for those who build extensions",
    reads=("Python.h in the interpreter's include folder", "whether triton is installed"),
    severity="degrades",
    after=("tool.cc",),
)
def python_h(ctx: Context) -> Result:
    """PortaGEMM needs no Python.h. Triton (and so torch.compile on a GPU) builds a small launcher at run time, with the
    C compiler and Python's headers; slim images lack both."""
    host = ctx.host
    if "triton" not in distributions(host) and "pytorch-triton-rocm" not in distributions(host):
        return skip("triton, which would need it, is not installed")
    major, minor = host.python.release
    tail = f"include/python{major}.{minor}{'t' if host.python.free_threaded else ''}/Python.h"
    places = [
        f"{base}/{tail}"
        for base in dict.fromkeys((host.python.base_prefix, host.python.prefix, "/usr", "/usr/local"))
        if base
    ]
    found = next((path for path in places if host.exists(path)), None)
    compiler = host.env.get("CC") or next((name for name in ("cc", "gcc", "clang") if host.which(name)), None)
    if found and compiler:
        return passed(found)
    missing = " and ".join(
        what for what, there in (("Python.h", found), ("a C compiler", compiler)) if not there
    )
    return warn(
        f"{missing} missing: triton and torch.compile on GPUs will fail (portagemm will not)",
        evidence=[(path, "missing") for path in places[:2] if not found],
        remedies=(
            Remedy(
                "Install them.", f"sudo apt-get install gcc libc6-dev python{major}.{minor}-dev", root=True
            ),
        ),
    )


@check(
    "tool.nvcc-vs-torch",
    "The CUDA toolkit is of torch's CUDA version",
    reads=("nvcc --version (CUDA_HOME, PATH, /usr/local/cuda)", "torch's metadata"),
    severity="cosmetic",
    probe="process",
)
def nvcc_vs_torch(ctx: Context) -> Result:
    """Only for building extensions: torch refuses a toolkit of another major version. What runs is decided by wheel and
    driver, not by this toolkit."""
    host = ctx.host
    build = torch_build(host)
    if build is None or build.kind != "cuda":
        return skip("no torch for CUDA")
    home = host.env.get("CUDA_HOME") or host.env.get("CUDA_PATH") or ""
    nvcc = next(
        (
            path
            for place in (f"{home}/bin/nvcc" if home else "nvcc", "nvcc", "/usr/local/cuda/bin/nvcc")
            if (path := host.which(place))
        ),
        None,
    )
    if nvcc is None:
        return skip("no CUDA toolkit: none is needed to run")
    done = host.run((nvcc, "--version"), timeout=10.0)
    found = re.search(r"release (\d+)\.(\d+)", done.stdout)
    if not found:
        return skip(f"{nvcc} did not say its version ({done.say()})")
    version = (int(found[1]), int(found[2]))
    evidence = [(nvcc, dotted(version)), ("torch", build.version)]
    if version[0] != build.toolkit[0]:
        return warn(
            f"nvcc is of CUDA {dotted(version)}, torch of {dotted(build.toolkit)}: extensions cannot be built",
            evidence=evidence,
            remedies=(
                Remedy(
                    "Name a toolkit of torch's version.",
                    f"export CUDA_HOME=/usr/local/cuda-{dotted(build.toolkit)}",
                ),
            ),
        )
    return passed(f"nvcc {dotted(version)}, torch {build.version}", evidence=evidence)
