"""Element types by the names torch's users know, with their size and their name in device code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """An element type.

    Attributes:
        name: short name in plans, profiles and kernel names (``bf16``).
        torch_name: attribute of the torch module (``bfloat16``).
        cpp: type in device code (``pg::bf16``).
        bytes: size of an element.
        half_ulp: half a unit in the last place relative to the value: the rounding term h of the
            T16 criterion (0 for fp32, whose rounding is below the accumulation term).
    """

    name: str
    torch_name: str
    cpp: str
    bytes: int
    half_ulp: float

    def __str__(self) -> str:
        return self.name


FP16 = DType("fp16", "float16", "pg::fp16", 2, 2.0**-11)
BF16 = DType("bf16", "bfloat16", "pg::bf16", 2, 2.0**-8)
FP32 = DType("fp32", "float32", "pg::fp32", 4, 0.0)

ALL: tuple[DType, ...] = (FP16, BF16, FP32)
BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
BY_TORCH_NAME: dict[str, DType] = {d.torch_name: d for d in ALL}
