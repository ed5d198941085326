"""Libraries on the search path: several copies, stubs, an old libstdc++. And how child processes are started."""

from __future__ import annotations

import re

from portagemm.doctor.check import Context, Remedy, Result, check, fail, passed, skip, warn
from portagemm.doctor.facts import dotted, fact, version_tuple
from portagemm.doctor.host import Host
from portagemm.doctor.torch_facts import torch_build

#: Libraries of which a process should see one version. name -> folders of wheels below site-packages.
_WATCHED: dict[str, tuple[str, ...]] = {
    "libcudart.so": ("nvidia/cuda_runtime/lib", "nvidia/cu13/lib"),
    "libcublas.so": ("nvidia/cublas/lib", "nvidia/cu13/lib"),
    "libcublasLt.so": ("nvidia/cublas/lib", "nvidia/cu13/lib"),
    "libnvrtc.so": ("nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib"),
    "libnvJitLink.so": ("nvidia/nvjitlink/lib", "nvidia/cu13/lib"),
    "libamdhip64.so": ("torch/lib",),
    "libhiprtc.so": ("torch/lib",),
    "libhsa-runtime64.so": ("torch/lib",),
}
_HIP = ("libamdhip64.so", "libhiprtc.so", "libhsa-runtime64.so")
_SYSTEM = (
    "/usr/local/cuda/lib64",
    "/opt/rocm/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
)


def search_path(host: Host) -> list[str]:
    """Folders of LD_LIBRARY_PATH, as the loader takes them."""
    folders = re.split("[:;]", host.env.get("LD_LIBRARY_PATH", ""))
    return list(dict.fromkeys(folder.rstrip("/") or "/" for folder in folders if folder.startswith("/")))


def library_version(host: Host, path: str, stem: str) -> tuple[int, ...]:
    """Version of a library file: from the name of the file its link leads to; () if it has none."""
    found = re.fullmatch(rf"{re.escape(stem)}\.(\d+(?:\.\d+)*)", host.realpath(path).rpartition("/")[2])
    return version_tuple(found[1]) if found else ()


