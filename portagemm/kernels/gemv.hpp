// GEMV: D = act(alpha * A * B^T + beta * C + bias) for an A of few rows, whatever it costs to read B once.
// A body of its own, without stages or roles: a lane reads chunks of a few rows of B (n) along K straight into
// registers and multiplies them with the same chunks of every row of A; lanes' sums meet in shared memory at the end.
// Any wave size; on a machine with waves of one lane, a lane keeps a chunk's worth of sums, which its compiler turns into
// vectors.
#pragma once
#include <portagemm/epilogue.hpp>
#include <portagemm/scheduler.hpp>
#include <portagemm/store.hpp>
#include <portagemm/tile.hpp>

namespace pg {

// What a block does: Rows of A by Columns of B, its waves beside each other along N. Vector elements of K are a lane's
// chunk, Unroll chunks are on their way at a time.
template <int Rows, int Columns, int Vector, int Waves, int Unroll>
struct gemv_tile {
    static constexpr i32 m = Rows, n = Columns, k = Vector;
    static constexpr i32 vector = Vector, unroll = Unroll;
    static constexpr i32 wave_n = Columns / Waves;
    static constexpr i32 threads = Waves * vendor::wave_size;
    static constexpr i32 outputs = Rows * Columns;
    static constexpr i32 terms = vendor::wave_size;                      // sums of one output, a lane each
    static constexpr i32 parts = max(1, min(terms, threads / outputs));  // threads that add up one output
    static constexpr i32 pitch = terms + 1;                              // odd: neighbours are in other banks
    static_assert(wave_n * Waves == Columns && terms % parts == 0 && is_power_of_two(Vector));
    struct shared {
        f32 sum[outputs * pitch];
        f32 part[parts * outputs];
    };
};

// What kernels that stream B take. b_constant: the caller says that no kernel in flight writes B.
struct gemv_args {
    gemm_params params;
    i32 b_constant, padding;
};

// The kernel ahead, which a thread waits for once, as late as it can: before it reads A or writes D.
struct kernel_ahead {
    bool ended;
    PG_DEVICE explicit kernel_ahead(const gemv_args& args) : ended(false) {
        if (!args.b_constant) wait();
    }
    PG_DEVICE void wait() {
        if (!ended) vendor::wait_for_prior_kernel();
        ended = true;
    }
};

namespace gemv_detail {

// `vector` elements from `from` on, step apart; Width bytes at a time where they are neighbours. Once: nobody will read
// them again.
template <int Width, bool Neighbours, bool Once, class T, int Vector>
PG_DEVICE void load(T (&to)[Vector], const T* from, i64 step) {
    if constexpr (Once && Neighbours && Width == 16 && sizeof(to) == 16 && vendor::has_load_once) {
        vendor::load_once(reinterpret_cast<u32*>(to), from);
        return;
    }
    constexpr i32 together = Neighbours ? min(Vector, Width / i32(sizeof(T))) : 1;
    PG_UNROLL
    for (i32 v = 0; v < Vector; v += together) {
        if constexpr (together > 1) {
            constexpr i32 width = together * i32(sizeof(T));
            *reinterpret_cast<bytes<width>*>(&to[v]) = *reinterpret_cast<const bytes<width>*>(from + v);
        } else {
            to[v] = from[Neighbours ? i64(v) : v * step];
        }
    }
}

}  // namespace gemv_detail

// One lane's sums over its part of K. Rows and columns past the end repeat the last one: nobody stores them.
template <class Config>
struct gemv_lane {
    using tile = typename Config::tile;
    using element = typename Config::element;
    static constexpr i32 ways = vendor::wave_size == 1 ? tile::vector : 1;
    const element* row[tile::m];
    const element* column[tile::wave_n];
    const i64 step_a;
    f32 sum[tile::m][tile::wave_n][ways];
    f32 folded[tile::m][tile::wave_n];  // of the chunks before, where a lane has all of K to itself

    PG_DEVICE gemv_lane(const gemm_params& p, const work& w, i32 wave) : step_a(p.a.col) {
        const element* a = static_cast<const element*>(p.a.ptr) + batch_offset(p.a, p, w.batch);
        const element* b = static_cast<const element*>(p.b.ptr) + batch_offset(p.b, p, w.batch);
        PG_UNROLL
        for (i32 r = 0; r < tile::m; r++) row[r] = vendor::in_global(a + i64(min(w.m + r, p.m - 1)) * p.a.row);
        PG_UNROLL
        for (i32 c = 0; c < tile::wave_n; c++) {
            column[c] = vendor::in_global(b + i64(min(w.n + wave * tile::wave_n + c, p.n - 1)) * p.b.row);
        }
        PG_UNROLL
        for (i32 r = 0; r < tile::m; r++) {
            PG_UNROLL
            for (i32 c = 0; c < tile::wave_n; c++) {
                PG_UNROLL
                for (i32 i = 0; i < ways; i++) sum[r][c][i] = 0.0f;
                folded[r][c] = 0.0f;
            }
        }
    }

