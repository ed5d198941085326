// AMD: the shared scheduler with another batch_offset. The shared one is a rolled loop, lean where code is cold; here its
// cursors live in scalar registers, which kernels with C and a bias have none left of: 2 to 4 of them were spilled.
#pragma once
#define batch_offset rolled_batch_offset
#include_next <portagemm/scheduler.hpp>
#undef batch_offset

namespace pg {

// Elements from an operand's address to its matrix of a batch (of which there are fewer than 2^32).
PG_DEVICE i64 batch_offset(const operand& o, const gemm_params& p, i64 batch) {
    i64 offset = 0;
    u32 rest = u32(batch);
    PG_UNROLL
    for (i32 i = max_batch_dims - 1; i >= 0; i--) {
        const u32 extent = u32(p.batch[i]);
        if (extent > 1) {
            const u32 outer = rest / extent;
            offset += i64(rest - outer * extent) * o.batch[i];
            rest = outer;
        }
    }
    return offset;
}

}  // namespace pg
