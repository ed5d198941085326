// mma.sync on fragments that come straight from memory (kernels/skinny.hpp), sm_80 and up.
#pragma once
#include <portagemm/arch/sm80_instructions.hpp>
#include <portagemm/concepts.hpp>

namespace pg::arch {

// D (16 x 8, fp32) += A (16 x 32) * B (8 x 32)^T as two mma.sync.m16n8k16. Sums run over all of K, so K may be permuted,
// alike for both operands: a lane (group g = lane / 4, t = lane % 4) holds elements 8t to 8t + 7 of each of its rows, and
// its words 0, 1 stand for the columns 2t, 2t + 8 of the first instruction, words 2, 3 of the second.
// Maps: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
template <class T>
struct mma_16816_streamed {
    static constexpr i32 m = 16, n = 8, chunk_k = 32, chunk = 8, c_size = 4;
    static constexpr i32 rows_m = 2, rows_n = 1;  // of an atom that a lane reads
    // Row r of a lane, counted over neighbouring atoms, and its first element of K.
    PG_HD static constexpr i32 row_m(i32 lane, i32 r) { return r * 8 + lane / 4; }
    PG_HD static constexpr i32 row_n(i32 lane, i32 r) { return r * 8 + lane / 4; }
    PG_HD static constexpr i32 k_of(i32 lane) { return lane % 4 * chunk; }
    PG_HD static constexpr coord c(i32 lane, i32 i) { return {lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2}; }

    template <class Chunk>
    PG_DEVICE static void mma(f32 (&sum)[c_size], const Chunk* a, const Chunk* b) {
        const bytes<16> upper = *reinterpret_cast<const bytes<16>*>(&a[0]);
        const bytes<16> lower = *reinterpret_cast<const bytes<16>*>(&a[1]);
        const bytes<16> column = *reinterpret_cast<const bytes<16>*>(&b[0]);
        PG_UNROLL
        for (i32 s = 0; s < 2; s++) {
            const u32 x[4] = {upper.word[2 * s], lower.word[2 * s], upper.word[2 * s + 1], lower.word[2 * s + 1]};
            mma_m16n8k16<T>(sum[0], sum[1], sum[2], sum[3], x, column.word[2 * s], column.word[2 * s + 1]);
        }
    }
};

}  // namespace pg::arch
