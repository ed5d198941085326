"""``portagemm compile``: build a kernel pack for an arch that need not be present."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from portagemm.hal.source import KernelSource


def parse_shape(text: str) -> tuple[int, int, int]:
    """MxNxK as three numbers. Raises a usage error, also where there is nothing to compute."""
    match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
    if match is None:
        raise click.BadParameter(f"given {text!r}; allowed: MxNxK, like 4096x4096x4096")
    m, n, k = (int(group) for group in match.groups())
    if not (m and n and k):
        raise click.BadParameter(
            f"given {text!r}: there is nothing to compile; no kernel runs without M, N and K"
        )
    return m, n, k


@click.command("compile")
@click.option(
    "--arch",
    "archs",
    required=True,
    metavar="NAMES",
    help="Profiles (h100) or archs (sm_90a), joined by commas.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the pack.")
@click.option("--device-arch", metavar="ARCH", help="Arch of the device, if not the profile's own.")
@click.option("--board", metavar="NAME", help="Board to plan for; see portagemm profiles --show.")
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(["float16", "bfloat16", "float32", "tf32"]),
    help="Default: float16 and bfloat16 (float32 on the CPU). May be repeated, as all below.",
)
@click.option(
    "--out-dtype",
    multiple=True,
    type=click.Choice(["same", "float32"]),
    default=("same",),
    show_default=True,
)
@click.option(
    "--layout", multiple=True, type=click.Choice(["nn", "nt", "tn", "tt"]), help="Default: all four."
)
@click.option(
    "--alignment",
    "alignments",
    multiple=True,
    type=click.Choice(["16", "8", "4", "2"]),
    default=("16",),
    show_default=True,
    help="Bytes that divide addresses and rows.",
)
@click.option(
    "--epilogue",
    multiple=True,
    default=("none", "bias"),
    show_default=True,
    help="none, or joined by +: c, bias, and one of relu, gelu, gelu_tanh, silu.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=parse_shape,
    metavar="MxNxK",
    help="Default: many rows, few and one.",
)
@click.option("--best", is_flag=True, help="Only the tile the plan takes for each shape, not all.")
@click.option("--jobs", type=click.IntRange(1), default=None, help="Processes. Default: one a core.")
@click.option("--list", "list_only", is_flag=True, help="Print the kernels' names; build nothing.")
def command(
    archs: str,
    out: Path | None,
    device_arch: str | None,
    board: str | None,
    dtypes: tuple[str, ...],
    out_dtype: tuple[str, ...],
    layout: tuple[str, ...],
    alignments: tuple[str, ...],
    epilogue: tuple[str, ...],
    shapes: tuple[tuple[int, int, int], ...],
    best: bool,
    jobs: int | None,
    list_only: bool,
) -> None:
    """Build a kernel pack: kernels that run without a compiler where PORTAGEMM_KERNEL_PATH names the pack.

    Every combination of the options is built, for every tile of the profile. Needs the arch's compiler,
    not its GPU. Adds to a pack that is there. Exit code 1 if a kernel does not compile.
    """
    from portagemm import prebuild

    if out is None and not list_only:
        raise click.UsageError("Missing option '--out' (or --list).")
    names = [name for name in archs.split(",") if name]
    if len(names) > 1 and (device_arch or board):
        raise click.UsageError("--device-arch and --board go with one --arch.")
    kernels: list[KernelSource] = []
    for name in names:
        profile = prebuild.find_profile(name)
        device = prebuild.described_device(profile, device_arch, board)
        wanted = prebuild.Wanted(
            dtypes=dtypes or (("float32",) if profile.backend == "cpu" else ("float16", "bfloat16")),
            out=out_dtype,
            layouts=layout or prebuild.LAYOUTS,
            alignments=tuple(int(a) for a in alignments),
            epilogues=epilogue,
            shapes=shapes or prebuild.SHAPES,
            every_tile=not best,
        )
        kernels += prebuild.sources(wanted, profile, device)
    if list_only:
        for kernel in kernels:
            click.echo(kernel.symbol)
        return
    assert out is not None
    failed = _build(kernels, out, jobs)
    if failed:
        raise click.ClickException(f"{failed} of {len(kernels)} kernels did not compile")


def _build(kernels: list[KernelSource], out: Path, jobs: int | None) -> int:
    """Build with a progress bar, write the pack, say what was done. Returns how many failed."""
    import os
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from portagemm import prebuild
    from portagemm.hal.pack import write_pack

    jobs = min(jobs or len(os.sched_getaffinity(0)), len(kernels))
    targets = ", ".join(dict.fromkeys(str(kernel.target) for kernel in kernels))
    console = Console(stderr=True, highlight=False)
    started = time.perf_counter()
    built: list[prebuild.Built] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(targets, total=len(kernels))
        for done in prebuild.compile_all(kernels, jobs):
            built.append(done)
            progress.advance(task)
            if done.code is None:
                console.print(f"FAILED {done.source.symbol}\n{done.error}", markup=False)
    good = [(done.source, done.code) for done in built if done.code is not None]
    pack = write_pack(out, good)
    compiled = [done.seconds for done in built if done.origin == "compiled"]
    longest = f", the longest {max(compiled):.1f} s" if compiled else ""
    click.echo(
        f"{out}: {len(pack.kernels)} kernels, {len(good)} of them for {targets} now;"
        f" {len(compiled)} compiled in {time.perf_counter() - started:.1f} s{longest}, the rest were cached"
    )
    return len(built) - len(good)
