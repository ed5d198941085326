"""Build the pack of all kernels that device_check.py needs, on a machine without a GPU.

    python benchmarks/build_pack.py --out build/pack --archive build/pack.tar.xz

Cases and suites are planned for a described NVIDIA H200 under each profile, every plan candidate for the
correctness cases, and compiled by NVRTC. Compiled kernels are kept in --cache, and packs of
PORTAGEMM_KERNEL_PATH are used, so a second run compiles only what changed. Pack and archive are written
whole each time: nothing old is in them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from portagemm.hal.device import Device
    from portagemm.hal.profile import Selection
    from portagemm.hal.program import ObjectCode
    from portagemm.hal.source import KernelSource

PROFILES = ("h100", "a100", "rtx4090")
#: Suites by profile: those that `portagemm bench` runs under it.
SUITES = {
    "h100": ("dense16", "layouts16", "decode16", "random"),
    "a100": ("mma_sync16",),
    "rtx4090": ("mma_sync16",),
}


def h200() -> Device:
    """An NVIDIA H200 as its driver describes it."""
    from portagemm.hal.device import Device

    return Device(
        backend="cuda",
        index=0,
        name="NVIDIA H200",
        arch="sm_90",
        compute_units=132,
        l2_bytes=60 << 20,
        memory_bytes=141 << 30,
        shared_bytes_per_block=227 << 10,
        threads_per_block=1024,
        memory_bandwidth=4.8e12,
    )


def select(device: Device, profile: str) -> Selection:
    """The selection PORTAGEMM_PROFILE=`profile` makes on the device."""
    from portagemm.hal import profile as profiles

    os.environ[profiles.FORCE_VARIABLE] = profile
    return profiles.for_device(device)


def check_sources(device: Device, selection: Selection, quick: bool) -> Iterator[KernelSource]:
    """Every kernel the correctness cases run, the quick ones' first; then those with random delays."""
    from portagemm import delays, testing
    from portagemm import plan as planner

    kernels = dict.fromkeys(testing.kernels(device, quick=True))
    if not quick:
        kernels |= dict.fromkeys(testing.kernels(device))
    for kernel in kernels:
        yield planner.kernel_source(kernel, selection.profile, selection.target)
    if not quick:
        yield from delays.sources(device, selection)


def bench_sources(
    device: Device, selection: Selection, seed: int, candidates: bool = False
) -> Iterator[KernelSource]:
    """The planned kernel of every case of the suites, of host cost and start-up, and the read probe.

    `candidates`: every kernel there is for the suites' cases, too; tuning and `bench --search` time them all.
    """
    from portagemm import plan as planner
    from portagemm.bench import operands, probe, search, suites

    cases = [case for name in SUITES.get(selection.profile.name, ()) for case in suites.suite(name, seed)]
    if candidates:
        yield from search.sources(cases, device)
    cases += [
        suites.BenchCase("matmul", dtype, layout, 64, 64, 64)
        for dtype in ("bf16", "fp16", "fp32")
        for layout in ("NN", "NT")
    ]
    for case in cases:
        plan = planner.plan(operands.problem(case), selection.profile, device)
        for kernel in plan.kernels:
            yield planner.kernel_source(kernel, selection.profile, selection.target)
    for kernel in probe.kernels("cuda"):
        yield probe.source(kernel, selection)


def unique(sources: Iterable[KernelSource], known: dict[str, KernelSource]) -> int:
    """Add sources to `known` by pack key; how many were new."""
    from portagemm.hal.cache_key import pack_key

    before = len(known)
    seen: set[KernelSource] = set()
    for source in sources:
        if source not in seen:
            seen.add(source)
            known.setdefault(pack_key(source), source)
    return len(known) - before


def compile_one(source: KernelSource) -> tuple[ObjectCode, bool]:
    """(code, whether it had to be compiled); runs in a process of its own."""
    from portagemm import launch

    result = launch.code_of(source)
    return result.code, result.origin == "compiled"


