// Where an element of an operand's tile lies in shared memory: constexpr maps, tested on the host for bijection
// and for bank conflicts (tests/compile/test_layouts.py).
#pragma once
#include <portagemm/core.hpp>

namespace pg {

// Which dimension of an operand is contiguous: K, or M (of A) / N (of B). strided: neither.
enum class major { k, mn, strided };

// XOR-swizzle of 16-byte chunks by the index of their 128-byte line, period 8 lines (1024 bytes). It is what the
// tensor copy engine calls the 128-byte swizzle, and it makes eight 16-byte reads down a column hit all 32 banks.
PG_HD constexpr i32 swizzle_128(i32 offset) { return offset ^ ((offset >> 3) & 0x70); }

// One stage of one operand: MN x K elements of T in panels of up to 128 contiguous bytes,
//   offset = swizzle(panel * rows * panel_bytes + row * panel_bytes + column_in_panel * sizeof(T)),
// where for major::k a row is an mn and a column a k, and for major::mn the other way round. The same map serves
// asynchronous and register copies, ldmatrix, wgmma descriptors and plain reads.
template <class T, int MN, int K, major Major>
struct swizzled_stage {
    static_assert(Major != major::strided, "a stage is contiguous in K or in MN");
    using element = T;
    static constexpr major order = Major;
    static constexpr i32 mn = MN, k = K;
    static constexpr i32 rows = Major == major::k ? MN : K;
    static constexpr i32 cols = Major == major::k ? K : MN;
    static constexpr i32 panel_bytes = min(cols * i32(sizeof(T)), 128);
    static constexpr i32 panel_cols = panel_bytes / i32(sizeof(T));
    static constexpr i32 panels = cols / panel_cols;
    static constexpr i32 panel_stride = rows * panel_bytes;
    static constexpr i32 size = rows * cols * i32(sizeof(T));
    static constexpr i32 alignment = 1024;  // the swizzle's period
    static_assert(cols % panel_cols == 0 && is_power_of_two(panel_bytes) && panel_bytes >= 16);

    PG_HD static constexpr i32 offset(i32 mn_index, i32 k_index) {
        const i32 row = Major == major::k ? mn_index : k_index;
        const i32 col = Major == major::k ? k_index : mn_index;
        return swizzle_128((col / panel_cols) * panel_stride + row * panel_bytes + (col % panel_cols) * i32(sizeof(T)));
    }
    // offset(mn + by_mn, k + by_k) from `at` = offset(mn, k), where `by` shares no set bit with (mn, k): as when a lane's
    // place is moved by whole atoms. Then offsets split into bits too, and with constants for `by` this is one XOR, or
    // nothing, and a displacement that fits the instruction.
    PG_HD static constexpr i32 moved(i32 at, i32 by_mn, i32 by_k) {
        static_assert(panels == 1 || panel_stride % 1024 == 0, "panels are whole swizzle periods");
        const i32 by = offset(by_mn, by_k);
        return (at ^ (by & 1023)) + (by & ~1023);
    }
    // Elements contiguous in the stage along its own major from any multiple of this number.
    static constexpr i32 run = 16 / i32(sizeof(T));
};

}  // namespace pg
