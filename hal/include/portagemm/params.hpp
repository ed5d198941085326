// The kernel's by-value argument: addresses, strides and extents of one GEMM, the same on every backend.
// The host fills it by byte offset (portagemm/launch.py); test_params_layout compares the two.
#pragma once
#include <portagemm/core.hpp>

namespace pg {

constexpr int max_batch_dims = 4;

// A matrix in global memory: two strides and the batch strides, all in elements.
// A is (m, k), B is (n, k), C, D and the bias are (m, n).
struct operand {
    const void* ptr;
    i64 row;
    i64 col;
    i64 batch[max_batch_dims];
};

struct gemm_params {
    operand a, b, c, d, bias;   //   0, 56, 112, 168, 224
    i32 m, n, k;                // 280
    i32 raster;                 // 292: rows of tiles walked together (L2 reuse)
    i32 batch[max_batch_dims];  // 296: extents, innermost last, 1 where unused
    f32 alpha, beta;            // 312, 316
    i64 tiles;                  // 320: tiles of all batches and slices
    i32 tiles_m, tiles_n;       // 328, 332: tiles of one batch
    i32 slices, slice_k;        // 336, 340: parts of K that are separate work, and the elements of K in each
    i64 slice_d;                // 344: elements of D from one slice's sums to the next one's
};

static_assert(sizeof(operand) == 56 && sizeof(gemm_params) == 352);

}  // namespace pg
