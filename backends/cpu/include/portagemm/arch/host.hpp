// The host's matrix atom and its copies. The atom covers a whole stage's depth of K: its operands are read from
// memory by descriptor (a pointer), as wgmma's are, so that its accumulators stay in vector registers all that time.
#pragma once
#include <portagemm/concepts.hpp>
#include <portagemm/copy.hpp>

namespace pg::arch {

#if defined(__AVX512F__)
constexpr i32 vector_width = 16;  // fp32 lanes of a vector register
#elif defined(__AVX__)
constexpr i32 vector_width = 8;
#else
constexpr i32 vector_width = 4;
#endif
using vec = f32 __attribute__((vector_size(vector_width * 4)));
using unaligned_vec = f32 __attribute__((vector_size(vector_width * 4), aligned(4)));

// Stage of A: rows as they are, along K or along M; the microkernel broadcasts single elements of it.
template <int MN, int K, major Major>
struct row_stage {
    using element = f32;
    static constexpr major order = Major;
    static constexpr i32 mn = MN, k = K, alignment = 64;
    static constexpr i32 mn_step = Major == major::k ? K : 1, k_step = Major == major::k ? 1 : MN;
    static constexpr i32 size = MN * K * 4;
    static constexpr i32 offset(i32 mn_index, i32 k_index) { return (mn_index * mn_step + k_index * k_step) * 4; }
};

// Stage of B: panels of P columns, so that a step of K is P floats side by side: offset = ((n / P) * K + k) * P + n % P.
template <int MN, int K, int P>
struct panel_stage {
    using element = f32;
    static constexpr major order = major::mn;
    static constexpr i32 mn = MN, k = K, panel = P, alignment = 64;
    static constexpr i32 size = MN * K * 4;
    static constexpr i32 offset(i32 mn_index, i32 k_index) {
        return (((mn_index / P) * K + k_index) * P + mn_index % P) * 4;
    }
};

// M x (Vectors * vector_width) outputs in registers over K steps: 6 x 2 vectors fill 16 registers on AVX2.
template <int M, int Vectors, int K>
struct host_panel {
    using element = f32;
    static constexpr i32 lanes = 1, m = M, n = Vectors * vector_width, k = K;
    static constexpr i32 c_size = m * n, c_run = n;
    struct a_fragment {
        const f32* at;
        i32 mn_step, k_step;
    };
    struct b_fragment {
        const f32* at;
    };
    PG_HD static constexpr coord c(i32, i32 i) { return {i / n, i % n}; }

    template <class Stage>
    PG_DEVICE static void read_a(a_fragment& f, const u8* stage, i32 mn, i32 kk, i32) {
        f = {reinterpret_cast<const f32*>(stage + Stage::offset(mn, kk)), Stage::mn_step, Stage::k_step};
    }
    template <class Stage>
    PG_DEVICE static void read_b(b_fragment& f, const u8* stage, i32 mn, i32 kk, i32) {
        static_assert(Stage::panel == n);
        f = {reinterpret_cast<const f32*>(stage + Stage::offset(mn, kk))};
    }

    // A stage's sum starts anew and is added whole: rounding errors of equal sign grow with K / stage, not with K.
    PG_DEVICE static void mma(f32 (&acc)[c_size], const a_fragment& a, const b_fragment& b) {
        vec sum[M][Vectors];
#pragma GCC unroll 32
        for (i32 i = 0; i < M; i++) {
#pragma GCC unroll 4
            for (i32 v = 0; v < Vectors; v++) sum[i][v] = vec{};
        }
        for (i32 kk = 0; kk < K; kk++) {
            vec right[Vectors];
#pragma GCC unroll 4
            for (i32 v = 0; v < Vectors; v++) {
                right[v] = *reinterpret_cast<const vec*>(b.at + kk * n + v * vector_width);
            }
#pragma GCC unroll 32
            for (i32 i = 0; i < M; i++) {
                const f32 left = a.at[i * a.mn_step + kk * a.k_step];
#pragma GCC unroll 4
                for (i32 v = 0; v < Vectors; v++) sum[i][v] += left * right[v];
            }
        }
#pragma GCC unroll 32
        for (i32 i = 0; i < M; i++) {
#pragma GCC unroll 4
            for (i32 v = 0; v < Vectors; v++) {
                *reinterpret_cast<unaligned_vec*>(&acc[i * n + v * vector_width]) += sum[i][v];
            }
        }
    }
};

#if defined(__AVX512F__)
template <int K>
using host_atom = host_panel<12, 2, K>;
#else
template <int K>
using host_atom = host_panel<6, 2, K>;
#endif

// Packs a tile into its stage, converting to fp32 on the way. One thread does it all, so there is nothing to hold in
// registers between fetch and commit, and no chunk to choose: rows along the contiguous dimension are converted whole.
template <class Element, class Stage, major Global>
struct pack_copy {
    using element = Element;
    static constexpr bool asynchronous = false;
    struct registers {};

