"""Imports torch and says what it is built for and which libraries came along. Touches no GPU.

A line of JSON before and after, so that a crash shows that it was the import's.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_STEMS = re.compile(
    r"/(lib(?:cuda|cudart|cublas|cublasLt|nvrtc|nvJitLink|cudnn|nccl|amdhip64|hiprtc|hsa-runtime64|rccl|rocblas"
    r"|hipblaslt|amd_comgr|stdc\+\+))\.so"
)


def _libraries() -> dict[str, list[str]]:
    """Loaded libraries of interest: name -> paths."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, set[str]] = {}
    for line in lines:
        match = _STEMS.search(line)
        if match:
            found.setdefault(match[1], set()).add(line.split(maxsplit=5)[-1])
    return {name: sorted(paths) for name, paths in sorted(found.items())}


def main() -> None:
    """Print {"stage", "version", "cuda", "hip", "archs", "nccl", "libraries"}."""
    facts: dict[str, Any] = {"stage": "import"}
    print(json.dumps(facts), flush=True)
    import torch

    archs: list[str] = []
    flags = getattr(torch._C, "_cuda_getArchFlags", None)  # get_arch_list() is empty where no GPU is usable
    if flags is not None:
        archs = str(flags() or "").split()
    nccl = None
    try:
        nccl = list(torch.cuda.nccl.version()) if torch.version.cuda or torch.version.hip else None
    except Exception:  # built without it
        nccl = None
    facts = {
        "stage": "done",
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "archs": archs,
        "nccl": nccl,
        "libraries": _libraries(),
    }
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).resolve().parent)]
    main()
