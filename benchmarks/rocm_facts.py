"""Steps of rocm_check that ask the machine itself: what it is, a few numbers that tell much, every kernel compiled."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
#: Properties that name one board among all, and so stay here.
_PRIVATE = ("unique_id", "hive_id")

_PCI_FILES = (
    *("product_name", "device", "revision", "current_compute_partition", "available_compute_partition"),
    *("current_memory_partition", "current_link_speed", "current_link_width", "numa_node"),
)
#: Kernel options that matter; the others may name servers.
_KERNEL_OPTION = re.compile("iommu|amdgpu|numa|^pci|hugepage|mitigations")
#: Of hipDeviceProp_t.
_PROPERTIES = (
    *("name", "gcnArchName", "multiProcessorCount", "warpSize", "maxThreadsPerBlock", "sharedMemPerBlock"),
    *("maxSharedMemoryPerMultiProcessor", "regsPerBlock", "l2CacheSize", "totalGlobalMem", "clockRate"),
    *("memoryClockRate", "memoryBusWidth", "pciBusID", "integrated"),
)


def machine() -> dict[str, Any]:
    """What kernel, ROCm, torch and hip-python say. Each part fails by itself, with its reason."""
    parts: dict[str, Callable[[], Any]] = {
        "versions": _versions,
        "rocm": _rocm,
        "topology": _topology,
        "partitions": _partitions,
        "torch": _torch,
        "hip": _hip,
    }
    found: dict[str, Any] = {}
    for name, part in parts.items():
        try:
            found[name] = part()
        except Exception as error:  # a machine on which things fail is what this is for
            found[name] = f"{type(error).__name__}: {error}"
    devices = found["hip"] if isinstance(found["hip"], list) else []
    found["ok"] = bool(devices)
    found["summary"] = (
        f"{len(devices)} HIP devices: {', '.join(str(d['gcnArchName']) for d in devices)}"
        if devices
        else f"no HIP device: {found['hip']}"
    )
    return found


def _versions() -> dict[str, str]:
    from portagemm.bench import environment

    return environment.versions()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _rocm() -> dict[str, Any]:
    roots = sorted({str(p.resolve()) for p in Path("/opt").glob("rocm*")})
    return {
        "folders": {root: _text(Path(root) / ".info" / "version") for root in roots},
        "amdgpu": _text(Path("/sys/module/amdgpu/version")),
        "os": _text(Path("/etc/os-release")),
        "kernel": _text(Path("/proc/version")),
        "command line": [
            word for word in (_text(Path("/proc/cmdline")) or "").split() if _KERNEL_OPTION.search(word)
        ],
        "kfd": _access(Path("/dev/kfd")),
        "render": {str(p): _access(p) for p in sorted(Path("/dev/dri").glob("renderD*"))},
    }


def _access(path: Path) -> str:
    if not path.exists():
        return "missing"
    return "accessible" if os.access(path, os.R_OK | os.W_OK) else "no access"


def _topology() -> dict[str, Any]:
    """The kernel's nodes as they are: fixtures for tests are made of these."""
    found = {}
    for node in sorted(_TOPOLOGY.glob("*"), key=lambda p: int(p.name)):
        files = [node / "name", *sorted(node.glob("properties")), *sorted(node.glob("*/*/properties"))]
        texts = {str(f.relative_to(node)): _text(f) for f in files}
        found[node.name] = {
            name: "\n".join(line for line in (text or "").splitlines() if not line.startswith(_PRIVATE))
            for name, text in texts.items()
        }
    return found


def _partitions() -> dict[str, Any]:
    return {
        folder.name: {name: text for name in _PCI_FILES if (text := _text(folder / name)) is not None}
        for folder in sorted(Path("/sys/bus/pci/drivers/amdgpu").glob("*:*"))
    }


def _torch() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "hip": torch.version.hip,
        "available": torch.cuda.is_available(),
        "arch_list": torch.cuda.get_arch_list() if torch.cuda.is_available() else [],
        "devices": [repr(torch.cuda.get_device_properties(i)) for i in range(torch.cuda.device_count())],
    }


def _hip() -> list[dict[str, Any]]:
    """Properties of every device by hip-python, as torch's process would see them, and the libraries used."""
    import torch  # noqa: F401 - its own HIP library, where it has one, is the one to ask

    from portagemm.backends.rocm import hip as binding

    hip = binding.runtime()
    found = []
    for index in range(binding.check("hipGetDeviceCount", hip.hipGetDeviceCount())):
        properties = binding.device_properties(hip, index)
        values = {name: getattr(properties, name, None) for name in _PROPERTIES}
        found.append(
            {k: v.decode(errors="replace") if isinstance(v, bytes) else v for k, v in values.items()}
        )
    libraries = [
        str(p)
        for stem in ("libamdhip64", "libhiprtc", "libamd_comgr", "libhsa")
        for p in binding.loaded_libraries(stem)
    ]
    version = binding.check("hipRuntimeGetVersion", hip.hipRuntimeGetVersion())
    if found:
        found[0] = {**found[0], "libraries": libraries, "runtime": version}
    return found


# --- numbers -----------------------------------------------------------------------------------------------


