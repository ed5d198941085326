"""``portagemm bench``: time a suite against torch and other libraries."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("bench")
@click.option("--suite", "suite_name", help="decode16, dense16, host, layouts16, mma_sync16 or random.")
@click.option("--static", is_flag=True, help="Compile for --arch and read the machine code; needs no GPU.")
@click.option("--arch", metavar="NAME", help="With --static: AMD profile (mi250x) or arch (gfx90a).")
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(["float16", "bfloat16", "float32"]),
    help="With --static. Default: all three.",
)
@click.option("--shape", default="4096x4096x4096", show_default=True, metavar="MxNxK", help="With --static.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the result here."
)
@click.option("--device", default=None, help="Torch device. Default: cuda:0 where there is one, else cpu.")
@click.option("--profile", default=None, help="Force an arch profile, as PORTAGEMM_PROFILE does.")
@click.option("--rows", default=None, metavar="K/N", help="Every N-th case from the K-th on.")
@click.option("--limit", type=click.IntRange(1), default=None, help="At most so many cases.")
@click.option(
    "--timing", "timings", type=click.Choice(["alone", "chain"]), multiple=True, help="Default: both."
)
@click.option("--peers", default="torch,deep_gemm,humming", show_default=True, help="Libraries, by comma.")
@click.option("--seed", type=int, default=None, help="Of suite random. Default: the date as YYYYMMDD.")
@click.option("--seconds", default=0.3, show_default=True, help="Effort of one measurement.")
@click.option("--budget", type=float, default=None, help="Seconds in all; cases left over are errors.")
@click.option(
    "--host-calls",
    type=click.IntRange(0),
    default=None,
    help="Calls of the host-cost measurement; 0: none. Default: 10000, on the CPU 1000.",
)
@click.option("--untuned", is_flag=True, help="No tuning tables, as PORTAGEMM_TUNING=off.")
@click.option(
    "--search", type=float, default=None, metavar="SECONDS", help="Search all plans, so long a case: best_us."
)
@click.option("--plain", is_flag=True, help="Plain text, a line a row.")
@click.pass_context
def command(
    ctx: click.Context,
    suite_name: str | None,
    static: bool,
    arch: str | None,
    dtypes: tuple[str, ...],
    shape: str,
    json_path: Path | None,
    device: str | None,
    profile: str | None,
    rows: str | None,
    limit: int | None,
    timings: tuple[str, ...],
    peers: str,
    seed: int | None,
    seconds: float,
    budget: float | None,
    host_calls: int | None,
    untuned: bool,
    search: float | None,
    plain: bool,
) -> None:
    """Time SUITE and print the ratio to torch, or report on an arch's kernels (--static).

    Exit code 1 when a case failed.
    """
    import os

    if static:
        _static(arch, dtypes, shape, json_path)
        return
    if suite_name is None or arch is not None or dtypes:
        raise click.UsageError(
            "Missing option '--suite'." if suite_name is None else "--arch and --dtype want --static."
        )

    if profile is not None:
        os.environ["PORTAGEMM_PROFILE"] = profile
    if untuned:
        os.environ["PORTAGEMM_TUNING"] = "off"

    from portagemm import tuning
    from portagemm.bench import suites
    from portagemm.bench.report import Report, row_text, summary_text
    from portagemm.bench.run import Options, Runner, find_device
    from portagemm.bench.timing import Effort

    seed = suites.default_seed() if seed is None else seed
    try:
        cases = suites.part(suites.suite(suite_name, seed), rows, limit)
        cases = suites.with_timings(cases, timings or suites.TIMINGS)
        names = tuple(name for name in peers.split(",") if name)
        device = device or _default_device()
        if host_calls is None:
            host_calls = 1_000 if device == "cpu" else 10_000
        options = Options(
            device=device,
            peers=names,
            effort=Effort(seconds=seconds),
            budget=budget,
            host_calls=host_calls,
            search=search,
        )
        runner = Runner(find_device(options.device), options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error

    if suite_name == "random":
        click.echo(f"seed {seed}")
    for name, reason in runner.missing_peers.items():
        click.echo(f"peer {name} left out: {reason}")
    if search is not None:
        from portagemm.bench.search import compile_missing

        jobs = os.cpu_count() or 1
        for built in compile_missing(cases, runner.device, jobs, lambda done, of: None):
            click.echo(f"{built.source.symbol}: {built.error.splitlines()[0]}")
    report: Report
    if plain:
        report = runner.run(suite_name, cases, lambda row: click.echo(row_text(row)))
    else:
        from portagemm.bench.console import run_with_progress

        report = run_with_progress(runner, suite_name, cases)
    click.echo(summary_text(report))
    if suite_name == "random":
        report.versions["suite_seed"] = str(seed)
    report.versions["tuning"] = "off" if tuning.off() else "on"
    if json_path is not None:
        report.write(json_path)
        click.echo(f"written to {json_path}")
    ctx.exit(1 if report.failed else 0)


def _static(arch: str | None, dtypes: tuple[str, ...], text: str, json_path: Path | None) -> None:
    """The table of `portagemm bench --static`, and its JSON."""
    from portagemm import prebuild
    from portagemm.bench import static
    from portagemm.cli.compile import parse_shape

    if arch is None:
        raise click.UsageError("--static needs --arch, like gfx90a.")
    profile, shape = prebuild.find_profile(arch), parse_shape(text)
    click.echo(static.head(profile, shape))
    chosen = dtypes or ("float16", "bfloat16", "float32")
    rows = static.report(profile, chosen, shape=shape, done=lambda row: click.echo(static.line(row)))
    if json_path is not None:
        json_path.write_text(static.to_json(rows, profile, shape) + "\n")
        click.echo(f"written to {json_path}")


def _default_device() -> str:
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"
