"""The hardware abstraction layer: what the rest of the package knows of devices, compilers and kernels.

Importing it imports no vendor library, no torch and none of its own modules: names are loaded at first use.
README.md in this folder says what the layer owns and how to add a backend.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portagemm.hal.board import Board, board_for
    from portagemm.hal.cache import CacheInfo, CacheResult, KernelCache, default_cache
    from portagemm.hal.compiler import CompileOptions, Compiler
    from portagemm.hal.device import Device
    from portagemm.hal.devices import Inventory, all_devices, inventory
    from portagemm.hal.dtypes import DType
    from portagemm.hal.environment import Environment
    from portagemm.hal.notices import PortaGemmWarning
    from portagemm.hal.pack import Pack, read_pack, write_pack
    from portagemm.hal.profile import (
        ArchProfile,
        Atom,
        Limits,
        Selection,
        TileConfig,
        all_profiles,
        for_device,
    )
    from portagemm.hal.program import ArgumentBlock, Driver, Launch, LaunchConfig, ObjectCode, TensorMap
    from portagemm.hal.registry import Backend
    from portagemm.hal.source import KernelSource
    from portagemm.hal.target import Target

_MODULES = {
    "board": ("Board", "board_for"),
    "cache": ("CacheInfo", "CacheResult", "KernelCache", "default_cache"),
    "compiler": ("CompileOptions", "Compiler"),
    "device": ("Device",),
    "devices": ("Inventory", "all_devices", "inventory"),
    "dtypes": ("DType",),
    "environment": ("Environment",),
    "notices": ("PortaGemmWarning",),
    "pack": ("Pack", "read_pack", "write_pack"),
    "profile": ("ArchProfile", "Atom", "Limits", "Selection", "TileConfig", "all_profiles", "for_device"),
    "program": ("ArgumentBlock", "Driver", "Launch", "LaunchConfig", "ObjectCode", "TensorMap"),
    "registry": ("Backend",),
    "source": ("KernelSource",),
    "target": ("Target",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ArchProfile",
    "ArgumentBlock",
    "Atom",
    "Backend",
    "Board",
    "CacheInfo",
    "CacheResult",
    "CompileOptions",
    "Compiler",
    "DType",
    "Device",
    "Driver",
    "Environment",
    "Inventory",
    "KernelCache",
    "KernelSource",
    "Launch",
    "LaunchConfig",
    "Limits",
    "ObjectCode",
    "Pack",
    "PortaGemmWarning",
    "Selection",
    "Target",
    "TensorMap",
    "TileConfig",
    "all_devices",
    "all_profiles",
    "board_for",
    "default_cache",
    "for_device",
    "inventory",
    "read_pack",
    "write_pack",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