    // Count chunks from k on, `step` apart: all loads first, so that they are on their way together. A is read once it may
    // be.
    template <int Count>
    PG_DEVICE void chunks(i32 k, i32 step, kernel_ahead& ahead) {
        alignas(16) element a[Count][tile::m][tile::vector];
        alignas(16) element b[Count][tile::wave_n][tile::vector];
        PG_UNROLL
        for (i32 u = 0; u < Count; u++) {
            const i64 at = k + i64(u) * step;
            PG_UNROLL
            for (i32 c = 0; c < tile::wave_n; c++) {
                gemv_detail::load<Config::width_b, true, true>(b[u][c], column[c] + at, 1);
            }
        }
        ahead.wait();
        PG_UNROLL
        for (i32 u = 0; u < Count; u++) {
            const i64 at = k + i64(u) * step;
            PG_UNROLL
            for (i32 r = 0; r < tile::m; r++) {
                constexpr bool neighbours = Config::major_a == major::k;
                gemv_detail::load<Config::width_a, neighbours, false>(a[u][r], row[r] + at * step_a, step_a);
            }
        }
        PG_UNROLL
        for (i32 u = 0; u < Count; u++) {
            PG_UNROLL
            for (i32 r = 0; r < tile::m; r++) {
                PG_UNROLL
                for (i32 c = 0; c < tile::wave_n; c++) {
                    PG_UNROLL
                    for (i32 v = 0; v < tile::vector; v++) {
                        f32& to = sum[r][c][v % ways];
                        to = vendor::fma(to_f32(a[u][r][v]), to_f32(b[u][c][v]), to);
                    }
                }
            }
        }
    }

    // What is left of K, less than a chunk, by one lane.
    PG_DEVICE void rest(i32 k, i32 k_end) {
        PG_ROLLED
        for (; k < k_end; k++) {
            PG_UNROLL
            for (i32 r = 0; r < tile::m; r++) {
                const f32 a = to_f32(row[r][k * step_a]);
                PG_UNROLL
                for (i32 c = 0; c < tile::wave_n; c++)
                    sum[r][c][0] = vendor::fma(a, to_f32(column[c][k]), sum[r][c][0]);
            }
        }
    }

    PG_DEVICE f32 total(i32 r, i32 c) const {
        f32 x = sum[r][c][0];
        PG_UNROLL
        for (i32 i = 1; i < ways; i++) x += sum[r][c][i];
        return folded[r][c] + x;
    }

    // Sums start anew: rounding errors of equal sign grow with the number of folds, not with K.
    PG_DEVICE void fold() {
        PG_UNROLL
        for (i32 r = 0; r < tile::m; r++) {
            PG_UNROLL
            for (i32 c = 0; c < tile::wave_n; c++) {
                folded[r][c] = total(r, c);
                PG_UNROLL
                for (i32 i = 0; i < ways; i++) sum[r][c][i] = 0.0f;
            }
        }
    }
};

template <class Config>
PG_DEVICE void gemv(const gemv_args& args) {
    using tile = typename Config::tile;
    using element_d = typename Config::element_d;

    // Set-up. What no kernel in flight writes is read before the kernel ahead has ended.
    vendor::let_next_kernel_start();
    const gemm_params& p = args.params;
    auto& shared = *reinterpret_cast<typename tile::shared*>(vendor::shared_memory());
    const i32 thread = vendor::thread(), wave = thread / vendor::wave_size, lane = thread % vendor::wave_size;
    kernel_ahead ahead(args);
    tile_scheduler<tile, 1, 1> tiles(p);
    work w;
    while (tiles.pop(w)) {
        // Main loop
        gemv_lane<Config> mine(p, w, wave);
        constexpr i32 step = tile::terms * tile::vector;
        i32 k = w.k_begin + lane * tile::vector;
        [[maybe_unused]] i32 turns = 0;
        PG_ROLLED
        for (; w.k_end - k >= (tile::unroll - 1) * step + tile::vector; k += tile::unroll * step) {
            mine.template chunks<tile::unroll>(k, step, ahead);
            if constexpr (vendor::wave_size == 1) {
                if (++turns % 64 == 0) mine.fold();
            }
        }
        if constexpr (tile::unroll > 1) {
            PG_ROLLED
            for (; w.k_end - k >= tile::vector; k += step) mine.template chunks<1>(k, step, ahead);
        }
        ahead.wait();
        mine.rest(k, w.k_end);

        // Sums of all lanes, always in the same order. Two barriers are enough for tile after tile: between a read of
        // `sum` or `part` and the next write of it lies the other one's.
        PG_UNROLL
        for (i32 r = 0; r < tile::m; r++) {
            PG_UNROLL
            for (i32 c = 0; c < tile::wave_n; c++) {
                shared.sum[(r * tile::n + wave * tile::wave_n + c) * tile::pitch + lane] = mine.total(r, c);
            }
        }
        vendor::barrier(int(scope::block));
        constexpr i32 each = tile::terms / tile::parts;
        for (i32 t = thread; t < tile::parts * tile::outputs; t += tile::threads) {
            const f32* from = shared.sum + t % tile::outputs * tile::pitch + t / tile::outputs * each;
            f32 x = from[0];
            for (i32 i = 1; i < each; i++) x += from[i];
            shared.part[t] = x;
        }
        vendor::barrier(int(scope::block));

        // Epilogue
        const typename Config::epilogue epilogue(p, w);
        element_d* d = output_of<element_d>(p, w);
        for (i32 o = thread; o < tile::outputs; o += tile::threads) {
            const i32 m = w.m + o / tile::n, n = w.n + o % tile::n;
            f32 x = shared.part[o];
            for (i32 i = 1; i < tile::parts; i++) x += shared.part[i * tile::outputs + o];
            if (m < p.m && n < p.n)
                d[i64(m) * p.d.row + i64(n) * p.d.col] = from_f32<element_d>(epilogue.apply(x, m, n));
        }
    }
    ahead.wait();  // also where there was no tile
}

}  // namespace pg
