"""PortaGEMM: one matrix multiplication API on NVIDIA and AMD GPUs, and on a machine with neither.

Names are loaded at first use (PEP 562): ``import portagemm`` imports neither torch nor any vendor library,
opens no device, and works on every machine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: Public name -> module that defines it. A module of that very name is the value itself.
_LAZY = {
    "matmul": "portagemm.ops.matmul",
    "gemm": "portagemm.ops.gemm",
    "linear": "portagemm.ops.linear",
    "explain": "portagemm.explanation",
    "Explanation": "portagemm.explanation",
    "devices": "portagemm.explanation",
    "errors": "portagemm.errors",
}

__all__ = ["Explanation", "__version__", "devices", "errors", "explain", "gemm", "linear", "matmul"]

if TYPE_CHECKING:
    from portagemm import errors
    from portagemm.explanation import Explanation, devices, explain
    from portagemm.ops.gemm import gemm
    from portagemm.ops.linear import linear
    from portagemm.ops.matmul import matmul


def __getattr__(name: str) -> Any:
    module_name = _LAZY.get(name)
    if module_name is None:
        raise AttributeError(f"module 'portagemm' has no attribute {name!r}")
    module = importlib.import_module(module_name)
    value = module if name == "errors" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
