// The second half of a GEMM whose K was cut into slices: D = act(alpha * sum over slices + beta * C + bias).
// The sums of a slice are fp32, rows of n next to each other; they are added in the order of the slices, so that
// results do not depend on which block was first.
#pragma once
#include <portagemm/epilogue.hpp>
#include <portagemm/store.hpp>

namespace pg {

// params.a is the workspace: its row and batch strides are those of one slice's sums, slice_d leads to the next slice.
struct reduce_args {
    gemm_params params;
};

// Each thread takes Vector neighbours of a row at a time. Rows of the workspace start at multiples of 8 elements.
template <class ElementD, int Vector, class Epilogue, int Threads>
PG_DEVICE void reduce(const reduce_args& args) {
    static_assert(Vector <= 8 && is_power_of_two(Vector));
    constexpr i32 width = min(Vector * i32(sizeof(f32)), 16), loads = Vector * i32(sizeof(f32)) / width;
    const gemm_params& p = args.params;
    const i32 vectors = ceil_div(p.n, Vector);
    const i64 per_batch = i64(p.m) * vectors;
    for (i64 index = vendor::block() * Threads + vendor::thread(); index < p.tiles;
         index += vendor::blocks() * Threads) {
        // p.tiles counts vectors of all batches here.
        work w{index / per_batch, 0, 0, 0, p.k, 0};
        const i64 in_batch = index % per_batch;
        w.m = i32(in_batch / vectors);
        w.n = i32(in_batch % vectors) * Vector;
        const f32* from = static_cast<const f32*>(p.a.ptr) + batch_offset(p.a, p, w.batch) + i64(w.m) * p.a.row + w.n;

        alignas(16) f32 sum[Vector] = {};
        PG_ROLLED
        for (i32 s = 0; s < p.slices; s++, from += p.slice_d) {
            alignas(16) f32 part[Vector];
            PG_UNROLL
            for (i32 i = 0; i < loads; i++) {
                *reinterpret_cast<bytes<width>*>(&part[i * (Vector / loads)]) =
                    *reinterpret_cast<const bytes<width>*>(&from[i * (Vector / loads)]);
            }
            PG_UNROLL
            for (i32 v = 0; v < Vector; v++) sum[v] += part[v];
        }

        ElementD* d = static_cast<ElementD*>(const_cast<void*>(p.d.ptr)) + batch_offset(p.d, p, w.batch);
        store_vector<ElementD, Vector>(d, sum, Epilogue(p, w), p, w.m, w.n);
    }
}

}  // namespace pg
