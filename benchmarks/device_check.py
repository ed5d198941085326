"""All that is shown on a device, in one go: correctness, sanitizer, start-up, speed.

    PYTHONPATH=. python benchmarks/device_check.py --out DIR [--pack FILE.tar.xz] [--build] [--steps A+B,C]

--pack is what benchmarks/build_pack.py made beforehand. --build completes it here first, on all cores,
which costs the device's time for every kernel whose sources changed since. Steps of a group joined by "+"
run at the same time (correctness does not mind, timings do); groups run one after the other. Every step is
a process of its own with its own time limit; one that fails does not stop the rest. DIR gets check.json
(every step, updated as each group ends), the JSON of each suite, and log.txt. Exit code 0 when every step
passed. bench:SUITE@PROFILE times a suite; search:SUITE does without tuning tables, beside the fastest of all
plans; tune:SUITE fills the device's tuning table, which goes into DIR too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
PROFILES = ("h100", "a100", "rtx4090")

#: What runs when nothing is asked for. Timings are alone on the device.
DEFAULT_STEPS = (
    "correctness:h100+correctness:a100+correctness:rtx4090+pytest,"
    "memcheck:h100+memcheck:a100+memcheck:rtx4090,doctor,startup,host,bench:dense16,bench:random"
)
#: Seconds a step may take, by its name before the colon.
LIMITS = {
    "build": 300,
    "correctness": 240,
    "pytest": 240,
    "memcheck": 240,
    "racecheck": 240,
    "doctor": 120,
    "startup": 120,
    "host": 60,
    "bench": 180,
    "search": 300,
    "tune": 400,
}


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
    """What every step needs: torch device, output folder, kernel pack, seed of suite random, hard end."""

    device: str
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


def command(
    step: str, context: Context, result: Path, limit: float
) -> tuple[list[str], str | None, dict[str, str]]:
    """(command line, profile to force, more environment) of a step. Raises ValueError for an unknown one."""
    kind, _, argument = step.partition(":")
    python = sys.executable
    correctness = [python, str(HERE / "correctness.py"), "--device", context.device, "--json", str(result)]
    if kind == "correctness":
        return correctness, argument or None, {}
    if kind in ("memcheck", "racecheck"):
        # Without torch's pooling every tensor is an allocation of its own, so that reading past it is seen.
        line = [*sanitizer(kind), *correctness, "--quick"]
        return line, argument or None, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    if kind == "pytest":
        return (
            [python, "-m", "pytest", "-q", "-x", "--maxfail=20", "-p", "no:cacheprovider", "tests/device"],
            None,
            {},
        )
    if kind == "doctor":
        # The redacted bundle is a fixture for tests/doctor: a real machine, replayed.
        line = [python, "-m", "portagemm.doctor", "--smoke", "--require-gpu", "--json", "-o", str(result)]
        return [*line, "--save-bundle", str(context.out / "doctor-bundle.txt")], None, {}
    if kind == "startup":
        return [python, str(HERE / "startup.py"), "--device", context.device, "--json", str(result)], None, {}
    if kind == "host":
        return (
            [python, str(HERE / "host_cost.py"), "--device", context.device, "--json", str(result)],
            None,
            {},
        )
    if kind == "tune":
        # Goes on from the committed tables; what it finds lies in the output folder, to be committed.
        for table in (ROOT / "arch_profiles").glob("tuned-*.json"):
            if not (context.out / table.name).exists():
                shutil.copy(table, context.out)
        tune = [python, "-m", "portagemm.cli", "tune", "--plain", "--table", str(context.out)]
        budget = str(max(int(limit) - 40, 5))
        return [*tune, "--suite", argument, "--seed", str(context.seed), "--budget", budget], None, {}
    if kind in ("bench", "search"):
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
        budget = str(max(int(limit) - 25, 5))
        if kind == "search":
            bench += ["--untuned", "--search", "10"]
        return [*bench, "--json", str(context.out / f"{name}.json"), "--budget", budget], profile or None, {}
    raise ValueError(f"step: given {step!r}; allowed: {', '.join(LIMITS)}, with :PROFILE or :SUITE")


def sanitizer(tool: str) -> list[str]:
    """compute-sanitizer's command line; only our kernels are watched where it can tell them apart."""
    line = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"]
    text = subprocess.run(["compute-sanitizer", "--help"], capture_output=True, text=True, timeout=30).stdout
    for option in ("--kernel-name", "--kernel-regex", "--filter"):
        if option in text and "kernel_substring" in text:
            return [*line, option, "kernel_substring=pg_"]
    return line


