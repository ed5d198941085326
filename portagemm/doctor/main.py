"""The doctor's command line, with argparse alone. Exit codes: 0 nothing failed; 1 a check failed (or, with
--strict, warned); 2 wrong usage, a filter that matches nothing, or a fault of the doctor itself."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import stat
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from portagemm.doctor.check import GROUPS, Check, Options, all_checks
from portagemm.doctor.host import Host
from portagemm.doctor.identity import identity
from portagemm.doctor.machine_file import MachineFileError, dump, load_bundle
from portagemm.doctor.printable import printable, printable_json
from portagemm.doctor.ranks import MOST_RANKS
from portagemm.doctor.record import Recorder
from portagemm.doctor.redact import Redactor
from portagemm.doctor.render import Style, human, markdown
from portagemm.doctor.replay import open_machine, open_tree
from portagemm.doctor.report import Report
from portagemm.doctor.runner import DEFAULT_CLASSES, SelectionError, run_checks, select

_EPILOG = """\
Nothing is ever changed: every fix is printed, none is carried out. Private names, ids and secrets are left
out of what is printed or saved (--no-redact keeps them).
exit codes: 0 nothing failed, 1 a check failed (with --strict: or warned), 2 wrong usage or no such check
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Writes Usage as the other commands do."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "Usage: " if prefix is None else prefix)


class UsageError(Exception):
    """Wrong usage found after parsing; the message is all the user needs."""


def parser() -> argparse.ArgumentParser:
    """The arguments of ``portagemm doctor``."""
    result = argparse.ArgumentParser(
        prog="portagemm doctor",
        description="Find out what keeps this machine, container, WSL2 or cluster from using its GPUs.",
        epilog=_EPILOG,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    what = result.add_argument_group("what to check")
    what.add_argument(
        "--only", action="append", default=[], metavar="GLOB", help="only these ids or groups (a.b, a.*, a)"
    )
    what.add_argument("--skip", action="append", default=[], metavar="GLOB", help="not these")
    what.add_argument("--passive", action="store_true", help="files and variables only, no child process")
    what.add_argument("--gpu", action="store_true", help="also checks that create a context on the GPU")
    what.add_argument(
        "--smoke", action="store_true", help="also run a small GEMM of each dtype on each device"
    )
    what.add_argument(
        "--require-gpu",
        nargs="?",
        const="any",
        default="",
        choices=("any", "nvidia", "amd"),
        help="fail if there is no GPU (of this vendor)",
    )
    what.add_argument("--strict", action="store_true", help="warnings fail too")
    output = result.add_argument_group("output")
    form = output.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the report as JSON (schema: --json-schema)")
    form.add_argument("--markdown", action="store_true", help="the report for an issue tracker")
    output.add_argument(
        "-o", "--output", metavar="FILE", help="write the report there instead of printing it"
    )
    output.add_argument("-v", "--verbose", action="store_true", help="what does not apply, evidence, times")
    output.add_argument("-q", "--quiet", action="store_true", help="only what is wrong, and the verdict")
    output.add_argument("--no-redact", action="store_true", help="leave names, ids and secrets in")
    output.add_argument("--no-color", action="store_true", help="no colours (NO_COLOR does the same)")
    about = result.add_argument_group("about the checks")
    about.add_argument("--list-checks", action="store_true", help="every id with its title")
    about.add_argument("--explain", metavar="ID", help="what a check looks at, and why")
    about.add_argument(
        "--match-error", metavar="TEXT", help="explain an error message (text, file or - for input)"
    )
    about.add_argument("--json-schema", action="store_true", help="print the schema of --json")
    other = result.add_argument_group("other machines")
    other.add_argument("--save-bundle", metavar="FILE", help="record all that was read into a text file")
    other.add_argument(
        "--from-bundle", metavar="FILE", help="check the machine of a bundle instead of this one"
    )
    other.add_argument("--root", metavar="FOLDER", help="check a folder of a machine's files instead")
    other.add_argument(
        "--compare", nargs="+", metavar="REPORT", help="compare the --json reports of several ranks"
    )
    other.add_argument("--cluster", action="store_true", help="run on every rank of a launcher and compare")
    other.add_argument(
        "--cluster-dir", metavar="FOLDER", help="with --cluster: exchange by files in this shared folder"
    )
    other.add_argument(
        "--cluster-timeout", type=float, default=60.0, metavar="SECONDS", help="wait this long for ranks"
    )
    other.add_argument(
        "--expect-ranks", type=int, metavar="N", help="with --compare: how many reports there should be"
    )
    return result


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit code. Raises nothing but SystemExit, for --help and usage."""
    options = parser().parse_args(list(arguments))
    out = _Output(sys.stdout)
    try:
        code = _run(options, out)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except (UsageError, SelectionError, MachineFileError) as error:
        return _complain(str(error))
    except BrokenPipeError:  # the reader went away, which is its right
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except OSError as error:
        return _complain(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "))
    except RecursionError:
        return _complain("what was given is nested too deeply")
    except Exception as error:
        if os.environ.get("PORTAGEMM_DOCTOR_DEBUG"):
            raise
        return _complain(
            f"the doctor itself failed: {type(error).__name__}: {error}; please report it "
            "(PORTAGEMM_DOCTOR_DEBUG=1 shows where)"
        )


def _complain(text: str, code: int = 2) -> int:
    with contextlib.suppress(OSError, ValueError):
        _Output(sys.stderr).write(f"portagemm doctor: {printable(text)}\n")
    return code


class _Output:
    """Prints on streams that may not know all characters."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "ascii"

    @property
    def unicode(self) -> bool:
        try:
            "✓✗–".encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    @property
    def terminal(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except (ValueError, AttributeError):
            return False

    def write(self, text: str) -> None:
        """Print; what the stream cannot show is escaped."""
        if self._stream is None:  # pythonw, or descriptor 1 closed
            return
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            self._stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))


