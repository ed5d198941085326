"""A device as the driver reports it: facts of this very card, read once, never of its arch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Device:
    """One compute device.

    Attributes:
        backend: ``cuda``, ``rocm`` or ``cpu``.
        index: the ordinal torch uses (``cuda:1`` has index 1); 0 on the CPU.
        name: the product name the driver gives.
        arch: its own arch (``sm_90``, ``gfx90a``; ``native`` on the CPU), without feature suffixes.
        compute_units: SMs, CUs or CPU threads.
        l2_bytes: size of the last-level cache in bytes (0: unknown).
        memory_bytes: device memory in bytes (0: unknown).
        shared_bytes_per_block: shared memory one block may have, opt-in included, in bytes.
        threads_per_block: most threads of a block.
        memory_bandwidth: theoretical bytes per second (0: unknown).
        driver_version: the driver's own version string ("" if unknown).
        notes: anything `portagemm devices` should show (MIG, ECC, feature suffixes ...).
    """

    backend: str
    index: int
    name: str
    arch: str
    compute_units: int
    l2_bytes: int = 0
    memory_bytes: int = 0
    shared_bytes_per_block: int = 0
    threads_per_block: int = 1024
    memory_bandwidth: float = 0.0
    driver_version: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def torch_device(self) -> str:
        """The device string torch uses: ROCm builds of torch say ``cuda`` too."""
        return "cpu" if self.backend == "cpu" else f"cuda:{self.index}"
