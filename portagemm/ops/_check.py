"""What every operation checks before anything runs. Each failure is one error that names the operand.

None of this is on the hot path: `_dispatch` comes here only for a call it has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from portagemm.hal.dtypes import BY_TORCH_NAME, DType
from portagemm.hal.errors import (
    AutogradError,
    DeviceError,
    DTypeError,
    LayoutError,
    OperandError,
    OptionError,
    ShapeError,
    UnsupportedError,
)
from portagemm.problem import ACTIVATIONS, View

from . import _surroundings

FALLBACKS = ("auto", "error", "vendor")

#: Tensor types whose memory is what data_ptr() says. Everything else is a subclass with a meaning of its own.
PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})

DTYPES: dict[torch.dtype, DType] = {getattr(torch, name): d for name, d in BY_TORCH_NAME.items()}

#: Largest finite fp32 number: what alpha and beta are computed in.
FP32_MAX = torch.finfo(torch.float32).max

#: Elements up to which an overlap that interval arithmetic cannot decide is decided by enumeration.
ENUMERATE_UP_TO = 1 << 20


def options(
    operation: str,
    out_dtype: object,
    fallback: object,
    deterministic: object,
    batch_invariant: object,
    activation: object,
    constant_b: object,
) -> None:
    """Raise OptionError (or UnsupportedError) unless every keyword has a value we can honour."""
    if fallback not in FALLBACKS:
        raise OptionError("fallback", repr(fallback), ", ".join(map(repr, FALLBACKS)))
    for name, value in (
        ("deterministic", deterministic),
        ("batch_invariant", batch_invariant),
        ("constant_b", constant_b),
    ):
        if not isinstance(value, bool):
            raise OptionError(name, repr(value), "True, False")
    if batch_invariant and fallback == "vendor":
        raise UnsupportedError(
            operation,
            'batch_invariant=True with fallback="vendor": torch\'s library does not promise it',
            'fallback="auto" or "error"',
        )
    if activation is not None and activation not in ACTIVATIONS:
        raise OptionError("activation", repr(activation), f"None, {', '.join(map(repr, ACTIVATIONS))}")
    if out_dtype is not None and not (isinstance(out_dtype, torch.dtype) and out_dtype in DTYPES):
        raise OptionError("out_dtype", repr(out_dtype), "None, the operands' dtype, torch.float32")


def tensor(name: str, x: object, recorded: bool = False) -> Tensor:
    """`x` as a plain strided floating tensor, negative bit resolved. Raises the error that names `name`.

    What is only `recorded` may be a tracer's own tensor, without memory.
    """
    if not isinstance(x, Tensor):
        raise OperandError(name, f"a {type(x).__name__}", "a torch.Tensor")
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        raise OperandError(
            name,
            "a tensor inside a torch.func transform (vmap, grad, ...)",
            "plain tensors",
            "Call it outside.",
        )
    if type(x) not in PLAIN_TYPES and not (recorded and _surroundings.fake(x)):
        raise OperandError(
            name,
            f"the tensor subclass {type(x).__name__}",
            "torch.Tensor, torch.nn.Parameter",
            "Pass the plain tensor it wraps, for example x.as_subclass(torch.Tensor) or x.to_local().",
        )
    if x.is_quantized or x.dtype not in DTYPES:
        allowed = ", ".join(map(str, DTYPES))
        raise DTypeError(name, str(x.dtype), allowed, "Quantized tensors: dequantize first." * x.is_quantized)
    if x.is_nested:
        raise LayoutError(name, "a nested tensor", "torch.strided", "Multiply its parts, x.unbind().")
    if x.layout != torch.strided:
        raise LayoutError(name, f"layout {x.layout}", "torch.strided", "Call .to_dense() first.")
    if x.device.type not in ("cpu", "cuda"):
        raise DeviceError(name, f"device {x.device}", "cpu, cuda (NVIDIA or AMD)")
    if torch.is_grad_enabled() and x.requires_grad:
        raise AutogradError(
            name,
            "requires_grad=True while gradients are recorded",
            "tensors without requires_grad, or any under torch.no_grad()",
            "Gradients are not implemented yet: wrap the call in torch.no_grad() or pass x.detach().",
        )
    if _surroundings.has_tangent(x):
        raise AutogradError(
            name,
            "a forward-mode dual tensor",
            "tensors without a tangent",
            "Derivatives are not implemented yet: pass torch.autograd.forward_ad.unpack_dual(x).primal.",
        )
    if not recorded and not _has_memory(x):
        raise LayoutError(
            name,
            f"shape {tuple(x.shape)} and strides {x.stride()} without memory for them",
            "tensors whose storage holds every element",
            "Its storage was resized or is not allocated yet.",
        )
    return x.resolve_neg() if x.is_neg() else x


def _has_memory(x: Tensor) -> bool:
    """Whether the storage of `x` holds all its elements: it can be resized behind a tensor's back (FSDP does)."""
    if x.numel() == 0:
        return True
    try:
        held = x.untyped_storage().nbytes()
        return x.data_ptr() != 0 and held >= x.storage_offset() * x.element_size() + span(x)
    except (RuntimeError, NotImplementedError):
        return False