def _check_values(options: argparse.Namespace) -> None:
    """Raises UsageError for values that argparse takes and nobody means: an unset variable of a script, mostly."""
    for name in ("explain", "root", "from_bundle", "save_bundle", "output", "cluster_dir"):
        if getattr(options, name) == "":
            raise UsageError(f"--{name.replace('_', '-')} is empty")
    for name in ("only", "skip"):
        if getattr(options, name) and not _split(getattr(options, name)):
            raise UsageError(f"--{name} is empty")
    for name in (*(options.compare or ()), options.root, options.from_bundle, options.explain):
        if name is not None and (not name or "\0" in name):
            raise UsageError("--compare has an empty name" if not name else "a name holds a NUL")
    if options.expect_ranks is not None and not 1 <= options.expect_ranks <= MOST_RANKS:
        raise UsageError(f"--expect-ranks {options.expect_ranks} is not within 1 to {MOST_RANKS}")


def _run(options: argparse.Namespace, out: _Output) -> int:
    _check_values(options)
    if options.list_checks:
        out.write(_listing_json(all_checks()) if options.json else _listing(all_checks()))
        return 0
    if options.explain is not None:
        out.write(explain(options.explain))
        return 0
    if options.json_schema:
        out.write((Path(__file__).parent / "report_schema.json").read_text("utf-8"))
        return 0
    if options.match_error is not None:
        from portagemm.doctor import match_command

        return match_command.run(options.match_error, as_json=options.json, write=out.write)
    if options.compare:
        from portagemm.doctor import compare

        report = compare.compare_files(options.compare, expected=options.expect_ranks, strict=options.strict)
        return _deliver(report.document(), report.exit_code, options, out)
    with _host(options) as host:
        return _examine(host, options, out)


def _examine(host: Host, options: argparse.Namespace, out: _Output) -> int:
    classes = ["passive"] if options.passive else list(DEFAULT_CLASSES)
    classes += ["gpu"] if options.gpu or options.smoke else []
    classes += ["smoke"] if options.smoke else []
    only = _split(options.only)
    if only and options.require_gpu:  # what is required is checked, whatever else is
        only += ["platform.gpu"] if options.passive else ["platform.gpu", "nvidia.cuinit", "amd.hip-init"]
    checks = select(only, _split(options.skip), classes)
    with _progress(options) as started:
        outcomes = run_checks(host, checks, Options(require_gpu=options.require_gpu), started)
    report = Report(outcomes, identity(host), options.strict, options.require_gpu)
    document, code = report.document(), report.exit_code
    redactor = None if options.no_redact else Redactor(host)
    if options.save_bundle:
        if host.recorder is None:
            raise UsageError(
                "--save-bundle records this machine; it does not go with --root or --from-bundle"
            )
        machine = host.recorder.finish(host)
        _write_private(options.save_bundle, dump(redactor.machine(machine) if redactor else machine))
    if options.cluster:
        from portagemm.doctor import cluster

        # Reports are redacted before they leave the rank; digests stand for what they compare by.
        whole = cluster.gather_and_compare(
            _redacted(document, redactor),
            host,
            folder=options.cluster_dir,
            timeout=options.cluster_timeout,
            strict=options.strict,
        )
        if whole is None:  # another rank prints
            return code
        return _deliver(whole.document(), whole.exit_code, options, out)
    return _deliver(_redacted(document, redactor), code, options, out)