def complete(pack: Path | None, context: Context) -> tuple[Path, Step]:
    """(folder of a pack with every kernel of the check, how its making went): what is missing is compiled."""
    folder = Path(tempfile.mkdtemp(prefix="portagemm-built-"))
    step = Step("build")
    started = time.monotonic()
    limit = min(LIMITS["build"], context.deadline - started)
    line = [sys.executable, str(HERE / "build_pack.py"), "--out", str(folder), "--seed", str(context.seed)]
    line += ["--archive", str(context.out / "pack.tar.xz"), "--cache", str(folder) + "-cache"]
    line += ["--jobs", str(os.cpu_count() or 2), "--seconds", str(max(limit - 45, 10))]
    log = context.out / "build.txt"
    code = run_limited(line, context.environment(None), log, limit)
    text = log.read_text(errors="replace")
    step.ok, step.seconds, step.tail = code == 0, round(time.monotonic() - started, 1), text[-4000:]
    step.summary = next((part for part in text.splitlines() if " kernels (" in part), text[-200:])
    return (folder if (folder / "manifest.json").exists() else pack or folder), step


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
            line, profile, extra = command(name, context, result, limit)
            env = {**context.environment(profile), **extra}
            env.setdefault("PORTAGEMM_CACHE_DIR", str(Path(folder) / "cache"))
            code = run_limited(line, env, log, limit)
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


def run_limited(line: Sequence[str], env: dict[str, str], log: Path, limit: float) -> int | None:
    """Exit code, None when it ran past the limit; the whole process group ends with it."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            line, cwd=ROOT, env=env, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            for number in (signal.SIGTERM, signal.SIGKILL):
                os.killpg(process.pid, number)
                try:
                    process.wait(timeout=3)
                    break
                except subprocess.TimeoutExpired:
                    continue
            return None


def head(device: str, seed: int) -> dict[str, Any]:
    """What the check ran on. Printed first, so that even a lost run says where it was."""
    import torch

    from portagemm.bench import environment
    from portagemm.bench.digest import sources_digest

    gpu = device if device == "cpu" else torch.cuda.get_device_name(device)
    backend = "cpu" if device == "cpu" else "rocm" if torch.version.hip else "cuda"
    return {
        "schema": 1,
        "kind": "device_check",
        "gpu": gpu,
        "driver": environment.driver_version(device),
        "versions": environment.versions(),
        "commit": environment.commit(),
        "sources_digest": sources_digest(backend),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
    }


def unpack(archive: Path | None) -> Path | None:
    """The folder of a kernel pack; an archive of one is unpacked into a temporary folder."""
    if archive is None or archive.is_dir():
        return archive
    folder = Path(tempfile.mkdtemp(prefix="portagemm-pack-"))
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # Python 3.10.12, 3.11.4 and newer
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)
    return folder


def main() -> int:
    """Run the steps, print the table last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--pack", type=Path, help="kernel pack: a folder, or a tar archive of one")
    parser.add_argument("--build", action="store_true", help="compile here what the pack lacks, on all cores")
    parser.add_argument("--steps", default=DEFAULT_STEPS, help="default: %(default)s")
    parser.add_argument("--seed", type=int, help="of suite random; default: the pack's, else the date")
    parser.add_argument("--budget", type=float, default=570.0, help="seconds for everything")
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.budget
    groups = [[name for name in group.split("+") if name] for group in arguments.steps.split(",")]
    for name in (name for group in groups for name in group):
        if name.partition(":")[0] not in LIMITS:
            parser.error(f"step: given {name!r}; allowed: {', '.join(LIMITS)}, with :PROFILE or :SUITE")
    arguments.out.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT))
    from portagemm.bench.suites import default_seed

    pack = unpack(arguments.pack)
    about_file = pack / "build.json" if pack is not None else None
    about = json.loads(about_file.read_text()) if about_file is not None and about_file.exists() else {}
    os.environ.setdefault("PORTAGEMM_COMMIT", about.get("commit", ""))
    seed = arguments.seed or about.get("seed") or default_seed()
    document = head(arguments.device, seed)
    print(
        f"{document['gpu']}, driver {document['driver']}, torch {document['versions'].get('torch')}",
        flush=True,
    )
    if about and about.get("sources_digest") != document["sources_digest"]:
        print("*** the pack was built from other sources: kernels will be compiled here ***", flush=True)

    context = Context(arguments.device, arguments.out.resolve(), pack, seed, deadline)
    steps: list[Step] = []
    if arguments.build:
        made, step = complete(pack, context)
        context = replace(context, pack=made)
        steps.append(step)
        print(
            f"{'ok' if step.ok else 'FAILED':6} {step.name:22} {step.seconds:6.1f} s  {step.summary}",
            flush=True,
        )
    for names in groups:
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
        timed = step.name.startswith(("bench:", "search:", "tune:"))
        if timed or (not step.ok and step.tail):
            size = 2500 if timed else 1200
            print(f"\n--- {step.name}\n{step.tail[-size:]}")
    print("\nsummary")
    for step in steps:
        print(f"{'ok' if step.ok else 'FAILED':6} {step.name:22} {step.seconds:6.1f} s  {step.summary}")
    return 0 if all(step.ok for step in steps) else 1


if __name__ == "__main__":
    sys.exit(main())