def copies(host: Host, stem: str, folders: list[str]) -> list[tuple[str, tuple[int, ...]]]:
    """(path, version) of the library in each folder that has it, in order; a file found twice counts once."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for folder in folders:
        for path in host.glob(f"{folder}/{stem}*"):
            if re.fullmatch(rf"{re.escape(stem)}(?:\.\d+)*", path.rpartition("/")[2]):
                real = host.realpath(path)
                version = library_version(host, path, stem)
                if real not in found or len(version) > len(found[real][1]):
                    found[real] = (path, version)
    return list(found.values())


def wheel_folders(host: Host, stem: str) -> list[str]:
    """Folders of wheels that may hold the library."""
    return [f"{site}/{part}" for site in host.python.path for part in _WATCHED[stem]]


@fact
def wheel_package_versions(host: Host) -> dict[str, tuple[int, ...]]:
    """Library stem -> version of the wheel that brings it, since the files in wheels are named by soname alone."""
    from portagemm.doctor.facts import distributions

    packages = distributions(host)
    names = {
        "libcudart.so": "nvidia-cuda-runtime",
        "libcublas.so": "nvidia-cublas",
        "libcublasLt.so": "nvidia-cublas",
        "libnvrtc.so": "nvidia-cuda-nvrtc",
        "libnvJitLink.so": "nvidia-nvjitlink",
    }
    build = torch_build(host)
    major = build.toolkit[0] if build and build.kind == "cuda" and build.toolkit else 0
    found = {}
    for stem, name in names.items():
        package = packages.get(f"{name}-cu{major}") or packages.get(name)
        if package:
            found[stem] = version_tuple(package.version)
    return found


_Copies = list[tuple[str, tuple[int, ...]]]


def _taken(
    host: Host, stem: str, own: _Copies, first: _Copies
) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    """(path, version, the wheel's version) of the copy on LD_LIBRARY_PATH that the loader takes in the wheel's place;
    None if it takes the wheel's."""
    wheels = {host.realpath(path) for path, _ in own}
    wheel = max((version for _, version in own), key=len, default=())
    build = torch_build(host)
    # A wheel's file is named by its soname alone: the package says the rest.
    if stem in _HIP:
        wheel = build.toolkit if build and build.kind == "rocm" and build.toolkit else wheel
    else:
        full = wheel_package_versions(host).get(stem, wheel)
        wheel = full if full[:1] == wheel[:1] or not wheel else wheel
    for path, version in first if own else ():
        if host.realpath(path) in wheels:
            return None  # LD_LIBRARY_PATH names the wheel's own folder first
        if stem in _HIP:
            return path, rocm_release(version) or _folder_release(host, path), wheel
        if not wheel or not version or version[0] == wheel[0]:
            return path, version, wheel
        # else another soname: the loader does not take it for the wheel's
    return None


def rocm_release(version: tuple[int, ...]) -> tuple[int, ...]:
    """ROCm's release from a library's version: (6, 4, 1) of 6.4.60401 and of 1.15.60401; () if it does not say."""
    number = version[-1] if version else 0
    return (number // 10000, number // 100 % 100, number % 100) if 10000 <= number < 1000000 else ()


def _folder_release(host: Host, path: str) -> tuple[int, ...]:
    """ROCm's release from the installation a library lies in: its .info/version, or its folder's name."""
    base = host.realpath(path).rpartition("/")[0].rpartition("/")[0]
    named = re.search(r"/rocm-(\d+\.\d+(?:\.\d+)?)$", base)
    return version_tuple(host.value(f"{base}/.info/version") or (named[1] if named else ""))[:3]


def _against(stem: str, version: tuple[int, ...], wheel: tuple[int, ...]) -> str:
    """How a copy stands to the wheel's: "" the same release, "other" (will not do), "doubtful"."""
    if version[:2] == wheel[:2] and len(version) > 1:
        return ""
    if len(version) < 2 or len(wheel) < 2:
        return "doubtful"
    return "other" if stem in _HIP or version[:2] < wheel[:2] else "doubtful"


@check(
    "libs.duplicates",
    "Each GPU library is there in one version",
    reads=(
        "LD_LIBRARY_PATH",
        "CONDA_PREFIX",
        "folders of wheels, toolkit and ROCm: libcudart, libcublas, libnvrtc, libnvJitLink, libamdhip64 ...",
    ),
    severity="blocks-use",
    after=("torch.flavour",),
)
def duplicates(ctx: Context) -> Result:
    """What LD_LIBRARY_PATH names wins over the libraries a wheel brings. An older libnvJitLink from there ends in
    "undefined symbol: __nvJitLink...", two HIP runtimes in one process crash. Copies elsewhere are found only by those
    who name them, and are no fault.

    FAIL: a folder of LD_LIBRARY_PATH holds an older release than the wheel, or, of HIP's libraries, another one.
    WARN: a newer or unknown release. The same release is no finding."""
    host = ctx.host
    ahead = search_path(host)
    conda = host.env.get("CONDA_PREFIX", "")
    shadowed: list[str] = []
    doubtful: list[str] = []
    evidence: list[tuple[str, str]] = []
    table: dict[str, list[str]] = {}
    for stem in _WATCHED:
        own = copies(host, stem, wheel_folders(host, stem))
        first = copies(host, stem, ahead)
        others = copies(host, stem, [*([f"{conda}/lib"] if conda else []), *_SYSTEM])
        table[stem] = [dotted(version) for _, version in (*first, *own, *others) if version]
        taken = _taken(host, stem, own, first)
        if taken is None:
            continue
        path, version, wheel = taken
        verdict = _against(stem, version, wheel)
        if not verdict:
            continue
        evidence += [(path, dotted(version) or "unknown"), (own[0][0], dotted(wheel) or "unknown")]
        what = (
            f"{stem[:-3]} {dotted(version)} in {path.rpartition('/')[0]} before the wheel's {dotted(wheel)}"
        )
        (shadowed if verdict == "other" else doubtful).append(what)
    data = {"libraries": {stem: found for stem, found in table.items() if found}}
    remedies = (
        Remedy("Take those folders out of LD_LIBRARY_PATH for Python programs.", "unset LD_LIBRARY_PATH"),
        Remedy("If another program needs them, set the variable for that program alone."),
    )
    if shadowed:
        return fail(
            f"LD_LIBRARY_PATH puts {shadowed[0]}",
            details=shadowed[1:],
            evidence=evidence,
            remedies=remedies,
            data=data,
        )
    if doubtful:
        return warn(
            f"LD_LIBRARY_PATH puts {doubtful[0]}",
            details=doubtful[1:],
            evidence=evidence,
            remedies=remedies,
            data=data,
        )
    return passed("nothing on LD_LIBRARY_PATH hides a wheel's library", data=data)


@check(
    "libs.stubs",
    "No stub of libcuda is on the library path",
    reads=("LD_LIBRARY_PATH",),
    severity="blocks-use",
)
def stubs(ctx: Context) -> Result:
    """The toolkit's folder lib64/stubs holds a libcuda for linking, which does nothing: a program that finds it
    first gets error 34, or no device."""
    host = ctx.host
    folders = [folder for folder in search_path(host) if folder.endswith("/stubs")]
    real = [
        folder
        for folder in folders
        if host.glob(f"{folder}/libcuda.so*") or host.glob(f"{folder}/libnvidia-ml.so*")
    ]
    if real:
        return fail(
            f"LD_LIBRARY_PATH has {real[0]}",
            evidence=[("LD_LIBRARY_PATH", host.env.get("LD_LIBRARY_PATH", ""))],
            remedies=(Remedy(f"Take {real[0]} out of LD_LIBRARY_PATH."),),
        )
    if folders:
        return warn(
            f"LD_LIBRARY_PATH has {folders[0]}, in which there is no stub now",
            remedies=(Remedy(f"Take {folders[0]} out of LD_LIBRARY_PATH."),),
        )
    return passed("none")


#: What torch's and ROCm's current wheels are linked with: GCC 11's libstdc++.
GLIBCXX_FLOOR = (3, 4, 29)


@check(
    "libs.glibcxx",
    "The C++ library that is found first is new enough",
    reads=("LD_LIBRARY_PATH", "CONDA_PREFIX/lib/libstdc++.so.6", "library folders"),
    severity="blocks-use",
)
def glibcxx(ctx: Context) -> Result:
    """The first libstdc++ on the path serves the whole process. An older one (often Conda's, or of an old compiler on
    LD_LIBRARY_PATH) lacks symbols that torch's and ROCm's libraries need: "GLIBCXX_3.4.30 not found". The
    file's name tells: libstdc++.so.6.0.30 ends at GLIBCXX_3.4.30. Wheels are built with GCC 11 (3.4.29)."""
    host = ctx.host
    conda = host.env.get("CONDA_PREFIX", "")
    inside_conda = bool(conda) and host.python.prefix == conda
    places = [*search_path(host), *([f"{conda}/lib"] if inside_conda else []), *_SYSTEM[2:], "/usr/lib"]
    for place in places:
        path = f"{place}/libstdc++.so.6"
        file = re.fullmatch(r"libstdc\+\+\.so\.6\.0\.(\d+)", host.realpath(path).rpartition("/")[2])
        if not file:
            continue
        newest = (3, 4, int(file[1]))
        shown = f"GLIBCXX_{dotted(newest)}"
        if newest < GLIBCXX_FLOOR:
            return fail(
                f"{path} ends at {shown}; wheels need {dotted(GLIBCXX_FLOOR)}",
                evidence=[(path, shown)],
                remedies=(
                    Remedy("Conda: install a newer one.", "conda install -c conda-forge 'libstdcxx-ng>=12'")
                    if place == f"{conda}/lib"
                    else Remedy(f"Take {place} out of LD_LIBRARY_PATH, or use a newer distribution."),
                ),
                data={"path": path, "glibcxx": dotted(newest)},
            )
        return passed(f"{path}: {shown}", data={"path": path, "glibcxx": dotted(newest)})
    return skip("no libstdc++ in the usual folders: the wheels bring their own or the system's is elsewhere")


@check(
    "proc.fork",
    "Worker processes are not forked after the GPU was used",
    reads=("multiprocessing's start method", "VLLM_WORKER_MULTIPROC_METHOD", "PYTORCH_NVML_BASED_CUDA_CHECK"),
    severity="degrades",
)
def fork(ctx: Context) -> Result:
    """A process that has initialised CUDA or HIP cannot use it in a forked child: "Cannot re-initialize CUDA in forked
    subprocess". Python before 3.14 forks by default on Linux; PortaGEMM itself touches no GPU before its first call.
    Where a start method is chosen explicitly, fork is warned of."""
    host = ctx.host
    chosen = host.python.start_method
    asked = host.env.get("VLLM_WORKER_MULTIPROC_METHOD", "")
    evidence = [("multiprocessing.get_start_method(allow_none=True)", chosen or "not chosen")]
    if asked:
        evidence.append(("VLLM_WORKER_MULTIPROC_METHOD", asked))
    if "fork" in (chosen, asked):
        return warn(
            "fork is chosen as the start method: workers must start before the first use of a GPU",
            evidence=evidence,
            remedies=(
                Remedy("Choose spawn or forkserver.", "torch.multiprocessing.set_start_method('spawn')"),
                *(
                    (Remedy("vLLM: the same by its variable.", "export VLLM_WORKER_MULTIPROC_METHOD=spawn"),)
                    if asked
                    else ()
                ),
            ),
        )
    return passed(
        f"start method {chosen}" if chosen else "the start method is not chosen yet", evidence=evidence
    )