def numbers(device: str) -> dict[str, Any]:
    """A handful of products whose outcome says how the matrix unit behaves, torch's beside ours.

    Raises nothing for wrong numbers: they are what is wanted. `ok` says whether ours are as they must be.
    """
    import torch

    import portagemm

    def ours(a: torch.Tensor, b: torch.Tensor, out: torch.dtype | None = None) -> torch.Tensor:
        return portagemm.matmul(a, b, out_dtype=out, fallback="error")

    found: dict[str, Any] = {}
    ones = torch.ones(64, 64, device=device, dtype=torch.float16)
    tiny = torch.full((64, 64), 2.0**-15, device=device, dtype=torch.float16)
    found["fp16 subnormals, 64 x 2^-15"] = {
        "want": 64 * 2.0**-15,
        "ours": float(ours(ones, tiny)[0, 0]),
        "torch": float(torch.mm(ones, tiny)[0, 0]),
    }
    small = torch.full((64, 64), 2.0**-128, device=device, dtype=torch.bfloat16)
    large = torch.full((64, 64), 2.0**120, device=device, dtype=torch.bfloat16)
    found["bf16 subnormals, 64 x 2^-128 x 2^120"] = {
        "want": 64 * 2.0**-8,
        "ours": float(ours(small, large)[0, 0]),
        "torch": float(torch.mm(small, large)[0, 0]),
    }
    torch.manual_seed(0)
    for dtype, k in ((torch.float16, 4096), (torch.bfloat16, 4096), (torch.float32, 1024)):
        a, b = (torch.randn(256, k, device=device).to(dtype) for _ in range(2))
        reference = a.cpu().double() @ b.cpu().double().T
        norms = a.cpu().double().norm(dim=1)[:, None] * b.cpu().double().norm(dim=1)[None]
        found[f"{dtype}, K {k}: error over |a||b|"] = {
            "want": 2.0**-17,
            "ours": float(((ours(a, b.T, torch.float32).cpu().double() - reference).abs() / norms).max()),
            "torch, rounded to the operands' dtype": float(
                ((torch.mm(a, b.T).cpu().double() - reference).abs() / norms).max()
            ),
        }
    x = torch.randint(-8, 9, (300, 260), device=device).half()
    y = torch.randint(-8, 9, (260, 200), device=device).half()
    wrong = int((ours(x, y, torch.float32).cpu().double() != x.cpu().double() @ y.cpu().double()).sum())
    found["integers 300x200x260: wrong elements"] = {"want": 0, "ours": wrong}
    bad = [
        name
        for name, row in found.items()
        if (row["ours"] > row["want"] if "error" in name else row["ours"] != row["want"])
    ]
    found["ok"] = not bad
    found["summary"] = f"wrong: {'; '.join(bad)}" if bad else "as they must be"
    return found


# --- kernels -----------------------------------------------------------------------------------------------


def build(device: str, jobs: int, quick: bool) -> dict[str, Any]:
    """Compile every kernel of the case list into the cache, `jobs` processes at a time, each its share."""
    started = time.monotonic()
    shares = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--build",
                device,
                "--share",
                f"{i}/{jobs}",
                *(["--quick"] if quick else []),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(jobs)
    ]
    kernels: list[dict[str, Any]] = []
    broken = 0
    for share in shares:
        text = share.communicate()[0]
        lines = text.splitlines()
        if share.returncode != 0 or not lines:
            broken += 1
            continue
        kernels += json.loads(lines[-1])
    failed = [k for k in kernels if "error" in k]
    seconds = round(time.monotonic() - started, 1)
    return {
        "ok": not failed and not broken,
        "summary": f"{len(kernels)} kernels, {len(failed)} failed, {broken} of {jobs} processes broken, {seconds} s",
        "kernels": kernels,
    }


def build_share(device: str, share: str, quick: bool) -> list[dict[str, Any]]:
    """Every n-th kernel of the list: name, compiler, seconds, what the compiler said of registers; or its error."""
    import torch

    from portagemm import launch, testing
    from portagemm.hal.errors import PortaGemmError
    from portagemm.kernel_config import kernel_source

    index, count = (int(part) for part in share.split("/"))
    card = launch.device_of(torch.device(device))
    selection = launch.selection_of(card)
    found: list[dict[str, Any]] = []
    for kernel in list(testing.kernels(card, quick))[index::count]:
        source = kernel_source(kernel, selection.profile, selection.target)
        try:
            result = launch.code_of(source)
        except PortaGemmError as error:
            found.append({"kernel": source.symbol, "error": str(error)[:4000]})
            continue
        resources = [
            line.partition("remark:")[2].strip() for line in result.code.log.splitlines() if "remark:" in line
        ]
        found.append(
            {
                "kernel": source.symbol,
                "compiler": result.code.compiler,
                "seconds": round(result.seconds, 2),
                "bytes": len(result.code.code),
                "resources": resources,
            }
        )
    return found


def main() -> int:
    """One of the parts, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", metavar="DEVICE")
    parser.add_argument("--build", metavar="DEVICE")
    parser.add_argument("--share", help="i/n: only every n-th kernel, from the i-th on")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.share:
        print(json.dumps(build_share(arguments.build, arguments.share, arguments.quick)))
        return 0
    if arguments.build:
        found = build(arguments.build, arguments.jobs, arguments.quick)
    elif arguments.numbers:
        found = numbers(arguments.numbers)
    else:
        found = machine()
    if arguments.json:
        arguments.json.write_text(json.dumps(found))
    print(found["summary"])
    return 0 if found.get("ok", True) else 1


if __name__ == "__main__":
    sys.exit(main())
