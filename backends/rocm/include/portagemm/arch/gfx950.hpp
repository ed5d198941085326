// Matrix atoms of gfx950 (MI350): those of gfx942, and twice as deep ones with 16 bytes a lane. AMD "CDNA4" Instruction
// Set Architecture, chapter 7 (--architecture cdna4 in AMD's matrix instruction calculator).
#pragma once
#include <portagemm/arch/gfx942.hpp>

#if defined(__gfx950__)
#define PG_HAS_GFX950 1
#else
#define PG_HAS_GFX950 0
#endif
#define PG_GFX950(mnemonic, expression) PG_INSTRUCTION(PG_HAS_GFX950, "gfx950", mnemonic, expression)

namespace pg::arch::gfx950 {

using gfx942::mfma_16x16x4_f32;
using gfx942::mfma_32x32x2_f32;

#if defined(__gfx950__)
using brains = __attribute__((ext_vector_type(8))) __bf16;
#endif

struct f32_32x32x16_f16 : mfma_shape<32, 16, fp16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX950("v_mfma_f32_32x32x16_f16",
                  __builtin_amdgcn_mfma_f32_32x32x16_f16((halves<8>)a, (halves<8>)b, c, 0, 0, 0));
    }
};
struct f32_16x16x32_f16 : mfma_shape<16, 32, fp16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX950("v_mfma_f32_16x16x32_f16",
                  __builtin_amdgcn_mfma_f32_16x16x32_f16((halves<8>)a, (halves<8>)b, c, 0, 0, 0));
    }
};
struct f32_32x32x16_bf16 : mfma_shape<32, 16, bf16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX950("v_mfma_f32_32x32x16_bf16",
                  __builtin_amdgcn_mfma_f32_32x32x16_bf16(__builtin_bit_cast(brains, a), __builtin_bit_cast(brains, b),
                                                          c, 0, 0, 0));
    }
};
struct f32_16x16x32_bf16 : mfma_shape<16, 32, bf16> {
    template <class C>
    PG_DEVICE static C issue(words a, words b, C c) {
        PG_GFX950("v_mfma_f32_16x16x32_bf16",
                  __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(brains, a), __builtin_bit_cast(brains, b),
                                                          c, 0, 0, 0));
    }
};

// By the names the profiles use.
template <class T>
struct by_element;
template <>
struct by_element<fp16> {
    using mfma_32x32x16 = f32_32x32x16_f16;
    using mfma_16x16x32 = f32_16x16x32_f16;
};
template <>
struct by_element<bf16> {
    using mfma_32x32x16 = f32_32x32x16_bf16;
    using mfma_16x16x32 = f32_16x16x32_bf16;
};
template <class T>
using mfma_32x32x16 = mfma<typename by_element<T>::mfma_32x32x16, 1>;
template <class T>
using mfma_16x16x32 = mfma<typename by_element<T>::mfma_16x16x32, 1>;

#if defined(PG_CHECK_MAPS)  // as in gfx90a.hpp
static_assert(maps_are_sound<mfma_32x32x16<fp16>>() && maps_are_sound<mfma_16x16x32<fp16>>());
static_assert(maps_are_sound<mfma_32x32x16<bf16>>() && maps_are_sound<mfma_16x16x32<bf16>>());
#endif

}  // namespace pg::arch::gfx950
