// The matrix atom every machine has: fp32 fused multiply-add, one block of 4 x 4 outputs a lane, four steps of K.
// Any operand dtype is converted to fp32 on its way into the stage, so this is also the reference for all others.
#pragma once
#include <portagemm/concepts.hpp>
#include <portagemm/dtypes.hpp>
#include <portagemm/operand_path.hpp>

namespace pg {

// Lanes form a grid of lanes_m x lanes_n; a lane's rows and columns are that many apart, so that lanes side by side
// read rows side by side: in a swizzled stage these are different banks, and their stores are neighbours.
template <int WaveSize>
struct fma_atom {
    static_assert(is_power_of_two(WaveSize) && WaveSize <= 64);
    using element = f32;
    static constexpr i32 lanes = WaveSize;
    static constexpr i32 lanes_n = min(WaveSize, 8), lanes_m = WaveSize / lanes_n;
    static constexpr i32 m = lanes_m * 4, n = lanes_n * 4, k = 4;
    static constexpr i32 a_size = 16, b_size = 16, c_size = 16;
    static constexpr i32 a_run = 4, b_run = 4, c_run = 1;
    struct alignas(16) a_fragment {  // read as whole chunks
        f32 x[a_size];
    };
    struct alignas(16) b_fragment {
        f32 x[b_size];
    };

    PG_HD static constexpr coord a(i32 lane, i32 i) { return {lane / lanes_n + lanes_m * (i / 4), i % 4}; }
    PG_HD static constexpr coord b(i32 lane, i32 i) { return {lane % lanes_n + lanes_n * (i / 4), i % 4}; }
    PG_HD static constexpr coord c(i32 lane, i32 i) {
        return {lane / lanes_n + lanes_m * (i / 4), lane % lanes_n + lanes_n * (i % 4)};
    }

    template <class Stage>
    PG_DEVICE static void read_a(a_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        read_by_map<Stage, a_run>(f.x, stage, mn, kk, lane, [](i32 l, i32 i) { return a(l, i); });
    }
    template <class Stage>
    PG_DEVICE static void read_b(b_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        read_by_map<Stage, b_run>(f.x, stage, mn, kk, lane, [](i32 l, i32 i) { return b(l, i); });
    }

    PG_DEVICE static void mma(f32 (&acc)[c_size], const a_fragment& fa, const b_fragment& fb) {
        PG_UNROLL
        for (i32 kk = 0; kk < k; kk++) {
            PG_UNROLL
            for (i32 i = 0; i < 4; i++) {
                PG_UNROLL
                for (i32 j = 0; j < 4; j++) {
                    acc[i * 4 + j] = vendor::fma(fa.x[i * 4 + kk], fb.x[j * 4 + kk], acc[i * 4 + j]);
                }
            }
        }
    }
};

#if defined(PG_CHECK_MAPS)  // a second of a compiler's interpreter: the tests of the maps ask for it
static_assert(maps_are_sound<fma_atom<1>>() && maps_are_sound<fma_atom<32>>() && maps_are_sound<fma_atom<64>>());
#endif

}  // namespace pg
