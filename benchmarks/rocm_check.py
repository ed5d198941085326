"""All that an AMD GPU can show in one go, into one file to send back: tests, numbers, speed, what the machine says.

    ./amd_check.sh [--quick] [--out FILE]             sets everything up first
    python -m benchmarks.rocm_check [options]         in an environment that has it all

Every step is a process of its own with its own time limit; one that fails, hangs or crashes does not stop the rest, and
the file is rewritten after each. Names of host and user, home folders, addresses, serial numbers and unique ids are
taken out; nothing is sent anywhere. Exit code 0 when every step passed.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.device_check import run_limited

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent

#: Variables that change what ROCm, torch or the package do.
_VARIABLES = (
    *("ROCM", "ROCR", "HIP", "HSA_", "AMD", "GPU_", "CUDA_VISIBLE", "PORTAGEMM", "PYTORCH", "MIOPEN"),
    *("LD_LIBRARY_PATH", "OMP_NUM_THREADS"),
)

_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")


@dataclass(frozen=True)
class Plan:
    """What a run does.

    Attributes:
        device: torch's name of it. quick: the short lists. work: folder for caches and results of the steps.
        first: cases of the list to run (0: all). jobs: compilers at a time. seconds: of a timed suite.
    """

    device: str
    quick: bool
    work: Path
    first: int
    jobs: int
    seconds: int


@dataclass
class Step:
    """A step and what came of it. `figures` is what the step reports itself; `tail` the end of its output."""

    name: str
    ok: bool = False
    seconds: float = 0.0
    summary: str = ""
    figures: Any = field(default_factory=dict)
    tail: str = ""


#: Name -> (command after the interpreter's name, given the file for its result; seconds it may take).
Command = tuple[Callable[[Plan, Path], Sequence[str]], float]


def _correctness(plan: Plan, result: Path) -> Sequence[str]:
    some = ["--first", str(plan.first)] if plan.first else []
    quick = ["--quick"] if plan.quick else []
    return [str(HERE / "correctness.py"), "--device", plan.device, "--json", str(result), *quick, *some]


def _bench(suite: str) -> Callable[[Plan, Path], Sequence[str]]:
    def line(plan: Plan, result: Path) -> Sequence[str]:
        common = ["-m", "portagemm.cli", "bench", "--plain", "--suite", suite, "--json", str(result)]
        return [*common, "--budget", str(plan.seconds)]

    return line


COMMANDS: dict[str, Command] = {
    "machine": (lambda plan, result: [str(HERE / "rocm_facts.py"), "--json", str(result)], 120),
    "devices": (lambda plan, result: ["-m", "portagemm.cli", "devices", "--json"], 120),
    "unit": (
        lambda plan, result: [*_PYTEST, *map(str, sorted(ROOT.glob("tests/unit/backends/test_rocm_*.py")))],
        300,
    ),
    "numbers": (
        lambda plan, result: [str(HERE / "rocm_facts.py"), "--numbers", plan.device, "--json", str(result)],
        300,
    ),
    "build": (
        lambda plan, result: [
            str(HERE / "rocm_facts.py"),
            *("--build", plan.device, "--jobs", str(plan.jobs), "--json", str(result)),
            *(["--quick"] if plan.quick else []),
        ],
        1800,
    ),
    "correctness": (_correctness, 1800),
    "tests": (
        lambda plan, result: [*_PYTEST, "tests/device", *(["-m", "quick"] if plan.quick else [])],
        2400,
    ),
    "startup": (
        lambda plan, result: [str(HERE / "startup.py"), "--device", plan.device, "--json", str(result)],
        300,
    ),
    "host": (
        lambda plan, result: [str(HERE / "host_cost.py"), "--device", plan.device, "--json", str(result)],
        120,
    ),
    "bench:dense16": (_bench("dense16"), 1200),
    "bench:random": (_bench("random"), 1200),
}


# --- running ---------------------------------------------------------------------------------------------


def environment(plan: Plan) -> dict[str, str]:
    """Of a step's process: this checkout first, one kernel cache for all steps."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PORTAGEMM_CACHE_DIR": str(plan.work / "kernels")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
    return env


def run_step(name: str, plan: Plan) -> Step:
    """Run one step to its end or its limit. Never raises."""
    command, limit = COMMANDS[name]
    step, started = Step(name), time.monotonic()
    result, log = plan.work / "result.json", plan.work / "log"
    result.unlink(missing_ok=True)
    try:
        code = run_limited([sys.executable, *command(plan, result)], environment(plan), log, limit)
    except OSError as error:
        step.summary = f"could not start: {error}"
        return step
    step.seconds, step.ok = round(time.monotonic() - started, 1), code == 0
    text = log.read_text(errors="replace")
    step.figures = _figures(result, text)
    ending = (
        f"stopped after {limit:g} s"
        if code is None
        else f"ended by signal {-code}"
        if code < 0
        else f"exit {code}"
    )
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    own = str(_own_summary(step.figures) or last)[:200]
    step.summary = own if step.ok else f"{ending}: {own}"
    # A failed step's output is what its reader needs; a good one's is in its figures.
    step.tail = text[-1500:] if step.ok else text[-20000:]
    return step


def _own_summary(figures: Any) -> str | None:
    """What a step's figures say in one line: their `summary`, or the devices listed with their profiles."""
    if not isinstance(figures, dict):
        return None
    if isinstance(figures.get("devices"), list):
        shown = [f"{d['backend']}:{d['index']} {d['name']} ({d['profile']})" for d in figures["devices"]]
        return ", ".join(shown) or "none"
    summary = figures.get("summary")
    return summary if isinstance(summary, str) else json.dumps(summary) if summary else None


