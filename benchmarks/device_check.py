"""All that is shown on a device, in one go: correctness, sanitizer, start-up, speed.

    PYTHONPATH=. python benchmarks/device_check.py --out DIR [--pack FILE.tar.gz] [--steps A+B,C,...]

Steps of a group joined by "+" run at the same time (correctness does not mind, timings do); groups run one
after the other. Every step is a process of its own with its own time limit; one that fails does not stop the
rest. DIR gets check.json (every step, updated as each ends), the JSON of each suite, and log.txt.
Exit code 0 when every step passed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
PROFILES = ("h100", "a100", "rtx4090")

#: What runs when nothing is asked for. Timings are alone on the device.
DEFAULT_STEPS = (
    "correctness:h100+correctness:a100+correctness:rtx4090+pytest,"
    "memcheck:h100+memcheck:a100+memcheck:rtx4090,startup,host,bench:dense16,bench:random"
)
#: Seconds a step may take, by its name before the colon.
LIMITS = {"correctness": 240, "pytest": 240, "memcheck": 240, "startup": 120, "host": 60, "bench": 180}


@dataclass
class Step:
    """A step and what came of it. `figures` is what the step itself reports; `tail` the end of its output."""

    name: str
    ok: bool = False
    seconds: float = 0.0
    summary: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    tail: str = ""


@dataclass(frozen=True)
class Context:
    """What every step needs: the output folder, the kernel pack, the seed and the hard end."""

    out: Path
    pack: Path | None
    seed: int
    deadline: float

    def environment(self, profile: str | None) -> dict[str, str]:
        """Environment of a step's process: the pack, a cache of its own, the forced profile."""
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
        if self.pack is not None:
            env["PORTAGEMM_KERNEL_PATH"] = str(self.pack)
        if profile is not None:
            env["PORTAGEMM_PROFILE"] = profile
        return env


def command(step: str, context: Context, result: Path) -> tuple[list[str], str | None, dict[str, str]]:
    """(command line, profile to force, more environment) of a step. Raises ValueError for an unknown one."""
    kind, _, argument = step.partition(":")
    python = sys.executable
    correctness = [python, str(HERE / "correctness.py"), "--device", "cuda:0", "--json", str(result)]
    if kind == "correctness":
        return correctness, argument or None, {}
    if kind == "memcheck":
        sanitizer = [
            "compute-sanitizer",
            "--tool",
            "memcheck",
            "--error-exitcode",
            "9",
            "--print-limit",
            "20",
        ]
        # Without torch's pooling every tensor is an allocation of its own, so that reading past it is seen.
        return (
            [*sanitizer, *correctness, "--quick"],
            argument or None,
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )
    if kind == "pytest":
        return (
            [python, "-m", "pytest", "-q", "-x", "--maxfail=20", "-p", "no:cacheprovider", "tests/device"],
            None,
            {},
        )
    if kind == "startup":
        return [python, str(HERE / "startup.py"), "--device", "cuda:0", "--json", str(result)], None, {}
    if kind == "host":
        return [python, str(HERE / "host_cost.py"), "--device", "cuda:0", "--json", str(result)], None, {}
    if kind == "bench":
        name, _, profile = argument.partition("@")
        bench = [
            python,
            "-m",
            "portagemm.cli",
            "bench",
            "--plain",
            "--suite",
            name,
            "--seed",
            str(context.seed),
        ]
        limit = str(LIMITS["bench"] - 25)
        return [*bench, "--json", str(context.out / f"{name}.json"), "--budget", limit], profile or None, {}
    raise ValueError(f"step: given {step!r}; allowed: {', '.join(LIMITS)}, with :PROFILE or :SUITE")