def scalar(name: str, value: object) -> float:
    """`value` as the float a kernel takes. Raises OperandError: no number, or one that fp32 does not hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OperandError(name, repr(value), "a Python float")
    try:
        number = float(value)
    except OverflowError:  # an int beyond fp64
        number = math.inf
    if abs(number) > FP32_MAX and (number != value or math.isfinite(number)):
        digits = repr(value) if isinstance(value, float) else f"an int of {value.bit_length()} bits"
        raise OperandError(name, digits, f"finite numbers up to {FP32_MAX:.8g} (fp32), inf, nan")
    return number


def same_dtype(name: str, x: Tensor, reference: Tensor, reference_name: str, or_fp32: bool) -> None:
    """`x` has the dtype of the first operand, or fp32 where `or_fp32`."""
    if x.dtype != reference.dtype and not (or_fp32 and x.dtype == torch.float32):
        also = ", or torch.float32" if or_fp32 and reference.dtype != torch.float32 else ""
        raise DTypeError(name, str(x.dtype), f"{reference.dtype}, the dtype of {reference_name}{also}")


def same_device(name: str, x: Tensor, reference: Tensor, reference_name: str) -> None:
    """`x` is on the device of the first operand."""
    if x.device != reference.device:
        raise DeviceError(name, f"device {x.device}", f"{reference.device}, the device of {reference_name}")


def broadcastable(name: str, x: Tensor, shape: Sequence[int]) -> None:
    """`x` broadcasts to the result's shape without making it larger."""
    own = tuple(x.shape)
    if len(own) > len(shape) or any(
        p not in (1, q) for p, q in zip(reversed(own), reversed(shape), strict=False)
    ):
        raise ShapeError(name, f"shape {own}", f"one that broadcasts to the result's shape, {tuple(shape)}")