def _write_private(name: str, text: str) -> None:
    """A new or emptied file that its owner alone may read, even where redaction missed something."""
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        if hasattr(os, "fchmod") and stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, 0o600)
        file.write(text)


@contextlib.contextmanager
def _progress(options: argparse.Namespace) -> Iterator[Callable[[Check], None] | None]:
    """Names the running check on a terminal's last line: a hung driver takes its time limit to be found out."""
    errors = _Output(sys.stderr)
    if options.quiet or not errors.terminal or os.environ.get("TERM", "dumb") == "dumb":
        yield None
        return

    def show(text: str) -> None:
        errors.write(f"\r\033[K{text}")
        sys.stderr.flush()

    yield lambda item: show(f"{item.id} ...")
    show("")


def _redacted(document: dict[str, Any], redactor: Redactor | None) -> dict[str, Any]:
    if redactor is None:
        return document
    clean: dict[str, Any] = redactor.json(document)
    clean["redacted"] = True
    return clean


def _deliver(document: dict[str, Any], code: int, options: argparse.Namespace, out: _Output) -> int:
    if options.json:
        text = printable_json(json.dumps(document, indent=2, ensure_ascii=not out.unicode)) + "\n"
    elif options.markdown:
        text = markdown(document)
    else:
        colour = (
            out.terminal and not options.no_color and not os.environ.get("NO_COLOR") and not options.output
        )
        colour = colour and os.environ.get("TERM") != "dumb"
        width = min(120, max(60, shutil.get_terminal_size((100, 24)).columns))
        text = human(document, Style(colour, out.unicode, options.verbose, options.quiet, width))
    if options.output:
        Path(options.output).write_text(text, "utf-8", "backslashreplace")
    else:
        out.write(text)
    return code


@contextlib.contextmanager
def _host(options: argparse.Namespace) -> Iterator[Host]:
    if options.root and options.from_bundle:
        raise UsageError("--root and --from-bundle exclude each other")
    if options.root:
        yield open_tree(options.root)
    elif options.from_bundle:
        try:
            machine = load_bundle(Path(options.from_bundle))
        except MachineFileError as error:
            raise UsageError(f"{options.from_bundle}: {error}") from None
        with tempfile.TemporaryDirectory(prefix="portagemm-doctor-") as folder:
            try:
                opened = open_machine(machine, Path(folder))
            except MachineFileError as error:
                raise UsageError(str(error).replace(folder, options.from_bundle)) from None
            except OSError as error:
                raise UsageError(f"{options.from_bundle}: {error.strerror or error}") from None
            yield opened
    else:
        yield Host(recorder=Recorder() if options.save_bundle else None)


def _split(values: Sequence[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _listing(checks: dict[str, Check]) -> str:
    width = max(len(name) for name in checks)
    lines = []
    for group, title in GROUPS.items():
        of_group = [item for item in checks.values() if item.group == group]
        if of_group:
            lines.append(title)
        lines += [f"  {item.id.ljust(width)}  {item.probe:8}  {item.title}" for item in of_group]
    return "\n".join(lines) + "\n"


def _listing_json(checks: dict[str, Check]) -> str:
    keys = ("id", "group", "title", "severity", "probe", "needs", "reads", "explanation")
    return (
        json.dumps([{key: getattr(item, key) for key in keys} for item in checks.values()], indent=2) + "\n"
    )


def explain(check_id: str) -> str:
    """What is known of a check, as text. Raises UsageError if there is none of this id."""
    checks = all_checks()
    if check_id not in checks:
        import difflib

        near = difflib.get_close_matches(check_id, checks, 3)
        raise UsageError(f"no check {check_id!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    item = checks[check_id]
    paragraphs = [" ".join(part.split()) for part in item.explanation.split("\n\n")]
    lines = [f"{item.id}: {item.title}", ""]
    for paragraph in paragraphs:
        lines += [*textwrap.wrap(paragraph, 100, break_long_words=False, break_on_hyphens=False), ""]
    lines += [f"reads: {', '.join(item.reads)}", f"severity: {item.severity}; probe: {item.probe}"]
    if item.needs:
        lines.append(f"runs only if these do not fail: {', '.join(item.needs)}")
    lines.append(f"more: docs/doctor/{item.group}.md")
    return "\n".join(lines) + "\n"
