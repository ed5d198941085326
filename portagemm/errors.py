"""The errors of the package: those of the HAL, under the name users import."""

from __future__ import annotations

from portagemm.hal.errors import (
    AutogradError,
    BackendUnavailableError,
    CacheError,
    CompileError,
    DeviceError,
    DTypeError,
    LaunchError,
    LayoutError,
    NoCompilerError,
    OperandError,
    OptionError,
    PortaGemmError,
    ProfileError,
    ShapeError,
    UnknownBackendError,
    UnsupportedError,
)

__all__ = [
    "AutogradError",
    "BackendUnavailableError",
    "CacheError",
    "CompileError",
    "DTypeError",
    "DeviceError",
    "LaunchError",
    "LayoutError",
    "NoCompilerError",
    "OperandError",
    "OptionError",
    "PortaGemmError",
    "ProfileError",
    "ShapeError",
    "UnknownBackendError",
    "UnsupportedError",
]