def run_step(name: str, context: Context) -> Step:
    """Run one step to its end or its limit. Never raises."""
    step = Step(name)
    started = time.monotonic()
    limit = min(LIMITS[name.partition(":")[0]], context.deadline - started)
    if limit < 5:
        step.summary = "not run: no time left"
        return step
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        try:
            line, profile, extra = command(name, context, result)
            env = {**context.environment(profile), **extra}
            env.setdefault("PORTAGEMM_CACHE_DIR", str(Path(folder) / "cache"))
            code = _run(line, env, log, limit)
        except OSError as error:
            step.summary = f"could not start: {error}"
            return step
        step.seconds = round(time.monotonic() - started, 1)
        text = log.read_text(errors="replace") if log.exists() else ""
        step.ok = code == 0
        step.tail = text[-4000:]
        if result.exists():
            try:
                step.figures = json.loads(result.read_text())
            except ValueError:
                step.summary = "unreadable result"
        ending = f"stopped after {limit:.0f} s" if code is None else f"exit code {code}"
        last = next((part for part in reversed(text.splitlines()) if part.strip()), "")
        step.summary = step.summary or str(step.figures.get("summary") or last)[:200]
        if not step.ok:
            step.summary = f"{ending}: {step.summary}"
        with (context.out / "log.txt").open("a") as whole:
            whole.write(f"\n===== {name}: {ending}, {step.seconds} s\n{text}")
    return step


def _run(line: Sequence[str], env: dict[str, str], log: Path, limit: float) -> int | None:
    """Exit code, None when it ran past the limit; the whole process group ends with it."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            line, cwd=ROOT, env=env, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            for number in (
                signal.SIGTERM,
                signal.SIGKILL,
            ):  # a bench writes what it has at neither: keep both short
                os.killpg(process.pid, number)
                try:
                    process.wait(timeout=3)
                    break
                except subprocess.TimeoutExpired:
                    continue
            return None


def head(seed: int) -> dict[str, Any]:
    """What the check ran on. Printed first, so that even a lost run says where it was."""
    import torch

    from portagemm.bench import environment
    from portagemm.bench.digest import sources_digest

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {
        "schema": 1,
        "kind": "device_check",
        "gpu": gpu,
        "driver": environment.driver_version("cuda:0"),
        "versions": environment.versions(),
        "commit": environment.commit(),
        "sources_digest": sources_digest(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
    }


def unpack(archive: Path | None) -> Path | None:
    """The folder of a kernel pack; an archive of one is unpacked into a temporary folder."""
    if archive is None or archive.is_dir():
        return archive
    folder = Path(tempfile.mkdtemp(prefix="portagemm-pack-"))
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def main() -> int:
    """Run the steps, print the table last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--pack", type=Path, help="kernel pack: a folder, or a tar archive of one")
    parser.add_argument("--steps", default=DEFAULT_STEPS, help="default: %(default)s")
    parser.add_argument("--seed", type=int, help="of suite random; default: the pack's, else the date")
    parser.add_argument("--budget", type=float, default=570.0, help="seconds for everything")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.budget
    arguments.out.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT))
    from portagemm.bench.suites import default_seed

    pack = unpack(arguments.pack)
    about_file = pack / "build.json" if pack is not None else None
    about = json.loads(about_file.read_text()) if about_file is not None and about_file.exists() else {}
    os.environ.setdefault("PORTAGEMM_COMMIT", about.get("commit", ""))
    seed = arguments.seed or about.get("seed") or default_seed()
    document = head(seed)
    print(
        f"{document['gpu']}, driver {document['driver']}, torch {document['versions'].get('torch')}",
        flush=True,
    )
    if about and about.get("sources_digest") != document["sources_digest"]:
        print("*** the pack was built from other sources: kernels will be compiled here ***", flush=True)

    context = Context(arguments.out.resolve(), pack, seed, deadline)
    steps: list[Step] = []
    for group in arguments.steps.split(","):
        names = [name for name in group.split("+") if name]
        with ThreadPoolExecutor(max_workers=max(len(names), 1)) as pool:
            for step in pool.map(lambda name: run_step(name, context), names):
                steps.append(step)
                print(
                    f"{'ok' if step.ok else 'FAILED':6} {step.name:22} {step.seconds:6.1f} s  {step.summary}",
                    flush=True,
                )
        document["cases"] = sum(int(step.figures.get("cases", 0)) for step in steps)
        document["steps"] = [asdict(step) for step in steps]
        (context.out / "check.json").write_text(json.dumps(document, indent=1) + "\n")

    for step in steps:
        if step.name.startswith("bench:") or (not step.ok and step.tail):
            size = 2500 if step.name.startswith("bench:") else 1200
            print(f"\n--- {step.name}\n{step.tail[-size:]}")
    print("\nsummary")
    for step in steps:
        print(f"{'ok' if step.ok else 'FAILED':6} {step.name:22} {step.seconds:6.1f} s  {step.summary}")
    return 0 if all(step.ok for step in steps) else 1


if __name__ == "__main__":
    sys.exit(main())
