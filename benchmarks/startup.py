"""How long from the start of a process to its first product: ours over a bare torch.mm.

Ways for ours: cold (empty cache, kernel compiled), warm (from the cache on disk) and, with --pack, from the
packs of PORTAGEMM_KERNEL_PATH (cold and warm leave that variable out). Whole processes are timed, medians of
--runs, taking turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]

_OPERANDS = "import torch; x = torch.ones(64, 64, device='{device}', dtype=torch.{dtype}); "
_TORCH = _OPERANDS + "print(float(torch.mm(x, x)[0, 0]))"
_OURS = _OPERANDS + "import portagemm; print(float(portagemm.matmul(x, x, fallback='error')[0, 0]))"


def seconds(code: str, environment: dict[str, str]) -> float:
    """Wall time of a Python process that runs `code`. Raises RuntimeError with what it said."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=ROOT
    )
    spent = time.perf_counter() - started
    if done.returncode != 0 or not done.stdout.startswith("64.0"):
        raise RuntimeError((done.stdout + done.stderr)[-2000:])
    return spent


def measure(device: str, runs: int, pack: bool) -> dict[str, float]:
    """Median seconds by way: torch, warm, pack (where there is one), and one cold start."""
    dtype = "float32" if device == "cpu" else "bfloat16"
    ours, bare = (code.format(device=device, dtype=dtype) for code in (_OURS, _TORCH))
    with tempfile.TemporaryDirectory() as folder:
        base = {**os.environ, "PORTAGEMM_CACHE_DIR": str(Path(folder) / "cache")}
        base["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), base.get("PYTHONPATH"))))
        packs = base.pop("PORTAGEMM_KERNEL_PATH", None)
        ways = {"torch": (bare, base), "warm": (ours, base)}
        if packs and pack:
            empty = {"PORTAGEMM_CACHE_DIR": str(Path(folder) / "empty"), "PORTAGEMM_KERNEL_PATH": packs}
            ways["pack"] = (ours, {**base, **empty})
        seconds(bare, base)  # the file cache is warm for all from here on
        found = {}
        try:
            found["cold"] = seconds(ours, base)
        except RuntimeError as error:  # no compiler here: the pack can still be timed
            print(f"cold start failed: {error}")
            ways.pop("warm")
            if not packs:
                raise
            ways["pack"] = (ours, {**base, "PORTAGEMM_KERNEL_PATH": packs})
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(runs):
            for way, (code, environment) in ways.items():
                times[way].append(seconds(code, environment))
    return found | {way: median(values) for way, values in times.items()}


def main() -> int:
    """Measure, print, and fail when a warm start costs more than half a second over torch's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pack", action="store_true", help="time the start from a pack as well")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = measure(arguments.device, arguments.runs, arguments.pack)
    over = {way: found[way] - found["torch"] for way in found if way != "torch"}
    text = ", ".join(f"{way} +{value:.2f} s" for way, value in over.items())
    summary = f"torch {found['torch']:.2f} s, {text}"
    print(summary)
    if arguments.json:
        arguments.json.write_text(json.dumps({"summary": summary, "seconds": found}))
    late = [way for way in ("warm", "pack") if over.get(way, 0.0) > 0.5]
    return 1 if late or not {"warm", "pack"} & set(over) else 0


if __name__ == "__main__":
    sys.exit(main())
