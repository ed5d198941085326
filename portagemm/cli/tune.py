"""``portagemm tune``: measure which plan is fastest for given shapes and keep the answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from portagemm.bench.suites import BenchCase
    from portagemm.hal.device import Device

_SUITES = "dense16,layouts16,decode16"


@click.command("tune")
@click.option(
    "--suite", "suites", metavar="NAMES", help=f"Suites by comma. Default: {_SUITES}; on a CPU: host."
)
@click.option(
    "--shape", "shapes", metavar="M,N,K", multiple=True, help="A shape of your own; may be repeated."
)
@click.option("--dtype", "dtypes", default="bf16", show_default=True, help="Of --shape: names by comma.")
@click.option(
    "--layout", "layouts", default="NT", show_default=True, help="Of --shape: NN, NT, TN, TT by comma."
)
@click.option(
    "--timing",
    "timings",
    type=click.Choice(["alone", "chain"]),
    multiple=True,
    help="Default: both; on a CPU: alone.",
)
@click.option("--device", default=None, help="Torch device. Default: cuda:0 where there is one, else cpu.")
@click.option("--profile", default=None, help="Force an arch profile, as PORTAGEMM_PROFILE does.")
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    help="A file, or a folder of tables. Default: the user's table.",
)
@click.option("--again", is_flag=True, help="Measure what the table already holds, too.")
@click.option("--rows", default=None, metavar="K/N", help="Every N-th case from the K-th on.")
@click.option("--limit", type=click.IntRange(1), default=None, help="At most so many cases.")
@click.option("--seed", type=int, default=None, help="Of suite random. Default: the date as YYYYMMDD.")
@click.option("--seconds", default=0.3, show_default=True, help="Effort of the last heat.")
@click.option("--budget", type=float, default=None, help="Seconds in all; run again to go on.")
@click.option("--jobs", type=click.IntRange(1), default=None, help="Compilers at a time. Default: all cores.")
@click.option("--plain", is_flag=True, help="Plain text, a line a case, no bar.")
@click.pass_context
def command(
    ctx: click.Context,
    suites: str | None,
    shapes: tuple[str, ...],
    dtypes: str,
    layouts: str,
    timings: tuple[str, ...],
    device: str | None,
    profile: str | None,
    table: Path | None,
    again: bool,
    rows: str | None,
    limit: int | None,
    seed: int | None,
    seconds: float,
    budget: float | None,
    jobs: int | None,
    plain: bool,
) -> None:
    """Time every plan there is for given shapes and keep the fastest in a table for this device.

    Each answer is written at once: an interrupted run goes on where it was. Calls of these shapes then take
    the measured plan; portagemm.explain shows it beside the model's own choice. PORTAGEMM_TUNING=off leaves
    all tables out, other values name more of them. Exit code 1 when a case failed.
    """
    import os

    if profile is not None:
        os.environ["PORTAGEMM_PROFILE"] = profile

    import torch

    from portagemm import tuning
    from portagemm.bench.run import find_device

    name = device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        cases = _cases(name, suites, shapes, dtypes, layouts, seed)
        from portagemm.bench.suites import TIMINGS, part, with_timings

        cases = with_timings(part(cases, rows, limit), timings or (TIMINGS[:1] if name == "cpu" else TIMINGS))
        hal_device = find_device(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    path = table or tuning.user_path(hal_device)
    if path.is_dir():
        path = path / tuning.file_name(hal_device)
    try:
        waiting = _waiting(cases, hal_device, path, again)
    except ValueError as error:
        raise click.ClickException(f"{path}: {error}") from error
    click.echo(f"{hal_device.name}: {len(cases)} cases, {len(cases) - len(waiting)} already in {path}")
    failures = _run(waiting, hal_device, path, seconds, budget, jobs or os.cpu_count() or 1, plain)
    tuning.reset()
    ctx.exit(1 if failures else 0)


def _cases(
    device: str, suites: str | None, shapes: tuple[str, ...], dtypes: str, layouts: str, seed: int | None
) -> list[BenchCase]:
    """What was asked for. Raises ValueError with what is allowed."""
    from portagemm.bench import suites as known
    from portagemm.hal.dtypes import BY_NAME

    cases: list[BenchCase] = []
    for text in shapes:
        try:
            m, n, k = (int(extent) for extent in text.split(","))
        except ValueError:
            m = n = k = 0
        if min(m, n, k) < 1:
            raise ValueError(f"shape: given {text!r}; allowed: M,N,K, three positive integers")
        for dtype in dtypes.split(","):
            if dtype not in ("fp16", "bf16", "fp32"):
                allowed = ", ".join(d for d in BY_NAME if d in ("fp16", "bf16", "fp32"))
                raise ValueError(f"dtype: given {dtype!r}; allowed: {allowed}")
            for layout in layouts.split(","):
                if layout not in ("NN", "NT", "TN", "TT"):
                    raise ValueError(f"layout: given {layout!r}; allowed: NN, NT, TN, TT")
                cases.append(known.BenchCase("matmul", dtype, layout, m, n, k, timings=known.TIMINGS))
    if suites is None and not cases:
        suites = "host" if device == "cpu" else _SUITES
    for suite in filter(None, (suites or "").split(",")):
        cases += known.suite(suite, seed)
    return list(dict.fromkeys(cases))


def _waiting(cases: list[BenchCase], device: Device, path: Path, again: bool) -> list[BenchCase]:
    """The cases the table has no fresh answer for. Raises ValueError for a file that is no table."""
    from portagemm import launch, tuning
    from portagemm.bench import operands

    entries = tuning.read(path, device)
    if again:
        return cases
    profile = launch.selection_of(device).profile.name
    digest = tuning.sources_digest(device.backend)

    def known(case: BenchCase) -> bool:
        key, m = tuning.key_of(operands.problem(case), profile)
        entry = entries.get(key, {}).get(m)
        return entry is not None and entry.sources == digest

    return [case for case in cases if not known(case)]


def _run(
    cases: list[BenchCase],
    device: Device,
    path: Path,
    seconds: float,
    budget: float | None,
    jobs: int,
    plain: bool,
) -> int:
    """Compile, search and store; how many cases failed."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from portagemm import launch, tuning
    from portagemm.bench import operands
    from portagemm.bench.search import Search, compile_missing
    from portagemm.bench.timing import Effort, make_timer
    from portagemm.hal.errors import PortaGemmError

    started = time.monotonic()
    profile = launch.selection_of(device).profile.name
    on_cpu = device.backend == "cpu"
    search = Search(
        device,
        make_timer(device.torch_device, device.l2_bytes),
        Effort(seconds=seconds),
        chain_bytes=1 << (27 if on_cpu else 30),
    )
    console = Console(highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    failures = 0
    with Progress(*columns, console=console, transient=True, disable=plain) as progress:
        task = progress.add_task("compiling", total=None)
        for built in compile_missing(
            cases, device, jobs, lambda done, of: progress.update(task, completed=done, total=of)
        ):
            console.print(f"{built.source.symbol}: {built.error.splitlines()[0]}", markup=False)
        progress.remove_task(task)
        task = progress.add_task("tuning", total=len(cases))
        for number, case in enumerate(cases):
            if budget is not None and time.monotonic() - started > budget:
                console.print(f"budget spent: {len(cases) - number} cases are left; run again to go on")
                break

            def seen(text: str, case: BenchCase = case) -> None:
                progress.update(task, description=f"{case}: {text}")

            try:
                found = search(case, seen=seen)
                tuning.store(
                    path, device, tuning.key_of(operands.problem(case), profile), found.entry(device)
                )
            except (PortaGemmError, RuntimeError) as error:  # out of memory too: the other cases can go on
                failures += 1
                console.print(f"{case}: {type(error).__name__}: {error}", markup=False, style="red")
            else:
                for plan, why in found.failed:
                    failures += why.startswith("wrong")
                    console.print(f"{case}: {plan}: {why}", markup=False, style="red")
                gain = found.heuristic_us / found.us
                text = f"{case}: {found.us:.1f} us, {gain:.3f}x the model's choice, of {found.tried} plans: "
                console.print(text + found.plan.explain().partition(", waves")[0], markup=False)
            progress.advance(task)
    return failures
