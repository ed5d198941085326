// The instructions of backends/cuda/include/portagemm/arch/sm80_instructions.hpp, emulated.
#pragma once
#include <portagemm/dtypes.hpp>

namespace pg::arch {

namespace emulator = vendor::emulator;

template <bool Transpose>
inline void ldmatrix_x4(u32 (&r)[4], const u8* row) {
    auto& lane = emulator::self();
    if ((row - emulator::shared()) % 16 != 0) emulator::now->error = "ldmatrix from an address that is not aligned";
    lane.row = row;
    lane.transpose = Transpose;
    emulator::meet(emulator::meeting::ldmatrix);
    for (i32 j = 0; j < 4; j++) r[j] = emulator::self().a[j];
}

inline void mma(f32* (&c)[4], const u32* a, u32 b0, u32 b1, bool bf16, bool tf32) {
    auto& lane = emulator::self();
    for (i32 i = 0; i < 4; i++) {
        lane.a[i] = a[i];
        lane.c[i] = *c[i];
    }
    lane.b[0] = b0;
    lane.b[1] = b1;
    lane.bf16 = bf16;
    lane.tf32 = tf32;
    emulator::meet(emulator::meeting::mma);
    for (i32 i = 0; i < 4; i++) *c[i] = emulator::self().c[i];
}

template <class T>
inline void mma_m16n8k16(f32& c0, f32& c1, f32& c2, f32& c3, const u32 (&a)[4], u32 b0, u32 b1) {
    f32* c[4] = {&c0, &c1, &c2, &c3};
    mma(c, a, b0, b1, same_type<T, pg::bf16>, false);
}
inline void mma_m16n8k8_tf32(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    f32* c[4] = {&d[0], &d[1], &d[2], &d[3]};
    mma(c, a, b[0], b[1], false, true);
}
inline u32 round_to_tf32(f32 x) { return (vendor::fp32_to_bits(x) + 0x1000) & ~0x1fffu; }

template <class T>
inline void hold(T&) {}

template <int Width>
inline void copy_part(u8* stage, const void* from, i32 valid) {
    auto& lane = emulator::self();
    const emulator::copy c{stage, from, Width, valid, lane.group};
    if (emulator::now->eager) {
        c.land();
    } else {
        lane.pending.push_back(c);
    }
}
template <int Width>
inline void copy_chunk(u8* stage, const void* from, bool inside) {
    copy_part<Width>(stage, from, inside ? Width : 0);
}

inline void close_copy_group() { emulator::self().group++; }
template <int Pending>
inline void wait_copy_groups() {
    auto& lane = emulator::self();
    std::vector<emulator::copy> left;
    for (const auto& c : lane.pending) {
        if (c.group < lane.group - Pending) {
            c.land();
        } else {
            left.push_back(c);
        }
    }
    lane.pending = left;
}

}  // namespace pg::arch
