"""Host cost of a repeated matmul of 64^3 against torch.mm: output allocated, other addresses each time."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def main() -> int:
    """Measure, print, and fail when ours is more than three times torch's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--calls", type=int, help="default: 10000, on the CPU 1000")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from portagemm.bench.run import Options, Runner, find_device

    calls = arguments.calls or (1_000 if arguments.device == "cpu" else 10_000)
    options = Options(device=arguments.device, host_calls=calls, probe=False, ceilings=False)
    runner = Runner(find_device(arguments.device), options)
    dtypes = ("fp32",) if arguments.device == "cpu" else ("bf16", "fp16")
    costs = {dtype: runner.host_cost(dtype) for dtype in dtypes}
    summary = ", ".join(f"{d} {c['own']:.2f} us, torch {c['torch']:.2f} us" for d, c in costs.items())
    print(summary)
    if arguments.json:
        arguments.json.write_text(json.dumps({"summary": summary, "us": costs}))
    return 0 if all(c["own"] <= 3 * c["torch"] for c in costs.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