def _figures(result: Path, text: str) -> Any:
    for source in (result.read_text() if result.exists() else "", text):
        try:
            return json.loads(source)
        except ValueError:
            continue
    return {}


# --- what leaves the machine -----------------------------------------------------------------------------

#: Names of variables whose values are nobody's business.
_SECRET = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|_KEY$")

#: Names of users and hosts that tell nothing, and words a report needs.
_COMMON = (
    "root user localhost host admin amd gpu rocm hip torch test build python docker ubuntu debian data work"
)
_TELLS_NOTHING = frozenset(_COMMON.split())


class Redaction:
    """Takes out what names a person, a machine or a board."""

    def __init__(
        self, host: str | None = None, user: str | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        host = platform.node() if host is None else host
        user = _user() if user is None else user
        home = environ.get("HOME", "")
        # Longest first: a path goes before the user's name in it.
        plain = {str(ROOT): "<checkout>", sys.prefix: "<venv>", tempfile.gettempdir(): "<tmp>"}
        if len(home) > 1:
            plain[home] = "<home>"
        self._paths = sorted(plain.items(), key=lambda pair: -len(pair[0]))
        words = {user: "<user>", host: "<host>", host.partition(".")[0]: "<host>"}
        self._words = [
            (re.compile(rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9_])"), to)
            for word, to in sorted(words.items(), key=lambda pair: -len(pair[0]))
            if len(word) > 1 and word not in _TELLS_NOTHING
        ]

    _PATTERNS = (
        (re.compile(r"/(home|Users)/[^/\s\"':]+"), r"/\1/<user>"),
        (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<uuid>"),
        (re.compile(r"\bGPU-[0-9a-fA-F]{8,}\b"), "GPU-<id>"),
        (
            re.compile(r"((?:unique_id|serial(?:_number)?)[\"']?[\s:=]+[\"']?)(?!null\b)[0-9A-Za-z]{6,}"),
            r"\1<id>",
        ),
        (re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"), "<mac>"),
        (re.compile(r"(?<![\d.])(?:10|127|172|192)(?:\.\d{1,3}){3}(?![\d.])"), "<address>"),
        (
            re.compile(
                r"((?:TOKEN|KEY|SECRET|PASSWORD)[A-Z_]*[\"']?\s*[=:]\s*[\"']?)[^\s\"',]+", re.IGNORECASE
            ),
            r"\1***",
        ),
        (re.compile(r"(\w+://)[^/\s@:]+(?::[^/\s@]*)?@"), r"\1***@"),
    )

    def text(self, text: str) -> str:
        """One string."""
        for path, to in self._paths:
            text = text.replace(path, to)
        for word, to in self._words:
            text = word.sub(to, text)
        for pattern, to in self._PATTERNS:
            text = pattern.sub(to, text)
        return text

    def __call__(self, value: Any) -> Any:
        """A copy of JSON's types with every string redacted, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(str(k)): "***" if _SECRET.search(str(k)) and isinstance(v, str) else self(v)
                for k, v in value.items()
            }
        if isinstance(value, list | tuple):
            return [self(v) for v in value]
        return value


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no name for this user id, as in some containers
        return ""


def head(quick: bool) -> dict[str, Any]:
    """What the file begins with. Asks no GPU: a machine on which nothing works gets its file too."""
    variables = {k: v for k, v in sorted(os.environ.items()) if k.startswith(_VARIABLES)}
    return {
        "schema": 1,
        "kind": "rocm_check",
        "quick": quick,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "changed_files": _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "environment": variables,
        "steps": [],
    }


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps in order, write the file after each, print the table last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("rocm-check.json"), help="default: %(default)s")
    parser.add_argument("--device", default="cuda:0", help="torch's name (ROCm builds say cuda too)")
    parser.add_argument("--quick", action="store_true", help="short lists: some minutes instead of an hour")
    parser.add_argument("--steps", default=",".join(COMMANDS), help="default: %(default)s")
    parser.add_argument("--first", type=int, default=0, help="only so many cases of the list")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 32), help="compilers at a time")
    arguments = parser.parse_args(argv)
    names = [name for name in arguments.steps.split(",") if name]
    for name in names:
        if name not in COMMANDS:
            parser.error(f"step: given {name!r}; allowed: {', '.join(COMMANDS)}")
    work = Path(tempfile.mkdtemp(prefix="portagemm-check-"))
    plan = Plan(
        arguments.device,
        arguments.quick,
        work,
        arguments.first,
        arguments.jobs,
        120 if arguments.quick else 900,
    )
    redact, document = Redaction(), head(arguments.quick)
    print(f"{len(names)} steps; the file to send back is {arguments.out}", flush=True)
    steps: list[Step] = []
    try:
        for name in names:
            step = run_step(name, plan)
            steps.append(step)
            print(_row(step), flush=True)
            document["steps"] = [asdict(s) for s in steps]
            arguments.out.write_text(json.dumps(redact(document), indent=1) + "\n")
    except KeyboardInterrupt:
        print("interrupted: the file has the steps so far")
        return 130
    finally:
        shutil.rmtree(work, ignore_errors=True)
    failed = [step.name for step in steps if not step.ok]
    print(
        f"\n{len(steps) - len(failed)} of {len(steps)} steps passed"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    print(f"Please send {arguments.out} (it names neither host nor user; look through it first, it is text).")
    return 1 if failed else 0


def _row(step: Step) -> str:
    return f"{'ok' if step.ok else 'FAILED':6} {step.name:14} {step.seconds:7.1f} s  {step.summary}"


if __name__ == "__main__":
    sys.exit(main())
