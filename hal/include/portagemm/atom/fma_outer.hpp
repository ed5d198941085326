// fp32 fused multiply-add as outer products: a lane multiplies 4 rows by 4 columns, one step of K at a time. It is for
// machines where reads of shared memory are what a product waits for: both operands lie MN-major, whatever their order
// in memory, so that a lane's 4 elements are one 16-byte read at an address that K only displaces by a constant.
#pragma once
#include <portagemm/concepts.hpp>
#include <portagemm/dtypes.hpp>

namespace pg {

// One stage of one operand: K rows of MN elements. Rows are 16 bytes longer than they are wide, so that elements that
// follow each other along K lie 4 banks apart: a K-major operand is transposed on its way in, and a wave's stores of
// 4 bytes would all meet in one bank otherwise. Offsets are linear, unlike a swizzle's: no lane computes one twice.
template <class T, int MN, int K>
struct padded_stage {
    static_assert(sizeof(T) == 4 && MN % 4 == 0);
    using element = T;
    static constexpr major order = major::mn;
    static constexpr i32 mn = MN, k = K;
    static constexpr i32 pitch = MN + 4;
    static constexpr i32 size = K * pitch * i32(sizeof(T));
    static constexpr i32 alignment = 128;
    static constexpr i32 run = 4;

    PG_HD static constexpr i32 offset(i32 mn_index, i32 k_index) {
        return (k_index * pitch + mn_index) * i32(sizeof(T));
    }
    PG_HD static constexpr i32 moved(i32 at, i32 by_mn, i32 by_k) { return at + offset(by_mn, by_k); }
};

// Lanes form a grid of lanes_m x 8 in which lane bits 1 to 3 count columns. Then of every two lanes side by side both
// read the same 16 bytes of B, and of every two that are two apart, of A: such reads of a wave take two passes over the
// banks, not four.
template <int WaveSize>
struct fma_outer {
    static_assert(WaveSize == 32 || WaveSize == 64);
    using element = f32;
    static constexpr i32 lanes = WaveSize;
    static constexpr bool one_tile = true;  // a block: nothing is worked out for the next and held during the main loop
    static constexpr i32 lanes_n = 8, lanes_m = WaveSize / lanes_n;
    static constexpr i32 m = lanes_m * 4, n = lanes_n * 4, k = 1;
    static constexpr i32 a_size = 4, b_size = 4, c_size = 16;
    static constexpr i32 a_run = 1, b_run = 1, c_run = 4;
    struct alignas(16) a_fragment {  // read as one chunk
        f32 x[a_size];
    };
    struct alignas(16) b_fragment {
        f32 x[b_size];
    };

    PG_HD static constexpr i32 lane_m(i32 lane) { return lane % 2 + lane / 16 * 2; }
    PG_HD static constexpr i32 lane_n(i32 lane) { return lane / 2 % lanes_n; }
    PG_HD static constexpr coord a(i32 lane, i32 i) { return {lane_m(lane) * 4 + i, 0}; }
    PG_HD static constexpr coord b(i32 lane, i32 i) { return {lane_n(lane) * 4 + i, 0}; }
    PG_HD static constexpr coord c(i32 lane, i32 i) { return {lane_m(lane) * 4 + i / 4, lane_n(lane) * 4 + i % 4}; }

    // A lane's place for the atom at (mn, 0); all its other reads lie constants away.
    template <class Stage>
    PG_DEVICE static i32 place_a(i32 mn, i32 lane) {
        return Stage::offset(mn + lane_m(lane) * 4, 0);
    }
    template <class Stage>
    PG_DEVICE static i32 place_b(i32 mn, i32 lane) {
        return Stage::offset(mn + lane_n(lane) * 4, 0);
    }
    template <class Stage>
    PG_DEVICE static void read_a_at(a_fragment& f, const u8* stage, i32 place, i32 by_mn, i32 by_k) {
        read_at<Stage>(f.x, stage, place, by_mn, by_k);
    }
    template <class Stage>
    PG_DEVICE static void read_b_at(b_fragment& f, const u8* stage, i32 place, i32 by_mn, i32 by_k) {
        read_at<Stage>(f.x, stage, place, by_mn, by_k);
    }

    template <class Stage>
    PG_DEVICE static void read_a(a_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        read_a_at<Stage>(f, stage, place_a<Stage>(mn, lane), 0, kk);
    }
    template <class Stage>
    PG_DEVICE static void read_b(b_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        read_b_at<Stage>(f, stage, place_b<Stage>(mn, lane), 0, kk);
    }

    PG_DEVICE static void mma(f32 (&acc)[c_size], const a_fragment& fa, const b_fragment& fb) {
        PG_UNROLL
        for (i32 i = 0; i < 4; i++) {
            PG_UNROLL
            for (i32 j = 0; j < 4; j++) acc[i * 4 + j] = vendor::fma(fa.x[i], fb.x[j], acc[i * 4 + j]);
        }
    }

  private:
    template <class Stage>
    PG_DEVICE static void read_at(f32 (&x)[4], const u8* stage, i32 place, i32 by_mn, i32 by_k) {
        static_assert(Stage::order == major::mn, "a lane's rows must follow each other");
        const u8* from = stage + place + Stage::offset(by_mn, by_k);
        *reinterpret_cast<bytes<16>*>(x) = *reinterpret_cast<const bytes<16>*>(from);
    }
};

#if defined(PG_CHECK_MAPS)  // a second of a compiler's interpreter: the tests of the maps ask for it
static_assert(maps_are_sound<fma_outer<32>>() && maps_are_sound<fma_outer<64>>());
#endif

}  // namespace pg
