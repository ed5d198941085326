"""ReduceConfig: the kernel that adds up the slices of K and applies the epilogue, and its text.

It is the second step of a plan that cuts K into slices (plan.GemmPlan.slices): `kernels/reduce.hpp`.
"""

from __future__ import annotations

from dataclasses import dataclass

from portagemm.hal.dtypes import BY_NAME
from portagemm.hal.profile import ArchProfile
from portagemm.hal.source import arch_config

#: Threads of a block; on a machine with waves of one lane, that lane.
_THREADS = 256
#: Rows of a slice's sums start at multiples of so many elements, so that any vector is aligned.
PITCH = 8


@dataclass(frozen=True)
class ReduceConfig:
    """What is compiled in. Equal configs are one kernel.

    Attributes:
        d: dtype of the output. d_vector: elements of D that one thread writes together, at most PITCH.
        c, bias: dtypes, or None where the epilogue reads none. activation: one of problem.ACTIVATIONS.
    """

    d: str
    d_vector: int
    c: str | None = None
    bias: str | None = None
    activation: str = "none"

    def symbol(self, arch: str) -> str:
        """The kernel's extern "C" name."""
        parts = ["pg", arch, "reduce", f"{self.d}x{self.d_vector}"]
        if self.activation != "none":
            parts.append(self.activation)
        if self.c is not None:
            parts.append(f"c{self.c}")
        if self.bias is not None:
            parts.append(f"bias{self.bias}")
        return "_".join(parts)


_TEMPLATE = """\
{arch_config}
#include <kernels/reduce.hpp>

namespace {{
using epilogue = pg::epilogue<pg::activation::{activation}, {has_c}, {has_bias}, {c}, {bias}>;
PG_DEVICE void body(const pg::reduce_args& args) {{ pg::reduce<{d}, {vector}, epilogue, {threads}>(args); }}
}}  // namespace

PG_ENTRY({symbol}, pg::reduce_args, {threads}, 1, body)
"""


def threads(wave_size: int) -> int:
    """Threads of a block."""
    return _THREADS if wave_size > 1 else 1


def epilogue_words(activation: str, c: str | None, bias: str | None) -> dict[str, str]:
    """What `pg::epilogue<...>` is made of, for a template."""
    return {
        "activation": activation,
        "has_c": str(c is not None).lower(),
        "has_bias": str(bias is not None).lower(),
        "c": BY_NAME[c or "fp32"].cpp,
        "bias": BY_NAME[bias or "fp32"].cpp,
    }


def reduce_text(config: ReduceConfig, profile: ArchProfile) -> str:
    """The source of the kernel: generated facts and one instantiation."""
    return _TEMPLATE.format(
        arch_config=arch_config(profile),
        d=BY_NAME[config.d].cpp,
        vector=config.d_vector,
        threads=threads(profile.wave_size),
        symbol=config.symbol(profile.arch),
        **epilogue_words(config.activation, config.c, config.bias),
    )