def result_dtype(a: Tensor, out: Tensor | None, out_dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of the result. Raises where `out` or `out_dtype` ask for one that is not offered."""
    if out_dtype is not None and out_dtype not in (a.dtype, torch.float32):
        raise DTypeError("out_dtype", str(out_dtype), f"{a.dtype}, the dtype of a, or torch.float32")
    if out is None:
        return out_dtype or a.dtype
    if out_dtype is not None and out.dtype != out_dtype:
        raise DTypeError("out", str(out.dtype), f"{out_dtype}, as out_dtype says")
    return out.dtype


def output(
    out: Tensor, shape: Sequence[int], inputs: Sequence[tuple[str, Tensor | None]], recorded: bool = False
) -> None:
    """`out` has the result's shape and shares memory neither with an input nor with itself.

    Where the call is only `recorded` there is no memory, and torch's operations look after it.
    """
    if tuple(out.shape) != tuple(shape):
        raise ShapeError("out", f"shape {tuple(out.shape)}", f"{tuple(shape)}, the shape of the result")
    if recorded:
        return
    if overlaps_itself(out):
        raise LayoutError(
            "out",
            f"strides {out.stride()} with shape {tuple(out.shape)}, so that elements share memory",
            "strides that give every element its own address",
        )
    for name, x in inputs:
        if x is not None and overlap(out, x) and not (name == "c" and identical(out, x)):
            also = " (c may be the very same view as out)" if name == "c" else ""
            raise LayoutError(
                "out",
                f"memory shared with operand {name}",
                f"memory that no input uses{also}",
                "Pass a fresh out.",
            )


def view(x: Tensor) -> View:
    """Where `x` lies."""
    return View(DTYPES[x.dtype], tuple(x.shape), x.stride(), x.data_ptr())


def fp32_precision() -> str:
    """torch.get_float32_matmul_precision() (or torch's newer per-backend switch) as "ieee" or "tf32"."""
    try:
        return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    except RuntimeError:  # torch refuses to answer once its newer API was used: ask that one
        return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype autocast wants on the device of `x`; None where it is off."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


# Overlap. Bytes, not elements: an fp32 out may lie over bf16 inputs.


def span(x: Tensor) -> int:
    """Bytes from the first byte of `x` to the last, both included; 0 when it is empty."""
    if x.numel() == 0:
        return 0
    return (sum((e - 1) * s for e, s in zip(x.shape, x.stride(), strict=True)) + 1) * x.element_size()


def identical(x: Tensor, y: Tensor) -> bool:
    """Whether both are one and the same view."""
    return x.data_ptr() == y.data_ptr() and same_layout(x, y)


def same_layout(x: Tensor, y: Tensor) -> bool:
    """Whether both have one dtype, shape and strides (but for those of extent-1 dimensions)."""
    return (
        x.dtype == y.dtype
        and x.shape == y.shape
        and all(s == t for e, s, t in zip(x.shape, x.stride(), y.stride(), strict=True) if e > 1)
    )


def overlaps_itself(x: Tensor) -> bool:
    """Whether two elements of `x` share memory."""
    reach = 0
    for stride, extent in sorted((s, e) for s, e in zip(x.stride(), x.shape, strict=True) if e > 1):
        if stride <= reach:
            break
        reach += stride * (extent - 1)
    else:
        return False
    if x.numel() == 0:
        return False
    if x.numel() > ENUMERATE_UP_TO:
        return True
    return int(torch.unique(_offsets(x)).numel()) != x.numel()


def overlap(x: Tensor, y: Tensor) -> bool:
    """Whether `x` and `y` share a byte. Undecided large cases count as overlap: an error, never a fault."""
    if x.numel() == 0 or y.numel() == 0:
        return False
    px, py = x.data_ptr(), y.data_ptr()
    if px + span(x) <= py or py + span(y) <= px:
        return False
    dims = [
        [(e, s * t.element_size()) for e, s in zip(t.shape, t.stride(), strict=True) if e > 1 and s]
        for t in (x, y)
    ]
    for period in sorted({s for d in dims for _, s in d}, reverse=True):
        if _apart(period, px, dims[0], x.element_size(), py, dims[1], y.element_size()):
            return False
    if x.numel() + y.numel() > ENUMERATE_UP_TO:
        return True
    unit = math.gcd(x.element_size(), y.element_size())
    bytes_of = [
        (
            (t.data_ptr() + _offsets(t) * t.element_size())[:, None]
            + torch.arange(0, t.element_size(), unit, device="cpu")[None, :]
        ).flatten()
        for t in (x, y)
    ]
    return bool(torch.isin(bytes_of[0], bytes_of[1]).any())


def _apart(
    period: int,
    px: int,
    dims_x: list[tuple[int, int]],
    size_x: int,
    py: int,
    dims_y: list[tuple[int, int]],
    size_y: int,
) -> bool:
    """Whether two views stay in different columns of memory seen as rows of `period` bytes."""
    width_x = sum((e - 1) * s for e, s in dims_x if s % period) + size_x
    width_y = sum((e - 1) * s for e, s in dims_y if s % period) + size_y
    gap = (py - px) % period
    return gap >= width_x and gap + width_y <= period


def _offsets(x: Tensor) -> Tensor:
    """The element offset of every element of `x`, on the CPU."""
    total = torch.zeros((), dtype=torch.int64, device="cpu")  # whatever the default device is
    for extent, stride in zip(x.shape, x.stride(), strict=True):
        total = total[..., None] + torch.arange(extent, device="cpu") * stride
    return total.flatten()