def build(
    sources: Sequence[KernelSource], jobs: int, seconds: float
) -> tuple[list[tuple[KernelSource, ObjectCode]], list[str], int]:
    """(kernels, failures, how many were compiled here) of the sources `seconds` allow, the first first."""
    built: list[tuple[KernelSource, ObjectCode]] = []
    failed: list[str] = []
    started, compiled = time.monotonic(), 0
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        waiting = {pool.submit(compile_one, source): source for source in sources}
        for number, future in enumerate(as_completed(waiting), 1):
            source = waiting[future]
            spent = time.monotonic() - started
            if spent > seconds:
                for other in waiting:
                    other.cancel()
            try:
                code, fresh = future.result()
                compiled += fresh
                built.append((source, code))
            except CancelledError:
                failed.append(f"{source.symbol} ({source.target}): no time left")
            except Exception as error:  # all of them are wanted, not the first
                failed.append(f"{source.symbol} ({source.target}): {str(error)[:1500]}")
            if number % 100 == 0:
                print(f"{number} of {len(waiting)}, {compiled} compiled, {spent:.0f} s", flush=True)
    return built, failed, compiled


def main() -> int:
    """Plan, compile, write the pack and its archive; exit code 1 when a kernel does not compile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "pack")
    parser.add_argument("--archive", type=Path, default=ROOT / "build" / "pack.tar.xz")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "pack-cache")
    parser.add_argument("--profiles", default=",".join(PROFILES))
    parser.add_argument("--seed", type=int, help="of suite random; default: the date")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="the quick correctness cases only")
    parser.add_argument("--candidates", action="store_true", help="all kernels of the suites, for tuning")
    parser.add_argument("--no-check", action="store_true", help="no correctness cases: the suites only")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further compile after so long")
    parser.add_argument("--list", action="store_true", help="count the kernels, compile nothing")
    arguments = parser.parse_args()
    os.environ["PORTAGEMM_CACHE_DIR"] = str(arguments.cache.resolve())

    from portagemm.bench import environment
    from portagemm.bench.digest import sources_digest
    from portagemm.bench.suites import default_seed
    from portagemm.hal.pack import write_pack

    device = h200()
    started, digest = time.monotonic(), sources_digest(device.backend)
    seed = arguments.seed or default_seed()
    sources: dict[str, KernelSource] = {}
    for name in arguments.profiles.split(","):
        selection = select(device, name)
        suites_new = unique(bench_sources(device, selection, seed, arguments.candidates), sources)
        check_new = 0
        if not arguments.no_check:
            check_new = unique(check_sources(device, selection, arguments.quick), sources)
        print(f"{name}: {suites_new} kernels of suites, {check_new} more of correctness cases", flush=True)
    if arguments.list:
        return 0

    built, failed, compiled = build(list(sources.values()), arguments.jobs, arguments.seconds)
    if sources_digest(device.backend) != digest:
        print(
            "FAILED: kernel sources changed while they were compiled; run it again (the cache keeps what fits)"
        )
        return 1
    shutil.rmtree(arguments.out, ignore_errors=True)
    write_pack(arguments.out, built)
    about = {"commit": environment.commit(), "sources_digest": digest, "seed": seed}
    (arguments.out / "build.json").write_text(json.dumps(about) + "\n")
    size = sum(file.stat().st_size for file in arguments.out.iterdir())
    with tarfile.open(arguments.archive, "w:xz", preset=3) as tar:
        for file in sorted(arguments.out.iterdir()):  # similar kernels side by side compress best
            tar.add(file, arcname=file.name)
    print(
        f"{len(built)} kernels ({compiled} compiled here, {time.monotonic() - started:.0f} s), "
        f"{size / 1e6:.1f} MB, "
        f"archive {arguments.archive.stat().st_size / 1e6:.1f} MB, seed {seed}"
    )
    for text in failed[:40]:
        print(f"FAILED {text}")
    if len(failed) > 40:
        print(f"and {len(failed) - 40} more")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
