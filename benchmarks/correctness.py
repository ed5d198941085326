"""Run the case list of portagemm.testing on a device, under every plan candidate of the profile in force."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Run, report, and fail when a case does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="the short list")
    parser.add_argument("--first", type=int, default=0, help="only so many cases of the list")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further case after so long")
    parser.add_argument("--threads", type=int, default=4, help="CPU threads of the referee")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch

    from portagemm import launch, testing
    from portagemm.hal.cache import default_cache

    torch.set_num_threads(arguments.threads)
    started = time.monotonic()
    device = launch.device_of(torch.device(arguments.device))
    profile = launch.selection_of(device).profile
    todo = testing.cases(device.backend, quick=arguments.quick)[: arguments.first or None]
    results: list[testing.CaseResult] = []
    done = 0
    for case in todo:
        if time.monotonic() - started > arguments.seconds:
            break
        for result in testing.run_candidates(case, arguments.device):
            results.append(result)
            if not result.passed:
                print(f"FAILED {case.id} [{result.plan or 'plan of choice'}]: {result.error}", flush=True)
        done += 1
    figures = testing.summary(results)
    compiled = default_cache().info().entries
    left = len(todo) - done
    figures["compiled_here"], figures["not_run"], figures["profile"] = compiled, left, profile.name
    figures["summary"] = (
        f"{profile.name}: {figures['cases']} cases, {figures['runs']} runs, {figures['failed']} failed, "
        f"worst T16 {figures['worst_t16']:.2f}, {compiled} kernels compiled here"
        + (f", {left} CASES NOT RUN" if left else "")
    )
    print(figures["summary"])
    if arguments.json:
        arguments.json.write_text(json.dumps(figures))
    return 1 if figures["failed"] or left else 0


if __name__ == "__main__":
    sys.exit(main())
