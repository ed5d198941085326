// Skinny GEMM: D = act(alpha * A * B^T + beta * C + bias) for an A of a few dozen rows, at the speed of reading B once.
// A body of its own, without stages: a wave reads rows of B along K straight into the fragments of a matrix atom, with
// operands exchanged (rows of B are the atom's m, rows of A its n). The atom's `streamed` says how: K is permuted, alike
// for A and B, so that a lane's 16 bytes are its fragments. Waves share K; their sums meet in shared memory.
#pragma once
#include <kernels/gemv.hpp>

namespace pg {

// What a block does: Rows of A by Columns of B; WavesK waves share K, WavesN lie beside each other along N. Unroll chunks
// of K are on their way at a time.
template <class Streamed, int Rows, int Columns, int WavesK, int WavesN, int Unroll>
struct skinny_tile {
    using atom = Streamed;
    static constexpr i32 m = Rows, n = Columns, k = atom::chunk_k;
    static constexpr i32 waves_k = WavesK, waves_n = WavesN, unroll = Unroll;
    static constexpr i32 wave_n = Columns / WavesN;
    static constexpr i32 atoms_b = wave_n / atom::m, atoms_a = Rows / atom::n;
    static constexpr i32 threads = WavesK * WavesN * vendor::wave_size;
    static constexpr i32 group = Unroll * atom::chunk_k;  // of K, what a wave takes at a time
    // A lane's sums are in rows 2i and 2i + 1 of A: two rows 8 banks apart, four lanes side by side cover all banks.
    static constexpr i32 pitch = Columns + 4;
    static_assert(atoms_b * atom::m == wave_n && wave_n * WavesN == Columns && atoms_a * atom::n == Rows);
    struct shared {
        f32 sum[WavesK][Rows * pitch];
    };
};

// Neighbouring elements of K that a lane holds of one row.
template <class Element, int Vector>
struct alignas(16) streamed_chunk {
    Element value[Vector];
};

// The first `valid` elements of a chunk from `from` on, `step` apart, and zeros; Width bytes at a time where they are
// neighbours and all are valid. Once: nobody will read them again.
template <int Width, bool Neighbours, bool Whole, bool Once, class T, int Vector>
PG_DEVICE void streamed_load(T (&to)[Vector], const T* from, i64 step, i32 valid) {
    if constexpr (Whole) {
        gemv_detail::load<Width, Neighbours, Once>(to, from, step);
    } else {
        PG_UNROLL
        for (i32 v = 0; v < Vector; v++) to[v] = v < valid ? from[v * step] : T{};
    }
}

// One wave's sums over its part of K. Rows and columns past the end repeat the last one: nobody stores them.
template <class Config>
struct skinny_wave {
    using tile = typename Config::tile;
    using atom = typename tile::atom;
    using element = typename Config::element;
    static constexpr i32 vector = atom::chunk;  // elements of K that a lane holds of each of its rows
    const i64 step_a;
    const element* rows_a[tile::atoms_a * atom::rows_n];
    const element* rows_b[tile::atoms_b * atom::rows_m];
    f32 sum[tile::atoms_b][tile::atoms_a][atom::c_size];

    using chunk = streamed_chunk<element, vector>;
    using chunks_a = chunk[tile::unroll][tile::atoms_a * atom::rows_n];
    using chunks_b = chunk[tile::unroll][tile::atoms_b * atom::rows_m];

    PG_DEVICE skinny_wave(const gemm_params& p, const work& w, i32 wave_n, i32 lane) : step_a(p.a.col) {
        const element* a = static_cast<const element*>(p.a.ptr) + batch_offset(p.a, p, w.batch);
        const element* b = static_cast<const element*>(p.b.ptr) + batch_offset(p.b, p, w.batch);
        const i32 k = atom::k_of(lane);
        PG_UNROLL
        for (i32 r = 0; r < tile::atoms_a * atom::rows_n; r++) {
            rows_a[r] = a + i64(min(w.m + atom::row_n(lane, r), p.m - 1)) * p.a.row + k * step_a;
        }
        PG_UNROLL
        for (i32 r = 0; r < tile::atoms_b * atom::rows_m; r++) {
            rows_b[r] = b + i64(min(w.n + wave_n * tile::wave_n + atom::row_m(lane, r), p.n - 1)) * p.b.row + k;
        }
        PG_UNROLL
        for (i32 i = 0; i < tile::atoms_b; i++) {
            PG_UNROLL
            for (i32 j = 0; j < tile::atoms_a; j++) {
                PG_UNROLL
                for (i32 x = 0; x < atom::c_size; x++) sum[i][j][x] = 0.0f;
            }
        }
    }

