"""Compiled code and how it is launched. Names follow cuda.core: ObjectCode, Kernel, LaunchConfig."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from portagemm.hal.target import Target


@dataclass(frozen=True)
class ObjectCode:
    """A code object and what is known of it.

    Attributes:
        code: the bytes the driver loads (cubin, AMD code object, shared library).
        target: what it was compiled for.
        symbol: the kernel's unmangled (extern "C") name.
        compiler: identity of the compiler that made it (``nvrtc 13.0``).
        log: the compiler's output, empty when it said nothing.
    """

    code: bytes
    target: Target
    symbol: str
    compiler: str
    log: str = ""


@dataclass(frozen=True)
class LaunchConfig:
    """Launch geometry. The grid is one-dimensional: kernels take their tile from a linear index.

    Attributes:
        grid: blocks. block: threads of a block. cluster: blocks of a cluster (1: none).
        shared_bytes: dynamic shared memory of a block, in bytes.
        programmatic: the kernel may start before the one ahead of it in the stream has ended; it waits by
            itself for what that one writes. Only for kernels that do.
    """

    grid: int
    block: int
    cluster: int = 1
    shared_bytes: int = 0
    programmatic: bool = False


@dataclass(frozen=True)
class TensorMap:
    """A tiled copy descriptor the kernel takes by value (Hopper's TMA); other archs need none.

    Attributes:
        operand: index into the launch's pointers whose address the descriptor carries.
        offset: where the 128-byte descriptor lies in the argument block, in bytes.
        element_bytes: size of an element.
        dtype: hal dtype name of an element.
        shape: extents, innermost first. strides: bytes, of every dimension but the innermost.
        box: extents of one copy, innermost first. swizzle_bytes: 128, 64, 32 or 0.
    """

    operand: int
    offset: int
    element_bytes: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int = 128


@dataclass(frozen=True)
class ArgumentBlock:
    """The kernel's one by-value argument: fixed bytes, and where the per-call values go.

    Attributes:
        template: the whole argument block, everything but pointers and scalars filled in.
        pointer_offsets: byte offset of each 8-byte pointer, in the order of the launch's pointers.
        scalar_offsets: byte offset of each 4-byte float, in the order of the launch's scalars.
        tensor_maps: descriptors inside the block.
    """

    template: bytes
    pointer_offsets: tuple[int, ...]
    scalar_offsets: tuple[int, ...]
    tensor_maps: tuple[TensorMap, ...] = ()


class Launch(Protocol):
    """A prepared launch: everything decided, only addresses, scalars and the stream are new."""

    def __call__(self, pointers: Sequence[int], scalars: Sequence[float], stream: int) -> None:
        """Enqueue the kernel. Thread-safe. Raises portagemm.errors.LaunchError."""


class Driver(Protocol):
    """Loads code objects and launches kernels on one backend's devices."""

    def prepare(
        self, code: ObjectCode, config: LaunchConfig, arguments: ArgumentBlock, device_index: int
    ) -> Launch:
        """Load `code` on the device (once a code object and device) and bind the launch.

        Works while the calling thread captures a graph. Raises LaunchError naming kernel, what was
        needed and what the device allows, and leaves the device usable.
        """

    def current_stream(self, device_index: int) -> int:
        """Handle of torch's current stream on that device (0 on the CPU)."""
