// Matrix atoms of gfx942 (MI300): AMD "CDNA3" Instruction Set Architecture, chapter 7 (--architecture cdna3 in AMD's
// matrix instruction calculator). The 16-bit instructions are those of gfx90a by other names, and keep subnormals: only
// MI200 takes them for zero (PyTorch, "Numerical accuracy"; CDNA3 ISA, 7.1).
#pragma once
#include <portagemm/arch/mfma.hpp>

#if defined(__gfx942__) || defined(__gfx950__)
#define PG_HAS_GFX942 1
#else
#define PG_HAS_GFX942 0
#endif
#define PG_GFX942(mnemonic, expression) PG_INSTRUCTION(PG_HAS_GFX942, "gfx942", mnemonic, expression)

namespace pg::arch::gfx942 {

struct f32_32x32x8_f16 : mfma_shape<32, 8, fp16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX942("v_mfma_f32_32x32x8_f16",
                  __builtin_amdgcn_mfma_f32_32x32x8f16((halves<4>)a, (halves<4>)b, c, 0, 0, 0));
    }
};
struct f32_16x16x16_f16 : mfma_shape<16, 16, fp16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX942("v_mfma_f32_16x16x16_f16",
                  __builtin_amdgcn_mfma_f32_16x16x16f16((halves<4>)a, (halves<4>)b, c, 0, 0, 0));
    }
};
struct f32_32x32x8_bf16 : mfma_shape<32, 8, bf16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX942("v_mfma_f32_32x32x8_bf16",
                  __builtin_amdgcn_mfma_f32_32x32x8bf16_1k((shorts<4>)a, (shorts<4>)b, c, 0, 0, 0));
    }
};
struct f32_16x16x16_bf16 : mfma_shape<16, 16, bf16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX942("v_mfma_f32_16x16x16_bf16",
                  __builtin_amdgcn_mfma_f32_16x16x16bf16_1k((shorts<4>)a, (shorts<4>)b, c, 0, 0, 0));
    }
};
struct f32_32x32x2_f32 : mfma_shape<32, 2, f32> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX942("v_mfma_f32_32x32x2_f32",
                  __builtin_amdgcn_mfma_f32_32x32x2f32(vendor::bits_to_fp32(a), vendor::bits_to_fp32(b), c, 0, 0, 0));
    }
};
struct f32_16x16x4_f32 : mfma_shape<16, 4, f32> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX942("v_mfma_f32_16x16x4_f32",
                  __builtin_amdgcn_mfma_f32_16x16x4f32(vendor::bits_to_fp32(a), vendor::bits_to_fp32(b), c, 0, 0, 0));
    }
};
// Eight bytes a lane: the two-word operands count as one 64-bit integer.
struct i32_32x32x16_i8 : mfma_shape<32, 16, int8, i32> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX942("v_mfma_i32_32x32x16_i8", __builtin_amdgcn_mfma_i32_32x32x16_i8(
                                                __builtin_bit_cast(long, a), __builtin_bit_cast(long, b), c, 0, 0, 0));
    }
};
struct i32_16x16x32_i8 : mfma_shape<16, 32, int8, i32> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX942("v_mfma_i32_16x16x32_i8", __builtin_amdgcn_mfma_i32_16x16x32_i8(
                                                __builtin_bit_cast(long, a), __builtin_bit_cast(long, b), c, 0, 0, 0));
    }
};

// By the names the profiles use. These say the instruction; the atom's k is that of the chain.
template <class T>
struct by_element;
template <>
struct by_element<fp16> {
    using mfma_32x32x8 = f32_32x32x8_f16;
    using mfma_16x16x16 = f32_16x16x16_f16;
};
template <>
struct by_element<bf16> {
    using mfma_32x32x8 = f32_32x32x8_bf16;
    using mfma_16x16x16 = f32_16x16x16_bf16;
};
template <class T>
using mfma_32x32x8 = mfma<typename by_element<T>::mfma_32x32x8, 2>;  // k = 16
template <class T>
using mfma_16x16x16 = mfma<typename by_element<T>::mfma_16x16x16, 2>;  // k = 32
using mfma_32x32x2_f32 = mfma<f32_32x32x2_f32, 4>;                     // k = 8
using mfma_16x16x4_f32 = mfma<f32_16x16x4_f32, 4>;                     // k = 16
using mfma_32x32x16_i8 = mfma<i32_32x32x16_i8, 2>;                     // k = 32
using mfma_16x16x32_i8 = mfma<i32_16x16x32_i8, 2>;                     // k = 64

#if defined(PG_CHECK_MAPS)  // as in gfx90a.hpp
static_assert(maps_are_sound<mfma_32x32x8<fp16>>() && maps_are_sound<mfma_16x16x16<fp16>>());
static_assert(maps_are_sound<mfma_32x32x8<bf16>>() && maps_are_sound<mfma_16x16x16<bf16>>());
static_assert(maps_are_sound<mfma_32x32x2_f32>() && maps_are_sound<mfma_16x16x4_f32>());
static_assert(maps_are_sound<mfma<i32_32x32x16_i8, 1>>() && maps_are_sound<mfma_32x32x16_i8>());
static_assert(maps_are_sound<mfma<i32_16x16x32_i8, 1>>() && maps_are_sound<mfma_16x16x32_i8>());
#endif

}  // namespace pg::arch::gfx942
