"""``portagemm doctor``: hands its arguments to portagemm.doctor, which needs no library and has its own parser."""

from __future__ import annotations

import click

from portagemm.doctor.main import main


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Find out what keeps this machine, container, WSL2 or cluster from using its GPUs."""
    try:
        code = main(arguments)
    except SystemExit as stopped:  # how its parser ends after --help and wrong usage
        code = stopped.code if isinstance(stopped.code, int) else 2
    ctx.exit(code)
