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

// Count slices from `from` on: all reads first, so that they are on their way together, then sums in order.
template <int Count, int Vector>
PG_DEVICE void add_slices(f32 (&sum)[Vector], const f32* from, i64 step) {
    static_assert(Vector <= 8 && is_power_of_two(Vector));
    constexpr i32 chunk = min(Vector, 4), width = chunk * i32(sizeof(f32));
    alignas(16) f32 part[Count][Vector];
    PG_UNROLL
    for (i32 s = 0; s < Count; s++) {
        PG_UNROLL
        for (i32 v = 0; v < Vector; v += chunk) {
            *reinterpret_cast<bytes<width>*>(&part[s][v]) = *reinterpret_cast<const bytes<width>*>(from + s * step + v);
        }
    }
    PG_UNROLL
    for (i32 s = 0; s < Count; s++) {
        PG_UNROLL
        for (i32 v = 0; v < Vector; v++) sum[v] += part[s][v];
    }
}

// Each thread takes Vector neighbours of a row at a time. Rows of the workspace start at multiples of 8 elements.
template <class ElementD, int Vector, class Epilogue, int Threads>
PG_DEVICE void reduce(const reduce_args& args) {
    constexpr i32 together = 4;
    const gemm_params& p = args.params;
    // Vectors fit 32 bits, and so do their products below (the planner checks).
    const u32 vectors = u32(ceil_div(p.n, Vector)), per_batch = u32(p.m) * vectors;
    for (i64 index = vendor::block() * Threads + vendor::thread(); index < p.tiles;
         index += vendor::blocks() * Threads) {
        // p.tiles counts vectors of all batches here.
        const u32 in_batch = u32(index) % per_batch;
        const work w{u32(index) / per_batch, i32(in_batch / vectors), i32(in_batch % vectors) * Vector, 0, p.k, 0};
        const f32* from = static_cast<const f32*>(p.a.ptr) + batch_offset(p.a, p, w.batch) + i64(w.m) * p.a.row + w.n;
        from = vendor::in_global(from);

        alignas(16) f32 sum[Vector] = {};
        i32 slice = 0;
        PG_ROLLED
        for (; slice + together <= p.slices; slice += together, from += together * p.slice_d) {
            add_slices<together, Vector>(sum, from, p.slice_d);
        }
        PG_ROLLED
        for (; slice < p.slices; slice++, from += p.slice_d) add_slices<1, Vector>(sum, from, p.slice_d);

        store_vector<ElementD, Vector>(output_of<ElementD>(p, w), sum, Epilogue(p, w), p, w.m, w.n);
    }
}

}  // namespace pg
