"""The command line: ``portagemm SUBCOMMAND``. A subcommand is a module here that exports `command`.

Exit codes: 0 done; 1 the work failed (one line says why; ``--debug`` shows the traceback); 2 wrong usage;
130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import cast

import click

#: The subcommands, in the order ``--help`` lists them. Each module is imported only when it runs.
COMMANDS: tuple[str, ...] = ("demo", "bench", "tune", "compile", "profiles", "devices", "cache", "doctor")


class LazyGroup(click.Group):
    """A group whose subcommands are imported by name when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All subcommands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand, or None if there is none of that name (click then lists what is close)."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"portagemm.cli.{cmd_name}")
        return cast(click.Command, module.command)


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib import metadata

    try:
        version = metadata.version("portagemm")
    except metadata.PackageNotFoundError:
        version = "(not installed, running from a checkout)"
    click.echo(f"portagemm {version}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
def group(debug: bool) -> None:
    """Matrix multiplication on NVIDIA and AMD GPUs and on the CPU, from one set of kernel sources."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line `arguments` and return the exit code. Raises nothing."""
    debug = "--debug" in arguments
    warnings.showwarning = _show_warning
    try:
        result = group.main(list(arguments), prog_name="portagemm", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _report(error, debug)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object, **__: object
) -> None:
    """A warning as one line; where it was raised is of no use to who runs a command."""
    click.echo(f"warning: {message}", err=True)


def _report(error: Exception, debug: bool) -> int:
    """Print `error` as one line, or as a traceback, and return the exit code."""
    from portagemm.hal.errors import PortaGemmError

    if debug:
        traceback.print_exc()
        return 1
    lines = str(error).strip().splitlines() or [""]
    text = lines[0] if isinstance(error, PortaGemmError) else f"{type(error).__name__}: {lines[0]}"
    more = len(lines) > 1 or not isinstance(error, PortaGemmError)
    click.echo(f"error: {text}{' (portagemm --debug ... shows all of it)' if more else ''}", err=True)
    return 1


def main() -> None:
    """Entry point of the ``portagemm`` script."""
    sys.exit(run(sys.argv[1:]))
