// Matrix atoms of gfx1100 (RDNA3): AMD "RDNA3" Instruction Set Architecture, 7.9 (Wave Matrix Multiply Accumulate), and
// AMD's matrix instruction calculator (--architecture rdna3). One block of 16 x 16 x 16 by a wave of 32:
//   A  element i: row lane % 16, k = i        B  element i: column lane % 16, k = i
//   C  register r: row 2 * r + lane / 16, column lane % 16
// A and B are held twice: the ISA asks that lanes 16-31 hold what lanes 0-15 do, and here they read it.
#pragma once
#include <portagemm/arch/mfma.hpp>

#if defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__)
#define PG_HAS_GFX1100 1
#else
#define PG_HAS_GFX1100 0
#endif
#define PG_GFX1100(mnemonic, expression) PG_INSTRUCTION(PG_HAS_GFX1100, "gfx1100", mnemonic, expression)

namespace pg::arch::gfx1100 {

template <class Element, class Sum = f32>
struct wmma_shape {
    using element = Element;
    using sum = Sum;
    static constexpr i32 m = 16, n = 16, k = 16, held = 16, c_size = 8;
    using words = typename vector_of<u32, held * i32(sizeof(Element)) / 4>::type;
};

struct f32_16x16x16_f16 : wmma_shape<fp16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX1100("v_wmma_f32_16x16x16_f16",
                   __builtin_amdgcn_wmma_f32_16x16x16_f16_w32((halves<16>)a, (halves<16>)b, c));
    }
};
struct f32_16x16x16_bf16 : wmma_shape<bf16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX1100("v_wmma_f32_16x16x16_bf16",
                   __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32((shorts<16>)a, (shorts<16>)b, c));
    }
};
// Both operands signed, no saturation.
struct i32_16x16x16_i8 : wmma_shape<int8, i32> {
    using signed_words = typename vector_of<i32, 4>::type;
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX1100("v_wmma_i32_16x16x16_iu8",
                   __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, (signed_words)a, true, (signed_words)b, c, false));
    }
};

template <class Instruction>
struct wmma {
    using element = typename Instruction::element;
    using sum = typename Instruction::sum;
    static constexpr i32 lanes = 32;
    static constexpr i32 m = 16, n = 16, k = 16;
    static constexpr i32 a_size = Instruction::held, b_size = a_size, c_size = Instruction::c_size;
    static constexpr i32 a_run = a_size, b_run = b_size, c_run = 1;
    using fragment = lane_fragment<element, a_size>;
    using a_fragment = fragment;
    using b_fragment = fragment;

    PG_HD static constexpr coord a(i32 lane, i32 i) { return {lane % 16, i}; }
    PG_HD static constexpr coord b(i32 lane, i32 i) { return {lane % 16, i}; }
    PG_HD static constexpr coord c(i32 lane, i32 r) { return {2 * r + lane / 16, lane % 16}; }

    template <class Stage>
    PG_DEVICE static void read_a(a_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        f.template read<Stage>(stage, mn, kk, lane, [](i32 l, i32 i) { return a(l, i); });
    }
    template <class Stage>
    PG_DEVICE static void read_b(b_fragment& f, const u8* stage, i32 mn, i32 kk, i32 lane) {
        f.template read<Stage>(stage, mn, kk, lane, [](i32 l, i32 i) { return b(l, i); });
    }

    PG_DEVICE static void mma(sum (&acc)[c_size], const fragment& fa, const fragment& fb) {
        typename vector_of<sum, c_size>::type total;
        __builtin_memcpy(&total, acc, sizeof(total));
        using words = typename Instruction::words;
        total = Instruction::issue(fa.template words<words>(0), fb.template words<words>(0), total);
        __builtin_memcpy(acc, &total, sizeof(total));
    }
};

// By the names the profiles use.
template <class T>
struct by_element;
template <>
struct by_element<fp16> {
    using wmma_16x16x16 = f32_16x16x16_f16;
};
template <>
struct by_element<bf16> {
    using wmma_16x16x16 = f32_16x16x16_bf16;
};
template <class T>
using wmma_16x16x16 = wmma<typename by_element<T>::wmma_16x16x16>;
using wmma_16x16x16_i8 = wmma<i32_16x16x16_i8>;

#if defined(PG_CHECK_MAPS)  // as in gfx90a.hpp
static_assert(maps_are_sound<wmma_16x16x16<fp16>>() && maps_are_sound<wmma_16x16x16<bf16>>());
static_assert(maps_are_sound<wmma_16x16x16_i8>());
#endif

}  // namespace pg::arch::gfx1100