    PG_DEVICE static void fetch(registers&, const tile_source& s, u8* stage, i32 k, i32, no_token) {
        const Element* from = static_cast<const Element*>(s.ptr) + i64(s.mn) * s.row + i64(k) * s.col;
        const i32 mn_end = min(Stage::mn, s.mn_end - s.mn), k_end = min(Stage::k, s.k_end - k);
        if constexpr (Global == major::k) {
            constexpr i32 block = vector_width;  // rows transposed together, so that writes are whole vectors
            if constexpr (Stage::order == major::k) {
                for (i32 i = 0; i < Stage::mn; i++) {
                    row(reinterpret_cast<f32*>(stage + Stage::offset(i, 0)), from + i64(i) * s.row,
                        i < mn_end ? k_end : 0, Stage::k);
                }
            } else {
                for (i32 i = 0; i < Stage::mn; i += block) {
                    transpose<block>(stage, from + i64(i) * s.row, s.row, i, mn_end - i, k_end);
                }
            }
        } else if constexpr (Global == major::mn && Stage::order == major::mn) {
            for (i32 kk = 0; kk < Stage::k; kk++) {
                const i32 step = contiguous();
                for (i32 i = 0; i < Stage::mn; i += step) {
                    row(reinterpret_cast<f32*>(stage + Stage::offset(i, kk)), from + i64(kk) * s.col + i,
                        kk < k_end ? mn_end - i : 0, step);
                }
            }
        } else {
            for (i32 i = 0; i < Stage::mn; i++) {
                for (i32 kk = 0; kk < Stage::k; kk++) {
                    const bool inside = i < mn_end && kk < k_end;
                    *reinterpret_cast<f32*>(stage + Stage::offset(i, kk)) =
                        inside ? to_f32(from[i64(i) * s.row + i64(kk) * s.col]) : 0.0f;
                }
            }
        }
    }
    PG_DEVICE static void commit(registers&, u8*, i32) {}

  private:
    // Elements that follow each other in an MN-major stage.
    static constexpr i32 contiguous() {
        if constexpr (requires { Stage::panel; }) {
            return Stage::panel;
        } else {
            return Stage::mn;
        }
    }

    // `valid` elements, then zeros up to `length`.
    PG_DEVICE static void row(f32* to, const Element* from, i32 valid, i32 length) {
        valid = max(0, min(valid, length));
        i32 i = 0;
        for (; i < valid; i++) to[i] = to_f32(from[i]);
        for (; i < length; i++) to[i] = 0.0f;
    }

    // Rows first .. first + Rows - 1 of a K-major operand into columns of an MN-major stage.
    template <int Rows>
    PG_DEVICE static void transpose(u8* stage, const Element* from, i64 stride, i32 first, i32 rows, i32 k_end) {
        constexpr i32 steps = 16;
        alignas(64) f32 line[Rows][steps];
        for (i32 kk = 0; kk < Stage::k; kk += steps) {
            for (i32 r = 0; r < Rows; r++) {
                row(line[r], from + i64(r) * stride + kk, r < rows ? k_end - kk : 0, steps);
            }
            for (i32 s = 0; s < steps; s++) {
                f32* to = reinterpret_cast<f32*>(stage + Stage::offset(first, kk + s));
#pragma GCC unroll 16
                for (i32 r = 0; r < Rows; r++) to[r] = line[r][s];
            }
        }
    }
};

}  // namespace pg::arch
