// Which tile of the output a block works on, and in which order.
#pragma once
#include <portagemm/params.hpp>

namespace pg {

// A piece of work: one tile of one batch over a range of K.
struct work {
    i64 batch;           // linear index over gemm_params::batch
    i32 m, n;            // origin of the tile
    i32 k_begin, k_end;  // elements
    i32 slice;           // which part of K, where each has sums of its own (reduce.hpp adds them up)
};

// Tiles are dealt to blocks (to clusters) round-robin, so a grid of any size covers them: one block a tile, or a
// persistent grid. Within a batch they are walked in bands of `raster` rows of tiles, column by column, so that the
// blocks that run together share rows of A and columns of B in the last-level cache. The blocks of a cluster take
// neighbouring tiles along M (Cluster > 1), or equal parts of K of one tile (Split > 1). Slices of K are walked like
// batches, as the innermost of them.
template <class Tile, int Cluster, int Split>
struct tile_scheduler {
    const gemm_params& p;
    u32 next, step;

    PG_DEVICE explicit tile_scheduler(const gemm_params& params)
        : p(params), next(u32(vendor::block()) / (Cluster * Split)), step(u32(vendor::blocks()) / (Cluster * Split)) {}

    PG_DEVICE bool pop(work& w) {
        // All tiles fit 32 bits (the planner checks): a 64-bit division is a hundred instructions where there is none.
        if (next >= u32(p.tiles)) return false;
        const u32 index = next;
        next = next + step < next ? ~0u : next + step;  // past the last, also where the sum does not fit
        // What one batch or one band of tiles does not need is jumped over: a cold kernel fetches its code from memory.
        const u32 per_batch = u32(p.tiles_m) * u32(p.tiles_n);
        u32 tile = index, batch = 0, first_row = 0, height = u32(p.tiles_m), row = 0;
        if (tile >= per_batch) {
            batch = tile / per_batch;
            tile -= batch * per_batch;
        }
        if (p.raster < p.tiles_m) {
            const u32 band_tiles = u32(p.raster) * u32(p.tiles_n), band = tile / band_tiles;
            tile -= band * band_tiles;
            first_row = band * u32(p.raster);
            height = min(u32(p.raster), height - first_row);
        }
        u32 column = tile;
        if (height > 1) {
            column = tile / height;
            row = tile - column * height;
        }
        w.batch = batch;
        w.m = i32(first_row + row) * (Tile::m * Cluster);
        if constexpr (Cluster > 1) w.m += vendor::cluster_rank() * Tile::m;
        w.n = i32(column) * Tile::n;
        w.k_begin = 0;
        w.k_end = p.k;
        w.slice = 0;
        if (p.slices > 1) {
            w.slice = i32(u32(w.batch) % u32(p.slices));
            w.batch = u32(w.batch) / u32(p.slices);
            w.k_begin = min(p.k, w.slice * p.slice_k);
            w.k_end = w.k_begin + min(p.slice_k, p.k - w.k_begin);
        }
        if constexpr (Split > 1) {
            const i32 steps = ceil_div(ceil_div(p.k, Tile::k), Split);
            w.k_begin = min(p.k, vendor::cluster_rank() * steps * Tile::k);
            w.k_end = min(p.k, w.k_begin + steps * Tile::k);
        }
        return true;
    }
};

// Elements from an operand's address to its matrix of a batch (of which there are fewer than 2^32). Rolled, and over at
// once for the first batch: a kernel's code is read from memory too, and most problems have no other.
PG_DEVICE i64 batch_offset(const operand& o, const gemm_params& p, i64 batch) {
    i64 offset = 0;
    u32 rest = u32(batch);
    PG_ROLLED
    for (i32 i = max_batch_dims - 1; rest != 0; i--) {
        const u32 extent = u32(p.batch[i]);
        const u32 outer = rest / extent;
        offset += i64(rest - outer * extent) * o.batch[i];
        rest = outer;
    }
    return offset;
}

}  // namespace pg
