"""Writes include/portagemm/arch/wgmma.hpp: one wrapper for each width of Hopper's matrix instruction.

The instruction names every accumulator register, so its text depends on N and cannot be a template.
Run ``python backends/cuda/generate_wgmma.py`` after a change; a test compares the file with this output.
"""

from __future__ import annotations

from pathlib import Path

HEADER = """\
// Written by backends/cuda/generate_wgmma.py. wgmma.mma_async m64nNk16, fp32 accumulate, A and B by descriptor
// (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate"). TA, TB: 1 where the operand is MN-major.
#pragma once
#include <portagemm/dtypes.hpp>

namespace pg::arch {

template <int N>
struct wgmma_instruction {
    static_assert(unsupported<wgmma_instruction<N>>, "wgmma has N = 8, 16, 32, ... 256 here");
};

#define PG_WGMMA(N, REGISTERS, A, B, SCALE, TA, TB, ...)                                                             \\
    template <>                                                                                                      \\
    struct wgmma_instruction<N> {                                                                                    \\
        template <class T, int ta, int tb>                                                                           \\
        PG_DEVICE static void issue(f32 (&d)[N / 2], u64 a, u64 b) {                                                 \\
            if constexpr (same_type<T, fp16>) {                                                                      \\
                asm volatile("{.reg .pred p; setp.ne.b32 p, " SCALE ", 0; wgmma.mma_async.sync.aligned.m64n" #N       \\
                             "k16.f32.f16.f16 {" REGISTERS "}, " A ", " B ", p, 1, 1, " TA ", " TB ";}"              \\
                             : __VA_ARGS__                                                                           \\
                             : "l"(a), "l"(b), "r"(1), "n"(ta), "n"(tb));                                            \\
            } else {                                                                                                 \\
                asm volatile("{.reg .pred p; setp.ne.b32 p, " SCALE ", 0; wgmma.mma_async.sync.aligned.m64n" #N       \\
                             "k16.f32.bf16.bf16 {" REGISTERS "}, " A ", " B ", p, 1, 1, " TA ", " TB ";}"            \\
                             : __VA_ARGS__                                                                           \\
                             : "l"(a), "l"(b), "r"(1), "n"(ta), "n"(tb));                                            \\
            }                                                                                                        \\
        }                                                                                                            \\
    };

#define PG_D(i) "+f"(d[i])
#define PG_D4(i) PG_D(i), PG_D(i + 1), PG_D(i + 2), PG_D(i + 3)
"""


def text() -> str:
    """The whole header."""
    parts = [HEADER, "// clang-format off\n"]
    for n in (8, *range(16, 257, 16)):
        count = n // 2
        registers = ",".join(f"%{i}" for i in range(count))
        operands = ", ".join(f"PG_D4({i})" for i in range(0, count, 4))
        tail = ", ".join(f'"%{count + i}"' for i in range(5))
        parts.append(f'PG_WGMMA({n}, "{registers}", {tail}, {operands})\n')
    parts.append(
        "// clang-format on\n\n#undef PG_WGMMA\n#undef PG_D4\n#undef PG_D\n\n}  // namespace pg::arch\n"
    )
    return "".join(parts)


if __name__ == "__main__":
    target = Path(__file__).parent / "include/portagemm/arch/wgmma.hpp"
    target.write_text(text(), encoding="utf-8")