    // Elements of a chunk that lie within K. `left`: from the wave's first on.
    template <bool Whole>
    PG_DEVICE static i32 valid(i32 left, i32 u, i32 lane) {
        return Whole ? vector : max(0, min(vector, left - u * atom::chunk_k - atom::k_of(lane)));
    }
    // Count chunks from k on; whole ones do not look where K ends.
    template <int Count, bool Whole>
    PG_DEVICE void read_b(chunks_b& to, i32 k, i32 left, i32 lane) const {
        PG_UNROLL
        for (i32 u = 0; u < Count; u++) {
            PG_UNROLL
            for (i32 r = 0; r < tile::atoms_b * atom::rows_m; r++) {
                streamed_load<Config::width_b, true, Whole, true>(to[u][r].value, rows_b[r] + k + u * atom::chunk_k, 1,
                                                                  valid<Whole>(left, u, lane));
            }
        }
    }
    template <int Count, bool Whole>
    PG_DEVICE void read_a(chunks_a& to, i32 k, i32 left, i32 lane) const {
        constexpr bool neighbours = Config::major_a == major::k;
        PG_UNROLL
        for (i32 u = 0; u < Count; u++) {
            PG_UNROLL
            for (i32 r = 0; r < tile::atoms_a * atom::rows_n; r++) {
                streamed_load<Config::width_a, neighbours, Whole, false>(
                    to[u][r].value, rows_a[r] + i64(k + u * atom::chunk_k) * step_a, step_a,
                    valid<Whole>(left, u, lane));
            }
        }
    }

    template <int Count>
    PG_DEVICE void multiply(const chunks_a& a, const chunks_b& b) {
        PG_UNROLL
        for (i32 u = 0; u < Count; u++) {
            PG_UNROLL
            for (i32 i = 0; i < tile::atoms_b; i++) {
                PG_UNROLL
                for (i32 j = 0; j < tile::atoms_a; j++) {
                    atom::mma(sum[i][j], &b[u][i * atom::rows_m], &a[u][j * atom::rows_n]);
                }
            }
        }
    }
};

template <class Config>
PG_DEVICE void skinny(const gemv_args& args) {
    using tile = typename Config::tile;
    using atom = typename tile::atom;
    using element_d = typename Config::element_d;

    // Set-up
    vendor::let_next_kernel_start();
    const gemm_params& p = args.params;
    auto& shared = *reinterpret_cast<typename tile::shared*>(vendor::shared_memory());
    const i32 thread = vendor::thread(), wave = thread / vendor::wave_size, lane = thread % vendor::wave_size;
    const i32 wave_k = wave % tile::waves_k, wave_n = wave / tile::waves_k;
    kernel_ahead ahead(args);

    const auto compute = [&](const work& w) {
        // Main loop. What no kernel in flight writes is read before the kernel ahead has ended.
        skinny_wave<Config> mine(p, w, wave_n, lane);
        typename skinny_wave<Config>::chunks_a a;
        typename skinny_wave<Config>::chunks_b b;
        i32 k = w.k_begin + wave_k * tile::group;
        PG_ROLLED
        for (; w.k_end - k >= tile::group; k += tile::waves_k * tile::group) {
            mine.template read_b<tile::unroll, true>(b, k, 0, lane);
            ahead.wait();
            mine.template read_a<tile::unroll, true>(a, k, 0, lane);
            mine.template multiply<tile::unroll>(a, b);
        }
        ahead.wait();
        // What is left of K, less than a group, a chunk a wave: those go on that had fewer groups.
        const i32 groups = (w.k_end - w.k_begin) / tile::group;
        k = w.k_begin + groups * tile::group +
            (wave_k + tile::waves_k - groups % tile::waves_k) % tile::waves_k * tile::k;
        PG_ROLLED
        for (; k < w.k_end; k += tile::waves_k * tile::k) {
            const i32 left = w.k_end - k;
            if (left >= tile::k) {
                mine.template read_b<1, true>(b, k, left, lane);
                mine.template read_a<1, true>(a, k, left, lane);
            } else {
                mine.template read_b<1, false>(b, k, left, lane);
                mine.template read_a<1, false>(a, k, left, lane);
            }
            mine.template multiply<1>(a, b);
        }

        // Sums of all waves, always in the same order
        f32* sums = shared.sum[wave_k];
        PG_UNROLL
        for (i32 i = 0; i < tile::atoms_b; i++) {
            PG_UNROLL
            for (i32 j = 0; j < tile::atoms_a; j++) {
                PG_UNROLL
                for (i32 x = 0; x < atom::c_size; x++) {
                    const coord at = atom::c(lane, x);
                    sums[(j * atom::n + at.col) * tile::pitch + wave_n * tile::wave_n + i * atom::m + at.row] =
                        mine.sum[i][j][x];
                }
            }
        }
        vendor::barrier(int(scope::block));

        // Epilogue
        const typename Config::epilogue epilogue(p, w);
        element_d* d = output_of<element_d>(p, w);
        PG_ROLLED
        for (i32 o = thread; o < tile::m * tile::n; o += tile::threads) {
            const i32 m = w.m + o / tile::n, n = w.n + o % tile::n;
            if (m >= p.m || n >= p.n) continue;
            const i32 at = o / tile::n * tile::pitch + o % tile::n;
            f32 x = shared.sum[0][at];
            PG_UNROLL
            for (i32 s = 1; s < tile::waves_k; s++) x += shared.sum[s][at];
            d[i64(m) * p.d.row + i64(n) * p.d.col] = from_f32<element_d>(epilogue.apply(x, m, n));
        }
    };

    // One matrix, K in one piece, a block a tile: no division stands before the first load.
    if constexpr (Config::flat) {
        compute(work{0, 0, i32(vendor::block()) * tile::n, 0, p.k, 0});
    } else {
        tile_scheduler<tile, 1, 1> tiles(p);
        work w;
        while (tiles.pop(w)) {
            compute(w);
            vendor::barrier(int(scope::block));  // sums of this tile have been read
        }
        ahead.wait();  // also where there was no tile
    }
}

}  // namespace pg
