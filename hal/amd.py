"""AMD GPUs as the kernel and the environment describe them: names, places, partitions, masks, the override.

The ROCm backend and the doctor both decide by these. Standard library only; nothing here reads the machine.
What the variables mean is what their readers do: ROCr (`amd_filter_device.cpp`) for ROCR_VISIBLE_DEVICES, its thunk
(`topology.c`) for HSA_OVERRIDE_GFX_VERSION, HIP (`rocdevice.cpp`) for HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


def arch_of(gfx_target_version: int) -> str:
    """``gfx90a`` of 90010: major and minor in decimal, the stepping one hexadecimal digit."""
    major, rest = divmod(gfx_target_version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"


def properties(text: str) -> dict[str, int]:
    """The ``key value`` lines of a KFD properties file."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].lstrip("-").isdecimal()}


def address_of(facts: Mapping[str, int]) -> str:
    """``0000:83:00.0`` of a KFD node's domain and location_id: bus in bits 15:8, device in 7:3, function in 2:0."""
    place = facts.get("location_id")
    if place is None:
        return ""
    return f"{facts.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


INNER = "ROCR_VISIBLE_DEVICES"
OUTER = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"


@dataclass(frozen=True)
class Partitioning:
    """Modes of an Instinct GPU, "" where the chip has none.

    Attributes:
        compute: SPX, DPX, TPX, QPX or CPX: one, two, three, four or as many devices as it has dies.
        memory: NPS1, NPS2, NPS4 or NPS8: into how many pools its memory is cut.
    """

    compute: str = ""
    memory: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.compute, self.memory)))


def partitioning_of(read: Callable[[str], str]) -> Partitioning:
    """The modes of a GPU. read: a file of its folder in sysfs by name -> its text, "" if there is none."""
    return Partitioning(
        read("current_compute_partition").strip().upper(), read("current_memory_partition").strip().upper()
    )


@dataclass(frozen=True)
class Visible(Generic[T]):
    """What the masks leave.

    Attributes:
        items: visible ones, in HIP's order. hidden: the others, in theirs.
        notes: one sentence for each variable that is set, with its effect.
    """

    items: tuple[T, ...]
    hidden: tuple[T, ...]
    notes: tuple[str, ...]


def visible(items: Sequence[T], identity: Callable[[T], int], environ: Mapping[str, str]) -> Visible[T]:
    """Apply the runtime's mask, then HIP's, whose ordinals count what the runtime's has left.

    Args:
        identity: an item's unique id, 0 if it has none.
    """
    notes = []
    inner = environ.get(INNER)
    left = tuple(items) if inner is None else _masked(items, inner, identity, strict=False)
    if inner is not None:
        notes.append(f"{INNER}={inner} leaves {_count(len(left), len(items))}")
    # HIP takes an empty mask for none at all, and the second variable only where the first says nothing.
    name = next((n for n in OUTER if environ.get(n)), None)
    chosen = left if name is None else _masked(left, environ[name], identity, strict=True)
    if name is not None:
        of = _count(len(chosen), len(left))
        numbered = f" (it counts what {INNER} leaves)" if inner is not None else ""
        notes.append(f"{name}={environ[name]} leaves {of}{numbered}")
        if inner is not None and len(chosen) < min(len(left), environ[name].count(",") + 1):
            notes.append(
                f"set one of {INNER} and {name}, not both: the second counts what the first has left"
            )
        if name == OUTER[0] and environ.get(OUTER[1]):
            notes.append(f"{OUTER[1]} is not read where {OUTER[0]} is set")
    if environ.get("GPU_DEVICE_ORDINAL"):
        notes.append("GPU_DEVICE_ORDINAL is set: OpenCL reads it, HIP does not")
    return Visible(chosen, tuple(i for i in items if i not in chosen), tuple(notes))


def _count(left: int, of: int) -> str:
    return f"{left} of {of} GPU{'s' if of != 1 else ''}"


def _masked(items: Sequence[T], mask: str, identity: Callable[[T], int], strict: bool) -> tuple[T, ...]:
    """What a list of ordinals or ``GPU-<unique id>`` leaves, in its order. It ends at its first unknown entry.

    `strict` is HIP's reading: no spaces, no leading zeros, and an entry named twice counts once. ROCr strips
    spaces and ends the list at a repeated entry.
    """
    chosen: list[T] = []
    for entry in mask.split(","):
        token = entry if strict else entry.strip()
        found = _named(items, token, identity)
        if found is None or (strict and token.isdigit() and token != str(int(token))):
            break
        if found in chosen:
            if strict:
                continue
            break
        chosen.append(found)
    return tuple(chosen)


def _named(items: Sequence[T], token: str, identity: Callable[[T], int]) -> T | None:
    if token.isascii() and token.isdigit():
        return items[int(token)] if int(token) < len(items) else None
    if token.upper().startswith("GPU-"):
        wanted = token[4:].lower().lstrip("0")
        matches = [i for i in items if identity(i) and f"{identity(i):x}" == wanted]
        return matches[0] if len(matches) == 1 else None
    return None


@dataclass(frozen=True)
class Override:
    """What HSA_OVERRIDE_GFX_VERSION asks for: `version` as (major, minor, stepping), None where it is nonsense."""

    variable: str
    value: str
    version: tuple[int, int, int] | None


def override(node: int, environ: Mapping[str, str]) -> Override | None:
    """The override of a KFD node: ``HSA_OVERRIDE_GFX_VERSION_<node>`` goes before the one for all. None: none."""
    for variable in (f"{OVERRIDE}_{node}", OVERRIDE):
        value = environ.get(variable)
        if value is not None:
            parts = value.split(".")
            numbers = [int(p) for p in parts if p.isascii() and p.isdigit()]
            fits = len(parts) == len(numbers) == 3 and numbers[0] <= 63 and max(numbers[1:]) <= 255
            return Override(variable, value, (numbers[0], numbers[1], numbers[2]) if fits else None)
    return None
